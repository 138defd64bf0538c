"""An optimizer's steps in place, and what it remembers from one to the next.

What users may have changed since the last step is looked at before each: which parameters there are and have gradients,
and their arrays; and the optimizer's `state`, once somebody has got it.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from operator import is_
from typing import Any, NamedTuple

import numpy as np

from .. import backend
from ..errors import ArgumentError
from ..formulas.types import Array
from ..kernels import threads
from ..tensor import Tensor
from .bundles import Bundle, DeviceBundle, Launch, do
from .groups import Group
from .inplace import InPlace, Options, Spare, Step
from .plan import NOTHING, Plan
from .state import State

Move = tuple[Tensor, Array, int]  #: a parameter, its gradient, the number of its group


class Runner:
    """Makes an optimizer's steps, by a plan that is made anew where anything is different.

    Nobody can change a state that they never got; so it is looked at only once it has been handed out.
    """

    def __init__(self) -> None:
        self.plan = NOTHING
        self.state: Mapping[Tensor, State] = {}  # the dict in which the last step left its entries
        self.exposed = False
        self.left: list[Any] = []  # what the last step left in the entries, if the state is exposed

    def __reduce__(self) -> Any:
        return Runner, ()  # a copied or pickled optimizer has arrays of its own

    def expose(self) -> None:
        """Note that the state is about to be handed out."""
        if not self.exposed:
            self.exposed, self.left = True, self.plan.contents()

    def prepare(
        self,
        name: str,
        rule: InPlace | None,
        groups: list[Group],
        options: Sequence[Options],
        state: Mapping[Tensor, State],
    ) -> tuple["Prepared", list[Move]]:
        """The steps that can be made in place, if there is a rule for that, with all they need; and the others.

        Raises `DeviceError` for a gradient that is not on its parameter's device, and `ArgumentError` for a parameter
        whose memory has become read-only.
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
            if not backend.is_writeable(p._data):
                raise ArgumentError(
                    f"{name}.step: a parameter, of shape {p.shape}, lies in memory that became read-only"
                )
        if rule is None or not plan.bundles:
            return Prepared(plan, [], [], []), rest
        return _prepared(rule, plan, plan.apart(gradients), options), rest

    def run(self, prepared: "Prepared", state: dict[Tensor, State]) -> None:
        """Make the steps."""
        plan = prepared.plan
        prepared.run()
        if plan is not self.plan:
            state.update(zip(plan.served, plan.entries, strict=True))
            self.plan, self.state = plan, state
        if self.exposed:
            self.left = plan.contents()

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


class Prepared(NamedTuple):
    """A step of all bundles, with all the memory that it needs.

    Args:
        plan: with the bundles.
        launches: what those on devices are to run.
        tasks: what `do` is to do for those on the host.
        counts: what these count then.
    """

    plan: Plan
    launches: list[tuple[DeviceBundle, Launch]]
    tasks: list[tuple[Any, ...]]
    counts: list[tuple[Bundle, int]]

    def run(self) -> None:
        """Make it, on devices first: on the host nothing can fail any more, while a device may be lost."""
        for p in self.plan.served:
            p._memory.version += 1  # before anything is written
        for bundle, launch in self.launches:
            bundle.run(launch)
        threads.each(do, self.tasks, self.plan.size)
        for host_bundle, t in self.counts:
            host_bundle.count(t)


def _prepared(rule: InPlace, plan: Plan, gradients: list[Array], options: Sequence[Options]) -> Prepared:
    prepared = Prepared(plan, [], [], [])
    steps: dict[Any, Step] = {}
    spares: dict[Any, Spare] = {}
    for bundle, places in plan.bundles:
        its_gradients = [gradients[i] for i in places]
        if isinstance(bundle, DeviceBundle):
            prepared.launches.append((bundle, bundle.prepared(options, its_gradients)))
            continue
        group, t, dtype = plan.groups[places[0]], bundle.entries[0].get("step", 0) + 1, bundle.dtype
        spare = partial(Spare, dtype, plan.size)
        step = steps.get((group, t, dtype))
        if step is None:
            step = rule.make(partial(np.array, dtype=dtype), spare, t, **options[group])
            steps[group, t, dtype] = step
        if bundle.scratch is None and dtype not in spares:
            spares[dtype] = spare()
        prepared.tasks.extend(bundle.tasks(step, its_gradients, spares.get(dtype)))
        prepared.counts.append((bundle, t))
    return prepared
