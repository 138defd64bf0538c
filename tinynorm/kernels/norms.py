"""RMSNorm and LayerNorm over the last axes, in few passes over blocks of rows.

With n features, t = Σ x² + n ε and R = √(n / t), which is the formula's r, the passes over a block are

    y = (x R) g                                              forward: Σ x², x R, times g
    p = ȳ x ;   ḡ += R p ;   a = (p g) / t ;   x̄ = R (ȳ g − a x)             backward

where Σ x², R p and p g are matrix products (p is a matrix, R and g are vectors), the cheapest of all reductions.
LayerNorm has c = x − μ for x, and x̄ less its mean, which is that of ȳ g, a matrix product as well.

Whatever these steps cannot take goes to the formula: rows whose squares leave the range, and those that are nearly
constant, which the forward sees; cotangents whose products leave the range, which the backward sees.
"""

from functools import lru_cache
from math import isfinite, nan, prod
from typing import Any

import numpy as np

from ..formulas import norms
from ..formulas.types import Array, Axes
from . import buffers
from .blocks import SMALL, apply_row, over_rows, tiled
from .kernel import Kernel

Needs = tuple[bool, ...]

FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
WIDEST = 2**20  #: products of more numbers than this lose digits; and ones to multiply them are kept
OFF_CENTRE = 4.0  #: rows whose mean is larger than so many times their spread are centred twice
NEARLY_CONSTANT = 4096.0  #: and these take the formula
GROUP = 16  #: rows that a matrix product adds to a running total; equal rows, the worst case, then cost 2.5 eps
LARGEST = 2.0**20  #: so do rows with a larger R, since p = ȳ x may lose digits to underflow where ȳ h does not


def _suits_rms(x: Array, weight: Array | None, *, axis: Axes, eps: float) -> bool:
    return _suits(x, weight, axis, 1)


def _suits_layer(x: Array, weight: Array | None, bias: Array | None, *, axis: Axes, eps: float) -> bool:
    return _suits(x, weight, axis, 2) and _fits(bias, x, axis)


def _suits(x: Array, weight: Array | None, axis: Axes, too_few: int) -> bool:
    """Of gradients of one number, or of two centred ones, but a part ε r² is left, which has a formula of its own."""
    last = axis == (-1,) or axis == tuple(range(-len(axis), 0))
    plain = last and x.dtype in FLOATS and x.size > 0 and x.flags.c_contiguous
    return plain and too_few < prod(x.shape[-len(axis) :]) <= WIDEST and _fits(weight, x, axis)


def _fits(row: Array | None, x: Array, axis: Axes) -> bool:
    return row is None or (row.dtype == x.dtype and row.shape == x.shape[-len(axis) :] and row.flags.c_contiguous)


def _as_rows(x: Array, axes: int) -> Array:
    return x if x.ndim == 2 and axes == 1 else x.reshape(-1, prod(x.shape[-axes:]))


def _as_row(weight: Array | None, x: Array) -> Array | None:
    if weight is None:
        return None
    row = weight if weight.ndim == 1 else weight.reshape(-1)
    return row if x.size <= SMALL else tiled(row)


def _rms_forward(needs: Needs, x: Array, weight: Array | None, *, axis: Axes, eps: float) -> tuple[Array, Any] | None:
    """y = (x R) g"""
    axes, y = len(axis), buffers.like(x)
    rows = _as_rows(x, axes)
    r, t = np.empty(len(rows), x.dtype), np.empty(len(rows), x.dtype)
    if not all(map(isfinite, over_rows(_rms_rows, (rows, _as_rows(y, axes), r, t), _as_row(weight, x), eps))):
        return None
    return y, (x, weight, axes, eps, r, t)


def _rms_rows(x: Array, y: Array, r: Array, t: Array, row: Array | None, eps: float) -> float:
    np.vecdot(x, x, t)
    sound = _roots(t, r, x.shape[1], eps)
    np.multiply(x, r[:, None], y)
    if row is not None:
        apply_row(np.multiply, y, row, y)
    return sound


