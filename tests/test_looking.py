"""Mending what needs none changes no bit.

On the host a formula looks whether some numbers need mending. On a device, where looking would mean to wait, it always
mends. So what it leaves alone must come out of both ways with the same bits, and so must what it mends.
"""

import numpy as np
import pytest

import tinynorm as tn
from tinynorm import recorded
from tinynorm.formulas import losses, reductions, rescue, rms_variants
from tinynorm.formulas.looking import some
from tinynorm.testing.cases import CASES

F = tn.functional
ROW = (5, 6)


def spoilt(fill, dtype=np.float32):
    """Ordinary numbers, the second row of which is filled otherwise."""

    def make(rng):
        x = rng.normal(size=ROW)
        x[1] = fill(rng, x[1])
        return x.astype(dtype)

    return make


ARRAYS = {
    "ordinary": spoilt(lambda rng, row: row),
    "float64": spoilt(lambda rng, row: row, np.float64),
    "float16": spoilt(lambda rng, row: row, np.float16),
    "squares overflow": spoilt(lambda rng, row: row * 1e25),
    "squares underflow": spoilt(lambda rng, row: row * 1e-25),
    "subnormal": spoilt(lambda rng, row: row * 1e-41),
    "zeros": spoilt(lambda rng, row: 0.0 * row),
    "negative zeros": spoilt(lambda rng, row: np.where(row > 0, -0.0, 0.0)),
    "equal": spoilt(lambda rng, row: np.full_like(row, 3.0)),
    "a large mean": spoilt(lambda rng, row: row + 1e6),
    "one stands out": spoilt(lambda rng, row: np.where(row == row.max(), 50.0, row)),
    "ties for the largest": spoilt(lambda rng, row: np.where(np.arange(6) < 2, 4.0, row)),
    "an infinity": spoilt(lambda rng, row: np.where(row == row.max(), np.inf, row)),
    "infinities that tie": spoilt(lambda rng, row: np.where(np.arange(6) < 2, np.inf, row)),
    "all -inf": spoilt(lambda rng, row: np.full_like(row, -np.inf)),
    "a nan": spoilt(lambda rng, row: np.where(row == row.max(), np.nan, row)),
}

CALLS = {
    "rms_norm": lambda x: F.rms_norm(x, ROW[1:]),
    "rms_norm at eps 0": lambda x: F.rms_norm(x, ROW[1:], eps=0.0),
    "rms_norm, eps outside": lambda x: F.rms_norm(x, ROW[1:], eps_mode="outside"),
    "rms_norm at eps 0 outside": lambda x: F.rms_norm(x, ROW[1:], eps=0.0, eps_mode="outside"),
    "rms_norm of some features": lambda x: F.rms_norm(x, ROW[1:], partial=0.5),
    "rms_norm of some features at eps 0": lambda x: F.rms_norm(x, ROW[1:], partial=0.5, eps=0.0),
    "rms_norm of single numbers": lambda x: F.rms_norm(x.reshape(-1, 1), 1),
    "layer_norm": lambda x: F.layer_norm(x, ROW[1:]),
    "layer_norm at eps 0": lambda x: F.layer_norm(x, ROW[1:], eps=0.0),
    "var": lambda x: tn.var(x, axis=1),
    "softmax": F.softmax,
    "log_softmax": F.log_softmax,
    "logsumexp": lambda x: tn.logsumexp(x, axis=0),
    "cross_entropy": lambda x: F.cross_entropy(x, [0, 1, -100, 3, 5], reduction="none"),
    "nll_loss": lambda x: F.nll_loss(x, [0, 1, -100, 3, 5], reduction="sum"),
}


@pytest.fixture
def rng():
    return np.random.default_rng(20261130)


@pytest.fixture
def mending(monkeypatch):
    """Lets all formulas mend, as on a device."""

    def always():
        for module in (losses, reductions, rescue, rms_variants):
            if hasattr(module, "some"):
                monkeypatch.setattr(module, "some", lambda xp, condition: True)

    return always


def bits(array):
    return array.dtype, array.shape, array.view(f"u{array.itemsize}").tolist()


def ran(call, x, cotangent):
    """The bits of the result and of its gradient."""
    with np.errstate(all="ignore"), tn.formulas_only():
        t = tn.tensor(x, requires_grad=True)
        y = call(t)
        y.backward(np.resize(cotangent, y.shape))
    return bits(y.numpy()), bits(t.grad)


@pytest.mark.parametrize("array", ARRAYS)
@pytest.mark.parametrize("call", CALLS)
def test_what_needs_no_mending_keeps_its_bits(rng, mending, call, array):
    x, cotangent = ARRAYS[array](rng), rng.normal(size=ROW)
    expected = ran(CALLS[call], x, cotangent)
    mending()
    assert ran(CALLS[call], x, cotangent) == expected


@pytest.mark.parametrize("name", CASES)
def test_nor_do_derivatives_change(rng, mending, name):
    """The second ones too: where nothing is amiss, what stands in the other side of a `where` must send nothing."""
    case = CASES[name]
    arrays = case.inputs(rng, case.typical)

    def derivatives():
        with tn.formulas_only():
            leaves = [tn.tensor(a, requires_grad=a.dtype.kind == "f") for a in arrays]
            wanted = [t for t in leaves if t.requires_grad]
            y = case.call(*leaves, **case.typical.options)
            seeds = np.random.default_rng(1)
            firsts = tn.grad(y, wanted, tn.tensor(seeds.normal(size=y.shape)), create_graph=True)
            seconds = tn.grad(firsts, wanted, [tn.tensor(seeds.normal(size=g.shape)) for g in firsts])
            return [y.numpy(), *(g.numpy() for g in firsts), *(g.numpy() for g in seconds)]

    expected = derivatives()
    mending()
    for found, known in zip(derivatives(), expected, strict=True):
        np.testing.assert_allclose(found, known, rtol=1e-12, atol=1e-12)


def test_mending_where_nothing_is_amiss_warns_of_nothing(rng, mending):
    mending()
    with tn.formulas_only():
        for call in CALLS.values():
            call(tn.tensor(ARRAYS["ordinary"](rng), requires_grad=True)).sum().backward()


@pytest.mark.parametrize("values", [(1.0, 1.0, 0.5), (1.0, 1.0, np.inf), (np.inf, np.inf, 1.0)], ids=str)
def test_ties_of_finite_numbers_have_all_their_derivatives_beside_infinite_rows(values):
    """∂pᵢ/∂xⱼ = pᵢ (δᵢⱼ − pⱼ), so that of Σ u p is p (u − Σ u p), which is differentiated by hand once more."""
    x, u, v = np.array([2.0, 2.0, 1.0]), np.array([0.3, -1.0, 2.0]), np.array([1.0, 0.5, -2.0])
    t = tn.tensor(np.stack([x, values]), requires_grad=True)
    with np.errstate(invalid="ignore"):
        (g,) = tn.grad(F.softmax(t)[0], t, u, create_graph=True)
        (h,) = tn.grad(g[0], t, v)
    p = np.exp(x) / np.exp(x).sum()
    dp = p * (v - p @ v)
    expected = dp * (u - p @ u) - p * (dp @ u)
    np.testing.assert_allclose(h.numpy()[0], expected, rtol=1e-12)


def test_looking(rng):
    assert some(np, np.array([False, True]))
    assert not some(np, np.zeros(3, bool))
    assert not some(np, np.zeros((0, 2), bool))
    assert not some(np, np.False_)
    assert not some(recorded, tn.tensor([1.0]) > 2.0)
    assert some(recorded, tn.tensor([1.0, 3.0]) > 2.0)
