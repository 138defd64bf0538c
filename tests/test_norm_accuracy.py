"""Norms where numbers run out: squares that leave the range, nearly constant rows, nan, ∞, and rows of no size.

The right values have 60 digits and more. They come from the definitions alone: gradients by differences of numbers so
long that nothing is lost in them.
"""

from functools import partial
from math import inf, nan, sqrt

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tinynorm as tn
from tinynorm import functional as F
from tinynorm.formulas import norms, rms_variants

TOLERANCE = {np.dtype(np.float16): 2e-3, np.dtype(np.float32): 5e-6, np.dtype(np.float64): 1e-11}
HALF, SINGLE, DOUBLE = np.float16, np.float32, np.float64
KINDS = pytest.mark.parametrize("kind", ["rms", "layer"])
FLOATS = pytest.mark.parametrize("dtype", [HALF, SINGLE, DOUBLE])


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


N = normal(3, 8)


def reversed_(x):
    return x[:, ::-1].copy()[:, ::-1]


def strided(x):
    return np.repeat(x, 2, axis=1)[:, ::2]


# The definitions, in long numbers


def root_of(row, kind, eps, options):
    """The row, centred where that is asked for, and what it is divided by."""
    n = len(row)
    mean = mp.fsum(row) / n if kind == "layer" else mp.mpf(0)
    c = [v - mean for v in row]
    counted = c[: options.get("count", n)]
    square = mp.fsum(v * v for v in counted) / len(counted)
    if options.get("eps_mode") == "outside":
        return c, mp.sqrt(square) + eps
    return c, mp.sqrt(square + eps)


def normalized(row, kind, eps, options):
    c, root = root_of(row, kind, eps, options)
    return [v / root if root else mp.mpf(0) for v in c]


def reference(kind, x, weight, bias, dy, eps, digits=120, **options):
    """y, x̄, w̄ and b̄, as lists of rows; what has no size gives 0."""
    with mp.workdps(digits):
        x, dy = ([[mp.mpf(float(v)) for v in row] for row in a] for a in (x, dy))
        (gain, bias), eps = ([mp.mpf(float(v)) for v in a] for a in (weight, bias)), mp.mpf(eps)
        gain = [g + mp.mpf(options.get("weight_offset", 0)) for g in gain]
        rows = [normalized(row, kind, eps, options) for row in x]
        y = [[g * h + b for g, h, b in zip(gain, row, bias, strict=True)] for row in rows]
        dx = [
            slopes(row, [g * d for g, d in zip(gain, down, strict=True)], kind, eps, options)
            for row, down in zip(x, dy, strict=True)
        ]
        dw = [mp.fsum(d[i] * row[i] for d, row in zip(dy, rows, strict=True)) for i in range(len(gain))]
        db = [mp.fsum(d[i] for d in dy) for i in range(len(gain))]
        return y, dx, [dw], [db]


def slopes(row, dh, kind, eps, options):
    """∂(Σ dh h) / ∂x by central differences, whose step is 1e-25 of the row's size."""
    _, root = root_of(row, kind, eps, options)
    if not root:
        return [mp.mpf(0)] * len(row)
    step = root * mp.mpf(10) ** -25

    def at(i, moved):
        there = [*row[:i], row[i] + moved, *row[i + 1 :]]
        return mp.fsum(d * h for d, h in zip(dh, normalized(there, kind, eps, options), strict=True))

    return [(at(i, step) - at(i, -step)) / (2 * step) for i in range(len(row))]


def error(got, right):
    """The largest error of a row in units of the row's largest number."""
    worst = mp.mpf(0)
    for found, row in zip(np.atleast_2d(got), right, strict=True):
        assert np.isfinite(found).all()
        off = max(abs(mp.mpf(float(a)) - b) for a, b in zip(found, row, strict=True))
        size = max(abs(b) for b in row)
        worst = max(worst, off / size if size else off * mp.mpf("1e300"))
    return float(worst)


def norm(kind, x, weight, bias, eps, **options):
    if kind == "layer":
        return F.layer_norm(x, x.shape[-1], weight, bias, eps)
    return F.rms_norm(x, x.shape[-1], weight, eps, bias=bias, **options)


