"""erf and the normal distribution function, held against mpmath at 60 digits."""

import mpmath
import numpy as np
import pytest

from tinynorm.formulas import special

FUNCTIONS = pytest.mark.parametrize("function", [special.erf, special.normal_cdf])
DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@pytest.fixture(autouse=True)
def _every_floating_point_warning_is_an_error():
    with mpmath.workdps(60), np.errstate(all="raise", under="ignore"):
        yield


def grid(dtype, low, high):
    """Random and even points, and both sides of the branches at 0 and ±½."""
    near = [np.nextafter(dtype(b), dtype(b + side)) for b in (-0.5, 0.0, 0.5) for side in (-1, 1)]
    random = np.random.default_rng(0).uniform(low, high, 1000)
    return np.concatenate([random, np.linspace(-1.5, 1.5, 501), [low, -0.5, 0.0, 0.5, high], near]).astype(dtype)


def worst_ulp(got, exact):
    """Largest error in units in the last place, over the results that are normal numbers."""
    limits = np.finfo(got.dtype)
    errors = [
        abs(mpmath.mpf(float(g)) - e) / float(np.spacing(got.dtype.type(abs(e))))
        for g, e in zip(got, exact, strict=True)
        if abs(e) >= float(limits.smallest_normal)
    ]
    assert errors
    return float(max(errors))


def exactly(function, x):
    return [function(mpmath.mpf(float(v))) for v in x]


def test_the_coefficients_are_not_magic():
    k, n = mpmath.mpf(special._K), len(special._ERFCX)

    def scaled(t):  # (a + K)·erfcx(a)
        a = k * (1 + t) / (1 - t)
        return (a + k) * mpmath.exp(a * a) * mpmath.erfc(a)

    nodes = [mpmath.cos(mpmath.pi * (j + 0.5) / n) for j in range(n)]
    powers = mpmath.matrix([[t**p for p in reversed(range(n))] for t in nodes])
    coefficients = tuple(mpmath.lu_solve(powers, mpmath.matrix([scaled(t) for t in nodes])))
    assert tuple(float(c) for c in coefficients) == special._ERFCX

    between = [mpmath.cos(mpmath.pi * j / n) for j in range(1, n + 1)]  # where the error of an interpolant is largest
    assert max(abs(special._polynomial(coefficients, t) / scaled(t) - 1) for t in between) < 5e-18


def test_the_taylor_series_reaches_one_half():
    half = mpmath.mpf(0.5)
    assert abs(half * special._polynomial(special._ERF, half**2) / mpmath.erf(half) - 1) < 1e-16


# np.exp itself may be off by 1 to 3 ulp, depending on the processor, and the lower tail has two of them as factors.
# For erf the worst place is just above ½, where 1 − erfc doubles the error of erfc in ulp of the result.


@pytest.mark.parametrize(("dtype", "low"), [(np.float32, -12.9), (np.float64, -37.5)])
def test_normal_cdf_is_within_8_ulp_down_to_the_smallest_normal_number(dtype, low):
    x = grid(dtype, low, 9)
    assert worst_ulp(special.normal_cdf(np, x), exactly(mpmath.ncdf, x)) <= 8


@pytest.mark.parametrize(("dtype", "points"), [(np.float32, [-8, -9, -12]), (np.float64, [-8, -9, -30, -37])])
def test_normal_cdf_far_in_the_tail(dtype, points):
    x = np.array(points, dtype)
    assert worst_ulp(special.normal_cdf(np, x), exactly(mpmath.ncdf, x)) <= 8


@DTYPES
def test_erf_is_within_4_ulp(dtype):
    x = np.concatenate([grid(dtype, -7, 7), np.logspace(-37, -1, 200).astype(dtype)])
    assert worst_ulp(special.erf(np, x), exactly(mpmath.erf, x)) <= 4


def test_longdouble_is_as_accurate_as_float64():
    x = np.linspace(-37, 7, 301)
    wide = special.normal_cdf(np, x.astype(np.longdouble))
    assert wide.dtype == np.longdouble
    np.testing.assert_allclose(wide.astype(float), [float(p) for p in exactly(mpmath.ncdf, x)], rtol=1e-15)
    far = np.array([-np.inf, -1000, 1000, np.inf], np.longdouble)
    np.testing.assert_array_equal(special.normal_cdf(np, far), [0, 0, 1, 1])


