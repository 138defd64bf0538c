"""RMSNorm and LayerNorm over the last axes, `axis`, whose shape is the weight's shape.

RMSNorm, derivation. Let n be the number of normalized elements, r = (mean(x²) + ε)^(−1/2) and h = r x. Since
∂r/∂xⱼ = −r³ xⱼ / n,

    ∂hᵢ/∂xⱼ = r δᵢⱼ − xᵢ r³ xⱼ / n = r (δᵢⱼ − hᵢ hⱼ / n) ,

and the chain rule gives

    x̄ⱼ = Σᵢ h̄ᵢ ∂hᵢ/∂xⱼ = r (h̄ⱼ − hⱼ · mean(h̄ h)) .

The gain acts on h alone: y = g h, so h̄ = ȳ g and ḡ = Σ_rows ȳ h.

LayerNorm is RMSNorm of the centred x: with c = x − mean(x), h = r c and r = (mean(c²) + ε)^(−1/2), the centring is the
symmetric projection x ↦ x − mean(x), so its backward is itself. That adds one line to the forward and, since h sums to
0, one term to the backward:

    c̄ = r (h̄ − h · mean(h̄ h)) ,     x̄ = c̄ − mean(c̄) = r (h̄ − mean(h̄) − h · mean(h̄ h)) .

Of two numbers, h is (−q, q) with q² = mean(c²) r² = 1 − ε r², so h · mean(h̄ h) is (1 − ε r²) times the centred h̄, and

    x̄ = ε r³ (h̄ − mean(h̄)) ,

where the general formula would be left with nothing but its roundings. So it is with RMSNorm of one number, where h² is
1 − ε r² and x̄ = ε r³ h̄.

docs/derivations/rms-norm.md and layer-norm.md have every step, and check them.

The squares of ordinary numbers may leave the range of the dtype; `rescue` has what is done for such rows.

Sources: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019); Ba, Kiros and Hinton, "Layer Normalization"
(2016).
"""

from typing import Any

from .reductions import centred
from .rescue import left_over, out_of_range, rescaled, rescaled_centred
from .summation import average
from .types import Array, Axes, Forward, Namespace


def rms_norm(xp: Namespace, x: Array, weight: Array | None, *, axis: Axes, eps: float) -> Forward:
    """y = g ⊙ h,   h = r x,   r = (mean(x²) + ε)^(−1/2)"""
    r = 1.0 / xp.sqrt(average(xp, x * x, axis=axis, keepdims=True) + eps)
    h = x * r
    if out_of_range(xp, r):
        h, r = rescaled(xp, x, r, axis, eps)
    y = h if weight is None else h * weight
    return y, (h, r, weight, axis, eps)


def rms_norm_backward(xp: Namespace, dy: Array, cache: tuple[Any, ...]) -> tuple[Array, Array | None]:
    """h̄ = ȳ g ;   x̄ = r (h̄ − h · mean(h̄ h)) ;   ḡ = Σ_rows ȳ h"""
    h, r, weight, axis, eps = cache
    dh = dy if weight is None else dy * weight
    dx = r * (dh - h * average(xp, dh * h, axis=axis, keepdims=True))
    if h.size == r.size:
        dx = left_over(dh, h, r, eps)
    return dx, None if weight is None else dy * h


def layer_norm(xp: Namespace, x: Array, weight: Array | None, bias: Array | None, *, axis: Axes, eps: float) -> Forward:
    """y = g ⊙ h + b,   h = r c,   c = x − mean(x),   r = (mean(c²) + ε)^(−1/2)"""
    c, variance = centred(xp, x, axis)
    r = 1.0 / xp.sqrt(variance + eps)
    h = c * r
    if out_of_range(xp, r):
        h, r = rescaled_centred(xp, x, r, axis, eps)
    y = h if weight is None else h * weight
    y = y if bias is None else y + bias
    return y, (h, r, weight, axis, eps)


def layer_norm_backward(xp: Namespace, dy: Array, cache: tuple[Any, ...]) -> tuple[Array, Array | None, Array]:
    """h̄ = ȳ g ;   x̄ = r (h̄ − mean(h̄) − h · mean(h̄ h)) ;   ḡ = Σ_rows ȳ h ;   b̄ = Σ_rows ȳ"""
    h, r, weight, axis, eps = cache
    dh = dy if weight is None else dy * weight
    dx = r * (dh - average(xp, dh, axis=axis, keepdims=True) - h * average(xp, dh * h, axis=axis, keepdims=True))
    if h.size == 2 * r.size:
        dx = left_over(dh - average(xp, dh, axis=axis, keepdims=True), h, r, eps)
    return dx, None if weight is None else dy * h, dy
