"""Several processes that train one model, by MPI where it is installed; and parts of a batch in one."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import tinynorm as tn

ROOT = Path(__file__).parents[1]
MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")


def of_mpi():
    pytest.importorskip("mpi4py")
    if MPIEXEC is None:
        pytest.skip("mpiexec is not installed")


def ranks(n, *command):
    """What n processes print, and how they end."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [MPIEXEC, "-n", str(n), sys.executable, "-m", "mpi4py", *command],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


TRAIN = """
import hashlib, json
import numpy as np
import tinynorm as tn

def train(ranks, seed):
    model = tn.nn.PreNormMLP(8, 16, 2, 3, rng=seed)
    ranks.replicate(model)
    optimizer, rng = tn.optim.AdamW(model, lr=0.01), np.random.default_rng(1)
    x, y = rng.standard_normal((43, 8), dtype=np.float32), rng.integers(0, 3, 43)
    rows = []
    for _ in range(3):
        for low in range(0, 43, 6):  # the last batch has one row: some rank has none
            own = ranks.share(len(y[low : low + 6]))
            xs, ys = x[low : low + 6][own], y[low : low + 6][own]
            optimizer.zero_grad()
            if len(ys):
                tn.functional.cross_entropy(model(xs), ys, reduction="sum").backward()
            rows.append(ranks.average(model.parameters(), len(ys)))
            optimizer.step()
    return [p.numpy().tolist() for p in model.parameters()], rows, hashlib.sha256(
        b"".join(p.numpy().tobytes() for p in model.parameters())
    ).hexdigest()
"""

CONNECTED = """
ranks = tn.parallel.connect()
parameters, rows, digest = train(ranks, seed=ranks.rank)
digests = ranks._communicator.gather(digest)
if ranks.rank == 0:
    print(json.dumps([parameters, rows, digests]))
"""


def alone():
    """What one process finds on the same batches."""
    scope = {}
    exec(TRAIN, scope)  # the very same text
    return scope["train"](tn.parallel.alone(), seed=0)


@pytest.mark.parametrize("n", [2, 3])
def test_ranks_end_with_the_same_bits_and_near_one_process(n):
    of_mpi()
    done = ranks(n, "-c", TRAIN + CONNECTED)
    assert done.returncode == 0, done.stderr
    parameters, rows, digests = json.loads(done.stdout)
    assert len(set(digests)) == 1
    assert len(digests) == n
    expected, its_rows, _ = alone()
    assert rows == its_rows == [6, 6, 6, 6, 6, 6, 6, 1] * 3
    for got, want in zip(parameters, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-6)


MODELS = {
    "another width": (
        "tn.nn.Linear(2, 3 + ranks.rank)",
        "rank 1 has another model than rank 0: weight is float32(4, 2)",
    ),
    "more layers": (
        "tn.nn.Sequential(*[tn.nn.Linear(2, 2) for _ in range(1 + ranks.rank)])",
        "rank 1 has another model than rank 0: 4 parameters, there 2",
    ),
    "another norm": (
        "tn.nn.Sequential(tn.nn.RMSNorm(2, bias=True) if ranks.rank else tn.nn.Linear(2, 2))",
        "0.weight is float32(2,), there 0.weight is float32(2, 2)",
    ),
}


@pytest.mark.parametrize("case", MODELS)
def test_a_rank_with_another_model_is_refused_on_all(case):
    of_mpi()
    model, words = MODELS[case]
    code = f"""
import json
import tinynorm as tn
ranks = tn.parallel.connect()
model = {model}
before = [p.numpy().copy() for p in model.parameters()]
try:
    ranks.replicate(model)
except tn.errors.StateError as error:
    same = all((p.numpy() == b).all() for p, b in zip(model.parameters(), before))
    found = ranks._communicator.gather([bool(same), str(error)])
    if ranks.rank == 0:
        print(json.dumps(found))
"""
    done = ranks(2, "-c", code)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [same for same, _ in found] == [True, True]
    assert all(words in error for _, error in found)


