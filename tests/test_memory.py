"""A changed array is noticed by `backward`, an unchanged one raises no alarm, and one that nobody got costs nothing."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tinynorm as tn
from tinynorm import memory
from tinynorm.backend import fingerprint

F = tn.functional


@pytest.fixture
def rng():
    return np.random.default_rng(20240503)


def leaf(array):
    return tn.tensor(array, requires_grad=True)


def shared_leaf(array):
    t = tn.as_tensor(array)
    t.requires_grad = True
    return t


# Ways to write to a tensor's memory. Each takes the tensor, and the array it was made of, before the operation is
# recorded, and gives the function that writes afterwards.


def handed_out_before(x, original):
    held = x.data
    return lambda: held.fill(7.0)


def written_before_too(x, original):
    x.data[0, 0] = 5.0
    return lambda: x.data.fill(7.0)


def through_a_list_of_rows(x, original):
    rows = list(x.detach())

    def write():
        rows[1].data[0] = 7.0

    return write


def through_another_tensor(x, original):
    other = tn.tensor([[0.0]])
    other.data = x
    return lambda: other.data.fill(7.0)


def augmented(x):
    x.data *= 2.0


def one_element(x):
    x.data[1, 2] += 1.0


ROUTES = {
    "x.data[...] =": lambda x, original: lambda: x.data.__setitem__(..., 7.0),
    "one element": lambda x, original: lambda: one_element(x),
    "x.data *=": lambda x, original: lambda: augmented(x),
    "an array handed out before": handed_out_before,
    "an array written to before, too": written_before_too,
    "the array it was made of": lambda x, original: lambda: original.fill(7.0),
    "a view of the array it was made of": lambda x, original: lambda: original[1:].fill(7.0),
    "x.numpy()": lambda x, original: lambda: x.numpy().fill(7.0),
    "np.asarray(x)": lambda x, original: lambda: np.asarray(x).fill(7.0),
    "memoryview": lambda x, original: lambda: memoryview(x.data).__setitem__((0, 0), 7.0),
    "x.reshape(-1)": lambda x, original: lambda: x.reshape(-1).data.fill(7.0),
    "x.T": lambda x, original: lambda: x.T.data.fill(7.0),
    "x.transpose() made before": lambda x, original: (lambda view: lambda: view.data.fill(7.0))(x.transpose(1, 0)),
    "a slice": lambda x, original: lambda: x[1:].data.fill(7.0),
    "a slice of a slice": lambda x, original: lambda: x[1:][:, 0].data.fill(7.0),
    "x.detach()": lambda x, original: lambda: x.detach().data.fill(7.0),
    "x.detach() made before": lambda x, original: (lambda d: lambda: d.data.fill(7.0))(x.detach()),
    "a tensor that requires a gradient": lambda x, original: lambda: tn.Tensor(x, True).data.fill(7.0),
    "rows": through_a_list_of_rows,
    "other.data = x": through_another_tensor,
    "an optimizer's write": lambda x, original: lambda: x._overwrite(np.full(x.shape, 7.0)),
    "an optimizer's write to a view": lambda x, original: lambda: x.T._overwrite(np.full(x.shape[::-1], 7.0)),
    "an optimizer's write of other numbers": lambda x, original: lambda: x._overwrite(x.detach()._data + 1e-12),
}
NEEDS_THE_ORIGINAL = ("the array it was made of", "a view of the array it was made of")


MAKERS = {"tensor": leaf, "as_tensor": shared_leaf, "result": lambda a: leaf(a) * 1.0}


@pytest.mark.parametrize(
    ("route", "make"),
    [(r, m) for r in ROUTES for m in MAKERS if m == "as_tensor" or r not in NEEDS_THE_ORIGINAL],
)
def test_every_way_to_write_is_noticed(rng, route, make):
    original = rng.normal(size=(2, 3))
    x = MAKERS[make](original)
    write = ROUTES[route](x, original)
    y = tn.sin(x).sum()
    write()
    with pytest.raises(tn.errors.GraphError, match=r"sin still needs an array of shape \(2, 3\)"):
        y.backward()
    assert x.grad is None


@pytest.mark.parametrize("route", ROUTES)
def test_writing_is_noticed_in_a_view_of_what_was_written_to(rng, route):
    """The operation needs a view: part of the block, in another order."""
    original = rng.normal(size=(2, 3))
    x = shared_leaf(original) if route in NEEDS_THE_ORIGINAL else leaf(original)
    write = ROUTES[route](x, original)
    y = tn.sin(x.T[:, ::-1]).sum()
    write()
    with pytest.raises(tn.errors.GraphError, match="sin still needs"):
        y.backward()


@pytest.mark.parametrize("rows", [3, 4000])
def test_a_bias_may_change_before_backward(rng, rows):
    """Its value is in no gradient; of one block of rows and of several."""
    x, weight, bias = (tn.tensor(rng.normal(size=shape), requires_grad=True) for shape in ((rows, 50), 50, 50))
    y, cotangent = tn.functional.layer_norm(x, 50, weight, bias), rng.normal(size=(rows, 50))
    bias.data[...] = 7.0
    y.backward(cotangent)
    np.testing.assert_allclose(bias.grad, cotangent.sum(0), rtol=1e-10, atol=1e-12)


def test_of_a_result_only_what_was_recorded_before_the_write_is_refused(rng):
    x = leaf(rng.normal(size=3))
    y = x + 1.0
    before, also_before = tn.sin(y).sum(), (y * y).sum()
    y.data[...] = 3.0
    after = (y * y).sum()
    after.backward()
    assert np.array_equal(x.grad, [6.0, 6.0, 6.0])
    for early, name in ((before, "sin"), (also_before, "multiply")):
        with pytest.raises(tn.errors.GraphError, match=f"{name} still needs"):
            early.backward()


def test_a_result_is_watched_also_where_the_graph_behind_it_was_freed(rng):
    y = leaf(rng.normal(size=3)) * 2.0
    z = tn.sin(y).sum()
    y.sum().backward()
    y.data[...] = 3.0
    with pytest.raises(tn.errors.GraphError, match="sin still needs"):
        tn.grad(z, y)


@tn.formulas_only()
def test_the_output_is_watched_where_the_formula_needs_it(rng):
    for name in ("exp", "sqrt"):
        x = leaf(rng.uniform(1.0, 2.0, 3))
        y = getattr(tn, name)(x)
        y.data[...] = 0.5
        with pytest.raises(tn.errors.GraphError, match=f"{name} still needs"):
            y.sum().backward()
    for name in ("softmax", "log_softmax", "relu"):
        y = getattr(F, name)(leaf(rng.normal(size=3)))
        y.T.data[1] = 0.25
        with pytest.raises(tn.errors.GraphError, match=f"{name} still needs"):
            y.sum().backward()


def test_the_output_is_watched_where_the_kernel_needs_it_and_only_there():
    for name, needed in (("softmax", True), ("relu", False), ("log_softmax", False), ("sigmoid", False)):
        x, same = (leaf(np.random.default_rng(0).normal(size=(200, 100))) for _ in range(2))
        getattr(F, name)(same).sum().backward()
        y = getattr(F, name)(x)
        y.data[1] = 0.25
        if needed:
            with pytest.raises(tn.errors.GraphError, match=f"{name} still needs"):
                y.sum().backward()
        else:
            y.sum().backward()
            np.testing.assert_array_equal(x.grad, same.grad)


def test_the_refusal_names_the_operation_that_needs_the_array(rng):
    for name, function in [
        ("multiply", lambda x: x * x),
        ("matmul", lambda x: x @ x),
        ("power", lambda x: x**2),
        ("log", lambda x: tn.log(x)),
        ("linear", lambda x: F.linear(x, x, None)),
        ("max", lambda x: x.max()),
        ("prod", lambda x: tn.prod(x)),
        ("maximum", lambda x: tn.maximum(x, 0.0)),
        ("gelu", lambda x: F.gelu(x)),
        ("einsum", lambda x: tn.einsum("ij,jk->k", x, x)),
    ]:
        x = leaf(rng.uniform(0.5, 2.0, (3, 3)))
        y = function(x).sum()
        x.data[0, 0] += 0.5
        with pytest.raises(tn.errors.GraphError, match=rf"^backward: {name} still needs an array of shape \(3, 3\)"):
            y.backward()


def test_a_parameter_is_watched(rng):
    model = tn.nn.Sequential(tn.nn.Linear(3, 3, rng=0), tn.nn.RMSNorm(3), tn.nn.Linear(3, 1, rng=1))
    x = rng.normal(size=(4, 3)).astype(np.float32)
    for parameter, name in [(model[2].weight, "linear"), (model[1].weight, "rms_norm")]:
        loss = model(x).sum()
        parameter.data -= 0.1
        with pytest.raises(tn.errors.GraphError, match=f"{name} still needs"):
            loss.backward()
        loss = model(x).sum()
        state = {k: 2 * v for k, v in model.state_dict().items()}
        model.load_state_dict(state)
        with pytest.raises(tn.errors.GraphError, match="still needs"):
            loss.backward()
    assert all(p.grad is None for p in model.parameters())


def test_an_operation_of_a_users_own_is_watched():
    @tn.op("triple product")
    def product(xp, a, b, c):
        return a * b * c, [a, (b, [c])]

    @product.backward
    def _(xp, dy, cache):
        a, (b, [c]) = cache
        return dy * b * c, dy * a * c, dy * a * b

    for k in range(3):
        tensors = [leaf([1.0, 2.0]) for _ in range(3)]
        y = product(*tensors).sum()
        tensors[k].data[0] = 5.0
        with pytest.raises(tn.errors.GraphError, match="triple product still needs"):
            y.backward()


def test_an_operation_that_caches_a_dict_is_watched():
    @tn.op("named")
    def named(xp, x):
        return x * x, {"x": x}

    @named.backward
    def _(xp, dy, cache):
        return 2.0 * dy * cache["x"]

    x = leaf([1.0, 2.0])
    y = named(x).sum()
    x.data[...] = 100.0
    with pytest.raises(tn.errors.GraphError, match="named still needs"):
        y.backward()


def test_a_change_between_two_backwards_is_noticed():
    x = leaf([1.0, 2.0])
    y = (x * x).sum()
    y.backward(retain_graph=True)
    x.data -= 0.5
    with pytest.raises(tn.errors.GraphError, match="multiply still needs"):
        y.backward()
    assert x.grad.tolist() == [2.0, 4.0]


def test_a_change_of_a_constant_operand_is_noticed():
    x, c = leaf([1.0, 2.0]), np.array([3.0, 4.0], np.float32)
    y = (x * c).sum()
    c[0] = 30.0
    with pytest.raises(tn.errors.GraphError, match="multiply still needs"):
        y.backward()
    mask = np.array([True, False])
    z = tn.where(mask, x, 0.0).sum()
    mask[1] = True
    with pytest.raises(tn.errors.GraphError, match="where still needs"):
        z.backward()


# Whatever is written after whatever operation: a refusal, or the gradient that it would have been.

MATRIX, OTHER = np.linspace(0.2, 1.7, 9).reshape(3, 3), np.linspace(1.9, 0.4, 9).reshape(3, 3)
VECTOR, MASK = np.array([0.3, 0.9, 1.4]), np.arange(9).reshape(3, 3) % 2 == 0

OPERATIONS = {
    "add": (lambda a, b: a + b, MATRIX, OTHER),
    "subtract": (lambda a, b: a - b, MATRIX, VECTOR),
    "multiply": (lambda a, b: a * b, MATRIX, VECTOR),
    "divide": (lambda a, b: a / b, MATRIX, OTHER),
    "negative": (lambda a: -a, MATRIX),
    "power": (lambda a, b: a**b, MATRIX, VECTOR),
    "maximum": (tn.maximum, MATRIX, OTHER),
    "minimum": (tn.minimum, MATRIX, OTHER),
    "where": (tn.where, MASK, MATRIX, OTHER),
    "clip": (tn.clip, MATRIX, np.array(0.5), np.array(1.0)),
    "clip below": (tn.clip, MATRIX, VECTOR),
    "erf": (tn.erf, MATRIX),
    **{f: (getattr(tn, f), MATRIX) for f in ("exp", "expm1", "log", "log1p", "sqrt", "tanh", "sin", "cos", "abs")},
    **{f: (getattr(tn, f), MATRIX) for f in ("sum", "mean", "max", "min", "prod", "var", "logsumexp", "cumsum")},
    "max along an axis": (lambda a: tn.max(a, axis=0), MATRIX),
    "var along an axis": (lambda a: tn.var(a, axis=1, ddof=1), MATRIX),
    "reshape": (lambda a: a.reshape(9), MATRIX),
    "transpose": (lambda a: a.T, MATRIX),
    "broadcast_to": (lambda a: tn.broadcast_to(a, (2, 3)), VECTOR),
    "concatenate": (lambda a, b: tn.concatenate([a, b]), MATRIX, OTHER),
    "stack": (lambda a, b: tn.stack([a, b]), MATRIX, OTHER),
    "slice": (lambda a: a[1:], MATRIX),
    "gather": (lambda a: a[[0, 0, 2]], MATRIX),
    "take": (lambda a, i: tn.take(a, i, axis=1), MATRIX, np.array([0, 2, 2])),
    "index by a tensor": (lambda a, i: a[i], MATRIX, MASK),
    "astype": (lambda a: a.astype(np.float32), MATRIX),
    "matmul": (lambda a, b: a @ b, MATRIX, OTHER),
    "matmul with a vector": (lambda a, b: a @ b, MATRIX, VECTOR),
    "einsum": (lambda a, b: tn.einsum("ij,kj->k", a, b), MATRIX, OTHER),
    "einsum diagonal": (lambda a: tn.einsum("ii->i", a), MATRIX),
    "linear": (F.linear, MATRIX, OTHER, VECTOR),
    "linear without bias": (F.linear, MATRIX, OTHER),
    "rms_norm": (lambda x, g: F.rms_norm(x, 3, g), MATRIX, VECTOR),
    "rms_norm without weight": (lambda x: F.rms_norm(x, 3), MATRIX),
    "layer_norm": (lambda x, g, b: F.layer_norm(x, 3, g, b), MATRIX, VECTOR, VECTOR),
    "layer_norm without weight": (lambda x, b: F.layer_norm(x, 3, None, b), MATRIX, VECTOR),
    "layer_norm alone": (lambda x: F.layer_norm(x, 3), MATRIX),
    **{
        f: (getattr(F, f), MATRIX - 1.0)
        for f in ("relu", "leaky_relu", "elu", "gelu", "silu", "sigmoid", "softplus", "softmax", "log_softmax")
    },
    "gelu tanh": (lambda x: F.gelu(x, "tanh"), MATRIX),
    "dropout": (lambda x: F.dropout(x, 0.5, rng=0), MATRIX),
    "cross_entropy": (lambda z, t, w: F.cross_entropy(z, t, w.detach()), MATRIX, np.array([0, 2, 1]), VECTOR),
    "cross_entropy per row": (lambda z, t: F.cross_entropy(z, t, reduction="none"), MATRIX, np.array([0, 2, 1])),
    "nll_loss": (lambda p, t, w: F.nll_loss(p, t, w.detach()), -MATRIX, np.array([0, 2, 1]), VECTOR),
    "mse_loss": (F.mse_loss, MATRIX, OTHER),
}


def gradients_after(name, dtype, handed_out, written):
    """The operands' gradients, or None for a refusal, when the array number `written` changes before backward."""
    function, *arrays = OPERATIONS[name]
    arrays = [a.astype(dtype) if a.dtype.kind == "f" else a for a in arrays]
    tensors = [tn.tensor(a, requires_grad=a.dtype.kind == "f") for a in arrays]
    if handed_out == "before":
        held = [t.data for t in tensors]
    y = function(*tensors)
    everything = [*tensors, y]
    if written is not None:
        target = held[written] if handed_out == "before" and written < len(held) else everything[written].data
        if not target.flags.writeable:
            return "read-only"
        target[...] = ~target if target.dtype == bool else 1 if target.dtype.kind == "i" else 0.35
    try:
        y.backward(np.cos(np.arange(y.size, dtype=dtype)).reshape(y.shape))
    except tn.errors.GraphError:
        assert all(t.grad is None for t in tensors)
        return None
    return [t.grad for t in tensors]


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
@pytest.mark.parametrize("handed_out", ["before", "after"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_write_never_changes_a_gradient(name, handed_out, dtype):
    undisturbed = gradients_after(name, dtype, handed_out, None)
    assert undisturbed is not None
    for written in range(len(OPERATIONS[name])):  # each operand, then the result
        disturbed = gradients_after(name, dtype, handed_out, written)
        if disturbed is not None and disturbed != "read-only":
            for before, after in zip(undisturbed, disturbed, strict=True):
                np.testing.assert_array_equal(before, after)


# The same for derivatives of a higher order, which run the forwards again


def second_order_after(name, exposed, written, late):
    """∂²(c·y) in a direction, or None for a refusal, when one array changes before the first order, or after it."""
    function, *arrays = OPERATIONS[name]
    tensors = [tn.tensor(a, requires_grad=a.dtype.kind == "f") for a in arrays]
    wanted = [t for t in tensors if t.requires_grad]
    held = [t.data for t in tensors] if exposed else []
    y = function(*tensors)
    target = None if written is None else [*tensors, y][written]

    def write():
        value = ~target._data if target.dtype == bool else np.full(target.shape, 0.35).astype(target.dtype) + 1
        if exposed:
            (target.data if target is y else held[written])[...] = value
        else:
            target._overwrite(value)

    if target is not None and not target._data.flags.writeable:
        return "read-only"
    try:
        if target is not None and not late:
            write()
        first = tn.grad(y, wanted, np.cos(np.arange(y.size)).reshape(y.shape), create_graph=True)
        if target is not None and late:
            write()
        second = tn.grad(list(first), wanted, [np.sin(1 + np.arange(g.size)).reshape(g.shape) for g in first])
    except tn.errors.GraphError:
        return None
    return [t._data for t in second]


@pytest.mark.parametrize("exposed", [False, True], ids=["by the library", "by the user"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_write_never_changes_a_second_derivative(name, exposed):
    undisturbed = second_order_after(name, exposed, None, False)
    operands = len(OPERATIONS[name]) - 1
    for late in (False, True):
        for written in range(operands + 1):
            disturbed = second_order_after(name, exposed, written, late)
            if written == 0 and not late:
                assert disturbed is None  # the forward needs it; indices and targets, which come second, are copied
            elif disturbed is not None and disturbed != "read-only":
                for before, after in zip(undisturbed, disturbed, strict=True):
                    np.testing.assert_array_equal(before, after)


# No false alarms


def reading(x):
    str(x), repr(x), x.data.sum(), x.numpy().tolist(), x.data[0], np.asarray(x), list(x), x.sum().item()


def rebinding(x):
    x.data = np.zeros(x.shape)


def writing_the_same_value_back(x):
    old = x.data[0, 1]
    x.data[0, 1] = 99.0
    x.data[0, 1] = old


def writing_to_a_copy(x):
    x.data.copy()[...] = 0.0
    tn.tensor(x).data[...] = 0.0
    x[[0, 1]].data[...] = 0.0
    np.array(x)[...] = 0.0


def in_place_operator(x):
    y = x.detach()
    y *= 2.0
    y += 1.0


def operating(x):
    (x * x).sum(), x.detach() @ x.T, tn.exp(x)


def requiring(x):
    x.detach().requires_grad = True


@pytest.mark.parametrize("make", [leaf, shared_leaf], ids=["tensor", "as_tensor"])
@pytest.mark.parametrize(
    "harmless",
    [reading, rebinding, writing_the_same_value_back, writing_to_a_copy, in_place_operator, operating, requiring],
)
def test_what_changes_nothing_raises_no_alarm(rng, harmless, make):
    array, g = rng.normal(size=(2, 3)), rng.normal(size=(2, 3))
    expected = g * np.cos(array)
    x = make(array)
    y = tn.sin(x)
    harmless(x)
    y.backward(g, retain_graph=True)
    np.testing.assert_allclose(x.grad, expected)
    harmless(x)
    y.backward(g)
    np.testing.assert_allclose(x.grad, 2 * expected)


def test_what_no_operation_needs_may_change(rng):
    a, b, g = rng.normal(size=3), rng.normal(size=3), rng.normal(size=3)
    for function, ga, gb in [
        (lambda s, t: s + t, g, g),
        (lambda s, t: s - t, g, -g),
        (lambda s, t: tn.stack([s, t])[0] + t.reshape(1, 3)[0], g, g),
    ]:
        s, t = leaf(a), leaf(b)
        y = function(s, t)
        for tensor in (s, t, y):
            tensor.data[...] = np.nan
        y.backward(g)
        np.testing.assert_array_equal(s.grad, ga)
        np.testing.assert_array_equal(t.grad, gb)


def test_the_operand_of_a_constant_factor_may_change():
    """∂(2x)/∂x = 2 needs no x."""
    for function, slope in [(lambda x: x * 2.0, 2.0), (lambda x: 2.0 * x, 2.0), (lambda x: x / 2.0, 0.5)]:
        x = leaf([1.0, 2.0])
        y = function(x)
        x.data[...] = 0.0
        y.backward(np.ones(2))
        assert x.grad.tolist() == [slope, slope]


def test_the_result_of_a_division_by_a_constant_may_change():
    """∂(x/c)/∂x = 1/c needs no result."""
    x = leaf([1.0, 2.0])
    y = x / 4.0
    y.data[...] = 0.0
    y.backward(np.ones(2))
    assert x.grad.tolist() == [0.25, 0.25]


@pytest.mark.parametrize("handed_out", ["before", "after"])
def test_a_part_that_the_operation_does_not_look_into_may_change(handed_out):
    x = leaf([1.0, 2.0, 3.0, 4.0])
    if handed_out == "before":
        _ = x.data
    y = tn.sin(x[:2]).sum()
    x.data[3] = 0.0
    y.backward()
    np.testing.assert_allclose(x.grad, [np.cos(1.0), np.cos(2.0), 0.0, 0.0], rtol=1e-6)


def test_writes_before_the_operation_count_as_its_input():
    array = np.array([1.0, 2.0])
    for x in (leaf(array), shared_leaf(array)):
        held = x.data
        x.data[0] = 5.0
        held[1] = 6.0
        x.data *= 2.0
        (x * x).sum().backward()
        assert x.grad.tolist() == [20.0, 24.0]
        x._overwrite(np.array([1.0, 1.0]))
        x.grad = None
        (x * x).sum().backward()
        assert x.grad.tolist() == [2.0, 2.0]


def test_writes_after_backward_are_free():
    x = leaf([1.0, 2.0])
    for _ in range(3):
        x.grad = None
        loss = (x * x).sum()
        loss.backward()
        x.data -= 0.25 * x.grad
        x._overwrite(x.data * 2.0)
    assert x.data.tolist() == [1.0, 2.0]  # halved and doubled each time


def test_each_operation_looks_at_what_it_got_itself():
    """One before a write, one after it: the first is refused, the second is not."""
    for write in (lambda x: x.data.fill(3.0), lambda x: x._overwrite(np.array([3.0, 3.0]))):
        x = leaf([1.0, 2.0])
        early = (x * x).sum()
        write(x)
        late = (x * x).sum()
        late.backward()
        assert x.grad.tolist() == [6.0, 6.0]
        with pytest.raises(tn.errors.GraphError, match="multiply still needs"):
            early.backward()


def test_changing_one_leaf_is_no_matter_for_a_graph_of_another():
    x, other = leaf([1.0, 2.0]), leaf([1.0, 2.0])
    y = (x * x).sum()
    other.data[...] = 0.0
    other._overwrite(np.ones(2))
    y.backward()
    assert x.grad.tolist() == [2.0, 4.0]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.longdouble])
@pytest.mark.parametrize(
    "layout",
    [lambda a: a, lambda a: a.T, lambda a: a[::-1, ::2], lambda a: np.broadcast_to(a[:1], a.shape)],
    ids=["C", "transposed", "strided", "broadcast"],
)
def test_no_alarm_in_any_dtype_and_layout(rng, dtype, layout):
    array = layout(rng.normal(size=(40, 40)).astype(dtype))
    x = shared_leaf(array)
    for _ in range(5):
        y = tn.sin(x).sum()
        y.backward()
    np.testing.assert_allclose(x.grad.astype(float), 5 * np.cos(array.astype(float)), rtol=5e-3, atol=5e-3)


def test_empty_and_0d_arrays():
    for array in (np.zeros((0, 3)), np.array(2.0)):
        x = shared_leaf(array)
        y = (x * x).sum()
        y.backward()
        assert x.grad.tolist() == (2 * array).tolist()
    x = shared_leaf(np.array(2.0))
    y = x * x
    x.data[...] = 3.0
    with pytest.raises(tn.errors.GraphError, match="multiply"):
        y.backward()


# What it costs


@pytest.fixture
def checksums(monkeypatch):
    """The arrays that a checksum was taken of."""
    taken = []

    def counted(array):
        taken.append(array.shape)
        return fingerprint(array)

    monkeypatch.setattr(memory, "fingerprint", counted)
    return taken


def test_arrays_that_nobody_got_cost_no_checksum(rng, checksums):
    model = tn.nn.PreNormMLP(4, 8, depth=20, out_features=3, norm="layer", rng=0)
    x = tn.tensor(rng.normal(size=(16, 4)).astype(np.float32))
    for _ in range(3):
        model.zero_grad()
        loss = F.gelu(model(x) ** 2).mean()
        loss.backward()
        float(loss), repr(loss), loss.item(), len(x), x.shape
        for parameter in model.parameters():
            parameter._overwrite(parameter._data - 0.01 * parameter.grad)
    assert checksums == []


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.cross_entropy(x, [0, 1, 2]),
        lambda x: F.nll_loss(x, [0, 1, 2], reduction="sum"),
        lambda x: F.dropout(x, 0.5, rng=0).sum(),
        lambda x: tn.einsum("ii->", x),
        lambda x: x[[0, 1]].sum(),
        lambda x: tn.take(x, [0, 1], axis=1).sum(),
        lambda x: tn.maximum(x, 0.0).sum(),
        lambda x: tn.where(x > 0, x, 0.0).sum(),
        lambda x: tn.clip(x, -1.0, 1.0).sum(),
    ],
    ids=["cross_entropy", "nll_loss", "dropout", "einsum", "index", "take", "maximum", "where", "clip"],
)
def test_what_the_library_makes_for_itself_costs_no_checksum(rng, checksums, function):
    function(leaf(rng.normal(size=(3, 3)))).backward()
    assert checksums == []


