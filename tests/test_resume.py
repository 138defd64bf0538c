"""examples/train_mlp.py keeps a run in a file: what was stopped or killed goes on, and ends with the very same bits.

Files are compared as bytes: the same state gives the same ones, and the loss curve, the weights, and the random numbers
to come are all in it. The data are a few images in MNIST's format, on which an epoch takes milliseconds.
"""

import importlib
import io
import json
import os
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import strict_cupy

import tinynorm as tn

for package in ("tqdm", "threadpoolctl"):
    pytest.importorskip(package, reason="the examples need it: pip install -e '.[examples]'")

ROOT = Path(__file__).parents[1]
TRAIN, TEST, BATCH, EPOCHS = 18, 10, 4, 3
STEPS = EPOCHS * 5  # in batches of 4, 4, 4, 4 and 2
MODEL = ["--width", "6", "--depth", "1", "--batch-size", str(BATCH), "--epochs", str(EPOCHS)]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The option that names a directory with four small files in MNIST's format."""
    directory, rng = tmp_path_factory.mktemp("mnist"), np.random.default_rng(0)
    for split, n in (("train", TRAIN), ("t10k", TEST)):
        images = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        header = b"\0\0\x08\x03" + struct.pack(">3I", n, 28, 28)
        (directory / f"{split}-images-idx3-ubyte").write_bytes(header + images.tobytes())
        labels = b"\0\0\x08\x01" + struct.pack(">I", n) + bytes(rng.integers(0, 10, n, dtype=np.uint8))
        (directory / f"{split}-labels-idx1-ubyte").write_bytes(labels)
    return ["--data", str(directory)]


@pytest.fixture(scope="module")
def scripts():
    """The modules of the example, train_mlp and those that it imports."""
    sys.path.insert(0, str(ROOT / "examples"))
    yield {name: importlib.import_module(name) for name in ("train_mlp", "keeping", "support")}
    sys.path.remove(str(ROOT / "examples"))


class Ended(NamedTuple):
    """How the script has ended, and what it has printed."""

    status: int
    out: str
    err: str


@pytest.fixture
def train(data, scripts, monkeypatch):
    """Run the script in this process. `at` says what is done after which step."""
    monkeypatch.chdir(ROOT)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background's pytest ignores it
    step = tn.optim.WarmupCosine.step

    def run(*options, at=None, model=MODEL):
        def stepping(schedule):
            step(schedule)
            (at or {}).get(schedule.t, lambda: None)()

        monkeypatch.setattr(tn.optim.WarmupCosine, "step", stepping)
        monkeypatch.setattr(sys, "argv", ["train_mlp.py", *model, *data, *map(str, options)])
        out, err, status = io.StringIO(), io.StringIO(), 0
        with redirect_stdout(out), redirect_stderr(err):
            try:
                scripts["support"].run(scripts["train_mlp"].main)
            except SystemExit as end:
                status = end.code
        return Ended(status, out.getvalue(), err.getvalue())

    yield run
    signal.signal(signal.SIGINT, before)


interrupt, terminate = (partial(signal.raise_signal, number) for number in (signal.SIGINT, signal.SIGTERM))


def assert_one_sentence(ended, *fragments, status=2):
    assert (ended.status, ended.out) == (status, "")
    assert "Traceback" not in ended.err
    last = ended.err.splitlines()[-1]
    assert all(fragment in last for fragment in fragments), ended.err


# A run that was stopped


@pytest.mark.parametrize(
    "options",
    [
        ["--norm", "rms", "--optimizer", "adamw"],
        ["--norm", "layer", "--optimizer", "adam", "--accumulate", "3"],
        ["--norm", "none", "--optimizer", "sgd"],
        ["--depth", "0", "--accumulate", "4", "--seed", "3"],
    ],
    ids=" ".join,
)
def test_a_run_that_stops_after_every_step_ends_with_the_same_bits(options, train, tmp_path):
    whole, parts = tmp_path / "whole.npz", tmp_path / "parts.npz"
    uninterrupted = train(*options, "--checkpoint", whole)
    assert uninterrupted.status == 0
    for step in range(1, STEPS + 1):
        stopped = train(*options, "--checkpoint", parts, "--resume", at=dict.fromkeys(range(STEPS + 1), interrupt))
        assert (stopped.status, stopped.out) == (130, "")
        assert f"stopped after step {step}," in stopped.err
    resumed = train(*options, "--checkpoint", parts, "--resume")
    assert (resumed.status, resumed.out) == (0, uninterrupted.out)
    assert parts.read_bytes() == whole.read_bytes()
    assert set(os.listdir(tmp_path)) == {whole.name, parts.name}
    again = train(*options, "--checkpoint", parts, "--resume")  # there is nothing left to do
    assert (again.status, again.out, parts.read_bytes()) == (0, uninterrupted.out, whole.read_bytes())
    assert train(*options).out == uninterrupted.out  # keeping changes nothing