def test_a_rank_that_fails_ends_all():
    of_mpi()
    start = time.monotonic()
    done = ranks(
        2, "-c", TRAIN + "ranks = tn.parallel.connect()\nassert ranks.rank == 0, 'on purpose'\ntrain(ranks, 0)"
    )
    assert done.returncode != 0
    assert "on purpose" in done.stderr
    assert time.monotonic() - start < 60  # or it waits forever


def test_where_nobody_has_rows_all_are_told():
    of_mpi()
    code = """
import tinynorm as tn
ranks = tn.parallel.connect()
try:
    ranks.average([tn.tensor([1.0], requires_grad=True)], 0)
except tn.errors.ArgumentError as error:
    print(error, flush=True)
"""
    assert ranks(2, "-c", code).stdout.count("average: there were no rows, on no rank") == 2


def test_the_example_trains_alike_on_two_ranks_and_tells_once():
    of_mpi()
    options = ["examples/train_mlp.py", "--epochs", "2", "--depth", "2", "--width", "16"]
    done = ranks(2, *options, "--data-parallel")
    assert done.returncode == 0, done.stderr
    one = subprocess.run(
        [sys.executable, *options], cwd=ROOT, capture_output=True, text=True, check=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.stdout.count("test accuracy") == done.stdout.count("block 2") == 1
    two, single = (float(text.split()[-1]) for text in (done.stdout, one.stdout))
    assert abs(two - single) <= 0.02


# In one process


def test_parts_of_a_batch_give_the_update_of_the_whole():
    rng = np.random.default_rng(2)
    x, y = rng.standard_normal((23, 8), dtype=np.float32), rng.integers(0, 3, 23)
    found = []
    for cuts in ([], [7], [1, 2, 20]):
        model = tn.nn.PreNormMLP(8, 16, 1, 3, rng=0)
        for xs, ys in zip(np.split(x, cuts), np.split(y, cuts), strict=True):
            tn.functional.cross_entropy(model(xs), ys, reduction="sum").backward()
        assert tn.parallel.alone().average(model.parameters(), 23) == 23
        found.append([p.grad for p in model.parameters()])
    model = tn.nn.PreNormMLP(8, 16, 1, 3, rng=0)
    tn.functional.cross_entropy(model(x), y).backward()
    for gradients in found:
        for got, p in zip(gradients, model.parameters(), strict=True):
            np.testing.assert_allclose(got, p.grad, rtol=0, atol=2e-7)


def test_what_has_no_gradient_stays_without_and_dtypes_stay():
    half, double, unused = (
        tn.tensor(np.ones(2, dtype), requires_grad=True) for dtype in (np.float16, np.float64, np.float32)
    )
    half.grad, double.grad = np.array([3.0, 6.0], np.float16), np.array([1e-12, 5.0])
    assert tn.parallel.alone().average(iter([half, double, unused]), 3) == 3
    assert half.grad.dtype == np.float16
    np.testing.assert_array_equal(half.grad, [1.0, 2.0])
    np.testing.assert_allclose(double.grad, [1e-12 / 3, 5.0 / 3], rtol=1e-15)
    assert unused.grad is None


@pytest.mark.parametrize("rows", [-1, 1.5, "2", None, True])
def test_a_number_of_rows_that_is_none(rows):
    for call in (tn.parallel.alone().share, lambda rows: tn.parallel.alone().average([], rows)):
        with pytest.raises(tn.errors.ArgumentError, match="rows must be an integer >= 0"):
            call(rows)


def test_no_rows_at_all():
    with pytest.raises(tn.errors.ArgumentError, match="average: there were no rows"):
        tn.parallel.alone().average([], 0)


def test_shares_are_all_rows_once():
    for size in (1, 2, 3, 7):
        for rows in (0, 1, 2, 6, 100):
            members = [object.__new__(tn.parallel.Ranks) for _ in range(size)]
            for rank, member in enumerate(members):
                member.rank, member.size = rank, size
            parts = [range(rows)[member.share(rows)] for member in members]
            assert [i for part in parts for i in part] == [*range(rows)]
            assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_without_mpi_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(tn.errors.MissingExtraError, match=r"pip install 'tinynorm\[mpi\]'"):
        tn.parallel.connect()
