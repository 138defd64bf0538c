"""What a test may ask of the machine: counts of what was called, the order of threads, and failures on demand."""

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

ORDERS = ("forward", "reversed", "shuffled")

ILLEGAL_ADDRESS = 700  #: CUDA's number of that error


class _Controls(ctypes.Structure):
    """Controls in ``machine/machine.h``."""

    _fields_ = tuple(
        (name, ctypes.c_int64)
        for name in (
            *("launches", "copies_to_host", "copies_to_device"),
            *("allocations_until_failure", "launches_until_failure", "launch_error", "order"),
        )
    )


_controls: Any = None


def connect(driver: ctypes.CDLL) -> None:
    global _controls
    _controls = _Controls.in_dll(driver, "controls")


@dataclass
class Counts:
    """How often something was called while a block of :func:`counted` ran."""

    launches: int = 0
    copies_to_host: int = 0
    copies_to_device: int = 0


@contextlib.contextmanager
def counted() -> Iterator[Counts]:
    """Counts launches and copies in its block: ``with counted() as counts: ...``; then ``counts.copies_to_host``."""
    names = tuple(Counts.__dataclass_fields__)
    before = [getattr(_controls, name) for name in names]
    counts = Counts()
    try:
        yield counts
    finally:
        for name, start in zip(names, before, strict=True):
            setattr(counts, name, getattr(_controls, name) - start)


@contextlib.contextmanager
def _set(**values: int) -> Iterator[None]:
    before = {name: getattr(_controls, name) for name in values}
    for name, value in values.items():
        setattr(_controls, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(_controls, name, value)


def order(name: str) -> contextlib.AbstractContextManager[None]:
    """In its block, threads and blocks of threads run in this order: one of :data:`ORDERS`."""
    return _set(order=ORDERS.index(name))


def out_of_memory(after: int = 0) -> contextlib.AbstractContextManager[None]:
    """In its block, memory is full after so many more arrays."""
    return _set(allocations_until_failure=after)


def failing_launch(after: int = 0, error: int = ILLEGAL_ADDRESS) -> contextlib.AbstractContextManager[None]:
    """In its block, launches fail after so many more, with this number of CUDA's."""
    return _set(launches_until_failure=after, launch_error=error)


def in_every_order(compute: Callable[[], Any]) -> list[np.ndarray]:
    """The arrays that a function returns, which must be the same to the last bit in every order of the threads.

    Raises:
        AssertionError: If an order changes them: threads then read what others may not have written yet.
    """
    import cupy

    first: list[np.ndarray] = []
    for name in ORDERS:
        with order(name):
            results = compute()
        results = results if isinstance(results, tuple | list) else (results,)
        arrays = [cupy.asnumpy(result) for result in results if result is not None]
        first = first or arrays
        for number, (one, other) in enumerate(zip(first, arrays, strict=True)):
            if one.tobytes() != other.tobytes():
                raise AssertionError(
                    f"result {number} depends on the order of the threads: {ORDERS[0]} and {name} differ"
                )
    return first
