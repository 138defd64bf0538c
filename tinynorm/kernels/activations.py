"""Activations and their slopes in one go, over pieces of x that stay in the cache.

What the slope f′(x) needs is at hand while y = f(x) is computed, above all an exponential. So the forward computes both
and keeps the slope, as large as x and in its place; the backward is one product, x̄ = ȳ f′(x).

    t = e^(−x) ;   y = 1 / (1 + t) ;   y′ = t y²                                  sigmoid
    t = e^(−z) ;   y = x / (1 + t) ;   y′ = (1 + x z′ t / (1 + t)) / (1 + t)      SiLU, z = x, and GELU's tanh form

No digits are lost here; but for large −z, t overflows, which it does not in the formulas. So each `run` returns a
number that is finite where all went well. Where it is not, what is out of range in its piece takes the formula.
"""

from collections.abc import Callable
from math import isfinite
from typing import Any

import numpy as np

from ..formulas import activations as formulas
from ..formulas import elementary
from ..formulas.types import Array
from . import buffers, threads
from .blocks import cut, quiet
from .kernel import Kernel, Needs, plain

PIECE = 16_384  #: elements that stay in the cache with all that is computed of them
FEW = 2048  #: up to so many elements, tanh's and leaky ReLU's formulas are as fast
LOW = -80.0  #: from here on, neither e^(−x) nor its products with x overflow in float32
HIGH = 1e6  #: and up to here, neither do some powers of x

Run = Callable[..., float]  #: run(x, y, t, sloped, **params) writes f(x) to y and, where it is wanted, f′(x) to t

_QUIET = quiet(all="ignore")


def activation(
    run: Run,
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    suits: Callable[..., bool],
    low: float = LOW,
    high: float = HIGH,
) -> Kernel:
    """The kernel of an activation that has these formulas, and a `run` for the numbers from low to high."""

    def piece(x: Array, y: Array, t: Array, sloped: bool, params: dict[str, Any]) -> None:
        if not isfinite(run(x, y, t, sloped, **params)):
            far = np.flatnonzero(~((x > low) & (x < high)))
            y[far], cache = forward(np, x[far], **params)
            if sloped:
                t[far] = backward(np, np.ones_like(x[far]), cache)

    def fast(needs: Needs, x: Array, **params: Any) -> tuple[Array, Any]:
        sloped, y = needs[0], buffers.like(x)
        if x.size <= PIECE:
            t = buffers.like(x)
            _QUIET.copy().run(piece, x.reshape(-1), y.reshape(-1), t.reshape(-1), sloped, params)
            return y, t if sloped else None
        slope = buffers.like(x) if sloped else None
        source, into, slopes = x.reshape(-1), y.reshape(-1), None if slope is None else slope.reshape(-1)

        def run_piece(part: slice) -> None:
            a = source[part]
            t = buffers.like(a) if slopes is None else slopes[part]
            _QUIET.copy().run(piece, a, into[part], t, sloped, params)

        threads.each(run_piece, cut(x.size, PIECE), x.size)
        return y, slope

    return Kernel(suits, fast, _backward)


def _backward(dy: Array, slope: Any, needs: Needs) -> tuple[Array]:
    """x̄ = ȳ f′(x)"""
    dx = buffers.like(slope)
    if dx.size < threads.ENOUGH or not dy.flags.c_contiguous:
        return (np.multiply(dy, slope, dx),)
    given, slopes, into = dy.reshape(-1), slope.reshape(-1), dx.reshape(-1)
    threads.each(lambda part: np.multiply(given[part], slopes[part], into[part]), cut(dx.size, PIECE), dx.size)
    return (dx,)


def _constants(*values: float) -> dict[str, list[Array]]:
    """Beside small arrays, arrays of no axes take half the time of Python's numbers."""
    return {char: [np.array(v, char) for v in values] for char in "fd"}


_ONE_TWO = _constants(1.0, 2.0)


def _sigmoid(x: Array, y: Array, t: Array, sloped: bool) -> float:
    one, _ = _ONE_TWO[x.dtype.char]
    np.exp(np.negative(x, t), t)
    sound = float(x.dot(t))
    np.add(t, one, y)
    np.divide(one, y, y)
    if sloped:
        np.multiply(t, y, t)
        np.multiply(t, y, t)
    return sound


