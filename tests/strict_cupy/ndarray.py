"""The array: NumPy's inside, CuPy's refusals around it; and `call`, through which all work on arrays goes."""

import sys

import numpy as np

from . import dlpack, table
from .device import Device, Memory
from .selection import METHODS, VIEW_METHODS

DTYPES = "?bBhHiIlLqQefdFD"  #: the characters of the dtypes that CuPy has
NO_CONVERSION = (
    "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct a NumPy array explicitly."
)

OPERATORS = {
    "add": "add", "and": "bitwise_and", "divmod": "divmod", "floordiv": "floor_divide", "lshift": "left_shift",
    "mod": "remainder", "mul": "multiply", "or": "bitwise_or", "pow": "power", "rshift": "right_shift",
    "sub": "subtract", "truediv": "true_divide", "xor": "bitwise_xor",
}  # fmt: skip
COMPARISONS = {
    "eq": "equal", "ge": "greater_equal", "gt": "greater", "le": "less_equal", "lt": "less", "ne": "not_equal",
}  # fmt: skip
UNARY = {"abs": "absolute", "invert": "invert", "neg": "negative", "pos": "positive"}


def supported(dtype):
    """The dtype, if CuPy has it: no longdouble, no objects, no text, no swapped bytes. Otherwise a ValueError."""
    dtype = np.dtype(dtype)
    if dtype.char not in DTYPES:
        raise ValueError(f"Unsupported dtype {dtype}")
    if not dtype.isnative:
        raise ValueError(f"Unsupported dtype {dtype.str} with big-endian byte-order")
    return dtype


def arrays_in(values):
    """The device arrays among some values, also those in lists and tuples."""
    for value in values:
        if isinstance(value, ndarray):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from arrays_in(value)


def bare(value):
    """What NumPy computes with in a device array's place. A TypeError for an array of the host, also without axes."""
    if isinstance(value, ndarray):
        return value._host
    if isinstance(value, np.ndarray):
        raise TypeError(f"Unsupported type {type(value)}")
    return type(value)(map(bare, value)) if type(value) in (list, tuple) else value


def bare_or_number(value, purpose):
    """As `bare`, for what is written: a host array without axes is the number in it, one with axes a ValueError."""
    if not isinstance(value, (np.ndarray, list, tuple)):
        return bare(value)
    if np.ndim(value):
        raise ValueError(f"non-scalar numpy.ndarray cannot be used for {purpose}")
    return np.asarray(value)[()]


def call(machine, function, args, kwargs, view=False):
    """The result of a NumPy function, as if a device had computed it.

    `view` is for functions that are no work where their result shares memory with an argument. No warning: a device
    has none.
    """
    operands = [*arrays_in(args), *arrays_in(kwargs.values())]
    if not view:
        machine.launch(operands)
    with np.errstate(all="ignore"):
        result = function(*map(bare, args), **{name: bare(value) for name, value in kwargs.items()})
    return wrap(machine, result, operands, view)


def wrap(machine, result, operands=(), view=False):
    """NumPy's result as CuPy's.

    Numbers become arrays without axes. What shares memory with an operand lies where that one lies; the rest is new, on
    the current device.
    """
    if isinstance(result, (list, tuple)):
        parts = (wrap(machine, part, operands, view) for part in result)
        return list(parts) if isinstance(result, list) else tuple(parts)
    if not isinstance(result, (np.ndarray, np.generic, bool, int, float)):
        return result
    for operand in operands:
        if result is operand._host:
            return operand
        if np.may_share_memory(result, operand._host) or (view and not result.size):
            return ndarray(result, operand._memory, operand if operand.base is None else operand.base)
    if view:  # it could not be one
        machine.launch(operands)
    host = np.asarray(result)
    supported(host.dtype)
    return ndarray(host, Memory(machine, host.nbytes))


def may_take_over(other):
    """Whether the other operand is of a class, a Tensor for example, that has operators of its own."""
    return not isinstance(other, ndarray) and getattr(other, "__array_ufunc__", NotImplemented) is None


class Flags:
    """Where the numbers lie. There is no `writeable`: a device's memory knows no such thing."""

    def __init__(self, host, owndata):
        self.c_contiguous, self.f_contiguous = host.flags.c_contiguous, host.flags.f_contiguous
        self.forc, self.fnc, self.owndata = host.flags.forc, host.flags.fnc, owndata

    def __getitem__(self, name):
        return getattr(self, name.lower())


