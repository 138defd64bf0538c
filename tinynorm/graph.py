"""The tape: what was computed from what, and the walk back through it.

The graph knows arrays and formulas, no Tensors. A `Leaf` stands for a tensor whose gradient is wanted, a `Node` for the
result of one operation. Nodes point to their sources only, never forward, so a result that is dropped frees its whole
graph at once, and no reference cycle can form.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ContextDecorator, contextmanager
from contextvars import ContextVar
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np

from .backend import CPU, as_array, device_of, on_device_of
from .convert import computed
from .errors import DeviceError, GraphError, ShapeError
from .failures import SEEN_AS, reraise
from .formulas.summation import total
from .formulas.types import Array, Namespace
from .kernels import Kernel, buffers
from .memory import Guard, cached_blocks, owner
from .op import Op
from .options import decorable
from .watch import watching

F = TypeVar("F", bound=Callable[..., Any])

HALF = np.dtype(np.float16)
DEPTH = attrgetter("depth")

_pauses: ContextVar[int] = ContextVar("tinynorm_pauses", default=0)
_closed: ContextVar[bool] = ContextVar("tinynorm_closed", default=False)


def is_recording() -> bool:
    """Whether operations are recorded here, that is, outside of every `no_grad`."""
    return _pauses.get() == 0


def is_closed() -> bool:
    """Whether no Tensor may lose its history here."""
    return _closed.get()


@contextmanager
def closed() -> Iterator[None]:
    """Record everything inside, whatever a formula says, and let no Tensor become a plain number or array there."""
    token = _closed.set(True)
    try:
        with recording():
            yield
    finally:
        _closed.reset(token)


@contextmanager
def recording() -> Iterator[None]:
    """Record inside, whatever `no_grad` is around."""
    token = _pauses.set(0)
    try:
        yield
    finally:
        _pauses.reset(token)


_differentiated: ContextVar[bool] = ContextVar("tinynorm_differentiated", default=False)


def is_differentiated() -> bool:
    """Whether what runs here will be differentiated as a whole, derivatives that are taken in it included."""
    return _differentiated.get() or is_closed()


@contextmanager
def differentiated() -> Iterator[None]:
    """Record inside, and let derivatives that are taken inside keep their graph: without it, theirs would be 0."""
    token = _differentiated.set(True)
    try:
        with recording():
            yield
    finally:
        _differentiated.reset(token)


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
        if not _closed.get():
            _pauses.set(_pauses.get() + 1)

    def __exit__(self, *exception: object) -> None:
        if not _closed.get():
            _pauses.set(_pauses.get() - 1)

    def __call__(self, function: F) -> F:
        """Decorate a function."""
        decorable("no_grad", function)
        return super().__call__(function)


class Leaf:
    """A tensor that gradients are collected for."""

    __slots__ = ("__weakref__", "depth", "device", "dtype", "grad", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: Any, device: str = CPU) -> None:
        self.shape, self.dtype, self.device, self.depth = shape, dtype, device, 0
        self.grad: Array | None = None


class Node:
    """The result of one recorded operation.

    Args:
        op: the operation.
        xp: the array module it ran on.
        y: its result, of which only shape and dtype are kept.
        sources: for each input its `Leaf` or `Node`, or None where no gradient is wanted.
        needs: for each input whether a gradient is wanted.
        inputs: for each input what it was: a number, None, or the guard of an array. None also for the result of
            another node that nobody else sees yet: `replay` computes it again, and its node has the guard if somebody
            comes to see it.
        params: the operation's options.
        cache: what the backward formula needs; None once it has been freed.
        kernel: whose backward reads the cache; None for the formula's.
    """

    __slots__ = (
        "__weakref__", "cache", "depth", "dtype", "guard", "inputs", "kernel", "needs", "op", "params", "shape",
        "sources", "xp",
    )  # fmt: skip
    depth: int  #: more than that of each source; negative once freed

    def __init__(
        self,
        op: Op,
        xp: Namespace,
        y: Array,
        sources: "tuple[Source | None, ...]",
        needs: tuple[bool, ...],
        inputs: tuple[Any, ...],
        params: dict[str, Any],
        cache: Any,
        kernel: Kernel | None = None,
    ) -> None:
        self.op = op
        self.xp = xp
        self.shape = y.shape
        self.dtype = y.dtype
        self.sources = sources
        self.needs = needs
        self.inputs = inputs
        self.params = params
        self.cache = cache
        self.kernel = kernel
        self.guard: Guard | None = None  # of the result, made when its memory is shared or about to be handed out
        depth = 0
        for source in sources:
            if source is not None and source.depth >= depth:
                depth = source.depth + 1
        self.depth = depth

    @property
    def freed(self) -> bool:
        """Whether it has let go of what the backward needs."""
        return self.depth < 0

    def check(self) -> None:
        """Raise `GraphError` when the cache is gone or no longer what it was."""
        if self.depth < 0:
            raise GraphError(
                f"backward: the graph behind {self.op.name} was freed by an earlier backward, or by one that failed; "
                "to walk it again, call that one with retain_graph=True"
            )
        if self.op.keeps:
            self._check_kept(self.guard)
            for kept, source in zip(self.inputs, self.sources):  # noqa: B905 - strict=True takes 0.2 µs
                self._check_kept(source.guard if kept is None and type(source) is Node else kept)

    def _check_kept(self, kept: Any) -> None:
        """An array matters only if the cache looks into it, which need not be found out unless something is amiss."""
        if type(kept) is not Guard or (kept.checksum is None and kept.memory.version == kept.version):
            return
        if id(owner(kept.array)) in cached_blocks(self.cache) and kept.changed():
            raise self._changed(kept)

    def check_inputs(self) -> None:
        """Raise `GraphError` when the node cannot be run again, because an input is gone or no longer what it was."""
        self.check()
        for kept, source in zip(self.inputs, self.sources, strict=True):
            if type(kept) is Guard and type(source) is not Node and kept.changed():
                raise self._changed(kept)

    def _changed(self, guard: Guard) -> GraphError:
        return GraphError(
            f"backward: {self.op.name} still needs an array of shape {guard.array.shape} that was changed "
            "in place after the operation was recorded; write to a copy instead, or call backward first"
        )

    def inputs_from(
        self, values: "Mapping[Source, Any]", recorded: "Callable[[Guard, Source | None], Any]"
    ) -> list[Any]:
        """What the operation runs on: values where there are some, else what was recorded."""
        return [
            values[source]
            if source is not None and source in values
            else recorded(kept, source)
            if isinstance(kept, Guard)
            else kept
            for source, kept in zip(self.sources, self.inputs, strict=True)
        ]

    def pull_back(self, dy: Array, needs: tuple[bool, ...] | None = None) -> "tuple[Array | None, ...]":
        """The gradients of this node's inputs, each in the shape and dtype of its input; None where none is needed.

        Of an input that is no source there may be one, too, which is of no account.
        """
        if self.kernel is None:
            gradients = self.op.pull_back(self.xp, dy, self.cache, needs or self.needs)
        else:
            gradients = self.kernel.backward(dy, self.cache, needs or self.needs)
        if needs is not None:
            gradients = tuple([g if needed else None for g, needed in zip(gradients, needs, strict=True)])
        for source, gradient in zip(self.sources, gradients):  # noqa: B905 - strict=True takes 0.2 µs
            if source is not None and gradient is not None:
                if type(gradient) is not np.ndarray or gradient.shape != source.shape:
                    return self._fitted(gradients)
                if (dtype := gradient.dtype) is not source.dtype or dtype is HALF:
                    return self._fitted(gradients)
        return gradients

    def _fitted(self, gradients: "tuple[Array | None, ...]") -> "tuple[Array | None, ...]":
        name = self.op.name
        return tuple(
            None
            if source is None or gradient is None
            else fit(name, self.xp, computed(f"backward: {name}", "a gradient", gradient, self.xp), source)
            for source, gradient in zip(self.sources, gradients, strict=True)
        )

    def free(self) -> None:
        """Let go of everything that was kept for the backward."""
        self.depth, self.sources, self.inputs, self.cache = -1, (), (), None


Source = Leaf | Node


def fit(name: str, xp: Namespace, gradient: Array, source: Source) -> Array:
    """Undo broadcasting and promotion: sum the gradient to its input's shape, in its input's dtype.

    What belongs to a float16 stays float32 until the end of the walk: sums outgrow float16.
    """
    shape = source.shape
    dtype = np.float32 if source.dtype == HALF else source.dtype
    if gradient.shape != shape:
        lead = gradient.ndim - len(shape)
        if lead < 0 or any(n not in (1, m) for n, m in zip(shape, gradient.shape[lead:], strict=True)):
            raise ShapeError(
                f"backward: {name} returned a gradient of shape {gradient.shape} for an input of shape {shape}; "
                "it must have that shape, or one that it broadcasts to"
            )
        padded = (1,) * lead + shape
        axes = tuple(i for i, m in enumerate(gradient.shape) if i < lead or padded[i] != m)
        gradient = xp.reshape(total(xp, gradient, axes, True), shape)
    return gradient if gradient.dtype == dtype else gradient.astype(dtype)


def backward(root: Source, gradient: Array, retain_graph: bool) -> None:
    """Walk from the root to the leaves and add to each leaf's `grad`.

    Freed graphs and changed arrays are refused before the first step, and leaves receive their gradients after the last
    one, so a walk that raises leaves no half-done gradient.
    """
    nodes = topological_order(root)
    for node in nodes:
        node.check()
    cotangents = {root: gradient}
    with on_device_of(gradient, "backward"):
        walk(nodes, cotangents, Node.pull_back, free=not retain_graph)
        _deliver(cotangents, gradient)


def walk(
    nodes: list[Node],
    cotangents: dict[Source, Any],
    pull_back: Callable[[Node, Any], Sequence[Any]],
    *,
    free: bool = False,
    wanted: Collection[Source] = (),
) -> None:
    """Hand each node's cotangent on to its sources, and add up what meets there.

    A node's cotangent is dropped once it has been handed on, unless it is `wanted`; what remains belongs to leaves. It
    is a sum of arrays or of Tensors, whichever `pull_back` deals in.
    """
    if (watcher := watching()) is not None:
        pull_back = watcher.walk(cotangents, pull_back)
    for node in nodes:
        dy = cotangents.get(node) if node in wanted else cotangents.pop(node, None)
        if dy is not None:
            try:
                for source, dx in zip(node.sources, pull_back(node, dy)):  # noqa: B905 - strict=True takes 0.2 µs
                    if source is not None and dx is not None:
                        known = cotangents.get(source)
                        cotangents[source] = dx if known is None else known + dx
            except SEEN_AS as error:
                reraise(f"backward: {node.op.name}", device_of(dy), error)
        if free:
            node.free()


def _deliver(cotangents: dict[Source, Array], given: Array) -> None:
    """Add to each leaf's gradient; to none where one of the sums fails."""
    taken, sums, device, watcher = {id(given)}, [], device_of(given), watching()
    for leaf, gradient in cotangents.items():
        if isinstance(leaf, Leaf):
            if leaf.device != device:
                raise DeviceError(
                    f"backward: a leaf of shape {leaf.shape} was used on {device!r} and has gone to {leaf.device!r} "
                    "since; call backward first, or compute the result anew"
                )
            sums.append((leaf, own(gradient if leaf.grad is None else leaf.grad + gradient, leaf.dtype, taken)))
            if watcher is not None:
                watcher.deliver(leaf.grad, gradient, sums[-1][1])
    for leaf, gradient in sums:
        leaf.grad = gradient


