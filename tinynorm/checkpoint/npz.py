"""A description and arrays as an .npz file, and back: NumPy's own format, which `np.load` reads as well.

It is a zip archive of .npy files, here with one entry more for the description. Nothing is ever pickled. bfloat16,
which the format lacks, is kept as uint16 with the same bits.
"""

import re
from collections.abc import Sequence
from io import BytesIO
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

import numpy as np
from numpy.lib import format as npy

from ..errors import DataError
from .nesting import Arrays

SUFFIX = ".npz"
DESCRIPTION = "tinynorm.json"
LONGEST_NAME = 60_000  #: bytes; the archive counts them in 16 bits
SWELLS, ALWAYS = 100, 1 << 30  #: a compressed file may unpack to so many times its size, and to 1 GiB in any case

LOST = re.compile(rb"PK\x03\x04.{22}\x0d\x00..tinynorm\.json(?!\.npy)", re.DOTALL)  #: the description's own header

HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}  #: version 3 is for names of fields


def fits(name: str) -> bool:
    """Whether an entry can have this name: not one that zipfile cuts short, or rewrites on Windows."""
    raw = name.encode("utf-8", "ignore")
    return raw.decode() == name and len(raw) <= LONGEST_NAME and not {"\0", "\\"} & set(name)


def pack(text: str, arrays: Arrays) -> bytes:
    """The bytes of a file. They are the same each time: ZipInfo's date is fixed."""
    stream = BytesIO()
    with ZipFile(stream, "w") as archive:
        for name, array in arrays.items():
            with archive.open(ZipInfo(f"{name}.npy"), "w", force_zip64=True) as entry:
                stored = array.view(np.uint16) if array.dtype.name == "bfloat16" else array
                npy.write_array(entry, stored, allow_pickle=False)
        archive.writestr(ZipInfo(DESCRIPTION), text)
    return stream.getvalue()


def unpack(raw: bytes) -> tuple[str | None, Arrays]:
    """The description, None in a foreign file, and the arrays, in the archive's order. Raises whatever it may."""
    text, arrays = None, {}
    with ZipFile(BytesIO(raw)) as archive:
        entries = archive.infolist()
        _check(entries, len(raw))
        for entry in entries:
            content = archive.read(entry)
            if entry.filename == DESCRIPTION:
                text = content.decode()
            else:
                arrays[entry.filename.removesuffix(".npy")] = _array(entry.filename, content)
    if text is None and LOST.search(raw):
        raise DataError("is damaged: it has a description, which its directory has lost")
    return text, arrays


def _check(entries: Sequence[ZipInfo], size: int) -> None:
    """Before anything is unpacked: is it what can be, and how large does it say that it is?"""
    if len({entry.filename for entry in entries}) != len(entries):
        raise DataError("has two entries of one name")
    for entry in entries:
        if not entry.filename.endswith(".npy") and entry.filename != DESCRIPTION:
            raise DataError(f"has the entry {entry.filename!r}, which is no array")
        if entry.compress_type not in (ZIP_STORED, ZIP_DEFLATED):  # the others ask for memory by their own headers
            raise DataError(f"has the entry {entry.filename!r} compressed as no .npz file is")
    if sum(entry.file_size for entry in entries) > max(SWELLS * size, ALWAYS):
        raise DataError(f"would unpack to more than {SWELLS} times its size; np.load reads it, if you trust it")


def _array(name: str, content: bytes) -> np.ndarray[Any, Any]:
    """The array of one .npy file. Its header only says how bytes that are there are to be read."""
    stream = BytesIO(content)
    version = npy.read_magic(stream)
    if version not in HEADERS:
        raise DataError(f"has the entry {name!r} in version {version} of the .npy format")
    shape, fortran, dtype = HEADERS[version](stream)
    if dtype.hasobject:
        raise DataError(f"has the entry {name!r} pickled; to unpickle it could run any code, so it is not loaded")
    stored = np.frombuffer(content, dtype, offset=stream.tell()).reshape(shape, order="F" if fortran else "C")
    return stored.astype(dtype.newbyteorder("="), order="C")  # a copy: what is stored is read-only
