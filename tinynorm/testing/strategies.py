"""Hypothesis strategies for Tensors, and for the inputs of norms and losses. They need the extra `test`.

Hypothesis draws shapes and a seed, and a NumPy Generator makes the values from the seed; see `tinynorm.testing.values`
for makers of values. So failures shrink to small shapes and repeat exactly.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import extras
from ..tensor import Tensor, as_tensor
from . import choices
from .cases import Case
from .choices import Choose
from .values import LAYOUTS, Maker, Shape, below, real

st = extras.optional("hypothesis.strategies", "test")

__all__ = ["broadcastable", "class_targets", "norm_inputs", "seeds", "settings_of", "shapes", "tensors"]

FLOATS = (np.float64, np.float32, np.float16)


def seeds() -> Any:
    """Seeds of a NumPy Generator.

    >>> from hypothesis import given
    >>> @given(seeds())
    ... def test(seed):
    ...     assert np.random.default_rng(seed).random() < 1.0
    >>> test()
    """
    return st.integers(0, 2**32 - 1)


def chosen(setting: Any, *arguments: Any, **options: Any) -> Any:
    """What ``setting(choose, ...)`` gives, with hypothesis choosing."""

    @st.composite  # type: ignore[untyped-decorator]
    def drawn(draw: Any) -> Any:
        return setting(Choose(lambda low, high: int(draw(st.integers(low, high)))), *arguments, **options)

    return drawn()


def settings_of(case: Case) -> Any:
    """Settings of a `Case`: shapes and options.

    >>> from hypothesis import given
    >>> from tinynorm.testing.cases import CASES
    >>> @given(settings_of(CASES["softmax"]))
    ... def test(setting):
    ...     (shape,) = setting.shapes
    ...     assert -len(shape) <= setting.options["axis"] < len(shape)
    >>> test()
    """
    return chosen(case.setting)


def shapes(least_ndim: int = 0, most_ndim: int = 3, least: int = 0) -> Any:
    """Shapes with axes of lengths from `least` to 3.

    >>> from hypothesis import given
    >>> @given(shapes(least_ndim=1, least=1))
    ... def test(shape):
    ...     assert 1 <= np.prod(shape) <= 27
    >>> test()
    """
    return chosen(choices.shape, least_ndim, most_ndim, least)


def tensors(of: Any = None, maker: Maker = real, dtypes: Sequence[Any] = FLOATS) -> Any:
    """Tensors that require a gradient (where they are floating-point), stored in any layout.

    Args:
        of: a shape, or a strategy for shapes; None stands for any.
        maker: of the values.
        dtypes: one of them is drawn.

    >>> from hypothesis import given
    >>> import tinynorm as tn
    >>> @given(tensors())
    ... def test(t):
    ...     tn.exp(t).sum().backward()
    ...     assert t.grad.shape == t.shape
    >>> test()
    """
    of = shapes() if of is None else st.just(of) if isinstance(of, tuple) else of
    return _several(of.map(lambda shape: (shape,)), [maker], dtypes).map(lambda several: several[0])


def broadcastable(count: int = 2, maker: Maker = real, dtypes: Sequence[Any] = FLOATS) -> Any:
    """Tuples of Tensors, of one dtype, whose shapes broadcast to each other.

    Args:
        count: of Tensors.
        maker, dtypes: as for `tensors`.

    >>> from hypothesis import given
    >>> @given(broadcastable())
    ... def test(pair):
    ...     a, b = pair
    ...     assert (a * b).shape == np.broadcast_shapes(a.shape, b.shape)
    >>> test()
    """
    return _several(chosen(choices.broadcastable, count), [maker], dtypes)


def norm_inputs(parameters: int = 1, maker: Maker = real, dtypes: Sequence[Any] = FLOATS) -> Any:
    """Tuples (x, weight, ...) of Tensors of one dtype: x is (..., D), and each of the parameters (D,).

    Args:
        parameters: how many there are: 1 for RMSNorm, 2 for LayerNorm.
        maker: of the values of x.
        dtypes: as for `tensors`.

    >>> from hypothesis import given
    >>> import tinynorm as tn
    >>> @given(norm_inputs(2))
    ... def test(inputs):
    ...     x, weight, bias = inputs
    ...     assert tn.functional.layer_norm(x, x.shape[-1], weight, bias).shape == x.shape
    >>> test()
    """

    def found(choose: Choose) -> tuple[Shape, ...]:
        last = choices.features(choose)
        return ((*choices.shape(choose), last), *[(last,)] * parameters)

    return _several(chosen(found), [maker, real], dtypes)


def class_targets(classes: int | None = None, maker: Maker = real, dtypes: Sequence[Any] = FLOATS) -> Any:
    """Pairs (scores, target) of Tensors: scores (N, C), N being 1 or more, and target (N,), integers below C.

    Args:
        classes: C; None stands for 1 to 4.
        maker: of the scores.
        dtypes: as for `tensors`.

    >>> from hypothesis import given
    >>> import tinynorm as tn
    >>> @given(class_targets())
    ... def test(pair):
    ...     scores, target = pair
    ...     assert tn.functional.cross_entropy(scores, target).item() >= 0.0
    >>> test()
    """

    def pairs(c: int) -> Any:
        return _several(chosen(choices.side, least=1).map(lambda n: ((n, c), (n,))), [maker, below(c)], dtypes)

    return (chosen(choices.features) if classes is None else st.just(classes)).flatmap(pairs)


@st.composite  # type: ignore[untyped-decorator]
def _several(draw: Any, shapes: Any, makers: Sequence[Maker], dtypes: Sequence[Any]) -> tuple[Tensor, ...]:
    """Tensors of the shapes drawn; the last maker serves all further ones."""
    found, dtype, rng = draw(shapes), draw(st.sampled_from(dtypes)), np.random.default_rng(draw(seeds()))
    several = []
    for k, shape in enumerate(found):
        array = makers[min(k, len(makers) - 1)](rng, shape)
        floating = array.dtype.kind == "f"
        array = array.astype(dtype) if floating else array
        layout = LAYOUTS.get(draw(st.sampled_from(["C", *LAYOUTS])))
        array = layout(array) if layout is not None and shape else array
        several.append(as_tensor(array, requires_grad=floating))
    return tuple(several)
