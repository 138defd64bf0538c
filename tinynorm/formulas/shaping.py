"""Operations that move elements and compute nothing: their backwards move the cotangent the other way."""

from typing import Any

from .types import Array, Forward, Namespace, Shape


def reshape(xp: Namespace, x: Array, *, shape: Shape) -> Forward:
    """The same elements in the same order, in another shape"""
    return xp.reshape(x, shape), x.shape


def reshape_backward(xp: Namespace, dy: Array, shape: Shape) -> Array:
    """x̄ = ȳ in the old shape"""
    return xp.reshape(dy, shape)


def transpose(xp: Namespace, x: Array, *, axes: Shape | None) -> Forward:
    """Axis i of y is axis axes[i] of x ; without axes, all in reverse"""
    return xp.transpose(x, axes), axes


def transpose_backward(xp: Namespace, dy: Array, axes: Shape | None) -> Array:
    """x̄ = ȳ transposed by the inverse permutation"""
    if axes is None:
        return xp.transpose(dy)
    n = len(axes)
    forward = [a % n for a in axes]
    return xp.transpose(dy, tuple(forward.index(i) for i in range(n)))


def broadcast_to(xp: Namespace, x: Array, *, shape: Shape) -> Forward:
    """x repeated along new and length-1 axes"""
    return xp.broadcast_to(x, shape), None


def broadcast_to_backward(xp: Namespace, dy: Array, cache: None) -> Array:
    """x̄ = ȳ ; the engine sums it back to the shape of x, as it does for every operand that was broadcast"""
    return dy


def concatenate(xp: Namespace, *arrays: Array, axis: int) -> Forward:
    """The arrays one after another along an axis that they already have"""
    return xp.concatenate(arrays, axis=axis), (axis % arrays[0].ndim, [a.shape for a in arrays])


def concatenate_backward(xp: Namespace, dy: Array, cache: tuple[int, list[Shape]]) -> tuple[Array, ...]:
    """Each array gets its own stretch of ȳ"""
    axis, shapes = cache
    pieces, start = [], 0
    for shape in shapes:
        stop = start + shape[axis]
        pieces.append(dy[(slice(None),) * axis + (slice(start, stop),)])
        start = stop
    return tuple(pieces)


def stack(xp: Namespace, *arrays: Array, axis: int) -> Forward:
    """The arrays side by side along a new axis"""
    y = xp.stack(arrays, axis=axis)
    return y, (axis % y.ndim, len(arrays))


def stack_backward(xp: Namespace, dy: Array, cache: tuple[int, int]) -> tuple[Array, ...]:
    """Each array gets its own slice of ȳ"""
    axis, count = cache
    return tuple(dy[(slice(None),) * axis + (i,)] for i in range(count))


def getitem(xp: Namespace, x: Array, *, index: Any) -> Forward:
    """y = x[index], for any index that NumPy takes"""
    return x[index], (x.shape, index)


def getitem_backward(xp: Namespace, dy: Array, cache: tuple[Shape, Any]) -> Array:
    """x̄ = ȳ at the elements that were taken, summed where one was taken more than once, 0 elsewhere"""
    shape, index = cache
    return scatter(xp, dy, shape=shape, index=index)[0]


def scatter(xp: Namespace, x: Array, *, shape: Shape, index: Any) -> Forward:
    """y = 0 everywhere, then y[index] += x ; the transpose of getitem"""
    if hasattr(xp, "scatter"):  # Tensors are not written to: among them this is one operation
        return xp.scatter(x, shape=shape, index=index), index
    y = xp.zeros(shape, dtype=x.dtype)
    parts = index if isinstance(index, tuple) else (index,)
    if all(part is None or part is Ellipsis or isinstance(part, (int, slice)) for part in parts):
        y[index] = x  # plain slices take nothing twice
    else:
        xp.add.at(y, index, x)
    return y, index


def scatter_backward(xp: Namespace, dy: Array, index: Any) -> Array:
    """x̄ = ȳ[index]"""
    return dy[index]


def astype(xp: Namespace, x: Array, *, dtype: Any) -> Forward:
    """x rounded to another dtype ; a complex x is a real one that takes a complex step, and stays so"""
    return x if x.dtype.kind == "c" else x.astype(dtype), None


def astype_backward(xp: Namespace, dy: Array, cache: None) -> Array:
    """x̄ = ȳ ; the engine gives every gradient the dtype of its input"""
    return dy
