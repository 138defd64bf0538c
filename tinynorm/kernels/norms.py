"""RMSNorm and LayerNorm over the last axis, in few passes over blocks of rows.

With n features, sum of squares s = Σ x² and R = √n / √(s + n ε), which is the formula's r, the passes over a block are

    y = (x R) g                                              forward: Σ x², x R, times g
    p = ȳ x ;   ḡ += R p ;   a = (p g) R³ / n ;   x̄ = R ȳ g − a x            backward

where Σ x², R p and p g are matrix products (p is a matrix, R and g are vectors), the cheapest of all reductions.
Rows whose R is out of range take the formula.
"""

from typing import Any

import numpy as np

from ..formulas.rescue import out_of_range
from ..formulas.types import Array, Axes
from . import buffers, threads
from .blocks import SMALL, row_blocks, small_buffer
from .kernel import Kernel


def _suits(x: Array, weight: Array | None, *, axis: Axes, eps: float) -> bool:
    plain = x.dtype.char in "fd" and x.flags.c_contiguous and axis == (-1,) and x.shape[-1] > 1 and x.size > 0
    return plain and (weight is None or (weight.dtype is x.dtype and weight.flags.c_contiguous))


def _rms_forward(
    needs: tuple[bool, ...], x: Array, weight: Array | None, *, axis: Axes, eps: float
) -> tuple[Array, Any] | None:
    """y = g ⊙ (R x)"""
    width = x.shape[-1]
    rows = x.reshape(-1, width)
    y, r = buffers.like(x), np.empty(len(rows), x.dtype)
    into = y.reshape(-1, width)

    def run(block: slice) -> None:
        source, target, root = rows[block], into[block], r[block]
        np.vecdot(source, source, root)
        np.add(root, width * eps, root)
        np.sqrt(root, root)
        np.divide(width**0.5, root, root)
        np.multiply(source, root[:, None], target)
        if weight is not None:
            np.multiply(target, weight, target)

    with np.errstate(all="ignore"):
        if x.size <= SMALL:
            run(slice(None))
        else:
            with small_buffer(width):
                threads.each(run, row_blocks(*rows.shape), x.size)
        return None if out_of_range(r, eps) else (y, (x, r, weight))


def _rms_backward(dy: Array, cache: Any, needs: tuple[bool, ...]) -> tuple[Array, Array | None]:
    """p = ȳ x ;   ḡ = Σ R p ;   x̄ = R (ȳ g − (p g) R² / n · x)"""
    x, r, weight = cache
    width = x.shape[-1]
    dy = np.ascontiguousarray(dy, x.dtype)
    rows, given, dx = x.reshape(-1, width), dy.reshape(-1, width), buffers.like(x)
    into = dx.reshape(-1, width)

    def run(block: slice) -> Array | None:
        source, arrived, target, root = rows[block], given[block], into[block], r[block]
        product = buffers.like(source)
        np.multiply(arrived, source, product)
        dw = None if weight is None else root @ product
        shrink = np.add.reduce(product, axis=1) if weight is None else product @ weight
        np.multiply(shrink, root, shrink)
        np.multiply(shrink, root, shrink)
        np.multiply(shrink, 1.0 / width, shrink)
        np.multiply(source, shrink[:, None], product)
        np.subtract(arrived if weight is None else np.multiply(arrived, weight, target), product, target)
        np.multiply(target, root[:, None], target)
        return dw

    if x.size <= SMALL:
        parts = [run(slice(None))]
    else:
        with small_buffer(width):
            parts = threads.each(run, row_blocks(*rows.shape), x.size)
    return dx, None if weight is None else np.add.reduce([part for part in parts if part is not None])


rms_norm = Kernel(_suits, _rms_forward, _rms_backward)
