"""Where a nan or an infinity comes from: `detect_anomaly`."""

import sys
from collections.abc import Callable
from contextlib import ContextDecorator
from linecache import getline
from os import sep
from os.path import dirname
from types import FrameType
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from . import backend, graph
from .errors import AnomalyError
from .graph import Node, Source
from .memory import Guard, cached_arrays
from .op import Op
from .options import decorable
from .tensor import Tensor
from .watch import PullBack, Watcher, begin, end

F = TypeVar("F", bound=Callable[..., Any])

PACKAGE = dirname(__file__) + sep
FROM_FINITE = " from finite input"
REMEDY = "Keep what goes in away from there, with clip, where or an eps, or compute in a wider dtype."


class Site(NamedTuple):
    """The user's line on which an operation was recorded, and whether its result was finite."""

    file: str
    line: int
    finite: bool = True

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {getline(self.file, self.line).strip()}".rstrip(": ")


_sites: "WeakKeyDictionary[Source, Site]" = WeakKeyDictionary()  # they go when their nodes go


class detect_anomaly(ContextDecorator):
    """Stop at the first operation inside, forward or backward, that makes a nan or an infinity from finite numbers.

    The error names the operation, where it happened, and the line of your code that called it; for a backward, the line
    on which the forward was recorded, where that was inside such a block, too. Looked at are the results of all
    operations, recorded or not, the gradients of their inputs and the sums of these, what they become in `grad`, and
    parameters after an optimizer's step.
    What comes in as nan or infinity is nobody's fault, nor is what becomes of it. NumPy's own warnings come as ever.

    It takes another look at every array, and on a device waits for each. Works as ``with tn.detect_anomaly():`` and as
    a decorator of functions, for the thread or async task that enters it.

    Raises:
        AnomalyError: at the operation. Leaves have got no gradient then.

    >>> import tinynorm as tn
    >>> x = tn.tensor([4.0, 0.0], requires_grad=True)
    >>> with tn.detect_anomaly(), np.errstate(divide="ignore"):
    ...     y = tn.log(x)
    Traceback (most recent call last):
    tinynorm.errors.AnomalyError: log: makes -inf from finite input, in 1 of the 2 elements of its result, at
    <doctest tinynorm.anomaly.detect_anomaly[2]>:2: y = tn.log(x)
    Keep what goes in away from there, with clip, where or an eps, or compute in a wider dtype.
    """

    def __enter__(self) -> None:
        begin(_Detective())

    def __exit__(self, *exception: object) -> None:
        end()

    def __call__(self, function: F) -> F:
        """Decorate a function."""
        decorable("detect_anomaly", function)
        return super().__call__(function)


class _Detective(Watcher):
    """Looks at what comes out first, and at what went in only where that is amiss."""

    def operation(self, apply: Callable[..., Any], op: Op, inputs: tuple[Any, ...], params: dict[str, Any]) -> Tensor:
        """A formula on Tensors consists of operations itself. Of these none is judged, as none is on arrays."""
        y: Tensor = super().operation(apply, op, inputs, params)
        fine = _finite(y)
        if not fine and not graph.is_closed() and all(map(_finite, (*inputs, *params.values()))):
            raise _anomaly(f"{op.name}: makes {_amiss(y._data, FROM_FINITE)} of its result, at\n{_users_line()}")
        if type(y._source) is Node:
            _sites[y._source] = _users_line()._replace(finite=fine)
        return y

    def step(self, step: Callable[[Any], None], optimizer: Any) -> None:
        """Judge the parameters that were finite before, and had finite gradients."""
        places = [(i, p) for i, group in enumerate(optimizer.param_groups) for p in group["params"]]
        moving = [(i, p) for i, p in places if p.grad is not None and _finite(p) and _finite(p.grad)]
        super().step(step, optimizer)
        for i, p in moving:
            if not _finite(p):
                what = f"{_amiss(p._data, ' from a finite gradient')} of a parameter of shape {p.shape} in group {i}"
                raise _anomaly(f"{type(optimizer).__name__}.step: makes {what}, which has moved, at\n{_users_line()}")

    def walk(self, cotangents: dict[Any, Any], pull_back: PullBack) -> PullBack:
        """Judge each node's gradients, and the sums that they are about to be added to."""
        pull_back = super().walk(cotangents, pull_back)

        def step(node: Node, dy: Any) -> Any:
            gradients, sums = pull_back(node, dy), dict[Source, Any]()
            for i, (source, dx) in enumerate(zip(node.sources, gradients, strict=True)):
                if source is not None and dx is not None:
                    if not _finite(dx) and _finite(dy) and _had_finite_inputs(node):
                        what = f"{_amiss(_array(dx), FROM_FINITE)} of the gradient of its input {node.op.argument(i)}"
                        raise _anomaly(f"backward: {node.op.name}: makes {what}; it was recorded at\n{_recorded(node)}")
                    sums[source] = _added(node, source, sums.get(source, cotangents.get(source)), dx)
            return gradients

        return step

    def deliver(self, known: Any, gradient: Any, result: Any) -> None:
        """Judge the last sum, and the rounding to float16."""
        super().deliver(known, gradient, result)
        if not _finite(result) and _finite(gradient) and _finite(known):
            doing = "rounded to float16" if result.dtype == graph.HALF else "added to the grad that is there"
            raise _anomaly(
                f"backward: the finite gradient of a tensor of shape {result.shape} becomes {_amiss(result)}, when it "
                f"is {doing}, at\n{_users_line()}"
            )