@DTYPES
def test_special_points(dtype):
    x = np.array([-np.inf, -1e20, -1000, 0, 1000, 1e20, np.inf, np.nan], dtype)
    np.testing.assert_array_equal(special.erf(np, x), np.array([-1, -1, -1, 0, 1, 1, 1, np.nan], dtype))
    np.testing.assert_array_equal(special.normal_cdf(np, x), np.array([0, 0, 0, 0.5, 1, 1, 1, np.nan], dtype))


@FUNCTIONS
@DTYPES
def test_the_whole_range_of_the_dtype_raises_no_warning(function, dtype):
    limits = np.finfo(dtype)
    powers = np.ldexp(dtype(1), np.arange(limits.minexp - limits.nmant, limits.maxexp))  # from subnormal to huge
    x = np.concatenate([-powers, powers, [limits.min, limits.max]])
    assert np.isfinite(function(np, x)).all()


@pytest.mark.parametrize(
    ("function", "derivative", "low", "high"),
    [
        (special.erf, lambda x: 2 / mpmath.sqrt(mpmath.pi) * mpmath.exp(-x * x), -25, 25),
        (special.normal_cdf, mpmath.npdf, -35.5, 35.5),
    ],
)
def test_a_complex_step_gives_the_derivative(function, derivative, low, high):
    """Up to where derivative · 1e-30 stops being a normal number."""
    x = grid(np.float64, low, high)
    y = function(np, x + 1e-30j)
    np.testing.assert_allclose(y.imag / 1e-30, [float(d) for d in exactly(derivative, x)], rtol=1e-14)
    np.testing.assert_allclose(y.real, function(np, x), rtol=4e-15)


@FUNCTIONS
def test_a_complex_step_from_infinity_or_nan(function):
    y = function(np, np.array([-np.inf, -1e20, 1e20, np.inf]) + 1e-30j)
    np.testing.assert_array_equal(y.imag, 0)
    with np.errstate(invalid="ignore"):  # NumPy reports any comparison with a complex nan
        assert np.isnan(function(np, np.array(np.nan + 1e-30j)))


@FUNCTIONS
@DTYPES
@pytest.mark.parametrize("shape", [(), (0,), (3, 1, 2)])
def test_shape_and_dtype_are_kept(function, dtype, shape):
    x = np.full(shape, -0.75, dtype)
    x.flags.writeable = False
    y = function(np, x)
    assert y.shape == shape
    assert y.dtype == dtype
    assert not np.shares_memory(x, y)


@FUNCTIONS
@DTYPES
def test_a_scalar_gives_what_an_array_gives(function, dtype):
    x = np.linspace(-4, 4, 33).astype(dtype)
    y = [function(np, v) for v in x]
    assert all(v.dtype == dtype for v in y)
    # exp has separate code for one element and for many; they may round differently.
    np.testing.assert_allclose(y, function(np, x), rtol=8 * np.finfo(dtype).eps)


@FUNCTIONS
def test_strides_do_not_matter(function):
    x = np.linspace(-5, 5, 60).reshape(6, 10)
    y = function(np, x)
    for view in (np.s_[::-1], np.s_[:, ::-3], np.s_[1::2, ::2]):
        np.testing.assert_allclose(function(np, x[view]), y[view], rtol=2e-15)
    np.testing.assert_allclose(function(np, x.T), y.T, rtol=2e-15)


@DTYPES
def test_erf_is_exactly_odd(dtype):
    x = grid(dtype, -7, 7)
    np.testing.assert_array_equal(special.erf(np, -x), -special.erf(np, x))
    np.testing.assert_array_equal(np.signbit(special.erf(np, np.array([-0.0, 0.0], dtype))), [True, False])


@DTYPES
def test_the_upper_half_is_one_minus_the_lower(dtype):
    x = np.abs(grid(dtype, -9, 9))
    x = x[x > 0]
    np.testing.assert_array_equal(special.normal_cdf(np, x), 1 - special.normal_cdf(np, -x))


@FUNCTIONS
@DTYPES
def test_never_decreases(function, dtype):
    x = np.linspace(-13, 13, 2601).astype(dtype)
    assert (np.diff(function(np, x)) >= 0).all()
