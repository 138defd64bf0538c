"""Arrays of two devices that meet: refused, with the operation, what each operand is and where, and what to write."""

import re

import numpy as np
import pytest

import tinynorm as tn
from tinynorm.backend import CPU, to_device
from tinynorm.errors import DeviceError, DTypeError, OutOfRangeError

F = tn.functional

HOST, DEVICE = "on 'cpu'", "on 'cuda:0'"


def tensors(requires_grad=False):
    """The same numbers on the host and on the device."""
    return tuple(tn.tensor([[1.0, 2.0], [3.0, 4.0]], device=d, requires_grad=requires_grad) for d in ("cpu", "cuda"))


MEETINGS = {
    "add": (lambda h, d: h + d, "a: float32[2, 2]", HOST, "b: float32[2, 2]", DEVICE),
    "power": (lambda h, d: np.ones(2) ** d, "x: float64[2]", HOST, "p: float32[2, 2]", DEVICE),
    "gt": (lambda h, d: d > h, "a: float32[2, 2]", DEVICE, "b: float32[2, 2]", HOST),
    "matmul": (lambda h, d: tn.matmul(d, h), "a: ", DEVICE, "b: ", HOST),
    "where": (lambda h, d: tn.where(h > 0, d, 0.0), "condition: bool[2, 2]", HOST, "a: ", DEVICE),
    "clip": (lambda h, d: tn.clip(d, None, h), "x: ", DEVICE, "a_max: ", HOST),
    "concatenate": (lambda h, d: tn.concatenate([h, h, d]), "arrays[0]: ", HOST, "arrays[1]: ", "arrays[2]: ", DEVICE),
    "stack": (lambda h, d: tn.stack([d, h]), "arrays[0]: ", DEVICE, "arrays[1]: ", HOST),
    "einsum": (lambda h, d: tn.einsum("ij,jk,kl->il", d, d, h), "operands[0]: ", "operands[2]: float32[2, 2] on 'cpu'"),
    "linear": (lambda h, d: tn.nn.Linear(2, 3, device="cuda")(h), "x: float32[2, 2]", HOST, "weight: float32[3, 2]",
               DEVICE, "bias: float32[3]"),
    "rms_norm": (lambda h, d: tn.nn.RMSNorm(2)(d), "x: float32[2, 2]", DEVICE, "weight: float32[2]", HOST),
    "layer_norm": (lambda h, d: F.layer_norm(d, 2, None, [0.0, 0.0]), "x: ", DEVICE, "bias: float32[2] on 'cpu'"),
    "mse_loss": (lambda h, d: F.mse_loss(d, h), "x: ", DEVICE, "target: ", HOST),
    "cross_entropy": (lambda h, d: F.cross_entropy(d, [0, 1]), "logits: ", DEVICE, "target: int64[2]", HOST),
    "nll_loss": (lambda h, d: F.nll_loss(d, np.array([0, 1])), "log_p: ", DEVICE, "target: int64[2]", HOST),
}  # fmt: skip


@pytest.mark.parametrize("name", MEETINGS)
def test_the_operation_and_its_operands_are_named(cupy, name):
    call, *fragments = MEETINGS[name]
    with pytest.raises(DeviceError) as caught:
        call(*tensors())
    message = str(caught.value)
    assert message.startswith(f"{name}: the operands live on different devices (")
    assert re.search(".*".join(map(re.escape, fragments)), message), message
    assert 'for example with .to("cuda:0"), or arrays and lists with tn.as_tensor(..., device="cuda:0")' in message


COTANGENTS = {
    "backward": lambda y, w, v: y.backward(v),
    "grad": lambda y, w, v: tn.grad(y, w, v),
    "vjp": lambda y, w, v: tn.vjp(lambda x: x * x, w, v),
    "jvp": lambda y, w, v: tn.jvp(lambda x: x * x, w, v),
    "hvp": lambda y, w, v: tn.hvp(lambda x: (x * x).sum(), w, v),
}


@pytest.mark.parametrize("name", COTANGENTS)
@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_a_cotangent_or_direction_lies_where_the_tensor_lies(cupy, name, device):
    w = tn.tensor([1.0, 2.0], device=device, requires_grad=True)
    elsewhere = {"cpu": "cuda:0", "cuda:0": "cpu"}[device]
    words = rf"^{name}: .*\w+: float32\[2\] on '{elsewhere}' and the tensor: float32\[2\] on '{device}'"
    with pytest.raises(DeviceError, match=words):
        COTANGENTS[name](w * w, w, tn.tensor([1.0, 1.0], device=elsewhere))
    assert w.grad is None


