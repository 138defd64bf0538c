"""What may become a Tensor's array, and in which dtype."""

import operator
from typing import Any

import numpy as np

from .backend import as_array, is_array, is_device_array
from .errors import ArgumentError, DeviceError, DTypeError, ShapeError
from .formulas.types import Array, Namespace


def real_dtype(name: str, dtype: Any) -> np.dtype[Any]:
    """The dtype in native byte order, if a Tensor can have it: floats, integers and bools.

    It is the one object that NumPy's own results have, since dtypes are compared by `is`. Others, which are equal to
    it, come out of `newbyteorder` and of pickle.
    """
    try:
        found = np.dtype(dtype)
    except TypeError as error:
        raise DTypeError(f"{name}: {dtype!r} is no dtype") from error
    if found.kind not in "fiub":
        hint = "; complex arrays can go into the formulas directly" if found.kind == "c" else ""
        raise DTypeError(f"{name}: tensors hold floats, integers and bools, not {found}{hint}")
    native: np.dtype[Any] = np.dtype(found.char)
    return native


def real_array(name: str, data: Any, dtype: Any = None) -> Array:
    """The data as an array of a dtype that a Tensor can have; the same object where nothing needs to change.

    An array whose dtype is equal to NumPy's own, but another object, is looked at through a view.

    Arrays and NumPy scalars keep their dtype; Python floats, and lists of whatever floats, become float32.
    """
    array = _plain(name, data) if is_array(data) else _from_python(name, data, dtype)
    own = real_dtype(name, array.dtype)
    wanted = own if dtype is None else real_dtype(name, dtype)
    array = array.astype(wanted, copy=False)
    return array if array.dtype is wanted else array.view(wanted)


def _plain(name: str, array: Array) -> Array:
    """The array without what a subclass of NumPy's would make of its operators."""
    if isinstance(array, np.ma.MaskedArray):
        raise DTypeError(f"{name}: masked arrays are not supported; fill the mask first, with .filled(value)")
    return array.view(np.ndarray) if isinstance(array, np.ndarray) and type(array) is not np.ndarray else array


def computed(name: str, what: str, value: Any, xp: Namespace) -> Array:
    """What a formula returned, if it is an array of real numbers of the module that it was given, or can become one."""
    try:
        array = as_array(value)
    except ValueError as error:
        raise ArgumentError(f"{name}: {what} is no array ({error})") from error
    if array.dtype.kind not in "fiub":
        raise DTypeError(f"{name}: {what} must be an array of real numbers, not {type(value).__name__} {array.dtype}")
    if xp is not np and not is_device_array(array):
        raise DeviceError(
            f"{name}: {what} is on the host, but the inputs are on a device; compute it with xp's functions, not np's"
        )
    return array


def _from_python(name: str, data: Any, dtype: Any) -> Array:
    try:
        array = np.asarray(data)
        if dtype is not None and array.dtype.kind in "iub":
            return np.asarray(data, real_dtype(name, dtype))  # unlike astype, refuses 300 as a uint8
    except ValueError as error:
        raise ShapeError(f"{name}: nested lists must be of equal length ({error})") from error
    except TypeError as error:  # such as CuPy and PyTorch raise for what is on a device
        raise DTypeError(
            f"{name}: no array of the host can be made of this {type(data).__name__} ({error}); what is on a device "
            "comes in as one array, of CuPy's or by tn.from_dlpack"
        ) from error
    except OverflowError as error:
        raise ArgumentError(f"{name}: the numbers do not fit {np.dtype(dtype)} ({error})") from error
    if array.dtype.kind not in "fiub":
        raise DTypeError(f"{name}: tensors hold floats, integers and bools, not {type(data).__name__} ({array.dtype})")
    listed = isinstance(data, (float, list, tuple)) and not isinstance(data, np.generic)
    return array.astype(np.float32) if listed and dtype is None and array.dtype == np.float64 else array


def sizes(name: str, arguments: tuple[Any, ...]) -> tuple[int, ...]:
    """(2, 3) from either f(2, 3) or f((2, 3))."""
    given = arguments
    if len(arguments) == 1 and type(arguments[0]) is not int:
        given = arguments[0] if getattr(arguments[0], "shape", None) != () else arguments
    if type(given) is tuple and {*map(type, given)} == {int}:
        return given
    try:
        if any(isinstance(n, (bool, np.bool_)) for n in given):
            raise TypeError("a bool is no size")
        return tuple(operator.index(n) for n in given)
    except TypeError as error:
        raise DTypeError(f"{name}: expects integers, got {given!r}") from error
