"""Activation functions, softmax and dropout.

Each is written so that no exponential overflows, and so that the tails keep their digits.
"""

from math import nan, pi, sqrt

from .elementary import exponentials
from .reductions import log_total, shifted
from .special import normal_tail
from .summation import total
from .types import Array, Forward, Namespace

GELU_SCALE = 2.0 * sqrt(2.0 / pi)
GELU_CUBIC = 0.044715  # Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016)

# Farther out σ and Φ are 0 or 1 in every dtype. Products stop there, since x³ would overflow and −∞ · 0 is nan.
SIGMOID_FAR = 2000.0
GELU_FAR = 40.0


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


def _within(xp: Namespace, x: Array, bound: float) -> Array:
    return xp.minimum(xp.maximum(x, -bound), bound)


def _below_zero(xp: Namespace, x: Array, bound: float) -> Array:
    """−|x|, but no lower than the bound"""
    return xp.maximum(xp.minimum(x, -x), -bound)


def sigmoid(xp: Namespace, x: Array) -> Forward:
    """y = σ(x) = 1 / (1 + e^(−x)) = q / (q + 1/q),   q = e^(x/2)"""
    q, p = exponentials(xp, 0.5 * x)
    p += q
    return q / p, x


def sigmoid_backward(xp: Namespace, dy: Array, x: Array) -> Array:
    """x̄ = ȳ σ(x) σ(−x) = ȳ / (q + 1/q)² ; σ (1 − σ) is the same, but cancels where σ is nearly 1"""
    q, p = exponentials(xp, 0.5 * x)
    p += q
    root = 1.0 / p
    root *= root
    return dy * root


def silu(xp: Namespace, x: Array) -> Forward:
    """y = x σ(x) = max(x, 0) − |x| σ(−|x|)"""
    n = _below_zero(xp, x, SIGMOID_FAR)
    return xp.maximum(x, 0) + _gated(xp, n, n), x


def silu_backward(xp: Namespace, dy: Array, x: Array) -> Array:
    """x̄ = ȳ σ(x) (1 + x σ(−x)), by the product rule with σ′(x) = σ(x) σ(−x)"""
    return dy * _gated_slope(xp, _within(xp, x, SIGMOID_FAR), x)


def _gated(xp: Namespace, x: Array, z: Array) -> Array:
    """x σ(z) for z ≤ 0, in an order in which x makes up for a σ(z) that is below the smallest number"""
    q = xp.exp(0.5 * z)
    return x * q / (1.0 + q * q) * q


def _gated_slope(xp: Namespace, x: Array, z: Array) -> Array:
    """σ(z) (1 + x σ(−z)), in such an order, too"""
    q, p = exponentials(xp, 0.5 * z)
    both = q + p
    p /= both
    p *= x
    p += 1.0
    p *= q
    p /= both
    return p


def softplus(xp: Namespace, x: Array) -> Forward:
    """y = log(1 + eˣ) = max(x, 0) + log(1 + e^(−|x|))"""
    return xp.maximum(x, 0) + xp.log1p(xp.exp(xp.minimum(x, -x))), x


def softplus_backward(xp: Namespace, dy: Array, x: Array) -> Array:
    """x̄ = ȳ σ(x), since d/dx log(1 + eˣ) = eˣ / (1 + eˣ)"""
    return dy * sigmoid(xp, x)[0]


def gelu(xp: Namespace, x: Array) -> Forward:
    """y = x Φ(x) = max(x, 0) − |x| Φ(−|x|), Φ the standard normal distribution function"""
    r, s = normal_tail(xp, x)  # Φ(−|x|) = r s
    return xp.maximum(x, 0) + _below_zero(xp, x, GELU_FAR) * r * s, (x, r, s)


def gelu_backward(xp: Namespace, dy: Array, cache: tuple[Array, Array, Array]) -> Array:
    """x̄ = ȳ (Φ(x) + x φ(x)), by the product rule with Φ′(x) = φ(x) = e^(−x²/2) / √(2π) = s / √(2π)"""
    x, r, s = cache
    w = _within(xp, x, GELU_FAR) / sqrt(2.0 * pi)
    return dy * xp.where(x < 0, (r + w) * s, 1.0 - (r - w) * s)