@pytest.mark.parametrize("forgotten", ["model", "optimizer", "schedule", "rng", "left", "total", "history"])
def test_whatever_is_forgotten_would_be_seen(forgotten, train, scripts, tmp_path, monkeypatch):
    whole, parts = tmp_path / "whole.npz", tmp_path / "parts.npz"
    train("--checkpoint", whole)
    assert train("--checkpoint", parts, at={7: interrupt}).status == 130
    load = scripts["keeping"].Progress.load_state_dict

    def load_the_rest(progress, state):
        fresh = progress.state_dict()
        if forgotten in fresh:
            state = {**state, forgotten: fresh[forgotten]}
        else:
            state = {**state, "epoch": {**state["epoch"], forgotten: fresh["epoch"][forgotten]}}
        load(progress, state)

    monkeypatch.setattr(scripts["keeping"].Progress, "load_state_dict", load_the_rest)
    train("--checkpoint", parts, "--resume")
    assert parts.read_bytes() != whole.read_bytes()


def test_safetensors_are_the_same(train, tmp_path):
    pytest.importorskip("safetensors")
    whole, parts = tmp_path / "whole.safetensors", tmp_path / "parts.safetensors"
    train("--checkpoint", whole)
    assert train("--checkpoint", parts, at={8: interrupt}).status == 130
    assert train("--checkpoint", parts, "--resume").status == 0
    assert parts.read_bytes() == whole.read_bytes()


def test_a_device_is_the_same(train, tmp_path, monkeypatch):
    strict_cupy.install(monkeypatch)
    whole, parts = tmp_path / "whole.npz", tmp_path / "parts.npz"
    train("--checkpoint", whole, "--device", "cuda")
    assert train("--checkpoint", parts, "--device", "cuda", at={8: interrupt}).status == 130
    assert_one_sentence(train("--checkpoint", parts, "--resume"), "--device is cuda there and cpu here")
    assert train("--checkpoint", parts, "--device", "cuda", "--resume").status == 0
    assert parts.read_bytes() == whole.read_bytes()


SIGNALS_ITSELF = """
import os, signal, sys
import tinynorm as tn
mnist, step = tn.data.mnist, tn.optim.WarmupCosine.step
def spoilt(directory):
    x, *rest = mnist(directory)
    x[0] *= float(os.environ["FACTOR"])
    return x, *rest
def stepping(schedule):
    step(schedule)
    mpi = sys.modules.get("mpi4py.MPI")
    if schedule.t == 7 and os.environ["RANK"] == str(mpi.COMM_WORLD.Get_rank() if mpi else 0):
        signal.raise_signal(getattr(signal, os.environ["SIGNAL"]))
tn.data.mnist, tn.optim.WarmupCosine.step = spoilt, stepping
"""


