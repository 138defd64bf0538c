"""The stand-in for CuPy is held to NumPy, to what it is to refuse, and, where that is installed, to the real CuPy."""

import copy
import importlib.util
import inspect
import itertools
import json
import operator
import pickle
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import strict_cupy
from strict_cupy import expressions, generate, selection, table

import tinynorm as tn

VERSION = table.read()["version"]
ERRORS = {"AxisError": np.exceptions.AxisError, **{e.__name__: e for e in (
    AttributeError, FloatingPointError, IndexError, NotImplementedError, OverflowError, RuntimeError, TypeError,
    ValueError,
)}}  # fmt: skip


def lines(groups):
    return [line.strip() for text in groups.values() for line in text.strip().splitlines()]


def of_ufunc(name):
    """A call of a ufunc with numbers that it takes."""
    known = table.read()["ufuncs"][name]
    if name == "ldexp":
        return "xp.ldexp(x, ints.astype('int32'))"
    operands = "x, y" if "f->" in known["types"] else "ints, abs(ints) % 8"
    return f"xp.{name}({', '.join(operands.split(', ')[: known['nin']])})"


SAME = [*lines(expressions.SAME), *map(of_ufunc, selection.UFUNCS)]
REFUSED = [line.rpartition(": ")[::2] for line in lines(expressions.REFUSED)]
STRICTER = [(line, error) for line, (error, _) in expressions.STRICTER.items()]


def outcome(line, xp):
    """What a line gives. See `expressions`."""

    def at(device, compute):
        with xp.cuda.Device(device):
            return compute()

    names = {name: array if xp is np else xp.asarray(array) for name, array in vars(expressions.inputs()).items()}
    names |= {"at": at, "copy": copy, "host": expressions.inputs(), "np": np, "xp": xp}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)  # such as NumPy gives and CuPy does not
        try:
            code = compile(line, line, "eval")
        except SyntaxError:
            exec(line, names)
            return names["x"]
        result = eval(code, names)
    return names["x"] if result is None else result


def assert_same(found, right, xp):
    """Alike in dtypes and shapes, and in values but for rounding. NumPy's scalars stand for arrays without axes."""
    if isinstance(found, xp.ndarray):
        found, right = xp.asnumpy(found), np.asarray(right)
        assert found.dtype == right.dtype
        assert found.shape == right.shape
        digits = 1e-2 if found.dtype == np.float16 else 1e-5
        np.testing.assert_allclose(found, right, rtol=digits, atol=digits)
    elif isinstance(found, (list, tuple)) and not isinstance(right, str):
        assert type(found) is type(right)
        assert len(found) == len(right)
        for one, other in zip(found, right, strict=True):
            assert_same(one, other, xp)
    else:
        assert type(found) is type(right)
        assert found == right


@pytest.fixture(scope="module")
def stand_in():
    """Not imported as cupy: the lines need nothing of the kind."""
    return strict_cupy.new()


@pytest.fixture
def cupy(monkeypatch):
    return strict_cupy.install(monkeypatch)


# Line by line


@pytest.mark.parametrize("line", SAME)
def test_what_gives_what_numpy_gives(line, stand_in):
    assert_same(outcome(line, stand_in), outcome(line, np), stand_in)


@pytest.mark.parametrize(("line", "right"), expressions.OF_CUPY.items())
def test_what_numpy_does_not_have(line, right, stand_in):
    assert outcome(line, stand_in) == right


@pytest.mark.parametrize(("line", "error"), [*REFUSED, *STRICTER])
def test_what_is_refused(line, error, stand_in):
    with pytest.raises(ERRORS[error]):
        outcome(line, stand_in)


NOT_ON_CPU = {"ints @ ints.T"}
"""What the real CuPy compiles under the name of a template, which tests/cupy_on_cpu does not do."""


@pytest.fixture(params=[pytest.param(tier, marks=getattr(pytest.mark, tier)) for tier in ("cupy_on_cpu", "gpu")])
def real(request):
    """The real package, on the CPU or on a GPU, if it is the one that the table is of."""
    if request.param == "cupy_on_cpu":
        import cupy_on_cpu

        if cupy_on_cpu.reason() is not None:
            pytest.skip(cupy_on_cpu.reason())
        cupy = cupy_on_cpu.install()
    else:
        cupy = pytest.importorskip("cupy")
    if cupy.__version__ != VERSION:
        pytest.skip(f"the table is of CuPy {VERSION}, installed is {cupy.__version__}")
    line = request.node.callspec.params.get("line", "")
    if request.param == "cupy_on_cpu" and line in NOT_ON_CPU:
        pytest.skip("CuPy on the CPU has no kernels that are named by a template")
    if "at(1" in line and cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("this needs two devices")
    return cupy


