"""Memory for results, out of blocks that were used before.

A fresh large array costs page faults: the operating system hands out each page, zeroed, at the first touch, which takes
longer than computing what goes there. So blocks are kept, and one is handed out again as soon as nobody holds it. Who
holds it is what Python's own reference counts say: an array made here has the block as its base, and so has every view
of it, however it was made; a block whose only reference is this list's cannot be seen by anyone.

Each thread has blocks of its own. Blocks that lie idle are given back when new ones are needed and more than
`IDLE` bytes, or more than are in use, would lie idle.
"""

import sys
import threading
from math import prod
from typing import Any

import numpy as np

from ..formulas.types import Array, Shape

SMALL = 1 << 15  #: arrays of fewer bytes come from NumPy, whose own cache serves them well
IDLE = 1 << 25  #: so many bytes may lie idle in any case
ALIGNMENT = 64  #: a store of 64 bytes that crosses a cache line costs two; NumPy's large arrays begin 16 bytes into one


class _Blocks(threading.local):
    """By size, the blocks; and in a list beside them where each begins to be aligned."""

    def __init__(self) -> None:
        self.of_size: dict[int, tuple[list[Array], list[int]]] = {}


_blocks = _Blocks()


def empty(shape: Shape, dtype: Any = np.float32) -> Array:
    """An array with whatever is in it, which begins at a cache line where it is large.

    >>> a = empty((256, 256))
    >>> a.shape, a.dtype, a.ctypes.data % 64
    ((256, 256), dtype('float32'), 0)
    """
    size = prod(shape) * np.dtype(dtype).itemsize
    if size < SMALL:
        return np.empty(shape, dtype)
    blocks, starts = _blocks.of_size.setdefault(size, ([], []))
    found = _first_unseen(blocks)
    if found is None:
        _give_back(size)
        block = np.empty(size + ALIGNMENT, np.uint8)
        blocks.append(block)
        starts.append(-int(block.ctypes.data) % ALIGNMENT)
        found = len(blocks) - 1
    return np.ndarray(shape, dtype, blocks[found], starts[found])


def like(array: Array) -> Array:
    """An array of the same shape and dtype, in C order."""
    return empty(array.shape, array.dtype)


def held() -> tuple[int, int]:
    """How many bytes this thread's blocks have, and how many of these lie idle."""
    total = idle = 0
    for size, (blocks, _) in _blocks.of_size.items():
        total += size * len(blocks)
        idle += size * sum(sys.getrefcount(blocks[i]) == _ALONE for i in range(len(blocks)))
    return total, idle


def _first_unseen(blocks: list[Array]) -> int | None:
    for i in range(len(blocks)):
        if sys.getrefcount(blocks[i]) == _ALONE:
            return i
    return None


def _give_back(wanted: int) -> None:
    total, idle = held()
    if idle <= max(IDLE, total - idle):
        return
    for size in [size for size in _blocks.of_size if size != wanted]:
        blocks, starts = _blocks.of_size[size]
        for i in reversed(range(len(blocks))):
            if sys.getrefcount(blocks[i]) == _ALONE:
                del blocks[i], starts[i]
        if not blocks:
            del _blocks.of_size[size]


def _count_alone() -> int:
    """What `getrefcount` says of a block that nobody holds but the list."""
    blocks = [np.empty(1, np.uint8)]
    return sys.getrefcount(blocks[0])


_ALONE = _count_alone()