def _roots(t: Array, r: Array, width: int, eps: float) -> float:
    """Makes t = s + n ε of s, and R; and a number that is finite where all of them are, and of use."""
    np.add(t, width * eps, t)
    root = np.sqrt(t)
    np.divide(width**0.5, root, r)
    if eps < LARGEST**-2 and not r.max() <= LARGEST:  # with more ε, no R is larger
        return nan
    return float(root.dot(r))  # √n for each row, but nan where a root is 0 or ∞


def _rms_backward(dy: Array, cache: Any, needs: Needs) -> tuple[Array | None, ...]:
    """p = ȳ x ;   ḡ = Σ R p ;   x̄ = R (ȳ g − (p g) / t · x)"""
    x, weight, axes, eps, r, t = cache
    dx = buffers.like(x)
    parts = over_rows(_pull, (*(_as_rows(a, axes) for a in (x, dy, dx)), r, t), _as_row(weight, x), False)
    if not all(isfinite(sound) for sound, _ in parts):
        return _by_formula(norms.rms_norm, norms.rms_norm_backward, dy, (x, weight), axes, eps)
    return dx, None if weight is None else _summed([dw for _, dw in parts], weight)


def _layer_forward(
    needs: Needs, x: Array, weight: Array | None, bias: Array | None, *, axis: Axes, eps: float
) -> tuple[Array, Any] | None:
    """y = (c R) g + b,   c = x − μ"""
    axes, y = len(axis), buffers.like(x)
    rows = _as_rows(x, axes)
    r, t, mean, rest = (np.zeros(len(rows), x.dtype) for _ in range(4))
    arrays = (rows, _as_rows(y, axes), r, t, mean, rest)
    if not all(map(isfinite, over_rows(_layer_rows, arrays, _as_row(weight, x), _as_row(bias, x), eps))):
        return None
    return y, (x, weight, bias, axes, eps, r, t, mean, rest)


def _layer_rows(
    x: Array, y: Array, r: Array, t: Array, mean: Array, rest: Array, row: Array | None, shift: Array | None, eps: float
) -> float:
    if not _centre(x, y, t, mean, rest):
        return nan
    sound = _roots(t, r, x.shape[1], eps)
    np.multiply(y, r[:, None], y)
    if row is not None:
        apply_row(np.multiply, y, row, y)
    if shift is not None:
        apply_row(np.add, y, shift, y)
    return sound


def _centre(x: Array, c: Array, squares: Array, mean: Array, rest: Array) -> bool:
    """x less its mean. Where that is far from 0 its rounding counts: this is the mean of what is left, the rest."""
    width = x.shape[1]
    np.multiply(x.dot(_ones(width, x.dtype)), 1.0 / width, mean)
    np.subtract(x, mean[:, None], c)
    np.vecdot(c, c, squares)
    spread = np.sqrt(squares)
    np.multiply(spread, OFF_CENTRE * width**-0.5, spread)
    size = np.abs(mean)
    if (size > spread).any():
        if (size > NEARLY_CONSTANT / OFF_CENTRE * spread).any():
            return False
        np.multiply(c.dot(_ones(width, x.dtype)), 1.0 / width, rest)
        np.subtract(c, rest[:, None], c)
        np.vecdot(c, c, squares)
    return True


def _layer_backward(dy: Array, cache: Any, needs: Needs) -> tuple[Array | None, ...]:
    """p = ȳ c ;   ḡ = Σ R p ;   b̄ = Σ ȳ ;   x̄ = R (ȳ g − mean(ȳ g) − (p g) / t · c)"""
    x, weight, bias, axes, eps, r, t, mean, rest = cache
    dx = buffers.like(x)
    arrays = (*(_as_rows(a, axes) for a in (x, dy, dx)), r, t, mean, rest)
    parts = over_rows(_layer_pull, arrays, _as_row(weight, x), bias is not None)
    if not all(isfinite(sound) for sound, _, _ in parts):
        return _by_formula(norms.layer_norm, norms.layer_norm_backward, dy, (x, weight, bias), axes, eps)
    dw = None if weight is None else _summed([dw for _, dw, _ in parts], weight)
    return dx, dw, None if bias is None else _summed([db for *_, db in parts], bias)


