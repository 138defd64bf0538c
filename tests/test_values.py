"""Forward values and dtypes of the public functions, held against NumPy, mpmath or loops over Python numbers."""

import itertools
import math
import operator
from functools import partial

import mpmath
import numpy as np
import pytest
from helpers import run, value

import tinynorm as tn
from tinynorm import array
from tinynorm import functional as F
from tinynorm.testing.cases import BROADCAST, CASES, INDICES, SHAPES
from tinynorm.testing.values import LAYOUTS, above, away_from_zero, mask, positive, real

FLOATS = [np.float16, np.float32, np.float64]
DTYPES = [np.bool_, np.int8, np.uint8, np.int16, np.int32, np.int64, np.uint64, *FLOATS]

EACH_FLOAT = pytest.mark.parametrize("dtype", FLOATS)
EACH_SHAPE = pytest.mark.parametrize("shape", SHAPES, ids=str)


def made(make, shape, dtype=np.float64, seed=0):
    return make(np.random.default_rng(seed), shape).astype(dtype)


def assert_close(got, exact, dtype, ulps=8):
    """`got` in this dtype, within some units in the last place; float16 is computed in float32 and rounded once."""
    exact = np.asarray(exact, np.float64)
    assert (got.shape, got.dtype) == (exact.shape, dtype)
    unit = np.spacing(np.abs(exact).astype(dtype)).astype(np.float64)
    assert np.all(np.abs(got - exact) <= (0.51 if dtype == np.float16 else ulps) * unit)


def test_every_public_function_is_here():
    elementwise = {f.__name__ for f in [*NUMPY, *EXACT]}
    others = {f.__name__ for f in [*REDUCTIONS, *BINARY]} | {
        "cumsum", "logsumexp", "where", "clip", "reshape", "transpose", "broadcast_to", "concatenate", "stack", "take",
        "matmul", "einsum", "linear", "rms_norm", "layer_norm", "softmax", "log_softmax", "dropout", "cross_entropy",
        "nll_loss", "mse_loss",
    }  # fmt: skip
    assert elementwise | others == {*array.__all__, *F.__all__}


# Element by element: NumPy's functions, and formulas in mpmath for those that NumPy lacks

NUMPY = {
    tn.exp: (np.exp, real), tn.expm1: (np.expm1, real), tn.log: (np.log, positive),
    tn.log1p: (np.log1p, above(-1.0)), tn.sqrt: (np.sqrt, positive), tn.tanh: (np.tanh, real),
    tn.sin: (np.sin, real), tn.cos: (np.cos, real), tn.abs: (np.abs, real),
}  # fmt: skip


def sigma(x):
    return 1 / (1 + mpmath.exp(-x))


def gelu_tanh(x):
    return x * (1 + mpmath.tanh(mpmath.sqrt(2 / mpmath.pi) * (x + mpmath.mpf("0.044715") * x**3))) / 2


EXACT = {
    tn.erf: mpmath.erf,
    F.relu: lambda x: max(x, mpmath.mpf(0)),
    F.leaky_relu: lambda x: x if x > 0 else mpmath.mpf("0.01") * x,
    F.elu: lambda x: x if x > 0 else mpmath.expm1(x),
    F.sigmoid: sigma,
    F.silu: lambda x: x * sigma(x),
    F.softplus: lambda x: mpmath.log1p(mpmath.exp(x)),
    F.gelu: lambda x: x * mpmath.ncdf(x),
}


def exactly(function, x):
    """The function of each element, with 60 digits."""
    with mpmath.workdps(60):
        return np.array([float(function(mpmath.mpf(float(v)))) for v in x.ravel()]).reshape(x.shape)


@EACH_SHAPE
@EACH_FLOAT
@pytest.mark.parametrize("function", NUMPY)
def test_functions_that_numpy_has(function, dtype, shape):
    reference, make = NUMPY[function]
    x = made(make, shape, dtype)
    assert_close(function(x).numpy(), reference(x.astype(np.float64)), dtype)


@EACH_SHAPE
@EACH_FLOAT
@pytest.mark.parametrize("function", EXACT)
def test_functions_that_numpy_lacks(function, dtype, shape):
    x = made(real, shape, dtype)
    assert_close(function(x).numpy(), exactly(EXACT[function], x), dtype, ulps=16)


# Relative errors: half a unit of float16, and for the others what exp and a few steps after it cost.
RTOL = {np.float16: 4.9e-4, np.float32: 3e-6, np.float64: 1e-14}
# Below the smallest normal number digits are lost on the way, except for float16, which is computed in float32.
ATOL = {d: float(np.finfo(d).smallest_normal) for d in (np.float32, np.float64)} | {np.float16: 3e-8}


@EACH_FLOAT
@pytest.mark.parametrize("function", EXACT)
def test_small_and_large_arguments(function, dtype):
    """From where the function is linear to where it has reached its limit, with no warning."""
    sizes = np.array([1e-4, 1e-3, 0.03, 0.5, 1.0, 3.0, 5.0, 9.0, 30.0, 80.0, 1000.0], dtype)
    x = np.concatenate([-sizes, [0.0], sizes]).astype(dtype)
    np.testing.assert_allclose(function(x).numpy(), exactly(EXACT[function], x), rtol=RTOL[dtype], atol=ATOL[dtype])


