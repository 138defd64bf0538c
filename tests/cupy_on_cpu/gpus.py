"""A module as GPUs get it: compiled by NVRTC, which needs no GPU, for each architecture that tinynorm is meant for."""

import dataclasses
import io
import json
import re
from pathlib import Path
from typing import Any

from . import cache

#: A100, H100 and H200, B200.
ARCHITECTURES = ("sm_80", "sm_90", "sm_100")

#: What CuPy adds, and a report from the assembler.
OPTIONS = ("--device-as-default-execution-space", "-ftz=true", "--ptxas-options=-v")

REPORT = re.compile(
    r"Compiling entry function '(?P<kernel>\w+)' for '(?P<architecture>\w+)'"
    r".*?(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads"
    r".*?Used (?P<registers>\d+) registers",
    re.DOTALL,
)


@dataclasses.dataclass(frozen=True)
class Resources:
    """What a thread of a kernel takes on an architecture. Spilled bytes are registers' contents kept in memory."""

    kernel: str
    architecture: str
    registers: int
    stack: int
    spilled: int


def compile_for_gpus(source: str, options: tuple[str, ...] = ()) -> list[Resources]:
    """Compile a module for each of :data:`ARCHITECTURES`; what each of its kernels takes there.

    Raises:
        cupy.cuda.compiler.CompileException: What NVRTC says where it does not compile.
    """
    from cupy.cuda import compiler
    from cupy_backends.cuda.libs import nvrtc

    def make(path: Path) -> None:
        found = [resource for name in ARCHITECTURES for resource in _compile(compiler, source, options, name)]
        path.write_text(json.dumps([dataclasses.asdict(resource) for resource in found]))

    key = cache.key(source, *options, nvrtc.getVersion(), *ARCHITECTURES)
    report = cache.made(f"gpus-{key}.json", make)
    return [Resources(**fields) for fields in json.loads(report.read_text())]


def _compile(compiler: Any, source: str, options: tuple[str, ...], architecture: str) -> list[Resources]:
    log = io.StringIO()
    program = compiler._NVRTCProgram(source, "module.cu", method="cubin")
    program.compile((*options, *OPTIONS, f"-arch={architecture}"), log)
    return [
        Resources(
            found["kernel"],
            found["architecture"],
            int(found["registers"]),
            int(found["stack"]),
            int(found["stores"]) + int(found["loads"]),
        )
        for found in REPORT.finditer(log.getvalue())
    ]
