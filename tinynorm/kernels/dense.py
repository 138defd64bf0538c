"""Linear: products that go straight into memory at hand, and the bias added where they lie.

    y = x Wᵀ, then y += b                                              forward
    x̄ = ȳ W ;   W̄ = ȳᵀ x ;   b̄ = 1ᵀ ȳ, a product of a row and a matrix    backward

The last adds rows to a running total, in which errors grow with their number. So where there are many it adds `PARTS`
parts of the matrix to one another, then parts of the result, and so on.
"""

from functools import lru_cache
from typing import Any

import numpy as np

from ..formulas.summation import FEW, contracted
from ..formulas.types import Array
from . import buffers
from .blocks import SMALL, apply_row, each_block, tiled
from .kernel import Kernel

PARTS = 8  #: parts that are added to one another; equal rows, the worst case, then cost 2 eps


def _suits(x: Array, weight: Array, bias: Array | None) -> bool:
    dtype = x.dtype
    return (
        dtype.char in "fd"
        and weight.dtype is dtype
        and (bias is None or bias.dtype is dtype)
        and (x.ndim == 2 or (x.ndim > 2 and x.flags.c_contiguous))
        and weight.ndim == 2
        and x.shape[-1] == weight.shape[1]
        and (bias is None or bias.shape == weight.shape[:1])
        and x.size > 0 < weight.size
    )


def _forward(needs: tuple[bool, ...], x: Array, weight: Array, bias: Array | None) -> tuple[Array, Any]:
    """y = x Wᵀ + b"""
    out = len(weight)
    y = buffers.empty((*x.shape[:-1], out), x.dtype)
    into = y.reshape(-1, out)
    np.matmul(x.reshape(-1, x.shape[-1]), weight.T, into)
    if bias is not None:
        _add_to_rows(into, bias)
    return y, (x if needs[1] else None, weight if needs[0] else None)


def _add_to_rows(rows: Array, bias: Array) -> None:
    if rows.size <= SMALL:
        np.add(rows, bias, rows)
        return
    row = tiled(bias)
    each_block(lambda block: apply_row(np.add, rows[block], row, rows[block]), *rows.shape)


def _backward(dy: Array, cache: Any, needs: tuple[bool, ...]) -> tuple[Array | None, Array | None, Array | None]:
    """x̄ = ȳ W ;   W̄ = ȳᵀ x ;   b̄ = 1ᵀ ȳ"""
    x, weight = cache
    dx = dw = None
    rows = np.ascontiguousarray(dy).reshape(-1, dy.shape[-1])
    if needs[0]:
        dx = buffers.empty((*dy.shape[:-1], weight.shape[1]), dy.dtype)
        np.matmul(rows, weight, dx.reshape(-1, weight.shape[1]))
    if needs[1]:
        dw = _outer(rows, x.reshape(-1, x.shape[-1]))
    return dx, dw, column_sums(rows) if needs[2] else None


def _outer(left: Array, right: Array) -> Array:
    """Aᵀ B. `contracted` cuts a product of many rows in pieces, but none of so few."""
    if len(left) > max(FEW, 8 * min(left.shape[1], right.shape[1])):
        return contracted(np, left.T, right)
    product = buffers.empty((left.shape[1], right.shape[1]), left.dtype)
    return np.matmul(left.T, right, product)


def column_sums(rows: Array) -> Array:
    """Σ of the rows of a matrix in C order, as an array of its own."""
    n, width = rows.shape
    if n <= FEW:
        return np.matmul(_ones(n, rows.dtype), rows)
    whole = n - n % PARTS
    sums = np.matmul(_ones(PARTS, rows.dtype), rows[:whole].reshape(PARTS, -1)).reshape(-1, width)
    found = column_sums(sums)
    return found if whole == n else found + np.matmul(_ones(n - whole, rows.dtype), rows[whole:])


@lru_cache(maxsize=64)
def _ones(n: int, dtype: Any) -> Array:
    ones = np.ones(n, dtype)
    ones.flags.writeable = False
    return ones


linear = Kernel(_suits, _forward, _backward)
