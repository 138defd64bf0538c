"""Stochastic gradient descent."""

from collections.abc import Mapping
from typing import Any

from ..errors import ArgumentError
from ..formulas.types import Array, Namespace
from ..options import flag, nonnegative
from . import inplace, rules
from .groups import Params
from .optimizer import Optimizer
from .state import State


class SGD(Optimizer):
    """Gradient descent, with momentum if wanted: v ← μ v + g, p ← p − lr v, the first v being g.

    With Nesterov's momentum p ← p − lr (g + μ v). The formulas are `sgd` and `sgd_momentum` in `tinynorm.optim.rules`.

    Args:
        params: a module, parameters, or groups; see `Optimizer`, also for the errors.
        lr: the learning rate, 0 or more.
        momentum: μ, 0 or more. With 0 no velocity is kept.
        nesterov: whether to look ahead along the velocity; needs a momentum.
        weight_decay: λ, 0 or more; g ← g + λ p before anything else.

    Source: Sutskever et al., "On the importance of initialization and momentum in deep learning" (2013), in PyTorch's
    convention.

    >>> import tinynorm as tn
    >>> w = tn.tensor([4.0], requires_grad=True)
    >>> optimizer = tn.optim.SGD([w], lr=0.25, momentum=0.5)
    >>> for _ in range(3):
    ...     optimizer.zero_grad()
    ...     (0.5 * w * w).sum().backward()
    ...     optimizer.step()
    ...     print(w.item())
    3.0
    1.75
    0.6875
    """

    slots = ("velocity",)
    in_place = inplace.sgd

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay})

    def checked(self, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options as Python numbers; Nesterov's step needs a momentum."""
        momentum = nonnegative(name, "momentum", options["momentum"])
        nesterov = flag(name, "nesterov", options["nesterov"])
        if nesterov and not momentum:
            raise ArgumentError(f"{name}: nesterov=True needs a momentum > 0, not {momentum!r}; 0.9 is usual")
        return {
            "lr": nonnegative(name, "lr", options["lr"]),
            "momentum": momentum,
            "nesterov": nesterov,
            "weight_decay": nonnegative(name, "weight_decay", options["weight_decay"]),
        }

    def update(
        self, xp: Namespace, p: Array, g: Array, state: State, options: Mapping[str, Any]
    ) -> tuple[Array, State]:
        """One step; without momentum nothing is kept."""
        if not options["momentum"]:
            return rules.sgd(xp, p, g, lr=options["lr"], weight_decay=options["weight_decay"]), {}
        velocity = state["velocity"] if state else xp.zeros_like(p)
        p, velocity = rules.sgd_momentum(xp, p, g, velocity, **options)
        return p, {"velocity": velocity}
