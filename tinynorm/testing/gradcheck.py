"""Checking a function's first derivatives, and its second, with one call."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import GradientError, GraphError
from ..tensor import Tensor
from .comparison import ATOL, RTOL
from .examine import examine
from .higher import gradient
from .subject import arguments_of, as_argument, raised

LONGEST = 400  #: code of inputs that a message shows


def gradcheck(
    fn: Callable[..., Any],
    inputs: Sequence[Any],
    *,
    method: str = "auto",
    cotangent: Any = "random",
    rtol: float = RTOL,
    atol: float = ATOL,
    seed: int = 0,
    away_from: Any = (),
    raise_exception: bool = True,
) -> bool:
    """Whether the gradients of ``fn(*inputs)`` agree with numeric ones, every element of every input, in float64.

    Central differences, extrapolated and with an estimate of their own error, decide; where fn's formulas take complex
    numbers, complex steps (error about 1e-15) must agree too. No `grad` is left anywhere. How it is done, and what is
    guaranteed, stands at the top of testing/examine.py and testing/comparison.py.

    Args:
        fn: takes Tensors, gives a Tensor, or several in a tuple or list.
        inputs: fn's arguments; a Tensor or array alone stands for [x]. Copies of the floating-point arrays and Tensors,
            raised to float64 and in the same memory layout, are differentiated, and so are floats and lists of them.
            The others, such as an axis, a shape or None, are passed on as they are; integer arrays as Tensors.
        method: "central" for differences alone, "complex" for complex steps alone, "auto" for both.
        cotangent: "random", or an array in the shape of fn's result (a list of arrays for several results), which is
            then the only one used.
        rtol: how far apart two gradients may be, relative to their size, besides the differences' own error. A complex
            step is held to 10⁻⁵ of it.
        atol: how far besides, relative to the terms that add up to a gradient; for one that differences cannot tell
            from 0, relative to the largest gradient, or 1.
        seed: of cotangents and directions.
        away_from: a number or several, at which fn has kinks: elements nearer than a hundredth are moved away from it.
        raise_exception: raise `GradientError` instead of giving False.

    Warns:
        UserWarning: for an input of float32 or float16, which is examined as float64.

    Raises:
        GradientError: names the argument, its worst element, both numbers, and a line that repeats the check. Also for
            a function that changes its inputs, is random, or has no derivative there, and for a backward formula whose
            gradients have wrong shapes, or are too few.
        ArgumentError: when no input is floating-point, or an option makes no sense.
        DTypeError: when fn computes in less than float64, or is no function.
        GraphError: for method="complex" when fn's formulas do not take complex numbers.

    >>> import tinynorm as tn
    >>> tn.testing.gradcheck(lambda x: tn.tanh(x) * x, [[0.5, -2.0]])
    True
    """
    options = {"method": method, "seed": seed, "rtol": rtol, "atol": atol, "away_from": away_from}
    options["cotangent"] = cotangent
    arguments = _arguments("gradcheck", inputs)
    return _verdict("gradcheck", fn, arguments, examine(fn, arguments, **options).message, options, raise_exception)


def gradgradcheck(
    fn: Callable[..., Any],
    inputs: Sequence[Any],
    *,
    method: str = "auto",
    cotangent: Any = "random",
    rtol: float = RTOL,
    atol: float = ATOL,
    seed: int = 0,
    away_from: Any = (),
    raise_exception: bool = True,
) -> bool:
    """Whether the second derivatives agree with numeric ones: `gradcheck` of the gradients of ``fn(*inputs)``.

    The gradients depend on the inputs and, linearly, on `cotangent`, and are differentiated with respect to both. In
    errors, the arguments after fn's own are the cotangents. All else is as for `gradcheck`.

    Raises:
        GraphError: when one of fn's operations cannot be differentiated again, unless `raise_exception` is False.

    >>> import tinynorm as tn
    >>> tn.testing.gradgradcheck(lambda x: tn.tanh(x) * x, [[0.5, -2.0]])
    True
    """
    options = {"method": method, "seed": seed, "rtol": rtol, "atol": atol, "away_from": away_from}
    arguments = _arguments("gradgradcheck", inputs)
    try:
        derived, extended = gradient(fn, arguments, cotangent, seed)
        if not raise_exception and not _runs(derived, extended):
            return False
        message = examine(derived, extended, caller="gradgradcheck", **options).message
    except GradientError as fault:
        message = f"gradgradcheck: {fault}"
    options["cotangent"] = cotangent
    return _verdict("gradgradcheck", fn, arguments, message, options, raise_exception)


def _runs(derived: Callable[..., Any], arguments: list[Any]) -> bool:
    """Whether the gradients can be had with a graph, fn itself being known to run."""
    try:
        with np.errstate(all="ignore"):
            derived(*arguments)
    except GraphError:
        return False
    return True


def _arguments(caller: str, inputs: Any) -> list[Any]:
    """fn's arguments, with a warning for each that is examined in more digits than it was given."""
    given = arguments_of(caller, inputs)
    for notice in raised([as_argument(value) for value in given]):
        warnings.warn(f"{caller}: {notice}", stacklevel=3)
    return given


def _verdict(
    caller: str, fn: Any, inputs: list[Any], message: str | None, options: dict[str, Any], raise_exception: bool
) -> bool:
    if message is not None and raise_exception:
        raise GradientError(f"{message}\n{_again(caller, fn, inputs, options)}")
    return message is None


def _again(caller: str, fn: Any, inputs: list[Any], options: dict[str, Any]) -> str:
    """The line that repeats a check, with the inputs if they are few."""
    usual = {**(gradcheck.__kwdefaults__ or {}), "seed": None}  # which is always shown
    chosen = [f"{name}={_named(name, value)}" for name, value in options.items() if repr(value) != repr(usual[name])]
    name = getattr(fn, "__name__", "")
    call = [name if name.isidentifier() else "fn", _named("inputs", inputs), *chosen]
    return f"again: tn.{caller}({', '.join(call)})"


def _named(name: str, value: Any) -> str:
    """Code that makes the value; its name, where that would be long."""
    code = _code(value)
    return code if code is not None and len(code) <= LONGEST else name


def _code(value: Any) -> str | None:
    """Code that makes the value, to the last digit; None where that would be long, or is not known."""
    if isinstance(value, Tensor):
        code = _code(value.detach()._data)
        return code and f"tn.tensor({code})"
    if isinstance(value, np.ndarray):
        usual = value.dtype in (np.float64, np.int64, np.bool_)
        if not value.size:
            return f"np.zeros({value.shape}, dtype={value.dtype.name!r})"
        code = _code(value.tolist()) if value.size <= LONGEST else None
        return code and f"np.array({code}{'' if usual else f', dtype={value.dtype.name!r}'})"
    if isinstance(value, np.generic):
        return f"np.{value.dtype.name}({_code(value.item())})"
    if isinstance(value, float):
        return repr(value) if np.isfinite(value) else f"float('{value}')"
    if isinstance(value, (list, tuple)):
        items = [_code(item) for item in value[:LONGEST]]
        known = [item for item in items if item is not None]
        inner = ", ".join(known) + ("," if isinstance(value, tuple) and len(value) == 1 else "")
        return (f"[{inner}]" if isinstance(value, list) else f"({inner})") if len(known) == len(value) else None
    return repr(value) if value is None or isinstance(value, (bool, int, str, slice)) else None
