"""How each operation is called: the table that the tests, `python -m tinynorm check` and the mutants share.

A `Case` lists the settings that are tried always and draws others; a NumPy Generator makes the values. So a failure
repeats exactly, and values keep away from kinks by how they are made.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from .. import array, table
from .. import functional as F
from ..formulas.types import Array
from ..op import Op
from ..tensor import Tensor, apply, tensor
from .choices import Choose, axes, broadcastable, from_either_end, narrowed, permuted, shape, side
from .values import (
    Maker,
    Shape,
    above,
    away_from_zero,
    distinct,
    mask,
    on_grid,
    positive,
    real,
    with_zeros,
)


class Setting(NamedTuple):
    """The shapes of a call's inputs, and its options."""

    shapes: tuple[Shape, ...]
    options: dict[str, Any]


Inputs = Callable[[np.random.Generator, Setting], list[Array]]


@dataclass(frozen=True)
class Case:
    """How one operation is called: ``call(*tensors, **options)``.

    Args:
        call: takes Tensors and options.
        inputs: makes the arrays of a setting; none lies near a kink.
        always: settings that are tried in any case. The last is the typical one: its inputs and its result have axes
            longer than 1.
        setting: draws another one.
        name: the operation's, with a remark after a colon where it has several cases.
        op: the operation itself; None for a function that is several of them.
        keeps_dtype: whether the result has the dtype of the inputs.
    """

    call: Callable[..., Tensor]
    inputs: Inputs
    always: list[Setting]
    setting: Callable[[Choose], Setting]
    name: str = ""
    op: Op | None = None
    keeps_dtype: bool = True

    @classmethod
    def of_function(cls, function: Callable[..., Tensor]) -> "Case":
        """A function on given inputs: a case that draws none."""
        operation = getattr(function, "_op", None)
        name = operation.name if operation else getattr(function, "__name__", repr(function))
        return cls(function, lambda rng, setting: [], [], lambda choose: Setting((), {}), name, operation)

    @property
    def typical(self) -> Setting:
        """The last of `always`."""
        return self.always[-1]


SHAPES: list[Shape] = [(), (1,), (0,), (3, 1, 2), (4, 4)]
"""Those that every test of many shapes must include."""

BROADCAST: list[tuple[Shape, Shape]] = [
    ((), ()), ((1,), (1,)), ((0,), (0,)), ((3, 1, 2), (3, 1, 2)), ((4, 4), (4, 4)),
    ((), (3, 1, 2)), ((3, 1, 2), ()), ((0,), (1,)), ((0,), ()), ((4, 4), (4,)), ((1,), (4, 4)),
    ((2, 1), (1, 3)), ((3, 1, 2), (4, 1)), ((2, 1, 0), (3, 1)),  # both operands at once
]  # fmt: skip
"""Pairs of shapes that broadcast to each other."""


def each(*makers: Maker) -> Inputs:
    """Inputs that are made one by one; the last maker serves all further ones."""

    def inputs(rng: np.random.Generator, setting: Setting) -> list[Array]:
        chosen = makers + makers[-1:] * (len(setting.shapes) - len(makers))
        return [make(rng, shape) for make, shape in zip(chosen, setting.shapes, strict=False)]

    return inputs


# Element by element


def one(call: Callable[..., Tensor], make: Maker, **options: Sequence[Any]) -> Case:
    """A function of one array of any shape. For each option, the values it may take; the first is the usual one."""
    always = [Setting((s,), {k: v[0] for k, v in options.items()}) for s in SHAPES]
    return Case(call, each(make), always, lambda c: Setting((shape(c),), {k: c.of(v) for k, v in options.items()}))


def two(call: Callable[..., Tensor], *makers: Maker) -> Case:
    """A function of two arrays that broadcast."""
    always = [Setting(pair, {}) for pair in [*BROADCAST, ((4, 1), (1, 4)), ((4, 4), (4, 4))]]
    return Case(call, each(*makers), always, lambda c: Setting(broadcastable(c, 2), {}))


