"""Which parameters an optimizer moves, in groups that may differ in their options."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from ..backend import is_writeable
from ..errors import ArgumentError, DeviceError, DTypeError
from ..graph import Leaf, Node
from ..options import known, nonnegative
from ..tensor import Tensor

Group = dict[str, Any]  #: {"params": [...], "lr": ..., ...}


class HasParameters(Protocol):
    """A module, or anything else with the method `parameters`."""

    def parameters(self) -> Iterable[Tensor]:
        """Each parameter once."""
        ...


Parameters = HasParameters | Iterable[Tensor]
Params = HasParameters | Iterable[Tensor | Mapping[str, Any]]


def decay_groups(parameters: Parameters, weight_decay: float = 1e-2) -> list[Group]:
    """Groups for an optimizer: weight decay for matrices, none for gains and biases.

    Decay pulls toward 0. A norm's gain belongs near 1 and a bias wherever the data is, so the parameters of fewer than
    two axes go into a group of their own, with weight_decay 0. A group that would be empty is left out.

    Args:
        parameters: a module, or an iterable of parameters.
        weight_decay: of the first group.

    Raises:
        ArgumentError: for a negative weight decay, or a parameter that comes twice.
        DTypeError: for anything that is no Tensor.

    >>> import tinynorm as tn
    >>> w = tn.tensor([[1.0, 2.0]], requires_grad=True)
    >>> b = tn.tensor([0.0], requires_grad=True)
    >>> groups = tn.optim.decay_groups([w, b], weight_decay=0.1)
    >>> [(len(group["params"]), group["weight_decay"]) for group in groups]
    [(1, 0.1), (1, 0.0)]
    >>> optimizer = tn.optim.AdamW(groups, lr=1e-3)
    """
    members = tensors("decay_groups", parameters)
    decay = nonnegative("decay_groups", "weight_decay", weight_decay)
    matrices = [p for p in members if p.ndim >= 2]
    others = [p for p in members if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def make_groups(name: str, params: Params, defaults: Mapping[str, Any]) -> list[Group]:
    """One complete group for each that was given, or a single one. Their options are not checked here."""
    given = listed(name, params)
    if not any(isinstance(entry, Mapping) for entry in given):
        given = [{"params": given}]
    groups: list[Group] = []
    for i, entry in enumerate(given):
        where = f"{name}: group {i}" if len(given) > 1 else name
        if not isinstance(entry, Mapping) or "params" not in entry:
            raise ArgumentError(f'{where}: must be a dict with the key "params", like every other group')
        known(where, entry, ["params", *defaults])
        members = tensors(where, entry["params"])
        if not members:
            raise ArgumentError(
                f"{where}: no parameters to optimize; an iterator, such as model.parameters(), is empty after one walk"
            )
        for j, p in enumerate(members):
            _trainable(f"{where}: parameter {j}", p)
        groups.append({**defaults, **entry, "params": members})
    everything = [p for group in groups for p in group["params"]]
    _once(name, everything)
    _on_one_device(name, everything)
    return groups


def tensors(name: str, parameters: Parameters) -> list[Tensor]:
    """The parameters as a list of Tensors, none of them twice."""
    members = listed(name, parameters)
    for i, p in enumerate(members):
        if not isinstance(p, Tensor):
            raise DTypeError(
                f"{name}: parameter {i} must be a Tensor, not a {type(p).__name__}; pass model.parameters()"
            )
    _once(name, members)
    return members


def listed(name: str, parameters: Any) -> list[Any]:
    """What a module's `parameters()` or an iterable gives."""
    if hasattr(parameters, "parameters"):
        parameters = parameters.parameters()
    if isinstance(parameters, (Tensor, Mapping)) or not isinstance(parameters, Iterable):
        raise DTypeError(
            f"{name}: expects a list of parameters, not a {type(parameters).__name__}; write [...] around it"
        )
    if isinstance(parameters, (set, frozenset)):
        raise DTypeError(f"{name}: a set has no fixed order, by which state_dict knows parameters; pass a list")
    return list(parameters)


def _once(name: str, members: list[Tensor]) -> None:
    first: dict[int, int] = {}
    for i, p in enumerate(members):
        if first.setdefault(id(p), i) != i:
            raise ArgumentError(
                f"{name}: parameters {first[id(p)]} and {i} are one and the same, of shape {p.shape}, and would count "
                "twice; list a tied parameter once"
            )


def _on_one_device(name: str, members: list[Tensor]) -> None:
    for i, p in enumerate(members):
        if p.device != members[0].device:
            raise DeviceError(
                f"{name}: parameter 0 is on {members[0].device!r} and parameter {i}, of shape {p.shape}, on "
                f"{p.device!r}; move the model to one device first, or give each device an optimizer of its own"
            )


def _trainable(name: str, p: Tensor) -> None:
    if isinstance(p._source, Node):
        raise ArgumentError(
            f"{name} is the result of {p._source.op.name}, so writing to it changes nothing it was computed from; "
            "pass the leaves it was computed from, or p.detach() with requires_grad set"
        )
    if not isinstance(p._source, Leaf):
        raise ArgumentError(
            f"{name}, of shape {p.shape}, does not require a gradient and would never move; set p.requires_grad = "
            "True, or leave it out: [p for p in model.parameters() if p.requires_grad]"
        )
    if not is_writeable(p._data):
        raise ArgumentError(
            f"{name}, of shape {p.shape}, is read-only, or was broadcast; make it with tn.tensor, which copies"
        )
