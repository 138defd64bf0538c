"""RMSNorm and LayerNorm: values, gradients, layouts, dtypes, and what they refuse. Their identities are in test_claims.

The definitions are written out here once more, row by row, for real numbers (sums by math.fsum), and for complex ones,
so that gradients come from the complex step.
"""

import math
from typing import Any

import numpy as np
import pytest
from helpers import layer_row, rms_row
from hypothesis import given
from hypothesis import strategies as st

import tinynorm as tn
from tinynorm import nn
from tinynorm.errors import DTypeError, ShapeError, TinynormError
from tinynorm.testing import complex_step

F = tn.functional
EPS = 1e-5
DTYPES = pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
KINDS = pytest.mark.parametrize("kind", ["rms", "layer"])


def apply_norm(kind: str, x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float | None = EPS) -> Any:
    """The function under test, of either kind."""
    if kind == "rms":
        assert bias is None
        return F.rms_norm(x, shape, weight, eps)
    return F.layer_norm(x, shape, weight, bias, eps)


# The definitions


def by_rows(kind: str, x: Any, axes: int = 1, weight: Any = None, bias: Any = None, eps: float = EPS) -> np.ndarray:
    """y in float64, over the last `axes` axes."""
    x = np.asarray(x, dtype=np.float64)
    lead, tail = x.shape[: x.ndim - axes], x.shape[x.ndim - axes :]
    y = np.empty(x.shape)
    for i in np.ndindex(lead):
        row = (rms_row if kind == "rms" else layer_row)([float(v) for v in x[i].ravel()], eps)
        y[i] = np.reshape(row, tail)
    y = y if weight is None else y * np.asarray(weight, np.float64)
    return y if bias is None else y + np.asarray(bias, np.float64)


def by_definition(kind: str, x: Any, axes: int, weight: Any, bias: Any, eps: float) -> Any:
    """The same for complex numbers and long doubles."""
    n = math.prod(x.shape[x.ndim - axes :])
    rows = x.reshape(*x.shape[: x.ndim - axes], n)
    if kind == "layer":
        rows = rows - (rows.sum(axis=-1) / n)[..., None]
    y = (rows / np.sqrt((rows**2).sum(axis=-1) / n + eps)[..., None]).reshape(x.shape)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def definition_gradients(kind: str, arrays: list[Any], dy: Any, axes: int, eps: float) -> list[Any]:
    """∂(Σ dy y) by x, weight and bias, the absent ones None."""

    def along(k: int) -> Any:
        def f(value: Any) -> Any:
            x, weight, bias = [*arrays[:k], value, *arrays[k + 1 :]]
            return by_definition(kind, x, axes, weight, bias, eps)

        return f

    return [None if a is None else complex_step(along(k), a, dy) for k, a in enumerate(arrays)]


def pull_back(kind: str, x: Any, dy: Any, weight: Any = None, bias: Any = None, **options: Any) -> Any:
    """y and the gradients of x, weight and bias, of the code under test."""
    leaves = [None if a is None else tn.Tensor(a, requires_grad=True) for a in (x, weight, bias)]
    shape = options.pop("shape", np.shape(x)[-1])
    y = apply_norm(kind, leaves[0], shape, leaves[1], leaves[2], **options)
    y.backward(dy)
    return y, [None if leaf is None else leaf.grad for leaf in leaves]


def dx_of(kind: str, x: Any, dy: Any, weight: Any = None, eps: float = 0.0) -> np.ndarray:
    return pull_back(kind, x, dy, weight, eps=eps)[1][0]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


# Gradients against the complex step, over shapes


@st.composite
def shapes(draw: Any) -> tuple[tuple[int, ...], int]:
    """A shape of rank 1 to 5, and how many of its last axes are normalized over."""
    rank = draw(st.integers(1, 5))
    axes = draw(st.integers(1, rank))
    lead = draw(st.lists(st.integers(0, 3), min_size=rank - axes, max_size=rank - axes))
    tail = draw(st.lists(st.integers(1, 3), min_size=axes, max_size=axes))
    return (*lead, *tail), axes


