"""GELU and erf in float32, by quotients of polynomials that are no more accurate than float32.

    Φ(−a) = e^(−a²/2) P(a) / Q(a), a ≥ 0 ;   y = x Φ(x) ;   y′ = Φ(x) + x φ(x)              GELU
    y = x P(x²) / Q(x²), 1 from x = EDGE on ;   y′ = 2/√π e^(−x²)                     erf

The coefficients, lowest power first, are those whose largest relative error is smallest: 5e-9 for 0 ≤ a ≤ 13, and 2e-8
for |x| ≤ EDGE. They were found by Remez' exchange with 40 digits, until the error had 11 extrema, or 12, of one size.
All are positive, so nothing cancels. tests/test_kernels_activations.py holds them against mpmath.
"""

from math import nan, pi, sqrt

import numpy as np

from ..formulas import activations, elementary
from ..formulas.types import Array
from . import buffers
from .activations import HIGH, activation
from .kernel import Kernel, plain

MILLS = np.array(
    [
        [0.5, 0.4349759, 0.18078378, 0.039808713, 0.0039943438, 0.0],
        [1.0, 1.6678367, 1.1923047, 0.4630002, 0.09979329, 0.010012185],
    ],
    np.float32,
)
ERF = np.array(
    [
        [1.1283791, 0.19040735, 0.052748844, 0.0037656561, 0.00028488383, 2.0500836e-06],
        [1.0, 0.50207686, 0.11410948, 0.014969295, 0.0011625454, 3.8091734e-05],
    ],
    np.float32,
)
EDGE = 3.92  #: where erf rounds to 1

LOWEST = -12.8  #: below, Φ(x) is nearly too small for float32, though x Φ(x) is not yet

_MINUS_HALF, _MINUS_ONE = np.array(-0.5), np.array(-1.0)
_DENSITY, _SLOPE = np.array(1 / sqrt(2 * pi), np.float32), np.array(2 / sqrt(pi), np.float32)


def _spare(x: Array) -> Array:
    """Eight rows: the powers of a, and then P and Q."""
    return buffers.empty((8, x.size), np.float32)


def _gaussian(x: Array, scale: Array, spare: Array, out: Array) -> None:
    """e^(scale · x²). In float32, rounding x² would cost as many units in the last place as the exponent has."""
    wide = spare[6:].reshape(-1).view(np.float64)
    np.copyto(wide, x)
    np.multiply(wide, wide, wide)
    np.multiply(wide, scale, wide)
    np.exp(wide, wide)
    np.copyto(out, wide, casting="same_kind")


def _quotient(coefficients: Array, spare: Array) -> Array:
    """P(a) / Q(a) for the a in the second row: both polynomials are one product of matrices."""
    powers, values = spare[:6], spare[6:]
    powers[0] = 1.0
    _, a, a2, a3, a4, a5 = powers
    np.multiply(a, a, a2)
    np.multiply(a, a2, a3)
    np.multiply(a2, a2, a4)
    np.multiply(a2, a3, a5)
    np.matmul(coefficients, powers, values)
    return np.divide(values[0], values[1], values[0])


def _gelu(x: Array, y: Array, t: Array, sloped: bool) -> float:
    """Φ(x) = |[x > 0] − Φ(−|x|)|"""
    spare = _spare(x)
    _gaussian(x, _MINUS_HALF, spare, t)
    np.abs(x, spare[1])
    cdf = _quotient(MILLS, spare)
    np.multiply(cdf, t, cdf)
    np.abs(np.subtract(x > 0.0, cdf, cdf), cdf)
    np.multiply(x, cdf, y)
    if sloped:
        np.multiply(t, x, t)
        np.multiply(t, _DENSITY, t)
        np.add(t, cdf, t)
    return 0.0 if np.minimum.reduce(x) > LOWEST and np.maximum.reduce(x) < HIGH else nan


def _erf(x: Array, y: Array, t: Array, sloped: bool) -> float:
    spare = _spare(x)
    if sloped:
        _gaussian(x, _MINUS_ONE, spare, t)
        np.multiply(t, _SLOPE, t)
    x.clip(-EDGE, EDGE, out=y)
    np.multiply(y, y, spare[1])
    np.multiply(y, _quotient(ERF, spare), y)
    y.clip(-1.0, 1.0, out=y)
    return 0.0


def _single(x: Array) -> bool:
    return x.dtype.char == "f" and plain(x)


gelu: Kernel = activation(_gelu, activations.gelu, activations.gelu_backward, _single, LOWEST)
erf: Kernel = activation(_erf, elementary.erf, elementary.erf_backward, _single)
