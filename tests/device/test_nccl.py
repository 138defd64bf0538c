"""Ranks with GPUs of their own: who sums their gradients, and that it makes no difference to what is learned.

No NCCL runs here. MPI takes its place, in `nccl_by_mpi`; docs/parallel.md says what that leaves untested.
"""

from importlib.util import find_spec

import numpy as np
import pytest
import strict_cupy
from test_parallel import (
    TRAIN,
    assert_a_faulty_broadcast_is_found,
    assert_as_in_one_process,
    example,
    found,
    of_mpi,
    ranks,
)

import tinynorm as tn

STRICT = """
import nccl_by_mpi, pytest, strict_cupy
cupy = strict_cupy.install(pytest.MonkeyPatch(), devices={devices})
"""

REAL = """
import cupy_on_cpu, nccl_by_mpi
cupy = cupy_on_cpu.install()
sizes = nccl_by_mpi.library(cupy)
"""

REPLICATED = """
ranks = tn.parallel.connect()
parameters, rows, digest = train(ranks, seed=ranks.rank, device="cuda", epochs=1)
told = ranks._communicator.gather([digest, ranks.transport, ranks.device("cuda"), sizes])
if ranks.rank == 0:
    print(json.dumps([parameters, rows, told]))
"""


def trained(n, stand_in):
    """What n ranks say of themselves after some steps on pretended GPUs, which end as those of one process do."""
    parameters, rows, told = found(n, stand_in + TRAIN + REPLICATED)
    assert_as_in_one_process(n, parameters, rows, [digest for digest, *_ in told], epochs=1)
    return [said for _, *said in told]


NUMBERS = sum(np.prod(shape, dtype=int) for shape in [
    (16, 8), 16, *2 * [16, (64, 16), 64, (16, 64), 16], 16, (3, 16), 3
])  # fmt: skip
FLAT = int(NUMBERS) + 15 + 2  # parameters' gradients, on how many ranks each has one, and the number of rows


@pytest.mark.parametrize("n", [2, 3])
def test_ranks_with_gpus_of_their_own_sum_by_nccl_once_a_step(n):
    told = trained(n, STRICT.format(devices=3) + "sizes = nccl_by_mpi.package(cupy)\n")
    assert told == [["nccl", f"cuda:{rank}", [FLAT] * 8] for rank in range(n)]


@pytest.mark.cupy_on_cpu
def test_the_real_cupyx_distributed_sums_once_a_step():
    cupy_on_cpu = pytest.importorskip("cupy_on_cpu")
    if cupy_on_cpu.reason() is not None:
        pytest.skip(cupy_on_cpu.reason())
    assert trained(2, REAL) == [["nccl", f"cuda:{rank}", [FLAT] * 8] for rank in range(2)]


@pytest.mark.parametrize(
    ("devices", "sizes"),
    [
        (1, "nccl_by_mpi.package(cupy)"),  # which both ranks share
        (2, "nccl_by_mpi.package(cupy, available=False)"),
        (2, "[]"),  # a CuPy without it
    ],
)
def test_elsewhere_sums_go_through_the_host(devices, sizes):
    told = trained(2, STRICT.format(devices=devices) + f"sizes = {sizes}\n")
    assert told == [["mpi", f"cuda:{rank % devices}", []] for rank in range(2)]


def test_the_example_trains_on_a_gpu_of_each_rank():
    of_mpi()
    done = ranks(2, "-c", STRICT.format(devices=2) + "nccl_by_mpi.package(cupy)\n" + example(["--device", "cuda"], ""))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("test accuracy") == 1
    assert float(done.stdout.split()[-1]) > 0.5


def test_values_that_differ_on_devices_after_the_broadcast_are_named_on_all():
    assert_a_faulty_broadcast_is_found(STRICT.format(devices=2) + "DEVICE = 'cuda'")


@pytest.mark.parametrize(
    ("available", "copied"),
    [
        (True, "float32[4]"),  # on how many ranks each of two parameters has a gradient, and the two digits of rows
        (False, "float32[20]"),  # and the sixteen gradients
    ],
)
def test_what_a_step_copies_to_the_host(available, copied):
    code = f"""
nccl_by_mpi.package(cupy, available={available})
import json
import numpy as np
import tinynorm as tn
ranks = tn.parallel.connect()
model = tn.nn.Linear(3, 4, rng=ranks.rank, device=ranks.device("cuda"))
ranks.replicate(model)
with cupy.cuda.Device(ranks.rank):
    for p in model.parameters():
        p.grad = cupy.asarray(np.full(p.shape, 1 + ranks.rank, np.float32))
cupy.machine.to_host.clear()
rows = ranks.average(model.parameters(), 1)
copies = [line for line in cupy.machine.to_host if "nccl_by_mpi.py" not in line]
means = [p.grad.get().tolist() for p in model.parameters()]
if ranks.rank == 0:
    print(json.dumps([rows, means, copies]))
"""
    rows, means, copies = found(2, STRICT.format(devices=2) + code)
    assert rows == 2
    assert means == [[[1.5] * 3] * 4, [1.5] * 4]
    assert len(copies) == 1
    assert copied in copies[0]


def test_a_model_that_has_left_its_gpu_is_to_be_replicated_again():
    code = """
nccl_by_mpi.package(cupy)
import json
import tinynorm as tn
ranks = tn.parallel.connect()
model = tn.nn.Linear(3, 4, device=ranks.device("cuda"))
ranks.replicate(model)
model.to("cpu")
try:
    ranks.average(model.parameters(), 1)
except tn.errors.DeviceError as error:
    refused = str(error)
ranks.replicate(model)
if ranks.rank == 0:
    print(json.dumps([refused, ranks.average(model.parameters(), 1), ranks.transport]))
else:
    ranks.average(model.parameters(), 1)
"""
    refused, rows, transport = found(2, STRICT.format(devices=2) + code)
    assert "on 'cpu', and were on 'cuda:0' when they were replicated" in refused
    assert (rows, transport) == (2, "mpi")


def test_a_full_device_leaves_all_gradients_as_they_were(monkeypatch):
    cupy = strict_cupy.install(monkeypatch)
    model = tn.nn.Linear(3, 4, rng=0, device="cuda")
    for p in model.parameters():
        p.grad = cupy.full(p.shape, 6.0, np.float32)
    cupy.machine.fail_allocation(2)
    with pytest.raises(tn.errors.DeviceError):
        tn.parallel.alone().average(model.parameters(), 2)
    assert [p.grad.get().tolist() for p in model.parameters()] == [[[6.0] * 3] * 4, [6.0] * 4]
    assert tn.parallel.alone().average(model.parameters(), 2) == 2
    assert [p.grad.get().tolist() for p in model.parameters()] == [[[3.0] * 3] * 4, [3.0] * 4]


@pytest.mark.skipif(find_spec("cupy") is None, reason="CuPy is not installed")
def test_what_stands_in_is_called_as_the_real_one():
    code = """
import inspect, json, warnings
import nccl_by_mpi
warnings.simplefilter("ignore")  # NCCL's library is not installed
import cupyx.distributed
real = [cupyx.distributed.init_process_group, cupyx.distributed.NCCLBackend.all_reduce]
nccl_by_mpi.package(__import__("cupy"))
pretended = [__import__("sys").modules["cupyx.distributed"].init_process_group, nccl_by_mpi.NCCLBackend.all_reduce]
print(json.dumps([[str(inspect.signature(f)) for f in functions] for functions in (real, pretended)]))
"""
    real, pretended = found(1, code)
    assert real == pretended
