"""Derivatives as Tensors, of any order: `grad`, and what is made of it."""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from . import backend, graph, recorded
from .array import reshape, stack
from .checks import floating
from .errors import DeviceError, DTypeError, GraphError, ShapeError
from .formulas.types import Array
from .graph import Leaf, Node, Source, closed, fit, inputs_first, own, topological_order, walk
from .memory import Guard, Memory
from .op import Op
from .tensor import Tensor, apply, as_tensor, cotangent, fresh, operand
from .watch import watching

T = TypeVar("T")
SEVERAL = (tuple, list, Iterator)  #: what holds several Tensors; an iterator is what `Module.parameters` gives
Needed = dict[Node, tuple[bool, ...]]  #: the nodes of a walk, and for each of their inputs whether it goes on there


def grad(outputs: Any, inputs: Any, grad_outputs: Any = None, create_graph: bool = False) -> tuple[Tensor, ...]:
    """Σ grad_outputs · ∂outputs/∂inputs: one Tensor for each input, of its shape and dtype.

    Nothing is added to any `grad`, and the graph stays as it is: it goes when the outputs go.

    Args:
        outputs: a Tensor or several, computed from the inputs.
        inputs: a Tensor or several, such as `model.parameters()`: leaves or results on the way, that require gradients.
        grad_outputs: for each output a Tensor or array of its shape; may be left out, or be None, for a single element,
            where it is 1.
        create_graph: whether the result can be differentiated in turn, by `grad` or `backward`. Each operation's
            formulas then run again, on Tensors; see `tinynorm.recorded`. Inside of a function that `vjp`, `jvp`, `hvp`,
            `jacobian` or `gradcheck` differentiates, it always can.

    Returns:
        A tuple, also for one input; zeros for an input that the outputs do not depend on.

    Raises:
        GraphError: when an output has no graph, an input requires no gradient, an array that is still needed was
            overwritten, or an operation on the way has a formula that cannot be differentiated again. (What only the
            numbers would tell of such a formula is not looked for on a device.)
        ShapeError: for a grad_output that is missing or has another shape.
        DeviceError: when they are not all on one device.

    >>> import tinynorm as tn
    >>> x = tn.tensor([1.0, 2.0], requires_grad=True)
    >>> (slope,) = tn.grad((x**3).sum(), x, create_graph=True)
    >>> slope.numpy()
    array([ 3., 12.], dtype=float32)
    >>> tn.grad(slope.sum(), x)
    (Tensor([ 6., 12.], dtype=float32),)
    """
    ys, xs = _tensors("outputs", outputs), _tensors("inputs", inputs)
    sources, targets = [_source("outputs", y) for y in ys], [_source("inputs", x) for x in xs]
    backend.common_namespace("grad", tuple([t._data for t in (*ys, *xs)]), _numbered(len(ys)))
    given = _per_output(len(ys), isinstance(outputs, Tensor), grad_outputs)
    seeds = [cotangent("grad", "grad_outputs", y, value) for y, value in zip(ys, given, strict=True)]
    needed = _between(topological_order(*sources), targets)
    with backend.on_device_of(seeds[0]._data, "grad"):
        if not (create_graph or graph.is_differentiated()):
            return tuple(_on_arrays(needed, sources, targets, seeds))
        with graph.recording():
            return tuple(_on_tensors(needed, sources, targets, seeds))


def _tensors(argument: str, value: Any) -> list[Tensor]:
    several = [value] if isinstance(value, Tensor) else list(value) if isinstance(value, SEVERAL) else []
    if not several or not all(isinstance(t, Tensor) for t in several):
        raise DTypeError(f"grad: {argument} must be a Tensor, or a list, tuple or iterator of Tensors, not {value!r}")
    return several


def _numbered(outputs: int) -> Callable[[int], str]:
    """What the outputs and then the inputs are called."""
    return lambda i: f"outputs[{i}]" if i < outputs else f"inputs[{i - outputs}]"


