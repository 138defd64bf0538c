"""The processes that measure: what to start for a group, and the rows that come back."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from .rows import Row
from .setting import environment

OWN = ("tinynorm", "formulas")  # contestants that load nothing but NumPy


class Failed(Exception):
    """A process that measures ended with an error, which it has printed."""


def run(group: str, peers: Sequence[str], threads: int, quick: bool) -> Iterator[Row | dict[str, Any]]:
    """A group's rows as they are found; and before those of a process, its setting."""
    if group == "import":
        yield _import(peers, threads, quick)
    elif group == "memory":
        yield from _memory(peers, threads, quick)
    elif group == "growth":
        yield from _worker("growth", 1, quick)
        if threads > 1:
            yield from _worker("pays", threads, quick)
    else:
        for peer in peers or [""]:
            yield from _worker(group, threads, quick, "--peer", peer)


def _worker(group: str, threads: int, quick: bool, *options: str) -> Iterator[Row | dict[str, Any]]:
    command = [sys.executable, "-m", "benchmarks.worker", group, "--threads", str(threads), *options]
    command = [*command, "--quick"] if quick else command
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment(threads)) as process:
        assert process.stdout is not None
        try:
            for text in process.stdout:
                line = json.loads(text)
                yield row(line["row"]) if "row" in line else line
            if process.wait():
                raise Failed(f"{' '.join(command[2:])} ended with status {process.returncode}")
        finally:
            process.kill()  # where nobody waits for the rest of its rows


def row(fields: Sequence[Any]) -> Row:
    """A row from its fields in JSON."""
    group, task, size, threads, found = fields
    return Row(group, task, tuple(size), threads, found)


def _memory(peers: Sequence[str], threads: int, quick: bool) -> Iterator[Row | dict[str, Any]]:
    """One row of the rows of each contestant's own process."""
    rows = []
    for name in (*OWN, *peers):
        for line in _worker("memory", threads, quick, "--only", name):
            if isinstance(line, Row):
                rows.append(line)
            else:
                yield line
    yield rows[0]._replace(found={name: value for row in rows for name, value in row.found.items()})


def _import(peers: Sequence[str], threads: int, quick: bool) -> Row:
    """Each library's import where NumPy's is done, and NumPy's own."""
    code = "import {first}; from time import perf_counter as now; start = now(); import {library}; print(now() - start)"
    samples: dict[str, list[float]] = {name: [] for name in ("tinynorm", "numpy", *peers)}
    for _ in range(1 if quick else 11):
        for library, found in samples.items():
            first = "sys" if library == "numpy" else "numpy"
            done = subprocess.run(
                [sys.executable, "-c", code.format(first=first, library=library)],
                capture_output=True, text=True, env=environment(threads), check=False,
            )  # fmt: skip
            if done.returncode:
                raise Failed(f"import {library}: {done.stderr.strip().splitlines()[-1]}")
            found.append(float(done.stdout))
    return Row("import", "import, NumPy's done", (), threads, {name: median(found) for name, found in samples.items()})
