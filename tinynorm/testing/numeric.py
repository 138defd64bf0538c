"""Numeric derivatives of functions of NumPy arrays."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..formulas.types import Array

SQRT3 = float(np.sqrt(3.0))
EPS = float(np.finfo(np.float64).eps)
STEP = float(np.cbrt(EPS))  # balances the h² of the truncation against the eps/h of the rounding


def central_difference(f: Callable[[Any], Any], x: Array, dy: Array) -> Array:
    """∂(Σ dy·f(x))/∂x by (f(x + h) − f(x − h)) / 2h in float64, with h scaled to |x|; off by about 1e-10 of the values.

    >>> import numpy as np
    >>> x = np.array([1.0, 2.0])
    >>> central_difference(lambda x: x**3, x, np.array([1.0, 10.0])).round(6)
    array([  3., 120.])
    """
    x = np.array(x, dtype=np.float64)
    gradient = np.empty_like(x)
    for i in np.ndindex(x.shape):
        h = STEP * max(1.0, abs(x[i]))
        above, below = x.copy(), x.copy()
        above[i] += h
        below[i] -= h
        # above − below instead of 2h: the step that was really taken, after rounding
        gradient[i] = np.sum(dy * (np.asarray(f(above)) - np.asarray(f(below)))) / (above[i] - below[i])
    return gradient


def complex_step(f: Callable[[Any], Any], x: Array, dy: Array) -> Array:
    """∂(Σ dy·f(x))/∂x by Im f(x + ih) / h, for analytic f.

    Nothing is subtracted, so h may be tiny and no digit is lost.

    Source: Squire and Trapp, "Using Complex Variables to Estimate Derivatives of Real Functions" (1998).

    >>> import numpy as np
    >>> complex_step(lambda x: x**3, np.array([1.0, 2.0]), np.array([1.0, 10.0]))
    array([  3., 120.])
    """
    h = 1e-30
    x = np.asarray(x, dtype=np.complex128)
    gradient = np.empty(x.shape)
    for i in np.ndindex(x.shape):
        stepped = x.copy()
        stepped[i] += 1j * h
        gradient[i] = np.sum(dy * np.imag(f(stepped))) / h
    return gradient


class Slope(NamedTuple):
    """What differences say of a derivative, for each component of f."""

    value: Array
    error: Array  #: how far off the value may be, as far as one can tell
    kinked: Array  #: whether the slopes on the two sides stay apart however small the step

    def or_better(self, other: "Slope") -> "Slope":
        """For each component the one of two that says more.

        That is the smaller relative error; where neither can tell its value from 0, the smaller error.
        """
        better = other._score() < self._score()
        return Slope(*(np.where(better, b, a) for a, b in zip(self, other, strict=True)))

    def _score(self) -> Array:
        """Below 1 for what is known to a few digits."""
        size = np.abs(self.value)
        return np.where(self.error < 1e-3 * size, self.error / size, 1.0 + self.error)


def slope(f: Callable[[float], Array], at_zero: Array, h: float, levels: int, sure: float) -> Slope:
    """f′(0) of a vector-valued f of one number, by central differences with ever smaller steps, extrapolated to step 0.

    A central difference is D(h) = f′ + c₂h² + c₄h⁴ + …, so Richardson's T = D(h/√3) + (D(h/√3) − D(h)) / 2 is off
    by terms in h⁴ only, and so on with each level; the entries of Neville's table that T came from say by how much. To
    that comes, at least, what rounding does to f. The best entry is kept, component by component.

    Args:
        f: takes the step.
        at_zero: f(0).
        h: the first step. The next are h/√3, h/3, …: with a rational ratio, a function that is rounded to a grid gives
            the same wrong quotient twice more often.
        levels: at most so many; fewer where the error, relative to the value, is below `sure` everywhere.
        sure: see `levels`.

    Source: Ridders, "Accurate Computation of F′(x) and F′(x)F″(x)" (1982).
    """
    best, error, taken_at = (np.full(at_zero.shape, start) for start in (np.nan, np.inf, h))
    kinked = bend = np.zeros(at_zero.shape, dtype=bool)
    older: list[Array] = []
    unrest: list[Array] = []
    for level in range(levels):
        above, below = f(h), f(-h)
        row = [(above - below) / (2.0 * h)]
        noise = _rounding(above, below) / h
        least = np.full(at_zero.shape, np.inf)
        for power, entry in enumerate(older, start=1):
            row.append(row[-1] + (row[-1] - entry) / (3.0**power - 1.0))
            spread = np.maximum(np.abs(row[-1] - row[-2]), np.abs(row[-1] - entry)) + noise
            least = np.fmin(least, spread)
            better = spread < error  # which a nan is not
            best, error, taken_at = (
                np.where(better, *pair) for pair in ((row[-1], best), (spread, error), (h, taken_at))
            )
        last, bend = bend, np.abs((above - at_zero) - (at_zero - below)) / h
        if level:
            unrest.append(least * h)
            # Where f is smooth the bend shrinks like h, at a jump it grows like 1/h.
            stays = (0.8 * last < bend) & (bend < 1.25 * last)
            kinked = stays & (bend > 1e-3 * np.abs(row[0])) & (bend > 10.0 * error)
            if np.all(error <= np.maximum(sure * np.abs(best), 4.0 * noise)):
                break
        older, h = row, h / SQRT3
    # Two entries may agree by chance. What the last steps disagree by tells how noisy f is.
    return Slope(best, np.fmax(error, np.max(unrest[-2:], axis=0) / taken_at), kinked)


def _rounding(above: Array, below: Array) -> Array:
    """What the last digits of f may do to a difference; nothing where f does not depend on the step."""
    size = 4.0 * EPS * np.maximum(np.abs(above), np.abs(below))
    moved = above != below
    return np.where(moved, size, 0.0) if np.any(moved) else size
