"""RMSNorm and LayerNorm as layers."""

from typing import Any

import numpy as np

from .. import functional
from ..checks import normalizable
from ..convert import sizes
from ..options import nonnegative
from ..tensor import Tensor
from .module import Module, Parameter


class _Norm(Module):
    """What both norms share: a shape, an eps, and a gain that starts at 1."""

    def __init__(
        self, normalized_shape: int | tuple[int, ...], eps: float | None, elementwise_affine: bool, device: str
    ) -> None:
        name = type(self).__name__
        self.normalized_shape = sizes(name, (normalized_shape,))
        normalizable(name, self.normalized_shape)
        if eps is not None:
            eps = nonnegative(name, "eps", eps)
        elif elementwise_affine:
            eps = float(np.finfo(np.float32).eps)  # the parameters' dtype
        self.eps = eps
        self.weight = Parameter(np.ones(self.normalized_shape, np.float32)) if elementwise_affine else None
        self.to(device)

    def extra_repr(self) -> str:
        """The arguments that `repr` shows: with eps the value that is used."""
        eps = f"{self.eps}" if self.eps is not None else "that of the input's dtype (float32: 1.1920928955078125e-07)"
        return f"{self.normalized_shape}, eps={eps}, elementwise_affine={self.weight is not None}"


class RMSNorm(_Norm):
    """y = g ⊙ x / √(mean(x²) + ε), over the last axes.

    Args:
        normalized_shape: the size of the last axis, or the sizes of the last axes.
        eps: ε ≥ 0. None stands for the machine epsilon of float32, the parameters' dtype; without parameters, for that
            of the input's dtype.
        elementwise_affine: whether there is a g.
        device: where the parameters live.

    Attributes:
        weight: g, of shape normalized_shape, 1 at the start; or None.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019).

    >>> import tinynorm as tn
    >>> tn.nn.RMSNorm(2)
    RMSNorm((2,), eps=1e-05, elementwise_affine=True)
    >>> tn.nn.RMSNorm(2, eps=0.0, elementwise_affine=False)([3.0, 4.0]).numpy().round(4)
    array([0.8485, 1.1314], dtype=float32)
    """

    def __init__(
        self,
        normalized_shape: int | tuple[int, ...],
        eps: float | None = 1e-5,
        elementwise_affine: bool = True,
        *,
        device: str = "cpu",
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, device)

    def forward(self, x: Any) -> Tensor:
        """(..., *normalized_shape) to the same shape."""
        return functional.rms_norm(x, self.normalized_shape, self.weight, self.eps)


class LayerNorm(_Norm):
    """y = g ⊙ (x − mean(x)) / √(var(x) + ε) + b, over the last axes.

    Args:
        normalized_shape, eps, elementwise_affine, device: as in `RMSNorm`.
        bias: whether there is a b; there is none without g.

    Attributes:
        weight: g, of shape normalized_shape, 1 at the start; or None.
        bias: b, of shape normalized_shape, 0 at the start; or None.

    Source: Ba, Kiros and Hinton, "Layer Normalization" (2016).

    >>> import tinynorm as tn
    >>> tn.nn.LayerNorm(2)
    LayerNorm((2,), eps=1e-05, elementwise_affine=True, bias=True)
    >>> tn.nn.LayerNorm(2, eps=0.0, elementwise_affine=False)([3.0, 4.0])
    Tensor([-1.,  1.], dtype=float32)
    """

    def __init__(
        self,
        normalized_shape: int | tuple[int, ...],
        eps: float | None = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        *,
        device: str = "cpu",
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, device)
        self.bias = Parameter(np.zeros(self.normalized_shape, np.float32)) if elementwise_affine and bias else None
        self.to(device)

    def forward(self, x: Any) -> Tensor:
        """(..., *normalized_shape) to the same shape."""
        return functional.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """The arguments that `repr` shows."""
        return f"{super().extra_repr()}, bias={self.bias is not None}"
