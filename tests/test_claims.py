"""What has been published about normalization, each claim as a property of random inputs, in float64.

Tolerances: a result is a few dozen roundings of 1.1e-16 away from the right one, in units of the largest number on the
way. 1e-13 leaves room for rows whose size or spread happens to be small; where a claim divides by that, so does its
tolerance.
"""

import math
from typing import Any

import numpy as np
import pytest
from helpers import layer_row, rms_row
from hypothesis import given
from hypothesis import strategies as st

import tinynorm as tn
from tinynorm import functional as F
from tinynorm import nn

EPS = 1e-5
KINDS = pytest.mark.parametrize("kind", ["rms", "layer"])
SEEDS = st.integers(0, 2**32 - 1)
SHAPES = st.tuples(st.lists(st.integers(1, 4), max_size=2), st.integers(4, 12)).map(lambda s: (*s[0], s[1]))
TIGHT = 1e-13


def drawn(seed: int, *shapes: Any) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape) for shape in shapes]


def norm(kind: str, x: Any, weight: Any = None, eps: float = 0.0) -> tn.Tensor:
    function = F.rms_norm if kind == "rms" else F.layer_norm
    return function(x, x.shape[-1], weight, eps=eps)


def value(kind: str, x: Any, weight: Any = None, eps: float = 0.0) -> np.ndarray:
    return norm(kind, x, weight, eps).numpy()


def dx_of(kind: str, x: Any, dy: Any, weight: Any = None, eps: float = 0.0) -> np.ndarray:
    leaf = tn.tensor(x, requires_grad=True)
    norm(kind, leaf, weight, eps).backward(dy)
    gradient: np.ndarray = leaf.grad
    return gradient


def what_is_sized(kind: str, x: np.ndarray) -> np.ndarray:
    """x, or its deviations from the mean."""
    return x if kind == "rms" else x - x.mean(axis=-1, keepdims=True)


def size(kind: str, x: np.ndarray) -> np.ndarray:
    """The rms, or the standard deviation, of each row."""
    return np.sqrt(np.mean(what_is_sized(kind, x) ** 2, axis=-1, keepdims=True))


def close(got: Any, right: Any, tolerance: float = TIGHT) -> None:
    """Equal, but for a part `tolerance` of the largest number."""
    np.testing.assert_allclose(got, right, rtol=0, atol=tolerance * max(1e-300, np.abs(right).max()))


# Invariance


@KINDS
@given(SHAPES, SEEDS, st.sampled_from([1e-3, 0.5, 3.0, 7.0, 1e5]))
def test_rescaling(kind: str, shape: Any, seed: int, k: float) -> None:
    """N(x (kW)ᵀ) = N(x Wᵀ), N(kx) = N(x), N(−kx) = −N(x); also if each row has a factor of its own."""
    x, w, rows = drawn(seed, shape, (6, shape[-1]), (*shape[:-1], 1))
    mixed = x @ w.T
    close(value(kind, x @ (k * w).T), value(kind, mixed), TIGHT / size(kind, mixed).min())
    close(value(kind, k * x), value(kind, x), TIGHT / size(kind, x).min())
    np.testing.assert_array_equal(value(kind, -k * x), -value(kind, k * x))
    np.testing.assert_array_equal(value(kind, 2.0**300 * x), value(kind, x))
    close(value(kind, np.exp(rows) * x), value(kind, x), TIGHT / size(kind, x).min())


@given(SHAPES, SEEDS)
def test_what_rms_norm_is_not_invariant_to(shape: Any, seed: int) -> None:
    """A shift of the input, and a factor at one row of W, which scales one feature only."""
    x, w = drawn(seed, shape, (shape[-1], shape[-1]))
    assert np.abs(value("rms", x + 5) - value("rms", x)).max() > 0.05
    stretched = w * np.where(np.arange(shape[-1]) == 1, 3.0, 1.0)[:, None]
    assert np.abs(value("rms", x @ stretched.T) - value("rms", x @ w.T)).max() > 0.01


@given(SHAPES, SEEDS, st.sampled_from([5.0, -1e3]), st.sampled_from([0.0, EPS]))
def test_recentering_of_layer_norm(shape: Any, seed: int, shift: float, eps: float) -> None:
    """LN(x + a) = LN(x), up to the rounding of x + a itself."""
    x, a = drawn(seed, shape, (*shape[:-1], 1))
    rounding = 1e-15 * abs(shift) * 4 / size("layer", x).min()
    for by in (shift, shift * a):
        close(value("layer", x + by, eps=eps), value("layer", x, eps=eps), TIGHT + rounding * np.abs(by).max())


