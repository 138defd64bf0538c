"""Each op held to what operations promise, by `verify`, in many shapes; and where numbers cannot judge."""

from functools import partial

import numpy as np
import pytest
from helpers import ALWAYS, run, value
from hypothesis import given, settings

import tinynorm as tn
from tinynorm import functional as F
from tinynorm import table
from tinynorm.graph import topological_order
from tinynorm.op import Op
from tinynorm.testing.cases import CASES
from tinynorm.testing.strategies import seeds, settings_of
from tinynorm.testing.verify import verify

EACH_CALL = pytest.mark.parametrize("name", CASES)


def check(name, setting, seed):
    verify(CASES[name], CASES[name].inputs(np.random.default_rng(seed), setting), setting.options, seed=seed)


def recorded(y: tn.Tensor) -> set[str]:
    """The names of the ops that y was computed by."""
    return {node.op.name for node in topological_order(y._source)}


# Shapes and options


def test_every_op_of_the_table_is_called():
    assert {case.op for case in CASES.values()} == {op for op in vars(table).values() if isinstance(op, Op)}
    assert all(case.name == name for name, case in CASES.items())


@EACH_CALL
def test_a_call_records_the_op_that_it_is_named_after(name):
    if name == "astype" and np.dtype(np.longdouble) == np.float64:
        pytest.skip("this machine has no wider dtype to convert float64 to")
    case = CASES[name]
    inputs = case.inputs(np.random.default_rng(0), case.typical)
    tensors = [tn.tensor(a, requires_grad=a.dtype.kind == "f") for a in inputs]
    y = case.call(*tensors, **case.typical.options)
    assert case.op.name == name.partition(":")[0]
    assert case.op.name in recorded(y)
    assert all(n > 1 for shape in [*(a.shape for a in inputs if a.ndim), y.shape] for n in shape)


@EACH_CALL
def test_nothing_is_recorded_under_no_grad(name):
    case = CASES[name]
    inputs = case.inputs(np.random.default_rng(0), case.typical)
    with tn.no_grad():
        y = case.call(*(tn.tensor(a, requires_grad=a.dtype.kind == "f") for a in inputs), **case.typical.options)
    assert not y.requires_grad
    assert y._source is None


@pytest.mark.parametrize(("name", "setting"), ALWAYS)
def test_promises_in_these_settings(name, setting):
    check(name, setting, seed=0)


