"""The same numbers as PyTorch's: values of every operation and derivatives to the third order, layers with the same
state, optimizers step by step.

The calls are those of `tinynorm.testing.cases`; here stands what each is called there. Cotangents are random.
"""

import math
from functools import partial

import numpy as np
import pytest
from helpers import ALWAYS, run

import tinynorm as tn
from tinynorm import functional as F
from tinynorm.testing.cases import CASES

torch = pytest.importorskip("torch", reason="comparing with PyTorch needs it: pip install -e '.[conformance]'")
TF = torch.nn.functional


# What each call is called there


def reduced_by(function):
    """NumPy's axes: None for all, () for none at all, where PyTorch takes () for all."""

    def call(x, axis=None, keepdims=False, **options):
        axes = range(x.ndim) if axis is None else [a % x.ndim for a in np.atleast_1d(axis).astype(int)]
        if not axes:
            return function(x[..., None], (-1,), False, **options)
        return function(x, tuple(axes), keepdims, **options)

    return call


def product(x, axes, keepdim):
    """Theirs takes one axis at a time."""
    for axis in sorted(axes, reverse=True):
        x = torch.prod(x, axis, keepdim)
    return x


def variance(x, axes, keepdim, ddof=0):
    return torch.var(x, axes, correction=ddof, keepdim=keepdim)


def cumsum(x, axis):
    return torch.cumsum(x.reshape(-1), 0) if axis is None else torch.cumsum(x, axis)


def index_of(index):
    """Indices as theirs: uint8 would be taken for a mask there."""
    if isinstance(index, tuple):
        return tuple(map(index_of, index))
    if isinstance(index, (list, np.ndarray, tn.Tensor)):
        array = np.asarray(index)
        return torch.tensor(array if array.dtype == bool else array.astype(np.int64))
    return int(index) if isinstance(index, np.integer) else index


def scatter(x, shape, index):
    """Added at the places that the index takes from an array of their numbers."""
    y = torch.zeros(shape, dtype=x.dtype)
    places = torch.arange(y.numel()).reshape(shape)[index_of(index)]
    return y.reshape(-1).index_add(0, places.reshape(-1), x.reshape(-1)).reshape(shape)


def take(x, indices, axis=None):
    index = torch.tensor(np.asarray(indices))
    return x.reshape(-1)[index] if axis is None else x[(slice(None),) * (axis % x.ndim) + (index,)]


def clip(x, a_min, a_max):
    """Theirs does not broadcast x to its bounds."""
    if isinstance(a_min, torch.Tensor):
        x, a_min, a_max = torch.broadcast_tensors(x, a_min, a_max)
    return torch.clamp(x, a_min, a_max)


def norm(function):
    def call(x, *parameters, normalized_shape, given, eps=1e-5):
        return function(x, normalized_shape, **dict(zip(given, parameters, strict=True)), eps=eps)

    return call


def class_loss(function):
    def call(scores, target, weighted, **options):
        classes = scores.shape[min(scores.ndim - 1, 1)]
        weight = torch.linspace(0.5, 2.0, classes, dtype=scores.dtype) if weighted else None
        return function(scores, target, weight, **options)

    return call


