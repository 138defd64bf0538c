"""Checking the checker: does the property that tests gradients find every mutant?

Each mutant is tried in one example after the other, always the same ones in the same order, until the property fails.
The operation without the fault must pass wherever the mutant is tried, or else failing would mean nothing.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ..errors import ArgumentError
from ..formulas.types import Array
from ..graph import Node, topological_order
from ..kernels import formulas_only
from ..memory import cached_arrays
from ..op import Op
from ..tensor import Tensor, tensor
from .cases import CORNERS, Case, Setting, cases_of
from .choices import Choose
from .mutants import Mutant, Operation, mutants, operation
from .verify import verify

Property = Callable[..., Any]  #: called as `verify` is; raises where a gradient is wrong

TELLING = 12  #: elements in all inputs: few seldom tell anything, and many take long
RANDOM = 20  #: examples of each case, besides the settings that are always tried

KILLED, SURVIVED, UNCHANGED, ABSENT = "killed", "survived", "changes no value in any example", "cannot occur"


class Hunt(NamedTuple):
    """What became of an operation's mutants.

    Args:
        op: the operation's name.
        killed: those that the property found, in words.
        survivors: those that it did not.
        equivalents: those that change no value, with the reason; they are not counted.
    """

    op: str
    killed: tuple[str, ...]
    survivors: tuple[str, ...]
    equivalents: dict[str, str]

    @property
    def planted(self) -> int:
        """How many there were to find."""
        return len(self.killed) + len(self.survivors)


def hunt(op: Operation, cases: Sequence[Case] = (), *, prop: Property = verify, random: int = RANDOM) -> Hunt:
    """Look for every mutant of an operation with the property that tests its gradient.

    Args:
        op: what `tn.op` made, or an operation of the library, such as "relu" or `tn.functional.relu`.
        cases: how the operation is called; by default as in the library's own tests.
        prop: what must raise where a gradient is wrong. It is called as `verify` is, which is what tests use.
        random: how many random settings to try for each case, after those that are always tried.

    Raises:
        GradientError: when the operation without a fault fails.
        ArgumentError: for an operation that has no cases.

    >>> import tinynorm as tn
    >>> found = tn.testing.hunt("tanh")
    >>> found.survivors, len(found.killed) >= 8
    ((), True)
    """
    op = operation("hunt", op)
    examples = examples_of(op, cases or cases_of(op), prop, random)
    if not examples:
        raise ArgumentError(f"hunt: no case says how {op.name} is called; make one with tn.testing.property_test")
    return hunt_in(op, examples if cases else examples + corners_of(op, prop))


def hunt_in(op: Op, examples: "list[Example]") -> Hunt:
    """Look for every mutant in these examples."""
    killed, survivors, equivalents = [], [], {}
    with _quietly():
        for mutant in mutants(op):
            fate = _fate(mutant, examples)
            reason = _excuse(mutant)
            if fate == KILLED:
                killed.append(mutant.what)
            elif fate == SURVIVED or (fate == UNCHANGED and reason is None and not mutant.optional):
                survivors.append(f"{mutant.words}: {fate}")
            elif fate == UNCHANGED and reason is not None:
                equivalents[mutant.what] = reason
    return Hunt(op.name, tuple(killed), tuple(survivors), equivalents)


@dataclass
class Example:
    """One call of an operation: a case in a setting, on fixed values."""

    op: Op | None
    case: Case
    setting: Setting
    prop: Property
    seed: int
    right: bool = False  #: whether the operation without a fault has passed

    @cached_property
    def inputs(self) -> list[Array]:
        """The values."""
        return self.case.inputs(np.random.default_rng(self.seed), self.setting)

    @property
    def size(self) -> int:
        """How many elements the inputs have."""
        return sum(a.size for a in self.inputs)

    @formulas_only()  # in which the faults are
    def function(self, *tensors: Tensor) -> Tensor:
        """The call, a function of Tensors alone."""
        return self.case.call(*tensors, **self.setting.options)

    @cached_property
    def recorded(self) -> list[tuple[Node, Node, Array, tuple[Any, ...]]]:
        """The operation's nodes; each with its twin, a cotangent, and its gradients for that."""
        rng = np.random.default_rng([self.seed, 12])
        others = self.case.inputs(rng, self.setting)
        found = []
        for node, twin in zip(self._nodes(self.inputs), self._nodes(others), strict=True):
            dy = rng.normal(size=node.shape).astype(node.dtype)
            found.append((node, twin, dy, node.pull_back(dy, node.needs)))
            for shared in (dy, *cached_arrays(node.cache), *cached_arrays(twin.cache)):
                shared.flags.writeable = False  # a mutant may write to what it is given
        return found

    def _nodes(self, values: list[Array]) -> list[Node]:
        leaves = [tensor(v, requires_grad=v.dtype.kind == "f") for v in values]
        return _nodes_of(self.op, self.function(*leaves))

    def shows(self, mutant: Mutant) -> str:
        """Whether the fault can occur here, and whether it changes a gradient by more than rounding does."""
        fate = ABSENT
        for node, twin, dy, right in self.recorded:
            faulty = mutant.plant(node, twin)
            if faulty is not None:
                if not _harmless(node, faulty, dy, right):
                    return SURVIVED
                fate = UNCHANGED
        return fate

    def check(self) -> Any:
        """What the property says of the operation as it is. Raises where it does not hold."""
        found = self.prop(self.case, self.inputs, self.setting.options, seed=self.seed)
        self.right = True
        return found

    def kills(self, mutant: Mutant) -> bool:
        """Whether the property fails for the mutant, as it does not for the operation itself."""
        if not self.right:
            self.check()
        faulty = replace(self.case, call=self._with(mutant))
        try:
            self.prop(faulty, self.inputs, self.setting.options, seed=self.seed)
        except Exception:
            return True
        return False

    def _with(self, mutant: Mutant) -> Callable[..., Tensor]:
        """The call, but what it records has the fault."""

        @formulas_only()
        def call(*tensors: Tensor, **options: Any) -> Tensor:
            y = self.case.call(*tensors, **options)
            for node, (_, twin, _, _) in zip(_nodes_of(self.op, y), self.recorded, strict=False):
                node.op = mutant.plant(node, twin) or node.op
            return y

        return call


