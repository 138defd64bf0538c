"""What bad input gets: an error of the library's own that says where, what, and what to write instead.

Each row of a table is a call, the errors that it may raise, and what the message must say. Every one of those errors is
also the built-in one that a NumPy user would expect; see test_structure.py.
"""

import copy
import operator
import re

import numpy as np
import pytest

import tinynorm as tn
from tinynorm.errors import (
    ArgumentError,
    DeviceError,
    DTypeError,
    GraphError,
    OutOfRangeError,
    ShapeError,
    StateError,
    TinynormError,
)

F = tn.functional


def leaf(array):
    return tn.tensor(array, requires_grad=True)


V, W = tn.tensor([1.0, 2.0]), tn.tensor([1.0, 2.0, 3.0])
M = tn.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
S = tn.tensor(1.0)
INTS, BOOLS, EMPTY = tn.tensor([1, 2]), tn.tensor([True, False]), tn.tensor(np.zeros((2, 0)))
LOGITS = np.zeros((2, 3), np.float32)
RAGGED = [[1.0], [1.0, 2.0]]
NAN = float("nan")
BAD_TYPE = (DTypeError, ArgumentError)


def rows(table):
    """One test for each (name, call, errors, fragments)."""
    return pytest.mark.parametrize(
        ("call", "errors", "fragments"),
        [pytest.param(call, errors, fragments, id=name) for name, call, errors, *fragments in table],
    )


def check(call, errors, fragments):
    with pytest.raises(TinynormError) as caught:
        call()
    assert isinstance(caught.value, errors), f"{type(caught.value).__name__}: {caught.value}"
    message = str(caught.value)
    for fragment in fragments:
        assert re.search(fragment, message), f"nothing like {fragment!r} in {message!r}"


def label(value):
    """A short name for a test, the same in every run."""
    text = repr(value)
    return type(value).__name__ if " at 0x" in text or len(text) > 60 else text


def answer(function, *arguments, **options):
    """What the call raises, or the result that it should not have given."""
    try:
        return function(*arguments, **options)
    except Exception as error:
        return error


def unlike(answers, errors, pattern=""):
    """Those of the answers, by name, that are no such error, or whose message does not fit the pattern."""
    return {
        name: repr(found)
        for name, found in answers.items()
        if not isinstance(found, errors)
        or not isinstance(found, TinynormError)
        or not re.search(pattern.format(name=name.partition(" ")[0]), str(found), re.DOTALL)
    }


# Shapes

