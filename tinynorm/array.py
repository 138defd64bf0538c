"""Array functions under NumPy's names and arguments. Each takes Tensors, arrays, numbers or lists and gives a Tensor.

Gradients flow to every floating-point Tensor that requires one. The formulas are in `tinynorm.formulas`.
"""

from typing import Any

import numpy as np

from . import backend, checks, table
from .convert import sizes
from .errors import DTypeError
from .formulas.types import Axis
from .op import Op
from .subscripts import parse, repetition, unused
from .tensor import Tensor, apply, fresh, operand, plain_index, weak_lists

__all__ = [
    "abs", "broadcast_to", "clip", "concatenate", "cos", "cumsum", "einsum", "erf", "exp", "expm1", "log", "log1p",
    "logsumexp", "matmul", "max", "maximum", "mean", "min", "minimum", "prod", "reshape", "sin", "sqrt", "stack", "sum",
    "take", "tanh", "transpose", "var", "where",
]  # fmt: skip


def _of_one(op: Op, x: Any, **params: Any) -> Tensor:
    return apply(op, operand(op.name, x), **params)


def _several(name: str, tensors: Any) -> list[Tensor]:
    try:
        members = [t if isinstance(t, (list, tuple)) else operand(name, t) for t in tensors]
        return weak_lists(name, members)
    except TypeError as error:
        if isinstance(error, DTypeError):
            raise
        raise DTypeError(f"{name}: expects a sequence of tensors, not {type(tensors).__name__}") from error


# Element by element


def exp(x: Any) -> Tensor:
    """eˣ of each element.

    >>> import tinynorm as tn
    >>> tn.exp([0.0, 1.0]).numpy().round(4)
    array([1.    , 2.7183], dtype=float32)
    """
    return _of_one(table.exp, x)


def expm1(x: Any) -> Tensor:
    """eˣ − 1 of each element, with all its digits where x is tiny.

    >>> import tinynorm as tn
    >>> tn.expm1(1e-10)
    Tensor(1.e-10, dtype=float32)
    """
    return _of_one(table.expm1, x)


def log(x: Any) -> Tensor:
    """The natural logarithm of each element; −∞ at 0, nan below.

    >>> import tinynorm as tn
    >>> tn.log([1.0, 2.0]).numpy().round(4)
    array([0.    , 0.6931], dtype=float32)
    """
    return _of_one(table.log, x)


def log1p(x: Any) -> Tensor:
    """log(1 + x) of each element, with all its digits where x is tiny.

    >>> import tinynorm as tn
    >>> tn.log1p(1e-10)
    Tensor(1.e-10, dtype=float32)
    """
    return _of_one(table.log1p, x)


def sqrt(x: Any) -> Tensor:
    """The square root of each element; nan below 0. Its slope at 0 is ∞, but 0 · ∞ counts as 0 in its gradient.

    >>> import tinynorm as tn
    >>> tn.sqrt([4.0, 2.0])
    Tensor([2.       , 1.4142135], dtype=float32)
    """
    return _of_one(table.sqrt, x)


def tanh(x: Any) -> Tensor:
    """The hyperbolic tangent of each element.

    >>> import tinynorm as tn
    >>> tn.tanh([0.0, 0.5, 100.0]).numpy().round(4)
    array([0.    , 0.4621, 1.    ], dtype=float32)
    """
    return _of_one(table.tanh, x)


def sin(x: Any) -> Tensor:
    """The sine of each element, in radians.

    >>> import tinynorm as tn
    >>> tn.sin([0.0, 1.0]).numpy().round(4)
    array([0.    , 0.8415], dtype=float32)
    """
    return _of_one(table.sin, x)


def cos(x: Any) -> Tensor:
    """The cosine of each element, in radians.

    >>> import tinynorm as tn
    >>> tn.cos([0.0, 1.0]).numpy().round(4)
    array([1.    , 0.5403], dtype=float32)
    """
    return _of_one(table.cos, x)


def abs(x: Any) -> Tensor:
    """The magnitude of each element. The gradient at 0 is 0.

    >>> import tinynorm as tn
    >>> tn.abs([-2.0, 3.0])
    Tensor([2., 3.], dtype=float32)
    """
    return _of_one(table.absolute, x)


def erf(x: Any) -> Tensor:
    """The error function of each element, 2/√π ∫₀ˣ e^(−t²) dt.

    >>> import tinynorm as tn
    >>> tn.erf([0.0, 0.5]).numpy().round(4)
    array([0.    , 0.5205], dtype=float32)
    """
    return _of_one(table.erf, x)


def maximum(a: Any, b: Any) -> Tensor:
    """The larger of two elements. Where they are equal, each gets half the gradient.

    >>> import tinynorm as tn
    >>> tn.maximum([1.0, 5.0], [3.0, 4.0])
    Tensor([3., 5.], dtype=float32)
    """
    return apply(table.maximum, a, b)


