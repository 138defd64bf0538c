"""The words that every formula's signature uses."""

from typing import Any

Namespace = Any  #: an array module: NumPy, CuPy, or whatever offers the same functions
Array = Any  #: an array of that module, or a Python scalar where one can broadcast
Forward = tuple[Array, Any]  #: the result, and the cache that the backward gets
Needs = tuple[bool, ...]  #: for each input, whether its gradient is wanted
