"""Operations element by element: into memory at hand, and in blocks that stay in the cache."""

from typing import Any

import numpy as np

from ..formulas.activations import relu_backward
from ..formulas.types import Array, Axis
from . import buffers, threads
from .kernel import Kernel

FEW = 16_384  #: up to so many elements relu's formula is as fast
PIECE = 32_768  #: elements that stay in the cache beside their zeros or their mask


def _flat(x: Array) -> Array:
    """An array in C order, or a copy of it in C order, as a row."""
    return np.ascontiguousarray(x).reshape(-1)


def _pieces(n: int) -> list[slice]:
    return [slice(low, low + PIECE) for low in range(0, n, PIECE)]


def _plain(x: Array) -> bool:
    return x.dtype.char in "fd" and x.flags.c_contiguous


# relu. NumPy's maximum of an array and a number takes three times as long as that of two arrays.

_ZEROS = {char: np.zeros(PIECE, char) for char in "fd"}


def _relu_forward(needs: tuple[bool, ...], x: Array) -> tuple[Array, Any]:
    """y = max(x, 0)"""
    y, zeros = buffers.like(x), _ZEROS[x.dtype.char]
    source, into = x.reshape(-1), y.reshape(-1)

    def run(piece: slice) -> None:
        part = source[piece]
        np.maximum(part, zeros[: part.size], out=into[piece])

    threads.each(run, _pieces(x.size), x.size)
    return y, y


def _relu_backward(dy: Array, y: Any, needs: tuple[bool, ...]) -> tuple[Array]:
    """x̄ = ȳ (y > 0). Where ȳ may not be finite, the formula: nan · 0 is no 0."""
    dx = buffers.like(y)
    given, results, into = _flat(dy), y.reshape(-1), dx.reshape(-1)

    def run(piece: slice) -> None:
        part, result = given[piece], results[piece]
        with np.errstate(all="ignore"):  # a sum of squares that overflows is no news
            finite = np.isfinite(np.dot(part, part))
        if finite:
            np.multiply(part, result > 0.0, into[piece])
        else:
            into[piece] = relu_backward(np, part, result)

    threads.each(run, _pieces(y.size), y.size)
    return (dx,)


def _relu_suits(x: Array) -> bool:
    return x.size > FEW and _plain(x)


relu = Kernel(_relu_suits, _relu_forward, _relu_backward)


# The sum of all


def _sum_suits(x: Array, *, axis: Axis, keepdims: bool) -> bool:
    return axis is None and not keepdims and _plain(x)


def _sum_forward(needs: tuple[bool, ...], x: Array, *, axis: Axis, keepdims: bool) -> tuple[Array, Any]:
    """y = Σ x, which NumPy adds pairwise in C order"""
    return np.asarray(np.add.reduce(x, None)), x.shape


def _sum_backward(dy: Array, shape: Any, needs: tuple[bool, ...]) -> tuple[Array]:
    """x̄ = ȳ everywhere"""
    dx = buffers.empty(shape, dy.dtype)
    dx.fill(dy)
    return (dx,)


sum = Kernel(_sum_suits, _sum_forward, _sum_backward)
