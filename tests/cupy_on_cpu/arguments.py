"""What a kernel is given, held against what its signature declares.

A device takes the bytes that it is given: an ``int64`` where a kernel declares ``int`` leaves it with half a number, and a
number too few with whatever stood there. Nothing on a device says so. Here a launch with such arguments is refused.
"""

import ctypes
from typing import Any

import numpy as np

MAX_PARAMETERS = 256


class ArgumentError(TypeError):
    """An argument that is not what the kernel declares."""


class _Parameter(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_char), ("size", ctypes.c_uint), ("element", ctypes.c_uint))


class _Kernel(ctypes.Structure):
    """The beginning of Kernel in ``include/kernel.h``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("thread", ctypes.c_void_p),
        ("count", ctypes.c_uint),
        ("parameter", ctypes.POINTER(_Parameter)),
    )


def check(function: int, arguments: tuple[Any, ...], device_of: Any, device: int) -> None:
    """Raise :class:`ArgumentError` unless the arguments fit the kernel at this address."""
    kernel = _Kernel.from_address(function)
    name = kernel.name.decode()
    if len(arguments) != kernel.count:
        raise ArgumentError(f"{name} declares {kernel.count} parameters and was given {len(arguments)} arguments")
    for number, argument in enumerate(arguments):
        wrong = _wrong(kernel.parameter[number], argument, device_of, device)
        if wrong:
            raise ArgumentError(f"{name}, argument {number}: {wrong}")


def _wrong(parameter: _Parameter, argument: Any, device_of: Any, device: int) -> str | None:
    import cupy

    kind, size = parameter.kind.decode(), parameter.size
    if isinstance(argument, cupy.ndarray):
        if kind != "P":
            return "an array where the kernel declares a number"
        if parameter.element and argument.size and parameter.element % argument.dtype.itemsize:
            return f"an array of {argument.dtype} where the kernel declares elements of {parameter.element} bytes"
        if argument.size and device_of(argument.data.ptr) != device:
            return f"an array on device {device_of(argument.data.ptr)} in a launch on device {device}"
        return None
    if argument is None or not isinstance(argument, bool | int | float | complex | np.generic):
        return None  # CuPy itself says what it does not take; None is the null pointer
    given = np.asarray(argument).dtype
    if given.itemsize != size:
        return f"a {given} of {given.itemsize} bytes where the kernel declares {size} bytes"
    if kind in "fi" and (given.kind == "f") != (kind == "f"):
        return f"a {given} where the kernel declares {'a floating-point number' if kind == 'f' else 'an integer'}"
    return None


def checked(cupy: Any, device_of: Any) -> tuple[type, type]:
    """``RawKernel`` and ``RawModule`` of CuPy, whose launches are checked first."""

    class RawKernel(cupy.RawKernel):  # type: ignore[misc]
        def __call__(self, grid: Any, block: Any, args: Any, **options: Any) -> None:
            check(self.kernel.ptr, tuple(args), device_of, cupy.cuda.runtime.getDevice())
            super().__call__(grid, block, args, **options)

    class RawModule(cupy.RawModule):  # type: ignore[misc]
        def get_function(self, name: str) -> "_Launched":
            return _Launched(super().get_function(name), cupy, device_of)

    return RawKernel, RawModule


class _Launched:
    """A kernel of a module: all that CuPy's own object has, and the check before it is called."""

    def __init__(self, kernel: Any, cupy: Any, device_of: Any) -> None:
        self._kernel, self._cupy, self._device_of = kernel, cupy, device_of

    def __call__(self, grid: Any, block: Any, args: Any, **options: Any) -> None:
        check(self._kernel.kernel.ptr, tuple(args), self._device_of, self._cupy.cuda.runtime.getDevice())
        self._kernel(grid, block, args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
        else:
            setattr(self._kernel, name, value)
