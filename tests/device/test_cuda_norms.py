"""The CUDA kernels of RMSNorm and LayerNorm: against long doubles, and against their formulas as plain CuPy runs them.

On the CPU each way to lay out a row takes seconds of compilation, so the same widths come again: 64 numbers stay in
registers and, where `few` threads share a row, 1024 do not.
"""

import cupy_on_cpu
import numpy as np
import pytest
from helpers import inputs, normal, right

import tinynorm as tn
from tinynorm import table
from tinynorm.kernels.cuda import layout, norms

F = tn.functional
OPS = {"rms": table.rms_norm, "layer": table.layer_norm}
KINDS = pytest.mark.parametrize("kind", OPS)
HALF, SINGLE, DOUBLE = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
TOLERANCE = {HALF: 6e-4, SINGLE: 4e-6, DOUBLE: 8e-15}  #: in units of the largest number; half a step of float16


def run(cupy, kind, arrays, dy, eps=1e-5, axes=1, needs=None):
    """Whether the kernel ran, y and the gradients, by the operation itself. Arrays may be CuPy's already."""
    placed = tuple(None if a is None else cupy.asarray(a) for a in arrays)
    needs = needs or tuple(a is not None for a in arrays)
    y, cache, kernel = OPS[kind].run_any(cupy, placed, needs, {"axis": tuple(range(-axes, 0)), "eps": eps})
    dy = cupy.asarray(dy)
    gradients = kernel.backward(dy, cache, needs) if kernel else OPS[kind].pull_back(cupy, dy, cache, needs)
    kept = [g if need else None for g, need in zip(gradients, needs, strict=True)]
    return [kernel is not None, *(None if a is None else cupy.asnumpy(a) for a in (y, *kept))]


def close(got, expected, factor=1.0, rows=False):
    """Each to the tolerance of its own dtype, by its largest number, or by that of each row."""
    for name, (a, b) in zip(("y", "dx", "dw", "db"), zip(got, expected, strict=True), strict=False):
        assert (a is None) == (b is None), name
        if a is not None:
            b = np.asarray(b, np.longdouble)
            assert a.shape == b.shape
            size = np.abs(b).max(axis=-1 if rows else None, keepdims=True, initial=1e-300)
            error = np.abs(a.astype(np.longdouble) - b) / size
            assert (error <= factor * TOLERANCE[a.dtype]).all(), (name, float(error.max()))


def check(cupy, kind, arrays, dy, eps=1e-5, axes=1, needs=None, factor=1.0):
    """The kernel runs, and its results are those of long doubles."""
    fast, *got = run(cupy, kind, arrays, dy, eps, axes, needs)
    assert fast
    expected = right(kind, arrays, dy, eps, axes)
    close(
        got, [expected[0], *(e if g is not None else None for g, e in zip(got[1:], expected[1:], strict=True))], factor
    )
    return got


@pytest.fixture
def few(monkeypatch):
    """Few threads to a row, so that rows beyond 512 numbers are long; and a device of one processor: two blocks."""
    monkeypatch.setattr(layout, "THREADS", 32)
    monkeypatch.setattr(norms, "_processors", lambda cupy, device: 1)


# Shapes and dtypes

RMS_WIDTHS, LAYER_WIDTHS = (2, 31, 33, 64, 256, 257, 1000), (3, 32, 64, 100, 255, 1024)


@pytest.mark.parametrize(
    ("kind", "width"), [*(("rms", width) for width in RMS_WIDTHS), *(("layer", width) for width in LAYER_WIDTHS)]
)
def test_any_width(cuda_kernels, kind, width):
    for rows in (1, 2, 3, 9):
        check(cuda_kernels, kind, inputs(kind, normal(rows, width)), normal(rows, width, seed=1))


@pytest.mark.parametrize(("kind", "width"), [("rms", 1024), ("layer", 1024), ("layer", 1001)])
def test_rows_longer_than_the_registers(cuda_kernels, few, kind, width):
    assert layout.layout(512, 4, True).long == 0
    assert layout.layout(width, 4, width % 4 == 0).long == 1
    for affine in ("none", "both"):
        check(cuda_kernels, kind, inputs(kind, normal(5, width), affine), normal(5, width, seed=1))


