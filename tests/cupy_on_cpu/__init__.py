"""The real CuPy on a machine without a GPU: its CUDA calls answered on the host, its kernels compiled by g++.

    import cupy_on_cpu  # in a test, where tests/ is on the path

    cupy = cupy_on_cpu.install()

``install()`` comes before anything else imports CuPy, and returns the real module, which works on two pretended devices
from then on. Where that cannot be, ``reason()`` says why in one sentence. It is made for one version of CuPy, on Linux
x86-64, since it replaces what CuPy does not offer for replacing.

What it sees that a device does not show:

- memory that was never written: it starts as NaN;
- reading or writing outside an array, by one element, and an address that is not aligned as its type wants;
- an argument that is not of the width, the kind or the device that a kernel declares (``ArgumentError``);
- barriers that not all threads reach, and lanes that no lane brought a value to;
- a missing barrier: ``in_every_order(compute)`` runs threads forward, reversed and shuffled, and compares.

What it does not see: speed, registers, how a device rounds (division, exp, subnormal float32 numbers, cuBLAS), streams.
Sorting, random numbers and FFT are not there, and say so.

For tests: ``counted()``, ``order(name)``, ``in_every_order(compute)``, ``out_of_memory(after)``,
``failing_launch(after)``. Every kernel is also compiled for GPUs, by NVRTC, and must pass there;
``compile_for_gpus(source, options)`` says what registers it takes, and ``resources`` lists all so far.

    link.py        CuPy calls our libraries: machine/ for CUDA, blas/ for cuBLAS
    compile.py     g++ in place of NVRTC: include/ is CUDA C++ for g++
    arguments.py   arguments held against the kernel's signature
    controls.py    counting, orders, failures
    gpus.py        NVRTC, for real GPUs
    cache.py       compiled files on disk
"""

import functools
import importlib.metadata
import os
import platform
import shutil
import sys
from typing import Any

from .arguments import ArgumentError
from .compile import resources
from .controls import ORDERS, counted, failing_launch, in_every_order, order, out_of_memory
from .gpus import ARCHITECTURES, Resources, compile_for_gpus

__all__ = [
    "ARCHITECTURES",
    "ORDERS",
    "ArgumentError",
    "Resources",
    "compile_for_gpus",
    "counted",
    "failing_launch",
    "in_every_order",
    "install",
    "order",
    "out_of_memory",
    "reason",
    "resources",
]

#: The one CuPy for which this is made, and the packages that have CUDA's headers and compiler.
PACKAGE, VERSION = "cupy-cuda13x", "14.2.0"
CUDA = ("nvidia-cuda-runtime", "nvidia-cuda-nvrtc")
INSTALL = "pip install -e '.[test,cupy-on-cpu]'"


def reason() -> str | None:
    """Why the real CuPy cannot run here on the CPU, in one sentence; None if it can."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "CuPy on the CPU needs Linux on x86-64"
    versions = {name: _version(name) for name in (PACKAGE, *CUDA)}
    if versions[PACKAGE] != VERSION:
        return f"CuPy on the CPU needs {PACKAGE} {VERSION} (here: {versions[PACKAGE]}): {INSTALL}"
    absent = [name for name in CUDA if versions[name] is None]
    if absent:
        return f"CuPy on the CPU needs {' and '.join(absent)}: {INSTALL}"
    missing = [tool for tool in ("g++", "nm") if shutil.which(tool) is None]
    if missing:
        return f"CuPy on the CPU needs {' and '.join(missing)}"
    return None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache
def install() -> Any:
    """The real CuPy, working on host memory; it must not have been imported yet.

    Raises:
        RuntimeError: If it cannot be, with :func:`reason`, or if CuPy is in the process already.
    """
    why = reason()
    if why is not None:
        raise RuntimeError(why)
    if "cupy" in sys.modules:
        raise RuntimeError("CuPy is imported already; cupy_on_cpu.install() must come first")
    # Without CUB, which is code for GPUs, CuPy writes its reductions itself.
    os.environ["CUPY_ACCELERATORS"] = ""
    from . import arguments, compile, controls, link

    driver = link.load_driver()
    link.replace_runtime(driver)
    controls.connect(driver)
    import cupy
    from cupy.cuda import compiler, thrust

    link.load_cublas()
    for name in ("sort", "argsort", "lexsort"):
        setattr(thrust, name, _no_sorting)
    compiler._compile_module_with_cache = compile.compile_module
    cupy.cuda.set_allocator(functools.partial(_allocate, cupy.cuda.memory))
    cupy.RawKernel, cupy.RawModule = arguments.checked(cupy, driver.device_of_address)
    return cupy


def _no_sorting(*_: Any, **__: Any) -> None:
    raise NotImplementedError("CuPy on the CPU does not sort: that is compiled code for GPUs")


def _allocate(memory: Any, size: int) -> Any:
    """Memory for one array and no other: CuPy's pool would give pieces of a larger one, and freed ones again."""
    try:
        return memory.MemoryPointer(memory.Memory(size), 0)
    except memory.CUDARuntimeError as error:
        if error.status != 2:  # cudaErrorMemoryAllocation
            raise
    import cupy

    return cupy.get_default_memory_pool().malloc(size)  # which asks again, in vain, and then raises CuPy's own error
