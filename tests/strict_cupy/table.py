"""What the real package has: the names, keywords and loops that `generate` wrote down; and calls held to them."""

import json
from functools import cache
from inspect import BoundArguments, Parameter, Signature
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("table.json")


@cache
def read() -> dict[str, Any]:
    """The table; `generate.table` says what is in it."""
    return json.loads(FILE.read_text(encoding="utf-8"))


@cache
def signature(spelled: str) -> Signature:
    """The signature that a line of the table spells. Defaults are not in it.

    >>> str(signature("a axis= * keepdims= **options"))
    '(a, axis=None, *, keepdims=None, **options)'
    """
    kind, parameters = Parameter.POSITIONAL_OR_KEYWORD, []
    for word in spelled.split():
        if word == "/":
            parameters = [p.replace(kind=Parameter.POSITIONAL_ONLY) for p in parameters]
        elif word == "*":
            kind = Parameter.KEYWORD_ONLY
        elif word.startswith("**"):
            parameters.append(Parameter(word[2:], Parameter.VAR_KEYWORD))
        elif word.startswith("*"):
            parameters.append(Parameter(word[1:], Parameter.VAR_POSITIONAL))
            kind = Parameter.KEYWORD_ONLY
        else:
            default = None if word.endswith("=") else Parameter.empty
            parameters.append(Parameter(word.rstrip("="), kind, default=default))
    return Signature(parameters)


def hold(name: str, spelled: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BoundArguments:
    """Raise TypeError unless CuPy's function of that name can be called so."""
    try:
        return signature(spelled).bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"cupy.{name}: {error}; it takes ({spelled})") from None