def environment(tmp_path, **more):
    """That of a process which sends itself a signal after its seventh step, and may find an image spoilt."""
    (tmp_path / "python").mkdir(exist_ok=True)
    (tmp_path / "python" / "sitecustomize.py").write_text(SIGNALS_ITSELF)
    path = f"{tmp_path / 'python'}{os.pathsep}{ROOT}"
    return {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": path, "RANK": "0", "FACTOR": "1", **more}


def shell(command, env):
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)
    return Ended(done.returncode, done.stdout, done.stderr)


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX's")
@pytest.mark.parametrize(("name", "status"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_the_line_that_is_told_goes_on(name, status, train, data, tmp_path):
    uninterrupted = train("--checkpoint", tmp_path / "whole.npz")
    command = [sys.executable, "examples/train_mlp.py", *MODEL, *data, "--checkpoint", str(tmp_path / "a part.npz")]
    stopped = shell(command, environment(tmp_path, SIGNAL=name))
    assert (stopped.status, stopped.out) == (status, "")
    *_, sentence, line = stopped.err.splitlines()
    assert sentence == f"stopped after step 7, which {tmp_path / 'a part.npz'} has; to go on:"
    assert shlex.split(line) == [*command, "--resume"]
    resumed = shell(["sh", "-c", line], environment(tmp_path, SIGNAL=name))
    assert (resumed.status, resumed.out) == (0, uninterrupted.out)
    assert "going on after step 7" in resumed.err
    assert (tmp_path / "a part.npz").read_bytes() == (tmp_path / "whole.npz").read_bytes()


def test_a_second_signal_ends_at_once(train, tmp_path):
    file = tmp_path / "run.npz"

    def twice():
        terminate()
        interrupt()

    ended = train("--checkpoint", file, at={7: twice})
    assert (ended.status, ended.out) == (130, "")
    assert ended.err.endswith("interrupted\n")
    assert tn.load(file)["progress"]["step"] == 5  # as the first epoch has left it


def test_signals_are_what_they_were_after_a_run(train, tmp_path):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    train("--checkpoint", tmp_path / "run.npz", at={7: terminate})
    train("--checkpoint", tmp_path / "run.npz", "--resume")
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_in_the_background_ctrl_c_stays_ignored(train, tmp_path):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert train("--checkpoint", tmp_path / "run.npz", at={7: interrupt}).status == 0


def test_without_a_checkpoint_ctrl_c_ends_as_ever(train):
    ended = train(at={7: interrupt})
    assert (ended.status, ended.out) == (130, "")
    assert ended.err.endswith("interrupted\n")


# A run that was killed

KILLS = 50
KILLED = """
import mmap, os, random, signal, sys, time
from collections import Counter
from pathlib import Path
sys.path.insert(0, "examples")
import support, train_mlp
import tinynorm as tn

folder, kills, *options = sys.argv[1:]
whole, file, printed = (Path(folder, name) for name in ("whole.npz", "run.npz", "printed.txt"))
shared, chance, save, step = mmap.mmap(-1, 2), random.Random(0), tn.save, tn.optim.WarmupCosine.step

def marked_save(*args):
    shared[0:1] = b"w"
    save(*args)
    shared[0:1] = b"t"

def counted_step(schedule):
    step(schedule)
    shared[1] = min(shared[1] + 1, 255)

tn.save, tn.optim.WarmupCosine.step = marked_save, counted_step

def start(path):  # a process that trains
    shared[0:2] = b"s\\0"
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.dup2(os.open(printed, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), 1)
        sys.argv = ["train_mlp.py", *options, "--quiet", "--checkpoint", str(path), "--resume"]
        support.run(train_mlp.main)
        sys.stdout.flush()
        status = 0
    finally:
        shared[0:1] = b"e"
        os._exit(status)

def finish(path):
    assert os.waitpid(start(path), 0)[1] == 0
    return path.read_bytes(), printed.read_text()

def killed(wait):  # whether a process was killed, after `wait`, before it had finished
    pid = start(file)
    wait()
    os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1] == signal.SIGKILL

def a_moment():
    time.sleep(0.012 * chance.random() ** 3)  # a third of them below 0.4 ms

def some_steps():
    steps = chance.randint(1, 24)
    while shared[1] < steps and shared[0:1] != b"e":
        time.sleep(0.0001)
    time.sleep(0.004 * chance.random())

right, moments, last = finish(whole), Counter(), 0
while sum(moments.values()) < int(kills):
    if not killed(chance.choice((a_moment, some_steps, some_steps))):  # it has finished: another one
        assert (file.read_bytes(), printed.read_text()) == right
        file.unlink()
        last = 0
        continue
    moments[shared[0:1].decode()] += 1
    reached = tn.load(file)["progress"]["step"] if file.exists() else 0
    assert reached >= last, "a checkpoint was lost"
    last = reached
assert finish(file) == right
assert {path.name for path in Path(folder).iterdir()} == {whole.name, file.name, printed.name}
print(dict(moments))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks, so as not to import everything 50 times")
def test_a_run_that_is_killed_at_50_moments_ends_with_the_same_bits(data, tmp_path):
    """Starting, training, writing, or at its end. The file was whole each time, and never an older one."""
    options = ["--width", "6", "--depth", "1", "--batch-size", "4", "--epochs", "60", *data]
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    ended = shell([sys.executable, "-c", KILLED, str(tmp_path), str(KILLS), *options], env)
    assert ended.status == 0, ended.err
    moments = json.loads(ended.out.replace("'", '"'))
    assert sum(moments.values()) == KILLS
    assert set(moments) >= {"s", "t", "w"}


# What is refused, before any step is made


@pytest.fixture
def untrained():
    """For `at`: nothing may be done after any step, since there must be none."""

    def fail():
        raise AssertionError("a step was made")

    return dict.fromkeys(range(1, 1000), fail)


@pytest.fixture
def file(train, tmp_path):
    """A run that was stopped after 7 steps."""
    assert train("--checkpoint", tmp_path / "run.npz", at={7: interrupt}).status == 130
    return tmp_path / "run.npz"


def untouched(file):
    status = file.stat()
    return file.read_bytes(), status.st_mtime_ns, status.st_ino


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--norm", "layer", "--norm is rms there and layer here"),
        ("--depth", "2", "--depth is 1 there and 2 here"),
        ("--width", "7", "--width is 6 there and 7 here"),
        ("--epochs", "4", "--epochs is 3 there and 4 here"),
        ("--batch-size", "5", "--batch-size is 4 there and 5 here"),
        ("--lr", "0.01", "--lr is 0.003 there and 0.01 here"),
        ("--optimizer", "sgd", "--lr is 0.003 there and 0.1 here, --optimizer is adamw there and sgd here"),
        ("--seed", "1", "--seed is 0 there and 1 here"),
        ("--accumulate", "2", "--accumulate is 1 there and 2 here"),
    ],
)
def test_another_run_is_told_by_what_differs(option, value, words, file, train, untrained):
    before = untouched(file)
    ended = train("--checkpoint", file, "--resume", option, value, at=untrained)
    assert_one_sentence(ended, f"{file} belongs to another run: {words}")
    assert ended.err.endswith(f"{words}\n")
    assert untouched(file) == before


def test_other_data_are_another_run_wherever_they_lie(file, train, data, untrained, tmp_path):
    moved = shutil.copytree(data[1], tmp_path / "moved")
    before, images = untouched(file), moved / "train-images-idx3-ubyte"
    pixels = bytearray(images.read_bytes())
    pixels[500] ^= 1
    images.write_bytes(pixels)
    ended = train("--checkpoint", file, "--resume", "--data", moved, at=untrained)
    assert_one_sentence(ended, f"{file} belongs to another run: data is MNIST's, of checksum ")
    assert untouched(file) == before
    pixels[500] ^= 1
    images.write_bytes(pixels)
    assert train("--checkpoint", file, "--resume", "--data", moved).status == 0


def test_what_changes_no_number_may_change(file, train, tmp_path):
    train("--checkpoint", tmp_path / "whole.npz", "--plot", tmp_path / "whole.png")
    renamed, picture = file.rename(tmp_path / "renamed.npz"), tmp_path / "renamed.png"
    options = ["--quiet", "--skip-bad", "2", "--plot", picture, "--lr", "0.003"]
    assert train("--checkpoint", renamed, "--resume", *options).status == 0
    assert renamed.read_bytes() == (tmp_path / "whole.npz").read_bytes()
    assert picture.read_bytes() == (tmp_path / "whole.png").read_bytes()


def test_a_run_that_is_there_is_not_overwritten(file, train, untrained):
    before = untouched(file)
    ended = train("--checkpoint", file, at=untrained)
    assert_one_sentence(ended, f"{file} is there already; add --resume to go on from it, or give another name")
    assert untouched(file) == before


def test_where_there_is_nothing_to_resume_it_starts_anew_and_says_so(train, tmp_path):
    ended = train("--checkpoint", tmp_path / "run.npz", "--resume", "--quiet")
    assert ended.status == 0
    assert ended.err == f"starting anew, since there is no {tmp_path / 'run.npz'} yet\n"
    assert ended.out == train("--quiet").out


def test_options_that_make_no_sense(train, untrained):
    assert_one_sentence(train("--resume", at=untrained), "--resume", "--checkpoint FILE")
    assert_one_sentence(train("--skip-bad", "-1", at=untrained), "--skip-bad", "not '-1'")


def content(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere/run.npz", "No such file or directory"),
        ("model.npz/run.npz", "Not a directory"),
        ("run.pt", "must end in .safetensors or .npz"),
        ("run", "must end in .safetensors or .npz"),
        ("folder.npz", "is a directory"),
        ("model.npz", "holds something else than a run"),
        ("list.npz", "holds something else than a run"),
        ("old.npz", "does not hold what this run needs (KeyError: 'model')"),
        ("short.npz", "nothing was loaded"),
        ("text.npz", "nothing was loaded"),
    ],
)
def test_paths_and_files_that_will_not_do(name, words, file, train, untrained, tmp_path):
    (tmp_path / "folder.npz").mkdir()
    tn.save(tn.nn.Linear(2, 2).state_dict(), tmp_path / "model.npz")
    tn.save([1, 2], tmp_path / "list.npz")
    tn.save({**tn.load(file), "progress": {}}, tmp_path / "old.npz")
    (tmp_path / "short.npz").write_bytes(file.read_bytes()[:-100])
    (tmp_path / "text.npz").write_text("not a checkpoint")
    before = content(tmp_path)
    ended = train("--checkpoint", tmp_path / name, "--resume", at=untrained)
    assert_one_sentence(ended, str(tmp_path / name), words)
    assert content(tmp_path) == before


@pytest.mark.skipif(sys.platform == "win32", reason="permissions are POSIX's")
def test_a_folder_that_may_not_be_written_to(train, untrained, monkeypatch):
    save, root = tn.save, os.geteuid() == 0

    def save_as_nobody(*args):  # root may write everywhere
        os.seteuid(65534 if root else os.geteuid())
        try:
            save(*args)
        finally:
            os.seteuid(0 if root else os.geteuid())

    monkeypatch.setattr(tn, "save", save_as_nobody)
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o555)
        assert_one_sentence(train("--checkpoint", f"{folder}/run.npz", at=untrained), "Permission denied", folder)
        assert os.listdir(folder) == []


def test_without_safetensors_the_extra_is_named(train, untrained, tmp_path, monkeypatch):
    for module in ("safetensors", "safetensors.numpy"):
        monkeypatch.setitem(sys.modules, module, None)
    ended = train("--checkpoint", tmp_path / "run.safetensors", at=untrained)
    assert_one_sentence(ended, "safetensors cannot be imported", "pip install 'tinynorm[safetensors]'")
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(sys.platform == "win32", reason="the limit is POSIX's")
def test_a_disk_that_fills_up_leaves_the_checkpoint_before(train, tmp_path):
    import resource

    limits, file = resource.getrlimit(resource.RLIMIT_FSIZE), tmp_path / "run.npz"

    def fill():  # to the process, a file may become no longer than 10 kB
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))

    try:
        ended = train("--checkpoint", file, at={7: fill})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert_one_sentence(ended, "File too large", str(file))
    assert tn.load(file)["progress"]["step"] == 5
    assert os.listdir(tmp_path) == [file.name]
    train("--checkpoint", tmp_path / "whole.npz")
    assert train("--checkpoint", file, "--resume").status == 0
    assert file.read_bytes() == (tmp_path / "whole.npz").read_bytes()


# A loss that is not finite


def batches():
    """The row numbers of the first epoch's, for seed 0."""
    rng = np.random.default_rng(0)
    tn.nn.PreNormMLP(784, 6, 1, 10, rng=rng)
    return [batch.tolist() for batch in np.split(rng.permutation(TRAIN), range(BATCH, TRAIN, BATCH))]


@pytest.fixture
def spoil(scripts, monkeypatch):
    """Make some of the images nan."""
    load = scripts["train_mlp"].load

    def spoil(*rows):
        def spoilt(*args):
            split = load(*args)
            split.x_train[list(rows)] = np.nan
            return split

        monkeypatch.setattr(scripts["train_mlp"], "load", spoilt)

    return spoil


def test_a_loss_that_is_not_finite_ends_the_run(spoil, train, tmp_path):
    spoil(batches()[2][1])
    file = tmp_path / "run.npz"
    ended = train("--checkpoint", file)
    assert_one_sentence(ended, "nan", "step 3", ", ".join(map(str, batches()[2])), str(file), status=1)
    assert tn.load(file)["progress"]["step"] == 0
    assert_one_sentence(train(), "nan", "step 3", ", ".join(map(str, batches()[2])), status=1)


def test_a_bad_batch_is_left_out_on_request(spoil, train, tmp_path):
    spoil(batches()[2][1])
    whole, file = tmp_path / "whole.npz", tmp_path / "run.npz"
    uninterrupted = train("--checkpoint", whole, "--skip-bad", "1")
    assert uninterrupted.status == 0
    assert "step 3 is left out: its loss is nan" in uninterrupted.err
    assert uninterrupted.err.count("is left out") == EPOCHS
    assert np.isfinite(tn.load(whole)["progress"]["history"]["loss"]).all()
    assert train("--checkpoint", file).status == 1
    assert train("--checkpoint", file, "--resume", "--skip-bad", "1").out == uninterrupted.out
    assert file.read_bytes() == whole.read_bytes()


def test_so_many_bad_batches_in_a_row_are_left_out_and_no_more(spoil, train, tmp_path):
    spoil(batches()[1][0], batches()[2][1])
    assert_one_sentence(train("--skip-bad", "1", "--quiet", "--epochs", "1"), "step 3", status=1)
    assert train("--skip-bad", "2", "--epochs", "1").status == 0


def test_bad_batches_before_a_stop_are_not_forgotten(spoil, train, tmp_path):
    spoil(batches()[1][0], batches()[2][1])
    file = tmp_path / "run.npz"
    assert train("--skip-bad", "1", "--checkpoint", file, at={2: interrupt}).status == 130
    resumed = train("--skip-bad", "1", "--checkpoint", file, "--resume", "--quiet")
    assert_one_sentence(resumed, "step 3", status=1)


def test_an_epoch_of_bad_batches_has_no_loss(spoil, train, tmp_path):
    spoil(*range(TRAIN))
    assert train("--skip-bad", "99", "--checkpoint", tmp_path / "run.npz").status == 0
    assert np.isnan(tn.load(tmp_path / "run.npz")["progress"]["history"]["loss"]).all()


# Several processes

MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")


@pytest.fixture
def ranks(data, tmp_path):
    """Run the script in n processes."""
    pytest.importorskip("mpi4py", reason="several processes need mpi4py: pip install -e '.[mpi]'")
    if MPIEXEC is None:
        pytest.skip("mpiexec is not installed")

    def run(n, *options, rank="none", **env):
        together = [MPIEXEC, "-n", str(n), sys.executable, "-m", "mpi4py", "examples/train_mlp.py", "--data-parallel"]
        return shell([*together, *MODEL, *data, *map(str, options)], environment(tmp_path, RANK=rank, **env))

    return run


@pytest.mark.parametrize("rank", ["0", "1"])
def test_ranks_stop_together_and_go_on_with_the_same_bits(rank, ranks, tmp_path):
    """The signal comes to one of them."""
    whole, file = tmp_path / "whole.npz", tmp_path / "run.npz"
    uninterrupted = ranks(2, "--checkpoint", whole)
    assert uninterrupted.status == 0, uninterrupted.err
    stopped = ranks(2, "--checkpoint", file, "--resume", rank=rank, SIGNAL="SIGTERM")
    assert (stopped.status, stopped.out) == (143, "")
    assert stopped.err.count("stopped after step 7,") == stopped.err.count("starting anew") == 1
    assert "mpiexec -n 2 " in stopped.err
    other = ranks(1, "--checkpoint", file, "--resume")
    assert other.status == 2
    assert "belongs to another run: number of processes is 2 there and 1 here" in other.err
    resumed = ranks(2, "--checkpoint", file, "--resume")
    assert (resumed.status, resumed.out) == (0, uninterrupted.out)
    assert file.read_bytes() == whole.read_bytes()


def test_ranks_agree_about_a_bad_batch(ranks):
    """One of them has the image that is bad."""
    (step,) = (i for i, batch in enumerate(batches(), 1) if 0 in batch)
    ended = ranks(2, FACTOR="nan")
    assert ended.status == 1
    assert f"step {step} " in ended.err
    skipped = ranks(2, "--skip-bad", "1", FACTOR="nan")
    assert skipped.status == 0
    assert skipped.err.count("is left out: its loss is nan") == EPOCHS
