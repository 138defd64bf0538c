"""Checking gradients by number. `property_test` and `strategies` need hypothesis, the rest nothing but NumPy."""

from typing import Any

from . import values
from .gradcheck import Report, derivative, examine, gradcheck, gradgradcheck
from .hunt import hunt
from .mutants import mutants
from .numeric import central_difference, complex_step
from .properties import property_test

__all__ = [
    "central_difference", "complex_step", "derivative", "examine", "gradcheck", "gradgradcheck", "hunt", "mutants",
    "property_test", "Report", "values",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """`strategies` is imported when it is asked for, and hypothesis with it."""
    if name == "strategies":
        from importlib import import_module

        return import_module(".strategies", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
