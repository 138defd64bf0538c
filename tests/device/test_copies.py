"""What is copied from the device to the host: what a user asks for, and nothing else.

Such a copy waits until the device has done all that it was asked to do; one of them in each operation would undo what a
device is good for. The stand-in counts them, and so does the real CuPy on the CPU.
"""

import contextlib
import sys

import numpy as np
import pytest

import tinynorm as tn
from tinynorm.testing.cases import CASES

F = tn.functional
ROWS, WIDTH = 6, 8


@pytest.fixture
def copies(cupy):
    """A context that gives a list, which has an element for each copy to the host once it is over."""

    @contextlib.contextmanager
    def of_the_stand_in():
        before = len(cupy.machine.to_host)
        found = []
        yield found
        found += cupy.machine.to_host[before:]

    @contextlib.contextmanager
    def of_the_real_one():
        import cupy_on_cpu

        found = []
        with cupy_on_cpu.counted() as counts:
            yield found
        found += ["a copy"] * counts.copies_to_host

    if hasattr(cupy, "machine"):
        return of_the_stand_in
    if "cupy_on_cpu" not in sys.modules:
        pytest.skip("a GPU does not count its copies")
    return of_the_real_one


@pytest.fixture
def rng():
    return np.random.default_rng(20261130)


def block(norm=None, activation=None):
    """A small model with a norm and an activation in it."""
    return tn.nn.Sequential(
        tn.nn.Linear(WIDTH, WIDTH, rng=0),
        norm or tn.nn.RMSNorm(WIDTH),
        activation or tn.nn.ReLU(),
        tn.nn.Dropout(0.25, rng=0),
        tn.nn.Linear(WIDTH, 3, rng=0),
    )


MODELS = {
    "PreNormMLP": lambda: tn.nn.PreNormMLP(WIDTH, 4, depth=1, out_features=3, rng=0),
    "RMSNorm": lambda: block(tn.nn.RMSNorm(WIDTH)),
    "RMSNorm at eps 0": lambda: block(tn.nn.RMSNorm(WIDTH, eps=0.0)),
    "RMSNorm with all options": lambda: block(
        tn.nn.RMSNorm(WIDTH, bias=True, partial=0.5, weight_offset=1.0, eps_mode="outside")
    ),
    "LayerNorm": lambda: block(tn.nn.LayerNorm(WIDTH)),
    "Softmax": lambda: block(activation=tn.nn.Softmax()),
    "LogSoftmax": lambda: block(activation=tn.nn.LogSoftmax()),
    **{name: lambda make=make: block(activation=make()) for name, make in tn.nn.activations.ACTIVATIONS.items()},
}

LOSSES = {
    "cross_entropy": lambda z, t: F.cross_entropy(z, t, label_smoothing=0.1),
    "nll_loss": lambda z, t: F.nll_loss(F.log_softmax(z), t, reduction="sum"),
    "mse_loss": lambda z, t: F.mse_loss(z, tn.as_tensor(np.ones((ROWS, 3), np.float32), device=z.device)),
}


def batch(rng, device="cuda"):
    return (
        tn.tensor(rng.normal(size=(ROWS, WIDTH)).astype(np.float32), device=device),
        tn.tensor(np.arange(ROWS) % 3, device=device),
    )


@pytest.mark.parametrize("switch", [contextlib.nullcontext, tn.formulas_only], ids=["kernels", "formulas"])
@pytest.mark.parametrize("name", MODELS)
def test_a_training_step_copies_nothing_but_the_loss_that_is_asked_for(cupy, copies, rng, name, switch):
    model, (x, classes) = MODELS[name]().to("cuda"), batch(rng)
    with copies() as found, switch():
        model.zero_grad()
        loss = F.cross_entropy(model(x), classes)
        loss.backward()
    assert found == []
    assert all(p.grad is not None for p in model.parameters())
    with copies() as found:
        loss.item()
    assert len(found) == 1


