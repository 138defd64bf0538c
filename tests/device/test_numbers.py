"""The tests of numbers, whose right values come from elsewhere, once more with everything on CuPy.

They are the host's own: values, kinks, hard rows, reported traps. Whatever array comes into the library there is moved
to the device first, and what a test looks at is a copy on the host.
"""

import sys
from importlib import import_module

import pytest

import tinynorm as tn
from tinynorm import Tensor
from tinynorm.backend import CPU, is_array, to_device
from tinynorm.convert import real_array

FILES = ("values", "gradients", "norms", "norm_variants", "norm_accuracy", "accuracy", "traps_autodiff", "traps_layers",
         "traps_backend")  # fmt: skip

LEFT_OUT = {
    # test_operations.py has the same calls
    "promises_in_these_settings", "promises_in_random_settings", "a_call_records_the_op_that_it_is_named_after",
    "nothing_is_recorded_under_no_grad",
    # the stand-in's own tests compare all pairs of dtypes with the real package
    "dtypes_of_pairs", "a_gradient_has_its_tensors_dtype",
    # they name the host, and measure its memory
    "the_training_loop_reports_the_mean_over_examples", "a_norm_keeps_nothing_under_no_grad",
}  # fmt: skip
"""Tests that say nothing new here."""

FIXTURE = type(pytest.fixture(lambda: None))


def names_of(file):
    """The tests and fixtures of a file, each test under a name that says which."""
    for name, value in vars(import_module(f"test_{file}")).items():
        if isinstance(value, FIXTURE):
            yield name, value
        elif name.startswith("test_") and name.removeprefix("test_") not in LEFT_OUT:
            yield f"test_{file}: {name.removeprefix('test_').replace('_', ' ')}", value


for _file in FILES:
    globals().update(names_of(_file))


@pytest.fixture(autouse=True)
def everything_on_the_device(request, quick_cupy, monkeypatch):
    """The one door that arrays come in by, and the two that they leave by; layers stay where their arrays are."""
    if request.node.name.endswith("int 2-bool]"):
        pytest.skip("bool ** 2 is int64 in CuPy and int8 in NumPy")
    if "where the mean overflows" in request.node.name and hasattr(quick_cupy, "RawModule"):
        pytest.skip("CuPy compiles such that subnormal float32 count as 0")
    monkeypatch.setattr(sys.modules["tinynorm.tensor"], "real_array", moved)
    for name in ("data", "grad"):
        monkeypatch.setattr(Tensor, name, seen_from_the_host(getattr(Tensor, name)))
    monkeypatch.setattr(Tensor, "_move", lambda self, *_: None)


def moved(*arguments):
    return to_device(real_array(*arguments), "cuda")


def seen_from_the_host(attribute):
    def get(self):
        array = attribute.fget(self)
        return array if array is None else to_device(array, CPU)

    def put(self, value):
        attribute.fset(self, to_device(value, self.device) if is_array(value) else value)

    return property(get, put)


def test_everything_is_there():
    for t in (tn.tensor([1.0]), tn.as_tensor([1.0]), tn.exp([1.0]), tn.nn.Linear(2, 2).weight, tn.nn.RMSNorm(2).weight):
        assert t.device == "cuda:0"