def _per_output(count: int, alone: bool, grad_outputs: Any) -> Sequence[Any]:
    if grad_outputs is None:
        return [None] * count
    if alone and not (isinstance(grad_outputs, (tuple, list)) and len(grad_outputs) == 1):
        return [grad_outputs]
    if not isinstance(grad_outputs, (tuple, list)) or len(grad_outputs) != count:
        raise ShapeError(f"grad: grad_outputs must be a list or tuple, one for each of the {count} outputs")
    return grad_outputs


def _source(argument: str, t: Tensor) -> Source:
    if t._source is None:
        why = {
            "outputs": "has no graph: nothing it was computed from requires a gradient, or it was made under no_grad",
            "inputs": "requires no gradient, so nothing was recorded of it; make it with requires_grad=True",
        }
        raise GraphError(f"grad: one of the {argument}, of shape {t.shape}, {why[argument]}")
    return t._source


def _between(nodes: list[Node], targets: Collection[Source]) -> Needed:
    """Those nodes through which something flows back to a target, in the same order.

    What lies behind a node that was freed is unknown, so only where it is the one target does it not matter.
    """
    reached: set[Source | None] = set(targets)
    needed: Needed = {}
    for node in reversed(nodes):
        needs = tuple(source in reached for source in node.sources)
        if any(needs) or (node.freed and set(targets) != {node}):
            node.check()
            needed[node] = needs
            reached.add(node)
    return dict(reversed(needed.items()))


def _summed(sources: list[Source], seeds: list[Any]) -> dict[Source, Any]:
    """The outputs' cotangents, when one output may be named twice."""
    cotangents: dict[Source, Any] = {}
    for source, seed in zip(sources, seeds, strict=True):
        cotangents[source] = cotangents[source] + seed if source in cotangents else seed
    return cotangents


def _on_arrays(needed: Needed, sources: list[Source], targets: list[Source], seeds: list[Tensor]) -> list[Tensor]:
    """The walk that `backward` takes, but to the targets."""
    arrays = [seed._data for seed in seeds]
    taken = {id(array) for array in arrays}
    cotangents = _summed(sources, arrays)
    walk(list(needed), cotangents, lambda node, dy: node.pull_back(dy, needed[node]), wanted=targets)
    found = [fresh(own(cotangents[t], t.dtype, taken)) if t in cotangents else _zeros(t, seeds[0]) for t in targets]
    if (watcher := watching()) is not None:
        for t, result in zip(targets, found, strict=True):
            watcher.deliver(None, cotangents.get(t), result._data)
    return found


def _on_tensors(needed: Needed, sources: list[Source], targets: list[Source], seeds: list[Tensor]) -> list[Tensor]:
    """The same walk on Tensors: the forwards run again, from the leaves up, then the backwards, and all is recorded."""
    caches = _run_again(needed)

    def pull_back(node: Node, dy: Tensor) -> list[Tensor | None]:
        name, needs = node.op.name, needed[node]

        def run(dy: Tensor) -> list[Tensor | None]:
            gradients = node.op.pull_back(recorded, dy, caches[node], needs)
            return [
                None if source is None or g is None or not n else fit(name, recorded, operand(name, g), source)
                for source, g, n in zip(node.sources, gradients, needs, strict=True)
            ]

        def agrees(dy: Tensor, fitted: list[Tensor | None]) -> bool:
            on_host = type(dy._data) is np.ndarray
            return not on_host or _agree(node.pull_back(dy._data.copy(), needs), fitted)

        fitted = _attempt(name, run, dy)
        # A kernel's roundings are others. Where all but these cancels, as for softmax where all of dy are 1, only
        # another cotangent can tell.
        if not agrees(dy, fitted) and (
            node.kernel is None or not agrees(other := _uneven(dy), _attempt(name, run, other))
        ):
            raise GraphError(
                f"grad: {name} cannot be differentiated again, because its backward formula gives other numbers on "
                "Tensors than on arrays; += on a view of an array, or random numbers, do that"
            )
        return fitted

    cotangents = _summed(sources, seeds)
    walk(list(needed), cotangents, pull_back, wanted=targets)
    found = [cotangents[t] if t in cotangents else _zeros(t, seeds[0]) for t in targets]
    taken = {id(seed._data) for seed in seeds}
    return [_known_to(targets, _owned(total.astype(t.dtype), taken)) for total, t in zip(found, targets, strict=True)]