def three(call: Callable[..., Tensor], *makers: Maker) -> Case:
    """A function of three arrays that broadcast."""
    mixed = [((2, 1), (1, 3), ()), ((), (), (2,)), ((3,), (2, 1), (2, 1, 1)), ((0,), (1,), (3, 1))]
    always = [Setting(s, {}) for s in [*mixed, *((s, s, s) for s in SHAPES)]]
    return Case(call, each(*makers), always, lambda c: Setting(broadcastable(c, 3), {}))


ELEMENTWISE = {
    "negative": one(lambda x: -x, real),
    "exp": one(array.exp, real),
    "expm1": one(array.expm1, real),
    "log": one(array.log, positive),
    "log1p": one(array.log1p, above(-1.0)),
    "sqrt": one(array.sqrt, positive),
    "tanh": one(array.tanh, real),
    "sin": one(array.sin, real),
    "cos": one(array.cos, real),
    "abs": one(array.abs, away_from_zero),
    "erf": one(array.erf, real),
    "relu": one(F.relu, away_from_zero),
    "leaky_relu": one(F.leaky_relu, away_from_zero, negative_slope=[0.01, 0.0, 0.3, 2.0]),
    "elu": one(F.elu, away_from_zero, alpha=[1.0, 0.5]),
    "sigmoid": one(F.sigmoid, real),
    "silu": one(F.silu, real),
    "softplus": one(F.softplus, real),
    "gelu": one(F.gelu, real),
    "gelu_tanh": one(partial(F.gelu, approximate="tanh"), real),
    "dropout": one(F.dropout, real, p=[0.5, 0.1, 0.9, 1.0], rng=[0, 1]),
    "power: integer exponent": one(lambda x, p: x**p, away_from_zero, p=[2, 3, 1, 0, -1, -2]),
    "power: even at zero": one(lambda x, p: x**p, with_zeros, p=[2, 2.0, 3]),
    "power: of a number": one(lambda p, x: x**p, real, x=[2.0, 3, 0.5]),
    "add: number": one(lambda x: 1.5 + x, real),
    "subtract: from a number": one(lambda x: 1.5 - x, real),
    "divide: a number": one(lambda x: 1.5 / x, away_from_zero),
    "clip: numbers": one(array.clip, on_grid(0.1), a_min=[-1.0, None], a_max=[1.0, None]),
    "add": two(lambda a, b: a + b, real),
    "subtract": two(lambda a, b: a - b, real),
    "multiply": two(lambda a, b: a * b, real),
    "divide": two(lambda a, b: a / b, real, away_from_zero),
    "power": two(lambda a, b: a**b, positive, real),
    "maximum": two(array.maximum, on_grid(0.0), on_grid(0.2)),
    "minimum": two(array.minimum, on_grid(0.0), on_grid(0.2)),
    "where": three(array.where, mask, real),
    "clip": three(array.clip, on_grid(0.0), on_grid(-0.8), on_grid(0.8)),
}


# Reductions


def reduction(call: Callable[..., Tensor], make: Maker, of_nothing: bool = False, ddofs: Sequence[float] = ()) -> Case:
    """A function over some axes. Of nothing: whether these may be empty. ddofs: what variances are corrected by."""

    def drawn(choose: Choose) -> Setting:
        ndim = choose.integer(0, 3)
        axis = axes(choose, ndim)
        reduced = range(ndim) if axis is None else [a % ndim for a in np.atleast_1d(axis).astype(int)]
        lengths = tuple(side(choose, 1 if i in reduced and not of_nothing else 0) for i in range(ndim))
        options = {"axis": axis, "keepdims": choose.of((False, True))}
        if ddofs:
            options["ddof"] = choose.of([d for d in ddofs if d < prod(lengths[i] for i in reduced)])
        return Setting((lengths,), options)

    always = [Setting((s,), {"axis": None}) for s in SHAPES if of_nothing or 0 not in s]
    always += [Setting(((0,),), {"axis": ()}), Setting(((0, 3),), {"axis": 1})]
    always += [Setting(((3, 1, 2),), {"axis": (0, -1), "keepdims": k}) for k in (False, True)]
    return Case(call, each(make), [*always, Setting(((4, 4),), {"axis": -1})], drawn)


