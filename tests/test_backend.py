"""Devices: their names, what is said where one is missing, moving there and back, and a device that fails.

No GPU is needed: strict_cupy stands in for CuPy. What runs on the real one as well is in tests/device/.
"""

import operator
import re
import sys

import numpy as np
import pytest
import strict_cupy

import tinynorm as tn
from tinynorm import backend
from tinynorm.failures import device_failure


@pytest.fixture
def no_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)  # importing it fails, whether or not it is installed


@pytest.fixture
def cupy(monkeypatch):
    """Two GPUs."""
    return strict_cupy.install(monkeypatch)


@pytest.fixture
def no_gpu(monkeypatch):
    strict_cupy.install(monkeypatch, devices=0)


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
    "no driver": ({"driver": 0}, "CuPy is installed, but no CUDA driver; install the one for your GPU"),
    "no GPU": ({"devices": 0}, 'the CUDA driver finds no GPU; use device="cpu"'),
    "an old driver": (
        {"driver": 11040},
        r"CuPy cannot work with the CUDA driver \(cudaErrorInsufficientDriver: .*\); install a newer",
    ),
}


@pytest.mark.parametrize("case", NOTHING_THERE)
def test_what_is_missing_is_named(monkeypatch, case):
    machine, words = NOTHING_THERE[case]
    strict_cupy.install(monkeypatch, **machine)
    with pytest.raises(tn.errors.DeviceError, match=f"device 'cuda' is not there: {words}"):
        tn.tensor([1.0]).to("cuda")


@pytest.mark.parametrize("use", USES)
def test_a_gpu_beyond_the_last_one(cupy, use):
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


def test_moving(cupy):
    host = np.array([1.0, 2.0])
    t = tn.tensor(host)
    for name, full in [("cuda", "cuda:0"), ("cuda:0", "cuda:0"), ("cuda:1", "cuda:1")]:
        moved = t.to(name)
        assert moved.device == full
        assert isinstance(moved.data, cupy.ndarray)
        assert moved.to("cpu").device == "cpu"
        assert moved.to("cpu").data.tolist() == [1.0, 2.0]
        assert moved.numpy().tolist() == [1.0, 2.0]
        assert repr(moved) == f"Tensor([1., 2.], dtype=float64, device='{full}')"
        assert moved.sum().item() == 3.0
    assert t.device == "cpu"
    assert t.to("cuda:0").to("cuda:1").device == "cuda:1"


def test_the_same_device_is_the_same_tensor(cupy):
    t = tn.tensor([1.0], device="cuda:0")
    assert t.to("cuda:0") is t
    assert t.to("cuda") is t
    assert tn.as_tensor(t, device="cuda") is t


def test_moving_makes_a_leaf(cupy):
    w = tn.tensor([1.0, 2.0], requires_grad=True)
    moved = w.to("cuda")
    assert moved.requires_grad
    (moved * 3.0).backward(tn.tensor([1.0, 10.0]).to("cuda"))
    assert isinstance(moved.grad, cupy.ndarray)
    assert moved.grad.tolist() == [3.0, 30.0]
    assert w.grad is None
    assert tn.tensor([1.0]).to("cuda").requires_grad is False


@pytest.mark.parametrize("number", [2, 2.0, True, np.float64(2), np.float32(2), np.int64(2)], ids=repr)
def test_numbers_go_with_either_device(cupy, number):
    for device in ("cpu", "cuda:0"):
        t = tn.tensor([1.0, 4.0], device=device)
        for y in (number * t, t * number, t + number, number - t, number / t, tn.maximum(t, number), t > number):
            assert isinstance(y, tn.Tensor)
            assert y.device == device
        assert (number * t).numpy().tolist() == [1.0 * number, 4.0 * number]


@pytest.mark.parametrize("condition", [True, np.True_], ids=["bool", "np.bool"])
def test_a_lone_condition_goes_with_either_device(cupy, condition):
    for device in ("cpu", "cuda:0"):
        t = tn.tensor([1.0, 4.0], device=device)
        assert tn.where(condition, t, 0.0).device == device


def test_a_device_array_looks_into_no_host_array_by_itself(cupy):
    t = tn.tensor([1.0], device="cuda")
    with pytest.raises(tn.errors.DeviceError, match=r"'cuda:0'.*\.numpy\(\)"):
        np.asarray(t)


# Where they meet

ARITHMETIC = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "divide": operator.truediv,
    "power": operator.pow, "matmul": operator.matmul, "lt": operator.lt,
}  # fmt: skip


