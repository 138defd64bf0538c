"""MPI in NCCL's place, for ranks whose GPUs are only pretended: under cupyx.distributed, or instead of it.

`library` takes the place of CuPy's wrapper of NCCL. The real cupyx.distributed above it then runs as it is; arrays of
tests/cupy_on_cpu lie in host memory, where MPI finds them. `package` takes the place of cupyx.distributed, for
tests/strict_cupy, which has none. Both return a list to which each all_reduce adds how many elements it summed.
"""

import ctypes
import sys
from types import ModuleType

import numpy as np
from mpi4py import MPI

UNIQUE_ID = (0, 1, 2)
SUM, FLOAT32, FLOAT64 = 0, 7, 8  #: NCCL's numbers
DTYPES = {FLOAT32: np.float32, FLOAT64: np.float64}


def library(cupy):
    """``cupy.cuda.nccl``, as cupyx.distributed uses it for an all_reduce in float32 or float64."""
    sizes = []

    class NcclCommunicator:
        def __init__(self, ndev, commId, rank):
            assert (ndev, commId) == (MPI.COMM_WORLD.Get_size(), UNIQUE_ID)
            assert rank == MPI.COMM_WORLD.Get_rank()
            self.device = cupy.cuda.runtime.getDevice()  # NCCL keeps it

        def allReduce(self, sendbuf, recvbuf, count, datatype, op, stream):
            assert op == SUM
            assert sendbuf == recvbuf  # in place
            assert cupy.cuda.runtime.pointerGetAttributes(sendbuf).device == self.device
            memory = (ctypes.c_char * (count * np.dtype(DTYPES[datatype]).itemsize)).from_address(sendbuf)
            MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, np.frombuffer(memory, DTYPES[datatype]))
            sizes.append(count)

    numbers = {"SUM": SUM, "PROD": 1, "MAX": 2, "MIN": 3, "FLOAT32": FLOAT32, "FLOAT64": FLOAT64, "FLOAT16": 6}
    integers = {"INT8": 0, "UINT8": 1, "INT32": 2, "UINT32": 3, "INT64": 4, "UINT64": 5}
    nccl = _install(cupy.cuda, "cupy.cuda.nccl")
    nccl.__dict__.update({f"NCCL_{name}": number for name, number in {**numbers, **integers}.items()})
    nccl.available, nccl.get_unique_id, nccl.NcclCommunicator = True, lambda: UNIQUE_ID, NcclCommunicator
    return sizes


class NCCLBackend:
    """A process group's end on one device."""

    def __init__(self, cupy, sizes):
        self.cupy, self.sizes, self.device = cupy, sizes, cupy.cuda.runtime.getDevice()

    def all_reduce(self, in_array, out_array, op="sum", stream=None):
        assert in_array is out_array
        assert (op, stream) == ("sum", None)
        assert in_array.device.id == self.device == self.cupy.cuda.runtime.getDevice()
        host = in_array.get()
        MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, host)
        out_array[...] = self.cupy.asarray(host)
        self.sizes.append(host.size)


def package(cupy, available=True):
    """``cupyx.distributed``, and what says whether there is NCCL."""
    sizes = []

    def init_process_group(n_devices, rank, *, backend="nccl", host=None, port=None, use_mpi=False):
        assert (n_devices, rank) == (MPI.COMM_WORLD.Get_size(), MPI.COMM_WORLD.Get_rank())
        assert backend == "nccl"
        assert use_mpi
        return NCCLBackend(cupy, sizes)

    _install(cupy.cuda, "cupy.cuda.nccl").available = available
    cupy.cuda.runtime.deviceGetPCIBusId = lambda device: f"0000:{device:02x}:00.0"
    _install(_install(None, "cupyx"), "cupyx.distributed").init_process_group = init_process_group
    return sizes


def _install(parent, name):
    module = sys.modules[name] = ModuleType(name)
    if parent is not None:
        setattr(parent, name.rpartition(".")[2], module)
    return module