@pytest.mark.parametrize(("kind", "width", "long"), [("rms", 8192, 0), ("layer", 8193, 1)])
def test_the_longest_rows_that_fit_and_longer_ones(cuda_kernels, kind, width, long):
    assert layout.layout(width, 4, width % 4 == 0).long == long
    check(cuda_kernels, kind, inputs(kind, normal(2, width)), normal(2, width, seed=1))


@pytest.mark.parametrize(("kind", "width"), [("rms", 64), ("layer", 64), ("layer", 3), ("rms", 1000)])
def test_many_rows(cuda_kernels, monkeypatch, kind, width):
    """More than all blocks take at once; and many blocks, since none may take too many rows."""
    monkeypatch.setattr(norms, "_processors", lambda cupy, device: 1)
    arrays, dy = inputs(kind, normal(300, width)), normal(300, width, seed=1)
    check(cuda_kernels, kind, arrays, dy)
    monkeypatch.setattr(norms, "ROWS", 1)
    check(cuda_kernels, kind, arrays, dy)


@KINDS
@pytest.mark.parametrize("dtype", [HALF, DOUBLE])
def test_any_dtype(cuda_kernels, kind, dtype):
    """Gradients of a float16 are float32 until they are delivered."""
    arrays, dy = inputs(kind, normal(5, 64, dtype=dtype)), normal(5, 64, seed=1, dtype=max(dtype, SINGLE))
    y, *gradients = check(cuda_kernels, kind, arrays, dy)
    assert y.dtype == dtype
    assert {g.dtype for g in gradients} == {max(dtype, SINGLE)}


def test_a_cotangent_of_another_dtype(cuda_kernels):
    """At the root, that of a float16 may be float16; any other is converted."""
    arrays = inputs("layer", normal(5, 64, dtype=HALF))
    for dtype in (HALF, DOUBLE):
        check(cuda_kernels, "layer", arrays, normal(5, 64, seed=1, dtype=dtype))


def test_bfloat16(cuda_kernels):
    """CuPy has it where ml_dtypes is installed. 8 of 24 digits: y is off by 2⁻⁸ of itself at most."""
    brain = np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    for kind, sent in (("rms", SINGLE), ("layer", SINGLE), ("layer", brain)):
        arrays, dy = [a.astype(brain) for a in inputs(kind, normal(5, 64))], normal(5, 64, seed=1).astype(sent)
        fast, y, *gradients = run(cuda_kernels, kind, arrays, dy)
        assert fast
        assert y.dtype == brain
        expected = right(kind, [a.astype(SINGLE) for a in arrays], dy.astype(SINGLE))
        np.testing.assert_allclose(y.astype(float), expected[0].astype(float), rtol=2.0**-8 + 1e-6, atol=1e-6)
        close(gradients, expected[1:])


@KINDS
@pytest.mark.parametrize("affine", ["none", "weight", "bias", "both"])
def test_what_is_absent_and_what_is_not_needed(cuda_kernels, kind, affine):
    arrays, dy = inputs(kind, normal(5, 64), affine), normal(5, 64, seed=1)
    there = [a is not None for a in arrays]
    for chosen in range(2 ** len(arrays)):
        needs = tuple(a and bool(chosen >> i & 1) for i, a in enumerate(there))
        check(cuda_kernels, kind, arrays, dy, needs=needs)


@KINDS
@pytest.mark.parametrize(
    ("shape", "axes"), [((64,), 1), ((8, 8), 2), ((3, 16, 4), 2), ((2, 4, 8, 2), 3), ((2, 3, 64), 1)]
)
def test_more_axes_and_fewer(cuda_kernels, kind, shape, axes):
    arrays = inputs(kind, normal(*shape), axes=axes)
    got = check(cuda_kernels, kind, arrays, normal(*shape, seed=1), axes=axes)
    assert [a.shape for a in got[1:]] == [a.shape for a in arrays]


