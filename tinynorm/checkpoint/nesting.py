"""A nested state as a description in JSON and the arrays that it names, and back.

What JSON has stands for itself: None, bools, text, lists, finite numbers. An object with one key stands for the rest:

    {"dict": [[key, value], ...]}                             text or integers as keys, in their order
    {"tuple": [value, ...]}
    {"array": {"name": ..., "dtype": ..., "shape": ..., "crc32": ...}}
    {"scalar": the same}                                      a NumPy scalar, kept as an array without axes
    {"integer": "0x..."}                                      one too long for JSON's decimal digits
    {"float": "7ff8000000000000"}                             nan or an infinity, bit for bit

Around it stand the format's number and a checksum of the text, so that a flipped bit is noticed there as well.
"""

import json
import struct
import zlib
from collections.abc import Callable, Mapping
from itertools import count
from math import isfinite
from typing import Any

import numpy as np

from ..backend import CPU, fingerprint, is_array, to_device
from ..errors import ArgumentError, DataError, DTypeError
from ..extras import optional
from ..tensor import Tensor

FORMAT = 1
MARK = '{"tinynorm":'  #: how each description starts
DEEPEST = 64  #: levels of nesting; the parser of JSON recurses, so that a file could otherwise exhaust the stack
LONGEST = 1024  #: bits of an integer in decimal digits, of which Python parses no more than 640 on any setting

KEPT = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64",
)  # fmt: skip
"""The dtypes that both formats hold."""

Arrays = dict[str, np.ndarray[Any, Any]]


def bfloat16() -> np.dtype[Any]:
    """The dtype, which the package ml_dtypes brings."""
    dtype: np.dtype[Any] = np.dtype(optional("ml_dtypes", "safetensors").bfloat16)
    return dtype


# A state as a description and arrays


def describe(state: Any, fits: Callable[[str], bool]) -> tuple[str, Arrays]:
    """The description, and the arrays under their names, little-endian and in C order.

    `fits` says whether the file can hold an array of that name. Raises `DTypeError` for what cannot be kept, and
    `ArgumentError` for what is nested without an end, naming its place.
    """
    arrays: Arrays = {}
    tree = _Describing(fits, arrays).node(state, (), ())
    return json.dumps({"tinynorm": FORMAT, "crc32": _checksum(tree), "state": tree}, separators=(",", ":")), arrays


class _Describing:
    """One walk through a state, which collects its arrays."""

    def __init__(self, fits: Callable[[str], bool], arrays: Arrays) -> None:
        self.fits, self.arrays = fits, arrays

    def node(self, value: Any, path: tuple[Any, ...], within: tuple[int, ...]) -> Any:
        """What stands for the value, found at the path, within containers of these ids."""
        if isinstance(value, np.generic):  # first: np.float64 is also a float
            return {"scalar": self.entry(np.asarray(value), path)}
        if isinstance(value, Tensor) or is_array(value):
            return {"array": self.entry(value._data if isinstance(value, Tensor) else value, path)}
        if value is None or isinstance(value, (bool, str)):
            return value
        if isinstance(value, int):
            return int(value) if value.bit_length() <= LONGEST else {"integer": hex(value)}
        if isinstance(value, float):
            return float(value) if isfinite(value) else {"float": struct.pack(">d", value).hex()}
        if not isinstance(value, (Mapping, list, tuple)):
            raise DTypeError(f"save: {place(path)} is a {type(value).__name__}, {_instead(value)}; nothing was written")
        if id(value) in within or len(within) == DEEPEST:
            fault = "contains itself" if id(value) in within else f"is nested deeper than {DEEPEST} levels"
            raise ArgumentError(f"save: {place(path)} {fault}; nothing was written")
        within = (*within, id(value))
        if isinstance(value, Mapping):
            return {"dict": [[_key(k, path), self.node(v, (*path, k), within)] for k, v in value.items()]}
        nodes = [self.node(part, (*path, i), within) for i, part in enumerate(value)]
        return {"tuple": nodes} if isinstance(value, tuple) else nodes

    def entry(self, array: Any, path: tuple[Any, ...]) -> dict[str, Any]:
        """Keep an array, and say how it is called and what it is."""
        if array.dtype.name not in KEPT or isinstance(array, np.ma.MaskedArray):
            what = "a masked array" if isinstance(array, np.ma.MaskedArray) else f"an array of {array.dtype}"
            raise DTypeError(
                f"save: {place(path)} is {what}; what is kept are bools, integers and real floating numbers up to 64 "
                "bits, of complex numbers .real and .imag; nothing was written"
            )
        host = to_device(array, CPU)
        kept = np.asarray(host).astype(host.dtype.newbyteorder("<"), order="C", copy=False)
        name = self.name(path)
        self.arrays[name] = kept
        return {"name": name, "dtype": kept.dtype.name, "shape": list(kept.shape), "crc32": fingerprint(kept)}

    def name(self, path: tuple[Any, ...]) -> str:
        """The path joined by dots: readable, and for a flat dict its very keys. Where it will not do, with a number."""
        joined = ".".join(map(str, path))
        if joined not in self.arrays and self.fits(joined):
            return joined
        base = joined if self.fits(joined) else "array"
        return next(name for i in count(2) if (name := f"{base}~{i}") not in self.arrays)


