"""Devices: their names, what is said where one is missing, and host and device arrays that meet.

No GPU is needed. A stand-in for CuPy, made below, holds host arrays that say they live on a GPU.
"""

import operator
import re
import sys
import types
from contextlib import contextmanager

import numpy as np
import pytest

import tinynorm as tn
from tinynorm import backend
from tinynorm.failures import device_failure

F = tn.functional


class DeviceArray:
    """A host array that claims to live on a GPU. As with CuPy's, NumPy cannot look into it."""

    __array_ufunc__ = None
    base = None
    flags = types.SimpleNamespace(c_contiguous=True)  # CuPy's know no writeable

    def __init__(self, host, device):
        self.host, self.device = host, types.SimpleNamespace(id=device)

    shape = property(lambda self: self.host.shape)
    dtype = property(lambda self: self.host.dtype)
    ndim = property(lambda self: self.host.ndim)
    size = property(lambda self: self.host.size)
    strides = property(lambda self: self.host.strides)

    def __array__(self, *_, **__):
        raise TypeError("Implicit conversion to a NumPy array is not allowed")

    def item(self):
        return self.host.item()

    def copy(self):
        return DeviceArray(self.host.copy(), self.device.id)

    def astype(self, dtype, copy=True):
        return DeviceArray(self.host.astype(dtype, copy=copy), self.device.id)

    def any(self):
        return on_device(np.any)(self)

    def min(self):
        return on_device(np.min)(self)

    def sum(self, **options):
        return on_device(np.sum)(self, **options)

    def __getitem__(self, index):
        return on_device(operator.getitem)(self, index)

    def __setitem__(self, index, value):
        self.host[index] = value.host if isinstance(value, DeviceArray) else value

    def __float__(self):
        return float(self.host)

    def __bool__(self):
        return bool(self.host)


def on_device(function):
    """A NumPy function that takes DeviceArrays and, as CuPy does, puts its result on the device that is current."""

    def bare(value):
        if isinstance(value, DeviceArray):
            return value.host
        # CuPy moves host arrays to the device by itself where they are indices, and nowhere else.
        assert function is operator.getitem or not isinstance(value, np.ndarray), "a host array among the device's"
        return type(value)(map(bare, value)) if isinstance(value, (tuple, list)) else value

    def run(*arguments, **options):
        return there(function(*map(bare, arguments), **{k: bare(v) for k, v in options.items()}))

    def there(result):
        if type(result) is tuple:
            return tuple(map(there, result))
        return DeviceArray(np.asarray(result), CURRENT[-1]) if isinstance(result, (np.ndarray, np.generic)) else result

    return run


for _name in ["add", "sub", "mul", "truediv", "pow", "matmul", "lt", "le", "gt", "ge", "eq", "ne", "neg", "and", "or"]:
    _function = getattr(operator, f"{_name}_" if _name in ("and", "or") else _name)
    setattr(DeviceArray, f"__{_name}__", (lambda f: lambda *a: on_device(f)(*a))(_function))
    setattr(DeviceArray, f"__r{_name}__", (lambda f: lambda a, b: on_device(f)(b, a))(_function))
DeviceArray.__invert__ = lambda array: on_device(operator.invert)(array)
DeviceArray.__hash__ = object.__hash__

CURRENT = [0]


@contextmanager
def device_context(index):
    CURRENT.append(index)
    try:
        yield
    finally:
        CURRENT.pop()


