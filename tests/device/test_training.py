"""Whole training loops on CuPy beside NumPy, with everything that belongs to one."""

import runpy
import sys
from functools import partial
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest

import tinynorm as tn
from tinynorm.backend import device_of, to_device

from .beside import is_stand_in

ROOT = Path(__file__).parents[2]
STEPS = 21

OPTIMIZERS = {
    "SGD": partial(tn.optim.SGD, lr=0.1),
    "SGD with momentum": partial(tn.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.01),
    "SGD by Nesterov": partial(tn.optim.SGD, lr=0.05, momentum=0.9, nesterov=True),
    "Adam": partial(tn.optim.Adam, lr=0.01, weight_decay=0.01),
    "AdamW": partial(tn.optim.AdamW, lr=0.01),
}


def data(device):
    """40 rows of three classes that can be told apart."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 40)
    x = rng.normal(size=(40, 6)) + np.eye(6)[y]
    return tn.tensor(x, dtype=np.float32, device=device), tn.tensor(y, device=device)


def train(device, optimizer="AdamW", norm="rms"):
    """The losses of each step, and the parameters after the last, on the host."""
    x, y = data(device)
    drop, mlp = tn.nn.Dropout(0.1, rng=1), tn.nn.PreNormMLP(6, 8, 2, 3, norm=norm, rng=2)
    model, rng, losses = tn.nn.Sequential(drop, mlp).to(device), np.random.default_rng(3), []
    steps = OPTIMIZERS[optimizer](tn.optim.decay_groups(model, weight_decay=0.01))
    schedule = tn.optim.WarmupCosine(steps, warmup_steps=3, total_steps=STEPS)
    while len(losses) < STEPS:
        for xs, ys in tn.data.batches(x, y, 16, rng=rng):  # the last of an epoch has 8 rows
            loss = tn.functional.cross_entropy(model(xs), ys, label_smoothing=0.1)
            model.zero_grad()
            loss.backward()
            tn.optim.clip_grad_norm_(model.parameters(), 0.5)
            steps.step()
            schedule.step()
            losses.append(loss.item())
    assert {p.device for p in model.parameters()} == {device_of(p.grad) for p in model.parameters()} == {device}
    assert losses[-1] < 0.9 * losses[0]
    return [np.array(losses), *model.state_dict().values()]


@pytest.mark.parametrize(("optimizer", "norm"), list(zip(OPTIMIZERS, cycle(("rms", "layer")))))
def test_formulas_train_alike(cupy, optimizer, norm):
    with tn.formulas_only():
        right, got = train("cpu", optimizer, norm), train("cuda:0", optimizer, norm)
    for r, g in zip(right, got, strict=True):
        if is_stand_in(cupy):
            np.testing.assert_array_equal(g, r)
        else:
            np.testing.assert_allclose(g, r, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_kernels_train_alike(cupy, norm):
    for r, g in zip(train("cpu", norm=norm), train("cuda:0", norm=norm), strict=True):
        np.testing.assert_allclose(g, r, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["Tensors", "arrays", "arrays of the host"])
def test_a_seed_gives_the_same_batches_on_every_device(cupy, kind):
    x, y = np.arange(20.0).reshape(10, 2), np.arange(10)
    there = {
        "Tensors": lambda a: tn.tensor(a, device="cuda"),
        "arrays": lambda a: to_device(a, "cuda"),
        "arrays of the host": lambda a: a,
    }[kind]
    found = list(tn.data.batches(there(x), there(y), 4, rng=5))
    for (xs, ys), (xt, yt) in zip(tn.data.batches(x, y, 4, rng=5), found, strict=True):
        np.testing.assert_array_equal(tn.as_tensor(xt).numpy(), xs)
        np.testing.assert_array_equal(tn.as_tensor(yt).numpy(), ys)
        assert {tn.as_tensor(t).device for t in (xt, yt)} == {"cpu" if kind == "arrays of the host" else "cuda:0"}


def run_example(monkeypatch, capsys, *options):
    """The numbers that examples/train_mlp.py prints, run in this process, which has the stand-in."""
    quick = ["--epochs", "1", "--depth", "1", "--width", "8", "--batch-size", "256"]
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.setattr(sys, "argv", ["train_mlp.py", *quick, *options])
    runpy.run_path(str(ROOT / "examples" / "train_mlp.py"), run_name="__main__")
    *table, last = capsys.readouterr().out.splitlines()
    assert len(table) == 5
    return [*(float(number) for line in table[1:] for number in line.split()[-2:]), float(last.split()[-1])]


@pytest.mark.parametrize("options", [(), ("--norm", "layer", "--optimizer", "sgd"), ("--accumulate", "2")], ids=str)
def test_the_example_is_the_same_command_with_another_device(cupy, monkeypatch, capsys, options):
    there = run_example(monkeypatch, capsys, *options, "--device", "cuda")
    assert there == pytest.approx(run_example(monkeypatch, capsys, *options), rel=0.01)