@KINDS
@given(SHAPES, SEEDS, st.sampled_from([0.5, 2.0, 10.0, 1000.0]))
def test_epsilon_breaks_rescaling_by_a_known_amount(kind: str, shape: Any, seed: int, k: float) -> None:
    """N(kx) / N(x) − 1 = ε / (2 s²) · (1 − 1/k²) + O(ε²), s² being the mean square or the variance."""
    (x,) = drawn(seed, shape)
    x = x + 2 * np.sign(x)  # nothing near 0 to divide by
    s2 = size(kind, x) ** 2
    c = what_is_sized(kind, x)
    found = np.sum(value(kind, k * x, eps=EPS) * c, -1, keepdims=True) / np.sum(
        value(kind, x, eps=EPS) * c, -1, keepdims=True
    )
    predicted = EPS / (2 * s2) * (1 - 1 / k**2)
    np.testing.assert_array_less(np.abs(found - 1 - predicted), 4 * (EPS / s2) ** 2 * max(1, 1 / k**4) + 1e-14)
    assert (np.abs(predicted) > 10 * np.abs(found - 1 - predicted)).all()


@given(SHAPES, SEEDS)
def test_dynamic_tanh_is_not_scale_invariant(shape: Any, seed: int) -> None:
    """tanh(αx), which has been proposed in the place of a norm."""
    (x,) = drawn(seed, shape)
    assert np.abs(tn.tanh(0.5 * (7 * x)).numpy() - tn.tanh(0.5 * x).numpy()).max() > 0.05


# Gradients


@KINDS
@given(SHAPES, SEEDS, st.booleans(), st.sampled_from([0.0, EPS, 0.3]))
def test_the_gradient_is_orthogonal_to_the_input_but_for_epsilon(
    kind: str, shape: Any, seed: int, weighted: bool, eps: float
) -> None:
    """c · x̄ = (ε / r³) Σ ȳ g c for c = x or x − μ, and r = √(mean(c²) + ε)."""
    x, dy, g = drawn(seed, shape, shape, shape[-1])
    dx, c = dx_of(kind, x, dy, g if weighted else None, eps), what_is_sized(kind, x)
    r = np.sqrt(np.mean(c**2, axis=-1) + eps)
    predicted = eps / r**3 * np.sum(dy * (g if weighted else 1.0) * c, axis=-1)
    reach = np.linalg.norm(c, axis=-1) * np.linalg.norm(dy * (g if weighted else 1.0), axis=-1) / r
    np.testing.assert_array_less(np.abs(np.sum(c * dx, axis=-1) - predicted), TIGHT * reach)
    if eps == 0.3:
        assert np.abs(predicted).max() > 1e-6


@given(SHAPES, SEEDS, st.booleans(), st.sampled_from([0.0, EPS, 0.3]))
def test_layer_norm_removes_a_second_direction(shape: Any, seed: int, weighted: bool, eps: float) -> None:
    """Σ x̄ = 0, with any ε and gain. RMSNorm's does not vanish."""
    x, dy, g = drawn(seed, shape, shape, shape[-1])
    g = g if weighted else None
    dx = dx_of("layer", x, dy, g, eps)
    reach = np.abs(dx).sum(axis=-1) + np.abs(dy).sum(axis=-1) / size("layer", x)[..., 0]
    np.testing.assert_array_less(np.abs(dx.sum(axis=-1)), TIGHT * reach)
    assert np.abs(dx_of("rms", x, dy, g, eps).sum(axis=-1)).max() > 1e-4


def through_linear(kind: str, x: Any, w: Any, g: Any, dy: Any) -> tuple[np.ndarray, np.ndarray]:
    """The gradients of W and of the gain, for y = N(x Wᵀ) ⊙ g."""
    weight, gain = tn.tensor(w, requires_grad=True), tn.tensor(g, requires_grad=True)
    norm(kind, F.linear(x, weight), gain).backward(dy)
    return weight.grad, gain.grad


