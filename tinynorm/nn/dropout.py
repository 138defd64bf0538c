"""Dropout as a layer."""

from typing import Any

from .. import functional
from ..options import fraction
from ..random import Rng, generator
from ..tensor import Tensor
from .module import Module


class Dropout(Module):
    """Each element set to 0 with probability p, the others divided by 1 − p; nothing at all under `eval`.

    Args:
        p: from 0 to 1.
        rng: a generator or seed; by default the one that `tn.manual_seed` sets.

    >>> import tinynorm as tn
    >>> drop = tn.nn.Dropout(0.5, rng=0)
    >>> drop([1.0, 1.0, 1.0, 1.0])
    Tensor([2., 0., 0., 0.], dtype=float32)
    >>> drop.eval()([1.0, 1.0, 1.0, 1.0])
    Tensor([1., 1., 1., 1.], dtype=float32)
    """

    def __init__(self, p: float = 0.5, *, rng: Rng = None) -> None:
        self.p = fraction("Dropout", "p", p)
        # A seed starts one stream here, not the same numbers at every call.
        self.rng = None if rng is None else generator(rng)

    def forward(self, x: Any) -> Tensor:
        """Any shape to the same shape."""
        return functional.dropout(x, self.p, self.training, self.rng)

    def extra_repr(self) -> str:
        """The arguments that `repr` shows."""
        return f"p={self.p}"
