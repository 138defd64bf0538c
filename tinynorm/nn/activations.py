"""Activation functions as modules, for `Sequential`."""

from collections.abc import Callable
from typing import Any

from .. import array, functional
from ..options import choice, finite, integer
from ..tensor import Tensor
from .module import Module


class ReLU(Module):
    """max(x, 0); see `functional.relu`.

    >>> import tinynorm as tn
    >>> tn.nn.ReLU()([-1.0, 2.0])
    Tensor([0., 2.], dtype=float32)
    """

    def forward(self, x: Any) -> Tensor:
        """Any shape to the same shape."""
        return functional.relu(x)


class LeakyReLU(Module):
    """x above 0, negative_slope · x elsewhere; see `functional.leaky_relu`.

    >>> import tinynorm as tn
    >>> tn.nn.LeakyReLU(0.5)([-1.0, 2.0])
    Tensor([-0.5,  2. ], dtype=float32)
    """

    def __init__(self, negative_slope: float = 0.01) -> None:
        self.negative_slope = finite("LeakyReLU", "negative_slope", negative_slope)

    def forward(self, x: Any) -> Tensor:
        """Any shape to the same shape."""
        return functional.leaky_relu(x, self.negative_slope)

    def extra_repr(self) -> str:
        """The arguments that `repr` shows."""
        return f"negative_slope={self.negative_slope}"


class ELU(Module):
    """x above 0, α (eˣ − 1) elsewhere; see `functional.elu`.

    >>> import tinynorm as tn
    >>> tn.nn.ELU()([-1000.0, 2.0])
    Tensor([-1.,  2.], dtype=float32)
    """

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = finite("ELU", "alpha", alpha)

    def forward(self, x: Any) -> Tensor:
        """Any shape to the same shape."""
        return functional.elu(x, self.alpha)

    def extra_repr(self) -> str:
        """The arguments that `repr` shows."""
        return f"alpha={self.alpha}"


class GELU(Module):
    """x Φ(x), or its approximation by tanh; see `functional.gelu`.

    >>> import tinynorm as tn
    >>> tn.nn.GELU()([-1.0, 1.0]).numpy().round(4)
    array([-0.1587,  0.8413], dtype=float32)
    """

    def __init__(self, approximate: str = "none") -> None:
        self.approximate = choice("GELU", "approximate", approximate, functional.GELUS)

    def forward(self, x: Any) -> Tensor:
        """Any shape to the same shape."""
        return functional.gelu(x, self.approximate)

    def extra_repr(self) -> str:
        """The arguments that `repr` shows."""
        return f"approximate={self.approximate!r}"


class SiLU(Module):
    """x σ(x); see `functional.silu`.

    >>> import tinynorm as tn
    >>> tn.nn.SiLU()([0.0, 1.0]).numpy().round(4)
    array([0.    , 0.7311], dtype=float32)
    """

    def forward(self, x: Any) -> Tensor:
        """Any shape to the same shape."""
        return functional.silu(x)


class Sigmoid(Module):
    """1 / (1 + e^(−x)); see `functional.sigmoid`.

    >>> import tinynorm as tn
    >>> tn.nn.Sigmoid()([0.0, 1000.0])
    Tensor([0.5, 1. ], dtype=float32)
    """

    def forward(self, x: Any) -> Tensor:
        """Any shape to the same shape."""
        return functional.sigmoid(x)


class Softplus(Module):
    """log(1 + eˣ); see `functional.softplus`.

    >>> import tinynorm as tn
    >>> tn.nn.Softplus()([0.0]).numpy().round(4)
    array([0.6931], dtype=float32)
    """

    def forward(self, x: Any) -> Tensor:
        """Any shape to the same shape."""
        return functional.softplus(x)


class Tanh(Module):
    """tanh x; see `tinynorm.tanh`.

    >>> import tinynorm as tn
    >>> tn.nn.Tanh()([0.0, 100.0])
    Tensor([0., 1.], dtype=float32)
    """

    def forward(self, x: Any) -> Tensor:
        """Any shape to the same shape."""
        return array.tanh(x)


class Softmax(Module):
    """eˣ / Σ eˣ along an axis; see `functional.softmax`.

    >>> import tinynorm as tn
    >>> tn.nn.Softmax()([1000.0, 1000.0])
    Tensor([0.5, 0.5], dtype=float32)
    """

    def __init__(self, axis: int = -1) -> None:
        self.axis = integer("Softmax", "axis", axis)

    def forward(self, x: Any) -> Tensor:
        """Any shape to the same shape."""
        return functional.softmax(x, self.axis)

    def extra_repr(self) -> str:
        """The arguments that `repr` shows."""
        return f"axis={self.axis}"


class LogSoftmax(Module):
    """log(eˣ / Σ eˣ) along an axis; see `functional.log_softmax`.

    >>> import tinynorm as tn
    >>> tn.nn.LogSoftmax()([1000.0, 1000.0]).numpy().round(4)
    array([-0.6931, -0.6931], dtype=float32)
    """

    def __init__(self, axis: int = -1) -> None:
        self.axis = integer("LogSoftmax", "axis", axis)

    def forward(self, x: Any) -> Tensor:
        """Any shape to the same shape."""
        return functional.log_softmax(x, self.axis)

    def extra_repr(self) -> str:
        """The arguments that `repr` shows."""
        return f"axis={self.axis}"


#: The elementwise ones by name, for whoever takes an activation as an option.
ACTIVATIONS: dict[str, Callable[[], Module]] = {
    "relu": ReLU,
    "leaky_relu": LeakyReLU,
    "elu": ELU,
    "gelu": GELU,
    "silu": SiLU,
    "sigmoid": Sigmoid,
    "softplus": Softplus,
    "tanh": Tanh,
}
