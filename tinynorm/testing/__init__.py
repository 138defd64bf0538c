"""Checking gradients by number. Nothing here needs more than NumPy."""

from .gradcheck import gradcheck
from .numeric import central_difference, complex_step

__all__ = ["central_difference", "complex_step", "gradcheck"]
