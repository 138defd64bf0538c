"""What is asked of a graph before it is looked at."""

import numpy as np

from ..backend import to_device
from ..errors import DTypeError, GraphError
from ..formulas.types import Array
from ..graph import Node, Source
from ..tensor import Tensor


def source_of(name: str, y: Tensor) -> Source:
    """The node or leaf that stands for a Tensor in the graph."""
    if not isinstance(y, Tensor):
        raise DTypeError(f"{name}: there must be one Tensor to look at, not a {type(y).__name__}")
    if y._source is None:
        raise GraphError(
            f"{name}: this tensor has no graph: nothing it was computed from requires a gradient, or it was computed "
            "under no_grad; make a leaf with requires_grad=True"
        )
    return y._source


def in_order(root: Source) -> list[Node]:
    """Each node once, after all of its sources, the first source's first: as nested expressions run. A loop.

    Raises `GraphError` for a graph that was freed.
    """
    found: list[Node] = []
    seen: set[Source] = set()
    stack = [(root, False)]
    while stack:
        source, done = stack.pop()
        if isinstance(source, Node):
            if done:
                found.append(source)
            elif source not in seen:
                if source.freed:
                    source.check()  # which says so
                seen.add(source)
                stack.append((source, True))
                stack += [(s, False) for s in source.sources[::-1] if s is not None]
    return found


def normal_like(y: Tensor) -> Array:
    """A cotangent for a result that is no single number: normally distributed, on its device, always the same.

    Ones would not do: the gradient of a LayerNorm without weights is 0 for them, whatever the formula.
    """
    return to_device(np.random.default_rng(0).standard_normal(y.shape).astype(y.dtype), y.device)