@pytest.mark.parametrize("number", [2, 2.0, np.float32(2.0)], ids=repr)
def test_numbers_go_with_any_device(cupy, number):
    w = tn.tensor(3.0, device="cuda", requires_grad=True)

    def square(x):
        return x * x

    square(w).backward(number)
    (slope,) = tn.grad(square(w), w, number)
    found = [slope, tn.vjp(square, w, number)[1], tn.jvp(square, w, number)[1], tn.hvp(square, w, number)[1] * 3.0]
    assert [to_device(w.grad, CPU), *(t.item() for t in found)] == [12.0] * 5
    chosen = tn.where(tn.tensor([True, False], device="cuda"), number, 0.0)
    assert (chosen.device, chosen.numpy().tolist()) == ("cuda:0", [2.0, 0.0])


def test_derivatives_are_taken_on_one_device(cupy):
    h, d = tensors(requires_grad=True)
    words = (
        r"grad: .*outputs\[0\]: float32\[\] on 'cuda:0' and inputs\[0\]: .* and inputs\[1\]: float32\[2, 2\] on 'cpu'"
    )
    with pytest.raises(DeviceError, match=words):
        tn.grad(d.sum(), [d, h])
    for call in (tn.vjp, tn.jvp, tn.jacobian):
        with pytest.raises(DeviceError, match=r"multiply: .*a: .* on 'cpu' and b: .* on 'cuda:0'"):
            call(lambda a, b: a * b, (h, d))
    with pytest.raises(DeviceError, match=r"multiply: .*a: .* on 'cpu' and b: .* on 'cuda:0'"):
        tn.gradcheck(lambda a, b: a * b, [tn.tensor(np.ones(2)), tn.tensor(np.ones(2), device="cuda")])


def test_gradcheck_runs_on_any_device(cupy):
    """By default it takes complex steps as well as differences, where formulas mend complex numbers, too."""
    x = np.array([[1.0, -2.0, 0.5]])
    for device in [f"cuda:{i}" for i in range(min(2, cupy.cuda.runtime.getDeviceCount()))]:
        assert tn.gradcheck(lambda x: F.rms_norm(x, 3), [tn.tensor(x, device=device)])


def test_what_a_tensor_holds_stays_on_its_device(cupy):
    w = tn.tensor([1.0, 2.0], device="cuda", requires_grad=True)
    with pytest.raises(
        DeviceError, match=r"Tensor.data: .* stays on its device, 'cuda:0'; got an array on 'cpu'.*\.to"
    ):
        w.data = np.ones(2, np.float32)
    with pytest.raises(DeviceError, match=r"Tensor\.grad: is on 'cpu', the tensor on 'cuda:0'; assign "):
        w.grad = np.ones(2, np.float32)
    assert (w.numpy().tolist(), w.grad) == ([1.0, 2.0], None)
    w.grad = tn.as_tensor(np.ones(2, np.float32), device="cuda:0").data
    assert w.grad.tolist() == [1.0, 1.0]


def test_a_model_that_moved_after_its_forward_gets_no_gradients_of_the_old_place(cupy):
    layer = tn.nn.Linear(2, 2, rng=0)
    y = layer(np.ones((1, 2), np.float32)).sum()
    layer.to("cuda")
    words = r"backward: a leaf of shape \(2, 2\) was used on 'cpu' and has gone to 'cuda:0' since; call backward first"
    with pytest.raises(DeviceError, match=words):
        y.backward()
    assert [p.grad for p in layer.parameters()] == [None, None]
    layer(tn.tensor([[1.0, 1.0]], device="cuda")).sum().backward()
    assert layer.bias.grad.tolist() == [1.0, 1.0]


