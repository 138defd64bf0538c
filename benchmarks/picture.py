"""The picture: how near each norm comes to the machine's copy, and how tinynorm compares with each contestant."""

from collections.abc import Sequence
from typing import Any

from tinynorm.extras import optional

from .report import size
from .rows import Line, target


def draw(file: str, lines: Sequence[Line]) -> None:
    """Left, each row's share of copy bandwidth: at 1, memory sets the pace. Right, ratios: below 1, tinynorm leads."""
    lines = [line for line in lines if line.row.group != "growth" and line.ratios]
    many = len({line.row.threads for line in lines}) > 1
    names = [
        f"{line.row.task} {size(line)}" + f", {line.row.threads} thread{'s' * (line.row.threads > 1)}" * many
        for line in lines
    ]
    height = 1.5 + 0.35 * len(lines)
    figure = optional("matplotlib.figure", "bench").Figure(figsize=(13, height), layout="constrained")
    roof, ratio = figure.subplots(1, 2, sharey=True)
    shares = [1 / line.ratios["copy"] if "copy" in line.ratios else 0.0 for line in lines]
    roof.barh(names, shares, color="C0")
    roof.axvline(1.0, color="black", linewidth=1)
    roof.set(title="share of copy bandwidth", xlim=(0, max(1.05, *shares)))
    roof.set_ylim(len(lines) - 0.4, -0.6)  # the first line at the top
    _ratios(ratio, lines)
    figure.savefig(file, dpi=120)


def _ratios(axes: Any, lines: Sequence[Line]) -> None:
    others = [other for other in dict.fromkeys(o for line in lines for o in line.ratios) if other != "copy"]
    thick = 0.8 / max(1, len(others))
    for i, other in enumerate(others):
        found = [(y, line) for y, line in enumerate(lines) if other in line.ratios]
        at = [y + (i - (len(others) - 1) / 2) * thick for y, _ in found]
        # Bars that begin at 1, on a scale of ratios: to the left, tinynorm takes less.
        axes.barh(at, [line.ratios[other] - 1 for _, line in found], thick, left=1.0, label=other, color=f"C{i + 1}")
        aims = [(y, target(line.row, other)) for y, (_, line) in zip(at, found, strict=True)]
        marks = [(aim, y) for y, aim in aims if aim is not None]
        if marks:
            axes.plot(*zip(*marks, strict=True), "k|", markersize=6)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set(title="tinynorm ÷ other, and aims", xscale="log")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
