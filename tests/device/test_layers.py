"""Every layer with its options on CuPy beside NumPy; and modules and Tensors that move, are saved and are copied."""

import copy
import pickle
from functools import partial

import numpy as np
import pytest

import tinynorm as tn
from tinynorm import nn
from tinynorm.backend import CPU, device_of, to_device
from tinynorm.nn.activations import ACTIVATIONS
from tinynorm.nn.blocks import NORMS

from .beside import assert_all_on, assert_same

F = tn.functional

MLP = partial(nn.PreNormMLP, 6, 4, 1, 3, expansion=2, rng=0)

LAYERS = {
    "Linear": partial(nn.Linear, 6, 3, rng=0),
    "Linear without bias": partial(nn.Linear, 6, 3, bias=False, rng=0),
    "RMSNorm": partial(nn.RMSNorm, 6),
    "RMSNorm over two axes": partial(nn.RMSNorm, (4, 6)),
    "RMSNorm without weight": partial(nn.RMSNorm, 6, elementwise_affine=False),
    "RMSNorm with the dtype's eps": partial(nn.RMSNorm, 6, eps=None),
    "RMSNorm with bias": partial(nn.RMSNorm, 6, bias=True),
    "RMSNorm of a part": partial(nn.RMSNorm, 6, partial=0.5),
    "RMSNorm with an offset": partial(nn.RMSNorm, 6, eps=1e-6, weight_offset=1.0),
    "RMSNorm with eps outside": partial(nn.RMSNorm, 6, eps_mode="outside", partial=0.7, bias=True),
    "LayerNorm": partial(nn.LayerNorm, 6),
    "LayerNorm over two axes": partial(nn.LayerNorm, (4, 6)),
    "LayerNorm without weight": partial(nn.LayerNorm, 6, elementwise_affine=False),
    "LayerNorm without bias": partial(nn.LayerNorm, 6, bias=False),
    "Dropout": partial(nn.Dropout, 0.3, rng=0),
    "Dropout under eval": lambda: nn.Dropout(0.3, rng=0).eval(),
    "Identity": nn.Identity,
    "Sequential": lambda: nn.Sequential(nn.Linear(6, 5, rng=0), nn.GELU(), nn.Linear(5, 6, rng=1)),
    "PreNormBlock": lambda: nn.PreNormBlock(nn.RMSNorm(6), nn.Linear(6, 6, rng=0)),
    **{f"PreNormMLP with norm {norm}": partial(MLP, norm=norm) for norm in NORMS},
    **{f"PreNormMLP with {name}": partial(MLP, activation=name) for name in ACTIVATIONS},
    **{make.__name__: make for make in ACTIVATIONS.values()},
    "LeakyReLU of 0.3": partial(nn.LeakyReLU, 0.3),
    "ELU of 0.5": partial(nn.ELU, 0.5),
    "GELU by tanh": partial(nn.GELU, "tanh"),
    "Softmax": nn.Softmax,
    "Softmax over rows": partial(nn.Softmax, 0),
    "LogSoftmax": nn.LogSoftmax,
}
"""Makers. Each takes (4, 6)."""


def test_every_layer_is_here():
    assert {name.partition(" ")[0] for name in LAYERS} == set(nn.__all__) - {"Module", "Parameter"}


def stepped(make, device):
    """A module's result, and the gradients of its input and parameters, all for the same seeds."""
    module, rng = make().to(device), np.random.default_rng(1)
    for p in module.parameters():  # so that no gain is 1, and no bias 0
        p.data += to_device(rng.uniform(-0.3, 0.3, p.shape).astype(np.float32), device)
    x = tn.tensor(rng.normal(size=(4, 6)).astype(np.float32), device=device, requires_grad=True)
    y = module(x)
    assert_all_on(device, y)
    y.backward(to_device(rng.normal(size=y.shape).astype(np.float32), device))
    gradients = [x.grad, *(p.grad for p in module.parameters())]
    assert {device_of(g) for g in gradients} == {device}
    return [y.numpy(), *(to_device(g, CPU) for g in gradients)]


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer(cupy, name):
    with tn.formulas_only():
        assert_same(cupy, stepped(LAYERS[name], "cuda:0"), stepped(LAYERS[name], "cpu"))


# The same numbers at the start


@pytest.mark.parametrize("seed", [0, 7])
def test_a_seed_gives_the_same_weights_on_every_device(cupy, seed):
    here = nn.PreNormMLP(6, 4, 2, 3, norm="layer", rng=seed)
    there = nn.PreNormMLP(6, 4, 2, 3, norm="layer", rng=seed, device="cuda")
    assert {p.device for p in there.parameters()} == {"cuda:0"}
    for (name, a), b in zip(here.state_dict().items(), there.state_dict().values(), strict=True):
        np.testing.assert_array_equal(a, b, err_msg=name, strict=True)