def running(call: Callable[..., Tensor], make: Maker, flat: bool = False) -> Case:
    """A function along one axis. Flat: whether axis may be None; otherwise it takes no scalar, which has no axis."""

    def drawn(choose: Choose) -> Setting:
        of = shape(choose, least_ndim=0 if flat else 1)
        n = len(of)
        return Setting((of,), {"axis": choose.of([*([None] if flat else []), *range(-n, n)])})

    always = [Setting((s,), {"axis": None if flat else -1}) for s in SHAPES if flat or s]
    always += [Setting(((3, 1, 2),), {"axis": 0}), Setting(((0, 2),), {"axis": 0}), Setting(((0, 2),), {"axis": 1})]
    return Case(call, each(make), [*always, Setting(((4, 4),), {"axis": 1})], drawn)


REDUCTIONS = {
    "sum": reduction(array.sum, real, of_nothing=True),
    "prod": reduction(array.prod, with_zeros, of_nothing=True),
    "mean": reduction(array.mean, real),
    "max": reduction(array.max, distinct),
    "min": reduction(array.min, distinct),
    "logsumexp": reduction(array.logsumexp, real),
    "var": reduction(array.var, real, ddofs=(0, 0.5, 1, 2)),
    "cumsum": running(array.cumsum, real, flat=True),
    "softmax": running(F.softmax, real),
    "log_softmax": running(F.log_softmax, real),
}


# Shapes and parts


def reshaping(choose: Choose) -> Setting:
    """Turned, flattened, or with axes of length 1 put before or behind."""
    of = shape(choose)
    return Setting((of,), {"shape": choose.of([of, of[::-1], (1, *of), (*of, 1), (prod(of),), (-1,)])})


def transposing(choose: Choose) -> Setting:
    """All axes turned round, or in any order."""
    of = shape(choose)
    order = [from_either_end(choose, axis, len(of)) for axis in permuted(choose, range(len(of)))]
    return Setting((of,), {"axes": choose.of((None, tuple(order)))})


def broadcasting(choose: Choose) -> Setting:
    """To any shape."""
    whole = shape(choose)
    return Setting((narrowed(choose, whole),), {"shape": whole})


def stacking(choose: Choose) -> Setting:
    """Along any axis, the new ones at both ends included."""
    of = shape(choose)
    return Setting((of,) * choose.integer(1, 3), {"axis": choose.integer(-len(of) - 1, len(of))})


def concatenating(choose: Choose) -> Setting:
    """Lengths that differ along the one axis."""
    of = shape(choose, least_ndim=1)
    axis = choose.integer(-len(of), len(of) - 1)
    before, after = of[: axis % len(of)], of[axis % len(of) + 1 :]
    lengths = [side(choose) for _ in range(choose.integer(1, 3))]
    return Setting(tuple((*before, n, *after) for n in lengths), {"axis": axis})