@pytest.mark.parametrize("name", ARITHMETIC)
def test_a_host_array_on_either_side_is_refused_too(cupy, name):
    t, array = tn.tensor([[1.0, 2.0], [3.0, 4.0]], device="cuda"), np.ones((2, 2))
    operation, reflected = ARITHMETIC[name], {"lt": "gt"}.get(name, name)
    for function, found in [(lambda: operation(t, array), name), (lambda: operation(array, t), reflected)]:
        with pytest.raises(tn.errors.DeviceError, match=rf"{found}: .*float64\[2, 2\] on 'cpu'"):
            function()


# The functions that know of devices


def test_the_backend_is_a_property_of_the_array(cupy):
    host = np.ones(2)
    with cupy.cuda.Device(1):
        device = cupy.ones(2)
    assert backend.device_of(host) == "cpu"
    assert backend.device_of(device) == "cuda:1"
    assert backend.namespace(host) is np
    assert backend.namespace(device) is cupy
    assert backend.common_namespace("f", (host, 1.0, None, np.float64(1))) is np
    assert backend.common_namespace("f", (device, 1.0, None, np.float64(1))) is cupy
    assert backend.common_namespace("f", (1.0, None)) is np
    assert backend.to_device(host, "cpu") is host


def test_a_cupy_that_failed_to_import_is_as_none(no_cupy):
    assert backend.is_device_array(np.ones(2)) is False
    assert backend.common_namespace("f", (np.ones(2), np.ones(2))) is np
    assert (tn.tensor([1.0]) + np.ones(1)).device == "cpu"


def test_moving_a_result_is_refused_since_it_is_not_recorded(cupy):
    w = tn.tensor([1.0, 2.0], requires_grad=True)
    y = w * 2.0
    with pytest.raises(tn.errors.GraphError, match=r"to: moving the result of multiply .*detach"):
        y.to("cuda")
    assert y.to("cpu") is y
    assert y.detach().to("cuda").device == "cuda:0"


# A device that fails


def failure_of(kind, status):
    """CuPy's error of that name: for calls of the runtime, for what the driver refuses, for matrix products."""
    return type(kind, (RuntimeError,), {"status": status})("its own words")


@pytest.mark.parametrize(("kind", "status"), [("CUDARuntimeError", 2), ("CUDADriverError", 2), ("CUBLASError", 3)])
def test_every_way_to_have_no_memory_is_told_as_such(monkeypatch, kind, status):
    machine = strict_cupy.install(monkeypatch, memory=24 << 30).machine
    machine.used[1] = (24 << 30) - (3 << 29)
    failure = device_failure("matmul", "cuda:1", failure_of(kind, status))
    assert type(failure) is tn.errors.OutOfMemoryError
    assert str(failure).startswith("matmul: 'cuda:1' is out of memory: 1.5 GiB of 24.0 GiB are free. Take smaller")
    assert str(failure).endswith("CuPy says: its own words")


def test_a_device_without_a_number_is_the_first(monkeypatch):
    machine = strict_cupy.install(monkeypatch, memory=2 << 30).machine
    machine.used[0] = 1 << 30
    failure = device_failure("a look for devices", "cuda", failure_of("CUDARuntimeError", 2))
    assert str(failure).startswith("a look for devices: 'cuda' is out of memory: 1.0 GiB of 2.0 GiB are free.")


@pytest.mark.parametrize(("kind", "status"), [("CUDARuntimeError", 46), ("CUDADriverError", 719), ("CUBLASError", 14)])
def test_all_else_that_a_device_refuses_is_a_failure(kind, status):
    failure = device_failure("matmul", "cuda:1", failure_of(kind, status))
    assert type(failure) is tn.errors.DeviceError
    assert re.search("^matmul: 'cuda:1' failed.* start it again, from its last .* its own words$", str(failure))


def test_a_device_that_does_not_even_tell_what_is_free(cupy):
    cupy.machine.fail_launch()
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError):
        cupy.zeros(1)
    failure = device_failure("add", "cuda:0", failure_of("CUDARuntimeError", 2))
    words = r"'cuda:0' is out of memory: how much is free it does not tell \(cudaErrorDevicesUnavailable: .*\)\. Take"
    assert re.search(words, str(failure))


@pytest.mark.parametrize("error", [MemoryError("NumPy's"), RuntimeError("a formula's"), tn.errors.ShapeError("ours")])
def test_other_errors_stay_what_they_are(cupy, error):
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
