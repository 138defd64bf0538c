"""What a kernel is given, held against what its signature declares.

A device takes the bytes that it is given: an ``int64`` where a kernel declares ``int`` leaves it with half a number,
and an argument too few with whatever stood there. Nothing there says so. Here a launch with such arguments is refused.
"""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np


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
        ("waits", ctypes.c_bool),
        ("strict", ctypes.c_bool),
    )


def check(function: int, arguments: tuple[Any, ...], device_of: Any, device: int) -> None:
    """Raise :class:`ArgumentError` unless the arguments fit the kernel at this address, and be strict on its barriers.

    CuPy's own kernels do not come here: some of their threads end before a barrier, as hardware allows.
    """
    kernel = _Kernel.from_address(function)
    name = kernel.name.decode()
    kernel.strict = True
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

    real = cupy.RawKernel

    def launch(kernel: Any, grid: Any, block: Any, args: Any, **options: Any) -> None:
        check(kernel.kernel.ptr, tuple(args), device_of, cupy.cuda.runtime.getDevice())
        real.__call__(kernel, grid, block, args, **options)

    class RawKernel(real):  # type: ignore[misc]
        __call__ = launch

    class RawModule(cupy.RawModule):  # type: ignore[misc]
        def get_function(self, name: str) -> "_Function":
            return _Function(super().get_function(name), launch)

    return RawKernel, RawModule


class _Function:
    """A kernel of a module: CuPy's own object, but for what happens when it is called."""

    def __init__(self, kernel: Any, launch: Callable[..., None]) -> None:
        self.__dict__.update(_kernel=kernel, _launch=launch)

    def __call__(self, grid: Any, block: Any, args: Any, **options: Any) -> None:
        self._launch(self._kernel, grid, block, args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._kernel, name, value)
