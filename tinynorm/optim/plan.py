"""Which parameters are stepped in place together."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, pairwise
from operator import attrgetter, is_
from typing import Any

import numpy as np

from .. import backend
from ..formulas.types import Array
from ..kernels.blocks import BLOCK
from ..kernels.cuda import launch
from ..kernels.kernel import plain
from ..memory import owner
from ..tensor import Tensor
from .bundles import Bundle, DeviceBundle
from .inplace import InPlace
from .state import State

SMALL = 32_768  #: elements from which on the calls that a bundle saves are of no account

#: The rule, the names of the moments in each group, the groups' sizes, the types of all gradients.
Circumstances = tuple[InPlace | None, list[tuple[str, ...]], list[int], list[type]]

_array_of = attrgetter("_data")


class Plan:
    """Which parameters are stepped together, for as long as `fits` finds nothing different."""

    def __init__(
        self,
        circumstances: Circumstances,
        members: list[Tensor],
        gradients: list[Any],
        state: Mapping[Tensor, State],
        earlier: Sequence[Bundle | DeviceBundle],
    ) -> None:
        rule, names, sizes, _ = self.circumstances = circumstances
        self.members, self.values = members, [p._data for p in members]
        self.groups = [i for i, size in enumerate(sizes) for _ in range(size)]  # for each member its group's number
        self.bundles: list[tuple[Bundle | DeviceBundle, list[int]]] = []  # with their members' places among all
        moved = [i for i, g in enumerate(gradients) if g is not None]
        self.overlap = _overlap([self.values[i] for i in moved])  # then each must see what the one before has left
        if rule is not None and not self.overlap:
            alone = {b.members[0]: b for b in earlier if isinstance(b, Bundle) and len(b.members) == 1}
            for places in self._on_host(moved, gradients, state):
                its_members, its_names = [members[i] for i in places], names[self.groups[places[0]]]
                bundle = alone.get(its_members[0]) if len(places) == 1 else None
                if bundle is None or bundle.names != its_names or bundle.values[0] is not its_members[0]._data:
                    bundle = Bundle(its_members, its_names, rule.counted, state)
                self.bundles.append((bundle, places))
            if rule.constants is not None:
                for places in self._on_devices(moved, gradients):
                    its_members, its_groups = [members[i] for i in places], [self.groups[i] for i in places]
                    its_bundle = DeviceBundle(its_members, its_groups, rule.constants, state, earlier)
                    self.bundles.append((its_bundle, places))
        bundles = [bundle for bundle, _ in self.bundles]
        self.size = sum([bundle.size for bundle in bundles])
        self.served = [p for bundle in bundles for p in bundle.members]
        self.entries = [entry for bundle in bundles for entry in bundle.entries]
        in_bundles = {i for _, places in self.bundles for i in places}
        self.rest = [i for i in moved if i not in in_bundles]
        self.written = {id(owner(array)) for bundle in bundles for array in bundle.written()}

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
        if self.written.isdisjoint(map(id, owners)):
            return gradients
        return [backend.copy(g) if id(block) in self.written else g for g, block in zip(gradients, owners, strict=True)]

    def contents(self) -> list[Any]:
        """All that is kept for those that are served, as the very objects."""
        return [*chain.from_iterable(map(dict.values, self.entries))]

    def _on_host(
        self, moved: Sequence[int], gradients: Sequence[Any], state: Mapping[Tensor, State]
    ) -> list[list[int]]:
        """The places of those that are stepped on the host: each large one alone, small ones with their like."""
        together: list[list[int]] = []
        open_ones: dict[Any, tuple[list[int], int]] = {}
        for i in moved:
            p = self.members[i]
            if not _in_order(p) or type(gradients[i]) is not np.ndarray:
                continue
            if p.size > SMALL:
                together.append([i])
                continue
            like = self.groups[i], p.dtype, state.get(p, {}).get("step")
            places, size = open_ones.get(like, ([], BLOCK))
            if size + p.size > BLOCK:
                places, size = [], 0
                together.append(places)
            places.append(i)
            open_ones[like] = places, size + p.size
        return together

    def _on_devices(self, moved: Sequence[int], gradients: Sequence[Any]) -> list[list[int]]:
        """The places of those that a kernel steps on a device: all of a dtype and a device together."""
        together: dict[Any, list[int]] = {}
        for i in moved:
            p, g = self.members[i]._data, gradients[i]
            if backend.is_device_array(p) and _suit(p, g):
                together.setdefault((p.dtype, p.device.id), []).append(i)
        return [*together.values()]


def _suit(p: Array, g: Array) -> bool:
    """Whether a kernel can step the parameter as it lies, and by this gradient."""
    here = launch.available() and backend.device_of(g) == backend.device_of(p)
    return here and p.flags.c_contiguous and p.dtype.char in launch.TYPES


def _in_order(p: Tensor) -> bool:
    """Whether the memory of a parameter can be written to as it lies."""
    array = p._data
    return type(array) is np.ndarray and plain(array) and array.flags.writeable


def _overlap(arrays: Iterable[Array]) -> bool:
    """Whether any two of them may share memory."""
    bounds = sorted(map(_bounds, [array for array in arrays if array.size]))
    return any(end > start for (_, end), (start, _) in pairwise(bounds))


def _bounds(array: Array) -> tuple[int, int]:
    on_device = backend.is_device_array(array)
    bounds: tuple[int, int] = (backend.namespace(array) if on_device else np.lib.array_utils).byte_bounds(array)
    return bounds


NOTHING = Plan((None, [], [], []), [], [], {}, ())