@KINDS
@given(SHAPES, SEEDS, st.sampled_from([0.25, 3.0, 50.0]), st.sampled_from([1.0, 1e-2, 50.0]))
def test_implicit_learning_rate_adaptation(kind: str, shape: Any, seed: int, at_w: float, at_x: float) -> None:
    """dW at kW is dW / k; neither it nor the gain's gradient depends on the scale of x, nor the gain's on that of W."""
    x, w, g, dy = drawn(seed, shape, (5, shape[-1]), 5, (*shape[:-1], 5))
    loose = TIGHT / size(kind, x @ w.T).min() ** 2
    dw, dg = through_linear(kind, x, w, g, dy)
    dw_there, dg_there = through_linear(kind, at_x * x, at_w * w, g, dy)
    close(dw_there * at_w, dw, loose)
    close(dg_there, dg, loose)
    close(dg, np.sum((dy * value(kind, x @ w.T)).reshape(-1, 5), axis=0))
    assert np.abs(dw).max() > 1e-4


@KINDS
@given(SHAPES, SEEDS, st.sampled_from([0.01, 0.7]))
def test_weights_only_grow(kind: str, shape: Any, seed: int, lr: float) -> None:
    """⟨W, dW⟩ = 0, so by Pythagoras a step of SGD gives ‖W₁‖² = ‖W₀‖² + lr² ‖dW‖²."""
    x, w, dy = drawn(seed, shape, (5, shape[-1]), (*shape[:-1], 5))
    layer = nn.Linear(shape[-1], 5, bias=False, rng=0)
    layer.to("cpu")
    layer.weight = nn.Parameter(w)
    norm(kind, layer(x)).backward(dy)
    dw = layer.weight.grad
    lengths = np.linalg.norm(w) * np.linalg.norm(dw)
    loose = TIGHT / size(kind, x @ w.T).min()
    assert abs(np.sum(w * dw)) < loose * lengths
    tn.optim.SGD(layer, lr=lr).step()
    grown = np.sum(layer.weight.numpy() ** 2)
    predicted = np.sum(w**2) + lr**2 * np.sum(dw**2)
    assert abs(grown - predicted) < 4 * loose * (predicted + lr * lengths)
    assert grown > np.sum(w**2)


@KINDS
@given(st.integers(3, 12), SEEDS)
def test_jacobian_spectrum(kind: str, d: int, seed: int) -> None:
    """RMSNorm: D − 1 singular values 1/rms and one 0. LayerNorm: D − 2 of 1/σ and two 0. The Jacobian is symmetric."""
    (x,) = drawn(seed, d)
    jacobian = np.stack([dx_of(kind, x, row) for row in np.eye(d)])
    close(jacobian, jacobian.T, 1e-12)
    zeros, scale = (1, 2)[kind == "layer"], 1 / float(size(kind, x)[0])
    close(np.linalg.svd(jacobian, compute_uv=False), [scale] * (d - zeros) + [0.0] * zeros, 1e-12)


# Geometry, and how the two norms relate


@given(SHAPES, SEEDS)
def test_layer_norms_geometry(shape: Any, seed: int) -> None:
    """LN(x) = √D p / ‖p‖, p = x − (x·1) 1 / D: a projection, then onto the sphere of radius √D (Gupta et al. 2024)."""
    (x,) = drawn(seed, shape)
    d = shape[-1]
    ones = np.ones(d) / math.sqrt(d)
    p = x - (x @ ones)[..., None] * ones
    y = value("layer", x)
    close(y, math.sqrt(d) * p / np.linalg.norm(p, axis=-1, keepdims=True), TIGHT / size("layer", x).min())
    close(np.linalg.norm(y, axis=-1), np.full(shape[:-1], math.sqrt(d)), TIGHT)
    close(np.linalg.norm(value("rms", x), axis=-1), np.full(shape[:-1], math.sqrt(d)), TIGHT)


@given(SHAPES, SEEDS, st.sampled_from([0.0, EPS, 1.0]))
def test_layer_norm_is_rms_norm_of_the_centred_input(shape: Any, seed: int, eps: float) -> None:
    """LN(x) = RN(x − mean(x)) with ε, too, and so for the gradient, centred once more (Jiang et al. 2023)."""
    x, dy = drawn(seed, shape, shape)
    c, loose = what_is_sized("layer", x), TIGHT / size("layer", x).min()
    close(value("layer", x, eps=eps), value("rms", c, eps=eps), loose)
    dc = dx_of("rms", c, dy, eps=eps)
    np.testing.assert_allclose(
        dx_of("layer", x, dy, eps=eps), what_is_sized("layer", dc), rtol=0, atol=loose * np.abs(dc).max()
    )


