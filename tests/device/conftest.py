"""The module that goes by the name of CuPy, in each of three tiers, as fixtures.

| tier        | what it is                                                  | when it runs              |
| ----------- | ----------------------------------------------------------- | ------------------------- |
| strict      | tests/strict_cupy: NumPy underneath, CuPy's refusals on top | always                    |
| cupy_on_cpu | the real CuPy, its CUDA calls answered by tests/cupy_on_cpu | ``pytest -m cupy_on_cpu`` |
| gpu         | the real CuPy on a real device                              | ``pytest -m gpu``         |

- `cupy`: in all three.
- `quick_cupy`: where a call takes microseconds, that is not on cupy_on_cpu: for tests of very many calls.
- `cuda_kernels`: where CUDA is compiled, that is not by the strict stand-in: for tests of kernels of ours. On the CPU
  such a test runs once for each order in which threads may take their turns.
- `on_cpu`, and as a device of a single processor `one_processor`: on cupy_on_cpu alone.
"""

import cupy_on_cpu
import pytest
import strict_cupy

from tinynorm.kernels.cuda import norms

collect_ignore = ["nccl_by_mpi.py"]  # which needs mpi4py, and is imported by ranks


@pytest.hookimpl(trylast=True)  # after -m
def pytest_collection_modifyitems(items):
    """Refuse to run both tiers of the real CuPy: a process has it on the CPU or on a GPU."""
    if all(any(item.get_closest_marker(tier) for item in items) for tier in ("cupy_on_cpu", "gpu")):
        raise pytest.UsageError(
            "tests of both cupy_on_cpu and gpu are chosen, but a process has CuPy on the CPU or on a GPU: "
            "run pytest -m cupy_on_cpu, and then pytest -m gpu"
        )


def param(tier, *more):
    """A fixture's parameter that ``-m tier`` runs; "strict" runs in any case."""
    marks = [] if tier == "strict" else [getattr(pytest.mark, tier)]
    return pytest.param((tier, *more), marks=marks, id="-".join((tier, *more)))


def module_of(tier, monkeypatch):
    """The tier's module, in its place. The stand-in is there for one test; the real CuPy stays."""
    if tier == "strict":
        return strict_cupy.install(monkeypatch)
    if tier == "cupy_on_cpu":
        reason = cupy_on_cpu.reason()
        if reason is not None:
            pytest.skip(reason)
        return cupy_on_cpu.install()
    import cupy  # which is there: otherwise the plugin has skipped the test

    return cupy


@pytest.fixture(params=[param("strict"), param("cupy_on_cpu"), param("gpu")])
def cupy(request, monkeypatch):
    """All three."""
    return module_of(*request.param, monkeypatch)


@pytest.fixture(params=[param("strict"), param("gpu")])
def quick_cupy(request, monkeypatch):
    """Without the slow one."""
    return module_of(*request.param, monkeypatch)


@pytest.fixture(params=[*(param("cupy_on_cpu", order) for order in cupy_on_cpu.ORDERS), param("gpu")])
def cuda_kernels(request, monkeypatch):
    """Those that compile, in each order of threads."""
    tier, *order = request.param
    module = module_of(tier, monkeypatch)
    if not order:
        yield module
        return
    with cupy_on_cpu.order(*order):
        yield module


@pytest.fixture(params=[param("cupy_on_cpu")])
def on_cpu(request, monkeypatch):
    """Where the order of threads can be chosen, and a write out of bounds breaks nothing but the test."""
    return module_of(*request.param, monkeypatch)


@pytest.fixture
def one_processor(on_cpu, monkeypatch):
    """The same as a device of one processor; texts of kernels that are made for a test need not compile for GPUs."""
    monkeypatch.setattr("cupy_on_cpu.compile.compile_for_gpus", lambda source, options: [])
    monkeypatch.setattr(norms, "_processors", lambda cupy, device: 1)
    return on_cpu