class ndarray:
    """An array on a device. The module's functions make them; the class itself is for `isinstance`."""

    __slots__ = ("_host", "_memory", "base")
    __module__ = "cupy"
    __array_ufunc__ = None  # NumPy's ufuncs refuse the array, and leave operators to it
    __hash__ = None

    def __init__(self, host, memory=None, base=None):
        if memory is None:
            raise TypeError("the stand-in for CuPy makes arrays by cupy.empty, not by cupy.ndarray")
        self._host, self._memory, self.base = host, memory, base

    _machine = property(lambda self: self._memory.machine)

    device = property(lambda self: Device(self._machine, self._memory.device))
    dtype = property(lambda self: self._host.dtype)
    flags = property(lambda self: Flags(self._host, self.base is None))
    imag = property(lambda self: self._machine.module.imag(self))
    itemsize = property(lambda self: self._host.itemsize)
    mT = property(lambda self: self.swapaxes(-1, -2))
    nbytes = property(lambda self: self._host.nbytes)
    ndim = property(lambda self: self._host.ndim)
    real = property(lambda self: self._machine.module.real(self))
    shape = property(lambda self: self._host.shape)
    size = property(lambda self: self._host.size)
    strides = property(lambda self: self._host.strides)
    T = property(lambda self: self.transpose())

    # To the host: every way notes that it was taken.

    def _fetch(self, what):
        """The numbers on the host, after a line in `Machine.to_host`."""
        self._machine.copied(self._machine.to_host, f"{what} of {self.dtype}{list(self.shape)}")
        return self._host

    def get(self, stream=None, order="C", out=None, blocking=True):
        host = self._fetch("get")
        if out is None:
            return np.array(host, order=order)
        out[...] = host
        return out

    def item(self):
        if self.size != 1:
            raise ValueError("can only convert an array of size 1 to a Python scalar")
        return self._fetch("item").item()

    def tobytes(self, order="C"):
        return self._fetch("tobytes").tobytes(order)

    def tolist(self):
        return self._fetch("tolist").tolist()

    def _number(self, kind):
        if self.ndim:
            raise TypeError("only 0-dimensional arrays can be converted to Python scalars")
        return kind(self._fetch(kind.__name__))

    def __complex__(self):
        return self._number(complex)

    def __float__(self):
        return self._number(float)

    def __int__(self):
        return self._number(int)

    def __bool__(self):
        if self.size > 1:
            raise ValueError(
                "The truth value of an array with more than one element is ambiguous. Use a.any() or a.all()"
            )
        return self.size == 1 and bool(self._fetch("bool").item())

    def __format__(self, spec):
        return format(self._fetch("format")[()], spec)

    def __repr__(self):
        return repr(self._fetch("repr"))

    def __str__(self):
        return str(self._fetch("str"))

    def __array__(self, *_, **__):
        raise TypeError(NO_CONVERSION)

    def __array_function__(self, function, *_):
        raise TypeError(f"numpy.{function.__name__} of an array that is on a device: take the function of its module")

    # Copies

    def astype(self, dtype, order="K", casting=None, subok=None, copy=True):
        dtype = supported(dtype)
        if not copy and dtype == self.dtype:
            return self
        self._machine.launch([self])
        # A nan has no integer, and a device gives some number for it without a word.
        with np.errstate(all="ignore", invalid="raise" if dtype.kind in "iu" else "ignore"):
            return wrap(self._machine, self._host.astype(dtype, order, casting or "unsafe"))

    def copy(self, order="C"):
        """A copy on the current device, from whichever: all else that is done to an array must be done on its own."""
        flags = self._host.flags
        if order == "K" and self.device != self._machine.device() and not (flags.c_contiguous or flags.f_contiguous):
            raise NotImplementedError("CuPy cannot copy non-contiguous array between devices.")
        self._machine.launch()
        return wrap(self._machine, self._host.copy(order))

    def __copy__(self):
        return self.copy()

    def __deepcopy__(self, _):
        with self.device:
            return self.copy()

    def __reduce__(self):
        return _from_host, (self.get(),)

    # Parts, and what is put into them

    def __len__(self):
        if not self.ndim:
            raise TypeError("len() of unsized object")
        return len(self._host)

    def __iter__(self):
        if not self.ndim:
            raise TypeError("iteration over a 0-d array")
        return (self[i] for i in range(len(self)))

    def _index(self, index):
        """An index for NumPy, and the arrays in it as NumPy's: none if it chooses a view.

        An array of the host or a list is copied to the device; one of a device must be on this one.
        """
        parts = index if isinstance(index, tuple) else (index,)
        for part in parts:
            if isinstance(part, (np.ndarray, list)):
                self._machine.copied(self._machine.to_device, f"an index, {type(part).__name__}")
        chosen = [p for p in parts if isinstance(p, (ndarray, np.ndarray, list))]
        if chosen:
            self._machine.launch([self, *arrays_in(chosen)])
        bared = tuple(p._host if isinstance(p, ndarray) else p for p in parts)
        if not any(p is Ellipsis for p in bared):
            bared = (*bared, ...)  # without it, NumPy takes one element out as a scalar
        return bared, [np.asarray(p._host if isinstance(p, ndarray) else p) for p in chosen]

    def __getitem__(self, index):
        bared, chosen = self._index(index)
        if _has_mask(chosen):
            self._fetch("the count of a mask")
        return wrap(self._machine, self._host[bared], () if chosen else [self], view=not chosen)

    def __setitem__(self, index, value):
        bared, chosen = self._index(index)
        self._machine.launch([self, *arrays_in([value])])
        if chosen and isinstance(value, ndarray) and value.ndim:
            if _has_mask(chosen):
                self._fetch("the count of a mask")
            places = np.arange(self.size).reshape(self.shape)[bared]
            if np.unique(places).size < places.size:
                raise ValueError("an element is written to twice; a device leaves it open which value stays")
        with np.errstate(all="ignore"):
            self._host[bared] = bare_or_number(value, "fill")

    def fill(self, value):
        self[...] = value

    def clip(self, min=None, max=None, out=None):
        if any(array.dtype.kind == "c" for array in arrays_in([self, min, max])):
            raise TypeError("complex numbers have no order to clip them by")
        return call(self._machine, np.ndarray.clip, (self, min, max), {"out": out})

    # Operators of their own kind, and other libraries

    def __matmul__(self, other):
        return NotImplemented if may_take_over(other) else self._machine.module.matmul(self, other)

    def __rmatmul__(self, other):
        return self._machine.module.matmul(other, self)

    def __dlpack_device__(self):
        return dlpack.CUDA, self._memory.device

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError("the stand-in for CuPy only shares an array's memory, where it is")
        return dlpack.marked(self._host.__dlpack__(), *self.__dlpack_device__())


