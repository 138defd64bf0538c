"""How right the numbers are, in tails and at the ends of the range, and in sums of a million rows.

An error in ulp is |found − exact| in units of the spacing of the dtype's numbers at the exact result. It is asked for
where that result is a normal number; nearer to 0 the spacing is that of the smallest normal number. The exact values
come from mpmath at 60 digits, for sums from long doubles.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import mpmath
import numpy as np
import pytest
from mpmath import mpf

import tinynorm as tn
from tinynorm import functional as F
from tinynorm.formulas.summation import average, contracted, total

DTYPES = pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
INF = math.inf


@pytest.fixture(autouse=True)
def _sixty_digits():
    with mpmath.workdps(60):
        yield


def ulps(found, exact, beside=None):
    """The largest error of `found`, in ulp of the exact value or of the larger number `beside` it."""
    limits, worst = np.finfo(found.dtype), mpf(0)
    for i, (f, e) in enumerate(zip(found.ravel().tolist(), exact, strict=True)):
        size = abs(e) if beside is None else max(abs(e), abs(beside[i]))
        _, exponent = mpmath.frexp(max(size, mpf(float(limits.smallest_normal))))
        assert math.isfinite(f), (i, f, e)
        if size >= float(limits.smallest_normal) or abs(f - e) > float(limits.smallest_normal):
            worst = max(worst, abs(f - e) / mpf(2) ** (exponent - 1 - limits.nmant))
    return float(worst)


# Functions of one number


def sigma(x):
    return 1 / (1 + mpmath.exp(-x))


def cdf(x):
    return mpmath.ncdf(x) if abs(x) < 1e9 else mpf(x > 0)  # far out, mpmath gives up


def gate(x):
    """z in the tanh form of GELU, x σ(z), and dz/dx."""
    scale, cubic = 2 * mpmath.sqrt(2 / mpmath.pi), mpf("0.044715")
    return scale * (x + cubic * x**3), scale * (1 + 3 * cubic * x**2)


def gelu_tanh_slope(x):
    z, dz = gate(x)
    return sigma(z) * (1 + x * dz * sigma(-z))


def zero(x):
    return mpf(0)


class Curve(NamedTuple):
    """A function with its exact value and slope, and the limits of both at −∞ and ∞."""

    call: Callable
    value: Callable
    slope: Callable
    limits: tuple[tuple[float, float], tuple[float, float]]
    low: float = -math.inf  # the smallest argument
    high: float = math.inf  # the largest, before the function overflows in float32
    term: Callable = zero  # one of two terms of the slope that cancel near its zero
    magnified: Callable = zero  # how many ulp more are granted


CURVES = {
    "exp": Curve(tn.exp, mpmath.exp, mpmath.exp, ((0, 0), (INF, INF)), high=11),
    "expm1": Curve(tn.expm1, mpmath.expm1, mpmath.exp, ((-1, 0), (INF, INF)), high=11),
    "log": Curve(tn.log, mpmath.log, lambda x: 1 / x, ((np.nan, np.nan), (INF, 0)), low=1e-4),
    "log1p": Curve(tn.log1p, mpmath.log1p, lambda x: 1 / (1 + x), ((np.nan, np.nan), (INF, 0)), low=-0.9),
    "tanh": Curve(tn.tanh, mpmath.tanh, lambda x: mpmath.sech(x) ** 2, ((-1, 0), (1, 0))),
    "erf": Curve(tn.erf, mpmath.erf, lambda x: 2 * mpmath.exp(-x * x) / mpmath.sqrt(mpmath.pi), ((-1, 0), (1, 0))),
    "sigmoid": Curve(F.sigmoid, sigma, lambda x: sigma(x) * sigma(-x), ((0, 0), (1, 0))),
    "softplus": Curve(F.softplus, lambda x: mpmath.log1p(mpmath.exp(x)), sigma, ((0, 0), (INF, 1))),
    "elu": Curve(
        F.elu, lambda x: x if x > 0 else mpmath.expm1(x), lambda x: 1 if x > 0 else mpmath.exp(x), ((-1, 0), (INF, 1))
    ),
    "silu": Curve(
        F.silu, lambda x: x * sigma(x), lambda x: sigma(x) * (1 + x * sigma(-x)), ((0, 0), (INF, 1)), term=sigma
    ),
    "gelu": Curve(
        F.gelu,
        lambda x: x * cdf(x),
        lambda x: cdf(x) + x * mpmath.npdf(x),
        ((0, 0), (INF, 1)),
        term=cdf,
    ),
    "gelu tanh": Curve(
        lambda x: F.gelu(x, "tanh"),
        lambda x: x * sigma(gate(x)[0]),
        gelu_tanh_slope,
        ((0, 0), (INF, 1)),
        term=lambda x: sigma(gate(x)[0]),
        magnified=lambda x: 2 * abs(gate(x)[0]) if x < 0 else 0,
    ),
    "relu": Curve(F.relu, lambda x: max(x, mpf(0)), lambda x: mpf(x > 0), ((0, 0), (INF, 1))),
}
EACH = pytest.mark.parametrize("name", CURVES)

# Where one of the functions, or its slope, or a factor of it, reaches the smallest normal number.
EDGES = {
    np.float16: [4.1, 8.9, 9.7, 11.5],
    np.float32: [5.6, 9.3, *np.linspace(12.9, 13.33, 12), 43.6, 44.0, 87.2, 88.5, 90.0, 91.0, 91.8],
    np.float64: [26.5, *np.linspace(37.5, 37.67, 12), 354.0, 708.2, 709.0, 712.0, 714.0, 714.9],
}  # fmt: skip


def grid(curve, dtype):
    """From 0 to the largest number, by both signs: the corners, the edges, the issue's own points, and random ones."""
    limits, rng = np.finfo(dtype), np.random.default_rng(0)
    sizes = [0, float(limits.smallest_normal), 1e-4, 0.03, 0.5, 1, 1.3708543, 3, 8, 9, 12, 30, 80, 100, 1000, 1e4, 1e20]
    sizes += [float(limits.max), float(limits.max) / 4, *EDGES[dtype]]
    sizes += [*rng.uniform(0, 6, 20), *rng.uniform(6, 45, 20), *rng.uniform(45, 720, 20)]
    kept = np.array([s for s in sizes if s <= float(limits.max)]).astype(dtype)
    x = np.concatenate([-kept, kept])
    return x[(x >= curve.low) & (x <= curve.high)]


