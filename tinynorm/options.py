"""What an option that is no array may be. Each check returns a plain Python value.

That conversion is more than a courtesy: np.float64(0.1) would widen a float32 parameter, float(0.1) does not.
"""

from collections.abc import Callable, Iterable
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from math import inf, isfinite
from typing import Any

import numpy as np

from .errors import ArgumentError, DTypeError


def number(name: str, option: str, value: Any) -> float:
    """The option as a Python float. Text is refused, also where it spells a number."""
    if type(value) is float:
        return value
    if not isinstance(value, (str, bytes, complex, np.complexfloating)) and np.ndim(value) == 0:
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError):
            pass  # the error below says more
    raise ArgumentError(f"{name}: {option} must be a number, not {value!r}")


def finite(name: str, option: str, value: Any) -> float:
    """The option as a float that is neither infinite nor nan."""
    result = number(name, option, value)
    if not isfinite(result):
        raise ArgumentError(f"{name}: {option} must be a finite number, not {result!r}")
    return result


def nonnegative(name: str, option: str, value: Any) -> float:
    """The option as a finite float, 0 or more."""
    result = number(name, option, value)
    if not isfinite(result) or result < 0:
        raise ArgumentError(f"{name}: {option} must be a finite number >= 0, not {result!r}")
    return result


def betas(name: str, value: Any) -> tuple[float, float]:
    """Two decay rates, each at least 0 and less than 1."""
    pair = tuple(value) if isinstance(value, Iterable) and not isinstance(value, (str, bytes)) else ()
    if len(pair) != 2:
        raise ArgumentError(f"{name}: betas must be two numbers, such as (0.9, 0.999), not {value!r}")
    beta1, beta2 = (number(name, f"betas[{i}]", beta) for i, beta in enumerate(pair))
    for i, beta in enumerate((beta1, beta2)):
        if not 0 <= beta < 1:
            raise ArgumentError(f"{name}: betas[{i}] must be at least 0 and less than 1, not {beta!r}")
    return beta1, beta2


def flag(name: str, option: str, value: Any) -> bool:
    """The option as a bool; 0.9, say, in its place is more likely a slip than a truth."""
    if not isinstance(value, (bool, np.bool_)):
        raise ArgumentError(f"{name}: {option} must be True or False, not {value!r}")
    return bool(value)


def integer(name: str, option: str, value: Any) -> int:
    """The option as a Python int. A bool is none."""
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return int(value)
    raise ArgumentError(f"{name}: {option} must be an integer, not {value!r}")


def count(name: str, option: str, value: Any, least: int) -> int:
    """The option as a Python int, no less than `least`."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < least:
        raise ArgumentError(f"{name}: {option} must be an integer >= {least}, not {value!r}")
    return int(value)


def fraction(name: str, option: str, value: Any) -> float:
    """The option as a float from 0 to 1."""
    result = number(name, option, value)
    if not 0 <= result <= 1:
        raise ArgumentError(f"{name}: {option} must lie between 0 and 1, not {result!r}")
    return result


def limit(name: str, option: str, value: Any) -> float:
    """The option as a float above 0; infinity is no limit."""
    result = number(name, option, value)
    if not 0 < result <= inf:
        raise ArgumentError(f"{name}: {option} must be > 0, not {result!r}; for no limit at all write float('inf')")
    return result


def choice(name: str, option: str, value: Any, allowed: Iterable[str]) -> str:
    """The option as one of the words allowed."""
    words = list(allowed)
    if value not in words:
        raise ArgumentError(f"{name}: {option} must be one of {', '.join(map(repr, words))}, not {value!r}")
    return str(value)


def known(name: str, given: Iterable[str], allowed: Iterable[str]) -> None:
    """No name may be given that is not allowed; the nearest one is pointed out."""
    names = list(allowed)
    for option in given:
        if option not in names:
            hint = near_miss(str(option), names) or f"; the options are {', '.join(names)}"
            raise ArgumentError(f"{name}: unknown option {option!r}{hint}")


def near_miss(name: str, names: Iterable[str]) -> str:
    """A question to append to an error about an unknown name; "" where nothing comes near."""
    from difflib import get_close_matches  # which takes a while to import

    near = get_close_matches(name, list(names), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def decorable(name: str, function: Callable[..., Any]) -> None:
    """The function that a context decorates runs when it is called; else the context would be over before it runs."""
    if any(test(function) for test in (isgeneratorfunction, iscoroutinefunction, isasyncgenfunction)):
        raise DTypeError(
            f"{name}: {function.__name__} only starts when it is called and runs later, outside of the decorator; "
            f"write `with {name}():` inside it, around no yield"
        )
