"""Each op's gradient, held against central differences: over many shapes, memory layouts and cotangents."""

from functools import partial

import numpy as np
import pytest
from helpers import ALWAYS, CALLS, LAYOUTS, Setting, has_layout, run, value
from hypothesis import given
from hypothesis import strategies as st

import tinynorm as tn
from tinynorm import functional as F
from tinynorm import table
from tinynorm.graph import topological_order
from tinynorm.op import Op

SEEDS = st.integers(0, 2**32 - 1)
EACH_CALL = pytest.mark.parametrize("name", CALLS)


def inputs_of(name: str, setting: Setting, seed: int) -> list[np.ndarray]:
    return CALLS[name].inputs(np.random.default_rng([seed, 0]), setting)


def check_gradient(name: str, setting: Setting, seed: int) -> None:
    function = partial(CALLS[name].call, **setting.options)
    assert tn.testing.gradcheck(function, inputs_of(name, setting, seed), seed=seed)


def recorded(y: tn.Tensor) -> set[str]:
    """The names of the ops that y was computed by."""
    return {node.op.name for node in topological_order(y._source)}


# Shapes and options


def test_every_op_of_the_table_is_called():
    assert {name.partition(":")[0] for name in CALLS} == {op.name for op in vars(table).values() if isinstance(op, Op)}


@EACH_CALL
def test_a_call_records_the_op_that_it_is_named_after(name):
    if name == "astype" and np.dtype(np.longdouble) == np.float64:
        pytest.skip("this machine has no wider dtype to convert float64 to")
    setting = CALLS[name].typical
    tensors = [tn.tensor(a, requires_grad=a.dtype.kind == "f") for a in inputs_of(name, setting, 0)]
    assert name.partition(":")[0] in recorded(CALLS[name].call(*tensors, **setting.options))


@pytest.mark.parametrize(("name", "setting"), ALWAYS)
def test_gradient_in_these_settings(name, setting):
    check_gradient(name, setting, seed=0)


@EACH_CALL
@given(data=st.data(), seed=SEEDS)
def test_gradient_in_random_settings(name, data, seed):
    check_gradient(name, data.draw(CALLS[name].random), seed)


@pytest.mark.parametrize(("name", "setting"), ALWAYS)
def test_gradients_have_the_shape_and_dtype_of_their_tensors(name, setting):
    inputs = inputs_of(name, setting, 0)
    y = value(CALLS[name].call, inputs, **setting.options)
    _, gradients = run(CALLS[name].call, inputs, np.ones(y.shape), **setting.options)
    floats = [a for a in inputs if a.dtype.kind == "f"]
    assert [(type(g), g.shape, g.dtype) for g in gradients] == [(np.ndarray, a.shape, a.dtype) for a in floats]


# Memory layouts


@pytest.mark.parametrize("layout", LAYOUTS)
@EACH_CALL
def test_inputs_in_any_layout(name, layout):
    call, setting = partial(CALLS[name].call, **CALLS[name].typical.options), CALLS[name].typical
    inputs = [LAYOUTS[layout](a) for a in inputs_of(name, setting, 1)]
    before = [a.copy() for a in inputs]
    assert all(has_layout(layout, a) for a in inputs)
    assert all(tn.as_tensor(a).data is a for a in inputs)

    dy = np.random.default_rng(2).normal(size=value(call, inputs).shape)
    y, gradients = run(call, inputs, dy)
    expected_y, expected = run(call, before, dy)
    np.testing.assert_allclose(y, expected_y, rtol=1e-12, atol=1e-14)
    for got, right in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-12, atol=1e-14)
    for a, b in zip(inputs, before, strict=True):
        np.testing.assert_array_equal(a, b)
    assert_central_differences(call, inputs, dy, gradients)


def assert_central_differences(call, inputs, dy, gradients):
    floats = [k for k, a in enumerate(inputs) if a.dtype.kind == "f"]
    for k, got in zip(floats, gradients, strict=True):
        numeric = tn.testing.central_difference(
            lambda a, k=k: value(call, [*inputs[:k], a, *inputs[k + 1 :]]), inputs[k], dy
        )
        np.testing.assert_allclose(got, numeric, rtol=1e-6, atol=1e-6 * np.abs(numeric).max())


@pytest.mark.parametrize("layout", LAYOUTS)
@EACH_CALL
def test_cotangents_in_any_layout(name, layout):
    """One that is stride 0 throughout, as `sum` sends it, is the next test's."""
    setting = CALLS[name].typical
    inputs = inputs_of(name, setting, 1)
    shape = value(CALLS[name].call, inputs, **setting.options).shape
    dy = LAYOUTS[layout](np.random.default_rng(2).normal(size=shape))
    assert has_layout(layout, dy)
    assert_same_gradients(name, setting, inputs, dy, dy.copy())


@EACH_CALL
def test_a_cotangent_of_strides_0(name):
    setting = CALLS[name].typical
    inputs = inputs_of(name, setting, 1)
    shape = value(CALLS[name].call, inputs, **setting.options).shape
    dy = np.broadcast_to(1.7, shape)
    assert set(dy.strides) == {0}
    assert_same_gradients(name, setting, inputs, dy, np.full(shape, 1.7))


def assert_same_gradients(name, setting, inputs, dy, same_dy):
    _, got = run(CALLS[name].call, inputs, dy, **setting.options)
    _, expected = run(CALLS[name].call, inputs, same_dy, **setting.options)
    for g, e in zip(got, expected, strict=True):
        np.testing.assert_allclose(g, e, rtol=1e-12, atol=1e-14)


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
