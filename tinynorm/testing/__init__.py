"""Checking gradients by number. `property_test` and `strategies` need hypothesis, the rest nothing but NumPy.

Three things, each built on the one before it. A function's gradients against numbers: `gradcheck`. All that an
operation promises, over random shapes: `property_test`. Whether that would find a fault: `mutants`, `hunt`, and
``python -m tinynorm check``.

Reading order: numeric, subject, comparison, examine, higher, gradcheck; values, choices, cases, verify, strategies,
properties, plugin; rewriting, faults, mutants, hunt, check, command.
"""

from typing import Any

from . import values
from .examine import Report, examine
from .gradcheck import gradcheck, gradgradcheck
from .higher import derivative
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
