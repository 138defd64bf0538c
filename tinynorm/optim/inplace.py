"""The rules of `rules` in place, for NumPy's arrays: the same operations in the same order, so the same bits.

A rule makes fresh arrays for all that it computes. Here the new values are written over the old ones, block by block,
so that a block stays in the cache from the first operation to the last. Small parameters are gathered in one array and
stepped at once, as calls are what they cost. Only moments are kept in that form: a parameter stays in the memory that
it has, which `w.data` hands out, tied weights share and users write to.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from operator import is_
from typing import Any, NamedTuple

import numpy as np

from .. import backend
from ..formulas.types import Array
from ..kernels import buffers, threads
from ..kernels.blocks import BLOCK
from ..memory import owner
from ..tensor import Tensor
from .state import State

SMALL = 8_192  #: up to so many elements gathering costs less than calls

Options = Mapping[str, Any]
Step = Callable[..., None]  #: step(p, g, *moments, a, b) writes to all but g; what a and b hold is of no account
Move = tuple[Tensor, Array, int]  #: a parameter, its gradient, the number of its group


class InPlace(NamedTuple):
    """A rule in place.

    Args:
        moments: ``moments(options)``, the names of the arrays that are kept.
        counted: whether "step" is kept too.
        make: ``make(number, t, **options)``, the step number t, where `number` gives constants the arrays' dtype.
    """

    moments: Callable[[Options], tuple[str, ...]]
    counted: bool
    make: Callable[..., Step]


def _sgd(
    number: Callable[[float], Array], t: int, *, lr: float, momentum: float, nesterov: bool, weight_decay: float
) -> Step:
    """`rules.sgd`, or `rules.sgd_momentum`"""
    rate, keep, decay = number(lr), number(momentum), number(weight_decay)

    def plain(p: Array, g: Array, a: Array, b: Array) -> None:
        g = _with_decay(p, g, decay, b) if weight_decay else g
        np.multiply(g, rate, a)
        np.subtract(p, a, p)

    def heavy(p: Array, g: Array, v: Array, a: Array, b: Array) -> None:
        g = _with_decay(p, g, decay, b) if weight_decay else g
        np.multiply(v, keep, v)
        np.add(v, g, v)
        if nesterov:
            np.multiply(v, keep, a)
            np.add(a, g, a)
            np.multiply(a, rate, a)
        else:
            np.multiply(v, rate, a)
        np.subtract(p, a, p)

    return heavy if momentum else plain


def _adam(
    number: Callable[[float], Array],
    t: int,
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    shrink: float = 1.0,
) -> Step:
    """`rules.adam`, after p ← p · shrink"""
    (beta1, beta2), decay, smaller, least = betas, number(weight_decay), number(shrink), number(eps)
    keep1, new1, keep2, new2 = number(beta1), number(1.0 - beta1), number(beta2), number(1.0 - beta2)
    unbiased, rate = number((1.0 - beta2**t) ** -0.5), number(lr / (1.0 - beta1**t))

    def step(p: Array, g: Array, m: Array, v: Array, a: Array, b: Array) -> None:
        if shrink != 1.0:
            np.multiply(p, smaller, p)
        g = _with_decay(p, g, decay, b) if weight_decay else g
        np.multiply(m, keep1, m)
        np.multiply(g, new1, a)
        np.add(m, a, m)
        np.multiply(g, new2, a)
        np.multiply(a, g, a)
        np.multiply(v, keep2, v)
        np.add(v, a, v)
        np.sqrt(v, a)
        np.multiply(a, unbiased, a)
        np.add(a, least, a)
        np.divide(m, a, a)
        np.multiply(a, rate, a)
        np.subtract(p, a, p)

    return step


def _adamw(number: Callable[[float], Array], t: int, *, lr: float, weight_decay: float, **options: Any) -> Step:
    """`rules.adamw`"""
    return _adam(number, t, lr=lr, weight_decay=0.0, shrink=1.0 - lr * weight_decay, **options)


def _with_decay(p: Array, g: Array, decay: Array, b: Array) -> Array:
    return np.add(g, np.multiply(p, decay, b), b)


def _velocity(options: Options) -> tuple[str, ...]:
    return ("velocity",) if options["momentum"] else ()


def _two_means(options: Options) -> tuple[str, ...]:
    return ("m", "v")


sgd = InPlace(_velocity, False, _sgd)
adam = InPlace(_two_means, True, _adam)
adamw = InPlace(_two_means, True, _adamw)


class Bundle:
    """Parameters of a group that are stepped at once: one that is large, or small ones gathered in one array.

    Their moments become views of one array each, which nothing else writes to.
    """

    def __init__(
        self, members: list[Tensor], names: tuple[str, ...], counted: bool, state: dict[Tensor, State]
    ) -> None:
        self.members, self.names, self.counted = members, names, counted
        self.values = [p._data for p in members]
        self.flat = [value.reshape(-1) for value in self.values]
        ends = list(accumulate([value.size for value in self.values], initial=0))
        parts, self.size, self.dtype = [slice(*ab) for ab in pairwise(ends)], ends[-1], self.values[0].dtype
        self.gathered = len(members) > 1
        self.p = _zeros(self.size, self.dtype) if self.gathered else self.flat[0]
        self.g = _zeros(self.size, self.dtype) if self.gathered else None
        self.moments = [_zeros(self.size, self.dtype) for _ in names]
        self.pieces = [self.p[part] for part in parts]
        self.entries = [self._take_over(p, part, state) for p, part in zip(members, parts, strict=True)]
        blocks = [slice(low, min(low + BLOCK, self.size)) for low in range(0, self.size, BLOCK)]
        self.blocks = [(block, self.p[block], [moment[block] for moment in self.moments]) for block in blocks]

    def _take_over(self, p: Tensor, part: slice, state: dict[Tensor, State]) -> State:
        """A parameter's state, copied to this bundle's memory."""
        before = state.get(p, {})
        entry: State = {"step": before.get("step", 0)} if self.counted else {}
        for name, moment in zip(self.names, self.moments, strict=True):
            entry[name] = moment[part].reshape(p.shape)
            if before:
                entry[name][...] = backend.to_device(before[name], backend.CPU)
        state[p] = entry
        return entry

    def in_step(self) -> bool:
        """Whether all members are at the same step."""
        return not self.counted or len(self.entries) == 1 or len({entry["step"] for entry in self.entries}) == 1

    def blocks_of(self, gradients: list[Array]) -> list[tuple[Array, ...]]:
        """p, g and the moments, in blocks."""
        if self.gathered:
            np.concatenate(self.flat, out=self.p)
            g = np.concatenate([gradient.reshape(-1) for gradient in gradients], out=self.g)
        else:
            g = gradients[0].reshape(-1)
        return [(p, g[block], *moments) for block, p, moments in self.blocks]

    def finish(self, t: int) -> None:
        """Put back what was gathered."""
        if self.gathered:
            for flat, piece in zip(self.flat, self.pieces, strict=True):
                flat[...] = piece
        if self.counted:
            for entry in self.entries:
                entry["step"] = t


class Runner:
    """What an optimizer remembers from step to step: the bundles, which are made anew where anything is different."""

    def __init__(self) -> None:
        self.bundles: list[tuple[Bundle, list[int]]] = []  # with the places of their members among the moves
        self.rest: list[int] = []  # the places of the others
        self.circumstances: Any = None
        self.members: list[Tensor] = []
        self.values: list[Array] = []
        self.served: list[Tensor] = []
        self.entries: list[State] = []
        self.slots: list[tuple[State, str]] = []
        self.arrays: list[Array] = []
        self.foreign: set[int] = set()  # the arrays that a gradient must not look into

    def __reduce__(self) -> Any:
        return Runner, ()  # a copied or pickled optimizer has arrays of its own

    def step(
        self, rule: InPlace, moves: list[Move], options: Sequence[Options], state: dict[Tensor, State]
    ) -> list[Move]:
        """Make the steps that can be made in place. Returns the others."""
        settings = np.geterr()
        if not {"raise", "call"}.isdisjoint(settings.values()):
            return moves  # an error half-way would leave new moments beside old values
        self._prepare(rule, moves, options, state)
        gradients = [g if self._own(g) else g.copy() for _, g, _ in moves]
        steps: dict[Any, Step] = {}
        tasks: list[tuple[Any, ...]] = []
        counts = []
        for bundle, places in self.bundles:
            for p in bundle.members:
                p._memory.version += 1  # before anything is written
            group, t, dtype = moves[places[0]][2], bundle.entries[0].get("step", 0) + 1, bundle.dtype
            if (group, t, dtype) not in steps:
                steps[group, t, dtype] = rule.make(lambda x, dtype=dtype: np.array(x, dtype), t, **options[group])
            step = steps[group, t, dtype]
            tasks += [(step, *block) for block in bundle.blocks_of([gradients[i] for i in places])]
            counts.append(t)
        size = sum(bundle.size for bundle, _ in self.bundles)
        # NumPy's error settings are the thread's own.
        threads.each(np.errstate(**settings)(_run) if size >= threads.ENOUGH else _run, tasks, size)
        for (bundle, _), t in zip(self.bundles, counts, strict=True):
            bundle.finish(t)
        return [moves[i] for i in self.rest]

    def _prepare(
        self, rule: InPlace, moves: list[Move], options: Sequence[Options], state: dict[Tensor, State]
    ) -> None:
        """Keep the bundles, or make new ones."""
        names = [rule.moments(values) for values in options]
        members = [p for p, _, _ in moves]
        circumstances = [group for _, _, group in moves], [type(g) for _, g, _ in moves], names
        if (
            circumstances == self.circumstances
            and all(map(is_, members, self.members))
            and all(map(is_, [p._data for p in members], self.values))
            and self._undisturbed(state)
        ):
            return
        kept = {}
        if self._undisturbed(state):
            kept = {bundle.members[0]: bundle for bundle, _ in self.bundles if not bundle.gathered}
        self.bundles = []
        for places in _together(moves, state):
            first, group = members[places[0]], moves[places[0]][2]
            bundle = kept.get(first) if len(places) == 1 else None
            if bundle is None or bundle.names != names[group] or bundle.values[0] is not first._data:
                bundle = Bundle([members[i] for i in places], names[group], rule.counted, state)
            self.bundles.append((bundle, places))
        self.members, self.circumstances, self.values = members, circumstances, [p._data for p in members]
        bundles = [bundle for bundle, _ in self.bundles]
        self.rest = sorted(set(range(len(moves))).difference(*[places for _, places in self.bundles]))
        self.served = [p for bundle in bundles for p in bundle.members]
        self.entries = [entry for bundle in bundles for entry in bundle.entries]
        self.slots = [(entry, name) for bundle in bundles for entry in bundle.entries for name in bundle.names]
        self.arrays = [entry[name] for entry, name in self.slots]
        self.foreign = {id(owner(a)) for bundle in bundles for a in [*bundle.values, *bundle.moments]}

    def _own(self, g: Array) -> bool:
        """Whether a gradient's memory is its own: then it does not change while parameters and moments do."""
        return id(g if g.base is None else owner(g)) not in self.foreign

    def _undisturbed(self, state: Mapping[Tensor, State]) -> bool:
        """Whether what is kept for the parameters is what the bundles left there, and can be written to."""
        return (
            all(map(is_, self.entries, map(state.get, self.served)))
            and all(map(is_, self.arrays, [entry.get(name) for entry, name in self.slots]))
            and all(value.flags.writeable for bundle, _ in self.bundles for value in bundle.values)
            and all(bundle.in_step() for bundle, _ in self.bundles)
        )


