"""The formulas themselves, run directly on arrays: derivatives by complex step, what they write to, dtypes."""

import importlib
import inspect
import pkgutil
from copy import deepcopy
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers import ALWAYS, run, value

import tinynorm as tn
from tinynorm import formulas
from tinynorm.op import Op
from tinynorm.testing.cases import CASES, OPS

MODULES = [importlib.import_module(f"tinynorm.formulas.{m.name}") for m in pkgutil.iter_modules(formulas.__path__)]


class Run(NamedTuple):
    """One run of an operation's formulas."""

    op: Op
    inputs: tuple[Any, ...]
    params: dict[str, Any]


@pytest.fixture
def runs(name, monkeypatch) -> list[Run]:
    """What a case, in each of its settings, hands to the formulas of its operation."""
    case, seen, run_op = CASES[name], [], Op.run_plain

    def spy(op, inputs, needs, params):
        seen.append(Run(op, inputs, deepcopy(params)))  # which a test may freeze
        return run_op(op, inputs, needs, params)

    monkeypatch.setattr(Op, "run_plain", spy)
    for setting in case.always:
        case.call(*map(tn.as_tensor, case.inputs(np.random.default_rng(1), setting)), **setting.options)
    monkeypatch.undo()
    return [r for r in seen if r.op is case.op]


def is_array(a: Any) -> bool:
    return isinstance(a, (np.ndarray, np.generic))


def cast(run: Run, dtype: Any) -> Run:
    """The run in another dtype: its inputs, its real constants, and the dtype that astype is told."""
    real_dtype = np.zeros(0, dtype).real.dtype  # constants take no complex step
    inputs = tuple(a.astype(dtype) if is_array(a) and a.dtype.kind == "f" else a for a in run.inputs)

    def constant(value: Any) -> Any:
        if hasattr(value, "_make"):  # several, by name
            return value._make(map(constant, value))
        return value.astype(real_dtype) if is_array(value) and value.dtype.kind == "f" else value

    params = {k: constant(v) for k, v in run.params.items()}
    return Run(run.op, inputs, params | ({"dtype": dtype} if "dtype" in params else {}))


def with_needs(function, needs: tuple[bool, ...]):
    """The formula told which gradients are wanted, if it asks."""
    return partial(function, needs=needs) if "needs" in inspect.signature(function).parameters else function


def forward(run: Run, needs: tuple[bool, ...] | None = None) -> Any:
    return with_needs(run.op.forward, needs or wanted(run))(np, *run.inputs, **run.params)


def pull_back(run: Run, dy: Any, cache: Any, needs: tuple[bool, ...] | None = None) -> tuple[Any, ...]:
    """The backward's gradients, one per input."""
    gradients = with_needs(run.op.backward, needs or wanted(run))(np, dy, cache)
    return gradients if isinstance(gradients, tuple) else (gradients,)


def cotangent_of(y: Any) -> np.ndarray:
    return np.asarray(np.random.default_rng(2).normal(size=np.shape(y))).astype(np.asarray(y).dtype)


def wanted(run: Run) -> tuple[bool, ...]:
    """For each input whether it has a gradient; numbers, masks and what is left out have none."""
    return tuple(is_array(a) and a.dtype.kind in "fc" for a in run.inputs)


def differentiable(run: Run) -> list[int]:
    return [k for k, yes in enumerate(wanted(run)) if yes]


