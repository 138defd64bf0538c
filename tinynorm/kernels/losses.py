"""Softmax-cross-entropy in few passes.

With d = z − max z, e = e^d, S = Σ e, a row's mass m = Σ q and the gradient ℓ̄ of its loss,

    ℓ = m log S − Σ q d                      forward
    z̄ = e (m ℓ̄ / S) − q ℓ̄                    backward
"""

from typing import Any

import numpy as np

from ..formulas.losses import LIKELY, spread
from ..formulas.types import Array
from . import buffers
from .blocks import each_block
from .kernel import Kernel

FEW = 2048  #: up to so many elements the formula is as fast


def _suits(z: Array, *, q: Array, divisor: float | None = None) -> bool:
    plain = z.dtype.char in "fd" and z.flags.c_contiguous and z.size > FEW
    return plain and q.dtype is z.dtype and q.shape == z.shape and q.flags.c_contiguous


def _forward(needs: tuple[bool, ...], z: Array, *, q: Array, divisor: float | None = None) -> tuple[Array, Any] | None:
    """ℓ = m log S − Σ q d, or None where a row counts for nothing or a number is not finite"""
    classes = z.shape[-1]
    scores, shares, e = z.reshape(-1, classes), q.reshape(-1, classes), buffers.like(z)
    into = e.reshape(-1, classes)
    loss, mass, total_e = np.empty((3, len(scores), 1), z.dtype)

    def run(block: slice) -> bool:
        d, m, mass_e, value = into[block], mass[block], total_e[block], loss[block]
        np.subtract(scores[block], np.maximum.reduce(scores[block], -1, keepdims=True), d)
        np.vecdot(shares[block], d, value[:, 0])
        np.exp(d, d)
        np.add.reduce(d, -1, keepdims=True, out=mass_e)
        np.add.reduce(shares[block], -1, keepdims=True, out=m)
        log_mass_e = np.log(mass_e)
        near, top = _near_1(d, mass_e)
        if len(near):
            others = d[near]
            others[np.arange(len(near)), top] = 0.0
            log_mass_e[near] = np.log1p(np.add.reduce(others, -1, keepdims=True))
        np.subtract(m * log_mass_e, value, value)
        return bool(np.isfinite(value).all() and m.all())

    if not all(each_block(run, *scores.shape)):
        return None
    lead = z.shape[:-1]
    y = loss.reshape(lead) if divisor is None else np.asarray(np.add.reduce(loss, None) / divisor)
    return y, (e, total_e, q, mass, divisor)


def _near_1(e: Array, total_e: Array) -> tuple[Array, Array]:
    """In which rows the largest p, 1 / S, is so near to 1 that log p and p m − q lose digits ; and where it is."""
    near = np.flatnonzero(total_e[:, 0] * LIKELY <= 1.0)
    return near, e[near].argmax(-1) if len(near) else near


def _backward(dy: Array, cache: Any, needs: tuple[bool, ...]) -> tuple[Array]:
    """z̄ = e (m ℓ̄ / S) − q ℓ̄ ; where the two may nearly cancel, from the others: a row's sum is 0"""
    e, total_e, q, mass, divisor = cache
    dz = buffers.like(e)
    classes = e.shape[-1]
    exps, shares, rows = e.reshape(-1, classes), q.reshape(-1, classes), dz.reshape(-1, classes)
    each = np.broadcast_to(spread(dy, divisor).reshape(-1, 1), total_e.shape)

    def run(block: slice) -> None:
        given, target = each[block], rows[block]
        np.multiply(exps[block], mass[block] * given / total_e[block], target)
        np.subtract(target, shares[block] * given, target)
        near, top = _near_1(exps[block], total_e[block])
        if len(near):
            target[near, top] = 0.0
            target[near, top] = -np.add.reduce(target[near], -1)

    each_block(run, *exps.shape)
    return (dz,)


cross_entropy = Kernel(_suits, _forward, _backward)
