"""Random numbers: a `numpy.random.Generator` or a seed, given explicitly, or else a default one.

Numbers are always drawn on the host and moved afterwards, so that a seed gives the same bits on every device.
"""

from contextvars import ContextVar
from typing import TypeAlias

import numpy as np

from .errors import ArgumentError
from .options import count

Rng: TypeAlias = "np.random.Generator | int | None"  #: a generator, a seed for one, or the default one

_default: "ContextVar[np.random.Generator | None]" = ContextVar("tinynorm_generator", default=None)


def manual_seed(seed: int) -> "np.random.Generator":
    """Start the default generator anew from a seed, and return it.

    It serves whatever is not given an ``rng=`` of its own: initial weights, dropout, the order of batches. It belongs
    to the thread or async task that sets it; another thread should be given a generator of its own.

    >>> import tinynorm as tn
    >>> _ = tn.manual_seed(0)
    >>> a = tn.nn.Linear(2, 2).weight
    >>> _ = tn.manual_seed(0)
    >>> bool((a == tn.nn.Linear(2, 2).weight).data.all())
    True
    """
    fresh = generator(count("manual_seed", "seed", seed, least=0))
    _default.set(fresh)
    return fresh


def generator(rng: Rng) -> "np.random.Generator":
    """The generator that an ``rng=`` argument stands for: itself, one made from a seed, or the default one."""
    if isinstance(rng, np.random.Generator):
        return rng
    if rng is None:
        current = _default.get()
        if current is None:
            current = np.random.default_rng()
            _default.set(current)
        return current
    try:
        return np.random.default_rng(count("rng", "seed", rng, least=0))
    except ArgumentError as error:
        raise ArgumentError(f"rng: give a numpy.random.Generator, a seed of 0 or more, or None, not {rng!r}") from error