THERE = {
    "exp": torch.exp,
    "expm1": torch.expm1,
    "log": torch.log,
    "log1p": torch.log1p,
    "sqrt": torch.sqrt,
    "tanh": torch.tanh,
    "sin": torch.sin,
    "cos": torch.cos,
    "abs": torch.abs,
    "erf": torch.erf,
    "relu": TF.relu,
    "leaky_relu": TF.leaky_relu,
    "elu": TF.elu,
    "sigmoid": torch.sigmoid,
    "silu": TF.silu,
    "softplus": partial(TF.softplus, threshold=100.0),  # by default theirs is x above 20
    "gelu": TF.gelu,
    "gelu_tanh": partial(TF.gelu, approximate="tanh"),
    "clip": clip,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "where": torch.where,
    "sum": reduced_by(torch.sum),
    "mean": reduced_by(torch.mean),
    "max": reduced_by(torch.amax),
    "min": reduced_by(torch.amin),
    "logsumexp": reduced_by(torch.logsumexp),
    "prod": reduced_by(product),
    "var": reduced_by(variance),
    "cumsum": cumsum,
    "softmax": lambda x, axis: TF.softmax(x, axis),
    "log_softmax": lambda x, axis: TF.log_softmax(x, axis),
    "reshape": torch.reshape,
    "transpose": lambda x, axes: torch.permute(x, axes or tuple(reversed(range(x.ndim)))),
    "broadcast_to": lambda x, shape: torch.broadcast_to(x, shape),
    "concatenate": lambda *tensors, axis: torch.cat(tensors, axis),
    "stack": lambda *tensors, axis: torch.stack(tensors, axis),
    "getitem": lambda x, index: x[index_of(index)],
    "scatter": scatter,
    "take": take,
    "matmul": torch.matmul,
    "einsum": lambda *operands, subscripts: torch.einsum(subscripts, *operands),
    "linear": TF.linear,
    "rms_norm": norm(TF.rms_norm),
    "layer_norm": norm(TF.layer_norm),
    "cross_entropy": class_loss(TF.cross_entropy),
    "nll_loss": class_loss(TF.nll_loss),
    "mse_loss": TF.mse_loss,
}

OPERATORS = ["negative", "power", "add", "subtract", "multiply", "divide"]  # the same expression serves both

ABSENT = {
    "dropout": "draws other numbers",
    "astype": "the call casts to long double",
    "rms_norm_variant": "they have none of the variants; see VARIANTS below",
}


def operation(name):
    """Without the remark after the colon."""
    return name.partition(":")[0]


def counterpart(name):
    return CASES[name].call if operation(name) in OPERATORS else THERE[operation(name)]


COMPARED = [name for name in CASES if operation(name) not in ABSENT]


def test_every_operation_has_a_counterpart_or_a_reason():
    operations = {operation(name) for name in CASES}
    assert {*THERE, *OPERATORS} <= operations <= {*THERE, *OPERATORS, *ABSENT}


def refused_there(name, setting):
    """Theirs has no negative steps, and warns of the variance of an empty tensor's elements."""
    if name in ("getitem", "scatter"):
        index = setting.options["index"]
        parts = index if isinstance(index, tuple) else (index,)
        return any(isinstance(part, slice) and (part.step or 1) < 0 for part in parts)
    return name == "var" and 0 in setting.shapes[0]


# Values and gradients


def leaves_of(inputs):
    """The inputs as Tensors there, and those of them that take a gradient."""
    tensors = [torch.tensor(np.array(a)) for a in inputs]
    return tensors, [t.requires_grad_() for t in tensors if t.is_floating_point()]


def assert_near(found, right, tolerance):
    """To the tolerance, in units of the largest number of the array, or of 1: of two values, say, LayerNorm's gradient
    is a small difference between numbers of that size."""
    assert (found.shape, found.dtype) == (right.shape, right.dtype)
    largest = float(abs(right.astype(np.float64)).max(initial=1.0))
    np.testing.assert_allclose(found, right, rtol=0, atol=tolerance * largest)


def compare(name, setting, dtype, tolerance):
    rng = np.random.default_rng(0)
    call = CASES[name]
    inputs = [a.astype(dtype) if a.dtype.kind == "f" else a for a in call.inputs(rng, setting)]
    tensors, leaves = leaves_of(inputs)
    right = counterpart(name)(*tensors, **setting.options)
    dy = rng.normal(size=right.shape).astype(dtype)
    gradients = torch.autograd.grad(right, leaves, torch.tensor(dy), materialize_grads=True)
    value, own = run(call.call, inputs, dy, **setting.options)
    assert_near(value, right.detach().numpy(), tolerance)
    for mine, theirs in zip(own, gradients, strict=True):
        assert_near(mine, theirs.numpy(), tolerance)


