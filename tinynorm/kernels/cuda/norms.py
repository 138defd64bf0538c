"""RMSNorm and LayerNorm on CuPy's arrays: how norms.cu is launched.

A row of up to 8192 numbers (of float64, 4096) is read once and stays in registers, so that the forward moves no more
than x and y, and the backward x, ȳ and x̄. The gradients of weight and bias are summed in two stages, always in the same
order: each block has a row for its part of them, and these few rows are summed afterwards, in float64.
"""

from functools import cache, partial
from math import prod
from typing import Any

import numpy as np

from ...backend import namespace
from ...formulas.types import Array, Axes
from ..kernel import Kernel, Needs
from . import launch
from .layout import WIDEST, Layout, layout_of

FILE = "norms.cu"
ROWS = 64  #: that a thread sums weight gradients over before they are written; more would drift


def blocks(rows: int, at_once: int, processors: int) -> int:
    """How many blocks the backward has, if each takes so many rows at once and makes a part of the weight gradients.

    Two for each processor, so that one computes while the other waits for memory; fewer where there are fewer rows, and
    more where there are so many rows that sums would drift.
    """
    turns = -(-rows // at_once)
    return max(min(turns, 2 * processors), -(-turns // ROWS))


def _suits_rms(x: Array, weight: Array | None, *, axis: Axes, eps: float) -> bool:
    return _suits(x, axis, 1) and _fits(weight, x, axis)


def _suits_layer(x: Array, weight: Array | None, bias: Array | None, *, axis: Axes, eps: float) -> bool:
    return _suits(x, axis, 2) and _fits(weight, x, axis) and _fits(bias, x, axis)


def _suits(x: Array, axis: Axes, too_few: int) -> bool:
    """Whether x suits. In rows of `too_few` numbers gradients cancel but for what `rescue.left_over` computes."""
    if not launch.available() or axis != tuple(range(-len(axis), 0)) or x.dtype.char not in launch.TYPES:
        return False
    return bool(x.size) and too_few < prod(x.shape[-len(axis) :]) <= WIDEST


def _fits(row: Array | None, x: Array, axis: Axes) -> bool:
    return row is None or (row.dtype == x.dtype and row.shape == x.shape[-len(axis) :])


def _function(name: str, centred: bool, width: int, dy: Any, x: Array, *others: Array | None) -> tuple[Any, Layout]:
    """A kernel for rows of x and a ȳ of dtype dy, and the layout that it is compiled for, which fits all arrays."""
    layout = layout_of(width, x, *others)
    types = {"X": launch.TYPES[x.dtype.char], "D": launch.TYPES[dy.char]}
    return launch.function(FILE, name, CENTRED=int(centred), **types, **layout.macros()), layout


def _forward(
    centred: bool, needs: Needs, x: Array, weight: Array | None, bias: Array | None = None, *, axis: Axes, eps: float
) -> tuple[Array, Any]:
    """y = g ⊙ h + b"""
    xp = namespace(x)
    x, weight, bias = (None if a is None else xp.ascontiguousarray(a) for a in (x, weight, bias))
    width = prod(x.shape[-len(axis) :])
    rows = x.size // width
    y, statistics = xp.empty_like(x), xp.empty((rows, 4), launch.computed(x))  # Row in norms.cu
    kernel, layout = _function("norm_forward", centred, width, launch.computed(x), x, weight, bias)
    block = layout.block(rows)
    numbers = np.int64(rows), np.int32(width), np.float64(eps)
    kernel((-(-rows // block[1]),), block, (x, weight, bias, y, statistics, *numbers))
    return y, (x, weight, statistics, len(axis))


def _backward(centred: bool, dy: Array, cache: Any, needs: Needs) -> tuple[Array | None, ...]:
    """x̄ = r (h̄ − [mean(h̄)] − h · mean(h̄ h)) ;   ḡ = Σ_rows ȳ h ;   b̄ = Σ_rows ȳ"""
    x, weight, statistics, axes = cache
    xp, tail, computed = namespace(x), x.shape[x.ndim - axes :], launch.computed(x)
    width = prod(tail)
    rows = x.size // width
    dy = xp.ascontiguousarray(dy, dtype=None if dy.dtype == x.dtype else computed)
    kernel, layout = _function("norm_backward", centred, width, dy.dtype, x, weight, dy)
    block = layout.block(rows)
    parts = blocks(rows, block[1], _processors(xp, x.device.id))
    dx = xp.empty(x.shape, computed) if needs[0] else None
    wanted = (*needs[1:], False)[:2]  # RMSNorm has no bias
    dg, db = (xp.empty((parts, width), computed) if needed else None for needed in wanted)
    kernel((parts,), block, (x, weight, dy, statistics, dx, dg, db, np.int64(rows), np.int32(width)))
    sums = (None if p is None else p.sum(axis=0, dtype="d").astype(computed).reshape(tail) for p in (dg, db))
    return dx, *tuple(sums)[: len(needs) - 1]


@cache
def _processors(cupy: Any, device: int) -> int:
    return int(cupy.cuda.Device(device).attributes["MultiProcessorCount"])


rms_norm = Kernel(_suits_rms, partial(_forward, False), partial(_backward, False))
layer_norm = Kernel(_suits_layer, partial(_forward, True), partial(_backward, True))
