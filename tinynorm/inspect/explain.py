"""What each operation of a computation is, keeps and takes: `explain`."""

from collections.abc import Callable, Iterable
from functools import partial
from inspect import unwrap
from time import perf_counter
from typing import Any, TypeVar

import numpy as np

from .. import graph
from ..backend import is_array, namespace, on_device_of
from ..errors import ArgumentError, GraphError
from ..formulas.types import Array, Namespace
from ..graph import Leaf, Node, Source, inputs_first, walk
from ..kernels import buffers
from ..memory import Guard, cached_arrays, owner
from ..nn.module import Module
from ..op import Op
from ..tensor import Tensor, as_tensor, cotangent
from ..watch import Watcher, watched
from .graphs import in_order, normal_like, source_of
from .table import Explanation, Operand, Operation, Places

T = TypeVar("T")
REPEATS = 5


def explain(tensor_or_module: Any, input: Any = None) -> Explanation:
    """Each operation behind a Tensor, or in a module's forward: its formula, shapes, cotangent, memory and time.

    Operations stand in the order in which they ran; those behind a Tensor, whose order nobody knows any more, so that
    each follows its inputs. For a module, its forward runs once, as it is: in training mode dropout draws its numbers,
    once. Each operation then runs by itself a few times, and the best time counts. No leaf gets a gradient, and no
    graph is freed.

    Bytes count where they are first kept: an array that several operations keep, once; one that belongs to a parameter,
    another leaf or the input, not at all. A result of several elements gets normally distributed numbers as its
    cotangent, always the same.

    Args:
        tensor_or_module: a result that has a graph; or a module that gives one.
        input: what the module is called with; a tuple stands for several.

    Returns:
        an `Explanation`, whose text is a table, and whose `rows` are named tuples, an `Operation` each.

    Raises:
        GraphError: for a result that has no graph, or whose graph was freed or changed.
        ArgumentError: for a module without input, and a Tensor with one.
        DTypeError: for anything else, and a module that does not give one Tensor.

    >>> import tinynorm as tn
    >>> x = tn.tensor([[3.0, 4.0]], requires_grad=True)
    >>> table = tn.inspect.explain((tn.functional.rms_norm(x, 2, eps=0.0) * [[1.0, 3.0]]).sum())
    >>> for row in table.rows:
    ...     print(row.name, row.result.shape, round(row.cotangent, 3), row.formula.forward.rpartition("formulas")[2])
    rms_norm (1, 2) 3.162 ...norms.py:...
    multiply (1, 2) 1.414 ...arithmetic.py:...
    sum () 1.0 ...reductions.py:...
    """
    if isinstance(tensor_or_module, Module):
        y, modules, given = _called(tensor_or_module, input)
    elif input is not None:
        raise ArgumentError("explain: only a module takes an input; a tensor has been computed already")
    else:
        y, given = tensor_or_module, []
        modules = dict.fromkeys(in_order(source_of("explain", y)), "")
    nodes = inputs_first(source_of("explain", y))
    if not nodes:
        raise GraphError("explain: this tensor is a leaf, which no operation has made")
    with on_device_of(y._data, "explain"):
        forwards = _forwards(nodes)
        backwards = _backwards([node for node in reversed(nodes) if node in modules], y)
    seen = {id(owner(array)) for array in [*given, *_leaves(nodes)]}
    shown = [node for node in modules if node in forwards]
    rows = [_row(node, modules[node], forwards[node], backwards.get(node, (None, None)), seen) for node in shown]
    return Explanation(_title(y), tuple(rows))


def _called(module: Module, input: Any) -> tuple[Any, dict[Node, str], list[Array]]:
    """What the module gives, its operations in their order with their modules' names, and the arrays put in."""
    if input is None:
        raise ArgumentError("explain: a module needs an input=, what it is called with")
    inputs = [as_tensor(x) for x in (input if isinstance(input, tuple) else (input,))]
    calls = _Calls(module)
    with graph.recording(), watched(calls):
        y = module(*inputs)
    return y, calls.found, [x._data for x in inputs]


