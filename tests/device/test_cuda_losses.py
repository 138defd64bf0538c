"""Losses on class indices on a device: nothing is looked at there, and the CUDA kernel is right by the definition."""

import cupy_on_cpu
import numpy as np
import pytest
import strict_cupy
from numpy import inf, nan

import tinynorm as tn
from tinynorm.backend import CPU, to_device
from tinynorm.formulas.losses import Targets, cross_entropy, cross_entropy_backward
from tinynorm.kernels.cuda import launch, layout, losses

from .test_cuda_norms_traffic import Counted, counters

F = tn.functional

# What no device may be asked


@pytest.fixture
def stand_in(monkeypatch):
    """The strict one, which counts copies."""
    return strict_cupy.install(monkeypatch)


def logits_and_target(dtype=np.float32):
    rng = np.random.default_rng(0)
    return rng.normal(size=(4, 3)).astype(dtype), np.array([0, 2, -100, 1])


def on_device(z, target, weight=None):
    """The arguments of a loss."""
    z = tn.tensor(z, device="cuda", requires_grad=True)
    return z, tn.tensor(target, device="cuda"), None if weight is None else tn.tensor(weight, device="cuda")


@pytest.mark.parametrize("loss", [F.cross_entropy, F.nll_loss])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_loss_and_its_gradient_copy_nothing_to_the_host(stand_in, loss, reduction, weighted):
    z, target = logits_and_target()
    weight = np.array([0.5, 1.0, 2.0], np.float32) if weighted else None
    arguments = on_device(z, target, weight)
    dy = tn.tensor(
        np.linspace(0.5, 2.0, 4, dtype=np.float32) if reduction == "none" else np.float32(0.5), device="cuda"
    )
    stand_in.machine.to_host.clear()
    y = loss(*arguments, reduction=reduction)
    y.backward(dy)
    assert stand_in.machine.to_host == []
    host = tn.tensor(z, requires_grad=True)
    right = loss(host, target, weight, reduction=reduction)
    right.backward(dy.numpy())
    np.testing.assert_array_equal(y.numpy(), right.numpy())
    np.testing.assert_array_equal(to_device(arguments[0].grad, CPU), host.grad)


@pytest.mark.parametrize("loss", [F.cross_entropy, F.nll_loss])
@pytest.mark.parametrize("wrong", [3, -1, 2**40, -100])
def test_a_class_that_does_not_exist_makes_its_row_nan_and_is_refused_on_the_host(cupy, loss, wrong):
    z, _ = logits_and_target()
    target = np.array([0, wrong, -7, 1])
    with pytest.raises(tn.errors.OutOfRangeError, match=str(wrong)):
        loss(z, target, ignore_index=-7)
    z, target, _ = on_device(z, target)
    rows = loss(z, target, ignore_index=-7, reduction="none")
    np.testing.assert_array_equal(np.isnan(rows.numpy()), [False, True, False, False])
    assert rows.numpy()[2] == 0.0
    rows.backward(tn.tensor(np.float32([0.5, 1.0, 2.0, 3.0]), device="cuda"))
    gradient = to_device(z.grad, CPU)
    assert np.isfinite(gradient[[0, 2, 3]]).all()
    assert np.isnan(gradient[1]).any()
    for reduction in ("mean", "sum"):
        assert np.isnan(loss(z, target, ignore_index=-7, reduction=reduction).item())


@pytest.mark.parametrize("loss", [F.cross_entropy, F.nll_loss])
@pytest.mark.parametrize("wrong", [-1.0, nan])
def test_a_negative_weight_makes_the_rows_of_its_class_nan_and_is_refused_on_the_host(cupy, loss, wrong):
    z, target = logits_and_target()
    weight = np.float32([1.0, wrong, 0.5])
    with pytest.raises(tn.errors.ArgumentError, match="weight"):
        loss(z, target, weight)
    arguments = on_device(z, target, weight)
    np.testing.assert_array_equal(np.isnan(loss(*arguments, reduction="none").numpy()), [False, False, False, True])
    assert np.isnan(loss(*arguments).item())