@given(st.integers(1, 4), st.integers(4, 8), SEEDS, st.sampled_from([0.0, EPS]))
def test_a_pre_layer_norm_network_is_a_pre_rms_norm_network(rows: int, d: int, seed: int, eps: float) -> None:
    """Once whatever writes to the stream is multiplied by C = I − 11ᵀ/D."""
    centre = np.eye(d) - np.ones((d, d)) / d
    x, *weights = drawn(seed, (rows, d), *[(9, d), (d, 9)] * 4)
    a, b = tn.tensor(x), tn.tensor(x @ centre)
    least = size("layer", x).min()
    for up, down in zip(weights[::2], weights[1::2], strict=True):
        a = a + F.linear(F.relu(F.linear(norm("layer", a, eps=eps), up)), down)
        b = b + F.linear(F.relu(F.linear(norm("rms", b, eps=eps), up)), centre @ down)
        least = min(least, size("layer", a.numpy()).min())
    close(value("layer", a, eps=eps), value("rms", b, eps=eps), 1e-10 / least)  # roundings grow from block to block
    assert np.abs(a.numpy() - b.numpy()).max() > 1e-3


@given(SHAPES, SEEDS, st.sampled_from([0.0, EPS]))
def test_centring_folds_into_the_linear_in_front(shape: Any, seed: int, eps: float) -> None:
    """LN(x M) = RN(x (M C)), C = I − 11ᵀ/D."""
    d = shape[-1]
    x, m = drawn(seed, shape, (d, d))
    right = value("rms", x @ (m - m.mean(axis=1, keepdims=True)), eps=eps)
    close(value("layer", x @ m, eps=eps), right, 10 * TIGHT / size("layer", x @ m).min())


@given(SHAPES, SEEDS)
def test_rms_norm_of_centred_rows_needs_one_value_less(shape: Any, seed: int) -> None:
    """CRMSNorm: the last value is minus the sum z of the others, and the mean square (Σ z² + (Σ z)²) / D."""
    (x,) = drawn(seed, shape)
    c = what_is_sized("layer", x)
    z = c[..., :-1]
    square = (np.sum(z**2, axis=-1, keepdims=True) + np.sum(z, axis=-1, keepdims=True) ** 2) / shape[-1]
    close(value("rms", c)[..., :-1], z / np.sqrt(square), TIGHT / size("rms", c).min())


# Folding


@given(SHAPES, SEEDS, st.sampled_from([0.0, EPS]))
def test_the_gain_folds_into_the_linear_behind_it(shape: Any, seed: int, eps: float) -> None:
    """FlashNorm: (RN(x) g) Wᵀ = RN(x) (W diag g)ᵀ = x (W diag g)ᵀ / rms(x)."""
    x, g, w = drawn(seed, shape, shape[-1], (5, shape[-1]))
    y = F.linear(norm("rms", x, g, eps), w).numpy()
    close(F.linear(norm("rms", x, None, eps), w * g).numpy(), y, 10 * TIGHT)
    close(x @ (w * g).T / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps), y, 10 * TIGHT)


@given(SHAPES, SEEDS)
def test_of_two_norms_around_a_linear_the_first_drops_out(shape: Any, seed: int) -> None:
    """RN(RN(x) Wᵀ) = RN(x Wᵀ), as the first is no more than a factor for each row."""
    x, w = drawn(seed, shape, (5, shape[-1]))
    twice = norm("rms", F.linear(norm("rms", x), w)).numpy()
    close(twice, value("rms", x @ w.T), TIGHT / size("rms", x @ w.T).min())


@given(SHAPES, SEEDS, st.sampled_from([0.0, EPS]))
def test_layer_norms_affine_part_folds_too(shape: Any, seed: int, eps: float) -> None:
    """W* = W diag(g), c* = c + W b."""
    x, g, b, w, c = drawn(seed, shape, shape[-1], shape[-1], (5, shape[-1]), 5)
    y = F.linear(F.layer_norm(x, shape[-1], g, b, eps), w, c).numpy()
    close(F.linear(norm("layer", x, None, eps), w * g, c + w @ b).numpy(), y, 10 * TIGHT)


# Statistics and bounds


@given(SEEDS)
def test_how_well_a_part_estimates_the_rms(seed: int) -> None:
    """pRMSNorm at p = 6.25 % of 64 Gaussian features: estimate over truth has mean 0.955 and deviation 0.339 (a trial).

    By theory √(χ₄²/4) has mean √(π/2) · 3/4 = 0.940; the truth in the divisor adds 1/(4 · 64). Of 4000 rows the mean is
    known to 0.0054, so that 0.03 is more than five deviations.
    """
    (x,) = drawn(seed, (4000, 64))
    ratio = value("rms", x)[:, 0] / F.rms_norm(x, 64, eps=0.0, partial=0.0625).numpy()[:, 0]
    assert abs(ratio.mean() - 0.945) < 0.03
    assert abs(ratio.std() - 0.339) < 0.03