def minimum(a: Any, b: Any) -> Tensor:
    """The smaller of two elements. Where they are equal, each gets half the gradient.

    >>> import tinynorm as tn
    >>> tn.minimum([1.0, 5.0], [3.0, 4.0])
    Tensor([1., 4.], dtype=float32)
    """
    return apply(table.minimum, a, b)


def where(condition: Any, a: Any, b: Any) -> Tensor:
    """a where the condition holds, b elsewhere. The condition is a constant.

    Both sides are computed, and the side that was not chosen gets a gradient of 0. Where that side is ∞ or nan by
    itself, its own backward may turn the 0 into nan (0 · ∞): give it harmless values there instead.

    >>> import tinynorm as tn
    >>> t = tn.tensor([-1.0, 2.0])
    >>> tn.where(t > 0, t, 0.0)
    Tensor([0., 2.], dtype=float32)
    """
    chosen = operand("where", condition)
    if chosen.dtype != np.bool_:
        raise DTypeError(f"where: condition must be bool, not {chosen.dtype}; write a comparison such as x != 0")
    if isinstance(condition, (bool, np.bool_)):  # a number goes with either device
        chosen = chosen.to(next((t.device for t in (a, b) if isinstance(t, Tensor)), chosen.device))
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):  # two numbers, and no dtype for them to take
        a, b = operand("where", a).to(chosen.device), operand("where", b).to(chosen.device)
    return apply(table.where, chosen, a, b)


def clip(x: Any, a_min: Any = None, a_max: Any = None, *, min: Any = None, max: Any = None) -> Tensor:
    """Each element, moved to the nearer bound when it lies outside of them; a bound that is None does not bind.

    The bounds have two names each, as in NumPy.

    Inside, both ends included, the gradient goes to x; outside, to the bound.

    >>> import tinynorm as tn
    >>> tn.clip([-3.0, 0.5, 3.0], -1.0, 1.0)
    Tensor([-1. ,  0.5,  1. ], dtype=float32)
    """
    return apply(table.clip, operand("clip", x), min if a_min is None else a_min, max if a_max is None else a_max)


# Reductions