def value_and_gradient(call, x, dy):
    t = tn.tensor(x, requires_grad=True)
    y = call(t)
    y.backward(dy)
    assert (y.dtype, t.grad.dtype) == (x.dtype, x.dtype)
    return y.numpy(), t.grad


@DTYPES
@EACH
def test_values_and_slopes_are_right_to_8_ulp(name, dtype):
    """Into the tails and to the end of the range, with no warning."""
    curve = CURVES[name]
    x = grid(curve, dtype)
    rng = np.random.default_rng(1)
    dy = (rng.uniform(0.5, 1, x.shape) * rng.choice([-1, 1], x.shape)).astype(dtype)  # below 1: slopes stay normal
    y, dx = value_and_gradient(curve.call, x, dy)
    for i in range(len(x)):
        exactly = mpf(float(x[i]))
        granted = 8 + curve.magnified(exactly)
        assert ulps(y[i : i + 1], [curve.value(exactly)]) <= granted, (x[i], y[i])
        d = mpf(float(dy[i]))
        assert ulps(dx[i : i + 1], [d * curve.slope(exactly)], [d * curve.term(exactly)]) <= granted, (x[i], dx[i])


@DTYPES
@EACH
def test_limits_at_infinity(name, dtype):
    curve = CURVES[name]
    for x, (value, slope) in zip((-INF, INF), curve.limits, strict=True):
        if not math.isnan(value):
            y, dx = value_and_gradient(curve.call, np.array(x, dtype), np.array(-0.5, dtype))
            assert (y, dx) == (value, -0.5 * slope)


