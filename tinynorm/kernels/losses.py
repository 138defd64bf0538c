"""Softmax-cross-entropy in few passes.

With d = z − max z, e = e^d, S = Σ e, a row's mass m = Σ q and the gradient ℓ̄ of its loss,

    ℓ = m log S − Σ q d                      forward
    z̄ = e (m ℓ̄ / S) − q ℓ̄                    backward

The largest e of a row is 1 whatever z is, so log S is log1p of the sum of the others, which keeps its digits where it
is near 0. Finding where the largest is takes less time than finding what it is.
"""

from functools import lru_cache
from math import isfinite
from typing import Any

import numpy as np

from ..formulas.losses import LIKELY, spread
from ..formulas.types import Array
from . import buffers
from .blocks import as_rows, over_rows
from .kernel import Kernel, Needs, plain
from .sums import row_sums


def _suits(z: Array, *, q: Array, divisor: float | None = None) -> bool:
    return plain(z) and q.dtype is z.dtype and q.shape == z.shape and q.flags.c_contiguous


def _forward(needs: Needs, z: Array, *, q: Array, divisor: float | None = None) -> tuple[Array, Any] | None:
    """ℓ = m log S − Σ q d, or None where a row counts for nothing or a number is not finite"""
    e = buffers.like(z)
    scores, shares, into = map(as_rows, (z, q, e))
    n = len(scores)
    loss, mass, total_e, top = *(np.empty(n, z.dtype) for _ in range(3)), np.empty(n, np.intp)
    if not all(over_rows(_rows, (scores, shares, into, loss, mass, total_e, top))):
        return None
    if divisor is not None:
        loss = np.asarray(np.add.reduce(loss) / divisor)
    elif z.ndim != 2:
        loss = loss.reshape(z.shape[:-1])
    return loss, (e, total_e, top, q, mass, divisor)


def _rows(z: Array, q: Array, e: Array, loss: Array, mass: Array, total_e: Array, top: Array) -> bool:
    at = np.add(_starts(*z.shape), z.argmax(1, top))
    np.subtract(z, z.take(at)[:, None], e)
    np.vecdot(q, e, loss)
    np.exp(e, e)
    flat = e.reshape(-1)
    flat[at] = 0.0
    row_sums(e, total_e)
    flat[at] = 1.0
    row_sums(q, mass)
    log = np.log1p(total_e)
    np.add(total_e, 1.0, total_e)
    np.multiply(log, mass, log)
    np.subtract(log, loss, loss)
    np.divide(loss, mass, log)
    return isfinite(log.dot(log))


def _backward(dy: Array, cache: Any, needs: Needs) -> tuple[Array]:
    """z̄ = e (m ℓ̄ / S) − q ℓ̄ ; where the two may nearly cancel, from the others: a row's sum is 0"""
    e, total_e, top, q, mass, divisor = cache
    dz, each = buffers.like(e), spread(dy, divisor)
    for_all, for_each = (each, None) if each.ndim == 0 else (None, each.reshape(-1))
    over_rows(_pull, (*map(as_rows, (e, q, dz)), mass, total_e, top, for_each), for_all)
    return (dz,)


def _pull(e: Array, q: Array, dz: Array, mass: Array, total_e: Array, top: Array, for_each: Any, for_all: Any) -> None:
    factor = np.multiply(mass, for_all if for_each is None else for_each)
    np.divide(factor, total_e, factor)
    np.multiply(e, factor[:, None], dz)
    np.subtract(dz, np.multiply(q, for_all if for_each is None else for_each[:, None]), dz)
    likely = total_e <= 1.0 / LIKELY
    if likely.any():
        at, flat = np.add(_starts(*dz.shape), top), dz.reshape(-1)
        computed = flat.take(at)
        flat[at] = 0.0
        flat[at] = np.where(likely, -row_sums(dz), computed)


@lru_cache(maxsize=16)
def _starts(n: int, width: int) -> Array:
    """Where rows begin."""
    return np.arange(0, n * width, width)


cross_entropy = Kernel(_suits, _forward, _backward)
