"""A strict stand-in for CuPy, for tests on machines without a GPU: NumPy inside, CuPy's refusals around it.

What CuPy refuses is refused here, with the same type of error, and what it lacks is missing. What CuPy does in silence
although it is hardly ever meant is an error here: to write into what `broadcast_to` made, an index out of range, an
element written to twice by ``a[i] = v``, a host array in a function of CuPy's, a device array in one of NumPy's, a nan
turned into an integer, work on a device that is not the current one. What `empty` makes is full of nan. `expressions`
lists all this line by line, and ``tests/test_strict_cupy.py`` runs the lines, on the real package too where there is
one. Names, keywords and loops are in ``table.json``, which `generate` writes from the real package.

Nothing is compiled (there is no RawModule, no ElementwiseKernel), so all goes by formulas; and there are no random
numbers, no sorting, no streams.

For one test, with pytest's `monkeypatch`::

    import strict_cupy  # tests/ is on the path in pytest

    cupy = strict_cupy.install(monkeypatch)  # two devices with nothing on them; imported as cupy until the test is over
    machine = cupy.machine

    x = tn.tensor([1.0, 2.0], device="cuda:1")
    machine.to_host.clear()
    y = x * 2.0
    assert machine.to_host == []  # otherwise a line for each copy: what it was, and where in the code

    machine.fail_allocation(3)  # the third array from here on raises cupy.cuda.memory.OutOfMemoryError
    machine.fail_launch(5)  # the fifth kernel raises CUDARuntimeError, and so does all that follows,
    machine.recover()  # until the test wants to see what is left

`machine` has `to_device` too, counts `launches` and `allocations`, and knows how many bytes each device holds (`used`)
and has held at most (`peak`). ``install(monkeypatch, devices=0)`` is a machine with a driver and no GPU, ``driver=0``
one without a driver, ``driver=12080`` one whose driver is too old, ``memory=2**20`` one with a mebibyte per device.
`new` makes such a module, not yet installed.
"""

import sys
from types import ModuleType

import numpy as np

from . import table
from .device import CUDA_VERSION, Machine, cuda, pool
from .functions import functions, norm
from .ndarray import ndarray
from .selection import UFUNCS
from .ufunc import ufunc


def new(devices=2, memory=2**34, driver=CUDA_VERSION):
    """A module like cupy, with a machine of its own.

    >>> cupy = new()
    >>> cupy.arange(3.0).sum().device
    <CUDA Device 0>
    """
    known, module, machine = table.read(), ModuleType("cupy", __doc__), Machine(devices, memory, driver)
    machine.module = module

    def missing(name):
        aside = ", although CuPy has one: see strict_cupy/selection.py" if name in known["others"].split() else ""
        raise AttributeError(f"the stand-in for CuPy has no {name!r}{aside}")

    linalg = ModuleType("cupy.linalg")
    linalg.norm = norm(machine)
    module.__dict__.update(
        {name: getattr(np, name) for name in known["numpy"].split()}
        | {name: ufunc(machine, name) for name in UFUNCS}
        | functions(machine),
        __getattr__=missing,
        __version__=known["version"],
        cuda=cuda(machine),
        get_default_memory_pool=lambda: pool(machine),
        linalg=linalg,
        machine=machine,
        ndarray=ndarray,
        ufunc=ufunc,
    )
    return module


def install(monkeypatch, **options):
    """The module that `new` makes, imported as cupy until the test is over. The real one stays away so long."""
    module = new(**options)
    for name in [name for name in sys.modules if f"{name}.".startswith(("cupy.", "cupyx."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cupyx", None)
    for part in (module, module.linalg, module.cuda, module.cuda.runtime, module.cuda.memory):
        monkeypatch.setitem(sys.modules, part.__name__, part)
    return module