@KINDS
def test_any_layout(cuda_kernels, kind):
    """Rows that do not begin at multiples of 16 bytes, rows apart, columns, and a number that stands for all."""
    cupy = cuda_kernels
    arrays, dy = inputs(kind, normal(6, 64)), normal(6, 64, seed=1)
    expected = right(kind, arrays, dy)
    flat = cupy.concatenate([cupy.zeros(1, SINGLE), cupy.asarray(arrays[0]).ravel()])
    for x in (
        flat[1:].reshape(6, 64),
        cupy.asarray(arrays[0], order="F"),
        cupy.asarray(arrays[0].repeat(2, 1))[:, ::2],
    ):
        for sent in (cupy.asarray(dy, order="F"), cupy.asarray(dy[::-1].copy())[::-1]):
            fast, *got = run(cupy, kind, [x, *arrays[1:]], sent)
            assert fast
            close(got, expected)
    one = cupy.broadcast_to(cupy.asarray(SINGLE.type(0.7)), (6, 64))
    close(run(cupy, kind, arrays, one)[1:], right(kind, arrays, np.full((6, 64), 0.7)), factor=4)


@KINDS
def test_no_rows(cuda_kernels, kind):
    x = tn.tensor(np.zeros((0, 6), np.float32), device="cuda", requires_grad=True)
    weight = tn.tensor(np.ones(6, np.float32), device="cuda", requires_grad=True)
    y = F.rms_norm(x, 6, weight) if kind == "rms" else F.layer_norm(x, 6, weight)
    y.backward(cuda_kernels.zeros((0, 6), np.float32))
    assert y.shape == x.grad.shape == (0, 6)
    assert cuda_kernels.asnumpy(weight.grad).tolist() == [0.0] * 6


def test_which_inputs_a_kernel_serves(cuda_kernels):
    cp = cuda_kernels
    x, w = cp.asarray(normal(4, 6)), cp.asarray(normal(6))
    serves, centred = norms.rms_norm.suits, norms.layer_norm.suits
    for last in ((-1,), (-2, -1)):
        assert serves(x, None, axis=last, eps=0.0)
        assert centred(x, None, None, axis=last, eps=0.0)
    assert serves(x, w, axis=(-1,), eps=0.0)
    assert serves(x.T, None, axis=(-1,), eps=0.0)
    assert not serves(x, None, axis=(-2,), eps=0.0)
    assert not serves(x[:, :1], None, axis=(-1,), eps=0.0)
    assert not centred(x[:, :2], None, None, axis=(-1,), eps=0.0)
    assert not serves(x, w[:1], axis=(-1,), eps=0.0)
    assert not serves(x[:0], None, axis=(-1,), eps=0.0)
    assert not serves(x, w.astype(DOUBLE), axis=(-1,), eps=0.0)
    assert not serves(x.astype(np.int32), None, axis=(-1,), eps=0.0)
    assert not serves(cp.zeros(layout.WIDEST + 1, SINGLE), None, axis=(-1,), eps=0.0)
    assert not centred(x, w, w.astype(DOUBLE), axis=(-1,), eps=0.0)


# The formula, the tape


@KINDS
def test_formulas_only_gives_the_same_to_rounding(cuda_kernels, kind):
    arrays, dy = inputs(kind, normal(5, 64)), normal(5, 64, seed=1)
    fast, *got = run(cuda_kernels, kind, arrays, dy)
    with tn.formulas_only():
        slow, y, dx, *rest = run(cuda_kernels, kind, arrays, dy)
    assert fast
    assert not slow
    close(got, [y, dx, *(g.sum(axis=tuple(range(g.ndim - 1))) for g in rest)])


