"""Who imports whom: downward only, without circles, and nothing that is not needed."""

import ast
import doctest
import inspect
import os
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import tinynorm as tn
from tinynorm import table
from tinynorm.op import Op

PACKAGE = Path(tn.__file__).parent

ORDER = (
    "errors", "options", "extras", "formulas", "failures", "backend", "convert", "checks", "kernels", "op", "memory",
    "watch", "graph", "table", "tensor", "anomaly", "extend", "random", "subscripts", "array", "recorded",
    "derivatives", "functional", "nn", "inspect", "data", "optim", "checkpoint", "parallel", "testing", "bench",
    "info", "tinynorm", "__main__",
)  # fmt: skip
"""The files and folders of the package, from the ground up: each may import what stands left of it."""


def module_of(path):
    """tinynorm/nn/module.py as ("nn", "module"), tinynorm/nn/__init__.py as ("nn",)."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


FILES = {module_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imported_by(module):
    """The modules, of this package and of others, that a file imports anywhere: at its top, or inside of functions."""
    path = FILES[module]
    package = module if path.name == "__init__.py" else module[:-1]
    own, foreign = set(), set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = ("tinynorm", *package[: len(package) - node.level + 1]) if node.level else ()
            base = above + tuple((node.module or "").split(".") if node.module else ())
            names = [(*base, alias.name) for alias in node.names]
        else:
            continue
        for name in names:
            if name[0] != "tinynorm":
                foreign.add(name[0])
                continue
            inner = name[1:]
            while inner not in FILES:  # the name of something in a module: the module
                inner = inner[:-1]
            own.add(inner)
    return own, foreign


IMPORTS = {module: imported_by(module) for module in FILES}


def unit(module):
    return module[0] if module else "tinynorm"


def test_the_reader_of_imports_reads_them():
    assert ("formulas", "special") in IMPORTS["formulas", "elementary"][0]
    assert ("backend",) in IMPORTS["tensor",][0]
    assert ("errors",) in IMPORTS["nn", "module"][0]
    assert ("nn", "module") in IMPORTS["nn", "linear"][0]
    assert ("nn",) in IMPORTS[()][0]
    assert "cupy" in IMPORTS["backend",][1]  # which is imported inside of a function
    assert "numpy" in IMPORTS["tensor",][1]


def test_every_part_of_the_package_has_its_place_in_the_order():
    assert {unit(module) for module in FILES} == set(ORDER)


@pytest.mark.parametrize("name", ORDER)
def test_imports_point_downward(name):
    upward = {
        (".".join(module), ".".join(target))
        for module in FILES
        if unit(module) == name
        for target in IMPORTS[module][0]
        if unit(target) != name and ORDER.index(unit(target)) > ORDER.index(name)
    }
    assert not upward


def test_no_file_imports_in_a_circle():
    graph = {module: own - {module} for module, (own, _) in IMPORTS.items()}
    assert len(list(TopologicalSorter(graph).static_order())) == len(FILES)  # raises CycleError, naming the circle


def test_no_part_imports_the_whole():
    """A package's __init__ shows what is in it; it is not for the package's own files, except the command line."""
    inward = [
        (module, target)
        for module in FILES
        for target in IMPORTS[module][0]
        if module not in (target, ("__main__",)) and module[: len(target)] == target
    ]
    assert inward == []


FORMULAS = [module for module in FILES if module[:1] == ("formulas",)]


@pytest.mark.parametrize("module", FORMULAS, ids=".".join)
def test_formulas_import_the_mathematics_of_python_and_each_other(module):
    own, foreign = IMPORTS[module]
    assert {unit(target) for target in own} <= {"formulas"}
    assert foreign <= {"math", "typing"}


@pytest.mark.parametrize("module", FORMULAS, ids=".".join)
def test_formulas_name_no_array_module(module):
    names = {n.id for n in ast.walk(ast.parse(FILES[module].read_text(encoding="utf-8"))) if isinstance(n, ast.Name)}
    assert not names & {"np", "numpy", "cp", "cupy"}


@pytest.mark.parametrize(("package", "others"), [("formulas", {"types"}), ("testing", set())])
def test_a_reading_order_never_jumps_ahead(package, others):
    """The package's docstring says in which order to read it: each file uses those before it."""
    text = re.search(r"Reading order:(.*?)\.", getattr(tn, package).__doc__, re.DOTALL).group(1)
    order = [(package, name.strip()) for name in re.split("[,;]", text)]
    others = {(package, name) for name in others}
    assert set(order) == {m for m in FILES if m[0:1] == (package,) and len(m) == 2} - others
    for place, module in enumerate(order):
        own = {m for m in IMPORTS[module][0] if unit(m) == package}
        assert own <= {*order[:place], *others}, module


