"""The kernels of softmax and its logarithm: right by the definition, in any shape, layout and number of threads."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_kernels import DOUBLE, SINGLE, normal
from test_kernels_dense import COTANGENTS, SEEDS, compare, cotangent, of_layout, run, serves

import tinynorm as tn
from tinynorm import table

F = tn.functional
ROWS = pytest.mark.parametrize("log", [False, True])


def softmax(log: bool, x: np.ndarray, dy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """By the definition, in long doubles."""
    x, dy = x.astype(np.longdouble), dy.astype(np.longdouble)
    d = x - x.max(-1, keepdims=True)
    p = np.exp(d) / np.exp(d).sum(-1, keepdims=True)
    if log:
        return d - np.log(np.exp(d).sum(-1, keepdims=True)), dy - p * dy.sum(-1, keepdims=True)
    return p, p * (dy - (dy * p).sum(-1, keepdims=True))


@ROWS
@given(
    lead=st.sampled_from([(), (1,), (7,), (2, 3), (3000,), (40, 50)]),
    width=st.sampled_from([1, 2, 3, 10, 64, 300, 1001]),
    spread=st.sampled_from([0.1, 1.0, 10.0, 1000.0]),
    dtype=st.sampled_from([SINGLE, DOUBLE]),
    kind=COTANGENTS,
    seed=SEEDS,
)
def test_softmax(log: bool, lead: tuple[int, ...], width: int, spread: float, dtype: Any, kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    width = min(width, 64) if lead == (3000,) else width  # of many short rows, the kernel goes through the columns
    x = (spread * rng.normal(size=(*lead, width))).astype(dtype)
    dy = cotangent(rng, x.shape, dtype, kind)
    op, call = (table.log_softmax, F.log_softmax) if log else (table.softmax, F.softmax)
    assert serves(op, x, axis=-1)
    before = x.copy(), dy.copy()
    found = run(call, [x], dy)
    eps = np.finfo(dtype).eps
    sums = abs(dy).sum(-1, keepdims=True)
    for a, b, scale in zip(found, softmax(log, x, dy), (spread if log else 0.0, sums), strict=True):
        assert a.dtype == dtype
        assert (abs(a - b) <= 16 * eps * (abs(b) * (1 + spread) + scale) + np.finfo(dtype).smallest_normal).all()
    np.testing.assert_array_equal(x, before[0])
    np.testing.assert_array_equal(dy, before[1])


@ROWS
def test_softmax_of_masked_rows_and_of_infinities(log: bool) -> None:
    op, call = (table.log_softmax, F.log_softmax) if log else (table.softmax, F.softmax)
    x, dy = normal(300, 90), normal(300, 90, seed=1)
    x[:, 50:] = -np.inf
    assert serves(op, x, axis=-1)
    with np.errstate(all="raise", under="ignore"):
        compare(call, [x], dy, 40.0)
    for strange in (np.inf, np.nan):
        x[7, 3] = strange
        assert not serves(op, x, axis=-1)
    x[7] = -np.inf
    assert not serves(op, x, axis=-1)
    compare(call, [x], dy)


@ROWS
def test_softmax_in_rows_that_are_nearly_certain(log: bool) -> None:
    """The gradient of the likely class is 1 − p, of which nothing is left where p rounds to 1."""
    x, dy = np.zeros((3000, 20), SINGLE), np.zeros((3000, 20), SINGLE)
    x[:, 4], dy[:, 4] = 25.0, 1.0
    _, dx = run(F.log_softmax if log else F.softmax, [x], dy)
    others = 19 * np.exp(np.longdouble(-25.0))
    if log:
        np.testing.assert_allclose(dx[:, 4], others / (1 + others), rtol=1e-6)
    np.testing.assert_allclose(dx[:, 5], -others / 19 / (1 + others) ** (1 if log else 2), rtol=1e-6)


@ROWS
def test_softmax_over_other_axes_and_layouts_takes_the_formula(log: bool) -> None:
    op, call = (table.log_softmax, F.log_softmax) if log else (table.softmax, F.softmax)
    x, dy = normal(30, 40), normal(30, 40, seed=1)
    assert serves(op, x, axis=1)
    assert not serves(op, x, axis=0)
    assert not serves(op, x.T, axis=-1)
    assert not serves(op, x[:0], axis=-1)
    assert not serves(op, np.float32(1.0), axis=-1)
    for layout in ("Fortran", "gaps", "reversed"):
        for axis in (0, 1):
            found = run(lambda t, axis=axis: call(t, axis=axis), [of_layout(x, layout)], dy)
            wanted = softmax(log, x if axis else x.T, dy if axis else dy.T)
            for a, b in zip(found, wanted, strict=True):
                np.testing.assert_allclose(a, b if axis else b.T, rtol=1e-5, atol=1e-5)


@ROWS
def test_softmax_gives_the_same_bits_for_any_number_of_threads(log: bool, monkeypatch: Any, restored: None) -> None:
    monkeypatch.setattr(tn.kernels.threads, "ENOUGH", 1)
    x, dy, found = normal(900, 400), normal(900, 400, seed=1), []
    for n in (1, 2, 3):
        tn.set_num_threads(n)
        found.append([a.tobytes() for a in run(F.log_softmax if log else F.softmax, [x], dy)])
    assert found[0] == found[1] == found[2]
