"""The rows that `explain` makes, and how they are written."""

from collections import Counter
from collections.abc import Callable, Sequence
from os import sep
from os.path import basename, dirname
from textwrap import wrap
from typing import Any, NamedTuple

from ..formulas.types import Shape

PACKAGE = dirname(dirname(__file__))
WIDTH = 120
MANY = 4  #: inputs; of more, only the first and the last are shown
HEAD = ("operation", "module", "formula", "inputs → result", "‖ȳ‖", "kept", "forward", "backward")
TEXT = 4  #: columns that begin at the left


class Places(NamedTuple):
    """Where a forward and its backward begin, each as "file:line"."""

    forward: str
    backward: str


class Operand(NamedTuple):
    """The shape and dtype of an input or a result."""

    shape: Shape
    dtype: Any


class Operation(NamedTuple):
    """A row of the table; times are in seconds.

    >>> import tinynorm as tn
    >>> row = tn.inspect.explain(tn.exp(tn.tensor([1.0, 2.0], requires_grad=True))).rows[0]
    >>> row.name, row.result.shape, row.cache  # it keeps its result, two float32
    ('exp', (2,), 8)
    """

    name: str
    module: str  #: the dotted name of the module that ran it; "" for the one explained, and for a Tensor's operations
    formula: Places
    kernel: Places | None  #: of the kernel that ran in the formula's place
    inputs: tuple[Operand, ...]  #: of arrays; numbers are none
    result: Operand
    cotangent: float | None  #: √(Σ ȳ²) for the result y; None where nothing flows back
    cache: int  #: bytes that are kept for the backward
    forward: float
    backward: float | None


class Explanation(NamedTuple):
    """The table: `rows` to compute with, and its text to read.

    >>> import tinynorm as tn
    >>> table = tn.inspect.explain(tn.exp(tn.tensor([1.0, 2.0], requires_grad=True)))
    >>> print(table)
    the result is float32 (2,) on 'cpu', its cotangent normally distributed, always the same
    <BLANKLINE>
    operation  formula               inputs → result  ‖ȳ‖  kept  forward  backward
    exp        elementary.py:..., ...  2 → 2            ...  8 B   ...      ...
    total                                                  8 B   ...      ...
    ...
    """

    title: str
    rows: tuple[Operation, ...]

    def __str__(self) -> str:
        dtype = Counter(row.result.dtype for row in self.rows).most_common(1)[0][0]
        cache, forward = sum(row.cache for row in self.rows), sum(row.forward for row in self.rows)
        totals = _size(cache), _time(forward), _time(sum(row.backward or 0.0 for row in self.rows))
        lines = [HEAD, *(_cells(row, dtype) for row in self.rows), ("total", "", "", "", "", *totals)]
        if not any(row.module for row in self.rows):
            lines = [(name, *rest) for name, _, *rest in lines]
        return "\n".join([self.title, "", *_columns(lines), "", *_notes(self.rows, dtype)])

    def __repr__(self) -> str:
        return str(self)


def _cells(row: Operation, dtype: Any) -> tuple[str, ...]:
    """A row in words. Of dtypes only those are named that are not the usual one."""
    inputs = [described(operand, dtype) for operand in row.inputs]
    if len(inputs) > MANY:
        inputs = [inputs[0], f"… {len(inputs) - 2} more …", inputs[-1]]
    return (
        row.name + ("*" if row.kernel else ""),
        row.module,
        _lines(row.formula, basename),
        f"{', '.join(inputs)} → {described(row.result, dtype)}",
        "" if row.cotangent is None else f"{row.cotangent:.3g}",
        _size(row.cache),
        _time(row.forward),
        "" if row.backward is None else _time(row.backward),
    )


def _columns(lines: Sequence[Sequence[str]]) -> list[str]:
    """Cells below each other: text from the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = len(widths) - len(HEAD) + TEXT
    return [
        "  ".join(
            cell.ljust(width) if i < text else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ).rstrip()
        for cells in lines
    ]


def _notes(rows: Sequence[Operation], dtype: Any) -> list[str]:
    """What the columns mean, and which kernels ran."""
    kernels = {row.name: _lines(row.kernel, _from_package) for row in rows if row.kernel}
    notes = [
        f"Arrays are {dtype} where nothing else is said. Formulas: the lines on which forward and backward begin, in "
        "tinynorm/formulas/ or in a file of your own. ‖ȳ‖: √(Σ ȳ²) for the cotangent ȳ of the result. Kept: bytes for "
        "the backward, each array's once, and none that belong to parameters or inputs. Times: the best of a few.",
        *(["* by a kernel: " + "; ".join(f"{name} {lines}" for name, lines in kernels.items())] if kernels else []),
    ]
    return [line for note in notes for line in wrap(note, WIDTH)]


def _lines(places: Places, shown: Callable[[str], str]) -> str:
    """Where a pair begins: the file is named once where both are in it."""
    (file, line), (other, second) = (place.rpartition(":")[::2] for place in places)
    return f"{shown(file)}:{line}, {second}" if file == other else f"{shown(file)}:{line}, {shown(other)}:{second}"


def _from_package(file: str) -> str:
    return file.removeprefix(PACKAGE + sep).replace(sep, "/")


def described(operand: Operand, usual: Any) -> str:
    """32×64, with the dtype where it is not the usual one."""
    shape = "×".join(map(str, operand.shape)) or "()"
    return shape if operand.dtype == usual else f"{operand.dtype} {shape}"


def _size(n: int) -> str:
    """Bytes, to three digits."""
    return f"{n} B" if n < 1e3 else _scaled(n, (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)))


def _time(seconds: float) -> str:
    """Seconds, to three digits."""
    return _scaled(seconds, (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)))


def _scaled(x: float, units: Sequence[tuple[str, float]]) -> str:
    """To three digits, in the largest unit of which there is one, or the last."""
    unit, scale = next((unit for unit in units if x >= unit[1]), units[-1])
    return f"{x / scale:.{max(0, 3 - len(str(int(x / scale))))}f} {unit}"
