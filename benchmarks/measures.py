"""What a process measures: for each group, its rows one by one, as tuples of `rows.Row`'s fields."""

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

import tinynorm as tn
from tinynorm import backend
from tinynorm.bench import alternate
from tinynorm.kernels import threads as team

from .rows import (
    BOTH,
    COPIES,
    FORWARD,
    GPU_NORM_SIZES,
    GPU_STEP_SIZES,
    LINEAR_SIZES,
    MEMORY_SIZE,
    NORM_SIZES,
    STEP_SIZES,
)
from .setting import peak_memory

Call = Callable[[], Any]


class Place(NamedTuple):
    """Where norms and training steps are measured: at which sizes, beside which copy, and what waits for the end."""

    norm_sizes: Sequence[tuple[int, int]]
    step_sizes: Sequence[tuple[int, int, int]]
    copier: Callable[[Any, int], Call]
    finish: Call


def timed(calls: dict[str, Call], quick: bool, seconds: float = 2.0, finish: Call = lambda: None) -> dict[str, float]:
    """Medians of calls that take turns."""
    return alternate(calls, 0.0 if quick else seconds, least=1 if quick else 7, finish=finish)


def agree(task: str, calls: dict[str, Call]) -> None:
    """All contestants must find the same, or what is measured is not the same work."""

    def values(call: Call) -> list[Any]:
        found = call()
        return [np.asarray(plain(v)) for v in (found if isinstance(found, list | tuple) else [found])]

    def plain(value: Any) -> Any:
        if type(value).__module__.startswith("mygrad"):
            return value.data
        if hasattr(value, "detach"):  # tinynorm's and PyTorch's
            value = value.detach().to("cpu")
        return backend.to_device(value, backend.CPU)

    (first, call), *others = calls.items()
    expected = values(call)
    for name, other in others:
        for want, got in zip(expected, values(other), strict=True):
            if want.ndim and want.dtype != got.dtype:
                sys.exit(f"benchmarks: {name} computes {task} in {got.dtype}, {first} in {want.dtype}")
            near = want.shape == got.shape and np.abs(want - got).max() <= 1e-3 * max(1e-3, np.abs(want).max())
            if not near:  # or nan
                sys.exit(f"benchmarks: {first} and {name} do not agree on {task}")