@pytest.mark.parametrize(
    ("name", "setting"), [p for p in ALWAYS if p.values[0] in COMPARED and not refused_there(*p.values)]
)
def test_values_and_gradients(name, setting):
    compare(name, setting, np.float64, 1e-13)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 2e-6), (np.float16, 2e-3)])
@pytest.mark.parametrize("name", COMPARED)
def test_narrower_dtypes(name, dtype, tolerance):
    compare(name, CASES[name].typical, dtype, tolerance)


CORNERS = {
    "max, ties": (lambda x: x.max(), lambda x: torch.amax(x, (0,)), [2.0, 1.0, 2.0]),
    "min, ties": (lambda x: x.min(), lambda x: torch.amin(x, (0,)), [1.0, 1.0, 2.0]),
    "maximum, ties": (lambda x: tn.maximum(x, x * x), lambda x: torch.maximum(x, x * x), [0.0, 1.0, 2.0]),
    "minimum, ties": (lambda x: tn.minimum(x, x * x), lambda x: torch.minimum(x, x * x), [0.0, 1.0, 2.0]),
    "clip, at the bounds": (lambda x: tn.clip(x, -1.0, 1.0), lambda x: torch.clamp(x, -1.0, 1.0), [-1.0, 1.0]),
    "abs at 0": (tn.abs, torch.abs, [0.0, -0.0]),
    "relu at 0": (F.relu, TF.relu, [0.0, -0.0]),
    "leaky_relu at 0": (F.leaky_relu, TF.leaky_relu, [0.0, -0.0]),
    "elu at 0": (partial(F.elu, alpha=0.5), partial(TF.elu, alpha=0.5), [0.0, -0.0]),
    "prod with zeros": (tn.prod, torch.prod, [2.0, 0.0, 3.0, 0.0]),
    "power at 0": (lambda x: x**2, lambda x: x**2, [0.0, 1.0]),
}


@pytest.mark.parametrize("corner", CORNERS)
def test_where_there_is_no_slope_the_choice_is_the_same(corner):
    ours, theirs, values = CORNERS[corner]
    (x,), leaves = leaves_of([np.array(values)])
    right = theirs(x)
    dy = np.random.default_rng(0).normal(size=right.shape)
    (gradient,) = torch.autograd.grad(right, leaves, torch.tensor(dy))
    value, (own,) = run(ours, [np.array(values)], dy)
    assert_near(value, right.detach().numpy(), 1e-15)
    assert_near(own, gradient.numpy(), 1e-15)


# Derivatives of derivatives


def written_out(x, normalized_shape, weight=None, bias=None, eps=1e-5):
    """LayerNorm from its parts. `torch.nn.functional.layer_norm` itself, in PyTorch 2.13, is right to the second order
    only: its third derivative is off by 30 % on 4 rows of 4, its fourth by more than 100 %."""
    axes = tuple(range(-len(normalized_shape), 0))
    h = (x - x.mean(axes, keepdim=True)) / torch.sqrt(x.var(axes, correction=0, keepdim=True) + eps)
    h = h if weight is None else h * weight
    return h if bias is None else h + bias


def gradients_of_gradients(y, leaves, leaf, grad):
    """Those of ⟨v, y⟩ with a random v, then those of Σ ⟨vᵢ, gᵢ⟩ over all gradients g so far, and once more.

    The cotangents are leaves themselves, so that every gradient has derivatives, if only with respect to them.
    """
    rng = np.random.default_rng(1)
    level, orders = [y], []
    for _ in range(3):
        vs = [leaf(np.asarray(rng.normal(size=tuple(g.shape)))) for g in level]
        leaves = [*leaves, *vs]
        level = grad(sum((v * g).sum() for v, g in zip(vs, level, strict=True)), leaves)
        orders.append(level)
    return orders


