"""The examination of a function's gradients: what is compared with what, and in which order.

Everything is a derivative of ``cotangent · results`` along a direction in the inputs. Cotangents are rows, directions
columns, of four tables: what the backward formulas say, what differences say, how far off those may be, and how large
the terms are that were added up.

**Rows.** Up to 16 results: the Jacobian, a row each, and a random cotangent besides, which alone shows a backward that
is not linear. More results: two random cotangents. Their entries are ±(0.5 … 1.5), so every result counts.

**Columns.** One for each element of each input, if that is not too much work: up to 5,000,000 / (elements + results).
Otherwise so many random directions, each through a block of B elements with gradients of like size, with entries of
±(0.5 … 1.5) times the element's scale, and held to a tolerance B times as sharp. So an element that is 1 % wrong is
seen wherever its share in its block's sum is at least half of the average.

**Differences decide.** What does not pass at the first step is tried with smaller and larger ones. If none settles it,
that is the failure: a jump, noise, the end of the domain. At a kink a central difference is the mean of the slopes on
both sides. A gradient that equals it passes, with a notice; for any other the failure says that there is a kink.

**Complex steps** are the second witness, where they agree with the differences everywhere within their error. Where
they do not, because a formula is not analytic or fn leaves the graph, a notice says so.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..errors import ArgumentError, GradientError, GraphError
from ..formulas.types import Array
from ..options import nonnegative
from .comparison import ATOL, EXACT, KNOWN, RTOL, SAFETY, Table, weigh
from .numeric import EPS, Slope, slope
from .subject import Direction, Points, Subject, alike, arguments_of, check_choices, signed, typical

METHODS = ("auto", "central", "complex")
FIRST_STEP = 1e-3  #: of an element's scale: truncation (h⁴) and rounding (ε/h) are both about 1e-12 there
OTHER_STEPS = (1 / 16, 1 / 256, 1 / 4096, 1 / 65536, 16, 256)  #: times the first
NATURAL = 1e-3  #: steps relative to the element itself, or to 1, are tried too, if these are so much smaller
FEWEST = 64  #: directions for one input, if it has as many elements
JACOBIAN = 16  #: so many results get a row each
WORK = 5_000_000  #: directions times numbers that each of them moves through


class Report(NamedTuple):
    """What an examination found.

    Attributes:
        passed: whether all gradients agree with the numeric ones.
        central_error: the largest difference from central differences, relative to the largest derivative of the same
            cotangent; inf where nothing could be compared, nan where it was not asked for.
        complex_error: the same for the complex step; None where it is no witness, because it was not asked for, or
            cannot get through fn.
        message: None, or what disagrees and where.
        notices: what else one should know.

    >>> import tinynorm as tn
    >>> report = tn.testing.examine(tn.tanh, [[0.5, -2.0]])
    >>> report.passed, report.central_error < 1e-9, report.complex_error < 1e-12
    (True, True, True)
    """

    passed: bool
    central_error: float
    complex_error: float | None
    message: str | None
    notices: tuple[str, ...] = ()


def examine(
    fn: Callable[..., Any],
    inputs: Sequence[Any],
    *,
    method: str = "auto",
    cotangent: Any = "random",
    rtol: float = RTOL,
    atol: float = ATOL,
    seed: int = 0,
    away_from: Any = (),
    caller: str = "gradcheck",
) -> Report:
    """The findings that `gradcheck` judges by, with numbers for a table.

    It takes what `gradcheck` takes; `caller` is the function that messages name.

    >>> import tinynorm as tn
    >>> tn.testing.examine(lambda x: x.detach() * x, [[3.0]]).passed
    False
    """
    if method not in METHODS:
        raise ArgumentError(f"{caller}: method must be one of {', '.join(METHODS)}, not {method!r}")
    check_choices(caller, cotangent, seed)
    subject = Subject(caller, fn, arguments_of(caller, inputs), away_from)
    tolerance = nonnegative(caller, "rtol", rtol), nonnegative(caller, "atol", atol)
    # A stream of its own: inputs made by default_rng(seed) must not look like the cotangents.
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,)))
    examination = Examination(subject, method, cotangent, tolerance, rng)
    try:
        examination.run()
        message = None
    except GradientError as fault:
        notices = "".join(f" ({notice})" for notice in subject.notices)
        message = f"{caller}: {subject.name}: {fault}{notices}"
    return Report(
        message is None, examination.central_error, examination.complex_error, message, tuple(subject.notices)
    )


class Examination:
    """The steps of one examination. `run` raises `GradientError` at the first thing that is wrong."""

    def __init__(
        self, subject: Subject, method: str, cotangent: Any, tolerance: tuple[float, float], rng: np.random.Generator
    ) -> None:
        self.subject, self.method, self.cotangent, self.rng = subject, method, cotangent, rng
        self.rtol, self.atol = tolerance
        self.central_error = np.nan if method == "complex" else np.inf
        self.complex_error: float | None = None

    def run(self) -> None:
        """Record, differentiate both ways, compare."""
        with np.errstate(all="ignore"):  # what is not finite will be reported
            self.subject.record()
            self.rows = self.cotangents()
            self.gradients = self.walk_back()
            self.compare()

    def compare(self) -> None:
        """Both ways, as the method says."""
        self.table = Table(self.rows, self.subject.value, self.gradients, self.directions())
        if self.method == "complex":
            self.compare_with_complex_steps()
            return
        self.compare_with_differences()
        self.report_kinks()
        if self.method == "auto":
            self.hear_the_second_witness()

    # What is compared

    def cotangents(self) -> Array:
        """The rows: (rows, results)."""
        if not isinstance(self.cotangent, str):
            return self.subject.vector(self.cotangent)[None]
        m = self.subject.value.size
        rows = signed(self.rng, (1 if m <= JACOBIAN else 2, m))
        return np.concatenate([rows, np.diag(signed(self.rng, m))]) if 1 < m <= JACOBIAN else rows

    def walk_back(self) -> Points:
        """The gradients, for each argument one row for each cotangent. Those of the first are computed twice."""
        gradients = [self.subject.gradients(self.rows[0])]
        try:
            gradients += [self.subject.gradients(row) for row in self.rows[1:]]
            again = self.subject.gradients(self.rows[0])
        except GraphError as error:
            raise GradientError(
                f"a second walk back fails: a backward formula writes to its cache ({error})"
            ) from error
        self.subject.check_results()
        for k, first in gradients[0].items():
            if not alike(first, again[k]):
                raise GradientError(
                    f"argument {k}: two walks back through one graph give different gradients; "
                    "a backward formula writes to its cache, or draws random numbers"
                )
        return {k: np.array([g[k] for g in gradients]) for k in self.subject.points}

    def directions(self) -> list[Direction]:
        """The columns."""
        found = []
        for k, point in self.subject.points.items():
            scale = np.maximum(np.abs(point), 0.1 * typical(point)).reshape(-1)
            count = max(FEWEST, WORK // (1 + scale.size + self.subject.value.size))
            if scale.size <= count:
                found += [Direction(k, np.array([i]), scale[i : i + 1]) for i in range(scale.size)]
                continue
            weights = scale * signed(self.rng, scale.size)
            order = np.argsort(np.abs(self.gradients[k][0] * weights))
            found += [Direction(k, block, weights[block]) for block in np.array_split(order, count)]
        return found

    # Differences

    def compare_with_differences(self) -> None:
        """Fill the table; settle what does not pass at once."""
        for column, direction in enumerate(self.table.directions):
            self.table.fill(column, self.slope(direction, FIRST_STEP, 0.1 * KNOWN / SAFETY, levels=3))
        self.central_error = self.table.worst_difference(self.table.numeric)
        suspects = self.table.suspects(*self.table.bounds(self.rtol, self.atol))
        for column in suspects:
            self.settle(self.table, column)
        if suspects:
            self.central_error = self.table.worst_difference(self.table.numeric)

    def report_kinks(self) -> None:
        """A kink that has passed is worth a notice."""
        kinks = np.flatnonzero(self.table.kinked)
        if kinks.size:
            first = self.table.directions[int(kinks[0])]
            self.subject.notices.append(
                f"{kinks.size} kink{'s' * (kinks.size > 1)} close by (argument {first.argument}, at "
                f"{self.subject.index(first)}), where the gradient is the mean of the slopes on both sides"
            )

    def slope(self, direction: Direction, step: float, sure: float = 0.0, levels: int = 5) -> Slope:
        """The results' derivatives along a direction, by differences."""
        sure /= direction.indices.size
        return slope(direction.along(self.subject), self.subject.value, step, levels, sure)

    def settle(self, table: Table, column: int) -> None:
        """Try other steps, until the column passes or there are none left; then raise.

        A kink that lies near is left behind by smaller steps, and so is the end of the domain; what drowns in rounding
        comes up with larger ones. What to believe is decided by the estimated errors, not by the analytic gradient.
        """
        direction = table.directions[column]
        best = self.slope(direction, FIRST_STEP)
        for factor in (*OTHER_STEPS, *self.natural_sizes(direction)):
            table.fill(column, best)
            if column not in table.suspects(*table.bounds(self.rtol, self.atol)):
                return
            best = best.or_better(self.slope(direction, FIRST_STEP * factor))
        table.fill(column, best)
        if column in table.suspects(*table.bounds(self.rtol, self.atol)):
            raise GradientError(self.fault(*self.narrowed(table, column)))

    def natural_sizes(self, direction: Direction) -> list[float]:
        """The factors that make steps relative to an element itself, and to 1."""
        x = np.abs(self.subject.points[direction.argument].reshape(-1)[direction.indices]).min()
        factors = [float(size / direction.weights.max()) for size in (x, 1.0)]
        return [factor for factor in factors if 0.0 < factor < NATURAL]

    def narrowed(self, table: Table, column: int) -> tuple[Table, int]:
        """The worst single element of a direction, by halving."""
        direction = table.directions[column]
        while direction.indices.size > 1:
            halves = [
                Direction(direction.argument, i, w)
                for i, w in zip(np.array_split(direction.indices, 2), np.array_split(direction.weights, 2), strict=True)
            ]
            table = Table(self.rows, self.subject.value, self.gradients, halves)
            for column, half in enumerate(halves):
                table.fill(column, self.slope(half, FIRST_STEP))
            apart = np.abs(table.analytic - table.numeric).max(axis=0)
            column = int(np.argmax(np.where(np.isnan(apart), np.inf, apart)))
            direction = table.directions[column]
        return table, column

    # Complex steps

    def complex_slope(self, direction: Direction, factor: float = 1.0) -> Array:
        """The results' derivatives along a direction, by a complex step. One that loses its imaginary part raises."""
        h = factor * (1e-20 if np.min(direction.weights, initial=1.0) > 1e-250 else 1e-8)
        with warnings.catch_warnings():
            warnings.simplefilter("error", np.exceptions.ComplexWarning)
            return self.subject.complex_slope(direction, h)

    def hear_the_second_witness(self) -> None:
        """Compare with complex steps too, unless they get stuck or see another function than differences do."""
        table = self.table
        try:
            slopes = [weigh(self.rows, self.complex_slope(d)) for d in table.directions]
        except Exception as error:  # whatever a formula does with complex numbers, it was not written for them
            self.subject.notices.append(f"no complex step: {error}")
            return
        exact = np.array(slopes).reshape(len(slopes), len(self.rows)).T
        allowed, _ = table.bounds(self.rtol, self.atol)
        if not np.all(np.abs(exact - table.numeric) <= allowed):
            self.subject.notices.append(
                "no complex step: it disagrees with differences, so a formula is not analytic, or fn leaves the graph"
            )
            return
        self.complex_error = table.worst_difference(exact)
        apart = np.abs(table.analytic - exact)
        # What rounding does to differences, it does to gradients too, but a step's length less.
        table.numeric, table.error = exact, FIRST_STEP * table.error
        finer = table.bounds(EXACT * self.rtol, EXACT * self.atol)[0]
        if not np.all(apart <= finer):
            raise GradientError(self.fault(table, int(np.argmax(np.max(apart / finer, axis=0))), finer))

    def compare_with_complex_steps(self) -> None:
        """Judge by complex steps alone. A second one, of another length, shows what rounding does."""
        table = self.table
        for column, direction in enumerate(table.directions):
            try:
                value, other = self.complex_slope(direction), self.complex_slope(direction, 1.37)
            except Exception as error:
                raise GraphError(
                    f"{self.subject.caller}: no complex step gets through {self.subject.name}: {error}; "
                    "use method='central'"
                ) from error
            rounding = np.abs(value - other) + 4.0 * EPS * np.abs(value)
            table.fill(column, Slope(value, rounding, np.zeros(value.shape, dtype=bool)))
        self.complex_error = table.worst_difference(table.numeric)
        allowed, known = table.bounds(EXACT * self.rtol, self.atol)
        for column in table.suspects(allowed, known)[:1]:
            message = self.fault(table, column, allowed)
            if self.only_complex_steps_disagree(table, column):
                raise GraphError(
                    f"{self.subject.caller}: complex steps through {self.subject.name} disagree with differences, "
                    "which agree with the analytic gradient: a formula is not analytic, or fn leaves the graph; "
                    f"use method='central' ({message})"
                )
            raise GradientError(message)

    def only_complex_steps_disagree(self, table: Table, column: int) -> bool:
        """Whether differences take the analytic gradient's side."""
        other = Table(self.rows, self.subject.value, self.gradients, table.directions[column : column + 1])
        try:
            self.settle(other, 0)
        except GradientError:
            return False
        allowed, _ = other.bounds(self.rtol, self.atol)
        return not np.all(np.abs(table.numeric[:, column : column + 1] - other.numeric) <= allowed)

    # Words

    def fault(self, table: Table, column: int, finer: Array | None = None) -> str:
        """What is wrong in a column, in units of its element. Finer bounds are those of complex steps."""
        direction, (allowed, known) = table.directions[column], table.bounds(self.rtol, self.atol)
        allowed = allowed if finer is None else finer
        row = int(np.argmax(table.excess(allowed, known)[:, column]))
        where, unit = self.place_of(direction, row)
        analytic, numeric = (t[row, column] / unit + 0.0 for t in (table.analytic, table.numeric))  # never −0
        error, bound = SAFETY * table.error[row, column] / abs(unit), allowed[row, column] / abs(unit)
        found = f"{where}: the analytic gradient is {analytic:.12g}, the numeric one {numeric:.12g} ± {error:.1g} by "
        if finer is not None:
            return f"{found}a complex step; they may differ by {bound:.2g}"
        found += f"central differences{self.second_opinion(direction, row, unit)}"
        if table.kinked[column]:
            below, above = self.one_sided(direction, row, unit)
            return (
                f"{found}; but the slope is {below:.9g} from below and {above:.9g} from above, so fn has a kink there "
                "and no derivative; move the input, or name the kink in away_from="
            )
        if not known[row, column]:
            return (
                f"{found}, which is too rough to judge by: fn jumps or bends sharply near this input, ends there, or "
                "is lost in rounding; move the input, or use method='complex'"
            )
        return f"{found}; they may differ by {bound:.2g}"

    def place_of(self, direction: Direction, row: int) -> tuple[str, float]:
        """Where a number stands, and what it has to be divided by to be a gradient, or an entry of the Jacobian."""
        where, unit = f"argument {direction.argument}, at {self.subject.index(direction)}", float(direction.weights[0])
        if row and np.count_nonzero(self.rows[row]) == 1:
            position = int(np.flatnonzero(self.rows[row])[0])
            index, which = self.subject.place(position)
            return f"{where}, for result{which} at {index}", unit * float(self.rows[row, position])
        return where, unit

    def second_opinion(self, direction: Direction, row: int, unit: float) -> str:
        """What a complex step says to a fault that differences found."""
        if self.method != "auto":
            return ""
        try:
            return f", {self.rows[row] @ self.complex_slope(direction) / unit:.12g} by a complex step"
        except Exception:
            return ", and complex steps do not get through"

    def one_sided(self, direction: Direction, row: int, unit: float) -> tuple[float, float]:
        """The slopes from below and from above."""
        f, at_zero, h = direction.along(self.subject), self.subject.value, FIRST_STEP * min(OTHER_STEPS)
        below, above = (self.rows[row] @ change / (h * unit) for change in (at_zero - f(-h), f(h) - at_zero))
        return float(below) + 0.0, float(above) + 0.0
