"""Modules made of modules."""

from collections.abc import Iterator
from typing import Any

from ..errors import DTypeError, OutOfRangeError
from ..options import integer
from .module import Module


class Identity(Module):
    """Gives back what it gets: where a norm is to be left out, for example.

    >>> import tinynorm as tn
    >>> tn.nn.Identity()(1.5)
    1.5
    """

    def forward(self, x: Any) -> Any:
        """x."""
        return x


class Sequential(Module):
    """Modules one after another, each fed with what the one before it gives. Also a list of them, by index.

    >>> import tinynorm as tn
    >>> tn.nn.Sequential(tn.nn.Linear(4, 8), tn.nn.ReLU(), tn.nn.Linear(8, 2))
    Sequential(
      (0): Linear(4, 8, bias=True)
      (1): ReLU()
      (2): Linear(8, 2, bias=True)
    )
    """

    def __init__(self, *modules: Module) -> None:
        for i, module in enumerate(modules):
            if not isinstance(module, Module):
                hint = (
                    "; pass modules one by one, as in Sequential(*modules)" if isinstance(module, (list, tuple)) else ""
                )
                raise DTypeError(f"Sequential: argument {i} is a {type(module).__name__}, not a Module{hint}")
            setattr(self, str(i), module)

    def __iter__(self) -> Iterator[Module]:
        return (module for _, module in self.named_children())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, index: int | slice) -> Module:
        modules = list(self)
        if isinstance(index, slice):
            return Sequential(*modules[index])
        index = integer("Sequential", "index", index)
        if not -len(modules) <= index < len(modules):
            raise OutOfRangeError(f"Sequential: there is no module {index} among {len(modules)}")
        return modules[index]

    def forward(self, x: Any) -> Any:
        """Through all of them, in order."""
        for module in self:
            x = module(x)
        return x
