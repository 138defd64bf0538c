"""Softmax and its logarithm over the last axis, in blocks of rows that stay in the cache.

With d = x − max x, e = e^d and S = Σ e,

    p = e / S ;   x̄ = p (ȳ − Σ ȳ p)                    softmax
    y = d − log S ;   x̄ = ȳ − e (Σ ȳ / S)                 its logarithm

Where p is nearly 1, the logarithm and its gradient would lose digits. There it is log S = log(1 + R) with R, the sum of
the other e, and x̄ = (ȳ R − the sum of the other ȳ) / S.
"""

from math import isfinite
from typing import Any

import numpy as np

from ..formulas.losses import LIKELY
from ..formulas.types import Array
from . import buffers
from .blocks import as_rows, over_rows
from .kernel import Kernel, Needs, plain
from .sums import row_sums

NARROW = 64  #: numbers of a row up to which NumPy's reductions take their time, row by row


def _suits(x: Array, *, axis: int) -> bool:
    return type(axis) is int and x.ndim > 0 and axis in (-1, x.ndim - 1) and plain(x)


def _largest(x: Array) -> Array:
    """The largest of each row, as a column: of many short rows, column by column."""
    rows, width = x.shape
    if width > NARROW or rows < 16 * width:
        return np.maximum.reduce(x, -1, keepdims=True)
    largest = x[:, :1].copy()
    for j in range(1, width):
        np.maximum(largest, x[:, j : j + 1], out=largest)
    return largest


def _softmax(needs: Needs, x: Array, *, axis: int) -> tuple[Array, Any] | None:
    """p = e / S, or None where infinities tie for the maximum or something is nan"""
    p = buffers.like(x)
    if not all(map(isfinite, over_rows(_softmax_rows, (as_rows(x), as_rows(p))))):
        return None
    return p, p


def _softmax_rows(x: Array, p: Array) -> float:
    np.subtract(x, _largest(x), p)
    np.exp(p, p)
    mass = row_sums(p)
    np.divide(p, mass[:, None], p)
    return float(np.add.reduce(mass))


def _softmax_backward(dy: Array, p: Any, needs: Needs) -> tuple[Array]:
    """x̄ = p (ȳ − Σ ȳ p)"""
    dx = buffers.like(p)
    over_rows(_softmax_pull, tuple(map(as_rows, (dx, dy, p))))
    return (dx,)


def _softmax_pull(dx: Array, dy: Array, p: Array) -> None:
    dot = row_sums(np.multiply(dy, p, dx)) if p.shape[1] <= NARROW else np.vecdot(dy, p)
    np.subtract(dy, dot[:, None], dx)
    np.multiply(dx, p, dx)


def _log_softmax(needs: Needs, x: Array, *, axis: int) -> tuple[Array, Any] | None:
    """y = d − log S, or None where infinities tie for the maximum or something is nan"""
    y, e, rows = buffers.like(x), buffers.like(x), as_rows(x)
    mass, rest = np.empty((2, len(rows)), x.dtype)
    top = np.full(len(rows), -1)
    if not all(map(isfinite, over_rows(_log_rows, (rows, as_rows(y), as_rows(e), mass, rest, top)))):
        return None
    return y, (e, mass, rest, top)


def _log_rows(x: Array, y: Array, e: Array, mass: Array, rest: Array, top: Array) -> float:
    """`top` is where the largest element of a row is, if its p is nearly 1, and otherwise stays −1."""
    np.subtract(x, _largest(x), y)
    np.exp(y, e)
    row_sums(e, mass)
    log_mass = np.log(mass)
    near = mass * LIKELY <= 1.0
    if near.any():
        flat, width = e.reshape(-1), x.shape[1]
        at = np.flatnonzero(flat == 1.0)
        at = at[near[at // width]]
        flat[at] = 0.0
        row_sums(e, rest)
        flat[at] = 1.0
        row, top[at // width] = at // width, at % width
        log_mass[row] = np.log1p(rest[row])
    np.subtract(y, log_mass[:, None], y)
    return float(np.add.reduce(log_mass))


def _log_backward(dy: Array, cache: Any, needs: Needs) -> tuple[Array]:
    """x̄ = ȳ − e (Σ ȳ / S)"""
    e, *of_rows = cache
    dx = buffers.like(e)
    over_rows(_log_pull, (*map(as_rows, (dx, dy, e)), *of_rows))
    return (dx,)


def _log_pull(dx: Array, dy: Array, e: Array, mass: Array, rest: Array, top: Array) -> None:
    total = row_sums(dy)
    np.multiply(e, (total / mass)[:, None], dx)
    np.subtract(dy, dx, dx)
    near = np.flatnonzero(top >= 0)
    if len(near):
        at = near, top[near]
        dx[at] = (dy[at] * rest[near] - (total[near] - dy[at])) / mass[near]


softmax = Kernel(_suits, _softmax, _softmax_backward)
log_softmax = Kernel(_suits, _log_softmax, _log_backward)
