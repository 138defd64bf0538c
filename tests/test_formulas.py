"""The formulas themselves, run directly on arrays: derivatives by complex step, what they write to, dtypes, imports."""

import ast
import importlib
import inspect
import pkgutil
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers import (
    ALWAYS,
    BROADCAST,
    CALLS,
    SHAPES,
    above_minus_one,
    away_from_zero,
    distinct,
    mask,
    on_grid,
    positive,
    real,
    run,
    value,
    with_zeros,
)

import tinynorm as tn
from tinynorm import formulas

MODULES = {
    m.name: importlib.import_module(f"tinynorm.formulas.{m.name}") for m in pkgutil.iter_modules(formulas.__path__)
}


class Made(NamedTuple):
    """A parameter that is an array: how it is made, and in which shape."""

    make: Any
    shape: tuple[int, ...]


class Run(NamedTuple):
    """One run of a formula: its name with its module's, how each input is made and in which shape, and the rest."""

    name: str
    inputs: tuple[Any, ...]
    params: dict[str, Any]

    def __str__(self) -> str:
        sizes = ",".join("None" if i is None else str(i[1]) for i in self.inputs)
        params = {k: v.shape if isinstance(v, Made) else v for k, v in self.params.items()}
        return " ".join(f"{self.name} {sizes} {params or ''}".split())


RUNS: list[Run] = []


def add(name, *inputs, **params):
    RUNS.append(Run(name, inputs, params))


# Element by element

for shape in SHAPES:
    add("arithmetic.negative", (real, shape))
    for name in ("exp", "expm1", "tanh", "sin", "cos", "erf"):
        add(f"elementary.{name}", (real, shape))
    add("elementary.log", (positive, shape))
    add("elementary.log1p", (above_minus_one, shape))
    add("elementary.sqrt", (positive, shape))
    add("elementary.absolute", (away_from_zero, shape))
    for name in ("sigmoid", "silu", "softplus", "gelu", "gelu_tanh"):
        add(f"activations.{name}", (real, shape))
    add("activations.relu", (away_from_zero, shape))
    add("activations.leaky_relu", (away_from_zero, shape), negative_slope=0.1)
    add("activations.elu", (away_from_zero, shape), alpha=0.5)
    add("activations.dropout", (real, shape), (mask, shape), p=0.3)
    add("activations.dropout", (real, shape), (mask, shape), p=1.0)
    add("losses.mse_loss", (real, shape), (real, shape), divisor=None)
    add("losses.mse_loss", (real, shape), (real, shape), divisor=2.5)
    add("shaping.broadcast_to", (real, shape), shape=(2, *shape))
    add("selection.clip", (on_grid(0.0), shape), (on_grid(-0.8), shape), None)
    add("selection.clip", (on_grid(0.0), shape), None, (on_grid(0.8), shape))

for a, b in BROADCAST:
    add("arithmetic.add", (real, a), (real, b))
    add("arithmetic.subtract", (real, a), (real, b))
    add("arithmetic.multiply", (real, a), (real, b))
    add("arithmetic.divide", (real, a), (away_from_zero, b))
    add("arithmetic.power", (positive, a), (real, b))
    add("selection.maximum", (on_grid(0.0), a), (on_grid(0.2), b))
    add("selection.minimum", (on_grid(0.0), a), (on_grid(0.2), b))
    add("selection.where", (mask, a), (real, a), (real, b))
    add("selection.clip", (on_grid(0.0), a), (on_grid(-0.8), b), (on_grid(0.8), a))

# Reductions

AXES = [
    ((), None),
    ((1,), None),
    ((1,), 0),
    ((4, 4), None),
    ((4, 4), 0),
    ((4, 4), -1),
    ((3, 1, 2), (0, -1)),
    ((0, 3), 1),
]
for shape, axis in AXES:
    for keepdims in (False, True):
        options = {"axis": axis, "keepdims": keepdims}
        add("reductions.sum", (real, shape), **options)
        add("reductions.mean", (real, shape), **options)
        add("reductions.max", (distinct, shape), **options)
        add("reductions.min", (distinct, shape), **options)
        add("reductions.prod", (with_zeros, shape), **options)
        add("reductions.logsumexp", (real, shape), **options)
        add("reductions.var", (real, shape), ddof=0.5, **options)
    if not isinstance(axis, tuple):
        add("reductions.cumsum", (real, shape), axis=axis)
    if isinstance(axis, int):
        add("activations.softmax", (real, shape), axis=axis)
        add("activations.log_softmax", (real, shape), axis=axis)
