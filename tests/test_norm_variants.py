"""RMSNorm as others write it: part of the features, ε outside of the root, a gain about 1, a bias.

Each convention is written out here once more. Gradients come from the complex step through what is written here.
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tinynorm as tn
from tinynorm import functional as F
from tinynorm import nn, table
from tinynorm.errors import ArgumentError, DTypeError, ShapeError
from tinynorm.graph import topological_order
from tinynorm.testing import gradcheck

FLOATS = pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


# The conventions


def library(x, weight, eps):
    """torch.nn.RMSNorm: the root of the mean square plus ε."""
    return weight * x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)


def authors(x, scale, offset, eps, p):
    """Zhang and Sennrich's own module: the norm of the first d = ⌊p D⌋ features over √d, ε added to that."""
    d = int(x.shape[-1] * p)
    norm = np.sqrt(np.sum(x[..., :d] ** 2, axis=-1, keepdims=True))
    return scale * (x / (norm * d ** (-1 / 2) + eps)) + offset


def gemma(x, weight, eps):
    """Gemma's: the weight is what the gain exceeds 1 by."""
    return x * np.power(np.mean(x**2, axis=-1, keepdims=True) + eps, -0.5) * (1.0 + weight)


def definition(x, weight, bias, *, axes, eps, k, outside, offset):
    """Any of them, over the last axes."""
    rows = x.reshape(*x.shape[: x.ndim - axes], -1)
    square = np.sum(rows[..., :k] * rows[..., :k], axis=-1, keepdims=True) / rows[..., :k].shape[-1]
    rows = rows / (np.sqrt(square) + eps if outside else np.sqrt(square + eps))
    y = rows.reshape(x.shape)
    y = y if weight is None else y * (offset + weight)
    return y if bias is None else y + bias


def complex_step(f, arrays, dy):
    """∂(Σ dy f) by each array that is not None."""
    gradients = []
    for k, array in enumerate(arrays):
        gradients.append(None if array is None else np.empty(array.shape))
        for i in np.ndindex(np.shape(array) if array is not None else (0,)):
            stepped = [*arrays]
            stepped[k] = array.astype(complex)
            stepped[k][i] += 1e-30j
            gradients[k][i] = np.sum(dy * f(*stepped).imag) / 1e-30
    return gradients


def pull_back(x, weight, bias, dy, shape, **options):
    leaves = [None if a is None else tn.tensor(a, requires_grad=True) for a in (x, weight, bias)]
    y = F.rms_norm(leaves[0], shape, leaves[1], bias=leaves[2], **options)
    y.backward(dy)
    return y, [None if leaf is None else leaf.grad for leaf in leaves]


def test_the_librarys_convention():
    x, g = normal(4, 6), normal(6, seed=1)
    layer = nn.RMSNorm(6, eps=1e-3)
    layer.load_state_dict({"weight": g.astype(np.float32)})
    np.testing.assert_allclose(layer(x).numpy(), library(x, g.astype(np.float32), 1e-3), rtol=1e-14)
    np.testing.assert_allclose(F.rms_norm(x, 6, g, 1e-3).numpy(), library(x, g, 1e-3), rtol=1e-14)


@pytest.mark.parametrize("p", [1.0, 0.5, 0.25, 1 / 16])
@pytest.mark.parametrize("bias", [False, True])
def test_the_authors_convention(p, bias):
    """ε = 0.1, which tells the two places apart."""
    x, g, b = normal(4, 16), normal(16, seed=1).astype(np.float32), normal(16, seed=2).astype(np.float32)
    layer = nn.RMSNorm(16, eps=0.1, bias=bias, partial=p, eps_mode="outside")
    assert list(layer.state_dict()) == ["weight", "bias"][: 1 + bias]
    layer.load_state_dict({"weight": g, "bias": b} if bias else {"weight": g})
    right = authors(x, g, b if bias else 0.0, 0.1, p)
    np.testing.assert_allclose(layer(x).numpy(), right, rtol=1e-13)
    assert np.abs(nn.RMSNorm(16, eps=0.1, partial=p)(x).numpy() - authors(x, 1.0, 0.0, 0.1, p)).max() > 1e-2


