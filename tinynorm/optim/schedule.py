"""The learning rate over time: up in a line, down along a cosine."""

from collections.abc import Mapping
from math import cos, pi
from typing import Any

from ..errors import ArgumentError, StateError
from ..options import count, fraction, nonnegative
from .optimizer import Optimizer


def warmup_cosine(step: int, warmup_steps: int, total_steps: int, final_factor: float = 0.0) -> float:
    """What the learning rate is multiplied by at step t: up in a line for W steps, down along a cosine until step T.

        (t + 1) / W                                     for t < W
        f + (1 − f) · ½ (1 + cos(π (t − W) / (T − W)))  for W ≤ t < T
        f                                               for T ≤ t

    So the first step is not wasted on a rate of 0, and the full rate serves at t = W − 1 and t = W.

    Args:
        step: t, from 0.
        warmup_steps: W, from 0 (none) to T.
        total_steps: T, at least 1.
        final_factor: f, from 0 to 1.

    Raises:
        ArgumentError: for anything else.

    Source: Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts" (2017), without restarts; the
    linear warm-up is from Goyal et al., "Accurate, Large Minibatch SGD" (2017).

    >>> import tinynorm as tn
    >>> [round(tn.optim.warmup_cosine(t, 2, 6), 3) for t in range(8)]
    [0.5, 1.0, 1.0, 0.854, 0.5, 0.146, 0.0, 0.0]
    """
    warmup, total, final = _checked("warmup_cosine", warmup_steps, total_steps, final_factor)
    t = count("warmup_cosine", "step", step, least=0)
    if t < warmup:
        return (t + 1) / warmup
    if t >= total:
        return final
    return final + (1.0 - final) * 0.5 * (1.0 + cos(pi * (t - warmup) / (total - warmup)))


class WarmupCosine:
    """Sets each group's lr to its base lr times `warmup_cosine(t, ...)`, for t = 0, 1, 2, …

    The base lr is the one that the group has when the schedule is made, which also sets the lr of step 0. From then on,
    call `step` once after each step of the optimizer.

    Args:
        optimizer: whose groups are to be set.
        warmup_steps: how many steps the lr rises, from 0 to `total_steps`.
        total_steps: after how many steps it reaches its final value, where it stays; at least 1.
        final_factor: that value, as a part of the base lr, from 0 to 1.

    Raises:
        ArgumentError: for anything else.

    Source: see `warmup_cosine`, which holds the formula.

    >>> import tinynorm as tn
    >>> w = tn.tensor([1.0], requires_grad=True)
    >>> optimizer = tn.optim.SGD([w], lr=8.0)
    >>> schedule = tn.optim.WarmupCosine(optimizer, warmup_steps=2, total_steps=4)
    >>> for _ in range(5):
    ...     print(round(optimizer.param_groups[0]["lr"], 6))  # zero_grad, backward and optimizer.step() go here
    ...     schedule.step()
    4.0
    8.0
    8.0
    4.0
    0.0
    """

    def __init__(self, optimizer: Optimizer, warmup_steps: int, total_steps: int, final_factor: float = 0.0) -> None:
        name = type(self).__name__
        self.warmup_steps, self.total_steps, self.final_factor = _checked(name, warmup_steps, total_steps, final_factor)
        self.optimizer = optimizer
        self.base_lrs = [nonnegative(name, "lr", group["lr"]) for group in optimizer.param_groups]
        self._set(0)

    def step(self) -> None:
        """Go on to the next step's learning rate."""
        self._set(self.t + 1)

    def _set(self, t: int) -> None:
        self.t = t
        factor = warmup_cosine(t, self.warmup_steps, self.total_steps, self.final_factor)
        for group, base in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
            group["lr"] = base * factor

    def state_dict(self) -> dict[str, Any]:
        """Where the schedule stands: t, and each group's base lr. The other numbers are the constructor's."""
        return {"t": self.t, "base_lrs": list(self.base_lrs)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where `state_dict` was taken, and set the learning rates of that step.

        Raises:
            StateError: for other keys, or another number of groups. Nothing has been changed then.
        """
        name = f"{type(self).__name__}.load_state_dict"
        if not isinstance(state, Mapping) or set(state) != {"t", "base_lrs"}:
            raise StateError(f'{name}: expects a dict with the keys "t" and "base_lrs", as state_dict gives it')
        lrs, groups = state["base_lrs"], len(self.base_lrs)
        if not isinstance(lrs, (list, tuple)) or len(lrs) != groups:
            raise StateError(f"{name}: base_lrs must list one number for each of {groups} groups, not {lrs!r}")
        try:
            t = count(name, "t", state["t"], least=0)
            lrs = [nonnegative(name, "base_lrs", lr) for lr in lrs]
        except ArgumentError as error:
            raise StateError(f"{error}; nothing was loaded") from error
        self.base_lrs = lrs
        self._set(t)


def _checked(name: str, warmup_steps: Any, total_steps: Any, final_factor: Any) -> tuple[int, int, float]:
    total = count(name, "total_steps", total_steps, least=1)
    warmup = count(name, "warmup_steps", warmup_steps, least=0)
    if warmup > total:
        raise ArgumentError(f"{name}: warmup_steps must be at most total_steps, {total}, not {warmup}")
    return warmup, total, fraction(name, "final_factor", final_factor)