def test_smoothing_hears_of_every_weight(cupy):
    z, target, weight = on_device(*logits_and_target(), np.float32([1.0, -1.0, 0.5]))
    rows = F.cross_entropy(z, target, weight, "none", label_smoothing=0.1).numpy()
    np.testing.assert_array_equal(np.isnan(rows), [True, True, False, True])


@pytest.mark.parametrize("loss", [F.cross_entropy, F.nll_loss])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_mean_over_no_rows_is_nan_and_is_refused_on_the_host(cupy, loss, dtype):
    z, target = np.zeros((2, 3), dtype), np.array([-100, -100])
    with pytest.raises(tn.errors.ArgumentError, match="ignored"):
        loss(z, target)
    y = loss(*on_device(z, target)[:2])
    assert np.isnan(y.numpy())
    assert y.dtype == dtype
    assert loss(*on_device(z, target)[:2], reduction="sum").item() == 0.0
    weight = np.array([0.0, 1.0, 1.0], dtype)
    assert np.isnan(loss(*on_device(z, np.array([0, -100]), weight)).numpy())


@pytest.mark.parametrize("loss", [F.cross_entropy, F.nll_loss])
def test_a_mean_where_there_are_no_classes_to_weigh(cupy, loss):
    z, target, weight = np.zeros((2, 0), np.float32), np.array([-100, -100]), np.zeros(0, np.float32)
    with pytest.raises(tn.errors.ArgumentError, match="ignored"):
        loss(z, target, weight)
    assert np.isnan(loss(*on_device(z, target, weight)).numpy())


@pytest.mark.parametrize("smoothing", [0.1, 1.0])
def test_the_mean_over_rows_of_no_weight_is_nan_with_smoothing_too(cupy, smoothing):
    z, target, weight = on_device(np.float32([[1.0, 2.0, 4.0]] * 2), np.array([0, 0]), np.float32([0.0, 1.0, 1.0]))
    assert np.isnan(F.cross_entropy(z, target, weight, label_smoothing=smoothing).numpy())
    with pytest.raises(tn.errors.ArgumentError, match="weigh 0"):
        F.cross_entropy(z.numpy(), target.numpy(), weight.numpy(), label_smoothing=smoothing)


def test_shapes_and_dtypes_are_checked_on_a_device_too(cupy):
    z, target, weight = on_device(*logits_and_target(), np.float32([1.0, 1.0]))
    with pytest.raises(tn.errors.ShapeError, match=r"target of shape \(4,\)"):
        F.cross_entropy(z, target[:3])
    with pytest.raises(tn.errors.DTypeError, match="integer"):
        F.cross_entropy(z, target.astype(np.float32))
    with pytest.raises(tn.errors.ShapeError, match="3 classes"):
        F.cross_entropy(z, target, weight)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint64])
def test_any_integers_are_classes(cupy, dtype):
    z, _ = logits_and_target()
    target = np.array([0, 2, 1, 2], dtype)
    y = F.cross_entropy(*on_device(z, target)[:2])
    assert y.item() == pytest.approx(F.cross_entropy(z, target).item(), rel=1e-6)


def test_a_target_may_be_written_to_before_the_backward(cupy):
    z, classes, gradients = logits_and_target()[0], np.array([0, 2, 1, 1]), []
    for again in (False, True):
        scores, target, _ = on_device(z, classes)
        y = F.cross_entropy(scores, target)
        if again:
            target.data[...] = 0
        y.backward()
        gradients.append(to_device(scores.grad, CPU))
    np.testing.assert_array_equal(*gradients)


# The kernel


