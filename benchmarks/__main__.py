"""The command line: ``python -m benchmarks``."""

import json
import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NamedTuple

from . import arguments, picture, processes, report
from .rows import ALONE, APART, GROUPS, Row, merge


class Complaint(Exception):
    """What the user is to be told, in one sentence."""


class Measured(NamedTuple):
    """What was found, in this run or in runs before."""

    rows: list[Row]
    settings: list[dict[str, Any]]
    quick: bool


def measure(given: Namespace, found: Measured) -> int:
    """Fill in what is found, with a sign of life for each row; the exit status."""
    status = 0
    groups = given.groups or [group for group in GROUPS if group not in APART]
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
    named = isinstance(error, OSError) and error.filename is not None
    print(f"python -m benchmarks: {f'{error.filename}: {error.strerror}' if named else error}", file=sys.stderr)
    return 2


def read(files: Sequence[str], groups: Sequence[str], found: Measured) -> Measured:
    """What runs before have found, of some groups or of all."""
    for file in files:
        if file in GROUPS and not Path(file).exists():
            raise Complaint(f"{file} is a group; write groups before --read, which takes all names behind it")
        try:
            run = json.loads(Path(file).read_text(encoding="utf-8"))
            rows = [processes.row(fields) for fields in run["rows"]]
            texts(rows, run["settings"], run["quick"])  # which fails where something is missing
            found.settings.extend(run["settings"])
            found = found._replace(quick=found.quick or run["quick"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Complaint(f"{file} is not what --json writes: {error!r}") from error
        found.rows.extend(row for row in rows if not groups or row.group in groups)
    if not found.rows:
        raise Complaint(f"{', '.join(files)}: nothing there of {', '.join(groups) or 'any group'}")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, or read; then show, write and draw."""
    given = arguments.parse(argv)
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
    except BrokenPipeError:  # whoever was reading has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (Complaint, OSError) as error:
        return complain(error)
    return status


def texts(rows: Sequence[Row], settings: Sequence[dict[str, Any]], quick: bool) -> tuple[Any, list[str], list[str]]:
    """The tables, what stands below that of growth, and the notes."""
    lines = merge(rows)
    growth = report.growth_summary([line for line in lines if line.row.group == "growth"])
    return report.tables(lines), growth, report.notes(settings, quick)


def show(found: Measured, given: Namespace) -> None:
    """What was found: as JSON, on the terminal, in a file of Markdown, and as a picture."""
    tables, growth, notes = texts(*found)
    try:
        if given.json:
            text = json.dumps(found._asdict(), indent=1, allow_nan=False)
            Path(given.json).write_text(text + "\n", encoding="utf-8")
    finally:  # what took minutes is shown, also where it could not be written
        print("\n\n".join([*(report.terminal(table) for _, table in tables), "\n".join([*growth, *notes])]), flush=True)
    if given.markdown:
        report.write_markdown(Path(given.markdown), tables, growth, notes)
    if given.picture:
        drawn = [line for line in merge(found.rows) if line.row.group not in ALONE and line.ratios]
        if not drawn:
            raise Complaint(f"there is nothing to draw; {' and '.join(ALONE)} have tables only")
        picture.draw(given.picture, drawn)


if __name__ == "__main__":
    sys.exit(main())
