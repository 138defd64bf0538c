"""The command line: ``python -m benchmarks``."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from tinynorm.errors import MissingExtraError

from . import processes, report
from .rows import GROUPS, Row, merge

PEERS = ("torch", "jax", "mygrad", "autograd", "dezero")  # by name alone: this process loads none of them

DESCRIPTION = """\
Measure tinynorm beside other libraries: the same work, turn by turn in one process for each library, medians. The
numbers behind ÷ are the share that tinynorm takes of the other's time: below 1, it is ahead. With a bound, as in
0.20 ≤ 0.27, it is what is aimed at. "copy" is the time of a memory copy of as many bytes as the work must read and
write, "formulas" is tinynorm without kernels, "numpy" what one writes first.

  norms     RMSNorm and LayerNorm, forward (no_grad) and forward + backward
  linear    a linear layer, forward + backward
  step      a training step of a pre-norm MLP with Adam
  overhead  (a * b + c).sum().backward() on 8 elements
  memory    the peak of a training step, without what the import takes
  import    the import, where NumPy's is done
  growth    tinynorm over rows, width, depth and batch; with --threads 2, from which size on threads pay
"""


def libraries(text: str) -> list[str]:
    """An argparse type: names of peers, with commas."""
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in PEERS:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(PEERS)}")
        if find_spec(name) is None:
            remedy = "-e '.[bench]'" if name == "torch" else name
            raise argparse.ArgumentTypeError(f"{name} is not installed; install it with: pip install {remedy}")
    return names


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("groups", nargs="*", metavar="group", help="what to measure; by default all but growth")
    parser.add_argument(
        "--against",
        type=libraries,
        default=["torch"] if find_spec("torch") else [],
        metavar="NAMES",
        help=f"of {','.join(PEERS)}; default: torch, where it is installed",
    )
    parser.add_argument("--threads", type=int, choices=(1, 2), default=1, help="default: 1")
    parser.add_argument("--quick", action="store_true", help="each group once, at its smallest size: no true numbers")
    parser.add_argument("--json", metavar="FILE", help="write all medians")
    parser.add_argument(
        "--markdown", metavar="FILE", help="write the tables, between its marks where the file has them"
    )
    parser.add_argument("--picture", metavar="FILE", help="draw shares of copy bandwidth, and ratios; needs matplotlib")
    parser.add_argument("--read", metavar="FILE", nargs="+", help="measure nothing; show what --json wrote before")
    given = parser.parse_args(argv)
    if unknown := [group for group in given.groups if group not in GROUPS]:
        parser.error(f"{unknown[0]!r} is none of {', '.join(GROUPS)}")
    return given


def measure(given: argparse.Namespace) -> tuple[list[Row], list[dict[str, Any]]]:
    """Rows and settings, with a sign of life for each row."""
    rows: list[Row] = []
    settings: list[dict[str, Any]] = []
    groups = given.groups or [group for group in GROUPS if group != "growth"]
    for group in groups:
        for found in processes.run(group, given.against, given.threads, given.quick):
            if isinstance(found, Row):
                rows.append(found)
                print(f"{found.task} {' × '.join(map(str, found.size))}", file=sys.stderr, flush=True)
            else:
                settings.append(found["setting"])
    return rows, settings


def read(files: Sequence[str]) -> tuple[list[Row], list[dict[str, Any]]]:
    """Rows and settings of runs before."""
    runs = [json.loads(Path(file).read_text(encoding="utf-8")) for file in files]
    rows = [processes.row(fields) for run in runs for fields in run["rows"]]
    return rows, [setting for run in runs for setting in run["settings"]]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, or read; then show, write and draw."""
    given = arguments(argv)
    if isinstance(sys.stdout, TextIOWrapper):  # signs such as ÷, which not every terminal can show
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        rows, settings = read(given.read) if given.read else measure(given)
        if given.json:
            text = json.dumps({"settings": settings, "rows": rows}, indent=1, allow_nan=False)
            Path(given.json).write_text(text + "\n", encoding="utf-8")
        show(rows, settings, given)
    except (processes.Failed, MissingExtraError, OSError) as error:
        print(f"python -m benchmarks: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def show(rows: list[Row], settings: list[dict[str, Any]], given: argparse.Namespace) -> None:
    """The tables on the terminal, in a file of Markdown, and in a picture."""
    lines = merge(rows)
    notes = list(dict.fromkeys(map(report.setting, settings)))
    loads = [s["load"] for s in settings if s["load"] is not None]
    if loads:
        notes.append(f"load average when the processes began: {min(loads)} to {max(loads)}, on {os.cpu_count()} cores")
    growth = report.growth_summary([line for line in lines if line.row.group == "growth"])
    tables = report.tables(lines)
    print("\n\n".join([*(report.terminal(table) for _, table in tables), "\n".join([*growth, *notes])]))
    if given.markdown:
        report.write_markdown(Path(given.markdown), tables, growth, notes)
    if given.picture:
        from .picture import draw

        draw(given.picture, lines)


if __name__ == "__main__":
    sys.exit(main())
