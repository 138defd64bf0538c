"""``python -m tinynorm check``: the table of all operations, on the terminal or as JSON."""

import json
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

from ..errors import ArgumentError
from ..options import near_miss
from .check import Row, Task, check, tasks_in, tasks_of_table

DESCRIPTION = """\
Hold operations against numbers. For each one, a row:

  finite differences  largest error of its gradients against central differences
  complex step        the same against complex steps, which are exact to about 1e-15
  order               the highest derivatives that agree with numeric ones, up to 4; where there are no more, both
                      are 0
  mutants killed      planted faults that its property test finds, of all that were planted
  seconds             how long all of this took

The exit status is 1 when an operation falls short, 2 when the command was misspelt, 130 after Ctrl-C.
"""

JSON = """\
--json prints one object: "tinynorm" (the version), "intense", "passed", "seconds", and "operations", a list of
objects with "name", "central_error", "complex_error", "order", "killed", "mutants", "survivors" (a list of texts),
"equivalents" (an object: mutant, reason), "seconds" and "problems" (a list of texts, empty where nothing falls short).
An error that could not be found is null.
"""


def add_to(commands: Any) -> None:
    """Add the command to those of ``python -m tinynorm``."""
    parser: ArgumentParser = commands.add_parser(
        "check",
        help="hold operations against numeric derivatives and planted faults",
        description=DESCRIPTION,
        epilog=JSON,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="op",
        help="an operation, or a module (or its file) with your own; by default all of the library",
    )
    parser.add_argument("--intense", action="store_true", help="try many more examples; takes minutes")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(run=run)


def run(arguments: Namespace, version: str) -> int:
    """Run the command; the exit status."""
    start, tasks = perf_counter(), find(arguments.names)
    width = max(len("operation"), *(len(task.name) for task in tasks))
    rows = []
    with progress(tasks) as (waiting, show):
        if not arguments.json:
            show(heading(width))
        for task in waiting:
            with redirect_stdout(sys.stderr):  # what a user's operation prints is not part of the table
                row = check(task, arguments.intense)
            rows.append(row)
            if not arguments.json:
                show(line(row, width))
    seconds, passed = perf_counter() - start, not any(row.problems for row in rows)
    if arguments.json:
        found = {
            "tinynorm": version,
            "intense": arguments.intense,
            "passed": passed,
            "seconds": seconds,
            "operations": [row.json() for row in rows],
        }
        print(json.dumps(found, indent=2, allow_nan=False))
    else:
        print(summary(rows, seconds))
    return 0 if passed else 1


COLUMNS = ("finite differences", "complex step", "order", "mutants killed", "seconds")


def heading(width: int) -> str:
    """The line above the table; `width` is that of the longest name."""
    return f"{'operation':{width}}  " + "  ".join(f"{name:>{len(name)}}" for name in COLUMNS)


def line(row: Row, width: int) -> str:
    """A row of the table."""
    cells = (
        _error(row.central_error),
        _error(row.complex_error),
        str(row.order or "-"),
        f"{row.killed}/{row.mutants}" if row.mutants else "-",
        f"{row.seconds:.2f}",
    )
    text = f"{row.name:{width}}  " + "  ".join(f"{c:>{len(n)}}" for c, n in zip(cells, COLUMNS, strict=True))
    return f"{text}  falls short" if row.problems else text


def _error(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"


def summary(rows: list[Row], seconds: float) -> str:
    """What stands below the table."""
    killed, mutants = sum(row.killed for row in rows), sum(row.mutants for row in rows)
    short = [row for row in rows if row.problems]
    count = f"{len(rows)} operation{'s' if len(rows) != 1 else ''}"
    verdict = f"{len(short)} of {count} fall{'s' if len(short) == 1 else ''} short" if short else f"{count}, all pass"
    details = [f"\n{row.name}: {problem}" for row in short for problem in row.problems]
    return "\n".join([f"\n{verdict}; {killed} of {mutants} mutants killed; {seconds:.1f} s", *details])


def find(names: Iterable[str]) -> list[Task]:
    """What is to be checked: the operations of that name, and those in modules of that name.

    The name of an operation that one of these modules has stands for that one, and then not all of the module is meant.

    Raises:
        ArgumentError: for a name that is neither, or a module that cannot be imported or has nothing to check.
    """
    names, table = list(names), tasks_of_table()
    modules = {name: _of_module(name) for name in names if name not in table}
    own = [task for tasks in modules.values() for task in tasks]
    chosen = {task.name for task in own} & {name for name in names if not modules.get(name)}
    found = []
    for name in names:
        if name in chosen:
            found += [task for task in own if task.name == name]
        elif name in table:
            found.append(table[name])
        elif modules[name]:
            found += [] if any(task.name in chosen for task in modules[name]) else modules[name]
        else:
            hint = near_miss(name, [*table, *(task.name for task in own)])
            raise ArgumentError(f"check: {name!r} is neither an operation nor a module{hint}")
    return found or list(table.values())


def _of_module(name: str) -> list[Task]:
    """What a module has to check, which may be named by its file; nothing where there is no module of that name."""
    folder, module = _of_file(name) if name.endswith(".py") else ("", name)
    if not all(part.isidentifier() for part in module.split(".")):
        return []
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)  # "" is where the command was typed
    try:
        with redirect_stdout(sys.stderr):
            tasks = tasks_in(import_module(module))
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module}.".startswith(f"{missing}."):
            return []
        raise ArgumentError(f"check: {name} cannot be imported: {type(error).__name__}: {error}") from None
    if not tasks:
        raise ArgumentError(f"check: {name} holds nothing to check, neither operations of tn.op nor property tests")
    return tasks


def _of_file(name: str) -> tuple[str, str]:
    """The folder from which a file is imported, which is its own where it lies elsewhere, and its module's name."""
    path, here = Path(name).resolve(), Path.cwd()
    if not path.is_file():
        raise ArgumentError(
            f"check: there is no file {name!r} here; a module's name, such as my.module, will do as well"
        )
    base = here if path.is_relative_to(here) else path.parent
    module = ".".join(path.relative_to(base).with_suffix("").parts).removesuffix(".__init__")
    return "" if base == here else str(base), module


@contextmanager
def progress(tasks: list[Task]) -> Iterator[tuple[Iterable[Task], Any]]:
    """The tasks, one by one, with a bar on the terminal if tqdm is there; and how to print beside it."""
    bar: Any = None
    if sys.stderr.isatty() and find_spec("tqdm") is not None:
        bar = import_module("tqdm").tqdm(tasks, leave=False, unit="op")
    if bar is None:
        yield tasks, _print
        return
    with bar:
        yield bar, lambda text: bar.write(text, file=sys.stdout)


def _print(text: str) -> None:
    print(text, flush=True)