@pytest.mark.parametrize("line", SAME)
def test_the_real_cupy_gives_what_numpy_gives(line, real):
    assert_same(outcome(line, real), outcome(line, np), real)


@pytest.mark.parametrize(("line", "right"), expressions.OF_CUPY.items())
def test_the_real_cupy_has_what_numpy_does_not_have(line, right, real):
    assert outcome(line, real) == right


@pytest.mark.parametrize(("line", "error"), REFUSED)
def test_the_real_cupy_refuses_it_too(line, error, real):
    with pytest.raises(ERRORS[error]):
        outcome(line, real)


@pytest.mark.parametrize("line", expressions.STRICTER)
def test_the_real_cupy_does_not_refuse_it(line, real):
    outcome(line, real)


# Dtypes, which arrays without elements show in no time

CHARACTERS = "?bBhHiIlLefdFD"
PAIRS = list(itertools.product(CHARACTERS, [*CHARACTERS, True, 2, 2.0, np.float32(2), np.float64(2), np.int8(2)]))
OF_ONE = [f"a[None].T.{name}(axis=1)" for name in ("all", "any", "max", "mean", "min", "prod", "std", "sum", "var")]
OF_ONE += ["xp.linalg.norm(a[None].T, axis=1)", "xp.imag(a)", "xp.ones_like(a)", "xp.real(a)", "xp.round(a)"]
OF_TWO = [
    "xp.clip(a, b, b)", "xp.concatenate([a, b])", "xp.einsum('ij,kl->il', a[None], b[None])", "a[None].T @ b[None]",
    "xp.zeros(0, xp.result_type(a, b))", "xp.stack([a, b])", "xp.tensordot(a[None].T, b[None], 1)",
    "xp.where(a > 0, a, b)",
]  # fmt: skip
for _name in selection.UFUNCS:
    one = table.read()["ufuncs"][_name]["nin"] == 1
    (OF_ONE if one else OF_TWO).append(f"xp.{_name}(a)" if one else f"xp.{_name}(a, b)")
NO_SUCH_LOOP = {("xp.sign(a)", "?")} | {
    (f"xp.{name}(a, b)", kind) for name in ("arctan2", "copysign", "hypot", "nextafter") for kind in "FD"
}
"""Of NumPy, which the stand-in refuses therefore, although CuPy has one."""


def dtypes(line, xp, operands):
    """Those of the results; None if it is refused."""
    arrays = [xp.zeros(0, value) if isinstance(value, str) else value for value in operands]
    try:
        results = eval(line, {"xp": xp, **dict(zip("ab", arrays, strict=False))})
    except (OverflowError, TypeError, ValueError):
        return None
    return [result.dtype for result in (results if isinstance(results, tuple) else [results])]


@pytest.mark.parametrize("line", [*OF_ONE, *OF_TWO])
def test_the_real_cupy_gives_the_same_dtypes(line, real, stand_in):
    for operands in PAIRS if line in OF_TWO else [(kind,) for kind in CHARACTERS]:
        right = dtypes(line, real, operands)
        if right is not None and any((line, kind) in NO_SUCH_LOOP for kind in operands):
            right = None
        assert dtypes(line, stand_in, operands) == right, operands


# The selection and the table


def test_whatever_the_stand_in_has_is_compared():
    text = "\n".join(SAME)
    functions = (*selection.ONE_ARRAY, *selection.MADE, *selection.ASKED)
    assert [name for name in functions if f"xp.{name}(" not in text] == []
    assert [name for name in selection.METHODS if f".{name}(" not in text] == []


def test_the_stand_in_has_nothing_that_cupy_lacks(stand_in):
    known = table.read()
    names = {*known["ufuncs"], *known["functions"], *known["numpy"].split(), *known["others"].split()}
    assert {name for name in vars(stand_in) if not name.startswith("_")} - names == {"machine"}
    public = {name for name in dir(stand_in.ndarray) if not name.startswith("_")}
    assert public - set(known["attributes"].split()) == set()


def test_what_cupy_has_and_the_stand_in_has_not_is_an_attribute_error_that_says_so(stand_in):
    for name in ("RawModule", "ElementwiseKernel", "random", "sort", "fft"):
        with pytest.raises(AttributeError, match=f"no '{name}', although CuPy has one"):
            getattr(stand_in, name)
    with pytest.raises(AttributeError, match=r"no 'errstate'$"):
        _ = stand_in.errstate


@pytest.mark.cupy_on_cpu
def test_the_table_is_what_the_real_package_gives():
    if importlib.util.find_spec("cupy") is None:
        pytest.skip("CuPy is not installed")
    code = "import json; from strict_cupy.generate import table; print(json.dumps(table()))"
    here = Path(__file__).parent
    run = subprocess.run([sys.executable, "-c", code], cwd=here, capture_output=True, text=True, check=True)
    given = json.loads(run.stdout)
    if given["version"] != VERSION:
        pytest.skip(f"the table is of CuPy {VERSION}, installed is {given['version']}")
    assert given == table.read()


