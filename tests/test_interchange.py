"""Weights by name to PyTorch and back. The PyTorch module is the one that stands in docs/checkpoints.md.

A tolerance of 1e-5 for outputs of size 1: float32 has 6e-8, and each sum here has at most 64 terms, in another order.
"""

import re
from pathlib import Path

import numpy as np
import pytest

import tinynorm as tn

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[conformance]'")
theirs = pytest.importorskip("safetensors.torch", reason="needs pip install -e '.[safetensors]'")

PAGE = Path(__file__).parents[1] / "docs" / "checkpoints.md"


def module_of_the_page():
    """The class PreNormMLP, from the text that readers copy."""
    (text,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    namespace = {"__name__": "page"}
    exec(compile(text, str(PAGE), "exec"), namespace)
    return namespace["PreNormMLP"]


def mlp(module, norm):
    return lambda: module(in_features=6, width=16, depth=2, out_features=3, norm=norm)


PAIRS = {
    "Linear": (lambda: tn.nn.Linear(6, 4), lambda: torch.nn.Linear(6, 4)),
    "Linear without bias": (lambda: tn.nn.Linear(6, 4, bias=False), lambda: torch.nn.Linear(6, 4, bias=False)),
    "RMSNorm": (lambda: tn.nn.RMSNorm(6), lambda: torch.nn.RMSNorm(6, eps=1e-5)),
    "LayerNorm": (lambda: tn.nn.LayerNorm(6), lambda: torch.nn.LayerNorm(6)),
    "PreNormMLP with RMSNorm": (mlp(tn.nn.PreNormMLP, "rms"), mlp(module_of_the_page(), "rms")),
    "PreNormMLP with LayerNorm": (mlp(tn.nn.PreNormMLP, "layer"), mlp(module_of_the_page(), "layer")),
}


def randomized(state, rng):
    """Weights of which none is what it was at the start: a norm's are ones there, which would hide a wrong name."""
    return {name: rng.standard_normal(value.shape, np.float32) / 4 for name, value in state.items()}


def same_outputs(ours, other, rng):
    x = rng.standard_normal((5, 6), np.float32)
    with torch.no_grad():
        expected = other(torch.tensor(x)).numpy()
    np.testing.assert_allclose(ours(x).numpy(), expected, rtol=1e-5, atol=1e-5)
    assert np.ptp(expected) > 0.1


@pytest.mark.parametrize("name", PAIRS)
def test_a_model_saved_here_loads_in_pytorch_by_name(name, tmp_path):
    rng = np.random.default_rng(0)
    ours, other = (make() for make in PAIRS[name])
    ours.load_state_dict(randomized(ours.state_dict(), rng))
    tn.save(ours.state_dict(), tmp_path / "m.safetensors")
    other.load_state_dict(theirs.load_file(tmp_path / "m.safetensors"), strict=True)
    same_outputs(ours, other, rng)


@pytest.mark.parametrize("name", PAIRS)
def test_a_model_saved_in_pytorch_loads_here_by_name(name, tmp_path):
    rng = np.random.default_rng(1)
    ours, other = (make() for make in PAIRS[name])
    weights = randomized(other.state_dict(), rng)
    other.load_state_dict({key: torch.tensor(value) for key, value in weights.items()})
    theirs.save_file(other.state_dict(), tmp_path / "m.safetensors")
    ours.load_state_dict(tn.load(tmp_path / "m.safetensors"))
    same_outputs(ours, other, rng)


def test_bfloat16_goes_both_ways(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="needs pip install -e '.[safetensors]'")
    path = tmp_path / "half.safetensors"
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    theirs.save_file({"x": every}, path)
    found = tn.load(path)["x"]
    assert found.dtype == ml_dtypes.bfloat16
    assert found.view(np.uint16).tolist() == list(range(1 << 16))
    tn.save({"x": found}, path)
    assert torch.equal(theirs.load_file(path)["x"].view(torch.int16), every.view(torch.int16))