for name in ("sum", "prod"):
    add(f"reductions.{name}", (real, (0,)), axis=None, keepdims=False)

# Shapes and parts

for shape, new in [((), (1, 1)), ((0,), (2, 0)), ((3, 1, 2), (2, -1)), ((4, 4), (2, 8))]:
    add("shaping.reshape", (real, shape), shape=new)
for shape, axes in [((), None), ((0, 1), None), ((3, 1, 2), (2, 0, 1)), ((3, 1, 2), (-1, 0, 1)), ((4, 4), (1, 0))]:
    add("shaping.transpose", (real, shape), axes=axes)
add("shaping.concatenate", (real, (3, 1, 2)), (real, (3, 0, 2)), (real, (3, 4, 2)), axis=-2)
add("shaping.concatenate", (real, (4, 4)), (real, (4, 4)), axis=0)
for shape in SHAPES:
    add("shaping.stack", (real, shape), (real, shape), axis=-1)
    add("shaping.getitem", (real, shape), index=(..., None))
for index in (
    1,
    slice(None, None, -1),
    np.array([0, 3, 3]),
    np.eye(4, dtype=bool),
    (np.array([1, 1]), np.array([2, 2])),
):
    add("shaping.getitem", (real, (4, 4)), index=index)
for taken, index in [((4,), 1), ((4, 4), slice(None, None, -1)), ((3, 4), np.array([0, 3, 3]))]:
    add("shaping.scatter", (real, taken), shape=(4, 4), index=index)
add("shaping.astype", (real, (4, 4)))  # to the dtype that it has: `params_of` fills it in

# Products

for a, b in [((0,), (0,)), ((3,), (3,)), ((3,), (3, 2)), ((2, 3), (3,)), ((2, 1, 3, 4), (5, 4, 2)), ((4, 4), (4, 4))]:
    add("products.matmul", (real, a), (real, b))
add("products.einsum", (real, (4, 4)), (real, (4, 4)), inputs=("ij", "jk"), output="ki")
add("products.einsum", (real, (2, 1)), (real, (1, 3)), inputs=("ij", "ij"), output="")
add("products.einsum", (real, (2, 3)), (real, (3,)), (real, (4,)), inputs=("ij", "j", "k"), output="ik")
add("products.einsum", (real, (0, 3)), inputs=("ij",), output="j")
for x, *parameters in [((3,), (2, 3), (2,)), ((0, 3), (2, 3), (2,)), ((3, 1, 2), (4, 2), None), ((4, 4), (4, 4), (4,))]:
    add("linear.linear", (real, x), *(p and (real, p) for p in parameters))

# Norms and losses

for shape, n in [((1,), 1), ((0, 3), 1), ((3, 1, 2), 2), ((3, 1, 2), 3), ((4, 4), 1)]:
    weight, options = (real, shape[-n:]), {"axis": tuple(range(-n, 0)), "eps": 1e-5}
    for given in (None, weight):
        add("norms.rms_norm", (distinct, shape), given, **options)
        add("norms.layer_norm", (distinct, shape), given, weight, **options)
        add("norms.layer_norm", (distinct, shape), weight, given, **options)
for shape, count, outside, offset in [((1,), None, True, 1.0), ((0, 3), 2, False, 0.0), ((4, 4), 1, True, 0.0)]:
    options = {"axis": (-1,), "eps": 1e-3, "count": count, "outside": outside, "offset": offset}
    for weight, bias in [((real, shape[-1:]), None), (None, (real, shape[-1:]))]:
        add("rms_variants.rms_norm_variant", (distinct, shape), weight, bias, **options)
