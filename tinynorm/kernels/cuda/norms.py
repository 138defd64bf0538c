"""RMSNorm and LayerNorm on CuPy's arrays: how norms.cu is launched.

A row of up to 8192 numbers (of float64, 4096) is read once and stays in registers, so that the forward moves no more
than x and y, and the backward x, ȳ and x̄. The gradients of weight and bias are summed in two stages, always in the same
order: each block has a row for its part of them, and these few rows are summed afterwards, in float64.
"""

import sys
from functools import cache, partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ...formulas.types import Array, Axes
from ..kernel import Kernel, Needs
from . import launch

FILE = "norms.cu"
WIDEST = 2**20  #: a thread's sums over the pieces of a longer row would drift
THREADS = 512  #: that take a row, at most
BLOCK = 256  #: threads of a block, if a row does not take more
REGISTERS = 16  #: for the numbers that a thread owns of a row
ROWS = 64  #: that a thread sums weight gradients over before they are written; more would drift


class Layout(NamedTuple):
    """How a row lies among threads; see the .cu file."""

    threads: int
    owned: int
    vector: int
    long: int

    def block(self, rows: int) -> tuple[int, int]:
        """The shape of a block: whole warps, no more rows than these, and of long ones a single one."""
        warp, most = max(1, 32 // self.threads), 1 if self.long else max(1, BLOCK // self.threads)
        return self.threads, -(-min(most, rows) // warp) * warp


def layout(width: int, itemsize: int, aligned: bool) -> Layout:
    """At least a warp takes a row, or as many threads as it has packs; and more where it needs their registers."""
    vector = 16 // itemsize if aligned else 1
    most = REGISTERS // (itemsize // 4 or 1)
    threads = min(THREADS, _power(max(-(-width // most), min(32, -(-width // vector)))))
    owned = min(most, vector * _power(-(-width // (vector * threads))))
    return Layout(threads, owned, vector, int(width > threads * owned))


def blocks(rows: int, at_once: int, processors: int) -> int:
    """How many blocks the backward has, each with a part of the weight gradients, and taking so many rows at once."""
    turns = -(-rows // at_once)
    return max(min(turns, 2 * processors), -(-turns // ROWS))


def _power(n: int) -> int:
    """The least power of two that is no less than n."""
    return 1 << (n - 1).bit_length()


def _suits_rms(x: Array, weight: Array | None, *, axis: Axes, eps: float) -> bool:
    return _suits(x, axis, 1) and _fits(weight, x, axis)


def _suits_layer(x: Array, weight: Array | None, bias: Array | None, *, axis: Axes, eps: float) -> bool:
    return _suits(x, axis, 2) and _fits(weight, x, axis) and _fits(bias, x, axis)


def _suits(x: Array, axis: Axes, too_few: int) -> bool:
    """Of gradients of one number, or of two centred ones, but a part ε r² is left, which has a formula of its own."""
    if not launch.available() or axis != tuple(range(-len(axis), 0)) or x.dtype.char not in launch.TYPES:
        return False
    return bool(x.size) and too_few < prod(x.shape[-len(axis) :]) <= WIDEST


def _fits(row: Array | None, x: Array, axis: Axes) -> bool:
    return row is None or (row.dtype == x.dtype and row.shape == x.shape[-len(axis) :])


def _computed(x: Array) -> Any:
    """What a dtype is computed in, and what its gradients are made of until they are delivered."""
    return np.dtype(np.float64 if x.dtype.char == "d" else np.float32)


def _function(name: str, centred: bool, width: int, dy: Any, x: Array, *others: Array | None) -> tuple[Any, Layout]:
    """A kernel for these arrays and ȳ's dtype, and the layout it is compiled for: may it load 16 bytes at once?"""
    aligned = width * x.itemsize % 16 == 0 and all(a is None or a.data.ptr % 16 == 0 for a in (x, *others))
    found = layout(width, x.itemsize, aligned)
    macros = {field.upper(): value for field, value in found._asdict().items()}
    types = {"X": launch.TYPES[x.dtype.char], "D": launch.TYPES[dy.char]}
    return launch.function(FILE, name, CENTRED=int(centred), **types, **macros), found


def _forward(
    centred: bool, needs: Needs, x: Array, weight: Array | None, bias: Array | None = None, *, axis: Axes, eps: float
) -> tuple[Array, Any]:
    """y = g ⊙ h + b"""
    cupy = sys.modules["cupy"]
    x, weight, bias = (None if a is None else cupy.ascontiguousarray(a) for a in (x, weight, bias))
    width = prod(x.shape[-len(axis) :])
    rows = x.size // width
    y, statistics = cupy.empty_like(x), cupy.empty((rows, 4), _computed(x))
    kernel, found = _function("norm_forward", centred, width, _computed(x), x, weight, bias)
    block = found.block(rows)
    numbers = np.int64(rows), np.int32(width), np.float64(eps)
    kernel((-(-rows // block[1]),), block, (x, weight, bias, y, statistics, *numbers))
    return y, (x, weight, statistics, len(axis))


def _backward(centred: bool, dy: Array, cache: Any, needs: Needs) -> tuple[Array | None, ...]:
    """x̄ = r (h̄ − [mean(h̄)] − h · mean(h̄ h)) ;   ḡ = Σ_rows ȳ h ;   b̄ = Σ_rows ȳ"""
    cupy = sys.modules["cupy"]
    x, weight, statistics, axes = cache
    tail, computed = x.shape[x.ndim - axes :], _computed(x)
    width = prod(tail)
    rows = x.size // width
    dy = cupy.ascontiguousarray(dy, dtype=None if dy.dtype == x.dtype else computed)
    kernel, found = _function("norm_backward", centred, width, dy.dtype, x, weight, dy)
    block = found.block(rows)
    parts = blocks(rows, block[1], _processors(cupy, x.device.id))
    dx = cupy.empty(x.shape, computed) if needs[0] else None
    dg, db = (cupy.empty((parts, width), computed) if needed else None for needed in (*needs[1:], False)[:2])
    kernel((parts,), block, (x, weight, dy, statistics, dx, dg, db, np.int64(rows), np.int32(width)))
    sums = (None if p is None else p.sum(axis=0, dtype="d").astype(computed).reshape(tail) for p in (dg, db))
    return dx, *tuple(sums)[: len(needs) - 1]


@cache
def _processors(cupy: Any, device: int) -> int:
    return int(cupy.cuda.Device(device).attributes["MultiProcessorCount"])


rms_norm = Kernel(_suits_rms, partial(_forward, False), partial(_backward, False))
layer_norm = Kernel(_suits_layer, partial(_forward, True), partial(_backward, True))
