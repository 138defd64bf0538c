"""save and load: every state comes back to the last bit, whatever is wrong with a file is said, and nothing is lost.

What comes back is compared with what was saved, never with a second file, and as bits: nan has payloads, 0 a sign.
"""

import builtins
import errno
import io
import json
import math
import os
import pickle
import resource
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
import zipfile
import zlib
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import strict_cupy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tinynorm as tn
from tinynorm.checkpoint import atomic, npz
from tinynorm.errors import ArgumentError, DataError, DTypeError, MissingExtraError

ROOT = Path(__file__).parents[1]
INSTALL = "needs pip install -e '.[safetensors]'"

try:
    import safetensors
    import safetensors.numpy
except ImportError:
    safetensors = None
try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None

needs_safetensors = pytest.mark.skipif(safetensors is None, reason=INSTALL)
needs_bfloat16 = pytest.mark.skipif(ml_dtypes is None, reason=INSTALL)
SUFFIXES = [pytest.param(".safetensors", marks=needs_safetensors), ".npz"]


def bits(value):
    """A value as something that is equal only where all is the same: types, order, shape, dtype and every bit."""
    if isinstance(value, dict):
        return "dict", [(type(k).__name__, k, bits(v)) for k, v in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [bits(v) for v in value]
    if isinstance(value, (np.ndarray, np.generic)):
        kind = "scalar" if isinstance(value, np.generic) else "array"
        return kind, value.dtype.name, value.shape, value.astype(value.dtype.newbyteorder("<")).tobytes()
    if isinstance(value, float):
        return "float", np.float64(value).tobytes()
    return type(value).__name__, value


def there_and_back(state, path):
    tn.save(state, path)
    return tn.load(path)


def refused(call, *fragments, error=DataError):
    """The call's refusal, which says all of this."""
    with pytest.raises(error) as caught:
        call()
    assert all(fragment in str(caught.value) for fragment in fragments), str(caught.value)
    return caught.value


@pytest.fixture(params=SUFFIXES)
def path(request, tmp_path):
    return tmp_path / f"state{request.param}"


# Every state comes back


DTYPES = [np.dtype(t) for t in ("?", *"bhilqBHILQ", *"efd", ">i2", ">u8", ">f2", ">f4", ">f8")]


def random_bits(rng, dtype, shape):
    """Any bits at all: nan with payloads, subnormals, both zeros. A bool has two."""
    raw = rng.integers(0, 2 if dtype.kind == "b" else 256, (*shape, dtype.itemsize), np.uint8)
    return raw.view(dtype)[..., 0]


LAYOUTS = {
    "in C order": lambda a: a,
    "in Fortran order": np.asfortranarray,
    "transposed": lambda a: a.T,
    "reversed": lambda a: a[::-1, ::-1],
    "strided": lambda a: a[1::2, ::3],
    "one row for all": lambda a: np.broadcast_to(a[:1], a.shape),
    "one number for all": lambda a: np.broadcast_to(a[0, 0], (3, 1, 2)),
    "without axes": lambda a: a[1:2, 2].reshape(()),
    "a scalar": lambda a: a[1, 2],
    "empty": lambda a: a[:, :0],
    "empty, of many axes": lambda a: a[:0].reshape(0, 2, 1, 3),
    "read-only": lambda a: np.lib.stride_tricks.as_strided(a, writeable=False),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_arrays_of_every_layout_and_dtype_come_back(layout, path):
    rng = np.random.default_rng(0)
    state = {str(i): LAYOUTS[layout](random_bits(rng, dtype, (5, 6))) for i, dtype in enumerate(DTYPES)}
    found = there_and_back(state, path)
    assert bits(found) == bits(state)
    if layout != "a scalar":
        assert all(a.flags.c_contiguous and a.flags.writeable and a.dtype.isnative for a in found.values())


def test_numbers_at_the_ends_come_back(path):
    tiny, huge = np.finfo(np.float32).smallest_subnormal, np.finfo(np.float32).max
    floats = np.array([0.0, -0.0, tiny, -tiny, huge, np.inf, -np.inf, np.nan], np.float32)
    integers = np.array([np.iinfo(np.int64).min, -1, np.iinfo(np.int64).max])
    assert bits(there_and_back([floats, integers], path)) == bits([floats, integers])
    assert tn.load(path)[0].view(np.uint32)[1] == 0x80000000
    payload = np.array([0x7F800001, 0xFFC12345], np.uint32).view(np.float32)  # a signalling nan, and a negative one
    assert there_and_back({"": payload}, path)[""].view(np.uint32).tolist() == [0x7F800001, 0xFFC12345]


@needs_bfloat16
@pytest.mark.parametrize("layout", LAYOUTS)
def test_bfloat16_comes_back(layout, path):
    every = np.arange(1 << 16).astype(np.uint16).view(ml_dtypes.bfloat16).reshape(256, 256)
    state = {"x": LAYOUTS[layout](every)}
    found = there_and_back(state, path)
    assert bits(found) == bits(state)
    assert found["x"].dtype == ml_dtypes.bfloat16


@needs_bfloat16
def test_bfloat16_without_its_package(path, monkeypatch):
    tn.save(np.ones(2, ml_dtypes.bfloat16), path)
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    refused(lambda: tn.load(path), "ml_dtypes", "pip install 'tinynorm[safetensors]'", error=MissingExtraError)


PLAIN = {
    "nothing": [None, True, False, 0, 1, -1, "", [], (), {}],
    "integers": [2**63, -(2**64), 2**1023, 2**1024, -(2**20000), 10**5000],
    "floats": [0.1, -0.0, 5e-324, 1e308, math.inf, -math.inf, math.nan, -math.nan],
    "text": ["ε", "\0", "\ud800", '"\\', "a" * 70000],
    "tuples and lists": ([1, (2, [3, ()])], ((),), [[]]),
    "keys": {"1": 1, 1: 2, -(2**70): 3, "": 4, "\0": 5, "\ud800": 6, "__metadata__": 7, "../../etc": 8, "tinynorm": 9},
    "order": {"b": 1, "a": 2, "c": {"z": 1, "y": 2}},
    "what stands for itself": [{"dict": []}, {"tuple": [1]}, {"array": {"name": "x"}}, {"float": "00"}],
    "scalars": [np.float32(0.1), np.float64("nan"), np.int8(-3), np.bool_(True), np.uint64(2**64 - 1)],
}


@pytest.mark.parametrize("name", PLAIN)
def test_plain_values_come_back(name, path):
    assert bits(there_and_back(PLAIN[name], path)) == bits(PLAIN[name])


def test_a_nan_keeps_its_bits(path):
    state = [float(np.array(0xFFF8DEADBEEF0001, np.uint64).view(np.float64))]
    assert np.float64(there_and_back(state, path)[0]).view(np.uint64) == 0xFFF8DEADBEEF0001


def test_subclasses_come_back_as_what_they_are_subclasses_of(path):
    class Name(str):
        __slots__ = ()

    state = OrderedDict(b=Name("x"), a=os.stat_result(range(10)))
    assert bits(there_and_back(state, path)) == bits({"b": "x", "a": tuple(range(10))})


def test_tensors_are_kept_as_their_arrays(path):
    w = tn.tensor([[1.0, 2.0]], requires_grad=True)
    assert bits(there_and_back({"leaf": w, "result": w * 3.0}, path)) == bits(
        {"leaf": np.array([[1, 2]], np.float32), "result": np.array([[3, 6]], np.float32)}
    )


def test_arrays_of_a_device_are_kept_as_the_hosts(path, monkeypatch):
    strict_cupy.install(monkeypatch)
    w = tn.tensor([1.0, 2.0], device="cuda")
    state = {"tensor": w, "array": w.data}
    assert bits(there_and_back(state, path)) == bits(dict.fromkeys(state, np.array([1, 2], np.float32)))


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.integers(2**1000)
ARRAYS = hnp.arrays(st.sampled_from([t for t in DTYPES if t.isnative]), hnp.array_shapes(min_dims=0, min_side=0))
KEYS = st.text(st.characters(), max_size=5) | st.sampled_from(["a", "a.b", "b", "a~2", "array"]) | st.integers()
STATES = st.recursive(
    SCALARS | ARRAYS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("suffix", SUFFIXES)
@settings(max_examples=60)
@given(state=STATES)
def test_any_state_comes_back(suffix, state, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / f"any{suffix}"
    assert bits(there_and_back(state, path)) == bits(state)


NAMES = ["", ".", "a/b", "../../etc/passwd", "/", "C:\\x", "\\", "\0", "a\0b", "\ud800", "ε", "__metadata__", "array~2"]
NAMES += ["tinynorm", "tinynorm.json", "x.npy", "x", "long" * 20_000, '"', "\n", "file", "self"]


def test_arrays_may_have_any_name(path):
    state = {name: np.array(i) for i, name in enumerate(NAMES)}
    assert bits(there_and_back(state, path)) == bits(state)


def test_names_with_backslashes_are_not_those_of_entries(tmp_path):
    """zipfile on Windows would read another name."""
    tn.save({"a\\b": np.zeros(1)}, tmp_path / "x.npz")
    assert zipfile.ZipFile(tmp_path / "x.npz").namelist() == ["array~2.npy", "tinynorm.json"]


def test_names_that_meet_do_not_hide_each_other(path):
    state = {"a": {"b": np.array(1), "b~2": np.array(2)}, "a.b": np.array(3), 1: np.array(4), "1": np.array(5)}
    assert bits(there_and_back(state, path)) == bits(state)


def test_the_same_state_gives_the_same_bytes(path, monkeypatch):
    state = {"b": np.arange(3), "a": [1.5, {"c": np.float32(2)}], "d": "text"}
    tn.save(state, path)
    first = path.read_bytes()
    monkeypatch.setattr("time.time", lambda: 2e9)
    monkeypatch.setattr("time.localtime", lambda *_: (2033, 5, 18, 3, 33, 20, 2, 138, 0))
    tn.save(tn.load(path), path)
    assert path.read_bytes() == first


def test_saving_changes_nothing(path):
    array = np.arange(6.0).reshape(2, 3).T
    array.flags.writeable = False
    state = {"x": array, "list": [1]}
    tn.save(state, path)
    assert state["x"] is array
    assert state["list"] == [1]
    found = tn.load(path)["x"]
    found += 1.0  # its own memory
    assert array[0, 0] == 0.0


# Other programs' files


def test_a_flat_dict_is_a_plain_npz_of_the_same_names(tmp_path):
    model = tn.nn.PreNormMLP(4, 3, depth=1, out_features=2, rng=0)
    tn.save(model.state_dict(), tmp_path / "m.npz")
    with np.load(tmp_path / "m.npz") as found:
        assert set(found.files) - {"tinynorm.json"} == set(model.state_dict())
        assert all(np.array_equal(found[name], p.numpy()) for name, p in model.named_parameters())


@needs_safetensors
def test_a_flat_dict_is_a_plain_safetensors_file_of_the_same_names(tmp_path):
    model = tn.nn.PreNormMLP(4, 3, depth=1, out_features=2, rng=0)
    tn.save(model.state_dict(), tmp_path / "m.safetensors")
    found = safetensors.numpy.load_file(tmp_path / "m.safetensors")
    assert set(found) == set(model.state_dict())
    assert all(np.array_equal(found[name], p.numpy()) for name, p in model.named_parameters())


def test_a_foreign_npz_is_a_flat_dict(tmp_path):
    state = {
        "b": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "a/b": np.zeros((0, 2)),
        "c": np.array(1 + 2j),
        ">": np.arange(3, dtype=">i4"),
        "text": np.array(["x", "yz"]),
        "when": np.array(["2000-01-01"], "M8[D]"),
    }
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "f.npz", **state)
        found = tn.load(tmp_path / "f.npz")
        assert list(found) == list(state)
        assert all(np.array_equal(found[k], state[k]) and found[k].flags.writeable for k in state)


@needs_safetensors
def test_a_foreign_safetensors_file_is_a_flat_dict(tmp_path):
    state = {"x.weight": np.arange(6, dtype=np.float16).reshape(2, 3), "n": np.array(7), "c": np.ones(2, np.complex64)}
    path = tmp_path / "f.safetensors"
    for metadata in (None, {"format": "pt", "by": "tinynorm"}):
        safetensors.numpy.save_file(state, path, metadata)
        assert bits(dict(sorted(tn.load(path).items()))) == bits(dict(sorted(state.items())))


@needs_safetensors
@needs_bfloat16
def test_foreign_dtypes(tmp_path):
    path = tmp_path / "f.safetensors"
    half = np.array([1.5, -0.0], ml_dtypes.bfloat16)
    safetensors.numpy.save_file({"x": half}, path)
    assert bits(tn.load(path)) == bits({"x": half})
    safetensors.numpy.save_file({"x": np.ones(2, ml_dtypes.float8_e4m3fn)}, path)
    refused(lambda: tn.load(path), str(path), "'x'", "F8_E4M3")


# What cannot be kept


class Loop(list):
    """A list that contains itself, in a place that the message must name."""


LOOP = Loop()
LOOP.append({"deep": (0, LOOP)})
DEEP = [0]
for _ in range(70):
    DEEP = [DEEP]

CANNOT = {
    "an object": ({"a": [object()]}, DTypeError, "state['a'][0]", "object"),
    "a function": ([len], DTypeError, "state[0]", "builtin_function"),
    "bytes": ({"a": b"x"}, DTypeError, "state['a']", "bytes"),
    "a set": ({"a": {1}}, DTypeError, "state['a']", "set"),
    "a path": ({"a": Path("x")}, DTypeError, "state['a']", "Path"),
    "a complex number": ({"a": 1j}, DTypeError, "state['a']", "complex"),
    "complex numbers": ({"a": np.ones(2, complex)}, DTypeError, "state['a']", "complex128", ".real and .imag"),
    "objects": (np.array([None]), DTypeError, "state is", "object"),
    "text": ((np.array("x"),), DTypeError, "state[0]", "<U1"),
    "a NumPy text": ((np.str_("x"),), DTypeError, "state[0]", "<U1"),
    "dates": (np.array(["2000-01-01"], "M8[D]"), DTypeError, "datetime64"),
    "fields": (np.zeros(2, [("a", "f4")]), DTypeError, "[('a', '<f4')]"),
    "a masked array": ({"m": np.ma.masked_equal([1, 2], 2)}, DTypeError, "state['m']", "masked"),
    "a module": ({"m": tn.nn.Linear(1, 1)}, DTypeError, "state['m']", "Linear", "state_dict()"),
    "a generator": ({"r": np.random.default_rng()}, DTypeError, "state['r']", "bit_generator.state"),
    "a bool as a key": ({"a": {True: 1}}, DTypeError, "state['a'] has the key True"),
    "None as a key": ({None: 1}, DTypeError, "state has the key None"),
    "a tuple as a key": ({(1, 2): 1}, DTypeError, "(1, 2)"),
    "a loop": ({"x": LOOP}, ArgumentError, "state['x'][0]['deep'][1] contains itself"),
    "depth": (DEEP, ArgumentError, "deeper than 64"),
}
if np.dtype(np.longdouble).itemsize > 8:
    CANNOT["long doubles"] = (np.ones(2, np.longdouble), DTypeError, "float128")


@pytest.mark.parametrize("name", CANNOT)
def test_what_cannot_be_kept_is_refused_by_its_place(name, path):
    state, error, *fragments = CANNOT[name]
    refused(lambda: tn.save(state, path), "save: ", *fragments, "nothing was written", error=error)
    assert list(path.parent.iterdir()) == []


def test_a_value_may_stand_in_several_places(path):
    shared = [np.arange(3)]
    assert bits(there_and_back({"a": shared, "b": shared}, path)) == bits({"a": shared, "b": shared})


@pytest.mark.parametrize("path", ["x", "x.pt", "x.npz.bak", "npz", Path("a.npy"), ""])
def test_other_suffixes_are_refused(path):
    refused(lambda: tn.save({}, path), "save: ", ".safetensors or .npz", error=ArgumentError)
    refused(lambda: tn.load(path), "load: ", ".safetensors or .npz", error=ArgumentError)


@pytest.mark.parametrize("path", [None, 3, b"x.npz", "a\0.npz"])
def test_what_is_no_path_is_refused(path):
    refused(lambda: tn.save({}, path), "save: path", error=ArgumentError)
    refused(lambda: tn.load(path), "load: path", error=ArgumentError)


def test_suffixes_are_known_in_capitals(tmp_path):
    assert there_and_back([1], tmp_path / "X.NPZ") == [1]
    assert os.listdir(tmp_path) == ["X.NPZ"]


def test_safetensors_may_be_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    path = tmp_path / "x.safetensors"
    refused(lambda: tn.save([], path), "pip install 'tinynorm[safetensors]'", error=MissingExtraError)
    assert list(tmp_path.iterdir()) == []
    path.write_bytes(b"")
    refused(lambda: tn.load(path), "pip install 'tinynorm[safetensors]'", error=MissingExtraError)


@needs_safetensors
def test_what_safetensors_does_not_take(tmp_path, monkeypatch):
    """Such as a header of more than 100 MB; here it says so sooner."""

    def full(*_):
        raise safetensors.SafetensorError("Error while serializing: header too large")

    monkeypatch.setattr(safetensors.numpy, "save", full)
    refused(lambda: tn.save([], tmp_path / "x.safetensors"), "too large", "100 MB", ".npz", error=ArgumentError)
    assert list(tmp_path.iterdir()) == []


# Files that are damaged


FRAGILE = {
    "model": {"w": np.arange(4.0).reshape(2, 2), "é": np.zeros((0, 3), np.float32)},
    "history": (1, [2.5, None, True, math.nan]),
    3: np.float16(3),
}
WANTED = bits(FRAGILE)


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    """The bytes of a small file of each kind, and a place for its damaged copies."""
    folder = tmp_path_factory.mktemp("damaged")
    files = {}
    for suffix in [".npz"] + [".safetensors"] * (safetensors is not None):
        tn.save(FRAGILE, folder / f"x{suffix}")
        files[suffix] = (folder / f"x{suffix}", (folder / f"x{suffix}").read_bytes())
    return files


def right_or_refused(path, raw):
    """A damaged file gives the state that was saved, where the damage is of no consequence, or an error."""
    path.write_bytes(raw)
    try:
        found = bits(tn.load(path))
    except DataError as error:
        found = str(error)
    assert found == WANTED or (str(path) in found and "nothing was loaded" in found)


@pytest.mark.parametrize("suffix", SUFFIXES)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(places=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=4))
def test_flipped_bits_are_found(suffix, places, intact):
    path, raw = intact[suffix]
    damaged = bytearray(raw)
    for place, flips in places:
        damaged[int(place * len(raw))] ^= flips
    right_or_refused(path, damaged)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_bit_flipped_in_any_byte_is_found(suffix, intact):
    path, raw = intact[suffix]
    for i in range(len(raw)):
        damaged = bytearray(raw)
        damaged[i] ^= 1 << i % 8
        right_or_refused(path, damaged)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_truncated_files_are_found(suffix, intact):
    path, raw = intact[suffix]
    for i in range(0, len(raw), 7):
        for part in (raw[:i], raw[:i] + bytes(len(raw) - i), raw[i + 1 :], raw[:i] + raw[i + 1 :]):
            right_or_refused(path, part)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_flipped_bit_in_an_array_names_it(suffix, tmp_path):
    path = tmp_path / f"x{suffix}"
    tn.save({"w": np.full(64, 7, np.uint8), "v": np.zeros(3)}, path)
    raw = bytearray(path.read_bytes())
    raw[raw.index(b"\7" * 64) + 9] ^= 1
    path.write_bytes(raw)
    refused(lambda: tn.load(path), "load: ", str(path), "damaged", "'w'" if suffix == ".safetensors" else "w.npy")


# Files that are something else, or evil


class Evil:
    """Unpickled, it would leave a mark."""

    def __reduce__(self):
        return exec, ("import builtins; builtins.tinynorm_was_here = True",)


def zipped(entries, **options):
    """A zip archive of these bytes."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", **options) as archive:
        for name, content in entries:
            archive.writestr(name, content)
    return stream.getvalue()


def npy(array):
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, allow_pickle=True)
    return stream.getvalue()


def header(text, version=1):
    raw = text.encode("latin1")
    return b"\x93NUMPY" + bytes([version, 0]) + len(raw).to_bytes(2 if version == 1 else 4, "little") + raw


def described(tree, arrays=(), **changes):
    """An npz file with a description whose checksum is right, as anybody can make one."""
    checksum = zlib.crc32(json.dumps(tree, separators=(",", ":")).encode())
    text = json.dumps({"tinynorm": 1, "crc32": checksum, "state": tree, **changes})
    return zipped([*((f"{name}.npy", npy(array)) for name, array in arrays), ("tinynorm.json", text)])


def entry(name="x", values=(0.0, 0.0), **changes):
    array = np.array(values)
    checksum = zlib.crc32(array.tobytes())
    return {"name": name, "dtype": array.dtype.name, "shape": list(array.shape), "crc32": checksum, **changes}


X = [("x", np.zeros(2))]
DICT = "{'descr': '<f8', 'fortran_order': False, 'shape': (%s)}"
EVIL_NPZ = {
    "empty": b"",
    "text": b"these are my weights",
    "a pickle": pickle.dumps(Evil()),
    "one array": npy(np.zeros(3)),
    "another archive": zipped([("word/document.xml", "<w/>")]),
    "pickled objects": zipped([("x.npy", npy(np.array([Evil()], object)))]),
    "pickled fields": zipped([("x.npy", npy(np.zeros(1, [("a", object)])))]),
    "a pickle as an entry": zipped([("x.npy", pickle.dumps(Evil()))]),
    "code as a header": zipped([("x.npy", header("__import__('builtins').__dict__"))]),
    "a header without end": zipped([("x.npy", header("{" * 9000))]),
    "a header of a header": zipped([("x.npy", header("(" * 200 + ")" * 200))]),
    "a long header": zipped([("x.npy", header(DICT % "0," + " " * 20000))]),
    "an unhashable header": zipped([("x.npy", header("{[]: 1}"))]),
    "a header of Python 2, broken": zipped([("x.npy", header("{'descr': '<f8', 'shape': (2L,\n"))]),
    "a header that is cut": zipped([("x.npy", npy(np.zeros(3))[:20])]),
    "version 3": zipped([("x.npy", header(DICT % "0,", version=3))]),
    "version 9": zipped([("x.npy", b"\x93NUMPY\x09\x00")]),
    "more than it holds": zipped([("x.npy", header(DICT % "1 << 40,"))]),
    "much more than it holds": zipped([("x.npy", header(DICT % f"{1 << 50}, {1 << 50}"))]),
    "less than it holds": zipped([("x.npy", header(DICT % "1,") + bytes(16))]),
    "a negative size": zipped([("x.npy", header(DICT % "-1, -2") + bytes(16))]),
    "a negative size and 0": zipped([("x.npy", header(DICT % "-1, 0"))]),
    "empty and immense": zipped([("x.npy", header(DICT % f"0, {1 << 62}, {1 << 62}"))]),
    "a hundred axes": zipped([("x.npy", header(DICT % ("1," * 100)) + bytes(8))]),
    "sizes that are no integers": zipped([("x.npy", header(DICT % "1.5,") + bytes(8))]),
    "bytes of no length": zipped([("x.npy", header("{'descr': '|S0', 'fortran_order': False, 'shape': (3,)}"))]),
    "an odd compression": zipped([("x.npy", npy(np.zeros(3)))], compression=zipfile.ZIP_BZIP2),
    "JSON of great depth": zipped([("tinynorm.json", "[" * 100_000 + "]" * 100_000)]),
    "a description of great depth": zipped([("tinynorm.json", '{"tinynorm":1,"crc32":0,"state":' + "[" * 9_000)]),
    "a description of no kind": zipped([("tinynorm.json", "[]")]),
    "a description that is a number": zipped([("tinynorm.json", "1")]),
    "a description in no encoding": zipped([("tinynorm.json", b"\xff\xfe{")]),
    "a description with nan": zipped([("tinynorm.json", '{"tinynorm":1,"crc32":0,"state":NaN}')]),
    "a description with 1e999": zipped([("tinynorm.json", '{"tinynorm":1,"crc32":0,"state":1e999}')]),
    "a number of 5000 digits": zipped([("tinynorm.json", '{"tinynorm":1,"crc32":0,"state":%s}' % ("1" * 5000))]),
    "a name twice in JSON": zipped([("tinynorm.json", '{"tinynorm":1,"crc32":0,"crc32":2238339752,"state":[]}')]),
    "another number of the format": described([], tinynorm=0),
    "a format that is no number": described([], tinynorm="1"),
    "a wrong checksum": described([1, 2], crc32=5),
    "no state": zipped([("tinynorm.json", '{"tinynorm":1,"crc32":0}')]),
    "an unknown kind": described({"code": "print(1)"}),
    "two kinds": described({"tuple": [], "dict": []}),
    "no kind": described({}),
    "a tuple of a number": described({"tuple": 5}),
    "a dict of numbers": described({"dict": [1, 2]}),
    "a key that is a list": described({"dict": [[[], 1]]}),
    "a key that is a float": described({"dict": [[1.5, 1]]}),
    "a key that is a bool": described({"dict": [[True, 1]]}),
    "a key twice": described({"dict": [["a", 1], ["a", 2]]}),
    "an integer that is none": described({"integer": "0xyz"}),
    "an integer that is a list": described({"integer": []}),
    "a float of 3 bytes": described({"float": "000000"}),
    "a float that is no text": described({"float": 1.5}),
    "an array that is not there": described({"array": entry()}),
    "an array that is not named": described([], X),
    "an array twice": described([{"array": entry()}, {"array": entry()}], X),
    "an array without a name": described({"array": {}}, X),
    "an array as a list": described({"array": []}, X),
    "another checksum": described({"array": entry(crc32=1)}, X),
    "another shape": described({"array": entry(shape=[2, 1])}, X),
    "another dtype": described({"array": entry(dtype="int64")}, X),
    "an array as bfloat16": described({"array": entry(dtype="bfloat16", shape=[3], values=(0.0,) * 3)}, X),
}


@pytest.mark.filterwarnings("ignore:Reading `.npy`")
@pytest.mark.parametrize("name", EVIL_NPZ)
def test_npz_files_that_are_something_else_or_evil(name, tmp_path):
    path = tmp_path / "x.npz"
    path.write_bytes(EVIL_NPZ[name])
    if "bfloat16" in name and ml_dtypes is None:
        pytest.skip(INSTALL)
    reason = "any code" if name.startswith("pickled") else "version" if name.startswith("version") else ""
    refused(lambda: tn.load(path), f"load: {path} ", reason, "nothing was loaded")
    assert not hasattr(builtins, "tinynorm_was_here")
    assert os.listdir(tmp_path) == ["x.npz"]


def test_an_honest_description_made_by_hand_is_read(tmp_path):
    """So that the refusals above are for what each of them has wrong."""
    path = tmp_path / "x.npz"
    path.write_bytes(described({"dict": [["a", {"tuple": [{"array": entry()}, {"integer": "0xff"}]}]]}, X))
    assert bits(tn.load(path)) == bits({"a": (np.zeros(2), 255)})
    path.write_bytes(described([{"float": "7ff0000000000000"}]))
    assert tn.load(path) == [math.inf]


def test_a_newer_format_says_so(tmp_path):
    (tmp_path / "x.npz").write_bytes(described([], tinynorm=2))
    refused(lambda: tn.load(tmp_path / "x.npz"), "newer tinynorm", "format 2")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_entries_of_one_name(tmp_path):
    path = tmp_path / "x.npz"
    path.write_bytes(zipped([("x.npy", npy(np.zeros(1))), ("x.npy", npy(np.ones(1)))]))
    refused(lambda: tn.load(path), "two entries of one name")
    path.write_bytes(zipped([("x.npy", npy(np.zeros(1))), ("x", npy(np.ones(1)))]))
    refused(lambda: tn.load(path), "'x', which is no array")


def test_names_that_are_paths_are_names(tmp_path):
    path = tmp_path / "x.npz"
    names = ["../../evil", "/etc/passwd", "C:/x", ".."]
    path.write_bytes(zipped([(f"{name}.npy", npy(np.zeros(1))) for name in names]))
    assert list(tn.load(path)) == names
    assert os.listdir(tmp_path) == ["x.npz"]


def test_encrypted_entries_are_refused(tmp_path):
    raw = bytearray(zipped([("x.npy", npy(np.zeros(1)))]))
    for sign, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        raw[raw.index(sign) + place] |= 1
    (tmp_path / "x.npz").write_bytes(raw)
    refused(lambda: tn.load(tmp_path / "x.npz"), "encrypted")


def test_bombs_are_refused_before_they_unpack(tmp_path, monkeypatch):
    path = tmp_path / "x.npz"
    np.savez_compressed(path, x=np.zeros(1 << 20, np.uint8))
    assert tn.load(path)["x"].shape == (1 << 20,)  # a thousandfold, but it is small
    monkeypatch.setattr(npz, "ALWAYS", 1 << 16)
    monkeypatch.setattr(npz.ZipFile, "read", lambda *_: pytest.fail("something was unpacked"))
    refused(lambda: tn.load(path), "more than 100 times", "np.load")


def test_overlapping_entries_are_refused(tmp_path):
    """Many names for one compressed entry: each is honest, and together they are a bomb."""
    stored = zipped([("x.npy", npy(np.zeros(1000)))])
    directory = stored.index(b"PK\x01\x02")
    end = stored.index(b"PK\x05\x06")
    one, tail = stored[directory:end], bytearray(stored[end:])
    names = [one.replace(b"x.npy", b"%c.npy" % c) for c in b"xyz"]
    tail[8:12] = (3).to_bytes(2, "little") * 2
    tail[12:16] = (3 * len(one)).to_bytes(4, "little")
    (tmp_path / "x.npz").write_bytes(stored[:directory] + b"".join(names) + tail)
    refused(lambda: tn.load(tmp_path / "x.npz"))


def tensors_file(header, data=b""):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + data


F64 = {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]}
EVIL_TENSORS = {
    "empty": b"",
    "text": b"these are my weights",
    "a pickle": pickle.dumps(Evil()),
    "a header larger than the file": (1 << 40).to_bytes(8, "little") + b"{}",
    "more than it holds": tensors_file({"x": {**F64, "shape": [1 << 40], "data_offsets": [0, 1 << 43]}}, bytes(8)),
    "sizes whose product overflows": tensors_file({"x": {**F64, "shape": [1 << 40, 1 << 40]}}, bytes(8)),
    "another shape": tensors_file({"x": {**F64, "shape": [2]}}, bytes(8)),
    "a negative size": tensors_file({"x": {**F64, "shape": [-1]}}, bytes(8)),
    "an unknown dtype": tensors_file({"x": {**F64, "dtype": "OBJECT"}}, bytes(8)),
    "a hole": tensors_file({"x": {**F64, "data_offsets": [8, 16]}}, bytes(16)),
    "one for both": tensors_file({"x": F64, "y": F64}, bytes(8)),
    "trailing bytes": tensors_file({"x": F64}, bytes(9)),
    "JSON of great depth": tensors_file(b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "a name twice": tensors_file(b'{"x":%s,"x":%s}' % ((json.dumps(F64).encode(),) * 2), bytes(8)),
    "a description that is none": tensors_file({"__metadata__": {"tinynorm": "()"}}),
    "a description of great depth": tensors_file({"__metadata__": {"tinynorm": "[" * 100_000}}),
    "metadata that are numbers": tensors_file({"__metadata__": {"tinynorm": 1}}),
}


@needs_safetensors
@pytest.mark.parametrize("name", EVIL_TENSORS)
def test_safetensors_files_that_are_something_else_or_evil(name, tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(EVIL_TENSORS[name])
    refused(lambda: tn.load(path), f"load: {path} ", "nothing was loaded")


def test_directories_and_devices_are_no_files(path):
    path.mkdir()
    refused(lambda: tn.load(path), f"load: {path} is a directory")
    refused(lambda: tn.save([], path), f"save: {path} is a directory", error=ArgumentError)
    path.rmdir()
    pipe = path.parent / "pipe"
    os.mkfifo(pipe)
    path.symlink_to(pipe)
    refused(lambda: tn.load(path), "no regular file")
    refused(lambda: tn.save([], path), f"{pipe} is no regular file", error=ArgumentError)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_missing_file(path):
    error = refused(lambda: tn.load(path), str(path), error=FileNotFoundError)
    assert error.errno == errno.ENOENT


# The old file or the new one


OLD, NEW = {"x": np.zeros(3)}, {"x": np.ones(1000)}
CALLS = [
    ("fsync", OSError(errno.EIO, "Input/output error")),
    ("fsync", KeyboardInterrupt()),
    ("replace", OSError(errno.EPERM, "Operation not permitted")),
    ("replace", KeyboardInterrupt()),
    ("chmod", OSError(errno.EROFS, "Read-only file system")),
    ("fstat", OSError(errno.EIO, "Input/output error")),
    ("open", OSError(errno.ENOSPC, "No space left on device")),
    ("write", OSError(errno.ENOSPC, "No space left on device")),
    ("write", KeyboardInterrupt()),
    ("flush", OSError(errno.EDQUOT, "Disk quota exceeded")),
]


class Failing(io.FileIO):
    """A file of which one method fails. What is written before may be on the disk."""

    def __init__(self, name, mode, fault, error):
        super().__init__(name, mode)
        self.fault, self.error = fault, error

    def write(self, content):
        super().write(content[: len(content) // 2])
        if self.fault == "write":
            raise self.error
        return super().write(content[len(content) // 2 :])

    def flush(self):
        super().flush()
        if self.fault == "flush" and not self.closed:
            raise self.error


@pytest.mark.parametrize(("call", "error"), CALLS, ids=lambda v: v if isinstance(v, str) else type(v).__name__)
def test_whatever_fails_the_old_file_stays_and_no_other(call, error, path, monkeypatch):
    tn.save(OLD, path)
    before = path.read_bytes()

    def fail(*_, **__):
        raise error

    if call in ("write", "flush"):
        monkeypatch.setattr(atomic, "open", lambda name, mode: Failing(name, mode, call, error), raising=False)
    elif call == "open":
        monkeypatch.setattr(atomic, "open", fail, raising=False)
    else:
        monkeypatch.setattr(atomic.os, call, fail)
    with pytest.raises(type(error)) as caught:
        tn.save(NEW, path)
    monkeypatch.undo()
    if isinstance(error, OSError):
        assert str(caught.value) == f"[Errno {error.errno}] {error.strerror}: {str(path)!r}"
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), KeyboardInterrupt()], ids=repr)
def test_when_the_directory_fails_the_new_file_is_whole(error, path, monkeypatch):
    tn.save(OLD, path)

    def fsync(descriptor, real=os.fsync):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise error
        real(descriptor)

    monkeypatch.setattr(atomic.os, "fsync", fsync)
    with pytest.raises(type(error)):
        tn.save(NEW, path)
    assert bits(tn.load(path)) == bits(NEW)
    assert os.listdir(path.parent) == [path.name]


def test_the_steps_come_in_the_order_that_makes_it_safe(path, monkeypatch):
    """A file that takes its name before it is on the disk may be empty after a power cut."""
    steps = []

    def fsync(descriptor):
        there = os.fstat(descriptor)
        steps.append("directory" if stat.S_ISDIR(there.st_mode) else f"{there.st_size} bytes")

    monkeypatch.setattr(atomic.os, "fsync", fsync)
    monkeypatch.setattr(atomic.os, "replace", lambda a, b, real=os.replace: (steps.append("name"), real(a, b)))
    tn.save(NEW, path)
    assert steps == [f"{path.stat().st_size} bytes", "name", "directory"]


def script(body, *arguments, **options):
    """Run a program on this checkout in a process of its own."""
    code = "import sys\nimport numpy as np\nimport tinynorm as tn\n" + textwrap.dedent(body)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_a_full_disk_leaves_the_old_file(path):
    """To the process, a file may become no longer than 20 kB: the system's own error, from the real write."""
    tn.save(OLD, path)
    before = path.read_bytes()
    limit, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
        error = refused(lambda: tn.save({"x": np.ones(10_000)}, path), str(path), error=OSError)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    assert error.errno == errno.EFBIG
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_a_directory_that_is_not_there(path):
    missing = path.parent / "missing" / path.name
    error = refused(lambda: tn.save([], missing), str(missing), error=FileNotFoundError)
    assert ".tinynorm-" not in str(error)


@pytest.fixture
def nobody():
    """root may write everywhere; then these are the permissions of another."""
    if root := os.geteuid() == 0:
        os.seteuid(65534)
    yield
    if root:
        os.seteuid(0)


@pytest.fixture
def closed(path):
    """The path of a file in a directory that all may look into, and nobody may write to."""
    with tempfile.TemporaryDirectory() as directory:
        there = Path(directory, path.name)
        tn.save(OLD, there)
        there.chmod(0o666)
        there.parent.chmod(0o555)
        yield there
        there.parent.chmod(0o755)


def test_a_directory_that_may_not_be_written_to(closed, nobody):
    error = refused(lambda: tn.save(NEW, closed), str(closed), error=PermissionError)
    assert ".tinynorm-" not in str(error)
    assert bits(tn.load(closed)) == bits(OLD)


def test_a_file_that_may_not_be_written_to(path, monkeypatch):
    tn.save(OLD, path)
    path.chmod(0o400)
    monkeypatch.setattr(atomic.os, "access", lambda file, mode: not mode & os.W_OK)  # as it is for all but root
    refused(lambda: tn.save(NEW, path), str(path), "Permission denied", error=PermissionError)
    assert bits(tn.load(path)) == bits(OLD)


def test_permissions_are_those_of_the_old_file_or_of_the_umask(path):
    before = os.umask(0o027)
    try:
        tn.save(OLD, path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        path.chmod(0o604)
        tn.save(NEW, path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o604
    finally:
        os.umask(before)


def test_a_link_stays_and_its_file_changes(path):
    real = path.parent / "store" / f"real{path.suffix}"
    real.parent.mkdir()
    path.symlink_to(Path("store") / real.name)
    tn.save(OLD, path)  # a link to nothing yet
    tn.save(NEW, path)
    assert path.is_symlink()
    assert bits(tn.load(real)) == bits(NEW)
    assert os.listdir(real.parent) == [real.name]


def test_left_over_files_are_removed_and_those_in_use_are_not(path):
    left = path.parent / ".tinynorm-0123456789abcdef.tmp"
    left.write_bytes(b"half a file")
    used = path.parent / ".tinynorm-fedcba9876543210.tmp"
    with open(used, "xb") as file:
        atomic._lock(file)
        tn.save(OLD, path)
        assert sorted(os.listdir(path.parent)) == [used.name, path.name]
    tn.save(OLD, path)
    assert os.listdir(path.parent) == [path.name]


def test_a_temporary_file_that_another_process_takes_for_left_over(path, monkeypatch):
    """Between its making and its lock, another save may remove it."""
    taken = []

    def lock(file, real=atomic._lock):
        if not taken:
            taken.append(file.name)
            os.unlink(file.name)
        real(file)

    monkeypatch.setattr(atomic, "_lock", lock)
    tn.save(NEW, path)
    assert taken
    assert bits(tn.load(path)) == bits(NEW)
    assert os.listdir(path.parent) == [path.name]


def test_a_file_system_without_locks(path, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(atomic.fcntl, "flock", flock)
    tn.save(NEW, path)
    assert bits(tn.load(path)) == bits(NEW)


def test_saves_at_once_do_not_mix(path):
    """Threads here: to the files and their locks they are as apart as processes are."""
    states = [{"n": i, "x": np.full(5000, i)} for i in range(4)]
    threads = [threading.Thread(target=lambda s=s: [tn.save(s, path) for _ in range(5)]) for s in states]
    tn.save(states[0], path)
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        found = tn.load(path)
        assert bits(found) == bits(states[found["n"]])
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signal")
def test_a_kill_leaves_the_old_file_or_the_new_one(tmp_path):
    """One process saves in a loop and is killed at a random moment: the file is whole, and nothing piles up."""
    path, rng = tmp_path / "x.npz", np.random.default_rng(0)
    body = """
        for i in range(10**6):
            tn.save({"i": i, "x": np.full(300_000, i)}, sys.argv[1])
            if i == 0:
                print("started", flush=True)
    """
    for _ in range(3):
        with script(body, path) as process:
            assert process.stdout.readline() == "started\n"
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(float(rng.uniform(0, 0.1)))
            process.kill()
        found = tn.load(path)
        assert bits(found["x"]) == bits(np.full(300_000, found["i"]))
        assert len(os.listdir(tmp_path)) <= 2
    tn.save(OLD, path)
    assert os.listdir(tmp_path) == ["x.npz"]


# The whole of a run


def test_a_run_goes_on_bit_for_bit(path):
    """Model, optimizer, schedule, generator and step, from a file: the very numbers of the run that was not stopped."""

    def start():
        rng = np.random.default_rng(0)
        model = tn.nn.Sequential(tn.nn.Linear(4, 8, rng=rng), tn.nn.RMSNorm(8), tn.nn.Linear(8, 3, rng=rng))
        optimizer = tn.optim.AdamW(tn.optim.decay_groups(model, 0.1), lr=1e-2)
        return rng, model, optimizer, tn.optim.WarmupCosine(optimizer, warmup_steps=2, total_steps=8)

    def steps(run, n):
        rng, model, optimizer, schedule = run
        for _ in range(n):
            x, y = rng.standard_normal((5, 4), np.float32), rng.integers(0, 3, 5)
            optimizer.zero_grad()
            tn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            schedule.step()

    def state(run):
        rng, *parts = run
        return {"parts": [part.state_dict() for part in parts], "rng": rng.bit_generator.state}

    whole, stopped, resumed = start(), start(), start()
    steps(whole, 6)
    steps(stopped, 3)
    tn.save(state(stopped), path)
    found = tn.load(path)
    resumed[0].bit_generator.state = found["rng"]
    for part, saved in zip(resumed[1:], found["parts"], strict=True):
        part.load_state_dict(saved)
    steps(resumed, 3)
    assert bits(state(resumed)) == bits(state(whole))
    assert bits(state(resumed)) != bits(state(stopped))


@pytest.mark.parametrize(
    "arrays", [{"notes": np.frombuffer(b"beside tinynorm.json", "u1")}, {"tinynorm.json": np.ones(2)}]
)
def test_a_foreign_file_may_speak_of_the_description(tmp_path, arrays):
    np.savez(tmp_path / "foreign.npz", **arrays)
    loaded = tn.load(tmp_path / "foreign.npz")
    assert {name: a.tolist() for name, a in loaded.items()} == {name: a.tolist() for name, a in arrays.items()}