SHAPES = [
    ("add", lambda: V + W, ShapeError, r"^add:", r"\(2,\)", r"\(3,\)", "reshape or transpose"),
    ("add array", lambda: V + np.ones(3), ShapeError, r"^add:", r"\(2,\)", r"\(3,\)"),
    ("array add", lambda: np.ones(3) + V, ShapeError, r"^add:", r"\(3,\) and \(2,\)"),
    ("list add", lambda: operator.add([1.0, 2.0, 3.0], V), ShapeError, r"^add:", r"\(3,\) and \(2,\)"),
    ("subtract", lambda: V - W, ShapeError, r"^subtract:", r"\(2,\)", r"\(3,\)"),
    ("multiply", lambda: M * V, ShapeError, r"^multiply:", r"\(2, 3\)", r"\(2,\)"),
    ("divide", lambda: M / V, ShapeError, r"^divide:", r"\(2, 3\)", r"\(2,\)"),
    ("power", lambda: M**V, ShapeError, r"^power:", r"\(2, 3\)", r"\(2,\)"),
    ("comparison", lambda: V < W, ShapeError, r"^lt:", r"\(2,\)", r"\(3,\)"),
    ("equality", lambda: V == W, ShapeError, r"^eq:", r"\(2,\)", r"\(3,\)"),
    ("and", lambda: BOOLS & (W > 1), ShapeError, r"^and:", r"\(2,\)", r"\(3,\)"),
    ("in-place", lambda: V.__add__(W), ShapeError, r"^add:"),
    ("middle axis", lambda: tn.tensor(np.ones((2, 3, 4))) + np.ones((2, 4)), ShapeError, r"\(2, 3, 4\) and \(2, 4\)"),
    ("no elements", lambda: V + EMPTY, ShapeError, r"^add:", r"\(2, 0\)"),
    ("maximum", lambda: tn.maximum(V, W), ShapeError, r"^maximum:", r"\(2,\)", r"\(3,\)"),
    ("where", lambda: tn.where(V > 1, V, W), ShapeError, r"^where:", r"\(2,\) and \(2,\) and \(3,\)"),
    ("clip", lambda: tn.clip(V, W, None), ShapeError, r"^clip:", r"\(2,\)", r"\(3,\)"),
    ("matmul inner", lambda: M @ M, ShapeError, r"^matmul:", r"\(2, 3\) and \(2, 3\)", "transpose"),
    ("matmul vector", lambda: M @ V, ShapeError, r"^matmul:", r"\(2, 3\) and \(2,\)"),
    ("vector matmul", lambda: W @ M, ShapeError, r"^matmul:", r"\(3,\) and \(2, 3\)"),
    ("vectors", lambda: V @ W, ShapeError, r"^matmul:", r"\(2,\) and \(3,\)"),
    ("matmul scalar", lambda: V @ 2.0, ShapeError, r"^matmul:", "scalar", r"write \*"),
    ("scalar matmul", lambda: 2.0 @ V, ShapeError, r"^matmul:", "scalar", r"write \*"),
    ("matmul batch", lambda: tn.matmul(np.ones((2, 3, 3)), np.ones((4, 3, 3))),
         ShapeError, r"^matmul:", r"\(2,\)", r"\(4,\)"),
    ("matmul broadcasts no columns", lambda: tn.matmul(np.ones((3, 1)), np.ones((2, 3))), ShapeError, r"^matmul:"),
    ("matmul broadcasts no rows", lambda: tn.matmul(np.ones((2, 3)), np.ones((1, 3))), ShapeError, r"^matmul:"),
    ("reshape", lambda: V.reshape(3), ShapeError, r"^reshape:", r"\(2,\)", r"\(3,\)"),
    ("reshape two unknown", lambda: M.reshape(-1, -1), ShapeError, r"^reshape:", r"\(-1, -1\)"),
    ("reshape below -1", lambda: M.reshape(-2, 3), ShapeError, r"^reshape:", r"\(-2, 3\)"),
    ("reshape twice below", lambda: M.reshape(-2, -3), ShapeError, r"^reshape:", r"\(-2, -3\)"),
    ("reshape no divisor", lambda: M.reshape(4, -1), ShapeError, r"^reshape:", r"\(4, -1\)"),
    ("reshape to nothing", lambda: M.reshape(0, -1), ShapeError, r"^reshape:", r"\(0, -1\)"),
    ("reshape nothing", lambda: tn.tensor([]).reshape(0, -1), ShapeError, r"^reshape:"),
    ("reshape without sizes", lambda: V.reshape(), ShapeError, r"^reshape:", r"\(\)"),
    ("broadcast_to", lambda: tn.broadcast_to(V, (3,)), ShapeError, r"^broadcast_to:", r"\(2,\)", r"\(3,\)"),
    ("broadcast_to fewer", lambda: tn.broadcast_to(M, (3,)), ShapeError, r"^broadcast_to:", r"\(2, 3\)", r"\(3,\)"),
    ("broadcast_to -1", lambda: tn.broadcast_to(V, (-1, 2)), (ShapeError, ArgumentError), r"^broadcast_to:"),
    ("broadcast_to all -1", lambda: tn.broadcast_to([1.0], (-1,)), (ShapeError, ArgumentError), r"^broadcast_to:"),
    ("concatenate", lambda: tn.concatenate([M, np.ones((3, 2))]),
         ShapeError, r"^concatenate:", r"\(2, 3\)", r"\(3, 2\)"),
    ("concatenate ranks", lambda: tn.concatenate([M, V]), ShapeError, r"^concatenate:", r"\(2, 3\)", r"\(2,\)"),
    ("concatenate broadcast", lambda: tn.concatenate([M, np.ones((2, 1))]), ShapeError, r"^concatenate:"),
    ("stack", lambda: tn.stack([V, W]), ShapeError, r"^stack:", r"\(2,\)", r"\(3,\)"),
    ("stack broadcast", lambda: tn.stack([V, S]), ShapeError, r"^stack:", r"\(2,\)", r"\(\)"),
    ("einsum sizes", lambda: tn.einsum("ij,jk->ik", M, M), ShapeError, r"^einsum:", "'ij,jk->ik'", r"\(2, 3\)"),
    ("einsum diagonal", lambda: tn.einsum("ii->i", M), ShapeError, r"^einsum:", r"\(2, 3\)"),
    ("einsum ellipses", lambda: tn.einsum("...,...->...", V, W), ShapeError, r"^einsum:", r"\(2,\)", r"\(3,\)"),
    ("linear", lambda: F.linear(V, M),
         ShapeError, r"^linear:", r"x has shape \(2,\)", r"weight \(2, 3\)", r"\(out, in\)"),
    ("linear transposed", lambda: F.linear(np.ones((5, 2)), M), ShapeError, r"^linear:", r"\(5, 2\)", r"\(out, in\)"),
    ("linear vector weight", lambda: F.linear(M, W), ShapeError, r"^linear:", r"\(out, in\)", r"\(3,\)"),
    ("linear batched weight", lambda: F.linear(M, np.ones((2, 4, 3))), ShapeError, r"^linear:", r"\(2, 4, 3\)"),
    ("linear scalar", lambda: F.linear(1.0, M), ShapeError, r"^linear:", r"\(\)"),
    ("linear bias", lambda: F.linear(M, M, W), ShapeError, r"^linear:", r"bias has shape \(3,\)", r"\(2,\)"),
    ("linear bias broadcasts", lambda: F.linear(M, M, [1.0]), ShapeError, r"^linear:", r"bias has shape \(1,\)"),
    ("linear bias scalar", lambda: F.linear(M, M, 1.0), ShapeError, r"^linear:", r"bias has shape \(\)"),
    ("linear bias row", lambda: F.linear(M, M, [[1.0, 2.0]]), ShapeError, r"^linear:", r"bias has shape \(1, 2\)"),
    ("Linear", lambda: tn.nn.Linear(4, 2, rng=0)(M), ShapeError, r"^linear:", r"\(2, 3\)", r"\(2, 4\)"),
    ("rms_norm", lambda: F.rms_norm(M, 2),
         ShapeError, r"^rms_norm:", r"x has shape \(2, 3\)", r"normalized_shape \(2,\)"),
    ("rms_norm broadcast", lambda: F.rms_norm(M, 1), ShapeError, r"^rms_norm:", r"\(2, 3\)", r"\(1,\)"),
    ("rms_norm first axes", lambda: F.rms_norm(M, (2,)), ShapeError, r"^rms_norm:", "last axes"),
    ("rms_norm too long", lambda: F.rms_norm(M, (1, 2, 3)), ShapeError, r"^rms_norm:", r"\(1, 2, 3\)"),
    ("rms_norm scalar", lambda: F.rms_norm(S, 1), ShapeError, r"^rms_norm:", r"\(\)"),
    ("rms_norm ()", lambda: F.rms_norm(M, ()), ShapeError, r"^rms_norm:", r"\(\)"),
    ("rms_norm 0", lambda: F.rms_norm(EMPTY, 0), ShapeError, r"^rms_norm:", r"\(0,\)"),
    ("rms_norm -1", lambda: F.rms_norm(M, -1), ShapeError, r"^rms_norm:", r"\(-1,\)"),
    ("rms_norm weight", lambda: F.rms_norm(M, 3, V), ShapeError, r"^rms_norm:", r"weight has shape \(2,\)", r"\(3,\)"),
    ("rms_norm weight broadcasts", lambda: F.rms_norm(M, 3, [1.0]),
         ShapeError, r"^rms_norm:", r"weight has shape \(1,\)"),
    ("rms_norm weight scalar", lambda: F.rms_norm(M, 3, 2.0), ShapeError, r"^rms_norm:", r"weight has shape \(\)"),
    ("rms_norm weight row", lambda: F.rms_norm(M, 3, [[1.0] * 3]),
         ShapeError, r"^rms_norm:", r"weight has shape \(1, 3\)"),
    ("rms_norm weight per row", lambda: F.rms_norm(M, 3, np.ones((2, 3))), ShapeError, r"^rms_norm:", r"\(2, 3\)"),
    ("rms_norm weight of last axis", lambda: F.rms_norm(M, (2, 3), W),
         ShapeError, r"^rms_norm:", r"weight has shape \(3,\)"),
    ("layer_norm", lambda: F.layer_norm(M, 2), ShapeError, r"^layer_norm:", r"x has shape \(2, 3\)", r"\(2,\)"),
    ("layer_norm weight", lambda: F.layer_norm(M, 3, [1.0]), ShapeError, r"^layer_norm:", r"weight has shape \(1,\)"),
    ("layer_norm bias", lambda: F.layer_norm(M, 3, None, 1.0), ShapeError, r"^layer_norm:", r"bias has shape \(\)"),
    ("layer_norm bias of another size", lambda: F.layer_norm(M, 3, W, V),
         ShapeError, r"^layer_norm:", r"bias has shape \(2,\)"),
    ("RMSNorm", lambda: tn.nn.RMSNorm(4)(M), ShapeError, r"rms_norm:", r"\(2, 3\)", r"\(4,\)"),
    ("RMSNorm 0", lambda: tn.nn.RMSNorm(0), ShapeError, r"^RMSNorm:", r"\(0,\)"),
    ("LayerNorm -3", lambda: tn.nn.LayerNorm(-3), ShapeError, r"^LayerNorm:", r"\(-3,\)"),
    ("LayerNorm ()", lambda: tn.nn.LayerNorm(()), ShapeError, r"^LayerNorm:", r"\(\)"),
    ("mse_loss", lambda: F.mse_loss(V, W), ShapeError, r"^mse_loss:", r"\(2,\)", r"\(3,\)"),
    ("mse_loss broadcast", lambda: F.mse_loss(V, [[1.0], [2.0]]), ShapeError, r"^mse_loss:", r"\(2,\)", r"\(2, 1\)"),
    ("mse_loss scalar", lambda: F.mse_loss(V, 1.0), ShapeError, r"^mse_loss:", r"\(2,\)", r"\(\)"),
    ("cross_entropy rows", lambda: F.cross_entropy(LOGITS, [0, 1, 2]),
         ShapeError, r"^cross_entropy:", r"\(2, 3\)", r"\(2,\)", r"\(3,\)"),
    ("cross_entropy column", lambda: F.cross_entropy(LOGITS, [[0], [1]]), ShapeError, r"^cross_entropy:", r"\(2, 1\)"),
    ("cross_entropy one-hot", lambda: F.cross_entropy(LOGITS, [[1, 0, 0], [0, 1, 0]]),
         ShapeError, r"^cross_entropy:", r"\(2, 3\)", "class ind"),
    ("cross_entropy lone target", lambda: F.cross_entropy(LOGITS, 0), ShapeError, r"^cross_entropy:", r"\(\)"),
    ("cross_entropy lone row", lambda: F.cross_entropy(LOGITS[0], [0]), ShapeError, r"^cross_entropy:", r"\(3,\)"),
    ("cross_entropy scalar", lambda: F.cross_entropy(1.0, 0), ShapeError, r"^cross_entropy:", r"\(N, C\)"),
    ("cross_entropy classes last", lambda: F.cross_entropy(np.zeros((2, 5, 3), np.float32), np.zeros((2, 5), int)),
         ShapeError, r"^cross_entropy:", r"\(2, 5, 3\)", r"\(2, 3\)"),
    ("cross_entropy weight", lambda: F.cross_entropy(LOGITS, [0, 1], weight=[1.0, 2.0]),
         ShapeError, r"^cross_entropy:", r"\(2,\)", "3 classes"),
    ("cross_entropy weight broadcasts", lambda: F.cross_entropy(LOGITS, [0, 1], weight=[1.0]),
         ShapeError, r"^cross_entropy:", r"\(1,\)"),
    ("cross_entropy weight scalar", lambda: F.cross_entropy(LOGITS, [0, 1], weight=2.0),
         ShapeError, r"^cross_entropy:", r"\(\)"),
    ("nll_loss rows", lambda: F.nll_loss(LOGITS, [0]), ShapeError, r"^nll_loss:", r"\(2, 3\)", r"\(1,\)"),
    ("nested lists", lambda: tn.tensor(RAGGED), ShapeError, r"^tensor:", "equal length"),
    ("nested tuples", lambda: tn.as_tensor(((1.0,), (1.0, 2.0))), ShapeError, r"^as_tensor:", "equal length"),
    ("deeply nested", lambda: tn.tensor([[[1], [2]], [[3], 4]]), ShapeError, r"^tensor:"),
    ("item", lambda: V.item(), ShapeError, "item:", r"\(2,\)", "index or reduce"),
    ("item of nothing", lambda: EMPTY.item(), ShapeError, "item:", r"\(2, 0\)"),
    ("float", lambda: float(V), ShapeError, r"\(2,\)"),
    ("int", lambda: int(V), ShapeError, r"\(2,\)"),
    ("bool", lambda: bool(V), ShapeError, r"\(2,\)"),
    ("if", lambda: 1 if V > 0 else 0, ShapeError, r"\(2,\)"),
    ("chained comparison", lambda: 0 < V < 3, ShapeError, r"\(2,\)"),
    ("bool of nothing", lambda: bool(EMPTY), ShapeError, r"\(2, 0\)"),
    ("data", lambda: setattr(leaf([1.0]), "data", np.ones(2, np.float32)),
         ShapeError, r"^Tensor.data:", r"\(1,\)", r"\(2,\)"),
    ("data of another dtype", lambda: setattr(leaf([1.0]), "data", np.ones(1)),
         (ShapeError, DTypeError), r"^Tensor.data:", "float32", "float64"),
    ("grad", lambda: setattr(leaf([1.0]), "grad", np.ones(2, np.float32)),
         ShapeError, r"^Tensor.grad:", r"\(1,\)", r"\(2,\)"),
    ("grad of another dtype", lambda: setattr(leaf([1.0]), "grad", np.ones(1)),
         (ShapeError, DTypeError), r"^Tensor.grad:", "float32", "float64"),
    ("backward", lambda: (leaf([1.0, 2.0]) * 2.0).backward(),
         ShapeError, r"^backward:", r"\(2,\)", r"\.sum\(\)", "gradient="),
    ("backward of nothing", lambda: (leaf([]) * 2.0).backward(), ShapeError, r"^backward:", r"\(0,\)"),
    ("gradient", lambda: (leaf([1.0, 2.0]) * 2.0).backward(np.ones(3)),
         ShapeError, r"^backward:", r"\(3,\)", r"\(2,\)"),
    ("gradient broadcasts", lambda: (leaf([1.0, 2.0]) * 2.0).backward(1.0),
         ShapeError, r"^backward:", r"\(\)", r"\(2,\)"),
]  # fmt: skip


