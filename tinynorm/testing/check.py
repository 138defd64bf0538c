"""Checking whole operations: numeric errors, orders of derivatives and mutants, a row each.

This is what ``python -m tinynorm check`` prints. Nothing here needs more than NumPy.
"""

import inspect
from dataclasses import asdict, dataclass, field
from math import isfinite
from time import perf_counter
from types import ModuleType
from typing import Any

from ..errors import TinynormError
from ..extend import NewOp
from ..op import Op
from .cases import OPS, Case, cases_of
from .gradcheck import gradcheck
from .higher import derivative
from .hunt import RANDOM, Example, corners_of, examples_of, hunt_in

ORDERS = 4  #: derivatives are verified up to this one
SMALL = 8  #: elements of the inputs; higher derivatives of more take long
QUICK, INTENSE = (RANDOM, 10, 1), (200, 1000, 6)
"""How many random examples there are of each case; how many of all give the errors; how many, the orders."""


@dataclass
class Row:
    """What was found of one operation. Its fields are those of the JSON.

    Args:
        name: the operation's.
        central_error: its gradients' largest difference from central differences, relative to the largest derivative.
        complex_error: the same for the complex step; None where that cannot get through.
        order: the highest order of derivatives that agrees with numeric ones, as all below it do.
        killed, mutants: how many mutants the property test found, and how many there were.
        survivors: those that it did not find, in words.
        equivalents: mutants that change no value, and why; they are not counted.
        seconds: how long all of it took.
        problems: why the operation falls short; empty where it does not.
    """

    name: str
    central_error: float | None = None
    complex_error: float | None = None
    order: int = 0
    killed: int = 0
    mutants: int = 0
    survivors: list[str] = field(default_factory=list)
    equivalents: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)

    def json(self) -> dict[str, Any]:
        """The row in JSON's own types; what is no finite number is None."""
        return {k: None if isinstance(v, float) and not isfinite(v) else v for k, v in asdict(self).items()}


@dataclass
class Task:
    """Something to check: an operation, and how it is called; or a function of several, which has no mutants."""

    name: str
    op: Op | None
    cases: list[Case]
    remedy: str = ""  #: the line that is missing where there are no cases


def tasks_of_table() -> dict[str, Task]:
    """The library's own operations, by name."""
    remedy = "a line in tinynorm/testing/cases.py"
    return {name: Task(name, op, cases_of(op), remedy) for name, op in OPS.items()}


def tasks_in(module: ModuleType) -> list[Task]:
    """A user's operations and property tests."""
    found: dict[Any, Task] = {}
    for case in (getattr(value, "case", None) for value in vars(module).values()):
        if isinstance(case, Case):
            key = case.name if case.op is None else case.op
            found.setdefault(key, Task(case.name.partition(":")[0], case.op, [])).cases.append(case)
    for name, value in vars(module).items():
        if isinstance(value, NewOp) and value._op not in found:
            found[value._op] = Task(value._op.name, value._op, [], _missing_line(name, value._op))
    return list(found.values())


def _missing_line(name: str, op: Op) -> str:
    parameters = list(inspect.signature(op.forward).parameters.values())[1:]
    inputs = ['"..."' for p in parameters if p.kind is not p.KEYWORD_ONLY]
    options = [f"{p.name}=..." for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "needs"]
    return f"test_{name} = tn.testing.property_test({', '.join([name, *inputs, *options])})"


def check(task: Task, intense: bool = False) -> Row:
    """Check one operation: the errors of its gradients, its higher derivatives, its mutants.

    Args:
        task: what to check.
        intense: try many more examples.
    """
    start, row = perf_counter(), Row(task.name)
    try:
        _fill(row, task, *(INTENSE if intense else QUICK))
    except Exception as error:  # a user's operation may raise anything
        notes = getattr(error, "__notes__", [])  # `verify` adds where
        row.problems.append("\n".join([f"{type(error).__name__}: {error}", *notes]))
    row.seconds = perf_counter() - start
    return row


def _fill(row: Row, task: Task, random: int, count: int, points: int) -> None:
    if not task.cases:
        row.problems.append(f"no property test; write: {task.remedy}")
        return
    examples = examples_of(task.op, task.cases, random=random)
    reports = [example.check() for example in examples[:count]]
    row.central_error = max(report.central_error for report in reports)
    row.complex_error = max((r.complex_error for r in reports if r.complex_error is not None), default=None)
    row.order, problem = _orders([e for e in examples if e.size <= SMALL][:points])
    if problem:
        row.problems.append(problem)
    if task.op is not None:
        found = hunt_in(task.op, examples + corners_of(task.op))
        row.killed, row.mutants, row.equivalents = len(found.killed), found.planted, found.equivalents
        row.survivors = list(found.survivors)
        if not found.planted:
            row.problems.append("its property test never differentiates it, so no mutant can be planted")
        if found.survivors:
            row.problems.append("\n  ".join(["its property test does not find these mutants:", *found.survivors]))


def _orders(examples: list[Example]) -> tuple[int, str]:
    """The highest order of derivatives that agrees with numeric ones in all examples, and what is wrong above it."""
    for order in range(2, ORDERS + 1):
        for example in examples:
            slope = derivative(example.function, order - 1, seed=example.seed)
            try:
                gradcheck(slope, example.inputs, seed=example.seed + order)
            except TinynormError as error:
                return order - 1, f"order {order}: {error}"
    return ORDERS, ""
