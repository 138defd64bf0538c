"""What several test files share: the cases that are always tried, an operation, and the norms by hand."""

import math
from typing import Any

import numpy as np
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


# The norms of matrices, for tests of kernels


def normal(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def inputs(kind: str, x: np.ndarray, affine: str = "both", axes: int = 1, seed: int = 7) -> list[Any]:
    """x, weight and, for LayerNorm, bias."""
    tail = x.shape[x.ndim - axes :]
    weight = normal(*tail, seed=seed, dtype=x.dtype) if affine in ("weight", "both") else None
    bias = normal(*tail, seed=seed + 1, dtype=x.dtype) if affine in ("bias", "both") else None
    return [x, weight] if kind == "rms" else [x, weight, bias]


def right(kind: str, arrays: list[Any], dy: np.ndarray, eps: float = 1e-5, axes: int = 1) -> list[Any]:
    """y and the gradients from the definition's derivative, written with the matrix ∂h/∂x, in long doubles."""
    x, weight, bias = [*arrays, None][:3]
    tail = x.shape[x.ndim - axes :]
    n = int(np.prod(tail))
    long = [None if a is None else np.asarray(a, np.longdouble) for a in (x, weight, bias, dy)]
    rows, down = long[0].reshape(-1, n), long[3].reshape(-1, n)
    gain = np.ones(n, np.longdouble) if long[1] is None else long[1].reshape(n)
    c = rows - (rows.sum(1, keepdims=True) / n if kind == "layer" else 0)
    r = 1 / np.sqrt((c * c).sum(1, keepdims=True) / n + np.longdouble(eps))
    h = c * r
    y = h * gain + (0 if long[2] is None else long[2].reshape(n))
    dh = down * gain
    dx = r * (dh - h * ((h * dh).sum(1, keepdims=True) / n))
    if kind == "layer":
        dx -= dx.sum(1, keepdims=True) / n
    dw, db = (down * h).sum(0).reshape(tail), down.sum(0).reshape(tail)
    found = [y.reshape(x.shape), dx.reshape(x.shape), None if weight is None else dw]
    return found if kind == "rms" else [*found, None if bias is None else db]
