"""Modules and layers. Expected values come from plain NumPy written here, gradients from the complex step through it.

The parameters are float32, so gradients are compared twice: as they are, and after the module was raised to float64.
"""

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest

import tinynorm as tn
from tinynorm import nn
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
from tinynorm.testing import complex_step


class Scale(nn.Module):
    def __init__(self, n: int = 3) -> None:
        self.factor = nn.Parameter(np.arange(1.0, n + 1, dtype=np.float32))

    def forward(self, x: Any) -> Any:
        return x * self.factor


class Tied(nn.Module):
    """One weight under two names, as an embedding and the layer that reads it out."""

    def __init__(self) -> None:
        self.first = nn.Linear(3, 3, bias=False, rng=0)
        self.offset = nn.Parameter([1.0, 2.0, 3.0])
        self.last = nn.Linear(3, 3, bias=False, rng=1)
        self.last.weight = self.first.weight

    def forward(self, x: Any) -> Any:
        return self.last(self.first(x) + self.offset)


def bits(module: nn.Module) -> dict[str, bytes]:
    """Every parameter byte for byte, read past `state_dict`."""
    return {name: p.data.tobytes() for name, p in module.named_parameters()}


def randomized(module: nn.Module, seed: int) -> nn.Module:
    """The module with all parameters drawn anew, so that no gain is 1 and no bias 0."""
    rng = np.random.default_rng(seed)
    for p in module.parameters():
        p.data[...] = rng.normal(size=p.shape)
    return module


def raised_to_float64(module: nn.Module) -> nn.Module:
    for _, part in module.named_modules():
        for name, value in list(vars(part).items()):
            if isinstance(value, nn.Parameter):
                setattr(part, name, nn.Parameter(value.numpy().astype(np.float64)))
    return module


def assert_close(got: Any, expected: Any, tolerance: float) -> None:
    """Off by at most `tolerance` of the largest expected value."""
    assert np.shape(got) == np.shape(expected)
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance * max(1e-30, float(np.max(np.abs(expected)))))


# Parameter


def test_a_parameter_copies_its_data() -> None:
    source = np.array([[1.0, 2.0], [3.0, 4.0]], dtype=np.float32)
    p = nn.Parameter(source)
    source[0, 0] = 99.0
    np.testing.assert_array_equal(p.numpy(), [[1.0, 2.0], [3.0, 4.0]])
    p.data[1, 1] = -1.0
    assert source[1, 1] == 4.0


def test_a_parameter_copies_a_tensor_and_leaves_its_history() -> None:
    t = tn.tensor([1.0, 2.0], requires_grad=True)
    p = nn.Parameter(t * 3.0)
    (p * p).sum().backward()
    np.testing.assert_array_equal(p.grad, [6.0, 12.0])
    assert t.grad is None


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_parameter_keeps_the_dtype_and_collects_a_gradient(dtype: Any) -> None:
    p = nn.Parameter(np.array([1.0, 2.0], dtype=dtype))
    assert isinstance(p, tn.Tensor)
    assert p.requires_grad
    assert p.dtype == dtype
    (p * np.array([3.0, 5.0], dtype=dtype)).sum().backward()
    assert p.grad is not None
    assert p.grad.dtype == dtype
    np.testing.assert_array_equal(p.grad, [3.0, 5.0])


@pytest.mark.parametrize("data", [[1, 2], True, np.arange(3), [1j], "weights", np.array(["a"]), np.array([None])])
def test_a_parameter_is_of_floats(data: Any) -> None:
    with pytest.raises(DTypeError):
        nn.Parameter(data)


def test_a_frozen_parameter_is_registered_and_gets_no_gradient() -> None:
    m = Scale()
    m.factor = nn.Parameter([1.0, 2.0, 3.0], requires_grad=False)
    assert [name for name, _ in m.named_parameters()] == ["factor"]
    x = tn.tensor([1.0, 1.0, 1.0], requires_grad=True)
    m(x).sum().backward()
    assert m.factor.grad is None
    np.testing.assert_array_equal(x.grad, [1.0, 2.0, 3.0])


# Module: what is found


def test_assignment_registers_in_its_order() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.z = nn.Parameter([1.0])
            self.child = nn.Linear(2, 1, rng=0)
            self.a = nn.Parameter([2.0])
            self.name = "net"
            self.sizes = [1, 2]
            self.nothing = None

    net = Net()
    net.later = nn.Linear(1, 1, bias=False, rng=0)
    assert [name for name, _ in net.named_children()] == ["child", "later"]
    assert [name for name, _ in net.named_parameters()] == ["z", "a", "child.weight", "child.bias", "later.weight"]
    expected = [net.z, net.a, net.child.weight, net.child.bias, net.later.weight]
    assert all(p is q for p, q in zip(net.parameters(), expected, strict=True))
    assert list(net.state_dict()) == ["z", "a", "child.weight", "child.bias", "later.weight"]


def test_a_deleted_or_replaced_attribute_is_no_longer_found() -> None:
    net = nn.Sequential(nn.Linear(2, 2, rng=0), nn.Linear(2, 2, rng=1))
    fresh = nn.Linear(2, 2, rng=2)
    setattr(net, "0", fresh)
    assert next(iter(net.parameters())) is fresh.weight
    delattr(net, "1")
    assert [name for name, _ in net.named_parameters()] == ["0.weight", "0.bias"]


def test_dotted_names_reach_every_depth() -> None:
    inner = nn.Sequential(nn.Linear(2, 2, bias=False, rng=0))
    outer = nn.Sequential(inner, nn.PreNormBlock(nn.RMSNorm(2), nn.Sequential(nn.Identity(), Scale(2))))
    assert dict(outer.named_parameters()) == {
        "0.0.weight": inner[0].weight,
        "1.norm.weight": outer[1].norm.weight,
        "1.body.1.factor": outer[1].body[1].factor,
    }
    assert [name for name, _ in outer.named_modules()] == [
        "", "0", "0.0", "1", "1.norm", "1.body", "1.body.0", "1.body.1",
    ]  # fmt: skip
    assert [name for name, _ in inner.named_parameters()] == ["0.weight"]


def test_tied_weights_are_one_parameter_under_two_names() -> None:
    m = Tied()
    assert [name for name, _ in m.named_parameters()] == ["offset", "first.weight"]
    assert len(list(m.parameters())) == 2
    assert list(m.state_dict()) == ["offset", "first.weight", "last.weight"]


def test_a_module_used_twice_gives_each_parameter_once() -> None:
    shared = nn.Linear(2, 2, rng=0)
    net = nn.Sequential(shared, nn.ReLU(), shared)
    assert [name for name, _ in net.named_parameters()] == ["0.weight", "0.bias"]
    assert len(net) == 3


def test_a_tied_weight_collects_the_gradient_of_both_its_uses() -> None:
    m = Tied()
    x, dy = np.random.default_rng(0).normal(size=(2, 4, 3))
    m(x).backward(dy)
    offset = m.offset.numpy().astype(np.float64)
    w = m.first.weight.numpy().astype(np.float64)
    assert_close(m.first.weight.grad, complex_step(lambda w: (x @ w.T + offset) @ w.T, w, dy), 1e-6)


def test_a_module_without_parameters_has_none() -> None:
    assert list(nn.ReLU().parameters()) == []
    assert nn.ReLU().state_dict() == {}