INDICES: list[tuple[Shape, Any]] = [
    ((), ()), ((), ...), ((), None), ((), (None, ..., None)), ((), True), ((), False), ((), np.array(True)),
    ((1,), 0), ((1,), -1), ((1,), slice(None)), ((1,), [0, 0, 0]), ((1,), [True]), ((1,), [False]),
    ((0,), slice(None)), ((0,), ...), ((0,), []), ((0,), np.zeros(0, bool)), ((0,), np.zeros((2, 0), int)),
    ((3, 1, 2), 1), ((3, 1, 2), (-1, 0, 1)), ((3, 1, 2), (..., 0)), ((3, 1, 2), (slice(None, None, -2), None, 0)),
    ((3, 1, 2), ([0, 2, 0], 0)), ((3, 1, 2), ([0, 0], slice(None), [1, 1])), ((3, 1, 2), ([[0], [2]], 0, [0, 1, 1])),
    ((3, 1, 2), np.array([True, False, True])), ((3, 1, 2), ([True, False, True], ..., [1, 1])),
    ((3, 1, 2), (slice(None), np.ones((1, 2), bool))), ((3, 1, 2), np.arange(6).reshape(3, 1, 2) % 2 == 0),
    ((4, 4), np.int64(2)), ((4, 4), np.array(2)), ((4, 4), (slice(1, 3), slice(-1, 0, -2))), ((4, 4), slice(3, 1)),
    ((4, 4), (None, slice(2), None, 1)), ((4, 4), [3, 3, -1, 0]), ((4, 4), np.array([[1, 1], [1, -3]], np.int8)),
    ((4, 4), np.array([1, 2, 1], np.uint8)), ((4, 4), ([0, 1, 1], [2, 2, 2])), ((4, 4), ((0, 1), (1, 1))),
    ((4, 4), np.eye(4, dtype=bool)), ((4, 4), np.zeros((4, 4), bool)), ((4, 4), (slice(None), [0, 0], None)),
    ((4, 4), tensor([1, 1, 3])), ((4, 4), (tensor([1, 1]), tensor(0))), ((4, 4), tensor(np.eye(4)) > 0),
    ((4, 4), (slice(None), [1, 0, 1])),
]  # fmt: skip
"""Shapes, and what to index them with: ints, slices, None, Ellipsis, integer arrays with duplicates, masks, Tensors."""


def indexing(choose: Choose) -> Setting:
    """A mask of the whole; or for each axis a number, a slice or an array of numbers, new axes, and an ellipsis."""
    of = shape(choose)
    if choose.integer(0, 4) == 0:
        bits = [choose.of((False, True)) for _ in range(prod(of))]
        return Setting((of,), {"index": np.array(bits, bool).reshape(of)})
    common = shape(choose, most_ndim=2)  # of the arrays, which broadcast to each other
    index: list[Any] = []
    for n in of:
        kind = choose.of(("slice", "new axis", "number", "array")[: 4 if n else 2])
        if kind == "number":
            index.append(choose.integer(-n, n - 1))
        elif kind == "array":
            lengths = narrowed(choose, common)
            numbers = [choose.integer(-n, n - 1) for _ in range(prod(lengths))]
            index.append(np.array(numbers, np.int64).reshape(lengths))
        else:
            index += [None] if kind == "new axis" else []
            step = choose.of((None, -1, 2, -2))
            index.append(slice(choose.of((None, 1, -1)), choose.of((None, 2, -1)), step))
    if choose.of((False, True)):
        start = choose.integer(0, len(index))
        index[start : choose.integer(start, len(index))] = [...]
    return Setting((of,), {"index": tuple(index)})


def holds_tensor(index: Any) -> bool:
    """Whether an index is a Tensor, or a tuple with one."""
    return any(isinstance(i, Tensor) for i in (index if isinstance(index, tuple) else (index,)))


def at(x: Tensor, index: Any) -> Tensor:
    """x[index]; Tensors in the index are brought to x's device."""
    several = index if isinstance(index, tuple) else (index,)
    moved = tuple(i.to(x.device) if isinstance(i, Tensor) else i for i in several)
    return x[moved if isinstance(index, tuple) else moved[0]]


def put_back(got: Setting) -> Setting:
    """The setting of scatter that puts back what getitem has taken in its own."""
    (whole,), index = got.shapes, got.options["index"]
    return Setting((np.zeros(whole)[index].shape,), {"shape": whole, "index": index})


def taking(choose: Choose) -> Setting:
    """Indices of either sign, along an axis or into the whole."""
    of = shape(choose, least_ndim=1, least=1)
    axis = choose.of([None, *range(-len(of), len(of))])
    count = prod(of) if axis is None else of[axis]
    lengths = shape(choose, most_ndim=2)
    numbers = [choose.integer(-count, count - 1) for _ in range(prod(lengths))]
    return Setting((of,), {"indices": np.array(numbers, np.int64).reshape(lengths), "axis": axis})


