"""The kernels of activations and of erf: right to some ulp in every range, shape and layout."""

from typing import Any, NamedTuple

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_kernels import DOUBLE, DTYPES, SINGLE, normal
from test_kernels_dense import COTANGENTS, SEEDS, SHAPES, compare, cotangent, run, serves

import tinynorm as tn
from tinynorm import table
from tinynorm.kernels.normal import EDGE, ERF, MILLS
from tinynorm.op import Op

F = tn.functional


class Activation(NamedTuple):
    """How it is called, its operation, and what that is called with."""

    call: Any
    op: Op
    params: dict[str, float] = {}  # noqa: RUF012


ACTIVATIONS = {
    "sigmoid": Activation(F.sigmoid, table.sigmoid),
    "silu": Activation(F.silu, table.silu),
    "gelu": Activation(F.gelu, table.gelu),
    "gelu tanh": Activation(lambda x: F.gelu(x, "tanh"), table.gelu_tanh),
    "softplus": Activation(F.softplus, table.softplus),
    "elu": Activation(F.elu, table.elu, {"alpha": 1.0}),
    "leaky relu": Activation(lambda x: F.leaky_relu(x, 0.3), table.leaky_relu, {"negative_slope": 0.3}),
    "tanh": Activation(tn.tanh, table.tanh),
    "erf": Activation(tn.erf, table.erf),
}
EACH = pytest.mark.parametrize("name", ACTIVATIONS)
SINGLE_ONLY = ("gelu", "erf")


