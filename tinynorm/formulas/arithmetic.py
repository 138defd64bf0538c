"""Sums, products, quotients and powers."""

from .types import Array, Forward, Namespace, Needs

BOTH = (True, True)


def add(xp: Namespace, a: Array, b: Array) -> Forward:
    """y = a + b"""
    return a + b, None


def add_backward(xp: Namespace, dy: Array, cache: None) -> tuple[Array, Array]:
    """ā = ȳ ;   b̄ = ȳ"""
    return dy, dy


def subtract(xp: Namespace, a: Array, b: Array) -> Forward:
    """y = a − b"""
    return a - b, None


def subtract_backward(xp: Namespace, dy: Array, cache: None) -> tuple[Array, Array]:
    """ā = ȳ ;   b̄ = −ȳ"""
    return dy, -dy


def multiply(xp: Namespace, a: Array, b: Array, *, needs: Needs = BOTH) -> Forward:
    """y = a b"""
    return a * b, (a if needs[1] else None, b if needs[0] else None)


def multiply_backward(
    xp: Namespace, dy: Array, cache: tuple[Array, Array], needs: Needs = BOTH
) -> tuple[Array | None, Array | None]:
    """ā = ȳ b ;   b̄ = ȳ a"""
    a, b = cache
    return dy * b if needs[0] else None, dy * a if needs[1] else None


def divide(xp: Namespace, a: Array, b: Array, *, needs: Needs = BOTH) -> Forward:
    """y = a / b"""
    y = a / b
    return y, (y if needs[1] else None, b)


def divide_backward(
    xp: Namespace, dy: Array, cache: tuple[Array, Array], needs: Needs = BOTH
) -> tuple[Array, Array | None]:
    """ā = ȳ / b ;   b̄ = −ȳ a / b² = −ā y"""
    y, b = cache
    da = dy / b
    return da, -da * y if needs[1] else None


def negative(xp: Namespace, x: Array) -> Forward:
    """y = −x"""
    return -x, None


def negative_backward(xp: Namespace, dy: Array, cache: None) -> Array:
    """x̄ = −ȳ"""
    return -dy


def power(xp: Namespace, x: Array, p: Array, *, needs: Needs = BOTH) -> Forward:
    """y = xᵖ"""
    y = x**p
    return y, (x, p, y if needs[1] else None)


def power_backward(
    xp: Namespace, dy: Array, cache: tuple[Array, Array, Array], needs: Needs = BOTH
) -> tuple[Array | None, Array | None]:
    """x̄ = ȳ p xᵖ⁻¹ ;   p̄ = ȳ xᵖ log x ;   where one factor is 0, the product is 0, however large the other"""
    x, p, y = cache
    dx = None
    if needs[0]:
        # p − (p ≠ 0) is p − 1, except that 0 stays 0: 0·x⁻¹ would be 0·∞ at x = 0. (1·p makes a number of a bool.)
        base = xp.where((dy == 0) & (x == 0) & (p < 1), xp.ones_like(x), x)
        dx = dy * (p * base ** (1 * p - (p != 0)))
    # x + (x = 0) is x, except that 0 becomes 1, whose logarithm is 0. (+ 0·y gives it the shape and dtype of y.)
    dp = dy * (y * xp.log(x + (x == 0) + xp.zeros_like(y))) if needs[1] else None
    return dx, dp
