"""The rules of `rules` in place, for NumPy's arrays: the same operations in the same order, so the same bits.

A rule makes fresh arrays for all that it computes. Here the new values are written over the old ones. A step moves
several parameters at once, as calls are what small ones cost: p and g are lists with an array for each, while the
moments, and the memory a for what comes in between, are single arrays in which each has its part. So only what reads
gradients or writes parameters goes from one to the next; everything else is one call for all.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import repeat
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ..formulas.types import Array, Shape
from ..kernels import buffers, threads
from ..kernels.blocks import BLOCK

Options = Mapping[str, Any]
Step = Callable[..., None]  #: step(p, g, a, *moments) writes to all but g; p and g are lists, the others `Split`


class Split(NamedTuple):
    """A flat array, and its parts in the shapes of the parameters."""

    whole: Array
    parts: list[Array]


class Constants(NamedTuple):
    """What a step of Adam multiplies by and adds, in the order of `Constants` in kernels/cuda/adamw.cu."""

    shrink: float
    decay: float
    keep1: float
    new1: float
    keep2: float
    new2: float
    least: float
    rate: float


class Spare:
    """Memory for what comes in between, for as many tasks as run at once, made before any of them begins to write."""

    def __init__(self, dtype: Any, size: int) -> None:
        self.blocks = [buffers.empty((BLOCK,), dtype) for _ in range(threads.at_once(size))]

    @contextmanager
    def lend(self, shape: Shape) -> Iterator[Array]:
        """An array of at most BLOCK elements."""
        block = self.blocks.pop()
        try:
            yield block[: prod(shape)].reshape(shape)
        finally:
            self.blocks.append(block)


class InPlace(NamedTuple):
    """A rule in place.

    Args:
        moments: ``moments(options)``, the names of the arrays that are kept.
        counted: whether "step" is kept too.
        make: ``make(number, spare, t, **options)``, the step number t, where `number` gives constants the arrays' dtype
            and `spare` makes a `Spare`.
        constants: ``constants(t, **options)``, those of the step number t, for the rules that
            `tinynorm.kernels.cuda.adamw` has as well.
    """

    moments: Callable[[Options], tuple[str, ...]]
    counted: bool
    make: Callable[..., Step]
    constants: Callable[..., Constants] | None = None


def _sgd(
    number: Callable[[float], Array],
    spare: Callable[[], Spare],
    t: int,
    *,
    lr: float,
    momentum: float,
    nesterov: bool,
    weight_decay: float,
) -> Step:
    """`rules.sgd`, or `rules.sgd_momentum`"""
    rate, keep, decay = number(lr), number(momentum), number(weight_decay) if weight_decay else None
    second = spare() if nesterov and weight_decay else None

    def plain(p: list[Array], g: list[Array], a: Split) -> None:
        _scaled_gradient(p, g, a, decay, rate)
        _each(np.subtract, p, a.parts, p)

    def heavy(p: list[Array], g: list[Array], a: Split, v: Split) -> None:
        if decay is not None:
            _decayed_gradient(p, g, a, decay)
            g = a.parts
        np.multiply(v.whole, keep, v.whole)
        _each(np.add, v.parts, g, v.parts)
        if second is not None:
            with second.lend(v.whole.shape) as ahead:
                np.add(a.whole, np.multiply(v.whole, keep, ahead), a.whole)
        elif nesterov:
            np.multiply(v.whole, keep, a.whole)
            _each(np.add, a.parts, g, a.parts)
        np.multiply(a.whole if nesterov else v.whole, rate, a.whole)
        _each(np.subtract, p, a.parts, p)

    return heavy if momentum else plain


def _adam_constants(
    t: int, *, lr: float, betas: tuple[float, float], eps: float, weight_decay: float, shrink: float = 1.0
) -> Constants:
    """Of `rules.adam`, after p ← p · shrink"""
    (beta1, beta2), unbiased = betas, (1.0 - betas[1] ** t) ** 0.5
    new1, new2 = 1.0 - beta1, (1.0 - beta2) ** 0.5 / (1.0 - beta1)
    rate = lr * unbiased / (1.0 - beta1**t)
    return Constants(shrink, weight_decay, beta1, new1, beta2, new2, eps * unbiased, rate)


def _adamw_constants(t: int, *, lr: float, weight_decay: float, **options: Any) -> Constants:
    """Of `rules.adamw`"""
    return _adam_constants(t, lr=lr, weight_decay=0.0, shrink=1.0 - lr * weight_decay, **options)


def _adam(number: Callable[[float], Array], constants: Constants) -> Step:
    """`rules.adam`, after p ← p · shrink"""
    smaller, decay, keep1, new1, keep2, new2, least, rate = map(number, constants)

    def step(p: list[Array], g: list[Array], a: Split, first: Split, second: Split) -> None:
        if constants.shrink != 1.0:
            _each(np.multiply, p, repeat(smaller), p)
        _scaled_gradient(p, g, a, decay if constants.decay else None, new1)
        x, m, v = a.whole, first.whole, second.whole
        np.multiply(m, keep1, m)
        np.add(m, x, m)
        np.multiply(x, new2, x)
        np.multiply(x, x, x)
        np.multiply(v, keep2, v)
        np.add(v, x, v)
        np.sqrt(v, x)
        np.add(x, least, x)
        np.divide(m, x, x)
        np.multiply(x, rate, x)
        _each(np.subtract, p, a.parts, p)

    return step


def _scaled_gradient(p: list[Array], g: list[Array], a: Split, decay: Array | None, factor: Array) -> None:
    """a ← factor (g + λ p)"""
    if decay is None:
        _each(np.multiply, g, repeat(factor), a.parts)
    else:
        _decayed_gradient(p, g, a, decay)
        np.multiply(a.whole, factor, a.whole)


def _decayed_gradient(p: list[Array], g: list[Array], a: Split, decay: Array) -> None:
    """a ← g + λ p"""
    _each(np.multiply, p, repeat(decay), a.parts)
    _each(np.add, a.parts, g, a.parts)


def _each(operation: np.ufunc, *operands: Any) -> None:
    """The operation for one parameter after the other. A loop in Python would take a tenth longer."""
    deque(map(operation, *operands), maxlen=0)


def _velocity(options: Options) -> tuple[str, ...]:
    return ("velocity",) if options["momentum"] else ()


def _with_two_means(constants: Callable[..., Constants]) -> InPlace:
    def make(number: Callable[[float], Array], spare: Callable[[], Spare], t: int, **options: Any) -> Step:
        return _adam(number, constants(t, **options))

    return InPlace(lambda options: ("m", "v"), True, make, constants)


sgd = InPlace(_velocity, False, _sgd)
adam, adamw = map(_with_two_means, (_adam_constants, _adamw_constants))