@given(SHAPES, SEEDS, st.sampled_from([1e-3, 1.0, 100.0]), st.sampled_from([0.0, EPS]))
def test_normalized_queries_and_keys_have_bounded_products(shape: Any, seed: int, scale: float, eps: float) -> None:
    """∣q·k∣ / √d ≤ √d by Cauchy and Schwarz, whatever the scale of the input; reached by q = k."""
    root = math.sqrt(shape[-1])
    q, k = (value("rms", scale * a, eps=eps).reshape(-1, shape[-1]) for a in drawn(seed, shape, shape))
    assert np.abs(q @ k.T).max() / root <= root * (1 + TIGHT)
    if eps == 0.0:
        close(np.sum(q * q, axis=-1) / root, np.full(len(q), root))


# By theory, after 1 and 24 blocks that each add the variance of N(x) Wᵀ: 1, or 9 where W is three times as large.
VARIANCES = {
    "pre": (1.0, lambda x, w: x + F.linear(norm("rms", x), w), 2.0, 25.0),
    "post": (1.0, lambda x, w: norm("rms", x + F.linear(x, w)), 1.0, 1.0),
    "pre, weights × 3": (3.0, lambda x, w: x + F.linear(norm("rms", x), w), 10.0, 217.0),
    "peri, weights × 3": (3.0, lambda x, w: x + norm("rms", F.linear(norm("rms", x), w)), 2.0, 25.0),
}


@pytest.mark.parametrize("placement", VARIANCES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_residual_variance_at_initialization(placement: str, seed: int) -> None:
    """It grows linearly with depth under pre-norm, not at all under post-norm, and peri-norm bounds what a block adds.

    64 features make the variance of one block's random W deviate by some percent.
    """
    factor, block, first, last = VARIANCES[placement]
    rng = np.random.default_rng(seed)
    x = tn.tensor(rng.normal(size=(512, 64)))
    variances = []
    with tn.no_grad():
        for _ in range(24):
            x = block(x, factor / 8 * rng.normal(size=(64, 64)))
            variances.append(float(np.mean(x.numpy() ** 2)))
    assert abs(variances[0] / first - 1) < 0.15
    assert abs(variances[-1] / last - 1) < 0.15


# The worked example of two tokens


def normed(kind: str, x: Any, g: Any = None, b: Any = None) -> tn.Tensor:
    return F.rms_norm(x, 4, g) if kind == "rms" else F.layer_norm(x, 4, g, b)


X = [[2.0, -1.0, 0.0, 3.0], [0.5, 1.5, -2.0, 1.0]]
G = [0.5, 2.0, 1.0, -1.5]
B = [0.1, -0.2, 0.3, 0.0]
W = [[1.0, 0.5, -1.0, 2.0], [0.0, -1.0, 3.0, 0.5], [2.0, 2.0, 0.0, -1.0]]
C = [0.25, 0.0, -1.0]
RMS_ROWS = [[1.069043, -0.534522, 0.0, 1.603565], [0.365147, 1.095442, -1.460590, 0.730295]]
LAYER_ROWS = [[0.632454, -1.264909, -0.632454, 1.264909], [0.185695, 0.928474, -1.671253, 0.557084]]
SIX_DIGITS = 5.1e-7


def times_rows(h: list[list[float]], g: list[float]) -> list[list[float]]:
    return [[a * b for a, b in zip(row, g, strict=True)] for row in h]


def through(h: list[list[float]], w: list[list[float]], c: list[float]) -> list[list[float]]:
    return [
        [math.fsum(a * b for a, b in zip(row, out, strict=True)) + d for out, d in zip(w, c, strict=True)] for row in h
    ]


def test_the_example_itself() -> None:
    """The published numbers are those of the definitions here."""
    squares = [math.fsum(v * v for v in row) / 4 for row in X]
    assert squares == [3.5, 1.875]
    np.testing.assert_allclose([math.sqrt(s + EPS) for s in squares], [1.870831, 1.369310], rtol=0, atol=SIX_DIGITS)
    np.testing.assert_allclose([rms_row(row, EPS) for row in X], RMS_ROWS, rtol=0, atol=SIX_DIGITS)
    variances = [math.fsum((v - m) ** 2 for v in row) / 4 for row, m in zip(X, (1.0, 0.25), strict=True)]
    np.testing.assert_allclose([math.sqrt(v + EPS) for v in variances], [1.581142, 1.346295], rtol=0, atol=SIX_DIGITS)
    np.testing.assert_allclose([layer_row(row, EPS) for row in X], LAYER_ROWS, rtol=0, atol=SIX_DIGITS)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, SIX_DIGITS), (np.float64, 1e-14)])
