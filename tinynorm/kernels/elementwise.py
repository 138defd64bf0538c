"""Operations element by element: into memory at hand, and in blocks that stay in the cache."""

from typing import Any

import numpy as np

from ..formulas.types import Array, Axis
from . import buffers, threads
from .blocks import cut
from .kernel import Kernel, Needs, plain

PIECE = 32_768  #: elements that stay in the cache beside their zeros or their mask


# relu. NumPy's maximum of an array and a number takes three times as long as that of two arrays. What is kept is where
# x > 0, in a quarter of the memory. Gradients are multiplied by it as integers: 1 leaves all bits as they are, and 0
# makes them 0, those of nan too.

_ZEROS = {char: np.zeros(PIECE, char) for char in "fd"}
_BITS = {"f": np.dtype(np.int32), "d": np.dtype(np.int64)}


def _relu_forward(needs: Needs, x: Array) -> tuple[Array, Any]:
    """y = max(x, 0)"""
    y, zeros = buffers.like(x), _ZEROS[x.dtype.char]
    positive = buffers.empty(x.shape, np.bool_) if needs[0] else None
    if x.size <= PIECE:
        zeros = zeros[: x.size].reshape(x.shape)
        np.maximum(x, zeros, out=y)
        if positive is not None:
            np.greater(x, zeros, positive)
        return y, positive
    source, into, found = x.reshape(-1), y.reshape(-1), None if positive is None else positive.reshape(-1)

    def run(piece: slice) -> None:
        part = source[piece]
        np.maximum(part, zeros[: part.size], out=into[piece])
        if found is not None:
            np.greater(part, zeros[: part.size], found[piece])

    threads.each(run, cut(x.size, PIECE), x.size)
    return y, positive


def _relu_backward(dy: Array, positive: Any, needs: Needs) -> tuple[Array]:
    """x̄ = ȳ (x > 0)"""
    dx, bits = buffers.empty(dy.shape, dy.dtype), _BITS[dy.dtype.char]
    if dy.size <= PIECE:
        np.multiply(dy.view(bits), positive, dx.view(bits))
        return (dx,)
    given, kept, into = dy.reshape(-1).view(bits), positive.reshape(-1), dx.reshape(-1).view(bits)
    threads.each(lambda piece: np.multiply(given[piece], kept[piece], into[piece]), cut(dy.size, PIECE), dy.size)
    return (dx,)


relu = Kernel(plain, _relu_forward, _relu_backward)


# The sum of all


def _sum_suits(x: Array, *, axis: Axis, keepdims: bool) -> bool:
    return axis is None and not keepdims and plain(x)


def _sum_forward(needs: Needs, x: Array, *, axis: Axis, keepdims: bool) -> tuple[Array, Any]:
    """y = Σ x, which NumPy adds pairwise in C order"""
    return np.asarray(np.add.reduce(x, None)), x.shape


def _sum_backward(dy: Array, shape: Any, needs: Needs) -> tuple[Array]:
    """x̄ = ȳ everywhere"""
    dx = buffers.empty(shape, dy.dtype)
    dx.fill(dy)
    return (dx,)


sum = Kernel(_sum_suits, _sum_forward, _sum_backward)
