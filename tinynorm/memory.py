"""Who may have changed an array that a recorded operation still needs?

A backward formula reads what its forward cached. If that memory was written to in between, the gradient would belong to
neither the old nor the new values, so `backward` refuses. Two kinds of writers are told apart:

- the library (optimizers, `load_state_dict`) announces its writes by raising `Memory.version`;
- a user's writes cannot be seen. But nobody can write to an array they never got, so contents are trusted until the
  array is handed out (`Tensor.data`, `Tensor.numpy`, `as_tensor`), and compared by checksum from then on.

On a device only the first kind is noticed: a checksum there would have to be waited for and copied to the host, for
every array that was handed out, in every training step.

An array that is never handed out costs nothing. Cost and reasons: docs/design.md.
"""

from typing import Any
from weakref import ReferenceType, ref

import numpy as np

from .backend import fingerprint, is_array


class Memory:
    """One block of memory, common to all Tensors that look into it."""

    __slots__ = ("_guards", "_limit", "exposed", "version")

    def __init__(self, exposed: bool = False) -> None:
        self.version = 0
        self.exposed = exposed
        self._guards: list[ReferenceType[Guard]] = []
        self._limit = 8

    def expose(self) -> None:
        """Note that an array of this block is about to be handed out: from now on contents are compared."""
        if not self.exposed:
            self.exposed = True
            for guard in self._living():
                guard.checksum = fingerprint(guard.array)
            self._guards = []

    def watch(self, array: Any) -> "Guard":
        """A guard for an array of this block, from its contents now."""
        guard = Guard(array, self)
        if not self.exposed:
            if len(self._guards) >= self._limit:
                self._guards = [ref(living) for living in self._living()]
                self._limit = 2 * len(self._guards) + 8
            self._guards.append(ref(guard))
        return guard

    def _living(self) -> "list[Guard]":
        return [guard for guard in (reference() for reference in self._guards) if guard is not None]


class Guard:
    """What an operation remembers of one array that it was given or cached, in order to notice a change."""

    __slots__ = ("__weakref__", "array", "checksum", "memory", "version")

    def __init__(self, array: Any, memory: Memory) -> None:
        self.array, self.memory, self.version = array, memory, memory.version
        self.checksum = fingerprint(array) if memory.exposed else None

    def changed(self) -> bool:
        """Whether the array was written to since."""
        if self.memory.version != self.version:
            return True
        return self.checksum is not None and fingerprint(self.array) != self.checksum


def cached_arrays(cache: Any) -> list[Any]:
    """All arrays in a cache: the cache itself, or what its tuples, lists and dicts hold."""
    found, rest = [], [cache]
    while rest:
        part = rest.pop()
        if isinstance(part, dict):
            rest.extend(part.values())
        elif isinstance(part, (tuple, list)):
            rest.extend(part)
        elif is_array(part):
            found.append(part)
    return found


def cached_blocks(cache: Any) -> set[int]:
    """The ids of the arrays whose memory a cache looks into."""
    return {id(a) if a.base is None else id(owner(a)) for a in cached_arrays(cache)}


def owner(array: Any) -> Any:
    """The array whose memory this one looks into: itself, unless it is a view."""
    while (base := array.base) is not None and (type(base) is np.ndarray or is_array(base)):
        array = base
    return array
