"""What goes wrong on a device, as errors of the library's own: it runs out of memory, or it or a library is gone."""

import re
import sys
from typing import NoReturn

from .errors import DeviceError, OutOfMemoryError, TinynormError

NO_MEMORY = {"CUDARuntimeError": 2, "CUDADriverError": 2, "CUBLASError": 3}
"""CuPy's errors for what a device could not do, by name, since a release may move them; and which status of each means
that there was no memory: cudaErrorMemoryAllocation, CUDA_ERROR_OUT_OF_MEMORY, CUBLAS_STATUS_ALLOC_FAILED."""

NOT_FOUND = "DynamicLibNotFoundError"  #: CuPy's error, or the cause of its ImportError, for a library that is missing
SEEN_AS = (ImportError, MemoryError, RuntimeError)  #: what all of these are


def device_failure(doing: str, device: str, error: BaseException) -> DeviceError | None:
    """The error as one that says what was being done, and where; None for an error of any other kind."""
    kind = type(error).__name__
    if NOT_FOUND in (kind, type(error.__cause__).__name__):
        return DeviceError(
            f"{doing}: CuPy finds one of CUDA's libraries neither beside it nor on the system; "
            f"pip install 'tinynorm[cuda13]' (or [cuda12]) brings all of them. CuPy says: {error}"
        )
    if isinstance(error, TinynormError) or not (kind in NO_MEMORY or kind == "OutOfMemoryError"):
        return None
    if kind not in NO_MEMORY or getattr(error, "status", None) == NO_MEMORY[kind]:
        return OutOfMemoryError(
            f"{doing}: {device!r} is out of memory: {_asked(error)}{_free(device)}. Take smaller batches and add up "
            f"their gradients, or drop what still holds arrays there. CuPy says: {error}"
        )
    return DeviceError(
        f"{doing}: {device!r} failed. What lies there is lost to this process; start it again, from its last "
        f"checkpoint. CuPy says: {error}"
    )


def reraise(doing: str, device: str, error: BaseException) -> NoReturn:
    """Raise an error that was caught: as one that says what was being done, if a device failed."""
    failure = device_failure(doing, device, error)
    if failure is None:
        raise error
    raise failure from error


def _asked(error: BaseException) -> str:
    """How much was asked for, which CuPy has in its message where its own memory pool did the asking."""
    found = re.search(r"allocating ([\d,]+) bytes", str(error))
    return f"asked for {readable(int(found[1].replace(',', '')))}, " if found else ""


def _free(device: str) -> str:
    """How much is free on the device, and in all."""
    cupy = sys.modules["cupy"]
    try:
        with cupy.cuda.Device(int(device.partition(":")[2] or 0)):  # "cuda" is "cuda:0"
            free, total = cupy.cuda.runtime.memGetInfo()
    except RuntimeError as error:  # a device in such a state may refuse this, too
        return f"how much is free it does not tell ({error})"
    return f"{readable(free)} of {readable(total)} are free"


def readable(size: int) -> str:
    """A number of bytes as people write it.

    >>> [readable(n) for n in (100, 1536, 5 << 30)]
    ['100 bytes', '1.5 KiB', '5.0 GiB']
    """
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << power:
            return f"{size / (1 << power):.1f} {unit}"
    return f"{size} bytes"