def by_definition(z, target, weight=None, reduction="mean", ignore_index=-100, label_smoothing=0.0, *, dy):
    """The loss, its gradient, and how much of each may be rounding (in units of eps), in long doubles, row by row.

    What belongs to a likely class is minus the sum of what belongs to the others, which loses nothing.
    """
    n, classes = z.shape
    z, w = z.astype(np.longdouble), np.ones(classes) if weight is None else weight.astype(np.longdouble)
    loss, size, gradient, sizes = np.zeros(n), np.zeros(n), np.zeros(z.shape), np.zeros(z.shape)
    loss, size, gradient, sizes = (a.astype(np.longdouble) for a in (loss, size, gradient, sizes))
    for i, t in enumerate(target):
        q = label_smoothing / classes * w + (1.0 - label_smoothing) * w * (np.arange(classes) == t)
        top = z[i].argmax()
        d = z[i] - z[i, top]
        e = np.exp(d)
        others = e.sum() - e[top] if e.sum() > 2 else np.delete(e, top).sum()
        if t != ignore_index:
            loss[i] = q.sum() * np.log1p(others) - (q * d).sum()
            size[i] = loss[i] + (q * abs(d)).sum()
            p = e / (1.0 + others)
            gradient[i], sizes[i] = p * q.sum() - q, (p * q.sum() + q) * (1.0 + abs(d))
            gradient[i, top] = -np.delete(gradient[i], top).sum()
            if p[top] > 0.75:
                sizes[i, top] = np.delete(sizes[i], top).sum()
    kept = target != ignore_index
    divisor = w[target[kept]].sum() if reduction == "mean" else 1.0
    gradient, sizes = (g * (dy / divisor).reshape(-1, 1) for g in (gradient, abs(sizes)))
    if reduction == "none":
        return (loss, size), (gradient, abs(sizes))
    return (loss.sum() / divisor, size.sum() / divisor), (gradient, abs(sizes))


def run(z, target, weight=None, reduction="mean", *, dy, **options):
    """The loss and the gradient of the kernel, as arrays of the host."""
    scores = tn.as_tensor(to_device(z, "cuda"), requires_grad=True)
    target, weight = (None if a is None else tn.tensor(a, device="cuda") for a in (target, weight))
    y = F.cross_entropy(scores, target, weight, reduction, **options)
    assert y._source.kernel is losses.cross_entropy
    y.backward(tn.tensor(dy.astype(y.dtype), device="cuda"))
    return y.numpy(), to_device(scores.grad, CPU)


def assert_right(z, target, *arguments, dy, **options):
    """Kernel and definition agree up to rounding."""
    dy = np.asarray(dy).astype(z.dtype)
    found = run(z, target, *arguments, dy=dy, **options)
    right = by_definition(z, target, *arguments, dy=dy.astype(np.longdouble), **options)
    own, inside = np.finfo(z.dtype), np.finfo(np.promote_types(z.dtype, np.float32))
    for got, (exact, size) in zip(found, right, strict=True):
        assert (got.dtype, got.shape) == (z.dtype, exact.shape)
        rounding = 8 * inside.eps * size + own.eps * abs(exact) + own.smallest_normal
        assert (abs(got - exact) <= rounding).all(), abs(got - exact).max()


def drawn(n, classes, dtype, seed=0):
    """Logits, targets, weights, cotangents. A row's target is near certain, another's far from it; and two may tie."""
    rng = np.random.default_rng(seed)
    z, target = 3.0 * rng.normal(size=(n, classes)), rng.integers(0, classes, n)
    target[0] = (target[1] + 1) % classes
    z[0, target[0]] = z[n - 1, target[n - 1] - 1] = 25.0
    z[n - 2, 0] = z[n - 2, 5 % classes] = 20.0  # which belong to different threads
    return z.astype(dtype), target, (rng.random(classes) + 0.5).astype(dtype), rng.normal(size=n)


def assert_right_in_all_ways(z, target, weight, dy, smoothings=(0.0, 0.1)):
    """With and without weights and rows to be ignored, for every reduction."""
    for label_smoothing in smoothings:
        assert_right(z, target, dy=dy[0], label_smoothing=label_smoothing)
        assert_right(z, target, weight, "sum", dy=dy[0], label_smoothing=label_smoothing)
        assert_right(z, target, weight, "none", dy=dy, label_smoothing=label_smoothing)
        assert_right(z, target, weight, ignore_index=int(target[1]), dy=dy[0], label_smoothing=label_smoothing)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("classes", [10, 600])
def test_loss_and_gradient(cuda_kernels, classes, dtype):
    """Several rows in a block, of threads that are a part of a warp, or more."""
    assert_right_in_all_ways(*drawn(5, classes, dtype))


@pytest.mark.parametrize("classes", [2, 65, 1300])
def test_rows_of_other_lengths(cuda_kernels, classes):
    """Classes that no 16 bytes divide, that fill no threads, and a block for each row."""
    assert_right_in_all_ways(*drawn(3, classes, np.float32), smoothings=[0.1])