def test_an_array_that_was_handed_out_costs_a_checksum_each_time_it_is_kept(rng, checksums):
    x = tn.tensor(rng.normal(size=(3, 3)), requires_grad=True)
    assert x.data is x.data
    assert checksums == []  # nothing recorded needs it yet
    y = tn.sin(x)
    y.sum().backward()
    assert len(checksums) == 2  # when it was kept, and in backward
    z = x + 1.0
    assert len(checksums) == 3  # kept in case the forward has to run again
    z.sum().backward(retain_graph=True)
    assert len(checksums) == 3  # addition's backward does not need it
    tn.grad(z.sum(), x, create_graph=True)
    assert len(checksums) > 3


def test_numbers_and_lists_cost_no_checksum(checksums):
    x = leaf([1.0, 2.0])
    (x * [3.0, 4.0] * 2.0 * np.float64(2.0)).sum().backward()
    assert checksums == []


# The checksum itself

ARRAYS = hnp.arrays(
    st.sampled_from([np.float16, np.float32, np.float64, np.int8, np.int64, np.uint16, np.bool_]),
    hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=6),
)


@given(ARRAYS, st.data())
def test_changing_an_element_changes_the_checksum(array, data):
    before = fingerprint(array)
    place = data.draw(st.tuples(*(st.integers(0, n - 1) for n in array.shape)))
    value = data.draw(hnp.from_dtype(array.dtype))
    changed = array.copy()
    changed[place] = value
    assume(changed.tobytes() != array.tobytes())
    assert fingerprint(changed) != before


