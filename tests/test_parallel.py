"""Several processes that train one model, by MPI where it is installed; and parts of a batch in one."""

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import strict_cupy

import tinynorm as tn

ROOT = Path(__file__).parents[1]
MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")


def of_mpi():
    pytest.importorskip("mpi4py", reason="several processes need mpi4py: pip install -e '.[test,mpi]'")
    if MPIEXEC is None:
        pytest.skip("mpiexec is not installed")


def ranks(n, *command, timeout=120):
    """What n processes print, and how they end."""
    path = os.pathsep.join(map(str, (ROOT, ROOT / "tests", ROOT / "tests" / "device")))
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": path}
    return subprocess.run(
        [MPIEXEC, "-n", str(n), sys.executable, "-m", "mpi4py", *command],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


def found(n, code):
    """What rank 0 of n processes prints as JSON."""
    of_mpi()
    done = ranks(n, "-c", code)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


TRAIN = """
import hashlib, json
import numpy as np
import tinynorm as tn

def train(ranks, seed, device="cpu", epochs=3):
    model = tn.nn.PreNormMLP(8, 16, 2, 3, rng=seed, device=ranks.device(device))
    ranks.replicate(model)
    optimizer, rng = tn.optim.AdamW(model, lr=0.01), np.random.default_rng(1)
    x, y = rng.standard_normal((43, 8), dtype=np.float32), rng.integers(0, 3, 43)
    rows = []
    for _ in range(epochs):
        for low in range(0, 43, 6):  # the last batch has one row: some rank has none
            own = ranks.share(len(y[low : low + 6]))
            xs, ys = (tn.as_tensor(a[low : low + 6][own], device=ranks.device(device)) for a in (x, y))
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


def assert_as_in_one_process(n, parameters, rows, digests, epochs):
    assert len(set(digests)) == 1
    assert len(digests) == n
    scope = {}
    exec(TRAIN, scope)  # the very same text
    expected, its_rows, _ = scope["train"](tn.parallel.alone(), seed=0, epochs=epochs)
    assert rows == its_rows == [6, 6, 6, 6, 6, 6, 6, 1] * epochs
    for got, want in zip(parameters, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-6)


@pytest.mark.parametrize("n", [2, 3])
def test_ranks_end_with_the_same_bits_and_near_one_process(n):
    assert_as_in_one_process(n, *found(n, TRAIN + CONNECTED), epochs=3)


ORDERS = """
import json
import numpy as np
import tinynorm as tn

def shard(rank):
    rng = np.random.default_rng(10 + rank)
    rows = 11 - 4 * rank  # 11, 7 and 3: in the last steps, some ranks have none
    x, y = rng.standard_normal((rows, 8), dtype=np.float32), rng.integers(0, 3, rows)
    order = rng.permutation(rows)  # another on each rank
    return [(x[order[low : low + 2]], y[order[low : low + 2]]) for low in range(0, 12, 2)]

def step(model, optimizer, ranks, x, y):
    optimizer.zero_grad()
    if len(y):
        tn.functional.cross_entropy(model(x), y, reduction="sum").backward()
    rows = ranks.average(model.parameters(), len(y))
    optimizer.step()
    return rows
"""


@pytest.mark.parametrize("n", [2, 3])
def test_each_rank_may_have_rows_and_an_order_of_its_own(n):
    code = """
ranks = tn.parallel.connect()
model = tn.nn.PreNormMLP(8, 16, 1, 3, rng=ranks.rank)
ranks.replicate(model)
optimizer = tn.optim.SGD(model, lr=0.1, momentum=0.9)
rows = [step(model, optimizer, ranks, x, y) for x, y in shard(ranks.rank)]
told = ranks._communicator.gather([p.numpy().tolist() for p in model.parameters()])
if ranks.rank == 0:
    print(json.dumps([told, rows]))
"""
    told, rows = found(n, ORDERS + code)
    scope = {}
    exec(ORDERS, scope)
    model = tn.nn.PreNormMLP(8, 16, 1, 3, rng=0)
    optimizer = tn.optim.SGD(model, lr=0.1, momentum=0.9)
    shards = [scope["shard"](rank) for rank in range(n)]
    for together, counted in zip(zip(*shards, strict=True), rows, strict=True):  # every step's rows, in one batch
        x, y = (np.concatenate(arrays) for arrays in zip(*together, strict=True))
        assert scope["step"](model, optimizer, tn.parallel.alone(), x, y) == counted == len(y)
    for parameters in told:
        assert parameters == told[0]
    for got, p in zip(told[0], model.parameters(), strict=True):
        np.testing.assert_allclose(got, p.numpy(), rtol=0, atol=1e-6)


def test_rows_are_counted_where_float32_cannot():
    code = """
import json
import numpy as np
import tinynorm as tn
ranks = tn.parallel.connect()
w = tn.tensor([1.0], requires_grad=True)
w.grad = np.float32([ranks.rank])
total = ranks.average([w], 2**24 + 1 + ranks.rank)
if ranks.rank == 0:
    print(json.dumps([total, w.grad.tolist()]))
"""
    assert found(2, code) == [2**25 + 3, [float(np.float32(1) / np.float32(2**25 + 3))]]


MODELS = {
    "another width": (
        "tn.nn.Linear(2, 3 + ranks.rank)",
        "rank 1 has another model than rank 0: weight is float32(4, 2)",
    ),
    "more layers": (
        "tn.nn.Sequential(*[tn.nn.Linear(2, 2) for _ in range(1 + ranks.rank)])",
        "rank 1 has another model than rank 0: 4 parameters, there 2",
    ),
    "another dtype": (
        "linear(np.float64 if ranks.rank else np.float32)",
        "rank 1 has another model than rank 0: weight is float64(3, 2), there weight is float32(3, 2)",
    ),
    "another norm": (
        "tn.nn.Sequential(tn.nn.RMSNorm(2, bias=True) if ranks.rank else tn.nn.Linear(2, 2))",
        "0.weight is float32(2,), there 0.weight is float32(2, 2)",
    ),
}


@pytest.mark.parametrize("case", MODELS)
def test_a_rank_with_another_model_is_refused_on_all(case):
    model, words = MODELS[case]
    code = f"""
import json
import numpy as np
import tinynorm as tn

def linear(dtype):
    model = tn.nn.Linear(2, 3)
    model.weight = tn.nn.Parameter(np.ones((3, 2), dtype))
    return model

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
    told = found(2, code)
    assert [same for same, _ in told] == [True, True]
    assert all(words in error for _, error in told)


FAULTY = """
import json
import numpy as np
import tinynorm as tn
from mpi4py import MPI

class Faulty:  # it turns one bit of what it brings to rank 1
    def __getattr__(self, name):
        return getattr(MPI.COMM_WORLD, name)
    def Bcast(self, sent):
        MPI.COMM_WORLD.Bcast(sent)
        if self.Get_rank() == 1 and sent.size == 12:
            sent[-1] ^= 1

ranks = tn.parallel.Ranks(Faulty())
model = tn.nn.Linear(3, 3, rng=ranks.rank, device=ranks.device(DEVICE))
try:
    ranks.replicate(model)
except tn.errors.StateError as error:
    told = ranks._communicator.gather(str(error))
    if ranks.rank == 0:
        print(json.dumps(told))
"""


def assert_a_faulty_broadcast_is_found(code):
    told = found(2, code + FAULTY)
    assert len(told) == 2
    assert all("replicate: bias of rank 1 is not what rank 0 sent" in error for error in told)


def test_values_that_differ_after_the_broadcast_are_named_on_all():
    assert_a_faulty_broadcast_is_found("DEVICE = 'cpu'")


def test_a_rank_that_fails_ends_all():
    of_mpi()
    code = "ranks = tn.parallel.connect()\nassert ranks.rank == 0, 'on purpose'\ntrain(ranks, 0)"
    done = ranks(2, "-c", TRAIN + code, timeout=30)  # or it waits forever
    assert done.returncode != 0
    assert "on purpose" in done.stderr


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


OPTIONS = ["--epochs", "2", "--depth", "2", "--width", "16"]


def example(options, before):
    """The code that runs train_mlp.py after some other."""
    return f"""
import runpy, sys
import tinynorm as tn
sys.path.insert(0, "examples")
rank = tn.parallel.connect().rank
{before}
sys.argv = {["train_mlp.py", *OPTIONS, "--data-parallel", *options]!r}
runpy.run_path("examples/train_mlp.py", run_name="__main__")
"""


@pytest.mark.parametrize("n", [2, 3])
def test_the_example_trains_alike_on_several_ranks_and_tells_once(n, tmp_path):
    of_mpi()
    picture = tmp_path / "digits.png"
    before = "from matplotlib.figure import Figure\nif rank:\n    Figure.savefig = None"
    done = ranks(n, "-c", example(["--accumulate", str(n), "--plot", str(picture)], before))
    assert done.returncode == 0, done.stderr
    one = subprocess.run(
        [sys.executable, "examples/train_mlp.py", *OPTIONS], cwd=ROOT, capture_output=True, text=True, check=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.stdout.count("test accuracy") == done.stdout.count("blocks.1") == 1
    assert done.stderr.count("| 0/90 ") == one.stderr.count("| 0/90 ") == 1  # progress bars
    assert picture.read_bytes().startswith(b"\x89PNG")
    several, single = (float(text.split()[-1]) for text in (done.stdout, one.stdout))
    assert abs(several - single) <= 0.02


def test_a_rank_that_fails_while_the_example_trains_ends_all_with_its_error():
    of_mpi()
    before = """
if rank == 1:
    def fail(*_):
        raise tn.errors.DeviceError("out of memory, on purpose")
    tn.optim.WarmupCosine.step = fail
"""
    done = ranks(2, "-c", example([], before), timeout=30)
    assert done.returncode == 2
    assert "train_mlp.py: out of memory, on purpose" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_the_loop_of_the_page_runs(tmp_path):
    of_mpi()
    (block,) = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "docs/parallel.md").read_text(encoding="utf-8"), re.M | re.S
    )
    done = ranks(2, "-c", f"import os; os.chdir({str(tmp_path)!r})\n{block}")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["model.npz"]


