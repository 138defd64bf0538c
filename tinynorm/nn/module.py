"""Parameters, and the modules that own them."""

from collections.abc import Iterator, Mapping
from typing import Any, Self

import numpy as np

from ..backend import CPU, to_device
from ..errors import ArgumentError, StateError
from ..options import near_miss
from ..tensor import Tensor, tensor
from ..watch import watching


class Parameter(Tensor):
    """A Tensor that a module learns: a copy of the data that requires a gradient.

    >>> import tinynorm as tn
    >>> tn.nn.Parameter([1.0, 2.0])
    Parameter([1., 2.], dtype=float32, requires_grad=True)
    """

    __slots__ = ()

    def __init__(self, data: Any, requires_grad: bool = True) -> None:
        made = tensor(data, requires_grad=requires_grad)
        self._become(made)


class Module:
    """Base of all layers: define `forward`, assign Parameters and Modules to attributes, and call it.

    Whatever is assigned is found again by `parameters`, `state_dict`, `to` and the rest, under its attribute's name, in
    the order of assignment. Nothing needs to be registered, and no ``super().__init__()`` to be called.

    >>> import tinynorm as tn
    >>> class Scale(tn.nn.Module):
    ...     def __init__(self):
    ...         self.factor = tn.nn.Parameter([2.0])
    ...     def forward(self, x):
    ...         return x * self.factor
    >>> Scale()([1.0, 3.0])
    Tensor([2., 6.], dtype=float32, op=multiply)
    """

    training: bool = True

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """What the module computes. Each subclass writes its own."""
        raise NotImplementedError(f"{type(self).__name__} defines no forward")

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Run `forward`."""
        watcher = watching()
        return self.forward(*inputs, **options) if watcher is None else watcher.call(self, inputs, options)

    def __setattr__(self, name: str, value: Any) -> None:
        """Assign. What would make a parameter disappear is refused."""
        where = f"{type(self).__name__}.{name}"
        _refuse_hidden(where, value)
        if isinstance(vars(self).get(name), Parameter) and not isinstance(value, (Parameter, type(None))):
            raise ArgumentError(
                f"{where}: holds a Parameter, which this would replace by a {type(value).__name__}; change its values "
                f"through {name}.data, or assign nn.Parameter(...) or None"
            )
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        """Only called where the usual way failed."""
        if hasattr(type(self), name):  # a property that raised: let its own error speak
            return object.__getattribute__(self, name)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{near_miss(name, dir(self))}")

    def named_children(self) -> Iterator[tuple[str, "Module"]]:
        """The modules assigned to this one, with their names."""
        return ((name, value) for name, value in vars(self).items() if isinstance(value, Module))

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, "Module"]]:
        """This module under `prefix`, then all below it, under dotted names."""
        yield prefix, self
        for name, child in self.named_children():
            yield from child.named_modules(f"{prefix}.{name}" if prefix else name)

    def _all_names(self) -> Iterator[tuple[str, Parameter]]:
        """Every parameter under every name it has: a tied one comes more than once."""
        for prefix, module in self.named_modules():
            for name, value in vars(module).items():
                _refuse_hidden(
                    f"{type(module).__name__}.{name}", value
                )  # it may have been filled since it was assigned
                if isinstance(value, Parameter):
                    yield (f"{prefix}.{name}" if prefix else name), value

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Each parameter once, with the first of its dotted names."""
        seen: set[int] = set()
        for name, parameter in self._all_names():
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield name, parameter

    def parameters(self) -> Iterator[Parameter]:
        """Each parameter once, however many names it has."""
        return (parameter for _, parameter in self.named_parameters())

    def train(self, mode: bool = True) -> Self:
        """Switch this module and all below it to training behaviour, which concerns dropout alone."""
        for _, module in self.named_modules():
            object.__setattr__(module, "training", bool(mode))
        return self

    def eval(self) -> Self:
        """Switch to evaluation behaviour. Gradients are recorded as before; for that there is `no_grad`."""
        return self.train(False)

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters():
            parameter.grad = None

    def to(self, device: str) -> Self:
        """Move all parameters to a device, in place: optimizers and tied weights keep seeing them.

        Raises:
            DeviceError: for a device that is not there, or has too little memory. Nothing has been moved then.
        """
        moved = [(parameter, parameter._there(device)) for parameter in self.parameters()]
        for parameter, arrays in moved:
            parameter._move(*arrays)
        return self

    def state_dict(self) -> dict[str, np.ndarray[Any, Any]]:
        """A copy of every parameter as a NumPy array, under every dotted name it has.

        >>> import tinynorm as tn
        >>> list(tn.nn.Linear(3, 2).state_dict())
        ['weight', 'bias']
        """
        return {name: np.array(to_device(parameter._data, CPU)) for name, parameter in self._all_names()}

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Copy values into the parameters, which stay the objects they are, so that tied weights stay tied.

        Args:
            state: arrays, on any device, under the names that `state_dict` gives.
            strict: whether every name must be there, and no other. Otherwise only the names in common are loaded.

        Raises:
            StateError: for missing or unknown names, for another shape or dtype, and for two values of one tied
                parameter. Nothing has been changed then.
            DeviceError: where a device has no memory for the values. Nothing has been changed then, either.
        """
        name = f"{type(self).__name__}.load_state_dict"
        if not isinstance(state, Mapping):
            raise StateError(f"{name}: the state must be a dict of arrays, not a {type(state).__name__}")
        own = dict(self._all_names())
        problems = _misnamed(own, state) if strict else []
        loaded: dict[int, tuple[str, Parameter, np.ndarray[Any, Any]]] = {}
        for key in [key for key in own if key in state]:
            parameter, value = own[key], state[key]
            array = to_device(value._data if isinstance(value, Tensor) else value, CPU)
            if not isinstance(array, (np.ndarray, np.generic)):
                problems.append(f"{key} is a {type(value).__name__}, not an array")
            elif (array.shape, array.dtype) != (parameter.shape, parameter.dtype):
                problems.append(f"{key} is {array.dtype}{array.shape}, the module's {parameter.dtype}{parameter.shape}")
            else:
                other, _, known = loaded.setdefault(id(parameter), (key, parameter, np.array(array)))
                if not np.array_equal(known, array, equal_nan=True):
                    problems.append(f"{other} and {key} are one tied parameter, but two values")
        if problems:
            raise StateError(f"{name}: {'; '.join(problems)}; nothing was loaded")
        moved = [(parameter, to_device(array, parameter.device)) for _, parameter, array in loaded.values()]
        for parameter, array in moved:
            parameter._overwrite(array)

    def extra_repr(self) -> str:
        """The arguments that `repr` shows."""
        return ""

    def __repr__(self) -> str:
        """The module and, indented below it, its children."""
        children = [f"({name}): {child!r}".replace("\n", "\n  ") for name, child in self.named_children()]
        body = "".join(f"\n  {child}" for child in children) + ("\n" if children else "")
        return f"{type(self).__name__}({self.extra_repr()}{body})"


def _refuse_hidden(where: str, value: Any) -> None:
    """Parameters or modules in plain containers, at any depth, would not be found."""
    if _hides_parameters(value):
        raise ArgumentError(
            f"{where}: parameters in a plain {type(value).__name__} would not be found; hold modules in "
            "nn.Sequential, or assign each to an attribute of its own"
        )


def _hides_parameters(value: Any) -> bool:
    """Whether plain containers, at any depth, hold a parameter or a module."""
    if not isinstance(value, (dict, list, tuple, set, frozenset)):
        return False
    parts = value.values() if isinstance(value, dict) else value
    return any(isinstance(part, (Module, Parameter)) or _hides_parameters(part) for part in parts)


def _misnamed(own: Mapping[str, Any], state: Mapping[Any, Any]) -> list[str]:
    missing, unknown = [k for k in own if k not in state], [str(k) for k in state if k not in own]
    return [f"{kind}: {', '.join(names)}" for kind, names in (("missing", missing), ("unknown", unknown)) if names]