def normal(seed: int, *shapes: tuple[int, ...]) -> list[Any]:
    """Arrays of normal float32 numbers."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]


def copier(array: Any, threads: int) -> Call:
    """A copy of an array, a share by each thread: the fastest that memory can be read and written."""
    target = np.zeros_like(array)
    if threads == 1 or array.size < 1 << 19:
        return partial(np.copyto, target, array)
    pool = ThreadPoolExecutor(threads)
    shares = list(zip(np.array_split(target, threads), np.array_split(array, threads), strict=True))
    return lambda: list(pool.map(lambda share: np.copyto(*share), shares))


HOST = Place(NORM_SIZES, STEP_SIZES, copier, lambda: None)


def norms(made: Sequence[Any], threads: int, quick: bool, place: Place = HOST) -> Iterator[tuple[Any, ...]]:
    """RMSNorm and LayerNorm, forward without a tape and forward + backward."""
    for kind, title in (("rms_norm", "RMSNorm"), ("layer_norm", "LayerNorm")):
        for size in place.norm_sizes[:1] if quick else place.norm_sizes:
            x, dy, weight, bias = normal(0, size, size, size[1:], size[1:])
            parameters = (weight,) if kind == "rms_norm" else (weight, bias)
            pairs = {c.name: c.norm(kind, x, parameters, dy) for c in made if hasattr(c, "norm")}
            for i, step in enumerate((FORWARD, BOTH)):
                calls = {name: pair[i] for name, pair in pairs.items()}
                agree(f"{title} {step}", calls)
                found = timed({**calls, "copy": place.copier(x, threads)}, quick, finish=place.finish)
                found["copy"] *= COPIES[step]
                yield "norms", f"{title} {step}", size, threads, found


def linear(made: Sequence[Any], threads: int, quick: bool) -> Iterator[tuple[Any, ...]]:
    """Linear, forward + backward."""
    for size in LINEAR_SIZES[:1] if quick else LINEAR_SIZES:
        rows, wide, out = size
        x, dy, weight, bias = normal(0, (rows, wide), (rows, out), (out, wide), (out,))
        calls = {c.name: c.linear(x, (weight, bias), dy) for c in made if hasattr(c, "linear")}
        agree("Linear", calls)
        yield "linear", f"Linear {BOTH}", size, threads, timed(calls, quick, 4.0)


def step_calls(made: Sequence[Any], size: tuple[int, ...]) -> dict[str, Call]:
    """A training step of the same model on the same batch, for each contestant that can."""
    batch, width, blocks = size
    x, labels = normal(0, (batch, 64))[0], np.random.default_rng(1).integers(0, 10, batch)
    make = partial(tn.nn.PreNormMLP, 64, width, blocks, 10, rng=0)
    return {c.name: c.step(make, x, labels) for c in made if hasattr(c, "step")}


def step(made: Sequence[Any], threads: int, quick: bool, place: Place = HOST) -> Iterator[tuple[Any, ...]]:
    """A whole training step with Adam."""
    for size in place.step_sizes[:1] if quick else place.step_sizes:
        calls = step_calls(made, size)
        agree("the loss of a training step", calls)
        yield "step", "training step, Adam", size, threads, timed(calls, quick, 5.0, place.finish)


def gpu(made: Sequence[Any], threads: int, quick: bool) -> Iterator[tuple[Any, ...]]:
    """Norms and a training step on a GPU. A sample ends when all is done that was asked of it."""
    cupy = import_module("cupy")

    def copier(x: Any, threads: int) -> Call:
        source = cupy.asarray(x)
        return partial(cupy.copyto, cupy.empty_like(source), source)

    sizes = (NORM_SIZES, STEP_SIZES) if quick else (GPU_NORM_SIZES, GPU_STEP_SIZES)
    place = Place(*sizes, copier, cupy.cuda.Device().synchronize)
    for measure in (norms, step):
        for row in measure(made, threads, quick, place):
            yield "gpu", *row[1:]


def overhead(made: Sequence[Any], threads: int, quick: bool) -> Iterator[tuple[Any, ...]]:
    """What a graph costs where arithmetic costs nothing."""
    arrays = normal(0, (8,), (8,), (8,))
    calls = {c.name: c.overhead(arrays) for c in made if hasattr(c, "overhead")}
    agree("(a * b + c).sum()", calls)
    yield "overhead", "(a * b + c).sum().backward()", (8,), threads, timed(calls, quick)


def growth(made: Sequence[Any], threads: int, quick: bool) -> Iterator[tuple[Any, ...]]:
    """tinynorm alone, over sizes that double. All sizes of a kind take turns, so that their ratios can be trusted."""
    own, some = made[:1], 2 if quick else 8
    shapes = {"rows": [(64 << k, 1024) for k in range(some)], "width": [(1024, 64 << k) for k in range(some)]}
    for what, sizes in shapes.items():
        yield from doubling(f"RMSNorm over {what}", {size: rms_norm(own[0], size) for size in sizes}, quick)
    some = 2 if quick else 5
    models = {
        "depth": [(128, 128, 1 << k) for k in range(some)],
        "batch": [(32 << k, 128, 4) for k in range(some)],
    }
    for what, steps in models.items():
        calls = {size: step_calls(own, size)["tinynorm"] for size in steps}
        yield from doubling(f"training step over {what}", calls, quick)


def doubling(task: str, calls: dict[Any, Call], quick: bool) -> Iterator[tuple[Any, ...]]:
    """A row for each size."""
    found = timed({str(size): call for size, call in calls.items()}, quick, 5.0)
    for size in calls:
        yield "growth", task, size, 1, {"tinynorm": found[str(size)]}


def rms_norm(contestant: Any, size: tuple[int, int]) -> Call:
    """RMSNorm, forward + backward."""
    x, dy, weight = normal(0, size, size, size[1:])
    both: Call = contestant.norm("rms_norm", x, (weight,), dy)[1]
    return both


def pays(made: Sequence[Any], threads: int, quick: bool) -> Iterator[tuple[Any, ...]]:
    """The same work by one thread and by several, below the size from which tinynorm uses them too."""
    usual = team.ENOUGH
    for size in [(64 << k, 1024) for k in range(2 if quick else 8)]:
        both = rms_norm(made[0], size)
        calls = {"tinynorm": with_setting(team, 0, both), "1 thread": with_setting(team, size[0] * size[1] + 1, both)}
        yield "growth", f"RMSNorm, {threads} threads", size, threads, timed(calls, quick, 1.0)
    team.ENOUGH = usual


def with_setting(team: Any, enough: int, call: Call) -> Call:
    """The call, where so many elements are enough for a second thread."""

    def run() -> Any:
        team.ENOUGH = enough
        return call()

    return run


def memory(made: Sequence[Any], threads: int, quick: bool) -> Iterator[tuple[Any, ...]]:
    """How many bytes three training steps take at their peak, above what the process has after its imports."""
    before = peak_memory()
    size = STEP_SIZES[0] if quick else MEMORY_SIZE
    ((name, call),) = step_calls(made, size).items()
    for _ in range(3):
        call()
    yield "memory", "peak of a training step", size, threads, {name: peak_memory() - before}


GROUPS: dict[str, Callable[..., Iterator[tuple[Any, ...]]]] = {
    "norms": norms, "linear": linear, "step": step, "overhead": overhead, "memory": memory,
    "growth": growth, "pays": pays, "gpu": gpu,
}  # fmt: skip