OPERATIONS = [value for value in vars(table).values() if isinstance(value, Op)]


def test_every_operation_is_a_forward_and_a_backward_side_by_side():
    assert len(OPERATIONS) > 40
    for op in OPERATIONS:
        assert op.forward.__module__ == op.backward.__module__
        assert op.forward.__module__.startswith("tinynorm.formulas.")
        assert op.backward.__name__ == f"{op.forward.__name__}_backward"
        assert op.forward.__doc__
        assert op.backward.__doc__
    assert len({op.name for op in OPERATIONS}) == len(OPERATIONS)


# Importing it


def python(*arguments):
    """Run a fresh interpreter on this checkout; its output."""
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.split()


def test_importing_needs_numpy_alone():
    before = set(python("-c", "import sys, numpy.random; print(*sys.modules)"))
    after = set(python("-W", "error", "-c", "import sys, tinynorm; print(*sys.modules)"))
    assert "tinynorm.tensor" in after
    found = {name.partition(".")[0] for name in after - before} - set(sys.stdlib_module_names)
    assert found <= {"numpy", "tinynorm"}
    assert not after & {"hypothesis", "sklearn", "matplotlib", "tqdm", "cupy", "scipy", "pytest", "mpmath"}


def test_importing_leaves_what_not_every_program_needs():
    before = set(python("-c", "import sys, numpy; print(*sys.modules)"))
    after = set(python("-c", "import sys, numpy, tinynorm; print(*sys.modules)"))
    slow = {"argparse", "concurrent.futures", "decimal", "difflib", "fractions", "json", "numpy.random", "subprocess"}
    assert not (after - before) & slow
    later = {"nn", "functional", "derivatives", "recorded", "optim", "data", "testing", "bench"}
    assert not after & {f"tinynorm.{name}" for name in later}


def test_what_is_imported_later_can_be_listed_and_taken():
    code = (
        "import tinynorm; missing = {*tinynorm.__all__} - {*dir(tinynorm)}; before = tinynorm.grad; "
        "from tinynorm import grad, nn, functional; import tinynorm.derivatives; "
        "print(missing, before is grad is tinynorm.derivatives.grad, nn is tinynorm.nn)"
    )
    assert python("-W", "error", "-c", code) == ["set()", "True", "True"]


def test_type_checkers_find_misspelt_names():
    """To them a module with `__getattr__` has any name; so it stands where they do not look."""
    body = ast.parse(FILES[()].read_text(encoding="utf-8")).body
    assert "__getattr__" not in [node.name for node in body if isinstance(node, ast.FunctionDef)]
    hidden = [n for n in body if isinstance(n, ast.If) and ast.unparse(n.test) == "not TYPE_CHECKING"]
    assert [n.name for n in hidden[0].body] == ["__getattr__"]
    with pytest.raises(AttributeError, match="module 'tinynorm' has no attribute 'nm'"):
        tn.nm  # noqa: B018


def test_importing_warns_of_nothing_and_shows_the_parts():
    code = (
        "import tinynorm as tn; tn.nn.Linear, tn.functional.relu, tn.optim.SGD, tn.data.batches, "
        "tn.errors.TinynormError, tn.testing.gradcheck; print(tn.__version__)"
    )
    assert python("-W", "error", "-c", code) == [tn.__version__]


def test_star_import_gives_what_is_promised():
    code = "from tinynorm import *; print(*(n for n in __import__('tinynorm').__all__ if n not in globals()))"
    assert python("-W", "error", "-c", code) == []


@pytest.mark.parametrize("module", sorted(".".join(("tinynorm", *module)) for module in FILES))
def test_every_module_says_what_it_is_for(module):
    assert sys.modules.get(module) or __import__(module)
    assert (sys.modules[module].__doc__ or "").strip()


# What is public


PARTS = [tn, *filter(inspect.ismodule, (getattr(tn, name) for name in tn.__all__))]
"""The package, and those of its modules that it shows."""


def public_names(namespace):
    """What the part promises; of errors, whatever is defined there."""
    return getattr(namespace, "__all__", None) or [name for name in vars(namespace) if name.endswith("Error")]


@pytest.mark.parametrize(
    ("namespace", "name"),
    [pytest.param(n, name, id=f"{n.__name__}.{name}") for n in PARTS for name in public_names(n)],
)
def test_public_names_exist_and_are_explained(namespace, name):
    value = getattr(namespace, name)
    assert inspect.getdoc(value)
    if not inspect.ismodule(value):
        examples = doctest.DocTestParser().get_examples(value.__doc__ or "")
        assert examples, f"{name} has no doctest"


