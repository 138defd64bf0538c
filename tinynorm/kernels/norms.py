"""RMSNorm and LayerNorm over the last axes, in few passes over blocks of rows.

With n features, t = Σ x² + n ε and R = √(n / t), which is the formula's r, the passes over a block are

    y = (x R) g                                              forward: Σ x², x R, times g
    p = ȳ x ;   ḡ += R p ;   a = (p g) / t ;   x̄ = R (ȳ g − a x)             backward

where Σ x², R p and p g are matrix products (p is a matrix, R and g are vectors), the cheapest of all reductions.
LayerNorm has c = x − μ for x, and x̄ less its mean, which is that of ȳ g, a matrix product as well. It keeps c where
x has one block; of more, writing it to memory would take longer than computing it again.

Of a small array a pass takes a microsecond, whatever it does, and so does anything else that is done beside the passes.
So they follow one another in a straight line, and numbers that belong to a width and an ε are kept as arrays. Of short
rows it is one number for each that costs: columns are spread out by a product of matrices, and R g is computed first.

Whatever these steps cannot take goes to the formula: rows whose squares leave the range, and those that are nearly
constant, which the forward sees; cotangents whose products leave the range, which the backward sees.
"""

from functools import lru_cache
from math import isfinite, prod
from typing import Any

import numpy as np

from ..formulas import norms
from ..formulas.types import Array, Axes, Shape
from . import buffers
from .blocks import BLOCK, LONG, SMALL, apply_row, in_one, outer, over_rows, tiled
from .kernel import Kernel, Needs, plain
from .sums import folded, ones, weighted_sum

Into = Any  #: the array that a result goes into, or None for a new one

WIDEST = 2**20  #: products of more numbers than this lose digits; and ones to multiply them are kept
OFF_CENTRE = 4.0  #: rows whose mean is larger than so many times their spread are centred twice
NEARLY_CONSTANT = 4096.0  #: and these take the formula
LARGEST = 2.0**20  #: so do rows with a larger R, since p = ȳ x may lose digits to underflow where ȳ h does not
LEAST, MODERATE = 2.0**-20, 2.0**60  #: where R is no less, and g no larger, R g is far from the ends of the range


def _suits_rms(x: Array, weight: Array | None, *, axis: Axes, eps: float) -> bool:
    return _suits(x, axis, 1) and (weight is None or _fits(weight, x, axis))


def _suits_layer(x: Array, weight: Array | None, bias: Array | None, *, axis: Axes, eps: float) -> bool:
    fits = weight is None or _fits(weight, x, axis)
    return fits and _suits(x, axis, 2) and (bias is None or _fits(bias, x, axis))


def _suits(x: Array, axis: Axes, too_few: int) -> bool:
    """Of gradients of one number, or of two centred ones, but a part ε r² is left, which has a formula of its own."""
    if axis == (-1,):
        width = x.shape[-1]
    elif axis == tuple(range(-len(axis), 0)):
        width = prod(x.shape[-len(axis) :])
    else:
        return False
    return too_few < width <= WIDEST and plain(x)


def _fits(row: Array, x: Array, axis: Axes) -> bool:
    return bool(row.dtype == x.dtype and row.shape == x.shape[-len(axis) :] and row.flags.c_contiguous)


def _straight(x: Array, axes: int) -> bool:
    """Whether this is a small matrix already, whose rows are taken all at once."""
    return x.size <= SMALL and axes == 1 and x.ndim == 2


def _matrices(axes: int, *arrays: Array) -> tuple[Array, ...]:
    """Matrices of rows of what is normalized together."""
    shape = arrays[0].shape
    if len(shape) == 2 and axes == 1:
        return arrays
    width = prod(shape[-axes:])
    return tuple([a.reshape(-1, width) for a in arrays])


def _into(x: Array) -> Into:
    """Memory at hand; what is small NumPy has itself."""
    return None if x.nbytes < buffers.SMALL else buffers.like(x)


def _as_row(weight: Array | None, size: int) -> Array | None:
    if weight is None:
        return None
    row = weight if weight.ndim == 1 else weight.reshape(-1)
    return row if size <= SMALL else tiled(row)


@lru_cache(maxsize=64)
def _numbers(width: int, eps: float, char: str) -> tuple[Array, Array]:
    """n and n ε, as arrays of no axes: with these NumPy computes in half the time that numbers of Python's take it."""
    return np.array(width, char), np.array(width * eps, char)


@lru_cache(maxsize=16)
def _shares(width: int, char: str) -> Array:
    """A row of 1 / n, with which a matrix product is a mean."""
    return np.full(width, 1.0 / width, char)


def _rms_forward(needs: Needs, x: Array, weight: Array | None, *, axis: Axes, eps: float) -> tuple[Array, Any] | None:
    """y = (x R) g"""
    axes = len(axis)
    if _straight(x, axes):
        sound, y, r, t = in_one(x, _rms_rows, x, _into(x), None, None, weight, eps)
        return (y, (x, weight, 1, eps, r, t)) if sound else None
    y = buffers.like(x)
    rows, into = _matrices(axes, x, y)
    r, t = np.empty(len(rows), x.dtype), np.empty(len(rows), x.dtype)
    if not all(sound for sound, *_ in over_rows(_rms_rows, (rows, into, r, t), _as_row(weight, x.size), eps)):
        return None
    return y, (x, weight, axes, eps, r, t)


