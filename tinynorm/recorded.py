"""The array module of Tensors: what `xp` is when a formula runs on Tensors, and is itself recorded.

Differentiating a derivative takes no further formula. The forward of an operation runs again, this time on Tensors, so
that its cache knows what it was computed from; then its backward runs on them. Whatever a formula asks of `xp` is here,
under NumPy's name, as an operation that goes onto the tape. Only what is constant by nature has no history: masks,
signs, roundings, zeros.

A formula that asks for more cannot be differentiated again, and `tn.grad` says so and names the operation.
"""

from collections.abc import Callable
from typing import Any

from . import backend, table
from .array import *  # noqa: F403
from .array import concatenate, transpose
from .array import einsum as einsum_of
from .op import Op
from .tensor import Tensor, apply, fresh, operand


def __getattr__(name: str) -> Any:
    raise AttributeError(f"xp.{name} is not among the functions that run on Tensors (tinynorm/recorded.py lists them)")


# NumPy's functions for what Tensors have operators for


def _binary(op: Op) -> Callable[[Any, Any], Tensor]:
    return lambda a, b: apply(op, a, b)


add, subtract, multiply = _binary(table.add), _binary(table.subtract), _binary(table.multiply)
divide, power = _binary(table.divide), _binary(table.power)


def negative(x: Any) -> Tensor:
    """−x"""
    return apply(table.negative, x)


def square(x: Any) -> Tensor:
    """x²"""
    return apply(table.multiply, x, x)


# Constants


def _constant(name: str) -> Callable[..., Tensor]:
    """NumPy's function, whose result depends on its argument in steps or not at all."""

    def function(x: Any, **options: Any) -> Tensor:
        array = operand(name, x)._data
        with backend.on_device_of(array, name):
            return fresh(backend.as_array(getattr(backend.namespace(array), name)(array, **options)))

    return function


zeros_like, ones_like = _constant("zeros_like"), _constant("ones_like")
rint, floor, ceil, sign = _constant("rint"), _constant("floor"), _constant("ceil"), _constant("sign")
isnan, isinf, isfinite = _constant("isnan"), _constant("isinf"), _constant("isfinite")
any, all = _constant("any"), _constant("all")


# What formulas need besides


def frexp(x: Any) -> tuple[Tensor, Tensor]:
    """m and n with x = m 2ⁿ and ½ ≤ |m| < 1. The exponents n are integers, and constants."""
    array = operand("frexp", x)._data
    with backend.on_device_of(array, "frexp"):
        n = backend.as_array(backend.namespace(array).frexp(array)[1])
        return ldexp(x, fresh(-n)), fresh(n)


def ldexp(x: Any, n: Tensor) -> Tensor:
    """x 2ⁿ, in two steps, since 2ⁿ may be out of range where x 2ⁿ is not"""
    x, xp = operand("ldexp", x), backend.namespace(n._data)
    with backend.on_device_of(n._data, "ldexp"):
        one, half = xp.ones(n.shape, x.dtype), n._data // 2
        powers = [fresh(backend.as_array(xp.ldexp(one, part))) for part in (half, n._data - half)]
    return multiply(multiply(x, powers[0]), powers[1])


def asarray(x: Any, dtype: Any = None) -> Tensor:
    """x itself, as a Tensor; in another dtype where one is given."""
    return operand("asarray", x, dtype)


def swapaxes(x: Any, axis1: int, axis2: int) -> Tensor:
    """x with two axes exchanged."""
    axes = [*range(x.ndim)]
    axes[axis1], axes[axis2] = axes[axis2], axes[axis1]
    return transpose(x, tuple(axes))


def einsum(subscripts: str, *operands: Any, optimize: bool = True) -> Tensor:  # type: ignore[no-redef]
    """NumPy's einsum, whose order of products this library optimizes anyway."""
    return einsum_of(subscripts, *operands)


def cumprod(x: Tensor, axis: int) -> Tensor:
    """The running product, by doubling: what an element has gathered, times what ends where that begins."""
    lead, reach = (slice(None),) * (axis % x.ndim), 1
    while reach < x.shape[axis]:
        before = x[(*lead, slice(None, -reach))]
        x = concatenate([x[(*lead, slice(None, reach))], x[(*lead, slice(reach, None))] * before], axis=axis)
        reach *= 2
    return x


def scatter(x: Any, *, shape: tuple[int, ...], index: Any) -> Tensor:
    """Zeros, to which x is added at the index. Arrays are written to instead."""
    return apply(table.scatter, x, shape=shape, index=index)
