"""Write ``table.json`` from the real package, which needs no GPU for that: ``python -m tests.strict_cupy.generate``."""

import inspect
import json
import re

import numpy as np

from .selection import MADE, METHODS, ONE_ARRAY, UFUNCS
from .table import FILE


def table():
    """What the stand-in needs to know of the real package.

    Its names are of five kinds: the ufuncs, functions and methods that the stand-in has too; what is NumPy's own
    (dtypes and numbers); and all others, the names only.
    """
    import cupy

    public = {name: value for name, value in vars(cupy).items() if not name.startswith("_")}
    selected = {name: spelled(inspect.signature(public[name])) for name in ONE_ARRAY + MADE}
    numpy_own = [name for name, value in public.items() if _is_numpys_own(name, value)]
    return {
        "version": cupy.__version__,
        "ufuncs": {name: of_ufunc(public[name]) for name in UFUNCS},
        "functions": {**selected, "norm": spelled(inspect.signature(cupy.linalg.norm))},
        "methods": {name: of_method(getattr(cupy.ndarray, name)) for name in METHODS},
        "attributes": " ".join(name for name in dir(cupy.ndarray) if not name.startswith("_")),
        "numpy": " ".join(sorted(numpy_own)),
        "others": " ".join(sorted(public.keys() - selected.keys() - {*UFUNCS, *numpy_own})),
    }


def _is_numpys_own(name, value):
    return isinstance(value, (type, float, type(None))) and value is getattr(np, name, NotImplemented)


def of_ufunc(ufunc):
    loops = [loop for loop in ufunc.types if "E" not in loop]  # bfloat16, which CuPy has where ml_dtypes is installed
    return {"name": ufunc.name, "nin": ufunc.nin, "nout": ufunc.nout, "types": " ".join(loops)}


def of_method(method):
    """A compiled method has its signature in the first line of its docstring, with types of C."""
    try:
        return spelled(inspect.signature(method)).removeprefix("self ")
    except ValueError:
        inside = re.search(r"\((.*)\)", method.__doc__.splitlines()[0])[1]
        pairs = [part.split("=") for part in inside.split(", ")]
        return " ".join(name.split()[-1] + "=" * len(default) for name, *default in pairs if name != "self")


def spelled(signature):
    """A signature in one line.

    >>> spelled(inspect.signature(lambda a, axis=None, *, keepdims=False: None))
    'a axis= * keepdims='
    """
    words, before = [], None
    for p in signature.parameters.values():
        if before is p.POSITIONAL_ONLY and p.kind is not before:
            words.append("/")
        if p.kind is p.KEYWORD_ONLY and before not in (p.KEYWORD_ONLY, p.VAR_POSITIONAL):
            words.append("*")
        stars = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        words.append(f"{stars}{p.name}{'' if p.default is p.empty else '='}")
        before = p.kind
    return " ".join(words + ["/"] * (before is inspect.Parameter.POSITIONAL_ONLY))


if __name__ == "__main__":
    FILE.write_text(json.dumps(table(), indent=0) + "\n", encoding="utf-8")
