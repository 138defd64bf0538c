"""The kernels of RMSNorm and LayerNorm: against their formulas and long doubles, over shapes, layouts and threads."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from helpers import inputs, normal, right
from hypothesis import given
from hypothesis import strategies as st

import tinynorm as tn
from tinynorm import table
from tinynorm.kernels import blocks, enabled, norms, sums, threads

F = tn.functional
KINDS = pytest.mark.parametrize("kind", ["rms", "layer"])
SINGLE, DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
DTYPES = pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
TOLERANCE = {SINGLE: 4e-6, DOUBLE: 8e-15}
OPS = {"rms": table.rms_norm, "layer": table.layer_norm}


def run(kind: str, arrays: list[Any], dy: np.ndarray, eps: float = 1e-5, axes: int = 1) -> list[Any]:
    """y and the gradients, by the operation itself, so that a test knows whether it was the kernel that ran."""
    needs = tuple(a is not None for a in arrays)
    axis = tuple(range(-axes, 0))
    y, cache, kernel = OPS[kind].run_plain(tuple(arrays), needs, {"axis": axis, "eps": eps})
    gradients = kernel.backward(dy, cache, needs) if kernel else OPS[kind].pull_back(np, dy, cache, needs)
    return [kernel is not None, y, *(g if need else None for g, need in zip(gradients, needs, strict=True))]


def close(got: list[Any], expected: list[Any], dtype: Any, factor: float = 1.0, least: float = 1e-30) -> None:
    """Each to the tolerance, in units of its largest number, or of `least` where all but that cancels."""
    for name, (a, b) in zip(("y", "dx", "dw", "db"), zip(got, expected, strict=True), strict=False):
        assert (a is None) == (b is None), name
        if a is not None:
            b = np.asarray(b, np.longdouble)
            if a.shape != b.shape:  # a formula leaves it to the engine to undo broadcasting
                a = a.astype(np.longdouble).sum(axis=tuple(range(a.ndim - b.ndim)))
            else:
                assert a.dtype == dtype
            size = float(np.abs(b).max(initial=least))
            np.testing.assert_allclose(a.astype(np.longdouble), b, rtol=0, atol=factor * TOLERANCE[dtype] * size)


LAYOUTS = {
    "C": lambda dy: dy,
    "Fortran": lambda dy: np.asfortranarray(dy),
    "reversed": lambda dy: np.ascontiguousarray(dy[::-1, ::-1])[::-1, ::-1],
    "one number": lambda dy: np.broadcast_to(dy[:1, :1], dy.shape),
    "one row": lambda dy: np.broadcast_to(dy[:1], dy.shape),
    "one column": lambda dy: np.broadcast_to(dy[:, :1], dy.shape),
}
WIDTHS = [2, 3, 4, 5, 16, 63, 64, 65, 100, 255, 256, 257, 1000, 4096]


@KINDS
@given(
    width=st.sampled_from(WIDTHS),
    rows=st.one_of(st.integers(1, 9), st.sampled_from([64, 100, 400, 1000, 5000])),
    dtype=st.sampled_from([SINGLE, DOUBLE]),
    affine=st.sampled_from(["none", "weight", "bias", "both"]),
    layout=st.sampled_from(sorted(LAYOUTS)),
    eps=st.sampled_from([1e-5, 0.5, 1e-9, 1e-12]),
    mean=st.sampled_from([0.0, 1.5, 100.0]),
    seed=st.integers(0, 2**32 - 9),
)
def test_any_rows(kind: str, width: int, rows: int, dtype: Any, affine: str, layout: str, eps: float, mean: float,
                  seed: int) -> None:  # fmt: skip
    """Value and gradients: the long double's, the formula's, and the kernel's, which runs unless a row is refused."""
    rows, width = min(rows, 300_000 // width), width + (kind == "layer")
    x = normal(rows, width, seed=seed, dtype=dtype) + dtype.type(mean if kind == "layer" else 0)
    dy = LAYOUTS[layout](normal(rows, width, seed=seed + 1, dtype=dtype))
    arrays = inputs(kind, x, affine, seed=seed + 2)
    for a in (*arrays, dy):
        if a is not None:
            a.flags.writeable = False
    fast, *got = run(kind, arrays, dy, eps)
    assert fast or (kind == "layer" and (width < 7 or mean > 4))
    with tn.formulas_only():
        slow, *plain = run(kind, arrays, dy, eps)
    assert not slow
    c = x - (x.mean(1, keepdims=True) if kind == "layer" else 0)
    r = 1 / np.sqrt(np.square(c).mean(1) + eps)
    expected = right(kind, arrays, dy, eps)
    factor = 4 + 4 * float(r.max() / r.min()) if width < 7 else 4 + 0.1 * abs(mean)
    least = float(np.abs(dy * r[:, None]).max()) if layout.startswith("one") else 1e-30
    close(got, expected, dtype, factor, least)
    plain = [None if p is None else _summed(p, e) for p, e in zip(plain, expected, strict=True)]
    close(got, plain, dtype, 2 * factor, least)


def _summed(gradient: np.ndarray, like: np.ndarray) -> np.ndarray:
    return gradient.astype(np.longdouble).sum(axis=tuple(range(gradient.ndim - like.ndim)))


@KINDS
@DTYPES
@pytest.mark.parametrize(("shape", "axes"), [((7,), 1), ((6, 7), 2), ((3, 4, 5), 2), ((2, 3, 4, 5), 3), ((2, 3, 4), 1)])
def test_more_axes_and_fewer(kind: str, dtype: Any, shape: tuple[int, ...], axes: int) -> None:
    arrays, dy = inputs(kind, normal(*shape, dtype=dtype), axes=axes), normal(*shape, seed=1, dtype=dtype)
    fast, *got = run(kind, arrays, dy, axes=axes)
    assert fast
    close(got, right(kind, arrays, dy, axes=axes), dtype)
    assert [a.shape for a in got[1:]] == [a.shape for a in arrays]


@KINDS
@pytest.mark.parametrize("affine", ["none", "both"])
def test_any_number_of_threads_gives_the_same_bits(kind: str, affine: str, restored: None) -> None:
    for shape in ((1300, 1000), (20_000, 65)):
        arrays, dy = inputs(kind, normal(*shape) + SINGLE.type(1), affine), normal(*shape, seed=1)
        assert arrays[0].size > threads.ENOUGH
        found = []
        for n in (1, 2, 3):
            tn.set_num_threads(n)
            fast, *got = run(kind, arrays, dy)
            assert fast
            found.append([a.tobytes() for a in got if a is not None])
        assert found[0] == found[1] == found[2]


@KINDS
@pytest.mark.parametrize("shape", [(6, 9), (130, 256)])
def test_what_was_given_out_stays(kind: str, shape: tuple[int, ...]) -> None:
    """Results are memory of their own: no two share any, and later calls write into none that is still held."""
    arrays, dy = inputs(kind, normal(*shape)), normal(*shape, seed=1)
    first = [a for a in run(kind, arrays, dy)[1:] if a is not None]
    copies = [a.copy() for a in first]
    for seed in (2, 3, 4):
        later = run(kind, inputs(kind, normal(*shape, seed=seed), seed=seed), normal(*shape, seed=seed + 9))[1:]
        everything = [*first, *(a for a in later if a is not None), *arrays, dy]
        for i, a in enumerate(everything):
            assert not any(np.may_share_memory(a, b) for b in everything[:i])
    for a, b in zip(first, copies, strict=True):
        np.testing.assert_array_equal(a, b)


@KINDS
@pytest.mark.parametrize("shape", [(6, 9), (40, 300), (200, 256), (700, 300)])
def test_backward_may_run_again_for_another_cotangent(kind: str, shape: tuple[int, int]) -> None:
    arrays = inputs(kind, normal(*shape))
    needs = tuple(True for _ in arrays)
    y, cache, kernel = OPS[kind].run_plain(tuple(arrays), needs, {"axis": (-1,), "eps": 1e-5})
    before = y.copy()
    for seed in (1, 2):
        dy = normal(*shape, seed=seed)
        close([y, *kernel.backward(dy, cache, needs)], right(kind, arrays, dy), SINGLE)
    np.testing.assert_array_equal(y, before)


@KINDS
@pytest.mark.parametrize("rows", [5, 900])
@pytest.mark.parametrize("bad", ["1e30", "1e-30", "0", "nan", "inf"])
@pytest.mark.parametrize("eps", [0.0, 1e-5])
def test_rows_out_of_range_take_the_formula(kind: str, rows: int, bad: str, eps: float) -> None:
    """And the others come out as they do without them, up to rounding; without a warning."""
    x, dy = normal(rows, 100), normal(rows, 100, seed=1)
    others = np.arange(rows) != rows // 2
    arrays = inputs(kind, x)
    expected = right(kind, arrays, dy, eps)
    x[rows // 2] = float(bad) * (x[rows // 2] if np.isfinite(float(bad)) else 1)
    with np.errstate(all="raise"):
        fast, y, dx, *_ = run(kind, arrays, dy, eps)
    assert fast == (eps > 0 and bad in (("0", "1e-30") if kind == "rms" else ("0",)))
    close([y[others], dx[others]], [expected[0][others], expected[1][others]], SINGLE)
    assert np.isfinite(y[~others]).all() == (bad not in ("nan", "inf"))


@KINDS
def test_cotangents_whose_products_overflow_take_the_formula(kind: str) -> None:
    x, dy = normal(40, 100) * SINGLE.type(1e12), normal(40, 100, seed=1)
    dy[3] *= SINGLE.type(1e30)  # ȳ x is beyond 3.4e38, and x̄ near 1e18
    arrays = inputs(kind, x)
    with np.errstate(all="raise"):
        fast, *got = run(kind, arrays, dy)
    assert fast
    close(got, right(kind, arrays, dy), SINGLE)


@KINDS
@pytest.mark.parametrize("size", [1e-3, 1e6, 1e12])
@pytest.mark.parametrize("gain", [0.0, 1e-30, 1e-3, 1e9, 1e36])
@pytest.mark.parametrize("shape", [(600, 64), (2100, 64), (900, 300)])
def test_short_rows_with_factors_of_any_size(kind: str, size: float, gain: float, shape: tuple[int, int]) -> None:
    """R and g are multiplied first only where that leads nowhere near the ends of the range."""
    arrays, dy = inputs(kind, normal(*shape) * SINGLE.type(size)), normal(*shape, seed=1) * SINGLE.type(1e-6)
    arrays[1][::2] *= SINGLE.type(gain)
    fast, *got = run(kind, arrays, dy, 1e-12)
    assert fast
    expected = right(kind, arrays, dy, 1e-12)
    close(got, expected, SINGLE)
    if kind == "rms":  # and these columns by their own measure
        close([got[0][:, ::2]], [expected[0][:, ::2]], SINGLE)


@DTYPES
@pytest.mark.parametrize("mean", [1.0, 3.0, 10.0, 1e3, -1e3, 4e3, 1e4, 1e6])
@pytest.mark.parametrize("shape", [(8, 64), (600, 64), (40, 1000), (2100, 64)])
def test_layer_norm_of_noise_on_a_large_number(dtype: Any, mean: float, shape: tuple[int, int]) -> None:
    x, dy = normal(*shape, dtype=dtype) + dtype.type(mean), normal(*shape, seed=1, dtype=dtype)
    x[1] -= dtype.type(mean)
    arrays = inputs("layer", x)
    fast, *got = run("layer", arrays, dy)
    assert fast == (abs(mean) < 3e3)
    if fast:  # the formula's own accuracy is looked at in tests/test_norm_accuracy.py
        close(got, right("layer", arrays, dy), dtype)


@DTYPES
@pytest.mark.parametrize("value", [0.1, -1 / 3, 1e-3, 1e-25, 1449.3, 0.0])
@pytest.mark.parametrize("eps", [1e-5, 1e-12, 0.5])
def test_constant_rows_are_exactly_the_bias(dtype: Any, value: float, eps: float) -> None:
    for n in (3, 7, 100, 1001, 30011):
        x = np.full((4, n), value, dtype)
        bias = normal(n, dtype=dtype)
        y = run("layer", [x, normal(n, seed=1, dtype=dtype), bias], normal(4, n, seed=2, dtype=dtype), eps)[1]
        np.testing.assert_array_equal(y, np.tile(bias, (4, 1)))


def test_which_inputs_a_kernel_serves() -> None:
    x, w = normal(4, 6), normal(6)
    serves, centred = norms.rms_norm.suits, norms.layer_norm.suits
    for last in ((-1,), (-2, -1)):
        assert serves(x, None, axis=last, eps=0.0)
        assert centred(x, None, None, axis=last, eps=0.0)
    assert serves(x, w, axis=(-1,), eps=0.0)
    assert serves(normal(4, 2), None, axis=(-1,), eps=0.0)
    assert not serves(x, None, axis=(-2,), eps=0.0)
    assert not serves(x.T, None, axis=(-1,), eps=0.0)
    assert not serves(x[:, :1].copy(), None, axis=(-1,), eps=0.0)
    assert not serves(x, w[:1], axis=(-1,), eps=0.0)
    assert not serves(np.zeros(norms.WIDEST + 1, SINGLE), None, axis=(-1,), eps=0.0)
    assert not serves(x[:0], None, axis=(-1,), eps=0.0)
    assert not serves(x, w.astype(DOUBLE), axis=(-1,), eps=0.0)
    assert not serves(x.astype(np.longdouble), None, axis=(-1,), eps=0.0)
    assert not serves(x.astype(">f4"), None, axis=(-1,), eps=0.0)
    assert not centred(x[:, :2].copy(), None, None, axis=(-1,), eps=0.0)
    assert not centred(x, w, w.astype(DOUBLE), axis=(-1,), eps=0.0)


@KINDS
@pytest.mark.parametrize("shape", [(6, 9), (130, 256), (900, 65)])
def test_through_tensors(kind: str, shape: tuple[int, int]) -> None:
    """What a user gets is the long double's result, with the kernel and without, and gradients of gradients as well."""
    arrays, dy = inputs(kind, normal(*shape)), normal(*shape, seed=1)
    expected = right(kind, arrays, dy)

    def norm(leaves: list[Any]) -> Any:
        x, weight, *bias = leaves
        return F.layer_norm(x, shape[1], weight, *bias) if kind == "layer" else F.rms_norm(x, shape[1], weight)

    leaves = [tn.tensor(a, requires_grad=True) for a in arrays]
    y = norm(leaves)
    y.backward(dy)
    close([y.numpy(), *(leaf.grad for leaf in leaves)], expected, SINGLE)
    y = norm(leaves)
    (dx,) = tn.grad(y, [leaves[0]], dy, create_graph=True)
    close([y.numpy(), dx.numpy()], expected[:2], SINGLE)


def test_blocks_set_numpy_for_themselves_alone() -> None:
    def settings(block: Any = None) -> tuple[int, str]:
        return np.getbufsize(), np.geterr()["over"]

    before, short = settings(), blocks.TILE // 2
    for rows, width, buffer in ((2, 3, short), (2, 300, 16), (90_000, 3, short), (2000, 300, 16)):
        assert set(blocks.over_rows(settings, (np.empty((rows, width)),))) == {(buffer, "ignore")}
    assert settings() == before


@given(rows=st.integers(1, 5000), width=st.integers(1, 5000))
def test_blocks_are_all_rows_once(rows: int, width: int) -> None:
    numbered = np.broadcast_to(np.arange(rows)[:, None], (rows, width))
    parts = blocks.over_rows(lambda block, nothing: block[:, 0], (numbered, None))
    assert np.concatenate(parts).tolist() == list(range(rows))


@given(height=st.integers(0, 300), width=st.integers(1, 300))
def test_a_tiled_row_acts_on_every_row(height: int, width: int) -> None:
    rows, row = normal(height, width), normal(width, seed=1)
    out = np.empty_like(rows)
    tile = blocks.tiled(row)
    assert tile is not None
    blocks.apply_row(np.subtract, rows, tile, out)
    np.testing.assert_array_equal(out, rows - row)


@pytest.mark.parametrize("width", [3, 64])
@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_gradients_of_weights_do_not_drift_over_many_equal_rows(kind, width):
    """Equal terms are the worst case: a running total of 100,000 of them is off by hundreds of eps."""
    rng, n = np.random.default_rng(0), 100_000
    x, dy = (np.tile(rng.normal(size=(1, width)).astype(np.float32), (n, 1)) for _ in range(2))
    w = tn.tensor(np.ones(width, np.float32), requires_grad=True)
    b = tn.tensor(np.zeros(width, np.float32), requires_grad=True)
    y = F.rms_norm(x, width, w) if kind == "rms" else F.layer_norm(x, width, w, b)
    y.backward(dy)
    row, sent = x[0].astype(np.float64), dy[0].astype(np.float64)
    c = row if kind == "rms" else row - row.mean()
    np.testing.assert_allclose(w.grad / n, sent * c / np.sqrt((c * c).mean() + 1e-5), rtol=2e-6)
    if kind == "layer":
        np.testing.assert_allclose(b.grad / n, sent, rtol=4 * np.finfo(np.float32).eps)


@pytest.mark.parametrize("n", [1, 63, sums.FEW, sums.FEW + 1, 2048, 5000])
@pytest.mark.parametrize("width", [3, 64, 700])
def test_a_sum_of_rows_of_any_number_does_not_drift(n, width):
    row, factor = normal(width), SINGLE.type(0.7131)
    found = sums.weighted_sum(np.full(n, factor), np.tile(row, (n, 1)))
    np.testing.assert_allclose(found, n * row.astype(np.float64) * float(factor), rtol=16 * np.finfo(SINGLE).eps)


@pytest.mark.parametrize("chosen", ["many", "0", "-1", "1.5"])
def test_a_number_of_threads_that_is_none_is_refused_by_name(chosen, monkeypatch):
    monkeypatch.setenv("TINYNORM_NUM_THREADS", chosen)
    with pytest.raises(tn.errors.ArgumentError, match="TINYNORM_NUM_THREADS: must be an integer >= 1"):
        threads._at_the_start()


# Formulas only


def test_formulas_only_as_a_decorator() -> None:
    inner = tn.formulas_only()(enabled)
    assert enabled()
    assert not inner()
    assert enabled()


def test_formulas_only_decorates_nothing_that_runs_after_the_call() -> None:
    def values() -> Iterator[bool]:
        yield enabled()

    async def value() -> bool:
        return enabled()

    for later in (values, value):
        with pytest.raises(tn.errors.DTypeError, match=f"formulas_only: {later.__name__} .* `with formulas_only"):
            tn.formulas_only()(later)
