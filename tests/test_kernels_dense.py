"""The kernels of Linear, relu, the sum and cross-entropy give what their formulas give, to rounding."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tinynorm as tn
from tinynorm import table
from tinynorm.formulas.losses import Targets
from tinynorm.kernels.sums import column_sums

F = tn.functional
LARGE = 96 * 256  # elements of an array that has memory of its own even in float32


def of_layout(array, layout):
    """The same numbers, lying otherwise in memory."""
    if layout == "Fortran" and array.ndim:
        return np.asfortranarray(array)
    if layout == "gaps" and array.ndim:
        wide = np.full((*array.shape[:-1], 2 * array.shape[-1]), np.nan, array.dtype)
        wide[..., ::2] = array
        return wide[..., ::2]
    if layout == "reversed" and array.ndim:
        return np.ascontiguousarray(array[::-1])[::-1]
    if layout == "read-only":
        array = array.copy()
        array.flags.writeable = False
    return array


def cotangent(rng, shape, dtype, kind):
    """Random; or one number everywhere, or one row for all, which take no memory of their own."""
    if kind == "one number":
        return np.broadcast_to(rng.normal(size=()).astype(dtype), shape)
    if kind == "one row" and shape:
        return np.broadcast_to(rng.normal(size=shape[-1:]).astype(dtype), shape)
    return of_layout(rng.normal(size=shape).astype(dtype), kind)


LAYOUTS = st.sampled_from(["C", "Fortran", "gaps", "reversed", "read-only"])
COTANGENTS = st.sampled_from(["C", "Fortran", "gaps", "read-only", "one number", "one row"])
DTYPES = st.sampled_from([np.float32, np.float64])
SEEDS = st.integers(0, 2**32 - 1)
SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple) | st.sampled_from(
    [(96, 256), (LARGE,), (7, 65_537), (1, 20_000), (20_000, 1), (129, 257)]
)


def run(call, arrays, dy):
    """The result, and the gradients of all inputs."""
    tensors = [tn.as_tensor(a) for a in arrays]
    for t in tensors:
        t.requires_grad = True
    y = call(*tensors)
    y.backward(dy)
    return [y.numpy(), *(t.grad for t in tensors)]


def compare(call, arrays, dy, scales=1.0):
    """Kernel and formula agree to some units in the last place of `scales`, and nothing was written to."""
    before = [a.copy() for a in (*arrays, dy)]
    found = run(call, arrays, dy)
    with tn.formulas_only():
        wanted = run(call, arrays, dy)
    scales = scales if isinstance(scales, list) else [scales] * len(found)
    for a, b, scale in zip(found, wanted, scales, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        eps = np.finfo(a.dtype).eps
        np.testing.assert_allclose(a, b, rtol=8 * eps, atol=8 * eps * scale)
    for a, b in zip((*arrays, dy), before, strict=True):
        np.testing.assert_array_equal(a, b)
    for i, a in enumerate(found):
        assert not any(np.shares_memory(a, b) for b in (*arrays, dy, *found[:i]))


def serves(op, *arrays, **params):
    """Whether the kernel takes these."""
    _, _, kernel = op.run_plain(arrays, (True,) * len(arrays), params)
    return kernel is not None


# Linear


@given(
    lead=st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple) | st.sampled_from([(300,), (3, 90), (257,)]),
    into=st.sampled_from([0, 1, 2, 5, 64, 130]),
    out=st.sampled_from([0, 1, 3, 5, 64, 257]),
    biased=st.booleans(),
    layouts=st.tuples(LAYOUTS, LAYOUTS),
    dtype=DTYPES,
    kind=COTANGENTS,
    seed=SEEDS,
)
def test_linear(lead, into, out, biased, layouts, dtype, kind, seed):
    rng = np.random.default_rng(seed)
    x, weight, bias = (rng.normal(size=s).astype(dtype) for s in ((*lead, into), (out, into), (out,)))
    arrays = [of_layout(x, layouts[0]), of_layout(weight, layouts[1]), *([bias] if biased else [])]
    dy = cotangent(rng, (*lead, out), dtype, kind)
    sizes = [abs(x) @ abs(weight).T, abs(dy) @ abs(weight)]
    rows = abs(dy).reshape(np.prod(lead, dtype=int), out)
    sizes += [rows.T @ abs(x).reshape(len(rows), into), rows.sum(0)][: 2 if biased else 1]
    compare(F.linear, arrays, dy, [1.0 + np.max(size, initial=0.0) for size in sizes])


def test_which_inputs_linear_takes():
    x, weight, bias = np.ones((4, 3)), np.ones((2, 3)), np.ones(2)
    assert serves(table.linear, x, weight, bias)
    assert serves(table.linear, x[::2, ::-1], weight.T.copy().T, None)
    assert serves(table.linear, np.ones((2, 4, 3)), weight, bias)
    assert not serves(table.linear, np.ones((2, 3, 4)).swapaxes(1, 2), weight, bias)
    assert not serves(table.linear, x[0], weight, bias)
    assert not serves(table.linear, x.astype(np.float32), weight, bias)
    assert not serves(table.linear, x, weight, bias.astype(np.float32))
    assert not serves(table.linear, x[:0], weight, bias)
    with tn.formulas_only():
        assert not serves(table.linear, x, weight, bias)


@pytest.mark.parametrize("n", [0, 1, 7, 255, 256, 257, 300, 2048, 2051, 70_001])
def test_column_sums_do_not_drift(n):
    rows = np.tile(np.float32([0.1, 0.7, -3.0]), (n, 1))  # equal rows are the worst case
    exact = n * rows[:1].astype(np.longdouble).sum(0)
    assert np.all(abs(column_sums(rows) - exact) <= 16 * np.finfo(np.float32).eps * abs(exact))


@np.errstate(invalid="ignore")
def test_linear_under_nan_and_infinity_and_without_some_gradients():
    rng = np.random.default_rng(1)
    x, weight, dy = rng.normal(size=(4, 3)), rng.normal(size=(2, 3)), rng.normal(size=(4, 2))
    x[1, 2], x[2, 0], dy[3, 1] = np.nan, np.inf, np.inf
    compare(F.linear, [x, weight, np.ones(2)], dy, scales=9.0)
    for wanted in range(1, 8):
        tensors = [tn.tensor(a, requires_grad=bool(wanted >> k & 1)) for k, a in enumerate((x, weight, np.ones(2)))]
        F.linear(*tensors).backward(dy)
        for t, reference in zip(tensors, run(F.linear, [x, weight, np.ones(2)], dy)[1:], strict=True):
            assert t.grad is None if not t.requires_grad else np.array_equal(t.grad, reference, equal_nan=True)


@pytest.mark.parametrize(("rows", "width", "out"), [(8, 8, 8), (1, 8, 8), (8, 1, 8), (8, 8, 1)])
def test_overflow_in_linear_is_what_numpy_was_told_of_it(rows, width, out):
    x, weight = (
        tn.tensor(np.full(shape, 1e30, np.float32), requires_grad=True) for shape in ((rows, width), (out, width))
    )
    dy = np.full((rows, out), 1e30, np.float32)
    with np.errstate(over="ignore"):  # and all that NumPy says besides is an error here
        F.linear(x, weight).backward(dy)
    assert np.isinf(x.grad).all()
    assert np.isinf(weight.grad).all()
    if 1 not in (rows, width, out):
        with np.errstate(over="raise"), pytest.raises(FloatingPointError):
            F.linear(x, weight)


def test_products_raise_no_flag_of_invalid_numbers():
    rng = np.random.default_rng(3)
    for n, k, m in rng.integers(1, 40, (2000, 3)):
        x, weight = (tn.tensor(rng.normal(size=shape), requires_grad=True) for shape in ((n, k), (m, k)))
        with np.errstate(all="raise"):
            F.linear(x, weight).backward(np.ones((n, m)))


# Element by element


@given(shape=SHAPES, layout=LAYOUTS, dtype=DTYPES, kind=COTANGENTS, strange=st.booleans(), seed=SEEDS)
def test_relu(shape, layout, dtype, kind, strange, seed):
    """The same bits: also where a cotangent that is not finite meets a 0, which keeps it out."""
    rng = np.random.default_rng(seed)
    x, dy = rng.normal(size=shape).astype(dtype), cotangent(rng, shape, dtype, kind).copy()
    if strange:
        for a in (x, dy):
            picks = rng.random(shape) < 0.3
            a[picks] = rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, np.finfo(dtype).max], size=picks.sum())
    compare(F.relu, [of_layout(x, layout)], dy, 0.0)


@given(shape=SHAPES, layout=LAYOUTS, dtype=DTYPES, seed=SEEDS)
def test_sum(shape, layout, dtype, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape).astype(dtype)
    compare(lambda t: t.sum(), [of_layout(x, layout)], rng.normal(size=()).astype(dtype), 1.0 + np.sum(abs(x)) / 8)


def test_which_inputs_relu_and_cross_entropy_take():
    x = np.ones((96, 256))
    assert serves(table.relu, x)
    assert serves(table.relu, x[0, 0, ...])
    assert not serves(table.relu, x.T)
    assert not serves(table.relu, x.astype(int))
    target = Targets(np.arange(256), np.arange(96), np.ones(256), None, 0.0)
    assert serves(table.cross_entropy, x, target=target, divisor=1.0)
    assert not serves(table.cross_entropy, x[:0], target=target._replace(index=np.arange(0)), divisor=1.0)
    assert not serves(table.cross_entropy, x, target=target._replace(weight=np.ones(256, np.float32)), divisor=1.0)
    assert not serves(table.cross_entropy, x, target=target._replace(weight=np.zeros(256)), divisor=1.0)
    assert not serves(table.cross_entropy, x, target=target._replace(kept=np.arange(96) > 0), divisor=1.0)


def test_sums_over_some_axes_and_of_integers_have_none():
    x = np.ones((3, 4))
    assert serves(table.sum, x, axis=None, keepdims=False)
    assert not serves(table.sum, x, axis=0, keepdims=False)
    assert not serves(table.sum, x, axis=None, keepdims=True)
    assert not serves(table.sum, x.astype(int), axis=None, keepdims=False)
    assert not serves(table.sum, x.T, axis=None, keepdims=False)


# Cross-entropy


@given(
    n=st.sampled_from([1, 2, 5, 40, 3000]),
    classes=st.sampled_from([1, 2, 3, 10, 900]),
    spread=st.sampled_from([0.1, 1.0, 10.0, 1000.0]),
    dtype=DTYPES,
    smoothing=st.sampled_from([0.0, 0.1]),
    weighted=st.booleans(),
    reduction=st.sampled_from(["mean", "sum", "none"]),
    ignored=st.booleans(),
    kind=COTANGENTS,
    seed=SEEDS,
)
def test_cross_entropy(n, classes, spread, dtype, smoothing, weighted, reduction, ignored, kind, seed):
    rng = np.random.default_rng(seed)
    z, target = (spread * rng.normal(size=(n, classes))).astype(dtype), rng.integers(0, classes, n)
    if ignored and n > 1:
        target[0] = -100
    options = {"weight": rng.random(classes) + 0.5 if weighted else None, "label_smoothing": smoothing}

    def loss(t):
        return F.cross_entropy(t, target, reduction=reduction, **options)

    dy = cotangent(rng, (n,) if reduction == "none" else (), dtype, kind)
    compare(loss, [z], dy, [1.0 + spread * n, float(np.max(abs(dy)))])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_cross_entropy_of_a_near_certain_class_keeps_its_digits(dtype):
    """p is 1 − 1e-20 or so: then ℓ = Σ_{others} e^z and z̄ of the class is minus the others' sum."""
    z = np.zeros((3, 4), dtype)
    z[0, 1] = z[1, 1] = 46.0
    t = tn.tensor(z, requires_grad=True)
    y = F.cross_entropy(t, [1, 0, 2], reduction="none")
    y.backward(np.array([1.0, 1.0, 1.0], dtype))
    others = 3 * np.exp(np.longdouble(-46.0))
    np.testing.assert_allclose(y.numpy(), [others, 46.0, np.log(4.0)], rtol=4 * np.finfo(dtype).eps)
    np.testing.assert_allclose(t.grad[0], np.array([1, -3, 1, 1]) * others / 3, rtol=4 * np.finfo(dtype).eps)
    np.testing.assert_allclose(t.grad[1, 1], 1.0, rtol=4 * np.finfo(dtype).eps)


