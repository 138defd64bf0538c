"""RMSNorm and LayerNorm as layers."""

from typing import Any

import numpy as np

from .. import functional
from ..checks import features, normalizable
from ..convert import sizes
from ..functional import EPS_MODES
from ..options import choice, finite, nonnegative
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
        bias: whether there is a b, which is added to y; there is none without g.
        partial: p, above 0 and at most 1: the mean is that of the first ⌈p n⌉ of n features (pRMSNorm).
        weight_offset: o, for the convention g = o + weight, in which o is mostly 1.
        eps_mode: "inside" the root; or "outside", for x / (√mean(x²) + ε).
        device: where the parameters live.

    Attributes:
        weight: g − o, of shape normalized_shape; at the start 1 − o, so that g is 1; or None.
        bias: b, of shape normalized_shape, 0 at the start; or None.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019).

    >>> import tinynorm as tn
    >>> tn.nn.RMSNorm(2)
    RMSNorm((2,), eps=1e-05, elementwise_affine=True)
    >>> tn.nn.RMSNorm(2, eps=0.0, elementwise_affine=False)([3.0, 4.0]).numpy().round(4)
    array([0.8485, 1.1314], dtype=float32)
    >>> gemma = tn.nn.RMSNorm(2, eps=1e-6, weight_offset=1.0)
    >>> gemma.weight
    Parameter([0., 0.], dtype=float32, requires_grad=True)
    """

    def __init__(
        self,
        normalized_shape: int | tuple[int, ...],
        eps: float | None = 1e-5,
        elementwise_affine: bool = True,
        *,
        bias: bool = False,
        partial: float = 1.0,
        weight_offset: float = 0.0,
        eps_mode: str = "inside",
        device: str = "cpu",
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, device)
        features("RMSNorm", partial, self.normalized_shape)
        self.partial, self.weight_offset = float(partial), finite("RMSNorm", "weight_offset", weight_offset)
        self.eps_mode = choice("RMSNorm", "eps_mode", eps_mode, EPS_MODES)
        if self.weight is not None and self.weight_offset != 0.0:
            self.weight = Parameter(np.full(self.normalized_shape, 1.0 - self.weight_offset, np.float32))
        self.bias = Parameter(np.zeros(self.normalized_shape, np.float32)) if elementwise_affine and bias else None
        self.to(device)

    def forward(self, x: Any) -> Tensor:
        """(..., *normalized_shape) to the same shape."""
        return functional.rms_norm(
            x,
            self.normalized_shape,
            self.weight,
            self.eps,
            bias=self.bias,
            partial=self.partial,
            weight_offset=self.weight_offset,
            eps_mode=self.eps_mode,
        )

    def extra_repr(self) -> str:
        """The arguments that `repr` shows; of the last four those that differ from what they are by default."""
        shown = {
            "bias=True": self.bias is not None,
            f"partial={self.partial}": self.partial != 1.0,
            f"weight_offset={self.weight_offset}": self.weight_offset != 0.0,
            f"eps_mode={self.eps_mode!r}": self.eps_mode != "inside",
        }
        return ", ".join([super().extra_repr(), *(text for text, differs in shown.items() if differs)])


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
