"""From the text of a .cu file to a function that can be launched.

The files are templates by macros: what stands in for X, say, is defined at compilation. CuPy compiles a text once and
keeps the result on disk, by what stands in it; so what is common to several files is put before each, and not included,
for a file that is included could change unseen.

What is launched runs on CuPy's current device, for which it is compiled when it first runs there, and in its current
stream. CuPy compiles everything, its own operations as well, such that subnormal float32 count as 0.
"""

import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ...formulas.types import Array

HERE = Path(__file__).parent
COMMON = "common.cuh"

#: What numbers of a dtype are called in CUDA C++, by the dtype's character (E is ml_dtypes' bfloat16).
TYPES = {"e": "half", "E": "__nv_bfloat16", "f": "float", "d": "double"}


def computed(x: Array) -> Any:
    """What x is computed in (Computed in common.cuh), and what its gradients are made of until they are delivered."""
    return np.dtype(np.float64 if x.dtype.char == "d" else np.float32)


def available() -> bool:
    """Whether the module that goes by the name of CuPy compiles CUDA; a module that stands in for it may not."""
    return hasattr(sys.modules["cupy"], "RawModule")


@cache
def source(file: str) -> str:
    """The text that is compiled."""
    return "\n".join(f'#line 1 "{name}"\n{(HERE / name).read_text(encoding="utf-8")}' for name in (COMMON, file))


@cache
def _compiled(
    cupy: Any, text: str, name: str, options: tuple[str, ...], definitions: tuple[tuple[str, Any], ...]
) -> Any:
    options = ("-std=c++17", *options, *(f"-D{macro}={value}" for macro, value in definitions))
    return cupy.RawModule(code=text, options=options).get_function(name)


def function(file: str, name: str, *options: str, **definitions: Any) -> Any:
    """A kernel of a .cu file, compiled when it is first launched: ``function(...)(grid, block, arguments)``.

    Options are the compiler's, definitions are macros.
    Arguments that are numbers must be NumPy's, of the width that the kernel declares.
    """
    return _compiled(sys.modules["cupy"], source(file), name, options, tuple(sorted(definitions.items())))
