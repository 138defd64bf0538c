"""`python -m tinynorm check`: what it prints, and its exit status."""

import inspect
import json
import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import l2_norm

import tinynorm as tn
from tinynorm.__main__ import main
from tinynorm.testing import command
from tinynorm.testing.cases import OPS
from tinynorm.testing.check import Row, check, tasks_of_table

L2_NORM = "import tinynorm as tn\n\n\n" + "\n\n".join(
    map(inspect.getsource, (l2_norm.__wrapped__, l2_norm._op.backward))
)
TEST = '\n\ntest_l2_norm = tn.testing.property_test(l2_norm, "...D", "D", eps=1e-3)\n'


@pytest.fixture(autouse=True)
def path(monkeypatch):
    """The command adds the current directory to it, which is not for the next test."""
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module into the current directory; its name, which no other test uses."""
    monkeypatch.chdir(tmp_path)

    def write(source):
        name = f"module_{len(os.listdir(tmp_path))}_{tmp_path.name}"
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source), encoding="utf-8")
        return name

    return write


def run(capsys, *arguments):
    """Exit status, and what went to stdout and stderr."""
    try:
        status = main(["check", *arguments])
    except SystemExit as left:
        status = left.code
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def rows(out):
    """The table's cells by operation."""
    lines = out.split("\n\n")[0].splitlines()
    assert lines[0].split("  ")[0] == "operation"
    return {line.split()[0]: line.split()[1:] for line in lines[1:]}


# The library's own


def test_the_table_of_two_operations(capsys):
    status, out, err = run(capsys, "linear", "tanh")
    assert (status, err) == (0, "")
    found = rows(out)
    assert list(found) == ["linear", "tanh"]
    for differences, steps, order, mutants, seconds in found.values():
        assert float(differences) < 1e-6
        assert float(steps) < 1e-11
        assert order == "4"
        killed, planted = map(int, mutants.split("/"))
        assert killed == planted >= 8
        assert float(seconds) > 0
    assert "2 operations, all pass; " in out.splitlines()[-1]


def test_what_a_module_prints_is_not_in_the_json(capsys, module):
    noisy = L2_NORM.replace("    r = 1.0", "    print('computing')\n    r = 1.0") + TEST + "print('imported')"
    status, out, err = run(capsys, "--json", module(noisy))
    assert status == 0
    assert json.loads(out)["operations"][0]["name"] == "l2_norm"
    assert err.startswith("imported\ncomputing\n")


def test_json(capsys):
    status, out, err = run(capsys, "--json", "sin")
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert list(found) == ["tinynorm", "intense", "passed", "seconds", "operations"]
    assert (found["tinynorm"], found["intense"], found["passed"]) == (tn.__version__, False, True)
    (row,) = found["operations"]
    assert list(row) == [
        "name", "central_error", "complex_error", "order", "killed", "mutants", "survivors", "equivalents", "seconds",
        "problems",
    ]  # fmt: skip
    assert (row["name"], row["order"], row["survivors"], row["problems"]) == ("sin", 4, [], [])
    assert 0 < row["central_error"] < 1e-6
    assert row["killed"] == row["mutants"] >= 3


def test_without_names_all_operations_are_checked(capsys, monkeypatch):
    """That they pass is for test_mutants.py and test_properties.py; here they need not run."""
    monkeypatch.setattr(command, "check", lambda task, intense: Row(task.name, 1e-10, None, 4, 9, 9))
    status, out, _ = run(capsys)
    assert status == 0
    assert list(rows(out)) == list(OPS)
    assert rows(out)["exp"] == ["1.0e-10", "-", "4", "9/9", "0.00"]
    assert f"{len(OPS)} operations, all pass; {9 * len(OPS)} of {9 * len(OPS)} mutants killed; " in out


def test_intense_tries_more(monkeypatch):
    seen = []
    monkeypatch.setattr("tinynorm.testing.check._fill", lambda row, task, *counts: seen.append(counts))
    for intense in (False, True):
        check(tasks_of_table()["exp"], intense)
    assert all(many > few for few, many in zip(*seen, strict=True))


# A user's own


def test_a_users_operation(capsys, module):
    status, out, err = run(capsys, module(L2_NORM + TEST), "exp")
    assert (status, err) == (0, "")
    found = rows(out)
    assert list(found) == ["l2_norm", "exp"]
    differences, steps, order, mutants, _ = found["l2_norm"]
    assert float(differences) < 1e-6
    assert float(steps) < 1e-11
    assert order == "4"
    killed, planted = map(int, mutants.split("/"))
    assert killed == planted > 30


def test_one_without_a_property_test_falls_short_and_is_told_the_line(capsys, module):
    status, out, _ = run(capsys, module(L2_NORM))
    assert status == 1
    assert rows(out)["l2_norm"][-2:] == ["falls", "short"]
    assert "1 of 1 operation falls short" in out
    line = 'test_l2_norm = tn.testing.property_test(l2_norm, "...", "...", eps=...)'
    assert f"\nl2_norm: no property test; write: {line}" in out