@KINDS
@pytest.mark.parametrize("dtype", [HALF, SINGLE])
def test_through_tensors(cuda_kernels, kind, dtype):
    """What a user gets; and gradients of gradients, for which formulas run, beside those that the host gets."""
    arrays, dy = inputs(kind, normal(6, 64, dtype=dtype)), normal(6, 64, seed=1, dtype=dtype)
    expected, second = right(kind, arrays, dy), {}
    for device in ("cpu", "cuda"):
        leaves = [tn.tensor(a, device=device, requires_grad=True) for a in arrays]
        call = F.rms_norm if kind == "rms" else F.layer_norm
        y = call(leaves[0], 64, *leaves[1:])
        y.backward(tn.tensor(dy, device=device))
        gradients = [tn.as_tensor(leaf.grad).numpy() for leaf in leaves]
        assert {g.dtype for g in (y.numpy(), *gradients)} == {dtype}
        close([y.numpy(), *gradients], expected)
        (dx,) = tn.grad(call(leaves[0], 64, *leaves[1:]), [leaves[0]], tn.tensor(dy, device=device), create_graph=True)
        (found,) = tn.grad(dx, [leaves[0]], tn.tensor(dy, device=device))
        second[device] = tn.as_tensor(found).numpy()
    close([second["cuda"]], [second["cpu"]], factor=8)


def test_each_device_has_a_module_of_its_own(cuda_kernels):
    if cuda_kernels.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("there is one device")
    arrays, dy = inputs("layer", normal(6, 64)), normal(6, 64, seed=1)
    expected = right("layer", arrays, dy)
    for device in ("cuda:1", "cuda:0", "cuda:1"):
        leaves = [tn.tensor(a, device=device, requires_grad=True) for a in arrays]
        y = F.layer_norm(leaves[0], 64, *leaves[1:])
        y.backward(tn.tensor(dy, device=device))
        gradients = [tn.as_tensor(leaf.grad) for leaf in leaves]
        assert {t.device for t in (y, *gradients)} == {device}
        close([y.numpy(), *(g.numpy() for g in gradients)], expected)


@KINDS
def test_the_same_bits_each_time(cuda_kernels, few, kind):
    arrays, dy = inputs(kind, normal(300, 64)), normal(300, 64, seed=1)
    first, again = (run(cuda_kernels, kind, arrays, dy)[1:] for _ in range(2))
    assert [a.tobytes() for a in first] == [a.tobytes() for a in again]


@KINDS
def test_gradients_of_weights_do_not_drift_over_many_equal_rows(cuda_kernels, few, kind):
    """Equal terms are the worst case for a running total."""
    n = 40_000
    x, dy = (np.tile(normal(1, 3, seed=seed), (n, 1)) for seed in (0, 1))
    arrays = inputs(kind, x)
    needs = (False, *(True for _ in arrays[1:]))
    _, _, _, dw, *db = run(cuda_kernels, kind, arrays, dy, needs=needs)
    _, _, right_dw, *right_db = right(kind, arrays[:1] + arrays[1:], dy)
    np.testing.assert_allclose(dw, right_dw.astype(float), rtol=2e-6)
    for got, expected in zip(db, right_db, strict=True):
        np.testing.assert_allclose(got, expected.astype(float), rtol=2e-6)


# Numbers that are hard


def hard(cupy, kind, x, eps, dy=None, factor=4.0):
    """Each row by its own measure, in registers and, where the fixture `few` is used, in pieces."""
    arrays = inputs(kind, x, "weight")
    dy = normal(*x.shape, seed=1, dtype=x.dtype) if dy is None else dy
    fast, y, dx, *rest = run(cupy, kind, arrays, dy, eps)
    assert fast
    expected = right(kind, arrays, dy, eps)
    close([y, dx], expected[:2], factor, rows=True)
    close(rest[:1], expected[2:3], factor)


SCALES = [
    *((SINGLE, s) for s in (1e20, 3e37, 1e-25, 1e-37)),
    *((DOUBLE, s) for s in (1e200, 2e307, 1e-200, 1e-300)),
]
WIDTHS = pytest.mark.parametrize("width", [64, 1024])


@KINDS
@WIDTHS
@pytest.mark.parametrize("eps", [0.0, 1e-5])
def test_squares_that_overflow_or_underflow(cuda_kernels, few, kind, width, eps):
    """In every other row; the rest are ordinary."""
    for dtype, scale in SCALES:
        x = np.clip(normal(4, width), -3, 3) * ([[scale], [1.0]] * 2)
        hard(cuda_kernels, kind, x.astype(dtype), eps)


