"""Faults of single functions that people have reported in public, looked for in every function there is.

The right values come from float64: numeric derivatives along a random direction.
"""

import re

import numpy as np
import pytest

import tinynorm as tn
from tinynorm import functional as F
from tinynorm.errors import GraphError

DTYPES = pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])

# Every differentiable function, on a square matrix of positive numbers.
EVERY = {
    "abs": tn.abs,
    "broadcast_to": lambda x: tn.broadcast_to(x, (2, 4, 4)),
    "clip": lambda x: tn.clip(x, 0.5, 1.5),
    "concatenate": lambda x: tn.concatenate([x, x.T], axis=1),
    "cos": tn.cos,
    "cumsum": lambda x: tn.cumsum(x, axis=0),
    "einsum": lambda x: tn.einsum("ij,kj->ik", x, x),
    "erf": tn.erf,
    "exp": tn.exp,
    "expm1": tn.expm1,
    "log": tn.log,
    "log1p": tn.log1p,
    "logsumexp": lambda x: tn.logsumexp(x, axis=0),
    "matmul": lambda x: tn.matmul(x, x),
    "max": lambda x: tn.max(x, axis=0),
    "maximum": lambda x: tn.maximum(x, x.T),
    "mean": lambda x: tn.mean(x, axis=0),
    "min": lambda x: tn.min(x, axis=0),
    "minimum": lambda x: tn.minimum(x, x.T),
    "prod": lambda x: tn.prod(x, axis=0),
    "reshape": lambda x: tn.reshape(x, (2, 8)),
    "sin": tn.sin,
    "sqrt": tn.sqrt,
    "stack": lambda x: tn.stack([x, x.T], axis=1),
    "sum": lambda x: tn.sum(x, axis=0),
    "take": lambda x: tn.take(x, [0, 0, 2], axis=1),
    "tanh": tn.tanh,
    "transpose": tn.transpose,
    "var": lambda x: tn.var(x, axis=0),
    "where": lambda x: tn.where(x > 1.0, x, 2.0 * x),
    "cross_entropy": lambda x: F.cross_entropy(x, [0, 3, 1, 1]),
    "dropout": lambda x: F.dropout(x, 0.5, rng=0),
    "elu": lambda x: F.elu(x - 1.0),
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "layer_norm": lambda x: F.layer_norm(x, 4, x[0], x[1]),
    "leaky_relu": lambda x: F.leaky_relu(x - 1.0),
    "linear": lambda x: F.linear(x, x, x[0]),
    "log_softmax": lambda x: F.log_softmax(x, axis=0),
    "mse_loss": lambda x: F.mse_loss(x, x.T * x),
    "nll_loss": lambda x: F.nll_loss(x, [0, 3, 1, 1]),
    "relu": lambda x: F.relu(x - 1.0),
    "rms_norm": lambda x: F.rms_norm(x, 4, x[0]),
    "sigmoid": F.sigmoid,
    "silu": F.silu,
    "softmax": lambda x: F.softmax(x, axis=0),
    "softplus": F.softplus,
    "+": lambda x: 1.0 + x + x.T,
    "-": lambda x: 1.0 - (x - x.T * 2.0),
    "*": lambda x: 2.0 * x * x.T,
    "/": lambda x: 1.0 / x / (x.T + 1.0),
    "**": lambda x: x**x.T + 2.0**x + x**3,
    "@": lambda x: x @ x.T,
    "unary": lambda x: -x + abs(+x) * 2.0,
    "x[1:]": lambda x: x[1:, ::-2],
    "x[duplicates]": lambda x: x[[0, 1, 1]],
    "x[mask]": lambda x: x[np.eye(4, dtype=bool)],
    "astype": lambda x: x.astype(np.longdouble).astype(x.dtype),
    "iteration": lambda x: sum(row * float(i) for i, row in enumerate(x)),
}
FUNCTIONS = pytest.mark.parametrize("name", EVERY)


def positive(seed=0):
    """Well apart from each other and from the kinks at 0.5, 1 and 1.5."""
    return np.random.default_rng(seed).permutation(np.linspace(0.33, 1.87, 16)).reshape(4, 4)


def along(f, x, direction, dy, h=1e-6):
    """∂(Σ ȳ f(x)) along a direction, by central difference."""
    above, below = (f(tn.tensor(x + s * h * direction)).numpy() for s in (1, -1))
    return float(np.sum(dy * (above - below)) / (2 * h))


def leaf(x, dtype=None):
    return tn.tensor(x, dtype=dtype, requires_grad=True)


