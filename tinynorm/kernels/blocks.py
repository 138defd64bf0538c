"""Rows in blocks that stay in the cache, under NumPy's settings for them.

A setting holds in the context in which it was made, so contexts that have theirs are kept, and a copy of one is
entered, in a tenth of the time of `np.errstate`. Two things are set. No warnings: kernels look for overflow themselves.
And the size of NumPy's buffer: operands that are broadcast, one value per row or one row for all, are copied through it
wherever two rows fit in there, which costs more than it saves where rows are long.
"""

from collections.abc import Callable
from contextvars import Context
from typing import Any, TypeVar

import numpy as np

from ..formulas.types import Array
from . import threads

R = TypeVar("R")

BLOCK = 131_072  #: elements of a block: with fewer, what each costs beside its work counts; more leave the cache
TALL = 8192  #: and so many of its rows at most, since sums over them are running totals
SMALL = 24_576  #: up to so many elements it does not pay to repeat a row
LONG = 256  #: elements of a row from which on the buffer only costs
TILE = 2048  #: elements of several rows that meet one row in one go, where four or more have so many


def quiet(**which: Any) -> Context:
    """A context in which `np.errstate` holds. Kernels that let NumPy say nothing look for what is amiss themselves."""
    context = Context()
    context.run(np.seterr, **which)
    return context


_FOR_LONG, _FOR_SHORT = quiet(all="ignore"), quiet(all="ignore")
_FOR_LONG.run(np.setbufsize, 16)
_FOR_SHORT.run(np.setbufsize, TILE // 2)


def cut(n: int, size: int) -> list[slice]:
    """n elements, or rows, in pieces of a size. They never depend on the number of threads."""
    return [slice(low, low + size) for low in range(0, n, size)]


def in_one(rows: Array, run: Callable[..., R], *arguments: Any) -> R:
    """``run(*arguments)``, which takes all rows at once."""
    return (_FOR_LONG if rows.shape[1] >= LONG else _FOR_SHORT).copy().run(run, *arguments)


def over_rows(run: Callable[..., R], arrays: tuple[Any, ...], *rest: Any) -> list[R]:
    """``run(*arrays, *rest)`` on the rows of a block, then of the next, by several threads where it pays.

    The first array is a matrix; others may be None. The blocks depend on its shape alone, so sums over them agree.
    """
    first = arrays[0]
    rows, width = first.shape
    if rows * width <= BLOCK and rows <= TALL:
        return [in_one(first, run, *arrays, *rest)]
    height = min(max(1, BLOCK // width), TALL)
    if 4 * width <= TILE:
        height -= height % (TILE // width)  # whole tiles

    def on_block(block: slice) -> R:
        return in_one(first, run, *[a if a is None else a[block] for a in arrays], *rest)

    return threads.each(on_block, cut(rows, height), rows * width)


def as_rows(x: Array) -> Array:
    """A matrix of what lies along the last axis."""
    return x if x.ndim == 2 else x.reshape(-1, x.shape[-1])


def outer(column: Array, row: Array, out: Array) -> Array:
    """A column times a row, which for short rows is faster than what NumPy does with one number for each.

    It is a product of two columns and two rows, of which the second are 0: BLAS is not asked for a product of one.
    """
    left, right = np.zeros((len(column), 2), out.dtype), np.zeros((2, len(row)), out.dtype)
    left[:, 0], right[0] = column, row
    return np.matmul(left, right, out)


def tiled(row: Array | None) -> Array | None:
    """A row that is applied to many: repeated where it is short."""
    return row if row is None or 4 * len(row) > TILE else np.concatenate([row] * (TILE // len(row)))


def apply_row(operation: np.ufunc, rows: Array, row: Array, out: Array) -> Array:
    """``operation(rows, row, out)`` for a row that may be `tiled`; `out` is contiguous."""
    height, width = rows.shape
    if len(row) == width:
        return operation(rows, row, out)
    times = len(row) // width
    whole = height - height % times
    operation(rows[:whole].reshape(-1, len(row)), row, out[:whole].reshape(-1, len(row)))
    if whole < height:
        operation(rows[whole:], row[:width], out[whole:])
    return out