class CUDARuntimeError(RuntimeError):
    """As CuPy's, with the number of the error."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


def stand_in(count, driver=13020):
    """A module of so many GPUs; or one whose driver raises an error instead of a count."""

    def get_device_count():
        if isinstance(count, Exception):
            raise count
        return count

    cupy = types.ModuleType("cupy")
    cupy.ndarray = DeviceArray
    cupy.cuda = types.SimpleNamespace(
        runtime=types.SimpleNamespace(
            getDeviceCount=get_device_count, driverGetVersion=lambda: driver, CUDARuntimeError=CUDARuntimeError
        ),
        Device=device_context,
    )
    cupy.asnumpy = lambda array: array.host.copy()
    cupy.byte_bounds = lambda array: np.lib.array_utils.byte_bounds(array.host)
    cupy.asarray = lambda array, order="K": (
        array
        if isinstance(array, DeviceArray) and array.device.id == CURRENT[-1]
        else DeviceArray(np.array(getattr(array, "host", array), order=order), CURRENT[-1])
    )
    cupy.__getattr__ = lambda name: on_device(getattr(np, name))
    return cupy


@pytest.fixture
def no_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)  # importing it fails, whether or not it is installed


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", stand_in(2))


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", stand_in(0))


@pytest.fixture
def rng():
    return np.random.default_rng(20240505)


# Names

UNKNOWN = ["gpu", "", "CPU", "CUDA", "cuda:", "cuda:x", "cuda:-1", "cuda:1.5", "cuda:0:0", "cuda0", "cpu:0", " cuda", 1,
           0, -1, 1.0, None, True, False, ("cuda", 0), b"cuda", np.float32]  # fmt: skip


@pytest.mark.parametrize("device", UNKNOWN, ids=repr)
def test_an_unknown_device_is_answered_with_the_known_ones(device):
    with pytest.raises(tn.errors.DeviceError, match=re.escape(repr(device)) + r'.*"cpu", "cuda" or "cuda:N"'):
        tn.tensor([1.0]).to(device)


@pytest.mark.parametrize("device", [d for d in UNKNOWN if d is not None], ids=repr)
@pytest.mark.parametrize("make", [tn.tensor, tn.as_tensor])
def test_an_unknown_device_is_refused_where_a_tensor_is_made(make, device):
    with pytest.raises(tn.errors.DeviceError, match=r'"cpu", "cuda" or "cuda:N"'):
        make([1.0], device=device)


def test_the_host_needs_no_cupy(no_cupy):
    t = tn.tensor([1.0], device="cpu")
    assert t.device == "cpu"
    assert t.to("cpu") is t
    assert tn.as_tensor(t, device="cpu") is t
    assert tn.as_tensor(np.ones(2), device="cpu").device == "cpu"
    assert (t * 2.0).device == "cpu"


# A device that is not there

USES = {
    "to": lambda device: tn.tensor([1.0]).to(device),
    "tensor": lambda device: tn.tensor([1.0], device=device),
    "as_tensor": lambda device: tn.as_tensor([1.0], device=device),
    "as_tensor of a Tensor": lambda device: tn.as_tensor(tn.tensor([1.0]), device=device),
    "Linear": lambda device: tn.nn.Linear(2, 2, device=device),
    "RMSNorm": lambda device: tn.nn.RMSNorm(2, device=device),
    "LayerNorm": lambda device: tn.nn.LayerNorm(2, device=device),
    "PreNormMLP": lambda device: tn.nn.PreNormMLP(2, 2, 1, 2, device=device),
    "Module.to": lambda device: tn.nn.Linear(2, 2).to(device),
}


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:1"])
@pytest.mark.parametrize("use", USES)
def test_without_cupy_its_installation_is_named(no_cupy, use, device):
    with pytest.raises(tn.errors.DeviceError, match=rf"device {device!r} needs CuPy.*pip install 'tinynorm\[cuda1"):
        USES[use](device)


@pytest.mark.parametrize("use", USES)
def test_without_a_gpu_the_host_is_named(no_gpu, use):
    with pytest.raises(tn.errors.DeviceError, match=r"'cuda' is not there.*\"cpu\""):
        USES[use]("cuda")


NOTHING_THERE = {
    "no driver": (0, 0, "CuPy is installed, but no CUDA driver; install the one for your GPU"),
    "no GPU": (CUDARuntimeError(100, "cudaErrorNoDevice"), 13020, 'the CUDA driver finds no GPU; use device="cpu"'),
    "an old driver": (
        CUDARuntimeError(35, "cudaErrorInsufficientDriver"), 11040,
        r"CuPy cannot work with the CUDA driver \(cudaErrorInsufficientDriver\); install a newer",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NOTHING_THERE)
def test_what_is_missing_is_named(monkeypatch, case):
    count, driver, words = NOTHING_THERE[case]
    monkeypatch.setitem(sys.modules, "cupy", stand_in(count, driver))
    with pytest.raises(tn.errors.DeviceError, match=f"device 'cuda' is not there: {words}"):
        tn.tensor([1.0]).to("cuda")


@pytest.mark.parametrize("use", USES)
def test_a_gpu_beyond_the_last_one(two_gpus, use):
    with pytest.raises(tn.errors.DeviceError, match="'cuda:2' is not there: this machine has 2"):
        USES[use]("cuda:2")


def test_a_module_that_cannot_move_stays_where_it_was(no_cupy):
    layer = tn.nn.Linear(2, 2, rng=0)
    before = [p.data for p in layer.parameters()]
    with pytest.raises(tn.errors.DeviceError):
        layer.to("cuda")
    assert all(p.data is array for p, array in zip(layer.parameters(), before, strict=True))


def test_asking_for_a_device_imports_nothing_before(monkeypatch):
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    t = tn.tensor([1.0, 2.0], requires_grad=True)
    (t * np.ones(2)).sum().backward()
    with pytest.raises(tn.errors.DeviceError):
        t.to("gpu")
    assert "cupy" not in sys.modules


# To a device and back


def test_moving(two_gpus):
    host = np.array([1.0, 2.0])
    t = tn.tensor(host)
    for name, full in [("cuda", "cuda:0"), ("cuda:0", "cuda:0"), ("cuda:1", "cuda:1")]:
        moved = t.to(name)
        assert moved.device == full
        assert isinstance(moved.data, DeviceArray)
        assert moved.to("cpu").device == "cpu"
        assert moved.to("cpu").data.tolist() == [1.0, 2.0]
        assert moved.numpy().tolist() == [1.0, 2.0]
        assert repr(moved) == f"Tensor([1., 2.], dtype=float64, device='{full}')"
        assert moved.sum().item() == 3.0
    assert t.device == "cpu"
    assert t.to("cuda:0").to("cuda:1").device == "cuda:1"


@pytest.mark.parametrize("device", ["cuda:0", "cuda:1"])
@pytest.mark.parametrize("make", [tn.tensor, tn.as_tensor])
def test_a_tensor_is_made_where_it_is_asked_for(two_gpus, make, device):
    moved = tn.tensor([1.0, 2.0]).to(device)
    for t in (make([1.0, 2.0], device=device), make(np.ones(2), device=device), make(moved), make(moved.data)):
        assert t.device == device
    assert tn.nn.Linear(2, 2, device=device).weight.device == device


def test_the_same_device_is_the_same_tensor(two_gpus):
    t = tn.tensor([1.0], device="cuda:0")
    assert t.to("cuda:0") is t
    assert t.to("cuda") is t
    assert tn.as_tensor(t, device="cuda") is t


def test_moving_makes_a_leaf(two_gpus):
    w = tn.tensor([1.0, 2.0], requires_grad=True)
    moved = w.to("cuda")
    assert moved.requires_grad
    (moved * 3.0).backward(tn.tensor([1.0, 10.0]).to("cuda"))
    assert isinstance(moved.grad, DeviceArray)
    assert moved.grad.host.tolist() == [3.0, 30.0]
    assert w.grad is None
    assert tn.tensor([1.0]).to("cuda").requires_grad is False


def test_a_module_moves_as_the_object_it_is(two_gpus, rng):
    layer = tn.nn.Linear(3, 2, rng=0)
    weight, values = layer.weight, layer.weight.numpy().copy()
    x = rng.normal(size=(4, 3)).astype(np.float32)
    layer(x).sum().backward()
    gradient = layer.weight.grad.copy()
    assert layer.to("cuda") is layer
    assert layer.weight is weight
    assert weight.device == layer.bias.device == "cuda:0"
    assert isinstance(weight.grad, DeviceArray)
    np.testing.assert_array_equal(weight.grad.host, gradient)
    y = layer(tn.tensor(x, device="cuda"))
    assert y.device == "cuda:0"
    np.testing.assert_allclose(y.numpy(), x @ values.T + layer.bias.numpy(), rtol=1e-5)
    layer.to("cpu")
    assert type(weight.data) is type(weight.grad) is np.ndarray
    np.testing.assert_array_equal(weight.data, values)


@pytest.mark.parametrize("device", ["cuda:0", "cuda:1"])
def test_operations_and_gradients_stay_on_the_device(two_gpus, rng, device):
    x, g = rng.normal(size=(2, 3)), rng.normal(size=(2, 3))
    t = tn.tensor(x, requires_grad=True).to(device)
    y = 2.0 * tn.exp(t) * t + np.float64(1.0) / 4
    assert y.device == device
    y.backward(tn.tensor(g).to(device))
    assert isinstance(t.grad, DeviceArray)
    assert f"cuda:{t.grad.device.id}" == device
    np.testing.assert_allclose(t.grad.host, 2 * g * np.exp(x) * (x + 1), rtol=1e-12)
    t.grad = None
    y = (t * t).sum()
    y.backward()
    np.testing.assert_allclose(t.grad.host, 2 * x, rtol=1e-12)


@pytest.mark.parametrize("number", [2, 2.0, True, np.float64(2), np.float32(2), np.int64(2)], ids=repr)
def test_numbers_go_with_either_device(two_gpus, number):
    for device in ("cpu", "cuda:0"):
        t = tn.tensor([1.0, 4.0], device=device)
        for y in (number * t, t * number, t + number, number - t, number / t, tn.maximum(t, number), t > number):
            assert isinstance(y, tn.Tensor)
            assert y.device == device
        assert (number * t).numpy().tolist() == [1.0 * number, 4.0 * number]


@pytest.mark.parametrize("condition", [True, np.True_], ids=["bool", "np.bool"])
def test_a_lone_condition_goes_with_either_device(two_gpus, condition):
    for device in ("cpu", "cuda:0"):
        t = tn.tensor([1.0, 4.0], device=device)
        assert tn.where(condition, t, 0.0).device == device


def test_a_device_array_looks_into_no_host_array_by_itself(two_gpus):
    t = tn.tensor([1.0], device="cuda")
    with pytest.raises(tn.errors.DeviceError, match=r"'cuda:0'.*\.numpy\(\)"):
        np.asarray(t)


# Where they meet

BINARY = {
    "add": lambda a, b: a + b, "subtract": lambda a, b: a - b, "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b, "power": lambda a, b: a**b, "matmul": lambda a, b: a @ b, "maximum": tn.maximum,
    "minimum": tn.minimum, "where": lambda a, b: tn.where(True, a, b), "clip": lambda a, b: tn.clip(a, b),
    "concatenate": lambda a, b: tn.concatenate([a, b]), "stack": lambda a, b: tn.stack([a, b]),
    "einsum": lambda a, b: tn.einsum("ij,jk->ik", a, b), "linear": lambda a, b: F.linear(a, b),
    "rms_norm": lambda a, b: F.rms_norm(a, (2, 2), b), "layer_norm": lambda a, b: F.layer_norm(a, (2, 2), None, b),
    "mse_loss": lambda a, b: F.mse_loss(a, b), "lt": lambda a, b: a < b, "eq": lambda a, b: a == b,
    "and": lambda a, b: a.astype(bool) & b.astype(bool),
}  # fmt: skip


@pytest.mark.parametrize(
    "devices", [("cpu", "cuda:0"), ("cuda:0", "cpu"), ("cuda:0", "cuda:1"), ("cuda:1", "cuda:0")], ids=" and ".join
)
@pytest.mark.parametrize("name", BINARY)
def test_two_devices_in_one_operation_are_refused(two_gpus, name, devices):
    a, b = (tn.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True).to(d) for d in devices)
    with pytest.raises(tn.errors.DeviceError) as caught:
        BINARY[name](a, b)
    message = str(caught.value)
    kind = "bool" if name == "and" else "float32"
    for part in (f"{name}: ", "different devices", *(f"{kind}[2, 2] on '{d}'" for d in devices), '.to("cuda:'):
        assert part in message


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide", "power", "matmul", "lt"])
def test_a_host_array_on_either_side_is_refused_too(two_gpus, name):
    t, array = tn.tensor([[1.0, 2.0], [3.0, 4.0]], device="cuda"), np.ones((2, 2))
    reflected = {"lt": "gt"}.get(name, name)
    for function, found in [(lambda: BINARY[name](t, array), name), (lambda: BINARY[name](array, t), reflected)]:
        with pytest.raises(tn.errors.DeviceError, match=rf"{found}: .*float64\[2, 2\] on 'cpu'"):
            function()


@pytest.mark.parametrize(
    "function",
    [
        lambda z, t: F.cross_entropy(z, t),
        lambda z, t: F.nll_loss(z, t),
        lambda z, t: F.cross_entropy(tn.tensor(z, device="cpu"), tn.tensor(t, device="cuda")),
    ],
)
def test_classes_on_another_device_than_their_logits(two_gpus, function):
    with pytest.raises(tn.errors.DeviceError, match=r"(cross_entropy|nll_loss): .*different devices.*\.to\("):
        function(tn.tensor(np.zeros((2, 3)), device="cuda"), np.array([0, 1]))


def test_class_weights_on_another_device_than_the_logits(two_gpus):
    logits, target = tn.tensor(np.zeros((2, 3)), device="cuda"), tn.tensor([0, 1], device="cuda")
    with pytest.raises(tn.errors.DeviceError, match=r"cross_entropy: .*different devices.*\.to\("):
        F.cross_entropy(logits, target, weight=np.ones(3))


def test_a_host_array_is_an_index_on_the_device_too(two_gpus):
    """As CuPy has it; so that batches can be drawn on the host."""
    t = tn.tensor([1.0, 2.0, 3.0], device="cuda")
    for index in ([0, 2], np.array([0, 2]), tn.tensor([0, 2]), tn.tensor([0, 2], device="cuda")):
        y = t[index]
        assert y.device == "cuda:0"
        assert y.numpy().tolist() == [1.0, 3.0]


def test_a_users_operation_is_refused_as_well(two_gpus):
    @tn.op("mine")
    def mine(xp, a, b):
        return a * b, None

    with pytest.raises(
        tn.errors.DeviceError, match=r"mine: .*a: float32\[1\] on 'cuda:0' and b: float32\[1\] on 'cpu'"
    ):
        mine(tn.tensor([1.0], device="cuda"), tn.tensor([1.0]))


def test_a_gradient_on_another_device_is_refused(two_gpus):
    w = tn.tensor([1.0, 2.0], device="cuda", requires_grad=True)
    y = w * 2.0
    with pytest.raises(tn.errors.DeviceError, match=r"backward: .*gradient: float64\[2\] on 'cpu' and the tensor: fl"):
        y.backward(np.ones(2))
    assert w.grad is None


def test_grad_is_an_array_of_the_tensors_own_device(two_gpus):
    w = tn.tensor([1.0, 2.0], device="cuda", requires_grad=True)
    with pytest.raises(tn.errors.TinynormError, match=r"grad"):
        w.grad = np.ones(2, np.float32)
    assert w.grad is None


@tn.formulas_only()  # kernels are the host's, and round otherwise
def test_device_arrays_of_a_masked_loss_meet_no_host_array(two_gpus, rng):
    """All the way through a model: what the library makes for itself must be made on the device."""
    x = rng.normal(size=(4, 3)).astype(np.float32)
    model = tn.nn.PreNormMLP(3, 4, 1, 2, norm="layer", rng=0)
    losses, gradients = [], []
    for device in ("cpu", "cuda:0"):
        model.to(device)
        model.zero_grad()
        logits = F.dropout(model(tn.tensor(x, device=device)), 0.25, rng=1)
        target = tn.tensor([0, 1, 1, -100], device=device)
        loss = F.cross_entropy(logits, target, label_smoothing=0.1)
        loss.backward()
        assert loss.device == device
        losses.append(loss.item())
        gradients.append([np.array(getattr(p.grad, "host", p.grad)) for p in model.parameters()])
        assert all(isinstance(p.grad, np.ndarray if device == "cpu" else DeviceArray) for p in model.parameters())
    assert losses[0] == losses[1]
    for a, b in zip(*gradients, strict=True):
        np.testing.assert_array_equal(a, b)


# The functions that know of devices


def test_the_backend_is_a_property_of_the_array(two_gpus):
    host, device = np.ones(2), DeviceArray(np.ones(2), 1)
    assert backend.device_of(host) == "cpu"
    assert backend.device_of(device) == "cuda:1"
    assert backend.namespace(host) is np
    assert backend.namespace(device) is sys.modules["cupy"]
    assert backend.common_namespace("f", (host, 1.0, None, np.float64(1))) is np
    assert backend.common_namespace("f", (device, 1.0, None, np.float64(1))) is sys.modules["cupy"]
    assert backend.common_namespace("f", (1.0, None)) is np
    assert backend.to_device(host, "cpu") is host


def test_a_cupy_that_failed_to_import_is_as_none(no_cupy):
    assert backend.is_device_array(np.ones(2)) is False
    assert backend.common_namespace("f", (np.ones(2), np.ones(2))) is np
    assert (tn.tensor([1.0]) + np.ones(1)).device == "cpu"


def test_moving_a_result_is_refused_since_it_is_not_recorded(two_gpus):
    w = tn.tensor([1.0, 2.0], requires_grad=True)
    y = w * 2.0
    with pytest.raises(tn.errors.GraphError, match=r"to: moving the result of multiply .*detach"):
        y.to("cuda")
    assert y.to("cpu") is y
    assert y.detach().to("cuda").device == "cuda:0"


def test_a_scalar_loss_starts_its_walk_on_its_own_device(two_gpus):
    w = tn.tensor([1.0, 2.0], device="cuda:1", requires_grad=True)
    (w * w).sum().backward()
    assert backend.device_of(w.grad) == "cuda:1"
    np.testing.assert_array_equal(w.grad.host, [2.0, 4.0])


def test_an_optimizer_takes_parameters_of_one_device(two_gpus):
    here, there = tn.tensor([1.0], requires_grad=True), tn.tensor([[1.0]], requires_grad=True).to("cuda:1")
    for params in ([here, there], [{"params": [here]}, {"params": [there]}]):
        with pytest.raises(
            tn.errors.DeviceError,
            match=r"^Adam: parameter 0 is on 'cpu' and parameter 1, of shape \(1, 1\), on 'cuda:1'",
        ):
            tn.optim.Adam(params)


# A device that fails


class CUDADriverError(CUDARuntimeError):
    """As CuPy's, for what the driver refuses, such as a kernel's launch."""


class CUBLASError(CUDARuntimeError):
    """As CuPy's, for what its matrix products refuse."""


