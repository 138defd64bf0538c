"""Checkpoints: a nested state in one file, which is written whole or not at all.

Reading order: nesting (a state as a description and arrays), tensors and npz (both in a file's bytes), atomic (bytes on
the disk), files (save and load).
"""

from .files import load, save

__all__ = ["load", "save"]
