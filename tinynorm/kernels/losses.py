"""Softmax-cross-entropy in few passes.

With d = z − max z, e = e^d, S = Σ e, the gradient ℓ̄ of a row's loss, and a target q of u = (s / C) w everywhere and
h = (1 − s) w_t more at the row's class t, of mass m = h + Σ u,

    ℓ = m log S − h d_t − Σ u d              forward
    z̄ = e (m ℓ̄ / S) − u ℓ̄, less h ℓ̄ at t      backward

so that q is nowhere written out. The largest e of a row is 1 whatever z is, so log S is log1p of the sum of the others,
which keeps its digits where it is near 0. Finding where the largest is takes less time than finding what it is.
"""

from functools import lru_cache
from math import isfinite
from typing import Any

import numpy as np

from ..formulas.losses import LIKELY, Targets, spread
from ..formulas.types import Array
from . import buffers
from .blocks import as_rows, over_rows
from .kernel import Kernel, Needs, plain
from .sums import row_sums


def _suits(z: Array, *, target: Targets, divisor: Any = None) -> bool:
    return plain(z) and target.kept is None and target.weight.dtype is z.dtype


def _forward(needs: Needs, z: Array, *, target: Targets, divisor: Any = None) -> tuple[Array, Any] | None:
    """ℓ = m log S − h d_t − Σ u d, or None where a row counts for nothing or a number is not finite"""
    _, index, weight, _, s = target
    e, t = buffers.like(z), index.reshape(-1)
    scores, into = as_rows(z), as_rows(e)
    n, classes = scores.shape
    loss, total_e, top = np.empty(n, z.dtype), np.empty(n, z.dtype), np.empty(n, np.intp)
    h, u = ((1.0 - s) * weight).take(t), s / classes * weight if s else None
    mass = h if u is None else h + np.add.reduce(u)
    if not all(over_rows(_rows, (scores, into, t, h, mass, loss, total_e, top), u)):
        return None
    if divisor is not None:
        loss = np.asarray(np.add.reduce(loss) / divisor)
    elif z.ndim != 2:
        loss = loss.reshape(z.shape[:-1])
    return loss, (e, total_e, top, t, h, mass, u, divisor)


def _rows(
    z: Array, e: Array, t: Array, h: Array, mass: Array, loss: Array, total_e: Array, top: Array, u: Array | None
) -> bool:
    """The forward of a block of rows. Whether each counts for something, and its numbers are finite."""
    starts, flat = _starts(*z.shape), e.reshape(-1)
    at = np.add(starts, z.argmax(1, top))
    np.subtract(z, z.take(at)[:, None], e)
    np.multiply(flat.take(starts + t), h, loss)
    if u is not None:
        np.add(loss, np.vecdot(e, u), loss)
    np.exp(e, e)
    flat[at] = 0.0
    row_sums(e, total_e)
    flat[at] = 1.0
    log = np.log1p(total_e)
    np.add(total_e, 1.0, total_e)
    np.multiply(log, mass, log)
    np.subtract(log, loss, loss)
    np.divide(loss, mass, log)
    return isfinite(log.dot(log))


def _backward(dy: Array, cache: Any, needs: Needs) -> tuple[Array]:
    """z̄ = e (m ℓ̄ / S) − q ℓ̄ ; where the two may nearly cancel, from the others: a row's sum is 0"""
    e, total_e, top, t, h, mass, u, divisor = cache
    dz, each = buffers.like(e), spread(dy, divisor)
    for_all, for_each = (each, None) if each.ndim == 0 else (None, each.reshape(-1))
    over_rows(_pull, (as_rows(e), as_rows(dz), t, h, mass, total_e, top, for_each), for_all, u)
    return (dz,)


def _pull(
    e: Array,
    dz: Array,
    t: Array,
    h: Array,
    mass: Array,
    total_e: Array,
    top: Array,
    for_each: Any,
    for_all: Any,
    u: Any,
) -> None:
    """The backward of a block of rows. ℓ̄ is one number for each row, or one for all."""
    dy, starts, flat = for_all if for_each is None else for_each, _starts(*dz.shape), dz.reshape(-1)
    factor = np.multiply(mass, dy)
    np.divide(factor, total_e, factor)
    np.multiply(e, factor[:, None], dz)
    if u is not None:
        np.subtract(dz, np.multiply(u, dy if for_each is None else dy[:, None]), dz)
    flat[starts + t] -= h * dy
    likely = total_e <= 1.0 / LIKELY
    if likely.any():
        at = np.add(starts, top)
        computed = flat.take(at)
        flat[at] = 0.0
        flat[at] = np.where(likely, -row_sums(dz), computed)


@lru_cache(maxsize=16)
def _starts(n: int, width: int) -> Array:
    """Where rows begin."""
    return np.arange(0, n * width, width)


cross_entropy = Kernel(_suits, _forward, _backward)