def test_a_signature_in_one_line_says_all_but_the_defaults():
    def function(a, /, b, c=1, *rest, d, e=2, **more):
        pass

    line = generate.spelled(inspect.signature(function))
    assert line == "a / b c= *rest d e= **more"
    assert generate.spelled(table.signature(line)) == line
    assert generate.spelled(table.signature("x /")) == "x /"


# The machine


def test_every_way_to_the_host_is_counted_and_says_where(cupy):
    x, one = cupy.ones((2, 2), "float32"), cupy.ones((), "float32")
    ways = [
        lambda: float(one), lambda: int(one), lambda: complex(one), lambda: bool(one), lambda: [] if one else 0,
        lambda: one.item(), lambda: one.tolist(), lambda: x.get(), lambda: x.tobytes(), lambda: cupy.asnumpy(x),
        lambda: repr(x), lambda: str(x), lambda: f"{one:.3f}", lambda: x[x > 0], lambda: x.__setitem__(x > 0, x[0, :1]),
        lambda: cupy.nonzero(x), lambda: cupy.flatnonzero(x), lambda: cupy.argwhere(x), lambda: cupy.where(x),
        lambda: 1 in x[0], lambda: max(one, one), lambda: x.__reduce__(),
    ]  # fmt: skip
    for way in ways:
        way()
        (line,) = cupy.machine.to_host
        assert re.fullmatch(rf"[\w ]+ of (float32|bool)\[[\d, ]*\] at {re.escape(__file__)}:\d+", line), line
        cupy.machine.to_host.clear()
    assert cupy.machine.to_device == []


def test_what_stays_on_the_device_is_not_counted(cupy):
    x, index = cupy.ones((2, 2)), cupy.arange(2)
    cupy.machine.to_device.clear()
    x[index], x[0], x.T, x.sum(), cupy.where(x > 0, x, 0), cupy.allclose(x, x), x.copy(), copy.deepcopy(x), [*x]
    x[x > 0] = 2.0
    x += 1.0
    assert (x.shape, len(x)) == ((2, 2), 2)
    assert cupy.machine.to_host == cupy.machine.to_device == []


def test_every_way_to_the_device_is_counted(cupy):
    x = cupy.ones((2, 2))
    for way in (
        lambda: cupy.asarray(np.ones(2)), lambda: cupy.array([1.0, 2.0]), lambda: cupy.asarray(1.0),
        lambda: x[np.array([0, 1])], lambda: x[[0, 1]], lambda: x.__setitem__(np.array([True, False]), 1.0),
    ):  # fmt: skip
        way()
        (line,) = cupy.machine.to_device
        assert f" at {__file__}:" in line
        cupy.machine.to_device.clear()


def test_a_view_is_no_allocation_and_no_launch(cupy):
    x, machine = cupy.ones((4, 6)), cupy.machine
    before = machine.allocations, machine.launches
    views = (
        x[1:],
        x[:, ::-1],
        x[None],
        x.T,
        x.reshape(6, 4),
        x.ravel(),
        cupy.broadcast_to(x, (2, 4, 6)),
        x.view("int64"),
    )
    assert (machine.allocations, machine.launches) == before
    assert all(view.base is x for view in views)
    x.T.reshape(24)
    x += 1.0
    x.sum()
    assert (machine.allocations, machine.launches) == (before[0] + 2, before[1] + 3)


def test_memory_is_held_as_long_as_an_array_or_a_view_of_it(cupy):
    machine, pool = cupy.machine, cupy.get_default_memory_pool()
    with cupy.cuda.Device(1):
        x = cupy.zeros(1000, "float32")
        assert (machine.used, pool.used_bytes(), machine.device().mem_info) == ([0, 4096], 4096, (2**34 - 4096, 2**34))
        view = x[:10]
        del x
        assert machine.used == [0, 4096]
        view = view * 2.0
        assert (machine.used, machine.peak) == ([0, 512], [0, 4096 + 512])
    del view
    assert (machine.used, pool.used_bytes()) == ([0, 0], 0)


def test_a_full_device_and_a_refused_allocation(monkeypatch):
    cupy = strict_cupy.install(monkeypatch, memory=4096)
    kept = cupy.zeros(3000, "uint8")
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError, match=r"allocating 1,536 bytes .* far: 3,072 bytes"):
        cupy.zeros(1500, "uint8")
    with cupy.cuda.Device(1):
        cupy.zeros(1500, "uint8")
    cupy.machine.fail_allocation(2)
    cupy.zeros(1)
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError):
        cupy.zeros(1)
    cupy.zeros(1)  # one is refused, not all that follow
    assert cupy.machine.used == [3072, 0]
    assert kept.nbytes == 3000


