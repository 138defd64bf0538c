"""The rare rows that a norm cannot take as they stand, because squares leave the range of the dtype.

The norms square numbers. In float32 the square of 1e20 is ∞ and that of 1e-25 is 0, though the norm of either row is an
ordinary number. Since a norm depends on the ratio of x² and ε alone,

    h(x; ε) = h(x / s; ε / s²) ,     r(x; ε) = r(x / s; ε / s²) / s     for any s > 0,

such rows are normalized once more after a division by a power of two near max|x|, which rounds nothing. `out_of_range`
tells from the rows' r, which are few, whether there are any; the others are divided by 1 and keep every bit.

A row without any size, at ε = 0, has no direction. It is divided by ∞ instead of 0: its h is 0, the limit as ε → 0, and
so is its gradient, by convention.
"""

from math import inf, sqrt
from typing import Any

from .looking import some
from .reductions import centred
from .summation import average
from .types import Array, Axes, Namespace


def _largest(dtype: Any) -> float:
    """Up to this r = 1/rms, squares and their sum lose no digit to underflow: x² ≥ 2⁻⁹⁶, in float64 2⁻⁷⁶⁸."""
    return 2.0**48 if dtype.char in "fF" else 2.0**384


def out_of_range(xp: Namespace, r: Array) -> bool:
    """Whether some row's mean square overflowed (r is 0), is nan, or is so small that it lost digits."""
    return some(xp, ~fits(r))


def fits(r: Array) -> Array:
    """The rows that are not out of range."""
    return (r > 0.0) & (r <= _largest(r.dtype))


def row_scale(xp: Namespace, x: Array, fine: Array, axis: Axes, least: Any) -> Array:
    """For each row the power of two below max|x|, but not far below `least`; 1 for those that are fine.

    An exponent is an integer, so the power is a constant to whoever differentiates.
    """
    size = xp.maximum(xp.max(xp.abs(x), axis=axis, keepdims=True), least)
    one = xp.ones_like(size)
    _, exponent = xp.frexp(xp.where(fine | (size == 0.0), one, size))
    return xp.ldexp(one, exponent - 1)


def reciprocal(xp: Namespace, root: Array) -> Array:
    """1 / root; 0 where root is 0."""
    return 1.0 / xp.where(root == 0.0, inf, root)


def rescaled(xp: Namespace, x: Array, r: Array, axis: Axes, eps: float) -> tuple[Array, Array]:
    """h = r x and r = (mean(x²) + ε)^(−1/2), from x / s and ε / s²"""
    return _rescaled(xp, x, fits(r), axis, eps, 1.0)


def rescaled_centred(xp: Namespace, x: Array, r: Array, axis: Axes, eps: float) -> tuple[Array, Array]:
    """The same of the centred x. It is taken from x / s, since the mean's sum and x − mean(x) may overflow, too."""
    fine = fits(r)
    scale = row_scale(xp, x, fine, axis, 0.0)
    return _rescaled(xp, centred(xp, x / scale, axis)[0], fine, axis, eps, scale)


def _rescaled(xp: Namespace, x: Array, fine: Array, axis: Axes, eps: float, already: Any) -> tuple[Array, Array]:
    """h and r from an x that has been divided by a scale already."""
    scale = row_scale(xp, x, fine, axis, sqrt(eps) / already)
    u, root = x / scale, sqrt(eps) / scale / already
    r = reciprocal(xp, xp.sqrt(average(xp, u * u, axis=axis, keepdims=True) + xp.where(fine, eps, root * root)))
    return u * r, r / already / scale


def left_over(dh: Array, h: Array, r: Array, eps: float, outside: bool = False) -> Array:
    """r (h̄ − h² h̄) = ε r³ h̄ where h² = 1 − ε r², of which the general formula would keep nothing but roundings

    With ε beside the root, ∂h/∂x is ε r².
    """
    if not eps:
        return dh * (0.0 * h)
    return dh * (eps * r if outside else eps * r * r) * r
