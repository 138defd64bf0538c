"""Faults of gradient checkers and checkpoints that people have reported in public, one test each.

Faults are planted, and must be found; what is saved must come back.
"""

import io

import numpy as np
import pytest

import tinynorm as tn
from tinynorm import functional as F
from tinynorm import nn
from tinynorm.errors import GradientError, StateError
from tinynorm.testing import gradcheck


def leaf(x, dtype=None):
    return tn.tensor(x, dtype=dtype, requires_grad=True)


# gradcheck

X = np.array([[0.5, -1.2, 2.0], [1.5, 0.7, -0.3], [-2.1, 0.9, 1.1]])


def cube_with(fault):
    """x³ whose gradient has gone through `fault`."""

    @tn.op("faulty cube")
    def cube(xp, x):
        return x * x * x, x

    @cube.backward
    def _(xp, dy, x):
        return fault(dy, x)

    return cube


def right(dy, x):
    return dy * 3.0 * x * x


@pytest.mark.parametrize("factor", [1.0 + 1e-3, 0.0, -1.0, np.nan])
@pytest.mark.parametrize("place", list(np.ndindex(3, 3)))
def test_a_fault_in_any_element_is_reported(place, factor):
    """The checker passed although the backward was wrong: it looked at some elements only, or at a stale variable."""

    def fault(dy, x):
        g = right(dy, x)
        g[place] *= factor
        return g

    with pytest.raises(GradientError, match=rf"at \({place[0]}, {place[1]}\)"):
        gradcheck(cube_with(fault), [X])
    assert gradcheck(cube_with(fault), [X], raise_exception=False) is False


def test_a_fault_in_a_small_element_is_not_hidden_by_a_large_one():
    """The same where gradients differ in size: 0 instead of 3e-4, beside 2700, is as wrong as 0 instead of 3."""
    x = np.array([1e-2, 1.0, 30.0])
    assert gradcheck(cube_with(right), [x])
    for i in range(3):
        with pytest.raises(GradientError, match=rf"at \({i},\)"):
            gradcheck(cube_with(lambda dy, x, i=i: right(dy, x) * (np.arange(3) != i)), [x])


@pytest.mark.parametrize(
    "fault",
    [
        lambda dy, x: 3.0 * x * x,
        lambda dy, x: dy * x * x,
        lambda dy, x: right(dy, x).T,
        lambda dy, x: right(dy.T, x),
        lambda dy, x: 0.0 * x,
        lambda dy, x: None,
        lambda dy, x: np.broadcast_to(np.sum(right(dy, x)), x.shape),
    ],
    ids=["no cotangent", "no 3", "transposed", "cotangent transposed", "zero", "none", "summed"],
)
def test_every_kind_of_fault_is_reported(fault):
    """The same for whole gradients; square, so that a transposed one keeps its shape."""
    assert gradcheck(cube_with(right), [X])
    with pytest.raises(GradientError):
        gradcheck(cube_with(fault), [X])


def test_a_gradient_that_is_missing_is_reported():
    """The same where the function leaves the graph, and where only the second argument's gradient is wrong."""
    for leaves_the_graph in (lambda x: tn.as_tensor(x.numpy().max(axis=0)), lambda x: x.detach() * 2.0):
        with pytest.raises(GradientError, match="argument 0"):
            gradcheck(leaves_the_graph, [X])
    with pytest.raises(GradientError, match="argument 1"):
        gradcheck(lambda a, b: a * b + b * b.detach(), [X, X + 1.0])
    assert gradcheck(lambda a, b: a * b + b * b, [X, X + 1.0])