def _has_mask(chosen):
    return any(part.dtype.kind == "b" and part.ndim for part in chosen)


def _from_host(host):
    """An unpickled array: on the device that is the current one then."""
    return sys.modules["cupy"].asarray(host)


# The operators and methods that differ by a name only


def _binary(function):
    """An operator, the same with its operands exchanged, and in place."""

    def forward(self, other):
        return NotImplemented if may_take_over(other) else getattr(self._machine.module, function)(self, other)

    def reflected(self, other):
        return getattr(self._machine.module, function)(other, self)

    def in_place(self, other):
        return getattr(self._machine.module, function)(self, other, self)

    return forward, reflected, in_place


def _unary(function):
    return lambda self: getattr(self._machine.module, function)(self)


def _method(name):
    spelled, function, view = table.read()["methods"][name], getattr(np.ndarray, name), name in VIEW_METHODS

    def method(self, *args, **kwargs):
        table.hold(f"ndarray.{name}", spelled, args, kwargs)
        return call(self._machine, function, (self, *args), kwargs, view)

    return method


for _symbol, _function in OPERATORS.items():
    _forward, _reflected, _in_place = _binary(_function)
    setattr(ndarray, f"__{_symbol}__", _forward)
    setattr(ndarray, f"__r{_symbol}__", _reflected)
    if _symbol != "divmod":
        setattr(ndarray, f"__i{_symbol}__", _in_place)
for _symbol, _function in COMPARISONS.items():
    setattr(ndarray, f"__{_symbol}__", _binary(_function)[0])
for _symbol, _function in UNARY.items():
    setattr(ndarray, f"__{_symbol}__", _unary(_function))
for _name in METHODS:
    setattr(ndarray, _name, _method(_name))
