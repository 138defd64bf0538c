"""Training in several processes, which MPI connects: each takes its share of every batch, and all make the same step.

What goes around is sums. Each rank differentiates the sum of its rows' losses; the sums of gradients and the number of
rows go through one Allreduce, and every rank divides by the number of all rows. A mean of the ranks' means would be
another update wherever shares are not equally large, as in the last batch of an epoch; a rank without rows has none.

    mpiexec -n 4 python -m mpi4py examples/train_mlp.py --data-parallel

Under ``python -m mpi4py``, a rank that fails ends all; under plain ``python`` the others would wait for it forever.

The Allreduce is MPI's, on the host; or NCCL's, where each rank has a GPU to itself. docs/parallel.md has what it costs,
and how far NCCL was tested.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import backend
from .errors import ArgumentError, DeviceError, DTypeError, MissingExtraError, StateError
from .extras import optional
from .formulas.types import Array
from .nn import Module
from .optim.groups import Parameters, tensors
from .options import count
from .tensor import Tensor

__all__ = ["Ranks", "alone", "connect"]

BASE = 4096
"""Row counts go around among float32 numbers, which count to 2²⁴ only. As two digits of this base, they are exact up to
2³⁶ rows on 4096 ranks."""


def connect() -> "Ranks":
    """The processes that ``mpiexec`` has started together, this one among them.

    Raises:
        MissingExtraError: without mpi4py, or without an MPI library for it.

    >>> import tinynorm as tn
    >>> started_by_mpiexec = False  # what a program is told by its user
    >>> ranks = tn.parallel.connect() if started_by_mpiexec else tn.parallel.alone()
    >>> ranks.size
    1
    """
    return Ranks(_mpi().COMM_WORLD)


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
        rank: this one's number, from 0. The one that is 0 does what is to be done once: a log, a progress bar, a
            checkpoint.
        size: how many there are.

    A step, whose update is that of the whole batch on every rank:

    >>> import numpy as np
    >>> import tinynorm as tn
    >>> ranks, w = tn.parallel.alone(), tn.tensor([1.0], requires_grad=True)
    >>> batch = np.array([1.0, 2.0, 6.0], dtype=np.float32)
    >>> rows = batch[ranks.share(len(batch))]
    >>> (w * rows).sum().backward()  # of the sum over this rank's rows
    >>> ranks.average([w], len(rows))  # of the mean over all
    3
    >>> w.grad
    array([3.], dtype=float32)
    """

    def __init__(self, communicator: Any) -> None:
        self._communicator = communicator
        self._nccl: Any = None
        self._home = ""  # the device on which NCCL finds gradients
        self.rank: int = 0 if communicator is None else communicator.Get_rank()
        self.size: int = 1 if communicator is None else communicator.Get_size()

    @property
    def transport(self) -> str:
        """What gradients go through. "none" in one process, "mpi", or "nccl", for which `replicate` decides.

        >>> alone().transport
        'none'
        """
        if self._communicator is None:
            return "none"
        return "mpi" if self._nccl is None else "nccl"

    def device(self, name: str) -> str:
        """This rank's own device where "cuda" is asked for: the ranks of a host take its GPUs in turn.

        Other names, such as "cpu" or "cuda:1", mean the same on every rank.

        Raises:
            DeviceError: where there is no GPU.

        >>> alone().device("cpu")
        'cpu'
        """
        if name != "cuda" or self._communicator is None:
            return name
        host = self._communicator.Split_type(_mpi().COMM_TYPE_SHARED)
        number = host.Get_rank()
        host.Free()
        return f"cuda:{number % backend.device_count()}"

    def replicate(self, model: Module) -> None:
        """Give all ranks the parameters of rank 0, and compare what they then have.

        Sums go through NCCL from here on, if on every rank all parameters are on a GPU that no other rank uses.

        Raises:
            StateError: on every rank, when one has parameters of other names, shapes or dtypes: none has changed then.
                And when a parameter did not arrive as it was sent.
            DeviceError: for parameters on several devices.
            DTypeError: for what is no module.
        """
        if not isinstance(model, Module):
            raise DTypeError(f"replicate: takes a module, whose parameters have names, not {type(model).__name__}")
        own = dict(model.named_parameters())
        members = list(own.values())
        device = _common_device("replicate", members)
        if self._communicator is None:
            return
        described = [(name, p.shape, str(p.dtype)) for name, p in own.items()]
        first = self._communicator.bcast(described)
        told = self._communicator.allgather((_difference(first, described), _gpu(device, members)))
        for rank, (problem, _) in enumerate(told):
            if problem:
                raise StateError(f"replicate: rank {rank} has another model than rank 0: {problem}")
        for p in members:
            values = np.ascontiguousarray(backend.to_device(p._data, backend.CPU))
            values = values.copy() if self.rank else values
            self._communicator.Bcast(values.reshape(-1).view(np.uint8))
            if self.rank:
                with backend.on_device_of(p._data):
                    p._overwrite(backend.to_device(values, device))
        self._verify(own)
        self._nccl, gpus = None, [gpu for _, gpu in told]
        if self.size > 1 and None not in gpus and len(set(gpus)) == self.size:
            self._nccl, self._home = _connect_gpus(self.size, self.rank, members[0]), device

    def _verify(self, parameters: dict[str, Any]) -> None:
        """Raise on every rank where a parameter is not, to the last bit, what rank 0 has."""
        checksums = [backend.fingerprint(backend.to_device(p._data, backend.CPU)) for p in parameters.values()]
        first, *others = self._communicator.allgather(checksums)
        for rank, found in enumerate(others, 1):
            for name, here, there in zip(parameters, found, first, strict=True):
                if here != there:
                    raise StateError(
                        f"replicate: {name} of rank {rank} is not what rank 0 sent, to the last bit; the network, or "
                        "the memory of that rank's host, is at fault"
                    )

    def share(self, rows: int) -> slice:
        """This rank's part of so many rows, all of them in order; the parts differ by one row at most.

        >>> [alone().share(3), alone().share(0)]
        [slice(0, 3, None), slice(0, 0, None)]
        """
        rows = count("share", "rows", rows, least=0)
        return slice(rows * self.rank // self.size, rows * (self.rank + 1) // self.size)

    def average(self, parameters: Parameters, rows: int) -> int:
        """Make gradients of sums over rows those of the mean over all ranks' rows. The number of all rows.

        Which rows a rank takes is its own affair: by `share`, from files of its own, in an order of its own. All must
        call this equally often, one without rows too.

        Args:
            parameters: a module, or an iterable of parameters, the same on every rank, in the same order. One that has
                a gradient on no rank is left without.
            rows: how many of this rank's rows the gradients are sums over; 0 where it had none.

        Raises:
            ArgumentError: on every rank, where nobody had any rows; and for a parameter that comes twice.
            DTypeError: for anything that is no Tensor.
            DeviceError: for parameters on several devices, or on another one than when they were replicated.
        """
        rows, members = count("average", "rows", rows, least=0), tensors("average", parameters)
        device = _common_device("average", members)
        if self._nccl is not None and device != self._home:
            raise DeviceError(
                f"average: the parameters are on {device!r}, and were on {self._home!r} when they were replicated; "
                "replicate a model again that has moved"
            )
        if self._communicator is None:
            sums, total = [p.grad for p in members], rows
        else:
            sums, total = self._summed(members, rows)
        if total == 0:
            raise ArgumentError("average: there were no rows, on no rank, and the mean over none is undefined")
        ours = self._communicator is not None
        means = [s if s is None else _quotient(s, total, p, ours) for p, s in zip(members, sums, strict=True)]
        for p, mean in zip(members, means, strict=True):  # once there is memory for all
            p.grad = mean
        return total

    def _summed(self, members: Sequence[Tensor], rows: int) -> tuple[list[Array | None], int]:
        """Gradients summed over all ranks, None where none has one, and the number of all rows.

        They go around in one flat array: the gradients one after the other, on how many ranks each parameter has one,
        and the two digits of the number of rows.
        """
        ends = np.cumsum([p.size for p in members], dtype=int).tolist()
        parts = [slice(end - p.size, end) for p, end in zip(members, ends, strict=True)]
        size = ends[-1] if ends else 0
        tail = [float(p.grad is not None) for p in members] + [float(digit) for digit in divmod(rows, BASE)]
        like = members[0]._data if members else np.empty(0, np.float32)
        xp = backend.namespace(like)
        with backend.on_device_of(like):
            flat = xp.zeros(size + len(tail), np.result_type(np.float32, *[p.dtype for p in members]))
            for p, part in zip(members, parts, strict=True):
                if p.grad is not None:
                    flat[part] = p.grad.reshape(-1)
            flat[size:] = xp.asarray(np.array(tail, flat.dtype))
            *known, high, low = backend.to_device(self._allreduce(flat)[size:], backend.CPU).tolist()
        sums = [flat[part] if ranks else None for part, ranks in zip(parts, known, strict=True)]
        return sums, int(high) * BASE + int(low)

    def _allreduce(self, flat: Array) -> Array:
        """Sum over all ranks, in place. The sums, on the host if they came that way."""
        if self._nccl is not None:
            self._nccl.all_reduce(flat, flat)
            return flat
        host = backend.to_device(flat, backend.CPU)
        self._communicator.Allreduce(_mpi().IN_PLACE, host)
        if host is not flat:
            flat[...] = backend.to_device(host, backend.device_of(flat))
        return host

    def total(self, value: float) -> float:
        """The sum of what all ranks give here."""
        return value if self._communicator is None else float(self._communicator.allreduce(value))


def _mpi() -> Any:
    try:
        return optional("mpi4py.MPI", "mpi")
    except RuntimeError as error:  # mpi4py's own, over several lines
        reason = str(error).partition("\n")[0]
        raise MissingExtraError(
            f"mpi4py finds no MPI library ({reason}); install one with: pip install 'tinynorm[mpi]'"
        ) from error


def _common_device(name: str, members: Sequence[Tensor]) -> str:
    devices = sorted({p.device for p in members}) or [backend.CPU]
    if len(devices) > 1:
        raise DeviceError(f"{name}: the parameters are on {' and '.join(devices)}; move them to one device first")
    return devices[0]


def _gpu(device: str, members: Sequence[Tensor]) -> str | None:
    """What tells the parameters' GPU from all others in the network; None where they have none, or CuPy no NCCL."""
    if device == backend.CPU:
        return None
    try:
        with warnings.catch_warnings(action="ignore"):  # of a library that is not there: MPI serves then
            from cupy.cuda import nccl, runtime
    except ImportError:
        return None
    bus = runtime.deviceGetPCIBusId(members[0]._data.device.id)  # CUDA_VISIBLE_DEVICES gives GPUs other numbers, not it
    return f"{_mpi().Get_processor_name()} {bus}" if nccl.available else None


def _connect_gpus(size: int, rank: int, p: Tensor) -> Any:
    """NCCL's communicator, between the GPU of p and those of the other ranks."""
    from cupyx.distributed import init_process_group

    with backend.on_device_of(p._data):
        return init_process_group(size, rank, use_mpi=True)  # ranks find each other through MPI, not through a port


def _difference(first: list[tuple[Any, ...]], own: list[tuple[Any, ...]]) -> str:
    """What is not the same, in words; "" where all is."""
    for theirs, ours in zip(first, own, strict=False):
        if theirs != ours:
            return f"{ours[0]} is {ours[2]}{ours[1]}, there {theirs[0]} is {theirs[2]}{theirs[1]}"
    return "" if len(first) == len(own) else f"{len(own)} parameters, there {len(first)}"


def _quotient(summed: Array, total: int, p: Tensor, ours: bool) -> Array:
    """The mean, in the parameter's shape and dtype; written where the sum is, if that is ours alone."""
    with backend.on_device_of(summed):
        mean = summed.astype(np.result_type(np.float32, summed.dtype), copy=not ours)  # in float16, 65520 is infinite
        mean /= float(total)
        return mean.astype(p.dtype, copy=False).reshape(p.shape)
