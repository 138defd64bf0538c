"""Which array module an array belongs to, and how arrays move between host and device.

The backend is a property of each array, never of the process: NumPy arrays live on the device "cpu", CuPy arrays on
"cuda:0", "cuda:1" and so on. CuPy is imported only when a device is asked for by name.

A copy from a device to the host waits until the device has done all that it was asked to do. So the library makes none
but those that are asked for: by ``.numpy()``, ``.item()``, ``.to("cpu")`` and ``state_dict()``, by ``float(t)``,
``bool(t)`` and whatever else makes a number or text of a Tensor, and by a mask on the device as an index.
"""

import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np

from .errors import DeviceError, DTypeError, TinynormError
from .failures import SEEN_AS, reraise
from .formulas.types import Array, Namespace

CPU = "cpu"
HERE: AbstractContextManager[Any] = nullcontext()  # the host has one device
NO_DEVICE = 100  #: cudaErrorNoDevice
OLD_DRIVER = (35, 803, 804)  #: cudaErrorInsufficientDriver, ...SystemDriverMismatch, ...CompatNotSupportedOnDevice
DLPACK_CPU, DLPACK_CUDA = 1, 2  #: DLPack's numbers for kinds of devices


def is_device_array(value: Any) -> bool:
    """Whether the value is a CuPy array. CuPy is not imported for the question: an array of it proves it is there."""
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(value, cupy.ndarray)


def is_array(value: Any) -> bool:
    """Whether the value is an array of a known module (NumPy scalars count as scalars)."""
    return isinstance(value, np.ndarray) or is_device_array(value)


def as_array(value: Any) -> Array:
    """The value as an array: NumPy's reductions give scalars where CuPy's give 0-d arrays."""
    return value if is_array(value) else np.asarray(value)


def namespace(value: Any) -> Namespace:
    """The array module of one array or scalar."""
    return sys.modules["cupy"] if is_device_array(value) else np


def common_namespace(name: str, values: tuple[Any, ...], argument: Callable[[int], str] | None = None) -> Namespace:
    """The one array module of an operation's operands; scalars and None go with either.

    `argument` says what an operand is called. Raises `DeviceError` when host and device arrays meet.
    """
    if "cupy" not in sys.modules:
        return np
    arrays = [v for v in values if is_array(v)]
    devices = {device_of(a) for a in arrays}
    if len(devices) > 1:
        operands = " and ".join(
            f"{argument(i) if argument else f'operand {i}'}: {a.dtype}{list(a.shape)} on {device_of(a)!r}"
            for i, a in enumerate(values)
            if is_array(a)
        )
        there = max(devices)
        raise DeviceError(
            f"{name}: the operands live on different devices ({operands}); "
            f'bring them together first, for example with .to("{there}"), '
            f'or arrays and lists with tn.as_tensor(..., device="{there}")'
        )
    return namespace(arrays[0]) if arrays else np


def is_writeable(array: Array) -> bool:
    """Whether each element can be written to. NumPy knows; CuPy would write to one that stands for several as well."""
    if is_device_array(array):
        apart = all(stride or n == 1 for n, stride in zip(array.shape, array.strides, strict=True))
        return apart or array.size == 0
    return bool(array.flags.writeable)


def device_of(array: Array) -> str:
    """The name of the array's device: "cpu", or "cuda:N"."""
    return f"cuda:{array.device.id}" if is_device_array(array) else CPU


def to_device(array: Array, device: str) -> Array:
    """The array on the device; the same object when it is there already."""
    index = _device_index(device)
    if index is None:
        if not is_device_array(array):
            return array
        with on_device_of(array, f"a copy of {array.dtype}{list(array.shape)} to the host"):
            return sys.modules["cupy"].asnumpy(array)
    cupy = _cupy(device)
    if index >= (found := cupy.cuda.runtime.getDeviceCount()):
        raise DeviceError(f"device {device!r} is not there: this machine has {found}, numbered from 0")
    if array.dtype.char == "g":
        raise DTypeError(f"device {device!r} has no {array.dtype}; convert it first, with .astype(np.float64)")
    with _on(index, f"a copy of {array.dtype}{list(array.shape)} to {device!r}"):
        if is_device_array(array) and array.device.id != index:
            return cupy.asarray(array, order="A")  # without gaps, as CuPy copies from device to device
        return cupy.asarray(array)