def agrees(kind, x, eps, size=1.0, digits=120, **options):
    """Value and all gradients against the reference, for random gain, bias and cotangent; and no warning.

    `size` is that of the cotangent; `digits` are so many that differences of the reference keep 60.
    """
    rng, n = np.random.default_rng(1), x.shape[-1]
    affine = [rng.uniform(0.5, 2.0, n).astype(x.dtype), rng.normal(size=n).astype(x.dtype)]
    if kind == "rms" and not options:
        affine[1] = None
    dy = (size * rng.normal(size=x.shape)).astype(x.dtype)
    leaves = [None if a is None else tn.tensor(a, requires_grad=True) for a in (x, *affine)]
    with np.errstate(all="raise", under="ignore"):
        y = norm(kind, *leaves, eps, **options)
        y.backward(dy)
    right_bias = np.zeros(n) if affine[1] is None else affine[1]
    asked = {k: v for k, v in options.items() if k != "partial"}
    if "partial" in options:
        asked["count"] = -int(-options["partial"] * n // 1)
    y_right, *gradients = reference(kind, x, affine[0], right_bias, dy, eps, digits, **asked)
    tolerance = TOLERANCE[x.dtype]
    assert y.dtype == x.dtype
    assert error(y.numpy(), y_right) <= tolerance
    for leaf, right in zip(leaves, gradients, strict=True):
        if leaf is not None:
            assert leaf.grad.dtype == x.dtype
            assert error(leaf.grad, right) <= 4 * tolerance


def test_the_reference_is_the_definition() -> None:
    """[3, 4] by hand: rms √12.5; deviations ∓½. ∂h₁/∂x₁ of RMSNorm is r (1 − 9/25), ∂h₁/∂x₂ is −r 12/25."""
    y, dx, dw, db = reference("rms", [[3, 4]], [1, 1], [0, 0], [[1, 0]], 0)
    r = 1 / sqrt(12.5)
    np.testing.assert_allclose([float(v) for v in y[0]], [3 * r, 4 * r], rtol=1e-15)
    np.testing.assert_allclose([float(v) for v in dx[0]], [r * 16 / 25, -r * 12 / 25], rtol=1e-15)
    np.testing.assert_allclose([float(v) for v in dw[0] + db[0]], [3 * r, 0, 1, 0], rtol=1e-15)
    y, dx, *_ = reference("layer", [[3, 4]], [1, 1], [0, 0], [[1, 0]], 0)
    assert [float(v) for v in y[0]] == [-1, 1]
    assert max(abs(v) for v in dx[0]) < mp.mpf("1e-40")


# Squares that do not fit


RANGES = [
    *((SINGLE, s) for s in (1e20, 3e37, 1e-25, 1e-37)),
    *((DOUBLE, s) for s in (1e200, 5e307, 1e-200, 1e-300)),
    *((HALF, s) for s in (300.0, 2e4, 1e-3)),
]


@KINDS
@pytest.mark.parametrize(("dtype", "scale"), RANGES)
@pytest.mark.parametrize("eps", [0.0, 1e-5])
def test_squares_that_overflow_or_underflow(kind, dtype, scale, eps):
    agrees(kind, (N * scale).astype(dtype), eps)


@KINDS
@pytest.mark.parametrize(("dtype", "value"), [(SINGLE, 1.2e19), (DOUBLE, 1e154), (HALF, 200.0)])
def test_squares_that_fit_but_whose_sum_does_not(kind, dtype, value):
    assert np.isfinite(dtype(value) ** 2)
    agrees(kind, (np.sign(N) * value).astype(dtype), 0.0)


@KINDS
@pytest.mark.parametrize("eps", [0.0, 1e-30, 1e-5])
@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
def test_rows_of_every_size_side_by_side(kind, dtype, eps):
    """Also huge and tiny numbers in one row."""
    x = N.copy()
    x[0] *= 1e30
    x[1] *= 1e-30
    x[2, 3:5] = 3e38, 1e-38
    agrees(kind, x.astype(dtype), eps)


@KINDS
@pytest.mark.parametrize(("dtype", "eps"), [(SINGLE, 1e-40), (SINGLE, 1e-50), (DOUBLE, 1e-300), (DOUBLE, 5e-324)])
def test_an_eps_as_small_as_squares_that_underflow(kind, dtype, eps):
    x = N * sqrt(eps)
    x[1] *= 1e4
    agrees(kind, x.astype(dtype), eps)


@KINDS
@pytest.mark.parametrize("eps", [1e30, 1e300])
def test_an_eps_beyond_the_range(kind, eps):
    """r is 1/√ε, or 0 where that is below the range."""
    x = N.astype(SINGLE)
    y = norm(kind, x, None, None, eps).numpy()
    c = N - N.mean(axis=-1, keepdims=True) if kind == "layer" else N
    np.testing.assert_allclose(y, c / sqrt(eps), rtol=1e-5, atol=1e-44)


@tn.formulas_only()
@KINDS
@pytest.mark.parametrize(("dtype", "power"), [(SINGLE, 60), (SINGLE, -90), (DOUBLE, 500), (DOUBLE, -800)])
def test_a_power_of_two_changes_no_bit(kind, dtype, power):
    """ε = 0: h(2ᵏ x) = h(x) and 2ᵏ x̄(2ᵏ x) = x̄(x), exactly, in range or out of it, by the formula alone."""
    factor = 2.0**power
    dy = normal(3, 8, seed=1).astype(dtype)
    got = []
    for x in (N.astype(dtype), N.astype(dtype) * dtype(factor)):
        leaf = tn.tensor(x, requires_grad=True)
        y = norm(kind, leaf, None, None, 0.0)
        y.backward(dy)
        got.append((y.numpy(), leaf.grad))
    np.testing.assert_array_equal(got[0][0], got[1][0])
    np.testing.assert_array_equal(got[0][1].astype(DOUBLE), got[1][1].astype(DOUBLE) * factor)


@tn.formulas_only()
@pytest.mark.parametrize(("kind", "options"), [("rms", {}), ("layer", {}), ("rms", {"partial": 0.9})])
@pytest.mark.parametrize("layout", [np.ascontiguousarray, np.asfortranarray, reversed_, strided])
@pytest.mark.parametrize("bad", [0.0, 1e30, 1e-30, nan, inf])
@pytest.mark.parametrize("eps", [0.0, 0.5])  # as a float32, √0.5² is not 0.5
def test_other_rows_keep_every_bit(kind, options, layout, bad, eps):
    """Whatever one row holds, the others come out as they do without it: a formula's to the last bit.

    Where a kernel has given way to the formula, the others differ by rounding; see tests/test_kernels.py.
    """
    x, dy, gain = (normal(*shape, seed=i).astype(SINGLE) for i, shape in enumerate([(40, 50), (40, 50), (50,)]))
    x, others = x / 4, np.arange(40) != 2  # so small that a last digit of ε counts
    got = []
    for row in (x[2], bad * np.sign(x[2]) if bad != inf else np.where(x[2] > 0.4, SINGLE(inf), x[2])):
        x[2] = row
        leaf = tn.as_tensor(layout(x), requires_grad=True)
        y = norm(kind, leaf, gain, None, eps, **options)
        y.backward(dy)
        got.append((y.numpy()[others], leaf.grad[others]))
    assert np.isfinite(got[0]).all()
    np.testing.assert_array_equal(got[0], got[1])


# Nearly constant rows


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
@pytest.mark.parametrize("base", [1e4, -1e5, 1e6])
@pytest.mark.parametrize("eps", [0.0, 1e-5])
def test_layer_norm_of_noise_on_a_large_number(dtype, base, eps):
    agrees("layer", (base + normal(3, 16)).astype(dtype), eps)


@pytest.mark.parametrize(("dtype", "base"), [(HALF, 2000), (SINGLE, 40000), (DOUBLE, 40000), (SINGLE, 2**24 - 4)])
def test_layer_norm_of_neighbours(dtype, base):
    """(x − mean) / σ is (−3, −1, 1, 3) / √5."""
    x = np.arange(base, base + 4).astype(dtype)[None]
    y = F.layer_norm(x, 4, eps=0.0).numpy()
    np.testing.assert_allclose(y[0], np.array([-3, -1, 1, 3]) / sqrt(5), rtol=TOLERANCE[np.dtype(dtype)])
    agrees("layer", x, 1e-5)


@FLOATS
@pytest.mark.parametrize("value", [0.1, -3.3, 1449.3, 6e4])
@pytest.mark.parametrize("eps", [0.0, 1e-12, 1e-5])
def test_rows_one_step_away_from_constant(dtype, value, eps):
    x = np.full((3, 7), value, dtype)
    x[0, 3] = np.nextafter(dtype(value), dtype(0))
    x[1, :2] = np.nextafter(dtype(value), dtype(inf))
    x[2, 1:] = np.nextafter(dtype(value), dtype(inf))
    agrees("layer", x, eps, size=0.1)  # so that no gradient exceeds 65504


@FLOATS
@pytest.mark.parametrize("layout", [np.ascontiguousarray, np.asfortranarray, reversed_, strided])
@pytest.mark.parametrize("eps", [0.0, 1e-12, 1e-5])
def test_constant_rows_are_exactly_the_bias(dtype, layout, eps):
    """And at ε = 0 their gradient is 0. Sums of 0.1, 3e38 or 6e4 are rounded, or overflow."""
    largest = float(np.finfo(dtype).max)
    for n in (1, 2, 3, 7, 100, 1001, 30011):
        values = np.array([[0.1], [-1 / 3], [1449.3], [6e4], [0.9 * largest], [largest], [0.0]]).astype(dtype)
        bias, dy = normal(n).astype(dtype), normal(7, n, seed=1).astype(dtype)
        leaf = tn.as_tensor(layout(np.repeat(values, n, axis=1)), requires_grad=True)
        y = F.layer_norm(leaf, n, normal(n, seed=2).astype(dtype), bias, eps)
        np.testing.assert_array_equal(y.numpy(), np.tile(bias, (7, 1)))
        if eps == 0.0:
            y.backward(dy)
            np.testing.assert_array_equal(leaf.grad, np.zeros((7, n)))


@pytest.mark.parametrize("eps", [0.0, 1e-5])
def test_layer_norm_where_the_mean_overflows(eps):
    """Sums beyond 3.4e38; the deviations are small, or as large as the numbers."""
    x = np.full((4, 8), 3e38)
    x[1] += 1e36 * N[1]
    x[2] *= np.sign(N[2])
    x[3, 0] = -3e38
    agrees("layer", x.astype(SINGLE), eps)
    agrees("layer", (x * 5e269).astype(DOUBLE), eps, digits=400)


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
@pytest.mark.parametrize("value", [1.0, 1449.3, 40000.0])
@pytest.mark.parametrize("steps", [1, 1000])
@pytest.mark.parametrize("eps", [1e-12, 1e-5])
def test_the_gradient_of_two_nearly_equal_numbers(dtype, value, steps, eps):
    """All but a part ε r² of it cancels; what is left has all its digits."""
    x = np.array([[value, value + steps * np.spacing(dtype(value))]], dtype)
    agrees("layer", x, eps)
    leaf = tn.tensor(x, requires_grad=True)
    F.layer_norm(leaf, 2, eps=eps).sum().backward()
    np.testing.assert_array_equal(leaf.grad, [[0.0, 0.0]])


@KINDS
@given(x=hnp.arrays(SINGLE, (2, 4), elements=st.floats(-1e6, 1e6, width=32, allow_subnormal=False)))
def test_no_result_exceeds_the_root_of_n(kind, x):
    """A variance that is computed too small, or negative, would show here: as nan, or as more than √n = 2."""
    assert np.all(np.abs(norm(kind, x, None, None, 1e-5).numpy()) <= 2.0 + 1e-5)


# Rows of no size, nan, ∞


@KINDS
@FLOATS
@pytest.mark.parametrize("options", [{}, {"eps_mode": "outside"}, {"partial": 0.5}])
def test_without_eps_a_row_of_no_size_gives_0_and_gets_0(kind, dtype, options):
    """0 is the limit of the value as ε → 0; the gradient has none, and is 0 by convention."""
    options = options if kind == "rms" else {}
    x = N.astype(dtype)
    x[1] = 0.0
    agrees(kind, x, 0.0, **options)
    leaf = tn.tensor(x, requires_grad=True)
    y = norm(kind, leaf, None, None, 0.0, **options)
    y.backward(normal(3, 8, seed=1).astype(dtype))
    np.testing.assert_array_equal(y.numpy()[1], np.zeros(8))
    np.testing.assert_array_equal(leaf.grad[1], np.zeros(8))


@pytest.mark.parametrize("eps_mode", ["inside", "outside"])
@pytest.mark.parametrize("weight", [None, np.full(8, 2.0, SINGLE)])
def test_without_eps_a_part_of_no_size_leaves_the_rest_without_limit(eps_mode, weight):
    """As ε → 0 the features that are not counted grow without end, unless they are 0; gradients are 0 by convention."""
    x = np.where(np.arange(8) < 4, 0.0, 1e10 * N).astype(SINGLE)
    x[0, 5] = 0.0
    leaf = tn.tensor(x, requires_grad=True)
    y = F.rms_norm(leaf, 8, weight, eps=0.0, partial=0.5, eps_mode=eps_mode)
    y.backward(normal(3, 8, seed=1).astype(SINGLE))
    np.testing.assert_array_equal(y.numpy(), np.where(x == 0.0, 0.0, np.copysign(inf, x)))
    np.testing.assert_array_equal(leaf.grad, np.zeros((3, 8)))


@pytest.mark.parametrize("eps", [0.0, 1e-12, 1e-5])
@pytest.mark.parametrize("value", [1.0, -3.0, 1e-3, 1e20, 1e-42])
@pytest.mark.parametrize("options", [{}, {"weight_offset": 1.0}, {"eps_mode": "outside"}])
def test_rows_of_one_number(value, eps, options):
    """x / √(x² + ε) has the slope ε / (x² + ε)^(3/2), which is far below the rounding of r (1 − h²).

    x / (|x| + ε) has the slope ε / (|x| + ε)².
    """
    x = SINGLE(value)
    leaf = tn.tensor([[x]], requires_grad=True)
    F.rms_norm(leaf, 1, np.zeros(1, SINGLE) if "weight_offset" in options else None, eps, **options).backward([[2.0]])
    size = mp.fabs(mp.mpf(float(x)))
    root = size + mp.mpf(eps) if "eps_mode" in options else (size**2 + mp.mpf(eps)) ** 1.5
    exact = 2 * mp.mpf(eps) / (root**2 if "eps_mode" in options else root)
    np.testing.assert_allclose(float(leaf.grad[0, 0]), float(exact), rtol=1e-6, atol=1e-45)


@KINDS
@FLOATS
@pytest.mark.parametrize("options", [{}, {"eps_mode": "outside"}])
def test_a_tiny_eps_stays_an_eps(kind, dtype, options):
    """1e-12 is 0 as a float16; on a row of zeros the slope is 1/√ε = 1e6, or 1/ε = 1e12 outside."""
    options = options if kind == "rms" else {}
    leaf = tn.tensor(np.zeros((2, 4), dtype), requires_grad=True)
    dy = np.array([[1.0, -1.0, 2.0, -2.0]] * 2)
    scale = 1e-12 if options else 1e-6
    y = norm(kind, leaf, None, None, 1e-12, **options)
    np.testing.assert_array_equal(y.numpy(), np.zeros((2, 4)))
    y.backward(dy.astype(dtype))
    right = dy / scale if dtype != HALF else np.copysign(inf, dy)  # float16 ends at 65504
    np.testing.assert_allclose(leaf.grad, right, rtol=1e-6)


@FLOATS
@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_nan_and_infinity_stay_in_their_row(dtype, bad):
    """RMSNorm: ∞/∞ is nan, and any other number over ∞ is 0. LayerNorm: nothing is left, as the mean is ∞ or nan."""
    x = N.astype(dtype)
    x[1, 2] = bad
    right = np.full(8, nan)
    if not np.isnan(bad):
        right = np.where(np.arange(8) == 2, nan, 0.0)
    for kind, row in (("rms", right), ("layer", np.full(8, nan))):
        leaf = tn.tensor(x, requires_grad=True)
        with np.errstate(all="raise", under="ignore"):
            y = norm(kind, leaf, None, None, 1e-5)
            y.backward(normal(3, 8, seed=1).astype(dtype))
        np.testing.assert_array_equal(y.numpy()[1], row)
        assert np.isnan(leaf.grad[1]).all()
        assert np.isfinite(y.numpy()[[0, 2]]).all()
        assert np.isfinite(leaf.grad[[0, 2]]).all()


# The variants, there too


VARIANTS = pytest.mark.parametrize(
    "options",
    [
        {"eps_mode": "outside"},
        {"partial": 0.3},
        {"weight_offset": 1.0},
        {"partial": 0.5, "eps_mode": "outside", "weight_offset": 1.0},
    ],
    ids=lambda options: "-".join(options),
)


@VARIANTS
@pytest.mark.parametrize(("dtype", "scale"), [*RANGES, (SINGLE, 1.0), (DOUBLE, 1.0), (HALF, 1.0)])
@pytest.mark.parametrize("eps", [0.0, 1e-5])
def test_variants_of_squares_that_do_not_fit(options, dtype, scale, eps):
    agrees("rms", (N * scale).astype(dtype), eps, **options)


@VARIANTS
@pytest.mark.parametrize("eps", [0.0, 1e-30, 1e-20, 1e-5])
def test_variants_of_rows_of_every_size(options, eps):
    x = N.copy()
    x[0] *= 1e30
    x[1] *= 1e-30
    x[2] *= np.where(np.arange(8) < 2, 1.0, 1e-30)
    agrees("rms", x.astype(SINGLE), eps, **options)


@pytest.mark.parametrize("eps", [1e-20, 1e-22, 1e-30])
def test_an_eps_outside_as_small_as_the_numbers(eps):
    """Their squares underflow; their root, to which ε is added, does not."""
    agrees("rms", (N * eps).astype(SINGLE), eps, size=1e-10, eps_mode="outside")


@pytest.mark.parametrize("eps_mode", ["inside", "outside"])
def test_a_part_far_smaller_than_the_rest(eps_mode):
    """What counts is scaled by its own size; the rest then becomes as large as it has to."""
    x = (N * np.where(np.arange(8) < 3, 1e-30, 1e-5)).astype(SINGLE)
    y = F.rms_norm(x, 8, eps=0.0, partial=0.3, eps_mode=eps_mode).numpy()
    wide = x.astype(DOUBLE)
    np.testing.assert_allclose(y, wide / np.sqrt(np.mean(wide[:, :3] ** 2, axis=-1, keepdims=True)), rtol=5e-6)


# The repaired rows on other kinds of numbers


FORMULAS = {
    "rms": partial(norms.rms_norm, axis=(-1,), eps=0.0),
    "layer": partial(norms.layer_norm, axis=(-1,), eps=0.0),
    "variant": partial(rms_variants.rms_norm_variant, axis=(-1,), eps=0.0, outside=True, count=3, offset=1.0),
}
BACKWARDS = {
    "rms": norms.rms_norm_backward,
    "layer": norms.layer_norm_backward,
    "variant": rms_variants.rms_norm_variant_backward,
}
NAMES = pytest.mark.parametrize("name", FORMULAS)


@NAMES
@pytest.mark.parametrize("scale", [1e200, 1e-200])
def test_the_complex_step_goes_through(name, scale):
    """One imaginary direction per run: the derivative along it is Σ x̄ v."""
    gain, v, dy = normal(8, seed=1), normal(3, 8, seed=2), normal(3, 8, seed=3)
    parameters = (gain,) if name == "rms" else (gain, None)
    with np.errstate(all="ignore"):
        y, cache = FORMULAS[name](np, scale * N, *parameters)
        stepped, _ = FORMULAS[name](np, scale * (N + 1e-30j * v), *parameters)
        dx = BACKWARDS[name](np, dy, cache)[0]
    np.testing.assert_allclose(stepped.real, y, rtol=1e-14)
    np.testing.assert_allclose(np.sum(stepped.imag * dy) / 1e-30, np.sum(scale * dx * v), rtol=1e-11)


@NAMES
@pytest.mark.parametrize("scale", [1e200, 1e-200])
def test_long_doubles_keep_their_digits(name, scale):
    gain = normal(8, seed=1).astype(np.longdouble)
    parameters = (gain,) if name == "rms" else (gain, None)
    y, _ = FORMULAS[name](np, N.astype(np.longdouble), *parameters)
    scaled, _ = FORMULAS[name](np, N.astype(np.longdouble) * np.longdouble(2) ** round(np.log2(scale)), *parameters)
    np.testing.assert_allclose(scaled, y, rtol=8 * np.finfo(np.longdouble).eps)


@pytest.mark.parametrize("kind", ["rms", "layer", "variant"])
@pytest.mark.parametrize("power", [600, -600])
def test_higher_derivatives_of_repaired_rows(kind, power):
    """ε = 0: by homogeneity the k-th derivative at 2ᵖ x is 2^(−kp) times that at x, where nothing needs repair."""
    v, u = normal(3, 8, seed=1), normal(3, 8, seed=2)
    options = {"partial": 0.5, "eps_mode": "outside"} if kind == "variant" else {}
    kind = "layer" if kind == "layer" else "rms"
    found = []
    for factor in (1.0, 2.0**power):
        x = tn.tensor(N * factor, requires_grad=True)
        y = (norm(kind, x, None, None, 0.0, **options) * v).sum()
        orders = []
        for _ in range(3):
            (slope,) = tn.grad(y, x, create_graph=True)
            orders.append(slope.numpy() * factor)
            y = (slope * (u * factor)).sum()  # as large again as at factor 1
        found.append(orders)
    for plain, repaired in zip(*found, strict=True):
        np.testing.assert_allclose(repaired, plain, rtol=0, atol=1e-12 * np.abs(plain).max())
        assert np.abs(plain).max() > 1e-2
