"""Sums, products, quotients and powers."""

from .types import Array, Forward, Namespace


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


def multiply(xp: Namespace, a: Array, b: Array) -> Forward:
    """y = a b"""
    return a * b, (a, b)


def multiply_backward(
    xp: Namespace, dy: Array, cache: tuple[Array, Array], needs: tuple[bool, ...]
) -> tuple[Array, Array]:
    """ā = ȳ b ;   b̄ = ȳ a"""
    a, b = cache
    return dy * b if needs[0] else None, dy * a if needs[1] else None


def divide(xp: Namespace, a: Array, b: Array) -> Forward:
    """y = a / b"""
    y = a / b
    return y, (y, b)


def divide_backward(
    xp: Namespace, dy: Array, cache: tuple[Array, Array], needs: tuple[bool, ...]
) -> tuple[Array, Array]:
    """ā = ȳ / b ;   b̄ = −ȳ a / b² = −ȳ y / b"""
    y, b = cache
    da = dy / b
    return da, -da * y if needs[1] else None


def negative(xp: Namespace, x: Array) -> Forward:
    """y = −x"""
    return -x, None


def negative_backward(xp: Namespace, dy: Array, cache: None) -> Array:
    """x̄ = −ȳ"""
    return -dy


def power(xp: Namespace, x: Array, p: Array) -> Forward:
    """y = xᵖ"""
    y = x**p
    return y, (x, p, y)


def power_backward(
    xp: Namespace, dy: Array, cache: tuple[Array, Array, Array], needs: tuple[bool, ...]
) -> tuple[Array, Array]:
    """x̄ = ȳ p xᵖ⁻¹, which is 0 where p = 0 ;   p̄ = ȳ xᵖ log x, which is 0 where x = 0 < p"""
    x, p, y = cache
    # p − (p ≠ 0) is p − 1, except that 0 stays 0: 0·x⁻¹ would be 0·∞ at x = 0.
    dx = dy * (p * x ** (p - (p != 0))) if needs[0] else None
    dp = dy * (y * xp.log(xp.where(x == 0, xp.ones_like(x), x))) if needs[1] else None
    return dx, dp