@EACH_FLOAT
def test_gelu_by_tanh(dtype):
    x = np.linspace(-9, 9, 37).astype(dtype)
    got = F.gelu(x, approximate="tanh").numpy()
    assert got.dtype == dtype
    # In the tail an error of the exponent, which is −67 at x = −9, counts as often.
    np.testing.assert_allclose(got, exactly(gelu_tanh, x), rtol=20 * RTOL[dtype], atol=ATOL[dtype])
    far = np.array([-np.finfo(dtype).max, -1000.0, 1000.0, np.finfo(dtype).max], dtype)
    np.testing.assert_array_equal(F.gelu(far, "tanh").numpy(), np.maximum(far, 0))


def test_options_of_activations():
    x = np.array([-3.0, -0.5, 0.0, 2.0])
    np.testing.assert_allclose(F.leaky_relu(x, 0.25).numpy(), [-0.75, -0.125, 0.0, 2.0], rtol=1e-15)
    np.testing.assert_allclose(F.elu(x, 0.5).numpy(), [0.5 * math.expm1(-3), 0.5 * math.expm1(-0.5), 0, 2], rtol=1e-15)


def test_the_magnitude_of_minus_zero_is_plus_zero():
    assert not np.signbit(tn.abs(-0.0).item())


# Two operands

BINARY = {tn.maximum: np.maximum, tn.minimum: np.minimum}
OPERATORS = [operator.add, operator.sub, operator.mul, operator.truediv, operator.pow]


@pytest.mark.parametrize("shapes", BROADCAST, ids=str)
def test_binary_functions_broadcast(shapes):
    a, b = made(positive, shapes[0]), made(positive, shapes[1], seed=1)
    for function, reference in BINARY.items():
        np.testing.assert_array_equal(function(a, b).numpy(), reference(a, b), strict=True)
    for compute in OPERATORS:
        right = np.asarray(compute(a, b))
        for left_and_right in [(tn.tensor(a), tn.tensor(b)), (tn.tensor(a), b), (a, tn.tensor(b))]:
            got = compute(*left_and_right)
            assert isinstance(got, tn.Tensor)
            np.testing.assert_allclose(got.numpy(), right, rtol=1e-15, strict=True)


def test_where_and_clip():
    for shape_a, shape_b in BROADCAST:
        condition, a, b = made(mask, shape_a, bool), made(real, shape_a), made(real, shape_b, seed=1)
        np.testing.assert_array_equal(tn.where(condition, a, b).numpy(), np.where(condition, a, b), strict=True)
        for low, high in [(b, b + 1), (b, None), (None, b), (b + 1, b)]:
            np.testing.assert_array_equal(tn.clip(a, low, high).numpy(), np.asarray(np.clip(a, low, high)), strict=True)
    np.testing.assert_array_equal(tn.clip(a).numpy(), a)


# Reductions

REDUCTIONS = {
    tn.sum: np.sum, tn.mean: np.mean, tn.max: np.max, tn.min: np.min, tn.prod: np.prod, tn.var: np.var,
}  # fmt: skip

REDUCED = [
    ((), None), ((), ()), ((1,), None), ((1,), 0), ((4, 4), None), ((4, 4), 0), ((4, 4), -1), ((3, 1, 2), (0, -1)),
    ((3, 1, 2), (2, 1)), ((3, 1, 2), ()), ((3, 1, 2), (-1, -3, 1)), ((0, 3), 1), ((0, 3), (-1,)), ((0,), ()),
]  # fmt: skip
"""Shapes and axes of which none is empty."""

EACH_REDUCED = pytest.mark.parametrize(("shape", "axis"), REDUCED, ids=str)


@EACH_REDUCED
@pytest.mark.parametrize("keepdims", [False, True])
@EACH_FLOAT
def test_reductions(shape, axis, keepdims, dtype):
    x = made(away_from_zero, shape, dtype)
    for function, reference in REDUCTIONS.items():
        got = function(x, axis=axis, keepdims=keepdims).numpy()
        right = np.asarray(reference(x.astype(np.float64), axis=axis, keepdims=keepdims))
        assert (got.shape, got.dtype) == (right.shape, dtype)
        # An absolute bound, for sums that nearly cancel: the elements are below 3 in size.
        np.testing.assert_allclose(got, right, rtol=4 * np.finfo(dtype).eps, atol=16 * np.finfo(dtype).eps)
        if hasattr(tn.Tensor, function.__name__):
            method = getattr(tn.tensor(x), function.__name__)
            np.testing.assert_array_equal(method(axis=axis, keepdims=keepdims).numpy(), got)


@pytest.mark.parametrize("ddof", [0, 1, 0.5, -1])
def test_the_divisor_of_a_variance(ddof):
    x = made(real, (4, 3))
    np.testing.assert_allclose(tn.var(x, 0, ddof=ddof).numpy(), np.var(x, axis=0, ddof=ddof), rtol=1e-14)


@pytest.mark.parametrize(("shape", "axis"), [((0,), None), ((0, 3), 0), ((2, 0), (0, 1))])
def test_reductions_of_nothing(shape, axis):
    x = np.zeros(shape)
    np.testing.assert_array_equal(tn.sum(x, axis).numpy(), np.sum(x, axis), strict=False)
    np.testing.assert_array_equal(tn.prod(x, axis).numpy(), np.prod(x, axis), strict=False)
    for function in (tn.mean, tn.max, tn.min, tn.var, tn.logsumexp):
        with pytest.raises(tn.errors.ShapeError):
            function(x, axis)


