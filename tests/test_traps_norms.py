"""Faults of norms that people have reported in public, one test each: RMSNorm and LayerNorm, in every dtype.

The right values are known by hand, or come from each row's Jacobian, written out in long double.
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tinynorm as tn
from tinynorm import functional as F
from tinynorm import nn
from tinynorm.formulas import norms

KINDS = pytest.mark.parametrize("kind", ["rms", "layer"])
DTYPES = pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
WIDE = pytest.mark.parametrize("dtype", [np.float32, np.float64])
TOLERANCE = {np.dtype(np.float16): 2e-3, np.dtype(np.float32): 3e-6, np.dtype(np.float64): 2e-14}
MODULES = {"rms": nn.RMSNorm, "layer": nn.LayerNorm}


def norm(kind, x, shape, weight=None, bias=None, eps=1e-5):
    if kind == "rms":
        return F.rms_norm(x, shape, weight, eps)
    return F.layer_norm(x, shape, weight, bias, eps)


def reference(kind, x, weight, bias, dy, eps):
    """y, x̄, ḡ and b̄, row by row: h = r c with ∂h/∂c = r I − r³ c cᵀ / n, where c = x, or c = (I − 11ᵀ/n)(x − x₁)."""
    x, weight, bias, dy = (np.asarray(a).astype(np.longdouble) for a in (x, weight, bias, dy))
    n, one, g = weight.size, np.longdouble(1), weight.reshape(-1)
    centring = np.eye(n, dtype=np.longdouble) - (one / n if kind == "layer" else 0)
    y, dx, dweight, dbias = [], [], np.zeros_like(g), np.zeros_like(g)
    for row, d in zip(x.reshape(-1, n), dy.reshape(-1, n), strict=True):
        c = centring @ (row - row[0] if kind == "layer" else row)  # x − x₁ has the same c, and no large mean to round
        r = one / np.sqrt(np.sum(c * c) / n + np.longdouble(eps))
        jacobian = r * np.eye(n) - r**3 * np.outer(c, c) / n
        y.append(g * r * c + bias.reshape(-1))
        dx.append(centring.T @ (jacobian.T @ (g * d)))
        dweight += d * r * c
        dbias += d
    shape = weight.shape
    return np.reshape(y, x.shape), np.reshape(dx, x.shape), dweight.reshape(shape), dbias.reshape(shape)


def close(got, right, dtype=None, factor=1.0):
    """Within a few roundings of the largest value."""
    right = np.asarray(right, np.float64)
    atol = factor * TOLERANCE[np.dtype(dtype or got.dtype)] * max(1.0, np.max(np.abs(right), initial=0.0))
    np.testing.assert_allclose(np.asarray(got, np.float64), right, rtol=0, atol=atol)


def agrees(kind, x, shape, eps=1e-5, scale=1.0, amplified=1.0):
    """Value and all gradients against the reference, for random weight, bias and cotangent.

    `amplified` is how much x̄ enlarges the roundings of h̄: r, where the terms of x̄ = r (h̄ − …) cancel.
    """
    rng = np.random.default_rng(1)
    weight, bias = (tn.tensor(rng.uniform(0.5, 2.0, shape).astype(x.dtype), requires_grad=True) for _ in range(2))
    leaf = tn.Tensor(x, requires_grad=True)
    dy = (scale * rng.normal(size=x.shape)).astype(x.dtype)
    y = norm(kind, leaf, shape, weight, bias, eps)
    y.backward(dy)
    right = reference(kind, x, weight, bias if kind == "layer" else np.zeros(shape), dy, eps)
    got = [y.numpy(), leaf.grad, weight.grad] + ([bias.grad] if kind == "layer" else [])
    for found, expected, factor in zip(got, right, (1.0, amplified, 1.0, 1.0), strict=False):
        assert found.shape == expected.shape
        close(found, expected, x.dtype, factor)


# RMSNorm's


@WIDE
@pytest.mark.parametrize(
    ("kind", "root"),
    [
        ("rms", 1e-3 / math.sqrt(1.5e-6 + 1e-5)),  # mean square 6e-6 / 4
        ("layer", 0.5e-3 / math.sqrt(1.25e-6 + 1e-5)),  # centred: 0.5, −1.5, 1.5, −0.5; mean square 5e-6 / 4
    ],
)
def test_eps_stands_inside_the_root(kind, root, dtype):
    """Dividing by rms + ε instead of √(ms + ε) gives 0.81 here instead of 0.29."""
    x = np.array([1e-3, -1e-3, 2e-3, 0.0], dtype)
    assert norm(kind, x, 4).numpy()[0] == pytest.approx(root, rel=2e-6)
    agrees(kind, x, (4,))


@KINDS
@WIDE
@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
@pytest.mark.parametrize("shape", [(4, 5), (3, 3), (2, 3, 2)])
def test_several_axes_are_normalized_as_one(kind, dtype, lead, shape):
    """The gain was not broadcast over two normalized axes, and its gradient lost an axis."""
    agrees(kind, np.random.default_rng(0).normal(size=lead + shape).astype(dtype), shape)


@KINDS
@DTYPES
@pytest.mark.parametrize(("eps", "right"), [(1e-6, 0.5**0.5), (1e-5, 11**-0.5), (0.0, 1.0), (np.float64(3e-6), 0.5)])
def test_eps_is_the_one_that_was_given(kind, dtype, eps, right):
    """ε was 1e-6 whatever the model said: ±1e-3 has mean square 1e-6 and mean 0."""
    x = np.array([1e-3, -1e-3] * 4, dtype)
    right = np.array([right, -right] * 4)
    for y in (norm(kind, x, 8, eps=eps), MODULES[kind](8, eps=eps)(x)):
        np.testing.assert_allclose(y.numpy(), right, rtol=1e-3)


@KINDS
@pytest.mark.parametrize(("value", "n"), [(1.0, 2**20), (200.0, 64)])
def test_a_wide_float16_row_does_not_overflow(kind, value, n):
    """Each square fits float16, but their sum (2²⁰) does not. ±value has mean 0 and rms = value = 1/r."""
    sign = np.tile([1.0, 1.0 if kind == "rms" and value == 1.0 else -1.0], n // 2)
    x = tn.tensor((value * sign).astype(np.float16), requires_grad=True)
    weight = tn.tensor(np.ones(n, np.float16), requires_grad=True)
    dy = np.random.default_rng(0).normal(size=n).astype(np.float16)
    y = norm(kind, x, n, weight)
    y.backward(dy)
    d = dy.astype(np.float64)
    dx = (d - sign * np.mean(d * sign) - (np.mean(d) if kind == "layer" else 0.0)) / value
    close(y.numpy(), sign)
    close(x.grad, dx)
    close(weight.grad, d * sign)


@KINDS
@DTYPES
def test_a_tiny_eps_does_not_vanish_on_padding_rows(kind, dtype):
    """ε = 1e-12 is 0 in float16, and a row of zeros became 0/0. LayerNorm: any constant row."""
    x = np.zeros((3, 4), dtype)
    x[1] = [1.0, -2.0, 3.0, 0.5]
    x[2] = 0.0 if kind == "rms" else 3.0
    y = norm(kind, x, 4, eps=1e-12).numpy()
    assert np.all(y[[0, 2]] == 0.0)
    agrees(kind, x, (4,), eps=1e-12, scale=1e-3)


@KINDS
@DTYPES
def test_the_square_is_wide_not_only_x(kind, dtype):
    """(1e-4)² underflowed to 0 in float16, which leaves 1e-4 / √ε = 10 instead of 0.995."""
    x = np.array([1e-4, -1e-4] * 4, dtype)
    stored = float(x[0])
    y = norm(kind, x, 8, eps=1e-10).numpy()
    np.testing.assert_allclose(np.abs(y), stored / math.sqrt(stored**2 + 1e-10), rtol=1e-3)
    np.testing.assert_allclose(np.abs(y), 0.995, atol=1e-3)


@KINDS
@DTYPES
@pytest.mark.parametrize("affine", [False, True])
def test_inputs_and_cotangent_are_not_written_to(kind, dtype, affine):
    """The forward worked in place where the input had the computing dtype already, and spoilt the residual branch."""
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=shape).astype(dtype) for shape in ((4, 4), (4,), (4,), (4, 4))]
    before = [a.copy() for a in arrays]
    x, weight, bias = (tn.Tensor(a, requires_grad=True) for a in arrays[:3])
    h = norm(kind, x, 4, weight, bias) if affine else norm(kind, x, 4)
    (x + h).backward(arrays[3])
    for array, old in zip(arrays, before, strict=True):
        assert array.tobytes() == old.tobytes()
    parts = (before[1], before[2] if kind == "layer" else np.zeros(4)) if affine else (np.ones(4), np.zeros(4))
    y, dx, _, _ = reference(kind, before[0], *parts, before[3], 1e-5)
    close((x + h).numpy(), before[0].astype(np.longdouble) + y)
    close(x.grad, before[3].astype(np.longdouble) + dx)


@KINDS
@WIDE
def test_a_stride_0_cotangent_is_a_cotangent(kind, dtype):
    """The backward broke on the stride-0 array that sum() sends: all elements lie at one address, read-only."""
    rng = np.random.default_rng(0)
    x, g = rng.normal(size=(4, 4)).astype(dtype), rng.uniform(0.5, 2.0, 4).astype(dtype)
    _, dx, dweight, _ = reference(kind, x, g, np.zeros(4), np.ones((4, 4)), 1e-5)
    for finish in (lambda y: y.sum().backward(), lambda y: y.backward(np.broadcast_to(dtype(1.0), (4, 4)))):
        leaf, weight = tn.tensor(x, requires_grad=True), tn.tensor(g, requires_grad=True)
        finish(norm(kind, leaf, 4, weight))
        close(leaf.grad, dx)
        close(weight.grad, dweight)
    # and the formulas themselves, one row of a cotangent for all rows
    dy = np.broadcast_to(rng.normal(size=4).astype(dtype), (4, 4))
    forward, backward = getattr(norms, f"{kind}_norm"), getattr(norms, f"{kind}_norm_backward")
    extra = (g,) if kind == "rms" else (g, None)
    _, cache = forward(np, x, *extra, axis=(-1,), eps=1e-5)
    close(backward(np, dy, cache)[0], reference(kind, x, g, np.zeros(4), dy, 1e-5)[1])


@KINDS
@DTYPES
@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (5, 5), (4, 4, 4)])
@pytest.mark.parametrize("layout", [lambda x: x, lambda x: x.T, lambda x: x[::-1, ..., ::-1]])
def test_the_correction_belongs_to_its_row(kind, dtype, shape, layout):
    """The row's correction term was spread along columns, which raises no error only where rows == columns."""
    x = np.random.default_rng(0).normal(1.0, 2.0, size=shape).astype(dtype)
    agrees(kind, layout(x), shape[-1:])


