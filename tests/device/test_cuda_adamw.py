"""The kernel of Adam and AdamW: right numbers for any sizes and alignments, in one launch, and faults that show."""

import cupy_on_cpu
import numpy as np
import pytest

import tinynorm as tn
from tinynorm.backend import to_device
from tinynorm.kernels.cuda import adamw, launch
from tinynorm.optim import Adam, AdamW

from .test_optim import Run, assert_same, on_the_cpu

CHUNK = adamw.CHUNK
SIZES = [0, 1, 3, 5, 1025, CHUNK, CHUNK + 1, 2 * CHUNK + 7]
EPS = {"e": 2.0**-11, "f": 2.0**-24, "d": 2.0**-53}


class Reference:
    """Algorithm 1 of Kingma and Ba, and with `decoupled` Algorithm 2 of Loshchilov and Hutter, as they are printed."""

    def __init__(self, p, decoupled):
        self.p, self.decoupled, self.t = p.astype(np.longdouble), decoupled, 0
        self.m, self.v = np.zeros_like(self.p), np.zeros_like(self.p)

    def step(self, g, lr, betas, eps, weight_decay):
        beta1, beta2 = map(np.longdouble, betas)
        g, self.t = g.astype(np.longdouble), self.t + 1
        if self.decoupled:
            self.p = self.p - lr * weight_decay * self.p
        else:
            g = g + weight_decay * self.p
        self.m = beta1 * self.m + (1 - beta1) * g
        self.v = beta2 * self.v + (1 - beta2) * g**2
        m_hat, v_hat = self.m / (1 - beta1**self.t), self.v / (1 - beta2**self.t)
        self.p = self.p - lr * m_hat / (np.sqrt(v_hat) + eps)


OPTIONS = {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.3}


def shifted(array, by):
    """On the device, in memory that begins so many elements after an aligned address."""
    whole = to_device(np.zeros(array.size + by, array.dtype), "cuda:0")
    whole[by:] = to_device(array.reshape(-1), "cuda:0")
    return whole[by:].reshape(array.shape)


def assert_right(kind=AdamW, dtype="f", sizes=SIZES, steps=6, shifts=(0, 0), constants=None):
    """Some steps of all sizes beside the reference. Rounding of p's size may be lost in each step, and of lr's size."""
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(size).astype(dtype) for size in sizes]
    params = [tn.as_tensor(shifted(value, shifts[0]), requires_grad=True) for value in values]
    halves = [{"params": params[::2]}, {"params": params[1::2], "lr": 0.02, "weight_decay": 0.1}]
    optimizer = kind([group for group in halves if group["params"]], **OPTIONS)
    if constants is not None:
        optimizer.in_place = kind.in_place._replace(constants=constants)
    right = [Reference(value, kind is AdamW) for value in values]
    rest = -1 if len(params) == 1 else len(params) - 1  # the last has no gradient the second time
    for k in range(steps):
        for i, (p, reference) in enumerate(zip(params, right, strict=True)):
            g = rng.standard_normal(p.shape).astype(dtype)
            p.grad = None if (i, k) == (rest, 1) else shifted(g, shifts[1])
            if p.grad is not None:
                reference.step(g, **OPTIONS | ({"lr": 0.02, "weight_decay": 0.1} if i % 2 else {}))
        optimizer.step()
    assert not optimizer._runner.plan.rest
    for p, reference in zip(params, right, strict=True):
        np.testing.assert_allclose(p.numpy(), reference.p, rtol=0, atol=6 * steps * EPS[dtype])
        state, narrow = optimizer.state[p], EPS["f" if dtype == "e" else dtype]
        assert state["step"] == reference.t
        # A float16 p is rounded in each step, and a coupled decay passes that on to the moments.
        narrow = EPS["e"] if dtype == "e" and kind is Adam else narrow
        np.testing.assert_allclose(to_device(state["m"], "cpu"), reference.m, rtol=0, atol=8 * narrow)
        np.testing.assert_allclose(to_device(state["v"], "cpu"), reference.v, rtol=0, atol=16 * narrow)


@pytest.mark.parametrize("kind", [Adam, AdamW])
@pytest.mark.parametrize("dtype", ["e", "f", "d"])
def test_sizes_of_every_kind(cuda_kernels, kind, dtype):
    assert_right(kind, dtype)


@pytest.mark.parametrize("shifts", [(1, 0), (0, 1), (2, 4), (4, 8)])
def test_memory_that_is_not_aligned(cuda_kernels, shifts):
    assert_right(sizes=[5, 1025, CHUNK + 1], steps=2, shifts=shifts)


def test_many_steps(cuda_kernels):
    assert_right(sizes=[3, 70], steps=50)


@pytest.mark.parametrize("kind", [Adam, AdamW])
@pytest.mark.parametrize("dtype", ["e", "f", "d"])
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_the_same_bits_as_the_formula(cuda_kernels, kind, dtype, decay):
    def make(groups):
        return kind(groups, lr=0.1, weight_decay=decay)

    kernel, formula = (Run(make, dtype=dtype, shapes=[(), (0,), (7,), (3, 35), (CHUNK + 3,)]) for _ in range(2))
    for resting in [(), (3,), ()]:
        kernel.step(resting)
        with tn.formulas_only():
            formula.step(resting)
        assert (len(kernel.optimizer._runner.plan.bundles), formula.optimizer._runner.plan.bundles) == (1, [])
    assert_same(kernel.outcome(), formula.outcome())


