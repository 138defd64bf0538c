"""Elementary functions of one variable."""

from math import pi
from math import sqrt as sqrt_of

from . import special
from .types import Array, Forward, Namespace


def exp(xp: Namespace, x: Array) -> Forward:
    """y = eˣ"""
    y = xp.exp(x)
    return y, y


def exp_backward(xp: Namespace, dy: Array, y: Array) -> Array:
    """x̄ = ȳ y"""
    return dy * y


def expm1(xp: Namespace, x: Array) -> Forward:
    """y = eˣ − 1, right also where x is tiny"""
    return xp.expm1(x), x


def expm1_backward(xp: Namespace, dy: Array, x: Array) -> Array:
    """x̄ = ȳ eˣ, which y + 1 would give without its digits where x is far below 0"""
    return dy * xp.exp(x)


def log(xp: Namespace, x: Array) -> Forward:
    """y = log x"""
    return xp.log(x), x


def log_backward(xp: Namespace, dy: Array, x: Array) -> Array:
    """x̄ = ȳ / x"""
    return dy / x


def log1p(xp: Namespace, x: Array) -> Forward:
    """y = log(1 + x), right also where x is tiny"""
    return xp.log1p(x), x


def log1p_backward(xp: Namespace, dy: Array, x: Array) -> Array:
    """x̄ = ȳ / (1 + x)"""
    return dy / (1.0 + x)


def sqrt(xp: Namespace, x: Array) -> Forward:
    """y = √x"""
    y = xp.sqrt(x)
    return y, y


def sqrt_backward(xp: Namespace, dy: Array, y: Array) -> Array:
    """x̄ = ȳ / (2y), which is ∞ at 0; but where no cotangent arrives, none is sent on: 0/0 counts as 0"""
    nothing = (dy == 0) & (y == 0)
    return dy / xp.where(nothing, xp.ones_like(y), 2.0 * y)


def exponentials(xp: Namespace, x: Array) -> tuple[Array, Array]:
    """e^x and e^(−x), for quotients in which both occur

    They stop at x = ±85 (float64: ±700), before one overflows; the quotient is below the smallest number there.
    """
    far = 85.0 if x.dtype.char in "fF" else 700.0
    e = xp.exp(xp.minimum(xp.maximum(x, -far), far))
    return e, 1.0 / e


def tanh(xp: Namespace, x: Array) -> Forward:
    """y = tanh x"""
    return xp.tanh(x), x


def tanh_backward(xp: Namespace, dy: Array, x: Array) -> Array:
    """x̄ = ȳ sech² x,   sech x = 2 / (e^x + e^(−x)) ; 1 − tanh² is the same, but cancels far from 0"""
    e, inverse = exponentials(xp, x)
    e += inverse
    sech = 2.0 / e
    sech *= sech
    return dy * sech


def sin(xp: Namespace, x: Array) -> Forward:
    """y = sin x"""
    return xp.sin(x), x


def sin_backward(xp: Namespace, dy: Array, x: Array) -> Array:
    """x̄ = ȳ cos x"""
    return dy * xp.cos(x)


def cos(xp: Namespace, x: Array) -> Forward:
    """y = cos x"""
    return xp.cos(x), x


def cos_backward(xp: Namespace, dy: Array, x: Array) -> Array:
    """x̄ = −ȳ sin x"""
    return -dy * xp.sin(x)


def absolute(xp: Namespace, x: Array) -> Forward:
    """y = |x| ; a complex x is a real one that takes a complex step, and gives ±x, which is analytic"""
    return xp.where(x < 0, -x, x) if x.dtype.kind == "c" else xp.abs(x), x


def absolute_backward(xp: Namespace, dy: Array, x: Array) -> Array:
    """x̄ = ȳ sign(x) ; the subgradient at 0 is 0"""
    return xp.where(x < 0, -dy, xp.where(x > 0, dy, xp.zeros_like(dy)))


def erf(xp: Namespace, x: Array) -> Forward:
    """y = 2/√π ∫₀ˣ e^(−t²) dt"""
    return special.erf(xp, x), x


def erf_backward(xp: Namespace, dy: Array, x: Array) -> Array:
    """x̄ = ȳ · 2/√π · e^(−x²)"""
    return dy * (2.0 / sqrt_of(pi) * special.gaussian(xp, x))
