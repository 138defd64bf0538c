"""Every operation, forward and backward, on CuPy beside NumPy: the calls are those that all tests share."""

from functools import partial

import numpy as np
import pytest
from helpers import ALWAYS, l2_norm

import tinynorm as tn
from tinynorm.graph import topological_order
from tinynorm.testing.cases import CASES
from tinynorm.testing.choices import Choose
from tinynorm.testing.values import LAYOUTS

from .beside import EACH_CASE, assert_same, inputs_of, outcome, placed

F = tn.functional
DRAWN = 8  #: settings of each case, beside those that are always tried


def compare(cupy, name, setting, dtype, layout=None):
    inputs, dy = inputs_of(name, setting, dtype)
    call = partial(CASES[name].call, **setting.options)
    with tn.formulas_only():
        right = outcome(call, inputs, dy, "cpu", layout)
        assert_same(cupy, outcome(call, inputs, dy, "cuda:0", layout), right)


SETTINGS = pytest.mark.parametrize(("name", "setting"), [p for p in ALWAYS if p.values[0] != "astype"])


@SETTINGS
def test_every_setting(cupy, name, setting):
    compare(cupy, name, setting, np.float32)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
@SETTINGS
def test_other_dtypes(quick_cupy, name, setting, dtype):
    compare(quick_cupy, name, setting, dtype)


@EACH_CASE
def test_drawn_settings(quick_cupy, name):
    choose = Choose.from_rng(np.random.default_rng(7))
    for _ in range(DRAWN):
        compare(quick_cupy, name, CASES[name].setting(choose), np.float32)


@pytest.mark.parametrize("layout", LAYOUTS)
@EACH_CASE
def test_every_layout(quick_cupy, name, layout):
    compare(quick_cupy, name, CASES[name].typical, np.float32, LAYOUTS[layout])


# Kernels of ours, which the comparisons above leave out


KERNELS = [name for name, case in CASES.items() if case.op.cuda is not None]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_serve_the_typical_call(cuda_kernels, name, dtype):
    inputs, _ = inputs_of(name, CASES[name].typical, dtype)
    y = CASES[name].call(*(placed(a, "cuda:0") for a in inputs), **CASES[name].typical.options)
    assert CASES[name].op.cuda in [node.kernel for node in topological_order(y._source)]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(("name", "setting"), [p for p in ALWAYS if p.values[0] in KERNELS])
def test_kernels_beside_the_hosts_formulas(cuda_kernels, name, setting, dtype):
    inputs, dy = inputs_of(name, setting, dtype)
    call = partial(CASES[name].call, **setting.options)
    with tn.formulas_only():
        right = outcome(call, inputs, dy, "cpu")
    assert_same(cuda_kernels, outcome(call, inputs, dy, "cuda:0"), right)


# Derivatives of derivatives, and the gradient check


def second(name, dtype, device):
    """∂/∂x of Σ c · ∂(dy · y)/∂x, for each floating-point input."""
    inputs, dy = inputs_of(name, CASES[name].typical, dtype)
    rng = np.random.default_rng(1)
    tensors = [placed(a, device) for a in inputs]
    floats = [t for t in tensors if t.requires_grad]
    y = CASES[name].call(*tensors, **CASES[name].typical.options)
    first = tn.grad(y, floats, placed(dy, device), create_graph=True)
    weights = [placed(rng.normal(size=g.shape).astype(dtype), device).detach() for g in first]
    found = tn.grad(sum((g * w).sum() for g, w in zip(first, weights, strict=True)), floats)
    assert {t.device for t in [*first, *found]} == {device}
    return [t.numpy() for t in found]


@EACH_CASE
def test_second_derivatives(quick_cupy, name):
    with tn.formulas_only():
        assert_same(quick_cupy, second(name, np.float32, "cuda:0"), second(name, np.float32, "cpu"))


@pytest.mark.parametrize("name", ["layer_norm", "gelu", "cross_entropy", "matmul"])
def test_second_derivatives_on_the_real_cupy(cupy, name):
    with tn.formulas_only():
        assert_same(cupy, second(name, np.float32, "cuda:0"), second(name, np.float32, "cpu"))


CHECKED = {
    "rms_norm": lambda x, g: F.rms_norm(x, 3, g), "softmax": F.softmax, "matmul": lambda x, g: x @ g,
    "where": lambda x, g: tn.where(x < g, x * g, tn.exp(x)),
}  # fmt: skip


@pytest.mark.parametrize("name", CHECKED)
def test_gradcheck_takes_device_tensors(quick_cupy, name):
    rng = np.random.default_rng(2)
    x, g = (tn.tensor(rng.normal(size=shape), device="cuda") for shape in ((2, 3), (3,)))
    assert tn.gradcheck(CHECKED[name], [x] if name == "softmax" else [x, g])


@pytest.mark.parametrize("name", ["rms_norm", "softmax"])
def test_gradgradcheck_takes_device_tensors(quick_cupy, name):
    rng = np.random.default_rng(3)
    x, g = (tn.tensor(rng.normal(size=shape), device="cuda") for shape in ((1, 3), (3,)))
    assert tn.gradgradcheck(CHECKED[name], [x] if name == "softmax" else [x, g])


def test_gradcheck_on_the_real_cupy(cupy):
    x = tn.tensor(np.array([0.5, -2.0]), device="cuda")
    assert tn.gradcheck(tn.tanh, [x])


def test_gradcheck_finds_a_fault_on_the_device(cupy):
    @tn.op("wrong")
    def wrong(xp, x):
        return x * x, x

    wrong.backward(lambda xp, dy, x: 2.01 * dy * x)
    with pytest.raises(tn.errors.GradientError):
        tn.gradcheck(wrong, [tn.tensor(np.array([0.5, -2.0]), device="cuda")])


# A user's own


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_an_operation_of_the_users(cupy, dtype):
    rng = np.random.default_rng(4)
    x, g, dy = (rng.normal(size=shape).astype(dtype) for shape in ((4, 3), (3,), (4, 3)))
    call = partial(l2_norm, eps=1e-3)
    assert_same(cupy, outcome(call, [x, g], dy, "cuda:0"), outcome(call, [x, g], dy, "cpu"))


# Dtypes


@pytest.mark.parametrize("target", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_astype(cupy, dtype, target):
    rng = np.random.default_rng(5)
    x, dy = rng.normal(size=(3, 4)).astype(dtype), rng.normal(size=(3, 4)).astype(target)
    found = outcome(lambda x: x.astype(target), [x], dy, "cuda:0")
    np.testing.assert_array_equal(found[0], x.astype(target), strict=True)
    np.testing.assert_array_equal(found[1], dy.astype(dtype), strict=True)
