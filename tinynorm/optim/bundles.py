"""Which parameters are stepped in place together.

Only moments are gathered in one array: a parameter stays in the memory that it has, which `w.data` hands out, tied
weights share and users write to, and so does a gradient.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from operator import attrgetter, is_
from typing import Any

import numpy as np

from .. import backend
from ..errors import StateError
from ..formulas.types import Array
from ..kernels import buffers
from ..kernels.blocks import BLOCK, cut
from ..kernels.kernel import plain
from ..memory import owner
from ..tensor import Tensor
from .inplace import InPlace, Split, Step
from .state import State

SMALL = 32_768  #: elements from which on the calls that a bundle saves are of no account

#: The rule, the names of the moments in each group, the groups' sizes, the types of all gradients.
Circumstances = tuple[InPlace | None, list[tuple[str, ...]], list[int], list[type]]

_array_of = attrgetter("_data")


class Bundle:
    """Parameters of a group that are stepped at once: small ones together, or a large one, block by block.

    Their moments become views of one array each, which nothing else writes to.
    """

    def __init__(
        self, members: list[Tensor], names: tuple[str, ...], counted: bool, state: Mapping[Tensor, State]
    ) -> None:
        self.members, self.names, self.counted = members, names, counted
        self.values = [p._data for p in members]
        self.size, self.dtype = sum(value.size for value in self.values), self.values[0].dtype
        self.moments = [self._split() for _ in names]
        self.entries = [self._taken_over(state.get(p, {}), i) for i, p in enumerate(members)]
        self.scratch = None if len(members) == 1 else self._split()

    def _split(self) -> Split:
        """Zeros for all members."""
        whole = _zeros(self.size, self.dtype)
        if len(self.members) == 1:
            return _alone(whole.reshape(self.values[0].shape))
        ends = accumulate([value.size for value in self.values], initial=0)
        parts = [whole[low:high] for low, high in pairwise(ends)]
        return Split(whole, [part.reshape(value.shape) for part, value in zip(parts, self.values, strict=True)])

    def _taken_over(self, before: State, place: int) -> State:
        """A member's state, copied to this bundle's memory."""
        entry: State = {"step": before.get("step", 0)} if self.counted else {}
        for name, moment in zip(self.names, self.moments, strict=True):
            entry[name] = moment.parts[place]
            if before:
                entry[name][...] = _kept(before, name, self.values[place])
        return entry

    def tasks(self, step: Step, gradients: list[Array]) -> list[tuple[Any, ...]]:
        """What `do` is to do, in parts that may run at once."""
        if self.size <= BLOCK:
            return [(step, self.values, gradients, self.scratch, *self.moments)]
        p, g, *moments = [a.reshape(-1) for a in (self.values[0], gradients[0], *[m.whole for m in self.moments])]
        blocks = cut(self.size, BLOCK)
        return [(step, [p[k]], [g[k]], None, *[_alone(moment[k]) for moment in moments]) for k in blocks]

    def count(self, t: int) -> None:
        """Note that the members have made their t-th step."""
        if self.counted:
            for entry in self.entries:
                entry["step"] = t


class Plan:
    """Who is stepped with whom, for as long as nothing is different."""

    def __init__(
        self,
        circumstances: Circumstances,
        members: list[Tensor],
        gradients: list[Any],
        state: Mapping[Tensor, State],
        earlier: Iterable[Bundle],
    ) -> None:
        rule, names, sizes, _ = self.circumstances = circumstances
        self.members, self.values = members, [p._data for p in members]
        self.groups = [i for i, size in enumerate(sizes) for _ in range(size)]  # for each member its group's number
        self.bundles: list[tuple[Bundle, list[int]]] = []  # with the places of their members among all
        if rule is not None:
            alone = {bundle.members[0]: bundle for bundle in earlier if len(bundle.members) == 1}
            for places in _together(members, gradients, self.groups, state):
                its_names = names[self.groups[places[0]]]
                bundle = alone.get(members[places[0]]) if len(places) == 1 else None
                if bundle is None or bundle.names != its_names or bundle.values[0] is not self.values[places[0]]:
                    bundle = Bundle([members[i] for i in places], its_names, rule.counted, state)
                self.bundles.append((bundle, places))
        bundles = [bundle for bundle, _ in self.bundles]
        self.size = sum([bundle.size for bundle in bundles])
        self.served = [p for bundle in bundles for p in bundle.members]
        self.entries = [entry for bundle in bundles for entry in bundle.entries]
        served = {i for _, places in self.bundles for i in places}
        self.rest = [i for i, g in enumerate(gradients) if g is not None and i not in served]
        written = [*chain.from_iterable([*b.values, *[moment.whole for moment in b.moments]] for b in bundles)]
        self.foreign = {id(owner(array)) for array in written}

    def fits(self, circumstances: Circumstances, members: list[Tensor]) -> bool:
        """Whether nothing is different."""
        return (
            circumstances == self.circumstances
            and all(map(is_, members, self.members))
            and all(map(is_, map(_array_of, members), self.values))
        )

    def apart(self, gradients: list[Any]) -> list[Any]:
        """The gradients; of one that lies in a parameter or a moment, which are about to change, a copy."""
        # What a view looks into is mostly its base; only for a view of a view it takes longer to find.
        bases = [None if g is None else g.base for g in gradients]
        owners = [
            g if base is None else base if getattr(base, "base", None) is None else owner(g)
            for g, base in zip(gradients, bases, strict=True)
        ]
        if self.foreign.isdisjoint(map(id, owners)):
            return gradients
        return [g.copy() if id(block) in self.foreign else g for g, block in zip(gradients, owners, strict=True)]

    def contents(self) -> list[Any]:
        """All that is kept for those that are served, as the very objects."""
        return [*chain.from_iterable(map(dict.values, self.entries))]


NOTHING = Plan((None, [], [], []), [], [], {}, ())


def do(task: tuple[Any, ...]) -> None:
    """A part of a step. Who is alone keeps no memory for what comes in between, and gets some that is at hand."""
    step, p, g, a, *moments = task
    step(p, g, _alone(buffers.like(p[0])) if a is None else a, *moments)


def _together(
    members: Sequence[Tensor], gradients: Sequence[Any], groups: Sequence[int], state: Mapping[Tensor, State]
) -> list[list[int]]:
    """The places of those that can be stepped in place: each large one alone, small ones with their like."""
    moved = [i for i, g in enumerate(gradients) if g is not None]
    if _overlap([array for i in moved if type(array := members[i]._data) is np.ndarray]):
        return []  # then each must see what the one before has left
    together: list[list[int]] = []
    open_ones: dict[Any, tuple[list[int], int]] = {}
    for i in moved:
        p = members[i]
        if not _in_order(p) or type(gradients[i]) is not np.ndarray:
            continue
        if p.size > SMALL:
            together.append([i])
            continue
        like = groups[i], p.dtype, state.get(p, {}).get("step")
        places, size = open_ones.get(like, ([], BLOCK))
        if size + p.size > BLOCK:
            places, size = [], 0
            together.append(places)
        places.append(i)
        open_ones[like] = places, size + p.size
    return together


def _in_order(p: Tensor) -> bool:
    """Whether the memory of a parameter can be written to as it lies."""
    array = p._data
    return type(array) is np.ndarray and plain(array) and array.flags.writeable


def _overlap(arrays: Iterable[Array]) -> bool:
    """Whether any two of them may share memory."""
    bounds = sorted(np.lib.array_utils.byte_bounds(array) for array in arrays if array.size)
    return any(end > start for (_, end), (start, _) in pairwise(bounds))


def _kept(state: State, name: str, value: Array) -> Array:
    """A moment of a state that somebody may have written to. None would become nan."""
    kept: Any = state.get(name)
    shape = np.shape(kept)
    if kept is None or shape not in ((), value.shape):
        found = f"an array of shape {shape}" if shape else type(kept).__name__
        raise StateError(
            f"step: the state of a parameter of shape {value.shape} must hold {name!r}, an array of that shape, not "
            f"{found}; to begin anew, delete the parameter's entry"
        )
    return backend.to_device(kept, backend.CPU)


def _alone(array: Array) -> Split:
    return Split(array, [array])


def _zeros(size: int, dtype: Any) -> Array:
    """Zeros that begin at a cache line, and are not out of `buffers`, as they stay."""
    block = np.zeros(size * dtype.itemsize + buffers.ALIGNMENT, np.uint8)
    return np.ndarray(size, dtype, block, -int(block.ctypes.data) % buffers.ALIGNMENT)
