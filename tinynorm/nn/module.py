"""Parameters, and the modules that own them."""

from collections.abc import Iterator, Mapping
from typing import Any, Self

import numpy as np

from ..backend import to_device
from ..errors import ArgumentError, StateError
from ..options import near_miss
from ..tensor import Tensor, tensor


class Parameter(Tensor):
    """A Tensor that a module learns: a copy of the data that requires a gradient.

    >>> import tinynorm as tn
    >>> tn.nn.Parameter([1.0, 2.0])
    Parameter([1., 2.], dtype=float32, requires_grad=True)
    """

    __slots__ = ()

    def __init__(self, data: Any, requires_grad: bool = True) -> None:
        made = tensor(data, requires_grad=requires_grad)
        self._data, self._memory, self._source = made._data, made._memory, made._source


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

    def forward(self, *inputs: Any) -> Any:
        """What the module computes. Each subclass writes its own."""
        raise NotImplementedError(f"{type(self).__name__} defines no forward")

    def __call__(self, *inputs: Any) -> Any:
        """Run `forward`."""
        return self.forward(*inputs)

    def __setattr__(self, name: str, value: Any) -> None:
        """Assign; containers that would hide their contents from `parameters` are refused."""
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
        if any(isinstance(part, (Module, Parameter)) for part in parts):
            raise ArgumentError(
                f"{type(self).__name__}.{name}: parameters in a plain {type(value).__name__} would not be found; hold "
                "modules in nn.Sequential, or assign each to an attribute of its own"
            )
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        """Only called for a name that does not exist."""
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
        """Move all parameters to a device, in place: optimizers and tied weights keep seeing them."""
        for parameter in self.parameters():
            parameter._move(device)
        return self

    def state_dict(self) -> dict[str, np.ndarray[Any, Any]]:
        """A copy of every parameter as a NumPy array, under every dotted name it has.

        >>> import tinynorm as tn
        >>> list(tn.nn.Linear(3, 2).state_dict())
        ['weight', 'bias']
        """
        return {name: parameter.numpy().copy() for name, parameter in self._all_names()}

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Copy values into the parameters, which stay the objects they are, so that tied weights stay tied.

        Args:
            state: arrays under the names that `state_dict` gives.
            strict: whether every name must be there, and no other. Otherwise only the names in common are loaded.

        Raises:
            StateError: for missing or unknown names, for another shape or dtype, and for two values of one tied
                parameter. Nothing has been changed then.
        """
        own = dict(self._all_names())
        problems = _misnamed(own, state) if strict else []
        loaded: dict[int, tuple[str, Parameter, np.ndarray[Any, Any]]] = {}
        for name in own.keys() & state.keys():
            parameter, value = own[name], state[name]
            array = value.numpy() if isinstance(value, Tensor) else np.asarray(value)
            if (array.shape, array.dtype) != (parameter.shape, parameter.dtype):
                problems.append(
                    f"{name} is {array.dtype}{array.shape}, the module's {parameter.dtype}{parameter.shape}"
                )
            other, _, known = loaded.setdefault(id(parameter), (name, parameter, array))
            if not np.array_equal(known, array, equal_nan=True):
                problems.append(f"{other} and {name} are one tied parameter, but two values")
        if problems:
            raise StateError(
                f"{type(self).__name__}.load_state_dict: {'; '.join(sorted(problems))}; nothing was loaded"
            )
        for _, parameter, array in loaded.values():
            parameter._overwrite(to_device(array, parameter.device))

    def extra_repr(self) -> str:
        """The arguments that `repr` shows."""
        return ""

    def __repr__(self) -> str:
        """The module and, indented below it, its children."""
        children = [f"({name}): {child!r}".replace("\n", "\n  ") for name, child in self.named_children()]
        body = "".join(f"\n  {child}" for child in children) + ("\n" if children else "")
        return f"{type(self).__name__}({self.extra_repr()}{body})"


def _misnamed(own: Mapping[str, Any], state: Mapping[str, Any]) -> list[str]:
    missing, unknown = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
    return [f"{kind}: {', '.join(names)}" for kind, names in (("missing", missing), ("unknown", unknown)) if names]