def test_gemmas_convention():
    x, w = normal(4, 6), normal(6, seed=1).astype(np.float32)
    layer = nn.RMSNorm(6, eps=1e-6, weight_offset=1.0)
    np.testing.assert_array_equal(layer.weight.numpy(), np.zeros(6))
    np.testing.assert_allclose(layer(x).numpy(), library(x, 1.0, 1e-6), rtol=1e-14)  # starts with the gain 1
    layer.load_state_dict({"weight": w})
    np.testing.assert_allclose(layer(x).numpy(), gemma(x, w, 1e-6), rtol=1e-13)


def test_the_gain_of_gemmas_convention_is_not_rounded_to_float16():
    """1 + 2⁻¹² is 1 as a float16, and with the bias −1 nothing would be left of the weight."""
    x, w, b = np.ones(4, np.float16), np.full(4, 2.0**-12, np.float16), np.full(4, -1.0, np.float16)
    y = F.rms_norm(x, 4, w, 0.0, weight_offset=1.0, bias=b).numpy()
    np.testing.assert_array_equal(y, w)


# All together, over shapes


@st.composite
def settings(draw):
    axes = draw(st.integers(1, 3))
    tail = tuple(draw(st.integers(1, 4)) for _ in range(axes))
    lead = tuple(draw(st.lists(st.integers(0, 3), max_size=2)))
    options = {
        "eps": draw(st.sampled_from([1e-5, 0.3])),
        "eps_mode": draw(st.sampled_from(["inside", "outside"])),
        "weight_offset": draw(st.sampled_from([0.0, 1.0, -0.5])),
        "partial": draw(st.sampled_from([1.0, 0.75, 0.3, 1e-9])) if axes == 1 else 1.0,
    }
    return lead, tail, draw(st.booleans()), draw(st.booleans()), options


@given(settings(), st.integers(0, 2**32 - 1))
def test_any_variant(setting, seed):
    lead, tail, weighted, biased, options = setting
    rng = np.random.default_rng(seed)
    x, dy = rng.normal(size=lead + tail) + 0.5, rng.normal(size=lead + tail)
    weight, bias = (rng.normal(size=tail) if there else None for there in (weighted, biased))
    y, gradients = pull_back(x, weight, bias, dy, tail, **options)

    def f(x, weight, bias):
        return definition(
            x,
            weight,
            bias,
            axes=len(tail),
            eps=options["eps"],
            k=max(1, math.ceil(options["partial"] * math.prod(tail))),
            outside=options["eps_mode"] == "outside",
            offset=options["weight_offset"],
        )

    assert y.shape == x.shape
    if x.size == 0:
        assert [None if g is None else g.tolist() for g in gradients[1:]] == [
            None if a is None else np.zeros(tail).tolist() for a in (weight, bias)
        ]
        return
    np.testing.assert_allclose(y.numpy(), f(x, weight, bias), rtol=1e-12, atol=1e-13)
    for got, right in zip(gradients, complex_step(f, [x, weight, bias], dy), strict=True):
        assert (got is None) == (right is None)
        if right is not None:
            assert (got.shape, got.dtype) == (right.shape, np.float64)
            np.testing.assert_allclose(got, right, rtol=0, atol=1e-11 * max(1.0, np.abs(right).max()))


VARIANTS = pytest.mark.parametrize(
    "options",
    [
        {},
        {"eps_mode": "outside"},
        {"partial": 0.4},
        {"weight_offset": 1.0},
        {"partial": 0.6, "eps_mode": "outside", "weight_offset": -2.0},
    ],
    ids=str,
)


@VARIANTS
def test_gradcheck_accepts_every_variant(options):
    x, g, b = normal(3, 5), normal(5, seed=1), normal(5, seed=2)
    assert gradcheck(lambda x, g, b: F.rms_norm(x, 5, g, 0.05, bias=b, **options), [x, g, b])


@VARIANTS
def test_second_derivatives_of_every_variant(options):
    """∂/∂t of x̄(x + t v), once by the recorded backward and once by central differences of the plain one."""
    x, v, u, g = normal(3, 5), normal(3, 5, seed=1), normal(3, 5, seed=2), normal(5, seed=3)

    def slope(x):
        leaf = tn.tensor(x, requires_grad=True)
        y = F.rms_norm(leaf, 5, g, 0.05, **options)
        return leaf, (y * y * u).sum()

    leaf, loss = slope(x)
    (dx,) = tn.grad(loss, leaf, create_graph=True)
    (second,) = tn.grad((dx * v).sum(), leaf)
    h = 1e-5
    ahead, behind = (tn.grad(*reversed(slope(x + t * h * v)))[0].numpy() for t in (1, -1))
    np.testing.assert_allclose(second.numpy(), (ahead - behind) / (2 * h), rtol=0, atol=1e-7)


