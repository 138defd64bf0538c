"""A process among several that measure: ``mpiexec -n 2 python -m mpi4py -m benchmarks.ranks``, started by `processes`.

Rank 0 prints what a `worker` prints. The others keep it company, and sleep while it measures what it takes alone.
"""

import os
from argparse import ArgumentParser
from collections.abc import Callable
from functools import partial
from time import perf_counter, sleep
from typing import Any

from .network import parameters, task
from .rows import IN_FEATURES, OUT_FEATURES, PARALLEL_SIZES
from .setting import describe
from .worker import show

POLL = 1e-3  # seconds between two looks whether rank 0 is ready; MPI's own waiting would keep a core busy


def main() -> None:
    """Take a core, then import what would count them, and measure."""
    parser = ArgumentParser(prog="python -m benchmarks.ranks", description=__doc__)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    from mpi4py.MPI import COMM_WORLD

    cores = pin(COMM_WORLD.Get_rank(), COMM_WORLD.Get_size())
    tell = show if COMM_WORLD.Get_rank() == 0 else lambda line: None
    import numpy  # noqa: F401  and its BLAS, which is described

    tell({"setting": {**describe(["mpi4py", "mpich"]), "threads": 1, "ranks": COMM_WORLD.Get_size(), "cores": cores}})
    for size in PARALLEL_SIZES[:1] if given.quick else PARALLEL_SIZES:
        found = measure(size, COMM_WORLD, given.quick)
        tell({"row": ("parallel", task(COMM_WORLD.Get_size()), size, 1, found)})


def pin(rank: int, size: int) -> list[int]:
    """Stay on one core, shared with others where ranks outnumber cores. The cores of all ranks, if known."""
    if not hasattr(os, "sched_setaffinity"):
        return []
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    return cores[:size]


def measure(size: tuple[int, ...], communicator: Any, quick: bool) -> dict[str, float]:
    """Seconds of a step with all ranks, of one that rank 0 makes alone, and of the Allreduce by itself.

    The least of all turns: a step needs every rank's core at once, so a median would tell how busy the machine is.
    """
    import numpy as np

    import tinynorm as tn

    rows, width, blocks = size
    ranks, rng = tn.parallel.Ranks(communicator), np.random.default_rng(communicator.Get_rank())
    model = tn.nn.PreNormMLP(IN_FEATURES, width, blocks, OUT_FEATURES, rng=0)
    ranks.replicate(model)
    optimizer = tn.optim.Adam(model, lr=1e-3)
    x, labels = rng.standard_normal((rows, IN_FEATURES), dtype=np.float32), rng.integers(0, OUT_FEATURES, rows)

    def step(together: tn.parallel.Ranks) -> None:
        optimizer.zero_grad()
        tn.functional.cross_entropy(model(x), labels, reduction="sum").backward()
        together.average(model.parameters(), rows)
        optimizer.step()

    flat = np.zeros(parameters(width, blocks), np.float32)
    calls = {
        "tinynorm": partial(timed, partial(step, ranks)),
        "1 rank": partial(by_one, communicator, partial(step, tn.parallel.alone())),
        "Allreduce": partial(timed, partial(ranks._allreduce, flat)),
    }
    return {name: min(times) for name, times in turns(calls, communicator, quick).items()}


def timed(call: Callable[[], Any]) -> float:
    """Seconds."""
    start = perf_counter()
    call()
    return perf_counter() - start


def by_one(communicator: Any, call: Callable[[], Any]) -> float:
    """Seconds on rank 0, while the others sleep."""
    seconds = timed(call) if communicator.Get_rank() == 0 else 0.0
    request = communicator.Ibarrier()
    while not request.Test():
        sleep(POLL)
    return seconds


def turns(
    calls: dict[str, Callable[[], float]], communicator: Any, quick: bool, seconds: float = 4.0
) -> dict[str, list[float]]:
    """Samples of calls that take turns, as many of each on every rank."""
    once = 0.0
    for _ in range(1 if quick else 3):  # to warm up
        once = timed(lambda: [call() for call in calls.values()])
    wanted = communicator.bcast(1 if quick else max(7, min(200, int(seconds / once))))
    found: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(wanted):
        for name in sorted(calls, reverse=turn % 2 > 0):
            communicator.Barrier()
            found[name].append(calls[name]())
    return found


if __name__ == "__main__":
    main()
