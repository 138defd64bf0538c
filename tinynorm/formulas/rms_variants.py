"""RMSNorm with what else people do with it: part of the features, ε beside the root, a gain about 1, a bias.

Derivation. Let k be the number of leading features that the statistic is taken from, ε₁ stand inside the root and ε₂
beside it (one of them is 0), and

    s = (mean(x₁² … xₖ²) + ε₁)^(1/2) ,     r = 1 / (s + ε₂) ,     h = r x .

From s² follows ∂s/∂xⱼ = xⱼ / (k s) for j ≤ k, and 0 beyond. So ∂r/∂xⱼ = −r² xⱼ / (k s), and with x = h / r

    x̄ⱼ = r h̄ⱼ + ∂r/∂xⱼ Σᵢ h̄ᵢ xᵢ = r (h̄ⱼ − t hⱼ · (Σᵢ h̄ᵢ hᵢ) / k) ,     t = 1 / (r s) = 1 + ε₂ / s     for j ≤ k,

while x̄ⱼ = r h̄ⱼ beyond k. With k = n and ε₂ = 0, t is 1 and this is RMSNorm's own gradient.

The gain is o + w, o being a constant such as 1: y = (o + w) ⊙ h + b, so w̄ = Σ_rows ȳ h and b̄ = Σ_rows ȳ.

docs/derivations/partial-rms-norm.md has every step, and checks them.

Sources: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019), whose pRMSNorm uses part of the features and
whose code adds ε to the root; Gemma's code, for 1 + w.
"""

from math import inf, sqrt
from typing import Any

from .looking import some
from .rescue import fits, left_over, out_of_range, reciprocal, row_scale
from .summation import average, reduced_count, total
from .types import Array, Axes, Forward, Namespace


def rms_norm_variant(
    xp: Namespace,
    x: Array,
    weight: Array | None,
    bias: Array | None,
    *,
    axis: Axes,
    eps: float,
    outside: bool,
    count: int | None,
    offset: float,
) -> Forward:
    """y = (o + w) ⊙ h + b,   h = r x,   r = 1 / (s + ε₂),   s = (mean(x₁² … xₖ²) + ε₁)^(1/2)"""
    part = x if count is None else x[..., :count]
    s, root = _roots(xp, part, axis, eps, outside)
    r = 1.0 / root
    h = x * r
    if out_of_range(xp, r):
        least = eps if outside else sqrt(eps)
        fine = fits(r)
        scale = row_scale(xp, part, fine, axis, least)
        added = least / scale if outside else (least / scale) * (least / scale)
        s, root = _roots(xp, part / scale, axis, xp.where(fine, eps, added), outside)
        r = reciprocal(xp, root)
        h, r = x / scale * r, r / scale
    y = h if count is None else _unlimited(xp, x, h, root)
    gain = weight if weight is None or offset == 0.0 else offset + weight
    y = y if gain is None else y * gain
    y = y if bias is None else y + bias
    t = root * reciprocal(xp, s)  # where s is 0, so is h, whatever t
    return y, (h, r, t, gain, axis, reduced_count(part.shape, axis), eps, outside)


def _unlimited(xp: Namespace, x: Array, h: Array, root: Array) -> Array:
    """h, but ±∞ where the counted features are all 0, ε is 0 and x is not: there it has no limit"""
    nothing = (root == 0.0) & (x != 0.0)
    return xp.where(nothing, xp.sign(x) * inf, h) if some(xp, nothing) else h


def _roots(xp: Namespace, part: Array, axis: Axes, eps: Any, outside: bool) -> tuple[Array, Array]:
    """s and s + ε₂"""
    square = average(xp, part * part, axis=axis, keepdims=True)
    s = xp.sqrt(square if outside else square + eps)
    return s, s + eps if outside else s


def rms_norm_variant_backward(xp: Namespace, dy: Array, cache: tuple[Any, ...]) -> tuple[Array, Array | None, Array]:
    """h̄ = ȳ (o + w) ;   x̄ = r (h̄ − t h · (Σ h̄ h) / k), without the second term beyond k ;   w̄ = Σ ȳ h ;   b̄ = Σ ȳ"""
    h, r, t, gain, axis, k, eps, outside = cache
    dh = dy if gain is None else dy * gain
    through_s = t * total(xp, dh * h, axis, keepdims=True) / k
    if reduced_count(h.shape, axis) == k:
        dx = r * (dh - h * through_s)
    else:
        dx = r * xp.concatenate([dh[..., :k] - h[..., :k] * through_s, dh[..., k:]], axis=-1)
    if h.size == r.size:
        dx = left_over(dh, h, r, eps, outside)
    return dx, None if gain is None else dy * h, dy