@pytest.mark.parametrize(("kind", "status"), [(CUDARuntimeError, 2), (CUDADriverError, 2), (CUBLASError, 3)])
def test_every_way_to_have_no_memory_is_told_as_such(two_gpus, kind, status):
    cupy = sys.modules["cupy"]
    cupy.cuda.runtime.memGetInfo = lambda: (3 << 29, 24 << 30)
    failure = device_failure("matmul", "cuda:1", kind(status, "its own words"))
    assert type(failure) is tn.errors.OutOfMemoryError
    assert str(failure).startswith("matmul: 'cuda:1' is out of memory: 1.5 GiB of 24.0 GiB are free. Take smaller")
    assert str(failure).endswith("CuPy says: its own words")


def test_a_device_without_a_number_is_the_first(two_gpus):
    sys.modules["cupy"].cuda.runtime.memGetInfo = lambda: (1 << 30, 2 << 30)
    failure = device_failure("a look for devices", "cuda", CUDARuntimeError(2, "full"))
    assert str(failure).startswith("a look for devices: 'cuda' is out of memory: 1.0 GiB of 2.0 GiB are free.")


@pytest.mark.parametrize(("kind", "status"), [(CUDARuntimeError, 46), (CUDADriverError, 719), (CUBLASError, 14)])
def test_all_else_that_a_device_refuses_is_a_failure(two_gpus, kind, status):
    failure = device_failure("matmul", "cuda:1", kind(status, "its own words"))
    assert type(failure) is tn.errors.DeviceError
    assert re.search("^matmul: 'cuda:1' failed.* start it again, from its last .* its own words$", str(failure))


def test_a_device_that_does_not_even_tell_what_is_free(two_gpus):
    def refuse():
        raise CUDARuntimeError(46, "not now")

    sys.modules["cupy"].cuda.runtime.memGetInfo = refuse
    failure = device_failure("add", "cuda:0", CUDARuntimeError(2, "full"))
    assert "'cuda:0' is out of memory: how much is free it does not tell (not now). Take" in str(failure)


@pytest.mark.parametrize("error", [MemoryError("NumPy's"), RuntimeError("a formula's"), tn.errors.ShapeError("ours")])
def test_other_errors_stay_what_they_are(two_gpus, error):
    assert device_failure("add", "cuda:0", error) is None

    @tn.op("mine")
    def mine(xp, a):
        return a * 1.0, None

    @mine.backward
    def _(xp, dy, cache):
        raise error

    for device in ("cpu", "cuda:1"):
        t = tn.tensor([1.0], device=device, requires_grad=True)
        with pytest.raises(type(error)) as caught:
            mine(t).sum().backward()
        assert caught.value is error
        assert t.grad is None