def _array(value: Any) -> Any:
    return value._data if isinstance(value, Tensor) else value


def _finite(value: Any) -> bool:
    """Whether a Tensor, an array, a list or a number holds neither nan nor infinity; None does not."""
    array = _array(value)
    if not backend.is_array(array):
        array = np.asarray(0.0 if array is None else array)
    if array.dtype.kind != "f":
        return True
    with backend.on_device_of(array, "detect_anomaly"):
        return bool(backend.namespace(array).isfinite(array).all())


def _had_finite_inputs(node: Node) -> bool:
    """Whether all that the operation was given was finite. Of a result that nobody looked at, the cache must tell."""
    if not all(map(_finite, node.params.values())):
        return False
    for source, kept in zip(node.sources, node.inputs, strict=True):
        if isinstance(kept, Guard):
            known = _finite(kept.array)
        elif isinstance(source, Node):
            known = _sites[source].finite if source in _sites else all(map(_finite, cached_arrays(node.cache)))
        else:
            known = _finite(kept)
        if not known:
            return False
    return True


def _added(node: Node, source: Source, known: Any, dx: Any) -> Any:
    """What the walk is about to compute, without NumPy's warning, which comes from there."""
    if known is None:
        return dx
    with np.errstate(all="ignore"):
        total = _array(known) + _array(dx)
    if not _finite(total) and _finite(known) and _finite(dx):
        there = f"the result of {source.op.name}" if isinstance(source, Node) else f"a leaf of shape {source.shape}"
        raise _anomaly(
            f"backward: finite gradients that meet at {there} add up to {_amiss(total)}; the last of them comes from "
            f"{node.op.name}, which was recorded at\n{_recorded(node)}"
        )
    return total


def _amiss(array: Any, source: str = "") -> str:
    """What is not finite in an array, and how much of it."""
    a = np.asarray(backend.to_device(array, backend.CPU))
    kinds = {"nan": np.isnan(a), "inf": a == np.inf, "-inf": a == -np.inf}
    names = " and ".join(name for name, mask in kinds.items() if mask.any())
    return f"{names}{source}, in {int((~np.isfinite(a)).sum())} of the {a.size} elements"


def _users_line() -> Site:
    """The innermost line that runs outside of this library."""
    frame: FrameType = sys._getframe(1)
    while frame.f_code.co_filename.startswith(PACKAGE) and frame.f_back is not None:
        frame = frame.f_back
    return Site(frame.f_code.co_filename, frame.f_lineno)


def _recorded(node: Node) -> str:
    return str(_sites.get(node, "a line that is not known, since it was outside of `with tn.detect_anomaly():`"))


def _anomaly(text: str) -> AnomalyError:
    return AnomalyError(f"{text}\n{REMEDY}")