@FLOATS
@VARIANTS
def test_the_dtype_stays(dtype, options):
    x, g, b, dy = (normal(*shape, seed=i).astype(dtype) for i, shape in enumerate([(3, 5), (5,), (5,), (3, 5)]))
    y, gradients = pull_back(x, g, b, dy, 5, **options)
    assert {y.dtype, *(gradient.dtype for gradient in gradients)} == {np.dtype(dtype)}
    arrays = [a.astype(np.float64) for a in (x, g, b)]
    k = math.ceil(options.get("partial", 1) * 5)
    outside, offset = options.get("eps_mode") == "outside", options.get("weight_offset", 0.0)

    def f(x, weight, bias):
        return definition(x, weight, bias, axes=1, eps=1e-5, k=k, outside=outside, offset=offset)

    tolerance = 40 * float(np.finfo(dtype).eps)
    np.testing.assert_allclose(y.numpy(), f(*arrays), rtol=tolerance, atol=tolerance)
    for got, right in zip(gradients, complex_step(f, arrays, dy.astype(np.float64)), strict=True):
        np.testing.assert_allclose(got, right, rtol=tolerance, atol=tolerance * np.abs(right).max())


def test_options_left_alone_are_the_plain_norm():
    x, g = normal(3, 5), normal(5, seed=1)
    leaf = tn.tensor(x, requires_grad=True)
    plain = F.rms_norm(leaf, 5, g, bias=None, partial=1, weight_offset=0, eps_mode="inside")
    assert [node.op for node in topological_order(plain._source)] == [table.rms_norm]
    np.testing.assert_array_equal(plain.numpy(), F.rms_norm(x, 5, g).numpy())


@pytest.mark.parametrize(
    ("p", "n", "k"),
    [
        (0.5, 5, 3),
        (0.07, 100, 7),
        (0.1, 30, 3),
        (0.0625, 64, 4),
        (0.29, 100, 29),
        (1e-9, 7, 1),
        (0.999, 7, 7),
        (1, 7, 7),
    ],
)
def test_how_many_features_a_share_is(p, n, k):
    """⌈p n⌉ of p as it is written: in binary, 0.07 · 100 is a little more than 7. The others count for nothing."""
    x = normal(n)
    x[k:] *= 1e3
    y = F.rms_norm(x, n, eps=0.0, partial=p).numpy()
    np.testing.assert_allclose(y, x / math.sqrt(math.fsum(x[:k] ** 2) / k), rtol=1e-14)


def test_the_gradient_beyond_the_part_has_one_term():
    """There the statistic does not depend on x: x̄ = r h̄."""
    x, dy = normal(3, 8), normal(3, 8, seed=1)
    _, (dx, _, _) = pull_back(x, None, None, dy, 8, partial=0.25, eps=0.0)
    r = 1 / np.sqrt(np.mean(x[:, :2] ** 2, axis=-1, keepdims=True))
    np.testing.assert_allclose(dx[:, 2:], (r * dy)[:, 2:], rtol=1e-14)
    assert np.abs(dx[:, :2] / (r * dy)[:, :2] - 1).min() > 1e-3


def test_outside_the_slope_at_0_is_the_limit():
    """x / (rms + ε) has the slope 1/ε at a row of zeros."""
    x, dy = np.zeros((2, 3)), normal(2, 3)
    x[1] = 1e-12 * normal(3, seed=1)
    y, (dx, _, _) = pull_back(x, None, None, dy, 3, eps=0.5, eps_mode="outside")
    np.testing.assert_array_equal(y.numpy()[0], np.zeros(3))
    np.testing.assert_allclose(dx, dy / 0.5, rtol=1e-10)


# The layers


