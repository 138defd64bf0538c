"""Examples in corners that random values never reach: where two values tie, and far out.

At a tie of two there is no derivative, but the central difference is the mean of both slopes, which is what the
formulas promise. So differences can judge there, too, as long as no more than two tie.
"""

from typing import Any

import numpy as np

from .. import array
from .. import functional as F
from ..errors import GradientError
from ..formulas.types import Array
from ..tensor import tensor
from .cases import OPS, Case, Setting
from .numeric import central_difference
from .values import Shape


def on_few_values(rng: np.random.Generator, shape: Shape) -> Array:
    """Whole numbers, so that many are equal."""
    return rng.integers(-1, 2, shape).astype(np.float64)


def _two_alike(rng: np.random.Generator, setting: Setting) -> list[Array]:
    return [on_few_values(rng, shape) for shape in setting.shapes]


def _each_twice(rng: np.random.Generator, setting: Setting) -> list[Array]:
    """Every value stands twice in its row."""
    (shape,) = setting.shapes
    half = rng.permuted(np.broadcast_to(np.arange(shape[-1] // 2) - 0.75, (*shape[:-1], shape[-1] // 2)), axis=-1)
    return [np.concatenate([half, half], axis=-1)]


def _far_out(rng: np.random.Generator, setting: Setting) -> list[Array]:
    return [rng.choice([-900.0, 900.0], shape) for shape in setting.shapes]


def _case(name: str, call: Any, inputs: Any, *shapes: Shape, **options: Any) -> Case:
    setting = Setting(shapes, options)
    return Case(name, OPS[name.partition(":")[0]], call, inputs, [setting], lambda choose: setting)


CORNERS = (
    _case("maximum: ties", array.maximum, _two_alike, (4, 4), (4, 4)),
    _case("minimum: ties", array.minimum, _two_alike, (4, 4), (4, 4)),
    _case("max: ties", array.max, _each_twice, (3, 4), axis=-1),
    _case("min: ties", array.min, _each_twice, (3, 4), axis=-1),
    _case("sigmoid: far out", F.sigmoid, _far_out, (4, 4)),
    _case("tanh: far out", array.tanh, _far_out, (4, 4)),
)


def verify_corner(case: Case, inputs: list[Array], options: dict[str, Any], *, seed: int) -> None:
    """Hold gradients against plain central differences.

    Raises:
        GradientError: when they are not the same.
    """
    leaves = [tensor(a, requires_grad=True) for a in inputs]
    y = case.call(*leaves, **options)
    dy = np.random.default_rng(seed).normal(size=y.shape)
    y.backward(dy)
    for k, leaf in enumerate(leaves):
        along = lambda a, k=k: case.call(*inputs[:k], a, *inputs[k + 1 :], **options).numpy()  # noqa: E731
        numeric = central_difference(along, inputs[k], dy)
        near = 1e-8 * np.max(np.abs(numeric), initial=0.0)
        if leaf.grad is None or not np.allclose(leaf.grad, numeric, rtol=1e-6, atol=near):
            raise GradientError(f"{case.name}, argument {k}: the gradient is {leaf.grad}, differences say {numeric}")
