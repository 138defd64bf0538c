"""The command line: ``python -m benchmarks``."""

import json
import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from importlib.util import find_spec
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NamedTuple

from tinynorm.errors import MissingExtraError

from . import picture, processes, report
from .rows import GROUPS, Row, merge

PEERS = ("torch", "jax", "mygrad", "pydynet", "dezero", "autograd")  # by name alone: this process loads none of them

DESCRIPTION = """\
Measure tinynorm beside other libraries: the same work, turn by turn in one process for each library, medians. The
numbers behind ÷ are the share that tinynorm takes of the other's time: below 1, it is ahead. With a bound, as in
0.20 ≤ 0.27, it is what is aimed at. "copy" is the time of a memory copy of as many bytes as the work must read and
write, "formulas" is tinynorm without kernels, "numpy" what one writes first. Beside frameworks in NumPy, the aim is
that beside PyTorch divided by what they took of its time, or 1 where that is not known.

  norms     RMSNorm and LayerNorm, forward (no_grad) and forward + backward
  linear    a linear layer, forward + backward
  step      a training step of a pre-norm MLP with Adam
  overhead  (a * b + c).sum().backward() on 8 elements
  memory    the peak of a training step, without what the import takes
  import    the import, where NumPy's is done and bytecode is written, as it is from the second start on
  growth    tinynorm over rows, width, depth and batch; with --threads 2, from which size on threads pay

Without growth it takes about two minutes for each library. After Ctrl-C, what was measured until then is shown, and
written by --json.
"""


class Complaint(Exception):
    """What the user is to be told, in one sentence."""


class Measured(NamedTuple):
    """What was found, in this run or in runs before."""

    rows: list[Row]
    settings: list[dict[str, Any]]
    quick: bool


def libraries(text: str) -> list[str]:
    """An argparse type: names of peers, with commas."""
    names = list(dict.fromkeys(name for name in text.split(",") if name))
    for name in names:
        if name not in PEERS:
            raise ArgumentTypeError(f"{name!r} is none of {', '.join(PEERS)}")
        if find_spec(name) is None:
            raise ArgumentTypeError(f"{name} is not installed; install all of them with: pip install -e '.[bench]'")
    return names


def writable(text: str) -> str:
    """An argparse type: a file that can be written. To find out after the measurements would be late."""
    path = Path(text)
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ArgumentTypeError(f"{text} cannot be written")
    return text


def document(text: str) -> str:
    """An argparse type: a new file, or one with marks for the tables."""
    path = Path(writable(text))
    if path.exists() and any(mark not in path.read_text(encoding="utf-8") for mark in report.MARKS):
        raise ArgumentTypeError(f"{text} is there and lacks the lines {' and '.join(report.MARKS)} to write between")
    return text


def drawable(text: str) -> str:
    """An argparse type: a file that a picture can be written to."""
    try:
        endings = picture.endings()
    except MissingExtraError as error:
        raise ArgumentTypeError(str(error)) from error
    if Path(text).suffix not in endings:
        raise ArgumentTypeError(f"{text} must end in one of {', '.join(endings)}")
    return writable(text)


def arguments(argv: Sequence[str] | None = None) -> Namespace:
    """The command line."""
    parser = ArgumentParser(
        "python -m benchmarks", description=DESCRIPTION, formatter_class=RawDescriptionHelpFormatter
    )
    parser.add_argument("groups", nargs="*", metavar="group", help="what to measure; by default all but growth")
    parser.add_argument(
        "--against",
        type=libraries,
        default=["torch"] if find_spec("torch") else [],
        metavar="NAMES",
        help=f"of {','.join(PEERS)}, or '' for none; default: torch, where it is installed",
    )
    parser.add_argument("--threads", type=int, choices=(1, 2), default=1, help="default: 1")
    parser.add_argument("--quick", action="store_true", help="each group once, at its smallest size: no true numbers")
    parser.add_argument("--json", type=writable, metavar="FILE", help="write all medians")
    parser.add_argument(
        "--markdown", type=document, metavar="FILE", help="write the tables; in a file that is there, between its marks"
    )
    parser.add_argument(
        "--picture", type=drawable, metavar="FILE", help="draw shares of copy bandwidth, and ratios; needs matplotlib"
    )
    parser.add_argument(
        "--read", metavar="FILE", nargs="+", help="measure nothing; show what --json wrote before, of the groups named"
    )
    given = parser.parse_args(argv)
    if unknown := [group for group in given.groups if group not in GROUPS]:
        parser.error(f"{unknown[0]!r} is none of {', '.join(GROUPS)}")
    return given


