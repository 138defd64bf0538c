"""The worked example, as a script and as a page: its numbers are those worked out elsewhere, and the same in both."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = "examples/worked_example.py"

# Worked out without this library. The last digit is rounded.
ROOTS = [1.870831, 1.369310], [1.581142, 1.346295]
H = (
    [[1.069043, -0.534522, 0.0, 1.603565], [0.365147, 1.095442, -1.460590, 0.730295]],
    [[0.632454, -1.264909, -0.632454, 1.264909], [0.185695, 0.928474, -1.671253, 0.557084]],
)


def run(*options: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, SCRIPT, *options]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, encoding="utf-8", timeout=60)


def columns(text: str, step: str) -> list[list[list[float]]]:
    """What the table shows of a step: the rows of RMSNorm's column, if there are any, and of LayerNorm's."""
    lines = text.splitlines()
    (start,) = [i for i, line in enumerate(lines) if line[:18].rstrip() == step]
    rows = [[line[18:66].split(), line[66:].split()] for line in lines[start : start + 2]]
    return [[[float(cell) for cell in row[side]] for row in rows] for side in (0, 1)]


def test_the_numbers_and_the_picture(tmp_path: Path) -> None:
    picture = tmp_path / "two.png"
    done = run("--plot", str(picture))
    assert done.returncode == 0, done.stderr
    text = done.stdout
    assert "\033" not in text
    assert columns(text, "mean of x") == [[[], []], [[1.0], [0.25]]]
    assert columns(text, "mean square") == [[[3.5], [1.875]], [[2.5], [1.8125]]]
    assert columns(text, "√(· + ε)") == [[[root] for root in roots] for roots in ROOTS]
    assert columns(text, "h: divided by it") == list(H)
    assert "RMS 3.535534" in text
    assert re.search(r"^RMSNorm +0\.848528 +1\.131371 ", text, re.M)  # 3 and 4 times √2 / 5
    assert re.search(r"^LayerNorm +-1\.000000 +1\.000000 ", text, re.M)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_projection_by_plain_sums(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    script = run_here(monkeypatch, capsys)
    z = columns(script["text"], "z = W y + b")
    for side, h in enumerate(H):
        for token, output in np.ndindex(2, 3):
            terms = [script["WEIGHT"][output][j] * script["GAIN"][j] * h[token][j] for j in range(4)]
            assert z[side][token][output] == pytest.approx(sum(terms) + script["BIAS"][output], abs=5e-6)
    differences = re.findall(r"the same z; largest difference (\S+)", script["text"])
    assert len(differences) == 2
    assert max(map(float, differences)) < 1e-14


def run_here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool = False
) -> dict[str, Any]:
    """The script's names after it has run in this process, and as "text" what it printed."""
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.setattr(sys, "argv", [SCRIPT])
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    names = runpy.run_path(str(ROOT / SCRIPT), run_name="__main__")
    return {**names, "text": capsys.readouterr().out}


def test_colour_is_for_terminals_and_only_where_it_is_wanted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    plain = run_here(monkeypatch, capsys)["text"]
    coloured = run_here(monkeypatch, capsys, terminal=True)["text"]
    assert "\033" not in plain
    assert coloured.count("\033[34m") == coloured.count("\033[33m") == 19  # the heading, and 2 tokens in 9 steps
    without = re.sub(r"\033\[\d*m", "", coloured)
    assert [line.rstrip() for line in without.splitlines()] == [line.rstrip() for line in plain.splitlines()]
    monkeypatch.setenv("NO_COLOR", "1")
    assert run_here(monkeypatch, capsys, terminal=True)["text"] == plain


def test_what_cannot_be_drawn_is_one_sentence(tmp_path: Path) -> None:
    done = run("--plot", str(tmp_path / "no" / "x.png"))
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert "there is no directory" in done.stderr.splitlines()[-1]


def test_the_page_tells_the_same_numbers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """All of the page's code but the drawing."""
    script = run_here(monkeypatch, capsys)
    text = (ROOT / "docs/worked-example.md").read_text(encoding="utf-8")
    cells = re.findall(r"^```\{code-cell\}\n(?:---\n.*?^---\n|(?::.*\n)*)(.*?)^```", text, re.M | re.S)
    page: dict[str, Any] = {}
    with np.printoptions():  # which the page changes
        for cell in cells:
            if "matplotlib" not in cell:
                exec(compile(cell, "worked-example.md", "exec"), page)
    *_, last = script["steps"]()
    for name, right in (("X", script["X"]), ("z", last.rms), ("z_layer", last.layer)):
        np.testing.assert_array_equal(page[name], right)
    np.testing.assert_array_equal(np.round(page["h"], 6), H[0])
    np.testing.assert_array_equal(np.round(page["h_layer"], 6), H[1])