for shape in [(1,), (3,), (0, 3), (3, 1, 2), (4, 4)]:
    for divisor in (None, 2.5):
        add("losses.cross_entropy", (real, shape), q=Made(positive, shape), divisor=divisor)
        add("losses.nll_loss", (real, shape), q=Made(with_zeros, shape), divisor=divisor)

# Inputs that count as constants: no gradient comes back for them.
CONSTANTS = {"selection.where": {0}, "activations.dropout": {1}}


# How a run is made


def formula(name: str):
    module, function = name.split(".")
    return getattr(MODULES[module], function)


def with_needs(function, needs: tuple[bool, ...] | None):
    """The formula told which gradients are wanted, if it asks. By default all are."""
    asks = needs is not None and "needs" in inspect.signature(function).parameters
    return partial(function, needs=needs) if asks else function


def forward_of(run: Run, dtype: Any, needs: tuple[bool, ...] | None = None):
    """The forward as a function of its inputs alone."""
    return lambda *inputs: with_needs(formula(run.name), needs)(np, *inputs, **params_of(run, dtype))


def pull_back(run: Run, dy: Any, cache: Any, needs: tuple[bool, ...] | None = None) -> tuple[Any, ...]:
    """The backward's gradients, one per input."""
    every = needs or (True,) * len(run.inputs)
    gradients = with_needs(formula(f"{run.name}_backward"), every)(np, dy, cache)
    return gradients if isinstance(gradients, tuple) else (gradients,)


def params_of(run: Run, dtype: Any = np.float64) -> dict[str, Any]:
    if run.name == "shaping.astype":
        return {"dtype": dtype}
    rng, real_dtype = np.random.default_rng(3), np.zeros(0, dtype).real.dtype  # constants take no complex step
    return {k: v.make(rng, v.shape).astype(real_dtype) if isinstance(v, Made) else v for k, v in run.params.items()}


def inputs_of(run: Run, dtype: Any = np.float64) -> list[Any]:
    rng = np.random.default_rng(1)
    made = [None if i is None else i[0](rng, i[1]) for i in run.inputs]
    return [a if a is None or a.dtype == bool else a.astype(dtype) for a in made]


def cotangent_of(y: Any) -> np.ndarray:
    return np.asarray(np.random.default_rng(2).normal(size=np.shape(y))).astype(np.asarray(y).dtype)


def differentiable(run: Run) -> list[int]:
    return [k for k, i in enumerate(run.inputs) if i is not None and k not in CONSTANTS.get(run.name, ())]


