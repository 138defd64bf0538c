"""Faults of tapes that people have reported in public, one test each.

The right values are known by hand, or come from NumPy in float64.
"""

import numpy as np
import pytest

import tinynorm as tn
from tinynorm.errors import GraphError

DTYPES = pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])


def leaf(x, dtype=None):
    return tn.tensor(x, dtype=dtype, requires_grad=True)


@DTYPES
@pytest.mark.parametrize(
    ("norm_squared", "x"),
    [
        (lambda t: tn.sqrt((t * t).sum()) ** 2, 0.0),
        (lambda t: tn.sqrt(tn.sum(t**2, axis=1)) ** 2, 0.0),
        (lambda t: ((t * t).sum() ** 0.5) ** 2, 0.0),
        (lambda t: tn.sqrt(t.var(axis=0)) ** 2, 3.0),
        (lambda t: abs(t) ** 2, 0.0),
        (lambda t: tn.sqrt(abs(t)) ** 4, 0.0),
    ],
    ids=["sqrt", "rows", "power", "standard deviation", "abs", "sqrt of abs"],
)
def test_a_squared_norm_has_gradient_0_at_0(norm_squared, x, dtype):
    """The root's slope ∞ met the square's 0, and their product was nan."""
    t = leaf(np.full((3, 3), x, dtype))
    y = norm_squared(t)
    y.backward(np.random.default_rng(0).normal(size=y.shape))
    np.testing.assert_array_equal(t.grad, np.zeros((3, 3)))


@DTYPES
@pytest.mark.parametrize("f", [tn.max, tn.min])
@pytest.mark.parametrize(
    ("shape", "axis"), [((70000,), None), ((70000, 2), 0), ((2, 70000), 1), ((7, 2, 10000), (0, 2))]
)
def test_ties_share_one_whole_gradient(f, shape, axis, dtype):
    """70000 ties, counted in float16, are ∞ ties: every share became 0. A share is 1.43e-5, the total ȳ."""
    t = leaf(np.full(shape, 2.0, dtype))
    y = f(t, axis=axis)
    dy = np.array([1.0, -3.0])[: y.size].reshape(y.shape)
    y.backward(dy)
    total = np.sum(t.grad, axis=axis, dtype=np.float64)
    np.testing.assert_allclose(total, dy, rtol=5e-3 if dtype == np.float16 else 1e-6)
    assert np.all(t.grad != 0.0)


def test_two_tensors_on_one_array_are_both_guarded():
    """The same where `w.data = a` makes two Tensors share: a write through one must not mix a's old and new values."""
    a, w = leaf([1.0, 2.0]), tn.tensor([0.0, 0.0])
    w.data = a
    y = a * tn.exp(a)  # old: eᵃ (1 + a)
    w.data[...] = 0.0
    try:
        y.backward(np.array([1.0, 1.0]))
    except GraphError:
        return
    old = np.exp([1.0, 2.0]) * [2.0, 3.0]
    assert np.allclose(a.grad, old) or np.allclose(a.grad, [1.0, 1.0])


def test_where_takes_the_zero_times_infinity_of_its_branch():
    """where(a <= 0, exp(a), 1 + a) at 100: mathematically 1, but the branch not taken sends 0·∞ = nan; documented."""
    t = leaf(np.array([100.0, -1.0], np.float32))
    with np.errstate(over="ignore", invalid="ignore"):
        tn.where(t <= 0, tn.exp(t), 1.0 + t).sum().backward()
    assert np.isnan(t.grad[0])
    assert t.grad[1] == pytest.approx(np.exp(-1.0))
    assert "nan" in tn.where.__doc__


@pytest.mark.parametrize(
    "mask",
    [
        lambda t: t < 0,
        lambda t: ~(t >= 0),
        lambda t: (t <= -0.1) & (t != 5.0),
        lambda t: (t == t.min()) | (t < 0.0),
        lambda t: np.float64(0) > t,
        lambda t: np.zeros(4) > t,
    ],
)
def test_a_comparison_is_a_constant(mask):
    """(t * (t < 0)).sum().backward() crashed, for a comparison has no backward. The mask is a constant."""
    x, dy = np.array([-1.5, 0.5, -2.5, 3.0]), np.array([1.0, -2.0, 3.0, 4.0])
    t = leaf(x)
    m = mask(t)
    assert isinstance(m, tn.Tensor)
    assert not m.requires_grad
    assert m.dtype == np.bool_
    (t * m).backward(dy)
    np.testing.assert_array_equal(t.grad, dy * (x < 0))


def test_log_is_chained_and_builtin_sum_works():
    """log's derivative was missing or not times the cotangent, and sum() starts with the int 0."""
    x, dy = np.random.default_rng(0).uniform(0.5, 3.0, (2, 4, 4))
    t = leaf(x)
    y = sum([tn.log(t), tn.log(t), tn.log(t)])
    np.testing.assert_allclose(y.numpy(), 3.0 * np.log(x))
    y.backward(dy)
    np.testing.assert_allclose(t.grad, dy * 3.0 / x, rtol=1e-14)