@DTYPES
@EACH
def test_a_nan_stays_with_itself(name, dtype):
    x = np.array([1.0, np.nan, 2.0], dtype)
    y, dx = value_and_gradient(CURVES[name].call, x, np.array([1.0, 2.0, 3.0], dtype))
    if name != "relu":  # its slope at nan is that of a number that is not above 0
        assert np.isnan(dx[1])
    assert np.isnan(y[1])
    assert np.isfinite([*y[::2], *dx[::2]]).all()


@pytest.mark.parametrize("name", ["tanh", "erf", "sigmoid", "softplus", "elu", "silu", "gelu", "gelu tanh"])
def test_second_derivatives(name):
    """What differentiating the backward formula gives, also where parts of it under- or overflow."""
    curve = CURVES[name]
    x = tn.tensor([-1e20, -1e4, -40.0, -9.0, -3.0, -0.7, 0.3, 1.0, 4.0, 9.0, 40.0, 1e4, 1e20], np.float64)
    x.requires_grad = True
    (slope,) = tn.grad(curve.call(x).sum(), x, create_graph=True)
    (found,) = tn.grad(slope.sum(), x)
    for at, f in zip(x.numpy(), found.numpy(), strict=True):
        exact = mpf(0) if abs(at) > 1000 else mpmath.diff(curve.slope, mpf(float(at)))
        assert abs(f - exact) <= 1e-12 * abs(exact) + (1e-13 if abs(at) < 50 else 0), at


# Rows


def exact_log_softmax(row):
    numbers = [mpf(float(v)) for v in row]
    log_mass = mpmath.log(sum(mpmath.exp(v) for v in numbers))
    # 60 digits of the sum are not enough beside e^20000: the largest number's own value comes from the others.
    top = numbers.index(max(numbers))
    others = sum(mpmath.exp(v - numbers[top]) for i, v in enumerate(numbers) if i != top)
    return [-mpmath.log1p(others) if i == top else v - log_mass for i, v in enumerate(numbers)]


ROWS = [
    [1e4, -1e4], [1e4, 0.0], [-1e4, 0.0, 1e4], [1e4, 1e4, -1e4], [1e4, 9984.0, -1e4], [-1e4, -9984.0],
    [0.0, -40.0], [0.0, -8.0, -7.0], [20.0, 0.0, 1.0], [0.0, -80.0, -86.0], [0.5, 0.25, -0.125], [3.0, 3.0, 3.0, 3.0],
]  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_gradient_of_the_likely_classs_log_probability(dtype):
    """It is 1 − p, of which nothing is left where p rounds to 1."""
    z = np.array([20.0, 0.0, -1.0], dtype)
    _, dz = value_and_gradient(F.log_softmax, z, np.array([1.0, 0.0, 0.0], dtype))
    others = mpmath.exp(-20) + mpmath.exp(-21)
    np.testing.assert_allclose(float(dz[0]), float(others / (1 + others)), rtol=4 * np.finfo(dtype).eps)


@DTYPES
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_log_softmax_logsumexp_and_cross_entropy(row, dtype):
    z = np.array(row, dtype)
    exact = exact_log_softmax(z)
    p = [mpmath.exp(v) for v in exact]
    dy = np.random.default_rng(0).uniform(-1, 1, z.shape).astype(dtype)
    y, dz = value_and_gradient(F.log_softmax, z, dy)
    assert ulps(y, exact) <= 8
    sent = [mpf(float(d)) for d in dy]
    right = [d - v * sum(sent) for d, v in zip(sent, p, strict=True)]
    assert ulps(dz, right, [max(map(abs, sent))] * len(p)) <= 8

    y, dz = value_and_gradient(tn.logsumexp, z, np.array(0.75, dtype))
    assert ulps(y, [float(z[0]) - exact[0]]) <= 8
    assert ulps(dz, [mpf(0.75) * v for v in p]) <= 8

    for target in range(len(row)):
        y, dz = value_and_gradient(lambda t, target=target: F.cross_entropy(t, np.array(target)), z, np.array(0.75))
        assert ulps(y, [-exact[target]]) <= 8
        unlikely = sum(v for i, v in enumerate(p) if i != target)
        assert ulps(dz, [mpf(0.75) * (-unlikely if i == target else v) for i, v in enumerate(p)]) <= 8