def test_rows_that_are_longer_than_all_registers(cuda_kernels, monkeypatch):
    monkeypatch.setattr(layout, "THREADS", 64)
    assert_right_in_all_ways(*drawn(3, 2 * 64 * layout.REGISTERS + 4, np.float32))


def test_layouts(cuda_kernels):
    z, target, _, dy = drawn(6, 12, np.float32)
    wide = np.empty(6 * 12 + 1, np.float32)
    wide[1:] = z.reshape(-1)
    wide = to_device(wide, "cuda")
    shifted = tn.as_tensor(wide[1:].reshape(6, 12), requires_grad=True)  # not aligned to 16 bytes
    backwards = to_device(target[::-1].copy(), "cuda")[::-1]
    y = F.cross_entropy(shifted, tn.as_tensor(backwards), reduction="none")
    assert y._source.kernel is losses.cross_entropy
    rows = tn.tensor(np.repeat(dy.astype(np.float32), 2), device="cuda")[::2]
    y.backward(rows)
    right = run(z, target, dy=dy, reduction="none")
    np.testing.assert_allclose(y.numpy(), right[0], rtol=2e-6)
    np.testing.assert_allclose(to_device(shifted.grad, CPU), right[1], rtol=2e-6)


def test_rows_in_several_axes(cuda_kernels):
    """(N, C, d) has its classes in the middle, so formulas run; a lone row is one of any number."""
    z, target, _, dy = drawn(6, 12, np.float32)
    right = run(z, target, dy=dy[0])[0]
    turned = np.ascontiguousarray(z.reshape(2, 3, 12).transpose(0, 2, 1))
    y = F.cross_entropy(tn.tensor(turned, device="cuda"), tn.tensor(target.reshape(2, 3), device="cuda"))
    assert y.item() == pytest.approx(float(right), rel=1e-6)
    lone = F.cross_entropy(tn.tensor(z[0], device="cuda"), tn.tensor(target[0], device="cuda")).item()
    np.testing.assert_allclose(lone, by_definition(z[:1], target[:1], dy=np.longdouble(1))[0][0], rtol=1e-6)


HARD = {
    "far apart": ([1e4, -1e4, 0.0], 0, 0.0, [0, 0, 0]),
    "far behind": ([1e4, -1e4, 0.0], 1, 2e4, [1, -1, 0]),
    "near certain": ([0.0, 46.0, 0.0], 1, 2 * np.exp(-46.0), np.exp(-46.0) * np.array([1, -2, 1])),
    "masked": ([0.0, -inf, 0.0], 0, np.log(2), [-0.5, 0, 0.5]),
    "masked target": ([0.0, -inf, 0.0], 1, inf, [0.5, -1, 0.5]),
    "all but one masked": ([-inf, 3.0, -inf], 1, 0.0, [0, 0, 0]),
    "infinite": ([0.0, inf, 0.0], 1, 0.0, [0, 0, 0]),
    "infinitely behind": ([0.0, inf, 0.0], 0, inf, [-1, 1, 0]),
    "several infinite": ([inf, inf, 0.0], 0, nan, [nan] * 3),
    "all masked": ([-inf, -inf, -inf], 0, nan, [nan] * 3),
    "nan": ([nan, 1.0, 2.0], 2, nan, [nan] * 3),
    "nan at last": ([2.0, 1.0, nan], 0, nan, [nan] * 3),
    "nan that is ignored": ([nan, inf, 0.0], -100, 0.0, [0, 0, 0]),
    "tied": ([5.0, 5.0, 5.0], 2, np.log(3), [1 / 3, 1 / 3, -2 / 3]),
}