def measure(given: Namespace, found: Measured) -> int:
    """Fill in what is found, with a sign of life for each row; the exit status."""
    status = 0
    groups = given.groups or [group for group in GROUPS if group != "growth"]
    try:
        for group in groups:
            for run in processes.runs(group, given.against, given.threads, given.quick):
                try:
                    for line in run:
                        keep(line, found)
                except processes.Failed as error:
                    status = complain(error)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        given.markdown = given.picture = None  # which may hold a whole run
        return 130
    return status


def keep(line: Row | dict[str, Any], found: Measured) -> None:
    """One line of what a process found."""
    if isinstance(line, Row):
        found.rows.append(line)
        beside = ", ".join(name for name in line.found if name != "tinynorm")
        print(f"{' '.join(filter(None, (line.task, report.size(line))))} beside {beside}", file=sys.stderr, flush=True)
    else:
        found.settings.append(line["setting"])


def complain(error: Exception) -> int:
    """Say what went wrong; the exit status for it."""
    print(f"python -m benchmarks: {error}", file=sys.stderr)
    return 2


def read(files: Sequence[str], groups: Sequence[str], found: Measured) -> Measured:
    """What runs before have found, of some groups or of all."""
    for file in files:
        try:
            run = json.loads(Path(file).read_text(encoding="utf-8"))
            rows = [processes.row(fields) for fields in run["rows"]]
            found.settings.extend(run["settings"])
            found = found._replace(quick=found.quick or run["quick"])
        except (ValueError, KeyError, TypeError) as error:
            raise Complaint(f"{file} is not what --json writes: {error!r}") from error
        found.rows.extend(row for row in rows if not groups or row.group in groups)
    if not found.rows:
        raise Complaint(f"{', '.join(files)}: nothing there of {', '.join(groups) or 'any group'}")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, or read; then show, write and draw."""
    given = arguments(argv)
    if isinstance(sys.stdout, TextIOWrapper):  # signs such as ÷, which not every terminal can show
        sys.stdout.reconfigure(errors="backslashreplace")
    found, status = Measured([], [], given.quick), 0
    try:
        if given.read:
            found = read(given.read, given.groups, found)
        else:
            status = measure(given, found)
        if found.rows:
            show(found, given)
    except (Complaint, OSError) as error:
        return complain(error)
    return status


def show(found: Measured, given: Namespace) -> None:
    """What was found as JSON, the tables on the terminal and in a file of Markdown, and the picture."""
    if given.json:
        text = json.dumps(found._asdict(), indent=1, allow_nan=False)
        Path(given.json).write_text(text + "\n", encoding="utf-8")
    lines = merge(found.rows)
    notes = report.notes(found.settings, found.quick)
    growth = report.growth_summary([line for line in lines if line.row.group == "growth"])
    tables = report.tables(lines)
    print("\n\n".join([*(report.terminal(table) for _, table in tables), "\n".join([*growth, *notes])]))
    if given.markdown:
        report.write_markdown(Path(given.markdown), tables, growth, notes)
    if given.picture:
        drawn = [line for line in lines if line.row.group != "growth" and line.ratios]
        if not drawn:
            raise Complaint("there is nothing to draw; growth has a table only")
        picture.draw(given.picture, drawn)


if __name__ == "__main__":
    sys.exit(main())
