"""What the operations ask of their inputs. Each check raises a typed error that names the function, the arguments, what
was found and the remedy, before anything is computed."""

from collections.abc import Sequence
from math import ceil
from typing import Any

import numpy as np

from .errors import ArgumentError, DTypeError, GraphError, OutOfRangeError, ShapeError
from .formulas.summation import reduced_count
from .formulas.types import Array, Axis, Shape
from .options import number


def shape_of(value: Any) -> Shape:
    """The shape of an array; () for a scalar."""
    return getattr(value, "shape", ())


def broadcast(name: str, *operands: Array, **params: Any) -> None:
    """The operands' shapes must fit each other by NumPy's broadcasting rules; None is no operand."""
    present(name, *operands)
    broadcast_optional(name, *operands)


def present(name: str, *operands: Array) -> None:
    """None is no operand."""
    if any(v is None for v in operands):
        raise DTypeError(f"{name}: None is no number; every operand must be a tensor, an array or a number")


def broadcast_optional(name: str, *operands: Array | None) -> None:
    """As `broadcast`, but operands may be left out."""
    shapes = [shape_of(v) for v in operands if v is not None]
    if any(s != shapes[0] for s in shapes):
        broadcast_shapes(name, shapes)


def broadcast_shapes(name: str, shapes: list[Shape]) -> None:
    """Counted from the last axis, sizes must be equal or 1."""
    ndim = max(len(s) for s in shapes)
    padded = [(1,) * (ndim - len(s)) + s for s in shapes]
    if any(len(set(sizes) - {1}) > 1 for sizes in zip(*padded, strict=True)):
        found = " and ".join(str(s) for s in shapes)
        raise ShapeError(
            f"{name}: shapes {found} do not broadcast; counted from the last axis, sizes must be equal or 1, so "
            "reshape or transpose one of them"
        )


def one_axis(name: str, x: Array, *, axis: Any) -> None:
    """The axis must be an integer, and exist."""
    _integer_axis(name, axis)
    if not -x.ndim <= axis < x.ndim:
        raise OutOfRangeError(
            f"{name}: axis {axis} does not exist in shape {x.shape}; its {x.ndim} axes are numbered from 0"
        )


def _integer_axis(name: str, axis: Any) -> None:
    if not _is_integer(axis):
        raise DTypeError(f"{name}: axis must be an integer, not {axis!r}")


