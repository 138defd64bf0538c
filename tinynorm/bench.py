"""``python -m tinynorm bench``: RMSNorm beside LayerNorm and a copy of the same memory, on this machine."""

import gc
import json
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator, Mapping
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from . import backend, functional
from .formulas.types import Array
from .graph import no_grad
from .kernels.threads import get_num_threads
from .tensor import Tensor, tensor

DESCRIPTION = """\
What RMSNorm saves over LayerNorm, on your own machine. Forward and forward + backward, float32, in microseconds: the
medians of contestants that take turns. A copy of as much memory shows what no norm can be faster than: a forward
reads one array and writes one, a backward reads two and writes one. On a GPU the same follows, where CuPy finds one.

Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019), report 7 to 64 % less time, for whole models.
"""

JSON = """\
--json prints one object: "tinynorm" and "numpy" (versions), "threads", "gpu" (null, or why there is none), and "rows",
a list of objects with "device", "shape", "pass", "copy", "rms_norm", "layer_norm" (seconds) and "less", the share of
LayerNorm's time that RMSNorm saves, which is negative where it takes longer.
"""

SIZES = ((8, 64), (128, 256), (512, 1024), (4096, 1024), (16384, 768))
SAMPLE = 5e-3  # seconds; what takes less is repeated within one sample, as in a loop, where its code is in the caches


class Measured(NamedTuple):
    """A row of the table: medians, in seconds."""

    device: str
    shape: tuple[int, int]
    step: str
    copy: float
    rms_norm: float
    layer_norm: float

    @property
    def less(self) -> float:
        """The share of LayerNorm's time that RMSNorm saves."""
        return 1.0 - self.rms_norm / self.layer_norm

    def json(self) -> dict[str, Any]:
        """The row as plain objects."""
        found = self._asdict()
        return {"pass" if name == "step" else name: value for name, value in found.items()} | {"less": self.less}


def alternate(
    calls: Mapping[str, Callable[[], object]],
    seconds: float = 1.0,
    least: int = 5,
    finish: Callable[[], object] = lambda: None,
) -> dict[str, float]:
    """The median time of each call, in seconds. They take turns, so that whatever slows the machine slows them all.

    Args:
        calls: what is measured, by name. Each is called twice before.
        seconds: how long to go on, once there are `least` samples of each.
        least: the number of samples that there must be.
        finish: what waits, at the end of a sample, for work that a call only began, as on a GPU.

    >>> found = alternate({"nothing": lambda: None, "something": lambda: sum(range(10_000))}, seconds=0.0)
    >>> found["nothing"] < found["something"]
    True
    """
    repeats = {name: _repeats(call, finish) for name, call in calls.items()}
    names, samples = list(calls), {name: list[float]() for name in calls}
    collecting, end = gc.isenabled(), perf_counter() + seconds
    gc.disable()
    try:
        while min(map(len, samples.values())) < least or perf_counter() < end:
            for name in names:
                samples[name].append(_sample(calls[name], repeats[name], finish))
            names.append(names.pop(0))  # who begins changes: else a rhythm of the machine may always meet the same one
    finally:
        if collecting:
            gc.enable()
    return {name: median(found) for name, found in samples.items()}


def _sample(call: Callable[[], object], repeats: int, finish: Callable[[], object]) -> float:
    start = perf_counter()
    for _ in range(repeats):
        call()
    finish()
    return (perf_counter() - start) / repeats


def _repeats(call: Callable[[], object], finish: Callable[[], object]) -> int:
    _sample(call, 1, finish)
    return max(1, int(SAMPLE / max(_sample(call, 1, finish), 1e-9)))


def norm_calls(
    norm: Callable[..., Tensor], x: Array, parameters: tuple[Array, ...], dy: Array, device: str = backend.CPU
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """A call that normalizes x, and one that also goes back, with the gradients as result."""
    shape = x.shape[-1]
    leaves = [tensor(a, device=device, requires_grad=True) for a in (x, *parameters)]
    cotangent = tensor(dy, device=device)

    def forward() -> Any:
        with no_grad():
            return norm(leaves[0], shape, *leaves[1:])

    def both() -> Any:
        for leaf in leaves:
            leaf.grad = None
        norm(leaves[0], shape, *leaves[1:]).backward(cotangent)
        return [leaf.grad for leaf in leaves]

    return forward, both


def measure(shape: tuple[int, int], device: str, seconds: float) -> Iterator[Measured]:
    """The two rows of one shape."""
    rng = np.random.default_rng(0)
    x, dy = (rng.standard_normal(shape, dtype=np.float32) for _ in range(2))
    weight, bias = (rng.standard_normal(shape[1], dtype=np.float32) for _ in range(2))
    source = backend.to_device(x, device)
    xp = backend.namespace(source)
    target = xp.empty_like(source)
    finish = (lambda: None) if device == backend.CPU else xp.cuda.Device().synchronize
    rms = norm_calls(functional.rms_norm, x, (weight,), dy, device)
    layer = norm_calls(functional.layer_norm, x, (weight, bias), dy, device)
    for i, (step, copies) in enumerate((("forward", 1.0), ("forward + backward", 2.5))):
        calls = {"copy": lambda: xp.copyto(target, source), "rms": rms[i], "layer": layer[i]}
        found = alternate(calls, seconds, finish=finish)
        yield Measured(device, shape, step, copies * found["copy"], found["rms"], found["layer"])


def add_to(commands: Any) -> None:
    """Add the command to those of ``python -m tinynorm``."""
    parser: ArgumentParser = commands.add_parser(
        "bench",
        help="what RMSNorm saves over LayerNorm on this machine",
        description=DESCRIPTION,
        epilog=JSON,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--quick", action="store_true", help="the smallest shape alone, measured for a moment")
    parser.set_defaults(run=run)


def run(arguments: Namespace, version: str) -> int:
    """Run the command; the exit status."""
    why = backend.why_no_device()
    devices = [backend.CPU] if why else [backend.CPU, "cuda"]
    sizes, seconds = (SIZES[:1], 0.0) if arguments.quick else (SIZES, 0.7)
    rows = []
    if not arguments.json:
        print(heading())
    for device in devices:
        for shape in sizes:
            for row in measure(shape, device, seconds):
                rows.append(row)
                if not arguments.json:
                    print(line(row), flush=True)
    if arguments.json:
        head = {"tinynorm": version, "numpy": np.__version__, "threads": get_num_threads(), "gpu": why}
        print(json.dumps({**head, "rows": [row.json() for row in rows]}, indent=2, allow_nan=False))
    else:
        gpu = f"; no GPU: {why}" if why else ""
        print(f"\nMedians in µs. NumPy {np.__version__}; threads for large arrays: {get_num_threads()}{gpu}")
    return 0


def heading() -> str:
    """The line above the table."""
    return f"{'device':8}{'shape':14}{'pass':20}{'copy':>10}{'RMSNorm':>10}{'LayerNorm':>11}{'saved':>8}"


def line(row: Measured) -> str:
    """A row of the table."""
    micro = [f"{1e6 * t:.1f}" for t in (row.copy, row.rms_norm, row.layer_norm)]
    shape = f"{row.shape[0]} × {row.shape[1]}"
    return f"{row.device:8}{shape:14}{row.step:20}{micro[0]:>10}{micro[1]:>10}{micro[2]:>11}{100 * row.less:>6.0f} %"