@KINDS
@WIDTHS
@pytest.mark.parametrize(("dtype", "eps"), [(SINGLE, 1e-30), (SINGLE, 1e-40), (SINGLE, 1e-50), (DOUBLE, 1e-300)])
def test_an_eps_as_small_as_squares_that_underflow(cuda_kernels, few, kind, width, dtype, eps):
    x = normal(3, width) * np.sqrt(eps)
    x[1] *= 1e4
    hard(cuda_kernels, kind, x.astype(dtype), eps)


@KINDS
@WIDTHS
def test_huge_and_tiny_numbers_in_one_row(cuda_kernels, few, kind, width):
    x = normal(2, width)
    x[1, :2] = 3e38, 1e-38
    hard(cuda_kernels, kind, x, 0.0)


@KINDS
@pytest.mark.parametrize("eps", [1e30, 1e60, 1e300])
def test_an_eps_beyond_the_range(cuda_kernels, kind, eps):
    """r is 1/√ε, or 0 where that is below the range."""
    x = normal(3, 64)
    y = run(cuda_kernels, kind, inputs(kind, x, "none"), x, eps)[1]
    c = x - x.mean(axis=-1, keepdims=True) if kind == "layer" else x
    np.testing.assert_allclose(y, c / np.sqrt(eps), rtol=1e-5, atol=1e-37)


@KINDS
@WIDTHS
@pytest.mark.parametrize("bad", [0.0, 1e30, 1e-30, np.nan, np.inf])
@pytest.mark.parametrize("eps", [0.0, 0.5])
def test_other_rows_keep_every_bit(cuda_kernels, few, kind, width, bad, eps):
    x, dy = normal(40, width) / 4, normal(40, width, seed=1)
    others, got = np.arange(40) != 2, []
    for row in (x[2].copy(), (bad * np.sign(x[2]) if np.isfinite(bad) else np.where(x[2] > 0.4, bad, x[2]))):
        x[2] = row
        _, y, dx, *_ = run(cuda_kernels, kind, inputs(kind, x), dy, eps)
        got.append((y[others], dx[others]))
    assert np.isfinite(got[0]).all()
    np.testing.assert_array_equal(got[0], got[1])


@KINDS
@WIDTHS
@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
def test_without_eps_a_row_of_no_size_gives_0_and_gets_0(cuda_kernels, few, kind, width, dtype):
    x = normal(3, width, dtype=dtype)
    x[1] = 0.0
    _, y, dx, *_ = run(cuda_kernels, kind, inputs(kind, x, "none"), normal(3, width, seed=1, dtype=dtype), 0.0)
    assert np.isfinite(y).all()
    assert np.isfinite(dx).all()
    np.testing.assert_array_equal([y[1], dx[1]], np.zeros((2, width)))
    assert np.abs(y[::2]).max() > 1


@KINDS
@WIDTHS
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_stay_in_their_row(cuda_kernels, few, kind, width, bad):
    """RMSNorm: ∞/∞ is nan, and any other number over ∞ is 0. LayerNorm: nothing is left, as the mean is ∞ or nan."""
    x = normal(3, width)
    x[1, 2] = bad
    row = np.full(width, np.nan)
    if kind == "rms" and not np.isnan(bad):
        row = np.where(np.arange(width) == 2, np.nan, 0.0)
    _, y, dx, *_ = run(cuda_kernels, kind, inputs(kind, x, "none"), normal(3, width, seed=1))
    np.testing.assert_array_equal(y[1], row)
    assert np.isnan(dx[1]).all()
    assert np.isfinite([y[::2], dx[::2]]).all()


@WIDTHS
@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
def test_layer_norm_of_noise_on_a_large_number(cuda_kernels, few, width, dtype):
    """As many digits as where the noise is alone: the long doubles are given the same rounded numbers."""
    for base in (1.0, 100.0, -1e5, 1e6):
        x = (base + normal(3, width)).astype(dtype)
        for eps in (0.0, 1e-5):
            hard(cuda_kernels, "layer", x, eps)


