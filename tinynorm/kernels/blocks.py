"""Rows in blocks that stay in the cache, and NumPy's settings for them."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

BLOCK = 65_536  #: elements of a block: three such arrays of float32 fit a second-level cache
SMALL = 24_576  #: up to so many elements neither blocks nor the setting below pay


def row_blocks(rows: int, width: int) -> list[slice]:
    """The rows of a block, then of the next. They depend on the shape alone, so that sums over them always agree."""
    height = max(1, BLOCK // max(width, 1))
    return [slice(low, min(low + height, rows)) for low in range(0, rows, height)]


@contextmanager
def small_buffer(width: int) -> Iterator[None]:
    """Let NumPy use a broadcast operand where it stands.

    It copies operands that are broadcast, one value per row or one row for all, through its buffer, wherever two rows
    fit in there. For wide rows that costs more than it saves. The setting is the thread's own.
    """
    before = np.setbufsize(16 if width >= 256 else 4096)
    try:
        yield
    finally:
        np.setbufsize(before)