@KINDS
def test_gain_and_bias_get_their_gradients(kind):
    """The norm's weight had grad None after backward."""
    rng = np.random.default_rng(0)
    x, dy = rng.normal(size=(6, 6)).astype(np.float32), rng.normal(size=(6, 6)).astype(np.float32)
    layer = MODULES[kind](6)
    layer(x).backward(dy)
    _, _, dweight, dbias = reference(kind, x, np.ones(6), np.zeros(6), dy, 1e-5)
    close(layer.weight.grad, dweight)
    if kind == "layer":
        close(layer.bias.grad, dbias)

    model = nn.PreNormMLP(6, 6, depth=2, out_features=6, norm=kind, rng=0)
    model(x).backward(dy)
    assert [name for name, p in model.named_parameters() if p.grad is None or not np.any(p.grad)] == []


@KINDS
def test_the_residual_gradient_goes_around_the_norm(kind):
    """z = x + f(norm(x)): the stream's gradient was added before the norm's backward. Right: x̄ = z̄ + Jᵀ Wᵀ z̄."""
    rng = np.random.default_rng(0)
    x, dz = rng.normal(size=(5, 5)).astype(np.float32), rng.normal(size=(5, 5)).astype(np.float32)
    body = nn.Linear(5, 5, rng=0)
    leaf = tn.tensor(x, requires_grad=True)
    z = nn.PreNormBlock(MODULES[kind](5), body)(leaf)
    z.backward(dz)
    w, b = (p.numpy().astype(np.longdouble) for p in (body.weight, body.bias))
    h, dx, _, _ = reference(kind, x, np.ones(5), np.zeros(5), dz.astype(np.longdouble) @ w, 1e-5)
    close(z.numpy(), x + h @ w.T + b)
    close(leaf.grad, dz + dx)


