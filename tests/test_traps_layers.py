"""Faults of losses, layers and training that people have reported in public, one test each.

The right values are known by hand, or are written out element by element in float64.
"""

import importlib
import math
import pathlib
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tinynorm as tn
from tinynorm import functional as F
from tinynorm import nn


def leaf(x, dtype=None):
    return tn.tensor(x, dtype=dtype, requires_grad=True)


# losses


def test_ignore_index_drops_rows_not_a_class():
    """People expect ignore_index=0 to take class 0 out of the softmax; row 1 goes, class 0 stays: log 3, not log 2."""
    t = leaf(np.zeros((2, 3)))
    loss = F.cross_entropy(t, [1, 0], ignore_index=0)
    assert loss.item() == pytest.approx(math.log(3.0))
    loss.backward()
    np.testing.assert_allclose(t.grad, [[1 / 3, 1 / 3 - 1, 1 / 3], [0.0, 0.0, 0.0]], atol=1e-15)


BY_ROW = {
    "cross_entropy": lambda x: F.cross_entropy(x, [0, 2, 1], reduction="none"),
    "nll_loss": lambda x: F.nll_loss(x, [0, 2, 1], reduction="none"),
    "mse_loss": lambda x: F.mse_loss(x, np.ones((3, 3)), reduction="none"),
    "softmax": F.softmax,
    "log_softmax": F.log_softmax,
    "logsumexp": lambda x: tn.logsumexp(x, axis=1),
    "max": lambda x: tn.max(x, axis=1),
    "prod": lambda x: tn.prod(x, axis=1),
    "var": lambda x: tn.var(x, axis=1),
    "rms_norm": lambda x: F.rms_norm(x, 3),
    "layer_norm": lambda x: F.layer_norm(x, 3),
    "linear": lambda x: F.linear(x, np.arange(9.0).reshape(3, 3)),
    "gelu": F.gelu,
    "silu": F.silu,
}