def part(
    call: Callable[..., Tensor], setting: Callable[[Choose], Setting], *always: tuple[Any, dict[str, Any]]
) -> Case:
    """An op that moves elements. Each of `always` is a shape, or a list of several inputs' shapes, and the options."""
    settings = [Setting(tuple(s) if isinstance(s, list) else (s,), options) for s, options in always]
    return Case(call, each(real), settings, setting)


PARTS = {
    "reshape": part(
        array.reshape,
        reshaping,
        *((s, {"shape": (-1,)}) for s in SHAPES),
        ((), {"shape": ()}),
        ((0,), {"shape": (3, 0)}),
        ((3, 1, 2), {"shape": (2, -1)}),
        ((4, 4), {"shape": (2, 8)}),
    ),
    "transpose": part(
        array.transpose,
        transposing,
        *((s, {"axes": None}) for s in SHAPES),
        ((3, 1, 2), {"axes": (2, 0, 1)}),
        ((3, 1, 2), {"axes": (-1, 0, -2)}),
        ((4, 4), {"axes": (1, 0)}),
    ),
    "broadcast_to": part(
        array.broadcast_to,
        broadcasting,
        *((s, {"shape": s}) for s in SHAPES),
        ((), {"shape": (2, 3)}),
        ((1,), {"shape": (0,)}),
        ((3, 1, 2), {"shape": (2, 3, 4, 2)}),
        ((4, 4), {"shape": (2, 4, 4)}),
    ),
    "concatenate": part(
        lambda *tensors, axis: array.concatenate(tensors, axis),
        concatenating,
        ([(1,), (0,), (3,)], {"axis": 0}),
        ([(3, 1, 2), (3, 4, 2)], {"axis": -2}),
        ([(4, 4)], {"axis": 1}),
        ([(4, 4), (4, 4)], {"axis": -1}),
    ),
    "stack": part(
        lambda *tensors, axis: array.stack(tensors, axis),
        stacking,
        *(([s, s], {"axis": axis}) for s in SHAPES for axis in (0, -1)),
        ([(4, 4), (4, 4)], {"axis": 1}),
    ),
    "astype": one(lambda x: x.astype(np.longdouble), real),
    "getitem": part(
        at,
        indexing,
        *((shape, {"index": index}) for shape, index in INDICES),
    ),
    "scatter": Case(
        lambda x, shape, index: apply(table.scatter, x, shape=shape, index=index),
        each(real),
        [put_back(Setting((of,), {"index": index})) for of, index in INDICES if not holds_tensor(index)],
        lambda choose: put_back(indexing(choose)),
    ),
    "take": part(
        array.take,
        taking,
        ((), {"indices": [0, 0], "axis": None}),
        ((1,), {"indices": 0}),
        ((0,), {"indices": np.zeros(0, int)}),
        ((3, 1, 2), {"indices": [[5, -6], [5, 5]]}),
        ((4, 4), {"indices": [0, 2, 2, -1], "axis": -1}),
    ),
}


# Products


def matrices(choose: Choose) -> Setting:
    """Matrices with leading axes that broadcast, or vectors."""
    left, right = broadcastable(choose, 2, most_ndim=2)
    m, k, n = side(choose), side(choose), side(choose)
    return Setting((choose.of([(*left, m, k), (k,)]), choose.of([(*right, k, n), (k,)])), {})


MATMUL: list[tuple[Shape, Shape]] = [
    ((1,), (1,)), ((0,), (0,)), ((3,), (3,)), ((3,), (3, 2)), ((2, 3), (3,)), ((2, 3), (3, 4)),
    ((0, 3), (3, 2)), ((2, 0), (0, 3)), ((2, 3), (3, 0)), ((3,), (2, 3, 4)), ((2, 4, 3), (3,)), ((3,), (0, 3, 2)),
    ((3, 1, 2), (2, 3)), ((3, 1, 2), (2,)), ((3, 1, 2), (4, 1, 2, 2)), ((2, 1, 3, 2), (4, 2, 3)),
    ((2, 4, 4), (1, 4, 4)), ((4, 4), (4, 4)),
]  # fmt: skip