@pytest.mark.parametrize("namespace", PARTS, ids=lambda m: m.__name__)
def test_public_names_are_listed_once(namespace):
    names = public_names(namespace)
    assert names
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("namespace", PARTS, ids=lambda m: m.__name__)
def test_public_names_are_in_the_api_reference(namespace):
    """A module that is named there shows all that it promises; the package's own names are there one by one."""
    pages = (page.read_text(encoding="utf-8") for page in sorted(PACKAGE.parent.glob("docs/api/*.md")))
    shown = set(re.findall(r"^\.\. (?:auto|py:)\w+:: ([\w.]+)", "\n".join(pages), re.M))
    names = [f"tinynorm.{name}" for name in tn.__all__] if namespace is tn else [namespace.__name__]
    assert set(names) <= shown
    assert {f"tinynorm.formulas.{module[1]}" for module in FORMULAS if module[1:] not in ((), ("types",))} <= shown


def test_no_line_of_a_property_reads_as_its_type():
    """To Sphinx, "Where it lives: cpu or cuda" says of a property that its type is "Where it lives"."""
    classes = {value for n in PARTS for name in public_names(n) if inspect.isclass(value := getattr(n, name))}
    properties = [p for c in classes for p in vars(c).values() if isinstance(p, property)]
    assert len(properties) > 5
    assert [p.__doc__ for p in properties if ": " in (p.__doc__ or "").partition("\n")[0]] == []


PROMISED = {
    tn: "Tensor tensor as_tensor no_grad op manual_seed nn functional optim data errors testing exp log sqrt tanh sin "
    "cos abs erf maximum minimum where clip sum mean max min prod var logsumexp cumsum matmul einsum reshape transpose "
    "broadcast_to concatenate stack take grad jvp vjp hvp jacobian gradcheck gradgradcheck",
    tn.functional: "linear rms_norm layer_norm relu gelu silu sigmoid softplus leaky_relu elu softmax log_softmax "
    "dropout cross_entropy nll_loss mse_loss",
    tn.nn: "Module Parameter Linear RMSNorm LayerNorm Dropout Sequential PreNormBlock PreNormMLP",
    tn.optim: "SGD Adam AdamW clip_grad_norm_",
    tn.data: "batches",
    tn.testing: "gradcheck hunt mutants",
}


@pytest.mark.parametrize(
    ("namespace", "name"),
    [pytest.param(n, name, id=f"{n.__name__}.{name}") for n, names in PROMISED.items() for name in names.split()],
)
def test_what_was_promised_is_there(namespace, name):
    assert name in namespace.__all__


def test_options_are_called_axis_never_dim():
    for namespace in (tn, tn.functional, tn.nn):
        for name in namespace.__all__:
            value = getattr(namespace, name)
            if callable(value):
                assert "dim" not in inspect.signature(value).parameters


@pytest.mark.parametrize(
    ("function", "signature"),
    [
        (tn.tensor, "(data, dtype=None, device=None, requires_grad=False)"),
        (tn.Tensor.backward, "(self, gradient=None, retain_graph=False)"),
        (tn.grad, "(outputs, inputs, grad_outputs=None, create_graph=False)"),
        (tn.vjp, "(fn, inputs, v=None, create_graph=False)"),
        (tn.jvp, "(fn, inputs, v=None, create_graph=False)"),
        (tn.hvp, "(fn, inputs, v=None, create_graph=False)"),
        (tn.jacobian, "(fn, inputs, create_graph=False)"),
        (tn.functional.linear, "(x, weight, bias=None)"),
        (
            tn.functional.rms_norm,
            "(x, normalized_shape, weight=None, eps=1e-05, *, bias=None, partial=1.0, weight_offset=0.0, "
            "eps_mode='inside')",
        ),
        (tn.functional.layer_norm, "(x, normalized_shape, weight=None, bias=None, eps=1e-05)"),
        (tn.functional.gelu, "(x, approximate='none')"),
        (tn.functional.softmax, "(x, axis=-1)"),
        (tn.functional.log_softmax, "(x, axis=-1)"),
        (
            tn.functional.cross_entropy,
            "(logits, target, weight=None, reduction='mean', ignore_index=-100, label_smoothing=0.0)",
        ),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_signatures_are_those_promised(function, signature):
    found = inspect.signature(function)
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in found.parameters.values()]
    assert str(found.replace(parameters=bare, return_annotation=inspect.Signature.empty)) == signature


# Errors


@pytest.mark.parametrize(
    "error", [e for e in vars(tn.errors).values() if isinstance(e, type)], ids=lambda e: e.__name__
)
def test_every_error_is_the_librarys_and_a_builtin(error):
    assert issubclass(error, tn.errors.TinynormError)
    assert error.__doc__
    if error is not tn.errors.TinynormError:
        builtin = {ValueError, TypeError, IndexError, RuntimeError, AssertionError, ImportError, FloatingPointError}
        assert builtin & set(error.__mro__)
