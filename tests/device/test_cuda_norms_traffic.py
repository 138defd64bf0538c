"""How many bytes RMSNorm and LayerNorm move: by their kernels, and by their formulas as plain CuPy runs them.

The floor is to read inputs and to write results once: x and y, or x, ȳ and x̄. What a kernel reads of g and b comes from
a cache, since all rows share it. ``pytest -s`` shows the table that docs/gpu.md has.
"""

import numpy as np
import pytest
from helpers import inputs, normal

from tinynorm.kernels.cuda import launch, layout, norms

from .test_cuda_norms import KINDS, OPS, run

FLOAT = 4  #: bytes of a float32


def moved_by_kernels(kind, rows, width, processors, needed):
    """Bytes to and from memory in forward and backward, where so many gradients of weight and bias are needed."""
    block = layout.layout(width, FLOAT, width % 4 == 0).block(rows)
    parts = norms.blocks(rows, block[1], processors)
    forward = 2 * rows * width + 4 * rows  # of each row s, r and the two parts of the mean
    backward = (
        3 * rows * width + 4 * rows + needed * (2 * parts * width + width)
    )  # parts are written, and read to be summed
    return forward * FLOAT, backward * FLOAT


# The kernels: each load and store counted

COUNT = """
__device__ void count(int which, int bytes) {
  atomicAdd((unsigned long long*)ADDRESS + which, (unsigned long long)bytes);
}
"""


def counters(cupy, monkeypatch, file):
    """Two numbers on the device, to which the kernels of a file add the bytes that they load and store."""
    both = cupy.zeros(2, np.uint64)
    text = launch.source(file)
    for which, access in enumerate(
        ("pack = *(const Pack<V, vector>*)(from + c);", "*(Pack<V, vector>*)(to + c) = pack;")
    ):
        assert text.count(access) == 1
        text = text.replace(access, f"{{ {access} count({which}, sizeof pack); }}")
    text = f"#define ADDRESS {both.data.ptr}ull\n{COUNT}\n{text}"
    monkeypatch.setattr(launch, "source", lambda file: text)
    return both


@KINDS
@pytest.mark.parametrize("affine", ["none", "both"])
def test_kernels_read_and_write_each_number_once(one_processor, monkeypatch, kind, affine):
    rows, width = 300, 64
    arrays, dy = inputs(kind, normal(rows, width), affine), normal(rows, width)
    run(one_processor, kind, arrays, dy)
    both = counters(one_processor, monkeypatch, norms.FILE)
    fast, *_ = run(one_processor, kind, arrays, dy)
    assert fast
    loaded, stored = both.tolist()
    needed = sum(a is not None for a in arrays[1:])
    cached = (needed + (arrays[1] is not None)) * rows * width * FLOAT  # g and b; in the backward, g
    afterwards = 2 * 4 * rows * FLOAT + needed * (2 + 1) * width * FLOAT  # of rows, and by the sum of the parts, here 2
    assert norms.blocks(rows, layout.layout(width, FLOAT, True).block(rows)[1], 1) == 2
    assert loaded - cached + stored + afterwards == sum(moved_by_kernels(kind, rows, width, 1, needed))


def test_the_share_of_the_weights_gradients_is_small():
    """The table's shape, on the 132 processors of an H200."""
    for kind, needed in (("rms", 1), ("layer", 2)):
        forward, backward = moved_by_kernels(kind, 8192, 4096, 132, needed)
        each = 8192 * 4096 * FLOAT
        print(f"{kind}: {forward / (2 * each):.3f} x and {backward / (3 * each):.3f} x the floor")
        assert forward <= 1.001 * 2 * each
        assert backward <= 1.05 * 3 * each


# The formulas: each call of the array module counted, with the arrays that it reads and the one that it writes


class Counted(np.ndarray):
    """An array that counts. It says that it is on a device, where formulas mend numbers without looking whether to."""

    device = "cuda:0"
    moved = 0

    def __array_ufunc__(self, ufunc, method, *args, **options):
        return _counted(getattr(ufunc, method), args, options)

    def __array_function__(self, function, kinds, args, options):
        if function in (np.where, np.ones_like):
            return _counted(function, args, options)
        return super().__array_function__(function, kinds, args, options)  # which calls one that counts


def _counted(function, args, options):
    plain = [a.view(np.ndarray) if isinstance(a, Counted) else a for a in args]
    results = function(*plain, **options)
    several = results if isinstance(results, tuple) else (results,)
    Counted.moved += sum(a.nbytes for a in (*plain, *several) if isinstance(a, np.ndarray))
    found = [np.asarray(a).view(Counted) for a in several]
    return tuple(found) if isinstance(results, tuple) else found[0]


@KINDS
def test_formulas_move_several_times_as_much(kind):
    x = normal(256, 1024)
    each = x.size * FLOAT
    Counted.moved = 0
    _, cache = OPS[kind]._forward(np, *(a.view(Counted) for a in inputs(kind, x)), axis=(-1,), eps=1e-5)
    forward, Counted.moved = Counted.moved, 0
    _, *rows = OPS[kind]._backward(np, x.view(Counted), cache)
    for terms in rows:
        terms.sum(axis=0)
    backward = Counted.moved
    print(f"{kind}: {forward / (2 * each):.1f} x and {backward / (3 * each):.1f} x the floor by the formulas")
    assert forward > 3 * 2 * each
    assert backward > 5 * 3 * each
