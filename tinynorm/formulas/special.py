"""The error function and the normal distribution, which NumPy lacks and exact GELU needs.

Both tails come from one smooth function, the scaled complement  erfcx(a) = exp(a²)·erfc(a),  a ≥ 0, which falls from 1
to 0 like 1/(a√π) and never underflows:

    erf(x) = 1 − exp(−x²)·erfcx(x)                x ≥ ½, and odd; below that, its Taylor series
    Φ(x)   = ½·exp(−x²/2)·erfcx(−x/√2)            x < 0, and Φ(x) = 1 − Φ(−x)

Every step on x is analytic and every branch is a comparison, so a complex step x + i·1e-30 carries the derivative.
Constants are Python floats, which leave the dtype of x as it is.

The coefficients: as a runs from 0 to ∞, t = (a − K)/(a + K) runs from −1 to 1, and (a + K)·erfcx(a) smoothly from K to
1/√π. With K = 4, the polynomial in t that meets it at the 25 Chebyshev nodes cos(π(j + ½)/25) is off by 5e-18. It was
solved for with 60 digits; tests/test_special.py solves again and must find the same floats.
"""

import math
from typing import Any

_K = 4.0

# (a + K)·erfcx(a) as a polynomial in t, highest power first.
_ERFCX = (
    -1.8622648765726154e-10,
    -7.64653997246155e-11,
    2.3248139490706373e-09,
    7.051218877756988e-10,
    -1.8208760359519016e-08,
    -2.753680956835059e-10,
    1.269526620028216e-07,
    -7.440264267692018e-08,
    -8.478822846448528e-07,
    1.423544943950122e-06,
    4.695056181536189e-06,
    -1.8860655851650423e-05,
    -3.635329756508496e-06,
    0.00017681276807153315,
    -0.0004550526593817673,
    -0.0002809588591883079,
    0.0061120556534863925,
    -0.026370053340693672,
    0.07638151490940508,
    -0.1740109372399329,
    0.3308515878780107,
    -0.5408538313132345,
    0.7732087022652371,
    -0.976548729080882,
    1.095995661000491,
)

# erf(x)/x as a polynomial in x², highest power first: Taylor, whose 13 terms reach 1e-19 for |x| ≤ ½.
_ERF = tuple(2 / math.sqrt(math.pi) * (-1) ** k / (math.factorial(k) * (2 * k + 1)) for k in reversed(range(13)))

# exp(−_FAR²/2) is 0 in every dtype, and _FAR² overflows in none.
_FAR = 200.0


def erf(xp: Any, x: Any) -> Any:
    """Error function, erf(x) = 2/√π ∫₀ˣ exp(−s²) ds, elementwise.

    Args:
        xp: the array module of x, for example numpy.
        x: floating point array or scalar of any shape.

    Returns:
        An array of the shape and dtype of x.

    >>> import numpy as np
    >>> erf(np, np.array([0.0, 0.5, -np.inf])).round(6).tolist()
    [0.0, 0.5205, -1.0]
    """
    a = _magnitude(xp, x)
    near = xp.where(a < 0.5, a, 0.5)  # the powers of a large a would overflow, though nobody reads them
    series = near * _polynomial(_ERF, near * near)
    size = xp.where(a < 0.5, series, 1.0 - _gaussian(xp, a, 1.0) * _erfcx(a))
    return xp.where(x < 0, -size, size)


def normal_cdf(xp: Any, x: Any) -> Any:
    """Distribution function of the standard normal, Φ(x) = ½ erfc(−x/√2), elementwise.

    The lower tail keeps its relative accuracy down to the smallest normal number. Arguments and result as in `erf`.

    >>> import numpy as np
    >>> [f"{p:.6g}" for p in normal_cdf(np, np.array([-30.0, 0.0, 1.96, np.inf]))]
    ['4.90671e-198', '0.5', '0.975002', '1']
    """
    ratio, density = normal_tail(xp, x)
    tail = ratio * density
    return xp.where(x < 0, tail, 1.0 - tail)


def normal_tail(xp: Any, x: Any) -> tuple[Any, Any]:
    """r and s with Φ(−|x|) = r·s and φ(x) = s/√(2π), s = exp(−x²/2). The argument as in `erf`."""
    a = _magnitude(xp, x)
    return 0.5 * _erfcx(a * math.sqrt(0.5)), _gaussian(xp, a, 0.5)


def gaussian(xp: Any, x: Any) -> Any:
    """exp(−x²), elementwise, with a relative error that does not grow with x. Arguments and result as in `erf`."""
    return _gaussian(xp, xp.minimum(xp.maximum(x, -_FAR), _FAR), 1.0)


def _magnitude(xp: Any, x: Any) -> Any:
    """|x| by comparison, since abs is not analytic; cut off where both functions have long been constant."""
    return xp.minimum(xp.where(x < 0, -x, x), _FAR)


def _gaussian(xp: Any, a: Any, scale: float) -> Any:
    """exp(−scale·a²), scale ½ or 1, with a relative error that does not grow with a.

    Rounding a² before exp would cost a²/2 units in the last place. For any s, exp(−a²) = exp(−s²)·exp(−(a − s)(a + s));
    an s of few digits has an exact square, and close to a it leaves a second exponent that is small.
    """
    s = xp.rint(a * 256.0) / 256.0  # for a < 16, s² fits the 24 bits of float32
    return xp.exp(-scale * s * s) * xp.exp(-scale * (a - s) * (a + s))


def _erfcx(a: Any) -> Any:
    """exp(a²)·erfc(a) for a ≥ 0."""
    d = a + _K
    t = 2.0 * a / d - 1.0  # (a − K)/(a + K), so written that rounding d costs nothing where a is small
    return _polynomial(_ERFCX, t) / d


def _polynomial(coefficients: tuple[float, ...], t: Any) -> Any:
    """Horner's rule, highest power first."""
    value = coefficients[0] * t + coefficients[1]
    for c in coefficients[2:]:
        value = value * t + c
    return value
