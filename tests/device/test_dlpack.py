"""Arrays of a device come in from other libraries and go out to them without a copy, on the device where they are."""

import numpy as np
import pytest

import tinynorm as tn

LAYOUTS = {
    "rows": lambda a: a,
    "columns": lambda a: a.T,
    "every second": lambda a: a[:, ::2],
    "one row": lambda a: a[1],
    "one element": lambda a: a[1, 1],
}


@pytest.fixture(params=["cuda:0", "cuda:1"])
def there(request, cupy):
    """A function that puts a host array onto a device of the module, as an array of CuPy's."""
    index = int(request.param[-1])
    if index >= cupy.cuda.runtime.getDeviceCount():
        pytest.skip("this machine has one GPU")

    def put(host):
        with cupy.cuda.Device(index):
            return cupy.asarray(host)

    put.device = request.param
    return put


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_array_comes_in_with_its_memory(cupy, there, layout):
    host = np.arange(12, dtype=np.float32).reshape(3, 4)
    array = there(host)
    t = tn.from_dlpack(LAYOUTS[layout](array))
    assert t.device == there.device
    assert t.numpy().tolist() == LAYOUTS[layout](host).tolist()
    with array.device:
        array += 1.0
    assert t.numpy().tolist() == LAYOUTS[layout](host + 1.0).tolist()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int64", "uint8", "bool"])
def test_a_tensor_goes_out_with_its_memory(cupy, there, dtype):
    t = tn.tensor(np.array([[0, 1], [1, 0]], dtype), device=there.device)
    assert t.__dlpack_device__() == (2, int(there.device[-1]))
    out = cupy.from_dlpack(t)
    assert (out.dtype, f"cuda:{out.device.id}") == (t.dtype, there.device)
    with out.device:
        t.data[0, 0] = 1
    assert out.get().tolist() == [[1, 1], [1, 0]]


def test_the_one_who_takes_it_may_name_a_stream(cupy):
    """1 is CUDA's default stream, and -1 asks for no waiting at all."""
    t = tn.tensor([1.0, 2.0], device="cuda")
    for options in ({}, {"stream": None}, {"stream": 1}, {"stream": -1}):
        assert "dltensor" in repr(t.__dlpack__(**options))


def test_what_requires_a_gradient_stays(cupy):
    w = tn.tensor([1.0], device="cuda", requires_grad=True)
    with pytest.raises(tn.errors.GraphError, match=r"requires a gradient stays here; pass \.detach\(\)"):
        cupy.from_dlpack(w)
    assert cupy.from_dlpack(w.detach()).shape == (1,)


def test_what_came_in_is_computed_with(cupy, there):
    w = tn.tensor([2.0, 3.0], device=there.device, requires_grad=True)
    (w * tn.from_dlpack(there(np.array([10.0, 1.0], np.float32)))).sum().backward()
    assert w.grad.get().tolist() == [10.0, 1.0]