def unbroadcast(gradient: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Summed to the shape that was broadcast; formulas leave that to the engine."""
    gradient = gradient.sum(axis=tuple(range(gradient.ndim - len(shape))))
    repeated = tuple(i for i, n in enumerate(shape) if n == 1 and gradient.shape[i] != 1)
    return gradient.sum(axis=repeated, keepdims=True)


def arrays_in(cache: Any) -> list[np.ndarray]:
    if isinstance(cache, (tuple, list, dict)):
        return [a for part in (cache.values() if isinstance(cache, dict) else cache) for a in arrays_in(part)]
    return [cache] if isinstance(cache, np.ndarray) else []


EACH_CALL = pytest.mark.parametrize("name", CASES)


# What holds for every pair


def test_every_pair_is_an_operations():
    pairs = {
        function
        for module in MODULES
        for name, function in vars(module).items()
        if f"{name}_backward" in vars(module) and function.__module__ == module.__name__
    }
    assert pairs == {op.forward for op in OPS.values()}


@EACH_CALL
def test_a_complex_step_gives_the_same_derivative(runs):
    """To 12 digits of the largest element. No pair is exempt: those with branches are analytic within each."""
    assert runs
    for r in (cast(r, np.float64) for r in runs):
        y, cache = forward(r)
        dy = cotangent_of(y)
        gradients = pull_back(r, dy, cache)
        assert len(gradients) == len(r.inputs)
        stepped = cast(r, np.complex128)
        for k in differentiable(r):
            exact = tn.testing.complex_step(
                lambda x, k=k, s=stepped: forward(s._replace(inputs=(*s.inputs[:k], x, *s.inputs[k + 1 :])))[0],
                r.inputs[k],
                dy,
            )
            got = unbroadcast(gradients[k], r.inputs[k].shape)
            np.testing.assert_allclose(got, exact, rtol=0, atol=1e-12 * np.abs(exact).max(initial=0.0))
        assert all(gradients[k] is None for k, a in enumerate(r.inputs) if is_array(a) and a.dtype.kind != "f")


@EACH_CALL
def test_nothing_that_comes_in_is_written_to(runs):
    for r in runs:
        dy = cotangent_of(forward(r)[0])
        for one_dy in (dy, np.broadcast_to(dy.ravel()[:1].sum(), dy.shape)):
            given = arrays_in([r.inputs, r.params])
            freeze(given)
            copies = [a.copy() for a in given]
            y, cache = forward(r)
            assert_same_bits(given, copies)

            given += [one_dy, *arrays_in(y), *arrays_in(cache)]
            freeze(given)
            copies = [a.copy() for a in given]
            pull_back(r, one_dy, cache)
            assert_same_bits(given, copies)


def freeze(arrays):
    for a in arrays:
        a.flags.writeable = False


def assert_same_bits(arrays, copies):
    assert [a.tobytes() for a in arrays] == [c.tobytes() for c in copies]


@EACH_CALL
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.longdouble])
def test_the_dtype_is_kept(runs, dtype):
    """Neither constants nor options widen it, in value or gradient. (longdouble is float64 on some machines.)"""
    for r in (cast(r, dtype) for r in runs):
        y, cache = forward(r)
        assert y.dtype == dtype
        gradients = pull_back(r, cotangent_of(y), cache)
        assert {gradients[k].dtype for k in differentiable(r)} == {np.dtype(dtype)}


@EACH_CALL
def test_a_gradient_that_nobody_needs_changes_no_other(runs):
    for r in runs:
        y, cache = forward(r)
        dy = cotangent_of(y)
        complete = pull_back(r, dy, cache)
        for k in differentiable(r):
            only = tuple(i == k for i in range(len(r.inputs)))
            same_y, smaller_cache = forward(r, only)
            np.testing.assert_array_equal(same_y, y, strict=True)
            np.testing.assert_array_equal(pull_back(r, dy, smaller_cache, only)[k], complete[k], strict=True)


# float16, through the public functions. astype is left out: its result has the dtype that was asked for.


@tn.formulas_only()
@pytest.mark.parametrize(("name", "setting"), [p for p in ALWAYS if p.values[0] != "astype"])
def test_float16_is_float32_rounded_once(name, setting):
    for seed in range(4):
        inputs = [rounded(a) for a in CASES[name].inputs(np.random.default_rng(seed), setting)]
        wide = [a.astype(np.float32) if a.dtype == np.float16 else a for a in inputs]
        got, gradients = value_and_gradients(name, setting, inputs)
        right, right_gradients = value_and_gradients(name, setting, wide)
        assert right.dtype == np.float32
        for half, exact in zip([got, *gradients], [right, *right_gradients], strict=True):
            np.testing.assert_array_equal(half, exact.astype(np.float16), strict=True)


def rounded(a):
    return a.astype(np.float16) if a.dtype == np.float64 else a


def value_and_gradients(name, setting, inputs):
    call = partial(CASES[name].call, **setting.options)
    dy = np.random.default_rng(5).normal(size=value(call, inputs).shape).astype(np.float16)
    return run(call, inputs, dy)