def test_devices_vanish_at_a_launch_and_nothing_is_written_then(cupy):
    x = cupy.zeros(2)
    cupy.machine.fail_launch(2)
    x += 1.0
    uses = (
        lambda: operator.iadd(x, 1.0), lambda: x * 2.0, lambda: cupy.zeros(1), lambda: float(x[0]), x.get,
        lambda: cupy.asarray(1.0), cupy.cuda.Device(0).synchronize, cupy.cuda.Device(1).use,
        cupy.cuda.runtime.getDeviceCount, cupy.cuda.runtime.deviceSynchronize, lambda: x.__setitem__(0, 5.0),
        cupy.cuda.get_current_stream().synchronize,
    )  # fmt: skip
    for use in uses:
        with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="cudaErrorDevicesUnavailable"):
            use()
    cupy.machine.recover()
    np.testing.assert_array_equal(x.get(), [1.0, 1.0])


@pytest.mark.parametrize(
    ("options", "error"),
    [({"devices": 0}, "NoDevice"), ({"driver": 0}, "InsufficientDriver"), ({"driver": 12090}, "InsufficientDriver")],
)
def test_a_machine_without_devices_or_a_driver_that_serves(monkeypatch, options, error):
    cupy = strict_cupy.install(monkeypatch, **options)
    assert not cupy.cuda.is_available()
    assert cupy.cuda.runtime.driverGetVersion() == options.get("driver", 13020)
    for use in (cupy.cuda.runtime.getDeviceCount, lambda: cupy.zeros(1), lambda: cupy.asarray([1.0])):
        with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match=error):
            use()


def test_devices_have_names_of_their_own(cupy):
    assert [cupy.cuda.runtime.getDeviceProperties(i)["name"] for i in (0, 1)] == [b"stand-in 0", b"stand-in 1"]


def test_memory_that_nobody_wrote_to(cupy):
    assert np.isnan(cupy.empty((2, 2), "float16").get()).all()
    assert np.isnan(cupy.empty_like(cupy.ones(2, "complex64")).get()).all()
    with pytest.raises(IndexError):
        cupy.ones(3)[cupy.empty(2, int)]


def test_each_module_has_a_machine_of_its_own():
    one, other = strict_cupy.new(), strict_cupy.new()
    x = one.ones(2)
    x.get()
    assert (len(one.machine.to_host), other.machine.to_host) == (1, [])
    assert other.machine.allocations == 0
    with pytest.raises(ValueError, match="different from the current device"):
        other.add(x, 1.0)


def test_it_is_imported_as_cupy_until_the_test_is_over(monkeypatch):
    before = {name: module for name, module in sys.modules.items() if name.startswith("cupy")}
    with monkeypatch.context() as context:
        module = strict_cupy.install(context)
        import cupy
        from cupy.cuda.memory import OutOfMemoryError
        from cupy.cuda.runtime import CUDARuntimeError
        from cupy.linalg import norm

        assert cupy is module
        assert (OutOfMemoryError, CUDARuntimeError, norm) == (
            module.cuda.memory.OutOfMemoryError, module.cuda.runtime.CUDARuntimeError, module.linalg.norm,
        )  # fmt: skip
        with pytest.raises(ImportError):
            import cupyx  # noqa: F401
        with pytest.raises(ImportError):
            import cupy.random
    assert {name: module for name, module in sys.modules.items() if name.startswith("cupy")} == before


# Between libraries


def test_dlpack_shares_memory_and_says_that_it_is_on_a_device(cupy):
    x = cupy.arange(6.0).reshape(2, 3)
    with cupy.cuda.Device(1):
        y = x.copy()[:, ::2]
    for array, device in ((x, 0), (y, 1)):
        used = [*cupy.machine.used]
        shared = cupy.from_dlpack(array)
        assert shared.device.id == device
        assert cupy.machine.used == used
        np.testing.assert_array_equal(shared.get(), array.get())
    x[0] = 7.0
    assert cupy.from_dlpack(x)[0, 0] == 7.0
    with pytest.raises(BufferError):
        x.__dlpack__(copy=True)
    with pytest.raises(BufferError):
        x.__dlpack__(dl_device=(1, 0))


def test_an_array_is_pickled_by_way_of_the_host(cupy):
    x = cupy.arange(3.0)
    (back,) = pickle.loads(pickle.dumps([x]))
    assert isinstance(back, cupy.ndarray)
    np.testing.assert_array_equal(back.get(), x.get())


def test_operators_are_left_to_a_class_that_asks_for_them(cupy):
    x = cupy.arange(3.0)
    t = tn.tensor([1.0, 2.0, 3.0], device="cuda", requires_grad=True, dtype="float64")
    for y in (x + t, x * t, x - t, x / t):
        assert isinstance(y, tn.Tensor)
        assert y.device == "cuda:0"