@EACH_CALL
def test_promises_in_random_settings(name):
    @settings(max_examples=settings.default.max_examples // 8 + 1)
    @given(setting=settings_of(CASES[name]), seed=seeds())
    def test(setting, seed):
        check(name, setting, seed)

    test()


# Where differences cannot judge: kinks, for which the docstrings promise a value, and points where numbers run out


def derivative(function, *values, dtype=np.float64, dy=1.0):
    """The gradients for a cotangent that is the same everywhere."""
    arrays = [np.array(v, dtype) for v in values]
    return [g.tolist() for g in run(function, arrays, np.full(value(function, arrays).shape, dy, dtype))[1]]


@pytest.mark.parametrize(
    ("function", "inputs", "gradients"),
    [
        (tn.abs, [[0.0, -0.0]], [[0.0, 0.0]]),
        (F.relu, [[0.0, -0.0]], [[0.0, 0.0]]),
        (partial(F.leaky_relu, negative_slope=0.25), [[0.0]], [[0.25]]),
        (partial(F.elu, alpha=0.25), [[0.0]], [[0.25]]),
        (tn.maximum, [[1.0, 2.0], [1.0, 3.0]], [[0.5, 0.0], [0.5, 1.0]]),
        (tn.minimum, [[1.0, 2.0], [1.0, 3.0]], [[0.5, 1.0], [0.5, 0.0]]),
        (tn.max, [[3.0, 1.0, 3.0, 3.0]], [[1 / 3, 0.0, 1 / 3, 1 / 3]]),
        (tn.min, [[3.0, 1.0, 1.0, 3.0]], [[0.0, 0.5, 0.5, 0.0]]),
        (partial(tn.max, axis=0), [[[1.0, 5.0], [1.0, 4.0]]], [[[0.5, 1.0], [0.5, 0.0]]]),
        (partial(tn.max, axis=1), [[[np.nan, 1.0], [2.0, 1.0]]], [[[1.0, 0.0], [1.0, 0.0]]]),  # nan is NumPy's maximum
        (partial(tn.min, axis=1), [[[1.0, np.nan], [2.0, 1.0]]], [[[0.0, 1.0], [0.0, 1.0]]]),
        (tn.max, [[np.nan, 1.0, np.nan]], [[0.5, 0.0, 0.5]]),
        (tn.clip, [[-1.0, 1.0, 2.0, -2.0], -1.0, 1.0], [[1.0, 1.0, 0.0, 0.0], 1.0, 1.0]),
        (tn.clip, [0.0, 2.0, 1.0], [0.0, 0.0, 1.0]),  # bounds that cross: NumPy's clip gives the upper one
        (lambda x: tn.sqrt((x * x).sum()) ** 2, [[0.0, 0.0]], [[0.0, 0.0]]),
        (lambda x: ((x * x).sum() ** 0.5) ** 2, [[0.0, 0.0]], [[0.0, 0.0]]),
        (lambda x: x**0, [[0.0, 2.0]], [[0.0, 0.0]]),
        (lambda x, p: x**p, [[0.0, 0.0], [2.0, 1.0]], [[0.0, 1.0], [0.0, 0.0]]),
        (tn.prod, [[0.0, 2.0, 3.0]], [[6.0, 0.0, 0.0]]),
        (tn.prod, [[0.0, 2.0, 0.0]], [[0.0, 0.0, 0.0]]),
        (lambda x: tn.where(x < 0, x, x * x), [[-3.0, 3.0]], [[1.0, 6.0]]),
        (tn.logsumexp, [[-np.inf, 1.0, 1.0]], [[0.0, 0.5, 0.5]]),
    ],
)
def test_at_kinks_and_zeros(function, inputs, gradients):
    for got, right in zip(derivative(function, *inputs, dy=4.0), gradients, strict=True):
        np.testing.assert_allclose(got, 4.0 * np.array(right), rtol=1e-15)


def test_the_slope_of_sqrt_at_zero_is_infinite():
    with np.errstate(divide="ignore"):
        assert derivative(tn.sqrt, [0.0, 4.0]) == [[np.inf, 0.25]]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(
    ("function", "left", "right"),
    [
        (tn.tanh, 0.0, 0.0),
        (tn.erf, 0.0, 0.0),
        (F.relu, 0.0, 1.0),
        (partial(F.leaky_relu, negative_slope=0.5), 0.5, 1.0),
        (F.elu, 0.0, 1.0),
        (F.sigmoid, 0.0, 0.0),
        (F.silu, 0.0, 1.0),
        (F.softplus, 0.0, 1.0),
        (F.gelu, 0.0, 1.0),
        (partial(F.gelu, approximate="tanh"), 0.0, 1.0),
    ],
)
def test_far_out_slopes_are_the_limits(function, left, right, dtype):
    """And no warning comes, which would be an error here."""
    far = float(np.finfo(dtype).max) / 2
    assert derivative(function, [-far, -1000.0, 1000.0, far], dtype=dtype) == [[left, left, right, right]]


# float16: kept in 16 bits, computed in 32. Above 2048 a running sum of ones in float16 no longer grows.


@pytest.mark.parametrize(
    ("function", "inputs", "first_gradients"),
    [
        (lambda x: tn.broadcast_to(x, (5000, 2)), [[1.0, 1.0]], [5000.0]),
        (lambda x: x[np.zeros(5000, int)], [[1.0]], [5000.0]),
        (lambda x: tn.take(x, np.zeros(5000, int), axis=0), [[[1.0, 1.0]]], [5000.0]),
        (lambda x, b: x + b, [np.ones((5000, 2)), [1.0, 1.0]], [1.0, 5000.0]),
        (F.linear, [np.ones((5000, 2)), np.ones((1, 2)), [1.0]], [1.0, 5000.0, 5000.0]),
        (lambda x, b: F.layer_norm(x, 2, bias=b), [np.ones((5000, 2)), [1.0, 1.0]], [0.0, 5000.0]),
        (tn.cumsum, [np.ones(5000)], [5000.0]),
        (tn.mean, [np.full(100_000, 1.5)], [np.float16(1e-5)]),
        (tn.max, [np.full(70_000, 1.5)], [np.float16(1 / 70_000)]),
        (partial(F.mse_loss, target=np.zeros(4, np.float16)), [[300.0, 0.0, 0.0, 0.0]], [150.0]),
    ],
)
def test_long_sums_of_float16_gradients(function, inputs, first_gradients):
    gradients = derivative(function, *inputs, dtype=np.float16)
    assert [np.ravel(g)[0] for g in gradients] == first_gradients
