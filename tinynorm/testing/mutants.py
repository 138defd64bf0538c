"""Wrong gradients, made on purpose: every operation with one fault at a time, for a check to find.

Three kinds: faults in the source of the backward formula (`faults`); faults in the gradients that it returns, which
need no source; and faults in the cache that it is given: an earlier call's, or that of a forward with a fault.

A mutant replaces the operation in the nodes of one recorded graph. Nothing else in the process has the fault.
"""

import inspect
from collections.abc import Callable, Iterator
from copy import copy
from functools import wraps
from typing import Any, NamedTuple

import numpy as np

from ..backend import is_array
from ..errors import ArgumentError
from ..extend import NewOp
from ..graph import Node, replay
from ..op import Formula, Op
from ..options import near_miss
from .cases import OPS
from .faults import Fault, planted

Change = Callable[[Node, list[Any]], list[Any] | None]
"""From a node and its gradients to faulty ones; None where the fault cannot occur."""

Plant = Callable[[Node, Node], Op | None]
"""From a node of an operation, and the same node of a graph that was recorded from other values, to the operation with
the fault; None where the fault cannot occur."""


class Mutant(NamedTuple):
    """An operation with one fault.

    Args:
        op: the operation.
        what: the fault, in words.
        line, statement: where it is, for a fault in the source.
        optional: whether it is none where it changes no value.
        plant: see `Plant`.
    """

    op: Op
    what: str
    plant: Plant
    line: int | None = None
    statement: str = ""
    optional: bool = False

    @property
    def words(self) -> str:
        """The fault, and its line."""
        return self.what if self.line is None else f"{self.what} (line {self.line})"


Operation = str | Op | NewOp | Callable[..., Any]


def operation(caller: str, op: Operation) -> Op:
    """The operation that is meant: itself, by its name in the table, or by the library's function of that name."""
    if isinstance(op, Op):
        return op
    if isinstance(op, NewOp):
        return op._op
    own = str(getattr(op, "__module__", "")).partition(".")[0] == "tinynorm"
    name = getattr(op, "__name__", op) if own else op
    if not isinstance(name, str):
        raise ArgumentError(
            f"{caller}: {name!r} is no operation; give what tn.op made, or the name of one of the library"
        )
    if name not in OPS:
        raise ArgumentError(f"{caller}: no operation is called {name!r}{near_miss(name, OPS)}")
    return OPS[name]


def mutants(op: Operation) -> list[Mutant]:
    """All mutants of an operation: each has one fault, which a check of gradients must find.

    Args:
        op: what `tn.op` made, or an operation of the library, such as "relu" or `tn.functional.relu`.

    Raises:
        ArgumentError: for a name that no operation has.

    >>> import tinynorm as tn
    >>> len(tn.testing.mutants("rms_norm")) >= 8
    True
    >>> tn.testing.mutants("sin")[0].what
    'sin_backward drops `* xp.cos(x)`'
    """
    op = operation("mutants", op)
    return [*_of_the_source(op), *_of_the_gradients(op), *_of_the_cache(op)]


def _of_the_source(op: Op) -> Iterator[Mutant]:
    for fault in planted(op.backward):
        faulty = _variant(op, backward=fault.formula)
        what = f"{_name(fault)} {fault.what}"
        yield Mutant(op, what, _always(faulty), fault.line, fault.statement)


def _name(fault: Fault) -> str:
    """The function's; a backward below its decorator is often nameless."""
    name = fault.function.__name__
    return "backward" if name == "_" else name


def _always(faulty: Op) -> Plant:
    return lambda node, twin: faulty


def _variant(op: Op, forward: Formula | None = None, backward: Formula | None = None) -> Op:
    """The operation with another formula."""
    return Op(op.name, forward or op.forward, backward or op.backward, op.check, widen=op.widen, quiet=op.quiet)


# Faults in what a backward returns


def _of_the_gradients(op: Op) -> Iterator[Mutant]:
    def mutant(what: str, change: Change) -> Mutant:
        return Mutant(op, what, lambda node, twin: _changed(node, change))

    count = _inputs_of(op)
    for k in range(count):
        for what, change in _CHANGES.items():
            yield mutant(f"gradient {k} {what}", _at(k, change))
        for j in range(k):
            yield mutant(f"gradients {j} and {k} swapped", _swap(j, k))


def _inputs_of(op: Op) -> int:
    """How many inputs the operation has; of any number, the first three."""
    parameters = list(inspect.signature(op.forward).parameters.values())[1:]
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return 3
    return sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)


def _changed(node: Node, change: Change) -> Op | None:
    """The node's operation, with gradients that are changed on their way out."""
    op = node.op

    def backward(xp: Any, dy: Any, cache: Any, needs: tuple[bool, ...]) -> Any:
        gradients = list(op.pull_back(xp, dy, cache, needs))
        return tuple(change(node, gradients) or gradients)

    probe = list(op.pull_back(node.xp, node.xp.ones(node.shape, node.dtype), node.cache, node.needs))
    return _variant(op, backward=backward) if change(node, probe) is not None else None


