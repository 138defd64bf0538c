"""Faults around array modules and dtypes that people have reported in public, one test each, as far as NumPy has them.

The right values are known by hand, or are what NumPy gives in float64.
"""

import inspect
import pathlib

import numpy as np
import pytest

import tinynorm as tn
from tinynorm import functional as F
from tinynorm import nn
from tinynorm.errors import TinynormError
from tinynorm.formulas import linear as linear_formulas
from tinynorm.formulas import shaping

DTYPES = pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])


def leaf(x, dtype=None):
    return tn.tensor(x, dtype=dtype, requires_grad=True)


@DTYPES
@pytest.mark.parametrize("half", [np.float64(0.5), np.array(0.5), np.longdouble(0.5)], ids=["float64", "0-d", "long"])
@pytest.mark.parametrize(
    "f",
    [
        lambda x, v: F.rms_norm(x, 4, eps=v),
        lambda x, v: F.layer_norm(x, 4, eps=v),
        lambda x, v: nn.RMSNorm(4, eps=v, elementwise_affine=False)(x),
        lambda x, v: nn.LayerNorm(4, eps=v, elementwise_affine=False)(x),
        lambda x, v: F.leaky_relu(x - 1.0, v),
        lambda x, v: nn.LeakyReLU(v)(x - 1.0),
        lambda x, v: F.elu(x - 1.0, v),
        lambda x, v: nn.ELU(v)(x - 1.0),
        lambda x, v: F.dropout(x, v, rng=0),
        lambda x, v: nn.Dropout(v, rng=0)(x),
        lambda x, v: F.cross_entropy(x, [0, 1, 2, 3], label_smoothing=v),
        lambda x, v: tn.var(x, axis=0, ddof=v),
    ],
    ids=["rms", "layer", "RMS", "Layer", "leaky", "Leaky", "elu", "ELU", "dropout", "Dropout", "smoothing", "var"],
)
def test_an_option_that_is_a_numpy_scalar_is_weak(f, half, dtype):
    """A NumPy float64 scalar is strong in NumPy 2 and widens; an option is a number, and 0.5 is 0.5 in any type."""
    results = []
    for value in (half, 0.5):
        t = leaf(np.random.default_rng(0).uniform(0.3, 2.0, (4, 4)), dtype)
        y = f(t, value)
        y.backward(np.random.default_rng(1).normal(size=y.shape))
        results.append((y.numpy(), t.grad))
    for got, plain in zip(*results, strict=True):
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, plain)


@DTYPES
def test_an_integer_option_of_numpy_is_weak_too(dtype):
    """The same for ddof = np.int64(1), which divides float32 into float64."""
    y = tn.var(leaf([1.0, 2.0, 6.0], dtype), ddof=np.int64(1))
    assert y.dtype == dtype
    assert y.item() == 7.0


OPERATORS = {
    "+": (lambda a, b: a + b, lambda a, b: 1.0),
    "-": (lambda a, b: a - b, lambda a, b: -1.0),
    "*": (lambda a, b: a * b, lambda a, b: a),
    "/": (lambda a, b: a / b, lambda a, b: -a / b**2),
    "**": (lambda a, b: a**b, lambda a, b: a**b * np.log(a)),
}


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize(
    "left", [np.float64(2), np.float32(2), np.int64(2), np.array(2.0), np.full((2, 2), 2.0), 2.0, 2], ids=repr
)
def test_a_numpy_operand_on_the_left_reaches_the_tensor(name, left):
    """np.float64(2) * t failed, or made an object array. NumPy's promotion decides the result, t the gradient."""
    f, slope = OPERATORS[name]
    x, dy = np.array([[0.5, 1.0], [1.5, 3.0]], np.float32), np.array([[1.0, -2.0], [0.5, 4.0]])
    t = leaf(x)
    y = f(left, t)
    assert type(y) is tn.Tensor
    right = f(left, x)
    assert y.dtype == right.dtype
    np.testing.assert_allclose(y.numpy(), right, rtol=1e-6)
    y.backward(dy)
    assert t.grad.dtype == np.float32
    np.testing.assert_allclose(t.grad, dy * slope(2.0, x.astype(np.float64)), rtol=1e-6)


def test_a_numpy_matrix_on_the_left_reaches_the_tensor():
    """The same for array @ t and array < t. (array += t is refused by NumPy itself.)"""
    a, x, dy = (np.random.default_rng(i).normal(size=(3, 3)) for i in range(3))
    t = leaf(x)
    y = a @ t
    assert type(y) is tn.Tensor
    y.backward(dy)
    np.testing.assert_allclose(t.grad, a.T @ dy, rtol=1e-13)
    assert type(a < t) is tn.Tensor
    with pytest.raises(TypeError):
        a += t