# LayerNorm's


@pytest.mark.parametrize("shape", [(4,), (2, 2)])
@pytest.mark.parametrize(("dtype", "base"), [(np.float16, 2000), (np.float32, 40000), (np.float64, 40000)])
def test_a_large_mean_does_not_drown_the_spread(dtype, base, shape):
    """[40000, …, 40003] gave nan in float32: mean(x²) − mean(x)² has no digit left. The deviations are ±½ and ±1½."""
    x = np.arange(base, base + 4).astype(dtype).reshape(shape)
    right = np.array([-1.34164, -0.44721, 0.44721, 1.34164]).reshape(shape)
    np.testing.assert_allclose(F.layer_norm(x, shape).numpy(), right, atol=1e-3 if dtype == np.float16 else 1e-5)
    agrees("layer", x, shape)


@pytest.mark.parametrize(("centre", "spread"), [(1449, 1e-3), (1449, 1e-2), (1449, 1.0), (1e4, 1.0), (-1e6, 10.0)])
def test_activations_close_together_far_from_zero(centre, spread):
    """16 activations near 1449 gave nan on one device and fine numbers on the other."""
    x = (centre + spread * np.random.default_rng(0).normal(size=(16, 16))).astype(np.float32)
    agrees("layer", x, (16,), amplified=3.0)


