"""The setting of a run: cores, environment variables, versions, the BLAS that ran."""

import os
import platform
from contextlib import suppress
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tinynorm import info

# They choose a BLAS kernel, or its blocking, for another machine than this one.
UNSET = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "TINYNORM_KERNELS", "TINYNORM_NUM_THREADS")
THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def environment(threads: int) -> dict[str, str]:
    """The variables that a measuring process is started with."""
    kept = {name: value for name, value in os.environ.items() if name not in UNSET}
    here = str(Path(__file__).parents[1])
    path = os.pathsep.join(part for part in (here, kept.get("PYTHONPATH")) if part)
    return {**kept, **dict.fromkeys(THREADS, str(threads)), "PYTHONPATH": path}


def pin(threads: int) -> list[int]:
    """Stay on as many cores as there are threads, the last ones: interrupts like the first. The cores, if known."""
    if not hasattr(os, "sched_setaffinity"):
        return []
    cores = sorted(os.sched_getaffinity(0))[-threads:]
    os.sched_setaffinity(0, cores)
    return cores


def describe(libraries: list[str]) -> dict[str, Any]:
    """What a reader of the numbers must know of the machine. Call it where the libraries are loaded."""
    versions = {}
    for name in ("numpy", *libraries):
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    blas = []
    if find_spec("threadpoolctl") is not None:
        for pool in import_module("threadpoolctl").threadpool_info():
            words = (pool.get("internal_api"), pool.get("version"), pool.get("architecture"), pool.get("num_threads"))
            blas.append(" ".join(str(word) for word in words if word is not None))
    return {
        "processor": _processor(),
        "system": platform.system(),
        "python": platform.python_version(),
        "versions": versions,
        "blas": sorted(blas),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def devices() -> list[str]:
    """CuPy, the driver, and the GPU that is measured."""
    found = info.gpu()
    return [f"CuPy {found['CuPy']}", found.get("cuda:0", "no GPU")]


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def peak_memory() -> int:
    """The most bytes of memory that this process has had at once."""
    # What getrusage says of a process begins with the peak of the one that started it; /proc knows its own.
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    resource = import_module("resource")
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) << (0 if platform.system() == "Darwin" else 10)