def _rms_rows(x: Array, y: Into, r: Into, t: Into, row: Array | None, eps: float) -> tuple[bool, Array, Array, Array]:
    t = np.vecdot(x, x, t)
    sound, r = _roots(t, r, x.shape[1], eps)
    return sound, _scaled(x, r, row, y, y), r, t


def _short(x: Array) -> bool:
    """Whether one number for each row costs more than a product of matrices that spreads them out."""
    return bool(x.shape[1] < LONG and x.size > SMALL)


def _spread(column: Array, x: Array, into: Into) -> Array:
    """A column to be applied to the rows of x; of short rows, spread out."""
    return outer(column, ones(x.shape[1], x.dtype.char), into) if _short(x) else column[:, None]


def _scaled(x: Array, r: Array, row: Array | None, y: Into, factors: Into) -> Array:
    """(x R) g, or of short rows x (R g), which goes into `factors` if there are any."""
    width = x.shape[1]
    if factors is not None and row is not None and len(row) != width and _moderate(r, gain := row[:width]):
        return np.multiply(x, outer(r, gain, factors), y)
    y = np.multiply(x, r[:, None], y)
    return y if row is None else apply_row(np.multiply, y, row, y)


def _moderate(r: Array, gain: Array) -> bool:
    """Whether R g may be multiplied first: neither is near the ends of the range."""
    return bool(r.min() >= LEAST and gain.dot(gain) <= MODERATE**2)


def _roots(t: Array, r: Into, width: int, eps: float) -> tuple[bool, Array]:
    """Makes t = s + n ε of s, and R; and whether all of them are finite, and of use."""
    n, more = _numbers(width, eps, t.dtype.char)
    np.add(t, more, t)
    r = np.divide(n, t, r)
    np.sqrt(r, r)
    if eps < LARGEST**-2 and not r.max() <= LARGEST:  # with more ε, no R is larger
        return False, r
    return isfinite(t.dot(r)), r  # Σ √(n t), but nan where a t is 0 or ∞


def _rms_backward(dy: Array, cache: Any, needs: Needs) -> tuple[Array | None, ...]:
    """p = ȳ x ;   ḡ = Σ R p ;   x̄ = R (ȳ g − (p g) / t · x)"""
    x, weight, axes, eps, r, t = cache
    if _straight(x, axes) and dy.flags.c_contiguous:
        size, dx, dw = in_one(x, _pull, x, dy, _into(x), r, t, weight, None)
        if isfinite(size):
            return dx, dw
    else:
        dx = buffers.like(x)
        parts = over_rows(_pull, (*_matrices(axes, x, dy, dx), r, t), _as_row(weight, x.size), None)
        if all(isfinite(size) for size, *_ in parts):
            return dx, None if weight is None else _summed([dw for *_, dw in parts], weight.shape)
    return _by_formula(norms.rms_norm, norms.rms_norm_backward, dy, (x, weight), axes, eps)


def _layer_forward(
    needs: Needs, x: Array, weight: Array | None, bias: Array | None, *, axis: Axes, eps: float
) -> tuple[Array, Any] | None:
    """y = (c R) g + b,   c = x − μ"""
    axes = len(axis)
    if _straight(x, axes):
        sound, c, y, r, t = in_one(x, _layer_rows, x, _into(x), _into(x), None, None, None, None, weight, bias, eps)
        return (y, (c, weight, bias is not None, 1, eps, r, t, None, None)) if sound else None
    kept, y = x, buffers.like(x)
    means: tuple[Into, Into] = None, None
    rows, into = _matrices(axes, x, y)
    r, t = np.empty(len(rows), x.dtype), np.empty(len(rows), x.dtype)
    if x.size <= BLOCK:
        kept = buffers.like(x)
        (c,) = _matrices(axes, kept)
    else:  # writing c to memory would take longer than computing it again
        c, means = into, (np.empty_like(r), np.zeros_like(r))
    row, shift = _as_row(weight, x.size), _as_row(bias, x.size)
    parts = over_rows(_layer_rows, (rows, c, into, r, t, *means), row, shift, eps)
    if not all(sound for sound, *_ in parts):
        return None
    return y, (kept, weight, bias is not None, axes, eps, r, t, *means)


def _layer_rows(
    x: Array, c: Into, y: Into, r: Into, t: Into, mean: Into, rest: Into, row: Into, shift: Into, eps: float
) -> tuple[bool, Array, Array, Array, Array]:
    width, share = x.shape[1], _shares(x.shape[1], x.dtype.char)
    mean = x.dot(share, mean)
    c = np.subtract(x, _spread(mean, x, c), c)
    t = np.vecdot(c, c, t)
    ratio = np.divide(mean, np.sqrt(t))
    sound = ratio.dot(ratio) * width <= OFF_CENTRE**2 or _centred_again(c, t, rest, ratio, share)
    fine, r = _roots(t, r, width, eps)
    y = _scaled(c, r, row, y, buffers.like(c) if _short(x) else None)  # c may lie where y is to be
    if shift is not None:
        apply_row(np.add, y, shift, y)
    return sound and fine, c, y, r, t


