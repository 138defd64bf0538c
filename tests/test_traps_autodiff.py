"""Faults of tapes that people have reported in public, one test each.

The right values are known by hand, or come from NumPy in float64.
"""

import numpy as np
import pytest

import tinynorm as tn
from tinynorm import nn
from tinynorm.errors import GraphError

DTYPES = pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])


def leaf(x, dtype=None):
    return tn.tensor(x, dtype=dtype, requires_grad=True)


def along(f, x, direction, dy, h=1e-6):
    """∂(Σ ȳ f(x)) along a direction, by central difference."""
    above, below = (f(tn.tensor(x + s * h * direction)).numpy() for s in (1, -1))
    return float(np.sum(dy * (above - below)) / (2 * h))


@pytest.mark.parametrize("shape", [(), (3, 3)])
def test_a_diamond_is_walked_on_both_sides(shape):
    """A depth-first walk stopped one path: with a = 2x, b = a + 1, c = ab, d = 2c + b, d' = 16x + 6 (54 at 3)."""
    x = np.full((), 3.0) if shape == () else np.random.default_rng(0).normal(size=shape)
    dy = np.random.default_rng(1).normal(size=shape)
    t = leaf(x)
    a = 2.0 * t
    b = a + 1.0
    c = a * b
    (2.0 * c + b).backward(dy)
    np.testing.assert_allclose(t.grad, dy * (16.0 * x + 6.0), rtol=1e-14)


def test_a_second_backward_adds_no_stale_gradients():
    """Intermediate nodes kept their gradients, and the second backward sent them on again: 2x twice is 12, then 24."""
    t = leaf(6.0)
    y = t * t
    y = y * 0.5 + y * 0.5  # a diamond in between
    y.backward(retain_graph=True)
    assert t.grad == 12.0
    y.backward()
    assert t.grad == 24.0
    with pytest.raises(GraphError, match="retain_graph=True"):
        y.backward()
    assert t.grad == 24.0


@pytest.mark.parametrize(("a_shape", "b_shape"), [((2, 1), (1, 3)), ((3, 1), (3,)), ((), (2, 2)), ((1, 2), (2, 1, 1))])
@pytest.mark.parametrize("name", ["+", "-", "*", "/", "**", "maximum", "minimum", "where"])
def test_both_operands_broadcast_at_once(name, a_shape, b_shape):
    """(2, 1) + (1, 3) failed in backward: both gradients must be summed back, each over its own axes."""
    f = {
        "+": lambda a, b: a + b,
        "-": lambda a, b: a - b,
        "*": lambda a, b: a * b,
        "/": lambda a, b: a / b,
        "**": lambda a, b: a**b,
        "maximum": tn.maximum,
        "minimum": tn.minimum,
        "where": lambda a, b: tn.where(tn.tensor([True]), a, 2.0 * b),
    }[name]
    rng = np.random.default_rng(0)
    a, b = rng.uniform(0.5, 2.0, a_shape), rng.uniform(0.5, 2.0, b_shape)
    ta, tb = leaf(a), leaf(b)
    y = f(ta, tb)
    dy = rng.normal(size=np.broadcast_shapes(a_shape, b_shape))
    y.backward(dy)
    for value, t, g in ((a, ta, lambda v: f(v, tn.tensor(b))), (b, tb, lambda v: f(tn.tensor(a), v))):
        assert t.grad.shape == value.shape
        direction = rng.normal(size=value.shape)
        assert np.sum(t.grad * direction) == pytest.approx(along(g, value, direction, dy), rel=1e-6, abs=1e-8)


def basis(shape):
    for i in np.ndindex(shape):
        e = np.zeros(shape)
        e[i] = 1.0
        yield i, e


@pytest.mark.parametrize(
    ("subscripts", "shapes"),
    [
        ("i,i->", [(2,), (1,)]),
        ("i,i->i", [(1,), (2,)]),
        ("ij,ij->ij", [(2, 1), (1, 2)]),
        ("ij,jk->ik", [(2, 2), (1, 2)]),
        ("ij,jk->k", [(2, 1), (2, 3)]),
        ("ij,i->", [(1, 3), (2,)]),
        ("ij,jk,k->i", [(3, 1), (3, 1), (3,)]),
    ],
)
def test_einsum_with_operands_of_length_1(subscripts, shapes):
    """ "i,i" with lengths 2 and 1 gave a gradient of shape (1,) twice. It is linear in each operand: exact by basis."""
    rng = np.random.default_rng(0)
    terms = subscripts.partition("->")[0].split(",")
    n = {c: max(s[t.index(c)] for t, s in zip(terms, shapes, strict=True) if c in t) for c in "ijk" if c in subscripts}

    def right(*arrays):
        full = [np.broadcast_to(a, [n[c] for c in t]) for a, t in zip(arrays, terms, strict=True)]
        return np.einsum(subscripts, *full)

    arrays = [rng.normal(size=s) for s in shapes]
    tensors = [leaf(a) for a in arrays]
    y = tn.einsum(subscripts, *tensors)
    np.testing.assert_allclose(y.numpy(), right(*arrays), rtol=1e-13)
    dy = rng.normal(size=y.shape)
    y.backward(dy)
    for k, t in enumerate(tensors):
        assert t.grad.shape == shapes[k]
        for i, e in basis(shapes[k]):
            assert t.grad[i] == pytest.approx(np.sum(dy * right(*arrays[:k], e, *arrays[k + 1 :])), rel=1e-12)


def test_einsum_and_matmul_have_one_gradient():
    """bnij,bnjc->bnic had another gradient than matmul: Ā = Ȳ Bᵀ, B̄ = Aᵀ Ȳ in each square matrix."""
    rng = np.random.default_rng(0)
    a, b, dy = (rng.normal(size=(2, 3, 4, 4)) for _ in range(3))
    for product in (lambda a, b: tn.einsum("bnij,bnjc->bnic", a, b), tn.matmul, lambda a, b: a @ b):
        ta, tb = leaf(a), leaf(b)
        y = product(ta, tb)
        y.backward(dy)
        for i in np.ndindex(2, 3):
            np.testing.assert_allclose(y.numpy()[i], np.dot(a[i], b[i]), rtol=1e-13)
            np.testing.assert_allclose(ta.grad[i], np.dot(dy[i], b[i].T), rtol=1e-12)
            np.testing.assert_allclose(tb.grad[i], np.dot(a[i].T, dy[i]), rtol=1e-12)


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


@pytest.mark.parametrize(
    "write",
    [
        lambda linear, x, c: linear.load_state_dict({"weight": np.zeros((3, 3), np.float32)}),
        lambda linear, x, c: np.multiply(linear.weight.data, 2.0, out=linear.weight.data),
        lambda linear, x, c: x.fill(0.0),
        lambda linear, x, c: c.fill(0.0),
        lambda linear, x, c: x.T[1].fill(0.0),
    ],
    ids=["load_state_dict", "weight.data", "input array", "constant operand", "view of the input"],
)
def test_whoever_writes_is_noticed(write):
    """The same through a layer: the library's own writes, and constants that a product still needs."""
    linear = nn.Linear(3, 3, bias=False, rng=0)
    x, c = np.ones((3, 3), np.float32), np.ones((3, 3), np.float32)
    y = linear(tn.tensor(c, requires_grad=True) * c) * x
    y = linear(x) * y
    write(linear, x, c)
    with pytest.raises(GraphError, match=r"(linear|multiply) still needs .* changed in place"):
        y.backward(np.ones((3, 3)))


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