def _uneven(dy: Tensor) -> Tensor:
    """A cotangent like this one, of numbers that have nothing to do with each other."""
    xp = backend.namespace(dy._data)
    return fresh(xp.cos(xp.arange(1, dy.size + 1, dtype=dy.dtype)).reshape(dy.shape))


def _run_again(needed: Needed) -> dict[Node, Any]:
    """The caches of the needed nodes, as Tensors that know their history back to the nodes' inputs.

    A node's result is known as that node, which it was from the beginning, so that derivatives with respect to it, and
    to whatever lies below it, can be taken of what comes out.
    """
    values: dict[Source, Tensor] = {}
    caches: dict[Node, Any] = {}
    for node in inputs_first(*needed):
        op, inputs = node.op, node.inputs_from(values, _as_recorded)
        if node in needed:
            y, caches[node] = _attempt(op.name, op.evaluate, recorded, inputs, node.needs, node.params)
            result = op.rounded(_result(node, inputs, y), inputs)
            if node.kernel is None and not _agree(node.cache, caches[node]):
                raise GraphError(
                    f"grad: {op.name} cannot be differentiated again, because its forward gives other numbers than "
                    "those that were recorded; += on a view of an array, random numbers, or a write to an array "
                    "between two operations do that"
                )
        else:  # nobody asks how it came about
            result = apply(op, *[x._bare() if isinstance(x, Tensor) else x for x in inputs], **node.params)
        values[node] = Tensor._wrap(result._data, result._memory, node)
    return caches


def _result(node: Node, inputs: list[Any], y: Any) -> Tensor:
    """y; where a kernel ran, its result to the very bits, since further on little but roundings may be left."""
    if node.kernel is not None:
        arrays = [x._data if isinstance(x, Tensor) else x for x in inputs]
        if node.kernel.suits(*arrays, **node.params):
            found = node.kernel.forward(node.needs, *arrays, **node.params)
            if found is not None:
                return fresh(found[0])
    return operand(node.op.name, y)


def _agree(known: Any, again: Any) -> bool:
    """Whether caches, or gradients, hold the same numbers, up to what another order of summation may change.

    That is found out on the host, where every formula can be tried. On a device, where it would mean to wait for the
    numbers of each operation, all numbers count as the same.
    """
    if isinstance(known, dict):
        return isinstance(again, dict) and _agree([*known.items()], [*again.items()])
    if isinstance(known, (tuple, list)):
        return isinstance(again, (tuple, list)) and len(known) == len(again) and all(map(_agree, known, again))
    if not backend.is_array(known) and not isinstance(known, np.generic):
        return True
    return _close(backend.as_array(known), again._data if isinstance(again, Tensor) else backend.as_array(again))


def _close(a: Array, b: Array) -> bool:
    if a.shape != b.shape or a.dtype.kind != b.dtype.kind:
        return False
    if backend.is_device_array(a):
        return True
    same = bool(np.all(a == b))
    if same or a.dtype.kind != "f":
        return same
    small = float(np.finfo(a.dtype).eps) ** 0.5
    size = float(np.max(np.where(np.isfinite(a), np.abs(a), 0.0)))
    with np.errstate(all="ignore"):
        return bool(np.all(np.isclose(a, b, rtol=small, atol=small * size, equal_nan=True)))


def _as_recorded(guard: Guard, source: Source | None) -> Tensor:
    return Tensor._wrap(guard.array, guard.memory, source)


def _attempt(name: str, run: Callable[..., T], *arguments: Any) -> T:
    """Run a formula on Tensors. Whatever goes wrong there did not go wrong on arrays."""
    try:
        with closed():
            return run(*arguments)
    except DeviceError:  # the device's fault, not the formula's
        raise
    except Exception as error:
        raise GraphError(
            f"grad: {name} cannot be differentiated again, because a formula of it does not run on Tensors: {error}"
        ) from error


# What stands for a result that is a number and nothing else, so that it can be differentiated, to 0.
_CONSTANT = Op("constant", lambda xp, *inputs, y: (y, None), lambda xp, dy, cache, needs: (None,) * len(needs))