def test_layers_show_what_differs():
    assert repr(nn.RMSNorm(4)) == "RMSNorm((4,), eps=1e-05, elementwise_affine=True)"
    layer = nn.RMSNorm(4, bias=True, partial=0.5, weight_offset=1, eps_mode="outside")
    assert repr(layer) == (
        "RMSNorm((4,), eps=1e-05, elementwise_affine=True, bias=True, partial=0.5, weight_offset=1.0, "
        "eps_mode='outside')"
    )


@pytest.mark.parametrize("offset", [0.0, 1.0, 0.25])
@pytest.mark.parametrize("shape", [4, (3, 4)])
def test_layers_start_with_the_gain_1_and_train_what_they_have(offset, shape):
    x, dy = normal(2, 3, 4).astype(np.float32), normal(2, 3, 4, seed=1).astype(np.float32)
    layer = nn.RMSNorm(shape, bias=True, weight_offset=offset)
    np.testing.assert_array_equal(layer.weight.numpy(), np.full(shape, 1 - offset, np.float32))
    np.testing.assert_array_equal(layer.bias.numpy(), np.zeros(shape, np.float32))
    axes = len(layer.normalized_shape)
    wide = x.astype(np.float64)
    options = {"axes": axes, "eps": 1e-5, "k": None, "outside": False, "offset": 0.0}
    np.testing.assert_allclose(layer(x).numpy(), definition(wide, None, None, **options), rtol=1e-6)
    layer(x).backward(dy)
    lead = tuple(range(3 - axes))
    np.testing.assert_allclose(layer.bias.grad, dy.sum(axis=lead), rtol=1e-5, atol=1e-6)
    h = definition(wide, None, None, **options)
    np.testing.assert_allclose(layer.weight.grad, (dy * h).sum(axis=lead), rtol=1e-5, atol=1e-6)


def test_layers_without_parameters():
    layer = nn.RMSNorm(4, elementwise_affine=False, bias=True, weight_offset=1.0, partial=0.5)
    assert list(layer.parameters()) == []
    x = normal(3, 4)
    right = definition(x, None, None, axes=1, eps=1e-5, k=2, outside=False, offset=1.0)
    np.testing.assert_allclose(layer(x).numpy(), right, rtol=1e-13)


# What does not fit


WRONG = [
    ({"partial": 0.0}, ArgumentError, "partial"),
    ({"partial": 1.5}, ArgumentError, "partial"),
    ({"partial": -0.5}, ArgumentError, "partial"),
    ({"partial": math.nan}, ArgumentError, "partial"),
    ({"partial": "half"}, ArgumentError, "partial"),
    ({"weight_offset": math.inf}, ArgumentError, "weight_offset"),
    ({"weight_offset": "1"}, ArgumentError, "weight_offset"),
    ({"eps_mode": "beside"}, ArgumentError, "eps_mode.*'inside', 'outside'"),
    ({"eps_mode": None}, ArgumentError, "eps_mode"),
]


@pytest.mark.parametrize(("options", "error", "text"), WRONG, ids=str)
def test_options_that_make_no_sense(options, error, text):
    with pytest.raises(error, match=f"rms_norm: {text}"):
        F.rms_norm(normal(3, 4), 4, **options)
    with pytest.raises(error, match=f"RMSNorm: {text}"):
        nn.RMSNorm(4, **options)


def test_part_of_several_axes():
    for make in (lambda: F.rms_norm(normal(3, 4), (3, 4), partial=0.5), lambda: nn.RMSNorm((3, 4), partial=0.5)):
        with pytest.raises(ShapeError, match=r"partial=0.5.*\(3, 4\).*reshape"):
            make()
    np.testing.assert_array_equal(
        F.rms_norm(normal(3, 4), (3, 4), partial=1.0).numpy(), F.rms_norm(normal(3, 4), (3, 4)).numpy()
    )


def test_a_bias_that_does_not_fit():
    with pytest.raises(ShapeError, match="rms_norm: bias has shape"):
        F.rms_norm(normal(3, 4), 4, bias=np.ones(3))
    with pytest.raises(DTypeError, match="rms_norm: bias must be floating-point"):
        F.rms_norm(normal(3, 4), 4, bias=np.ones(4, int))
    with pytest.raises(TypeError):
        F.rms_norm(normal(3, 4), 4, None, 1e-5, np.ones(4))  # the new options go by name
