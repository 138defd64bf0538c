"""``python -m tinynorm info``: what a report of a fault needs to say of a machine."""

import json
import os
import platform
import sys
from argparse import ArgumentParser, Namespace
from typing import Any

import numpy as np

from . import backend
from .kernels import enabled
from .kernels.threads import cores, get_num_threads

VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_CORETYPE", "OPENBLAS_NUM_THREADS",
    "TINYNORM_KERNELS", "TINYNORM_NUM_THREADS",
)  # fmt: skip
"""What changes speed or place from outside of the program."""


def add_to(commands: Any) -> None:
    """Add the command to those of ``python -m tinynorm``."""
    parser: ArgumentParser = commands.add_parser(
        "info",
        help="versions, BLAS and its threads, CuPy, CUDA and devices",
        description="What a report of a fault needs to say of this machine.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(run=run)


def run(arguments: Namespace, version: str) -> int:
    """Run the command; the exit status."""
    found = {"tinynorm": version, **host(), **gpu()}
    if arguments.json:
        print(json.dumps(found, indent=2))
    else:
        width = max(map(len, found))
        print("\n".join(f"{name:{width}}  {value}" for name, value in found.items()))
    return 0


def host() -> dict[str, str]:
    """The machine without its GPUs.

    >>> host()["NumPy"] == np.__version__
    True
    """
    kernels = "on" if enabled() else "off"
    return {
        "Python": f"{platform.python_version()} {platform.python_implementation()}",
        "system": f"{platform.platform()}, {cores()} of {os.cpu_count()} cores",
        "NumPy": np.__version__,
        "BLAS": blas(),
        "threads": f"{get_num_threads()} for large arrays, kernels {kernels}",
        "variables": ", ".join(f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ) or "none",
    }


def blas() -> str:
    """The library that NumPy multiplies matrices with; and its threads, which only threadpoolctl knows."""
    built: Any = np.show_config(mode="dicts")
    about = built.get("Build Dependencies", {}).get("blas", {})  # which a NumPy that somebody built himself may lack
    name = f"{about.get('name', 'unknown')} {about.get('version', '')}".rstrip()
    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        return f"{name}, threads unknown (threadpoolctl is not installed: pip install 'tinynorm[examples]')"
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    return ", ".join([name, *[f"threads: {p['num_threads']}, kernels: {p.get('architecture')}" for p in pools]])


def gpu() -> dict[str, str]:
    """CuPy, CUDA, the driver, and the devices with their memory; or why there are none."""
    why = backend.why_no_device()
    cupy = sys.modules.get("cupy")
    if cupy is None:
        return {"CuPy": str(why)}
    runtime = cupy.cuda.runtime
    versions = (runtime.runtimeGetVersion(), runtime.driverGetVersion())
    cuda, driver = (f"CUDA {v // 1000}.{v % 1000 // 10}" if v else "none" for v in versions)
    found = {"CuPy": f"{cupy.__version__}, {cuda}; driver: {driver}"}
    if why is not None:
        return {**found, "devices": why}
    for i in range(runtime.getDeviceCount()):
        with cupy.cuda.Device(i):
            free, total = runtime.memGetInfo()
        about = runtime.getDeviceProperties(i)
        found[f"cuda:{i}"] = (
            f"{about['name'].decode()}, compute capability {about['major']}.{about['minor']}, "
            f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
        )
    return found