def test_hard_numbers(cuda_kernels):
    """By hand, all in one array, and each as the formulas have it, too."""
    z, target, right, slope = (np.array(column) for column in zip(*HARD.values(), strict=True))
    z, dy = z.astype(np.float32), np.linspace(0.5, 2.0, len(z), dtype=np.float32)
    loss, gradient = run(z, target, dy=dy, reduction="none")
    with tn.formulas_only(), np.errstate(all="ignore"):
        t = tn.tensor(z, requires_grad=True)
        y = F.cross_entropy(t, target, reduction="none")
        y.backward(dy)
    for i, name in enumerate(HARD):
        np.testing.assert_allclose(loss[i], right[i], rtol=2e-6, err_msg=name)
        np.testing.assert_allclose(gradient[i], slope[i] * dy[i], rtol=2e-6, err_msg=name)
        np.testing.assert_allclose(loss[i], y.numpy()[i], rtol=2e-6, err_msg=name)
        np.testing.assert_allclose(gradient[i], t.grad[i], rtol=2e-6, err_msg=name)


def test_smoothing_of_hard_numbers(cuda_kernels):
    """Against the formula on the host; a class that weighs nothing silences even −inf."""
    z = np.float32([[1e4, -1e4, 0.0], [0.0, -inf, 0.0], [-inf, 0.0, 1.0], [0.0, inf, 0.0], [nan, 0, 0], [-inf] * 3])
    target, dy = np.array([0, 0, 1, 1, -100, 2]), np.linspace(0.5, 2.0, len(z), dtype=np.float32)
    for weight in (None, np.float32([1.0, 0.0, 2.0]), np.zeros(3, np.float32)):
        found = run(z, target, weight, dy=dy, reduction="none", label_smoothing=0.1)
        with tn.formulas_only(), np.errstate(all="ignore"):
            t = tn.tensor(z, requires_grad=True)
            y = F.cross_entropy(t, target, weight, "none", label_smoothing=0.1)
            y.backward(dy)
        np.testing.assert_allclose(found[0], y.numpy(), rtol=2e-6)
        np.testing.assert_allclose(found[1], t.grad, rtol=2e-6, atol=1e-7)


def test_only_the_gradient_has_the_size_of_the_logits(cuda_kernels):
    z, target, _, _ = drawn(16, 600, np.float32)
    arguments, sizes = on_device(z, target)[:2], []
    allocate = cuda_kernels.cuda.get_allocator()

    def recorded(size):
        sizes.append(size)
        return allocate(size)

    F.cross_entropy(*arguments).backward()  # whatever is made once
    arguments[0].grad = None
    with cuda_kernels.cuda.using_allocator(recorded):
        y = F.cross_entropy(*arguments, label_smoothing=0.1)
        assert sum(sizes) < z.nbytes
        sizes.clear()
        y.backward()
    assert max(sizes) == z.nbytes
    assert sum(sizes) < 1.1 * z.nbytes


def test_the_gradient_of_float16_stays_float32_and_the_same_bits_come_each_time(cuda_kernels):
    z, target, _, _ = drawn(5, 10, np.float16)
    found = []
    for _ in range(2):
        y = F.cross_entropy(*on_device(z, target)[:2])
        (dz,) = y._source.pull_back(cuda_kernels.asarray(np.float32(1e-9)))
        assert dz.dtype == np.float32
        found.append((y.numpy().tobytes(), to_device(dz, CPU).tobytes()))
    right = by_definition(z, target, dy=np.longdouble(np.float32(1e-9)))[1][0]
    np.testing.assert_allclose(to_device(dz, CPU), right, rtol=2e-5, atol=1e-15)
    assert found[0] == found[1]


def test_each_logit_is_read_once_in_each_direction_and_each_gradient_written_once(on_cpu, monkeypatch):
    z, target, _, _ = drawn(5, 600, np.float32)
    arguments = on_device(z, target)[:2]
    F.cross_entropy(*arguments).backward()
    arguments[0].grad = None
    both = counters(on_cpu, monkeypatch, losses.FILE)
    y = F.cross_entropy(*arguments)
    assert both.tolist() == [z.nbytes, 0]
    y.backward()
    assert both.tolist() == [2 * z.nbytes, z.nbytes]


def test_formulas_move_many_times_as_much():
    z, target, weight, _ = drawn(256, 1024, np.float32)
    arrays = (a.view(Counted) for a in (target, np.ones_like(weight), target >= 0))
    Counted.moved = 0
    _, cache = cross_entropy(np, z.view(Counted), target=Targets(np.arange(1024), *arrays, 0.0), divisor=256.0)
    forward, Counted.moved = Counted.moved, 0
    cross_entropy_backward(np, np.ones((), np.float32).view(Counted), cache)
    assert forward == pytest.approx(40 * z.nbytes, rel=0.1)
    assert Counted.moved == pytest.approx(17 * z.nbytes, rel=0.1)


