"""Einsum's small language: "ij,jk->ik"."""

from .errors import ArgumentError, DTypeError, ShapeError
from .formulas.types import Shape

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def parse(subscripts: str, shapes: list[Shape]) -> tuple[list[str], str]:
    """The labels of each operand and of the output, with every ellipsis spelled out in letters of its own.

    >>> parse("...ij,jk", [(5, 2, 3), (3, 4)])
    (['aij', 'jk'], 'aik')
    """
    if not isinstance(subscripts, str):
        raise DTypeError(f"einsum: subscripts must be text such as 'ij,jk->ik', not {type(subscripts).__name__}")
    left, arrow, right = subscripts.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(shapes):
        raise ArgumentError(f"einsum: {subscripts!r} names {len(terms)} operands, but {len(shapes)} were given")
    widths = [_ellipsis_width(subscripts, term, len(shape)) for term, shape in zip(terms, shapes, strict=True)]
    dots = "".join([c for c in LETTERS if c not in subscripts][: max(widths)])
    inputs = [t.replace("...", dots[len(dots) - w :], 1) for t, w in zip(terms, widths, strict=True)]
    if arrow:
        output = right.replace("...", dots, 1)
    else:  # NumPy's rule: the ellipsis, then in alphabetical order every label that comes once
        output = dots + "".join(c for c in sorted(set(left) & set(LETTERS)) if left.count(c) == 1)
    if len(set(output)) < len(output) or not set(output) <= set("".join(inputs)):
        raise ArgumentError(f"einsum: the output of {subscripts!r} must name labels of the operands, each once")
    _check_sizes(subscripts, inputs, shapes)
    return inputs, output


def _ellipsis_width(subscripts: str, term: str, ndim: int) -> int:
    """How many axes the ellipsis of a term stands for; 0 without one."""
    labels = term.replace("...", "", 1)
    width = ndim - len(labels)
    if width < 0 or (labels == term and width > 0) or not set(labels) <= set(LETTERS):
        raise ArgumentError(f"einsum: {term!r} in {subscripts!r} does not label an operand with {ndim} axes")
    return width


def _check_sizes(subscripts: str, inputs: list[str], shapes: list[Shape]) -> None:
    """One size for each label; length 1 broadcasts, but only between operands."""
    sizes: dict[str, set[int]] = {}
    for labels, shape in zip(inputs, shapes, strict=True):
        own: dict[str, set[int]] = {}
        for label, n in zip(labels, shape, strict=True):
            own.setdefault(label, set()).add(n)
            sizes.setdefault(label, set()).add(n)
        if any(len(found) > 1 for found in own.values()) or any(len(found - {1}) > 1 for found in sizes.values()):
            found = " and ".join(str(shape) for shape in shapes)
            raise ShapeError(f"einsum: {subscripts!r} gives one label to axes of different sizes in shapes {found}")


def repetition(labels: str) -> int | None:
    """The place of the first label that has come before; None without one.

    >>> repetition("iji")
    2
    """
    return next((i for i, label in enumerate(labels) if label in labels[:i]), None)


def unused(inputs: list[str]) -> str:
    """A label that no operand has."""
    for label in LETTERS:
        if not any(label in labels for labels in inputs):
            return label
    raise ArgumentError(f"einsum: needs more than the {len(LETTERS)} labels there are; split it into several products")
