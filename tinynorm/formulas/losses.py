"""Losses: one value per row, or their sum over a divisor, which is how a sum (1) and a mean (n) are both written.

A row's target is a distribution q over the classes: one-hot for a plain class index, spread out under label smoothing,
scaled by class weights, all zeros for an ignored row. `Targets.distribution` writes all four as one array, so that each
loss has one formula.

Cross-entropy, derivation. ℓ = −Σ_c q_c log p_c with log p_c = z_c − log Σ_k e^(z_k). Since
∂ log p_c / ∂z_j = δ_cj − p_j,

    ∂ℓ/∂z_j = −Σ_c q_c (δ_cj − p_j) = p_j Σ_c q_c − q_j ,

the familiar softmax − target when q sums to 1. docs/derivations/cross-entropy.md has every step, and checks them.
"""

from math import nan
from typing import Any, NamedTuple

from .activations import log_probabilities
from .looking import some
from .summation import total
from .types import Array, Forward, Namespace

LIKELY = 0.75  #: from here on p − 1 has lost digits


class Targets(NamedTuple):
    """Which class each row belongs to, and how much that counts: constants, plain arrays also where scores are Tensors.

    Args:
        classes: 0, 1, …, C − 1.
        index: integers, the class t of each row, of any shape; of any value in rows that are not kept.
        weight: w, one number for each of the C classes.
        kept: for each row whether it counts, or None where all do.
        label_smoothing: s.
    """

    classes: Array
    index: Array
    weight: Array
    kept: Array | None
    label_smoothing: float

    def distribution(self, xp: Namespace) -> Array:
        """q = (1 − s) w_t · onehot(t) + (s / C) w, zero where a row is not kept, nan where its class does not exist

        q gets the classes as a last axis.
        """
        classes, t, w, kept, s = self
        nothing = xp.zeros_like(w)
        q = xp.where(t[..., None] == classes, (1.0 - s) * w, nothing)
        if s:
            q = q + s / classes.size * w
        strange = (t < 0) | (t >= classes.size)
        if kept is not None:
            q, strange = xp.where(kept[..., None], q, nothing), strange & kept
        return xp.where(strange[..., None], nothing + nan, q) if some(xp, strange) else q

    def total_weight(self, xp: Namespace) -> Array:
        """Σ w_t over the rows that are kept, by which a mean divides, in float64"""
        classes, t, w, kept, _ = self
        counts = (t >= 0) & (t < classes.size)
        counts = counts if kept is None else counts & kept
        weights = xp.concatenate([w, xp.zeros(1, w.dtype)])  # and 0 at C, for the others
        return xp.sum(weights[xp.where(counts, t, classes.size)], dtype=float)


def reduced(xp: Namespace, loss: Array, divisor: Any) -> Array:
    """Σ ℓ / divisor, or each ℓ where the divisor is None. A float16 result is rounded after the division only."""
    return loss if divisor is None else total(xp, loss) / divisor


def spread(dy: Array, divisor: Any) -> Array:
    """The gradient of each ℓ."""
    return dy if divisor is None else dy / divisor


def nll_loss(xp: Namespace, log_p: Array, *, target: Targets, divisor: Any = None) -> Forward:
    """ℓ = −Σ_c q_c log p_c, where q_c = 0 silences even log p_c = −∞"""
    q = target.distribution(xp)
    return _nll(xp, log_p, q, divisor), (q, divisor)


def nll_loss_backward(xp: Namespace, dy: Array, cache: tuple[Array, Any]) -> Array:
    """∂ℓ/∂ log p_c = −q_c"""
    q, divisor = cache
    return -q * spread(dy, divisor)[..., None]


def _nll(xp: Namespace, log_p: Array, q: Array, divisor: Any) -> Array:
    heard = xp.where(q == 0, xp.zeros_like(log_p), log_p)
    return reduced(xp, -total(xp, q * heard, -1), divisor)


def cross_entropy(xp: Namespace, z: Array, *, target: Targets, divisor: Any = None) -> Forward:
    """ℓ = −Σ_c q_c log p_c,   p = softmax(z) ; where all q are 0, whatever z may be, even nan, is taken for 0"""
    q = target.distribution(xp)
    mass = total(xp, q, -1, True)
    ignored = mass == 0
    if some(xp, ignored):
        z = xp.where(ignored, xp.zeros_like(z), z)
    log_p, e, total_e = log_probabilities(xp, z, -1)
    return _nll(xp, log_p, q, divisor), (e, total_e, q, mass, divisor)


def cross_entropy_backward(xp: Namespace, dy: Array, cache: tuple[Array, Array, Array, Array, Any]) -> Array:
    """z̄ = ℓ̄ (p Σ_c q_c − q)"""
    e, total_e, q, mass, divisor = cache
    p = e / total_e
    dz = p * mass - q
    likely = p > LIKELY
    if some(xp, likely):
        dz = _balanced(xp, dz, likely)
    return dz * spread(dy, divisor)[..., None]


def _balanced(xp: Namespace, dz: Array, likely: Array) -> Array:
    """The one element of a row whose p and q may nearly cancel, from the others: the row's sum is 0"""
    others = xp.where(likely, xp.zeros_like(dz), dz)
    return xp.where(likely, -total(xp, others, -1, True), others)


def mse_loss(xp: Namespace, x: Array, target: Array, *, divisor: float | None = None) -> Forward:
    """ℓ = (x − t)²"""
    d = x - target
    return reduced(xp, d * d, divisor), (d, divisor)


def mse_loss_backward(xp: Namespace, dy: Array, cache: tuple[Array, float | None]) -> tuple[Array, Array]:
    """x̄ = 2 ℓ̄ (x − t) ;   t̄ = −x̄"""
    d, divisor = cache
    dx = 2.0 * spread(dy, divisor) * d
    return dx, -dx
