"""The tests of the norms' CUDA kernels are tested: each fault that is planted in the kernels' text must be found.

What the formulas' mutants are made of (a term dropped, a sign turned, a factor forgotten), and what only kernels can
have: a barrier that is missing, one that not all threads reach, a bound, a sum that is not carried on.
"""

import cupy_on_cpu
import numpy as np
import pytest
from helpers import inputs, normal, right

from tinynorm.kernels.cuda import launch, layout, norms

from .test_cuda_norms import close, run

pytestmark = pytest.mark.cupy_on_cpu  # on a device, a fault could end more than its test

SHORT, WIDE, LONG = 64, 1000, 1024
"""Widths for which a warp takes two rows, two warps take a row, and one warp takes a row in two pieces."""

FAULTS = [
    # The forward's mathematics
    ("x - row.mean - row.rest", "x - row.rest", SHORT),
    ("- row.mean - row.rest", "- row.mean", SHORT),
    ("* max(row.s, A(1))", "", SHORT),
    ("(min(row.s, A(1)) * x", "(x", SHORT),
    ("q += c * c", "q += c", SHORT),
    ("variance + A(eps * s * s)", "variance", SHORT),
    ("A(eps * s * s)", "A(eps)", SHORT),
    ("A(eps * s * s)", "A(eps * s)", SHORT),
    ("over_row<THREADS, Sum>(square) / N;", "over_row<THREADS, Sum>(square) / (N - 1);", SHORT),
    ("!(row.r > 0)", "false", SHORT),
    ("row.r > LARGEST", "false", SHORT),
    ("if (isinf(row.r)) row.r = 0;", "", SHORT),
    ("v[k] = gain[k] * (", "v[k] = (", SHORT),
    (" + bias[k]", "", SHORT),
    # The backward's
    ("dh[k] *= gain[k];\n        s +=", "s +=", SHORT),
    ("dgain[k] += dh[k] * h[k]", "dgain[k] += dh[k]", SHORT),
    ("dgain[k] += dh[k] * h[k]", "dgain[k] = dh[k] * h[k]", SHORT),
    ("dbias[k] += dh[k]", "dbias[k] -= dh[k]", SHORT),
    ("dh[k] - mean - h[k]", "dh[k] - h[k]", SHORT),
    ("- h[k] * slope", "+ h[k] * slope", SHORT),
    ("- h[k] * slope", "", SHORT),
    ("rate = row.r * row.s", "rate = row.r", SHORT),
    ("rate = row.r * row.s", "rate = row.s", SHORT),
    ("apart = isinf(rate) || rate < NORMAL", "apart = true", SHORT),
    ("other = apart ? row.s : 1", "other = 1", SHORT),
    # Rows and pieces of rows
    ("const int n = i < M ? N : 0;\n  x += ", "const int n = N;\n  x += ", SHORT),
    ("const int n = i < M ? N : 0;\n    const", "const int n = N;\n    const", SHORT),
    ("first += (long long)gridDim.x * blockDim.y", "first += blockDim.y", SHORT),
    ("first += (long long)gridDim.x * blockDim.y", "first += 2LL * gridDim.x * blockDim.y", SHORT),
    ("add_rows(dgain);", "", SHORT),
    ("j = 1; j < blockDim.y", "j = 1; j < blockDim.y - 1", SHORT),
    ("inside(k, n) ?", "true ?", WIDE),
    ("at < (LONG ? n : 1)", "at < (LONG ? n - 1000 : 1)", LONG),
    ("known = s <= 1 && variance >= rest * rest", "known = true", LONG),
    ("known = s <= 1 && variance", "known = variance", LONG),
    ("- rest * rest", "", LONG),
    ("dg && first != blockIdx.x", "dg", LONG),
    ("dg && first != blockIdx.x ? n - at : 0", "0", LONG),
    ("mean += s, slope += q", "mean += s, slope = q", LONG),
    # Threads
    ("__syncthreads_or(large || small)", "large || small", WIDE),
    ("sum[k];\n    __syncthreads();", "sum[k];", WIDE),
    ("= v;\n    __syncthreads();", "= v;", WIDE),
    ("__syncthreads();  // all", "// all", WIDE),
    ("parts + threadIdx.y * warps", "parts", WIDE),
    ("return over_warp<warps, Join>(v);", "return v;", WIDE),
    ("d = width / 2", "d = width / 4", SHORT),
    ("const bool inside = c < n;", "const bool inside = c <= n;", WIDE),
    ("if (c < n) *(Pack", "*(Pack", WIDE),
]


def hold(cupy, width):
    """LayerNorm, which has all that RMSNorm has, of rows of every kind, in each order of the threads."""
    rows = 70 if width == SHORT else 11
    x, dy = normal(rows, width), normal(rows, width, seed=1)
    x[1] += np.float32(1e6)
    ordinary = x.copy()
    x[2] *= np.float32(1e25)
    x[3] *= np.float32(1e-25)
    far = np.clip(normal(3, width, seed=2), -3, 3) * np.float32([[1e-25], [1e25], [1e38]])
    sent = dy[:3] * np.float32([[1e-36], [1e35], [1e10]])
    constant = np.array([[0.1], [1e10], [0.0]], np.float32).repeat(width, 1)
    for order in cupy_on_cpu.ORDERS:
        with cupy_on_cpu.order(order):
            for numbers, eps in ((ordinary, 0.5), (x, 0.0), (x, 1e-50)):
                arrays = inputs("layer", numbers)
                _, y, dx, *rest = run(cupy, "layer", arrays, dy, eps)
                expected = right("layer", arrays, dy, eps)
                close([y, dx], expected[:2], 4.0, rows=True)
                close(rest, expected[2:], 4.0)
            _, _, dx, *_ = run(cupy, "layer", inputs("layer", far), sent, 0.0)
            close([dx], right("layer", inputs("layer", far), sent, 0.0)[1:2], 4.0, rows=True)
            arrays = inputs("layer", constant)
            _, y, dx, *_ = run(cupy, "layer", arrays, dy[:3], 0.0)
            np.testing.assert_array_equal(y, np.tile(arrays[2], (3, 1)))
            np.testing.assert_array_equal(dx, np.zeros((3, width)))


def plant(monkeypatch, old, new):
    text = launch.source(norms.FILE)
    assert text.count(old) == 1
    monkeypatch.setattr(launch, "source", lambda file: text.replace(old, new))


@pytest.mark.parametrize("width", [SHORT, WIDE, LONG])
def test_without_a_fault_all_holds(one_processor, monkeypatch, width):
    monkeypatch.setattr(layout, "THREADS", 32 if width == LONG else 64)
    hold(one_processor, width)


@pytest.mark.parametrize(("old", "new", "width"), FAULTS, ids=[f"{old} → {new}" for old, new, _ in FAULTS])
def test_each_fault_is_found(one_processor, monkeypatch, old, new, width):
    monkeypatch.setattr(layout, "THREADS", 32 if width == LONG else 64)
    plant(monkeypatch, old, new)
    with pytest.raises((AssertionError, one_processor.cuda.driver.CUDADriverError)):
        hold(one_processor, width)
