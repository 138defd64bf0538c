"""Mini-batches of arrays in memory, and the MNIST digits read from their own files."""

import gzip
import math
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from .errors import ArgumentError, DataError, DTypeError, ShapeError
from .random import generator

__all__ = ["batches", "mnist", "read_idx"]

_IDX_DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


class _Rows(Protocol):
    """What `batches` asks of an array: a shape and indexing. NumPy, CuPy and `Tensor` all have them."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    def __getitem__(self, index: Any, /) -> Any: ...


X = TypeVar("X", bound=_Rows)
Y = TypeVar("Y", bound=_Rows)


def batches(
    x: X,
    y: Y,
    batch_size: int,
    shuffle: bool = True,
    rng: np.random.Generator | int | None = None,
    drop_last: bool = False,
) -> Iterator[tuple[X, Y]]:
    """Iterate once over the rows of x and y in mini-batches: one call is one epoch.

    x (N, ...) and y (N, ...) are NumPy arrays, CuPy arrays or Tensors of any dtype; each batch is a pair of the same
    kinds with up to `batch_size` rows. A list, or a pandas object (which indexes by label), is refused.

    With `shuffle`, each call draws one permutation from `rng`: pass the same Generator to every epoch, since an int
    seed repeats one order; None is the library's default. Without `shuffle`, the batches are views of x and y.

    The last batch is smaller when `batch_size` does not divide N, unless `drop_last` leaves it out. Weight its mean
    loss by its size when averaging over the epoch: Σ len(batch) · loss / Σ len(batch), not the mean of the losses.

    Raises, at the call and not at the first batch: ShapeError if x or y is 0-d or their lengths differ; ArgumentError
    if `batch_size` is not a positive integer; DTypeError if x or y is not an array.

    Source: Bottou, "Curiously Fast Convergence of some Stochastic Gradient Descent Algorithms" (2009).

    >>> import numpy as np
    >>> from tinynorm.data import batches
    >>> x, y = np.arange(10).reshape(5, 2), np.arange(5)
    >>> [labels.tolist() for _, labels in batches(x, y, 2, shuffle=False)]
    [[0, 1], [2, 3], [4]]
    >>> rng = np.random.default_rng(0)
    >>> float(sum(len(labels) * labels.mean() for _, labels in batches(x, y, 2, rng=rng)) / len(y))
    2.0
    """
    for name, rows in (("x", x), ("y", y)):
        if not hasattr(rows, "shape") or hasattr(rows, "iloc"):
            raise DTypeError(f"batches: {name} is a {type(rows).__name__}, not an array; pass np.asarray({name}).")
        if not rows.shape:
            raise ShapeError(f"batches: {name} is 0-d and has no rows; give it a first axis, one entry per example.")
    n = x.shape[0]
    if n != y.shape[0]:
        raise ShapeError(f"batches: x has {n} rows and y has {y.shape[0]}; give exactly one row of y per row of x.")
    if isinstance(batch_size, bool) or not isinstance(batch_size, int | np.integer) or batch_size < 1:
        raise ArgumentError(f"batches: batch_size is {batch_size!r}; give a positive integer, such as 64.")
    size = int(batch_size)  # a narrow NumPy integer would overflow in `start + size`
    rng = generator(rng)

    stop = n - n % size if drop_last else n
    parts = (slice(start, start + size) for start in range(0, stop, size))
    if not shuffle:
        return ((x[part], y[part]) for part in parts)
    order = rng.permutation(n)  # on the host: the same seed gives the same batches on every device
    return ((x[order[part]], y[order[part]]) for part in parts)


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
        raise DataError(f"read_idx: path {path} is a directory; pass one IDX file inside it.")
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
    return DataError(f"read_idx: path {path} {fault}; open it to see what was saved, or download it again.")


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
    names = [f"{stem}{mark}{kind}-ubyte{suffix}" for mark in "-." for suffix in ("", ".gz")]
    for name in names:
        if (directory / name).is_file():  # a file: one popular archive unpacks into folders of the same names
            return directory / name
    raise _not_mnist(f"{directory} has no {' or '.join(names)}")


def _not_mnist(fault: str) -> DataError:
    return DataError(f"mnist: directory {fault}; download the four files from https://github.com/cvdfoundation/mnist.")