def assert_orders_near(ours, theirs, inputs):
    """Both functions take the inputs alone; those of floats are differentiated."""
    tensors, leaves = leaves_of(inputs)
    right = gradients_of_gradients(
        theirs(*tensors),
        leaves,
        partial(torch.tensor, requires_grad=True),
        partial(torch.autograd.grad, create_graph=True, materialize_grads=True),
    )
    own = [tn.tensor(a, requires_grad=a.dtype.kind == "f") for a in inputs]
    found = gradients_of_gradients(
        ours(*own),
        [t for t in own if t.requires_grad],
        partial(tn.tensor, requires_grad=True),
        partial(tn.grad, create_graph=True),
    )
    for mine, gradients in zip(found, right, strict=True):
        for a, b in zip(mine, gradients, strict=True):
            assert_near(a.numpy(), b.detach().numpy(), 1e-13)


@pytest.mark.parametrize("name", COMPARED)
def test_orders_one_to_three(name):
    call, setting = CASES[name], CASES[name].typical
    theirs = norm(written_out) if name == "layer_norm" else counterpart(name)
    inputs = call.inputs(np.random.default_rng(0), setting)
    assert_orders_near(partial(call.call, **setting.options), partial(theirs, **setting.options), inputs)


VARIANTS = [
    {"partial": 0.4},  # 3 of 6
    {"weight_offset": 1.0},
    {"eps": 0.1, "eps_mode": "outside"},
    {"partial": 0.3, "weight_offset": -0.5, "eps": 0.1, "eps_mode": "outside"},
]


def variant_of_rms_norm(x, weight, bias, *, partial=1.0, weight_offset=0.0, eps=1e-5, eps_mode="inside"):
    part = x[..., : math.ceil(partial * x.shape[-1])]
    square = (part * part).mean(-1, keepdim=True)
    root = torch.sqrt(square) + eps if eps_mode == "outside" else torch.sqrt(square + eps)
    return (weight_offset + weight) * x / root + bias


@pytest.mark.parametrize("options", VARIANTS)
def test_variants_of_rms_norm(options):
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=shape) for shape in [(4, 6), (6,), (6,)]]

    def ours(x, weight, bias):
        return F.rms_norm(x, 6, weight, bias=bias, **options)

    theirs = partial(variant_of_rms_norm, **options)
    assert_near(ours(*inputs).numpy(), theirs(*map(torch.tensor, inputs)).numpy(), 1e-15)
    assert_orders_near(ours, theirs, inputs)


# Layers


def network(nn):
    """The same, of this library's layers or of theirs."""
    return nn.Sequential(
        nn.Linear(6, 8), nn.RMSNorm(8, eps=1e-5), nn.SiLU(), nn.Linear(8, 5, bias=False), nn.GELU(),
        nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 3),
    )  # fmt: skip


def test_a_network_with_the_same_state_learns_the_same():
    torch.manual_seed(0)
    theirs, ours = network(torch.nn), network(tn.nn)
    with torch.no_grad():
        for p in theirs.parameters():
            p += 0.1 * torch.randn_like(p)  # gains other than 1, biases other than 0
    ours.load_state_dict({name: p.numpy() for name, p in theirs.state_dict().items()})
    assert list(ours.state_dict()) == list(theirs.state_dict())

    rng = np.random.default_rng(0)
    x, target = rng.normal(size=(4, 6)).astype(np.float32), rng.integers(0, 3, 4)
    given, own = torch.tensor(x, requires_grad=True), tn.tensor(x, requires_grad=True)
    right, found = TF.cross_entropy(theirs(given), torch.tensor(target)), F.cross_entropy(ours(own), target)
    right.backward()
    found.backward()
    assert_near(found.numpy(), right.detach().numpy(), 2e-6)
    assert_near(own.grad, given.grad.numpy(), 2e-6)
    for mine, p in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert_near(mine.grad, p.grad.numpy(), 2e-6)


NORMS = {
    "RMSNorm": [((5,), {}), (5, {"eps": None}), ((2, 5), {"eps": 0.1}), (5, {"elementwise_affine": False})],
    "LayerNorm": [
        ((5,), {}), ((2, 5), {"eps": 0.1}), (5, {"elementwise_affine": False}), (5, {"bias": False}), ((3, 2, 5), {}),
    ],
}  # fmt: skip