@WIDTHS
@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
def test_rows_one_step_away_from_constant(cuda_kernels, few, width, dtype):
    x = np.full((3, width), 1449.3, dtype)
    x[0, 3] = np.nextafter(x[0, 3], dtype.type(0))
    x[1, :2] = np.nextafter(x[1, 0], dtype.type(np.inf))
    x[2, 1:] = np.nextafter(x[2, 0], dtype.type(np.inf))
    hard(cuda_kernels, "layer", x, 1e-5, factor=4.0)


@pytest.mark.parametrize("dtype", [HALF, SINGLE, DOUBLE])
@pytest.mark.parametrize("eps", [0.0, 1e-12, 1e-5])
def test_constant_rows_are_exactly_the_bias(cuda_kernels, few, dtype, eps):
    """And at ε = 0 their gradient is 0. Sums of 0.1, 3e38 or 6e4 are rounded, or overflow."""
    largest = float(np.finfo(dtype).max)
    for n in {SINGLE: (3, 100, 1001, 30011), DOUBLE: (64, 1024), HALF: (64,)}[dtype]:
        values = np.array([[0.1], [-1 / 3], [1449.3], [6e4], [0.9 * largest], [largest], [largest**0.5]]).astype(dtype)
        arrays, dy = inputs("layer", np.repeat(values, n, axis=1)), normal(7, n, seed=1, dtype=dtype)
        fast, y, dx, *_ = run(cuda_kernels, "layer", arrays, dy, eps)
        assert fast
        np.testing.assert_array_equal(y, np.tile(arrays[2], (7, 1)))
        if eps == 0.0:
            np.testing.assert_array_equal(dx, np.zeros((7, n)))


@WIDTHS
def test_layer_norm_where_the_mean_overflows(cuda_kernels, few, width):
    """Sums beyond 3.4e38; the deviations are small, or as large as the numbers."""
    x, noise = np.full((3, width), 3e38), np.clip(normal(3, width), -2, 2)
    x[0] += 1e36 * noise[0]
    x[1] *= np.sign(noise[1])
    x[2, 0] = -3e38
    hard(cuda_kernels, "layer", x.astype(SINGLE), 0.0)
    hard(cuda_kernels, "layer", x * 5e269, 1e-5)


@KINDS
@WIDTHS
def test_nothing_is_copied_to_the_host_to_find_hard_numbers(cuda_kernels, request, few, kind, width):
    if request.node.get_closest_marker("gpu"):
        pytest.skip("a device does not count copies")
    x, sent = cuda_kernels.asarray(normal(3, width)), cuda_kernels.asarray(normal(3, width, seed=1))
    x[1] *= 1e30
    absent = [None] * (1 if kind == "rms" else 2)
    needs = (True, *(False for _ in absent))
    with cupy_on_cpu.counted() as counts:
        _, cache, kernel = OPS[kind].run_any(cuda_kernels, (x, *absent), needs, {"axis": (-1,), "eps": 0.0})
        kernel.backward(sent, cache, needs)
    assert counts.launches == 2
    assert counts.copies_to_host == counts.copies_to_device == 0


@KINDS
def test_tiny_and_huge_cotangents_of_rows_whose_squares_leave_the_range(cuda_kernels, kind):
    for dtype, scales, cotangents in (
        (SINGLE, [1e-25, 1e25, 1e38], [1e-36, 1e35, 1e10]),
        (DOUBLE, [1e-310, 1e-200, 1e200], [1e-20, 1e-300, 1e300]),
    ):
        x = np.clip(normal(3, 64), -3, 3) * np.array(scales)[:, None]
        dy = normal(3, 64, seed=1) * np.array(cotangents)[:, None]
        hard(cuda_kernels, kind, x.astype(dtype), 0.0, dy.astype(dtype))


@KINDS
def test_cotangents_whose_products_with_x_overflow(cuda_kernels, kind):
    x, dy = normal(4, 64) * SINGLE.type(1e12), normal(4, 64, seed=1)
    dy[3] *= SINGLE.type(1e30)
    hard(cuda_kernels, kind, x, 1e-5, dy)