@pytest.mark.parametrize(("kind", "published"), [("rms", RMS_ROWS), ("layer", LAYER_ROWS)])
def test_worked_example(kind: str, published: Any, dtype: Any, tolerance: float) -> None:
    """Normalized rows, times the gain, plus LayerNorm's bias, through a Linear 4 → 3: every matrix on the way."""
    x, g, b, w, c = (np.array(a, dtype=dtype) for a in (X, G, B, W, C))
    h = [(rms_row if kind == "rms" else layer_row)(row, EPS) for row in X]
    scaled = times_rows(h, G)
    shifted = [[v + d for v, d in zip(row, B, strict=True)] for row in scaled] if kind == "layer" else scaled
    out = through(shifted, W, C)

    normalized = normed(kind, x)
    np.testing.assert_allclose(normalized.numpy(), published, rtol=0, atol=2 * SIX_DIGITS)
    np.testing.assert_allclose(normalized.numpy(), h, rtol=0, atol=tolerance)
    np.testing.assert_allclose(normed(kind, x, g).numpy(), scaled, rtol=0, atol=tolerance)
    y = normed(kind, x, g, b)
    np.testing.assert_allclose(y.numpy(), shifted, rtol=0, atol=tolerance)
    np.testing.assert_allclose(F.linear(y, w, c).numpy(), out, rtol=0, atol=10 * tolerance)


def test_worked_example_in_digits() -> None:
    """RMSNorm's matrices after the gain and after the Linear, by a pocket calculator from X / RMS."""
    y = F.rms_norm(np.array(X), 4, np.array(G))
    scaled = [[0.534521, -1.069043, 0.0, -2.405347], [0.182574, 2.190885, -1.460590, -1.095443]]
    np.testing.assert_allclose(y.numpy(), scaled, rtol=0, atol=2e-6)
    out = [[-4.560695, -0.133631, 0.336303], [0.797720, -7.120377, 4.842361]]
    np.testing.assert_allclose(F.linear(y, np.array(W), np.array(C)).numpy(), out, rtol=0, atol=2e-5)


def test_worked_example_as_layers() -> None:
    x = np.array(X, dtype=np.float32)
    rms, layer, linear = nn.RMSNorm(4), nn.LayerNorm(4), nn.Linear(4, 3, rng=0)
    np.testing.assert_allclose(rms(x).numpy(), RMS_ROWS, rtol=0, atol=2 * SIX_DIGITS)
    np.testing.assert_allclose(layer(x).numpy(), LAYER_ROWS, rtol=0, atol=2 * SIX_DIGITS)
    rms.load_state_dict({"weight": np.array(G, np.float32)})
    linear.load_state_dict({"weight": np.array(W, np.float32), "bias": np.array(C, np.float32)})
    out = through(times_rows([rms_row(row, EPS) for row in X], G), W, C)
    np.testing.assert_allclose(nn.Sequential(rms, linear)(x).numpy(), out, rtol=0, atol=5e-6)


def test_three_and_four() -> None:
    """RMSNorm keeps the direction of [3, 4]; of LayerNorm's two numbers only the signs remain."""
    x = np.array([3.0, 4.0])
    y = F.rms_norm(x, 2).numpy()
    rms = math.sqrt(12.5 + EPS)
    assert abs(rms - 3.535534) < 2e-6
    np.testing.assert_allclose(y, [3 / rms, 4 / rms], rtol=1e-15)
    np.testing.assert_allclose(F.rms_norm(x, 2, eps=0.0).numpy(), [0.6 * math.sqrt(2), 0.8 * math.sqrt(2)], rtol=1e-15)
    assert abs(y[1] / y[0] - 4 / 3) < 1e-15
    np.testing.assert_array_equal(F.layer_norm(x, 2, eps=0.0).numpy(), [-1.0, 1.0])
    np.testing.assert_allclose(F.layer_norm(x, 2).numpy(), np.array([-0.5, 0.5]) / math.sqrt(0.25 + EPS), rtol=1e-15)