def test_what_rank_0_saves_is_what_every_rank_has(tmp_path):
    code = f"""
ranks = tn.parallel.connect()
model = tn.nn.Linear(8, 3, rng=ranks.rank)
if ranks.rank == 0:
    np.savez({str(tmp_path / "model.npz")!r}, **model.state_dict())
ranks.replicate(model)
saved = np.load({str(tmp_path / "model.npz")!r})  # there, since rank 0 has written it before it sent its parameters
same = ranks._communicator.gather(all((p.numpy() == saved[name]).all() for name, p in model.named_parameters()))
if ranks.rank == 0:
    print(json.dumps([bool(s) for s in same]))
"""
    assert found(2, TRAIN + code) == [True, True]


def test_the_ranks_of_a_host_take_its_gpus_in_turn():
    code = """
import json, sys
import strict_cupy
import tinynorm as tn
sys.modules["cupy"] = strict_cupy.new()
ranks = tn.parallel.connect()
told = ranks._communicator.gather([ranks.device(name) for name in ("cuda", "cuda:1", "cpu")])
if ranks.rank == 0:
    print(json.dumps(told))
"""
    assert found(3, code) == [["cuda:0", "cuda:1", "cpu"], ["cuda:1", "cuda:1", "cpu"], ["cuda:0", "cuda:1", "cpu"]]