def place(path: tuple[Any, ...]) -> str:
    """Where something stands in the state, as one would write it.

    >>> from tinynorm.checkpoint.nesting import place
    >>> place(("model", 0))
    "state['model'][0]"
    """
    return "state" + "".join(f"[{key!r}]" for key in path)


def _key(key: Any, path: tuple[Any, ...]) -> Any:
    if isinstance(key, (str, int)) and not isinstance(key, bool):
        return key if isinstance(key, str) else int(key)
    raise DTypeError(
        f"save: {place(path)} has the key {key!r}, a {type(key).__name__}; keys are text or integers; "
        "nothing was written"
    )


def _instead(value: Any) -> str:
    """What can be kept in place of something that cannot."""
    if hasattr(value, "state_dict"):
        return "which is no plain value; save its state_dict()"
    if hasattr(value, "bit_generator"):
        return "which is no plain value; save its bit_generator.state"
    return "which cannot be kept; what can are arrays, numbers, text, None, and dicts, lists and tuples of them"


def _checksum(tree: Any) -> int:
    return zlib.crc32(json.dumps(tree, separators=(",", ":"), allow_nan=False).encode())


# And back


def restore(text: str, arrays: Arrays) -> Any:
    """The state that `describe` took apart. Raises `DataError` unless all is there, unharmed, and nothing else."""
    try:
        whole = parse(text)
        number, checksum, tree = whole["tinynorm"], whole["crc32"], whole["state"]
        if type(number) is int and number > FORMAT:
            raise DataError(f"has format {number}, which a newer tinynorm wrote; this one knows {FORMAT}")
        if number != FORMAT or checksum != _checksum(tree):
            raise DataError("is damaged: its description does not have the checksum that it should")
        rest = dict(arrays)
        state = _value(tree, rest)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError, struct.error) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"has a description that makes no sense ({type(error).__name__}: {error})") from error
    if rest:
        raise DataError(f"has arrays that its description does not name: {', '.join(map(repr, rest))}")
    return state


def parse(text: str) -> Any:
    """What JSON says, if it says it once: a key that comes twice would hide a value. Raises `ValueError`."""
    return json.loads(text, object_pairs_hook=_once)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name comes twice")
    return found


def _value(node: Any, arrays: Arrays) -> Any:
    """The value that a node stands for. Its arrays are taken out, so that none can serve twice."""
    if isinstance(node, list):
        return [_value(part, arrays) for part in node]
    if not isinstance(node, dict):
        return node
    ((kind, content),) = node.items()
    if kind == "dict":
        return _dict([(key, _value(part, arrays)) for key, part in content])
    if kind == "tuple":
        return tuple([_value(part, arrays) for part in content])
    if kind == "integer":
        return int(content, 16)
    if kind == "float":
        return struct.unpack(">d", bytes.fromhex(content))[0]
    if kind in ("array", "scalar"):
        array = _array(content, arrays)
        return array if kind == "array" else array[()]
    raise ValueError(f"there is no {kind!r}")


def _dict(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    for key, _ in pairs:
        if type(key) not in (str, int):
            raise TypeError(f"a key cannot be a {type(key).__name__}")
    return _once(pairs)


def _array(entry: Mapping[str, Any], arrays: Arrays) -> np.ndarray[Any, Any]:
    array = arrays.pop(entry["name"])
    if entry["dtype"] == "bfloat16":
        array = array.view(bfloat16())  # where the file has them as the integers of the same bits
    found = {"name": entry["name"], "dtype": array.dtype.name, "shape": list(array.shape), "crc32": fingerprint(array)}
    if found != entry:
        raise DataError(f"is damaged: array {entry['name']!r} is not the one that was saved")
    return array.astype(array.dtype.newbyteorder("="), copy=False)