def _is_integer(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def line_axis(name: str, x: Array, *, axis: Any) -> None:
    """An axis to go along. As in NumPy, a scalar counts as a line of one element, whose axis is 0 or −1."""
    _integer_axis(name, axis)
    if x.ndim or axis not in (0, -1):
        one_axis(name, x, axis=axis)


def line_axis_or_all(name: str, x: Array, *, axis: Any) -> None:
    """An axis, or None."""
    if axis is not None:
        line_axis(name, x, axis=axis)


def reduction(name: str, x: Array, *, axis: Axis, **params: Any) -> None:
    """An axis, a tuple of axes that names none twice, or None for all."""
    if axis is None:
        return
    several = axis if isinstance(axis, tuple) else (axis,)
    if not all(_is_integer(a) for a in several):
        raise DTypeError(f"{name}: axis must be an integer, a tuple of integers or None, not {axis!r}")
    for a in several:
        line_axis(name, x, axis=a)
    if len({a % max(x.ndim, 1) for a in several}) < len(several):
        raise OutOfRangeError(f"{name}: axis {axis} names an axis of shape {x.shape} twice")


def nonempty_reduction(name: str, x: Array, *, axis: Axis, **params: Any) -> None:
    """The axes must exist and hold at least one element: there is no largest of none."""
    reduction(name, x, axis=axis)
    if reduced_count(x.shape, axis) == 0:
        raise ShapeError(
            f"{name}: shape {x.shape} has no elements along axis {axis}, and {name} of nothing is undefined"
        )


def variance(name: str, x: Array, *, axis: Axis, ddof: float, **params: Any) -> None:
    """More elements than `ddof`."""
    nonempty_reduction(name, x, axis=axis)
    n = reduced_count(x.shape, axis)
    if n <= ddof:
        raise ArgumentError(f"{name}: ddof={ddof} leaves nothing to divide by, with {n} elements along axis {axis}")


def indices(name: str, shape: Shape, index: Sequence[Any]) -> None:
    """Index arrays must name elements that exist.

    CuPy lets numbers that do not wrap around. To look for one on a device would mean to wait for it, so only those of
    the host are looked at; and of masks the shape.
    """
    lengths = [0 if part is None or part is Ellipsis else mask_axes(part) or 1 for part in index]
    axis = 0
    for part, length in zip(index, lengths, strict=True):
        if part is Ellipsis:
            axis += len(shape) - sum(lengths)
        elif mask_axes(part) and part.shape != shape[axis : axis + length]:
            raise OutOfRangeError(
                f"{name}: a mask of shape {part.shape} from axis {axis} on does not fit shape {shape}; "
                "a mask has the sizes of the axes that it stands for"
            )
        elif isinstance(part, np.ndarray) and part.dtype.kind in "iu" and part.size and axis < len(shape):
            n = shape[axis]
            for found in (int(part.min()), int(part.max())):
                if not -n <= found < n:
                    raise OutOfRangeError(f"{name}: index {found} does not exist on axis {axis} of shape {shape}")
        axis += length


def mask_axes(part: Any) -> int:
    """How many axes a mask stands for; 0 for what is none."""
    return part.ndim if getattr(part, "dtype", None) == np.bool_ else 0


def reshape(name: str, x: Array, *, shape: Shape) -> None:
    """The new shape must hold as many elements; one -1 stands for what is left."""
    known = 1
    for n in shape:
        known *= n if n != -1 else 1
    unknown = shape.count(-1)
    fits = known == x.size if unknown == 0 else unknown == 1 and known > 0 and x.size % known == 0
    if not fits or any(n < -1 for n in shape):
        raise ShapeError(
            f"{name}: {x.size} elements of shape {x.shape} cannot be arranged in shape {shape}, whose sizes must "
            f"multiply to {x.size}"
        )


def transpose(name: str, x: Array, *, axes: Shape | None) -> None:
    """The axes must be a permutation of the array's own."""
    if axes is not None and sorted(a % x.ndim if -x.ndim <= a < x.ndim else a for a in axes) != list(range(x.ndim)):
        raise OutOfRangeError(f"{name}: axes {axes} are not a permutation of the {x.ndim} axes of shape {x.shape}")


def broadcast_to(name: str, x: Array, *, shape: Shape) -> None:
    """The shape must be one that x can be repeated to."""
    lead = len(shape) - x.ndim
    if lead < 0 or any(n not in (1, m) for n, m in zip(x.shape, shape[lead:], strict=True)):
        raise ShapeError(f"{name}: shape {x.shape} does not broadcast to {shape}")


def concatenate(name: str, *arrays: Array, axis: int) -> None:
    """At least one array, with equal sizes on every other axis."""
    _some(name, arrays)
    first = arrays[0]
    one_axis(name, first, axis=axis)
    others = [s[: axis % first.ndim] + s[axis % first.ndim + 1 :] for s in (a.shape for a in arrays)]
    if any(a.ndim != first.ndim for a in arrays) or any(s != others[0] for s in others):
        found = ", ".join(str(a.shape) for a in arrays)
        raise ShapeError(f"{name}: shapes {found} differ on more than axis {axis}; only there may they differ")


def stack(name: str, *arrays: Array, axis: int) -> None:
    """At least one array, all of one shape."""
    _some(name, arrays)
    if any(a.shape != arrays[0].shape for a in arrays):
        raise ShapeError(f"{name}: shapes {', '.join(str(a.shape) for a in arrays)} differ; stacking needs equal ones")
    _integer_axis(name, axis)
    if not -arrays[0].ndim - 1 <= axis <= arrays[0].ndim:
        raise OutOfRangeError(f"{name}: axis {axis} cannot be a new axis of shape {arrays[0].shape}")


def _some(name: str, arrays: tuple[Array, ...]) -> None:
    if not arrays:
        raise ArgumentError(f"{name}: nothing to join; give at least one tensor")


def matmul(name: str, a: Array, b: Array) -> None:
    """Rows of a as long as columns of b, leading axes that broadcast."""
    present(name, a, b)
    sa, sb = shape_of(a), shape_of(b)
    if not sa or not sb:
        raise ShapeError(f"{name}: operands of shape {sa} and {sb}; a scalar has no matrix product, write * instead")
    if sa[-1] != sb[-2 if len(sb) > 1 else 0]:
        raise ShapeError(
            f"{name}: shapes {sa} and {sb} do not multiply: a's last axis has {sa[-1]} elements, "
            f"b's {'second-last' if len(sb) > 1 else 'only'} axis {sb[-2 if len(sb) > 1 else 0]}; transpose one of them"
        )
    if len(sa) > 2 or len(sb) > 2:
        broadcast_shapes(name, [sa[:-2], sb[:-2]])


def floating(name: str, **arrays: Array | None) -> None:
    """Each named array must be of a floating dtype: integer arithmetic would wrap around without a word."""
    for argument, array in arrays.items():
        if array is not None and array.dtype.kind != "f":
            raise DTypeError(
                f"{name}: {argument} must be floating-point, not {array.dtype}; convert it with .astype(np.float32)"
            )


def normalizable(name: str, shape: Shape) -> None:
    """A normalized_shape must have axes, and elements along each."""
    if not shape or any(n < 1 for n in shape):
        raise ShapeError(f"{name}: normalized_shape {shape} must hold one size or more, each at least 1")


def normalized(name: str, x: Array, shape: Shape, weight: Array | None, bias: Array | None = None) -> None:
    """x must end in `normalized_shape`, and weight and bias must have exactly that shape: no silent broadcast."""
    normalizable(name, shape)
    if x.shape[-len(shape) :] != shape:
        raise ShapeError(
            f"{name}: x has shape {x.shape}, which does not end in normalized_shape {shape}; "
            "normalized_shape is the size of the last axes, the ones that are normalized over"
        )
    for argument, array in (("weight", weight), ("bias", bias)):
        if array is not None and array.shape != shape:
            raise ShapeError(f"{name}: {argument} has shape {array.shape}, but must have normalized_shape {shape}")


def features(name: str, partial: Any, shape: Shape) -> int | None:
    """How many features a share of them is, ⌈p n⌉ with p as it is written; None for all."""
    p = number(name, "partial", partial)
    if not 0 < p <= 1:
        raise ArgumentError(f"{name}: partial must be a share of the features, above 0 and at most 1, not {p!r}")
    if p == 1:
        return None
    if len(shape) != 1:
        raise ShapeError(
            f"{name}: partial={p!r} takes the first features of one axis, but normalized_shape {shape} has "
            f"{len(shape)}; reshape x to merge them"
        )
    from fractions import Fraction  # which takes a while to import

    return ceil(Fraction(repr(p)) * shape[0])


def linear(name: str, x: Array, weight: Array, bias: Array | None) -> None:
    """x (..., in), weight (out, in), bias (out,)."""
    if weight.ndim != 2:
        raise ShapeError(f"{name}: weight must have shape (out, in), not {weight.shape}")
    if x.ndim == 0 or x.shape[-1] != weight.shape[1]:
        raise ShapeError(
            f"{name}: x has shape {x.shape} and weight {weight.shape}; the last axis of x must have "
            f"{weight.shape[1]} elements, weight being (out, in)"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ShapeError(f"{name}: bias has shape {bias.shape}, but weight {weight.shape} needs {weight.shape[:1]}")


def constant(name: str, **arrays: Any) -> None:
    """No gradient can be asked for here."""
    for argument, array in arrays.items():
        if array is not None and array.requires_grad:
            raise GraphError(f"{name}: {argument} gets no gradient here; pass {argument}.detach()")


def same_shape(name: str, **arrays: Array) -> None:
    """Two arrays that are compared element by element: no silent broadcast."""
    (first, a), (second, b) = arrays.items()
    if a.shape != b.shape:
        raise ShapeError(f"{name}: {first} has shape {a.shape} and {second} {b.shape}; they must be equal")


def class_targets(name: str, argument: str, scores: Array, target: Array, weight: Array | None) -> None:
    """scores (C,), (N, C) or (N, C, ...), one integer for each row, one weight for each class."""
    if scores.ndim == 0:
        raise ShapeError(f"{name}: {argument} is a scalar; it must have shape (C,), (N, C) or (N, C, ...)")
    axis = 0 if scores.ndim == 1 else 1
    classes, rows = scores.shape[axis], scores.shape[:axis] + scores.shape[axis + 1 :]
    if target.dtype.kind not in "iu":
        raise DTypeError(f"{name}: target must hold integer class indices, not {target.dtype}")
    if target.shape != rows:
        raise ShapeError(
            f"{name}: {argument} of shape {scores.shape} needs a target of shape {rows}, one class index a row, "
            f"not {target.shape}"
        )
    if weight is not None and weight.shape != (classes,):
        raise ShapeError(f"{name}: weight has shape {weight.shape}, but there are {classes} classes")


def class_numbers(name: str, classes: int, target: Array, weight: Array | None, ignore_index: int) -> None:
    """Classes in 0 ... C − 1 or `ignore_index`, and weights that are not negative."""
    if weight is not None and not (weight >= 0).all():
        raise ArgumentError(f"{name}: weight must hold one number >= 0 for each class")
    if target.size == 0 or (target.min() >= 0 and target.max() < classes):
        return
    wrong = ((target < 0) | (target >= classes)) & (target != ignore_index)
    if wrong.any():
        raise OutOfRangeError(
            f"{name}: target holds {int(target[wrong][0])}, but the {classes} classes are numbered from 0; "
            f"rows to be left out are marked ignore_index={ignore_index}"
        )


def positive_weight(name: str, total: float) -> None:
    """A mean over rows needs some weight to divide by."""
    if not total > 0:
        raise ArgumentError(
            f"{name}: the mean over no rows is undefined: the batch is empty, every target is ignored, or all their "
            'classes weigh 0; use reduction="sum"'
        )