@rows(SHAPES)
def test_shapes(call, errors, fragments):
    check(call, errors, fragments)


# Reductions over nothing

EMPTY_REDUCTIONS = [
    *(
        (f"{name} {axis}", lambda name=name, axis=axis: getattr(tn, name)(EMPTY, axis=axis),
             ShapeError, f"^{name}:", r"\(2, 0\)", "undefined")
        for name in ("max", "min", "mean", "var", "logsumexp")
        for axis in (None, 1, -1, (0, 1))
    ),
    ("method max", lambda: tn.tensor([]).max(), ShapeError, "^max:", r"\(0,\)"),
    ("method mean", lambda: tn.tensor([]).mean(), ShapeError, "^mean:", r"\(0,\)"),
    ("var of one, ddof 1", lambda: tn.var([1.0], ddof=1), ArgumentError, "^var:", "ddof=1", "1 elements"),
    ("var of rows, ddof 3", lambda: M.var(axis=1, ddof=3), ArgumentError, "^var:", "ddof=3"),
    ("var, ddof 7", lambda: M.var(ddof=7), ArgumentError, "^var:", "ddof=7", "6 elements"),
    ("cross_entropy of no rows", lambda: F.cross_entropy(np.zeros((0, 3), np.float32), np.zeros(0, int)),
         (ArgumentError, ShapeError), "^cross_entropy:", 'reduction="sum"'),
    ("cross_entropy, all ignored", lambda: F.cross_entropy(LOGITS, [-100, -100]),
         ArgumentError, "^cross_entropy:", "ignored"),
    ("cross_entropy, all weigh 0", lambda: F.cross_entropy(LOGITS, [0, 0], weight=[0.0, 1.0, 1.0]),
         ArgumentError, "^cross_entropy:", "weigh 0"),
    ("nll_loss, all ignored", lambda: F.nll_loss(LOGITS, [7, 7], ignore_index=7),
         ArgumentError, "^nll_loss:", "ignored"),
    ("mse_loss of nothing", lambda: F.mse_loss(np.zeros((0,)), np.zeros((0,))),
         (ShapeError, ArgumentError), "^(mse_loss|mean):", r"\(0,\)"),
]  # fmt: skip


@rows(EMPTY_REDUCTIONS)
def test_reductions_over_nothing(call, errors, fragments):
    check(call, errors, fragments)


def test_reductions_over_nothing_that_are_defined():
    assert tn.sum(EMPTY).item() == 0.0
    assert tn.prod(EMPTY).item() == 1.0
    assert tn.max(EMPTY, axis=0).shape == (0,)
    assert tn.mean(EMPTY, axis=0).shape == (0,)
    assert F.softmax(EMPTY).shape == (2, 0)
    assert F.cross_entropy(np.zeros((0, 3), np.float32), np.zeros(0, int), reduction="sum").item() == 0.0
    assert F.rms_norm(np.zeros((0, 3)), 3).shape == (0, 3)


# Axes and indices

AXIS_FUNCTIONS = {
    **{name: getattr(tn, name) for name in ("sum", "mean", "max", "min", "prod", "var", "logsumexp", "cumsum")},
    "softmax": F.softmax,
    "log_softmax": F.log_softmax,
    "concatenate": lambda x, axis: tn.concatenate([x, x], axis=axis),
    "stack": lambda x, axis: tn.stack([x, x], axis=axis),
    "take": lambda x, axis: tn.take(x, [0], axis=axis),
}


@pytest.mark.parametrize("axis", [3, -4, 100, -100])
@pytest.mark.parametrize("name", AXIS_FUNCTIONS)
def test_an_axis_that_does_not_exist(name, axis):
    check(lambda: AXIS_FUNCTIONS[name](M, axis=axis), OutOfRangeError, [f"^{name}: ", rf"axis {axis}\b", r"\(2, 3\)"])


@pytest.mark.parametrize("name", ["concatenate", "take"])
def test_a_scalar_has_no_axis(name):
    check(lambda: AXIS_FUNCTIONS[name](S, axis=0), OutOfRangeError, [f"^{name}: ", r"axis 0", r"\(\)"])


@pytest.mark.parametrize("name", [n for n in AXIS_FUNCTIONS if n not in ("concatenate", "take", "stack")])
def test_a_scalar_counts_as_a_line_of_one_element(name):
    """As in NumPy's sum: its axis is 0 or -1, and no other."""
    function = AXIS_FUNCTIONS[name]
    for value in (3.0, -2.0):
        x = leaf(value)
        right = {"var": 0.0, "softmax": 1.0, "log_softmax": 0.0}.get(name, value)
        slope = 0.0 if name in ("var", "softmax", "log_softmax") else 1.0
        for axis in (0, -1):
            y = function(x, axis=axis)
            assert y.shape == ((1,) if name == "cumsum" else ())
            assert y.item() == right
            x.grad = None
            y.backward(np.full(y.shape, 2.5))
            assert x.grad == 2.5 * slope
    for axis in (1, -2):
        check(lambda axis=axis: function(S, axis=axis), OutOfRangeError, [f"^{name}: ", rf"axis {axis}\b", r"\(\)"])


@pytest.mark.parametrize(
    "axis",
    ["0", "rows", 0.0, 1.5, True, [0], [0, 1], (0.0,), ("a",), (None,), np.array([0, 1]), np.array(0.0), np.array([0]),
     tn.tensor([0, 1]), tn.tensor(0.0), slice(None), {0}, 1j, object()],
    ids=label,
)  # fmt: skip
def test_an_axis_of_a_wrong_type(axis):
    answers = {name: answer(function, M, axis=axis) for name, function in AXIS_FUNCTIONS.items()}
    assert not unlike(answers, BAD_TYPE, "^{name}: .*axis")


