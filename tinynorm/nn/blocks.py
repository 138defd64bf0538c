"""The pre-norm residual block, and the small MLP made of it."""

from collections.abc import Callable
from typing import Any

from ..checks import same_shape
from ..errors import ArgumentError
from ..options import choice, count
from ..random import Rng, generator
from ..tensor import Tensor, operand
from .activations import ACTIVATIONS, ReLU
from .containers import Identity, Sequential
from .linear import Linear
from .module import Module
from .norms import LayerNorm, RMSNorm

NORMS: dict[str, Callable[[int], Module]] = {"rms": RMSNorm, "layer": LayerNorm, "none": lambda width: Identity()}


class PreNormBlock(Module):
    """x + body(norm(x)): the stream x passes unchanged, and the body sees it normalized.

    Source: Xiong et al., "On Layer Normalization in the Transformer Architecture" (2020).

    >>> import tinynorm as tn
    >>> block = tn.nn.PreNormBlock(tn.nn.RMSNorm(2, eps=0.0), tn.nn.Identity())
    >>> block([3.0, 4.0]).numpy().round(4)
    array([3.8485, 5.1314], dtype=float32)
    """

    def __init__(self, norm: Module, body: Module) -> None:
        self.norm = norm
        self.body = body

    def forward(self, x: Any) -> Tensor:
        """(..., width) to the same shape."""
        stream = operand("PreNormBlock", x)
        change = operand("PreNormBlock", self.body(self.norm(stream)))
        same_shape("PreNormBlock", x=stream, body=change)
        return stream + change


class PreNormMLP(Module):
    """Linear, then `depth` pre-norm blocks of Linear, activation, Linear, then a norm and a Linear.

    Args:
        in_features: the size of the last axis of the input.
        width: the size of the stream that the blocks add to.
        depth: how many blocks.
        out_features: the size of the last axis of the output.
        norm: "rms", "layer", or "none".
        expansion: a block's hidden size is expansion · width.
        activation: what stands between a block's two Linears: a class or function that makes a module, a module that
            all blocks share, or a name such as "gelu".
        rng: a generator or seed for the initial weights.
        device: where the parameters live.

    >>> import tinynorm as tn
    >>> model = tn.nn.PreNormMLP(64, 32, depth=2, out_features=10, rng=0)
    >>> sum(p.size for p in model.parameters())
    19210
    """

    def __init__(
        self,
        in_features: int,
        width: int,
        depth: int,
        out_features: int,
        norm: str = "rms",
        expansion: int = 4,
        activation: str | Module | Callable[[], Module] = ReLU,
        *,
        rng: Rng = None,
        device: str = "cpu",
    ) -> None:
        make_norm = NORMS[choice("PreNormMLP", "norm", norm, NORMS)]
        rng = generator(rng)
        width = count("PreNormMLP", "width", width, least=1)
        hidden = count("PreNormMLP", "expansion", expansion, least=1) * width
        self.embed = Linear(in_features, width, rng=rng)
        self.blocks = Sequential(
            *(
                PreNormBlock(
                    make_norm(width),
                    Sequential(Linear(width, hidden, rng=rng), _made(activation), Linear(hidden, width, rng=rng)),
                )
                for _ in range(count("PreNormMLP", "depth", depth, least=0))
            )
        )
        self.norm = make_norm(width)
        self.head = Linear(width, out_features, rng=rng)
        self.to(device)

    def forward(self, x: Any) -> Tensor:
        """(..., in_features) to (..., out_features)."""
        result: Tensor = self.head(self.norm(self.blocks(self.embed(x))))
        return result


def _made(activation: str | Module | Callable[[], Module]) -> Module:
    """The activation module of one block."""
    if isinstance(activation, str):
        return ACTIVATIONS[choice("PreNormMLP", "activation", activation, ACTIVATIONS)]()
    try:
        made = activation if isinstance(activation, Module) else activation()
    except TypeError:
        made = None
    if not isinstance(made, Module):
        raise ArgumentError(
            "PreNormMLP: activation must be a module, a class or function that makes one, such as nn.ReLU, or a name "
            f"such as 'gelu', not {activation!r}"
        )
    return made
