"""The linear layer."""

from typing import Any

from .. import functional
from ..options import count
from ..random import Rng, generator
from ..tensor import Tensor
from .init import uniform_fan_in
from .module import Module, Parameter


class Linear(Module):
    """y = x Wᵀ + b, for x of shape (..., in_features).

    Args:
        in_features, out_features: the sizes of the last axis of x and y.
        bias: whether there is a b.
        rng: a generator or seed for the initial values, U(−k, k) with k = 1/√in_features, as PyTorch has them.
        device: where the parameters live.

    Attributes:
        weight: (out_features, in_features).
        bias: (out_features,), or None.

    >>> import tinynorm as tn
    >>> tn.nn.Linear(4, 3, rng=0)([[1.0, 2.0, 3.0, 4.0]]).shape
    (1, 3)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        rng: Rng = None,
        device: str = "cpu",
    ) -> None:
        self.in_features = count("Linear", "in_features", in_features, least=1)
        self.out_features = count("Linear", "out_features", out_features, least=1)
        rng = generator(rng)
        self.weight = Parameter(uniform_fan_in((self.out_features, self.in_features), self.in_features, rng))
        self.bias = Parameter(uniform_fan_in((self.out_features,), self.in_features, rng)) if bias else None
        self.to(device)

    def forward(self, x: Any) -> Tensor:
        """(..., in_features) to (..., out_features)."""
        return functional.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        """The arguments that `repr` shows."""
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"