@pytest.mark.parametrize("axis", [None, (0,), (0, 1), ()], ids=label)
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "concatenate", "stack", "take", "cumsum"])
def test_one_axis_where_one_is_needed(name, axis):
    """NumPy's concatenate, take and cumsum take None for the flattened array. None of these takes several axes."""
    if axis is None and name in ("take", "cumsum", "concatenate"):
        assert AXIS_FUNCTIONS[name](M, axis=None).ndim == 1
    else:
        check(lambda: AXIS_FUNCTIONS[name](M, axis=axis), (DTypeError, ArgumentError), [f"^{name}: ", "axis"])


AXES_AND_INDICES = [
    *(
        (f"{name} twice", lambda name=name, axis=axis: getattr(tn, name)(M, axis=axis),
             OutOfRangeError, f"^{name}:", "twice")
        for name in ("sum", "mean", "max", "var", "logsumexp", "prod")
        for axis in ((0, 0), (1, -1))
    ),
    ("transpose one", lambda: M.transpose(0), OutOfRangeError, "^transpose:", r"\(0,\)", r"\(2, 3\)"),
    ("transpose twice", lambda: M.transpose(0, 0), OutOfRangeError, "^transpose:", r"\(0, 0\)"),
    ("transpose negative twice", lambda: M.transpose(1, -1), OutOfRangeError, "^transpose:", r"\(1, -1\)"),
    ("transpose out of range", lambda: M.transpose(0, 2), OutOfRangeError, "^transpose:", r"\(0, 2\)"),
    ("transpose too many", lambda: tn.transpose(M, (0, 1, 2)), OutOfRangeError, "^transpose:", r"\(0, 1, 2\)"),
    ("index", lambda: V[2], OutOfRangeError, "getitem", "index 2", r"\(2,\)"),
    ("index below", lambda: V[-3], OutOfRangeError, "getitem", "-3"),
    ("index of a later axis", lambda: M[0, 3], OutOfRangeError, "getitem", "3"),
    ("too many indices", lambda: M[0, 0, 0], OutOfRangeError, "getitem", r"\(2, 3\)"),
    ("index of a scalar", lambda: S[0], OutOfRangeError, "getitem", r"\(\)"),
    ("two ellipses", lambda: M[..., ...], OutOfRangeError, "getitem"),
    ("list", lambda: V[[0, 2]], OutOfRangeError, "getitem", "2"),
    ("array", lambda: M[np.array([0, 5])], OutOfRangeError, "getitem", "5"),
    ("tensor", lambda: M[tn.tensor([0, 5])], OutOfRangeError, "getitem", "5"),
    ("mask of another length", lambda: M[np.array([True, False, True])], OutOfRangeError, "getitem", r"\(2, 3\)"),
    ("mask of another shape", lambda: M[M[:, :2] > 1], OutOfRangeError, "getitem"),
    ("arrays that do not broadcast", lambda: M[[0, 1], [0, 1, 2]], (OutOfRangeError, ShapeError), "getitem"),
    ("float", lambda: V[0.0], (OutOfRangeError, DTypeError), "getitem", "integer"),
    ("string", lambda: V["a"], (OutOfRangeError, DTypeError), "getitem"),
    ("float list", lambda: V[[0.0, 1.0]], (OutOfRangeError, DTypeError), "getitem", "integer"),
    ("float array", lambda: V[np.array([0.0])], (OutOfRangeError, DTypeError), "getitem", "integer"),
    ("float tensor", lambda: V[V], (OutOfRangeError, DTypeError), "getitem", "integer"),
    ("string list", lambda: V[["a"]], (OutOfRangeError, DTypeError), "getitem"),
    ("ragged list", lambda: M[[[0], [0, 1]]], (OutOfRangeError, ShapeError, DTypeError), "getitem"),
    ("list of None", lambda: V[[None]], (OutOfRangeError, DTypeError), "getitem"),
    ("object", lambda: V[object()], (OutOfRangeError, DTypeError), "getitem"),
    ("dict", lambda: V[{}], (OutOfRangeError, DTypeError), "getitem"),
    ("complex", lambda: V[1j], (OutOfRangeError, DTypeError), "getitem"),
    ("slice of floats", lambda: V[0.0:1.0], DTypeError, "getitem", "slice"),
    ("slice of strings", lambda: V["a":], DTypeError, "getitem", "slice"),
    ("slice step 0", lambda: V[::0], ArgumentError, "getitem", "zero"),
    ("take", lambda: tn.take(V, [2]), OutOfRangeError, "^take:", "2"),
    ("take below", lambda: tn.take(V, [-3]), OutOfRangeError, "^take:", "-3"),
    ("take along an axis", lambda: tn.take(M, [0, 3], axis=1), OutOfRangeError, "^take:", "3"),
    ("take floats", lambda: tn.take(V, [0.0]), DTypeError, "^take:", "integers", "float32"),
    ("take a mask", lambda: tn.take(V, [True, False]), DTypeError, "^take:", "integers", "bool"),
    ("take strings", lambda: tn.take(V, ["a"]), DTypeError, "integers"),
    ("take None", lambda: tn.take(V, None), DTypeError, "integers"),
    ("take of nothing", lambda: tn.take(tn.tensor([]), [0]), OutOfRangeError, "^take:"),
    ("Sequential", lambda: tn.nn.Sequential(tn.nn.ReLU())[1], OutOfRangeError, "Sequential", "1"),
    ("class 3 of 3", lambda: F.cross_entropy(LOGITS, [0, 3]),
         OutOfRangeError, "^cross_entropy:", r"\b3\b", "3 classes"),
    ("class -1", lambda: F.cross_entropy(LOGITS, [0, -1]),
         OutOfRangeError, "^cross_entropy:", "-1", "numbered from 0", "ignore_index"),
    ("class -100, not ignored", lambda: F.cross_entropy(LOGITS, [0, -100], ignore_index=-1),
         OutOfRangeError, "-100", "ignore_index=-1"),
    ("class of an int8", lambda: F.cross_entropy(LOGITS, np.array([0, 100], np.int8)), OutOfRangeError, "100"),
    ("class of a uint8", lambda: F.cross_entropy(LOGITS, np.array([0, 255], np.uint8)), OutOfRangeError, "255"),
    ("class of a uint64", lambda: F.cross_entropy(LOGITS, np.array([0, 2**63], np.uint64)),
         OutOfRangeError, str(2**63)),
    ("class out of range in a sum", lambda: F.cross_entropy(LOGITS, [0, 3], reduction="sum"),
         OutOfRangeError, r"\b3\b"),
    ("class out of range with weights", lambda: F.cross_entropy(LOGITS, [0, 3], weight=[1.0] * 3),
         OutOfRangeError, r"\b3\b"),
    ("class of no classes", lambda: F.cross_entropy(np.zeros((1, 0), np.float32), [0]), OutOfRangeError, "0 classes"),
    ("nll_loss class", lambda: F.nll_loss(LOGITS, [0, 3]), OutOfRangeError, "^nll_loss:", r"\b3\b"),
]  # fmt: skip


@rows(AXES_AND_INDICES)
def test_axes_and_indices(call, errors, fragments):
    check(call, errors, fragments)


# What is no real number

NO_NUMBERS = {
    "string": "abc", "bytes": b"abc", "None": None, "complex": 1j, "complex list": [1.0, 2j],
    "complex array": np.array([1j]), "numpy complex": np.complex64(1j), "string list": ["a", "b"],
    "mixed list": [1.0, "a"], "list with None": [1.0, None], "object array": np.array([1.0, None], object),
    "object array of numbers": np.array([1.0, 2.0], object), "string array": np.array(["1.0"]),
    "date": np.datetime64("2020-01-01"), "dates": np.array(["2020-01-01"], "datetime64[D]"),
    "time": np.timedelta64(1, "s"), "record": np.zeros(2, "f4,f4"), "dict": {1: 2.0}, "set": {1.0},
    "generator": (i for i in range(3)), "object": object(), "type": float, "function": len, "huge integer": 10**30,
    "module": tn, "slice": slice(3), "void": np.void(b"abc"),
}  # fmt: skip


@pytest.mark.parametrize("value", NO_NUMBERS.values(), ids=NO_NUMBERS)
@pytest.mark.parametrize("make", [tn.tensor, tn.as_tensor, tn.Tensor, tn.nn.Parameter], ids=lambda f: f.__name__)
def test_a_tensor_is_made_of_real_numbers(make, value):
    with pytest.raises(DTypeError, match=r"floats, integers and bools|no real number"):
        make(value)