@DTYPES
def test_two_classes_at_any_distance(dtype):
    """The likelier one's probability, and so its loss and its gradient, pass from ½ to 1 − 10⁻¹³."""
    gaps = np.linspace(0, 30, 241).astype(dtype)
    z = np.stack([np.zeros_like(gaps), -gaps], axis=1)
    loss, dz = value_and_gradient(
        lambda t: F.cross_entropy(t, np.zeros(len(z), int), reduction="none"), z, np.ones(len(z), dtype)
    )
    exact = [mpmath.log1p(mpmath.exp(-mpf(float(g)))) for g in gaps]
    unlikely = [sigma(-mpf(float(g))) for g in gaps]
    assert ulps(loss, exact) <= 8
    assert ulps(dz[:, 0], [-u for u in unlikely]) <= 8
    assert ulps(dz[:, 1], unlikely) <= 8


@DTYPES
def test_a_confident_prediction_under_weights_and_smoothing(dtype):
    """All of a row's gradients sum to 0, whatever its target distribution: so they do where one nearly cancels."""
    z = np.array([[0.0, -6.0, -5.0], [-6.0, 0.0, -7.0]], dtype)
    t = tn.tensor(z, requires_grad=True)
    options = {"weight": np.array([1.0, 2.0, 0.5], dtype), "label_smoothing": 2**-8, "reduction": "sum"}
    F.cross_entropy(t, [0, 1], **options).backward()
    for row, target, found in zip(z, (0, 1), t.grad, strict=True):
        smooth = [mpf(2) ** -8 / 3 * w for w in (1, 2, mpf("0.5"))]
        q = [s + (1 - mpf(2) ** -8) * (1, 2)[target] * (i == target) for i, s in enumerate(smooth)]
        p = [mpmath.exp(v) for v in exact_log_softmax(row)]
        right = [v * sum(q) - u for u, v in zip(q, p, strict=True)]
        assert ulps(found, right, [mpf(2) ** -8] * 3) <= 8


@DTYPES
def test_infinities_in_rows(dtype):
    """A row that has a limit gives it; one that has none is nan; the others do not notice."""
    nan = np.nan
    rows = [[1.0, 2.0], [INF, 0.0], [0.0, -INF], [-INF, -INF], [INF, INF], [nan, 0.0], [2.0, 1.0]]
    x = np.array(rows, dtype)
    e = math.e
    right = [[1 / (1 + e), e / (1 + e)], [1, 0], [1, 0], [nan, nan], [nan, nan], [nan, nan], [e / (1 + e), 1 / (1 + e)]]
    rtol = 2 * np.finfo(dtype).eps
    y, dx = value_and_gradient(F.softmax, x, np.ones(x.shape, dtype) * np.array([1, 3], dtype))
    np.testing.assert_allclose(y, right, rtol=rtol)
    np.testing.assert_allclose(dx[[0, 6]], np.outer([1, 1], [-2, 2]) * e / (1 + e) ** 2, rtol=4 * rtol)
    np.testing.assert_array_equal(dx[[1, 2]], 0)
    y, dx = value_and_gradient(F.log_softmax, x, np.ones(x.shape, dtype))
    np.testing.assert_array_equal(y[1:6], [[0, -INF], [0, -INF], [nan, nan], [nan, nan], [nan, nan]])
    np.testing.assert_allclose(y[[0, 6]], np.log([right[0], right[6]]), rtol=rtol)
    assert np.isfinite(dx[[0, 1, 2, 6]]).all()
    y, dx = value_and_gradient(lambda t: F.cross_entropy(t, np.zeros(7, int), reduction="none"), x, np.ones(7, dtype))
    np.testing.assert_array_equal(y[1:6], [0, 0, nan, nan, nan])
    np.testing.assert_array_equal(dx[[1, 2]], 0)
    assert np.isfinite([*y[[0, 6]], *dx[[0, 6]].ravel()]).all()
    y, _ = value_and_gradient(lambda t: tn.logsumexp(t, axis=1), x, np.ones(7, dtype))
    np.testing.assert_array_equal(y[1:6], [INF, 0, -INF, INF, nan])