def gelu_tanh(xp: Namespace, x: Array) -> Forward:
    """y = x (1 + tanh(z/2)) / 2 = x σ(z),   z = 2 √(2/π) (x + 0.044715 x³) ; as in `silu`, nothing cancels

    In the tail an error of z counts |z|-fold, so y is right to about 2 |z| units in the last place there.
    """
    n = _below_zero(xp, x, GELU_FAR)
    return xp.maximum(x, 0) + _gated(xp, n, n * (GELU_SCALE + GELU_SCALE * GELU_CUBIC * (n * n))), x


def gelu_tanh_backward(xp: Namespace, dy: Array, x: Array) -> Array:
    """x̄ = ȳ σ(z) (1 + x z′ σ(−z)),   z′ = 2 √(2/π) (1 + 3 · 0.044715 x²), by the product rule and the chain rule"""
    near = _within(xp, x, GELU_FAR)
    bend = GELU_SCALE * GELU_CUBIC * (near * near)
    return dy * _gated_slope(xp, near * (GELU_SCALE + 3.0 * bend), near * (GELU_SCALE + bend))


def softmax(xp: Namespace, x: Array, *, axis: int) -> Forward:
    """p = e^(x − max x) / Σ e^(x − max x) ; nan where several infinities tie, since p has no limit there"""
    if x.size == 0:
        return x, (x, axis)
    z, _, tied = shifted(xp, x, axis)
    e = xp.exp(z)
    mass = total(xp, e, axis, True)
    p = e / (mass if tied is None else xp.where(tied, nan, mass))
    return p, (p, axis)


def softmax_backward(xp: Namespace, dy: Array, cache: tuple[Array, int]) -> Array:
    """x̄ = p (ȳ − Σ ȳ p), since ∂pᵢ/∂xⱼ = pᵢ (δᵢⱼ − pⱼ) and x̄ⱼ = Σᵢ ȳᵢ ∂pᵢ/∂xⱼ"""
    p, axis = cache
    return p * (dy - total(xp, dy * p, axis, True))


def log_softmax(xp: Namespace, x: Array, *, axis: int) -> Forward:
    """y = x − max x − log Σ e^(x − max x) ; nan where several infinities tie"""
    y, _, _ = log_probabilities(xp, x, axis)
    return y, (y, axis)


def log_probabilities(xp: Namespace, x: Array, axis: int) -> tuple[Array, Array, Array]:
    """log p, and p itself as a quotient: e and Σ e, with e = e^(x − max x)"""
    if x.size == 0:
        return x, x, x
    z, _, tied = shifted(xp, x, axis)
    e = xp.exp(z)
    log_mass, mass = log_total(xp, e, axis)
    if tied is not None:
        log_mass, mass = xp.where(tied, nan, log_mass), xp.where(tied, nan, mass)
    return z - log_mass, e, mass


def log_softmax_backward(xp: Namespace, dy: Array, cache: tuple[Array, int]) -> Array:
    """x̄ = ȳ − p Σ ȳ = ȳ (1 − p) − p (Σ ȳ − ȳ),   p = e^y, since ∂yᵢ/∂xⱼ = δᵢⱼ − pⱼ"""
    y, axis = cache
    return -dy * xp.expm1(y) - xp.exp(y) * (total(xp, dy, axis, True) - dy)


def dropout(xp: Namespace, x: Array, kept: Array, *, p: float) -> Forward:
    """y = x / (1 − p) where the element is kept, 0 elsewhere: the expected value stays"""
    scale = 1.0 / (1.0 - p) if p < 1.0 else 0.0
    return xp.where(kept, x, xp.zeros_like(x)) * scale, (kept, scale)


def dropout_backward(xp: Namespace, dy: Array, cache: tuple[Array, float]) -> tuple[Array, None]:
    """x̄ = ȳ / (1 − p) where the element was kept ; which ones were is a constant"""
    kept, scale = cache
    return xp.where(kept, dy, xp.zeros_like(dy)) * scale, None
