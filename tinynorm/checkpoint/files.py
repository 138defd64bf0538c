"""`save` and `load`: which format, which file, and what is said when it is the wrong one."""

import os
from pathlib import Path
from typing import Any, Protocol

from ..errors import ArgumentError, DataError, TinynormError
from . import npz, tensors
from .atomic import replace
from .nesting import Arrays, describe, restore

PathLike = str | os.PathLike[str]


class Format(Protocol):
    """What a module does that knows one kind of file."""

    def fits(self, name: str) -> bool: ...  # noqa: D102
    def pack(self, text: str, arrays: Arrays) -> bytes: ...  # noqa: D102
    def unpack(self, raw: bytes) -> tuple[str | None, Arrays]: ...  # noqa: D102


FORMATS: dict[str, Format] = {module.SUFFIX: module for module in (tensors, npz)}


def save(state: Any, path: PathLike) -> None:
    """Keep a state in one file: the old file or the new one is whole, at whatever moment the process is killed.

    Args:
        state: dicts, whose keys are text or integers, lists and tuples, nested to a depth of 64, of None, bools,
            numbers, text, NumPy scalars, and arrays and Tensors of any device, shape and memory order. They may be
            bools, integers, and real floating numbers up to 64 bits, bfloat16 included. Subclasses are kept as what
            they are subclasses of.
        path: ends in .safetensors, which the extra of that name is for, or in .npz.

    A dict of arrays is stored under exactly its keys, so `save(model.state_dict(), "model.safetensors")` is a file that
    PyTorch reads by name, and `np.load` reads an .npz. The same state gives the same bytes. They are put together in
    memory, so a save needs as much of it as the file will have.

    Raises:
        ArgumentError: for a path of another kind, and for a state that contains itself.
        DTypeError: for what cannot be kept, naming its place in the state. Nothing has been written then.
        MissingExtraError: without the package safetensors.
        OSError: for a disk that is full, a directory that may not be written to, and whatever else the system says. The
            old file is as it was.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import tinynorm as tn
    >>> model = tn.nn.Linear(2, 1, rng=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "run.npz")
    ...     tn.save({"model": model.state_dict(), "step": 7}, path)
    ...     state = tn.load(path)
    >>> state["step"], list(state["model"])
    (7, ['weight', 'bias'])
    >>> bool((state["model"]["weight"] == model.weight.numpy()).all())
    True
    """
    file, form = _file("save", path)
    text, arrays = describe(state, form.fits)
    replace(file, form.pack(text, arrays))


def load(path: PathLike) -> Any:
    """The state that `save` was given, to the last bit; its arrays as NumPy's, in C order.

    From a file that another program wrote, safetensors or .npz, it is a dict of the arrays under their names. Nothing
    that is in a file is ever executed, and the sizes that a file claims are checked, or bounded where it is compressed,
    before memory is asked for.

    Args:
        path: ends in .safetensors or .npz.

    Raises:
        ArgumentError: for a path of another kind.
        DataError: for a file that is truncated, damaged, of another kind than its name says, or larger inside than it
            may be, and for one that holds pickled objects.
        MissingExtraError: without the package safetensors, and for bfloat16 without ml_dtypes.
        OSError: FileNotFoundError where there is no file, and whatever else the system says.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> import tinynorm as tn
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "foreign.npz")
    ...     np.savez(path, mean=np.float32(0.5))
    ...     tn.load(path)
    {'mean': array(0.5, dtype=float32)}
    """
    file, form = _file("load", path)
    raw = _read(file)
    try:
        text, arrays = form.unpack(raw)
        return arrays if text is None else restore(text, arrays)
    except DataError as error:
        raise DataError(f"load: {file} {error}; nothing was loaded") from error
    except (TinynormError, MemoryError):
        raise
    except Exception as error:  # the file has been read: whatever NumPy, zipfile and safetensors raise now is its fault
        fault = f"is no {file.suffix} file, or a damaged one ({type(error).__name__}: {error})"
        raise DataError(f"load: {file} {fault}; nothing was loaded") from error


def _file(name: str, path: PathLike) -> tuple[Path, Format]:
    """The path, and the format that its suffix names."""
    if not isinstance(path, (str, os.PathLike)) or "\0" in os.fspath(path):
        raise ArgumentError(f"{name}: path must be the path of a file, not {path!r}")
    file = Path(path)
    if file.suffix.lower() not in FORMATS:
        raise ArgumentError(f"{name}: path {str(file)!r} must end in {' or '.join(FORMATS)}")
    return file, FORMATS[file.suffix.lower()]


def _read(file: Path) -> bytes:
    if file.exists() and not file.is_file():
        raise DataError(f"load: {file} is {'a directory' if file.is_dir() else 'no regular file'}; give that of a file")
    return file.read_bytes()