EINSUM = [
    ("->", ""), (",->", ","), (",", ","), ("i->", "0"), ("i->i", "0"), ("i", "1"), ("i,i", "3,3"), ("i,j->ij", "2,3"),
    ("i,j->", "2,3"), ("ij,jk", "23,34"), ("ij->j", "23"), ("ba", "23"), ("Ba,aC", "23,34"), ("ij,jk->ki", "23,34"),
    ("ij,ij,ij->i", "23,23,23"), ("ij,jk,kl", "23,32,24"), ("i,j,k->kj", "2,3,4"), (" i j , j k -> k i ", "23,34"),
    # a label twice in one operand: diagonals and traces
    ("ii", "33"), ("ii->i", "33"), ("ii->", "00"), ("iii->i", "222"), ("iij->j", "332"), ("ii,jj->ij", "22,33"),
    ("ii,i->i", "33,3"), ("ijij->ij", "2323"), ("ii,ii", "11,33"),
    # length 1 goes with any other
    ("i,i", "2,1"), ("i,i", "1,2"), ("i,i->i", "1,3"), ("ij,jk->ik", "21,34"), ("ij,ij->ij", "21,13"),
    ("ij,ij->", "21,13"), ("bij,bjk->bik", "123,432"),
    # ellipses
    ("...", "312"), ("...->...", "312"), ("...i", "312"), ("...i->...", "312"), ("i...->i...", "312"),
    ("...ij->...ji", "312"), ("...ij,...jk->...ik", "312,23"), ("...ij,...jk", "2132,423"), ("...,...->...", "21,13"),
    ("i...,i...->...", "23,243"), ("...ii->...i", "233"), ("...,->...", "23,"), ("i...,...", "23,43"),
    ("bnij,bnjc->bnic", "2123,2232"), ("ij,jk->ik", "44,44"),
]  # fmt: skip
"""Subscripts, and under each letter the length of that axis."""


def lengths_of(text: str) -> tuple[Shape, ...]:
    """((2, 3), (3, 4)) from "23,34"."""
    return tuple(tuple(map(int, term)) for term in text.split(","))


def summing(choose: Choose) -> Setting:
    """Known subscripts with other lengths; a label that stands once in its operand may have length 1 there."""
    subscripts = choose.of([s for s, _ in EINSUM if "." not in s and " " not in s])
    terms = subscripts.partition("->")[0].split(",")
    lengths = {label: side(choose) for label in sorted(set("".join(terms)))}
    found = [tuple(1 if t.count(c) == 1 and choose.integer(0, 3) == 3 else lengths[c] for c in t) for t in terms]
    return Setting(tuple(found), {"subscripts": subscripts})


LINEAR: list[tuple[Shape, ...]] = [
    ((1,), (1, 1)), ((1,), (1, 1), (1,)), ((0,), (2, 0), (2,)), ((3,), (0, 3), (0,)), ((0, 3), (2, 3), (2,)),
    ((3, 1, 2), (4, 2), (4,)), ((3, 1, 2), (4, 2)), ((2, 0, 3), (2, 3), (2,)), ((4, 4), (4, 4)), ((4, 4), (4, 4), (4,)),
]  # fmt: skip


def linears(choose: Choose) -> Setting:
    """With a bias or without."""
    n_in, n_out = side(choose), side(choose)
    lead = shape(choose, most_ndim=2)
    return Setting(((*lead, n_in), (n_out, n_in), (n_out,))[: choose.integer(2, 3)], {})


PRODUCTS = {
    "matmul": Case(array.matmul, each(real), [Setting(pair, {}) for pair in MATMUL], matrices),
    "einsum": Case(
        lambda *operands, subscripts: array.einsum(subscripts, *operands),
        each(real),
        [Setting(lengths_of(text), {"subscripts": subscripts}) for subscripts, text in EINSUM],
        summing,
    ),
    "linear": Case(F.linear, each(real), [Setting(s, {}) for s in LINEAR], linears),
}


