"""Sums that do not drift, however many terms they have.

NumPy adds pairwise along the axis whose elements lie beside each other in memory. Along any other axis it adds row
after row to a running total, and the rounding errors grow with the number of rows: the mean of 300,000 rows of float32
loses two of its seven digits. `total` adds eight rows at a time, then eight of these sums, and so on: no number is
rounded more than about seven times for each power of eight. Where rows are short this is also faster.
"""

from math import prod

from .types import Array, Axes, Axis, Namespace

FEW = 256  # so many terms are left to NumPy's order
_BLOCK = 8  # rows that are added to one another; equal rows, the worst case, then cost 2 eps (with 32 rows, 9 eps)
_WIDE = 2048  # short rows are taken several at a time, up to so many elements


def reduced_axes(ndim: int, axis: Axis) -> Axes:
    """The axes that are summed over, each as a number from 0 to ndim − 1. A scalar has none, whatever axis is given."""
    if axis is None or ndim == 0:
        return tuple(range(ndim))
    return tuple(a % ndim for a in (axis if isinstance(axis, tuple) else (axis,)))


def reduced_count(shape: tuple[int, ...], axis: Axis) -> int:
    """How many elements go into each result."""
    return prod(shape[a] for a in reduced_axes(len(shape), axis))


def total(xp: Namespace, x: Array, axis: Axis = None, keepdims: bool = False) -> Array:
    """Σ x over one axis, several, or all. Beyond FEW terms the error grows no further than to a few eps · Σ |x|."""
    axes = reduced_axes(x.ndim, axis)
    for a in _rows(x, axes):
        x = _cascade(xp, x, a)
    return xp.sum(x, axis=axes, keepdims=keepdims)


def average(xp: Namespace, x: Array, axis: Axis = None, keepdims: bool = False) -> Array:
    """Σ x / n, integers taken as float64. The sum itself must not overflow."""
    x = x if x.dtype.kind in "fc" else x.astype(float)
    return total(xp, x, axis, keepdims) / reduced_count(x.shape, axis)


def contracted(xp: Namespace, a: Array, b: Array) -> Array:
    """A B for matrices, also stacked ones. Where many terms go into each element, products of blocks are summed.

    A block is so long that the products of all blocks take a quarter of the memory of A and B.
    """
    m, n, p = a.shape[-2], a.shape[-1], b.shape[-1]
    block = max(32, 4 * m * p // max(m + p, 1))
    if n <= max(FEW, 4 * block):
        return xp.matmul(a, b)
    whole = n - n % block
    left = xp.swapaxes(xp.reshape(a[..., :whole], (*a.shape[:-1], whole // block, block)), -2, -3)
    right = xp.reshape(b[..., :whole, :], (*b.shape[:-2], whole // block, block, p))
    y = total(xp, xp.matmul(left, right), axis=-3)
    return y if whole == n else y + xp.matmul(a[..., whole:], b[..., whole:, :])


def _rows(x: Array, axes: Axes) -> list[int]:
    """The axes along which NumPy would add row after row, the outermost first; none where they hold few rows."""
    strides = getattr(x, "strides", None)  # a Tensor has none: its own sum comes back here with arrays
    if strides is None or reduced_count(x.shape, axes) <= FEW:
        return []
    inwards = [a for a in range(x.ndim) if x.shape[a] > 1]
    if all(strides[a] for a in inwards):  # a broadcast axis says nothing about the order, which is then C's
        inwards.sort(key=lambda a: -abs(strides[a]))
    rows = [a for a in inwards if a in axes]
    step = None
    for a in reversed(inwards):  # what lies in one run from the innermost axis on is added pairwise
        if a not in axes or step not in (None, abs(strides[a])):
            break
        step = abs(strides[a]) * x.shape[a]
        rows.remove(a)
    return rows if prod(x.shape[a] for a in rows) > FEW else []


def _cascade(xp: Namespace, x: Array, a: int) -> Array:
    """Σ x over axis a, which stays with length 1: blocks of rows, then blocks of their sums"""
    n = x.shape[a]
    if n <= _BLOCK:
        return xp.sum(x, axis=a, keepdims=True)
    width = prod(m for m, s in zip(x.shape, x.strides, strict=True) if abs(s) < abs(x.strides[a]))
    side = max(1, min(_WIDE // max(width, 1), n // _BLOCK))  # rows that are taken side by side
    whole = n - n % (side * _BLOCK)
    before, after = (slice(None),) * a, x.shape[a + 1 :]
    blocks = xp.reshape(x[(*before, slice(whole))], (*x.shape[:a], -1, _BLOCK, side, *after))
    sums = xp.reshape(xp.sum(blocks, axis=a + 1), (*x.shape[:a], whole // _BLOCK, *after))
    y = _cascade(xp, sums, a)
    return y if whole == n else y + _cascade(xp, x[(*before, slice(whole, None))], a)