@pytest.mark.parametrize("name", BY_ROW)
@pytest.mark.parametrize(
    "slice_away",
    [
        lambda y: y[[0, 2]],
        lambda y: y[::2],
        lambda y: y[np.array([True, False, True])],
        lambda y: tn.take(y, [0, 2], axis=0),
    ],
)
def test_a_nan_row_that_is_sliced_away_stays_away(name, slice_away):
    """0·nan made other rows' gradients nan. Rows are independent: row 1's value must not matter to rows 0 and 2."""
    x = np.random.default_rng(0).normal(size=(3, 3))
    spoilt = x.copy()
    spoilt[1, 1] = np.nan
    gradients = []
    for start in (x, spoilt):
        for order in (lambda t: slice_away(BY_ROW[name](t)), lambda t: slice_away(BY_ROW[name](t * 1.0)) * 1.0):
            t = leaf(start)
            y = order(t)
            y.backward(np.random.default_rng(1).normal(size=y.shape))
            gradients.append(t.grad[[0, 2]])
    assert np.all(np.isfinite(gradients[0]))
    assert np.any(gradients[0])
    for gradient in gradients[1:]:
        np.testing.assert_allclose(gradient, gradients[0], rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("loss", [F.cross_entropy, F.nll_loss])
def test_an_ignored_nan_row_stays_away(loss, reduction):
    """The same where ignore_index, not a slice, takes the row out."""
    z = np.random.default_rng(0).normal(size=(3, 3))
    results = []
    for middle in (0.0, np.nan):
        t = leaf(np.stack([z[0], [middle, 0.0, middle], z[2]]))
        y = loss(t, [0, -100, 1], reduction=reduction)
        y.backward(np.array(1.7))
        results.append((y.item(), *t.grad[[0, 2]].ravel().tolist()))
    assert results[0] == results[1]


# training


def losses_by_hand(z, target):
    """Each row's cross-entropy, in plain Python."""
    return np.array([math.log(sum(map(math.exp, row))) - row[t] for row, t in zip(z, target, strict=True)])


@pytest.mark.parametrize("n", [7, 8, 10])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_smaller_last_batch_weighs_less(n, shuffle):
    """Epoch losses were averaged batch by batch. Right is the mean over examples: each batch weighted by its size."""
    rng = np.random.default_rng(0)
    z, target = rng.normal(size=(n, 3)), rng.integers(0, 3, n)
    z[-1] = [5.0, -5.0, -5.0]  # the mean of means would be off visibly
    by_hand = losses_by_hand(z, target)
    losses = [(len(t), F.cross_entropy(x, t).item()) for x, t in tn.data.batches(z, target, 4, shuffle=shuffle, rng=0)]
    assert [size for size, _ in losses] == [4] * (n // 4) + [n % 4] * (n % 4 > 0)
    assert sum(size * loss for size, loss in losses) / n == pytest.approx(by_hand.mean())
    if n % 4:
        assert np.mean([loss for _, loss in losses]) != pytest.approx(by_hand.mean(), rel=1e-2)


def test_the_training_loop_reports_the_mean_over_examples(monkeypatch):
    """The same in examples/train_mlp.py: with lr = 0 and no noise, an epoch's loss is that of the model as it is."""
    pytest.importorskip("tqdm")
    monkeypatch.syspath_prepend(pathlib.Path(__file__).parents[1] / "examples")
    example = importlib.import_module("train_mlp")
    monkeypatch.setattr(example, "PIXEL_NOISE", 0.0)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(9, 3)).astype(np.float32), np.arange(9) % 3
    x[0] *= 20.0  # the mean of means would be off visibly
    model = nn.Linear(3, 3, rng=0)
    z = x.astype(np.float64) @ model.weight.numpy().T + model.bias.numpy()
    args = example.arguments(["--epochs", "3", "--batch-size", "4", "--lr", "0", "--quiet"])
    history = example.train(model, example.Split(x, y, x, y), args, rng, tn.parallel.alone())
    np.testing.assert_allclose(history.loss, [losses_by_hand(z, y).mean()] * 3, rtol=1e-5)


@pytest.mark.parametrize("norm", ["rms", "layer", "none"])
def test_accumulated_mean_losses_must_be_divided(norm):
    """Four backwards on mean losses give four times the gradient; divided by 4, that of the whole batch."""
    rng = np.random.default_rng(0)
    x, target = rng.normal(size=(12, 3)).astype(np.float32), rng.integers(0, 3, 12)
    gradients = []
    for parts, divisor in ((1, 1), (4, 4), (4, 1)):
        model = nn.PreNormMLP(3, 3, depth=1, out_features=3, norm=norm, rng=0)
        for a, t in zip(np.split(x, parts), np.split(target, parts), strict=True):
            (F.cross_entropy(model(a), t) / divisor).backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    whole, divided, undivided = gradients
    for name in whole:
        np.testing.assert_allclose(divided[name], whole[name], atol=1e-6)
        np.testing.assert_allclose(undivided[name], 4.0 * whole[name], atol=4e-6)

    w, features, y = leaf(np.zeros((3, 3))), x.astype(np.float64), np.eye(3)[target]
    for rows in np.split(np.arange(12), 4):
        (F.cross_entropy(F.linear(features[rows], w), target[rows]) / 4.0).backward()
    np.testing.assert_allclose(w.grad, (1 / 3 - y).T @ features / 12.0, rtol=1e-12)  # softmax − target, by hand


@pytest.mark.parametrize("layer", [nn.RMSNorm, nn.LayerNorm])
def test_a_norm_keeps_nothing_under_no_grad(layer):
    """A norm layer kept saved arrays even under no_grad. Then only the result may stay; recorded, h stays as well."""
    norm, x = layer(256), np.random.default_rng(0).normal(size=(256, 256)).astype(np.float32)

    def held(run):
        tracemalloc.start()
        try:
            y = run()
            return tracemalloc.get_traced_memory()[0] / y.numpy().nbytes, y
        finally:
            tracemalloc.stop()

    with tn.no_grad():
        kept, y = held(lambda: norm(x))
    assert kept < 1.5
    assert not y.requires_grad
    with tn.formulas_only():  # a kernel keeps little more than x
        assert held(lambda: norm(x))[0] > 1.9
    assert {type(v) for v in vars(norm).values()} <= {tuple, float, str, type(None), nn.Parameter}


# hypothesis

FLOATS = st.floats(-3.0, 3.0, allow_subnormal=False)


@given(
    x=hnp.arrays(np.float64, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3), elements=FLOATS),
    seed=st.integers(0, 100),
)
def test_shapes_without_axes_or_elements_are_ordinary(x, seed):
    """Properties over shapes broke on nan bounds and 0-d arrays, and subnormals on builds that flush them to 0."""
    dy = np.random.default_rng(seed).normal(size=x.shape)
    t = leaf(x)
    y = tn.tanh(t) * 2.0 + t.reshape(-1).reshape(x.shape) - t.sum()
    np.testing.assert_allclose(y.numpy(), 2.0 * np.tanh(x) + x - x.sum(), atol=1e-12)
    y.backward(dy)
    assert isinstance(t.grad, np.ndarray)
    assert t.grad.shape == x.shape
    np.testing.assert_allclose(t.grad, dy * (2.0 / np.cosh(x) ** 2 + 1.0) - dy.sum(), atol=1e-12)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("loss", ["cross_entropy", "nll_loss"])
def test_an_ignored_row_does_not_reach_shared_weights(loss, bad):
    """The row counts for nothing: its cotangent is 0, not nan · 0, and the weights that every row shares stay right."""
    rng = np.random.default_rng(0)
    logits, target = rng.normal(size=(3, 4)), np.array([1, -100, 3])
    without = leaf(logits[[0, 2]])
    getattr(F, loss)(without, target[[0, 2]]).backward()
    logits[1] = bad
    with_it = leaf(logits)
    with np.errstate(invalid="ignore"):
        getattr(F, loss)(with_it, target).backward()
    np.testing.assert_array_equal(with_it.grad[1], 0.0)
    np.testing.assert_allclose(with_it.grad[[0, 2]], without.grad, rtol=1e-15)