def test_gradients_of_any_layout(cuda_kernels):
    kernel, formula = (Run(AdamW, shapes=[(5, 4), (6,), (2, 3)]) for _ in range(2))
    for layout in (lambda g: g.T.copy().T, lambda g: g[::-1], lambda g: cuda_kernels.broadcast_to(g[:1], g.shape)):
        for run in (kernel, formula):
            run.gradients()
            for p in run.params:
                p.grad = layout(p.grad)
        kernel.optimizer.step()
        with tn.formulas_only():
            formula.optimizer.step()
        assert not kernel.optimizer._runner.plan.rest
    assert_same(kernel.outcome(), formula.outcome())


def test_one_launch_whatever_differs(cuda_kernels):
    """Groups, options, sizes, and how many steps each parameter has made."""
    if not on_the_cpu(cuda_kernels):
        pytest.skip("a real device counts no launches")
    run = Run(AdamW)
    for resting in [(), (0, 4), (2,), ()]:
        run.step(resting)
    assert {entry["step"] for entry in run.optimizer.state.values()} == {3, 4}
    for p in run.params:
        p.grad[...] = 1.0  # where it is
    with cupy_on_cpu.counted() as counts:
        run.optimizer.step()
    assert (counts.launches, counts.copies_to_device, counts.copies_to_host) == (1, 1, 0)
    run.gradients()  # elsewhere
    with cupy_on_cpu.counted() as counts:
        run.optimizer.step()
    assert (counts.launches, counts.copies_to_device, counts.copies_to_host) == (1, 2, 0)


def test_moments_lie_in_one_array_and_stay_there(cuda_kernels):
    run = Run(AdamW)
    run.step()
    entries = [run.optimizer.state[p] for p in run.params]
    for slot in ("m", "v"):
        assert len({entry[slot].base.data.ptr for entry in entries}) == 1
        assert all(entry[slot].data.ptr % 16 == 0 for entry in entries)
    before = [entry["m"].data.ptr for entry in entries]
    run.step(resting=(5,))
    run.step(resting=(5,))
    assert [run.optimizer.state[p]["m"].data.ptr for p in run.params] == before


def test_a_launch_that_fails_changes_nothing(cuda_kernels):
    """What is new in a step is written by one launch, or not at all."""
    if not on_the_cpu(cuda_kernels):
        pytest.skip("a real device does not come back")
    run = Run(AdamW)
    run.step()
    before = run.outcome()
    run.gradients()
    with cupy_on_cpu.failing_launch(), pytest.raises(tn.errors.DeviceError):
        run.optimizer.step()
    assert_same(run.outcome(), before)
    run.optimizer.step()
    assert run.optimizer.state[run.params[0]]["step"] == 2


# Faults

FAULTS = {
    "the last chunk is taken for a whole one": ("left < CHUNK ? left : CHUNK", "CHUNK"),
    "a chunk that ends early": ("left < CHUNK ? left : CHUNK", "left < CHUNK ? left : CHUNK - 1"),
    "a chunk that begins late": ("(long long)chunk.number * CHUNK,", "(long long)chunk.number * (CHUNK + 1),"),
    "the end of a chunk is left out": ("i = packed + threadIdx.x;", "i = packed + threadIdx.x + 1;"),
    "the last pack comes twice": ("i = packed + threadIdx.x;", "i = (packed ? packed - WIDTH : 0) + threadIdx.x;"),
    "packs that overlap": ("i += THREADS * WIDTH", "i += THREADS * WIDTH - 1"),
    "packs wherever they lie": ("aligned(p) && aligned(g) && aligned(m) && aligned(v)", "true"),
    "another parameter's gradient": ("gradients[chunk.member];", "gradients[0];"),
    "another group's constants": ("constants[gradient.place]", "constants[0]"),
    "no decay of p": ("A(p) * c.shrink", "A(p)"),
    "no decay of g": ("if (c.decay != 0) ", "if (false) "),
    "decay where there is none": ("if (c.decay != 0) g = g + c.decay * x", "g = g + (1 - c.shrink) * x"),
    "the second mean forgets like the first": ("c.keep2 * v", "c.keep1 * v"),
    "no bias correction of m": ("* c.rate", "* (c.rate < 0.03f ? A(0.02) : A(0.05))"),
    "no eps": ("(root + c.least)", "root"),
    "the root of nothing": ("sqrt(v)", "v"),
}


@pytest.fixture
def faulty(monkeypatch):
    """Puts a fault into the text of the kernel."""

    def plant(old, new):
        text = launch.source("adamw.cu")
        assert text.count(old) == 1
        monkeypatch.setattr(launch, "source", lambda file: text.replace(old, new))

    return plant


def assert_right_for_all():
    for kind in (Adam, AdamW):
        assert_right(kind, sizes=[1, 3, 1025, CHUNK + 5], steps=2)
    assert_right(sizes=[3, 6], steps=2, shifts=(1, 0))


def test_without_a_fault(cuda_kernels):
    assert_right_for_all()


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_show(cuda_kernels, faulty, fault):
    """As wrong numbers, or on the CPU as an access that is not allowed."""
    if fault == "packs wherever they lie" and not on_the_cpu(cuda_kernels):
        pytest.skip("it would end the process's work with the device")
    faulty(*FAULTS[fault])
    with pytest.raises((AssertionError, tn.errors.DeviceError, RuntimeError)):
        assert_right_for_all()


def without_correction(t, *, lr, betas, eps, weight_decay):
    """AdamW's constants, with the second mean's bias taken for none."""
    beta1, beta2 = betas
    new2 = (1.0 - beta2) ** 0.5 / (1.0 - beta1)
    return 1.0 - lr * weight_decay, 0.0, beta1, 1.0 - beta1, beta2, new2, eps, lr / (1.0 - beta1**t)


def test_a_correction_that_is_dropped_shows(cuda_kernels):
    with pytest.raises(AssertionError):
        assert_right(sizes=[3], steps=2, constants=without_correction)
