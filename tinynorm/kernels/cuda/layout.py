"""How the numbers of a row lie among threads: the host's side of common.cuh."""

from typing import Any, NamedTuple

from ...formulas.types import Array

PACK = 16  #: bytes that one instruction loads, from an address that they divide
THREADS = 512  #: that take a row, at most
BLOCK = 256  #: threads of a block, at most, if a row does not take more
REGISTERS = 16  #: for the numbers that a thread owns of a row
WIDEST = 2**20  #: numbers of a row; a thread's sums over the pieces of a longer one would drift


class Layout(NamedTuple):
    """How many threads take a row, how many of its numbers each of them owns, and loads at once.

    `long` is 1 for rows that are longer than that, and taken in pieces.
    """

    threads: int
    owned: int
    vector: int
    long: int

    def block(self, rows: int) -> tuple[int, int]:
        """The shape of a block: whole warps, no more rows than these, and of long ones a single one."""
        warp, most = max(1, 32 // self.threads), 1 if self.long else max(1, BLOCK // self.threads)
        return self.threads, -(-min(most, rows) // warp) * warp

    def macros(self) -> dict[str, Any]:
        """By the names that they have in the .cu files; BLOCK is the most threads that a block may have."""
        return {"BLOCK": max(BLOCK, self.threads), **{name.upper(): value for name, value in self._asdict().items()}}


def layout(width: int, itemsize: int, aligned: bool) -> Layout:
    """A warp takes a row, or fewer threads if it has fewer packs, or more if a warp has too few registers."""
    vector = PACK // itemsize if aligned else 1
    most = REGISTERS // (itemsize // 4 or 1)
    threads = min(THREADS, _power_of_two(max(-(-width // most), min(32, -(-width // vector)))))
    owned = min(most, vector * _power_of_two(-(-width // (vector * threads))))
    return Layout(threads, owned, vector, int(width > threads * owned))


def layout_of(width: int, x: Array, *others: Array | None) -> Layout:
    """For rows of x, which are loaded 16 bytes at a time where they and all others are aligned so."""
    aligned = width * x.itemsize % PACK == 0 and all(a is None or a.data.ptr % PACK == 0 for a in (x, *others))
    return layout(width, x.itemsize, aligned)


def _power_of_two(n: int) -> int:
    """The least power of two that is no less than n."""
    return 1 << (n - 1).bit_length()
