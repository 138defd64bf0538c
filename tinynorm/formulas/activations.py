"""Activation functions, softmax and dropout.

Each is written so that no exponential overflows: only e^(−|x|) is ever taken.
"""

from math import pi, sqrt

from .special import normal_cdf
from .types import Array, Forward, Namespace

GELU_SCALE = sqrt(2.0 / pi)
GELU_CUBIC = 0.044715  # Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016)


def relu(xp: Namespace, x: Array) -> Forward:
    """y = max(x, 0)"""
    y = xp.maximum(x, 0)
    return y, y


def relu_backward(xp: Namespace, dy: Array, y: Array) -> Array:
    """x̄ = ȳ where x > 0 ; the subgradient at 0 is 0"""
    return xp.where(y > 0, dy, xp.zeros_like(dy))


def leaky_relu(xp: Namespace, x: Array, *, negative_slope: float) -> Forward:
    """y = x where x > 0, slope · x elsewhere"""
    return xp.where(x > 0, x, negative_slope * x), (x > 0, negative_slope)


def leaky_relu_backward(xp: Namespace, dy: Array, cache: tuple[Array, float]) -> Array:
    """x̄ = ȳ where x > 0, slope · ȳ elsewhere"""
    positive, negative_slope = cache
    return xp.where(positive, dy, negative_slope * dy)


def elu(xp: Namespace, x: Array, *, alpha: float) -> Forward:
    """y = x where x > 0, α (eˣ − 1) elsewhere"""
    return xp.where(x > 0, x, alpha * xp.expm1(xp.minimum(x, 0))), (x, alpha)


def elu_backward(xp: Namespace, dy: Array, cache: tuple[Array, float]) -> Array:
    """x̄ = ȳ where x > 0, ȳ α eˣ elsewhere"""
    x, alpha = cache
    return xp.where(x > 0, dy, dy * (alpha * xp.exp(xp.minimum(x, 0))))


def _sigmoid(xp: Namespace, x: Array) -> Array:
    e = xp.exp(xp.where(x < 0, x, -x))  # e^(−|x|)
    return xp.where(x < 0, e, xp.ones_like(e)) / (1.0 + e)


def sigmoid(xp: Namespace, x: Array) -> Forward:
    """y = 1 / (1 + e^(−x)) = e^x / (1 + e^x)"""
    y = _sigmoid(xp, x)
    return y, x


def sigmoid_backward(xp: Namespace, dy: Array, x: Array) -> Array:
    """x̄ = ȳ σ(x) σ(−x), since σ′ = σ (1 − σ) and 1 − σ(x) = σ(−x), which keeps its digits where σ(x) is nearly 1"""
    return dy * _sigmoid(xp, x) * _sigmoid(xp, -x)


def silu(xp: Namespace, x: Array) -> Forward:
    """y = x σ(x)"""
    return x * _sigmoid(xp, x), x


def silu_backward(xp: Namespace, dy: Array, x: Array) -> Array:
    """x̄ = ȳ σ(x) (1 + x σ(−x)), by the product rule with σ′(x) = σ(x) σ(−x)"""
    return dy * _sigmoid(xp, x) * (1.0 + x * _sigmoid(xp, -x))


def softplus(xp: Namespace, x: Array) -> Forward:
    """y = log(1 + eˣ) = max(x, 0) + log(1 + e^(−|x|))"""
    return xp.maximum(x, 0) + xp.log1p(xp.exp(xp.where(x < 0, x, -x))), x


def softplus_backward(xp: Namespace, dy: Array, x: Array) -> Array:
    """x̄ = ȳ σ(x), since d/dx log(1 + eˣ) = eˣ / (1 + eˣ)"""
    return dy * _sigmoid(xp, x)


def gelu(xp: Namespace, x: Array) -> Forward:
    """y = x Φ(x), Φ the standard normal distribution function"""
    cdf = normal_cdf(xp, x)
    return x * cdf, (x, cdf)


