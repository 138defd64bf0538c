"""What several test files share: arrays made from a seed, memory layouts, and a table of how each op is called.

Hypothesis draws shapes, options and a seed; a NumPy Generator makes the values from the seed. So a failure shrinks to a
small shape and repeats exactly, and values keep away from kinks by how they are made, not by throwing draws away.
"""

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tinynorm as tn
from tinynorm import functional as F

Shape = tuple[int, ...]

SHAPES: list[Shape] = [(), (1,), (0,), (3, 1, 2), (4, 4)]  #: those that every test of many shapes must include

BROADCAST: list[tuple[Shape, Shape]] = [
    ((), ()), ((1,), (1,)), ((0,), (0,)), ((3, 1, 2), (3, 1, 2)), ((4, 4), (4, 4)),
    ((), (3, 1, 2)), ((3, 1, 2), ()), ((0,), (1,)), ((0,), ()), ((4, 4), (4,)), ((1,), (4, 4)),
    ((2, 1), (1, 3)), ((3, 1, 2), (4, 1)), ((2, 1, 0), (3, 1)),  # both operands at once
]  # fmt: skip
"""Pairs of shapes that broadcast to each other."""


# Values


def real(rng, shape):
    return np.asarray(rng.normal(size=shape))


def positive(rng, shape):
    return np.asarray(rng.uniform(0.3, 3.0, shape))


def away_from_zero(rng, shape):
    return np.asarray(rng.choice([-1.0, 1.0], shape) * rng.uniform(0.3, 3.0, shape))


def above_minus_one(rng, shape):
    return np.asarray(rng.uniform(-0.7, 2.0, shape))


def with_zeros(rng, shape):
    return np.asarray(rng.normal(size=shape) * (rng.random(shape) < 0.7))