def test_without_mpi_the_example_says_so_in_one_sentence(tmp_path):
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text("")
    for text, fragments in (
        ("raise ImportError('on purpose')", ["mpi4py cannot be imported (on purpose)"]),
        ("raise RuntimeError('cannot load MPI library\\nlibmpi.so.12')", ["no MPI library (cannot load MPI library)"]),
    ):
        (tmp_path / "mpi4py" / "MPI.py").write_text(text)
        done = subprocess.run(
            [sys.executable, "examples/train_mlp.py", "--data-parallel"], cwd=ROOT, capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 2
        assert done.stdout == ""
        (line,) = done.stderr.splitlines()
        assert all(fragment in line for fragment in [*fragments, "pip install 'tinynorm[mpi]'"])


# In one process


def test_parts_of_a_batch_give_the_update_of_the_whole():
    rng = np.random.default_rng(2)
    x, y = rng.standard_normal((23, 8), dtype=np.float32), rng.integers(0, 3, 23)
    different = []
    for cuts in ([], [7], [1, 2, 20]):
        model = tn.nn.PreNormMLP(8, 16, 1, 3, rng=0)
        for xs, ys in zip(np.split(x, cuts), np.split(y, cuts), strict=True):
            tn.functional.cross_entropy(model(xs), ys, reduction="sum").backward()
        assert tn.parallel.alone().average(model.parameters(), 23) == 23
        different.append([p.grad for p in model.parameters()])
    model = tn.nn.PreNormMLP(8, 16, 1, 3, rng=0)
    tn.functional.cross_entropy(model(x), y).backward()
    for gradients in different:
        for got, p in zip(gradients, model.parameters(), strict=True):
            np.testing.assert_allclose(got, p.grad, rtol=0, atol=2e-7)


@pytest.mark.parametrize("n", ["3", "32", "50"])  # of a batch of 32, whose last has 30 rows
def test_the_example_makes_the_same_steps_in_parts(n, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    example = runpy.run_path(str(ROOT / "examples" / "train_mlp.py"))
    both = []
    for parts in ("1", n):
        args = example["arguments"](["--epochs", "1", "--optimizer", "sgd", "--accumulate", parts, "--quiet"])
        rng = np.random.default_rng(0)
        split = example["load"](args, rng)
        model = tn.nn.PreNormMLP(64, 16, 1, 10, rng=rng)
        history = example["train"](model, split, args, rng, tn.parallel.alone())
        both.append([history.loss, *(p.numpy() for p in model.parameters())])
    for got, want in zip(*both, strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)


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


def test_a_model_stands_for_its_parameters_and_nothing_else_does():
    ranks, model = tn.parallel.alone(), tn.nn.Linear(2, 1, rng=0)
    model(np.array([[3.0, 5.0]], np.float32)).sum().backward()
    assert ranks.average(model, 2) == 2
    np.testing.assert_array_equal(model.weight.grad, [[1.5, 2.5]])
    with pytest.raises(tn.errors.DTypeError, match=r"average: parameter 0 must be a Tensor.*pass model.parameters"):
        ranks.average([np.ones(2)], 1)
    with pytest.raises(tn.errors.DTypeError, match="average: expects a list of parameters, not a Parameter"):
        ranks.average(model.weight, 1)


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


def test_what_is_no_module_is_not_replicated():
    model = tn.nn.Linear(2, 2)
    for wrong in ([model.weight], model.parameters(), None):
        with pytest.raises(tn.errors.DTypeError, match=f"^replicate: takes a module.*, not {type(wrong).__name__}$"):
            tn.parallel.alone().replicate(wrong)


def test_parameters_on_several_devices(monkeypatch):
    strict_cupy.install(monkeypatch)
    model = tn.nn.Sequential(tn.nn.Linear(2, 2), tn.nn.Linear(2, 2).to("cuda:1"))
    ranks = tn.parallel.alone()
    for call in (lambda: ranks.replicate(model), lambda: ranks.average(model.parameters(), 1)):
        with pytest.raises(
            tn.errors.DeviceError, match="the parameters are on cpu and cuda:1; move them to one device"
        ):
            call()


def test_without_mpi_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(tn.errors.MissingExtraError, match=r"pip install 'tinynorm\[mpi\]'"):
        tn.parallel.connect()
