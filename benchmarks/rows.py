"""What is measured, at which sizes, and which ratios are aimed at."""

from collections.abc import Iterable
from typing import NamedTuple

NORM_SIZES = ((8, 64), (128, 256), (512, 1024), (4096, 1024), (4096, 4096), (16384, 768), (65536, 64))
LINEAR_SIZES = ((128, 256, 256), (4096, 768, 3072))  # rows, in, out
STEP_SIZES = ((32, 64, 2), (128, 128, 4), (512, 512, 6))  # batch, width, blocks
MEMORY_SIZE = (512, 512, 6)
GPU_NORM_SIZES = ((4096, 1024), (8192, 4096), (16384, 768), (65536, 64))
GPU_STEP_SIZES = ((128, 128, 4), (4096, 1024, 6))
IN_FEATURES, OUT_FEATURES = 64, 10  # of every model, as for the digits
PARALLEL_SIZES = tuple((rows, 32 << k, 3) for k in range(6) for rows in (32, 256))  # rows of a rank, width, blocks

FORWARD, BOTH = "forward", "forward + backward"
GROUPS = ("norms", "linear", "step", "overhead", "memory", "import", "growth", "parallel", "gpu")
ALONE = ("growth", "parallel")  # tinynorm beside itself
APART = (*ALONE, "gpu")  # measured only where they are named

# A copy reads an array and writes one, as a forward must. A backward reads two, x and the cotangent, and writes one.
COPIES = {FORWARD: 1.0, BOTH: 2.5}


class Row(NamedTuple):
    """One measurement: medians of contestants that took turns in one process."""

    group: str
    task: str  # "RMSNorm forward"
    size: tuple[int, ...]
    threads: int
    found: dict[str, float]  # contestant: seconds, or bytes; "copy" is the copies that move as many bytes

    @property
    def ratios(self) -> dict[str, float]:
        """tinynorm's share of what each other one takes; below 1, tinynorm is ahead."""
        own = self.found["tinynorm"]
        return {other: own / value for other, value in self.found.items() if other != "tinynorm" and value}


class Line(NamedTuple):
    """A line of the table: a measurement's row, with ratios from the processes of several libraries."""

    row: Row
    ratios: dict[str, float]


def merge(rows: Iterable[Row]) -> list[Line]:
    """Rows that measure the same become one line. A ratio is always one of a single process."""
    lines: dict[tuple[str, str, tuple[int, ...], int], Line] = {}
    for row in rows:
        line = lines.setdefault(row[:4], Line(row, {}))
        for other, ratio in row.ratios.items():
            line.ratios.setdefault(other, ratio)
    return list(lines.values())


def target(row: Row, other: str) -> float | None:
    """The ratio that is aimed at; None where there is no aim."""
    return _beside_frameworks(row, other) if other in FRAMEWORKS else _aim(row, other)


# What frameworks in NumPy took of PyTorch's time, on one thread: where it was found over many sizes, the least of it.
FRAMEWORKS: dict[str, dict[str, float | tuple[float, ...]]] = {
    "mygrad": {"RMSNorm": 0.84, "LayerNorm": 4.0, "step": (0.76, 1.08, 1.23), "overhead": 40 / 56},
    "pydynet": {"step": (0.91, 1.18, 1.32), "overhead": 41 / 56},
    "dezero": {"step": (1.05, 1.71, 2.05), "overhead": 46 / 56},
    "autograd": {"RMSNorm": 1.6, "LayerNorm": 8.0, "step": (1.57, 1.99, 2.22), "overhead": 128 / 56},
}


def _beside_frameworks(row: Row, other: str) -> float | None:
    """To be ahead of them by what they took of PyTorch's time, once what is aimed at beside PyTorch is reached; to be
    ahead at all where that is not known."""
    aim = _aim(row, "torch")
    if aim is None:
        return 1.0 if row.group == "import" else None
    took = FRAMEWORKS[other].get(row.task.partition(" ")[0] if row.group == "norms" else row.group)
    if isinstance(took, tuple):
        took = took[STEP_SIZES.index(row.size)]
    return 1.0 if took is None or row.threads > 1 or row.task.endswith(FORWARD) else round(aim / took, 2)


def _aim(row: Row, other: str) -> float | None:
    if row.group == "gpu":
        return GPU_AIMS.get(other) if row.task.startswith("RMSNorm") and row.size == (8192, 4096) else None
    elements = row.size[0] * row.size[1] if len(row.size) > 1 else 0
    pair = _norm_target(row, other, elements) if row.group == "norms" else _other_target(row, other)
    return None if pair is None else pair[min(row.threads, 2) - 1]


def _norm_target(row: Row, other: str, elements: int) -> tuple[float | None, float | None] | None:
    rms, both = row.task.startswith("RMSNorm"), row.task.endswith(BOTH)
    if other == "copy":
        wide = rms and elements >= 4096 * 1024 and row.size[1] >= 768
        return ((2.6, 2.9) if both else (2.2, 2.4)) if wide else None
    if other != "torch":
        return None
    if rms and both:
        return 0.27, 0.40
    if rms:
        return 0.55 if elements >= 512 * 1024 else None, 0.55 if elements >= 1 << 22 else None
    if not both:
        return None
    alone = 1.0 if elements * 4 >= 48 << 20 else 2.2 if row.size == (65536, 64) else 1.5
    return alone, 2.5


# One pass over memory each way, at what a copy takes; where PyTorch's own backward takes several.
GPU_AIMS = {"copy": 1.2, "torch": 1.0}
_STEP = {
    "torch": ((0.33, 0.33), (0.80, 0.80), (1.05, 1.08)),
    "torch fused": ((0.42, 0.42), (0.95, 0.95), (1.15, 1.15)),
}
_PLAIN: dict[tuple[str, str], tuple[float | None, float | None]] = {
    ("linear", "torch"): (1.05, 1.08),
    ("overhead", "torch"): (0.12, None),
    ("memory", "torch"): (1.0, None),
}
IMPORT_MILLISECONDS = 15.0  # over NumPy's own


def _other_target(row: Row, other: str) -> tuple[float | None, float | None] | None:
    if row.group == "step" and other in _STEP and row.size in STEP_SIZES:
        return _STEP[other][STEP_SIZES.index(row.size)]
    return _PLAIN.get((row.group, other))
