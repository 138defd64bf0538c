"""Optimizers: how parameters move once `backward` has collected their gradients.

Reading order: rules (the formulas), groups, state, optimizer (what all share), sgd, adam, clip, schedule, guard; and
the rules made fast: inplace, bundles (parameters that are stepped at once), plan (who these are) and runner.
"""

from .adam import Adam, AdamW
from .clip import clip_grad_norm_
from .groups import decay_groups
from .guard import LossGuard
from .optimizer import Optimizer
from .schedule import WarmupCosine, warmup_cosine
from .sgd import SGD

__all__ = [
    "SGD", "Adam", "AdamW", "LossGuard", "Optimizer", "WarmupCosine", "clip_grad_norm_", "decay_groups",
    "warmup_cosine",
]  # fmt: skip