@pytest.mark.parametrize("loss", LOSSES)
def test_nor_does_any_loss(cupy, copies, rng, loss):
    z, classes = tn.tensor(rng.normal(size=(ROWS, 3)), device="cuda", requires_grad=True), batch(rng)[1]
    with copies() as found:
        LOSSES[loss](z, classes).backward()
    assert found == []


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("astype", "scatter")])
def test_no_operation_copies_forward_or_backward_or_for_its_second_derivative(cupy, copies, rng, name):
    """Indices are the host's here, as they are mostly; what a mask on the device costs stands below."""
    case = CASES[name]
    for setting in case.always if hasattr(cupy, "machine") else case.always[-1:]:
        if any(isinstance(option, tn.Tensor) or np.array_equal(option, True) for option in setting.options.values()):
            continue  # masks on the device, and one without axes
        arrays = case.inputs(rng, setting)
        leaves = [tn.tensor(a, device="cuda", requires_grad=a.dtype.kind == "f") for a in arrays]
        wanted = [t for t in leaves if t.requires_grad]
        with copies() as found:
            y = case.call(*leaves, **setting.options)
            firsts = tn.grad(y, wanted, tn.tensor(rng.normal(size=y.shape), device="cuda"), create_graph=True)
            tn.grad(firsts, wanted, [tn.tensor(rng.normal(size=g.shape), device="cuda") for g in firsts])
        assert found == [], setting


ASKED_FOR = {
    "float": float,
    "int": int,
    "bool": bool,
    "item": lambda t: t.item(),
    "numpy": lambda t: t.numpy(),
    "to": lambda t: t.to("cpu"),
    "repr": repr,
    "str": str,
    "format": lambda t: f"{t:.3f}",
    "format without a form": lambda t: f"{t}",
}


@pytest.mark.parametrize("name", ASKED_FOR)
def test_what_is_asked_for_is_one_copy(cupy, copies, name):
    t = tn.tensor(2.5, device="cuda")
    with copies() as found:
        ASKED_FOR[name](t)
    assert len(found) == 1


def test_asking_for_what_is_known_copies_nothing(cupy, copies):
    t = tn.tensor([[1.0, 2.0]], device="cuda", requires_grad=True)
    with copies() as found:
        assert (t.shape, t.dtype, t.ndim, t.size, len(t)) == ((1, 2), np.float32, 2, 2, 1)
        assert t.device == "cuda:0"
        assert t.detach().T.shape == (2, 1)
        assert [row.shape for row in t] == [(2,)]
        hash(t)
    assert found == []


def test_arrays_that_were_handed_out_are_not_copied_to_be_compared(cupy, copies, rng):
    """On the host the library keeps their checksums; on a device it would have to copy each of them for that."""
    x = cupy.asarray(rng.normal(size=(ROWS, WIDTH)).astype(np.float32))
    layer = tn.nn.Linear(WIDTH, 3, rng=0, device="cuda")
    with copies() as found:
        held = layer.weight.data
        y = layer(tn.as_tensor(x))
        y.data  # noqa: B018
        (y * y).sum().backward()
        held -= 0.1 * layer.weight.grad
    assert found == []


def test_what_the_library_writes_is_noticed_on_a_device_too(cupy, rng):
    layer, (x, _) = tn.nn.Linear(WIDTH, 3, rng=0, device="cuda"), batch(rng)
    x.requires_grad = True
    loss = layer(x).sum()
    layer.load_state_dict(tn.nn.Linear(WIDTH, 3, rng=1).state_dict())
    with pytest.raises(tn.errors.GraphError, match="linear still needs an array of shape"):
        loss.backward()
    assert x.grad is None


def test_moving_and_loading_copy_to_the_device_only(cupy, copies):
    model = tn.nn.PreNormMLP(WIDTH, 4, 1, 3, rng=0)
    state = model.state_dict()
    with copies() as found:
        model.to("cuda")
        model.load_state_dict(state)
    assert found == []
    with copies() as found:
        model.state_dict()
    assert len(found) == len(state)


def test_an_index_of_the_host_is_no_copy_and_a_mask_on_the_device_is_counted_once(cupy, copies, rng):
    x, mask = tn.tensor(rng.normal(size=(4, 3)), device="cuda", requires_grad=True), rng.random((4, 3)) < 0.5
    for index in (1, -1, slice(1, 3), [0, 2, 2], np.array([1, -1]), mask, mask[:, 0], (None, mask[:, 1], 2)):
        with copies() as found:
            x[index].sum().backward()
        assert found == [], index
    with copies() as found:
        (x[tn.tensor(mask, device="cuda")] ** 2).sum().backward()
    assert len(found) == 1