def distinct(rng, shape):
    """No two equal, none near 0: at least 0.3 lies between any two, and 0.07 between any and 0."""
    n = prod(shape)
    return np.asarray(0.3 * (rng.permutation(n) - n // 2 + 0.25)).reshape(shape)


def on_grid(offset: float):
    """Multiples of ½, moved by an offset: never equal to a value on a grid with another offset."""
    return lambda rng, shape: np.asarray(0.5 * rng.integers(-4, 5, shape) + offset)


def mask(rng, shape):
    return np.asarray(rng.random(shape) < 0.5)


# Memory layouts: the same values (except for `repeated`, which makes them so), stored in another way


def strided(x):
    """Every other element of a larger block, along each axis."""
    block = np.zeros([2 * n for n in x.shape], x.dtype)
    view = block[(slice(None, None, 2),) * x.ndim]
    view[...] = x
    return view


def reversed_(x):
    """Negative strides on all axes."""
    backwards = (slice(None, None, -1),) * x.ndim
    return x[backwards].copy()[backwards]


def transposed(x):
    """Fortran order."""
    return x.T.copy().T


def repeated(x):
    """The first slice along the first axis over and over, with stride 0."""
    return np.broadcast_to(x[:1].copy(), x.shape)


LAYOUTS = {"strided": strided, "reversed": reversed_, "transposed": transposed, "repeated": repeated}


def has_layout(name: str, x: np.ndarray) -> bool:
    """Whether x is stored as its layout says. A vector cannot be transposed."""
    if name == "repeated":
        return 0 in x.strides
    if name == "reversed":
        return all(s < 0 for s in x.strides)
    return not x.flags.c_contiguous or (name == "transposed" and x.ndim == 1)


# The table of calls


class Setting(NamedTuple):
    """The shapes of a call's inputs, and its options."""

    shapes: tuple[Shape, ...]
    options: dict[str, Any]


class Call(NamedTuple):
    """How a test calls one op: ``call(*tensors, **options)``.

    `inputs(rng, setting)` makes the arrays, `always` lists settings that are tried in any case, `random` draws others.
    The last of `always` is the typical one, that of the tests of memory layouts: its inputs and its result have axes
    longer than 1.
    """

    call: Callable[..., tn.Tensor]
    inputs: Callable[[np.random.Generator, Setting], list[np.ndarray]]
    always: list[Setting]
    random: st.SearchStrategy[Setting]

    @property
    def typical(self) -> Setting:
        return self.always[-1]


CALLS: dict[str, Call] = {}
"""Each op's calls, under the op's name. A second call of the same op has a remark after a colon."""


def value(call, inputs, **options):
    """The result as an array."""
    return call(*map(tn.as_tensor, inputs), **options).numpy()


def run(call, inputs, dy, **options):
    """The result as an array, and the gradients of the floating-point inputs, which are shared, not copied."""
    tensors = [tn.as_tensor(a) for a in inputs]
    for t in tensors:
        t.requires_grad = t.dtype.kind == "f"
    y = call(*tensors, **options)
    y.backward(dy)
    return y.numpy(), [t.grad for t in tensors if t.requires_grad]


def each(*makers):
    """Inputs that are made one by one; the last maker serves all further ones."""

    def inputs(rng, setting):
        chosen = makers + makers[-1:] * (len(setting.shapes) - len(makers))
        return [make(rng, shape) for make, shape in zip(chosen, setting.shapes, strict=False)]

    return inputs


def sides(least: int = 0):
    return st.integers(least, 3)


def shapes(least_ndim: int = 0, most_ndim: int = 3):
    return hnp.array_shapes(min_dims=least_ndim, max_dims=most_ndim, min_side=0, max_side=3)


def broadcastable(count: int):
    found = hnp.mutually_broadcastable_shapes(num_shapes=count, min_side=0, max_side=3, max_dims=3)
    return found.map(lambda s: s.input_shapes)


def settings_of(shapes, **options):
    return st.builds(Setting, shapes, st.fixed_dictionaries(options))


# Element by element


def one(call, make, **options):
    first = {k: v[0] for k, v in options.items()}
    drawn = {k: st.sampled_from(v) for k, v in options.items()}
    always = [Setting((s,), first) for s in SHAPES]
    return Call(call, each(make), always, settings_of(st.tuples(shapes()), **drawn))


def two(call, *makers):
    always = [Setting(pair, {}) for pair in BROADCAST] + [Setting(((4, 1), (1, 4)), {}), Setting(((4, 4), (4, 4)), {})]
    return Call(call, each(*makers), always, settings_of(broadcastable(2)))


def three(call, *makers):
    mixed = [((2, 1), (1, 3), ()), ((), (), (2,)), ((3,), (2, 1), (2, 1, 1)), ((0,), (1,), (3, 1))]
    always = [Setting(s, {}) for s in [*mixed, *((s, s, s) for s in SHAPES)]]
    return Call(call, each(*makers), always, settings_of(broadcastable(3)))


CALLS |= {
    "negative": one(lambda x: -x, real),
    "exp": one(tn.exp, real),
    "expm1": one(tn.expm1, real),
    "log": one(tn.log, positive),
    "log1p": one(tn.log1p, above_minus_one),
    "sqrt": one(tn.sqrt, positive),
    "tanh": one(tn.tanh, real),
    "sin": one(tn.sin, real),
    "cos": one(tn.cos, real),
    "abs": one(tn.abs, away_from_zero),
    "erf": one(tn.erf, real),
    "relu": one(F.relu, away_from_zero),
    "leaky_relu": one(F.leaky_relu, away_from_zero, negative_slope=[0.01, 0.0, 0.3, 2.0]),
    "elu": one(F.elu, away_from_zero, alpha=[1.0, 0.5]),
    "sigmoid": one(F.sigmoid, real),
    "silu": one(F.silu, real),
    "softplus": one(F.softplus, real),
    "gelu": one(F.gelu, real),
    "gelu_tanh": one(partial(F.gelu, approximate="tanh"), real),
    "dropout": one(F.dropout, real, p=[0.5, 0.1, 0.9, 1.0], rng=[0, 1]),
    "power:integer exponent": one(lambda x, p: x**p, away_from_zero, p=[2, 3, 1, 0, -1, -2]),
    "power:even at zero": one(lambda x, p: x**p, with_zeros, p=[2, 2.0, 3]),
    "power:of a number": one(lambda p, x: x**p, real, x=[2.0, 3, 0.5]),
    "add:number": one(lambda x: 1.5 + x, real),
    "subtract:from a number": one(lambda x: 1.5 - x, real),
    "divide:a number": one(lambda x: 1.5 / x, away_from_zero),
    "clip:numbers": one(tn.clip, on_grid(0.1), a_min=[-1.0, None], a_max=[1.0, None]),
    "add": two(lambda a, b: a + b, real),
    "subtract": two(lambda a, b: a - b, real),
    "multiply": two(lambda a, b: a * b, real),
    "divide": two(lambda a, b: a / b, real, away_from_zero),
    "power": two(lambda a, b: a**b, positive, real),
    "maximum": two(tn.maximum, on_grid(0.0), on_grid(0.2)),
    "minimum": two(tn.minimum, on_grid(0.0), on_grid(0.2)),
    "where": three(tn.where, mask, real),
    "clip": three(tn.clip, on_grid(0.0), on_grid(-0.8), on_grid(0.8)),
}


# Reductions


def axes_of(ndim: int):
    """None, one axis, or several in any order, each counted from either end."""
    if ndim == 0:
        return st.sampled_from([None, ()])
    from_either_end = st.integers(-ndim, ndim - 1)
    several = st.lists(from_either_end, unique_by=lambda a: a % ndim, max_size=ndim).map(tuple)
    return st.one_of(st.none(), from_either_end, several)


@st.composite
def reductions(draw, of_nothing: bool, variance: bool):
    """Of nothing: whether the reduced axes may be empty."""
    ndim = draw(st.integers(0, 3))
    axis = draw(axes_of(ndim))
    reduced = range(ndim) if axis is None else [a % ndim for a in np.atleast_1d(axis).astype(int)]
    shape = tuple(draw(sides(1 if i in reduced and not of_nothing else 0)) for i in range(ndim))
    options = {"axis": axis, "keepdims": draw(st.booleans())}
    if variance:
        count = prod(shape[i] for i in reduced)
        options["ddof"] = draw(st.sampled_from([d for d in (0, 0.5, 1, 2) if d < count]))
    return Setting((shape,), options)


def reduction(call, make, of_nothing=False, variance=False):
    always = [Setting((s,), {"axis": None}) for s in SHAPES if of_nothing or 0 not in s]
    always += [Setting(((0,),), {"axis": ()}), Setting(((0, 3),), {"axis": 1})]
    always += [Setting(((3, 1, 2),), {"axis": (0, -1), "keepdims": k}) for k in (False, True)]
    return Call(call, each(make), [*always, Setting(((4, 4),), {"axis": -1})], reductions(of_nothing, variance))


@st.composite
def along_one_axis(draw, flat: bool):
    shape = draw(shapes(least_ndim=0 if flat else 1))
    n = len(shape)
    choices = ([None] if flat else []) + [*range(-n, n)]
    return Setting((shape,), {"axis": draw(st.sampled_from(choices))})


def running(call, make, flat=False):
    """An op along one axis. Flat: whether axis may be None; otherwise a scalar, which has no axis, is not taken."""
    always = [Setting((s,), {"axis": None if flat else -1}) for s in SHAPES if flat or s]
    always += [Setting(((3, 1, 2),), {"axis": 0}), Setting(((0, 2),), {"axis": 0}), Setting(((0, 2),), {"axis": 1})]
    return Call(call, each(make), [*always, Setting(((4, 4),), {"axis": 1})], along_one_axis(flat))


CALLS |= {
    "sum": reduction(tn.sum, real, of_nothing=True),
    "prod": reduction(tn.prod, with_zeros, of_nothing=True),
    "mean": reduction(tn.mean, real),
    "max": reduction(tn.max, distinct),
    "min": reduction(tn.min, distinct),
    "logsumexp": reduction(tn.logsumexp, real),
    "var": reduction(tn.var, real, variance=True),
    "cumsum": running(tn.cumsum, real, flat=True),
    "softmax": running(F.softmax, real),
    "log_softmax": running(F.log_softmax, real),
}


# Shapes and parts


@st.composite
def reshapings(draw):
    shape = draw(shapes())
    new = draw(st.sampled_from([shape, shape[::-1], (1, *shape), (*shape, 1), (prod(shape),), (-1,)]))
    return Setting((shape,), {"shape": new})


@st.composite
def transposings(draw):
    shape = draw(shapes())
    n = len(shape)
    permuted = st.permutations(range(n)).map(lambda p: tuple(a - n if a % 2 else a for a in p))
    return Setting((shape,), {"axes": draw(st.one_of(st.none(), permuted))})


@st.composite
def broadcastings(draw):
    found = draw(hnp.mutually_broadcastable_shapes(num_shapes=1, base_shape=draw(shapes()), min_side=0, max_side=3))
    return Setting((found.input_shapes[0],), {"shape": found.result_shape})


@st.composite
def joinings(draw, new_axis: bool):
    shape = draw(shapes(least_ndim=0 if new_axis else 1))
    n = len(shape) + new_axis
    axis = draw(st.integers(-n, n - 1))
    count = draw(st.integers(1, 3))
    if new_axis:
        return Setting((shape,) * count, {"axis": axis})
    lengths = draw(st.lists(sides(), min_size=count, max_size=count))
    before, after = shape[: axis % n], shape[axis % n + 1 :]
    return Setting(tuple((*before, m, *after) for m in lengths), {"axis": axis})


def part(call, random, *always):
    """An op that moves elements. Each of `always` is a shape, or a list of several inputs' shapes, and the options."""
    settings = [Setting(tuple(s) if isinstance(s, list) else (s,), options) for s, options in always]
    return Call(call, each(real), settings, random)


CALLS |= {
    "reshape": part(
        tn.reshape,
        reshapings(),
        *((s, {"shape": (-1,)}) for s in SHAPES),
        ((), {"shape": ()}),
        ((0,), {"shape": (3, 0)}),
        ((3, 1, 2), {"shape": (2, -1)}),
        ((4, 4), {"shape": (2, 8)}),
    ),
    "transpose": part(
        tn.transpose,
        transposings(),
        *((s, {"axes": None}) for s in SHAPES),
        ((3, 1, 2), {"axes": (2, 0, 1)}),
        ((3, 1, 2), {"axes": (-1, 0, -2)}),
        ((4, 4), {"axes": (1, 0)}),
    ),
    "broadcast_to": part(
        tn.broadcast_to,
        broadcastings(),
        *((s, {"shape": s}) for s in SHAPES),
        ((), {"shape": (2, 3)}),
        ((1,), {"shape": (0,)}),
        ((3, 1, 2), {"shape": (2, 3, 4, 2)}),
        ((4, 4), {"shape": (2, 4, 4)}),
    ),
    "concatenate": part(
        lambda *tensors, axis: tn.concatenate(tensors, axis),
        joinings(new_axis=False),
        ([(1,), (0,), (3,)], {"axis": 0}),
        ([(3, 1, 2), (3, 4, 2)], {"axis": -2}),
        ([(4, 4)], {"axis": 1}),
        ([(4, 4), (4, 4)], {"axis": -1}),
    ),
    "stack": part(
        lambda *tensors, axis: tn.stack(tensors, axis),
        joinings(new_axis=True),
        *(([s, s], {"axis": axis}) for s in SHAPES for axis in (0, -1)),
        ([(4, 4), (4, 4)], {"axis": 1}),
    ),
    "astype": part(
        lambda x: x.astype(np.longdouble),
        settings_of(st.tuples(shapes())),
        *((s, {}) for s in SHAPES),
    ),
}


# Indices

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
    ((4, 4), tn.tensor([1, 1, 3])), ((4, 4), (tn.tensor([1, 1]), tn.tensor(0))), ((4, 4), tn.tensor(np.eye(4)) > 0),
    ((4, 4), (slice(None), [1, 0, 1])),
]  # fmt: skip
"""Shapes, and what to index them with: ints, slices, None, Ellipsis, integer arrays with duplicates, masks, Tensors."""


@st.composite
def indexings(draw):
    shape = draw(shapes())
    kinds = [hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True), hnp.arrays(bool, shape)]
    if shape and 0 not in shape:
        kinds.append(hnp.integer_array_indices(shape, result_shape=shapes(most_ndim=2)))
    return Setting((shape,), {"index": draw(st.one_of(kinds))})


