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
from .memory import Guard, cached_arrays, owner
from .op import Op

F = TypeVar("F", bound=Callable[..., Any])

_recording: ContextVar[bool] = ContextVar("tinynorm_recording", default=True)


def is_recording() -> bool:
    """Whether operations are recorded here, that is, outside `no_grad`."""
    return _recording.get()


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
        self._token = _recording.set(False)

    def __exit__(self, *exception: object) -> None:
        _recording.reset(self._token)

    def __call__(self, function: F) -> F:
        """Decorate a function."""
        if any(test(function) for test in (isgeneratorfunction, iscoroutinefunction, isasyncgenfunction)):
            raise DTypeError(
                f"no_grad: {function.__name__} only starts when it is called and runs later, outside of the decorator; "
                "write `with no_grad():` inside it"
            )
        return super().__call__(function)

    def _recreate_cm(self) -> "no_grad":
        return no_grad()  # a context of its own for each call: calls may nest


class Leaf:
    """A tensor that gradients are collected for."""

    __slots__ = ("__weakref__", "dtype", "grad", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.shape, self.dtype = shape, dtype
        self.grad: Array | None = None


class Node:
    """The result of one recorded operation.

    Args:
        sources: for each input its `Leaf` or `Node`, or None for a constant.
        cache: what the backward formula needs; None once it has been freed.
        guards: how to notice that something in the cache was overwritten.
    """

    __slots__ = ("__weakref__", "cache", "dtype", "freed", "guards", "op", "shape", "sources", "xp")

    def __init__(self, op: Op, xp: Namespace, y: Array, sources: tuple["Source | None", ...], cache: Any) -> None:
        self.op, self.xp, self.sources, self.cache = op, xp, sources, cache
        self.shape, self.dtype = y.shape, y.dtype
        self.guards: list[Guard] = []
        self.freed = False

    def check(self) -> None:
        """Raise `GraphError` when the cache is gone or no longer what it was."""
        if self.freed:
            raise GraphError(
                f"backward: the graph behind {self.op.name} was freed by an earlier backward; "
                "to walk it again, call that one with backward(retain_graph=True)"
            )
        for guarded in self.guards:
            if guarded.changed():
                raise GraphError(
                    f"backward: {self.op.name} still needs an array of shape {guarded.array.shape} that was changed "
                    "in place after the operation was recorded; write to a copy instead, or call backward first"
                )

    def pull_back(self, dy: Array) -> tuple[Array | None, ...]:
        """The gradients of this node's inputs, each in the shape and dtype of its input."""
        needs = tuple(source is not None for source in self.sources)
        gradients = self.op.pull_back(self.xp, dy, self.cache, needs)
        if len(gradients) != len(needs):
            raise GraphError(
                f"backward: {self.op.name} has {len(needs)} inputs, but its backward formula returned "
                f"{len(gradients)} gradients; return one per input, None for a constant"
            )
        cached = {id(array) for array in cached_arrays(self.cache)}
        return tuple(
            None
            if source is None or gradient is None
            # The cache stays the node's own: whoever gets a gradient may write to it in the end.
            else fit(self.op.name, self.xp, gradient.copy() if id(gradient) in cached else gradient, source)
            for source, gradient in zip(self.sources, gradients, strict=True)
        )

    def free(self) -> None:
        """Let go of everything that was kept for the backward."""
        self.freed, self.sources, self.cache, self.guards = True, (), None, []


Source = Leaf | Node


def fit(name: str, xp: Namespace, gradient: Array, source: Source) -> Array:
    """Undo broadcasting and promotion: sum the gradient to its input's shape and round it to its dtype."""
    gradient, shape = computed(f"backward: {name}", "a gradient", gradient), source.shape
    if gradient.shape != shape:
        lead = gradient.ndim - len(shape)
        if lead < 0 or any(n not in (1, m) for n, m in zip(shape, gradient.shape[lead:], strict=True)):
            raise ShapeError(
                f"backward: {name} returned a gradient of shape {gradient.shape} for an input of shape {shape}; "
                "it must have that shape, or one that it broadcasts to"
            )
        padded = (1,) * lead + shape
        axes = tuple(i for i, m in enumerate(gradient.shape) if i < lead or padded[i] != m)
        wide = gradient.astype(np.float32) if gradient.dtype == np.float16 else gradient  # sums outgrow float16
        gradient = xp.reshape(xp.sum(wide, axis=axes, keepdims=True), shape)
    return gradient if gradient.dtype == source.dtype else gradient.astype(source.dtype)


def backward(root: Source, gradient: Array, retain_graph: bool) -> None:
    """Walk from the root to the leaves and add to each leaf's `grad`.

    Everything that can be refused is refused before the first step, and leaves receive their gradients after the last
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
            elif owner(total) is not total or id(total) in taken:
                total = total.copy()
            leaf.grad = as_array(total)
            taken.add(id(leaf.grad))


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
