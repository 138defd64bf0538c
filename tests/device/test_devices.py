"""Several devices: arrays stay where they are made, whichever device is the current one, and where two meet is said.

The lists of what must refuse two devices are made from the table of all calls and from the Tensor's own operators, so
that a new operation is among them.
"""

import copy
import inspect
import operator
import pickle
import re
from functools import partial

import numpy as np
import pytest

import tinynorm as tn
from tinynorm import nn
from tinynorm.backend import CPU, device_of, to_device
from tinynorm.testing.cases import CASES, OPS
from tinynorm.testing.values import real

from .beside import EACH_CASE, assert_all_on, assert_same, inputs_of, outcome, placed

F = tn.functional

PAIRS = [("cpu", "cuda:0"), ("cuda:0", "cpu"), ("cuda:0", "cuda:1"), ("cuda:1", "cuda:0"), ("cpu", "cuda:1")]
EACH_PAIR = pytest.mark.parametrize("devices", PAIRS, ids=" and ".join)


@pytest.fixture
def two_devices(quick_cupy):
    """The module, where it has two devices."""
    if quick_cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("this machine has one GPU")
    return quick_cupy


# Where two meet

SEVERAL = [name for name, case in CASES.items() if len(case.typical.shapes) > 1]


def test_every_operation_of_several_operands_is_here():
    """Whatever has a formula of more than one array, but for dropout, which draws its second one itself."""
    takes = {op for op in OPS.values() if len(arrays_of(op.forward)) > 1}
    assert takes - {OPS["dropout"]} <= {CASES[name].op for name in SEVERAL}


def arrays_of(formula):
    """The names of a forward formula's arrays; one that takes any number counts twice."""
    kinds = {p.name: p.kind for p in inspect.signature(formula).parameters.values()}
    names = [name for name, kind in kinds.items() if kind in (kind.POSITIONAL_OR_KEYWORD, kind.VAR_POSITIONAL)]
    return [*names[1:], *(name for name, kind in kinds.items() if kind is kind.VAR_POSITIONAL)]


def assert_refuses(name, devices, call, tensors):
    """The error has the operation, every operand and where it is, and what to write."""
    with pytest.raises(tn.errors.DeviceError) as caught:
        call()
    message = str(caught.value)
    assert message.startswith(f"{name}: the operands live on different devices")
    for t in tensors:
        assert f"{t.dtype}{list(t.shape)} on {t.device!r}" in message
    assert f'.to("{max(devices)}")' in message


def refuse(name, devices):
    """A case whose first input is on one device, and whose others are on another."""
    inputs, _ = inputs_of(name, CASES[name].typical, np.float32)
    tensors = [placed(a, devices[min(i, 1)]) for i, a in enumerate(inputs)]
    call = partial(CASES[name].call, *tensors, **CASES[name].typical.options)
    assert_refuses(CASES[name].op.name, devices, call, tensors)
    assert all(t.grad is None for t in tensors)


@EACH_PAIR
@pytest.mark.parametrize("name", SEVERAL)
def test_operands_on_two_devices(two_devices, name, devices):
    refuse(name, devices)


@pytest.mark.parametrize("name", SEVERAL)
def test_a_host_operand_on_the_real_cupy(cupy, name):
    refuse(name, ("cuda:0", "cpu"))


def binary_operators():
    """The Tensor's operators of two operands, by the name of Python's function."""
    names = [name.strip("_") for name, method in vars(tn.Tensor).items() if re.fullmatch("__[a-z]+__", name)
             and callable(method) and list(inspect.signature(method).parameters) == ["self", "other"]]  # fmt: skip
    return [name for name in names if not name.startswith("r") or name == "rshift"]