@pytest.mark.parametrize(("name", "shape", "options"), [(n, s, o) for n, given in NORMS.items() for s, o in given])
def test_norm_layers(name, shape, options):
    options = {"eps": 1e-5, **options}
    theirs, ours = getattr(torch.nn, name)(shape, **options), getattr(tn.nn, name)(shape, **options)
    rng = np.random.default_rng(0)
    state = {name: rng.normal(size=p.shape).astype(np.float32) for name, p in theirs.state_dict().items()}
    theirs.load_state_dict({name: torch.tensor(p) for name, p in state.items()})
    ours.load_state_dict(state)
    x, dy = (rng.normal(size=(3, 2, 5)).astype(np.float32) for _ in range(2))
    given, own = torch.tensor(x, requires_grad=True), tn.tensor(x, requires_grad=True)
    right, found = theirs(given), ours(own)
    right.backward(torch.tensor(dy))
    found.backward(dy)
    assert_near(found.numpy(), right.detach().numpy(), 2e-6)
    assert_near(own.grad, given.grad.numpy(), 2e-6)
    for (label, mine), (same, p) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert label == same
        assert_near(mine.grad, p.grad.numpy(), 2e-6)


# Optimizers


def pairs(shapes, rng):
    """Parameters here and there, with the same float64 values."""
    values = [np.asarray(rng.normal(size=s)) for s in shapes]
    return [tn.tensor(v, requires_grad=True) for v in values], [torch.tensor(v, requires_grad=True) for v in values]


def set_gradients(own, theirs, rng, scale=1.0):
    for mine, p in zip(own, theirs, strict=True):
        gradient = np.asarray(scale * rng.normal(size=mine.shape))
        mine.grad, p.grad = gradient, torch.tensor(gradient)


OPTIMIZERS = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "weight_decay": 0.05}),
    ("SGD", {"lr": 0.1, "momentum": 0.9}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.05}),
    ("Adam", {}),
    ("Adam", {"lr": 0.1, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.05}),
    ("AdamW", {}),
    ("AdamW", {"lr": 0.1, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.5}),
]


@pytest.mark.parametrize(("name", "options"), OPTIMIZERS)
def test_optimizers_step_by_step(name, options):
    """Every fifth step, one parameter gets no gradient, and is passed over; halfway, the learning rate changes."""
    rng = np.random.default_rng(0)
    own, theirs = pairs([(), (3,), (2, 4)], rng)
    ours, other = getattr(tn.optim, name)(own, **options), getattr(torch.optim, name)(theirs, **options)
    for step in range(20):
        set_gradients(own, theirs, rng, scale=10.0 ** rng.integers(-3, 3))
        if step % 5 == 4:
            own[1].grad = theirs[1].grad = None
        if step == 10:
            for group in (*ours.param_groups, *other.param_groups):
                group["lr"] *= 0.5
        ours.step()
        other.step()
        for mine, p in zip(own, theirs, strict=True):
            assert_near(mine.data, p.detach().numpy(), 1e-12)


@pytest.mark.parametrize("max_norm", [1e5, 1e9, float("inf")])
def test_clip_grad_norm(max_norm):
    """Theirs divides by n + 1e-6 where ours divides by n: with n near 4e6, that is beyond the twelfth digit."""
    rng = np.random.default_rng(0)
    own, theirs = pairs([(), (3,), (2, 4)], rng)
    set_gradients(own, theirs, rng, scale=1e6)
    own[1].grad = theirs[1].grad = None
    norm_here = tn.optim.clip_grad_norm_(own, max_norm)
    norm_there = torch.nn.utils.clip_grad_norm_(theirs, max_norm).item()
    assert norm_here == pytest.approx(norm_there, rel=1e-15)
    for mine, p in zip(own, theirs, strict=True):
        if p.grad is None:
            assert mine.grad is None
        else:
            assert_near(mine.grad, p.grad.numpy(), 1e-12)