@given(ARRAYS, st.data())
def test_swapping_two_elements_changes_the_checksum(array, data):
    flat = array.reshape(-1)
    i, j = data.draw(st.tuples(*(st.integers(0, flat.size - 1),) * 2))
    assume(flat[i].tobytes() != flat[j].tobytes())
    before = fingerprint(array)
    flat[[i, j]] = flat[[j, i]]
    assert fingerprint(array) != before
    flat[[i, j]] = flat[[j, i]]
    assert fingerprint(array) == before


@given(ARRAYS, st.integers(0, 63))
def test_changing_a_bit_changes_the_checksum(array, bit):
    before = fingerprint(array)
    raw = array.reshape(-1).view(np.uint8)
    raw[bit // 8 % raw.size] ^= 1 << bit % 8
    assert fingerprint(array) != before


@given(ARRAYS)
def test_equal_contents_give_equal_checksums(array):
    expected = fingerprint(array)
    padded = np.zeros((*array.shape, 3), array.dtype)
    padded[..., 1] = array
    readonly = array.copy()
    readonly.flags.writeable = False
    for same in (array.copy(), np.asfortranarray(array), array[::-1].copy()[::-1], padded[..., 1], readonly):
        assert fingerprint(same) == expected


def test_order_and_sign_of_zero_count():
    assert fingerprint(np.array([[1.0, 2.0], [3.0, 4.0]])) != fingerprint(np.array([[1.0, 3.0], [2.0, 4.0]]))
    assert fingerprint(np.array([0.0])) != fingerprint(np.array([-0.0]))


# Copies, and what leaves the library


def test_a_shallow_copy_shares_memory_and_the_watch_over_it(rng):
    x = leaf(rng.normal(size=3))
    y, twin = x * x, copy.copy(x)
    assert twin.data is x.data
    twin.data[...] = 7.0
    with pytest.raises(tn.errors.GraphError, match="multiply still needs"):
        y.sum().backward()
    z = copy.copy(x * 3.0)
    z.sum().backward()
    np.testing.assert_array_equal(x.grad, 3.0)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))])
