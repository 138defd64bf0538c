"""Comparing a function's gradients with numeric ones."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import ArgumentError, GradientError
from ..tensor import Tensor, as_tensor, tensor
from .numeric import central_difference


def gradcheck(
    fn: Callable[..., Tensor],
    inputs: Sequence[Any],
    *,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    seed: int = 0,
    raise_exception: bool = True,
) -> bool:
    """Whether the gradients of ``fn(*inputs)`` agree with central differences, for a random cotangent, in float64.

    Args:
        fn: takes Tensors, gives one Tensor.
        inputs: arrays, Tensors or numbers. Copies of the floating-point ones, raised to float64, are differentiated;
            the others are passed on as they are. None of them is changed.
        rtol: how far apart two gradients may be, relative to each element.
        atol: how far besides, relative to the input's largest gradient, or 1 if that is larger: the differences' own
            error.
        seed: of the cotangent.
        raise_exception: raise `GradientError`, which names the argument and its worst element, instead of giving False.

    >>> import tinynorm as tn
    >>> tn.testing.gradcheck(lambda x: tn.tanh(x) * x, [[0.5, -2.0]])
    True
    """
    constants = [as_tensor(value) for value in inputs]
    points = [c.numpy().astype(np.float64) if c.dtype.kind == "f" else None for c in constants]

    if all(p is None for p in points):
        raise ArgumentError("gradcheck: no input is floating-point, so there is nothing to differentiate")

    def run(values: list[Any], requires_grad: bool) -> tuple[Tensor, list[Tensor]]:
        arguments = [
            c if v is None else tensor(v, requires_grad=requires_grad) for c, v in zip(constants, values, strict=True)
        ]
        return fn(*arguments), arguments

    def along(k: int) -> Callable[[Any], Any]:
        """The result as a function of argument k alone."""
        return lambda value: run([*points[:k], value, *points[k + 1 :]], requires_grad=False)[0].numpy()

    y, leaves = run(points, requires_grad=True)
    dy = np.random.default_rng(seed).normal(size=y.shape)
    if y.requires_grad:
        y.backward(dy)
    for k, point in enumerate(points):
        if point is None:
            continue
        analytic = leaves[k].grad
        analytic = np.zeros_like(point) if analytic is None else analytic
        message = _disagreement(analytic, central_difference(along(k), point, dy), rtol, atol)
        if message is not None:
            if raise_exception:
                raise GradientError(f"gradcheck: {getattr(fn, '__name__', fn)}, argument {k}: {message}")
            return False
    return True


def _disagreement(analytic: Any, numeric: Any, rtol: float, atol: float) -> str | None:
    error = np.abs(analytic - numeric)
    bound = rtol * np.abs(numeric) + atol * np.max(np.abs(numeric), initial=1.0)
    if np.all(error <= bound):  # which a nan is not
        return None
    excess = np.where(np.isnan(error), np.inf, error / bound)
    worst = tuple(int(i) for i in np.unravel_index(np.argmax(excess), error.shape))
    return (
        f"at {worst} the analytic gradient is {analytic[worst]:.9g}, the numeric one {numeric[worst]:.9g}; "
        f"they may differ by {bound[worst]:.2g}"
    )