@EACH_PAIR
@pytest.mark.parametrize("name", binary_operators())
def test_operators_on_two_devices(two_devices, name, devices):
    kind = np.bool_ if name in ("and", "or") else np.float32
    a, b = (tn.tensor(np.ones((2, 3, 3)), dtype=kind, device=device) for device in devices)
    function = getattr(operator, f"__{name}__")
    called = {"sub": "subtract", "mul": "multiply", "truediv": "divide", "pow": "power"}.get(name, name)
    assert_refuses(called, devices, lambda: function(a, b), [a, b])


def test_the_operators_are_all_there():
    assert {"add", "sub", "mul", "truediv", "pow", "matmul", "lt", "gt", "le", "ge", "eq", "ne", "and", "or"} == set(
        binary_operators()
    )


@EACH_PAIR
@pytest.mark.parametrize("loss", [F.cross_entropy, F.nll_loss])
def test_class_weights_elsewhere(two_devices, loss, devices):
    scores, weight = tn.tensor(np.zeros((2, 3)), device=devices[0]), to_device(np.ones(3), devices[1])
    for given in (weight, tn.as_tensor(weight)):
        with pytest.raises(tn.errors.DeviceError, match=rf"{loss.__name__}: .*different devices.*\.to\("):
            loss(scores, tn.tensor([0, 1], device=devices[0]), given)


@EACH_PAIR
def test_an_operation_of_the_users(two_devices, devices):
    @tn.op("mine")
    def mine(xp, a, b):
        return a * b, None

    a, b = (tn.tensor([1.0], device=device) for device in devices)
    words = rf"^mine: .*a: float32\[1\] on '{devices[0]}' and b: float32\[1\] on '{devices[1]}'"
    with pytest.raises(tn.errors.DeviceError, match=words):
        mine(a, b)


DERIVATIVES = {
    "backward": lambda y, x, dy: y.backward(dy),
    "grad": lambda y, x, dy: tn.grad(y, x, dy),
    "vjp": lambda y, x, dy: tn.vjp(tn.exp, [x.detach()], dy),
    "jvp": lambda y, x, dy: tn.jvp(tn.exp, [x.detach()], [dy]),
    "hvp": lambda y, x, dy: tn.hvp(lambda x: tn.exp(x).sum(), [x.detach()], [dy]),
}


@EACH_PAIR
@pytest.mark.parametrize("name", DERIVATIVES)
def test_a_cotangent_or_tangent_elsewhere(two_devices, name, devices):
    x = tn.tensor([1.0, 2.0], device=devices[0], requires_grad=True)
    y = tn.exp(x)
    argument = {"backward": "gradient", "grad": "grad_outputs"}.get(name, "v")
    words = rf"^{name}: .*{argument}: float64\[2\] on '{devices[1]}' and the tensor: float32\[2\] on '{devices[0]}'"
    with pytest.raises(tn.errors.DeviceError, match=words):
        DERIVATIVES[name](y, x, to_device(np.ones(2), devices[1]))
    assert x.grad is None


@EACH_PAIR
def test_parameters_of_one_optimizer(two_devices, devices):
    a = tn.tensor([1.0], device=devices[0], requires_grad=True)
    b = tn.tensor([[1.0]], device=devices[1], requires_grad=True)
    words = rf"parameter 0 is on '{devices[0]}' and parameter 1, of shape \(1, 1\), on '{devices[1]}'"
    for optimizer in (tn.optim.SGD, tn.optim.Adam, tn.optim.AdamW):
        for params in ([a, b], [{"params": [a]}, {"params": [b]}]):
            with pytest.raises(tn.errors.DeviceError, match=f"^{optimizer.__name__}: {words}"):
                optimizer(params)


@EACH_PAIR
def test_a_gradient_elsewhere_than_its_tensor(two_devices, devices):
    w = tn.tensor([1.0, 2.0], device=devices[0], requires_grad=True)
    with pytest.raises(tn.errors.TinynormError, match="grad"):
        w.grad = to_device(np.ones(2, np.float32), devices[1])
    assert w.grad is None


# Where arrays are made

