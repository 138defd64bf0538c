"""Random settings, written once for hypothesis and for plain Generators: functions of a `Choose`."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from .values import Shape

T = TypeVar("T")

LONGEST = 3  #: axis; most faults show on axes this short, and a Jacobian stays small
MOST_FEATURES = 4  #: on an axis that is never empty, such as the one that a norm normalizes


class Choose:
    """What random settings are drawn from.

    Args:
        integer: ``integer(low, high)``, from low to high, both included. Whoever shrinks failures shrinks it to low.

    >>> first = Choose(lambda low, high: low)
    >>> first.integer(2, 5), first.of("abc")
    (2, 'a')
    """

    def __init__(self, integer: Callable[[int, int], int]) -> None:
        self.integer = integer

    def of(self, options: Sequence[T]) -> T:
        """One of the options; the first is the simplest."""
        return options[self.integer(0, len(options) - 1)]

    @classmethod
    def from_rng(cls, rng: np.random.Generator) -> "Choose":
        """Choices of a NumPy Generator."""
        return cls(lambda low, high: int(rng.integers(low, high + 1)))


def side(choose: Choose, least: int = 0) -> int:
    """The length of an axis."""
    return choose.integer(least, LONGEST)


def features(choose: Choose) -> int:
    """The length of an axis that is never empty."""
    return choose.integer(1, MOST_FEATURES)


def shape(choose: Choose, least_ndim: int = 0, most_ndim: int = 3, least: int = 0) -> Shape:
    """A shape; `least` is the shortest axis."""
    return tuple(side(choose, least) for _ in range(choose.integer(least_ndim, most_ndim)))


def narrowed(choose: Choose, whole: Shape) -> Shape:
    """A shape that broadcasts to `whole`: leading axes dropped, others of length 1."""
    return tuple(choose.of((n, 1)) for n in whole[choose.integer(0, len(whole)) :])


def broadcastable(choose: Choose, count: int, most_ndim: int = 3) -> tuple[Shape, ...]:
    """Shapes that broadcast to each other."""
    whole = shape(choose, most_ndim=most_ndim)
    return tuple(narrowed(choose, whole) for _ in range(count))


def permuted(choose: Choose, items: Sequence[T]) -> list[T]:
    """The items in any order."""
    left = list(items)
    return [left.pop(choose.integer(0, len(left) - 1)) for _ in items]


def from_either_end(choose: Choose, axis: int, ndim: int) -> int:
    """The axis, or its negative name."""
    return choose.of((axis, axis - ndim))


def axes(choose: Choose, ndim: int) -> Any:
    """None, one axis, or several in any order, each counted from either end."""
    if ndim == 0:
        return choose.of((None, ()))
    kind = choose.of(("all", "one", "several"))
    if kind == "all":
        return None
    if kind == "one":
        return choose.integer(-ndim, ndim - 1)
    some = permuted(choose, range(ndim))[: choose.integer(0, ndim)]
    return tuple(from_either_end(choose, axis, ndim) for axis in some)