@pytest.mark.parametrize(
    ("shape", "axis"), [((), None), ((0,), None), ((0,), 0), *[(s, a) for s in SHAPES[3:] for a in (None, 0, -1)]]
)
def test_cumsum(shape, axis):
    x = made(real, shape)
    np.testing.assert_allclose(tn.cumsum(x, axis).numpy(), np.cumsum(x, axis), rtol=1e-14, strict=True)


def slices(x, axis):
    """Where each result of a reduction over `axis` stands, and the numbers that go into it."""
    axes = range(x.ndim) if axis is None else [a % x.ndim for a in np.atleast_1d(axis).astype(int)]
    kept = [i for i in range(x.ndim) if i not in axes]
    moved = x.transpose(*kept, *axes)
    for place in np.ndindex(*moved.shape[: len(kept)]):
        yield place, [float(v) for v in moved[place].ravel()]


@EACH_REDUCED
@pytest.mark.parametrize("keepdims", [False, True])
@EACH_FLOAT
def test_logsumexp(shape, axis, keepdims, dtype):
    x = made(real, shape, dtype)
    got = tn.logsumexp(x, axis, keepdims).numpy()
    exact = np.empty(np.sum(x, axis).shape)
    for place, numbers in slices(x, axis):
        exact[place] = math.log(math.fsum(map(math.exp, numbers)))
    exact = exact.reshape(np.sum(x, axis, keepdims=keepdims).shape)
    assert (got.shape, got.dtype) == (exact.shape, dtype)
    np.testing.assert_allclose(got, exact, rtol=4 * np.finfo(dtype).eps, atol=8 * np.finfo(dtype).eps)


def test_logsumexp_of_extreme_numbers():
    x = [[1000.0, 1000.0], [-1000.0, -1000.0], [-np.inf, -np.inf], [-np.inf, 3.0], [np.inf, 3.0], [0.0, -1000.0]]
    right = [1000 + math.log(2), math.log(2) - 1000, -np.inf, 3.0, np.inf, 0.0]
    np.testing.assert_allclose(tn.logsumexp(np.array(x), axis=1).numpy(), right, rtol=1e-15)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d not in FLOATS])
def test_logsumexp_of_integers(dtype):
    """They are numbers like any other: differences must not wrap around."""
    for numbers in ([0, 1], [1, 0, 1], [1, 1]) if dtype == np.bool_ else ([1, 2], [100, 3, 0], [0, 120]):
        right = math.log(math.fsum(map(math.exp, numbers)))
        np.testing.assert_allclose(tn.logsumexp(np.array(numbers, dtype)).item(), right, rtol=1e-2)


def test_logsumexp_of_the_whole_range_of_int8():
    assert tn.logsumexp(np.array([-128, 127], np.int8)).item() == pytest.approx(127)


# Shapes and parts


def test_reshape():
    pairs = [((), ()), ((), (1, 1)), ((), -1), ((1,), ()), ((0,), (0, 5)), ((0, 3), (-1, 3)), ((4, 4), 16)]
    for shape, new in [*pairs, ((3, 1, 2), (2, -1))]:
        x = made(real, shape)
        np.testing.assert_array_equal(tn.reshape(x, new).numpy(), x.reshape(new), strict=True)
        np.testing.assert_array_equal(tn.tensor(x).reshape(new).numpy(), x.reshape(new), strict=True)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_reshape_of_any_layout_reads_in_c_order(layout):
    x = LAYOUTS[layout](made(real, (3, 4)))
    rows = x.tolist()
    right = [rows[0] + rows[1][:2], rows[1][2:] + rows[2]]
    np.testing.assert_array_equal(tn.reshape(tn.as_tensor(x), (2, 6)).numpy(), right)


def test_transpose():
    for shape in [*SHAPES, (2, 3)]:
        x = made(real, shape)
        np.testing.assert_array_equal(tn.transpose(x).numpy(), x.T, strict=True)
        np.testing.assert_array_equal(tn.tensor(x).T.numpy(), x.T, strict=True)
        for axes in itertools.permutations(range(-x.ndim, 0)):
            np.testing.assert_array_equal(tn.transpose(x, axes).numpy(), np.transpose(x, axes), strict=True)
            np.testing.assert_array_equal(tn.tensor(x).transpose(*axes).numpy(), np.transpose(x, axes), strict=True)


def test_broadcast_to():
    pairs = [((), ()), ((), (2, 0)), ((1,), (3,)), ((0,), (2, 0)), ((4, 4), (4, 4)), ((3, 1, 2), (4, 3, 5, 2))]
    for shape, new in pairs:
        x = made(real, shape)
        np.testing.assert_array_equal(tn.broadcast_to(x, new).numpy(), np.broadcast_to(x, new), strict=True)


def test_concatenate_and_stack():
    for shapes, axis in [([(1,)], 0), ([(0,), (2,), (1,)], -1), ([(3, 1, 2), (3, 4, 2)], 1), ([(4, 4), (4, 4)], -2)]:
        parts = [made(real, s, seed=i) for i, s in enumerate(shapes)]
        np.testing.assert_array_equal(tn.concatenate(parts, axis).numpy(), np.concatenate(parts, axis), strict=True)
    for shape in SHAPES:
        parts = [made(real, shape, seed=i) for i in range(3)]
        for axis in range(-len(shape) - 1, len(shape) + 1):
            np.testing.assert_array_equal(tn.stack(parts, axis).numpy(), np.stack(parts, axis), strict=True)