MAKERS = {
    "tensor": lambda device: tn.tensor([1.0, 2.0], device=device),
    "tensor of an array": lambda device: tn.tensor(np.ones(2), device=device),
    "tensor of a Tensor": lambda device: tn.tensor(tn.tensor([1.0, 2.0], device=device)),
    "tensor of its array": lambda device: tn.tensor(to_device(np.ones(2), device)),
    "as_tensor": lambda device: tn.as_tensor([1.0, 2.0], device=device),
    "as_tensor of an array": lambda device: tn.as_tensor(np.ones(2), device=device),
    "as_tensor of a Tensor": lambda device: tn.as_tensor(tn.tensor([1.0, 2.0], device=device)),
    "as_tensor of its array": lambda device: tn.as_tensor(to_device(np.ones(2), device)),
    "to": lambda device: tn.tensor([1.0, 2.0]).to(device),
    "Linear": lambda device: nn.Linear(3, 2, device=device),
    "RMSNorm": lambda device: nn.RMSNorm(3, bias=True, device=device),
    "LayerNorm": lambda device: nn.LayerNorm(3, device=device),
    "PreNormMLP": lambda device: nn.PreNormMLP(3, 4, 1, 2, device=device),
    "Module.to": lambda device: nn.PreNormMLP(3, 4, 1, 2).to(device),
}


def test_every_maker_is_here():
    """Whatever takes device=, or is called `to`."""
    public = [(name, getattr(module, name)) for module in (tn, nn, F, tn.optim, tn.data) for name in module.__all__]
    takes = {n for n, f in public if callable(f) and "device" in inspect.signature(f).parameters}
    assert takes == {name.partition(" ")[0] for name in MAKERS if name not in ("to", "Module.to")}


@pytest.mark.parametrize("current", [0, 1])
@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:1"])
@pytest.mark.parametrize("name", MAKERS)
def test_what_is_made_is_on_the_device_that_was_named(two_devices, name, device, current):
    with two_devices.cuda.Device(current):
        made = MAKERS[name](device)
    tensors = [made] if isinstance(made, tn.Tensor) else list(made.parameters())
    assert {t.device for t in tensors} == {"cuda:0" if device == "cuda" else device}


# Whichever device is the current one


@EACH_CASE
def test_results_stay_on_their_device(two_devices, name):
    """Of all operations, with gradients and caches: `outcome` asserts it."""
    inputs, dy = inputs_of(name, CASES[name].typical, np.float32)
    call = partial(CASES[name].call, **CASES[name].typical.options)
    with tn.formulas_only(), two_devices.cuda.Device(0):
        assert_same(two_devices, outcome(call, inputs, dy, "cuda:1"), outcome(call, inputs, dy, "cpu"))


@pytest.mark.parametrize("current", [0, 1])
def test_second_derivatives_stay_on_their_device(two_devices, current):
    rng = np.random.default_rng(0)
    with two_devices.cuda.Device(current):
        x = tn.tensor(real(rng, (3, 4)), device="cuda:1", requires_grad=True)
        (first,) = tn.grad(tn.tanh(F.layer_norm(x, 4)).sum(), x, create_graph=True)
        assert_all_on("cuda:1", first)
        (second,) = tn.grad((first * first).sum(), x)
    assert (first.device, second.device) == ("cuda:1", "cuda:1")


