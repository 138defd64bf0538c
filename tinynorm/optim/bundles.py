"""Parameters that are stepped in place together, on the host or on a device, with what is kept for them.

Only moments are gathered in one array: a parameter stays in the memory that it has, which `w.data` hands out, tied
weights share and users write to, and so does a gradient.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from .. import backend
from ..errors import StateError
from ..formulas.types import Array
from ..kernels import buffers
from ..kernels.blocks import BLOCK, cut
from ..kernels.cuda import adamw
from ..kernels.cuda.layout import PACK
from ..tensor import Tensor
from .inplace import Constants, Options, Spare, Split, Step
from .state import State, state_dtype

Launch = Callable[[], None]


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

    def written(self) -> list[Array]:
        """What a step writes to."""
        return [*self.values, *[moment.whole for moment in self.moments]]

    def tasks(self, step: Step, gradients: list[Array], spare: Spare | None) -> list[tuple[Any, ...]]:
        """What `do` is to do, in parts that may run at once."""
        if self.size <= BLOCK:
            return [(step, self.values, gradients, self.scratch or spare, *self.moments)]
        p, g, *moments = [a.reshape(-1) for a in (self.values[0], gradients[0], *[m.whole for m in self.moments])]
        blocks = cut(self.size, BLOCK)
        return [(step, [p[k]], [g[k]], spare, *[_alone(moment[k]) for moment in moments]) for k in blocks]

    def count(self, t: int) -> None:
        """Note that the members have made their t-th step."""
        if self.counted:
            for entry in self.entries:
                entry["step"] = t


class DeviceBundle:
    """All parameters of one dtype on a device that are stepped by Adam. One launch does that, whatever their groups.

    Moments of those that were not stepped so before become views of one array each. The others' stay where they are, so
    that none has to move when some parameter rests for a step.
    """

    def __init__(
        self,
        members: list[Tensor],
        groups: list[int],
        constants: Callable[..., Constants],
        state: Mapping[Tensor, State],
        earlier: Iterable[Any],
    ) -> None:
        self.members, self.groups, self.values = members, groups, [p._data for p in members]
        self.constants = constants
        self.size = sum(p.size for p in members)
        known = {p: entry for b in earlier if isinstance(b, DeviceBundle) for p, entry in b.still_there()}
        with backend.on_device_of(self.values[0], "step"):
            known |= _fresh_entries([p for p in members if p not in known], state)
            self.entries = [known[p] for p in members]
            self.m, self.v = [entry["m"] for entry in self.entries], [entry["v"] for entry in self.entries]
            self.tables = adamw.Tables(self.values, self.m, self.v)

    def still_there(self) -> list[tuple[Tensor, State]]:
        """The members that have the arrays that they had, and what is kept for them."""
        members = zip(self.members, self.values, self.entries, strict=True)
        return [(p, entry) for p, value, entry in members if value is p._data]

    def written(self) -> list[Array]:
        """What a step writes to."""
        return [*self.values, *self.m, *self.v]

    def prepared(self, options: Sequence[Options], gradients: list[Array]) -> Launch:
        """The step, with all that it needs already on the device, for `run`."""
        rows: dict[tuple[int, int], int] = {}  # for each group and count the place of its constants
        steps = [(group, entry["step"] + 1) for group, entry in zip(self.groups, self.entries, strict=True)]
        places = [rows.setdefault(step, len(rows)) for step in steps]
        table = [self.constants(t, **options[group]) for group, t in rows]
        with backend.on_device_of(self.values[0], "step"):
            return self.tables.prepared(gradients, places, table)

    def run(self, launch: Launch) -> None:
        """Make the step, and count it."""
        with backend.on_device_of(self.values[0], "step"):
            launch()
        for entry in self.entries:
            entry["step"] += 1


def do(task: tuple[Any, ...]) -> None:
    """A part of a step. Who is alone keeps no memory for what comes in between, and is lent some."""
    step, p, g, a, *moments = task
    if isinstance(a, Spare):
        with a.lend(p[0].shape) as block:
            step(p, g, _alone(block), *moments)
    else:
        step(p, g, a, *moments)


def _fresh_entries(members: list[Tensor], state: Mapping[Tensor, State]) -> dict[Tensor, State]:
    """What Adam keeps for parameters on a device. All m are parts of one array, and so are all v."""
    if not members:
        return {}
    entries: dict[Tensor, State] = {p: {"step": state.get(p, {}).get("step", 0)} for p in members}
    dtype, xp = state_dtype(members[0]), backend.namespace(members[0]._data)
    unit = PACK // dtype.itemsize
    starts = [*accumulate([-(-p.size // unit) * unit for p in members], initial=0)]
    for name in ("m", "v"):
        whole = xp.zeros(starts[-1], dtype)
        for (p, entry), start in zip(entries.items(), starts, strict=False):
            part = entry[name] = whole[start : start + p.size].reshape(p.shape)
            if state.get(p):
                part[...] = _kept(state[p], name, p._data)
    return entries


def _kept(state: State, name: str, value: Array) -> Array:
    """A moment of a state that somebody may have written to. None would become nan."""
    kept: Any = state.get(name)
    shape = kept.shape if backend.is_array(kept) else np.shape(kept)
    if kept is None or shape not in ((), value.shape):
        found = f"an array of shape {shape}" if shape else type(kept).__name__
        raise StateError(
            f"step: the state of a parameter of shape {value.shape} must hold {name!r}, an array of that shape, not "
            f"{found}; to begin anew, delete the parameter's entry"
        )
    return backend.to_device(kept, backend.device_of(value))


def _alone(array: Array) -> Split:
    return Split(array, [array])


def _zeros(size: int, dtype: Any) -> Array:
    """Zeros that begin at a cache line, and are not out of `buffers`, as they stay."""
    block = np.zeros(size * dtype.itemsize + buffers.ALIGNMENT, np.uint8)
    return np.ndarray(size, dtype, block, -int(block.ctypes.data) % buffers.ALIGNMENT)