def test_the_table_above_is_complete():
    """A function that is not in EVERY would escape the tests below."""
    assert {*tn.array.__all__, *F.__all__} <= EVERY.keys()


@FUNCTIONS
def test_every_function_records_itself(name):
    """max() ran outside of the graph: requires_grad was False, and the gradient was missing without a word."""
    f, x, rng = EVERY[name], positive(), np.random.default_rng(1)
    t = leaf(x)
    y = f(t)
    assert y.requires_grad
    dy, direction = rng.normal(size=y.shape), rng.normal(size=x.shape)
    y.backward(dy)
    assert np.sum(t.grad * direction) == pytest.approx(along(f, x, direction, dy), rel=1e-6, abs=1e-8)


@FUNCTIONS
@DTYPES
def test_nothing_that_comes_in_is_written_to(name, dtype):
    """A function worked in place where the dtype was right already, and spoilt what its caller still used."""
    x = positive().astype(dtype)
    t = tn.Tensor(x, requires_grad=True)
    y = EVERY[name](t)
    dy = np.random.default_rng(1).normal(size=y.shape).astype(dtype)
    arrays, before = (x, y.numpy(), dy), [x.tobytes(), y.numpy().tobytes(), dy.tobytes()]
    y.backward(dy, retain_graph=True)
    y.backward(dy)
    assert [a.tobytes() for a in arrays] == before


@FUNCTIONS
def test_a_stride_0_cotangent_is_a_cotangent(name):
    """A backward broke on the array that sum() sends: one element in memory for all, and read-only."""
    f, x = EVERY[name], positive()
    x.flags.writeable = False
    t = tn.Tensor(x, requires_grad=True)
    y = f(t)
    y.backward(np.broadcast_to(1.7, y.shape))
    direction = np.random.default_rng(1).normal(size=x.shape)
    assert np.sum(t.grad * direction) == pytest.approx(
        along(f, x, direction, np.full(y.shape, 1.7)), rel=1e-6, abs=1e-8
    )


@FUNCTIONS
def test_nothing_is_recorded_under_no_grad(name):
    """A function kept its graph under no_grad."""
    with tn.no_grad():
        y = EVERY[name](leaf(positive()))
    assert not y.requires_grad
    with pytest.raises(GraphError, match="no graph"):
        y.backward(np.ones(y.shape))


WRITES = {
    "the shared input": lambda array, t, y: np.multiply(array, 1.1, out=array),
    "x.data": lambda array, t, y: np.multiply(t.data, 1.1, out=t.data),
    "x.numpy() of a view": lambda array, t, y: np.multiply(t.T.numpy(), 1.1, out=t.T.numpy()),
    "y.data": lambda array, t, y: np.multiply(y.data, 1.1, out=y.data),
}


@FUNCTIONS
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("shares", [True, False])
def test_a_saved_array_that_changes_is_noticed(name, write, shares):
    """An array was overwritten between forward and backward, and the gradient belonged to no values at all.

    The rule here (`tinynorm.memory`): backward refuses, or, where the operation kept a copy, uses the old values.
    """
    f, array, rng = EVERY[name], positive(), np.random.default_rng(1)
    old = array.copy()
    t = tn.Tensor(array, requires_grad=True) if shares else leaf(array)
    y = f(t)
    dy, direction = rng.normal(size=y.shape), rng.normal(size=(4, 4))
    refused = ""
    try:
        WRITES[write](array, t, y)  # broadcast_to gives a read-only view
        y.backward(dy)
    except (GraphError, ValueError) as error:
        refused = str(error)
    if refused:
        assert re.search("read-only|changed in place", refused)
        assert t.grad is None
        return
    assert np.sum(t.grad * direction) == pytest.approx(along(f, old, direction, dy), rel=1e-6, abs=1e-8)


@FUNCTIONS
@DTYPES
def test_nothing_widens_the_dtype(name, dtype):
    """A 0-d float64 (an eps, a constant, a mean) turned float32 into float64, in the value or in the gradient."""
    t = leaf(positive(), dtype)
    y = EVERY[name](t)
    assert y.dtype == dtype
    y.backward(np.random.default_rng(1).normal(size=y.shape))
    assert t.grad.dtype == dtype
    (t - t.mean() / t.var() * tn.max(t)).sum().backward()  # 0-d intermediates
    assert t.grad.dtype == dtype
    assert (t - t.mean() / t.var() * tn.max(t)).dtype == dtype
