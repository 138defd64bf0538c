"""Gradients of bounded length."""

from collections.abc import Iterable
from math import hypot, inf, isfinite, sqrt

import numpy as np

from ..backend import as_array, device_of, namespace, on_device_of
from ..errors import ArgumentError
from ..formulas.types import Array, Namespace
from ..graph import Leaf
from ..kernels import buffers, enabled
from ..options import limit
from ..tensor import Tensor
from .groups import Parameters, tensors

NAME = "clip_grad_norm_"
BLOCK = 32_768  #: elements of a block, which in float64 fits a second-level cache
LEAST = 2.0**-126  #: the smallest factor that float32 holds to all its digits


def clip_grad_norm_(parameters: Parameters, max_norm: float, error_if_nonfinite: bool = True) -> float:
    """Shorten the gradients, seen as one long vector, to at most `max_norm`; return the length they had.

    n = √(Σ g²) over all elements of all gradients ;   g ← g · max_norm / n   where n > max_norm

    The underscore is PyTorch's: the parameters' gradients change. Each `grad` is bound to a new array; an array that
    somebody holds is not written to. (PyTorch divides by n + 1e-6 instead.) Sums are taken in float64 and scaled, so
    that float16 and float32 gradients of any size neither overflow nor vanish. Gradients on a device stay there: n is
    the one number that is copied to the host.

    Args:
        parameters: a module, or an iterable of parameters. Those without a gradient are skipped.
        max_norm: above 0; infinity measures only.
        error_if_nonfinite: whether a norm that is nan or infinite raises. Otherwise it is returned and the gradients
            stay as they are, so that a training loop can skip the step. (PyTorch makes nan and zeros of them.)

    Returns:
        n before clipping, a Python float; 0.0 when there is no gradient.

    Raises:
        ArgumentError: for a max_norm that is not above 0, a parameter that comes twice, and a norm that is not finite.
        DTypeError: for anything that is no Tensor.
        DeviceError: where a device has no memory for the new gradients. All are the old ones then.

    Source: Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural networks" (2013).

    >>> import tinynorm as tn
    >>> w = tn.tensor([0.0, 0.0], requires_grad=True)
    >>> (w * [3.0, 4.0]).sum().backward()
    >>> tn.optim.clip_grad_norm_([w], max_norm=1.0)
    5.0
    >>> w.grad
    array([0.6, 0.8], dtype=float32)
    """
    longest = limit(NAME, "max_norm", max_norm)
    members = tensors(NAME, parameters)
    leaves = [p._source for p in members if isinstance(p._source, Leaf)]
    gradients = [leaf.grad for leaf in leaves if leaf.grad is not None]
    norm = _norm(gradients)
    if not isfinite(norm):
        if error_if_nonfinite:
            raise ArgumentError(
                f"{NAME}: the norm of the gradients is {norm}{_first_culprit(members)}; nothing was changed. "
                "Pass error_if_nonfinite=False to get the norm back and skip the step"
            )
    elif norm > longest:
        scaled = [None if leaf.grad is None else _scaled(leaf.grad, longest / norm) for leaf in leaves]
        for leaf, gradient in zip(leaves, scaled, strict=True):  # once there is memory for all
            leaf.grad = gradient
    return norm


def _norm(gradients: list[Array]) -> float:
    """√(Σ g²), brought to the host from each device that there are gradients on."""
    if enabled() and _on_host(gradients) and _narrow(gradients) and isfinite(squares := _squares(gradients)):
        return sqrt(squares)
    devices: dict[str, list[Array]] = {}
    for g in gradients:
        if g.size:
            devices.setdefault(device_of(g), []).append(g)
    norms = []
    for on_it in devices.values():
        with on_device_of(on_it[0], NAME), np.errstate(all="ignore"):
            norms.append(float(_scaled_norm(namespace(on_it[0]), on_it)))
    return hypot(*norms)


def _scaled_norm(xp: Namespace, gradients: list[Array]) -> Array:
    """s √(Σ (g/s)²). With s the largest |g| no square overflows, and the largest of them is 1."""
    if _narrow(gradients):  # s = 1 will do
        return xp.sqrt(_total(xp, (xp.square(g, dtype=np.float64) for g in gradients)))
    largest = xp.stack([abs(g).max().astype(np.float64) for g in gradients]).max()
    s = xp.where((largest > 0.0) & (largest < inf), largest, 1.0)
    return s * xp.sqrt(_total(xp, (xp.square(_wide(g) / s) for g in gradients)))


def _total(xp: Namespace, arrays: Iterable[Array]) -> Array:
    """The sum over all, of which only one is there at a time."""
    return xp.stack([array.sum() for array in arrays]).sum()


def _squares(gradients: list[Array]) -> float:
    """Σ g² in float64, which holds the squares of all numbers of the narrow dtypes; s = 1 will do then."""
    wide, total = buffers.empty((BLOCK,), np.float64), 0.0
    for g in gradients:
        flat = g.reshape(-1)
        for low in range(0, flat.size, BLOCK):
            part = flat[low : low + BLOCK]
            block = wide[: part.size]
            block[...] = part
            total += float(np.dot(block, block))
    return total


def _scaled(g: Array, factor: float) -> Array:
    """A new array, g · factor. It is rounded once; twice where g's own dtype holds the factor to all its digits."""
    if enabled() and type(g) is np.ndarray and g.dtype.char in "fd" and factor >= LEAST:
        return np.multiply(g, np.array(factor, g.dtype), buffers.like(g))
    with on_device_of(g, NAME):
        return as_array((_wide(g) * factor).astype(g.dtype))


def _on_host(gradients: list[Array]) -> bool:
    return all(type(g) is np.ndarray for g in gradients)


def _narrow(gradients: list[Array]) -> bool:
    return all(g.dtype.char in "ef" for g in gradients)


def _wide(g: Array) -> Array:
    return g.astype(np.promote_types(g.dtype, np.float64), copy=False)


def _first_culprit(members: list[Tensor]) -> str:
    for i, p in enumerate(members):
        if p.grad is not None and not isfinite(_norm([p.grad])):
            return f", because of that of parameter {i}, of shape {p.shape}"
    return ""