def plain(index):
    """The index with arrays for Tensors."""
    if isinstance(index, tuple):
        return tuple(map(plain, index))
    return index.numpy() if isinstance(index, tn.Tensor) else index


@pytest.mark.parametrize(("shape", "index"), INDICES, ids=lambda v: " ".join(repr(v).split()))
def test_indexing(shape, index):
    x = made(real, shape)
    np.testing.assert_array_equal(tn.tensor(x)[index].numpy(), np.asarray(x[plain(index)]), strict=True)


def test_take():
    x = made(real, (3, 1, 2))
    for indices, axis in [(0, None), ([5, -6], None), ([[0, 1], [1, 1]], -1), (2, 0), (np.zeros((0, 2), np.uint8), 1)]:
        np.testing.assert_array_equal(
            tn.take(x, indices, axis).numpy(), np.asarray(np.take(x, indices, axis)), strict=True
        )
    np.testing.assert_array_equal(tn.take(5.0, [0, 0]).numpy(), [5.0, 5.0])


# Products


@pytest.mark.parametrize("setting", CASES["matmul"].always, ids=lambda s: str(s.shapes))
def test_matmul(setting):
    a, b = (made(real, s, seed=i) for i, s in enumerate(setting.shapes))
    right = np.asarray(np.matmul(a, b))
    np.testing.assert_allclose(tn.matmul(a, b).numpy(), right, rtol=1e-13, atol=1e-15, strict=True)
    np.testing.assert_allclose((tn.tensor(a) @ b).numpy(), right, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose((a @ tn.tensor(b)).numpy(), right, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("setting", CASES["einsum"].always, ids=str)
def test_einsum(setting):
    operands = [made(real, s, seed=i) for i, s in enumerate(setting.shapes)]
    subscripts = setting.options["subscripts"]
    right = np.asarray(np.einsum(subscripts, *operands, optimize=False))
    np.testing.assert_allclose(tn.einsum(subscripts, *operands).numpy(), right, rtol=1e-13, atol=1e-14, strict=True)


def test_a_diagonal_of_axes_of_different_lengths_is_refused():
    """As NumPy refuses it: broadcasting goes between operands, not within one."""
    for shape in [(1, 3), (3, 1), (2, 3)]:
        with pytest.raises(tn.errors.ShapeError):
            tn.einsum("ii", np.ones(shape))


@EACH_FLOAT
@pytest.mark.parametrize("setting", CASES["linear"].always, ids=lambda s: str(s.shapes))
def test_linear(setting, dtype):
    x, weight, *bias = (made(real, s, dtype, seed=i) for i, s in enumerate(setting.shapes))
    right = np.zeros((*x.shape[:-1], len(weight)))
    for place in np.ndindex(right.shape):
        row, out = x[place[:-1]].tolist(), place[-1]
        right[place] = math.fsum(u * v for u, v in zip(row, weight[out].tolist(), strict=True))
        right[place] += float(bias[0][out]) if bias else 0.0
    got = F.linear(x, weight, *bias).numpy()
    assert got.dtype == dtype
    np.testing.assert_allclose(got, right, rtol=4 * np.finfo(dtype).eps, atol=8 * np.finfo(dtype).eps)


# Norms, softmax, losses: row by row over Python numbers


def rms_norm_row(x, weight, eps):
    r = 1 / math.sqrt(math.fsum(v * v for v in x) / len(x) + eps)
    return [v * r * g for v, g in zip(x, weight, strict=True)]


def layer_norm_row(x, weight, bias, eps):
    mean = math.fsum(x) / len(x)
    r = 1 / math.sqrt(math.fsum((v - mean) ** 2 for v in x) / len(x) + eps)
    return [(v - mean) * r * g + b for v, g, b in zip(x, weight, bias, strict=True)]


def row_by_row(function, x, size):
    """The function of each `size` numbers in C order."""
    flat = x.ravel().tolist()
    rows = [function(flat[i : i + size]) for i in range(0, len(flat), size)]
    return np.array(rows, np.float64).reshape(x.shape)


@EACH_FLOAT
@pytest.mark.parametrize("eps", [1e-5, 0.5, None])
@pytest.mark.parametrize(
    ("shape", "axes"), [((1,), 1), ((4,), 1), ((0, 3), 1), ((3, 1, 2), 1), ((3, 1, 2), 2), ((3, 1, 2), 3), ((4, 4), 1)]
)
def test_norms(shape, axes, eps, dtype):
    x = made(away_from_zero, shape, dtype) if shape != (1,) else np.array([0.75], dtype)
    normalized_shape = shape[-axes:]
    size = math.prod(normalized_shape)
    weight, bias = made(real, normalized_shape, dtype, 1), made(real, normalized_shape, dtype, 2)
    added = float(np.finfo(dtype).eps) if eps is None else eps
    for g, b in [(None, None), (weight, None), (None, bias), (weight, bias)]:
        gains = [1.0] * size if g is None else g.ravel().tolist()
        biases = [0.0] * size if b is None else b.ravel().tolist()
        tolerance = {"rtol": 8 * np.finfo(dtype).eps, "atol": 16 * np.finfo(dtype).eps}
        got = F.layer_norm(x, normalized_shape, g, b, eps).numpy()
        right = row_by_row(lambda row, gains=gains, biases=biases: layer_norm_row(row, gains, biases, added), x, size)
        assert got.dtype == dtype
        np.testing.assert_allclose(got, right, **tolerance)
        if b is None:
            got = F.rms_norm(x, normalized_shape, g, eps).numpy()
            right = row_by_row(lambda row, gains=gains: rms_norm_row(row, gains, added), x, size)
            assert got.dtype == dtype
            np.testing.assert_allclose(got, right, **tolerance)


def log_softmax_row(x):
    top = max(x, default=0.0)
    total = math.log(math.fsum(math.exp(v - top) for v in x))
    return [v - top - total for v in x]


@EACH_FLOAT
@pytest.mark.parametrize(
    ("shape", "axis"), [((1,), 0), ((0,), 0), ((3, 1, 2), 0), ((3, 1, 2), 1), ((0, 3), 1), ((4, 4), -2), ((4, 4), -1)]
)
def test_softmax(shape, axis, dtype):
    x = 5 * made(real, shape, dtype)
    logarithms = np.apply_along_axis(log_softmax_row, axis, x.astype(np.float64)) if x.size else x
    assert_close(F.softmax(x, axis).numpy(), np.exp(logarithms), dtype, ulps=16)
    got = F.log_softmax(x, axis).numpy()
    assert got.dtype == dtype
    np.testing.assert_allclose(got, logarithms, rtol=4 * np.finfo(dtype).eps, atol=16 * np.finfo(dtype).eps)


def test_softmax_of_extreme_numbers():
    x = np.array([[1000.0, 0.0, -1000.0], [-1e300, 0.0, 0.0], [-np.inf, 2.0, -np.inf]])
    np.testing.assert_array_equal(F.softmax(x).numpy(), [[1, 0, 0], [0, 0.5, 0.5], [0, 1, 0]])
    right = [[0, -1000, -2000], [-1e300, -math.log(2), -math.log(2)], [-np.inf, 0, -np.inf]]
    np.testing.assert_allclose(F.log_softmax(x).numpy(), right, rtol=1e-15)


def class_loss(log_p, target, weight, reduction, ignore_index, smoothing):
    """The loss from its definition, row by row. log_p is (N, C)."""
    losses, shares = [], []
    for row, t in zip(log_p, target, strict=True):
        kept = t != ignore_index
        smooth = -math.fsum(w * v for w, v in zip(weight, row, strict=True)) / len(row)
        losses.append((1 - smoothing) * weight[t] * -row[t] + smoothing * smooth if kept else 0.0)
        shares.append(weight[t] if kept else 0.0)
    return {"none": losses, "sum": math.fsum(losses), "mean": math.fsum(losses) / (math.fsum(shares) or 1)}[reduction]


@EACH_FLOAT
@pytest.mark.parametrize("name", ["cross_entropy", "nll_loss"])
def test_class_losses(name, dtype):
    for setting in CASES[name].always:
        scores, target = CASES[name].inputs(np.random.default_rng(0), setting)
        scores = scores.astype(dtype)
        options = setting.options
        last = np.moveaxis(scores, min(scores.ndim - 1, 1), -1)
        rows = last.reshape(target.size, last.shape[-1]).tolist()
        weight = np.linspace(0.5, 2.0, last.shape[-1]).tolist() if options["weighted"] else [1.0] * last.shape[-1]
        log_p = [log_softmax_row(r) for r in rows] if name == "cross_entropy" else rows
        smoothing = options.get("label_smoothing", 0.0)
        right = class_loss(
            log_p, target.ravel().tolist(), weight, options["reduction"], options["ignore_index"], smoothing
        )
        right = np.reshape(right, target.shape) if options["reduction"] == "none" else np.array(right)
        got = value(CASES[name].call, [scores, target], **options)
        assert (got.shape, got.dtype) == (right.shape, dtype)
        np.testing.assert_allclose(got, right, rtol=4 * np.finfo(dtype).eps, atol=8 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int32, np.uint64, np.int64])
def test_targets_of_any_integer_dtype(dtype):
    logits = np.array([[0.0, 1.0, 2.0], [0.5, 0.0, 0.0]])
    right = -(log_softmax_row([0.0, 1.0, 2.0])[2] + log_softmax_row([0.5, 0.0, 0.0])[0]) / 2
    assert F.cross_entropy(logits, np.array([2, 0], dtype)).item() == pytest.approx(right, rel=1e-14)


def test_a_class_that_is_impossible_costs_nothing_where_it_is_not_the_target():
    logits = np.array([[0.0, -np.inf, 0.0]])
    y, (gradient,) = run(partial(F.cross_entropy, target=np.array([0])), [logits], np.array(1.0))
    assert y == pytest.approx(math.log(2))
    np.testing.assert_allclose(gradient, [[-0.5, 0.0, 0.5]], rtol=1e-15)


@EACH_SHAPE
@EACH_FLOAT
def test_mse_loss(shape, dtype):
    x, target = made(real, shape, dtype), made(real, shape, dtype, seed=1)
    squares = (x.astype(np.float64) - target.astype(np.float64)) ** 2
    tolerance = {"rtol": 8 * np.finfo(dtype).eps}
    np.testing.assert_allclose(F.mse_loss(x, target, "none").numpy(), squares, **tolerance)
    np.testing.assert_allclose(F.mse_loss(x, target, "sum").numpy(), squares.sum(), **tolerance)
    if squares.size:
        np.testing.assert_allclose(F.mse_loss(x, target).numpy(), squares.mean(), **tolerance)
    assert F.mse_loss(x, target, "sum").dtype == dtype


@pytest.mark.parametrize(
    ("loss", "right"),
    [
        (lambda: F.cross_entropy(np.zeros((30_000, 10), np.float16), np.zeros(30_000, int)), math.log(10)),
        (lambda: F.cross_entropy(np.zeros((70_000, 2), np.float16), np.zeros(70_000, int)), math.log(2)),
        (lambda: F.nll_loss(np.full((70_000, 2), -1.5, np.float16), np.zeros(70_000, int)), 1.5),
        (lambda: F.mse_loss(np.full(100_000, 1.5, np.float16), np.zeros(100_000, np.float16)), 2.25),
        (lambda: F.mse_loss(np.array([300, 0, 0, 0], np.float16), np.zeros(4, np.float16)), 22_500.0),
        (lambda: tn.mean(np.full(100_000, 1.5, np.float16)), 1.5),
        (lambda: tn.var(np.array([250, -250] * 4, np.float16)), 62_500.0),
    ],
    ids=["cross_entropy 30000", "cross_entropy 70000", "nll_loss", "mse_loss 100000", "mse_loss 300", "mean", "var"],
)  # fmt: skip
def test_means_that_float16_can_hold_of_sums_that_it_cannot(loss, right):
    y = loss()
    assert y.dtype == np.float16
    assert y.item() == pytest.approx(right, rel=5e-4)


# Dropout: chance, so what must hold for every draw


@EACH_SHAPE
@EACH_FLOAT
def test_dropout_keeps_or_drops(shape, dtype):
    x = made(away_from_zero, shape, dtype)
    for p in (0.25, 0.5):
        y = F.dropout(x, p, rng=0).numpy()
        scaled = (x.astype(np.float64) / (1 - p)).astype(dtype)
        assert (y.shape, y.dtype) == (x.shape, dtype)
        assert np.all((y == 0) | np.isclose(y, scaled, rtol=2 * np.finfo(dtype).eps, atol=0))
    np.testing.assert_array_equal(F.dropout(x, 1.0).numpy(), np.zeros_like(x), strict=True)
    np.testing.assert_array_equal(F.dropout(x, 0.0).numpy(), x, strict=True)
    np.testing.assert_array_equal(F.dropout(x, 0.9, training=False).numpy(), x, strict=True)


def test_dropout_draws_from_its_generator():
    x = np.ones(10_000)
    y = F.dropout(x, 0.25, rng=3).numpy()
    assert abs((y == 0).mean() - 0.25) < 0.02  # four and a half standard deviations
    np.testing.assert_array_equal(F.dropout(x, 0.25, rng=3).numpy(), y)
    assert (F.dropout(x, 0.25, rng=4).numpy() != y).any()
    rng = np.random.default_rng(3)
    np.testing.assert_array_equal(F.dropout(x, 0.25, rng=rng).numpy(), y)
    assert (F.dropout(x, 0.25, rng=rng).numpy() != y).any()
    tn.manual_seed(3)
    np.testing.assert_array_equal(F.dropout(x, 0.25).numpy(), y)


# Dtypes: NumPy's


def dtype_or_refusal(function, *arguments):
    try:
        return function(*arguments).dtype
    except TypeError:  # as NumPy raises it, and tn.errors.DTypeError is one
        return "refused"


NAMED = pytest.mark.parametrize("dtype", DTYPES)


@NAMED
@pytest.mark.parametrize("function", NUMPY)
def test_unary_dtypes(function, dtype):
    x = np.ones(2, dtype)
    assert dtype_or_refusal(function, x) == dtype_or_refusal(NUMPY[function][0], x)


@NAMED
@pytest.mark.parametrize("function", [operator.neg, abs])
def test_dtypes_of_signs(function, dtype):
    x = np.ones(2, dtype)
    assert dtype_or_refusal(function, tn.tensor(x)) == dtype_or_refusal(function, x)


@NAMED
@pytest.mark.parametrize("function", [*REDUCTIONS, tn.cumsum])
def test_reduction_dtypes(function, dtype):
    x = np.ones((2, 3), dtype)
    for axis in (None, 1):
        assert function(x, axis).dtype == {**REDUCTIONS, tn.cumsum: np.cumsum}[function](x, axis).dtype


HALF = np.array([True, False])

# By name, what is called on Tensors and what on arrays.
WITH_NUMBERS = {
    **{f.__name__: (f, f) for f in OPERATORS},
    "maximum": (tn.maximum, np.maximum),
    "minimum": (tn.minimum, np.minimum),
    "where": (lambda a, b: tn.where(HALF, a, b), lambda a, b: np.where(HALF, a, b)),
}
PAIRWISE = WITH_NUMBERS | {
    "clip": (lambda a, b: tn.clip(a, b, b), lambda a, b: np.clip(a, b, b)),
    "clip from below": (lambda a, b: tn.clip(a, b), lambda a, b: np.clip(a, b, None)),
    "clip from above": (lambda a, b: tn.clip(a, None, b), lambda a, b: np.clip(a, None, b)),
    "matmul": (tn.matmul, np.matmul),
    "einsum": (lambda a, b: tn.einsum("i,i->i", a, b), lambda a, b: np.einsum("i,i->i", a, b)),
    "concatenate": (lambda a, b: tn.concatenate([a, b]), lambda a, b: np.concatenate([a, b])),
    "stack": (lambda a, b: tn.stack([a, b]), lambda a, b: np.stack([a, b])),
}


@pytest.mark.parametrize(("a", "b"), [*itertools.product(DTYPES, DTYPES)])
@pytest.mark.parametrize("name", PAIRWISE)
def test_dtypes_of_pairs(name, a, b):
    function, reference = PAIRWISE[name]
    x, y = np.ones(2, a), np.ones(2, b)
    assert dtype_or_refusal(function, tn.tensor(x), tn.tensor(y)) == dtype_or_refusal(reference, x, y)


SCALARS = [True, 2, 2.0, np.array(2.0), *(d(2) for d in (np.bool_, np.int8, np.int64, *FLOATS))]


@NAMED
@pytest.mark.parametrize("scalar", SCALARS, ids=lambda s: f"{type(s).__name__} {s}")
def test_python_numbers_are_weak_and_numpy_scalars_strong(scalar, dtype):
    x = np.ones(2, dtype)
    for function, reference in WITH_NUMBERS.values():
        if reference is operator.pow and np.__version__.startswith("2.0"):
            continue  # its x ** np.float32(2) keeps a float16 x float16, against its own rule
        assert dtype_or_refusal(function, tn.tensor(x), scalar) == dtype_or_refusal(reference, x, scalar)
        assert dtype_or_refusal(function, scalar, tn.tensor(x)) == dtype_or_refusal(reference, scalar, x)
    assert dtype_or_refusal(tn.clip, tn.tensor(x), scalar) == dtype_or_refusal(np.clip, x, scalar, None)


@pytest.mark.parametrize("function", [*NUMPY, *EXACT, *REDUCTIONS, tn.cumsum, tn.logsumexp])
def test_python_floats_become_float32(function):
    for x in (0.5, [0.5, 1.0], [[0.5], [1.0]]):
        assert function(x).dtype == np.float32


@NAMED
@pytest.mark.parametrize("compare", [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne])
def test_comparisons_are_bool(compare, dtype):
    x = np.array([0, 1, 1], dtype)
    y = np.array([1, 1, 0], dtype)
    for got in (compare(tn.tensor(x), tn.tensor(y)), compare(tn.tensor(x), y)):
        np.testing.assert_array_equal(got.numpy(), compare(x, y), strict=True)
    np.testing.assert_array_equal(compare(x, tn.tensor(y)).numpy(), compare(x, y), strict=True)
    np.testing.assert_array_equal(compare(tn.tensor(x), 1).numpy(), compare(x, 1), strict=True)


@EACH_FLOAT
def test_options_given_as_numpy_scalars_widen_nothing(dtype):
    x = tn.tensor(np.array([[1, 2], [4, 8]], dtype), requires_grad=True)
    half = np.float64(0.5)
    results = {
        "rms_norm": F.rms_norm(x, 2, eps=half),
        "layer_norm": F.layer_norm(x, 2, eps=half),
        "leaky_relu": F.leaky_relu(x, half),
        "elu": F.elu(x, half),
        "dropout": F.dropout(x, half, rng=0),
        "cross_entropy": F.cross_entropy(x, [0, 1], label_smoothing=half),
        "cross_entropy weight": F.cross_entropy(x, [0, 1], weight=np.array([1.0, 2.0])),
        "var": tn.var(x, ddof=half),
        "var along an axis": tn.var(x, axis=0, ddof=half),
        "sum": tn.sum(x, axis=np.int64(0)),
    }
    assert {name: y.dtype for name, y in results.items()} == dict.fromkeys(results, np.dtype(dtype))


@pytest.mark.parametrize(("a", "b"), [*itertools.product(FLOATS, FLOATS)])
def test_norms_and_layers_promote(a, b):
    x, weight = made(real, (3, 2), a), made(real, (2,), b)
    expected = np.result_type(a, b)
    assert F.rms_norm(x, 2, weight).dtype == expected
    assert F.layer_norm(x, 2, weight, weight).dtype == expected
    assert F.linear(x, made(real, (4, 2), b), made(real, (4,), b)).dtype == expected
    assert F.mse_loss(x, x.astype(b)).dtype == expected


@pytest.mark.parametrize(("a", "b"), [*itertools.product(FLOATS, DTYPES)])
@pytest.mark.parametrize("name", PAIRWISE)
@pytest.mark.parametrize("swapped", [False, True])
def test_a_gradient_has_its_tensors_dtype(name, a, b, swapped):
    x, y = np.array([1.5, 2.5], a), np.array([1, 1], b)
    function = (lambda u, v: PAIRWISE[name][0](v, u)) if swapped else PAIRWISE[name][0]
    if dtype_or_refusal(function, tn.tensor(x), tn.tensor(y)) == "refused":
        pytest.skip("NumPy refuses it too")
    result = value(function, [x, y])
    _, gradients = run(function, [x, y], np.ones_like(result))
    floats = [v for v in (x, y) if v.dtype.kind == "f"]
    assert [(g.shape, g.dtype) for g in gradients] == [(v.shape, v.dtype) for v in floats]
    # The same in float64, where powers of two and a few digits are exact.
    _, right = run(function, [v.astype(np.float64) for v in (x, y)], np.ones(result.shape))
    for g, r in zip(gradients, right, strict=False):
        np.testing.assert_allclose(g, r, rtol=2 * max(np.finfo(v.dtype).eps for v in floats))


@pytest.mark.parametrize("mean", [0.0, 1e4, 1e6])
def test_a_variance_is_as_exact_beside_a_large_mean(mean):
    x = (mean + np.random.default_rng(0).normal(size=(4, 256))).astype(np.float32)
    wide = x.astype(np.float64)
    t = tn.tensor(x, requires_grad=True)
    y = tn.var(t, axis=1, ddof=1)
    np.testing.assert_allclose(y.numpy(), np.var(wide, axis=1, ddof=1), rtol=2e-6)
    dy = np.array([1.0, -2.0, 0.5, 3.0])
    y.backward(dy)
    right = dy[:, None] * 2.0 * (wide - wide.mean(axis=1, keepdims=True)) / 255
    np.testing.assert_allclose(t.grad, right, atol=2e-6 * abs(right).max())


def test_logsumexp_of_infinities():
    inf = np.inf
    for row, right, gradient in [
        ([inf, 1000.0, 0.0], inf, [1.0, 0.0, 0.0]),
        ([inf, inf, 0.0], inf, [0.5, 0.5, 0.0]),
        ([-inf, 3.0, -inf], 3.0, [0.0, 1.0, 0.0]),
        ([-inf, -inf], -inf, [0.5, 0.5]),
    ]:
        t = tn.tensor(row, requires_grad=True)
        y = tn.logsumexp(t)
        y.backward()
        assert y.item() == right
        np.testing.assert_array_equal(t.grad, np.float32(gradient))


@pytest.mark.parametrize("name", ["expm1", "elu"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_slopes_keep_their_digits_far_below_0(name, dtype):
    x = np.array([-1.0, -20.0, -50.0], dtype)
    t = tn.tensor(x, requires_grad=True)
    dy = np.array([1.0, -3.0, 2.0])
    (tn.expm1 if name == "expm1" else F.elu)(t).backward(dy)
    right = [d * float(mpmath.exp(v)) for d, v in zip(dy, x.tolist(), strict=True)]
    np.testing.assert_allclose(t.grad, right, rtol=8 * np.finfo(dtype).eps)


def test_an_infinite_cotangent_stops_where_the_slope_is_0():
    t = tn.tensor([-1.0, 2.0], requires_grad=True)
    F.relu(t).backward(np.array([np.inf, 1.0]))
    np.testing.assert_array_equal(t.grad, [0.0, 1.0])
    x = tn.tensor(np.full(64, np.inf))
    assert set(F.dropout(x, 0.5, rng=0).numpy().tolist()) == {0.0, np.inf}


def test_integers_in_lists_and_constants_of_losses_are_numbers_like_others():
    """Python's own integers become floats; integer arrays are refused, since theirs would wrap around."""
    for function in (F.relu, F.softmax, F.gelu, lambda x: F.rms_norm(x, 3), lambda x: F.linear(x, [[1, 2, 3]], [1])):
        y = function([1, -2, 3])
        assert y.dtype == np.float32
        np.testing.assert_array_equal(y.numpy(), function([1.0, -2.0, 3.0]).numpy())
    logits, whole = np.array([[0.5, 1.0, -1.0], [0.0, 2.0, 1.0]], np.float32), np.array([[1, 0, 2], [3, 1, 0]])
    weighted = F.cross_entropy(logits, [0, 2], weight=[1, 2, 3])
    assert weighted.dtype == np.float32
    assert weighted.item() == F.cross_entropy(logits, [0, 2], weight=np.array([1.0, 2.0, 3.0])).item()
    loss = F.mse_loss(logits, whole)
    assert loss.dtype == np.float32
    np.testing.assert_allclose(loss.item(), np.mean((logits - whole) ** 2), rtol=1e-6)


def test_clip_by_either_name():
    x = made(real, (3, 4))
    np.testing.assert_array_equal(tn.clip(x, min=-0.5, max=0.5).numpy(), np.clip(x, -0.5, 0.5))
    np.testing.assert_array_equal(tn.clip(x, -0.5, max=0.5).numpy(), np.clip(x, -0.5, 0.5))


def test_concatenate_flattens_without_an_axis():
    x, y = made(real, (2, 3)), made(real, (4,), seed=1)
    np.testing.assert_array_equal(tn.concatenate([x, y], axis=None).numpy(), np.concatenate([x, y], axis=None))


def test_lists_beside_float64_keep_their_digits_and_numpy_scalars_their_dtype():
    x = np.array([[0.5, -1.5]])
    tenths = [0.1, 0.3]
    for function in (
        lambda w: F.mse_loss(x[0], w),
        lambda w: F.rms_norm(x, 2, w),
        lambda w: F.layer_norm(x, 2, w, w),
        lambda w: F.linear(x, [[0.1, 0.3], [0.1, 0.3]] if isinstance(w, list) else np.stack([w, w]), w),
        lambda w: F.cross_entropy(x, [1], w, reduction="sum"),
    ):
        found, right = function(tenths), function(np.array(tenths))
        assert found.dtype == np.float64
        np.testing.assert_array_equal(found.numpy(), right.numpy())
    assert F.relu(np.float64(0.1)).item() == 0.1
    assert F.softmax(np.float64(0.1)).dtype == np.float64