def exactly(name: str, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """y and y′ by the formulas, which tests/test_accuracy.py holds against mpmath, in the next wider dtype."""
    wide = x.astype(DOUBLE if x.dtype == SINGLE else np.longdouble)
    _, op, params = ACTIVATIONS[name]
    y, cache = op.forward(np, wide, **params)
    return y, op.backward(np, np.ones_like(wide), cache)


def ulps(found: np.ndarray, exact: np.ndarray, beside: Any = 0.0) -> np.ndarray:
    """Errors in units in the last place of the exact number, or of the larger number beside it.

    Where that is below the smallest normal number, an error as large as this counts for nothing.
    """
    least = np.finfo(found.dtype).smallest_normal
    size, error = np.maximum(abs(exact), beside), abs(found - exact)
    return np.where(
        (size < least) & (error <= least), 0, error / np.spacing(np.maximum(size, least).astype(found.dtype))
    )


@EACH
@DTYPES
@pytest.mark.parametrize("reach", [0.5, 3.0, 8.9, 30.0, 800.0])
def test_values_and_slopes_are_right_to_8_ulp(name: str, dtype: Any, reach: float) -> None:
    x = np.random.default_rng(0).uniform(-reach, reach, 20_000).astype(dtype)
    call, op, params = ACTIVATIONS[name]
    if dtype == DOUBLE and name in SINGLE_ONLY:
        assert not serves(op, x, **params)
        return
    assert serves(op, x, **params)
    y, slope = run(call, [x], np.ones_like(x))
    close(name, y, slope, x)


@EACH
@DTYPES
def test_slopes_on_the_way_to_overflow(name: str, dtype: Any) -> None:
    """Each x alone, since one that overflows hands others over to the formula: GELU's t x² may fit where t z′ x not."""
    if dtype == DOUBLE and name in SINGLE_ONLY:
        return
    edges = {SINGLE: [(-10.5, -9.0), (-89.5, -84.0)], DOUBLE: [(-21.2, -21.0), (-711.0, -700.0)]}[dtype]
    call = ACTIVATIONS[name].call
    for x in np.concatenate([np.linspace(*edge, 200) for edge in edges]).astype(dtype)[:, None]:
        y, slope = run(call, [x], np.ones_like(x))
        close(name, y, slope, x)


def close(name: str, y: np.ndarray, slope: np.ndarray, x: np.ndarray) -> None:
    """To 8 ulp, and to 3 |z| more in the tail of GELU's tanh form. Where a slope's terms cancel, of the larger, y/x."""
    exact, slopes = exactly(name, x)
    granted = 8 + (3 * 1.6 * np.maximum(-x, 0) * (1 + 0.045 * x * x) if name == "gelu tanh" else 0)
    assert (ulps(y, exact) <= granted).all()
    term = abs(exact / np.where(x == 0, 1, x)) if name in ("silu", "gelu", "gelu tanh") else 0.0
    assert (ulps(slope, slopes, term) <= granted).all()


@EACH
def test_what_is_in_range_is_right_also_where_something_is_not(name: str) -> None:
    """A nan sends all that is out of range to the formula, so the ends of the range are looked at from inside."""
    ends = [(-1e6, 5e4), (-80.0, 15.0), (-13.1, 0.1), (-11.0, 2.0), (0.0, 9.0), (11.0, 2.0), (80.0, 15.0), (1e6, 5e4)]
    x = np.concatenate([np.linspace(end - width, end + width, 4000) for end, width in ends] + [[np.nan]]).astype(SINGLE)
    y, slope = run(ACTIVATIONS[name].call, [x], np.ones_like(x))
    close(name, y[:-1], slope[:-1], x[:-1])


@EACH
@given(shape=SHAPES, dtype=st.sampled_from([SINGLE, DOUBLE]), kind=COTANGENTS, seed=SEEDS)
def test_any_shape_and_cotangent(name: str, shape: tuple[int, ...], dtype: Any, kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, dy = rng.normal(size=shape).astype(dtype), cotangent(rng, shape, dtype, kind)
    compare(ACTIVATIONS[name].call, [x], dy, [1.0, 1.0 + float(abs(dy).max(initial=0.0))])


@EACH
@pytest.mark.parametrize("far", [-1e30, -100.0, -90.0, -13.0, -9.5, 13.0, 89.0, 1e30, np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("n", [3000, 40_000])
def test_a_number_far_out_takes_the_formula_and_the_others_do_not_notice(name: str, far: float, n: int) -> None:
    x, dy = normal(n), normal(n, seed=1)
    call, op, params = ACTIVATIONS[name]
    clean = run(call, [x], dy)
    x[n // 2], others = far, np.arange(n) != n // 2
    with np.errstate(all="raise", under="ignore"):
        assert serves(op, x, **params)
        found = run(call, [x], dy)
        assert np.array_equal(call(tn.tensor(x)).numpy(), found[0], equal_nan=True)  # and without a gradient
    for a, b in zip(found, clean, strict=True):
        np.testing.assert_array_equal(a[others], b[others])
    with tn.formulas_only():
        for a, b in zip(found, run(call, [x], dy), strict=True):
            np.testing.assert_allclose(a[n // 2], b[n // 2], rtol=2e-6, atol=2e-38)


@EACH
def test_the_same_bits_for_any_number_of_threads_and_with_no_gradient(
    name: str, monkeypatch: Any, restored: None
) -> None:
    monkeypatch.setattr(tn.kernels.threads, "ENOUGH", 1)
    x, dy, call = normal(300, 301), normal(300, 301, seed=1), ACTIVATIONS[name].call
    found = []
    for n in (1, 2, 3):
        tn.set_num_threads(n)
        found.append([a.tobytes() for a in run(call, [x], dy)])
        assert call(tn.tensor(x)).numpy().tobytes() == found[-1][0]
    assert found[0] == found[1] == found[2]


@EACH
def test_a_graph_may_be_walked_twice_and_differentiated_twice(name: str) -> None:
    x, dy, call = tn.tensor(normal(90, 200), requires_grad=True), normal(90, 200, seed=1), ACTIVATIONS[name].call
    y = call(x)
    y.backward(dy, retain_graph=True)
    once, value = x.grad.copy(), y.numpy().copy()
    y.backward(dy)
    np.testing.assert_array_equal(x.grad, 2 * once)
    np.testing.assert_array_equal(y.numpy(), value)
    (first,) = tn.grad(call(x), [x], dy, create_graph=True)
    np.testing.assert_allclose(first.numpy(), once, rtol=1e-5, atol=1e-6)


def test_which_inputs_activations_take() -> None:
    x = np.ones((64, 64))
    for name, (_, op, params) in ACTIVATIONS.items():
        assert serves(op, x.astype(SINGLE), **params)
        assert serves(op, x, **params) == (name not in SINGLE_ONLY)
        assert not serves(op, x.astype(SINGLE)[:, ::2], **params)
        assert not serves(op, x[:0].astype(SINGLE), **params)
        assert not serves(op, x.astype(np.longdouble), **params)
        assert serves(op, x[0].astype(SINGLE), **params) == (name not in ("tanh", "leaky relu"))
    assert not serves(table.elu, x, alpha=0.5)
    for slope in (0.0, 1.0, -0.1, 2.0):
        assert not serves(table.leaky_relu, x, negative_slope=slope)


def test_leaky_relu_passes_on_exactly_what_it_is_given_where_x_is_positive() -> None:
    x, dy = np.repeat(np.float32([0.5, -0.5, 0.0]), 1000), normal(3000)
    for slope in np.random.default_rng(0).uniform(0, 1, 200).astype(SINGLE):
        _, dx = run(lambda t, slope=slope: F.leaky_relu(t, float(slope)), [x], dy)
        np.testing.assert_array_equal(dx, np.where(x > 0, dy, slope * dy))


def test_erf_stays_within_1() -> None:
    """Where it rounds to 1, its quotient may be a unit more."""
    x = np.linspace(3, 5, 100_000).astype(SINGLE)
    y = tn.erf(x).numpy()
    assert y.max() == 1
    assert (y[x >= EDGE] == 1).all()


def test_the_coefficients_are_not_magic() -> None:
    """P / Q is what it is said to be, to the rounding of the coefficients to float32."""

    def worst(coefficients: np.ndarray, function: Any, points: np.ndarray) -> float:
        def value(
            row: np.ndarray, a: Any
        ) -> Any:  # mpmath's polyval takes them in an order that depends on its version
            return mpmath.fsum(mpmath.mpf(float(c)) * a**k for k, c in enumerate(row))

        p, q = coefficients
        errors = [value(p, a) / value(q, a) / function(a) - 1 for a in map(mpmath.mpf, points)]
        return float(max(map(abs, errors)))

    with mpmath.workdps(40):
        mills = worst(
            MILLS,
            lambda a: mpmath.erfc(a / mpmath.sqrt(2)) * mpmath.exp(a * a / 2) / 2,
            13 * np.linspace(0, 1, 400) ** 2,
        )
        erf = worst(
            ERF,
            lambda u: mpmath.erf(mpmath.sqrt(u)) / mpmath.sqrt(u),
            EDGE**2 * np.linspace(1e-6, 1, 400) ** 2,
        )
        assert 1 - mpmath.erf(EDGE) < 2**-25
    assert mills < 2**-25
    assert erf < 2**-24
    assert (MILLS >= 0).all()
    assert (ERF > 0).all()
