"""The words that every formula's signature uses."""

from typing import Any

Namespace = Any  #: an array module: NumPy, CuPy, or whatever offers the same functions
Array = Any  #: an array of that module, or a Python scalar where one can broadcast
Forward = tuple[Array, Any]  #: the result, and the cache that the backward gets
Shape = tuple[int, ...]
Axes = tuple[int, ...]
Axis = int | Axes | None  #: what a reduction goes over: one axis, several, or all
Needs = tuple[bool, ...]  #: for each input, whether its gradient is wanted