@st.composite
def takings(draw):
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=3))
    axis = draw(st.one_of(st.none(), st.integers(-len(shape), len(shape) - 1)))
    count = prod(shape) if axis is None else shape[axis]
    indices = draw(hnp.arrays(np.int64, shapes(most_ndim=2), elements=st.integers(-count, count - 1)))
    return Setting((shape,), {"indices": indices, "axis": axis})


CALLS |= {
    "getitem": part(
        lambda x, index: x[index],
        indexings(),
        *((shape, {"index": index}) for shape, index in INDICES),
    ),
    "take": part(
        tn.take,
        takings(),
        ((), {"indices": [0, 0], "axis": None}),
        ((1,), {"indices": 0}),
        ((0,), {"indices": np.zeros(0, int)}),
        ((3, 1, 2), {"indices": [[5, -6], [5, 5]]}),
        ((4, 4), {"indices": [0, 2, 2, -1], "axis": -1}),
    ),
}


# Products


@st.composite
def matrix_pairs(draw):
    """Matrices with leading axes that broadcast, or vectors."""
    batches = hnp.mutually_broadcastable_shapes(num_shapes=2, min_side=0, max_side=3, max_dims=2)
    m, k, n = draw(sides()), draw(sides()), draw(sides())
    left, right = draw(batches).input_shapes
    a = draw(st.sampled_from([(*left, m, k), (k,)]))
    b = draw(st.sampled_from([(*right, k, n), (k,)]))
    return Setting((a, b), {})


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


