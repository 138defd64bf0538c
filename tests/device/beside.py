"""The same call on NumPy and on CuPy: what comes out, that nothing on the way was elsewhere, how far apart they are.

On the stand-in, whose numbers are NumPy's, the same formula gives the same bits; a GPU rounds in its own way.
"""

import numpy as np
import pytest

import tinynorm as tn
from tinynorm.backend import CPU, device_of, to_device
from tinynorm.graph import topological_order
from tinynorm.memory import cached_arrays
from tinynorm.testing.cases import CASES

EACH_CASE = pytest.mark.parametrize("name", [name for name in CASES if name != "astype"])
"""Every case but `astype`, whose long doubles no GPU has."""

ROUNDING = 64  #: how many roundings, of numbers as large as the largest, may lie between two ways to compute the same


def inputs_of(name, setting, dtype=np.float64, seed=0):
    """The arrays of a case, its floating-point ones in the dtype, and a cotangent."""
    case, rng = CASES[name], np.random.default_rng(seed)
    inputs = [a.astype(dtype) if a.dtype.kind == "f" else a for a in case.inputs(rng, setting)]
    with tn.no_grad():
        y = case.call(*map(tn.as_tensor, inputs), **setting.options)
    return inputs, np.asarray(rng.normal(size=y.shape)).astype(y.dtype if y.dtype.kind == "f" else dtype)


def placed(array, device, layout=None):
    """The array there, in a memory layout of its own, as a Tensor that requires a gradient where it can."""
    moved = to_device(array, device)
    moved = layout(moved) if layout is not None and moved.ndim else moved
    return tn.as_tensor(moved, requires_grad=moved.dtype.kind == "f")


def outcome(call, inputs, dy, device, layout=None):
    """The value and the gradient of each floating-point input, brought to the host; whatever was made lay there."""
    tensors = [placed(a, device, layout) for a in inputs]
    y = call(*tensors)
    assert_all_on(device, y)
    y.backward(placed(dy, device, layout).detach())
    gradients = [t.grad for t in tensors if t.requires_grad]
    assert {device_of(g) for g in gradients if g is not None} <= {device}
    return [y.numpy(), *(None if g is None else to_device(g, CPU) for g in gradients)]


def assert_all_on(device, y):
    """The result and all that was cached for its backward lie there. Only scatter's cases give indices of the host."""
    assert y.device == device
    for node in topological_order(y._source):
        for array in cached_arrays(node.cache) if node.op.name != "scatter" else []:
            assert device_of(array) == device, f"{node.op.name} caches {array.dtype}{list(array.shape)} elsewhere"


def is_stand_in(cupy):
    """Whether this is the strict stand-in."""
    return hasattr(cupy, "machine")


def assert_same(cupy, got, right):
    """Equal bits on the stand-in, equal to rounding elsewhere."""
    for g, r in zip(got, right, strict=True):
        assert (g is None) == (r is None)
        if g is None:
            continue
        assert (g.dtype, g.shape) == (r.dtype, r.shape)
        if is_stand_in(cupy):
            np.testing.assert_array_equal(g, r)
        else:
            eps = np.finfo(r.dtype).eps if r.dtype.kind == "f" else 0.0
            size = np.abs(r, where=np.isfinite(r), out=np.zeros(r.shape)).max(initial=1.0)
            np.testing.assert_allclose(g, r, rtol=0.0, atol=ROUNDING * eps * size)
