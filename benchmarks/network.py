"""What a network makes of a training step, on paper: from its latency and bandwidth, beside what a step computes."""

from collections.abc import Iterable, Iterator
from math import ceil, log2
from typing import NamedTuple

from .rows import IN_FEATURES, OUT_FEATURES, Row

RANKS = (2, 8, 64)
ROWS = 256  # of each rank
WIDTHS = (64, 256, 1024)  # of those that were measured
FLOPS_OF_H200 = 67e12  # float32 without tensor cores, NVIDIA's data sheet: the most that Allreduce can be measured by


class Network(NamedTuple):
    """What a message takes: seconds until it starts, and bytes per second from then on."""

    name: str
    latency: float
    bandwidth: float


# docs/parallel.md has the sources.
NETWORKS = (
    Network("1 Gb Ethernet", 24e-6, 0.118e9),
    Network("10 Gb Ethernet", 12e-6, 1.18e9),
    Network("100 Gb InfiniBand", 1e-6, 12e9),
)
NVLINK = Network("NVLink 4", 3e-6, 370e9)


class Line(NamedTuple):
    """One network beside one model."""

    network: str
    compute: str  # what the step is computed on
    width: int
    shares: tuple[float, ...]  # of a step of ROWS rows, for each of RANKS, or the first
    rows: tuple[float, ...]  # from how many on Allreduce takes less than half of a step


def allreduce(network: Network, ranks: int, size: float) -> float:
    """Seconds for so many bytes: 2 α ⌈log₂ p⌉ + 2 (p − 1)/p · n/β, a reduce-scatter and an allgather by halves.

    Source: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH" (2005),
    without the time of the additions.
    """
    return 2 * network.latency * ceil(log2(ranks)) + 2 * (ranks - 1) / ranks * size / network.bandwidth


def parameters(width: int, blocks: int) -> int:
    """How many the benchmark's pre-norm MLP has: Linear to 4 width and back in each block, RMSNorms, and both ends."""
    block = 2 * 4 * width * width + 4 * width + width + width
    return IN_FEATURES * width + width + blocks * block + width + width * OUT_FEATURES + OUT_FEATURES


def here(rows: Iterable[Row]) -> Network:
    """The memory that two ranks of this machine share, from the smallest and the largest Allreduce between them."""
    two = sorted((4 * parameters(*row.size[1:]), row.found["Allreduce"]) for row in rows if row.task == task(2))
    (small, quick), (large, slow) = two[0], two[-1]
    bandwidth = (large - small) / (slow - quick) if slow > quick else large / slow
    return Network("shared memory here", max(0.0, quick - small / bandwidth) / 2, bandwidth)


def task(ranks: int) -> str:
    """The name of a row."""
    return f"training step, {ranks} ranks"


def on_paper(rows: Iterable[Row]) -> Iterator[Line]:
    """Every network beside what one rank takes here, and the fast ones beside a GPU at its peak."""
    rows = list(rows)
    two = [row for row in rows if row.task == task(2)]
    measured: dict[tuple[int, int], list[tuple[int, float]]] = {}
    for row in two:
        measured.setdefault(row.size[1:], []).append((row.size[0], row.found["1 rank"]))
    measured = {model: steps for model, steps in measured.items() if model[0] in WIDTHS} or measured
    for network, ranks in ((here(rows), RANKS[:1]), *((network, RANKS) for network in NETWORKS)):
        for (width, blocks), steps in measured.items():
            yield _line(network, ranks, "one core here", width, blocks, *straight(steps))
    for network in (*NETWORKS[2:], NVLINK):
        for width, blocks in measured:
            per_row = 6 * parameters(width, blocks) / FLOPS_OF_H200
            yield _line(network, RANKS, "H200", width, blocks, 0.0, per_row)


def straight(steps: list[tuple[int, float]]) -> tuple[float, float]:
    """Seconds of a step without rows, and for each row: a line through the fewest and the most rows."""
    (few, quick), (many, slow) = min(steps), max(steps)
    per_row = (slow - quick) / (many - few) if many > few and slow > quick else slow / many
    return max(0.0, slow - per_row * many), per_row


def _line(
    network: Network, several: Iterable[int], compute: str, width: int, blocks: int, fixed: float, per_row: float
) -> Line:
    times = [allreduce(network, ranks, 4 * parameters(width, blocks)) for ranks in several]
    shares = tuple(time / (time + fixed + per_row * ROWS) for time in times)
    return Line(network.name, compute, width, shares, tuple(max(0.0, time - fixed) / per_row for time in times))
