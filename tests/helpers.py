"""What several test files share: the package's own cases, values and layouts, and how one call is run."""

import pytest

import tinynorm as tn
from tinynorm.testing.cases import BROADCAST, CASES, INDICES, SHAPES, Setting
from tinynorm.testing.values import LAYOUTS, above, away_from_zero, distinct, mask, on_grid, positive, real, with_zeros

__all__ = [
    "ALWAYS", "BROADCAST", "CALLS", "INDICES", "LAYOUTS", "SHAPES", "Setting", "above_minus_one", "away_from_zero",
    "distinct", "mask", "on_grid", "positive", "real", "run", "value", "with_zeros",
]  # fmt: skip

CALLS = CASES
above_minus_one = above(-1.0)

ALWAYS = [
    pytest.param(name, s, id=" ".join(f"{name}-{s.shapes}-{s.options}".split()))
    for name, case in CASES.items()
    for s in case.always
]
"""Every case in all the settings that are always tried, for ``parametrize(("name", "setting"), ALWAYS)``."""


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