@pytest.mark.parametrize(
    "dtype", [complex, np.complex64, str, bytes, object, "U5", "S3", "M8[s]", "f4,f4", "V4"], ids=str
)
def test_a_dtype_of_other_things_is_refused(dtype):
    for call in (lambda: tn.tensor([1.0], dtype=dtype), lambda: tn.as_tensor(V, dtype), lambda: V.astype(dtype)):
        check(call, DTypeError, ["floats, integers and bools"])


@pytest.mark.parametrize("dtype", ["float31", "nonsense", 5, 1.0, [], object(), "f4 f4", True], ids=label)
def test_what_is_no_dtype_is_refused(dtype):
    for call in (lambda: tn.tensor([1.0], dtype=dtype), lambda: tn.as_tensor(V, dtype), lambda: V.astype(dtype)):
        check(call, (DTypeError, ArgumentError), ["dtype|floats, integers and bools"])


ONE_TENSOR = ["exp", "expm1", "log", "log1p", "sqrt", "tanh", "sin", "cos", "abs", "erf", "sum", "mean", "max", "min",
              "prod", "var", "logsumexp", "cumsum", "transpose"]  # fmt: skip
ACTIVATIONS = ["relu", "leaky_relu", "elu", "gelu", "silu", "sigmoid", "softplus", "softmax", "log_softmax", "dropout"]
TAKES_A_TENSOR = {
    **{name: getattr(tn, name) for name in ONE_TENSOR},
    **{name: getattr(F, name) for name in ACTIVATIONS},
    "reshape": lambda v: tn.reshape(v, -1),
    "broadcast_to": lambda v: tn.broadcast_to(v, (2,)),
    "concatenate": lambda v: tn.concatenate([V, v]),
    "stack": lambda v: tn.stack([V, v]),
    "take": lambda v: tn.take(v, [0]),
    "clip": lambda v: tn.clip(v, 0.0, 1.0),
    "einsum": lambda v: tn.einsum("i->", v),
    "matmul": lambda v: tn.matmul(V, v),
    "where": lambda v: tn.where(v, V, V),
    "linear": lambda v: F.linear(v, M),
    "linear weight": lambda v: F.linear(M, v),
    "rms_norm": lambda v: F.rms_norm(v, 2),
    "layer_norm": lambda v: F.layer_norm(v, 2),
    "cross_entropy": lambda v: F.cross_entropy(v, [0, 1]),
    "cross_entropy target": lambda v: F.cross_entropy(LOGITS, v),
    "nll_loss": lambda v: F.nll_loss(v, [0, 1]),
    "mse_loss": lambda v: F.mse_loss(v, V),
    "mse_loss target": lambda v: F.mse_loss(V, v),
}  # fmt: skip

TAKES_A_NUMBER_TOO = {
    "add": lambda v: V + v, "add reflected": lambda v: v + V, "multiply": lambda v: V * v,
    "multiply reflected": lambda v: v * V,
    "subtract": lambda v: V - v, "divide": lambda v: V / v, "power": lambda v: V**v, "matmul operator": lambda v: V @ v,
    "maximum": lambda v: tn.maximum(V, v), "minimum": lambda v: tn.minimum(v, V),
    "where a": lambda v: tn.where(V > 1, v, V), "where b": lambda v: tn.where(V > 1, V, v),
    "maximum of two": lambda v: tn.maximum(v, v), "where of two": lambda v: tn.where(V > 1, v, v),
}  # fmt: skip

SOME = ["string", "None", "complex", "complex array", "string list", "object array", "dict", "date"]


@pytest.mark.parametrize("kind", SOME)
def test_every_function_takes_real_numbers_alone(kind):
    value = NO_NUMBERS[kind]
    assert not unlike({name: answer(call, value) for name, call in TAKES_A_TENSOR.items()}, DTypeError)


@pytest.mark.parametrize("kind", SOME)
def test_every_operator_takes_real_numbers_alone(kind):
    value = NO_NUMBERS[kind]
    assert not unlike({name: answer(call, value) for name, call in TAKES_A_NUMBER_TOO.items()}, DTypeError)


@pytest.mark.parametrize("calls", [TAKES_A_TENSOR, TAKES_A_NUMBER_TOO], ids=["functions", "operators"])
def test_the_function_that_was_called_is_named_where_an_argument_is_no_array_of_numbers(calls):
    """Not the one deep inside that noticed it."""
    array = np.array(["a", "b"])
    assert not unlike({name: answer(call, array) for name, call in calls.items()}, DTypeError, "^{name}: ")