def test_an_index_goes_with_the_tensor_or_comes_from_the_host(cupy):
    h, d = tensors()
    with pytest.raises(DeviceError, match="getitem: the index is on 'cuda:0', the tensor on 'cpu'; move one of them"):
        h[tn.tensor([0], device="cuda")]
    with pytest.raises(DeviceError, match="take: the index is on 'cuda:0', the tensor on 'cpu'"):
        tn.take(h, tn.tensor([0], device="cuda"), axis=0)
    for index in ([1, 0], np.array([1, 0]), cupy.asarray([1, 0]), tn.tensor([1, 0]), tn.tensor([1, 0], device="cuda")):
        assert (d[index].device, d[index].numpy().tolist()) == ("cuda:0", [[3.0, 4.0], [1.0, 2.0]])


REFUSED_INDICES = {
    "too large": ([0, 2], "index 2 does not exist on axis 0"),
    "too small": (np.array([-3]), "index -3 does not exist on axis 0"),
    "in the second axis": ((slice(None), [5]), "index 5 does not exist on axis 1"),
    "after an ellipsis": ((..., [[2]]), "index 2 does not exist on axis 1"),
    "after a new axis": ((None, [2]), "index 2 does not exist on axis 0"),
    "a number": (2, r"[Ii]ndex 2 is out of bounds"),
    "a short mask": (np.array([True]), r"a mask of shape \(1,\) from axis 0 on does not fit shape \(2, 2\)"),
    "a mask in the second axis": ((0, np.ones(3, bool)), r"a mask of shape \(3,\) from axis 1 on does not fit"),
}


@pytest.mark.parametrize("case", REFUSED_INDICES)
def test_what_is_not_there_is_refused_before_cupy_would_take_something_else(cupy, case):
    index, words = REFUSED_INDICES[case]
    with pytest.raises(OutOfRangeError, match=f"getitem: {words}"):
        tensors()[1][index]


def test_take_looks_along_its_own_axis(cupy):
    t = tn.tensor(np.arange(6.0).reshape(1, 2, 3), device="cuda")
    assert tn.take(t, [2, 0], axis=2).numpy().tolist() == [[[2.0, 0.0], [5.0, 3.0]]]
    with pytest.raises(OutOfRangeError, match=r"take: index 2 does not exist on axis 1 of shape \(1, 2, 3\)"):
        tn.take(t, 2, axis=1)


def test_masks_take_on_a_device_what_they_take_on_the_host(cupy):
    rng = np.random.default_rng(0)
    host = rng.normal(size=(3, 4, 2))
    masks = [rng.random(host.shape[:n]) < 0.5 for n in (1, 2, 3)]
    indices = [
        *masks,
        (slice(1, None), masks[1][0]),
        (..., np.array([True, False])),
        (None, masks[0]),
        (0, masks[1][0], 1),
    ]
    for index in indices:
        weights = rng.normal(size=host[index].shape)
        h, d = (tn.tensor(host, device=place, requires_grad=True) for place in ("cpu", "cuda"))
        for t in (h, d):
            y = t[index]
            assert y.numpy().tolist() == host[index].tolist()
            y.backward(tn.tensor(weights, device=t.device))
        assert tn.as_tensor(d.grad).numpy().tolist() == h.grad.tolist()


def test_an_operation_that_computes_on_the_host_is_refused(cupy):
    @tn.op("stray")
    def stray(xp, x):
        return np.ones(x.shape), None

    @tn.op("stray_back")
    def stray_back(xp, x):
        return 2.0 * x, None

    @stray_back.backward
    def _(xp, dy, cache):
        return np.ones(dy.shape)

    t = tn.tensor([1.0], device="cuda", requires_grad=True)
    with pytest.raises(
        DeviceError, match="stray: the forward formula's y is on the host, but the inputs are on a device"
    ):
        stray(t)
    with pytest.raises(DeviceError, match="backward: stray_back: a gradient is on the host, but the inputs are on a"):
        stray_back(t).sum().backward()
    assert t.grad is None


@pytest.mark.parametrize("make", [tn.tensor, tn.as_tensor, lambda a: tn.tensor([1.0, 2.0, 3.0]) + a])
def test_a_list_of_device_arrays_is_refused_in_words(cupy, make):
    with pytest.raises(DTypeError, match=r"^(tensor|as_tensor|add): no array of the host can be made of this list \("):
        make(list(to_device(np.zeros(3), "cuda")))


def test_a_dtype_that_no_device_has(cupy):
    with pytest.raises(DTypeError, match=rf"device 'cuda' has no {np.dtype(np.longdouble)}; convert it first"):
        tn.tensor(np.ones(2, np.longdouble), device="cuda")
