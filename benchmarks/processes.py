"""The processes that measure: what to start for a group, and the rows that come back."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from .rows import Row
from .setting import environment

Found = Iterator[Row | dict[str, Any]]  # rows as they are found; and before those of a process, its setting

# What has to be done before a library's import; elsewhere it is NumPy's. DeZero was written for a NumPy that had `int`.
BEFORE = {"numpy": "import sys", "dezero": "import numpy; numpy.int = int"}


class Failed(Exception):
    """A process that measures ended with an error, which it has printed."""


def runs(group: str, peers: Sequence[str], threads: int, quick: bool) -> Iterator[Found]:
    """What is to be run for a group, one after the other. One that fails takes nothing away from the others."""
    if group == "import":
        for other in ("numpy", *peers):
            yield _import(other, threads, quick)
    elif group == "memory":
        for other in ("formulas", *peers):
            yield _memory(other, threads, quick)
    elif group == "growth":
        yield _worker("growth", 1, quick)
        if threads > 1:
            yield _worker("pays", threads, quick)
    elif group == "gpu":
        yield _worker("gpu", 1, quick, "--peer", "torch" if "torch" in peers else "")
    elif group == "parallel":
        for ranks in (2,) if quick else (2, 3, 4):
            yield _ranks(ranks, quick)
    else:
        for peer in peers or [""]:
            yield _worker(group, threads, quick, "--peer", peer)


def _worker(group: str, threads: int, quick: bool, *options: str) -> Found:
    yield from _lines(["benchmarks.worker", group, "--threads", str(threads), *options], threads, quick)


def _ranks(ranks: int, quick: bool) -> Found:
    """So many processes at once, of which one tells."""
    mpiexec = which("mpiexec", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if mpiexec is None or find_spec("mpi4py") is None:
        raise Failed("parallel needs mpi4py and mpiexec; install both with: pip install -e '.[mpi]'")
    yield from _lines(["mpi4py", "-m", "benchmarks.ranks"], 1, quick, mpiexec, "-n", str(ranks))


def _lines(module: Sequence[str], threads: int, quick: bool, *launcher: str) -> Found:
    command = [*launcher, sys.executable, "-m", *module, *(["--quick"] if quick else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment(threads)) as process:
        assert process.stdout is not None
        try:
            for text in process.stdout:
                line = json.loads(text)
                yield row(line["row"]) if "row" in line else line
            if process.wait():
                raise Failed(f"{' '.join([*launcher[1:], '-m', *module])} ended with status {process.returncode}")
        finally:
            process.kill()  # where nobody waits for the rest of its rows


def row(fields: Sequence[Any]) -> Row:
    """A row from its fields in JSON."""
    group, task, size, threads, found = fields
    return Row(group, task, tuple(size), threads, found)


def _memory(other: str, threads: int, quick: bool) -> Found:
    """One row of two contestants, of which each has a process of its own."""
    found: dict[str, float] = {}
    for name in ("tinynorm", other):
        for line in _worker("memory", threads, quick, "--only", name):
            if isinstance(line, Row):
                found.update(line.found)
                both = line._replace(found=found)
            else:
                yield line
    yield both


def _import(other: str, threads: int, quick: bool) -> Found:
    """The imports of tinynorm and another library where NumPy's is done, or NumPy's own, each time in a new process.

    They find bytecode, as from the second start on, also where Python is told to write none: in a folder for that.
    """
    samples: dict[str, list[float]] = {"tinynorm": [], other: []}
    with TemporaryDirectory() as folder:
        variables = {**environment(threads), "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": folder}
        for library in samples:
            _import_time(library, variables)  # which writes it
        for _ in range(1 if quick else 11):
            for library, times in samples.items():
                times.append(_import_time(library, variables))
    found = {name: median(times) for name, times in samples.items()}
    yield Row("import", "import after NumPy's, from bytecode", (), threads, found)


def _import_time(library: str, variables: dict[str, str]) -> float:
    """Seconds that a fresh interpreter takes."""
    before = BEFORE.get(library, "import numpy")
    code = f"{before}; from time import perf_counter as now; start = now(); import {library}; print(now() - start)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
    if done.returncode:
        said = done.stderr.strip() or f"ended with status {done.returncode}"
        raise Failed(f"import {library}: {said.splitlines()[-1]}")
    return float(done.stdout.splitlines()[-1])