BAD_OPERANDS = [
    ("add None", lambda: V + None, DTypeError, "^add:", "None"),
    ("None add", lambda: None + V, DTypeError, "^add:", "None"),
    ("multiply string", lambda: V * "a", DTypeError, "^multiply:", "'a'"),
    ("string multiply", lambda: "a" * V, DTypeError, "^multiply:", "'a'"),
    ("add complex", lambda: V + 1j, DTypeError, "^add:", "1j", "real"),
    ("power complex", lambda: V**1j, DTypeError, "^power:", "1j"),
    ("maximum None", lambda: tn.maximum(V, None), DTypeError, "^maximum:", "None"),
    ("maximum of None", lambda: tn.maximum(None, None), DTypeError, "^maximum:", "None"),
    ("where None", lambda: tn.where(V > 1, V, None), DTypeError, "^where:", "None"),
    ("where of None", lambda: tn.where(V > 1, None, None), DTypeError, "^where:", "None"),
    ("clip string", lambda: tn.clip(V, "a", None), DTypeError, "^clip:", "'a'"),
    ("clip complex", lambda: tn.clip(V, None, 1j), DTypeError, "^clip:", "1j"),
    ("where condition of floats", lambda: tn.where(V, V, V), DTypeError, "^where:", "bool", "float32", "!= 0"),
    ("where condition of ints", lambda: tn.where([1, 0], V, V), DTypeError, "^where:", "bool", "int64"),
    ("where condition 1", lambda: tn.where(1, V, V), DTypeError, "^where:", "bool"),
    ("where condition None", lambda: tn.where(None, V, V), DTypeError, "bool"),
    ("invert floats", lambda: ~V, DTypeError, "^invert:"),
    ("and of floats", lambda: V & V, DTypeError, "^and:"),
    ("or with a string", lambda: BOOLS | "a", DTypeError, "^or:", "'a'"),
    ("negative of bools", lambda: -BOOLS, DTypeError, "^negative:"),
    ("difference of bools", lambda: BOOLS - BOOLS, DTypeError, "^subtract:"),
    ("integer to a negative power", lambda: INTS**-1, ArgumentError, "^power:", "negative"),
    ("a number beyond int8", lambda: tn.tensor(np.array([1], np.int8)) + 1000,
         (ArgumentError, OutOfRangeError, DTypeError), "^add:", "1000"),
    ("a negative number with uint8", lambda: tn.tensor(np.array([1], np.uint8)) * -1,
         (ArgumentError, OutOfRangeError, DTypeError), "^multiply:", "-1"),
    ("a number beyond int64", lambda: INTS + 10**30, (ArgumentError, OutOfRangeError, DTypeError), "^add:"),
    ("a huge integer with floats", lambda: V + 10**400, (ArgumentError, OutOfRangeError, DTypeError), "^add:"),
    ("300 as a uint8", lambda: tn.tensor([300], dtype=np.uint8),
         (ArgumentError, OutOfRangeError, DTypeError), "^tensor:", "uint8"),
    ("-1 as a uint8", lambda: tn.tensor(-1, dtype=np.uint8),
         (ArgumentError, OutOfRangeError, DTypeError), "^tensor:", "uint8"),
    ("list of tensors", lambda: tn.tensor([V, V]), DTypeError, "^tensor:", "stack or concatenate"),
    ("nested list of tensors", lambda: tn.tensor([[S, S], [S, S]]), DTypeError, "^tensor:", "stack or concatenate"),
    ("tuple of a tensor and a number", lambda: tn.as_tensor((S, 1.0)),
         DTypeError, "^as_tensor:", "stack or concatenate"),
    ("adding a list of tensors", lambda: operator.add(V, [S, S]), DTypeError, "stack or concatenate"),
    ("gradient for integers", lambda: tn.tensor([1, 2], requires_grad=True),
         DTypeError, "^tensor:", "int64", "dtype=np.float32"),
    ("gradient for bools", lambda: tn.tensor([True], requires_grad=True), DTypeError, "^tensor:", "bool"),
    ("gradient for an integer", lambda: tn.tensor(3, requires_grad=True), DTypeError, "^tensor:", "int64"),
    ("gradient for uint8", lambda: tn.Tensor(np.ones(2, np.uint8), True), DTypeError, "uint8"),
    ("integer parameter", lambda: tn.nn.Parameter([1, 2]), DTypeError, "int64", "floating"),
    ("requires_grad of integers", lambda: setattr(tn.tensor([1]), "requires_grad", True),
         DTypeError, "^requires_grad:", "int64"),
    ("data string", lambda: setattr(leaf([1.0]), "data", "abc"), DTypeError, "^Tensor.data:"),
    ("data None", lambda: setattr(leaf([1.0]), "data", None), DTypeError, "^Tensor.data:"),
    ("data complex", lambda: setattr(tn.tensor([1.0]), "data", np.array([1j])), DTypeError, "^Tensor.data:"),
    ("grad list", lambda: setattr(leaf([1.0]), "grad", [1.0]), DTypeError, "^Tensor.grad:", "list", "plain array"),
    ("grad Tensor", lambda: setattr(leaf([1.0]), "grad", tn.tensor([1.0])), DTypeError, "^Tensor.grad:", "Tensor"),
    ("grad number", lambda: setattr(leaf(1.0), "grad", 0.0), DTypeError, "^Tensor.grad:", "float"),
    ("gradient string", lambda: (leaf(1.0) * 2.0).backward("a"), DTypeError, "gradient|no real number|not <U1"),
    ("gradient complex", lambda: (leaf([1.0]) * 2.0).backward(np.array([1j])), DTypeError, "complex"),
    ("gradient bool", lambda: (leaf(1.0) * 2.0).backward(True), DTypeError, "^backward:", "gradient", "bool"),
    ("gradient ragged", lambda: (leaf([1.0]) * 2.0).backward(RAGGED), ShapeError, "equal length"),
    ("activation of integers", lambda: F.sigmoid(INTS),
         DTypeError, "^sigmoid:", "x must be floating-point", "int64", "astype"),
    ("relu of integers", lambda: F.relu(np.array([1, 2])), DTypeError, "^relu:", "int64"),
    ("softmax of bools", lambda: F.softmax(BOOLS), DTypeError, "^softmax:", "bool"),
    ("dropout of integers", lambda: F.dropout(INTS), DTypeError, "^dropout:", "int64"),
    ("rms_norm of integers", lambda: F.rms_norm(INTS, 2),
         DTypeError, "^rms_norm:", "x must be floating-point", "int64"),
    ("rms_norm weight of integers", lambda: F.rms_norm(V, 2, np.array([1, 2])),
         DTypeError, "^rms_norm:", "weight must be floating-point"),
    ("layer_norm bias of integers", lambda: F.layer_norm(V, 2, None, np.array([1, 2])),
         DTypeError, "^layer_norm:", "bias must be floating-point"),
    ("linear of integers", lambda: F.linear(np.array([[1, 2, 3]]), M),
         DTypeError, "^linear:", "x must be floating-point"),
    ("linear weight of integers", lambda: F.linear(M, np.array([[1, 2, 3]])),
         DTypeError, "^linear:", "weight must be floating-point"),
    ("logits of integers", lambda: F.cross_entropy(np.array([[0, 1]]), [0]),
         DTypeError, "^cross_entropy:", "floating-point", "int64"),
    ("float targets", lambda: F.cross_entropy(LOGITS, [0.0, 1.0]), DTypeError, "^cross_entropy:", "integer", "float32"),
    ("distributions as targets", lambda: F.cross_entropy(LOGITS, np.full((2, 3), 1 / 3)),
         DTypeError, "^cross_entropy:", "integer", "float64"),
    ("bool targets", lambda: F.cross_entropy(LOGITS, [True, False]), DTypeError, "^cross_entropy:", "integer", "bool"),
    ("nll_loss float targets", lambda: F.nll_loss(LOGITS, [0.0, 1.0]), DTypeError, "^nll_loss:", "integer"),
    ("argument order of cross_entropy", lambda: F.cross_entropy([0, 1], LOGITS),
         (DTypeError, ShapeError), "^cross_entropy:"),
    ("len of a scalar", lambda: len(S), DTypeError, "len", r"\(\)"),
    ("iterating a scalar", lambda: list(S), DTypeError, r"\(\)"),
    ("unpacking a scalar", lambda: [*S], DTypeError, r"\(\)"),
]  # fmt: skip


@rows(BAD_OPERANDS)
def test_operands(call, errors, fragments):
    check(call, errors, fragments)


def test_classes_of_any_integer_dtype_are_taken():
    for dtype in (np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32, np.uint64, np.int64):
        assert np.isclose(F.cross_entropy(LOGITS, np.array([0, 2], dtype)).item(), np.log(3))


# Options

NO_EPS = [-1e-5, -1, NAN, 10**400, float("inf"), "1e-5", b"1", [1e-5], (1e-5,), 1j, np.array([1e-5]), np.array([1e-5,
     1]), object(),
          {}, np.float64(-1), np.float32("nan"), np.complex64(1), np.array("a")]  # fmt: skip


@pytest.mark.parametrize("eps", NO_EPS, ids=label)
def test_eps(eps):
    answers = {
        "rms_norm": answer(F.rms_norm, V, 2, eps=eps),
        "layer_norm": answer(F.layer_norm, V, 2, eps=eps),
        "RMSNorm": answer(tn.nn.RMSNorm, 2, eps=eps),
        "LayerNorm": answer(tn.nn.LayerNorm, 2, eps=eps),
    }
    assert not unlike(answers, BAD_TYPE, "^{name}: .*eps")


def test_an_eps_of_any_real_type_is_taken():
    for eps in (0, 0.0, 1, 1e-5, np.float64(1e-5), np.float32(1e-5), np.float16(0.5), np.int64(1), None):
        y = F.rms_norm(V, 2, eps=eps)
        assert y.dtype == np.float32
        added = np.finfo(np.float32).eps if eps is None else float(eps)
        np.testing.assert_allclose(y.data, np.array([1.0, 2.0]) / np.sqrt(2.5 + added), rtol=1e-6)


NO_PROBABILITY = [-0.1, 1.1, 2, -1, NAN, float("inf"), "0.5", None, [0.5], 1j, np.array([0.5, 0.5]), object(), {}]


@pytest.mark.parametrize("p", NO_PROBABILITY, ids=label)
def test_probabilities(p):
    answers = {
        "dropout": answer(F.dropout, V, p),
        "dropout without training": answer(F.dropout, V, p, training=False),
        "Dropout": answer(tn.nn.Dropout, p),
    }
    assert not unlike(answers, BAD_TYPE, r"^{name}: .*\bp\b")
    smoothed = {"cross_entropy": answer(F.cross_entropy, LOGITS, [0, 1], label_smoothing=p)}
    assert not unlike(smoothed, BAD_TYPE, "^{name}: .*label_smoothing")


NO_SIZES = ["2", "ab", 2.0, (2.0,), None, (None,), (2, "a"), [[2]], 1j, object(), {}, slice(2), V, np.array([2.0]),
            (np.float64(2),), 2.5]  # fmt: skip


@pytest.mark.parametrize("size", NO_SIZES, ids=label)
def test_sizes(size):
    """Also {}, which is no size at all, is refused, since no size is wrong for each of these."""
    answers = {
        "reshape": answer(tn.reshape, V, size),
        "reshape as a method": answer(V.reshape, size),
        "broadcast_to": answer(tn.broadcast_to, V, size),
        "rms_norm": answer(F.rms_norm, V, size),
        "layer_norm": answer(F.layer_norm, V, size),
        "RMSNorm": answer(tn.nn.RMSNorm, size),
        "LayerNorm": answer(tn.nn.LayerNorm, size),
    }
    assert not unlike(answers, (DTypeError, ArgumentError, ShapeError), "^{name}: ")


@pytest.mark.parametrize("axes", ["ab", (0.0, 1), (None, 0), ("a", "b"), 1.5, [[0, 1]], object()], ids=label)
def test_axes_of_a_transposition(axes):
    for call in (lambda: M.transpose(axes), lambda: tn.transpose(M, axes)):
        check(call, (DTypeError, ArgumentError), ["^transpose:"])