def gelu_backward(xp: Namespace, dy: Array, cache: tuple[Array, Array]) -> Array:
    """x̄ = ȳ (Φ(x) + x φ(x)), by the product rule with Φ′(x) = φ(x) = e^(−x²/2) / √(2π)"""
    x, cdf = cache
    near = _within(xp, x, 40.0)  # farther out, φ is 0 in every dtype, and x² may overflow
    return dy * (cdf + near * (xp.exp(-0.5 * (near * near)) / sqrt(2.0 * pi)))


def gelu_tanh(xp: Namespace, x: Array) -> Forward:
    """y = x (1 + t) / 2,   t = tanh(√(2/π) (x + 0.044715 x³))"""
    near = _within(xp, x, 40.0)  # farther out, t is ±1 in every dtype, and x³ may overflow
    t = xp.tanh(GELU_SCALE * (near + GELU_CUBIC * (near * near * near)))
    return 0.5 * x * (1.0 + t), (near, t)


def gelu_tanh_backward(xp: Namespace, dy: Array, cache: tuple[Array, Array]) -> Array:
    """x̄ = ȳ ((1 + t) / 2 + x t′ / 2),   t′ = (1 − t²) √(2/π) (1 + 3 · 0.044715 x²) by the chain rule"""
    near, t = cache
    slope = GELU_SCALE * (1.0 + 3.0 * GELU_CUBIC * (near * near))
    return dy * (0.5 * (1.0 + t) + 0.5 * near * (1.0 - t * t) * slope)


def _within(xp: Namespace, x: Array, bound: float) -> Array:
    return xp.minimum(xp.maximum(x, -bound), bound)


def softmax(xp: Namespace, x: Array, *, axis: int) -> Forward:
    """p = e^(x − max x) / Σ e^(x − max x)"""
    if x.size == 0:
        return x, (x, axis)
    e = xp.exp(x - xp.max(x, axis=axis, keepdims=True))
    p = e / xp.sum(e, axis=axis, keepdims=True)
    return p, (p, axis)


def softmax_backward(xp: Namespace, dy: Array, cache: tuple[Array, int]) -> Array:
    """x̄ = p (ȳ − Σ ȳ p), since ∂pᵢ/∂xⱼ = pᵢ (δᵢⱼ − pⱼ) and x̄ⱼ = Σᵢ ȳᵢ ∂pᵢ/∂xⱼ"""
    p, axis = cache
    return p * (dy - xp.sum(dy * p, axis=axis, keepdims=True))


def log_softmax(xp: Namespace, x: Array, *, axis: int) -> Forward:
    """y = x − max x − log Σ e^(x − max x)"""
    if x.size == 0:
        return x, (x, axis)
    z = x - xp.max(x, axis=axis, keepdims=True)
    y = z - xp.log(xp.sum(xp.exp(z), axis=axis, keepdims=True))
    return y, (y, axis)


def log_softmax_backward(xp: Namespace, dy: Array, cache: tuple[Array, int]) -> Array:
    """x̄ = ȳ − e^y Σ ȳ, since ∂yᵢ/∂xⱼ = δᵢⱼ − pⱼ with p = e^y"""
    y, axis = cache
    return dy - xp.exp(y) * xp.sum(dy, axis=axis, keepdims=True)


def dropout(xp: Namespace, x: Array, kept: Array, *, p: float) -> Forward:
    """y = x / (1 − p) where the element is kept, 0 elsewhere: the expected value stays"""
    scale = 1.0 / (1.0 - p) if p < 1.0 else 0.0
    return xp.where(kept, x, xp.zeros_like(x)) * scale, (kept, scale)


def dropout_backward(xp: Namespace, dy: Array, cache: tuple[Array, float]) -> tuple[Array, None]:
    """x̄ = ȳ / (1 − p) where the element was kept ; which ones were is a constant"""
    kept, scale = cache
    return xp.where(kept, dy, xp.zeros_like(dy)) * scale, None