def test_a_deep_copy_shares_no_memory(rng, duplicate):
    x = leaf(rng.normal(size=3))
    (x * x).sum().backward()
    y, twin, before = x * x, duplicate(x), x.data.copy()
    twin.data[...] = 7.0
    twin.grad[...] = 7.0
    y.sum().backward()
    np.testing.assert_array_equal(x.grad, 4.0 * before)


def test_a_state_dict_hands_out_nothing(rng, checksums):
    layer = tn.nn.Linear(3, 3, rng=0)
    layer.state_dict()
    layer(rng.normal(size=(2, 3)).astype(np.float32)).sum().backward()
    assert [shape for shape in checksums if shape == (3, 3)] == []


def test_read_only_data_is_copied_so_that_it_can_be_learned():
    p = tn.nn.Parameter(np.zeros((2, 2), np.float32))
    p.data = np.broadcast_to(np.float32(1.0), (2, 2))
    p.grad = np.ones((2, 2), np.float32)
    tn.optim.SGD([p], lr=0.5).step()
    np.testing.assert_array_equal(p.data, 0.5)


@pytest.mark.parametrize("through_a_view", [False, True])
def test_a_result_that_is_its_inputs_own_array_is_watched_with_it(through_a_view):
    @tn.op("same")
    def same(xp, x):
        return (x[:] if through_a_view else x), None

    same.backward(lambda xp, dy, cache: dy)
    x = tn.tensor([1.0, 2.0], requires_grad=True)
    y = same(x)
    z = (y * y).sum()
    x.data[0] = 5.0
    with pytest.raises(tn.errors.GraphError, match="changed in place"):
        z.backward()
