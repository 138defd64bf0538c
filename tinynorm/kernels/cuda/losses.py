"""Softmax-cross-entropy of CuPy's arrays, fused: no array of rows × classes is made but the gradient.

What passes through memory, in units of the N × C logits (each row has some numbers more: its class, its loss, and what
the backward keeps of it):

    forward     1 read               the least there can be
    backward    1 read, 1 written    the least there can be
    formulas    about 40, about 17   as plain CuPy, forward and backward

The losses of the rows are written one by one and then added by CuPy's reduction, in float64 and in an order that is the
same each time.
"""

from typing import Any

import numpy as np

from ...backend import namespace
from ...formulas.losses import LIKELY, Targets, spread
from ...formulas.types import Array
from ..kernel import Kernel, Needs
from . import launch
from .layout import WIDEST, layout_of

FILE = "cross_entropy.cu"


def _suits(z: Array, *, target: Targets, divisor: Any = None) -> bool:
    return bool(
        launch.available()
        and z.dtype.char in launch.TYPES
        and z.size
        and z.flags.c_contiguous
        and 2 <= z.shape[-1] <= WIDEST
        and target.kept is not None
        and target.index.dtype == np.int64
        and target.weight.dtype == launch.computed(z)
    )


def _forward(needs: Needs, z: Array, *, target: Targets, divisor: Any = None) -> tuple[Array, Any]:
    """ℓ = −Σ_c q_c log p_c, and of each row what the backward needs: max z, Σ e^(z − max z) and Σ q"""
    xp, computed = namespace(z), launch.computed(z)
    index, kept = (xp.ascontiguousarray(a).reshape(-1) for a in (target.index, target.kept))
    loss, known = xp.empty(z.shape[:-1], computed), xp.empty((index.size, 3), computed)  # Row in cross_entropy.cu
    _launch("cross_entropy_forward", z, target, index, target.weight, kept, loss, known)
    if divisor is not None:
        loss = xp.sum(loss, dtype=float) / divisor
    return loss.astype(z.dtype, copy=False), (z, target, index, known, divisor)


def _backward(dy: Array, cache: Any, needs: Needs) -> tuple[Array]:
    """z̄ = ℓ̄ (p Σ_c q_c − q)"""
    z, target, index, known, divisor = cache
    xp = namespace(z)
    each = xp.ascontiguousarray(spread(dy.astype(known.dtype), divisor))
    dz = xp.empty(z.shape, known.dtype)
    _launch("cross_entropy_backward", z, target, index, target.weight, known, each, np.int32(dy.ndim > 0), dz)
    return (dz,)


def _launch(name: str, z: Array, target: Targets, *arguments: Any) -> None:
    classes, s = z.shape[-1], target.label_smoothing
    rows = z.size // classes
    layout = layout_of(classes, z, target.weight)
    block = layout.block(rows)
    chosen = {"X": launch.TYPES[z.dtype.char], "SMOOTHED": int(s > 0), "LIKELY": LIKELY}
    kernel = launch.function(FILE, name, **chosen, **layout.macros())
    numbers = launch.computed(z).type(s), np.int64(rows), np.int32(classes)
    kernel((-(-rows // block[1]),), block, (z, *arguments, *numbers))


cross_entropy = Kernel(_suits, _forward, _backward)
