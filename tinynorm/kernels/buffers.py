"""Memory for results, out of blocks that were used before.

A fresh large array costs page faults: the operating system hands out each page, zeroed, at the first touch, which takes
longer than computing what goes there. So blocks are kept, and one is handed out again as soon as nobody holds it. Who
holds it is what Python's own reference counts say: an array made here has the block as its base, and so has every view
of it, however it was made; a block whose only reference is this list's cannot be seen by anyone.

Each thread has blocks of its own. A block of the wanted size is looked for among `LOOKS` of them, beginning with the
one that was handed out last; so however many are in use, finding one takes the same time, and few lie idle unseen.
Memory goes back where more than `IDLE` bytes, and more than are in use, lie idle while new blocks are made, and where a
size was not asked for in a whole `PERIOD`.
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
LOOKS = 16  #: blocks that are looked at before a new one is made
PERIOD = 4096  #: calls


class _Pool:
    """The blocks of one size, each with the place where it begins to be aligned, and which was handed out last."""

    __slots__ = ("asked", "blocks", "last")

    def __init__(self) -> None:
        self.blocks: list[tuple[Array, int]] = []
        self.last, self.asked = 0, True


class _Blocks(threading.local):
    """A thread's blocks by size, their ids, and what was done since somebody last looked after them."""

    def __init__(self) -> None:
        self.of_size: dict[int, _Pool] = {}
        self.ids: set[int] = set()
        self.total = self.fresh = self.calls = 0
        self.busy = False


_blocks = _Blocks()


def empty(shape: Shape, dtype: Any = np.float32) -> Array:
    """An array with whatever is in it, which begins at a cache line where it is large.

    >>> a = empty((256, 256))
    >>> a.shape, a.dtype, a.ctypes.data % 64
    ((256, 256), dtype('float32'), 0)
    """
    return _array(prod(shape) * np.dtype(dtype).itemsize, shape, dtype)


def like(array: Array) -> Array:
    """An array of the same shape and dtype, in C order."""
    return _array(array.nbytes, array.shape, array.dtype)


def _array(size: int, shape: Shape, dtype: Any) -> Array:
    mine = _blocks
    if size < SMALL or mine.busy:  # a finalizer or a signal's handler may come in between, and come here
        return np.empty(shape, dtype)
    mine.busy = True
    try:
        mine.calls += 1
        if mine.calls > PERIOD:
            _give_back(unasked=True)
        pool = mine.of_size.get(size)
        block, start = (None if pool is None else _unseen(pool)) or _new(size)
    finally:
        mine.busy = False
    return np.ndarray(shape, dtype, block, start)


def sole(array: Array) -> bool:
    """Whether this is the only array that looks into a block of this thread's, and has the whole of it."""
    base = array.base
    if id(base) not in _blocks.ids or array.nbytes + ALIGNMENT != base.nbytes:
        return False
    return sys.getrefcount(base) == _ALONE + 1


def held() -> tuple[int, int]:
    """How many bytes this thread's blocks have, and how many of these lie idle."""
    idle = 0
    for size, pool in _blocks.of_size.items():
        for block, _ in pool.blocks:
            if sys.getrefcount(block) == _ALONE:
                idle += size
    return _blocks.total, idle


def _unseen(pool: _Pool) -> tuple[Array, int] | None:
    """A block that nobody sees, if there is one among so many. The name here makes it seen before it is judged."""
    blocks, i = pool.blocks, pool.last
    pool.asked = True
    for _ in range(min(len(blocks), LOOKS)):
        block, start = blocks[i]
        if sys.getrefcount(block) == _ALONE:
            pool.last = i
            return block, start
        i += 1
        if i == len(blocks):
            i = 0
    if blocks:
        pool.last = (pool.last + LOOKS // 2) % len(blocks)
    return None


def _new(size: int) -> tuple[Array, int]:
    """A new block, put amid those that were looked at: the next round meets only half as many in a row in use."""
    mine = _blocks
    mine.fresh += size
    if 8 * mine.fresh > mine.total:  # not each time: it looks at all blocks
        mine.fresh = 0
        total, idle = held()
        if idle > max(IDLE, total - idle):
            _give_back(unasked=False)
    block = np.empty(size + ALIGNMENT, np.uint8)
    found = block, -int(block.ctypes.data) % ALIGNMENT
    pool = mine.of_size.setdefault(size, _Pool())
    pool.blocks.insert(pool.last, found)
    mine.ids.add(id(block))
    mine.total += size
    return found


def _give_back(unasked: bool) -> None:
    """Give back what lies idle, or only what has a size that was not asked for in a while."""
    mine = _blocks
    mine.calls = 0
    for size, pool in list(mine.of_size.items()):
        if not (unasked and pool.asked):
            for i in reversed(range(len(pool.blocks))):
                block, _ = pool.blocks[i]
                if sys.getrefcount(block) == _ALONE:
                    del pool.blocks[i]
                    mine.ids.remove(id(block))
                    mine.total -= size
            pool.last = 0
            if not pool.blocks:
                del mine.of_size[size]
        pool.asked = False


def _count_alone() -> int:
    """What `getrefcount` says of a block that, besides the name, nothing holds but a pool."""
    blocks = [(np.empty(1, np.uint8), 0)]
    block, _ = blocks[0]
    return sys.getrefcount(block)


_ALONE = _count_alone()
