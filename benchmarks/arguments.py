"""The arguments of ``python -m benchmarks``."""

import os
from argparse import ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from tinynorm.backend import why_no_device
from tinynorm.errors import MissingExtraError

from . import picture, report
from .rows import APART, GROUPS

PEERS = ("torch", "jax", "mygrad", "pydynet", "dezero", "autograd")  # by name alone: this process loads none of them

DESCRIPTION = """\
Measure tinynorm beside other libraries: the same work, turn by turn in one process for each library, medians. The
numbers behind ÷ are the share that tinynorm takes of the other's time: below 1, it is ahead. With a bound, as in
0.20 ≤ 0.27, it is what is aimed at. "copy" is the time of a memory copy of as many bytes as the work must read and
write, "formulas" is tinynorm without kernels, "numpy" what one writes first. Beside frameworks in NumPy, the aim is
that beside PyTorch divided by what they took of its time, or 1 where that is not known.

  norms     RMSNorm and LayerNorm, forward (no_grad) and forward + backward
  linear    a linear layer, forward + backward
  step      a training step of a pre-norm MLP with Adam
  overhead  (a * b + c).sum().backward() on 8 elements
  memory    the peak of a training step, without what the import takes
  import    the import, where NumPy's is done and bytecode is written, as it is from the second start on
  growth    tinynorm over rows, width, depth and batch; with --threads 2, from which size on threads pay
  parallel  a training step of 2, 3 and 4 ranks, what of it is Allreduce, and on paper for other networks; see
            docs/parallel.md
  gpu       norms and a training step on a GPU, beside plain CuPy (formulas), a copy there, and PyTorch

The last three are measured only where they are named. The others take about two minutes for each library. After Ctrl-C,
what was measured until then is shown, and written by --json.
"""


def libraries(text: str) -> list[str]:
    """An argparse type: names of peers, with commas."""
    names = list(dict.fromkeys(name for name in text.split(",") if name))
    for name in names:
        if name not in PEERS:
            raise ArgumentTypeError(f"{name!r} is none of {', '.join(PEERS)}")
        if find_spec(name) is None:
            raise ArgumentTypeError(f"{name} is not installed; install all of them with: pip install -e '.[bench]'")
    return names


def writable(text: str) -> str:
    """An argparse type: a file that can be written. To find out after the measurements would be late."""
    path = Path(text)
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ArgumentTypeError(f"{text} cannot be written")
    return text


def document(text: str) -> str:
    """An argparse type: a new file, or one with marks for the tables."""
    path = Path(writable(text))
    if path.exists() and any(mark not in path.read_text(encoding="utf-8") for mark in report.MARKS):
        raise ArgumentTypeError(f"{text} is there and lacks the lines {' and '.join(report.MARKS)} to write between")
    return text


def drawable(text: str) -> str:
    """An argparse type: a file that a picture can be written to."""
    try:
        endings = picture.endings()
    except MissingExtraError as error:
        raise ArgumentTypeError(str(error)) from error
    if Path(text).suffix not in endings:
        raise ArgumentTypeError(f"{text} must end in one of {', '.join(endings)}")
    return writable(text)


def parse(argv: Sequence[str] | None = None) -> Namespace:
    """What the command line says, which is judged before anything is measured."""
    parser = ArgumentParser(
        "python -m benchmarks", description=DESCRIPTION, formatter_class=RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "groups", nargs="*", metavar="group", help=f"what to measure; by default all but {', '.join(APART)}"
    )
    parser.add_argument(
        "--against",
        type=libraries,
        default=["torch"] if find_spec("torch") else [],
        metavar="NAMES",
        help=f"of {','.join(PEERS)}, or '' for none; default: torch, where it is installed",
    )
    parser.add_argument("--threads", type=int, choices=(1, 2), default=1, help="default: 1")
    parser.add_argument("--quick", action="store_true", help="each group once, at its smallest size: no true numbers")
    parser.add_argument("--json", type=writable, metavar="FILE", help="write all medians")
    parser.add_argument(
        "--markdown", type=document, metavar="FILE", help="write the tables; in a file that is there, between its marks"
    )
    parser.add_argument(
        "--picture", type=drawable, metavar="FILE", help="draw shares of copy bandwidth, and ratios; needs matplotlib"
    )
    parser.add_argument(
        "--read", metavar="FILE", nargs="+", help="measure nothing; show what --json wrote before, of the groups named"
    )
    given = parser.parse_args(argv)
    if unknown := [group for group in given.groups if group not in GROUPS]:
        parser.error(f"{unknown[0]!r} is none of {', '.join(GROUPS)}")
    given.groups = list(dict.fromkeys(given.groups))
    if "gpu" in given.groups and not given.read and (why := why_no_device()):
        parser.error(f"gpu: {why}")
    return given