@pytest.mark.parametrize("optimizer", [tn.optim.SGD, tn.optim.Adam, tn.optim.AdamW])
def test_a_step_of_training_stays_on_its_device(two_devices, optimizer):
    rng = np.random.default_rng(0)
    with two_devices.cuda.Device(0):
        model = nn.Sequential(nn.Dropout(0.2, rng=0), nn.PreNormMLP(6, 4, 1, 3, rng=0)).to("cuda:1")
        steps = optimizer(model, lr=0.1)
        for _ in range(2):
            x, y = tn.tensor(real(rng, (5, 6)), np.float32, "cuda:1"), tn.tensor(rng.integers(0, 3, 5), device="cuda:1")
            loss = F.cross_entropy(model(x), y)
            steps.zero_grad()
            loss.backward()
            tn.optim.clip_grad_norm_(model.parameters(), 0.1)
            steps.step()
    assert loss.device == "cuda:1"
    for p in model.parameters():
        assert (p.device, device_of(p.grad)) == ("cuda:1", "cuda:1")
    for state in steps.state.values():
        assert {device_of(a) for slot, a in state.items() if slot != "step"} <= {"cuda:1"}


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("made", [tn.as_tensor, lambda array: array], ids=["Tensors", "arrays"])
def test_batches_stay_on_their_device(two_devices, made, shuffle):
    x = np.arange(10.0)
    there = made(to_device(x, "cuda:1"))
    for (xs, ys), (right, _) in zip(*(tn.data.batches(a, a, 4, shuffle, rng=5) for a in (there, x)), strict=True):
        for batch in (xs, ys):
            assert tn.as_tensor(batch).device == "cuda:1"
            np.testing.assert_array_equal(tn.as_tensor(batch).numpy(), right)


def test_looking_at_numbers_works_from_another_device(two_devices):
    with two_devices.cuda.Device(0):
        t = tn.tensor([[1.0, 2.0], [3.0, 4.0]], device="cuda:1")
        assert t.numpy().tolist() == [[1.0, 2.0], [3.0, 4.0]]
        assert repr(t[0]) == "Tensor([1., 2.], dtype=float32, device='cuda:1')"
        assert (float(t.sum()), bool((t > 0.0)[0, 0]), f"{t.max():.1f}") == (10.0, True, "4.0")


def test_moving_between_devices(two_devices):
    w = tn.tensor([1.0, 2.0], device="cuda:0", requires_grad=True)
    (w * w).sum().backward()
    layer = nn.Linear(2, 2, rng=0, device="cuda:0")
    before = layer.state_dict()
    assert w.to("cuda:1").to("cuda:0").numpy().tolist() == [1.0, 2.0]
    for device in ("cuda:1", "cuda:0"):
        layer.to(device)
        assert {p.device for p in layer.parameters()} == {device}
        for name, array in layer.state_dict().items():
            np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize("part", [np.s_[:, ::2], np.s_[::-1], np.s_[1:, 1:]], ids=str)
def test_arrays_with_gaps_move_between_devices(two_devices, part):
    x = np.arange(12.0).reshape(3, 4)
    w = tn.as_tensor(to_device(x, "cuda:0")[part], requires_grad=True)
    w.grad = to_device(-x, "cuda:0")[part]
    holder = nn.Module()
    holder.w = nn.Parameter(w)
    holder.w.grad = w.grad
    holder.to("cuda:1")
    for moved in (w.to("cuda:1"), tn.tensor(w, device="cuda:1"), holder.w):
        assert moved.device == "cuda:1"
        np.testing.assert_array_equal(moved.numpy(), x[part])
    assert device_of(holder.w.grad) == "cuda:1"
    np.testing.assert_array_equal(to_device(holder.w.grad, CPU), -x[part])


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))], ids=["deepcopy", "pickle"])
def test_copies_are_on_the_same_device(two_devices, copied):
    w = tn.tensor([1.0, 2.0], device="cuda:1", requires_grad=True)
    (w * w).sum().backward()
    other, optimizer = copied([w, tn.optim.Adam([w])])
    assert (other.device, device_of(other.grad)) == ("cuda:1", "cuda:1")
    optimizer.step()
    copied(optimizer).step()  # with moments
    assert other.numpy().tolist() == pytest.approx([0.999, 1.999])


def test_indices_of_another_device_are_refused(two_devices):
    x = tn.tensor([1.0, 2.0], device="cuda:0")
    with pytest.raises(tn.errors.DeviceError, match=r"getitem: the index is on .cuda:1., the tensor on .cuda:0."):
        x[tn.tensor([0, 1], device="cuda:1")]
