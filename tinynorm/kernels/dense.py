"""Linear: products that go straight into memory at hand, and the bias added where they lie.

    y = x Wᵀ, then y += b                                              forward
    x̄ = ȳ W ;   W̄ = ȳᵀ x ;   b̄ = 1ᵀ ȳ, a product of a row and a matrix    backward

`sums` keeps the last from drifting, and `contracted` the one before.
"""

from typing import Any

import numpy as np

from ..formulas.summation import FEW, contracted
from ..formulas.types import Array
from . import buffers
from .blocks import SMALL, apply_row, as_rows, over_rows, tiled
from .kernel import Kernel, Needs
from .sums import column_sums


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


def _forward(needs: Needs, x: Array, weight: Array, bias: Array | None) -> tuple[Array, Any]:
    """y = x Wᵀ + b"""
    rows = as_rows(x)
    y = _product(rows, weight.T)
    if bias is not None:
        if y.size <= SMALL:
            np.add(y, bias, y)
        else:
            over_rows(lambda part, row: apply_row(np.add, part, row, part), (y,), tiled(bias))
    return y if rows is x else y.reshape(*x.shape[:-1], -1), (x if needs[1] else None, weight if needs[0] else None)


def _product(a: Array, b: Array) -> Array:
    """A B by `dot`, which for small matrices takes half the time that `matmul` needs beside the product itself.

    Products with a row or a column raise a flag now and then that numbers are invalid of which none is; OpenBLAS
    computes with what lies beside them too. So that is ignored there. Of all else NumPy says what it was told to say.
    """
    product = buffers.empty((len(a), b.shape[1]), a.dtype)
    if 1 not in a.shape and b.shape[1] != 1:
        np.dot(a, b, product)
    else:
        with np.errstate(invalid="ignore"):
            np.dot(a, b, product)
    return product


def _backward(dy: Array, cache: Any, needs: Needs) -> tuple[Array | None, Array | None, Array | None]:
    """x̄ = ȳ W ;   W̄ = ȳᵀ x ;   b̄ = 1ᵀ ȳ"""
    x, weight = cache
    dx = dw = None
    rows = as_rows(np.ascontiguousarray(dy))
    if needs[0]:
        dx = _product(rows, weight)
        if dy.ndim != 2:
            dx = dx.reshape(*dy.shape[:-1], -1)
    if needs[1]:
        dw = _outer(rows, as_rows(x))
    return dx, dw, column_sums(rows) if needs[2] else None


def _outer(left: Array, right: Array) -> Array:
    """Aᵀ B. `contracted` cuts a product of many rows in pieces, but none of so few."""
    if len(left) <= FEW or len(left) <= 8 * min(left.shape[1], right.shape[1]):
        return _product(left.T, right)
    return contracted(np, left.T, right)


linear = Kernel(_suits, _forward, _backward)
