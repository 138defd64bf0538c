"""Who may have changed an array that a recorded operation still needs?

A backward formula reads what its forward cached. If that memory was written to in between, the gradient would belong to
neither the old nor the new values, so `backward` refuses. Two kinds of writers are told apart:

- the library (optimizers, `load_state_dict`) announces its writes by raising `Memory.version`;
- a user's writes cannot be seen. But nobody can write to an array they never got, so contents are trusted until the
  array is handed out (`Tensor.data`, `Tensor.numpy`, `as_tensor`), and compared by checksum from then on.

An array that is never handed out costs nothing. Cost and reasons: docs/design.md.
"""

from typing import Any, NamedTuple

from .backend import fingerprint, is_array


class Memory:
    """One block of memory, common to all Tensors that look into it."""

    __slots__ = ("exposed", "snapshot", "version")

    def __init__(self, exposed: bool = False) -> None:
        self.version = 0
        self.exposed = exposed
        self.snapshot: int | None = None  # checksum of the whole block at the moment it was first handed out

    def expose(self, array: Any) -> None:
        """Note that `array`, which lies in this block, is about to be handed out."""
        if not self.exposed:
            self.exposed = True
            self.snapshot = fingerprint(owner(array))


class Guard(NamedTuple):
    """What an operation remembers of one array that it cached, in order to notice a change."""

    array: Any
    memory: Memory
    version: int
    checksum: int | None  # None where the memory had not been handed out yet

    def changed(self) -> bool:
        """Whether the array was written to since `guard` was called."""
        memory = self.memory
        if memory.version != self.version:
            return True
        if self.checksum is not None:
            return fingerprint(self.array) != self.checksum
        return memory.exposed and fingerprint(owner(self.array)) != memory.snapshot


def guard(cache: Any, candidates: list[tuple[Any, Memory]]) -> list[Guard]:
    """Guards for those candidate arrays whose memory the cache looks into."""
    cached = {id(owner(a)) for a in cached_arrays(cache)}
    return [
        Guard(array, memory, memory.version, fingerprint(array) if memory.exposed else None)
        for array, memory in candidates
        if id(owner(array)) in cached
    ]


def cached_arrays(cache: Any) -> list[Any]:
    """All arrays in a cache: the cache itself, or what its tuples and lists hold."""
    if is_array(cache):
        return [cache]
    if isinstance(cache, (tuple, list)):
        return [a for part in cache for a in cached_arrays(part)]
    return []


def owner(array: Any) -> Any:
    """The array whose memory this one looks into: itself, unless it is a view."""
    while is_array(array.base):
        array = array.base
    return array