def _together(moves: list[Move], state: Mapping[Tensor, State]) -> list[list[int]]:
    """The places of those that can be stepped in place: each large one alone, small ones with their like."""
    if _overlap([p._data for p, _, _ in moves if type(p._data) is np.ndarray]):
        return []  # then each must see what the one before has left
    together: list[list[int]] = []
    open_ones: dict[Any, tuple[list[int], int]] = {}
    for i, (p, g, group) in enumerate(moves):
        if not _plain(p) or type(g) is not np.ndarray:
            continue
        if p.size > SMALL:
            together.append([i])
            continue
        like = group, p.dtype, state.get(p, {}).get("step")
        members, size = open_ones.get(like, ([], BLOCK))
        if size + p.size > BLOCK:
            members, size = [], 0
            together.append(members)
        members.append(i)
        open_ones[like] = members, size + p.size
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


def _overlap(arrays: list[Array]) -> bool:
    """Whether any two of them may share memory."""
    bounds = sorted(np.lib.array_utils.byte_bounds(array) for array in arrays if array.size)
    return any(end > start for (_, end), (start, _) in pairwise(bounds))


def _run(task: tuple[Any, ...]) -> None:
    step, p, *others = task
    a, b = buffers.empty((2, p.size), p.dtype)
    step(p, *others, a, b)


def _zeros(size: int, dtype: Any) -> Array:
    """Zeros that begin at a cache line, and are not out of `buffers`, as they stay."""
    block = np.zeros(size * dtype.itemsize + buffers.ALIGNMENT, np.uint8)
    return np.ndarray(size, dtype, block, -int(block.ctypes.data) % buffers.ALIGNMENT)
