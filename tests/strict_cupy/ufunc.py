"""Universal functions: NumPy's, with CuPy's keywords, loops and methods, which are fewer."""

from functools import cache

import numpy as np

from . import table
from .ndarray import arrays_in, bare, call, ndarray
from .selection import REDUCED, WRITTEN_AT


@cache
def _loops(name):
    """The dtypes of the inputs and outputs of each loop that CuPy has, from such as ``ee->e ff->f``."""
    types = table.read()["ufuncs"][name]["types"]
    return [tuple(np.dtype(c) for c in loop.replace("->", "")) for loop in types.split()]


class ufunc:
    """As ``cupy.ufunc``."""

    def __init__(self, machine, name):
        entry = table.read()["ufuncs"][name]
        self.name, self.nin, self.nout, self.types = entry["name"], entry["nin"], entry["nout"], entry["types"].split()
        self._machine, self._numpy, self._loops = machine, getattr(np, name), _loops(name)

    def __repr__(self):
        return f"<ufunc {self.name!r}>"

    def __call__(self, *args, **kwargs):
        if not self.nin <= len(args) <= self.nin + self.nout:
            raise TypeError(f"Wrong number of arguments for {self.name!r}: {len(args)}")
        if not kwargs.keys() <= {"casting", "dtype", "out"}:
            raise TypeError(f"Wrong arguments {kwargs}")
        args, out = args[: self.nin], args[self.nin :] or kwargs.pop("out", None)
        for value in args:
            if not isinstance(value, (ndarray, np.generic, int, float, complex)):
                raise TypeError(f"Unsupported type {type(value)}")
        self._check_loop(args, kwargs.get("dtype"))
        # Results are in C order, in whichever order the operands are.
        return call(self._machine, self._numpy, args, {**kwargs, **self._outputs(out), "order": "C"})

    def _outputs(self, out):
        """The keyword `out` as NumPy takes it: a tuple, or left out."""
        outputs = out if isinstance(out, tuple) else (out,)
        for array in outputs:
            if not isinstance(array, (ndarray, type(None))):
                raise TypeError(f"Unsupported type {type(array)}")
        return {} if outputs[0] is None else {"out": outputs}

    def _check_loop(self, args, dtype):
        """CuPy must have the loop that NumPy would take, or one for wider operands with the same result."""
        given = [np.dtype(bool) if isinstance(a, bool) else getattr(a, "dtype", type(a)) for a in args]
        asked = {} if dtype is None else {"signature": (*[None] * self.nin, *[np.dtype(dtype)] * self.nout)}
        wanted = self._numpy.resolve_dtypes((*given, *[None] * self.nout), **asked)
        inputs, outputs = wanted[: self.nin], wanted[self.nin :]
        if dtype is None:  # numbers of Python's have no dtype before the loop is chosen
            inputs = [new if isinstance(old, type) else old for old, new in zip(given, inputs, strict=True)]
        for loop in self._loops:
            if loop[self.nin :] == outputs and all(map(np.can_cast, inputs, loop)):
                return
        raise TypeError(f"Wrong type ({given}) of arguments for {self.name}")

    def _refuse(self, method):
        raise NotImplementedError(f"`{self.name}.{method}` is not supported yet")

    def at(self, a, indices, b=None):
        if self._numpy.__name__ not in WRITTEN_AT:
            self._refuse("at")
        if a.dtype.char not in WRITTEN_AT[self._numpy.__name__]:
            raise TypeError(f"{self.name}.at does not write to {a.dtype}")
        index, _ = a._index(indices)
        self._machine.launch([a, *arrays_in([b])])
        self._numpy.at(a._host, index, bare(b))

    def accumulate(self, array, axis=0, dtype=None, out=None):
        if self._numpy.__name__ not in REDUCED:
            self._refuse("accumulate")
        return call(self._machine, self._numpy.accumulate, (array,), {"axis": axis, "dtype": dtype, "out": out})

    def outer(self, A, B, **kwargs):
        return call(self._machine, self._numpy.outer, (A, B), kwargs)

    def reduce(self, array, axis=0, dtype=None, out=None, keepdims=False):
        if self._numpy.__name__ not in REDUCED:
            self._refuse("reduce")
        kwargs = {"axis": axis, "dtype": dtype, "out": out, "keepdims": keepdims}
        return call(self._machine, self._numpy.reduce, (array,), kwargs)
