"""Which tier runs when."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

THREE = "def test_any(cupy): pass\ndef test_quick(quick_cupy): pass\ndef test_kernel(cuda_kernels): pass\n"


@pytest.fixture
def collected(tmp_path):
    """Runs pytest with the project's own settings and this folder's conftest on three tests; its output."""
    conftest = Path(__file__).with_name("conftest.py").read_text(encoding="utf-8")
    (tmp_path / "conftest.py").write_text(conftest, encoding="utf-8")
    (tmp_path / "setup.cfg").write_text((ROOT / "setup.cfg").read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "test_three.py").write_text(THREE)

    def run(*arguments, rc=0):
        environment = {k: v for k, v in os.environ.items() if k != "PYTEST_ADDOPTS"}
        environment["PYTHONPATH"] = os.pathsep.join(sys.path)  # which has the packages that the conftest imports
        command = [sys.executable, "-m", "pytest", "-q", "--collect-only", *arguments, "test_three.py"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, timeout=120)
        assert done.returncode == rc, done.stdout + done.stderr
        return sorted(re.findall(r"::(\S+)", done.stdout)) if rc == 0 else done.stderr

    return run


def test_the_plain_run_takes_the_stand_in(collected):
    assert collected() == ["test_any[strict]", "test_quick[strict]"]


def test_a_marker_takes_its_tier_and_nothing_else(collected):
    assert collected("-m", "gpu") == ["test_any[gpu]", "test_kernel[gpu]", "test_quick[gpu]"]
    orders = [f"test_kernel[cupy_on_cpu-{order}]" for order in ("forward", "reversed", "shuffled")]
    assert collected("-m", "cupy_on_cpu") == ["test_any[cupy_on_cpu]", *orders]


def test_both_at_once_are_refused_with_the_two_commands(collected):
    message = collected("-m", "", rc=pytest.ExitCode.USAGE_ERROR)
    assert re.search("run pytest -m cupy_on_cpu, and then pytest -m gpu", message)
