"""The real CuPy on the CPU: it computes what NumPy computes, and it sees faults, each of which is planted here.

``pytest -m cupy_on_cpu`` runs these tests, and the device tests on it; CONTRIBUTING.md has the command.
"""

import platform
import re
import shutil
import sys
from pathlib import Path

import cupy_on_cpu
import numpy as np
import pytest
from cupy_on_cpu import arguments, compile
from cupy_on_cpu.compile import KERNEL

import tinynorm as tn
from tinynorm.kernels.cuda import launch

ROWS, WIDTH, THREADS = 6, 128, 64


@pytest.fixture(params=[pytest.param("cupy_on_cpu", marks=pytest.mark.cupy_on_cpu)])
def cupy(request):
    reason = cupy_on_cpu.reason()
    if reason is not None:
        pytest.skip(reason)
    return cupy_on_cpu.install()


# -------------------------------------------------------------------------------------- where it runs, and where not


def test_it_says_in_a_sentence_why_it_cannot_run(monkeypatch):
    versions = {cupy_on_cpu.PACKAGE: cupy_on_cpu.VERSION} | dict.fromkeys(cupy_on_cpu.CUDA, "13.0")
    tools = {"g++": "/usr/bin/g++", "nm": "/usr/bin/nm"}
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(cupy_on_cpu, "_version", versions.get)
    monkeypatch.setattr(shutil, "which", tools.get)
    assert cupy_on_cpu.reason() is None
    del tools["g++"]
    assert cupy_on_cpu.reason() == "CuPy on the CPU needs g++"
    del versions["nvidia-cuda-nvrtc"]
    assert re.fullmatch(r"CuPy on the CPU needs nvidia-cuda-nvrtc: pip install .*", cupy_on_cpu.reason())
    versions[cupy_on_cpu.PACKAGE] = "13.6.0"
    assert re.search(r"needs cupy-cuda13x 14\.2\.0 \(here: 13\.6\.0\)", cupy_on_cpu.reason())
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert cupy_on_cpu.reason() == "CuPy on the CPU needs Linux on x86-64"
    with pytest.raises(RuntimeError, match="needs Linux on x86-64"):
        cupy_on_cpu.install.__wrapped__()


# ------------------------------------------------------------------------------------------------ it computes rightly

EXPRESSIONS = {
    "arithmetic": lambda xp, x, y: (x + y, x - 2 * y, x * y, x / (abs(y) + 1), -x, 2.0**x),
    "functions": lambda xp, x, y: (xp.exp(x), xp.tanh(x), xp.sqrt(abs(x)), xp.log1p(abs(x)), xp.expm1(x), xp.sign(x)),
    "comparisons": lambda xp, x, y: (
        x < y,
        x == x,
        xp.isnan(xp.where(x > 0, x, np.nan)),
        xp.isinf(x),
        (x > 0) & (y > 0),
    ),
    "broadcasting": lambda xp, x, y: (x[:, :1] * y[:1] + 1.5, x * y[0], xp.broadcast_to(x[0], x.shape) + y),
    "layouts": lambda xp, x, y: (x[::-1, ::2] + y[:, ::2], x.T + y.T, x[1:-1, 2:5].copy(), x.reshape(2, 3, 8)),
    "sums": lambda xp, x, y: (x.sum(), x.sum(0), x.mean(-1, keepdims=True), x.var(1), x.T.sum(0), x[:, ::2].sum(1)),
    "extremes": lambda xp, x, y: (x.max(), x.min(0), x.argmax(1), x.argmin(), xp.maximum(x, y), xp.clip(x, -1, 1)),
    "decisions": lambda xp, x, y: (xp.where(x > 0, x, y), (x > 0).any(), (x > 0).all(1), xp.where(x > 0, x, 0)),
    "products": lambda xp, x, y: (x @ y.T, x.T @ y, x @ y[0], x[0] @ y[0], xp.tensordot(x, y, 2)),
    "batches": lambda xp, x, y: (x.reshape(2, 3, 8) @ y.reshape(2, 8, 3), x.reshape(3, 2, 8) @ y.T),
    "einsum": lambda xp, x, y: (xp.einsum("ij,kj->ik", x, y), xp.einsum("ij,ij->i", x, y)),
    "indexing": lambda xp, x, y: (x[xp.asarray([0, 2, 2])], x[x > 0], x[1], xp.take(x, xp.asarray([1, 0]), axis=1)),
    "along": lambda xp, x, y: xp.take_along_axis(x, xp.asarray([[0], [2], [1], [7], [3], [5]]), 1),
    "joining": lambda xp, x, y: (xp.concatenate([x, y], 1), xp.stack([x, y]), xp.pad(x, 1)),
    "running": lambda xp, x, y: (xp.cumsum(x, 1), xp.cumsum(x, 0)),
    "making": lambda xp, x, y: (xp.arange(7), xp.linspace(0, 1, 5), xp.eye(3), xp.full((2, 2), 3.0), xp.zeros(0)),
    "types": lambda xp, x, y: (x.astype("f2"), x.astype("f8"), x.astype("i4"), x * np.float64(2), x * 2.0),
    "numbers of no axis": lambda xp, x, y: (x[0, 0] * 2, xp.asarray(3.0) + x[0, 0], x[0, 0].reshape(1, 1)),
    "complex": lambda xp, x, y: ((x + 1j * y) * (y - 1j * x), abs(x + 1j * y), xp.exp(1j * x)),
}


