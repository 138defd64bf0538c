"""Rows in blocks that stay in the cache, under NumPy's settings for them.

A setting holds in the context in which it was made, so contexts that have theirs are kept, and a copy of one is
entered, in a tenth of the time of `np.errstate`. Two things are set. No warnings: kernels look for overflow themselves.
And the size of NumPy's buffer: operands that are broadcast, one value per row or one row for
all, are copied through it wherever two rows fit in there, which costs more than it saves where rows are long.
"""

from collections.abc import Callable
from contextvars import Context
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from ..formulas.types import Array
from . import threads

R = TypeVar("R")

BLOCK = (
    131_072  #: elements of a block: fewer, and what each costs beside its work counts; more, and they leave the cache
)
TALL = 8192  #: and so many of its rows at most, since sums over them are running totals
SMALL = 24_576  #: up to so many elements it does not pay to repeat a row
LONG = 256  #: elements of a row from which on the buffer only costs
TILE = 2048  #: elements of several rows that meet one row in one go, where four or more have so many


def _settings(buffer: int) -> Context:
    context = Context()
    context.run(np.seterr, all="ignore")
    context.run(np.setbufsize, buffer)
    return context


_FOR_LONG, _FOR_SHORT = _settings(16), _settings(TILE // 2)


def each_block(run: Callable[[slice], R], rows: int, width: int) -> list[R]:
    """``run(block)`` for the rows of a block, then of the next, by several threads where it pays.

    The blocks depend on the shape alone, so that sums over them always agree.
    """
    context = _FOR_LONG if width >= LONG else _FOR_SHORT
    if rows * width <= BLOCK and rows <= TALL:
        return [context.copy().run(run, slice(None))]
    height = min(max(1, BLOCK // width), TALL)
    if 4 * width <= TILE:
        height -= height % (TILE // width)  # whole tiles
    blocks = [slice(low, min(low + height, rows)) for low in range(0, rows, height)]
    return threads.each(lambda block: context.copy().run(run, block), blocks, rows * width)


def in_one(rows: Array, run: Callable[..., R], *arguments: Any) -> R:
    """``run(*arguments)``, which takes all rows at once."""
    return (_FOR_LONG if rows.shape[1] >= LONG else _FOR_SHORT).copy().run(run, *arguments)


def over_rows(run: Callable[..., R], arrays: tuple[Any, ...], *rest: Any) -> list[R]:
    """``run(*arrays, *rest)`` on the rows of a block, then of the next. The first is a matrix; others may be None."""
    rows, width = arrays[0].shape
    if rows * width <= BLOCK and rows <= TALL:
        return [in_one(arrays[0], run, *arrays, *rest)]
    return each_block(lambda block: run(*[a if a is None else a[block] for a in arrays], *rest), rows, width)


@lru_cache(maxsize=64)
def ones(n: int, char: str) -> Array:
    """A row of ones, with which a matrix product is a sum."""
    row = np.ones(n, char)
    row.flags.writeable = False
    return row


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