def test_the_line_is_right_for_a_function_of_any_shape(capsys, module):
    """What it says to write is all that is missing."""
    source = """
        import tinynorm as tn

        @tn.op("cube")
        def cube(xp, x):
            return x * x * x, x

        @cube.backward
        def _(xp, dy, x):
            return dy * (3.0 * x * x)
    """
    status, out, _ = run(capsys, module(source))
    assert status == 1
    line = out.partition("write: ")[2].strip()
    status, out, _ = run(capsys, module(textwrap.dedent(source) + line))
    assert status == 0, out


def test_a_wrong_backward_falls_short(capsys, module):
    status, out, _ = run(capsys, "--json", module(L2_NORM.replace("dh - h *", "dh + h *") + TEST))
    assert status == 1
    found = json.loads(out)
    (row,) = found["operations"]
    assert not found["passed"]
    assert row["problems"][0].startswith("GradientError: ")
    assert (row["central_error"], row["order"], row["mutants"]) == (None, 0, 0)


def test_a_weak_property_test_falls_short(capsys, module):
    """With one value alone, no fault of an axis shows."""
    status, out, _ = run(capsys, module(L2_NORM + TEST.replace('"...D", "D"', '"1", "1"')))
    assert status == 1
    assert "l2_norm: its property test does not find these mutants:\n" in out
    assert "  backward goes over all axes in `xp.sum(dh * h, axis=-1, keepdims=True)` (line 16): changes no " in out


def test_a_backward_that_cannot_be_differentiated_again_falls_short(capsys, module):
    source = """
        import numpy as np
        import tinynorm as tn

        @tn.op("once")
        def once(xp, x):
            return xp.sin(x), x

        @once.backward
        def _(xp, dy, x):
            return dy * np.cos(np.asarray(x))

        test_once = tn.testing.property_test(once, "...")
    """
    status, out, _ = run(capsys, "--json", module(source))
    (row,) = json.loads(out)["operations"]
    assert status == 1
    assert row["order"] == 1
    assert row["problems"][0].startswith("order 2: ")
    assert "once" in row["problems"][0]


def test_a_property_test_of_a_function_has_no_mutants(capsys, module):
    source = """
        import tinynorm as tn

        def swiglu(x, gate):
            return x * tn.functional.silu(gate)

        test_swiglu = tn.testing.property_test(swiglu, "...D", "...D")
    """
    status, out, _ = run(capsys, module(source))
    assert status == 0, out
    assert rows(out)["swiglu"][2:4] == ["4", "-"]


def test_a_property_test_that_never_comes_to_the_operation_falls_short():
    task = tasks_of_table()["exp"]
    elsewhere = [replace(case, call=lambda x: x * 2.0) for case in task.cases]
    row = check(replace(task, cases=elsewhere))
    assert row.order == 4
    assert row.problems == ["its property test never differentiates it, so no mutant can be planted"]


def test_a_file_stands_for_its_module(capsys, module, tmp_path, monkeypatch):
    name = module(L2_NORM + TEST)
    package = tmp_path / f"package_of_{name}"
    package.mkdir()
    (package / "ops.py").write_text(L2_NORM + TEST, encoding="utf-8")
    for path in (f"./{name}.py", f"{name}.py", f"{package.name}/ops.py", str(tmp_path / f"{name}.py")):
        monkeypatch.setattr(command, "check", lambda task, intense: Row(task.name, mutants=len(task.cases)))
        status, out, err = run(capsys, path)
        assert (status, err, list(rows(out))) == (0, "", ["l2_norm"])
    assert f"{package.name}.ops" in sys.modules
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / f"outside_{name}.py").write_text(L2_NORM + TEST, encoding="utf-8")
    monkeypatch.chdir(package)
    assert list(rows(run(capsys, f"../elsewhere/outside_{name}.py")[1])) == ["l2_norm"]


def test_one_operation_of_a_module(capsys, module, monkeypatch):
    """In any order; an operation of the library can stand beside it."""
    monkeypatch.setattr(command, "check", lambda task, intense: Row(task.name))
    other = L2_NORM.replace("l2_norm", "other_norm").replace("import tinynorm as tn", "")
    name = module(L2_NORM + other + TEST)
    assert list(rows(run(capsys, name)[1])) == ["l2_norm", "other_norm"]
    for names in ([name, "l2_norm"], ["l2_norm", f"{name}.py"]):
        assert list(rows(run(capsys, *names)[1])) == ["l2_norm"]
    assert list(rows(run(capsys, "exp", name, "other_norm")[1])) == ["exp", "other_norm"]
    status, _, err = run(capsys, name, "l2_nrom")
    assert (status, err) == (
        2,
        "python -m tinynorm check: 'l2_nrom' is neither an operation nor a module; did you mean 'l2_norm'?\n",
    )


