"""Derivatives as functions of the same inputs, so that what checks first derivatives checks those of any order."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..backend import to_device
from ..derivatives import grad
from ..graph import differentiated
from ..options import count
from ..tensor import Tensor, as_tensor
from .subject import Subject, as_argument, check_choices, name_of, several, signed


def derivative(fn: Callable[..., Any], order: int, seed: int = 0) -> Callable[..., Any]:
    """The order-th derivative of fn in random directions, as a function of fn's inputs.

    Order 0 is fn. Each order after it is Σ v · ∂f/∂x over the floating-point inputs x, for f = Σ c · (the order
    before); v and c are drawn from the seed. So `gradcheck` of the order n − 1 checks the derivatives of order n.

    >>> import tinynorm as tn
    >>> tn.testing.gradcheck(tn.testing.derivative(tn.tanh, 3), [[0.5, -2.0]])
    True
    """
    order, seed = count("derivative", "order", order, 0), count("derivative", "seed", seed, 0)
    if order == 0:
        return fn
    below = derivative(fn, order - 1, seed)

    def directional(*inputs: Any) -> Tensor:
        rng = np.random.default_rng([seed, order])
        own, wanted = _leaves(inputs)
        with differentiated():
            results = several(below(*own))
        slopes = _gradients(results, wanted, [signed(rng, r.shape) for r in results])
        total: Any = 0.0
        for x, slope in zip(wanted, slopes, strict=True):
            total = total + (slope * as_tensor(_like(signed(rng, x.shape), x))).sum()
        return as_tensor(total)

    directional.__name__ = f"derivative of order {order} of {name_of(fn)}"
    return directional


def gradient(
    fn: Callable[..., Any], inputs: Sequence[Any], cotangent: Any, seed: int
) -> tuple[Callable[..., Any], list[Any]]:
    """The gradients of fn as a function of its inputs and of its results' cotangents; and these, behind the inputs.

    Raises `GradientError` for a fn that cannot be examined at all, or whose gradients have wrong shapes.
    """
    check_choices("gradgradcheck", cotangent, seed)
    subject = Subject("gradgradcheck", fn, inputs, ())
    with np.errstate(all="ignore"):
        subject.record()
    rng = np.random.default_rng([seed, 1])
    vector = signed(rng, subject.value.size) if isinstance(cotangent, str) else subject.vector(cotangent)
    with np.errstate(all="ignore"):
        subject.gradients(vector.copy())  # whose shapes must be right, before anything is made of them
    cotangents = [as_tensor(_like(c, r)) for c, r in zip(subject.parts(vector), subject.results, strict=True)]

    def derived(*arguments: Any) -> list[Tensor]:
        own, wanted = _leaves(arguments[: len(inputs)])
        with differentiated():
            results = several(fn(*own))
        return _gradients(results, wanted, list(arguments[len(inputs) :]))

    derived.__name__ = f"gradient of {name_of(fn)}"
    return derived, [*inputs, *cotangents]


def _leaves(inputs: Sequence[Any]) -> tuple[list[Any], list[Tensor]]:
    """The inputs, and those of them that are differentiated, which require a gradient from here on."""
    own = [value if isinstance(value, Tensor) else as_argument(value) for value in inputs]
    own = [as_tensor(t, requires_grad=True) if isinstance(t, Tensor) and t.dtype.kind == "f" else t for t in own]
    return own, [t for t in own if isinstance(t, Tensor) and t.requires_grad]


def _gradients(results: list[Tensor], wanted: list[Tensor], cotangents: list[Any]) -> list[Tensor]:
    """Σ cotangents · ∂results/∂wanted, with their graph; zeros where no result has one."""
    parts = [(r, c) for r, c in zip(results, cotangents, strict=True) if r.requires_grad]
    if not parts:
        return [as_tensor(_like(np.zeros(t.shape), t)) for t in wanted]
    outputs, given = zip(*((r, c if isinstance(c, Tensor) else as_tensor(_like(c, r))) for r, c in parts), strict=True)
    return list(grad(list(outputs), wanted, list(given), create_graph=True))


def _like(array: Any, t: Tensor) -> Any:
    """The array in the floating dtype, and on the device, of a Tensor."""
    dtype = t.dtype if t.dtype.kind == "f" else np.float64
    return to_device(np.asarray(array, dtype=dtype), t.device)