@pytest.mark.parametrize(
    "function", [tn.sum, tn.mean, tn.max, tn.min, tn.prod, tn.var, tn.cumsum], ids=lambda f: f.__name__
)
def test_a_row_with_a_nan_leaves_the_others_alone(function):
    x = np.random.default_rng(0).uniform(1, 2, (3, 4))
    clean, slope = value_and_gradient(lambda t: function(t, axis=1), x, np.ones(np.shape(function(x, axis=1))))
    x[1, 2] = np.nan
    y, dx = value_and_gradient(lambda t: function(t, axis=1), x, np.ones(clean.shape))
    np.testing.assert_array_equal(y[::2], clean[::2])
    np.testing.assert_array_equal(dx[::2], slope[::2])
    assert np.isnan(y[1]).any()


# Sums

LAYOUTS = {
    "rows": lambda x: (x, 0),
    "reversed": lambda x: (x[::-1, ::-1], 0),
    "strided": lambda x: (np.repeat(x, 2, axis=1)[:, ::2], 0),
    "Fortran": lambda x: (x.T, 1),
    "a middle axis": lambda x: (x.reshape(2, -1, x.shape[1]), 1),
    "two axes": lambda x: (x.reshape(1000, -1, x.shape[1]), (0, 1)),
    "two axes apart": lambda x: (x.reshape(1000, -1, 2).transpose(1, 0, 2).reshape(-1, 10, 100, 2), (0, -2)),
    "padded": lambda x: (np.pad(x, ((0, 0), (0, 1)))[:, :2], (0, 1)),
    "one row again and again": lambda x: (np.broadcast_to(x[0], x.shape), 0),
}
DATA = {
    "random": lambda rng, shape: rng.uniform(0, 1, shape),
    "all 0.1 and 0.7": lambda rng, shape: np.broadcast_to([0.1, 0.7], shape),
    "both signs": lambda rng, shape: rng.normal(0.01, 1, shape),
}


def exact_sum(x, axis):
    """In long doubles, pairwise: the summed axes in one run of memory."""
    axes = [a % x.ndim for a in np.atleast_1d(axis)]
    moved = np.moveaxis(x, axes, range(-len(axes), 0))
    return moved.reshape(*moved.shape[: x.ndim - len(axes)], -1).astype(np.longdouble, order="C").sum(axis=-1)


def eps_of_sizes(found, x, axis):
    """The error of a sum in units of eps · Σ |x|."""
    return float(np.max(abs(found - exact_sum(x, axis)) / exact_sum(abs(x), axis)) / np.finfo(x.dtype).eps)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("data", DATA)
def test_sums_and_means_of_a_million_rows(data, layout, dtype):
    rows = 1_000_000 if layout == "rows" else 200_000
    x, axis = LAYOUTS[layout](np.ascontiguousarray(DATA[data](np.random.default_rng(0), (rows, 2)), dtype))
    n = math.prod(x.shape[a] for a in np.atleast_1d(axis))
    assert eps_of_sizes(tn.sum(x, axis).numpy(), x, axis) <= 4
    assert eps_of_sizes(tn.mean(x, axis).numpy().astype(np.longdouble) * n, x, axis) <= 4
    if layout == "rows" and data != "both signs":  # what is avoided
        assert eps_of_sizes(np.sum(x, axis=0), x, 0) > 20


@pytest.mark.parametrize("shape", [(257, 3), (1000, 1), (999, 300), (4096, 7), (70_001, 2)], ids=str)
def test_sums_of_any_number_of_rows(shape):
    x = np.random.default_rng(0).uniform(0, 1, shape).astype(np.float32)
    assert eps_of_sizes(total(np, x, 0), x, 0) <= 4
    for keepdims in (False, True):
        y, mean = total(np, x, 0, keepdims), average(np, x, 0, keepdims)
        assert (y.shape, y.dtype) == (x.sum(axis=0, keepdims=keepdims).shape, np.float32)
        np.testing.assert_allclose(mean, x.mean(axis=0, dtype=np.float64, keepdims=keepdims), rtol=3e-7)


