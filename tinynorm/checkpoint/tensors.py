"""A description and arrays as a safetensors file, and back: https://github.com/huggingface/safetensors has the format.

Its header is JSON, and its metadata hold the description, under one key, since their order is not fixed.
"""

from typing import Any

import numpy as np

from ..errors import ArgumentError, DataError
from ..extras import optional
from .nesting import MARK, Arrays, bfloat16, parse

SUFFIX = ".safetensors"
KEY = "tinynorm"

DTYPES = {
    "BOOL": "?", "I8": "i1", "I16": "<i2", "I32": "<i4", "I64": "<i8", "U8": "u1", "U16": "<u2", "U32": "<u4",
    "U64": "<u8", "F16": "<f2", "F32": "<f4", "F64": "<f8", "C64": "<c8",
}  # fmt: skip
"""The format's names of NumPy's dtypes."""


def fits(name: str) -> bool:
    """Whether an array can have this name: Unicode, but for the one that the format keeps for itself."""
    return name != "__metadata__" and name == name.encode("utf-8", "ignore").decode()


def pack(text: str, arrays: Arrays) -> bytes:
    """The bytes of a file."""
    package = _package("safetensors.numpy")
    try:
        raw: bytes = package.save(arrays, {KEY: text})
    except _package().SafetensorError as error:
        raise ArgumentError(
            f"save: safetensors does not take this state ({error}): names, and numbers outside of arrays, may fill 100 "
            "MB; put long lists of numbers into arrays, or save as .npz; nothing was written"
        ) from error
    return raw


def unpack(raw: bytes) -> tuple[str | None, Arrays]:
    """The description, None in a foreign file, and the arrays, in the order of the header. Raises whatever it may."""
    found = dict(_package().deserialize(raw))  # which checks all sizes first
    header = parse(raw[8 : 8 + int.from_bytes(raw[:8], "little")].decode())
    metadata = header.pop("__metadata__", {})
    # By its key or its first letters: one flipped bit does not make it a foreign file.
    text = next((t for key, t in metadata.items() if key == KEY or t.startswith(MARK)), None)
    return text, {name: _array(name, found[name]) for name in header}


def _package(module: str = "safetensors") -> Any:
    return optional(module, "safetensors")


def _array(name: str, entry: dict[str, Any]) -> np.ndarray[Any, Any]:
    code = entry["dtype"]
    if code not in DTYPES and code != "BF16":
        raise DataError(f"has array {name!r} in {code}, for which NumPy has no dtype")
    dtype = bfloat16() if code == "BF16" else np.dtype(DTYPES[code])
    return np.frombuffer(entry["data"], dtype).reshape(entry["shape"])