def _layer_pull(
    x: Array, dy: Array, dx: Array, r: Array, t: Array, mean: Array, rest: Array, row: Array | None, biased: bool
) -> tuple[float, Array | None, Array | None]:
    if not dy.flags.c_contiguous:  # of others, matrix products are slow
        np.copyto(copied := buffers.like(dx), dy)
        dy = copied
    c = np.subtract(x, mean[:, None], dx)
    if rest.any():
        np.subtract(c, rest[:, None], c)
    db = _sum_of_rows(_ones(len(dy), dy.dtype), dy) if biased else None
    return *_pull(c, dy, dx, r, t, row, True), db


def _pull(
    x: Array, dy: Array, dx: Array, r: Array, t: Array, row: Array | None, centred: bool
) -> tuple[float, Array | None]:
    """Into dx, which may be x, the gradient of x; and a number that is finite where p is, and a part of ḡ."""
    width, product, dw, gain = x.shape[1], buffers.like(dx), None, None
    if row is None:
        shrink = np.vecdot(dy, x)
    else:
        gain = row if len(row) == width else row[:width]
        np.multiply(dy, x, product)
        dw, shrink = _sum_of_rows(r, product), product.dot(gain)
    np.divide(shrink, t, shrink)
    np.multiply(x, shrink[:, None], product)
    if centred:
        mean = dy.dot(_ones(width, x.dtype) if gain is None else gain)
        np.multiply(mean, 1.0 / width, mean)
        np.add(product, mean[:, None], product)
    if row is not None:
        dy = apply_row(np.multiply, dy, row, dx)
    np.subtract(dy, product, dx)
    np.multiply(dx, r[:, None], dx)
    return float(shrink.dot(shrink)), dw


@lru_cache(maxsize=16)
def _ones(n: int, dtype: Any) -> Array:
    return np.ones(n, dtype)


def _sum_of_rows(factors: Array, rows: Array) -> Array:
    """Σ of the rows, each times its factor: in groups, as a long running total of like terms drifts."""
    n, width = rows.shape
    whole = n - n % GROUP
    if whole <= GROUP:
        return factors.dot(rows)
    groups = np.matmul(factors[:whole].reshape(-1, 1, GROUP), rows[:whole].reshape(-1, GROUP, width))
    total = _folded(groups[:, 0])
    return total if whole == n else total + factors[whole:].dot(rows[whole:])


def _summed(parts: list[Any], row: Array) -> Array:
    """The sum of the blocks' parts."""
    total = parts[0] if len(parts) == 1 else _folded(np.array(parts))
    return total if row.ndim == 1 else total.reshape(row.shape)


def _folded(parts: Array) -> Array:
    """Σ over the first axis: one half added to the other, again and again."""
    while len(parts) > 1:
        half = len(parts) // 2
        last = parts[2 * half :]
        parts = parts[:half] + parts[half : 2 * half]
        if len(last):
            parts[0] += last[0]
    found: Array = parts[0]
    return found


def _by_formula(
    forward: Any, backward: Any, dy: Array, inputs: tuple[Any, ...], axes: int, eps: float
) -> tuple[Array | None, ...]:
    with np.errstate(all="ignore"):
        _, cache = forward(np, *inputs, axis=tuple(range(-axes, 0)), eps=eps)
        gradients: tuple[Array | None, ...] = backward(np, dy, cache)
    return gradients


rms_norm = Kernel(_suits_rms, _rms_forward, _rms_backward)
layer_norm = Kernel(_suits_layer, _layer_forward, _layer_backward)
