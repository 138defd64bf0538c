"""Functions that choose among values: the larger, the smaller, this or that, within bounds."""

from .types import Array, Forward, Namespace


def maximum(xp: Namespace, a: Array, b: Array) -> Forward:
    """y = max(a, b)"""
    return xp.maximum(a, b), (a, b)


def maximum_backward(xp: Namespace, dy: Array, cache: tuple[Array, Array]) -> tuple[Array, Array]:
    """The larger one gets ȳ ; where a = b, each gets ȳ/2"""
    a, b = cache
    return _winner(xp, dy, a > b, a == b), _winner(xp, dy, b > a, a == b)


def minimum(xp: Namespace, a: Array, b: Array) -> Forward:
    """y = min(a, b)"""
    return xp.minimum(a, b), (a, b)


def minimum_backward(xp: Namespace, dy: Array, cache: tuple[Array, Array]) -> tuple[Array, Array]:
    """The smaller one gets ȳ ; where a = b, each gets ȳ/2"""
    a, b = cache
    return _winner(xp, dy, a < b, a == b), _winner(xp, dy, b < a, a == b)


def _winner(xp: Namespace, dy: Array, wins: Array, ties: Array) -> Array:
    return xp.where(ties, 0.5 * dy, xp.where(wins, dy, xp.zeros_like(dy)))


def where(xp: Namespace, condition: Array, a: Array, b: Array) -> Forward:
    """y = a where the condition holds, b elsewhere"""
    return xp.where(condition, a, b), condition


def where_backward(xp: Namespace, dy: Array, condition: Array) -> tuple[None, Array, Array]:
    """ā = ȳ where the condition holds, else 0 ;   b̄ the other way round ;   the condition is a constant"""
    zero = xp.zeros_like(dy)
    return None, xp.where(condition, dy, zero), xp.where(condition, zero, dy)


def clip(xp: Namespace, x: Array, a_min: Array | None, a_max: Array | None) -> Forward:
    """y = min(max(x, a_min), a_max) ; a bound that is None does not bind"""
    raised = x if a_min is None else xp.maximum(x, a_min)
    y = raised if a_max is None else xp.minimum(raised, a_max)
    return y, (x, a_min, raised, a_max)


def clip_backward(xp: Namespace, dy: Array, cache: tuple[Array, ...]) -> tuple[Array, ...]:
    """ȳ goes to what y was taken from: to x where a_min ≤ x ≤ a_max (both ends included), else to the bound"""
    x, a_min, raised, a_max = cache
    zero = xp.zeros_like(dy)
    to_min = to_max = None
    if a_max is not None:
        high = raised > a_max
        dy, to_max = xp.where(high, zero, dy), xp.where(high, dy, zero)
    if a_min is not None:
        low = x < a_min
        dy, to_min = xp.where(low, zero, dy), xp.where(low, dy, zero)
    return dy, to_min, to_max
