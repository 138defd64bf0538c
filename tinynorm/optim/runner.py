"""An optimizer's steps in place, and what it remembers from one to the next.

What users may have changed since the last step is looked at before each: which parameters there are and have gradients,
and their arrays; and the optimizer's `state`, once somebody has got it.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from operator import is_
from typing import Any

import numpy as np

from .. import backend
from ..formulas.types import Array
from ..kernels import threads
from ..tensor import Tensor
from .bundles import NOTHING, Plan, do
from .groups import Group
from .inplace import InPlace, Options, Step
from .state import State

Move = tuple[Tensor, Array, int]  #: a parameter, its gradient, the number of its group


class Runner:
    """Makes an optimizer's steps, by a plan that is made anew where anything is different.

    Nobody can change a state that they never got; so it is looked at only once it has been handed out.
    """

    def __init__(self) -> None:
        self.plan = NOTHING
        self.state: Mapping[Tensor, State] = {}  # where the last step left its entries
        self.exposed = False
        self.left: list[Any] = []  # if exposed, what the entries held

    def __reduce__(self) -> Any:
        return Runner, ()  # a copied or pickled optimizer has arrays of its own

    def expose(self) -> None:
        """Note that the state is about to be handed out."""
        if not self.exposed:
            self.exposed, self.left = True, self.plan.contents()

    def step(
        self,
        name: str,
        rule: InPlace | None,
        groups: list[Group],
        options: Sequence[Options],
        state: dict[Tensor, State],
    ) -> list[Move]:
        """Make the steps that can be made in place, if there is a rule for that. Returns the others.

        Raises `DeviceError`, before anything has moved, for a gradient that is not on its parameter's device.
        """
        members = [p for group in groups for p in group["params"]]
        gradients: list[Any] = [p.grad for p in members]
        if not {"raise", "call"}.isdisjoint(np.geterr().values()):
            rule = None  # an error half-way would leave new moments beside old values
        names = [() if rule is None else rule.moments(values) for values in options]
        circumstances = rule, names, [len(group["params"]) for group in groups], list(map(type, gradients))
        plan, undisturbed = self.plan, self._undisturbed(state)
        if not undisturbed or not plan.fits(circumstances, members):
            earlier = [bundle for bundle, _ in plan.bundles] if undisturbed else []
            plan = Plan(circumstances, members, gradients, state, earlier)
        rest = [(members[i], gradients[i], plan.groups[i]) for i in plan.rest]
        for p, g, _ in rest:
            backend.common_namespace(f"{name}.step", (p._data, g))
        if rule is not None and plan.bundles:
            _run(rule, plan, plan.apart(gradients), options)
        if plan is not self.plan:
            state.update(zip(plan.served, plan.entries, strict=True))
            self.plan, self.state = plan, state
        if self.exposed:
            self.left = plan.contents()
        return rest

    def _undisturbed(self, state: Mapping[Tensor, State]) -> bool:
        """Whether what is kept for the parameters is what the last step left there."""
        if not self.exposed or state is not self.state:
            return state is self.state
        contents = self.plan.contents()
        return (
            all(map(is_, map(state.get, self.plan.served), self.plan.entries))
            and len(contents) == len(self.left)
            and all(map(is_, contents, self.left))
        )


def _run(rule: InPlace, plan: Plan, gradients: list[Array], options: Sequence[Options]) -> None:
    """Step all bundles."""
    steps: dict[Any, Step] = {}
    tasks: list[tuple[Any, ...]] = []
    counts = []
    for bundle, places in plan.bundles:
        group, t, dtype = plan.groups[places[0]], bundle.entries[0].get("step", 0) + 1, bundle.dtype
        step = steps.get((group, t, dtype))
        if step is None:
            step = rule.make(partial(np.array, dtype=dtype), t, **options[group])
            steps[group, t, dtype] = step
        tasks += bundle.tasks(step, [gradients[i] for i in places])
        counts.append(t)
    for p in plan.served:
        p._memory.version += 1  # before anything is written
    threads.each(do, tasks, plan.size)
    for (bundle, _), t in zip(plan.bundles, counts, strict=True):
        bundle.count(t)
