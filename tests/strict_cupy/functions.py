"""The module's functions: NumPy's, held to CuPy's keywords and to its arrays; and those that lead in and out."""

import numpy as np

from . import dlpack, table
from .device import Memory
from .ndarray import NO_CONVERSION, arrays_in, bare, bare_or_number, call, ndarray, supported, wrap
from .selection import ASKED, COUNTED, MADE, ONE_ARRAY, SEQUENCES, TWO_ARRAYS, VIEWS


def functions(machine):
    """All that are in `selection`, by name, for a machine."""
    return {
        **{name: _of_arrays(machine, name) for name in ONE_ARRAY},
        **{name: _of_numbers(machine, name) for name in MADE},
        **{name: _of_metadata(name) for name in ASKED},
        **_own(machine),
    }


def norm(machine):
    """The one function of ``cupy.linalg``."""
    return _of_arrays(machine, "norm", np.linalg.norm)


def _of_arrays(machine, name, numpy_function=None):
    spelled, numpy_function = table.read()["functions"][name], numpy_function or getattr(np, name)

    def function(*args, **kwargs):
        given = table.hold(name, spelled, args, kwargs).args
        _check_operands(name, given)
        if name in COUNTED or (name == "where" and len(given) == 1):
            given[0]._fetch(f"the count of {name}")
        result = call(machine, numpy_function, args, kwargs, view=name in VIEWS)
        return _poisoned(result) if name == "empty_like" else result

    return function


def _check_operands(name, given):
    """CuPy's functions call a method of their first argument, or declare their first ones as device arrays."""
    operands = given[: 2 if name in TWO_ARRAYS else 1]
    if name in SEQUENCES and not isinstance(given[0], ndarray):
        operands = given[0]
    by_method = name not in TWO_ARRAYS and (hasattr(ndarray, name) or name == "where")
    for value in operands:
        if isinstance(value, ndarray):
            continue
        if by_method and not isinstance(value, np.ndarray):
            raise AttributeError(f"{type(value).__name__!r} object has no attribute {name!r}")
        raise TypeError(f"cupy.{name} takes device arrays, not {type(value)}")


def _of_numbers(machine, name):
    spelled, numpy_function = table.read()["functions"][name], getattr(np, name)

    def function(*args, **kwargs):
        table.hold(name, spelled, args, kwargs)
        machine.launch()
        result = wrap(machine, numpy_function(*args, **kwargs))  # a device array has no __index__: it is no length
        return _poisoned(result) if name == "empty" else result

    return function


def _poisoned(array):
    """Memory that nobody has written to. What is computed from it shall be seen to be wrong."""
    kind = array.dtype.kind
    array._host[...] = True if kind == "b" else np.iinfo(array.dtype).max if kind in "iu" else np.nan
    return array


def _of_metadata(name):
    return lambda *args, **kwargs: getattr(np, name)(*map(bare, args), **kwargs)


def _own(machine):
    """The functions that are not NumPy's, or do not take what NumPy's take."""

    def array(obj, dtype=None, copy=True, order="K", subok=False, ndmin=0, *, blocking=False):
        return _array(machine, obj, dtype, order, ndmin, copy=copy)

    def asarray(a, dtype=None, order=None, *, copy=None, blocking=False):
        return _array(machine, a, dtype, order or "K", 0, copy=copy)

    def asnumpy(a, stream=None, order="C", out=None, *, blocking=True):
        return a.get(stream, order, out, blocking) if isinstance(a, ndarray) else np.asarray(a, order=order)

    def byte_bounds(a):
        return np.lib.array_utils.byte_bounds(bare(a))

    def clip(a, a_min, a_max, out=None):
        _check_operands("clip", (a,))
        return a.clip(a_min, a_max, out)

    def copy(a, order="K"):
        _check_operands("copy", (a,))
        return a.copy(order)

    def copyto(dst, src, casting="same_kind", where=None):
        machine.launch([*arrays_in([dst, src, where])])
        mask = True if where is None else bare(where)
        with np.errstate(all="ignore"):
            np.copyto(dst._host, bare_or_number(src, "copyto"), casting, mask)

    def einsum(*operands, **kwargs):
        if not kwargs.keys() <= {"dtype", "optimize"}:
            raise TypeError(f"Did not understand the following kwargs: {list(kwargs)}")
        return call(machine, np.einsum, operands, kwargs)

    def from_dlpack(array, *, device=None, copy=None):
        host = dlpack.host_of(array)
        with machine.module.cuda.Device(array.__dlpack_device__()[1]):
            return ndarray(host, Memory(machine))

    def full(shape, fill_value, dtype=None, order="C"):
        machine.launch([*arrays_in([fill_value])])
        return wrap(machine, np.full(shape, bare_or_number(fill_value, "copyto"), dtype, order))

    def get_array_module(*args):
        return machine.module if any(isinstance(a, ndarray) for a in args) else np

    return {
        "array": array, "asarray": asarray, "asnumpy": asnumpy, "byte_bounds": byte_bounds, "clip": clip, "copy": copy,
        "copyto": copyto, "einsum": einsum, "from_dlpack": from_dlpack, "full": full,
        "get_array_module": get_array_module,
    }  # fmt: skip


def _array(machine, obj, dtype, order, ndmin, copy):
    """The way in. Host arrays, numbers and lists are always copied; device arrays come over from other devices."""
    dtype = dtype if dtype is None else supported(dtype)
    if not any(True for _ in arrays_in([obj])):
        return _from_host(machine, obj, dtype, order, ndmin)
    if not isinstance(obj, ndarray):
        obj, copy = _joined(machine, obj), False
    if obj.device != machine.device():
        obj, copy = obj.copy(order), False
    result = obj.astype(dtype or obj.dtype, order, copy=bool(copy))
    return result if result.ndim >= ndmin else result.reshape((1,) * (ndmin - result.ndim) + result.shape)


def _joined(machine, parts):
    """What device arrays in nested lists make up; nothing else may be among them."""
    arrays = [_joined(machine, part) if isinstance(part, (list, tuple)) else part for part in parts]
    if not all(isinstance(array, ndarray) for array in arrays):
        raise TypeError(NO_CONVERSION)
    return machine.module.stack(arrays)


def _from_host(machine, obj, dtype, order, ndmin):
    host = np.array(obj, dtype=dtype, order=order, ndmin=ndmin)
    host = host.astype(host.dtype.newbyteorder("="), copy=False)
    supported(host.dtype)
    machine.copied(machine.to_device, f"{type(obj).__name__}, {host.dtype}{list(host.shape)}")
    return wrap(machine, host)
