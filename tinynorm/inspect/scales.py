"""How large things are inside a model: `scales`."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from .. import graph
from ..backend import CPU, to_device
from ..derivatives import grad
from ..errors import ArgumentError, DTypeError, ShapeError
from ..functional import cross_entropy
from ..nn.containers import Sequential
from ..nn.module import Module
from ..options import near_miss
from ..tensor import Tensor, as_tensor
from ..watch import Watcher, watched
from .graphs import normal_like


class Scale(NamedTuple):
    """How large what a layer gives is, and its gradient: root mean squares over all elements.

    >>> import tinynorm as tn
    >>> tn.inspect.scales(tn.nn.Sequential(tn.nn.ReLU()), tn.tensor([3.0, 4.0]), loss=lambda h: h.sum())
    [Scale(name='0', activation=3.53..., gradient=1.0)]
    """

    name: str
    activation: float
    gradient: float


def scales(
    model: Module,
    batch: Any,
    *,
    loss: Callable[..., Tensor] | None = None,
    layers: Iterable[str] | None = None,
) -> list[Scale]:
    """The root mean squares of each layer's result h, and of its gradient ∂ℒ/∂h, for one batch.

    The model runs once, as it is: in training mode dropout draws its numbers, once. No parameter gets a `grad`.

    Args:
        model: a module.
        batch: a tuple (x, y), for which ℒ is ``loss(model(x), y)``; or x alone, for which it is ``loss(model(x))``.
        loss: what gives the single element ℒ. By default `functional.cross_entropy`; without y, the sum of the result's
            elements, each times a fixed random number.
        layers: dotted names of modules, as `Module.named_modules` gives them. By default the model's children, and
            instead of a Sequential what is in it; the model itself, "", where it has none.

    Returns:
        a Scale for each layer that ran, in the order of the names. A module that runs again has further ones: under its
        further names if it has several, and else as "head (2)", "head (3)".

    Raises:
        ArgumentError: for a name that the model does not have or whose module did not run, and a tuple that is no pair.
        DTypeError: for a layer that gives no Tensor of floats.
        ShapeError: for a loss of more than one element.

    >>> import tinynorm as tn
    >>> model = tn.nn.PreNormMLP(4, 8, depth=2, out_features=3, rng=0)
    >>> rows = tn.inspect.scales(model, (tn.tensor([[1.0, 2.0, 3.0, 4.0]]), [2]))
    >>> [row.name for row in rows]
    ['embed', 'blocks.0', 'blocks.1', 'norm', 'head']
    >>> round(rows[3].activation, 3)  # a norm's result
    1.0
    """
    if not isinstance(model, Module):
        raise DTypeError(f"scales: model must be a nn.Module, not {type(model).__name__}")
    if isinstance(batch, tuple) and len(batch) != 2:
        raise ArgumentError(f"scales: batch must be a pair (x, y), or x alone, not a tuple of {len(batch)}")
    x, targets = (batch[0], (batch[1],)) if isinstance(batch, tuple) else (batch, ())
    chosen = _chosen(model, layers)
    results = _Results({id(module) for _, module in chosen})
    with graph.recording():
        with watched(results):
            output = model(as_tensor(x))
        value = _loss(output, loss, targets)
        named = _named(chosen, results.found, asked=layers is not None)
        gradients = grad(value, [h for _, h in named]) if named else ()
    return [Scale(name, _rms(h), _rms(g)) for (name, h), g in zip(named, gradients, strict=True)]


def _chosen(model: Module, layers: Iterable[str] | None) -> list[tuple[str, Module]]:
    """The layers' names and modules."""
    if layers is None:
        return _members(model) or [("", model)]
    if isinstance(layers, str):
        raise ArgumentError(f"scales: layers must be several names, not {layers!r}; write layers=[{layers!r}]")
    known = dict(model.named_modules())
    names = list(layers)
    for name in names:
        if name not in known:
            raise ArgumentError(f"scales: the model has no layer {name!r}{near_miss(str(name), known)}")
    return [(name, known[name]) for name in names]


def _members(module: Module, prefix: str = "") -> list[tuple[str, Module]]:
    """The children, and in place of a Sequential its own."""
    found = []
    for name, child in module.named_children():
        inner = _members(child, f"{prefix}{name}.") if isinstance(child, Sequential) else [(prefix + name, child)]
        found += inner
    return found


class _Results(Watcher):
    """Keeps what some modules give, call by call. What has no history begins one, so that it has a gradient."""

    def __init__(self, wanted: set[int]) -> None:
        super().__init__()
        self.found: dict[int, list[Any]] = {module: [] for module in wanted}

    def call(self, module: Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
        result = super().call(module, inputs, options)
        if id(module) in self.found:
            if isinstance(result, Tensor) and result.dtype.kind == "f":
                result = as_tensor(result, requires_grad=True)
            self.found[id(module)].append(result)
        return result


def _named(chosen: list[tuple[str, Module]], found: dict[int, list[Any]], asked: bool) -> list[tuple[str, Tensor]]:
    """Each result under the name of its layer."""
    names = {id(module): [name for name, other in chosen if other is module] for _, module in chosen}
    named = []
    for name, module in chosen:
        results, own = found[id(module)], names[id(module)]
        place = own.index(name)
        if asked and place >= len(results):
            raise ArgumentError(f"scales: the layer {name!r} did not run, at least not by being called")
        further = results[place:] if name == own[-1] else results[place : place + 1]
        named += [(name if i == 0 else f"{name} ({i + 1})", h) for i, h in enumerate(further)]
    for name, h in named:
        if not isinstance(h, Tensor) or h.dtype.kind != "f":
            what = f"a Tensor of {h.dtype}" if isinstance(h, Tensor) else f"a {type(h).__name__}"
            raise DTypeError(f"scales: the layer {name!r} gives {what}, not a Tensor of floats; name others in layers=")
    return named


def _loss(output: Any, loss: Callable[..., Tensor] | None, targets: tuple[Any, ...]) -> Tensor:
    """ℒ, the single element that is differentiated."""
    if loss is None and not targets:
        if not isinstance(output, Tensor):
            raise DTypeError(f"scales: the model gives a {type(output).__name__}; pass loss=, which makes one element")
        return (output * Tensor(normal_like(output))).sum()
    value = (loss or cross_entropy)(output, *targets)
    if not isinstance(value, Tensor) or value.size != 1:
        what = f"shape {value.shape}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise ShapeError(f"scales: loss must give a Tensor of one element, not {what}")
    return value


def _rms(t: Tensor) -> float:
    """√(mean(a²)), in float64."""
    return float(np.sqrt(np.mean(np.square(to_device(t._data, CPU), dtype=np.float64))))
