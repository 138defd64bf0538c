"""The picture: how near each norm comes to the machine's copy, and how tinynorm compares with each contestant."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from tinynorm.extras import optional

from .report import compared, size
from .rows import Line, target

AIM = "aim"  # beside the copy, and beside the contestant that is shown as bars
SIGNS = "oD^vsP*X"  # for the contestants that are not shown as bars
TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)


def endings() -> list[str]:
    """The endings of files that can be drawn."""
    canvas = optional("matplotlib.figure", "bench").Figure().canvas
    return [f".{kind}" for kind in canvas.get_supported_filetypes()]


def draw(file: str, lines: Sequence[Line]) -> None:
    """Left, each row's share of copy bandwidth: at 1, memory sets the pace. Right, ratios: below 1, tinynorm leads."""
    figure = optional("matplotlib.figure", "bench").Figure(figsize=(14, 2.0 + 0.27 * len(lines)), layout="constrained")
    roof, ratio = figure.subplots(1, 2, sharey=True, width_ratios=(2, 3))
    others = [other for other in compared(lines) if other != "copy"]
    first = "torch" if "torch" in others else others[-1]  # which is shown as bars
    _roof(roof, lines, first)
    _ratios(ratio, lines, [first, *(other for other in others if other != first)])
    for axes in (roof, ratio):
        axes.axvline(1.0, color="black", linewidth=1)
        axes.grid(axis="x", color="0.9")
        axes.set_axisbelow(True)
        for y, (before, after) in enumerate(pairwise(lines)):
            if before.row.group != after.row.group:
                axes.axhline(y + 0.5, color="0.7", linewidth=0.8)
    many = len({line.row.threads for line in lines}) > 1
    roof.set_yticks(range(len(lines)), [_name(line, many) for line in lines])
    roof.set_ylim(len(lines) - 0.4, -0.6)  # the first line at the top
    figure.savefig(file, dpi=110)


def _name(line: Line, many: bool) -> str:
    threads = f", {line.row.threads} thread{'s' * (line.row.threads > 1)}" if many else ""
    return f"{line.row.task} {size(line.row)}".rstrip() + threads


def _roof(axes: Any, lines: Sequence[Line], first: str) -> None:
    found = [(y, line.ratios) for y, line in enumerate(lines) if "copy" in line.ratios]
    shares = [1 / ratios["copy"] for _, ratios in found]
    axes.barh([y for y, _ in found], shares, 0.7, color="tab:blue", label="tinynorm")
    other = [(ratios[first] / ratios["copy"], y) for y, ratios in found if first in ratios]
    if other:
        axes.plot(*zip(*other, strict=True), "ok", markersize=4, label=first)
    aims = [(y, target(line.row, "copy")) for y, line in enumerate(lines)]
    _marks(axes, [(1 / aim, y) for y, aim in aims if aim is not None])
    axes.set(title="share of copy bandwidth", xlim=(0, max([1.05, *shares])))
    if found:
        _legend(axes, ["tinynorm", first, AIM], loc="lower right")


def _ratios(axes: Any, lines: Sequence[Line], others: Sequence[str]) -> None:
    """Bars begin at 1, on a scale of ratios: to the left, tinynorm takes less."""
    for i, other in enumerate(others):
        at = [(line.ratios[other], y) for y, line in enumerate(lines) if other in line.ratios]
        if i == 0:
            axes.barh([y for _, y in at], [r - 1 for r, _ in at], 0.7, left=1.0, label=other, color="orange", alpha=0.5)
        else:
            sign = SIGNS[(i - 1) % len(SIGNS)]
            axes.plot(*zip(*at, strict=True), sign, label=other, color=f"C{i - 1}", markersize=5, alpha=0.8)
    aims = [(target(line.row, others[0]), y) for y, line in enumerate(lines) if others[0] in line.ratios]
    _marks(axes, [(aim, y) for aim, y in aims if aim is not None])
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.set_xticks([t for t in TICKS if low <= t <= high], [f"{t:g}" for t in TICKS if low <= t <= high])
    axes.minorticks_off()
    axes.set_title("tinynorm ÷ other: left of 1, tinynorm takes less")
    _legend(axes, [others[0], AIM, *others[1:]], loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _marks(axes: Any, aims: Sequence[tuple[float, int]]) -> None:
    if aims:
        axes.plot(*zip(*aims, strict=True), "|", color="red", markersize=13, markeredgewidth=2, label=AIM)


def _legend(axes: Any, order: Sequence[str], **place: Any) -> None:
    """What is there, in this order."""
    found = {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    names = [name for name in order if name in found]
    axes.legend([found[name] for name in names], names, **place)