def added(xp, x, y):
    total = xp.zeros_like(x)
    xp.add.at(total, xp.asarray([0, 2, 2, 5]), y[:4])
    return total


def assigned(xp, x, y):
    x = x.copy()
    x[x < 0] = 0
    x[1] = y[1]
    x[:, 2] = 7
    x += y
    return x


@pytest.mark.parametrize("name", [*EXPRESSIONS, "added", "assigned"])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_it_computes_what_numpy_computes(cupy, name, dtype):
    compute = EXPRESSIONS.get(name) or globals()[name]
    x, y = np.random.default_rng(3).standard_normal((2, 6, 8)).astype(dtype)
    expected = compute(np, x, y)
    results = compute(cupy, cupy.asarray(x), cupy.asarray(y))
    if not isinstance(expected, tuple):
        expected, results = (expected,), (results,)
    for number, (one, other) in enumerate(zip(results, expected, strict=True)):
        assert one.dtype == np.asarray(other).dtype, number
        tolerance = 32 * np.finfo(dtype).eps
        np.testing.assert_allclose(cupy.asnumpy(one), other, rtol=tolerance, atol=tolerance, err_msg=str(number))


def test_float16_is_rounded_as_numpy_rounds_it(cupy):
    numbers = np.arange(-(2**15), 2**15, dtype="i2").view("f2")
    one = cupy.asnumpy(cupy.asarray(numbers).astype("f4"))
    np.testing.assert_array_equal(one, numbers.astype("f4"))
    between = np.nextafter(np.abs(one), np.float32(0))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(cupy.asnumpy(cupy.asarray(between).astype("f2")), between.astype("f2"))