class _Calls(Watcher):
    """Keeps each recorded operation with the name of the module that ran it."""

    def __init__(self, model: Module) -> None:
        super().__init__()
        self.names = {id(module): name for name, module in reversed([*model.named_modules()])}  # a tied one's first
        self.running: list[Module] = []
        self.found: dict[Node, str] = {}

    def call(self, module: Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
        self.running.append(module)
        try:
            return super().call(module, inputs, options)
        finally:
            self.running.pop()

    def operation(self, apply: Callable[..., Any], op: Op, inputs: tuple[Any, ...], params: dict[str, Any]) -> Tensor:
        y: Tensor = super().operation(apply, op, inputs, params)
        if isinstance(y._source, Node) and self.running:
            module = self.running[-1]
            self.found[y._source] = self.names.get(id(module), type(module).__name__)
        return y


def _timed(xp: Namespace, run: Callable[[], T]) -> tuple[T, float]:
    """What a function gives, and the least time that it takes, on a device until that is done."""
    times = []
    for _ in range(REPEATS):
        start = perf_counter()
        result = run()
        if xp is not np:
            xp.cuda.Device().synchronize()
        times.append(perf_counter() - start)
    return result, min(times)


def _forwards(nodes: Iterable[Node]) -> dict[Node, tuple[tuple[Operand, ...], float]]:
    """What each operation was given, and how long it takes, by running all of them again, from the leaves up."""
    values: dict[Source, Array] = {}
    found = {}
    for node in nodes:
        inputs = node.inputs_from(values, lambda guard, source: guard.array)
        (values[node], _), seconds = _timed(node.xp, partial(_forward, node, inputs))
        found[node] = tuple(Operand(a.shape, a.dtype) for a in inputs if is_array(a)), seconds
    return found


def _forward(node: Node, inputs: list[Any]) -> tuple[Array, Any]:
    """The result and the cache, by what has made them: a kernel, or the formula."""
    found = None if node.kernel is None else node.kernel.forward(node.needs, *inputs, **node.params)
    return node.op.run(node.xp, tuple(inputs), node.needs, node.params) if found is None else found


def _backwards(nodes: list[Node], y: Tensor) -> dict[Node, tuple[float, float]]:
    """How large the cotangent of each result is, and how long the step back takes from there."""
    seed = cotangent("explain", "gradient", y, None if y.size == 1 else normal_like(y))._data
    found = {}

    def pull_back(node: Node, dy: Array) -> Any:
        gradients, seconds = _timed(node.xp, partial(node.pull_back, dy))
        found[node] = _norm(dy), seconds
        return gradients

    walk(nodes, {source_of("explain", y): seed}, pull_back)
    return found


def _norm(a: Array) -> float:
    """√(Σ a²), in float64, where the squares of float32 do not overflow."""
    return float(namespace(a).sqrt((a.astype("d") ** 2).sum()))


def _leaves(nodes: Iterable[Node]) -> list[Array]:
    """The arrays of all leaves."""
    pairs = [pair for node in nodes for pair in zip(node.sources, node.inputs, strict=True)]
    return [kept.array for source, kept in pairs if isinstance(source, Leaf) and isinstance(kept, Guard)]


def _row(
    node: Node,
    module: str,
    forward: tuple[tuple[Operand, ...], float],
    backward: tuple[float | None, float | None],
    seen: set[int],
) -> Operation:
    (inputs, there), (size, back), kernel = forward, backward, node.kernel
    return Operation(
        name=node.op.name,
        module=module,
        formula=_places(node.op.forward, node.op.backward),
        kernel=None if kernel is None else _places(kernel.forward, kernel.backward),
        inputs=inputs,
        result=Operand(node.shape, node.dtype),
        cotangent=size,
        cache=_kept(node.cache, seen),
        forward=there,
        backward=back,
    )


def _kept(cache: Any, seen: set[int]) -> int:
    """The bytes of a cache's memory that has not been seen yet. A view keeps the whole of what it looks into."""
    total = 0
    for array in cached_arrays(cache):
        memory = owner(array)
        if id(memory) not in seen:
            seen.add(id(memory))
            slack = buffers.ALIGNMENT if memory.nbytes == array.nbytes + buffers.ALIGNMENT else 0
            total += memory.nbytes - slack
    return total


def _places(forward: Callable[..., Any], backward: Callable[..., Any]) -> Places:
    return Places(_place(forward), _place(backward))


def _place(function: Any) -> str:
    """The file and line where a function begins, under whatever it is wrapped in; what it is called, if in none."""
    while isinstance(function, partial):
        function = function.func
    code = getattr(unwrap(function), "__code__", None)
    return repr(function) if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def _title(y: Tensor) -> str:
    result = f"the result is {y.dtype} {y.shape} on {y.device!r}"
    return f"{result}, its cotangent {'1' if y.size == 1 else 'normally distributed, always the same'}"