def test_a_seed_drops_the_same_elements_on_every_device(cupy):
    drop = [nn.Dropout(0.5, rng=3)(tn.tensor(np.ones(32), device=device)) for device in ("cpu", "cuda")]
    assert drop[1].device == "cuda:0"
    np.testing.assert_array_equal(drop[0].numpy(), drop[1].numpy())
    assert {0.0, 2.0} == set(drop[0].numpy().tolist())


# Moving


def test_a_module_goes_there_and_back(cupy):
    model = MLP(norm="layer")
    before = [(p, p.data.copy()) for p in model.parameters()]
    x = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    model(x).sum().backward()
    gradients = [p.grad.copy() for p in model.parameters()]
    assert model.to("cuda") is model
    for p in model.parameters():
        assert p.device == device_of(p.grad) == "cuda:0"
    model.to("cpu")
    for (p, data), gradient, now in zip(before, gradients, model.parameters(), strict=True):
        assert now is p
        np.testing.assert_array_equal(p.data, data)
        np.testing.assert_array_equal(p.grad, gradient)


def test_tied_weights_stay_tied(cupy):
    model = nn.Sequential(nn.Linear(4, 4, rng=0), nn.Linear(4, 4, rng=1))
    model[1].weight = model[0].weight
    model.to("cuda")
    assert model[1].weight is model[0].weight
    assert len(list(model.parameters())) == 3


def test_a_forward_with_the_batch_left_behind_is_refused(cupy):
    model = MLP().to("cuda")
    with pytest.raises(tn.errors.DeviceError, match=r"linear: .*'cpu' and .*'cuda:0'.*\.to\(\"cuda:0\"\)"):
        model(np.zeros((4, 6), np.float32))


# State


def assert_state(module, right):
    state = module.state_dict()
    assert list(state) == list(right)
    for name, array in state.items():
        assert type(array) is np.ndarray
        np.testing.assert_array_equal(array, right[name], strict=True)


@pytest.mark.parametrize(("to", "back"), [("cuda", "cpu"), ("cpu", "cuda"), ("cuda", "cuda")])
def test_a_state_goes_from_one_device_to_another(cupy, to, back):
    model, other = MLP(norm="layer", device=to), nn.PreNormMLP(6, 4, 1, 3, "layer", 2, rng=9, device=back)
    state = model.state_dict()
    parameters = list(other.parameters())
    other.load_state_dict(state)
    assert_state(other, state)
    assert all(a is b for a, b in zip(other.parameters(), parameters, strict=True))
    assert {p.device for p in parameters} == {tn.tensor(0.0, device=back).device}


def test_a_state_is_a_copy(cupy):
    layer = nn.Linear(3, 2, rng=0, device="cuda")
    state = layer.state_dict()
    kept = {name: array.copy() for name, array in state.items()}
    for array in state.values():
        array[...] = 0.0
    assert_state(layer, kept)
    layer.load_state_dict(state)
    for array in state.values():
        array[...] = 1.0
    assert_state(layer, {name: np.zeros_like(array) for name, array in kept.items()})


def test_a_state_of_device_tensors_loads(cupy):
    layer = nn.Linear(3, 2, rng=0)
    state = {name: tn.tensor(array, device="cuda") for name, array in nn.Linear(3, 2, rng=5).state_dict().items()}
    layer.load_state_dict(state)
    assert_state(layer, {name: t.numpy() for name, t in state.items()})


def test_a_bad_state_changes_nothing(cupy):
    layer = nn.Linear(3, 2, rng=0, device="cuda")
    before = layer.state_dict()
    with pytest.raises(tn.errors.StateError):
        layer.load_state_dict({"weight": np.zeros((2, 3), np.float32), "bias": np.zeros(3, np.float32)})
    assert_state(layer, before)


# Copies


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))], ids=["deepcopy", "pickle"])
def test_copies_of_a_tensor_are_leaves_on_its_device(cupy, copied):
    w = tn.tensor([1.0, 2.0], device="cuda", requires_grad=True)
    (w * w).sum().backward()
    other = copied(w)
    assert (other.device, other.requires_grad, device_of(other.grad)) == ("cuda:0", True, "cuda:0")
    np.testing.assert_array_equal(other.numpy(), [1.0, 2.0])
    np.testing.assert_array_equal(to_device(other.grad, CPU), [2.0, 4.0])
    other.data[...] = 0.0
    np.testing.assert_array_equal(w.numpy(), [1.0, 2.0])


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
def test_copies_of_a_module_are_on_its_device(cupy, copied):
    model = MLP(norm="layer", device="cuda")
    other = copied(model)
    assert {p.device for p in other.parameters()} == {"cuda:0"}
    assert_state(other, model.state_dict())
    assert not {id(p) for p in model.parameters()} & {id(p) for p in other.parameters()}


def test_a_shallow_copy_shares_memory(cupy):
    t = tn.tensor([1.0, 2.0], device="cuda")
    other = copy.copy(t)
    other.data[...] = 3.0
    assert t.numpy().tolist() == [3.0, 3.0]
