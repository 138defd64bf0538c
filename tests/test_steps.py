"""The six steps of docs/engine.md: each runs, is short, and its own checks find a fault in its derivatives."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

STEPS = sorted((Path(__file__).parents[1] / "examples" / "steps").glob("step*.py"))
FAULTS = {
    "step1_scalar": ("(other.value, self.value)", "(self.value, other.value)"),
    "step2_tape": ("n * self.value ** (n - 1)", "self.value ** (n - 1)"),
    "step3_arrays": ("(dy @ b.T, a.T @ dy)", "(dy @ b.T, 2.0 * a.T @ dy)"),
    "step4_pairs": ("r * (dh - h * xp.mean(dh * h, axis=-1, keepdims=True))", "r * dh"),
    "step5_training": ("        self.writes += 1\n", ""),
    "step6_any_order": ("r * (dh - h * xp.mean(dh * h, axis=-1, keepdims=True))", "r * dh"),
}


def run(script: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(folder)}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    command = [sys.executable, "-W", "error", str(script)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def test_there_are_six() -> None:
    assert [step.stem for step in STEPS] == list(FAULTS)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.stem)
def test_a_step_runs_and_finds_a_fault(step: Path, tmp_path: Path) -> None:
    text = step.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    done = run(step, step.parent)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    right, wrong = FAULTS[step.stem]
    assert text.count(right) == 1
    planted = tmp_path / step.name
    planted.write_text(text.replace(right, wrong), encoding="utf-8")
    assert "AssertionError" in run(planted, step.parent).stderr