@st.composite
def einsums(draw):
    """Known subscripts with other lengths; a label that stands once in its operand may have length 1 there."""
    plain = [subscripts for subscripts, _ in EINSUM if "." not in subscripts and " " not in subscripts]
    subscripts = draw(st.sampled_from(plain))
    terms = subscripts.partition("->")[0].split(",")
    lengths = {label: draw(sides()) for label in sorted(set("".join(terms)))}
    found = [tuple(1 if t.count(c) == 1 and draw(st.integers(0, 3)) == 0 else lengths[c] for c in t) for t in terms]
    return Setting(tuple(found), {"subscripts": subscripts})


@st.composite
def linears(draw):
    n_in, n_out = draw(sides()), draw(sides())
    lead = draw(shapes(most_ndim=2))
    return Setting(((*lead, n_in), (n_out, n_in), (n_out,))[: draw(st.integers(2, 3))], {})


LINEAR: list[tuple[Shape, ...]] = [
    ((1,), (1, 1)), ((1,), (1, 1), (1,)), ((0,), (2, 0), (2,)), ((3,), (0, 3), (0,)), ((0, 3), (2, 3), (2,)),
    ((3, 1, 2), (4, 2), (4,)), ((3, 1, 2), (4, 2)), ((2, 0, 3), (2, 3), (2,)), ((4, 4), (4, 4)), ((4, 4), (4, 4), (4,)),
]  # fmt: skip

