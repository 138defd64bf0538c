"""What all optimizers share: walking the groups, keeping state for each parameter, writing the new values."""

from collections.abc import Mapping
from operator import is_
from typing import Any

from .. import backend
from ..errors import ShapeError
from ..formulas.types import Array, Namespace
from ..kernels import enabled
from ..tensor import Tensor
from ..watch import watching
from .groups import Group, Params, make_groups
from .inplace import InPlace
from .runner import Runner
from .state import State, pack, state_dtype, unpack


class Optimizer:
    """Base of the optimizers. A subclass names its `slots`, checks its options and calls its update rule.

    Args:
        params: a module, an iterable of parameters, or an iterable of groups: dicts with the key "params" and whichever
            options shall differ from the defaults in that group.
        defaults: the options' values where a group does not set them.

    Attributes:
        param_groups: the groups, each a dict with all its options. They are read, and checked, anew at every step, so a
            schedule simply assigns ``group["lr"]``.
        state: what the rule keeps for each parameter that has moved, by the parameter. A step may write to these
            arrays; `state_dict` copies them.

    Raises:
        ArgumentError: for an unknown option, a value that makes no sense, no parameters, or one that comes twice, is no
            leaf, or does not require a gradient.
        DTypeError: for anything that is no Tensor.
        DeviceError: for parameters on several devices.

    A parameter whose grad is None is left alone, and the step is not counted for it. A gradient of zeros is a gradient:
    weight decay and momentum still move the parameter. `zero_grad` therefore sets None.

    State is kept in the parameter's dtype, on its device. A float16 parameter has float32 state; its step is computed
    in float32 and rounded once.

    >>> import tinynorm as tn
    >>> w = tn.tensor([[1.0]], requires_grad=True)
    >>> b = tn.tensor([0.0], requires_grad=True)
    >>> optimizer = tn.optim.SGD([{"params": [w]}, {"params": [b], "lr": 0.0}], lr=0.25)
    >>> (w + b).sum().backward()
    >>> optimizer.step()
    >>> w.item(), b.item()
    (0.75, 0.0)
    """

    slots: tuple[str, ...] = ()  #: names of what `update` keeps for a parameter; "step" is a count, the others arrays
    in_place: InPlace | None = None  #: the same rule in place

    def __init__(self, params: Params, defaults: Mapping[str, Any]) -> None:
        name = type(self).__name__
        self._seen: dict[int, tuple[list[Any] | None, dict[str, Any]]] = {}
        self.defaults: dict[str, Any] = self.checked(name, defaults)
        self.param_groups: list[Group] = make_groups(name, params, self.defaults)
        for group, options in zip(self.param_groups, self._options(), strict=True):
            group.update(options)
        self._state: dict[Tensor, State] = {}
        self._runner = Runner()

    def __init_subclass__(cls) -> None:
        """A subclass with a rule of its own does not inherit the fast form of another's."""
        if "in_place" not in vars(cls) and not {"update", "_rule"}.isdisjoint(vars(cls)):
            cls.in_place = None

    def checked(self, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options as Python numbers. Raises `ArgumentError`, starting with `name`, where one makes no sense."""
        raise NotImplementedError(f"{type(self).__name__} defines no checked")

    def update(
        self, xp: Namespace, p: Array, g: Array, state: State, options: Mapping[str, Any]
    ) -> tuple[Array, State]:
        """The new value and state of one parameter. The state is empty at its first step; nothing is written to."""
        raise NotImplementedError(f"{type(self).__name__} defines no update")

    @property
    def state(self) -> dict[Tensor, State]:
        """What the rule keeps, by the parameter."""
        self._runner.expose()
        return self._state

    def step(self) -> None:
        """Move every parameter that has a gradient. Graphs that still need the old values refuse `backward` afterwards.

        Raises:
            ArgumentError: for an option that was set to something that makes no sense.
            DeviceError: for a gradient that is not on its parameter's device, and a device that has no memory left.
            StateError: where something was put into `state` that cannot be what the rule keeps.

        Nothing has moved then: all is computed, or has the memory that it needs, before anything is written. (Only
        parameters that share memory go one by one.)
        """
        if (watcher := watching()) is not None:
            return watcher.step(Optimizer.step, self)
        options, rule = self._options(), self.in_place if enabled() else None
        runner, name = self._runner, type(self).__name__
        prepared, rest = runner.prepare(name, rule, self.param_groups, options, self._state)
        moved = []
        for p, g, i in rest:
            moved.append(self._moved(p, g, options[i]))
            if prepared.plan.overlap:  # each must see what the one before has left
                self._write([moved.pop()])
        runner.run(prepared, self._state)
        self._write(moved)

    def _moved(self, p: Tensor, g: Array, options: Mapping[str, Any]) -> tuple[Tensor, Array, State]:
        """A parameter's new values and state, by the rule."""
        dtype = state_dtype(p)
        with backend.on_device_of(p._data, f"{type(self).__name__}.step"):
            state = {slot: _on_device(value, p.device) for slot, value in self._state.get(p, {}).items()}
            old, g = p._data.astype(dtype, copy=False), g.astype(dtype, copy=False)
            values, state = self.update(backend.namespace(old), old, g, state, options)
            if values.shape != p.shape:
                raise ShapeError(f"{type(self).__name__}.update: made values of shape {values.shape} from {p.shape}")
            state = {slot: value if slot == "step" else backend.as_array(value) for slot, value in state.items()}
            return p, backend.as_array(values).astype(p.dtype, copy=False), state

    def _write(self, moved: list[tuple[Tensor, Array, State]]) -> None:
        """Write new values into the parameters' own arrays; if a device fails meanwhile, all get the new arrays."""
        self._state.update({p: state for p, _, state in moved})
        try:
            for p, values, _ in moved:
                with backend.on_device_of(p._data, f"{type(self).__name__}.step"):
                    p._overwrite(values)
        except BaseException:  # some are written already: the step is made, and not half of it
            for p, values, _ in moved:
                p.data = values
            raise

    def _options(self) -> list[dict[str, Any]]:
        """Each group's options as they are now, checked."""
        return [self._checked(i, group) for i, group in enumerate(self.param_groups)]

    def _checked(self, i: int, group: Group) -> dict[str, Any]:
        """A group's options; as checked before, if they are the very same values, and such as cannot change."""
        given = [group[option] for option in self.defaults]
        seen, options = self._seen.get(i, (None, {}))
        if seen is None or not all(map(is_, seen, given)):
            name = type(self).__name__
            where = f"{name}: group {i}" if len(self.param_groups) > 1 else name
            options = self.checked(where, dict(zip(self.defaults, given, strict=True)))
            self._seen[i] = given if all(map(_fixed, given)) else None, options
        return options

    def zero_grad(self) -> None:
        """Forget the gradients: each grad becomes None, and a step without a backward then moves nothing."""
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = None

    def state_dict(self) -> dict[str, Any]:
        """All that a later `load_state_dict` needs in order to go on from here: options and state, no parameters.

        Nested dicts and lists of Python numbers and of NumPy arrays, which are copies. A parameter is known by its
        position, counted through all groups.

        >>> import tinynorm as tn
        >>> w = tn.tensor([1.0], requires_grad=True)
        >>> optimizer = tn.optim.SGD([w], lr=0.5, momentum=0.5)
        >>> (2.0 * w).sum().backward()
        >>> optimizer.step()
        >>> state = optimizer.state_dict()
        >>> state["state"]
        {0: {'velocity': array([2.], dtype=float32)}}
        >>> state["param_groups"]
        [{'lr': 0.5, 'momentum': 0.5, 'nesterov': False, 'weight_decay': 0.0, 'params': [0]}]
        """
        return pack(self._members(), self._options(), self._state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over copies of what `state_dict` gave, for the same parameters in the same groups and order.

        Raises:
            StateError: where groups, options or state do not fit. Nothing has been changed then.
            DeviceError: where a device has no memory for the state. Nothing has been changed then, either.
        """
        name = f"{type(self).__name__}.load_state_dict"
        options, loaded = unpack(name, state, self._members(), list(self.defaults), self.checked, self.slots)
        for group, values in zip(self.param_groups, options, strict=True):
            group.update(values)
        self._state = loaded

    def _members(self) -> list[list[Tensor]]:
        return [group["params"] for group in self.param_groups]


def _on_device(value: Any, device: str) -> Any:
    """A slot where its parameter is: `Module.to` may have moved the parameter since the last step."""
    return backend.to_device(value, device) if backend.is_array(value) else value


def _fixed(value: Any) -> bool:
    """Whether a value can never become another: a number of Python's, or a tuple of such."""
    return type(value) in (float, int, bool) or (type(value) is tuple and all(map(_fixed, value)))