def _at(k: int, change: Callable[[Any, Any], Any]) -> Change:
    """The change of one gradient, given the shape that it should have."""

    def changed(node: Node, gradients: list[Any]) -> list[Any] | None:
        source = node.sources[k] if k < len(gradients) else None
        if source is None or gradients[k] is None:
            return None
        faulty = change(np.asarray(gradients[k]), source.shape)
        return None if faulty is None else [*gradients[:k], faulty, *gradients[k + 1 :]]

    return changed


def _swap(j: int, k: int) -> Change:
    def swapped(node: Node, gradients: list[Any]) -> list[Any] | None:
        if k >= len(gradients) or gradients[j] is gradients[k] or gradients[j] is None or gradients[k] is None:
            return None
        one, other = node.sources[j], node.sources[k]
        if one is None or other is None or one.shape != other.shape:
            return None
        gradients = list(gradients)
        gradients[j], gradients[k] = gradients[k], gradients[j]
        return gradients

    return swapped


def _one_element(g: Any, shape: Any) -> Any:
    """1 % more of the element that is hardest to see: the smallest that is not 0."""
    if not np.any(g):
        return None
    sizes = np.where(g == 0, np.inf, np.abs(g)).ravel()
    faulty = np.array(g)
    faulty[np.unravel_index(np.argmin(sizes), g.shape)] *= 1.01
    return faulty


def _transposed(g: Any, shape: Any) -> Any:
    square = g.ndim >= 2 and g.shape == shape and g.shape[-1] == g.shape[-2] > 1
    return np.swapaxes(g, -1, -2) if square else None


def _summed_axes(g: Any, shape: Any) -> tuple[int, ...]:
    """The axes along which the engine will sum the gradient to its input's shape, where they are longer than 1."""
    lead = g.ndim - len(shape)
    if g.size == 0:
        return ()
    return tuple(i for i, n in enumerate(g.shape) if n > 1 and (i < lead or shape[i - lead] != n))


def _one_slice(g: Any, shape: Any) -> Any:
    axes = _summed_axes(g, shape)
    return np.take(g, 0, axes[0]).reshape(_without(g.shape, axes[0])) if axes else None


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], 1, *shape[axis + 1 :])


def _averaged(g: Any, shape: Any) -> Any:
    axes = _summed_axes(g, shape)
    return np.mean(g, axis=axes, keepdims=True) if axes else None


_CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "times 1.01": lambda g, shape: 1.01 * g if g.size else None,
    "1 % too large in one element": _one_element,
    "with the wrong sign": lambda g, shape: -g if g.size else None,
    "zero, as for a constant": lambda g, shape: 0.0 * g if g.size else None,
    "transposed": _transposed,
    "of one slice instead of the sum over a broadcast axis": _one_slice,
    "averaged instead of summed over broadcast axes": _averaged,
}


# Faults in what a backward is given


def _of_the_cache(op: Op) -> Iterator[Mutant]:
    yield Mutant(op, "the cotangent taken for ones", _blind)
    yield Mutant(op, "the cache of an earlier call", _stale)
    for fault in planted(op.forward):
        if fault.function.__module__ == op.forward.__module__:
            what = f"cached by a forward: {_name(fault)} {fault.what}"
            yield Mutant(op, what, _miscached(fault.formula), fault.line, fault.statement, optional=True)


def _blind(node: Node, twin: Node) -> Op | None:
    op = node.op
    return _variant(op, backward=lambda xp, dy, cache, needs: op.pull_back(xp, xp.ones_like(dy), cache, needs))


def _stale(node: Node, twin: Node) -> Op | None:
    return None if _same(node.cache, twin.cache) else _with_cache(node.op, twin.cache)


def _miscached(forward: Formula) -> Plant:
    """The backward gets the cache of another forward; unless that is the same, or cannot be made."""

    def plant(node: Node, twin: Node) -> Op | None:
        caches = []

        @wraps(forward)
        def listening(*inputs: Any, **params: Any) -> Any:
            y, cache = forward(*inputs, **params)
            caches.append(cache)
            return y, cache

        again = copy(node)
        again.op = _variant(node.op, forward=listening)
        try:
            replay(again, {})
        except Exception:
            return None  # such a forward would not get as far as a backward
        return None if _same(node.cache, caches[0]) else _with_cache(node.op, caches[0])

    return plant


def _with_cache(op: Op, cache: Any) -> Op:
    return _variant(op, backward=lambda xp, dy, _, needs: op.pull_back(xp, dy, cache, needs))


def _same(cache: Any, other: Any) -> bool:
    """Whether the arrays and floats of two caches are equal, nan being equal to nan."""
    mine, others = list(_numbers(cache)), list(_numbers(other))
    return len(mine) == len(others) and all(map(_equal, mine, others))


def _numbers(cache: Any) -> Iterator[Any]:
    if isinstance(cache, dict):
        cache = list(cache.values())
    if isinstance(cache, (tuple, list)):
        for part in cache:
            yield from _numbers(part)
    elif isinstance(cache, float) or is_array(cache):
        yield np.asarray(cache)


def _equal(a: Any, b: Any) -> bool:
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f" and b.dtype.kind == "f"))
