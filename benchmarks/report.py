"""The tables: on the terminal, and as Markdown."""

import os
from collections.abc import Iterable, Sequence
from itertools import groupby
from math import log, prod
from pathlib import Path
from typing import Any

from .network import RANKS, ROWS, on_paper, parameters
from .rows import ALONE, IMPORT_MILLISECONDS, Line, Row, target

MARKS = ("<!-- measured: begin -->", "<!-- measured: end -->")


def amount(line: Line) -> str:
    """What tinynorm takes, in a unit that suits the group; with its aim, where that is an amount."""
    value = line.row.found["tinynorm"]
    if line.row.group == "memory":
        return f"{value / 2**20:.0f} MiB"
    if line.row.group == "import":
        return aim(1e3 * value, IMPORT_MILLISECONDS, ".1f") + " ms"
    return time(value)


def time(seconds: float) -> str:
    """12.3 µs, or 4.56 ms."""
    return f"{1e6 * seconds:.1f} µs" if seconds < 1e-3 else f"{1e3 * seconds:.2f} ms"


def aim(value: float, bound: float | None, form: str = ".2f") -> str:
    """A number, and whether it keeps to its bound."""
    text = format(value, form)
    return text if bound is None else f"{text} {'≤' if value <= bound else '>'} {bound:g}"


def cells(lines: Sequence[Line]) -> list[list[str]]:
    """A table with its heading: a column for each contestant, with tinynorm's share of its time and the aim."""
    others = compared(lines)
    many = len({line.row.threads for line in lines}) > 1
    table = [["task", "size", *(["threads"] if many else []), "tinynorm", *(f"÷ {other}" for other in others)]]
    for line in lines:
        ratios = [aim(line.ratios[o], target(line.row, o)) if o in line.ratios else "" for o in others]
        table.append([line.row.task, size(line.row), *([str(line.row.threads)] if many else []), amount(line), *ratios])
    return table


def compared(lines: Iterable[Line]) -> list[str]:
    """What tinynorm is compared with: the libraries as they came, and the copy last."""
    return sorted(dict.fromkeys(other for line in lines for other in line.ratios), key=lambda other: other == "copy")


def summary(lines: Sequence[Line]) -> list[list[str]]:
    """A table with a line for each contestant: on how many rows tinynorm is ahead, and how many aims it reaches."""
    table = [["beside", "rows", "ahead on", "ratio from", "to", "aims reached"]]
    for other in compared(lines):
        found = [(line.ratios[other], target(line.row, other)) for line in lines if other in line.ratios]
        ratios, aims = [ratio for ratio, _ in found], [ratio <= bound for ratio, bound in found if bound is not None]
        ahead, reached = sum(ratio < 1.0 for ratio in ratios), f"{sum(aims)} of {len(aims)}" if aims else ""
        table.append([other, str(len(ratios)), str(ahead), f"{min(ratios):.2f}", f"{max(ratios):.2f}", reached])
    return table


def size(row: Row) -> str:
    """4096 × 1024"""
    return " × ".join(map(str, row.size))


def growth_cells(lines: Sequence[Line]) -> list[list[str]]:
    """As `cells`, with what an element costs, and how many times the time of half the size."""
    table = [["task", "size", "tinynorm", "ns per element", "× half the size", "÷ 1 thread"]]
    for _, group in groupby(lines, lambda line: line.row.task):
        before = None
        for line in group:
            own = line.row.found["tinynorm"]
            one = line.ratios.get("1 thread")
            table.append([
                line.row.task, size(line.row), amount(line), f"{1e9 * own / prod(line.row.size):.3g}",
                "" if before is None else f"{own / before:.2f}", "" if one is None else f"{one:.2f}",
            ])  # fmt: skip
            before = own
    return table