@DTYPES
@pytest.mark.parametrize("value", [0.1, 3.3, 1449.3, 10000.0 / 3.0])
@pytest.mark.parametrize("n", [3, 7, 1000])
@pytest.mark.parametrize("eps", [1e-5, 1e-12])
def test_no_variance_is_negative(dtype, value, n, eps):
    """On a (nearly) constant row the fast variance came out slightly negative, swamped ε and gave nan."""
    x = np.full((2, n), value, dtype)
    x[1, 0] = np.nextafter(dtype(value), dtype(0))
    c = (float(x[1, 0]) - float(x[1, 1])) * (np.arange(n) == 0)  # the second row less its common value
    c = c - np.mean(c)
    right = np.stack([np.zeros(n), c / np.sqrt(np.mean(c * c) + eps)])
    y = F.layer_norm(x, n, eps=eps).numpy()
    np.testing.assert_allclose(y, right, rtol=2e-3, atol=2e-4)
    assert np.all(np.abs(y) <= math.sqrt(n))


@KINDS
@given(
    x=hnp.arrays(
        np.float32,
        hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=4).map(lambda lead: (*lead, 4)),
        elements=st.floats(-1e6, 1e6, width=32, allow_subnormal=False),
    )
)
def test_no_result_exceeds_the_root_of_n(kind, x):
    """The same fault at any input: nothing may be nan, or larger than √n = 2, whatever the shape."""
    y = norm(kind, x, 4).numpy()
    assert y.shape == x.shape
    assert np.all(np.abs(y) <= 2.0 + 1e-5)


@WIDE
@pytest.mark.parametrize("value", [1.0, 1449.3, 40000.0])
@pytest.mark.parametrize("steps", [1, 3, 1000])
@pytest.mark.parametrize("eps", [1e-5, 1e-12])
def test_two_nearly_equal_numbers(dtype, value, steps, eps):
    """Their gradient was −21.4 where −0.0014 is right. Σ LN(x) is constant, so with that loss it is 0."""
    x = np.array([[value, value + steps * np.spacing(dtype(value))]], dtype)
    leaf = tn.tensor(x, requires_grad=True)
    F.layer_norm(leaf, 2, eps=eps).sum().backward()
    assert np.all(np.abs(leaf.grad) < 1e-9)
    agrees("layer", x, (2,), eps=eps, amplified=1.0 / math.sqrt(eps + np.var(x.astype(np.longdouble))))


def test_the_last_rows_of_a_long_range():
    """arange(2000·100·32) in rows of 32: near 6.4e6 a module was 2000 off. Each row is −15.5 … 15.5 around its mean."""
    x = np.arange(2000 * 100 * 32, dtype=np.float32).reshape(-1, 32)[::97]
    x[-1] = np.arange(2000 * 100 * 32 - 32, 2000 * 100 * 32)
    right = (np.arange(32) - 15.5) / math.sqrt((32**2 - 1) / 12 + 1e-5)
    np.testing.assert_allclose(F.layer_norm(x, 32).numpy(), np.broadcast_to(right, x.shape), rtol=0, atol=1e-5)
    agrees("layer", x[-3:], (32,))