CALLS |= {
    "matmul": Call(tn.matmul, each(real), [Setting(pair, {}) for pair in MATMUL], matrix_pairs()),
    "einsum": Call(
        lambda *operands, subscripts: tn.einsum(subscripts, *operands),
        each(real),
        [Setting(lengths_of(text), {"subscripts": subscripts}) for subscripts, text in EINSUM],
        einsums(),
    ),
    "linear": Call(F.linear, each(real), [Setting(s, {}) for s in LINEAR], linears()),
}


# Norms


def norm(function):
    """The parameters that are `given` follow x."""

    def call(x, *parameters, normalized_shape, given, eps=1e-5):
        return function(x, normalized_shape, **dict(zip(given, parameters, strict=True)), eps=eps)

    return call


def norm_setting(x, normalized_shape, given, **options):
    shapes = (x, *[normalized_shape] * len(given))
    return Setting(shapes, {"normalized_shape": normalized_shape, "given": given, **options})


@st.composite
def normings(draw, parameters):
    normalized_shape = draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=3))
    lead = draw(shapes(most_ndim=2))
    given = tuple(p for p in parameters if draw(st.booleans()))
    return norm_setting(
        (*lead, *normalized_shape), normalized_shape, given, eps=draw(st.sampled_from([1e-5, 0.1, None]))
    )