def test_the_kernel_copies_nothing_to_the_host(on_cpu):
    arguments = on_device(*drawn(5, 10, np.float32)[:3])
    with cupy_on_cpu.counted() as counts:
        F.cross_entropy(*arguments).backward()
    assert counts.launches > 2
    assert counts.copies_to_host == 0


def test_derivatives_of_derivatives(cuda_kernels):
    """The gradient's gradient is (diag p − p pᵀ) / n."""
    z, target, _, _ = drawn(2, 4, np.float64, seed=3)
    v = np.random.default_rng(1).normal(size=z.shape)
    x, t, _ = on_device(z, target)
    (slope,) = tn.grad(F.cross_entropy(x, t), x, create_graph=True)
    (found,) = tn.grad((slope * tn.tensor(v, device="cuda")).sum(), x)
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    np.testing.assert_allclose(found.numpy(), p * (v - (p * v).sum(1, keepdims=True)) / 2, rtol=1e-10, atol=1e-16)


def test_what_the_kernel_takes(cuda_kernels):
    """Shapes, dtypes and layout decide, never values."""
    z, target, _, _ = drawn(4, 6, np.float32)

    def kernel(scores, classes=target):
        return F.cross_entropy(scores, tn.tensor(classes, device="cuda"), reduction="sum")._source.kernel

    x = tn.tensor(z, device="cuda", requires_grad=True)
    assert kernel(x) is losses.cross_entropy
    with tn.formulas_only():
        assert kernel(x) is None
    assert kernel(tn.as_tensor(x.data[:, ::-1], requires_grad=True)) is None
    assert kernel(tn.as_tensor(x.data[:, :1].copy(), requires_grad=True), 0 * target) is None
    assert kernel(tn.as_tensor(x.data[:0], requires_grad=True), target[:0]) is None


# Who checks the checker


FAULTS = {
    "a barrier before the warps' parts are read": ("= v;\n    __syncthreads();", "= v;"),
    "rows that are ignored": ("row < rows && kept[row]", "row < rows"),
    "the pieces of a row in the forward": ("heard && start < classes", "heard && start < PIECE"),
    "the pieces of a row in the backward": ("inside && start < classes", "inside && start < PIECE"),
    "the end of a row": ("d, classes - start", "d, PIECE"),
    "the ones that were left out": (" + ties;", ";"),
    "a larger one comes": ("(others + 1) * exp(top - high);", "others * exp(top - high);"),
    "what was pulled before it": ("pull += mass * (high - top);", ";"),
    "the target's own term": ("loss += h * minus(largest, A(from[t]));", ";"),
    "the target in the gradient": ("q = c == t ? h : A(0)", "q = A(0)"),
    "the likely class": ("if (at >= 0)", "if (false)"),
    "the cotangent of each row": ("dy[row * step]", "dy[0]"),
}  # fmt: skip


def assert_right_in_every_order(label_smoothing):
    """Both kernels, of two warps that take a row in three pieces."""
    z, target, weight, dy = drawn(4, 2 * 64 * layout.REGISTERS + 4, np.float32)
    options = {"ignore_index": int(target[1]), "label_smoothing": label_smoothing}
    for name in cupy_on_cpu.ORDERS:
        with cupy_on_cpu.order(name):
            assert_right(z, target, weight, "none", dy=dy, **options)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_kernel_is_found(on_cpu, fault, monkeypatch):
    text, (right, wrong) = launch.source(losses.FILE), FAULTS[fault]
    assert text.count(right) == 1
    label_smoothing = 0.1 if "mass" in right else 0.0
    monkeypatch.setattr(layout, "THREADS", 64)
    assert_right_in_every_order(label_smoothing)
    monkeypatch.setattr(launch, "source", lambda file: text.replace(right, wrong))
    monkeypatch.setattr("cupy_on_cpu.compile.compile_for_gpus", lambda source, options: [])  # which are not to run it
    with pytest.raises((AssertionError, RuntimeError)):
        assert_right_in_every_order(label_smoothing)
