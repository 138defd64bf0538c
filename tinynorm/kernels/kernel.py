"""What a kernel is, and the arrays that most kernels ask for."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..formulas.types import Array

Needs = tuple[bool, ...]
FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


def plain(x: Array, least: int = 1) -> bool:
    """Whether these are so many numbers that lie in C order."""
    return x.dtype in FLOATS and x.flags.c_contiguous and x.size >= least


class Kernel(NamedTuple):
    """A fast pair for an operation.

    Args:
        suits: ``suits(*inputs, **params)``, whether it can serve these. It says no to all that the operation's check
            refuses, for it is asked first.
        forward: ``forward(needs, *inputs, **params) -> (y, cache)``, or None where it finds that it cannot.
        backward: ``backward(dy, cache, needs) -> gradients``, one per input, as a formula's.
    """

    suits: Callable[..., bool]
    forward: Callable[..., tuple[Array, Any] | None]
    backward: Callable[[Array, Any, Needs], tuple[Array | None, ...]]
