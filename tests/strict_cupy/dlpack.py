"""Arrays that go to other libraries, and come from them, with their memory, by DLPack."""

import ctypes

import numpy as np

CPU, CUDA = 1, 2  #: DLPack's numbers for kinds of devices

_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def marked(capsule, kind, number):
    """A capsule whose memory is said to be on another device than it was. Nobody but the stand-in looks into it then.

    A capsule holds a struct that begins with the pointer to the memory, the kind of device and its number.
    """
    device = _pointer(capsule, b"dltensor") + ctypes.sizeof(ctypes.c_void_p)
    (ctypes.c_int32 * 2).from_address(device)[:] = kind, number
    return capsule


class _OnHost:
    """An array that says of its memory what is the case."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **_):
        return marked(self._array.__dlpack__(), CPU, 0)

    def __dlpack_device__(self):
        return CPU, 0


def host_of(array):
    """The memory of an array that says to be on a device, for NumPy. Raises TypeError if it does not."""
    if array.__dlpack_device__()[0] != CUDA:
        raise TypeError(
            "CPU arrays cannot be directly imported to CuPy. Use `cupy.array(numpy.from_dlpack(input))` instead."
        )
    return np.from_dlpack(_OnHost(array))