def _silu(x: Array, y: Array, t: Array, sloped: bool) -> float:
    one, _ = _ONE_TWO[x.dtype.char]
    np.exp(np.negative(x, t), t)
    sound = float(x.dot(t))
    np.add(t, one, y)
    if sloped:
        np.multiply(t, x, t)
        np.divide(t, y, t)
        np.add(t, one, t)
        np.divide(t, y, t)
    np.divide(x, y, y)
    return sound


# −z as x times a polynomial in x², and z′ as one
_Z = _constants(
    -formulas.GELU_SCALE * formulas.GELU_CUBIC,
    -formulas.GELU_SCALE,
    3.0 * formulas.GELU_SCALE * formulas.GELU_CUBIC,
    formulas.GELU_SCALE,
)


def _gelu_tanh(x: Array, y: Array, t: Array, sloped: bool) -> float:
    one, _ = _ONE_TWO[x.dtype.char]
    cubic, linear, bend, slope = _Z[x.dtype.char]
    square, s = np.multiply(x, x, y), buffers.like(x)
    np.multiply(square, cubic, t)
    np.add(t, linear, t)
    np.multiply(t, x, t)
    np.exp(t, t)
    np.add(t, one, s)
    if not sloped:
        sound = float(square.dot(t))
    else:
        np.multiply(square, bend, square)
        np.add(square, slope, square)
        np.multiply(t, square, t)
        sound = float(x.dot(t))  # t z′ x, which grows beyond t x²
        np.multiply(t, x, t)
        np.divide(t, s, t)
        np.add(t, one, t)
        np.divide(t, s, t)
    np.divide(x, s, y)
    return sound


def _tanh(x: Array, y: Array, t: Array, sloped: bool) -> float:
    """y′ = sech² x = (2 / (e^x + e^(−x)))², which is 0 where one of the two is ∞"""
    if sloped:
        one, two = _ONE_TWO[x.dtype.char]
        np.exp(x, t)
        np.divide(one, t, y)
        np.add(t, y, t)
        np.divide(two, t, t)
        np.multiply(t, t, t)
    np.tanh(x, y)
    return 0.0


def _softplus(x: Array, y: Array, t: Array, sloped: bool) -> float:
    """y = log(1 + e^x) ;   y′ = 1 / (1 + e^(−x))"""
    np.log1p(np.exp(x, t), y)
    if sloped:
        one, _ = _ONE_TWO[x.dtype.char]
        np.divide(one, t, t)
        np.add(t, one, t)
        np.divide(one, t, t)
    return float(y.dot(y))


def _elu(x: Array, y: Array, t: Array, sloped: bool, alpha: float) -> float:
    """y = max(x, e^n − 1),   n = min(x, 0) ;   y′ = e^n, where α = 1"""
    y.fill(0.0)
    np.minimum(x, y, out=t)
    np.maximum(x, np.expm1(t, y), out=y)
    if sloped:
        np.exp(t, t)
    return 0.0


def _leaky_relu(x: Array, y: Array, t: Array, sloped: bool, negative_slope: float) -> float:
    """y = max(x, slope · x), where 0 < slope < 1 ;   y′ = slope + (1 − slope) [x > 0], which rounds to 1 where x > 0"""
    np.maximum(x, np.multiply(x, negative_slope, y), out=y)
    if sloped:
        np.multiply(x > 0.0, x.dtype.type(1.0 - negative_slope), t)
        np.add(t, negative_slope, t)
    return 0.0


def _many(x: Array) -> bool:
    return plain(x, FEW)


def _leaks(x: Array, *, negative_slope: float) -> bool:
    return 0.0 < negative_slope < 1.0 and plain(x, FEW)


sigmoid = activation(_sigmoid, formulas.sigmoid, formulas.sigmoid_backward, plain)
silu = activation(_silu, formulas.silu, formulas.silu_backward, plain)
gelu_tanh = activation(_gelu_tanh, formulas.gelu_tanh, formulas.gelu_tanh_backward, plain, low=-9.0)
softplus = activation(_softplus, formulas.softplus, formulas.softplus_backward, plain, -HIGH, -LOW)
tanh = activation(_tanh, elementary.tanh, elementary.tanh_backward, _many)
elu = activation(_elu, formulas.elu, formulas.elu_backward, lambda x, alpha: alpha == 1.0 and plain(x))
leaky_relu = activation(_leaky_relu, formulas.leaky_relu, formulas.leaky_relu_backward, _leaks)
