"""Initial values of parameters."""

import math
from typing import Any

import numpy as np

from ..random import Rng, generator


def uniform_fan_in(shape: tuple[int, ...], fan_in: int, rng: Rng) -> Any:
    """float32 values from U(−k, k) with k = 1/√fan_in, drawn on the host.

    It is PyTorch's default for Linear, there written as kaiming_uniform with a = √5: √(6 / ((1 + 5) fan_in)) = k.
    """
    k = 1.0 / math.sqrt(fan_in) if fan_in else 0.0
    return generator(rng).uniform(-k, k, size=shape).astype(np.float32)
