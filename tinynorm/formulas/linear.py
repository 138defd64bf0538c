"""The linear layer, y = x Wᵀ + b, for x of shape (..., in) and W of shape (out, in).

Derivation. With one index for all leading axes, yₙₒ = Σᵢ xₙᵢ Wₒᵢ + bₒ, so

    ∂yₙₒ/∂xₙᵢ = Wₒᵢ ,      ∂yₙₒ/∂Wₒᵢ = xₙᵢ ,      ∂yₙₒ/∂bₒ = 1 ,

and the chain rule sums over every y that a variable reaches:

    x̄ₙᵢ = Σₒ ȳₙₒ Wₒᵢ ,     W̄ₒᵢ = Σₙ ȳₙₒ xₙᵢ ,     b̄ₒ = Σₙ ȳₙₒ .

docs/derivations/linear.md has every step, and checks them.
"""

from math import prod

from .summation import contracted
from .types import Array, Forward, Namespace, Needs


def linear(xp: Namespace, x: Array, weight: Array, bias: Array | None, *, needs: Needs = (True, True, True)) -> Forward:
    """y = x Wᵀ + b"""
    y = xp.matmul(x, xp.transpose(weight))
    if bias is not None:
        y = y + bias
    return y, (x if needs[1] else None, weight if needs[0] else None)


def linear_backward(
    xp: Namespace, dy: Array, cache: tuple[Array, Array], needs: Needs = (True, True, True)
) -> tuple[Array | None, Array | None, Array]:
    """x̄ = ȳ W ;   W̄ = ȳᵀ x ;   b̄ = Σ_rows ȳ"""
    x, weight = cache
    dx = xp.matmul(dy, weight) if needs[0] else None
    dw = contracted(xp, xp.transpose(_rows(xp, dy)), _rows(xp, x)) if needs[1] else None
    return dx, dw, dy


def _rows(xp: Namespace, x: Array) -> Array:
    """(..., D) as (N, D)"""
    return xp.reshape(x, (prod(x.shape[:-1]), x.shape[-1]))
