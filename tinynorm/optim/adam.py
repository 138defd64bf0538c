"""Adam, and its form with decoupled weight decay."""

from collections.abc import Mapping
from typing import Any

from ..formulas.types import Array, Namespace
from ..options import betas as checked_betas
from ..options import nonnegative
from . import inplace, rules
from .groups import Params
from .optimizer import Optimizer
from .state import State


class Adam(Optimizer):
    """Steps of about lr in each coordinate, however large its gradients are: p ← p − lr m̂ / (√v̂ + ε).

    m̂ and v̂ are running means of g and g², corrected for having started at 0. The formula is `adam` in
    `tinynorm.optim.rules`.

    Args:
        params: a module, parameters, or groups; see `Optimizer`, also for the errors.
        lr: the learning rate, 0 or more.
        betas: the decay rates β₁ and β₂ of the two means, at least 0 and less than 1.
        eps: ε, 0 or more; with 0, a coordinate whose gradients have all been 0 becomes 0/0.
        weight_decay: λ, 0 or more; g ← g + λ p before anything else, so that the means see it, as `AdamW`'s do not.

    Source: Kingma and Ba, "Adam: A Method for Stochastic Optimization" (2015), Algorithm 1.

    >>> import tinynorm as tn
    >>> w = tn.tensor([1.0, 1.0], requires_grad=True)
    >>> optimizer = tn.optim.Adam([w], lr=0.5)
    >>> (w * [100.0, -0.01]).sum().backward()
    >>> optimizer.step()
    >>> w.data.round(4)
    array([0.5, 1.5], dtype=float32)
    """

    slots = ("step", "m", "v")
    _rule = staticmethod(rules.adam)
    in_place = inplace.adam

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def checked(self, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options as Python numbers."""
        return {
            "lr": nonnegative(name, "lr", options["lr"]),
            "betas": checked_betas(name, options["betas"]),
            "eps": nonnegative(name, "eps", options["eps"]),
            "weight_decay": nonnegative(name, "weight_decay", options["weight_decay"]),
        }

    def update(
        self, xp: Namespace, p: Array, g: Array, state: State, options: Mapping[str, Any]
    ) -> tuple[Array, State]:
        """One step. It is counted for each parameter apart, as the bias correction must."""
        if not state:
            state = {"step": 0, "m": xp.zeros_like(p), "v": xp.zeros_like(p)}
        t = state["step"] + 1
        p, m, v = self._rule(xp, p, g, state["m"], state["v"], t, **options)
        return p, {"step": t, "m": m, "v": v}


class AdamW(Adam):
    """Adam with decoupled weight decay: p ← p (1 − lr λ), then a step of Adam on the plain gradient.

    With Adam's own weight decay, λ p is divided by √v̂ like any gradient, and parameters with large gradients hardly
    decay. The formula is `adamw` in `tinynorm.optim.rules`.

    Args:
        params: a module, parameters, or groups; see `Optimizer`, also for the errors, and `decay_groups`.
        lr: the learning rate, 0 or more.
        betas: the decay rates β₁ and β₂ of the two means, at least 0 and less than 1.
        eps: ε, 0 or more; with 0, a coordinate whose gradients have all been 0 becomes 0/0.
        weight_decay: λ, 0 or more.

    Source: Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (2019), with the decay scaled by lr, as in
    PyTorch.

    >>> import tinynorm as tn
    >>> w = tn.tensor([4.0], requires_grad=True)
    >>> optimizer = tn.optim.AdamW([w], lr=0.5, weight_decay=0.25)
    >>> (1000.0 * w).sum().backward()
    >>> optimizer.step()
    >>> w.data.round(4)  # 4 (1 − 0.125) − 0.5
    array([3.], dtype=float32)
    """

    _rule = staticmethod(rules.adamw)
    in_place = inplace.adamw

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)
