"""The tape: what was computed from what, and the walk back through it.

The graph knows arrays and formulas, no Tensors. A `Leaf` stands for a tensor whose gradient is wanted, a `Node` for the
result of one operation. Nodes point to their sources only, never forward, so a result that is dropped frees its whole
graph at once, and no reference cycle can form.
"""

from collections.abc import Callable
from contextlib import ContextDecorator
from contextvars import ContextVar
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import Any, TypeVar

import numpy as np

from .backend import as_array, on_device_of
from .convert import computed
from .errors import DTypeError, GraphError, ShapeError
from .formulas.types import Array, Namespace
from .memory import Guard, owner
from .op import Op

F = TypeVar("F", bound=Callable[..., Any])

_pauses: ContextVar[int] = ContextVar("tinynorm_pauses", default=0)


def is_recording() -> bool:
    """Whether operations are recorded here, that is, outside of every `no_grad`."""
    return _pauses.get() == 0


class no_grad(ContextDecorator):
    """Record nothing inside: results require no gradient and keep nothing for a backward.

    Works as ``with tn.no_grad():`` and as a decorator of functions, ``@tn.no_grad()``. It holds for the thread or async
    task that enters it and for no other.

    >>> import tinynorm as tn
    >>> w = tn.tensor([1.0, 2.0], requires_grad=True)
    >>> with tn.no_grad():
    ...     print((w * w).requires_grad)
    False
    """

    def __enter__(self) -> None:
        _pauses.set(_pauses.get() + 1)

    def __exit__(self, *exception: object) -> None:
        _pauses.set(_pauses.get() - 1)

    def __call__(self, function: F) -> F:
        """Decorate a function."""
        if any(test(function) for test in (isgeneratorfunction, iscoroutinefunction, isasyncgenfunction)):
            raise DTypeError(
                f"no_grad: {function.__name__} only starts when it is called and runs later, outside of the decorator; "
                "write `with no_grad():` inside it, around no yield"
            )
        return super().__call__(function)


class Leaf:
    """A tensor that gradients are collected for."""

    __slots__ = ("__weakref__", "dtype", "grad", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.shape, self.dtype = shape, dtype
        self.grad: Array | None = None


class Node:
    """The result of one recorded operation.

    Args:
        op: the operation.
        xp: the array module it ran on.
        y: its result, of which only shape and dtype are kept.
        sources: for each input its `Leaf` or `Node`, or None where no gradient is wanted.
        cache: what the backward formula needs; None once it has been freed.
        guards: how to notice that something in the cache was overwritten.
    """

    __slots__ = ("__weakref__", "cache", "dtype", "freed", "guards", "needs", "op", "shape", "sources", "xp")

    def __init__(
        self, op: Op, xp: Namespace, y: Array, sources: "tuple[Source | None, ...]", cache: Any, guards: list[Guard]
    ) -> None:
        self.op, self.xp, self.sources, self.cache, self.guards = op, xp, sources, cache, guards
        self.shape, self.dtype = y.shape, y.dtype
        self.needs = tuple(source is not None for source in sources)
        self.freed = False

    def check(self) -> None:
        """Raise `GraphError` when the cache is gone or no longer what it was."""
        if self.freed:
            raise GraphError(
                f"backward: the graph behind {self.op.name} was freed by an earlier backward, or by one that failed; "
                "to walk it again, call that one with backward(retain_graph=True)"
            )
        for guarded in self.guards:
            if guarded.changed():
                raise GraphError(
                    f"backward: {self.op.name} still needs an array of shape {guarded.array.shape} that was changed "
                    "in place after the operation was recorded; write to a copy instead, or call backward first"
                )

    def pull_back(self, dy: Array) -> list[Array | None]:
        """The gradients of this node's inputs, each in the shape of its input."""
        gradients = self.op.pull_back(self.xp, dy, self.cache, self.needs)
        if len(gradients) != len(self.needs):
            raise GraphError(
                f"backward: {self.op.name} has {len(self.needs)} inputs, but its backward formula returned "
                f"{len(gradients)} gradients; return one per input, None for a constant"
            )
        return [
            None if source is None or gradient is None else fit(self.op.name, self.xp, gradient, source)
            for source, gradient in zip(self.sources, gradients, strict=True)
        ]

    def free(self) -> None:
        """Let go of everything that was kept for the backward."""
        self.freed, self.sources, self.cache, self.guards = True, (), None, []


Source = Leaf | Node


def fit(name: str, xp: Namespace, gradient: Any, source: Source) -> Array:
    """Undo broadcasting and promotion: sum the gradient to its input's shape, in its input's dtype.

    What belongs to a float16 stays float32 until the end of the walk: sums outgrow float16.
    """
    gradient, shape = computed(f"backward: {name}", "a gradient", gradient), source.shape
    dtype = np.float32 if source.dtype == np.float16 else source.dtype
    if gradient.shape != shape:
        lead = gradient.ndim - len(shape)
        if lead < 0 or any(n not in (1, m) for n, m in zip(shape, gradient.shape[lead:], strict=True)):
            raise ShapeError(
                f"backward: {name} returned a gradient of shape {gradient.shape} for an input of shape {shape}; "
                "it must have that shape, or one that it broadcasts to"
            )
        padded = (1,) * lead + shape
        axes = tuple(i for i, m in enumerate(gradient.shape) if i < lead or padded[i] != m)
        gradient = xp.reshape(xp.sum(gradient, axis=axes, keepdims=True), shape)
    return gradient if gradient.dtype == dtype else gradient.astype(dtype)


def backward(root: Source, gradient: Array, retain_graph: bool) -> None:
    """Walk from the root to the leaves and add to each leaf's `grad`.

    Freed graphs and changed arrays are refused before the first step, and leaves receive their gradients after the last
    one, so a walk that raises leaves no half-done gradient.
    """
    nodes = topological_order(root)
    for node in nodes:
        node.check()
    cotangents: dict[Source, Array] = {root: gradient}
    with on_device_of(gradient):
        for node in nodes:
            dy = cotangents.pop(node, None)
            if dy is not None:
                for source, dx in zip(node.sources, node.pull_back(dy), strict=True):
                    if source is not None and dx is not None:
                        known = cotangents.get(source)
                        cotangents[source] = dx if known is None else known + dx
            if not retain_graph:
                node.free()
        _deliver(cotangents, gradient)


def _deliver(cotangents: dict[Source, Array], gradient: Array) -> None:
    """Give each leaf a gradient that is its own: no view, and not the array of another leaf or of the caller."""
    taken = {id(gradient)}
    for leaf, total in cotangents.items():
        if isinstance(leaf, Leaf):
            if leaf.grad is not None:
                total = leaf.grad + total
            total = as_array(total).astype(leaf.dtype, copy=False)
            if owner(total) is not total or id(total) in taken:
                total = total.copy()
            leaf.grad = total
            taken.add(id(total))


def topological_order(root: Source) -> list[Node]:
    """Each node once, every one before all of its sources. A loop, not a recursion: graphs may be very deep."""
    order: list[Node] = []
    seen: set[Source] = set()
    stack: list[tuple[Source, bool]] = [(root, False)]
    while stack:
        source, done = stack.pop()
        if done:
            order.append(source)  # type: ignore[arg-type]  # only nodes are pushed as done
        elif source not in seen and isinstance(source, Node):
            seen.add(source)
            stack.append((source, True))
            stack.extend((s, False) for s in source.sources if s is not None)
    return order[::-1]