def own(gradient: Array, dtype: Any, taken: set[int]) -> Array:
    """A gradient as an array of its own: no view, and none of those that are taken."""
    if type(gradient) is not np.ndarray or gradient.dtype is not dtype:
        with np.errstate(over="ignore"):
            gradient = as_array(gradient).astype(dtype, copy=False)
    if id(gradient) in taken or (gradient.base is not None and not buffers.sole(gradient)):
        gradient = gradient.copy()
    taken.add(id(gradient))
    return gradient


def replay(root: Source, values: dict[Source, Array]) -> Array:
    """The root's value when some leaves or nodes have other values than those that were recorded.

    The forward formulas run again, on whatever kind of number the values are: complex numbers carry a derivative
    through a whole graph, long doubles give a reference.

    Args:
        root: what to compute.
        values: arrays to use in place of those recorded.
    """
    known = dict(values)
    with on_device_of(next(iter(values.values()), None), "replay"):
        for node in inputs_first(root):
            if node not in known:
                inputs = node.inputs_from(known, lambda guard, source: guard.array)
                known[node], _ = node.op.evaluate(node.xp, inputs, node.needs, node.params)
    return known[root]


def inputs_first(*roots: Source) -> list[Node]:
    """Each node once, after all of its sources: the order in which they can run again, which is found to be safe."""
    nodes = topological_order(*roots)[::-1]
    for node in nodes:
        node.check_inputs()
    return nodes


def topological_order(*roots: Source) -> list[Node]:
    """Each node once, every one before all of its sources, which lie less deep. A loop: graphs may be very long."""
    found: list[Node] = []
    seen: set[Node] = set()
    stack = [root for root in roots if isinstance(root, Node)]
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            found.append(node)
            for source in node.sources[::-1]:
                if type(source) is Node:
                    stack.append(source)
    found.sort(key=DEPTH, reverse=True)
    return found
