"""Arrays of other libraries come in and go out without a copy."""

import sys

import numpy as np
import pytest

import tinynorm as tn

DTYPES = ["float16", "float32", "float64", "int8", "int64", "uint8", "bool"]


def of_numpy(array):
    return array


def of_torch(array):
    return pytest.importorskip("torch").from_numpy(array)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("made", [of_numpy, of_torch])
def test_an_array_comes_in_with_its_memory(made, dtype):
    for host in (np.arange(6).reshape(2, 3).T.astype(dtype), np.arange(8).astype(dtype)[1::2], np.ones((), dtype)):
        t = tn.from_dlpack(made(host))
        assert t.dtype == host.dtype
        assert t.shape == host.shape
        assert np.shares_memory(t.numpy(), host)
        np.testing.assert_array_equal(t.numpy(), host)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tensor_goes_out_with_its_memory(dtype):
    torch = pytest.importorskip("torch")
    for t in (tn.tensor(np.arange(6).reshape(2, 3).astype(dtype)), tn.tensor(np.arange(6.0)).reshape(3, 2).T):
        for there in (np.from_dlpack(t), torch.from_dlpack(t).numpy()):
            assert np.shares_memory(there, t.numpy())
            np.testing.assert_array_equal(there, t.numpy())
    assert tn.tensor([1.0]).__dlpack_device__() == (1, 0)


def test_a_write_from_outside_is_noticed():
    w, incoming = tn.tensor([1.0, 2.0], requires_grad=True), np.array([3.0, 4.0], np.float32)
    y = (w * tn.from_dlpack(incoming)).sum()
    incoming[0] = 7.0
    with pytest.raises(tn.errors.GraphError, match="multiply still needs"):
        y.backward()


def test_a_write_to_what_went_out_is_noticed():
    torch = pytest.importorskip("torch")  # what NumPy takes in, it does not write to
    w = tn.tensor([1.0, 2.0], requires_grad=True)
    y = (w * w).sum()
    torch.from_dlpack(w.detach())[0] = 7.0
    with pytest.raises(tn.errors.GraphError, match="multiply still needs"):
        y.backward()


def test_what_requires_a_gradient_stays():
    w = tn.tensor([1.0], requires_grad=True)
    for t in (w, 2.0 * w):
        with pytest.raises(tn.errors.GraphError, match=r"requires a gradient stays here; pass \.detach\(\)"):
            np.from_dlpack(t)
        assert np.from_dlpack(t.detach()).shape == (1,)


class Elsewhere:
    """An array that says where it is, and no more."""

    def __init__(self, kind, error=None):
        self.kind, self.error = kind, error

    def __dlpack_device__(self):
        return self.kind, 0

    def __dlpack__(self, **options):
        raise self.error


REFUSED = {
    "a number": (3, tn.errors.DTypeError, "int has no __dlpack__; as_tensor takes"),
    "a list": ([1.0], tn.errors.DTypeError, "list has no __dlpack__; as_tensor takes"),
    "complex numbers": (np.ones(2, complex), tn.errors.DTypeError, "tensors hold floats, integers and bools, not comp"),
    "another device": (
        Elsewhere(7),
        tn.errors.DeviceError,
        "the array lies on DLPack's device 7; move it to the host or a GPU",
    ),
    "a refusal": (Elsewhere(1, BufferError("not now")), tn.errors.DTypeError, "Elsewhere cannot be shared: not now"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_come_in_is_told_why(case):
    value, error, words = REFUSED[case]
    with pytest.raises(error, match=f"^from_dlpack: {words}"):
        tn.from_dlpack(value)


def test_an_array_on_a_gpu_needs_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(tn.errors.DeviceError, match="'cuda:0' needs CuPy"):
        tn.from_dlpack(Elsewhere(2))