def sum(x: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The sum over some axes, or all. Of nothing, it is 0.

    >>> import tinynorm as tn
    >>> tn.sum([[1.0, 2.0], [3.0, 4.0]], axis=0)
    Tensor([4., 6.], dtype=float32)
    """
    return operand("sum", x).sum(axis, keepdims)


def mean(x: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The mean over some axes, or all.

    >>> import tinynorm as tn
    >>> tn.mean([[1.0, 2.0], [3.0, 4.0]], axis=1)
    Tensor([1.5, 3.5], dtype=float32)
    """
    return operand("mean", x).mean(axis, keepdims)


def max(x: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The largest element over some axes, or all. Those that tie share the gradient equally.

    >>> import tinynorm as tn
    >>> tn.max([[1.0, 2.0], [3.0, 0.0]], axis=1)
    Tensor([2., 3.], dtype=float32)
    """
    return operand("max", x).max(axis, keepdims)


def min(x: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The smallest element over some axes, or all. Those that tie share the gradient equally.

    >>> import tinynorm as tn
    >>> tn.min([[1.0, 2.0], [3.0, 0.0]], axis=1)
    Tensor([1., 0.], dtype=float32)
    """
    return operand("min", x).min(axis, keepdims)


def prod(x: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The product over some axes, or all. Of nothing, it is 1. Its gradient is right also where factors are 0.

    >>> import tinynorm as tn
    >>> tn.prod([[1.0, 2.0], [3.0, 4.0]], axis=1)
    Tensor([ 2., 12.], dtype=float32)
    """
    return _of_one(table.prod, x, axis=axis, keepdims=keepdims)


def var(x: Any, axis: Axis = None, *, ddof: float = 0, keepdims: bool = False) -> Tensor:
    """The variance over some axes, or all: the squared deviations' sum is divided by n − ddof.

    >>> import tinynorm as tn
    >>> tn.var([1.0, 2.0, 3.0, 4.0])
    Tensor(1.25, dtype=float32)
    """
    return operand("var", x).var(axis, ddof=ddof, keepdims=keepdims)


def logsumexp(x: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """log Σ eˣ over some axes, or all, without overflow.

    >>> import tinynorm as tn
    >>> round(tn.logsumexp([1000.0, 1000.0]).item(), 3)
    1000.693
    """
    source = operand("logsumexp", x)
    source = source if source.dtype.kind == "f" else source.astype(np.float64)  # integers would wrap around
    return apply(table.logsumexp, source, axis=axis, keepdims=keepdims)


def cumsum(x: Any, axis: int | None = None) -> Tensor:
    """The running sum along an axis; over the flattened tensor when axis is None, as NumPy has it.

    >>> import tinynorm as tn
    >>> tn.cumsum([1.0, 2.0, 3.0])
    Tensor([1., 3., 6.], dtype=float32)
    """
    return _of_one(table.cumsum, x, axis=axis)


# Shapes and parts


def reshape(x: Any, shape: Any) -> Tensor:
    """The same elements in the same order in another shape; one -1 stands for what is left.

    >>> import tinynorm as tn
    >>> tn.reshape([1.0, 2.0, 3.0, 4.0], (2, -1))
    Tensor([[1., 2.],
            [3., 4.]], dtype=float32)
    """
    return operand("reshape", x).reshape(shape)


def transpose(x: Any, axes: tuple[int, ...] | None = None) -> Tensor:
    """The axes in another order; by default in reverse.

    >>> import tinynorm as tn
    >>> tn.transpose([[1.0, 2.0], [3.0, 4.0]])
    Tensor([[1., 3.],
            [2., 4.]], dtype=float32)
    """
    return operand("transpose", x).transpose(axes)


def broadcast_to(x: Any, shape: Any) -> Tensor:
    """x repeated along new and length-1 axes, as a view.

    >>> import tinynorm as tn
    >>> tn.broadcast_to([1.0, 2.0], (2, 2))
    Tensor([[1., 2.],
            [1., 2.]], dtype=float32)
    """
    return _of_one(table.broadcast_to, x, shape=sizes("broadcast_to", (shape,)))


def concatenate(tensors: Any, axis: int | None = 0) -> Tensor:
    """The tensors one after another along an axis that they have; flattened when axis is None.

    >>> import tinynorm as tn
    >>> tn.concatenate([[1.0], [2.0, 3.0]])
    Tensor([1., 2., 3.], dtype=float32)
    """
    members = _several("concatenate", tensors)
    if axis is None:
        members, axis = [t.reshape(-1) for t in members], 0
    return apply(table.concatenate, *members, axis=axis)


def stack(tensors: Any, axis: int = 0) -> Tensor:
    """The tensors, all of one shape, side by side along a new axis.

    >>> import tinynorm as tn
    >>> tn.stack([[1.0, 2.0], [3.0, 4.0]], axis=1)
    Tensor([[1., 3.],
            [2., 4.]], dtype=float32)
    """
    return apply(table.stack, *_several("stack", tensors), axis=axis)


def take(x: Any, indices: Any, axis: int | None = None) -> Tensor:
    """The elements, or slices along an axis, at integer indices; of the flattened tensor when axis is None.

    >>> import tinynorm as tn
    >>> tn.take([[1.0, 2.0], [3.0, 4.0]], [1, 1, 0], axis=1)
    Tensor([[2., 2., 1.],
            [4., 4., 3.]], dtype=float32)
    """
    source, chosen = operand("take", x), operand("take", indices)
    if chosen.dtype.kind not in "iu":
        raise DTypeError(f"take: indices must be integers, not {chosen.dtype}")
    if axis is None:
        source, axis = source.reshape(-1), 0
    checks.one_axis("take", source._data, axis=axis)
    index = (*(slice(None),) * (axis % source.ndim), chosen)
    return apply(table.take, source, index=plain_index("take", index, source._data))


# Products


def matmul(a: Any, b: Any) -> Tensor:
    """The matrix product over the last two axes; leading axes broadcast, and vectors count as a row or a column.

    >>> import tinynorm as tn
    >>> tn.matmul([[1.0, 2.0], [3.0, 4.0]], [1.0, 1.0])
    Tensor([3., 7.], dtype=float32)
    """
    return apply(table.matmul, a, b)


def einsum(subscripts: str, *operands: Any) -> Tensor:
    """Einstein's summation: products of elements with equal labels, summed over the labels that the output lacks.

    Takes NumPy's string form, ellipses and repeated labels included.

    >>> import tinynorm as tn
    >>> tn.einsum("ij,kj->ik", [[1.0, 2.0]], [[3.0, 4.0], [5.0, 6.0]])
    Tensor([[11., 17.]], dtype=float32)
    """
    tensors = _several("einsum", operands)
    inputs, output = parse(subscripts, [t.shape for t in tensors])
    for k in range(len(tensors)):  # a diagonal is a product with the identity matrix
        while (repeated := repetition(inputs[k])) is not None:
            spare = unused(inputs)
            array = tensors[k]._data
            with backend.on_device_of(array, "einsum"):
                eye = backend.namespace(array).eye(array.shape[repeated], dtype=array.dtype)
            tensors.append(fresh(eye))
            inputs.append(inputs[k][repeated] + spare)
            inputs[k] = inputs[k][:repeated] + spare + inputs[k][repeated + 1 :]
    return apply(table.einsum, *tensors, inputs=tuple(inputs), output=output)
