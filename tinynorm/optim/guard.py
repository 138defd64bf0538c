"""A guard for long runs: a loss that is no finite number stops them where it happens, or is skipped."""

from collections.abc import Iterable
from math import isfinite
from os import PathLike, fspath
from typing import Any

from ..errors import DivergedError
from ..options import count, integer, number
from ..tensor import Tensor

SHOWN = 64  #: indices in the message; the error has all of them


class LossGuard:
    """Looks at each loss before the step that it leads to. One nan, once it is in the weights, never leaves them.

    Args:
        skip: how many batches in a row may have a loss that is nan or infinite. They are for the caller to skip; the
            next one raises.

    Attributes:
        in_a_row: how many there have been since the last finite loss.

    Raises:
        ArgumentError: for a `skip` that is no integer from 0.

    >>> import tinynorm as tn
    >>> guard = tn.optim.LossGuard(skip=1)
    >>> guard.check(0.7, step=0, indices=[4, 2]), guard.check(float("nan"), step=1, indices=[0, 3])
    (True, False)
    >>> guard.check(float("inf"), step=2, indices=[5, 1], checkpoint="run.npz")
    Traceback (most recent call last):
    tinynorm.errors.DivergedError: the loss of step 2 is inf, the 2nd in a row that is not finite; its batch has the \
indices 5, 1; go on from the last good checkpoint, run.npz
    """

    def __init__(self, skip: int = 0) -> None:
        self.skip = count("LossGuard", "skip", skip, least=0)
        self.in_a_row = 0

    def check(
        self,
        loss: Any,
        step: int,
        indices: Iterable[Any],
        checkpoint: str | PathLike[str] | None = None,
    ) -> bool:
        """Whether the loss is finite; False where the batch should be skipped: no backward, no step.

        Args:
            loss: a number, or a Tensor of one element. One on a device is waited for.
            step: which step it is.
            indices: the batch's rows in the data, for the message.
            checkpoint: the path of the last good one, for the message.

        Raises:
            DivergedError: for one batch more in a row than `skip` allows. It has `step`, `indices` and `checkpoint`.
            ArgumentError: for a loss that is no number, or a step that is no integer.
        """
        step = integer("LossGuard.check", "step", step)
        value = number("LossGuard.check", "loss", loss.item() if isinstance(loss, Tensor) and loss.size == 1 else loss)
        if isfinite(value):
            self.in_a_row = 0
            return True
        self.in_a_row += 1
        if self.in_a_row <= self.skip:
            return False
        raise self._diverged(value, step, _listed(indices), checkpoint)

    def _diverged(
        self, loss: float, step: int, indices: tuple[Any, ...], checkpoint: str | PathLike[str] | None
    ) -> DivergedError:
        place = f", the {_ordinal(self.in_a_row)} in a row that is not finite" if self.in_a_row > 1 else ""
        rows = ", ".join(map(str, indices[:SHOWN])) + (f", … ({len(indices)} in all)" if len(indices) > SHOWN else "")
        path = None if checkpoint is None else fspath(checkpoint)
        remedy = "no checkpoint has been saved" if path is None else f"go on from the last good checkpoint, {path}"
        error = DivergedError(f"the loss of step {step} is {loss}{place}; its batch has the indices {rows}; {remedy}")
        error.step, error.indices, error.checkpoint = step, indices, path
        return error


def _listed(indices: Any) -> tuple[Any, ...]:
    if isinstance(indices, Tensor):
        indices = indices.numpy()
    if hasattr(indices, "tolist"):  # an array, of a device as well
        return tuple(indices.reshape(-1).tolist())
    return tuple(indices) if isinstance(indices, Iterable) else (indices,)


def _ordinal(n: int) -> str:
    """2nd, 3rd, 4th, …, 11th, …, 21st"""
    ending = "th" if n // 10 % 10 == 1 else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{ending}"