def _owned(total: Tensor, taken: set[int]) -> Tensor:
    """The same Tensor in memory of its own, so that writing to one result changes no other, and no input."""
    total = total.reshape(total.shape) if isinstance(total._source, Leaf) else total
    array = own(total._data, total.dtype, taken)
    return total if array is total._data else Tensor._wrap(array, Memory(), total._source)


def _known_to(sources: list[Source], y: Tensor) -> Tensor:
    """The Tensor, with a history in any case: a constant belongs to the sources, too."""
    if y._source is not None:
        return y
    n, xp = len(sources), backend.namespace(y._data)
    node = Node(_CONSTANT, xp, y._data, tuple(sources), (True,) * n, (None,) * n, {"y": y._data}, None)
    return Tensor._wrap(y._data, y._memory, node)


def _zeros(target: Source, like: Tensor) -> Tensor:
    return fresh(backend.namespace(like._data).zeros(target.shape, target.dtype))


# Of functions: `inputs` is what fn is called with, one Tensor or array or a tuple of them, and stays untouched


def _several(inputs: Any) -> bool:
    """Whether these are several inputs. A list of plain numbers is one array."""
    members = inputs if isinstance(inputs, list) else ()
    return isinstance(inputs, tuple) or any(isinstance(x, Tensor) or backend.is_array(x) for x in members)


def vjp(fn: Callable[..., Tensor], inputs: Any, v: Any = None, create_graph: bool = False) -> tuple[Tensor, Any]:
    """fn(*inputs), and a vector times its Jacobian: x̄ⱼ = Σᵢ vᵢ ∂yᵢ/∂xⱼ. One walk back.

    Args:
        fn: takes Tensors, gives one Tensor.
        inputs: a Tensor or array, or a tuple of them, of floats.
        v: of the result's shape; may be left out for a single element, where it is 1.
        create_graph: whether what comes out can be differentiated in turn.

    Returns:
        the function's result, and for each input a Tensor of its shape; a tuple of them where `inputs` is one.

    >>> import numpy as np
    >>> import tinynorm as tn
    >>> y, g = tn.vjp(lambda x: x**2, np.array([1.0, 2.0]), [10.0, 1.0])
    >>> g.numpy()
    array([20.,  4.])
    """
    y, xs = _called("vjp", fn, inputs, create_graph)
    return _kept(y, create_graph), _like(inputs, _pulled(y, xs, cotangent("vjp", "v", y, v), create_graph))


def jvp(fn: Callable[..., Tensor], inputs: Any, v: Any = None, create_graph: bool = False) -> tuple[Tensor, Tensor]:
    """fn(*inputs), and its Jacobian times a vector: ẏᵢ = Σⱼ ∂yᵢ/∂xⱼ vⱼ, the derivative in the direction v.

    x̄ = uᵀJ is linear in u, so its derivative with respect to u, in the direction v, is J v: two walks back make one
    forward.

    Args:
        fn, inputs, create_graph: as in `vjp`.
        v: for each input a Tensor or array of its shape, a tuple where `inputs` is one; may be left out for a single
            element, where it is 1.

    Returns:
        the function's result, and a Tensor of its shape.

    >>> import numpy as np
    >>> import tinynorm as tn
    >>> y, t = tn.jvp(lambda x: x**2, np.array([1.0, 2.0]), np.array([10.0, 1.0]))
    >>> t.numpy()
    array([20.,  4.])
    """
    y, xs = _called("jvp", fn, inputs, create_graph)
    directions = _directions("jvp", inputs, xs, v)
    u = as_tensor(recorded.ones_like(y), requires_grad=True)  # any vector without zeros, where 0 · ∞ would count as 0
    g = _pulled(y, xs, u, True)
    return _kept(y, create_graph), grad(g, u, directions, create_graph)[0]


