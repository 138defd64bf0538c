"""What several test files share: the cases that are always tried, an operation, and the norms by hand."""

import math
from typing import Any

import pytest

import tinynorm as tn
from tinynorm.testing.cases import CASES

ALWAYS = [
    pytest.param(name, s, id=" ".join(f"{name}-{s.shapes}-{s.options}".split()))
    for name, case in CASES.items()
    for s in case.always
]
"""Every case in all the settings that are always tried, for ``parametrize(("name", "setting"), ALWAYS)``."""


# What a new operation costs its author.


@tn.op("l2_norm")
def l2_norm(xp, x, weight, *, eps):
    """y = g ⊙ x / √(Σ x² + ε)"""
    r = 1.0 / xp.sqrt(xp.sum(x * x, axis=-1, keepdims=True) + eps)
    h = x * r
    return h * weight, (h, r, weight)


@l2_norm.backward
def _(xp, dy, cache):
    h, r, weight = cache
    dh = dy * weight
    return r * (dh - h * xp.sum(dh * h, axis=-1, keepdims=True)), dy * h


def value(call, inputs, **options):
    """The result as an array."""
    return call(*map(tn.as_tensor, inputs), **options).numpy()


def run(call, inputs, dy, **options):
    """The result as an array, and the gradients of the floating-point inputs, which are shared, not copied."""
    tensors = [tn.as_tensor(a) for a in inputs]
    for t in tensors:
        t.requires_grad = t.dtype.kind == "f"
    y = call(*tensors, **options)
    y.backward(dy)
    return y.numpy(), [t.grad for t in tensors if t.requires_grad]


# The norms of one row


def rms_row(row: Any, eps: float) -> list[float]:
    """By hand, as it were: sums that are exact until they are rounded."""
    rms = math.sqrt(math.fsum(v * v for v in row) / len(row) + eps)
    return [v / rms for v in row]


def layer_row(row: Any, eps: float) -> list[float]:
    mean = math.fsum(row) / len(row)
    return rms_row([v - mean for v in row], eps)
