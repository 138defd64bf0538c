"""What the documents say in code is true: Python blocks run, quoted formulas are the source's, links lead somewhere."""

import ast
import inspect
import re
from pathlib import Path

import pytest
import strict_cupy

from tinynorm.formulas import norms

ROOT = Path(__file__).parents[1]


def python_blocks(document: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / document).read_text(encoding="utf-8"), re.M | re.S)


def test_code_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "readme"}
    blocks = python_blocks("README.md")
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, "README.md", "exec"), namespace)
    namespace["test_l2_norm"]()  # type: ignore[operator]


def test_code_for_a_device_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    strict_cupy.install(monkeypatch)
    (block,) = python_blocks("docs/gpu.md")
    namespace: dict[str, object] = {}
    exec(compile(block, "docs/gpu.md", "exec"), namespace)
    assert namespace["y"].device == "cuda:1"  # type: ignore[attr-defined]


def bare(source: str) -> str:
    """A function's text without its type annotations and formatting."""
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    function.returns = None
    for argument in [*function.args.args, *function.args.kwonlyargs]:
        argument.annotation = None
    return ast.unparse(function)


def test_readme_quotes_the_source() -> None:
    (block,) = [b for b in python_blocks("README.md") if "def rms_norm" in b]
    quoted = [ast.unparse(f) for f in ast.parse(block).body]
    assert quoted == [bare(inspect.getsource(f)) for f in (norms.rms_norm, norms.rms_norm_backward)]


@pytest.mark.parametrize(
    "document",
    [
        "README.md",
        "docs/design.md",
        "docs/performance.md",
        "docs/parallel.md",
        "docs/gpu.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
    ],
)
def test_local_links_lead_somewhere(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if not link.startswith("http")]
    missing = [link for link in links if not (ROOT / document).parent.joinpath(link).exists()]
    assert missing == []