def growth_summary(lines: Sequence[Line]) -> list[str]:
    """How the time grows over the larger half of each row of sizes, and from where threads pay."""
    text = []
    for task, group in groupby(lines, lambda line: line.row.task):
        found = list(group)
        if "1 thread" in found[0].ratios:
            text.append(f"{task}: {pays(found)}")
            continue
        if len(found) < 2:
            continue
        upper = found[len(found) // 2 - 1 :]
        first, last = upper[0].row, upper[-1].row
        slope = log(last.found["tinynorm"] / first.found["tinynorm"]) / log(prod(last.size) / prod(first.size))
        text.append(f"{task}: time ~ size^{slope:.2f} from {size(first)} to {size(last)}; linear is 1")
    return text


def pays(found: Sequence[Line]) -> str:
    """The size from which on several threads are faster than one."""
    start = len(found)
    while start and found[start - 1].ratios["1 thread"] < 1.0:
        start -= 1
    return f"they pay from {size(found[start].row)} on" if start < len(found) else "they pay at none of these sizes"


def parallel_cells(lines: Sequence[Line]) -> list[list[str]]:
    """What Allreduce takes of a step, and how near so many ranks come to as many times the work of one."""
    table = [["task", "rows × width × blocks", "gradients", "step", "Allreduce", "share", "1 rank", "efficiency"]]
    for line in lines:
        step, allreduce, alone = (line.row.found[name] for name in ("tinynorm", "Allreduce", "1 rank"))
        gradients = f"{4e-6 * parameters(*line.row.size[1:]):.3g} MB"
        table.append([
            line.row.task, size(line.row), gradients, time(step), time(allreduce), percent(allreduce / step),
            time(alone), percent(alone / step),
        ])  # fmt: skip
    return table


def network_cells(lines: Sequence[Line]) -> list[list[str]]:
    """The same on paper."""
    several = [f"{ranks} ranks" for ranks in RANKS]
    table = [["network", "beside", "width", *several, *(f"{ranks}, 50 % at" for ranks in several)]]
    for found in on_paper(line.row for line in lines):
        rows = [f"{max(1.0, rows):.0f}" for rows in found.rows]
        unknown = [""] * (len(RANKS) - len(rows))
        shares = [*map(percent, found.shares), *unknown]
        table.append([found.network, found.compute, str(found.width), *shares, *rows, *unknown])
    return table


def percent(value: float) -> str:
    """12.3 %"""
    return f"{100 * value:.3g} %"


def tables(lines: Iterable[Line]) -> list[tuple[str, list[list[str]]]]:
    """Each group's name and cells; and the summary."""
    by_group: dict[str, list[Line]] = {}
    for line in lines:
        by_group.setdefault(line.row.group, []).append(line)
    forms = {"growth": growth_cells, "parallel": parallel_cells}
    found = [(name, forms.get(name, cells)(group)) for name, group in by_group.items()]
    paper = (
        [(f"on paper: share of a step of {ROWS} rows per rank", network_cells(by_group["parallel"]))]
        if "parallel" in by_group
        else []
    )
    beside = [line for name, group in by_group.items() if name not in ALONE for line in group]
    return [*found, *paper, *([("summary", summary(beside))] if beside else [])]


def terminal(table: Sequence[Sequence[str]]) -> str:
    """Columns of equal width, the first two flush left."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join(
        "  ".join(
            f"{c:<{w}}" if i < 2 else f"{c:>{w}}" for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    )


def markdown(table: Sequence[Sequence[str]]) -> str:
    """A table of Markdown."""
    head, *rest = [f"| {' | '.join(row)} |" for row in table]
    return "\n".join([head, f"| --- | --- |{' ---: |' * (len(table[0]) - 2)}", *rest])


def write_markdown(
    file: Path, tables: Sequence[tuple[str, list[list[str]]]], growth: Sequence[str], notes: Sequence[str]
) -> None:
    """The tables and what stands below them, between a file's `MARKS`, which a new file is given."""
    parts = []
    for group, table in tables:
        parts += [
            f"### {group}",
            markdown(table),
            *(["\n".join(f"- {g}" for g in growth)] if group == "growth" else []),
        ]
    text = "\n\n".join([*parts, "\n".join(f"- {note}" for note in notes)]) + "\n"
    before = file.read_text(encoding="utf-8") if file.exists() else "".join(f"{mark}\n" for mark in MARKS)
    head, tail = before.partition(MARKS[0])[0], before.partition(MARKS[1])[2]
    file.write_text(f"{head}{MARKS[0]}\n\n{text}\n{MARKS[1]}{tail}", encoding="utf-8")


def notes(settings: Sequence[dict[str, Any]], quick: bool) -> list[str]:
    """What a reader of the numbers must know."""
    found = list(map(setting, together(settings)))
    loads = [s["load"] for s in settings if s["load"] is not None]
    if loads:
        found.append(f"load average when the processes began: {min(loads)} to {max(loads)}, on {os.cpu_count()} cores")
    own = [s.get("ranks", s["threads"]) for s in settings]  # the load that a run before has left
    if any(s["load"] is not None and s["load"] > cores + 0.5 for s, cores in zip(settings, own, strict=True)):
        found.append("the machine was not quiet: calls that outlast a time slice look longer beside shorter ones")
    return [*found, *(["measured with --quick: no true numbers"] if quick else [])]


def together(settings: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Settings of one machine, in which processes had loaded different libraries, as one."""
    merged: dict[tuple[Any, ...], dict[str, Any]] = {}
    for found in settings:
        same = [found[name] for name in ("processor", "system", "python", "threads")]
        one = merged.setdefault(
            (*same, *found["cores"], *found.get("gpu", []), found["versions"]["numpy"]),
            {**found, "versions": {}, "blas": []},
        )
        one["versions"].update(found["versions"])
        one["blas"] = sorted({*one["blas"], *found["blas"]})
    return list(merged.values())


def setting(found: dict[str, Any]) -> str:
    """One sentence on the machine."""
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    cores = f", pinned to core{'s' * (len(found['cores']) > 1)} {', '.join(map(str, found['cores']))}"
    return (
        f"{found['processor']}, {found['system']}, Python {found['python']}, {versions}; "
        f"BLAS: {'; '.join(found['blas']) or 'unknown, threadpoolctl is not installed'}; "
        f"{found['threads']} thread{'s' * (found['threads'] > 1)}{cores * bool(found['cores'])}"
        f"{''.join(f'; {line}' for line in found.get('gpu', []))}"
    )
