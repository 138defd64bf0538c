"""An optimizer's state as plain numbers and arrays, and back, with everything checked."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import backend
from ..errors import ArgumentError, StateError
from ..options import count
from ..tensor import Tensor

State = dict[str, Any]  #: what a rule keeps for one parameter: arrays under their names, and "step", a count
Check = Callable[[str, Mapping[str, Any]], dict[str, Any]]


def state_dtype(p: Tensor) -> np.dtype[Any]:
    """The dtype in which a parameter's state is kept and its step computed: its own, but at least float32."""
    return np.promote_types(p.dtype, np.float32)


def pack(members: Sequence[list[Tensor]], options: Sequence[dict[str, Any]], state: Mapping[Tensor, State]) -> State:
    """{"state": {position: {slot: value}}, "param_groups": [{option: value, "params": positions}]}"""
    flat = [p for group in members for p in group]
    return {
        "state": {i: {k: _host_copy(v) for k, v in state[p].items()} for i, p in enumerate(flat) if state.get(p)},
        "param_groups": [
            {**values, "params": places} for values, places in zip(options, _positions(members), strict=True)
        ],
    }


def unpack(
    name: str,
    saved: Any,
    members: Sequence[list[Tensor]],
    defaults: Sequence[str],
    check: Check,
    slots: Sequence[str],
) -> tuple[list[dict[str, Any]], dict[Tensor, State]]:
    """Each group's options and each parameter's state, copied from what `pack` gave.

    Positions may have become text and tuples lists, as JSON does it. Raises `StateError` for whatever does not fit.
    """
    try:
        _names(name, "the state", saved, ["state", "param_groups"])
        options = _unpack_options(name, saved["param_groups"], members, defaults, check)
        flat = {str(i): p for i, p in enumerate(p for group in members for p in group)}
        entries = _mapping(name, '"state"', saved["state"])
        state: dict[Tensor, State] = {}
        for key, entry in entries.items():
            if str(key) not in flat:
                raise StateError(f"{name}: state for parameter {key!r}, but there are {len(flat)}, counted from 0")
            p = flat[str(key)]
            state[p] = _unpack_slots(f"{name}: parameter {key}", entry, p, slots)
    except (StateError, ArgumentError) as error:
        raise StateError(f"{error}; nothing was loaded") from error
    return options, state


def _unpack_options(
    name: str, saved: Any, members: Sequence[list[Tensor]], defaults: Sequence[str], check: Check
) -> list[dict[str, Any]]:
    if not isinstance(saved, (list, tuple)) or len(saved) != len(members):
        given = f"{len(saved)} groups" if isinstance(saved, (list, tuple)) else f"a {type(saved).__name__}"
        raise StateError(f"{name}: param_groups must list {len(members)} groups, as the optimizer has, not {given}")
    options = []
    for i, (group, places) in enumerate(zip(saved, _positions(members), strict=True)):
        where = f"{name}: group {i}"
        _names(where, "it", group, [*defaults, "params"])
        found = group["params"]
        if not isinstance(found, (list, tuple)) or list(found) != places:
            raise StateError(f"{where}: params must be {places}, as in the optimizer, not {found!r}")
        options.append(check(where, {option: group[option] for option in defaults}))
    return options


def _unpack_slots(name: str, entry: Any, p: Tensor, slots: Sequence[str]) -> State:
    _names(name, "its state", entry, slots)
    state: State = {}
    for slot in slots:
        value = entry[slot]
        if slot == "step":
            state[slot] = count(name, slot, value, least=1)
            continue
        found = (value.shape, value.dtype) if backend.is_array(value) else (type(value).__name__, "")
        if found != (p.shape, state_dtype(p)):
            raise StateError(f"{name}: {slot} must be an array {p.shape} {state_dtype(p)}, not {found[0]} {found[1]}")
        state[slot] = backend.to_device(_host_copy(value), p.device)
    return state


def _names(name: str, what: str, found: Any, expected: Sequence[str]) -> None:
    names = set(_mapping(name, what, found))
    if names != set(expected):
        raise StateError(f"{name}: {what} must have the keys {sorted(expected)}, not {sorted(map(str, names))}")


def _mapping(name: str, what: str, found: Any) -> Mapping[Any, Any]:
    if not isinstance(found, Mapping):
        raise StateError(f"{name}: {what} must be a dict, not a {type(found).__name__}")
    return found


def _positions(members: Sequence[list[Tensor]]) -> list[list[int]]:
    """Each group's parameters, numbered through all groups."""
    positions, start = [], 0
    for group in members:
        positions.append(list(range(start, start + len(group))))
        start += len(group)
    return positions


def _host_copy(value: Any) -> Any:
    return np.array(backend.to_device(value, backend.CPU)) if backend.is_array(value) else value