def hvp(fn: Callable[..., Tensor], inputs: Any, v: Any = None, create_graph: bool = False) -> tuple[Tensor, Any]:
    """fn(*inputs), a single element, and its Hessian times a vector: Σⱼ ∂²y/∂xᵢ∂xⱼ vⱼ, without the Hessian.

    Args:
        fn, inputs, create_graph: as in `vjp`; fn gives one element.
        v: as in `jvp`.

    Returns:
        the function's result, and for each input a Tensor of its shape; a tuple of them where `inputs` is one.

    >>> import numpy as np
    >>> import tinynorm as tn
    >>> y, h = tn.hvp(lambda x: (x**3).sum(), np.array([1.0, 2.0]), np.array([1.0, 10.0]))
    >>> h.numpy()
    array([  6., 120.])
    """
    y, xs = _called("hvp", fn, inputs, create_graph)
    if y.size != 1:
        raise ShapeError(f"hvp: fn must give one element, not shape {y.shape}; reduce it, for example with .sum()")
    g = _pulled(y, xs, recorded.ones_like(y), True)
    return _kept(y, create_graph), _like(inputs, list(grad(g, xs, _directions("hvp", inputs, xs, v), create_graph)))


def jacobian(fn: Callable[..., Tensor], inputs: Any, create_graph: bool = False) -> Any:
    """All derivatives ∂yᵢ/∂xⱼ of y = fn(*inputs), one walk back for each element of y.

    Args:
        fn, inputs, create_graph: as in `vjp`.

    Returns:
        for each input a Tensor of shape (*y.shape, *x.shape); a tuple of them where `inputs` is one.

    >>> import numpy as np
    >>> import tinynorm as tn
    >>> tn.jacobian(lambda x: x**2, np.array([1.0, 2.0])).numpy()
    array([[2., 0.],
           [0., 4.]])
    """
    y, xs = _called("jacobian", fn, inputs, create_graph)
    xp = backend.namespace(y._data)
    with backend.on_device_of(y._data, "jacobian"):
        units = xp.reshape(xp.eye(y.size, dtype=y.dtype), (y.size, *y.shape))
        rows = [_pulled(y, xs, fresh(unit), create_graph) for unit in units]
        columns = zip(*rows, strict=True) if rows else [()] * len(xs)
        found = [
            reshape(stack(column), (*y.shape, *x.shape)) if column else fresh(xp.zeros((*y.shape, *x.shape), x.dtype))
            for x, column in zip(xs, columns, strict=True)
        ]
    return _like(inputs, found)


def _called(name: str, fn: Callable[..., Any], inputs: Any, create_graph: bool) -> tuple[Tensor, list[Tensor]]:
    """The function's result, and what it was called with: stand-ins for the inputs, so that nothing else depends on
    them. Where a graph is created, they are connected with the inputs."""
    xs = []
    for value in inputs if _several(inputs) else [inputs]:
        x = operand(name, value)
        floating(name, inputs=x)
        connected = (create_graph or graph.is_differentiated()) and x.requires_grad
        xs.append(x.reshape(x.shape) if connected else as_tensor(x.detach(), requires_grad=True))
    with graph.differentiated():
        y = fn(*xs)
    if not isinstance(y, Tensor):
        raise DTypeError(f"{name}: fn must give one Tensor, not {type(y).__name__}")
    floating(name, result=y)
    return y, xs


def _directions(name: str, inputs: Any, xs: list[Tensor], v: Any) -> list[Tensor]:
    """A direction for each input."""
    several = [v] if not _several(inputs) else [None] * len(xs) if v is None else v
    if not isinstance(several, (tuple, list)) or len(several) != len(xs):
        raise ShapeError(f"{name}: v must be a tuple like the inputs, of {len(xs)}")
    return [cotangent(name, "v", x, value) for x, value in zip(xs, several, strict=True)]


def _pulled(y: Tensor, xs: list[Tensor], v: Tensor, create_graph: bool) -> list[Tensor]:
    """v · ∂y/∂xs, also of a function that looks at none of them."""
    targets = [_source("inputs", x) for x in xs]
    return list(grad(_known_to(targets, y), xs, v, create_graph))


def _kept(y: Tensor, create_graph: bool) -> Tensor:
    return y if create_graph or graph.is_differentiated() else y.detach()


def _like(inputs: Any, found: list[Tensor]) -> Any:
    """A tuple where `inputs` is one."""
    return tuple(found) if _several(inputs) else found[0]