@KINDS
@given(
    shaped=shapes(),
    affine=st.sampled_from(["none", "weight", "bias", "both"]),
    eps=st.sampled_from([1e-5, 0.5]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_shape(kind: str, shaped: Any, affine: str, eps: float, seed: int) -> None:
    shape, axes = shaped
    rng = np.random.default_rng(seed)
    tail = shape[len(shape) - axes :]
    x, dy = rng.normal(size=shape) + 1.5, rng.normal(size=shape)
    weight = rng.normal(size=tail) if affine in ("weight", "both") else None
    bias = rng.normal(size=tail) if affine in ("bias", "both") and kind == "layer" else None
    y, gradients = pull_back(kind, x, dy, weight, bias, shape=tail, eps=eps)
    np.testing.assert_allclose(y.numpy(), by_rows(kind, x, axes, weight, bias, eps), rtol=0, atol=1e-12)
    expected = definition_gradients(kind, [x, weight, bias], dy, axes, eps)
    for got, right in zip(gradients, expected, strict=True):
        assert (got is None) == (right is None)
        if right is not None:
            assert got.shape == right.shape
            assert got.dtype == np.float64
            bound = 1e-12 * max(1.0, float(np.abs(right).max(initial=0.0)))
            np.testing.assert_allclose(got, right, rtol=0, atol=bound)


@KINDS
@pytest.mark.parametrize("n", [2, 5])
def test_square_inputs(kind: str, n: int) -> None:
    """Where rows and columns are equally many, a term broadcast along the wrong axis changes no shape."""
    x, dy, g = normal(n, n), normal(n, n, seed=1), normal(n, seed=2)
    b = normal(n, seed=3) if kind == "layer" else None
    y, gradients = pull_back(kind, x, dy, g, b)
    np.testing.assert_allclose(y.numpy(), by_rows(kind, x, 1, g, b), rtol=0, atol=1e-13)
    for got, right in zip(gradients, definition_gradients(kind, [x, g, b], dy, 1, EPS), strict=True):
        if right is not None:
            np.testing.assert_allclose(got, right, rtol=0, atol=1e-11)


@KINDS
def test_over_two_axes(kind: str) -> None:
    """Mean over both; the weight's gradient has the shape of both."""
    x, dy, g = normal(3, 4, 5), normal(3, 4, 5, seed=1), normal(4, 5, seed=2)
    y, (dx, dg, _) = pull_back(kind, x, dy, g, shape=(4, 5))
    np.testing.assert_allclose(y.numpy(), by_rows(kind, x, 2, g), rtol=0, atol=1e-13)
    assert dg.shape == (4, 5)
    np.testing.assert_allclose(dg, np.sum(dy * by_rows(kind, x, 2), axis=0), rtol=0, atol=1e-12)
    np.testing.assert_allclose(dx, definition_gradients(kind, [x, g, None], dy, 2, EPS)[0], rtol=0, atol=1e-12)
    flat = apply_norm(kind, x.reshape(3, 20), 20, g.reshape(20)).numpy()
    np.testing.assert_allclose(y.numpy().reshape(3, 20), flat, rtol=0, atol=1e-14)


@KINDS
@pytest.mark.parametrize("form", [4, (4,), [4], np.int64(4), np.array(4)])
def test_normalized_shape_in_any_form(kind: str, form: Any) -> None:
    x = normal(3, 4)
    np.testing.assert_array_equal(apply_norm(kind, x, form).numpy(), apply_norm(kind, x, (4,)).numpy())


@KINDS
@DTYPES
def test_an_empty_batch(kind: str, dtype: Any) -> None:
    for shape, tail in (((0, 4), (4,)), ((3, 0, 4), (4,)), ((0, 2, 3), (2, 3))):
        x, dy, g = np.zeros(shape, dtype), np.zeros(shape, dtype), np.ones(tail, dtype)
        b = np.ones(tail, dtype) if kind == "layer" else None
        y, (dx, dg, db) = pull_back(kind, x, dy, g, b, shape=tail)
        assert (y.shape, y.dtype) == (shape, dtype)
        assert (dx.shape, dx.dtype) == (shape, dtype)
        np.testing.assert_array_equal(dg, np.zeros(tail))
        if b is not None:
            np.testing.assert_array_equal(db, np.zeros(tail))


@DTYPES
def test_rows_of_one_element(dtype: Any) -> None:
    """RMSNorm leaves the sign, LayerNorm nothing but its bias."""
    x = np.array([[-3.0], [0.0], [4.0]], dtype=dtype)
    g, b, dy = (np.array(v, dtype=dtype) for v in ([2.0], [0.5], [[1.0], [2.0], [3.0]]))
    y, (dx, dg, _) = pull_back("rms", x, dy, g, eps=1.0)
    tolerance = 4 * float(np.finfo(dtype).eps)
    root10, root17 = math.sqrt(10), math.sqrt(17)
    np.testing.assert_allclose(y.numpy(), [[-6 / root10], [0], [8 / root17]], rtol=tolerance)
    # d(x / √(x² + 1)) / dx = (x² + 1)^(−3/2)
    np.testing.assert_allclose(dx, [[2 / 10**1.5], [4], [6 / 17**1.5]], rtol=10 * tolerance)
    np.testing.assert_allclose(dg, [-3 / root10 + 12 / root17], rtol=tolerance)
    y, (dx, dg, db) = pull_back("layer", x, dy, g, b, eps=1e-5)
    np.testing.assert_array_equal(y.numpy(), [[0.5]] * 3)
    np.testing.assert_array_equal(dx, [[0.0]] * 3)
    np.testing.assert_array_equal(dg, [0.0])
    np.testing.assert_array_equal(db, [6.0])


# eps


def test_epsilon_stands_inside_the_root() -> None:
    """1e-3 / √(1.5e-6 + 1e-5) = 1/√11.5 = 0.29488, where 1e-3 / (√1.5e-6 + 1e-5) would be 0.80988."""
    x = np.array([1e-3, -1e-3, 2e-3, 0.0])
    right = np.array([1, -1, 2, 0]) / math.sqrt(11.5)
    np.testing.assert_allclose(F.rms_norm(x, 4, eps=1e-5).numpy(), right, rtol=1e-14)
    # the variance is 1.5e-6 − (0.5e-3)² = 1.25e-6
    right = np.array([0.5, -1.5, 1.5, -0.5]) / math.sqrt(11.25)
    np.testing.assert_allclose(F.layer_norm(x, 4, eps=1e-5).numpy(), right, rtol=1e-14)


@KINDS
@pytest.mark.parametrize(("eps", "right"), [(1e-6, 0.7071068), (1e-5, 0.3015113), (0.0, 1.0)])
def test_epsilon_is_the_one_that_is_given(kind: str, eps: float, right: float) -> None:
    x = np.array([[1e-3, -1e-3, -1e-3, 1e-3]])
    expected = right * np.array([[1, -1, -1, 1]])
    np.testing.assert_allclose(apply_norm(kind, x, 4, eps=eps).numpy(), expected, rtol=0, atol=1e-7)
    layer = (nn.RMSNorm if kind == "rms" else nn.LayerNorm)(4, eps=eps)
    assert layer.eps == eps
    np.testing.assert_allclose(layer(x).numpy(), expected, rtol=0, atol=1e-7)


MACHINE = pytest.mark.parametrize(
    ("dtype", "eps"), [(np.float16, 2.0**-10), (np.float32, 2.0**-23), (np.float64, 2.0**-52)]
)


@KINDS
@MACHINE
def test_epsilon_none_is_the_machine_epsilon_of_the_dtype(kind: str, dtype: Any, eps: float) -> None:
    """A row of ±√(2ε), rounded, has the value ±√(2/3)."""
    v = dtype(math.sqrt(2 * eps))
    y = apply_norm(kind, np.array([v, -v, v, -v]), 4, eps=None)
    assert y.dtype == dtype
    right = float(v) / math.sqrt(float(v) ** 2 + eps)
    assert abs(right - math.sqrt(2 / 3)) < 1e-3
    np.testing.assert_allclose(y.numpy(), right * np.array([1, -1, 1, -1]), rtol=2 * eps)


@KINDS
@MACHINE
def test_layers_with_epsilon_none(kind: str, dtype: Any, eps: float) -> None:
    """With parameters their dtype, float32, decides; without, the input's."""
    v = dtype(math.sqrt(2 * eps))
    x = np.array([v, -v, v, -v])
    make = nn.RMSNorm if kind == "rms" else nn.LayerNorm
    for layer, used in ((make(4, eps=None), 2.0**-23), (make(4, eps=None, elementwise_affine=False), eps)):
        right = float(v) / math.sqrt(float(v) ** 2 + used)
        np.testing.assert_allclose(layer(x).numpy(), right * np.array([1, -1, 1, -1]), rtol=max(2 * eps, 3e-7))


def test_repr_shows_the_epsilon_that_is_used() -> None:
    assert repr(nn.RMSNorm(4)) == "RMSNorm((4,), eps=1e-05, elementwise_affine=True)"
    assert repr(nn.RMSNorm(4, eps=None)) == "RMSNorm((4,), eps=1.1920928955078125e-07, elementwise_affine=True)"
    assert repr(nn.LayerNorm((2, 3), eps=None, bias=False)) == (
        "LayerNorm((2, 3), eps=1.1920928955078125e-07, elementwise_affine=True, bias=False)"
    )
    assert repr(nn.RMSNorm(4, eps=np.float32(0.5))) == "RMSNorm((4,), eps=0.5, elementwise_affine=True)"
    assert repr(nn.LayerNorm(4, eps=0)) == "LayerNorm((4,), eps=0.0, elementwise_affine=True, bias=True)"
    assert "input's dtype" in repr(nn.RMSNorm(4, eps=None, elementwise_affine=False))


@KINDS
@DTYPES
@pytest.mark.parametrize("eps", [np.float64(1e-5), np.array(1e-5), np.float32(1e-5), 1, None])
def test_epsilon_widens_no_dtype(kind: str, dtype: Any, eps: Any) -> None:
    x, g = np.ones((2, 3), dtype), np.ones(3, dtype)
    b = np.ones(3, dtype) if kind == "layer" else None
    y, gradients = pull_back(kind, x, np.ones((2, 3), dtype), g, b, eps=eps)
    assert y.dtype == dtype
    assert all(gradient is None or gradient.dtype == dtype for gradient in gradients)
    layer = (nn.RMSNorm if kind == "rms" else nn.LayerNorm)(3, eps=eps, elementwise_affine=False)
    assert layer(x).dtype == dtype


@KINDS
@pytest.mark.parametrize(
    "eps", [-1e-5, -1, math.nan, math.inf, -math.inf, "small", [1e-5], np.array([1e-5]), 1j, b"1", np.float64(-1)]
)
def test_epsilon_is_a_finite_number_of_zero_or_more(kind: str, eps: Any) -> None:
    with pytest.raises(TinynormError, match="eps"):
        apply_norm(kind, normal(3, 4), 4, eps=eps)
    with pytest.raises(TinynormError, match="eps"):
        (nn.RMSNorm if kind == "rms" else nn.LayerNorm)(4, eps=eps)


@KINDS
@pytest.mark.parametrize(("dtype", "eps"), [(np.float16, 1e-12), (np.float32, 1e-30), (np.float64, 1e-300)])
def test_padding_rows_stay_zero(kind: str, dtype: Any, eps: float) -> None:
    x = np.zeros((3, 8), dtype)
    x[1] = np.arange(8)
    dy = normal(3, 8).astype(dtype)
    y = apply_norm(kind, x, 8, eps=eps).numpy()
    np.testing.assert_array_equal(y[[0, 2]], np.zeros((2, 8)))
    assert y.dtype == dtype
    assert np.isfinite(y).all()
    if dtype != np.float16:  # the gradient there is dy / √ε, beyond float16
        with np.errstate(all="raise"):
            gradient = dx_of(kind, x, dy, eps=eps)
        right = dy[0].astype(float) - (dy[0].astype(float).mean() if kind == "layer" else 0.0)
        np.testing.assert_allclose(gradient[0], right / math.sqrt(eps), rtol=1e-5)


# Layouts, and memory that must not be written to


def fortran(a: np.ndarray) -> np.ndarray:
    return np.asfortranarray(a)


def strided(a: np.ndarray) -> np.ndarray:
    wide = np.full([2 * n for n in a.shape], np.nan, a.dtype)
    view = wide[tuple(slice(None, None, 2) for _ in a.shape)]
    view[...] = a
    return view


def reversed_(a: np.ndarray) -> np.ndarray:
    flip = tuple(slice(None, None, -1) for _ in a.shape)
    return a[flip].copy()[flip]


def transposed(a: np.ndarray) -> np.ndarray:
    return a.T.copy().T


def byte_offset(a: np.ndarray) -> np.ndarray:
    """Not aligned to the size of its elements."""
    buffer = np.zeros(a.nbytes + 1, np.uint8)
    view = buffer[1:].view(a.dtype).reshape(a.shape)
    view[...] = a
    return view


LAYOUTS = pytest.mark.parametrize("layout", [fortran, strided, reversed_, transposed, byte_offset])


@KINDS
@LAYOUTS
@DTYPES
def test_any_memory_order(kind: str, layout: Any, dtype: Any) -> None:
    x, dy = normal(4, 4, 4).astype(dtype), normal(4, 4, 4, seed=1).astype(dtype)
    g, b = normal(4, 4, seed=2).astype(dtype), normal(4, 4, seed=3).astype(dtype) if kind == "layer" else None
    plain = [x, dy, g, b]
    given = [None if a is None else layout(a) for a in plain]
    kept = [None if a is None else a.tobytes() for a in given]
    for a in given:
        if a is not None:
            a.flags.writeable = False
    y, gradients = pull_back(kind, given[0], given[1], given[2], given[3], shape=(4, 4))
    assert [None if a is None else a.tobytes() for a in given] == kept
    wide = [None if a is None else a.astype(np.float64) for a in plain]
    tolerance = 60 * float(np.finfo(dtype).eps)
    np.testing.assert_allclose(y.numpy(), by_rows(kind, wide[0], 2, wide[2], wide[3]), rtol=0, atol=tolerance)
    expected = definition_gradients(kind, [wide[0], wide[2], wide[3]], wide[1], 2, EPS)
    for got, right in zip(gradients, expected, strict=True):
        if right is not None:
            assert got.dtype == dtype
            np.testing.assert_allclose(got, right, rtol=0, atol=tolerance)


@KINDS
@pytest.mark.parametrize("which", ["x rows", "x columns", "dy", "dy of sum", "weight", "all"])
def test_broadcast_arrays(kind: str, which: str) -> None:
    """Stride 0 and read-only, as np.broadcast_to makes them and as sum() sends them backward."""
    x = np.broadcast_to(normal(4), (4, 4)) if which in ("x rows", "all") else normal(4, 4)
    x = np.broadcast_to(normal(4, 1), (4, 4)) if which == "x columns" else x
    dy = np.broadcast_to(normal(4, 1, seed=1), (4, 4)) if which in ("dy", "all") else normal(4, 4, seed=1)
    g = np.broadcast_to(1.7, (4,)) if which in ("weight", "all") else normal(4, seed=2)
    kept = [a.tobytes() for a in (x, dy, g)]
    if which == "dy of sum":
        leaf, gain = tn.Tensor(x, requires_grad=True), tn.Tensor(g, requires_grad=True)
        (apply_norm(kind, leaf, 4, gain).sum() * 3.0).backward()
        dx, dg, dy = leaf.grad, gain.grad, np.full((4, 4), 3.0)
    else:
        _, (dx, dg, _) = pull_back(kind, x, dy, g)
        assert [a.tobytes() for a in (x, dy, g)] == kept
    expected = definition_gradients(kind, [x, g, None], dy, 1, EPS)
    scale = max(1.0, float(np.abs(expected[0]).max()))
    np.testing.assert_allclose(dx, expected[0], rtol=0, atol=1e-12 * scale)
    np.testing.assert_allclose(dg, expected[1], rtol=0, atol=1e-12)


@KINDS
@DTYPES
def test_gradients_are_arrays_of_their_own(kind: str, dtype: Any) -> None:
    """LayerNorm's bias gradient of one row is the cotangent itself: it must not share its memory."""
    x, dy = normal(4).astype(dtype), normal(4, seed=1).astype(dtype)
    g, b = np.ones(4, dtype), np.zeros(4, dtype) if kind == "layer" else None
    kept = dy.copy()
    y, gradients = pull_back(kind, x, dy, g, b)
    for i, gradient in enumerate(gradients):
        if gradient is not None:
            for other in [x, dy, g, b, y.numpy(), *gradients[i + 1 :]]:
                assert other is None or not np.shares_memory(gradient, other)
            gradient += 1
    np.testing.assert_array_equal(dy, kept)


@KINDS
def test_the_forward_does_not_work_in_place(kind: str) -> None:
    """The residual branch still needs its input."""
    x = tn.tensor(normal(3, 4).astype(np.float32), requires_grad=True)
    kept = x.numpy().copy()
    y = apply_norm(kind, x, 4)
    np.testing.assert_array_equal(x.numpy(), kept)
    assert not np.shares_memory(y.numpy(), x.numpy())


# float16, and numbers near the edges


def test_float16_rows_whose_sum_of_squares_overflows() -> None:
    ones = np.ones((1, 2**20), np.float16)
    np.testing.assert_array_equal(F.rms_norm(ones, 2**20).numpy(), ones)
    alternating = ones.copy()
    alternating[:, ::2] = -1
    np.testing.assert_array_equal(F.layer_norm(alternating, 2**20).numpy(), alternating)


def test_float16_rows_whose_sum_overflows() -> None:
    x = np.full((2, 1000), 60000, np.float16)
    x[:, ::2] = 59968  # one float16 below
    y = F.layer_norm(x, 1000).numpy()
    np.testing.assert_array_equal(y, np.where(x == 60000, 1, -1))


@KINDS
def test_float16_rows_whose_squares_underflow(kind: str) -> None:
    x = np.array([1e-4, -1e-4, 1e-4, -1e-4], np.float16)
    v = float(x[0])
    right = v / math.sqrt(v * v + 1e-10)
    assert abs(right - 0.995) < 1e-3
    np.testing.assert_allclose(apply_norm(kind, x, 4, eps=1e-10).numpy(), right * np.sign(x), rtol=1e-3)


@KINDS
def test_float16_is_rounded_once(kind: str) -> None:
    """Value and gradients are those of float64 to half a unit of float16, or a little more."""
    x, dy = normal(8, 32).astype(np.float16), normal(8, 32, seed=1).astype(np.float16)
    g, b = normal(32, seed=2).astype(np.float16), normal(32, seed=3).astype(np.float16) if kind == "layer" else None
    y, gradients = pull_back(kind, x, dy, g, b)
    wide = [None if a is None else a.astype(np.float64) for a in (x, dy, g, b)]
    unit = 2.0**-11 * 1.01
    np.testing.assert_allclose(y.numpy(), by_rows(kind, wide[0], 1, wide[2], wide[3]), rtol=unit, atol=1e-6)
    expected = definition_gradients(kind, [wide[0], wide[2], wide[3]], wide[1], 1, EPS)
    for got, right in zip(gradients, expected, strict=True):
        if right is not None:
            np.testing.assert_allclose(got, right, rtol=unit, atol=3e-6)


@KINDS
def test_float16_input_of_float32_parameters_gives_float32(kind: str) -> None:
    x = normal(3, 4).astype(np.float16)
    layer = (nn.RMSNorm if kind == "rms" else nn.LayerNorm)(4)
    t = tn.tensor(x, requires_grad=True)
    y = layer(t)
    assert y.dtype == np.float32
    np.testing.assert_allclose(y.numpy(), by_rows(kind, x), rtol=0, atol=1e-6)
    y.backward(normal(3, 4, seed=1).astype(np.float32))
    assert t.grad.dtype == np.float16
    assert layer.weight.grad.dtype == np.float32


@KINDS
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_float32_is_accurate(kind: str, offset: float) -> None:
    x, dy = (normal(50, 64) + offset).astype(np.float32), normal(50, 64, seed=1).astype(np.float32)
    y, (dx, _, _) = pull_back(kind, x, dy)
    wide = x.astype(np.longdouble)
    np.testing.assert_allclose(y.numpy(), by_rows(kind, x), rtol=0, atol=2e-6)
    c = wide if kind == "rms" else wide - wide.mean(axis=-1, keepdims=True)
    r = 1 / np.sqrt(np.mean(c**2, axis=-1) + np.longdouble(EPS))
    for i in range(50):  # the Jacobian of each row, written out
        jacobian = r[i] * np.eye(64) - r[i] ** 3 * np.outer(c[i], c[i]) / 64
        if kind == "layer":
            jacobian = jacobian @ (np.eye(64) - np.ones((64, 64)) / 64)
        np.testing.assert_allclose(dx[i], (dy[i].astype(np.longdouble) @ jacobian).astype(float), rtol=0, atol=2e-6)


# The layers


@KINDS
@pytest.mark.parametrize("shape", [4, (3, 4)])
def test_layers_start_as_the_plain_norm(kind: str, shape: Any) -> None:
    layer = (nn.RMSNorm if kind == "rms" else nn.LayerNorm)(shape)
    tail = (4,) if shape == 4 else shape
    assert layer.normalized_shape == tail
    np.testing.assert_array_equal(layer.weight.numpy(), np.ones(tail, np.float32))
    assert layer.weight.dtype == np.float32
    names = ["weight"]
    if kind == "layer":
        np.testing.assert_array_equal(layer.bias.numpy(), np.zeros(tail, np.float32))
        names.append("bias")
    assert [name for name, _ in layer.named_parameters()] == names
    x = normal(2, 3, 4)
    np.testing.assert_allclose(layer(x).numpy(), by_rows(kind, x, len(tail)), rtol=0, atol=1e-14)


@KINDS
def test_layers_use_and_train_their_parameters(kind: str) -> None:
    layer = (nn.RMSNorm if kind == "rms" else nn.LayerNorm)(4)
    x, dy, g, b = (a.astype(np.float32) for a in (normal(4, 4), normal(4, 4, seed=1), normal(4, seed=2), normal(4)))
    state = {"weight": g, "bias": b} if kind == "layer" else {"weight": g}
    layer.load_state_dict(state)
    t = tn.tensor(x, requires_grad=True)
    y = layer(t)
    np.testing.assert_allclose(y.numpy(), by_rows(kind, x, 1, g, state.get("bias")), rtol=0, atol=2e-6)
    y.backward(dy)
    wide = [None if a is None else a.astype(np.float64) for a in (x, g, state.get("bias"))]
    expected = definition_gradients(kind, wide, dy.astype(np.float64), 1, EPS)
    np.testing.assert_allclose(t.grad, expected[0], rtol=0, atol=1e-5)
    np.testing.assert_allclose(layer.weight.grad, expected[1], rtol=0, atol=5e-6)
    if kind == "layer":
        np.testing.assert_allclose(layer.bias.grad, expected[2], rtol=0, atol=2e-6)


def test_layers_without_parameters() -> None:
    assert nn.RMSNorm(4, elementwise_affine=False).weight is None
    plain = nn.LayerNorm(4, elementwise_affine=False)
    assert plain.weight is None
    assert plain.bias is None
    unbiased = nn.LayerNorm(4, bias=False)
    assert unbiased.bias is None
    assert [name for name, _ in unbiased.named_parameters()] == ["weight"]
    assert list(plain.parameters()) == []
    x = normal(3, 4)
    for layer in (plain, unbiased):
        np.testing.assert_allclose(layer(x).numpy(), by_rows("layer", x), rtol=0, atol=1e-14)


@KINDS
def test_under_no_grad_nothing_is_recorded(kind: str) -> None:
    layer = (nn.RMSNorm if kind == "rms" else nn.LayerNorm)(4)
    with tn.no_grad():
        assert not layer(normal(3, 4)).requires_grad
    assert layer(normal(3, 4)).requires_grad


# What does not fit


@KINDS
@pytest.mark.parametrize(
    ("shape", "normalized_shape"),
    [((3, 4), 3), ((3, 4), (4, 3)), ((4,), (3, 4)), ((3, 4), (2, 4)), ((), 1), ((3, 4), 1), ((3, 1), 4), ((3, 0), 1)],
)
def test_an_input_that_does_not_end_in_the_normalized_shape(kind: str, shape: Any, normalized_shape: Any) -> None:
    with pytest.raises(ShapeError, match="normalized_shape"):
        apply_norm(kind, np.ones(shape), normalized_shape)
    with pytest.raises(ShapeError, match="normalized_shape"):
        (nn.RMSNorm if kind == "rms" else nn.LayerNorm)(normalized_shape)(np.ones(shape))


@KINDS
@pytest.mark.parametrize("normalized_shape", [0, (), (0,), (4, 0), -4, (3, -1)])
def test_a_normalized_shape_of_nothing(kind: str, normalized_shape: Any) -> None:
    with pytest.raises(ShapeError, match="normalized_shape"):
        apply_norm(kind, np.ones((3, 4)), normalized_shape)
    with pytest.raises(ShapeError, match="normalized_shape"):
        (nn.RMSNorm if kind == "rms" else nn.LayerNorm)(normalized_shape)


@KINDS
@pytest.mark.parametrize("normalized_shape", [4.0, "4", None, (4.0,), [[4]]])
def test_a_normalized_shape_of_other_things(kind: str, normalized_shape: Any) -> None:
    with pytest.raises(DTypeError):
        apply_norm(kind, np.ones((3, 4)), normalized_shape)
    with pytest.raises(DTypeError):
        (nn.RMSNorm if kind == "rms" else nn.LayerNorm)(normalized_shape)


@KINDS
@pytest.mark.parametrize("shape", [(), (1,), (3,), (1, 4), (3, 4), (4, 1)])
def test_a_weight_that_would_broadcast(kind: str, shape: Any) -> None:
    with pytest.raises(ShapeError, match="weight"):
        apply_norm(kind, np.ones((3, 4)), 4, np.ones(shape))
    if kind == "layer":
        with pytest.raises(ShapeError, match="bias"):
            F.layer_norm(np.ones((3, 4)), 4, np.ones(4), np.ones(shape))
        with pytest.raises(ShapeError, match="bias"):
            F.layer_norm(np.ones((3, 4)), 4, None, np.ones(shape))


@KINDS
@pytest.mark.parametrize("dtype", [np.int64, bool, complex, object, "U1"])
def test_numbers_that_are_not_floats(kind: str, dtype: Any) -> None:
    ones, floats = np.ones((3, 4)).astype(dtype), np.ones((3, 4))
    with pytest.raises(DTypeError):
        apply_norm(kind, ones, 4)
    with pytest.raises(DTypeError):
        apply_norm(kind, floats, 4, ones[0])
    if kind == "layer":
        with pytest.raises(DTypeError):
            F.layer_norm(floats, 4, None, ones[0])