@pytest.mark.parametrize(
    "container",
    [
        lambda m: [m],
        lambda m: (1, m),
        lambda m: {"a": m},
        lambda m: [[m]],
        lambda m: {"a": [m]},
        lambda m: ({"a": (m,)},),
        lambda m: {m},
        lambda m: frozenset({m}),
    ],
    ids=["list", "tuple", "dict", "list of lists", "dict of lists", "deep", "set", "frozenset"],
)
@pytest.mark.parametrize("content", [lambda: nn.ReLU(), lambda: nn.Parameter([1.0])], ids=["module", "parameter"])
def test_containers_that_would_hide_parameters_are_refused(container: Any, content: Any) -> None:
    m = Scale()
    with pytest.raises(ArgumentError, match="Sequential"):
        m.layers = container(content())
    assert not hasattr(m, "layers")


@pytest.mark.parametrize("value", [[], (), {}, [1, "a"], {"a": 1}, {1.0, 2.0}, [[1], (2,)]])
def test_other_containers_are_attributes_like_any(value: Any) -> None:
    m = Scale()
    m.settings = value
    assert m.settings is value


def test_a_parameter_is_not_lost_by_an_assignment_of_its_value() -> None:
    """`m.factor *= 2` binds a Tensor with a history to the name: no optimizer would see it, no state would hold it."""
    m = Scale()
    own = m.factor
    with pytest.raises(TinynormError, match="factor"):
        m.factor *= 2.0
    assert list(m.parameters()) == [own]
    with pytest.raises(TinynormError, match="factor"):
        m.factor = tn.tensor([1.0, 2.0, 3.0])
    assert list(m.parameters()) == [own]
    m.factor = None  # a parameter may be taken away on purpose
    assert list(m.parameters()) == []


# Module: misspelt names


@pytest.mark.parametrize(("wrong", "near"), [("wieght", "weight"), ("bais", "bias"), ("paramters", "parameters")])
def test_a_misspelt_attribute_raises_and_names_the_near_miss(wrong: str, near: str) -> None:
    with pytest.raises(AttributeError, match=f"Linear.*'{wrong}'.*did you mean '{near}'"):
        getattr(nn.Linear(2, 2, rng=0), wrong)


def test_a_misspelt_submodule_is_named_too() -> None:
    with pytest.raises(AttributeError, match="did you mean 'blocks'"):
        _ = nn.PreNormMLP(2, 2, 1, 2, rng=0).bloks


def test_without_a_near_miss_no_guess() -> None:
    with pytest.raises(AttributeError) as caught:
        _ = nn.Linear(2, 2, rng=0).qqqqqq
    assert "'qqqqqq'" in str(caught.value)
    assert "did you mean" not in str(caught.value)


def test_hasattr_and_getattr_with_a_default() -> None:
    m = nn.Linear(2, 2, rng=0)
    assert hasattr(m, "weight")
    assert not hasattr(m, "wieght")
    assert getattr(m, "wieght", 7) == 7


def test_an_error_inside_a_property_is_not_taken_for_a_misspelt_property() -> None:
    class Net(nn.Module):
        @property
        def total(self) -> Any:
            return self.missing

    with pytest.raises(AttributeError) as caught:
        _ = Net().total
    assert "did you mean 'total'" not in str(caught.value)


# Module: train, eval, zero_grad, to


def test_train_and_eval_reach_the_module_and_its_children_alone() -> None:
    net = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.5), nn.ReLU()))
    other = nn.Dropout(0.5)
    assert all(m.training for _, m in net.named_modules())
    assert net.eval() is net
    assert not any(m.training for _, m in net.named_modules())
    assert other.training
    assert nn.Dropout(0.5).training
    assert nn.Module.training
    net[1].train()
    assert [m.training for _, m in net.named_modules()] == [False, False, True, True, True]
    assert net.train() is net
    assert all(m.training for _, m in net.named_modules())
    assert net.train(False) is net
    assert not any(m.training for _, m in net.named_modules())


def test_eval_leaves_gradients_as_they_are() -> None:
    m = Scale()
    m(tn.tensor([1.0, 2.0, 3.0])).sum().backward()
    before = m.factor.grad
    m.eval()
    assert m.factor.grad is before
    assert m.factor.requires_grad
    m(tn.tensor([1.0, 2.0, 3.0])).sum().backward()  # recorded under eval, and accumulated
    np.testing.assert_array_equal(m.factor.grad, [2.0, 4.0, 6.0])
    w = tn.tensor([1.0], requires_grad=True)
    assert (w * w).requires_grad


def test_zero_grad_forgets_the_gradients_of_this_module_alone() -> None:
    m, other = Tied(), Scale()
    (m(tn.tensor([1.0, 2.0, 3.0])).sum() + other(tn.tensor([1.0, 2.0, 3.0])).sum()).backward()
    assert all(p.grad is not None for p in m.parameters())
    values = bits(m)
    m.zero_grad()
    assert all(p.grad is None for p in m.parameters())
    assert bits(m) == values
    np.testing.assert_array_equal(other.factor.grad, [1.0, 2.0, 3.0])


def test_to_the_device_where_it_is_changes_nothing() -> None:
    m = Tied()
    m(tn.tensor([1.0, 2.0, 3.0])).sum().backward()
    arrays = [p.data for p in m.parameters()]
    gradients = [p.grad for p in m.parameters()]
    assert m.to("cpu") is m
    assert all(p.data is a for p, a in zip(m.parameters(), arrays, strict=True))
    assert all(p.grad is g for p, g in zip(m.parameters(), gradients, strict=True))


@pytest.mark.parametrize("device", ["tpu", "", "cuda:x", None, 0])
def test_an_unknown_device_is_refused(device: Any) -> None:
    with pytest.raises(DeviceError):
        Scale().to(device)
    with pytest.raises(DeviceError):
        nn.Linear(2, 2, rng=0, device=device)


def test_a_module_must_define_its_forward() -> None:
    class Net(nn.Module):
        pass

    with pytest.raises(NotImplementedError, match="Net"):
        Net()(1.0)


# Module: state


def test_state_dict_holds_numpy_arrays_with_the_values() -> None:
    m = nn.Linear(3, 2, rng=0)
    state = m.state_dict()
    assert list(state) == ["weight", "bias"]
    for name, value in state.items():
        assert type(value) is np.ndarray
        assert value.dtype == np.float32
        np.testing.assert_array_equal(value, getattr(m, name).numpy())


def test_nothing_leaks_between_a_module_and_its_state() -> None:
    m = Tied()
    before = bits(m)
    state = m.state_dict()
    for value in state.values():
        value += 1.0
    assert bits(m) == before
    kept = {name: value.copy() for name, value in m.state_dict().items()}
    state = m.state_dict()
    for p in m.parameters():
        p.data[...] = 0.0
    for name, value in state.items():
        np.testing.assert_array_equal(value, kept[name])
    m.load_state_dict(state)
    assert bits(m) == before
    for value in state.values():
        value[...] = 77.0
    assert bits(m) == before


def test_two_modules_do_not_share_what_was_loaded() -> None:
    a, b = nn.Linear(3, 2, rng=0), nn.Linear(3, 2, rng=1)
    assert bits(a) != bits(b)
    b.load_state_dict(a.state_dict())
    assert bits(a) == bits(b)
    kept = bits(a)
    b.weight.data[...] = 0.0
    assert bits(a) == kept


