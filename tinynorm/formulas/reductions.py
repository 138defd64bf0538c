"""Reductions over one axis, several, or all (`axis=None`), and the running sum.

A reduction's backward first gives the cotangent its lost axes back, with length 1 (`_restore`), and then spreads it.
"""

from .looking import some
from .summation import average, reduced_axes, reduced_count, total
from .types import Array, Axis, Forward, Namespace


def _restore(xp: Namespace, dy: Array, shape: tuple[int, ...], axis: Axis) -> Array:
    """ȳ with the reduced axes back in place, each of length 1."""
    axes = reduced_axes(len(shape), axis)
    return xp.reshape(dy, tuple(1 if i in axes else n for i, n in enumerate(shape)))


def sum(xp: Namespace, x: Array, *, axis: Axis, keepdims: bool) -> Forward:
    """y = Σ x"""
    return total(xp, x, axis, keepdims), (x.shape, axis)


def sum_backward(xp: Namespace, dy: Array, cache: tuple[tuple[int, ...], Axis]) -> Array:
    """x̄ = ȳ, once for every element that was summed"""
    shape, axis = cache
    return xp.broadcast_to(_restore(xp, dy, shape, axis), shape)


def mean(xp: Namespace, x: Array, *, axis: Axis, keepdims: bool) -> Forward:
    """y = Σ x / n"""
    return average(xp, x, axis, keepdims), (x.shape, axis)


def mean_backward(xp: Namespace, dy: Array, cache: tuple[tuple[int, ...], Axis]) -> Array:
    """x̄ = ȳ / n"""
    shape, axis = cache
    return xp.broadcast_to(_restore(xp, dy, shape, axis) / reduced_count(shape, axis), shape)


def max(xp: Namespace, x: Array, *, axis: Axis, keepdims: bool) -> Forward:
    """y = max x"""
    return xp.max(x, axis=axis, keepdims=keepdims), (x, axis)


def min(xp: Namespace, x: Array, *, axis: Axis, keepdims: bool) -> Forward:
    """y = min x"""
    return xp.min(x, axis=axis, keepdims=keepdims), (x, axis)


def max_backward(xp: Namespace, dy: Array, cache: tuple[Array, Axis]) -> Array:
    """x̄ = ȳ at the largest element, shared equally by all that tie for it"""
    x, axis = cache
    return _share(xp, dy, x, xp.max(x, axis=axis, keepdims=True), axis)


def min_backward(xp: Namespace, dy: Array, cache: tuple[Array, Axis]) -> Array:
    """x̄ = ȳ at the smallest element, shared equally by all that tie for it"""
    x, axis = cache
    return _share(xp, dy, x, xp.min(x, axis=axis, keepdims=True), axis)


def _share(xp: Namespace, dy: Array, x: Array, winner: Array, axis: Axis) -> Array:
    chosen = (x == winner) | ((x != x) & (winner != winner))  # a nan wins over everything, and equals nothing
    ties = xp.sum(chosen, axis=axis, keepdims=True).astype(dy.dtype)
    return chosen * (_restore(xp, dy, x.shape, axis) / ties)


def prod(xp: Namespace, x: Array, *, axis: Axis, keepdims: bool) -> Forward:
    """y = Π x, multiplied in their order: a product may overflow on the way, and is then ∞, 0 or nan"""
    return xp.prod(x, axis=axis, keepdims=keepdims), (x, axis)


def prod_backward(xp: Namespace, dy: Array, cache: tuple[Array, Axis]) -> Array:
    """x̄ᵢ = ȳ Π_{j≠i} xⱼ: what stands left of i times what stands right of it, so that zeros divide nothing"""
    x, axis = cache
    axes = reduced_axes(x.ndim, axis)
    kept = tuple(i for i in range(x.ndim) if i not in axes)
    moved = xp.transpose(x, kept + axes)
    line = xp.reshape(moved, (*moved.shape[: len(kept)], reduced_count(x.shape, axis)))  # (..., n)
    one = xp.ones_like(line[..., :1])
    left = xp.cumprod(xp.concatenate([one, line[..., :-1]], axis=-1), axis=-1)
    right = xp.cumprod(xp.concatenate([one, line[..., :0:-1]], axis=-1), axis=-1)[..., ::-1]
    back = tuple((kept + axes).index(i) for i in range(x.ndim))
    others = xp.transpose(xp.reshape(left * right, moved.shape), back)
    return _restore(xp, dy, x.shape, axis) * others


