"""Arrays to test with: values made from a Generator, away from kinks by construction, and memory layouts.

A maker is any ``maker(rng, shape) -> array``. None throws draws away, so that a seed always gives the same array.
"""

from collections.abc import Callable
from math import prod

import numpy as np

from ..backend import namespace
from ..formulas.types import Array

Shape = tuple[int, ...]
Maker = Callable[[np.random.Generator, Shape], Array]


def real(rng: np.random.Generator, shape: Shape) -> Array:
    """Normal values, of either sign and mostly below 3.

    >>> import numpy as np
    >>> real(np.random.default_rng(0), (2,)).round(2)
    array([ 0.13, -0.13])
    """
    return np.asarray(rng.normal(size=shape))


def positive(rng: np.random.Generator, shape: Shape) -> Array:
    """From 0.3 to 3."""
    return np.asarray(rng.uniform(0.3, 3.0, shape))


def above(low: float) -> Maker:
    """From low + 0.3 to low + 3: above(-1.0) suits log1p."""
    return lambda rng, shape: np.asarray(low + rng.uniform(0.3, 3.0, shape))


def away_from_zero(rng: np.random.Generator, shape: Shape) -> Array:
    """Of either sign, from 0.3 to 3 in size."""
    return np.asarray(rng.choice([-1.0, 1.0], shape) * rng.uniform(0.3, 3.0, shape))


def with_zeros(rng: np.random.Generator, shape: Shape) -> Array:
    """Normal values, three in ten of them replaced by 0."""
    return np.asarray(rng.normal(size=shape) * (rng.random(shape) < 0.7))


def distinct(rng: np.random.Generator, shape: Shape) -> Array:
    """No two equal, none near 0: at least 0.3 lies between any two, and 0.07 between any and 0."""
    n = prod(shape)
    return np.asarray(0.3 * (rng.permutation(n) - n // 2 + 0.25)).reshape(shape)


def on_grid(offset: float) -> Maker:
    """Multiples of ½, moved by an offset: never equal to a value on a grid with another offset."""
    return lambda rng, shape: np.asarray(0.5 * rng.integers(-4, 5, shape) + offset)


def mask(rng: np.random.Generator, shape: Shape) -> Array:
    """True or False."""
    return np.asarray(rng.random(shape) < 0.5)


def below(high: int) -> Maker:
    """Integers from 0 to high − 1, such as class targets. Nothing differentiates them."""
    return lambda rng, shape: np.asarray(rng.integers(0, high, shape))


# Memory layouts: the same values (except for `repeated`, which makes them so), stored in another way


def strided(x: Array) -> Array:
    """Every other element of a larger block, along each axis."""
    block = namespace(x).zeros([2 * n for n in x.shape], x.dtype)
    view = block[(slice(None, None, 2),) * x.ndim]
    view[...] = x
    return view


def reversed_(x: Array) -> Array:
    """Negative strides on all axes."""
    backwards = (slice(None, None, -1),) * x.ndim
    return x[backwards].copy()[backwards]


def transposed(x: Array) -> Array:
    """Fortran order."""
    return x.T.copy().T


def repeated(x: Array) -> Array:
    """The first slice along the first axis over and over, with stride 0; NumPy's is read-only."""
    return namespace(x).broadcast_to(x[:1].copy(), x.shape)


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "strided": strided, "reversed": reversed_, "transposed": transposed, "repeated": repeated,
}  # fmt: skip