@pytest.mark.parametrize(
    "form", [np.asfortranarray, tn.tensor, lambda a: a[::-1][::-1], lambda a: np.ascontiguousarray(a.T).T]
)
def test_any_memory_order_and_tensors_load(form: Any) -> None:
    m = nn.Linear(3, 3, rng=0)
    w = np.arange(9, dtype=np.float32).reshape(3, 3)
    m.load_state_dict({"weight": form(w), "bias": np.zeros(3, np.float32)})
    np.testing.assert_array_equal(m.weight.numpy(), [[0, 1, 2], [3, 4, 5], [6, 7, 8]])
    m.weight.data = np.asarray(form(w + 1))  # the parameter itself has this layout
    np.testing.assert_array_equal(m.state_dict()["weight"], [[1, 2, 3], [4, 5, 6], [7, 8, 9]])


def test_loading_keeps_the_parameters_the_objects_they_are() -> None:
    m = nn.Linear(3, 2, rng=0)
    own = list(m.parameters())
    m(np.ones((1, 3), np.float32)).sum().backward()
    gradients = [p.grad.copy() for p in own]
    m.load_state_dict({"weight": np.full((2, 3), 5, np.float32), "bias": np.full(2, 6, np.float32)})
    assert all(p is q for p, q in zip(m.parameters(), own, strict=True))
    assert all(isinstance(p, nn.Parameter) and p.requires_grad for p in own)
    for p, gradient in zip(own, gradients, strict=True):
        np.testing.assert_array_equal(p.grad, gradient)
    assert np.all(own[0].numpy() == 5)
    assert np.all(own[1].numpy() == 6)


GOOD = {"first.weight": np.full((3, 3), 7, np.float32), "last.weight": np.full((3, 3), 7, np.float32)}
OFFSET = {"offset": np.full(3, 8, np.float32)}
BAD_STATES = {
    "missing": (GOOD, "missing.*offset"),
    "extra": ({**GOOD, **OFFSET, "scale": np.zeros(3, np.float32)}, "scale"),
    "missing and extra": ({**GOOD, "ofset": OFFSET["offset"]}, "missing.*offset.*ofset"),
    "empty": ({}, "missing"),
    "misshapen": ({**GOOD, "offset": np.zeros((3, 1), np.float32)}, r"offset.*\(3, 1\).*\(3,\)"),
    "would broadcast": ({**GOOD, "offset": np.zeros(1, np.float32)}, "offset"),
    "scalar": ({**GOOD, "offset": np.float32(1)}, "offset"),
    "float64": ({**GOOD, "offset": np.zeros(3)}, "offset.*float64.*float32"),
    "float16": ({**GOOD, "offset": np.zeros(3, np.float16)}, "offset.*float16.*float32"),
    "integers": ({**GOOD, "offset": np.zeros(3, np.int32)}, "offset.*int32"),
    "lists": ({**GOOD, "offset": [1.0, 2.0, 3.0]}, "offset is a list"),
    "None": ({**GOOD, "offset": None}, "offset"),
    "text": ({**GOOD, "offset": "abc"}, "offset"),
    "ragged": ({**GOOD, "offset": [[1.0, 2.0], [3.0]]}, "offset"),
    "two values of a tie": ({**GOOD, **OFFSET, "last.weight": np.full((3, 3), 9, np.float32)}, "tied"),
    "one element of a tie": (
        {**GOOD, **OFFSET, "last.weight": np.where(np.eye(3) > 0, 7, 7.0000005).astype(np.float32)},
        "tied",
    ),
}


@pytest.mark.parametrize("case", BAD_STATES)
def test_a_state_that_does_not_fit_changes_nothing(case: str) -> None:
    m = Tied()
    before = bits(m)
    state, message = BAD_STATES[case]
    with pytest.raises(StateError, match=message):
        m.load_state_dict(state)
    assert bits(m) == before
    graph = m(np.ones((1, 3), np.float32)).sum()
    with pytest.raises(StateError):
        m.load_state_dict(state)
    graph.backward()  # not even marked as changed


@pytest.mark.parametrize("state", [None, "weights.npz", [1.0], {0: np.zeros(3, np.float32)}])
def test_what_is_no_state_is_refused(state: Any) -> None:
    m = Tied()
    before = bits(m)
    with pytest.raises(TinynormError):
        m.load_state_dict(state)
    assert bits(m) == before


def test_every_problem_of_a_state_is_told() -> None:
    with pytest.raises(StateError) as caught:
        nn.Linear(3, 2, rng=0).load_state_dict({"weight": np.zeros((3, 2), np.float32), "b": np.zeros(2, np.float32)})
    for part in ("Linear", "weight", "(3, 2)", "(2, 3)", "missing: bias", "unknown: b"):
        assert part in str(caught.value)


def test_not_strict_loads_the_names_in_common() -> None:
    m = Tied()
    weight = m.first.weight.numpy().copy()
    m.load_state_dict({**OFFSET, "scale": np.zeros(5)}, strict=False)
    np.testing.assert_array_equal(m.offset.numpy(), [8, 8, 8])
    np.testing.assert_array_equal(m.first.weight.numpy(), weight)
    m.load_state_dict({}, strict=False)
    np.testing.assert_array_equal(m.offset.numpy(), [8, 8, 8])


@pytest.mark.parametrize(
    "case", ["misshapen", "would broadcast", "float64", "two values of a tie", "one element of a tie"]
)
def test_not_strict_still_refuses_what_does_not_fit(case: str) -> None:
    m = Tied()
    before = bits(m)
    with pytest.raises(StateError):
        m.load_state_dict(BAD_STATES[case][0], strict=False)
    assert bits(m) == before


@pytest.mark.parametrize("names", [("first.weight", "last.weight"), ("first.weight",), ("last.weight",)])
def test_ties_survive_loading(names: tuple[str, ...]) -> None:
    m = Tied()
    w = np.arange(9, dtype=np.float32).reshape(3, 3)
    m.load_state_dict(dict.fromkeys(names, w), strict=False)
    assert m.first.weight is m.last.weight
    np.testing.assert_array_equal(m.first.weight.numpy(), w)
    m.first.weight.data[0, 0] = -5.0
    assert m.last.weight.numpy()[0, 0] == -5.0


def test_nan_in_a_tied_state_is_one_value() -> None:
    m = Tied()
    w = np.full((3, 3), np.nan, np.float32)
    m.load_state_dict({"first.weight": w, "last.weight": w.copy()}, strict=False)
    assert np.isnan(m.first.weight.numpy()).all()


def test_values_may_come_from_the_modules_own_arrays() -> None:
    """All values are as they were when the call began: two parameters can be exchanged."""

    class Pair(nn.Module):
        def __init__(self) -> None:
            self.a = nn.Parameter([1.0, 2.0])
            self.b = nn.Parameter([3.0, 4.0])

    m = Pair()
    m.load_state_dict({"a": m.b.data, "b": m.a.data})
    np.testing.assert_array_equal(m.a.numpy(), [3.0, 4.0])
    np.testing.assert_array_equal(m.b.numpy(), [1.0, 2.0])


@pytest.mark.parametrize("same", [False, True])
def test_a_graph_recorded_before_loading_is_detected(same: bool) -> None:
    m = nn.Linear(3, 2, rng=0)
    x = tn.tensor(np.ones((2, 3), np.float32), requires_grad=True)
    loss = m(x).sum()
    m.load_state_dict(m.state_dict() if same else nn.Linear(3, 2, rng=1).state_dict())
    with pytest.raises(GraphError, match="linear"):
        loss.backward()
    assert x.grad is None
    assert m.weight.grad is None
    m(x).sum().backward()  # a graph of the new values works
    np.testing.assert_allclose(x.grad, np.tile(m.weight.numpy().sum(axis=0), (2, 1)), rtol=1e-6)


# Module: repr


