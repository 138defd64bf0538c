"""Which parameters are stepped in place together, and what an optimizer remembers of them from step to step.

Only moments are gathered in one array: a parameter stays in the memory that it has, which `w.data` hands out, tied
weights share and users write to, and so does a gradient. What users may have changed since the last step is looked at
before each: which parameters there are and have gradients, and their arrays; and the optimizer's `state`, once somebody
has got it.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate, chain, pairwise
from operator import attrgetter, is_
from typing import Any

import numpy as np

from .. import backend
from ..formulas.types import Array
from ..kernels import buffers, threads
from ..kernels.blocks import BLOCK
from ..memory import owner
from ..tensor import Tensor
from .groups import Group
from .inplace import InPlace, Options, Split, Step
from .state import State

SMALL = 32_768  #: elements from which on the calls that a bundle saves are of no account

Move = tuple[Tensor, Array, int]  #: a parameter, its gradient, the number of its group
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
                entry[name][...] = backend.to_device(before[name], backend.CPU)
        return entry

    def tasks(self, step: Step, gradients: list[Array]) -> list[tuple[Any, ...]]:
        """What `_do` is to do, in parts that may run at once."""
        if self.size <= BLOCK:
            return [(step, self.values, gradients, self.scratch, *self.moments)]
        p, g, *moments = [a.reshape(-1) for a in (self.values[0], gradients[0], *[m.whole for m in self.moments])]
        blocks = [slice(low, low + BLOCK) for low in range(0, self.size, BLOCK)]
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


class Runner:
    """Makes an optimizer's steps, by a plan that is made anew where anything is different.

    Nobody can change a state that they never got; so it is looked at only once it has been handed out.
    """

    def __init__(self) -> None:
        self.plan = NOTHING
        self.state: Mapping[Tensor, State] = {}  # where the last step left its entries
        self.exposed = False
        self.left: list[Any] = []  # if exposed, what the entries held

    def __reduce__(self) -> Any:
        return Runner, ()  # a copied or pickled optimizer has arrays of its own

    def expose(self) -> None:
        """Note that the state is about to be handed out."""
        if not self.exposed:
            self.exposed, self.left = True, self.plan.contents()

    def step(
        self,
        name: str,
        rule: InPlace | None,
        groups: list[Group],
        options: Sequence[Options],
        state: dict[Tensor, State],
    ) -> list[Move]:
        """Make the steps that can be made in place, if there is a rule for that. Returns the others.

        Raises `DeviceError`, before anything has moved, for a gradient that is not on its parameter's device.
        """
        members = [p for group in groups for p in group["params"]]
        gradients: list[Any] = [p.grad for p in members]
        settings = np.geterr()
        if not {"raise", "call"}.isdisjoint(settings.values()):
            rule = None  # an error half-way would leave new moments beside old values
        names = [() if rule is None else rule.moments(values) for values in options]
        circumstances = rule, names, [len(group["params"]) for group in groups], list(map(type, gradients))
        plan, undisturbed = self.plan, self._undisturbed(state)
        if not undisturbed or not plan.fits(circumstances, members):
            earlier = [bundle for bundle, _ in plan.bundles] if undisturbed else []
            plan = Plan(circumstances, members, gradients, state, earlier)
        rest = [(members[i], gradients[i], plan.groups[i]) for i in plan.rest]
        for p, g, _ in rest:
            backend.common_namespace(f"{name}.step", (p._data, g))
        if rule is not None and plan.bundles:
            _run(rule, plan, plan.apart(gradients), options, settings)
        if plan is not self.plan:
            state.update(zip(plan.served, plan.entries, strict=True))
            self.plan, self.state = plan, state
        if self.exposed:
            self.left = plan.contents()
        return rest

    def _undisturbed(self, state: Mapping[Tensor, State]) -> bool:
        """Whether what is kept for the parameters is what the last step left there."""
        if not self.exposed or state is not self.state:
            return state is self.state
        contents = self.plan.contents()
        return (
            all(map(is_, map(state.get, self.plan.served), self.plan.entries))
            and len(contents) == len(self.left)
            and all(map(is_, contents, self.left))
        )


def _run(rule: InPlace, plan: Plan, gradients: list[Array], options: Sequence[Options], settings: Any) -> None:
    """Step all bundles."""
    steps: dict[Any, Step] = {}
    tasks: list[tuple[Any, ...]] = []
    counts = []
    for bundle, places in plan.bundles:
        group, t, dtype = plan.groups[places[0]], bundle.entries[0].get("step", 0) + 1, bundle.dtype
        step = steps.get((group, t, dtype))
        if step is None:
            step = rule.make(partial(np.array, dtype=dtype), t, **options[group])
            steps[group, t, dtype] = step
        tasks += bundle.tasks(step, [gradients[i] for i in places])
        counts.append(t)
    for p in plan.served:
        p._memory.version += 1  # before anything is written
    # NumPy's error settings are the thread's own.
    threads.each(np.errstate(**settings)(_do) if plan.size >= threads.ENOUGH else _do, tasks, plan.size)
    for (bundle, _), t in zip(plan.bundles, counts, strict=True):
        bundle.count(t)


def _do(task: tuple[Any, ...]) -> None:
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
        if not _plain(p) or type(gradients[i]) is not np.ndarray:
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


def _plain(p: Tensor) -> bool:
    array = p._data
    return (
        type(array) is np.ndarray
        and array.dtype.char in "fd"
        and array.dtype.isnative
        and array.flags.c_contiguous
        and array.flags.writeable
        and array.size > 0
    )


def _overlap(arrays: Iterable[Array]) -> bool:
    """Whether any two of them may share memory."""
    bounds = sorted(np.lib.array_utils.byte_bounds(array) for array in arrays if array.size)
    return any(end > start for (_, end), (start, _) in pairwise(bounds))


def _alone(array: Array) -> Split:
    return Split(array, [array])


def _zeros(size: int, dtype: Any) -> Array:
    """Zeros that begin at a cache line, and are not out of `buffers`, as they stay."""
    block = np.zeros(size * dtype.itemsize + buffers.ALIGNMENT, np.uint8)
    return np.ndarray(size, dtype, block, -int(block.ctypes.data) % buffers.ALIGNMENT)