def _centred_again(c: Array, squares: Array, rest: Into, ratio: Array, share: Array) -> bool:
    """Less the mean of what is left, the rest, if some row's mean is so far from 0 that its rounding counts."""
    far = np.fmax.reduce(np.abs(ratio, ratio)) * len(share) ** 0.5  # nan is 0 / 0, or will be found
    if far > NEARLY_CONSTANT:
        return False
    if far > OFF_CENTRE:
        rest = c.dot(share, rest)
        np.subtract(c, rest[:, None], c)
        np.vecdot(c, c, squares)
    return True


def _layer_backward(dy: Array, cache: Any, needs: Needs) -> tuple[Array | None, ...]:
    """p = ȳ c ;   ḡ = Σ R p ;   b̄ = Σ ȳ ;   x̄ = R (ȳ g − mean(ȳ g) − (p g) / t · c)"""
    x, weight, biased, axes, eps, r, t, mean, rest = cache
    if _straight(x, axes) and dy.flags.c_contiguous:
        size, dx, dw, db = in_one(x, _layer_pull, x, dy, _into(x), r, t, None, None, weight, biased)
        if isfinite(size):
            return dx, dw, db
    else:
        dx = buffers.like(x)
        arrays = (*_matrices(axes, x, dy, dx), r, t, mean, rest)
        parts = over_rows(_layer_pull, arrays, _as_row(weight, x.size), biased)
        if all(isfinite(size) for size, *_ in parts):
            shape = x.shape[x.ndim - axes :]
            dw = None if weight is None else _summed([dw for _, _, dw, _ in parts], shape)
            return dx, dw, _summed([db for *_, db in parts], shape) if biased else None
    return _by_formula(norms.layer_norm, norms.layer_norm_backward, dy, (x, weight, None), axes, eps)


def _layer_pull(
    x: Array, dy: Array, dx: Into, r: Array, t: Array, mean: Into, rest: Into, row: Into, biased: bool
) -> tuple[float, Array, Array | None, Array | None]:
    if not dy.flags.c_contiguous:  # of others, matrix products are slow
        np.copyto(copied := buffers.like(dx), dy)
        dy = copied
    if mean is not None:  # or x is c already
        x = np.subtract(x, mean[:, None], dx)
        if rest.any():
            np.subtract(x, rest[:, None], x)
    db = weighted_sum(ones(len(dy), dy.dtype.char), dy) if biased else None
    return *_pull(x, dy, dx, r, t, row, _shares(x.shape[1], x.dtype.char)), db


def _pull(
    x: Array, dy: Array, dx: Into, r: Array, t: Array, row: Array | None, share: Array | None
) -> tuple[float, Array, Array | None]:
    """Into dx, which may be x, the gradient of x; and a number that is finite where p is, and a part of ḡ."""
    product, dw, gain = None if dx is None else buffers.like(dx), None, None
    if row is None:
        shrink = np.vecdot(dy, x)
    else:
        gain = row if len(row) == x.shape[1] else row[: x.shape[1]]
        product = np.multiply(dy, x, product)
        dw, shrink = weighted_sum(r, product), product.dot(gain)
    np.divide(shrink, t, shrink)
    size, joined = shrink.dot(shrink), gain is not row and _moderate(r, gain)
    if joined:
        np.multiply(shrink, r, shrink)
    product = np.multiply(x, _spread(shrink, x, product), product)
    if share is not None:
        mean = dy.dot(share if gain is None else np.multiply(share, gain))
        if joined:
            np.multiply(mean, r, mean)
        np.add(product, _spread(mean, x, dx), product)
    if joined:
        dx = np.multiply(dy, outer(r, gain, dx), dx)
        return size, np.subtract(dx, product, dx), dw
    if row is not None:
        dy = dx = apply_row(np.multiply, dy, row, dx)
    dx = np.subtract(dy, product, dx)
    return size, np.multiply(dx, r[:, None], dx), dw


def _summed(parts: list[Any], shape: Shape) -> Array:
    """The sum of the blocks' parts."""
    total = parts[0] if len(parts) == 1 else folded(np.array(parts))
    return total if len(shape) == 1 else total.reshape(shape)


def _by_formula(
    forward: Any, backward: Any, dy: Array, inputs: tuple[Any, ...], axes: int, eps: float
) -> tuple[Array | None, ...]:
    with np.errstate(all="ignore"):
        _, cache = forward(np, *inputs, axis=tuple(range(-axes, 0)), eps=eps)
        gradients: tuple[Array | None, ...] = backward(np, dy, cache)
    return gradients


rms_norm = Kernel(_suits_rms, _rms_forward, _rms_backward)
layer_norm = Kernel(_suits_layer, _layer_forward, _layer_backward)