def examples_of(op: Op | None, cases: Sequence[Case], prop: Property = verify, random: int = RANDOM) -> list[Example]:
    """The examples that an operation's mutants are tried in, the most telling first."""
    found = []
    for case in cases:
        choose = Choose.from_rng(np.random.default_rng(0))
        settings = [*case.always, *(case.setting(choose) for _ in range(random))]
        found += [Example(op, case, setting, prop, seed) for seed, setting in enumerate(settings)]
    return sorted(found, key=lambda example: abs(example.size - TELLING))


def corners_of(op: Op, prop: Property = verify) -> list[Example]:
    """Those examples of the library's operations that random values never reach."""
    return examples_of(op, [case for case in CORNERS.values() if case.op is op], prop, random=0)


def _nodes_of(op: Op | None, y: Tensor) -> list[Node]:
    return [] if y._source is None else [node for node in topological_order(y._source) if node.op is op]


def _fate(mutant: Mutant, examples: list[Example]) -> str:
    fate = ABSENT
    for example in examples:
        shown = example.shows(mutant)
        if shown == SURVIVED:
            if example.kills(mutant):
                return KILLED
            fate = SURVIVED
        elif fate == ABSENT:
            fate = shown
    return fate


def _harmless(node: Node, faulty: Op, dy: Array, right: tuple[Any, ...]) -> bool:
    """Whether a node's gradients stay what they are, up to rounding."""
    node = copy(node)
    node.op = faulty
    try:
        gradients = node.pull_back(dy, node.needs)
    except Exception:
        return False
    return all(_close(a, b) for a, b in zip(gradients, right, strict=True))


def _close(a: Any, b: Any) -> bool:
    if a is None or b is None:
        return a is b
    return bool(np.allclose(a, b, rtol=1e-12, atol=1e-12 * np.max(np.abs(b), initial=1.0), equal_nan=True))


@contextmanager
def _quietly() -> Iterator[None]:
    """What faulty formulas do to numbers is no news."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _excuse(mutant: Mutant) -> str | None:
    """Why the mutant computes the same, if that is known."""
    for function, code, reason in EQUIVALENT:
        if mutant.what.startswith(f"{function} ") and (code in mutant.what or code in mutant.statement):
            return reason
    return None


EQUIVALENT = (
    ("power_backward", "xp.zeros_like(y)`", "± 0 gives x the shape of y, and broadcasting does the same"),
    ("exponentials", "far = ", "beyond either bound the smaller of the two exponentials counts for nothing"),
    ("silu_backward", "SIGMOID_FAR", "σ is 0 or 1 there and beyond; only x = ±∞, which cannot be moved, needs it"),
    ("gelu_backward", "GELU_FAR", "φ is 0 there and beyond; only x = ±∞, which cannot be moved, needs it"),
    ("gelu_tanh_backward", "GELU_FAR", "σ′ is 0 there and beyond; only x = ±∞, which cannot be moved, needs it"),
    ("cross_entropy_backward", "leaves out _balanced", "it takes away what rounding left, and no more"),
)
"""Faults that change no value: the function, a part of the mutant's words or of the statement, the reason.

A mutant that does change a value, in whatever example, is never excused.
"""
