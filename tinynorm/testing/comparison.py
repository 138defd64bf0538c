"""The comparison of two derivatives: when they count as equal, and when a numeric one is worth comparing with.

They agree when |analytic − numeric| ≤ 5 · error + rtol · |numeric| + atol · terms, where `error` is the numeric one's
own estimate, and `terms` is what adds up to it: Σ |cotangent · ∂result/∂x|.

That says nothing unless the error is small. It must be at most a five-hundredth of the derivative; or 10⁻⁷ of its
terms, where these cancel; or 10⁻⁸ of the largest derivative of the same cotangent; or 10⁻¹⁰ of 1. So a gradient that is
1 % wrong is seen if it is more than 10⁻⁵ of its terms and 10⁻⁶ of the largest, and mostly also when it is less.
"""

import numpy as np

from ..formulas.types import Array
from .numeric import Slope
from .subject import Direction, Points

RTOL, ATOL = 1e-5, 1e-9
EXACT = 1e-5  #: a complex step, which has no error to speak of, is held to this fraction of them
SAFETY = 5.0  #: times the estimated error
KNOWN = 2e-3  #: an error this small, relative to the value, lets a fault of 1 % be seen
CANCELLED = 1e-7  #: what is left of a gradient when its terms cancel need only be known to this fraction of them
FAINT = 1e-8  #: so much of the largest derivative is enough to know of any other
ABSENT = 1e-10  #: so much of it is 0; also so much of 1, or of the results
TINY = float(np.finfo(np.float64).tiny)  #: smaller gradients lose their digits
ROUNDING = 1e-14  #: of the analytic gradients themselves, relative to the terms that they are made of


class Table:
    """What is compared: a row for each cotangent, a column for each direction."""

    def __init__(self, rows: Array, results: Array, gradients: Points, directions: list[Direction]) -> None:
        shape = len(rows), len(directions)
        self.rows, self.directions = rows, directions
        self.analytic = np.array([d.of(gradients) for d in directions]).reshape(shape[::-1]).T
        self.numeric, self.error, self.terms = (np.full(shape, np.nan) for _ in range(3))
        self.kinked = np.zeros(len(directions), dtype=bool)
        self.unit = np.array([np.abs(d.weights).sum() for d in directions])  # of a gradient of 1
        self.share = np.array([1.0 / d.indices.size for d in directions])
        blocks = np.array([d.size_of(gradients) for d in directions]).reshape(shape[::-1]).T
        self.added = np.where(self.share < 1.0, blocks, 0.0)  # what adds up in a block
        self.results = (np.abs(rows) @ np.abs(results))[:, None]

    def fill(self, column: int, found: Slope) -> None:
        """Enter what was found of the results' derivatives along one direction, weighed by the cotangents."""
        self.numeric[:, column] = weigh(self.rows, found.value)
        self.error[:, column] = weigh(np.abs(self.rows), found.error)
        self.terms[:, column] = np.fmax(weigh(np.abs(self.rows), np.abs(found.value)), self.added[:, column])
        self.kinked[column] = found.kinked.any()

    def largest(self) -> Array:
        """For each row, the largest derivative; that which a gradient of 1 gives, if all are 0: (rows, 1)."""
        largest = np.max(self.terms, axis=1, keepdims=True, initial=0.0, where=self.present())
        of_one = np.max(self.unit, initial=TINY)
        return np.where(largest > TINY * of_one, largest, of_one)

    def present(self) -> Array:
        """Where the numeric derivative is not 0 within its error."""
        return np.abs(self.numeric) > SAFETY * self.error

    def bounds(self, rtol: float, atol: float) -> tuple[Array, Array]:
        """How far apart two derivatives may be, and whether the numeric one is known well enough to judge by it."""
        doubt, size, largest = SAFETY * self.error, np.fmax(np.abs(self.numeric), self.added), self.largest()
        whole = np.maximum(largest, self.unit)
        terms = np.where(self.present(), self.terms, whole)
        rounding = np.maximum(ROUNDING * self.terms, TINY * self.unit)
        allowed = doubt + np.maximum(self.share * (rtol * size + atol * terms + ABSENT * largest), rounding)
        nothing = np.abs(self.analytic) <= atol * whole  # then large results may hide a small numeric one
        absent = ABSENT * np.where(nothing, np.maximum(whole, self.results), whole)
        enough = np.fmax(np.fmax(KNOWN * size, CANCELLED * self.terms), np.fmax(FAINT * largest, absent))
        return allowed, (doubt <= self.share * enough) & np.isfinite(doubt)

    def excess(self, allowed: Array, known: Array) -> Array:
        """By how many times what is allowed the two are apart; 0 where that passes."""
        apart = np.abs(self.analytic - self.numeric)
        excess = np.where(np.isfinite(apart), apart / allowed, np.inf)
        passed = ((excess <= 1.0) | (self.analytic == self.numeric)) & known
        return np.where(passed, 0.0, np.fmax(excess, TINY))

    def suspects(self, allowed: Array, known: Array) -> list[int]:
        """The columns that do not pass, the worst first."""
        worst = np.max(self.excess(allowed, known), axis=0, initial=0.0)
        return [int(c) for c in np.argsort(-worst, kind="stable") if worst[c] > 0.0]

    def worst_difference(self, other: Array) -> float:
        """The largest difference from the analytic derivatives, relative to the largest derivative of the same row."""
        relative = np.abs(self.analytic - other) / self.largest()
        return float(np.max(np.where(np.isnan(relative), np.inf, relative), initial=0.0))


def weigh(rows: Array, column: Array) -> Array:
    """rows @ column, where a weight of 0 silences also inf and nan."""
    if np.all(np.isfinite(column)):
        return rows @ column
    return np.where(rows == 0.0, 0.0, rows * column).sum(axis=1)