def test_sums_and_means_that_float16_cannot_count_to():
    x = np.ones((100_000, 3), np.float16)
    np.testing.assert_array_equal(tn.sum(x[:3000], 0).numpy(), np.float16(3000))
    np.testing.assert_array_equal(tn.mean(x * np.float16(1.5), 0).numpy(), np.float16(1.5))
    w = tn.tensor(np.ones(3, np.float16), requires_grad=True)
    (tn.tensor(x[:60_000]) * w).sum(axis=1).backward(np.full(60_000, 0.125, np.float16))
    np.testing.assert_array_equal(w.grad, np.float16(7500))


def test_means_of_integers_and_complex_numbers():
    assert tn.mean(np.array([2**62, 2**62, 2**62])).item() == 2.0**62
    z = np.full((1000, 2), 0.5 + 1e-30j)
    np.testing.assert_allclose(average(np, z, 0).imag, 1e-30, rtol=1e-14)


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_weight_gradients_over_300_000_rows(data, dtype):
    rng = np.random.default_rng(0)
    x, dy = (np.ascontiguousarray(DATA[data](rng, (300_000, 2)), dtype) for _ in range(2))
    columns, sent = np.array(x.T, np.longdouble, order="C"), np.array(dy.T, np.longdouble, order="C")
    products = {"linear": sent[:, None] * columns, "bias": sent, "gain": np.array((dy * x).T, np.longdouble, order="C")}
    w, b, g = (tn.tensor(np.ones(shape, dtype), requires_grad=True) for shape in ((2, 2), 2, 2))
    F.linear(x, w, b).backward(dy)
    (tn.tensor(x) * g).backward(dy)
    m = tn.tensor(np.ones((2, 2), dtype), requires_grad=True)
    tn.matmul(x, m).backward(dy)
    e = tn.tensor(np.ones((2, 2), dtype), requires_grad=True)
    tn.einsum("ni,oi->no", x, e).backward(dy)
    found = [(w.grad, "linear"), (m.grad.T, "linear"), (b.grad, "bias"), (g.grad, "gain")]
    if data != "all 0.1 and 0.7":  # equal terms are the worst case of the 4096 that einsum adds in its own order
        found.append((e.grad, "linear"))
    for gradient, terms in found:
        exact, sizes = products[terms].sum(axis=-1), abs(products[terms]).sum(axis=-1)
        assert np.max(abs(gradient - exact) / sizes) <= 4 * np.finfo(dtype).eps, terms


@pytest.mark.parametrize("shapes", [((2, 1000), (1000, 3)), ((4, 2, 333), (4, 333, 1)), ((5, 1, 2, 300), (7, 300, 2))])
def test_products_in_blocks_are_products(shapes):
    a, b = (np.random.default_rng(i).normal(size=s) for i, s in enumerate(shapes))
    np.testing.assert_allclose(contracted(np, a, b), a @ b, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_losses_of_a_million_rows(reduction):
    z = np.random.default_rng(0).normal(size=(1_000_000, 2)).astype(np.float32)
    wide = z.astype(np.float64)
    losses = np.logaddexp(wide[:, 0], wide[:, 1]) - wide[:, 1]
    exact = losses.sum() / (len(z) if reduction == "mean" else 1)
    found = F.cross_entropy(z, np.ones(len(z), int), reduction=reduction).item()
    assert abs(found / exact - 1) <= 4 * np.finfo(np.float32).eps


def test_a_variance_over_a_million_rows():
    x = np.random.default_rng(0).normal(1000, 1, (1_000_000, 2)).astype(np.float32)
    np.testing.assert_allclose(tn.var(x, axis=0).numpy(), np.var(x.astype(np.float64), axis=0), rtol=5e-7)