# Norms


def norm(
    function: Callable[..., Tensor], parameters: tuple[str, ...], variants: Sequence[dict[str, Any]] = ({},)
) -> Case:
    """The parameters that are `given` follow x. `variants` are further options, of which one choice is made."""

    def call(
        x: Tensor, *values: Tensor, normalized_shape: Shape, given: tuple[str, ...], eps: float = 1e-5, **variant: Any
    ) -> Tensor:
        return function(x, normalized_shape, **dict(zip(given, values, strict=True)), eps=eps, **variant)

    def setting(x: Shape, normalized_shape: Shape, given: tuple[str, ...], **options: Any) -> Setting:
        shapes = (x, *[normalized_shape] * len(given))
        return Setting(shapes, {"normalized_shape": normalized_shape, "given": given, **options})

    def drawn(choose: Choose) -> Setting:
        variant = choose.of(variants)
        normalized_shape = shape(choose, least_ndim=1, most_ndim=1 if "partial" in variant else 3, least=1)
        lead = shape(choose, most_ndim=2)
        given = tuple(p for p in parameters if choose.of((True, False)))
        return setting((*lead, *normalized_shape), normalized_shape, given, eps=choose.of((1e-5, 0.1)), **variant)

    # A scalar holds nothing to normalize, and neither does (0,): an empty batch is (0, D).
    normalized = [((1,), 1), ((4,), 1), ((0, 3), 1), ((3, 1, 2), 1), ((3, 1, 2), 2), ((3, 1, 2), 3), ((4, 4), 2),
                  ((4, 4), 1)]  # fmt: skip
    choices = dict.fromkeys([(), parameters[1:], parameters[:1], parameters])
    always = [
        setting(of, of[-n:], given, **variant)
        for variant in variants
        for given in choices
        for of, n in normalized
        if n == 1 or "partial" not in variant
    ]
    return Case(call, each(distinct, real), always, drawn)


NORMS = {
    "rms_norm": norm(F.rms_norm, ("weight",)),
    "rms_norm_variant": norm(
        F.rms_norm,
        ("weight", "bias"),
        [{"weight_offset": 1.0}, {"eps_mode": "outside"}, {"partial": 0.5, "eps_mode": "outside"}, {"partial": 0.7}],
    ),
    "layer_norm": norm(F.layer_norm, ("weight", "bias")),
}


# Losses


def scores_and_targets(rng: np.random.Generator, setting: Setting) -> list[Array]:
    """Some rows are ignored, but never all of them, as their mean would be undefined."""
    scores = real(rng, setting.shapes[0])
    classes = scores.shape[min(scores.ndim - 1, 1)]
    ignored = setting.options["ignore_index"]
    target = rng.integers(0, classes, setting.shapes[1])
    target = np.where(rng.random(setting.shapes[1]) < 0.3, ignored, target)
    if target.size:
        target.flat[0] = next(c for c in range(classes) if c != ignored)
    return [scores, target]


