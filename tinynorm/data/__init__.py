"""Data: mini-batches, and the files that MNIST comes in."""

from .batching import batches
from .idx import mnist, read_idx

__all__ = ["batches", "mnist", "read_idx"]