def unbroadcast(gradient: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Summed to the shape that was broadcast; formulas leave that to the engine."""
    gradient = gradient.sum(axis=tuple(range(gradient.ndim - len(shape))))
    repeated = tuple(i for i, n in enumerate(shape) if n == 1 and gradient.shape[i] != 1)
    return gradient.sum(axis=repeated, keepdims=True)


def arrays_in(cache: Any) -> list[np.ndarray]:
    if isinstance(cache, (tuple, list, dict)):
        return [a for part in (cache.values() if isinstance(cache, dict) else cache) for a in arrays_in(part)]
    return [cache] if isinstance(cache, np.ndarray) else []


EACH_RUN = pytest.mark.parametrize("run", RUNS, ids=str)
DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64, np.longdouble])


# What holds for every pair


def test_every_pair_is_run():
    pairs = {
        f"{module}.{name}"
        for module, found in MODULES.items()
        for name, value in vars(found).items()
        if f"{name}_backward" in vars(found) and value.__module__ == found.__name__
    }
    assert {run.name for run in RUNS} == pairs


@EACH_RUN
def test_a_complex_step_gives_the_same_derivative(run):
    """To 12 digits of the largest element. No pair is exempt: those with branches are analytic within each."""
    inputs = inputs_of(run)
    y, cache = forward_of(run, np.float64)(*inputs)
    dy = cotangent_of(y)
    gradients = pull_back(run, dy, cache)
    assert len(gradients) == len(inputs)
    for k in differentiable(run):
        exact = tn.testing.complex_step(
            lambda x, k=k: forward_of(run, np.complex128)(*inputs[:k], x, *inputs[k + 1 :])[0], inputs[k], dy
        )
        got = unbroadcast(gradients[k], inputs[k].shape)
        np.testing.assert_allclose(got, exact, rtol=0, atol=1e-12 * np.abs(exact).max(initial=0.0))
    assert all(gradients[k] is None for k in CONSTANTS.get(run.name, ()))


@EACH_RUN
def test_nothing_that_comes_in_is_written_to(run):
    inputs = inputs_of(run)
    dy = cotangent_of(forward_of(run, np.float64)(*inputs)[0])
    for one_dy in (dy, np.broadcast_to(dy.ravel()[:1].sum(), dy.shape)):
        params = params_of(run)
        given = arrays_in([inputs, params])
        freeze(given)
        copies = [a.copy() for a in given]
        y, cache = formula(run.name)(np, *inputs, **params)
        assert_same_bits(given, copies)

        given += [one_dy, *arrays_in(y), *arrays_in(cache)]
        freeze(given)
        copies = [a.copy() for a in given]
        pull_back(run, one_dy, cache)
        assert_same_bits(given, copies)


def freeze(arrays):
    for a in arrays:
        a.flags.writeable = False


def assert_same_bits(arrays, copies):
    assert [a.tobytes() for a in arrays] == [c.tobytes() for c in copies]


@EACH_RUN
@DTYPES
def test_the_dtype_is_kept(run, dtype):
    """Neither constants nor options widen it, in value or gradient. (longdouble is float64 on some machines.)"""
    inputs = inputs_of(run, dtype)
    y, cache = forward_of(run, dtype)(*inputs)
    assert y.dtype == dtype
    gradients = pull_back(run, cotangent_of(y), cache)
    assert {gradients[k].dtype for k in differentiable(run)} == {np.dtype(dtype)}


@EACH_RUN
def test_a_gradient_that_nobody_needs_changes_no_other(run):
    inputs = inputs_of(run)
    y, cache = forward_of(run, np.float64)(*inputs)
    dy = cotangent_of(y)
    complete = pull_back(run, dy, cache)
    for k in differentiable(run):
        only = tuple(i == k for i in range(len(inputs)))
        same_y, smaller_cache = forward_of(run, np.float64, only)(*inputs)
        np.testing.assert_array_equal(same_y, y, strict=True)
        np.testing.assert_array_equal(pull_back(run, dy, smaller_cache, only)[k], complete[k], strict=True)


# float16, through the public functions. astype is left out: its result has the dtype that was asked for.


@pytest.mark.parametrize(("name", "setting"), [p for p in ALWAYS if p.values[0] != "astype"])
def test_float16_is_float32_rounded_once(name, setting):
    for seed in range(4):
        inputs = [rounded(a) for a in CALLS[name].inputs(np.random.default_rng(seed), setting)]
        wide = [a.astype(np.float32) if a.dtype == np.float16 else a for a in inputs]
        got, gradients = value_and_gradients(name, setting, inputs)
        right, right_gradients = value_and_gradients(name, setting, wide)
        assert right.dtype == np.float32
        for half, exact in zip([got, *gradients], [right, *right_gradients], strict=True):
            np.testing.assert_array_equal(half, exact.astype(np.float16), strict=True)


def rounded(a):
    return a.astype(np.float16) if a.dtype == np.float64 else a


def value_and_gradients(name, setting, inputs):
    call = partial(CALLS[name].call, **setting.options)
    dy = np.random.default_rng(5).normal(size=value(call, inputs).shape).astype(np.float16)
    return run(call, inputs, dy)


# Imports


@pytest.mark.parametrize("module", MODULES)
def test_a_formula_imports_no_array_module_and_nothing_else_of_the_library(module):
    tree = ast.parse(Path(MODULES[module].__file__).read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {f"{'.' * n.level}{n.module or ''}" for n in nodes if isinstance(n, ast.ImportFrom)}
    outside = {name for name in imported if not name.startswith(".")}
    assert outside <= {"math", "typing"}
    assert all(not name.startswith("..") for name in imported)
    assert not {"np", "numpy", "cupy", "cp", "__import__"} & {n.id for n in nodes if isinstance(n, ast.Name)}
