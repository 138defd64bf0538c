"""The examples, run as a reader runs them: in a process of their own."""

import os
import re
import signal
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
QUICK = ["--epochs", "2", "--depth", "2", "--width", "16"]


# One BLAS thread: on matrices this small a second one gains nothing, and on a busy machine it waits for its turn.
def environment(threads: str = "1") -> dict[str, str]:
    return {**os.environ, "OPENBLAS_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}


def run(*command: str, threads: str = "1") -> subprocess.CompletedProcess[str]:
    env = environment(threads)
    return subprocess.run([sys.executable, *command], cwd=ROOT, env=env, capture_output=True, text=True, timeout=280)


def train(*options: str, threads: str = "1") -> subprocess.CompletedProcess[str]:
    return run("examples/train_mlp.py", *options, threads=threads)


def final_accuracy(done: subprocess.CompletedProcess[str]) -> float:
    assert done.returncode == 0, done.stderr
    match = re.fullmatch(r"test accuracy: (\d\.\d{4})", done.stdout.splitlines()[-1])
    assert match, done.stdout
    return float(match[1])


def assert_one_sentence(done: subprocess.CompletedProcess[str], *fragments: str) -> None:
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert all(fragment in last for fragment in fragments), done.stderr


# train_mlp.py


def test_the_digits_are_learned_with_every_seed() -> None:
    """The floor is what was promised: 97.5 % on the mean of five seeds, none below 96 %."""
    with ThreadPoolExecutor(2) as pool:
        accuracies = list(pool.map(lambda seed: final_accuracy(train("--quiet", "--seed", str(seed))), range(5)))
    assert np.mean(accuracies) >= 0.975
    assert min(accuracies) >= 0.96


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    first, again, other = (train(*QUICK, "--seed", seed).stdout for seed in ("1", "1", "2"))
    assert first == again
    assert first != other
    assert train(*QUICK, "--seed", "1", threads="2").stdout == first


def test_what_is_printed_and_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "run.png"
    done = train(*QUICK, "--plot", str(picture))
    assert final_accuracy(done) > 0.5
    names = [line.split()[:2] for line in done.stdout.splitlines()]
    assert names == [
        ["after", "activation"], ["embed", names[1][1]], ["blocks.0", names[2][1]], ["blocks.1", names[3][1]],
        ["norm", names[4][1]], ["head", names[5][1]], ["test", "accuracy:"],
    ]  # fmt: skip
    assert "loss=" in done.stderr
    assert "accuracy=" in done.stderr  # the progress bar
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert train(*QUICK, "--quiet").stderr == ""


@pytest.mark.parametrize(("norm", "optimizer"), [("rms", "sgd"), ("layer", "adam"), ("none", "adamw")])
def test_every_norm_and_every_optimizer_learns(norm: str, optimizer: str) -> None:
    assert final_accuracy(train(*QUICK, "--quiet", "--norm", norm, "--optimizer", optimizer)) > 0.5


def test_a_run_that_diverges_ends_in_one_sentence() -> None:
    """As the docstring says. Its step is the guard's to tell, and NumPy need not warn of an overflow before."""
    done = train("--norm", "none", "--lr", "0.1", "--depth", "24")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert "Warning" not in done.stderr
    assert re.search(r"\bstep \d+\b", done.stderr.splitlines()[-1])


def test_mnist_files(tmp_path: Path) -> None:
    """Four small files in MNIST's format: class c lights up row c of the image."""
    rng = np.random.default_rng(0)
    for split, n in (("train", 400), ("t10k", 60)):
        labels = rng.integers(0, 10, n).astype(np.uint8)
        images = rng.integers(0, 100, (n, 28, 28)).astype(np.uint8)
        images[np.arange(n), labels] = 255
        header = b"\0\0\x08\x03" + struct.pack(">3I", n, 28, 28)
        (tmp_path / f"{split}-images-idx3-ubyte").write_bytes(header + images.tobytes())
        (tmp_path / f"{split}-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01" + struct.pack(">I", n) + labels.tobytes())
    assert final_accuracy(train(*QUICK, "--quiet", "--data", str(tmp_path))) > 0.9


def test_wrong_options_end_in_one_sentence(tmp_path: Path) -> None:
    assert_one_sentence(train("--data", str(tmp_path)), str(tmp_path), "train-images-idx3-ubyte")
    assert_one_sentence(train("--data", str(tmp_path / "nowhere")), "nowhere is not there")
    assert_one_sentence(train("--data", ""), "train-images-idx3-ubyte")
    (tmp_path / "folder.png").mkdir()
    assert_one_sentence(train("--plot", str(tmp_path / "folder.png")), "folder.png", "cannot be written")
    assert_one_sentence(train("--plot", str(tmp_path / "no" / "x.png")), "no directory", "x.png")
    assert_one_sentence(train("--plot", "x.docx"), "'x.docx'", "png")
    assert_one_sentence(train("--lr", "-1"), "lr", ">= 0")
    for option, bad in (
        ("--epochs", "0"),
        ("--batch-size", "0"),
        ("--width", "-3"),
        ("--depth", "x"),
        ("--seed", "-1"),
    ):
        assert_one_sentence(train(option, bad), option, f"not '{bad}'")


@pytest.mark.parametrize(
    ("missing", "options", "fragments"),
    [
        ("sklearn", [], ["sklearn", "tinynorm[examples]"]),
        ("tqdm", [], ["tqdm", "tinynorm[examples]"]),
        ("matplotlib", ["--plot", "x.png"], ["matplotlib", "tinynorm[examples]"]),
        ("cupy", ["--device", "cuda"], ["'cuda'", "CuPy", "tinynorm[cuda13]"]),
    ],
)
def test_what_is_not_installed_is_named(missing: str, options: list[str], fragments: list[str]) -> None:
    script = (
        f"import runpy, sys; sys.modules[{missing!r}] = None; sys.path.insert(0, 'examples'); "
        f"sys.argv = ['train_mlp.py', *{options!r}]; runpy.run_path('examples/train_mlp.py', run_name='__main__')"
    )
    assert_one_sentence(run("-c", script), *fragments)


def test_mnist_files_without_images(tmp_path: Path) -> None:
    for split in ("train", "t10k"):
        (tmp_path / f"{split}-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03" + struct.pack(">3I", 0, 28, 28))
        (tmp_path / f"{split}-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01" + struct.pack(">I", 0))
    assert_one_sentence(train("--data", str(tmp_path)), "no images")


@pytest.mark.skipif(sys.platform == "win32", reason="sends a POSIX signal")
def test_ctrl_c_ends_without_a_traceback() -> None:
    command = [sys.executable, "examples/train_mlp.py", "--epochs", "1000"]
    # What a shell runs in the background ignores the signal, and so does all that it starts. Not here.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        assert process.stderr is not None
        while "step/s" not in process.stderr.read(1) + process.stderr.readline(100):  # training has begun
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in err
    assert err.rstrip().endswith("interrupted")
    assert "test accuracy" not in out


# deep_stack.py


def test_the_deep_stack_tells_its_story(tmp_path: Path) -> None:
    """At its defaults, every prediction that the text makes is one that the numbers bear out."""
    picture = tmp_path / "stack.png"
    done = run("examples/deep_stack.py", "--plot", str(picture))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for name in ("no norm", "LayerNorm pre", "LayerNorm post", "RMSNorm pre", "RMSNorm post"):
        assert sum(line.startswith(name) for line in lines) == 1
    assert sum(line.startswith("holds") for line in lines) >= 10
    assert not [line for line in lines if line.startswith("FAILS")]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_deep_stack_claim_that_does_not_hold_is_marked() -> None:
    """With two narrow blocks and one step, nothing can have been learned."""
    done = run("examples/deep_stack.py", "--depth", "2", "--width", "4", "--steps", "1", "--quiet")
    assert done.returncode == 0, done.stderr
    assert any(line.startswith("FAILS") and "training works" in line for line in done.stdout.splitlines())


def test_the_deep_stack_shows_every_layer_when_asked() -> None:
    """Block 0 is the embedding: the same numbers in all five stacks at the start, since their weights are the same."""
    done = run("examples/deep_stack.py", "--depth", "3", "--width", "8", "--steps", "2", "--quiet", "--layers")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line[:1].isdigit()]
    assert [row[0] for row in rows] == ["0", "1", "2", "3"] * 2
    assert all(len(row) == 11 for row in rows)
    assert len(set(rows[0][1:6])) == 1
    assert len({*rows[3][1:6]}) > 1