@pytest.mark.parametrize("size", [0, -1, 2.0, "2", None, True, (2,), [2], NAN, 1j], ids=label)
def test_features(size):
    answers = {
        "in_features of Linear": answer(tn.nn.Linear, size, 2),
        "out_features of Linear": answer(tn.nn.Linear, 2, size),
        "in_features of PreNormMLP": answer(tn.nn.PreNormMLP, size, 2, 1, 2),
        "width of PreNormMLP": answer(tn.nn.PreNormMLP, 2, size, 1, 2),
        "out_features of PreNormMLP": answer(tn.nn.PreNormMLP, 2, 2, 1, size),
        "expansion of PreNormMLP": answer(tn.nn.PreNormMLP, 2, 2, 1, 2, expansion=size),
    }
    assert not unlike(answers, BAD_TYPE, "{name} must be an integer")


OPTIONS = [
    *(
        (f"ddof {ddof!r}", lambda ddof=ddof: M.var(ddof=ddof), BAD_TYPE, "^var:", "ddof")
        for ddof in ("1", None, NAN, [1], 1j, float("inf"), np.array([0, 1]))
    ),
    ("keepdims", lambda: M.sum(keepdims="yes"), BAD_TYPE, "^sum:"),
    *(
        (f"negative_slope {s!r}", lambda s=s: F.leaky_relu(V, s), BAD_TYPE, "^leaky_relu:", "negative_slope")
        for s in ("a", "0.5", None, NAN, [0.1], 1j, float("inf"))
    ),
    *((f"alpha {a!r}", lambda a=a: F.elu(V, a),
         BAD_TYPE, "^elu:", "alpha") for a in ("a", "1.0", None, NAN, [1.0], 1j)),
    ("LeakyReLU", lambda: tn.nn.LeakyReLU("a"), BAD_TYPE, "LeakyReLU", "negative_slope"),
    ("ELU", lambda: tn.nn.ELU(None), BAD_TYPE, "ELU", "alpha"),
    *(
        (f"approximate {a!r}", lambda a=a: F.gelu(V, a), ArgumentError, "^gelu:", "approximate", "'none', 'tanh'")
        for a in ("Tanh", "erf", None, True, 1, [])
    ),
    ("GELU", lambda: tn.nn.GELU("fast"), ArgumentError, "^GELU:", "approximate", "'fast'"),
    *(
        (f"reduction {r!r}", lambda r=r: F.cross_entropy(LOGITS, [0, 1], reduction=r),
             ArgumentError, "^cross_entropy:", "reduction", "'mean', 'sum', 'none'")
        for r in ("Mean", "avg", None, True, 0, [])
    ),
    ("mse_loss reduction", lambda: F.mse_loss(V, V, reduction="average"), ArgumentError, "^mse_loss:", "'average'"),
    ("nll_loss reduction", lambda: F.nll_loss(LOGITS, [0, 1], reduction="total"),
         ArgumentError, "^nll_loss:", "'total'"),
    *(
        (f"ignore_index {i!r}", lambda i=i: F.cross_entropy(LOGITS, [0, 1], ignore_index=i),
             BAD_TYPE, "^cross_entropy:", "ignore_index")
        for i in ("0", 0.5, NAN, [0], 1j)
    ),
    ("class weight nan", lambda: F.cross_entropy(LOGITS, [0, 1], weight=[1.0, NAN, 1.0]),
         BAD_TYPE, "^cross_entropy:", "weight"),
    ("class weight negative", lambda: F.cross_entropy(LOGITS, [0, 1], weight=[1.0, -1.0, 1.0]),
         BAD_TYPE, "^cross_entropy:", "weight"),
    *((f"rng {r!r}", lambda r=r: F.dropout(V, 0.5, rng=r),
         BAD_TYPE, "rng", "seed") for r in ("a", -1, 1.5, True, [1], V)),
    *((f"Linear rng {r!r}", lambda r=r: tn.nn.Linear(2, 2, rng=r), BAD_TYPE, "rng") for r in ("a", -1, 1.5)),
    *((f"manual_seed {r!r}", lambda r=r: tn.manual_seed(r), BAD_TYPE, "seed") for r in ("a", -1, 1.5, None, True, [1])),
    ("norm", lambda: tn.nn.PreNormMLP(2, 2, 1, 2, norm="batch"),
         ArgumentError, "^PreNormMLP:", "norm", "'batch'", "'rms'"),
    ("norm None", lambda: tn.nn.PreNormMLP(2, 2, 1, 2, norm=None), ArgumentError, "^PreNormMLP:", "norm"),
    ("depth -1", lambda: tn.nn.PreNormMLP(2, 2, -1, 2), ArgumentError, "^PreNormMLP:", "depth"),
    ("depth 1.0", lambda: tn.nn.PreNormMLP(2, 2, 1.0, 2), ArgumentError, "^PreNormMLP:", "depth"),
    ("device", lambda: tn.tensor([1.0], device="gpu"), DeviceError, "'gpu'", '"cuda"'),
    ("device of a module", lambda: tn.nn.Linear(2, 2).to("gpu"), DeviceError, "'gpu'"),
    ("to a dtype", lambda: V.to(np.float64), DeviceError, '"cpu"'),
]  # fmt: skip


@rows(OPTIONS)
def test_options(call, errors, fragments):
    check(call, errors, fragments)


# Lists of tensors, and einsum's small language

JOINING = [
    ("concatenate nothing", lambda: tn.concatenate([]), ArgumentError, "^concatenate:", "at least one"),
    ("stack nothing", lambda: tn.stack([]), ArgumentError, "^stack:", "at least one"),
    ("concatenate ()", lambda: tn.concatenate(()), ArgumentError, "^concatenate:"),
    ("concatenate a number", lambda: tn.concatenate(5), BAD_TYPE, "^concatenate:"),
    ("stack a number", lambda: tn.stack(1.0), BAD_TYPE, "^stack:"),
    ("concatenate None", lambda: tn.concatenate(None), BAD_TYPE, "^concatenate:"),
    ("concatenate a scalar Tensor", lambda: tn.concatenate(S), BAD_TYPE),
    ("concatenate scalars", lambda: tn.concatenate([S, S]), OutOfRangeError, "^concatenate:", r"\(\)"),
    ("concatenate two arguments", lambda: tn.concatenate(V, V), BAD_TYPE, "^concatenate:", "axis"),
    ("stack two arguments", lambda: tn.stack(V, V), BAD_TYPE, "^stack:", "axis"),
    ("stack two scalars", lambda: tn.stack(V, S), BAD_TYPE, "^stack:", "axis"),
    ("concatenate a string", lambda: tn.concatenate("ab"), DTypeError),
    ("stack with a string", lambda: tn.stack([V, "ab"]), DTypeError),
    ("concatenate ragged", lambda: tn.concatenate([RAGGED, V]), ShapeError, "equal length"),
]  # fmt: skip


@rows(JOINING)
def test_joining(call, errors, fragments):
    check(call, errors, fragments)


MALFORMED = ["i->i->i", "i-j", "i>j", "i->j", "i->ii", "ij", "i,j", "", "->", ",", "1", "i1", "é", "i..", "....", "i.j",
             ".i", "i->.", "i->i..", "i-> i,", "->i", "i→i", "i+i", "...i...", "...i...->i", "i...i...->i",
                  "i->...i...",
             "i;", "i->-", "i\n-", "(i)"]  # fmt: skip


@pytest.mark.parametrize("subscripts", MALFORMED)
def test_malformed_einsum_on_a_vector(subscripts):
    check(lambda: tn.einsum(subscripts, V), ArgumentError, ["^einsum:", re.escape(repr(subscripts))])


@pytest.mark.parametrize(
    "subscripts", ["...i...->i", "...i...", "......", "i......", "...->i...", "ij...->...i...", "ijkl->i"]
)
def test_malformed_einsum_on_more_axes(subscripts):
    check(lambda: tn.einsum(subscripts, np.ones((2, 2, 2))), ArgumentError, ["^einsum:", re.escape(repr(subscripts))])