def test_the_repr_is_a_tree() -> None:
    assert repr(nn.PreNormMLP(64, 32, depth=2, out_features=10, norm="layer", rng=0)) == (
        "PreNormMLP(\n"
        "  (embed): Linear(64, 32, bias=True)\n"
        "  (blocks): Sequential(\n"
        "    (0): PreNormBlock(\n"
        "      (norm): LayerNorm((32,), eps=1e-05, elementwise_affine=True, bias=True)\n"
        "      (body): Sequential(\n"
        "        (0): Linear(32, 128, bias=True)\n"
        "        (1): ReLU()\n"
        "        (2): Linear(128, 32, bias=True)\n"
        "      )\n"
        "    )\n"
        "    (1): PreNormBlock(\n"
        "      (norm): LayerNorm((32,), eps=1e-05, elementwise_affine=True, bias=True)\n"
        "      (body): Sequential(\n"
        "        (0): Linear(32, 128, bias=True)\n"
        "        (1): ReLU()\n"
        "        (2): Linear(128, 32, bias=True)\n"
        "      )\n"
        "    )\n"
        "  )\n"
        "  (norm): LayerNorm((32,), eps=1e-05, elementwise_affine=True, bias=True)\n"
        "  (head): Linear(32, 10, bias=True)\n"
        ")"
    )


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (lambda: nn.Linear(2, 3, bias=False, rng=0), "Linear(2, 3, bias=False)"),
        (lambda: nn.RMSNorm((2, 3), eps=1e-6), "RMSNorm((2, 3), eps=1e-06, elementwise_affine=True)"),
        (
            lambda: nn.LayerNorm(4, elementwise_affine=False),
            "LayerNorm((4,), eps=1e-05, elementwise_affine=False, bias=False)",
        ),
        (lambda: nn.Dropout(0.25), "Dropout(p=0.25)"),
        (lambda: nn.LeakyReLU(0.2), "LeakyReLU(negative_slope=0.2)"),
        (lambda: nn.ELU(2), "ELU(alpha=2.0)"),
        (lambda: nn.GELU("tanh"), "GELU(approximate='tanh')"),
        (lambda: nn.Identity(), "Identity()"),
        (lambda: nn.Sequential(), "Sequential()"),
        (lambda: Scale(), "Scale()"),
    ],
)
def test_the_repr_shows_the_arguments(module: Any, text: str) -> None:
    assert repr(module()) == text


# Module: copies


def assert_is_a_separate_copy(fresh: Tied, m: Tied) -> None:
    assert type(fresh) is Tied
    assert bits(fresh) == bits(m)
    assert fresh.first.weight is fresh.last.weight
    assert not {id(p) for p in fresh.parameters()} & {id(p) for p in m.parameters()}
    assert all(type(p) is nn.Parameter and p.requires_grad for p in fresh.parameters())
    kept = bits(m)
    fresh.zero_grad()
    fresh(np.ones((2, 3), np.float32)).sum().backward()
    for p in fresh.parameters():
        p.data -= p.grad
    assert bits(m) == kept
    assert bits(fresh) != kept
    loss = fresh(np.ones((2, 3), np.float32)).sum()
    fresh.first.weight.data[0, 0] += 1.0
    with pytest.raises(GraphError):  # the copy notices changes as the original does
        loss.backward()


def exposed_and_trained() -> Tied:
    m = Tied().eval()
    m(np.ones((2, 3), np.float32)).sum().backward()
    for p in m.parameters():
        p.data -= 0.5 * p.grad
    return m


def test_deepcopy() -> None:
    m = exposed_and_trained()
    fresh = copy.deepcopy(m)
    assert not fresh.training
    np.testing.assert_array_equal(fresh.offset.grad, m.offset.grad)
    assert_is_a_separate_copy(fresh, m)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickle(protocol: int) -> None:
    m = exposed_and_trained()
    fresh = pickle.loads(pickle.dumps(m, protocol=protocol))
    assert not fresh.training
    assert_is_a_separate_copy(fresh, m)


def test_pickle_of_everything_there_is() -> None:
    m = nn.PreNormMLP(3, 4, 2, 2, norm="layer", activation=lambda: nn.Sequential(nn.GELU(), nn.Dropout(0.5, rng=3)))
    fresh = pickle.loads(pickle.dumps(m))
    assert repr(fresh) == repr(m)
    x = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    np.testing.assert_array_equal(fresh(x).numpy(), m(x).numpy())  # the dropout's stream included


# Linear


def test_linear_weight_is_out_by_in() -> None:
    m = nn.Linear(4, 3, rng=0)
    assert m.weight.shape == (3, 4)
    assert m.bias.shape == (3,)
    assert m.weight.dtype == m.bias.dtype == np.float32
    assert [name for name, _ in m.named_parameters()] == ["weight", "bias"]
    assert (m.in_features, m.out_features) == (4, 3)


def test_linear_without_bias() -> None:
    m = nn.Linear(4, 3, bias=False, rng=0)
    assert m.bias is None
    assert list(m.state_dict()) == ["weight"]
    x = np.random.default_rng(0).normal(size=(2, 4))
    assert_close(m(x).numpy(), x @ m.weight.numpy().T, 1e-15)