def class_loss(function: Callable[..., Tensor], **options: Sequence[Any]) -> Case:
    """A loss on class indices. For each option, the values it may take."""

    def call(scores: Tensor, target: Tensor, weighted: bool, **options: Any) -> Tensor:
        classes = scores.shape[min(scores.ndim - 1, 1)]
        weight = tensor(np.linspace(0.5, 2.0, classes)).to(scores.device) if weighted else None
        return function(scores, target, weight, **options)

    def setting(
        scores: Shape, reduction: str = "mean", weighted: bool = False, ignore_index: int = -100, **others: Any
    ) -> Setting:
        rows = scores[:1] + scores[2:] if len(scores) > 1 else ()
        chosen = {"reduction": reduction, "weighted": weighted, "ignore_index": ignore_index, **others}
        return Setting((scores, rows), chosen)

    def drawn(choose: Choose) -> Setting:
        classes = choose.integer(2, 4)
        scores: Shape = (classes,)
        if choose.of((False, True)):  # (N, C), (N, C, d) or (N, C, d, e)
            scores = (side(choose), classes, *shape(choose, most_ndim=2))
        reduction = choose.of(["none", "sum"] if 0 in scores else ["mean", "none", "sum"])
        ignore_index = choose.of([-100, 1, -1, 1000])
        others = {name: choose.of(values) for name, values in options.items()}
        return setting(scores, reduction, choose.of((False, True)), ignore_index, **others)

    first = {name: values[0] for name, values in options.items()}
    last = {name: values[-1] for name, values in options.items()}
    always = [setting(s, **first) for s in [(1,), (3,), (3, 1, 2), (2, 3, 2, 2), (4, 4)]]
    always += [setting((0, 3), "sum", True, **last), setting((2, 3, 0), "none", True, **last)]
    always += [
        setting((4, 4), reduction, weighted, ignore_index, **last)
        for reduction in ("mean", "sum", "none")
        for weighted in (False, True)
        for ignore_index in (0, -100)
    ]
    return Case(call, scores_and_targets, always, drawn)


def squared_error(choose: Choose) -> Setting:
    """The mean, unless there is nothing to take it of."""
    of = shape(choose)
    return Setting((of, of), {"reduction": choose.of(["sum", "none"] if 0 in of else ["mean", "sum", "none"])})


LOSSES = {
    "cross_entropy": class_loss(F.cross_entropy, label_smoothing=[0.0, 1.0, 0.1]),
    "nll_loss": class_loss(F.nll_loss),
    "mse_loss": Case(
        F.mse_loss,
        each(real),
        [Setting((s, s), {"reduction": "mean"}) for s in SHAPES if 0 not in s]
        + [Setting((s, s), {"reduction": r}) for s in SHAPES for r in ("sum", "none")],
        squared_error,
    ),
}

OPS = {op.name: op for op in vars(table).values() if isinstance(op, Op)}


def named(cases: dict[str, Case]) -> dict[str, Case]:
    """The same, each with its name and operation."""
    return {
        name: replace(case, name=name, op=OPS[name.partition(":")[0]], keeps_dtype=name != "astype")
        for name, case in cases.items()
    }


CASES = named(ELEMENTWISE | REDUCTIONS | PARTS | PRODUCTS | NORMS | LOSSES)
"""All of them. A test asserts that every operation of `tinynorm.table` is here."""


def cases_of(op: Op) -> list[Case]:
    """Those of an operation of the library; none for any other."""
    return [case for case in CASES.values() if case.op is op]


# Corners that the values above never reach


def far_out(rng: np.random.Generator, shape: Shape) -> Array:
    """±900, where a limit is reached."""
    return np.asarray(rng.choice([-900.0, 900.0], shape))


def each_twice(rng: np.random.Generator, shape: Shape) -> Array:
    """Every value stands twice in its row."""
    half = np.broadcast_to(np.arange(shape[-1] // 2) - 0.75, (*shape[:-1], shape[-1] // 2))
    return np.concatenate([rng.permuted(half, axis=-1)] * 2, axis=-1)


def corner(call: Callable[..., Tensor], make: Maker, *shapes: Shape, **options: Any) -> Case:
    """A case with one setting."""
    setting = Setting(shapes, options)
    return Case(call, each(make), [setting], lambda choose: setting)


CORNERS = named(
    {
        "maximum: ties": corner(array.maximum, on_grid(0.0), (4, 4), (4, 4)),
        "minimum: ties": corner(array.minimum, on_grid(0.0), (4, 4), (4, 4)),
        "max: ties": corner(array.max, each_twice, (3, 4), axis=-1),
        "min: ties": corner(array.min, each_twice, (3, 4), axis=-1),
        "sigmoid: far out": corner(F.sigmoid, far_out, (4, 4)),
    }
)
"""For the mutants alone. Where two values tie there is no derivative, but the central difference is the mean of both
slopes, which is what the formulas promise; of more than two it is not."""