LAYOUTS = {
    "C": lambda x: x,
    "Fortran": np.asfortranarray,
    "transposed": lambda x: x.T,
    "reversed": lambda x: x[::-1, ::-1],
    "strided": lambda x: np.repeat(np.repeat(x, 2, axis=0), 3, axis=1)[::2, 1::3],
    "broadcast": lambda x: np.broadcast_to(x[0], (3, 3)),
    "float32": lambda x: x.astype(np.float32)[:, ::-1],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_verdict_is_the_same_for_every_layout(layout):
    """The checker moved elements of a flattened copy, which does nothing to a non-contiguous input."""
    x = LAYOUTS[layout](X)
    for given_as in (x, tn.as_tensor(x), tn.Tensor(x, requires_grad=True)):
        assert gradcheck(cube_with(right), [given_as])
        assert not gradcheck(cube_with(lambda dy, x: 1.001 * right(dy, x)), [given_as], raise_exception=False)
        assert not gradcheck(cube_with(lambda dy, x: 0.0 * x), [given_as], raise_exception=False)


@pytest.mark.parametrize(
    "fault",
    [
        lambda dh, h, r: 0.0 * dh,
        lambda dh, h, r: r * (dh - dh.mean(-1, keepdims=True)),
        lambda dh, h, r: r * (dh - dh.mean(-1, keepdims=True)) * 2.0,
        lambda dh, h, r: r * h * (dh - dh.mean(-1, keepdims=True)),
    ],
    ids=["zero", "constant scale", "doubled", "nonsense"],
)
def test_a_cotangent_of_ones_would_see_nothing(fault):
    """Σ LN(x) is constant: with ones as the cotangent each of these faulty backwards gives the right gradient, 0."""

    @tn.op("faulty layer norm")
    def layer_norm(xp, x):
        c = x - xp.mean(x, axis=-1, keepdims=True)
        r = 1.0 / xp.sqrt(xp.mean(c * c, axis=-1, keepdims=True) + 1e-5)
        return c * r, (c * r, r)

    @layer_norm.backward
    def _(xp, dy, cache):
        return fault(dy, *cache)

    blind = leaf(X)
    layer_norm(blind).backward(np.ones((3, 3)))
    np.testing.assert_allclose(blind.grad, 0.0, atol=1e-15)
    for seed in range(3):
        with pytest.raises(GradientError):
            gradcheck(layer_norm, [X], seed=seed)
    assert gradcheck(lambda x: F.layer_norm(x, 3), [X])


@pytest.mark.parametrize("fault", [right, lambda dy, x: 0.0 * x])
def test_the_checker_leaves_the_callers_arrays_alone(fault):
    """It moved elements in place and put back rounded ones, or left its own gradients behind."""
    array, fresh, used = X.copy(), leaf(X), leaf(X)
    constant, integers = tn.tensor(X), np.arange(3)
    used.grad = gradient = np.full((3, 3), 7.0)
    inputs = [array, fresh, used, constant, integers]
    before = [np.asarray(v).tobytes() for v in inputs]
    cube = cube_with(fault)
    gradcheck(lambda a, b, c, d, i: cube(a) * b + c[i] * d, inputs, raise_exception=False)
    assert [np.asarray(v).tobytes() for v in inputs] == before
    assert fresh.grad is None
    assert used.grad is gradient
    assert np.all(gradient == 7.0)
    assert (fresh.requires_grad, constant.requires_grad) == (True, False)


# checkpoint


def through_a_file(state):
    file = io.BytesIO()
    np.savez(file, **state)
    file.seek(0)
    return dict(np.load(file))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("route", [dict, through_a_file])
def test_any_memory_order_survives_a_round_trip(layout, route):
    """Fortran-ordered arrays were written byte for byte and read back permuted, without an error."""
    values = LAYOUTS[layout](X.astype(np.float32))
    saved, loaded, direct = (nn.Linear(3, 3, rng=seed) for seed in range(3))
    saved.weight.data = values  # the parameter itself has this layout
    state = route(saved.state_dict())
    np.testing.assert_array_equal(state["weight"], values)
    loaded.load_state_dict(state)
    np.testing.assert_array_equal(loaded.weight.numpy(), values)
    direct.load_state_dict({"weight": values, "bias": np.zeros(3, np.float32)[::-1]})  # the state has it
    np.testing.assert_array_equal(direct.weight.numpy(), values)
    x = np.array([[1.0, 10.0, 100.0]], np.float32)
    np.testing.assert_allclose(
        direct(x).numpy(), [[sum(x[0, i] * values[o, i] for i in range(3)) for o in range(3)]], rtol=1e-5
    )


class Tied(nn.Module):
    def __init__(self, seed):
        self.embed = nn.Linear(3, 3, rng=seed)
        self.body = nn.Sequential(nn.RMSNorm(3), self.embed)  # a module under two names
        self.head = nn.Linear(3, 3, bias=False, rng=seed + 1)
        self.head.weight = self.embed.weight  # a parameter under two names


@pytest.mark.parametrize("route", [dict, through_a_file])
@pytest.mark.parametrize("names", [None, ["head.weight"], ["body.1.weight"]])
def test_loading_keeps_tied_weights_tied(route, names):
    """After loading, two names stopped sharing. One array stands under all names, also where only one was loaded."""
    source, model = Tied(0), Tied(5)
    parameters = list(model.parameters())
    state = route(source.state_dict())
    model.load_state_dict({n: state[n] for n in names or state}, strict=names is None)
    assert model.head.weight is model.embed.weight is model.body[1].weight
    assert [id(p) for p in model.parameters()] == [id(p) for p in parameters]
    assert len(parameters) == 3
    np.testing.assert_array_equal(model.head.weight.numpy(), source.embed.weight.numpy())
    model.embed.weight.data[0, 0] = 42.0
    assert model.head.weight.numpy()[0, 0] == 42.0
    assert source.head.weight.numpy()[0, 0] != 42.0
    assert state["head.weight"][0, 0] != 42.0  # nor does the state share memory with either


def test_two_values_for_one_tied_weight_are_refused():
    """The same where the state disagrees with itself: nothing may change."""
    model = Tied(0)
    before, state = model.state_dict(), Tied(5).state_dict()
    state["head.weight"][0, 0] += 1.0
    with pytest.raises(StateError, match="one tied parameter"):
        model.load_state_dict(state)
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(value, before[name])
