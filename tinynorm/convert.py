"""What may become a Tensor's array, and in which dtype."""

import operator
from typing import Any

import numpy as np

from .backend import is_array
from .errors import DTypeError, ShapeError
from .formulas.types import Array


def real_dtype(name: str, dtype: Any) -> np.dtype[Any]:
    """The dtype in native byte order, if a Tensor can have it: floats, integers and bools."""
    try:
        found = np.dtype(dtype)
    except TypeError as error:
        raise DTypeError(f"{name}: {dtype!r} is no dtype") from error
    if found.kind not in "fiub":
        hint = "; complex arrays can go into the formulas directly" if found.kind == "c" else ""
        raise DTypeError(f"{name}: tensors hold floats, integers and bools, not {found}{hint}")
    native: np.dtype[Any] = found.newbyteorder("=")
    return native


def real_array(name: str, data: Any, dtype: Any = None) -> Array:
    """The data as an array of a dtype that a Tensor can have; the same object where nothing needs to change.

    Arrays and NumPy scalars keep their dtype; Python floats, and lists of whatever floats, become float32.
    """
    if is_array(data):
        array = data
    else:
        try:
            array = np.asarray(data)
        except ValueError as error:
            raise ShapeError(f"{name}: nested lists must be of equal length ({error})") from error
        if array.dtype == np.float64 and isinstance(data, (float, list, tuple)) and not isinstance(data, np.generic):
            array = array.astype(np.float32)
    own = real_dtype(name, array.dtype)
    return array.astype(own if dtype is None else real_dtype(name, dtype), copy=False)


def sizes(name: str, arguments: tuple[Any, ...]) -> tuple[int, ...]:
    """(2, 3) from either f(2, 3) or f((2, 3))."""
    one = len(arguments) == 1 and not hasattr(arguments[0], "__index__")
    try:
        return tuple(operator.index(n) for n in (arguments[0] if one else arguments))
    except TypeError as error:
        raise DTypeError(f"{name}: expects integers, got {arguments[0] if one else arguments!r}") from error