def normalization(function, parameters):
    """A scalar holds nothing to normalize, and neither does (0,): an empty batch is (0, D)."""
    shapes = [(1,), (4,), (0, 3), (3, 1, 2), (3, 1, 2), (3, 1, 2), (4, 4), (4, 4)]
    axes = [1, 1, 1, 1, 2, 3, 2, 1]
    choices = [(), parameters[1:], parameters[:1], parameters]
    always = [
        norm_setting(shape, shape[-n:], given) for given in choices for shape, n in zip(shapes, axes, strict=True)
    ]
    return Call(norm(function), each(distinct, real), always, normings(parameters))


CALLS |= {
    "rms_norm": normalization(F.rms_norm, ("weight",)),
    "layer_norm": normalization(F.layer_norm, ("weight", "bias")),
}


# Losses


def scores_and_targets(rng, setting):
    """Some rows are ignored, but never all of them, as their mean would be undefined."""
    scores = real(rng, setting.shapes[0])
    classes = scores.shape[min(scores.ndim - 1, 1)]
    ignored = setting.options["ignore_index"]
    target = rng.integers(0, classes, setting.shapes[1])
    target = np.where(rng.random(setting.shapes[1]) < 0.3, ignored, target)
    if target.size:
        target.flat[0] = next(c for c in range(classes) if c != ignored)
    return [scores, target]


def class_loss(function):
    def call(scores, target, weighted, **options):
        classes = scores.shape[min(scores.ndim - 1, 1)]
        weight = np.linspace(0.5, 2.0, classes) if weighted else None
        return function(scores, target, weight, **options)

    return call


def class_setting(scores, reduction="mean", weighted=False, ignore_index=-100, **options):
    rows = scores[:1] + scores[2:] if len(scores) > 1 else ()
    return Setting(
        (scores, rows), {"reduction": reduction, "weighted": weighted, "ignore_index": ignore_index, **options}
    )


@st.composite
def class_losses(draw, **options):
    axis = draw(st.integers(0, 3))  # (C,), (N, C), (N, C, d) or (N, C, d, e)
    classes = draw(st.integers(2, 4))
    scores = (classes,) if axis == 0 else (draw(sides()), classes, *draw(st.lists(sides(), max_size=2)))
    reduction = draw(st.sampled_from(["none", "sum"] if 0 in scores else ["mean", "none", "sum"]))
    ignore_index = draw(st.sampled_from([-100, 1, -1, 1000]))
    drawn = {name: draw(strategy) for name, strategy in options.items()}
    return class_setting(scores, reduction, draw(st.booleans()), ignore_index, **drawn)


def classification(function, **options):
    first = {name: draw_from[0] for name, draw_from in options.items()}
    last = {name: draw_from[-1] for name, draw_from in options.items()}
    shapes = [(1,), (3,), (3, 1, 2), (2, 3, 2, 2), (4, 4)]
    always = [class_setting(s, **first) for s in shapes]
    always += [class_setting((0, 3), "sum", True, **last), class_setting((2, 3, 0), "none", True, **last)]
    always += [
        class_setting((4, 4), reduction, weighted, ignore_index, **last)
        for reduction in ("mean", "sum", "none")
        for weighted in (False, True)
        for ignore_index in (0, -100)
    ]
    drawn = {name: st.sampled_from(values) for name, values in options.items()}
    return Call(class_loss(function), scores_and_targets, always, class_losses(**drawn))


CALLS |= {
    "cross_entropy": classification(F.cross_entropy, label_smoothing=[0.0, 1.0, 0.1]),
    "nll_loss": classification(F.nll_loss),
    "mse_loss": Call(
        F.mse_loss,
        each(real),
        [Setting((s, s), {"reduction": "mean"}) for s in SHAPES if 0 not in s]
        + [Setting((s, s), {"reduction": r}) for s in SHAPES for r in ("sum", "none")],
        st.builds(
            lambda shape, reduction: Setting((shape, shape), {"reduction": reduction}),
            shapes(),
            st.sampled_from(["sum", "none"]),
        ),
    ),
}

ALWAYS = [
    pytest.param(name, s, id=" ".join(f"{name}-{s.shapes}-{s.options}".split()))
    for name, call in CALLS.items()
    for s in call.always
]
"""Every call in all the settings that are always tried, for ``parametrize(("name", "setting"), ALWAYS)``."""
