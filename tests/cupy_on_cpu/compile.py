"""From a CUDA C++ source to a shared library of the host, by g++. It takes NVRTC's place in CuPy.

What is compiled by g++ is compiled by NVRTC for GPUs too, so that no kernel is written in the dialect of g++ only.
"""

import functools
import re
import subprocess
from pathlib import Path
from typing import Any

from . import cache
from .gpus import Resources, compile_for_gpus

INCLUDE = Path(__file__).parent / "include"

# Checks stand before accesses: through a pointer, whether it is aligned; to an array of known length, whether inside.
FLAGS = (
    *("-std=c++20", "-O1", "-fPIC", "-w", "-fpermissive", "-fno-threadsafe-statics", "-ffp-contract=off"),
    "-fno-gnu-unique",  # modules may have functions of the same name, and each its own
    *("-fsanitize=alignment,bounds", "-fno-sanitize-recover=all", f"-I{INCLUDE}"),
)
LINK = ("-shared", "-nostdlib", "-Wl,-Bsymbolic")  # what a module lacks is in the process

KERNEL = re.compile(r'extern\s+"C"\s+__global__\s+void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\(')
DYNAMIC_SHARED = re.compile(r"extern\s+__shared__\s+(?:__align__\s*\(\s*\d+\s*\)\s*)?([\w\s]+?)\s+(\w+)\s*\[\s*\]\s*;")
WAITS = re.compile(r"__syncthreads|__syncwarp|__shfl_|__ballot_sync|__any_sync|__all_sync")

#: What kernels take on GPUs, of all that were compiled so far in this process.
resources: list[Resources] = []


@functools.cache
def _header() -> Path:
    """``cuda_on_host.h`` compiled once for all modules."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(INCLUDE.glob("*.h"))]
    name = f"cuda-{cache.key(*FLAGS, *texts)}.h"
    header = cache.made(name, lambda path: path.write_text(f'#include "{INCLUDE / "cuda_on_host.h"}"\n'))

    def precompile(path: Path) -> None:
        subprocess.run([cache.GXX, *FLAGS, "-x", "c++-header", header, "-o", path], check=True)

    cache.made(name + ".gch", precompile)
    return header


def for_host(source: str) -> str:
    """The source as g++ takes it, with a description of each kernel behind it."""
    names = KERNEL.findall(source)
    waits = "true" if WAITS.search(source) else "false"
    source = DYNAMIC_SHARED.sub(r"\1* \2 = (\1*)cuda_dynamic_shared;", source)
    return source + "\n" + "".join(f"CUDA_KERNEL({name}, {waits})\n" for name in names)


def library(source: str, options: tuple[str, ...]) -> Path:
    """The shared library of a module, from the cache or compiled now."""
    from cupy.cuda.compiler import CompileException

    text, header = for_host(source), _header()
    kept = [option for option in options if option.startswith(("-D", "-I", "--include-path"))]

    def make(path: Path) -> None:
        file = path.with_suffix(".cpp")
        file.write_text(text, encoding="utf-8")
        command = [cache.GXX, *FLAGS, *LINK, *kept, "-include", str(header), str(file), "-o", str(path)]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode:
            raise CompileException(result.stderr, source, str(file), options, cache.GXX)

    return cache.made(f"module-{cache.key(header.name, *kept, text)}.so", make)


def compile_module(source: str, options: tuple[str, ...] = (), *, name_expressions: Any = None, **_: Any) -> Any:
    """What CuPy calls for a module: ``cupy.cuda.compiler._compile_module_with_cache``."""
    from cupy.cuda.function import Module

    if name_expressions:
        raise NotImplementedError("CuPy on the CPU has no kernels that are named by an expression")
    resources.extend(compile_for_gpus(source, tuple(options)))
    module = Module()
    module.load(str(library(source, tuple(options))).encode())
    return module