def centred(xp: Namespace, x: Array, axis: Axis) -> tuple[Array, Array]:
    """c = x − mean(x), and mean(c²) with the reduced axes kept

    Where the mean is large beside the spread, its rounding would stay in c: there the mean of c is taken off once more.
    """
    axes = reduced_axes(x.ndim, axis)
    mean = average(xp, x, axes, keepdims=True)
    c = x - mean
    square = average(xp, c * c, axes, keepdims=True)
    far = xp.abs(mean) > 4.0 * xp.sqrt(square)
    if some(xp, far):
        c = c - xp.where(far, average(xp, c, axes, keepdims=True), 0.0)
        square = average(xp, c * c, axes, keepdims=True)
    return c, square


def var(xp: Namespace, x: Array, *, axis: Axis, ddof: float, keepdims: bool) -> Forward:
    """y = Σ c² / (n − ddof),   c = x − mean(x). Each c², and their sum, must be within the range of the dtype."""
    c, _ = centred(xp, x, axis)
    n = reduced_count(x.shape, axis) - ddof
    return total(xp, c * c, axis, keepdims) / n, (c, n, axis)


def var_backward(xp: Namespace, dy: Array, cache: tuple[Array, float, Axis]) -> Array:
    """x̄ = 2 ȳ c / (n − ddof), since ∂cᵢ/∂xⱼ = δᵢⱼ − 1/n and Σ c = 0"""
    c, n, axis = cache
    return _restore(xp, dy, c.shape, axis) * (c * (2.0 / n))


def logsumexp(xp: Namespace, x: Array, *, axis: Axis, keepdims: bool) -> Forward:
    """y = m + log Σ e^(x − m),   m = max x"""
    z, m, _ = shifted(xp, x, axis)
    e = xp.exp(z)
    log_mass, mass = log_total(xp, e, axis)
    y = m + log_mass
    return y if keepdims else _drop(xp, y, axis), (e, mass, axis)


def logsumexp_backward(xp: Namespace, dy: Array, cache: tuple[Array, Array, Axis]) -> Array:
    """x̄ = ȳ softmax(x), since ∂y/∂xⱼ = e^(xⱼ) / Σ eˣ ; infinities that tie for the maximum share it equally"""
    e, mass, axis = cache
    return _restore(xp, dy, e.shape, axis) * (e / mass)


def shifted(xp: Namespace, x: Array, axis: Axis) -> tuple[Array, Array, Array | None]:
    """x − m and m = max x, and in which rows several infinities tie for m (None where all m are finite)

    Where x = m the difference is 0, also if both are infinite. Of finite rows every derivative is right, ties included.
    """
    m = xp.max(x, axis=axis, keepdims=True)
    infinite = ~xp.isfinite(m)
    if not some(xp, infinite):
        return x - m, m, None
    largest = infinite & (x == m)
    z = xp.where(largest, xp.zeros_like(x), x) - xp.where(largest, xp.zeros_like(x), m)
    return z, m, xp.sum(largest, axis=axis, keepdims=True) > 1


def log_total(xp: Namespace, e: Array, axis: Axis) -> tuple[Array, Array]:
    """log Σ e and Σ e, where the largest e is 1"""
    mass = total(xp, e, axis, True)
    alone = mass < 1.3
    if not some(xp, alone):
        return xp.log(mass), mass
    # 1 + others would round the others away, and log1p does not.
    others = total(xp, e * (e != 1.0), axis, True)
    return xp.where(alone, xp.log1p(others), xp.log(mass)), mass


def _drop(xp: Namespace, y: Array, axis: Axis) -> Array:
    axes = reduced_axes(y.ndim, axis)
    return xp.reshape(y, tuple(n for i, n in enumerate(y.shape) if i not in axes))


def cumsum(xp: Namespace, x: Array, *, axis: int | None) -> Forward:
    """yᵢ = Σ_{j≤i} xⱼ, each from the one before it ; over the flattened array where axis is None"""
    return xp.cumsum(x, axis=axis), (x.shape, axis)


def cumsum_backward(xp: Namespace, dy: Array, cache: tuple[tuple[int, ...], int | None]) -> Array:
    """x̄ⱼ = Σ_{i≥j} ȳᵢ: the running sum from the other end"""
    shape, axis = cache
    end_to_start = (slice(None),) * (0 if axis is None else axis % dy.ndim) + (slice(None, None, -1),)
    return xp.reshape(xp.cumsum(dy[end_to_start], axis=axis)[end_to_start], shape)