def from_dlpack(value: Any) -> Array:
    """An array that shares the memory of another library's, on its device."""
    if not (hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__")):
        raise DTypeError(f"from_dlpack: {type(value).__name__} has no __dlpack__; as_tensor takes lists and numbers")
    try:
        kind, number = value.__dlpack_device__()
        if kind not in (DLPACK_CPU, DLPACK_CUDA):
            raise DeviceError(f"from_dlpack: the array lies on DLPack's device {kind}; move it to the host or a GPU")
        if kind == DLPACK_CPU:
            return np.from_dlpack(value)
        cupy = _cupy(f"cuda:{number}")
        with _on(number, "from_dlpack"):
            return cupy.from_dlpack(value)
    except TinynormError:
        raise
    except (BufferError, RuntimeError, TypeError, ValueError) as error:  # the other library's own refusals
        raise DTypeError(f"from_dlpack: {type(value).__name__} cannot be shared: {error}") from error


def device_count() -> int:
    """How many GPUs there are. Where there is none, `DeviceError` says what is missing."""
    return int(_cupy("cuda").cuda.runtime.getDeviceCount())


def why_no_device() -> str | None:
    """Why nothing can run on a GPU here; None where it can. A module that stands in for CuPy counts."""
    try:
        to_device(np.zeros(()), "cuda")
    except DeviceError as error:
        return str(error)
    return None


def _device_index(device: str) -> int | None:
    """None for "cpu", N for "cuda:N", 0 for "cuda"."""
    if device == CPU:
        return None
    kind, _, number = device.partition(":") if isinstance(device, str) else ("", "", "")
    if kind != "cuda" or not (number.isdecimal() or device == "cuda"):
        raise DeviceError(f'unknown device {device!r}: write "cpu", "cuda" or "cuda:N" (for dtypes there is astype)')
    return int(number or 0)


def _cupy(device: str) -> Any:
    try:
        import cupy
    except ImportError as error:
        raise DeviceError(
            f"device {device!r} needs CuPy, which is not installed: pip install 'tinynorm[cuda13]' (or [cuda12])"
        ) from error
    if cupy.cuda.runtime.driverGetVersion() == 0:
        raise DeviceError(
            f"device {device!r} is not there: CuPy is installed, but no CUDA driver; install the one for your GPU from "
            'NVIDIA, or use device="cpu"'
        )
    try:
        found = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        if error.status in OLD_DRIVER:
            raise DeviceError(
                f"device {device!r} is not there: CuPy cannot work with the CUDA driver ({error}); install a newer "
                "driver, or CuPy for an older CUDA"
            ) from error
        if error.status != NO_DEVICE:
            reraise("a look for devices", device, error)
        found = 0
    if found == 0:
        raise DeviceError(f'device {device!r} is not there: the CUDA driver finds no GPU; use device="cpu"')
    return cupy


def copy(array: Array) -> Array:
    """A copy in C order, on the same device."""
    with on_device_of(array, "a copy"):
        return namespace(array).array(array, order="C")


def on_device_of(array: Array, doing: str = "a computation") -> AbstractContextManager[Any]:
    """CuPy computes on the current device: inside, it is the array's. Nothing to do on the host.

    A device that fails inside raises `DeviceError`, which says that it failed at `doing`.
    """
    if type(array) is np.ndarray or not is_device_array(array):
        return HERE
    return _on(array.device.id, doing)


@contextmanager
def _on(index: int, doing: str) -> Iterator[None]:
    """A device is the current one inside, and its failures are the library's own errors."""
    try:
        with sys.modules["cupy"].cuda.Device(index):
            yield
    except SEEN_AS as error:
        reraise(doing, f"cuda:{index}", error)


def fingerprint(array: Array) -> int | None:
    """A checksum of the array's contents: equal contents give equal numbers, any small change another one.

    None for what is on a device: to look at it would mean to copy it to the host, and to wait for the device.
    """
    if is_device_array(array):
        return None
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