@pytest.mark.parametrize("lead", [(), (1,), (0,), (5,), (4,), (2, 3), (2, 0, 3), (1, 2, 1, 3)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_on_any_leading_axes(lead: tuple[int, ...], bias: bool) -> None:
    rng = np.random.default_rng(0)
    m = raised_to_float64(nn.Linear(4, 4, bias=bias, rng=0))  # square: a missing transpose changes no shape
    w, b = m.weight.numpy().copy(), m.bias.numpy().copy() if bias else np.zeros(4)
    x, dy = rng.normal(size=(*lead, 4)), rng.normal(size=(*lead, 4))
    t = tn.tensor(x, requires_grad=True)
    y = m(t)
    assert y.shape == (*lead, 4)
    expected, dx, dw, db = np.zeros(dy.shape), np.zeros(x.shape), np.zeros((4, 4)), np.zeros(4)
    for n in np.ndindex(lead):
        for o in range(4):
            expected[(*n, o)] = math.fsum(x[(*n, i)] * w[o, i] for i in range(4)) + b[o]
            db[o] += dy[(*n, o)]
            for i in range(4):
                dx[(*n, i)] += dy[(*n, o)] * w[o, i]
                dw[o, i] += dy[(*n, o)] * x[(*n, i)]
    np.testing.assert_allclose(y.numpy(), expected, rtol=0, atol=1e-14)
    y.backward(dy)
    np.testing.assert_allclose(t.grad, dx, rtol=0, atol=1e-14)
    np.testing.assert_allclose(m.weight.grad, dw, rtol=0, atol=1e-13)
    if bias:
        np.testing.assert_allclose(m.bias.grad, db, rtol=0, atol=1e-13)


@pytest.mark.parametrize("which", ["weight", "bias"])
@pytest.mark.parametrize("in_features", [1, 16, 100])
def test_linear_starts_uniform_between_plus_and_minus_one_over_root_in(which: str, in_features: int) -> None:
    draws = np.concatenate(
        [getattr(nn.Linear(in_features, 4000, rng=seed), which).numpy().ravel()[:40_000] for seed in range(10)]
    ).astype(np.float64)
    n, k = draws.size, 1.0 / math.sqrt(in_features)
    assert n >= 40_000
    assert np.abs(draws).max() <= k * (1 + 2**-24)  # rounded to float32
    assert draws.min() < -0.999 * k
    assert draws.max() > 0.999 * k
    # U(−k, k): mean 0, variance k²/3, fourth moment k⁴/5; each within five standard deviations of its estimate
    assert abs(draws.mean()) < 5 * k / math.sqrt(3 * n)
    assert abs(np.mean(draws**2) - k**2 / 3) < 5 * k**2 * math.sqrt((1 / 5 - 1 / 9) / n)
    assert abs(np.mean(draws**4) - k**4 / 5) < 5 * k**4 * math.sqrt((1 / 9 - 1 / 25) / n)
    counts, _ = np.histogram(draws, bins=20, range=(-k, k))
    assert np.sum((counts - n / 20) ** 2 / (n / 20)) < 50  # χ² with 19 degrees of freedom: 1 in 10,000


def test_linear_draws_weight_and_bias_apart() -> None:
    m = nn.Linear(1, 50, rng=0)
    assert not np.any(m.weight.numpy()[:, 0] == m.bias.numpy())


def test_same_seed_same_bits() -> None:
    assert bits(nn.Linear(5, 4, rng=3)) == bits(nn.Linear(5, 4, rng=3))
    assert bits(nn.Linear(5, 4, rng=3)) == bits(nn.Linear(5, 4, rng=np.random.default_rng(3)))
    assert bits(nn.Linear(5, 4, rng=3)) != bits(nn.Linear(5, 4, rng=4))
    assert bits(nn.PreNormMLP(3, 4, 2, 5, rng=3)) == bits(nn.PreNormMLP(3, 4, 2, 5, rng=3))
    assert bits(nn.PreNormMLP(3, 4, 2, 5, rng=3)) != bits(nn.PreNormMLP(3, 4, 2, 5, rng=4))


def test_manual_seed_is_the_default() -> None:
    tn.manual_seed(3)
    first = nn.Linear(5, 4)
    second = nn.Linear(5, 4)
    assert bits(first) == bits(nn.Linear(5, 4, rng=3))
    assert bits(first) != bits(second)
    tn.manual_seed(3)
    assert bits(nn.Linear(5, 4)) == bits(first)
    assert bits(nn.Linear(5, 4)) == bits(second)


def test_a_generator_advances_and_a_seed_leaves_the_default_alone() -> None:
    rng = np.random.default_rng(3)
    state = rng.bit_generator.state
    first = nn.Linear(5, 4, rng=rng)
    assert rng.bit_generator.state != state
    assert bits(nn.Linear(5, 4, rng=rng)) != bits(first)
    default = tn.manual_seed(0)
    state = default.bit_generator.state
    nn.PreNormMLP(3, 4, 1, 5, rng=1)
    nn.Linear(3, 4, rng=rng)
    assert default.bit_generator.state == state


def test_the_layers_of_an_mlp_do_not_repeat_each_other() -> None:
    m = nn.PreNormMLP(8, 8, 2, 8, expansion=1, rng=0)
    matrices = [p.numpy() for p in m.parameters() if p.ndim == 2]
    assert len(matrices) == 6
    assert len({a.tobytes() for a in matrices}) == 6


@pytest.mark.parametrize("sizes", [(0, 2), (2, 0), (-1, 2), (1.5, 2), (2, "2"), (None, 2), (True, 2), ((2,), 2)])
def test_linear_sizes_are_positive_integers(sizes: Any) -> None:
    with pytest.raises(ArgumentError, match=r"Linear: (in|out)_features"):
        nn.Linear(*sizes)


def test_linear_takes_numpy_integers() -> None:
    m = nn.Linear(np.int64(3), np.uint8(2), rng=np.int32(0))
    assert repr(m) == "Linear(3, 2, bias=True)"


@pytest.mark.parametrize("rng", [-1, 1.5, "0", True, [0], np.random.SeedSequence(0)])
def test_randomness_is_a_generator_or_a_seed(rng: Any) -> None:
    for make in (lambda: nn.Linear(2, 2, rng=rng), lambda: nn.Dropout(rng=rng)):
        with pytest.raises(ArgumentError, match="rng"):
            make()


@pytest.mark.parametrize(
    ("x", "error"),
    [
        (np.ones((2, 3), np.float32), ShapeError),
        (np.float32(1.0), ShapeError),
        (np.ones((4, 2), np.float32), ShapeError),
        (np.ones((2, 4), np.int64), DTypeError),
        (np.ones((2, 4), bool), DTypeError),
        (np.ones((2, 4), complex), DTypeError),
        ("abcd", DTypeError),
        (None, TinynormError),
    ],
)
def test_linear_refuses_what_does_not_fit(x: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        nn.Linear(4, 3, rng=0)(x)


# Dropout


def test_dropout_drops_or_scales_each_element() -> None:
    x = np.random.default_rng(0).uniform(1, 2, size=(300, 200))
    y = nn.Dropout(0.3, rng=0)(x).numpy()
    kept = y != 0
    np.testing.assert_allclose(y[kept], x[kept] / 0.7, rtol=1e-15)
    n = x.size
    assert abs(kept.mean() - 0.7) < 5 * math.sqrt(0.3 * 0.7 / n)
    # the draws differ within rows and within columns
    assert np.all((kept.sum(axis=0) > 150) & (kept.sum(axis=0) < 270))
    assert np.all((kept.sum(axis=1) > 100) & (kept.sum(axis=1) < 180))
    pairs = np.mean(kept[:, 1:] == kept[:, :-1])
    assert abs(pairs - (0.7**2 + 0.3**2)) < 0.02


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_keeps_the_expected_value(p: float) -> None:
    drop = nn.Dropout(p, rng=0)
    x = np.array([1.0, -2.0, 3.0])
    n = 4000
    mean = np.mean([drop(x).numpy() for _ in range(n)], axis=0)
    np.testing.assert_array_less(np.abs(mean - x), 5 * np.abs(x) * math.sqrt(p / (1 - p) / n))


def test_dropout_in_eval_is_the_identity_and_draws_nothing() -> None:
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    drop = nn.Dropout(0.5, rng=7)
    drop.eval()
    np.testing.assert_array_equal(drop(x).numpy(), x)
    t = tn.tensor(x, requires_grad=True)
    dy = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
    (drop(t) * dy).sum().backward()
    np.testing.assert_array_equal(t.grad, dy)
    drop.train()
    np.testing.assert_array_equal(drop(x).numpy(), nn.Dropout(0.5, rng=7)(x).numpy())


def test_dropout_of_probability_zero_and_one() -> None:
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    np.testing.assert_array_equal(nn.Dropout(0.0, rng=0)(x).numpy(), x)
    t = tn.tensor(x, requires_grad=True)
    y = nn.Dropout(1, rng=0)(t)
    np.testing.assert_array_equal(y.numpy(), np.zeros((3, 4)))
    y.backward(x + 1)
    np.testing.assert_array_equal(t.grad, np.zeros((3, 4)))
    np.testing.assert_array_equal(nn.Dropout(1.0).eval()(x).numpy(), x)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_dropout_gradient_passes_where_the_forward_passed(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    x = tn.tensor(rng.uniform(1, 2, size=(2, 5, 7)).astype(dtype), requires_grad=True)
    dy = rng.normal(size=(2, 5, 7)).astype(dtype)
    y = nn.Dropout(0.75, rng=0)(x)
    assert y.dtype == dtype
    y.backward(dy)
    assert x.grad.dtype == dtype
    np.testing.assert_array_equal(x.grad, np.where(y.numpy() != 0, dy * dtype(4), dtype(0)))


def test_a_seeded_dropout_differs_by_call_and_repeats_by_construction() -> None:
    x = np.ones((4, 16), np.float32)
    drop, again = nn.Dropout(0.5, rng=7), nn.Dropout(0.5, rng=7)
    calls = [drop(x).numpy() for _ in range(3)]
    assert len({y.tobytes() for y in calls}) == 3
    for y in calls:
        np.testing.assert_array_equal(again(x).numpy(), y)
    shared = np.random.default_rng(7)
    one, two = nn.Dropout(0.5, rng=shared), nn.Dropout(0.5, rng=shared)
    np.testing.assert_array_equal(one(x).numpy(), calls[0])
    np.testing.assert_array_equal(two(x).numpy(), calls[1])


def test_dropout_without_a_seed_follows_manual_seed() -> None:
    x, drop = np.ones((4, 16), np.float32), nn.Dropout(0.5)
    tn.manual_seed(5)
    first, second = drop(x).numpy(), drop(x).numpy()
    assert (first != second).any()
    tn.manual_seed(5)
    np.testing.assert_array_equal(drop(x).numpy(), first)


@pytest.mark.parametrize("p", [-0.1, 1.1, math.nan, math.inf, "half", None, [0.5], 1j])
def test_dropout_probability_lies_between_0_and_1(p: Any) -> None:
    with pytest.raises(TinynormError, match="p must"):
        nn.Dropout(p)


@pytest.mark.parametrize("x", [np.ones(3, np.int64), np.ones(3, bool)])
def test_dropout_refuses_integers(x: Any) -> None:
    with pytest.raises(DTypeError, match="dropout"):
        nn.Dropout(0.5)(x)


# Activations


def phi(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


ACTIVATIONS = {
    "ReLU": (nn.ReLU, tn.functional.relu, lambda x: max(x, 0.0)),
    "LeakyReLU": (nn.LeakyReLU, tn.functional.leaky_relu, lambda x: x if x > 0 else 0.01 * x),
    "LeakyReLU(0.3)": (
        lambda: nn.LeakyReLU(0.3),
        lambda x: tn.functional.leaky_relu(x, 0.3),
        lambda x: x if x > 0 else 0.3 * x,
    ),
    "ELU": (nn.ELU, tn.functional.elu, lambda x: x if x > 0 else math.expm1(x)),
    "ELU(2.5)": (
        lambda: nn.ELU(2.5),
        lambda x: tn.functional.elu(x, 2.5),
        lambda x: x if x > 0 else 2.5 * math.expm1(x),
    ),
    "GELU": (nn.GELU, tn.functional.gelu, lambda x: x * phi(x)),
    "GELU(tanh)": (
        lambda: nn.GELU("tanh"),
        lambda x: tn.functional.gelu(x, "tanh"),
        lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    ),
    "SiLU": (nn.SiLU, tn.functional.silu, lambda x: x / (1 + math.exp(-x))),
    "Sigmoid": (nn.Sigmoid, tn.functional.sigmoid, lambda x: 1 / (1 + math.exp(-x))),
    "Softplus": (nn.Softplus, tn.functional.softplus, lambda x: math.log1p(math.exp(x))),
    "Tanh": (nn.Tanh, tn.tanh, math.tanh),
    "Identity": (nn.Identity, lambda x: x, lambda x: x),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_the_functions_of_their_names(name: str) -> None:
    make, function, formula = ACTIVATIONS[name]
    module = make()
    assert list(module.parameters()) == []
    rng = np.random.default_rng(0)
    x, dy = 3 * rng.normal(size=(2, 3, 5)), rng.normal(size=(2, 3, 5))
    a, b = tn.tensor(x, requires_grad=True), tn.tensor(x, requires_grad=True)
    y, expected = module(a), function(b)
    np.testing.assert_allclose(y.numpy(), np.vectorize(formula)(x), rtol=1e-14, atol=1e-15)
    np.testing.assert_array_equal(y.numpy(), expected.numpy())
    (y * dy).sum().backward()
    (expected * dy).sum().backward()
    np.testing.assert_array_equal(a.grad, b.grad)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.GELU("sigmoid"),
        lambda: nn.GELU(None),
        lambda: nn.LeakyReLU("steep"),
        lambda: nn.LeakyReLU(None),
        lambda: nn.ELU(None),
        lambda: nn.ELU([1.0]),
    ],
)
def test_bad_options_of_activations(make: Any) -> None:
    with pytest.raises(TinynormError):
        make()


# Sequential


def test_sequential_is_a_list_of_modules() -> None:
    parts = [nn.Linear(2, 3, rng=0), nn.ReLU(), nn.Linear(3, 1, rng=1)]
    net = nn.Sequential(*parts)
    assert len(net) == 3
    assert list(net) == parts
    assert list(net) == parts  # a second iteration starts anew
    assert [net[i] for i in range(3)] == parts
    assert [net[i] for i in range(-3, 0)] == parts
    assert net[np.int64(1)] is parts[1]
    for i in (3, -4, 100):
        with pytest.raises(OutOfRangeError, match=rf"no module {i} among 3"):
            net[i]


@pytest.mark.parametrize("index", ["0", 1.0, None])
def test_sequential_is_indexed_by_integers(index: Any) -> None:
    with pytest.raises(TinynormError):
        nn.Sequential(nn.ReLU(), nn.ReLU())[index]


def test_more_than_ten_modules_stay_in_order() -> None:
    parts = [nn.LeakyReLU(i / 100) for i in range(12)]
    net = nn.Sequential(*parts)
    assert list(net) == parts
    assert net[-1] is parts[11]


def test_sequential_feeds_each_module_with_the_result_before() -> None:
    class Affine(nn.Module):
        def __init__(self, a: float, b: float) -> None:
            self.a, self.b = a, b

        def forward(self, x: Any) -> Any:
            return self.a * x + self.b

    net = nn.Sequential(Affine(2.0, 1.0), Affine(-3.0, 5.0), Affine(10.0, 0.0))
    assert net(4.0) == (-3.0 * (2.0 * 4.0 + 1.0) + 5.0) * 10.0


def test_an_empty_sequential_is_the_identity() -> None:
    net = nn.Sequential()
    x = tn.tensor([1.0])
    assert net(x) is x
    assert len(net) == 0
    assert list(net) == []
    with pytest.raises(OutOfRangeError):
        net[0]
    with pytest.raises(OutOfRangeError):
        net[-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((nn.ReLU(), tn.functional.relu), "argument 1 is a function"),
        ((nn.ReLU,), "argument 0"),
        (([nn.ReLU(), nn.ReLU()],), r"Sequential\(\*modules\)"),
        (((nn.ReLU(),),), r"Sequential\(\*modules\)"),
        ((None,), "argument 0 is a NoneType"),
        ((nn.Parameter([1.0]),), "argument 0 is a Parameter"),
    ],
)
def test_sequential_takes_modules_alone(arguments: Any, message: str) -> None:
    with pytest.raises(DTypeError, match=message):
        nn.Sequential(*arguments)


# The networks in plain NumPy


def plain_norm(kind: str, x: Any, state: Any, prefix: str) -> Any:
    if kind == "none":
        return x
    d = x.shape[-1]
    if kind == "layer":
        x = x - (x.sum(axis=-1) / d)[..., None]
    y = x / np.sqrt((x**2).sum(axis=-1) / d + 1e-5)[..., None] * state[f"{prefix}.weight"]
    return y + state[f"{prefix}.bias"] if kind == "layer" else y


def plain_linear(x: Any, state: Any, prefix: str) -> Any:
    return np.einsum("...i,oi->...o", x, state[f"{prefix}.weight"]) + state[f"{prefix}.bias"]


def plain_relu(x: Any) -> Any:
    return np.where(x.real > 0, x, 0)


def plain_mlp(state: Any, x: Any, depth: int, norm: str, activation: Any) -> Any:
    x = plain_linear(x, state, "embed")
    for i in range(depth):
        h = plain_norm(norm, x, state, f"blocks.{i}.norm")
        h = activation(plain_linear(h, state, f"blocks.{i}.body.0"))
        x = x + plain_linear(h, state, f"blocks.{i}.body.2")
    return plain_linear(plain_norm(norm, x, state, "norm"), state, "head")


NORM = pytest.mark.parametrize("norm", ["rms", "layer", "none"])
NORM_LAYERS = {"rms": nn.RMSNorm, "layer": nn.LayerNorm, "none": lambda width: nn.Identity()}


# PreNormBlock


@NORM
@pytest.mark.parametrize("lead", [(), (4,), (2, 3)])
def test_block_is_the_stream_plus_the_body_of_its_norm(norm: str, lead: tuple[int, ...]) -> None:
    body = nn.Sequential(nn.Linear(4, 4, rng=0), nn.Tanh(), nn.Linear(4, 4, rng=1))
    block = raised_to_float64(randomized(nn.PreNormBlock(NORM_LAYERS[norm](4), body), 2))
    state = {name: p.numpy().copy() for name, p in block.named_parameters()}

    def plain(x: Any, state: Any = state) -> Any:
        h = np.tanh(plain_linear(plain_norm(norm, x, state, "norm"), state, "body.0"))
        return x + plain_linear(h, state, "body.2")

    rng = np.random.default_rng(3)
    x, dy = rng.normal(size=(*lead, 4)), rng.normal(size=(*lead, 4))
    t = tn.tensor(x, requires_grad=True)
    y = block(t)
    assert_close(y.numpy(), plain(x), 1e-14)
    y.backward(dy)
    assert_close(t.grad, complex_step(plain, x, dy), 1e-13)
    for name, p in block.named_parameters():
        expected = complex_step(lambda value, name=name: plain(x, {**state, name: value}), state[name], dy)
        assert_close(p.grad, expected, 1e-13)
    np.testing.assert_array_equal(t.numpy(), x)


def test_block_of_identities_doubles() -> None:
    block = nn.PreNormBlock(nn.Identity(), nn.Identity())
    x = tn.tensor([1.0, -2.0], requires_grad=True)
    y = block(x)
    np.testing.assert_array_equal(y.numpy(), [2.0, -4.0])
    y.backward([3.0, 5.0])
    np.testing.assert_array_equal(x.grad, [6.0, 10.0])


@pytest.mark.parametrize("x", [[1.0, -2.0], np.array([1.0, -2.0], np.float32)], ids=["list", "array"])
def test_block_gives_a_tensor_whatever_its_parts_give(x: Any) -> None:
    y = nn.PreNormBlock(nn.Identity(), nn.Identity())(x)
    assert isinstance(y, tn.Tensor)
    np.testing.assert_array_equal(y.numpy(), [2.0, -4.0])


def test_block_keeps_float16_between_float16_parts() -> None:
    block = nn.PreNormBlock(nn.RMSNorm(2, eps=0.0, elementwise_affine=False), nn.Identity())
    y = block(np.array([3.0, 4.0], np.float16))
    assert y.dtype == np.float16
    rms = math.sqrt(12.5)
    np.testing.assert_allclose(y.numpy(), [3 + 3 / rms, 4 + 4 / rms], rtol=1e-3)


@pytest.mark.parametrize(("width", "lead"), [(1, (2,)), (3, (2,)), (1, ())])
def test_a_body_that_changes_the_width_is_refused(width: int, lead: tuple[int, ...]) -> None:
    """One feature would broadcast over the stream without a word."""
    block = nn.PreNormBlock(nn.RMSNorm(4), nn.Linear(4, width, rng=0))
    with pytest.raises(ShapeError):
        block(np.ones((*lead, 4), np.float32))


# PreNormMLP


@NORM
@pytest.mark.parametrize(
    ("sizes", "expansion"), [((64, 32, 2, 10), 4), ((1, 1, 1, 1), 1), ((5, 3, 0, 2), 4), ((2, 6, 5, 3), 2)]
)
def test_mlp_parameter_count(norm: str, sizes: tuple[int, int, int, int], expansion: int) -> None:
    model = nn.PreNormMLP(*sizes, norm=norm, expansion=expansion, rng=0)
    n_in, w, depth, n_out = sizes
    gains = {"rms": w, "layer": 2 * w, "none": 0}[norm]
    block = gains + (w * expansion * w + expansion * w) + (expansion * w * w + w)
    expected = (n_in * w + w) + depth * block + gains + (w * n_out + n_out)
    assert sum(p.numpy().size for p in model.parameters()) == expected


@NORM
def test_mlp_structure(norm: str) -> None:
    model = nn.PreNormMLP(5, 3, 2, 4, norm=norm, expansion=2, activation=nn.SiLU, rng=0)
    kind = {"rms": nn.RMSNorm, "layer": nn.LayerNorm, "none": nn.Identity}[norm]
    assert [name for name, _ in model.named_children()] == ["embed", "blocks", "norm", "head"]
    assert len(model.blocks) == 2
    for block in model.blocks:
        assert type(block) is nn.PreNormBlock
        assert type(block.norm) is kind
        assert [type(part) for part in block.body] == [nn.Linear, nn.SiLU, nn.Linear]
        assert [part.weight.shape for part in (block.body[0], block.body[2])] == [(6, 3), (3, 6)]
    assert type(model.norm) is kind
    assert (model.embed.weight.shape, model.head.weight.shape) == ((3, 5), (4, 3))
    assert model.blocks[0].body[1] is not model.blocks[1].body[1]


def test_mlp_defaults() -> None:
    model = nn.PreNormMLP(2, 3, 1, 2, rng=0)
    assert type(model.norm) is nn.RMSNorm
    assert model.norm.eps == 1e-5
    assert model.blocks[0].body[0].out_features == 12
    assert type(model.blocks[0].body[1]) is nn.ReLU
    assert {p.dtype for p in model.parameters()} == {np.dtype(np.float32)}


@NORM
@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize("lead", [(), (1,), (0,), (7,), (2, 3, 4)])
def test_mlp_forward_against_plain_numpy(norm: str, depth: int, lead: tuple[int, ...]) -> None:
    model = randomized(nn.PreNormMLP(5, 6, depth, 3, norm=norm, expansion=2, rng=0), 1)
    x = np.random.default_rng(2).normal(size=(*lead, 5)).astype(np.float32)
    y = model(x)
    assert isinstance(y, tn.Tensor)
    assert y.dtype == np.float32
    assert y.shape == (*lead, 3)
    state = {name: value.astype(np.float64) for name, value in model.state_dict().items()}
    expected = plain_mlp(state, x.astype(np.float64), depth, norm, plain_relu)
    scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
    np.testing.assert_allclose(y.numpy(), expected, rtol=0, atol=2e-5 * scale)


CASES = [
    ("rms", (4, 4, 2, 4), nn.Tanh, np.tanh),  # square throughout
    ("layer", (4, 4, 2, 4), nn.Tanh, np.tanh),
    ("none", (4, 4, 2, 4), nn.Tanh, np.tanh),
    ("rms", (2, 3, 1, 5), nn.ReLU, plain_relu),
    ("layer", (2, 3, 1, 5), nn.ReLU, plain_relu),
]


@pytest.mark.parametrize(("norm", "sizes", "module", "activation"), CASES)
def test_mlp_gradient_against_the_complex_step(norm: str, sizes: Any, module: Any, activation: Any) -> None:
    """Through plain NumPy in float64; the module first raised to float64, where nothing hides, then as it is."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(4, sizes[0])).astype(np.float32).astype(np.float64)
    dy = rng.normal(size=(4, sizes[3])).astype(np.float32).astype(np.float64)
    model = randomized(nn.PreNormMLP(*sizes, norm=norm, expansion=1, activation=module, rng=0), 6)
    state = {name: value.astype(np.float64) for name, value in model.state_dict().items()}

    def plain(x: Any, state: Any) -> Any:
        return plain_mlp(state, x, sizes[2], norm, activation)

    expected = {
        name: complex_step(lambda value, name=name: plain(x, {**state, name: value}), state[name], dy) for name in state
    }
    expected_dx = complex_step(lambda x: plain(x, state), x, dy)
    scale = max(float(np.abs(g).max()) for g in expected.values())
    assert all(np.abs(g).max() > 1e-8 * scale for g in expected.values())  # none is zero and passes unseen
    for dtype, tolerance in ((np.float32, 1e-5), (np.float64, 1e-13)):
        if dtype == np.float64:
            model = raised_to_float64(model)
        t = tn.tensor(x.astype(dtype), requires_grad=True)
        y = model(t)
        assert y.dtype == dtype
        y.backward(dy.astype(dtype))
        for name, p in model.named_parameters():
            assert p.grad.dtype == dtype
            np.testing.assert_allclose(p.grad, expected[name], rtol=0, atol=tolerance * scale, err_msg=name)
        np.testing.assert_allclose(t.grad, expected_dx, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("form", ["array", "float64", "list", "fortran", "tensor"])
def test_mlp_takes_a_batch_in_any_form(form: str) -> None:
    model = nn.PreNormMLP(3, 4, 1, 2, rng=0)
    x = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    given = {
        "array": x,
        "float64": x.astype(np.float64),
        "list": x.tolist(),
        "fortran": np.asfortranarray(x),
        "tensor": tn.tensor(x),
    }[form]
    y = model(given)
    state = {name: value.astype(np.float64) for name, value in model.state_dict().items()}
    expected = plain_mlp(state, x.astype(np.float64), 1, "rms", plain_relu)
    assert y.dtype == (np.float64 if form == "float64" else np.float32)
    np.testing.assert_allclose(y.numpy(), expected, rtol=0, atol=1e-12 if form == "float64" else 1e-6)


def test_rows_of_a_batch_do_not_see_each_other() -> None:
    model = randomized(nn.PreNormMLP(3, 4, 2, 2, norm="layer", rng=0), 1)
    x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    together = model(x).numpy()
    for row, expected in zip(x, together, strict=True):
        np.testing.assert_allclose(model(row).numpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"in_features": 0},
        {"in_features": 2.0},
        {"width": 0},
        {"width": -3},
        {"width": "wide"},
        {"depth": -1},
        {"depth": 1.5},
        {"depth": True},
        {"out_features": 0},
        {"out_features": None},
        {"norm": "batch"},
        {"norm": None},
        {"norm": "RMS"},
        {"norm": nn.RMSNorm},
        {"expansion": 0},
        {"expansion": 0.5},
        {"rng": -1},
        {"rng": "seed"},
        {"device": "tpu"},
    ],
    ids=str,
)
def test_mlp_bad_arguments(wrong: dict[str, Any]) -> None:
    arguments = {"in_features": 2, "width": 3, "depth": 1, "out_features": 2, **wrong}
    with pytest.raises(DeviceError if "device" in wrong else ArgumentError, match="".join(wrong)):
        nn.PreNormMLP(**arguments)


@pytest.mark.parametrize(
    "activation",
    ["rellu", None, tn.functional.relu, lambda: tn.functional.relu],
    ids=["str", "None", "function", "makes a function"],
)
def test_mlp_activation_makes_a_module(activation: Any) -> None:
    with pytest.raises(TinynormError):
        nn.PreNormMLP(2, 3, 1, 2, activation=activation, rng=0)


@pytest.mark.parametrize("activation", ["gelu", nn.GELU, nn.GELU(), lambda: nn.GELU()])
def test_mlp_takes_an_activation_by_name_by_class_or_as_a_module(activation: Any) -> None:
    model = nn.PreNormMLP(2, 3, 2, 2, activation=activation, rng=0)
    assert [repr(block.body[1]) for block in model.blocks] == ["GELU(approximate='none')"] * 2
    assert model(np.ones((1, 2), np.float32)).shape == (1, 2)


def test_mlp_takes_any_maker_of_modules() -> None:
    model = nn.PreNormMLP(2, 3, 2, 2, activation=lambda: nn.LeakyReLU(0.3), rng=0)
    assert [repr(block.body[1]) for block in model.blocks] == ["LeakyReLU(negative_slope=0.3)"] * 2


def test_mlp_refuses_a_batch_of_another_width() -> None:
    with pytest.raises(ShapeError, match=r"\(2, 4\)"):
        nn.PreNormMLP(3, 4, 1, 2, rng=0)(np.ones((2, 4), np.float32))


def test_a_model_learns_by_its_gradients() -> None:
    """Twenty plain gradient steps on a random target lower the squared error by more than half."""
    rng = np.random.default_rng(0)
    x, target = rng.normal(size=(2, 8, 4)).astype(np.float32)
    model = nn.PreNormMLP(4, 8, 2, 4, rng=0)
    losses = []
    for _ in range(20):
        loss = tn.functional.mse_loss(model(x), target)
        losses.append(loss.item())
        model.zero_grad()
        loss.backward()
        for p in model.parameters():
            p.data -= 0.1 * p.grad
    assert losses[-1] < 0.5 * losses[0]


def test_a_list_that_is_filled_after_its_assignment_is_refused_when_parameters_are_asked_for():
    class Late(nn.Module):
        def __init__(self):
            self.layers = []
            self.layers.append(nn.Linear(2, 2, rng=0))

    model = Late()
    for ask in (lambda: list(model.parameters()), model.state_dict, model.zero_grad, lambda: model.to("cpu")):
        with pytest.raises(ArgumentError, match=r"Late\.layers: parameters in a plain list.*Sequential"):
            ask()


@pytest.mark.parametrize(("module", "function"), [(nn.Softmax, "softmax"), (nn.LogSoftmax, "log_softmax")])
def test_softmax_modules(module: Any, function: str) -> None:
    x = np.random.default_rng(0).normal(size=(3, 4))
    for axis in (-1, 0):
        expected = getattr(tn.functional, function)(x, axis).numpy()
        np.testing.assert_array_equal(module(axis)(x).numpy(), expected)
        assert repr(module(axis)) == f"{module.__name__}(axis={axis})"


def test_a_slice_of_a_sequential_is_one_that_shares_its_modules() -> None:
    model = nn.Sequential(nn.Linear(2, 3, rng=0), nn.ReLU(), nn.Linear(3, 1, rng=1))
    assert list(model[1:]) == [model[1], model[2]]
    x = np.ones((4, 2), np.float32)
    np.testing.assert_array_equal(model[2:](model[:2](x)).numpy(), model(x).numpy())


@pytest.mark.parametrize("size", [True, (2, True), np.True_])
def test_a_bool_is_no_size(size: Any) -> None:
    with pytest.raises(DTypeError, match="RMSNorm: expects integers"):
        nn.RMSNorm(size)