# Misspelt


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("rms_nrom", "'rms_nrom' is neither an operation nor a module; did you mean 'rms_norm'?"),
        ("nosuchthing", "'nosuchthing' is neither an operation nor a module"),
        ("no.such.thing", "'no.such.thing' is neither an operation nor a module"),
        ("my/module.py", "there is no file 'my/module.py' here; a module's name, such as my.module, will do as well"),
        ("..", "'..' is neither an operation nor a module"),
        ("", "'' is neither an operation nor a module"),
        ("json", "json holds nothing to check, neither operations of tn.op nor property tests"),
    ],
)
def test_names_that_mean_nothing(capsys, name, says):
    assert run(capsys, name) == (2, "", f"python -m tinynorm check: {says}\n")


def test_a_module_that_cannot_be_imported(capsys, module):
    for source, says in [
        ("import tinynorm as tn\n1 / 0", "ZeroDivisionError: division by zero"),
        ("import nosuchthing", "ModuleNotFoundError: No module named 'nosuchthing'"),
        ("raise SystemExit('leaving')", "SystemExit: leaving"),
    ]:
        name = module(source)
        assert run(capsys, name) == (2, "", f"python -m tinynorm check: {name} cannot be imported: {says}\n")


@pytest.mark.parametrize("arguments", [["check", "--nosuch"], ["chekc"]])
def test_usage_errors_are_one_sentence(capsys, arguments):
    with pytest.raises(SystemExit) as left:
        main(arguments)
    captured = capsys.readouterr()
    assert left.value.code == 2
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "--help says what there is" in captured.err


# The program itself


def python(*arguments, **options):
    environment = {**os.environ, "PYTHONPATH": str(Path(tn.__file__).parents[1]), "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
        check=False,
        **options,
    )


def test_alone_it_says_what_it_can_do():
    done = python("-m", "tinynorm")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: python -m tinynorm ")
    assert "check" in done.stdout


def test_it_needs_numpy_alone():
    code = """
        import sys
        for name in ("hypothesis", "tqdm", "pytest", "mpmath", "cupy"):
            sys.modules[name] = None
        from tinynorm.__main__ import main
        sys.exit(main(["check", "expm1"]))
    """
    done = python("-W", "error", "-c", textwrap.dedent(code))
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 operation, all pass" in done.stdout


def test_a_reader_who_leaves_early_gets_no_traceback():
    done = python("-c", textwrap.dedent("""
        import subprocess, sys
        check = subprocess.Popen([sys.executable, "-m", "tinynorm", "check", "exp", "log", "sin"],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        check.stdout.readline()
        check.stdout.close()
        print(check.stderr.read().decode(), check.wait())
    """))  # fmt: skip
    assert done.stdout.split() == ["1"]


def test_ctrl_c_ends_it_cleanly(capsys, monkeypatch):
    def interrupted(task, intense):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "check", interrupted)
    status, _, err = run(capsys, "exp")
    assert (status, err) == (130, "\npython -m tinynorm: interrupted\n")


def test_a_bar_on_a_terminal(capsys, monkeypatch):
    """Where tqdm is installed; the table itself goes to stdout all the same."""
    pytest.importorskip("tqdm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    status, out, err = run(capsys, "--json", "exp")
    assert status == 0
    assert json.loads(out)["passed"]
    assert "1/1" in err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    status, out, _ = run(capsys, "exp", "sin")
    assert list(rows(out)) == ["exp", "sin"]


def outside(tmp_path, source, *arguments, prelude="pass", **environment):
    """The command in a process of its own, in a directory with this module in it."""
    (tmp_path / "own.py").write_text(source, encoding="utf-8")
    code = f"import sys; {prelude}; from tinynorm.__main__ import main; sys.exit(main({['check', *arguments]!r}))"
    paths = {"PYTHONPATH": str(Path(tn.__file__).parents[1])}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, **paths, **environment},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def test_signs_that_a_terminal_cannot_show_are_spelt_out(tmp_path):
    wrong = L2_NORM.replace("dh - h *", "dh + h *") + TEST
    done = outside(tmp_path, wrong, "own", PYTHONIOENCODING="ascii")
    assert done.returncode == 1
    assert done.stderr == ""
    assert "analytic gradient" in done.stdout
    assert "\\xb1" in done.stdout  # ±


def test_a_module_with_a_property_test_is_checked_without_hypothesis_too(tmp_path):
    done = outside(tmp_path, L2_NORM + TEST, "own", prelude="sys.modules['hypothesis'] = None")
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 operation, all pass" in done.stdout


def test_caches_in_a_dict_and_sums_by_method(capsys, module):
    source = """
        import tinynorm as tn

        @tn.op("squares")
        def squares(xp, x):
            return (x * x).sum(), {"x": x}

        @squares.backward
        def _(xp, dy, cache):
            return 2.0 * dy * cache["x"]

        test_squares = tn.testing.property_test(squares, "...D")
    """
    status, out, _ = run(capsys, module(source))
    assert status == 0
    assert "all pass" in out