@pytest.mark.parametrize("strange", [np.nan, np.inf, -np.inf, 1e38])
@pytest.mark.parametrize("target", [[0, 1], [-100, 1], [-100, 0]])
def test_cross_entropy_of_what_is_not_finite(strange, target):
    z = np.random.default_rng(3).normal(size=(2, 3)).astype(np.float32)
    z[0, 1] = strange
    with np.errstate(all="ignore"):
        compare(lambda t: F.cross_entropy(t, target, reduction="none"), [z], np.float32([0.3, -2.0]))


# What all have in common

CALLS = {
    "linear": (lambda x: F.linear(x, x[:7], x[0, :7]), (200, 300)),
    "relu": (F.relu, (300, 300)),
    "sum": (lambda x: x.sum(), (300, 300)),
    "cross_entropy": (lambda x: F.cross_entropy(x, [0] * 300, reduction="none"), (300, 300)),
}


@pytest.mark.parametrize("name", CALLS)
def test_float16_takes_the_formula(name):
    call, shape = CALLS[name]
    x = np.random.default_rng(4).normal(size=shape).astype(np.float16)
    dy = np.random.default_rng(5).normal(size=call(tn.tensor(x)).shape).astype(np.float16)
    found = run(call, [x], dy)
    with tn.formulas_only():
        for a, b in zip(found, run(call, [x], dy), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", CALLS)
def test_the_same_bits_for_any_number_of_threads(name, monkeypatch, restored):
    monkeypatch.setattr(tn.kernels.threads, "ENOUGH", 1)
    call, shape = CALLS[name]
    x = np.random.default_rng(6).normal(size=shape).astype(np.float32)
    dy = np.random.default_rng(7).normal(size=call(tn.tensor(x)).shape).astype(np.float32)
    found = []
    for n in (1, 2, 3):
        tn.set_num_threads(n)
        found.append([a.tobytes() for a in run(call, [x], dy)])
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("name", CALLS)
def test_a_graph_may_be_walked_twice_and_differentiated_twice(name):
    call, shape = CALLS[name]
    x = tn.tensor(np.random.default_rng(8).normal(size=shape), requires_grad=True)
    y = call(x)
    dy = np.random.default_rng(9).normal(size=y.shape)
    y.backward(dy, retain_graph=True)
    once = x.grad.copy()
    y.backward(dy)
    np.testing.assert_array_equal(x.grad, 2 * once)
    (first,) = tn.grad(call(x), [x], dy, create_graph=True)
    np.testing.assert_allclose(first.numpy(), once, rtol=1e-10, atol=1e-12)