EINSUM = [
    ("too few operands", lambda: tn.einsum("ij,jk->ik", M), ArgumentError, "^einsum:", "2 operands", "1 were given"),
    ("too many operands", lambda: tn.einsum("ij->i", M, M), ArgumentError, "^einsum:", "1 operands", "2 were given"),
    ("no operands", lambda: tn.einsum("ij"), ArgumentError, "^einsum:", "0 were given"),
    ("too few labels", lambda: tn.einsum("i->i", M), ArgumentError, "^einsum:", "2 axes"),
    ("too many labels", lambda: tn.einsum("ijk->i", M), ArgumentError, "^einsum:", "2 axes"),
    ("more labels than axes beside an ellipsis", lambda: tn.einsum("...ijk->i", M),
         ArgumentError, "^einsum:", "2 axes"),
    ("subscripts 5", lambda: tn.einsum(5, V), BAD_TYPE, "^einsum:"),
    ("subscripts None", lambda: tn.einsum(None, V), BAD_TYPE, "^einsum:"),
    ("subscripts last", lambda: tn.einsum(V, "i->i"), BAD_TYPE, "einsum"),
    ("NumPy's other form", lambda: tn.einsum(M, [0, 1], [1]), BAD_TYPE, "^einsum:"),
    ("a list of operands", lambda: tn.einsum("i,i->", [V, V]), (ArgumentError, DTypeError, ShapeError)),
]  # fmt: skip


@rows(EINSUM)
def test_einsum(call, errors, fragments):
    check(call, errors, fragments)


# Graphs


def freed():
    loss = (leaf([1.0]) * leaf([1.0])).sum()
    loss.backward()
    loss.backward()


def changed():
    x = leaf([1.0])
    y = x * x
    x.data[0] = 2.0
    y.backward()


def unrecorded():
    with tn.no_grad():
        y = leaf(1.0) * 2.0
    y.backward()


GRAPHS = [
    ("no graph", lambda: S.backward(), GraphError, "^backward:", "no graph", "requires_grad=True"),
    ("no graph, with a gradient", lambda: V.backward(np.ones(2)), GraphError, "^backward:", "requires_grad=True"),
    ("no graph, many elements", lambda: V.backward(), (GraphError, ShapeError), "^backward:"),
    ("under no_grad", unrecorded, GraphError, "^backward:", "no_grad"),
    ("detached", lambda: (leaf(1.0) * 2.0).detach().backward(), GraphError, "^backward:"),
    ("comparison", lambda: (leaf(1.0) > 0.0).backward(), GraphError, "^backward:"),
    ("freed", freed, GraphError, "^backward:", "retain_graph=True"),
    ("changed", changed, GraphError, "^backward:", "multiply", "copy"),
    ("item assignment", lambda: V.__setitem__(0, 1.0), GraphError, "where or concatenate", r"\.data"),
    ("item assignment on a leaf", lambda: leaf([1.0]).__setitem__(0, 1.0), GraphError, "where or concatenate"),
    ("data of a result", lambda: setattr(leaf([1.0]) * 2.0, "data", np.ones(1)),
         GraphError, "^Tensor.data:", "multiply", "detach"),
    ("grad of a result", lambda: setattr(leaf([1.0]) * 2.0, "grad", np.ones(1)), GraphError, "^Tensor.grad:", "leaf"),
    ("grad of a constant", lambda: setattr(tn.tensor([1.0]), "grad", np.ones(1)),
         GraphError, "^Tensor.grad:", "requires_grad"),
    ("requires_grad of a result", lambda: setattr(leaf([1.0]) * 2.0, "requires_grad", False),
         GraphError, "multiply", "detach"),
    ("deep copy of a result", lambda: copy.deepcopy(leaf([1.0]) * 2.0), (GraphError, DTypeError), "multiply|copy|leaf"),
]  # fmt: skip


@rows(GRAPHS)
def test_graphs(call, errors, fragments):
    check(call, errors, fragments)


# States and modules


def state(**changes):
    own = tn.nn.Linear(3, 2, rng=0).state_dict()
    return {name: value for name, value in {**own, **changes}.items() if value is not None}


STATES = [
    ("missing", lambda m: m.load_state_dict(state(bias=None)), "bias", "missing"),
    ("unknown", lambda m: m.load_state_dict(state(scale=np.ones(2, np.float32))), "scale"),
    ("misspelt", lambda m: m.load_state_dict(state(bias=None, bais=np.ones(2, np.float32))), "bias", "bais"),
    ("shape", lambda m: m.load_state_dict(state(weight=np.ones((3, 2), np.float32))), "weight", r"\(3, 2\)",
         r"\(2, 3\)"),
    ("broadcastable shape", lambda m: m.load_state_dict(state(weight=np.ones((1, 3), np.float32))), "weight",
         r"\(1, 3\)"),
    ("scalar", lambda m: m.load_state_dict(state(bias=np.float32(1))), "bias", r"\(\)"),
    ("dtype", lambda m: m.load_state_dict(state(bias=np.ones(2))), "bias", "float64", "float32"),
    ("integers", lambda m: m.load_state_dict(state(bias=np.ones(2, int))), "bias", "int64"),
    ("list", lambda m: m.load_state_dict(state(bias=[1.0, 2.0])), "bias"),
    ("string", lambda m: m.load_state_dict(state(bias="ab")), "bias"),
    ("ragged", lambda m: m.load_state_dict(state(weight=RAGGED)), "weight"),
    ("objects", lambda m: m.load_state_dict(state(bias=np.array([None, 1.0]))), "bias"),
    ("empty", lambda m: m.load_state_dict({}), "weight", "bias"),
    ("shape, not strict", lambda m: m.load_state_dict(state(weight=np.ones((3, 2), np.float32)), strict=False),
         "weight"),
    ("not a mapping", lambda m: m.load_state_dict([("weight", 1)]), "state"),
    ("None", lambda m: m.load_state_dict(None), "state"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("load", "fragments"), [pytest.param(load, fragments, id=name) for name, load, *fragments in STATES]
)
def test_states(load, fragments):
    module = tn.nn.Linear(3, 2, rng=1)
    before = module.state_dict()
    check(lambda: load(module), (StateError, DTypeError), fragments)
    for name, value in module.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


MODULES = [
    ("Sequential of a list", lambda: tn.nn.Sequential([tn.nn.ReLU()]), DTypeError, "Sequential", r"\*modules"),
    ("Sequential of a function", lambda: tn.nn.Sequential(F.relu), DTypeError, "Sequential", "function"),
    ("Sequential of a class", lambda: tn.nn.Sequential(tn.nn.ReLU), DTypeError, "Sequential"),
    ("list of modules", lambda: setattr(tn.nn.Module(), "layers", [tn.nn.ReLU()]),
         ArgumentError, "Module.layers", "Sequential"),
    ("dict of parameters", lambda: setattr(tn.nn.Module(), "all", {"w": tn.nn.Parameter([1.0])}),
         ArgumentError, "Module.all"),
]  # fmt: skip


@rows(MODULES)
def test_modules(call, errors, fragments):
    check(call, errors, fragments)


def test_a_misspelt_attribute_names_the_near_miss():
    with pytest.raises(AttributeError, match=r"Linear has no attribute 'wieght'.*'weight'"):
        _ = tn.nn.Linear(2, 2, rng=0).wieght
    with pytest.raises(AttributeError, match="no attribute"):
        _ = V.gard


# Nothing is half done


def test_a_refused_operation_changes_nothing():
    x = leaf([1.0, 2.0])
    y = x * x
    for call in (
        lambda: y + W, lambda: y @ W, lambda: y.reshape(3), lambda: y["a"], lambda: F.rms_norm(y, 3),
        lambda: setattr(x, "data", np.ones(3)), lambda: setattr(x, "grad", np.ones(3)), lambda: y.backward(),
    ):  # fmt: skip
        with pytest.raises(TinynormError):
            call()
    assert x.data.tolist() == [1.0, 2.0]
    assert x.grad is None
    assert x.requires_grad
    y.sum().backward()
    assert x.grad.tolist() == [2.0, 4.0]


def test_einsum_runs_out_of_labels():
    with pytest.raises(ArgumentError, match="einsum: needs more than the 52 labels"):
        tn.einsum(",".join(f"{c}{c}" for c in "abcdefghijklmnopqrstuvwxyzABCDEFG"), *[np.ones((1, 1))] * 33)


@pytest.mark.parametrize("inputs", [[], [np.arange(3)]])
def test_gradcheck_of_nothing_is_no_success(inputs):
    with pytest.raises(ArgumentError, match="gradcheck: no input is floating-point"):
        tn.testing.gradcheck(lambda *x: tn.tensor(1.0), inputs)


@pytest.mark.parametrize("loss", [F.cross_entropy, F.nll_loss])
def test_class_weights_get_no_gradient_and_say_so(loss):
    with pytest.raises(GraphError, match=r"weight gets no gradient here; pass weight\.detach\(\)"):
        loss(LOGITS, [0, 1], leaf([1.0, 2.0, 3.0]))
