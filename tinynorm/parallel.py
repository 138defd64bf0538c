"""Training in several processes, which MPI connects: each takes its share of every batch, and all make the same step.

What goes around is sums. Each rank differentiates the sum of its rows' losses; the sums of gradients and the number of
rows go through one Allreduce, and every rank divides by the number of all rows. A mean of the ranks' means would be
another update wherever shares are not equally large, as in the last batch of an epoch; a rank without rows has none.

    mpiexec -n 4 python -m mpi4py examples/train_mlp.py --data-parallel

Under ``python -m mpi4py``, a rank that fails ends all; under plain ``python`` the others would wait for it forever.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from . import backend
from .errors import ArgumentError, StateError
from .extras import optional
from .formulas.types import Array
from .nn import Module
from .options import count
from .tensor import Tensor

__all__ = ["Ranks", "alone", "connect"]


def connect() -> "Ranks":
    """The processes that ``mpiexec`` has started together, this one among them.

    Raises:
        MissingExtraError: without mpi4py, or without an MPI library for it.
    """
    return Ranks(optional("mpi4py.MPI", "mpi").COMM_WORLD)


def alone() -> "Ranks":
    """This process by itself: the same calls, and nobody to wait for.

    >>> import tinynorm as tn
    >>> ranks = tn.parallel.alone()
    >>> ranks.rank, ranks.size, ranks.share(5)
    (0, 1, slice(0, 5, None))
    """
    return Ranks(None)


class Ranks:
    """Processes that train one model.

    Attributes:
        rank: this one's number, from 0. The one that is 0 does what is to be done once: a log, a progress bar.
        size: how many there are.
    """

    def __init__(self, communicator: Any) -> None:
        self._communicator = communicator
        self.rank: int = 0 if communicator is None else communicator.Get_rank()
        self.size: int = 1 if communicator is None else communicator.Get_size()

    def replicate(self, model: Module) -> None:
        """Give all ranks the parameters of rank 0.

        Raises:
            StateError: on every rank, when one has parameters of other names, shapes or dtypes. None has changed then.
        """
        if self._communicator is None:
            return
        own = dict(model.named_parameters())
        described = [(name, p.shape, str(p.dtype)) for name, p in own.items()]
        first = self._communicator.bcast(described)
        problems = self._communicator.allgather(_difference(first, described))
        for rank, problem in enumerate(problems):
            if problem:
                raise StateError(f"replicate: rank {rank} has another model than rank 0: {problem}")
        for p in own.values():
            values = np.ascontiguousarray(backend.to_device(p._data, backend.CPU))
            values = values.copy() if self.rank else values
            self._communicator.Bcast(values.reshape(-1).view(np.uint8))
            if self.rank:
                p._overwrite(backend.to_device(values, p.device))

    def share(self, rows: int) -> slice:
        """This rank's part of so many rows, all of them in order; the parts differ by one row at most.

        >>> [Ranks(None).share(3), Ranks(None).share(0)]
        [slice(0, 3, None), slice(0, 0, None)]
        """
        rows = count("share", "rows", rows, least=0)
        return slice(rows * self.rank // self.size, rows * (self.rank + 1) // self.size)

    def average(self, parameters: Iterable[Tensor], rows: int) -> int:
        """Make gradients of sums over rows those of the mean over all ranks' rows. The number of all rows.

        Args:
            parameters: the same on every rank, in the same order. One that has a gradient on no rank is left without.
            rows: how many of this rank's rows the gradients are sums over; 0 where it had none.

        Raises:
            ArgumentError: on every rank, where nobody had any rows.
        """
        rows, members = count("average", "rows", rows, least=0), list(parameters)
        sizes = [p.size for p in members]
        flat = np.zeros(sum(sizes) + len(members) + 1, np.result_type(np.float32, *[p.dtype for p in members]))
        parts = np.split(flat[: sum(sizes)], np.cumsum(sizes)[:-1]) if members else []
        known = flat[sum(sizes) : -1]  # on how many ranks there is a gradient
        for i, (p, part) in enumerate(zip(members, parts, strict=True)):
            if p.grad is not None:
                part[...], known[i] = backend.to_device(p.grad, backend.CPU).reshape(-1), 1.0
        flat[-1] = rows
        if self._communicator is not None:
            self._communicator.Allreduce(_in_place(), flat)
        total = int(flat[-1])
        if total == 0:
            raise ArgumentError("average: there were no rows, on no rank, and the mean over none is undefined")
        for p, part, ranks in zip(members, parts, known, strict=True):
            if ranks:
                p.grad = _placed(part / flat.dtype.type(total), p)
        return total

    def total(self, value: float) -> float:
        """The sum of what all ranks give here."""
        return value if self._communicator is None else float(self._communicator.allreduce(value))


def _in_place() -> Any:
    return optional("mpi4py.MPI", "mpi").IN_PLACE


def _difference(first: list[tuple[Any, ...]], own: list[tuple[Any, ...]]) -> str:
    """What is not the same, in words; "" where all is."""
    for theirs, ours in zip(first, own, strict=False):
        if theirs != ours:
            return f"{ours[0]} is {ours[2]}{ours[1]}, there {theirs[0]} is {theirs[2]}{theirs[1]}"
    return "" if len(first) == len(own) else f"{len(own)} parameters, there {len(first)}"


def _placed(mean: Array, p: Tensor) -> Array:
    return backend.to_device(mean.astype(p.dtype, copy=False).reshape(p.shape), p.device)