def test_reductions_of_cupy_do_not_depend_on_the_order_of_threads(cupy):
    x = cupy.asarray(np.random.default_rng(4).standard_normal((40, 300)).astype("f4"))
    total, rows, columns = cupy_on_cpu.in_every_order(lambda: (x.sum(), x.sum(1), x.sum(0)))
    np.testing.assert_allclose(total, cupy.asnumpy(x).astype("f8").sum(), rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(rows, cupy.asnumpy(x).astype("f8").sum(1), rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(columns, cupy.asnumpy(x).astype("f8").sum(0), rtol=1e-5, atol=1e-4)


# -------------------------------------------------------------------------------- memory, devices, counts and failures


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_memory_starts_as_nan_also_where_an_array_has_been(cupy, dtype):
    for _ in range(3):
        x = cupy.empty(100, dtype)
        assert bool(cupy.isnan(x).all())
        x[...] = 1
        assert bool((x == 1).all())
        del x


def test_launches_and_copies_are_counted(cupy):
    x = cupy.ones(8)
    with cupy_on_cpu.counted() as counts:
        y = x + x
    assert (counts.launches, counts.copies_to_host, counts.copies_to_device) == (1, 0, 0)
    with cupy_on_cpu.counted() as counts:
        assert float(y[0]) == 2
        cupy.asarray(np.ones(3))
    assert (counts.copies_to_host, counts.copies_to_device) == (1, 1)


def test_there_are_two_devices_whose_arrays_do_not_meet(cupy):
    assert cupy.cuda.runtime.getDeviceCount() == 2
    x = cupy.ones(3)
    with cupy.cuda.Device(1):
        y = cupy.ones(3)
    assert (x.device.id, y.device.id) == (0, 1)
    with pytest.raises(ValueError, match="different from the current device"):
        x + y
    np.testing.assert_array_equal(cupy.asnumpy(x + cupy.asarray(cupy.asnumpy(y))), [2, 2, 2])


def test_memory_runs_out_where_it_is_told_to(cupy):
    error = cupy.cuda.memory.OutOfMemoryError
    with cupy_on_cpu.out_of_memory(after=1):
        cupy.empty(3)
        with pytest.raises(error, match="Out of memory allocating"):
            cupy.empty(3)
    free, total = cupy.cuda.runtime.memGetInfo()
    assert 0 < free <= total
    with pytest.raises(error, match="Out of memory allocating"):
        cupy.empty(total // 8 + 1)
    cupy.empty(3)


def test_launches_fail_where_they_are_told_to(cupy):
    x = cupy.ones(3)
    with cupy_on_cpu.failing_launch(after=1):
        x + x
        with pytest.raises(cupy.cuda.driver.CUDADriverError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
            x + x
    x + x


def test_a_call_that_is_not_there_says_so(cupy):
    with pytest.raises(NotImplementedError, match="does not sort"):
        cupy.sort(cupy.ones(3))
    with pytest.raises(ImportError, match="libcurand"):
        cupy.random.rand(3)
    with pytest.raises(ImportError, match="libcufft"):
        cupy.fft.fft(cupy.ones(3))
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="cudaErrorNotSupported"):
        cupy.cuda.runtime.deviceGetLimit(0)


# ------------------------------------------------------------------------------------------------ planted in a kernel

SUMS = """
extern "C" __global__ void sums(const float* x, float* y, float scale, int n) {
  __shared__ float part[2];  // of each warp
  float sum = 0;
  for (int i = threadIdx.x * 4; i < n; i += blockDim.x * 4) {
    float4 v = *(const float4*)(x + blockIdx.x * n + i);
    sum += v.x + v.y + v.z + v.w;
  }
  for (int d = 16; d > 0; d /= 2) sum += __shfl_down_sync(0xffffffffu, sum, d);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) y[blockIdx.x] = scale * (part[0] + part[1]);
}
"""


class Sums:
    """Twice the sum of each row, by the kernel above, with what a test wants otherwise."""

    def __init__(self, cupy, rows=ROWS):
        self.cupy, self.rows = cupy, rows
        host = np.random.default_rng(5).integers(-8, 8, (rows, WIDTH)).astype("f4")
        self.x, self.right = cupy.asarray(host), 2 * host.sum(1)

    def __call__(self, source=SUMS, *, grid=None, block=THREADS, arguments=None, **others):
        y = self.cupy.empty(self.rows, "f4")
        given = {"x": self.x, "y": y, "scale": np.float32(2), "n": np.int32(WIDTH)} | others
        kernel = self.cupy.RawModule(code=source).get_function("sums")
        kernel((grid or self.rows,), (block,), tuple(given.values()) if arguments is None else arguments(given))
        return given["y"]

    def check(self, *arguments, **options):
        (result,) = cupy_on_cpu.in_every_order(lambda: self(*arguments, **options))
        np.testing.assert_array_equal(result, self.right)


def planted(old, new):
    assert SUMS.count(old) == 1
    return SUMS.replace(old, new)


@pytest.fixture
def sums(cupy):
    return Sums(cupy)


def test_the_kernel_without_a_fault_passes(sums):
    sums.check()


#: What is put in the place of what, and what is then said: by the launch, or by the comparison of orders and values.
TEXTS = {
    "a deleted barrier": ("__syncthreads();", "", "depends on the order of the threads"),
    "a barrier for one half": ("__syncthreads();", "if (threadIdx.x < 32) __syncthreads();", "end without reaching"),
    "a barrier for each half": (
        "__syncthreads();",
        "if (threadIdx.x < 32) __syncthreads();\nelse __syncthreads();",
        "different barriers",
    ),
    "a shuffle for some lanes": ("sum += __shfl", "if (threadIdx.x % 32 < 16) sum += __shfl", "do not come"),
    "a lane that its mask leaves out": ("0xffffffffu", "0x7fffffffu", "leaves out"),
    "a write after the end": ("y[blockIdx.x]", "y[blockIdx.x + 1]", "ILLEGAL_ADDRESS"),
    "a write before the start": ("y[blockIdx.x]", "y[(int)blockIdx.x - 1]", "ILLEGAL_ADDRESS"),
    "a write far away": ("y[blockIdx.x]", "y[blockIdx.x + 4096]", "ILLEGAL_ADDRESS"),
    "a read after the end": ("x + blockIdx.x * n", "x + (blockIdx.x + 1) * n", "ILLEGAL_ADDRESS"),
    "a null pointer": ("y[blockIdx.x]", "((float*)0)[blockIdx.x]", "ILLEGAL_ADDRESS"),
    "an index out of shared memory": ("part[threadIdx.x / 32]", "part[threadIdx.x / 16]", "an index out of its array"),
    "16 bytes from 4 bytes on": ("n + i)", "n + i + 1)", "MISALIGNED_ADDRESS"),
    "an unwritten output": ("(threadIdx.x == 0)", "(threadIdx.x == 0 && blockIdx.x > 0)", "nan"),
    "unwritten shared memory": ("(threadIdx.x % 32 == 0)", "(threadIdx.x == 0)", "nan"),
}


@pytest.mark.parametrize("rows", [6, 8], ids=["gap", "no gap"])  # between the end of y and the page after it
@pytest.mark.parametrize("fault", TEXTS)
def test_a_fault_in_the_text_is_caught(cupy, fault, rows):
    old, new, message = TEXTS[fault]
    assert SUMS.count(old) == 1
    with pytest.raises((AssertionError, cupy.cuda.driver.CUDADriverError), match=message):
        Sums(cupy, rows).check(SUMS.replace(old, new))


LAUNCHES = {
    "a block too few": ({"grid": ROWS - 1}, "nan"),
    "a block too many": ({"grid": ROWS + 1}, "ILLEGAL_ADDRESS"),
    "a warp too few": ({"block": 32}, "nan"),
    "half a warp too few": ({"block": 48}, "nan"),
    "too many threads": ({"block": 2048}, "too large"),
}


@pytest.mark.parametrize("fault", LAUNCHES)
def test_a_wrong_launch_bound_is_caught(cupy, sums, fault):
    options, message = LAUNCHES[fault]
    with pytest.raises((AssertionError, cupy.cuda.driver.CUDADriverError), match=message):
        sums.check(**options)


ARGUMENTS = {
    "a Python float": ({"scale": 2.0}, "argument 2: a float64 of 8 bytes where the kernel declares 4 bytes"),
    "a float64": ({"scale": np.float64(2)}, "argument 2: a float64 of 8 bytes where the kernel declares 4 bytes"),
    "a Python int": ({"n": WIDTH}, "argument 3: a int64 of 8 bytes where the kernel declares 4 bytes"),
    "an int64": ({"n": np.int64(WIDTH)}, "argument 3: a int64 of 8 bytes where the kernel declares 4 bytes"),
    "an int16": ({"n": np.int16(WIDTH)}, "argument 3: a int16 of 2 bytes where the kernel declares 4 bytes"),
    "an integer for a float": ({"scale": np.int32(2)}, "argument 2: a int32 where the kernel declares a floating"),
    "a float for an integer": ({"n": np.float32(WIDTH)}, "argument 3: a float32 where the kernel declares an integer"),
    "an argument too many": ({"more": np.int32(0)}, "declares 4 parameters and was given 5 arguments"),
}


@pytest.mark.parametrize("fault", ARGUMENTS)
def test_an_argument_of_another_width_or_kind_is_caught(sums, fault):
    given, message = ARGUMENTS[fault]
    with pytest.raises(cupy_on_cpu.ArgumentError, match=message):
        sums(**given)


def test_an_array_of_another_dtype_kind_or_device_is_caught(cupy, sums):
    with pytest.raises(cupy_on_cpu.ArgumentError, match="argument 0: an array of float64 where the kernel"):
        sums(x=sums.x.astype("f8"))
    with pytest.raises(cupy_on_cpu.ArgumentError, match="argument 3: an array where the kernel declares a number"):
        sums(n=cupy.asarray(WIDTH))
    with cupy.cuda.Device(1):
        other = cupy.zeros((ROWS, WIDTH), "f4")
    with pytest.raises(cupy_on_cpu.ArgumentError, match="argument 0: an array on device 1 in a launch on device 0"):
        sums(x=other)


def test_a_numpy_array_that_slipped_in_is_refused_by_cupy_itself(cupy, sums):
    host = cupy.asnumpy(sums.x)
    with pytest.raises(TypeError, match="passed by value"):
        sums(x=host)
    with pytest.raises(TypeError, match="Unsupported type"):
        sums.x + host
    with pytest.raises(TypeError, match="Implicit conversion to a NumPy array is not allowed"):
        np.asarray(sums.x)


def test_memory_that_was_freed_is_no_longer_there(cupy, sums):
    freed = cupy.empty(ROWS, "f4")
    address = np.uint64(freed.data.ptr)
    del freed
    with pytest.raises(cupy.cuda.driver.CUDADriverError, match="ILLEGAL_ADDRESS"):
        sums(y=address)


def test_shared_memory_has_its_limits(cupy):
    source = """
    extern "C" __global__ void fill(float* y, int beyond) {
      extern __shared__ float room[];
      room[threadIdx.x + beyond] = 1;
      y[threadIdx.x] = room[threadIdx.x];
    }
    """
    kernel, y = cupy.RawModule(code=source).get_function("fill"), cupy.empty(32, "f4")
    kernel((1,), (32,), (y, np.int32(0)), shared_mem=4 * 32)
    np.testing.assert_array_equal(cupy.asnumpy(y), 1)
    with pytest.raises(cupy.cuda.driver.CUDADriverError, match="past its dynamic shared memory"):
        kernel((1,), (32,), (y, np.int32(1)), shared_mem=4 * 32)
    with pytest.raises(cupy.cuda.driver.CUDADriverError, match="more shared memory than it may have"):
        kernel((1,), (32,), (y, np.int32(0)), shared_mem=49 << 10)
    kernel.max_dynamic_shared_size_bytes = 100 << 10
    kernel((1,), (32,), (y, np.int32(0)), shared_mem=49 << 10)


# --------------------------------------------------------------------------------------- what g++ is told about CUDA

WARP = """
#include <cuda_fp16.h>
extern "C" __global__ void exchange(const NUMBER* x, NUMBER* y) {
  const int i = threadIdx.x;
  NUMBER v = x[i];
  y[i] = __shfl_sync(0xffffffffu, v, 3);
  y[32 + i] = __shfl_sync(0xffffffffu, v, i + 5, 8);
  y[64 + i] = __shfl_up_sync(0xffffffffu, v, 3);
  y[96 + i] = __shfl_down_sync(0xffffffffu, v, 3, 16);
  y[128 + i] = __shfl_xor_sync(0xffffffffu, v, 9);
}
"""


@pytest.mark.parametrize(("number", "dtype"), [("float", "f4"), ("double", "f8"), ("half", "f2"), ("long long", "i8")])
def test_lanes_exchange_numbers(cupy, number, dtype):
    x, i = np.random.default_rng(6).integers(-99, 99, 32).astype(dtype), np.arange(32)

    def exchange():
        y = cupy.empty((5, 32), dtype)
        module = cupy.RawModule(code=WARP, options=(f"-DNUMBER={number}",))
        module.get_function("exchange")((1,), (32,), (cupy.asarray(x), y))
        return y

    expected = [
        np.repeat(x[3], 32),
        x[i // 8 * 8 + (i + 5) % 8],
        np.where(i < 3, x, x[i - 3]),
        np.where(i % 16 + 3 < 16, x[(i + 3) % 32], x),
        x[i ^ 9],
    ]
    (result,) = cupy_on_cpu.in_every_order(exchange)
    np.testing.assert_array_equal(result, expected)


def test_votes_of_blocks_and_warps(cupy):
    source = """
    extern "C" __global__ void vote(int* y) {
      const int i = threadIdx.x;
      y[i] = __syncthreads_count(i % 3 == 0);
      y[64 + i] = __syncthreads_or(i == 63) + 2 * __syncthreads_or(i == 64);
      y[128 + i] = __syncthreads_and(i >= 0) + 2 * __syncthreads_and(i > 0);
      y[192 + i] = __ballot_sync(0xffffffffu, i % 2);
      y[256 + i] = __any_sync(0xffffffffu, i == 40) + 2 * __all_sync(0xffffffffu, i < 32);
    }
    """

    def vote():
        y = cupy.empty((5, 64), "i4")
        cupy.RawModule(code=source).get_function("vote")((1,), (64,), (y,))
        return y

    (result,) = cupy_on_cpu.in_every_order(vote)
    expected = [22, 1, 1, np.int32(-0x55555556), np.repeat([2, 1], 32)]
    for row, right in zip(result, expected, strict=True):
        np.testing.assert_array_equal(row, right)


def test_what_gpus_take_of_a_kernel(cupy):
    found = cupy_on_cpu.compile_for_gpus(SUMS)
    assert [(one.kernel, one.architecture) for one in found] == [("sums", name) for name in cupy_on_cpu.ARCHITECTURES]
    assert all(0 < one.registers <= 255 and one.spilled == 0 for one in found)


def test_a_kernel_must_pass_the_compiler_of_gpus_too(cupy):
    only_g_plus_plus = 'extern "C" __global__ void f(float* y) { y[0] = std::sqrt(__builtin_parity(3)); }'
    with pytest.raises(cupy.cuda.compiler.CompileException, match='namespace "std" has no member "sqrt"'):
        cupy.RawModule(code=only_g_plus_plus).get_function("f")


# ------------------------------------------------------------------------------------- planted in tinynorm's kernels


KERNELS = Path(launch.__file__).parent
BARRIER = re.compile(r"__syncthreads\(\)|__syncthreads_(?:or|and|count)")


def trained(tensors, result, cotangent):
    """A result and the gradients of what it came from."""
    result.backward(cotangent)
    return [result.data, *(t.grad for t in tensors)]


def norms(device):
    """Rows to a warp, to some warps of a block, and to a block in pieces."""
    results = []
    for norm, rows, width in (("rms_norm", 19, 6), ("layer_norm", 19, 1000), ("layer_norm", 3, 9000)):
        rng = np.random.default_rng(width)
        x, dy = rng.standard_normal((2, rows, width)).astype("f4")
        x[1] *= np.float32(1e30)  # whose squares overflow: the rows of its block then wait for it
        x, weight, dy = (tn.tensor(a, requires_grad=True, device=device) for a in (x, rng.random(width, "f4"), dy))
        y = getattr(tn.functional, norm)(x, width, weight)
        results += trained((x, weight), y, dy.data)
    return results


def losses(device):
    results = []
    for classes in (5, 300):
        rng = np.random.default_rng(classes)
        z = tn.tensor(rng.standard_normal((7, classes)).astype("f4"), requires_grad=True, device=device)
        target = tn.tensor(rng.integers(0, classes, 7), device=device)
        loss = tn.functional.cross_entropy(z, target, label_smoothing=0.1)
        results += trained((z,), loss, None)
    return results


def steps(device):
    rng = np.random.default_rng(7)
    parameters = [tn.tensor(rng.random(n, "f4"), requires_grad=True, device=device) for n in (3, 700, 5000)]
    optimizer = tn.optim.AdamW(parameters, lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        sum((p**3).sum() for p in parameters).backward()
        optimizer.step()
    return [p.data for p in parameters]


#: What runs the kernels of a file.
RUNS = {"norms.cu": norms, "cross_entropy.cu": losses, "adamw.cu": steps}


def check(run):
    """On CuPy, in every order of the threads, it must give what the formulas give on NumPy."""
    with tn.formulas_only():
        expected = run("cpu")
    results = cupy_on_cpu.in_every_order(lambda: run("cuda"))
    for number, (one, other) in enumerate(zip(results, expected, strict=True)):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5, err_msg=str(number))


def files():
    """Each of our files of kernels. A new one needs a line in RUNS."""
    return sorted(path.name for path in KERNELS.glob("*.cu"))


def barriers():
    """Those of each file, and with the norms those of what is put before all files."""
    common = len(BARRIER.findall((KERNELS / launch.COMMON).read_text(encoding="utf-8")))
    counts = {file: len(BARRIER.findall(launch.source(file))) for file in files()}
    return [(file, n) for file in counts for n in range(0 if file == "norms.cu" else common, counts[file])]


def kernels():
    return [(file, name) for file in files() for name in KERNEL.findall((KERNELS / file).read_text(encoding="utf-8"))]


@pytest.mark.parametrize("file", files())
def test_our_kernels_pass_without_a_fault_and_keep_their_numbers_in_registers(cupy, file):
    check(RUNS[file])
    names = KERNEL.findall((KERNELS / file).read_text(encoding="utf-8"))
    found = [one for one in cupy_on_cpu.resources if one.kernel in names]
    assert {one.kernel for one in found} == set(names)
    assert {one.architecture for one in found} == set(cupy_on_cpu.ARCHITECTURES)
    assert [one for one in found if one.spilled > 32] == []  # an array that does not fit would be hundreds


@pytest.mark.parametrize(("file", "number"), barriers())
def test_each_barrier_of_our_kernels_is_needed_and_missed(cupy, monkeypatch, file, number):
    text = launch.source(file)
    barrier = list(BARRIER.finditer(text))[number]
    without = text[: barrier.start()] + text[barrier.end() :]
    monkeypatch.setattr(launch, "source", lambda asked: without if asked == file else text)
    monkeypatch.setattr(compile, "compile_for_gpus", lambda source, options: [])  # it is not for them
    with pytest.raises((AssertionError, tn.errors.DeviceError, cupy.cuda.driver.CUDADriverError)):
        check(RUNS[file])


def other_widths(arguments):
    if not any(isinstance(a, np.generic) for a in arguments):
        pytest.skip("a kernel that is given no numbers")
    return [{4: np.int64, 8: np.int32}[a.itemsize](a) if isinstance(a, np.generic) else a for a in arguments]


def slipped_in(cupy, arguments):
    first = next(n for n, a in enumerate(arguments) if isinstance(a, cupy.ndarray) and a.size > 1)
    return [cupy.asnumpy(a) if n == first else a for n, a in enumerate(arguments)]


#: What is done to a launch: grid, block and arguments in, the same out, or None for no launch at all.
PLANTED = {
    "no launch": lambda cupy, grid, block, arguments: None,
    "a block too few": lambda cupy, grid, block, arguments: ((grid[0] - 1,), block, arguments) if grid[0] > 1 else None,
    "an argument too few": lambda cupy, grid, block, arguments: (grid, block, arguments[:-1]),
    "numbers of another width": lambda cupy, grid, block, arguments: (grid, block, other_widths(arguments)),
    "a NumPy array": lambda cupy, grid, block, arguments: (grid, block, slipped_in(cupy, arguments)),
}


@pytest.mark.parametrize("fault", PLANTED)
@pytest.mark.parametrize(("file", "name"), kernels())
def test_a_wrong_launch_of_our_kernels_is_caught(cupy, monkeypatch, file, name, fault):
    launches = []
    launched = arguments._Function.__call__

    def planted(kernel, grid, block, given, **options):
        if kernel.name != name:
            return launched(kernel, grid, block, given, **options)
        launches.append(grid)
        wrong = PLANTED[fault](cupy, grid, block, list(given))
        return wrong and launched(kernel, wrong[0], wrong[1], tuple(wrong[2]), **options)

    monkeypatch.setattr(arguments._Function, "__call__", planted)
    with pytest.raises((AssertionError, TypeError, tn.errors.DeviceError, cupy.cuda.driver.CUDADriverError)):
        check(RUNS[file])
    assert launches
