"""What a kernel is."""

from collections.abc import Callable
from typing import Any, NamedTuple

from ..formulas.types import Array


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
    backward: Callable[[Array, Any, tuple[bool, ...]], tuple[Array | None, ...]]
