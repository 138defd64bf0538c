"""The IDX file format, and the MNIST digits that come in it."""

import gzip
import math
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError

_IDX_DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: str | os.PathLike[str]) -> NDArray[Any]:
    """Read one array from a file in the IDX format, gzipped or not.

    Returns a C-contiguous array, in native byte order, of the shape and dtype in the header: uint8, int8, int16, int32,
    float32 or float64. Whether the file is gzipped is read from its first two bytes, not from its name.

    Raises FileNotFoundError if there is no file, DataError if it is a directory, not IDX, truncated, long or corrupt.

    Source: LeCun, Cortes & Burges, "The MNIST database of handwritten digits", on the format: two zero bytes, one for
    the dtype, one for the number of dimensions; each size in four bytes; the data in C order; all of it big-endian.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from tinynorm.data import read_idx
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "two-shorts")
    ...     _ = path.write_bytes(b"\\x00\\x00\\x0b\\x01" + b"\\x00\\x00\\x00\\x02" + b"\\x00\\x07" + b"\\xff\\xff")
    ...     read_idx(path)
    array([ 7, -1], dtype=int16)
    """
    path = Path(path)
    if path.is_dir():
        raise DataError(f"read_idx: path {path} is a directory; pass one IDX file inside it")
    raw = path.read_bytes()
    if raw.startswith(b"\x1f\x8b"):
        try:
            raw = gzip.decompress(raw)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise _unreadable(path, f"is a damaged gzip file ({error})") from error
    dtype, shape, start = _read_header(path, raw)
    needed, found = math.prod(shape) * dtype.itemsize, len(raw) - start
    if found != needed:
        fault = "truncated data" if found < needed else "trailing bytes"
        raise _unreadable(path, f"has {fault}: expected {needed} bytes for {dtype.name} {shape}, found {found}")
    try:
        stored = np.frombuffer(raw, dtype, offset=start).reshape(shape)
    except ValueError as error:  # more than 64 dimensions, or an empty array of immense sizes
        raise _unreadable(path, f"has a shape that NumPy cannot hold ({error})") from error
    return stored.astype(dtype.newbyteorder("="))  # a copy: `stored` is a read-only view of `raw`


def _read_header(path: Path, raw: bytes) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    if not b"\0\0".startswith(raw[:2]):
        raise _unreadable(path, f"is not an IDX file: it starts with {raw[:16]!r}, not with two zero bytes")
    if len(raw) > 2 and raw[2] not in _IDX_DTYPES:
        raise _unreadable(path, f"has dtype code 0x{raw[2]:02X}, which the IDX format does not define")
    ndim = raw[3] if len(raw) > 3 else 1
    length = 4 + 4 * ndim
    if len(raw) < length:
        raise _unreadable(path, f"has a truncated header: expected {length} bytes, found {len(raw)}")
    if ndim == 0:
        raise _unreadable(path, "has 0 dimensions, but IDX files have 1 for vectors, 2 for matrices, and so on")
    return np.dtype(_IDX_DTYPES[raw[2]]), struct.unpack(f">{ndim}I", raw[4:length]), length


def _unreadable(path: Path, fault: str) -> DataError:
    return DataError(f"read_idx: path {path} {fault}; open it to see what was saved, or download it again")


def mnist(
    directory: str | os.PathLike[str],
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
    """Read the MNIST digits, or a drop-in replacement such as Fashion-MNIST, from the four files in `directory`.

    Returns (x_train, y_train, x_test, y_test): images as float32 (N, 784) from 0 (paper) to 1 (ink), and classes as
    int64 (N,). The files are train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and
    t10k-labels-idx1-ubyte, each with or without .gz, or spelt like train-images.idx3-ubyte.

    Raises DataError if a file is missing, is refused by `read_idx` or does not hold uint8 of shape (N, 28, 28) for
    images and (N,) for labels, or if there are not as many labels as images.

    Source: LeCun, Cortes & Burges, "The MNIST database of handwritten digits", http://yann.lecun.com/exdb/mnist/.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from tinynorm.data import mnist
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for split in "train", "t10k":
    ...         images = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 28, 0, 0, 0, 28]) + bytes(2 * 784)
    ...         _ = Path(folder, f"{split}-images-idx3-ubyte").write_bytes(images)
    ...         _ = Path(folder, f"{split}-labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 2, 5, 9]))
    ...     x_train, y_train, x_test, y_test = mnist(folder)
    >>> x_train.shape, y_train.tolist()
    ((2, 784), [5, 9])
    """
    return *_mnist_split(Path(directory), "train"), *_mnist_split(Path(directory), "t10k")


def _mnist_split(directory: Path, split: str) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    images = read_idx(_find(directory, f"{split}-images", "idx3"))
    labels = read_idx(_find(directory, f"{split}-labels", "idx1"))
    for name, array, wanted in (("images", images, (len(images), 28, 28)), ("labels", labels, (len(labels),))):
        if array.dtype != np.uint8 or array.shape != wanted:
            raise _not_mnist(f"{directory} has {split}-{name} of {array.dtype} {array.shape}, not uint8 {wanted}")
    if len(images) != len(labels):
        raise _not_mnist(f"{directory} has {len(images)} {split}-images, but {len(labels)} {split}-labels")
    x = images.reshape(len(images), 28 * 28).astype(np.float32)
    x /= 255
    return x, labels.astype(np.int64)


def _find(directory: Path, stem: str, kind: str) -> Path:
    if not directory.is_dir():
        raise _not_mnist(f"{directory} is not there")
    names = [f"{stem}{mark}{kind}-ubyte{suffix}" for mark in "-." for suffix in ("", ".gz")]
    for name in names:
        if (directory / name).is_file():  # a file: one popular archive unpacks into folders of the same names
            return directory / name
    raise _not_mnist(f"{directory} has no {' or '.join(names)}")


def _not_mnist(fault: str) -> DataError:
    return DataError(f"mnist: directory {fault}; download the four files from https://github.com/cvdfoundation/mnist")