class Without:
    """NumPy less some functions, as another array module may lack them; remembers what was asked for."""

    def __init__(self, *missing):
        self.missing, self.asked = missing, []

    def __getattr__(self, name):
        assert name not in self.missing, f"xp.{name} was used"
        self.asked.append(name)
        return getattr(np, name)


def test_scattering_asks_the_array_module():
    """np.add.at raises on device arrays: only xp.add.at exists there. Duplicates must add up."""
    xp, dy = Without(), np.array([[1.0, 2.0], [10.0, 20.0], [100.0, 200.0]])
    _, cache = shaping.getitem(xp, np.zeros((2, 2)), index=np.array([1, 1, 1]))
    np.testing.assert_array_equal(shaping.getitem_backward(xp, dy, cache), [[0.0, 0.0], [111.0, 222.0]])
    assert "add" in xp.asked
    sources = pathlib.Path(inspect.getfile(tn)).parent.rglob("*.py")
    assert [str(path) for path in sources if "np.add.at" in path.read_text(encoding="utf-8")] == []


@pytest.mark.parametrize("lead", [(), (4,), (2, 4), (2, 1, 4), (0, 4)])
def test_the_weight_gradient_needs_no_einsum(lead):
    """CuPy's einsum cannot sum an ellipsis away ("...ij,...ik->jk"). W̄ₒᵢ = Σ ȳₙₒ xₙᵢ over all leading axes."""
    rng, xp = np.random.default_rng(0), Without("einsum", "tensordot")
    x, w, dy = rng.normal(size=(*lead, 4)), rng.normal(size=(4, 4)), rng.normal(size=(*lead, 4))
    _, cache = linear_formulas.linear(xp, x, w, None)
    dx, dw, _ = linear_formulas.linear_backward(xp, dy, cache, (True, True, True))
    right = np.zeros((4, 4))
    for n in np.ndindex(lead):
        right += np.outer(dy[n], x[n])
        np.testing.assert_allclose(dx[n], w.T @ dy[n], rtol=1e-13)
    np.testing.assert_allclose(dw, right, rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_swapped_bytes_are_converted(dtype):
    """Big-endian arrays were reinterpreted: 1.0 became 4.6e-41. Every way in converts or refuses."""
    native = np.array([[1.0, -2.0], [0.5, 3.0]], dtype)
    swapped = native.astype(native.dtype.newbyteorder("S"))
    one = tn.tensor(native)
    assigned = tn.tensor(np.zeros_like(native))
    assigned.data = swapped
    ways = [
        tn.tensor(swapped), tn.as_tensor(swapped), tn.Tensor(swapped), nn.Parameter(swapped), assigned,
        tn.tensor(native, dtype=swapped.dtype), one.astype(swapped.dtype), swapped * (one / one), one - one + swapped,
        tn.concatenate([swapped]), tn.as_tensor(np.array(swapped[0, 0])) * (one / one) - one[0, 0] + native,
    ]  # fmt: skip
    for way in ways:
        assert way.dtype.isnative
        np.testing.assert_array_equal(way.numpy(), native)

    t = leaf(native)
    (t * swapped).backward(swapped)
    assert t.grad.dtype.isnative
    np.testing.assert_array_equal(t.grad, native * native)

    try:
        t.grad = swapped
    except TinynormError:
        pass
    else:
        np.testing.assert_array_equal(t.grad, native)

    layer = nn.Linear(2, 2, bias=False, rng=0)
    before = layer.weight.numpy().copy()
    try:
        layer.load_state_dict({"weight": native.astype(">f4")})
    except TinynormError:
        np.testing.assert_array_equal(layer.weight.numpy(), before)
    else:
        np.testing.assert_array_equal(layer.weight.numpy(), native)


@pytest.mark.parametrize("code", [">i2", ">i4", ">i8", ">u4"])
def test_swapped_integers_are_converted_too(code):
    """The same for class indices and positions: 1 would be 16777216."""
    index = np.array([1, 0, 1], code)
    t = leaf([[1.0, 2.0], [3.0, 4.0]], np.float64)
    for y in (t[index], tn.take(t, index, axis=0)):
        np.testing.assert_array_equal(y.numpy(), [[3.0, 4.0], [1.0, 2.0], [3.0, 4.0]])
    loss = F.nll_loss([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], index, reduction="none")
    np.testing.assert_array_equal(loss.numpy(), [-2.0, -3.0, -6.0])
