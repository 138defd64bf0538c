"""Checking a function's first derivatives, and its second, with one call."""

from collections.abc import Callable, Sequence
from typing import Any

from ..errors import GradientError
from .comparison import ATOL, RTOL
from .examine import examine
from .higher import gradient


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
        inputs: arrays, Tensors, numbers or lists. Copies of the floating-point ones, raised to float64 and in the same
            memory layout, are differentiated; the others are passed on as they are.
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

    Raises:
        GradientError: names the argument, its worst element, both numbers, and a line that repeats the check. Also for
            a function that changes its inputs, is random, or has no derivative there.
        ArgumentError: when no input is floating-point.
        DTypeError: when fn computes in less than float64.
        GraphError: for method="complex" when fn's formulas do not take complex numbers.

    >>> import tinynorm as tn
    >>> tn.testing.gradcheck(lambda x: tn.tanh(x) * x, [[0.5, -2.0]])
    True
    """
    options = {"method": method, "seed": seed, "rtol": rtol, "atol": atol, "away_from": away_from}
    options["cotangent"] = cotangent
    return _verdict("gradcheck", examine(fn, inputs, **options).message, inputs, options, raise_exception)


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
        GraphError: when one of fn's operations cannot be differentiated again.

    >>> import tinynorm as tn
    >>> tn.testing.gradgradcheck(lambda x: tn.tanh(x) * x, [[0.5, -2.0]])
    True
    """
    options = {"method": method, "seed": seed, "rtol": rtol, "atol": atol, "away_from": away_from}
    try:
        derived, extended = gradient(fn, inputs, cotangent, seed)
        message = examine(derived, extended, caller="gradgradcheck", **options).message
    except GradientError as fault:
        message = f"gradgradcheck: {fault}"
    return _verdict("gradgradcheck", message, inputs, {**options, "cotangent": cotangent}, raise_exception)


def _verdict(
    caller: str, message: str | None, inputs: Sequence[Any], options: dict[str, Any], raise_exception: bool
) -> bool:
    if message is not None and raise_exception:
        raise GradientError(f"{message}\n{_again(caller, inputs, options)}")
    return message is None


def _again(caller: str, inputs: Sequence[Any], options: dict[str, Any]) -> str:
    """The line that repeats a check, with the inputs if they are few."""
    usual = {**(gradcheck.__kwdefaults__ or {}), "method": None, "seed": None}  # which are always shown
    chosen = [f"{name}={_shown(value)}" for name, value in options.items() if repr(value) != repr(usual[name])]
    call = ", ".join(["fn", "inputs", *chosen])
    shown = _shown(list(inputs))
    return f"again: {caller}({call})" + (f" with inputs = {shown}" if len(shown) <= 200 else " with the same inputs")


def _shown(value: Any) -> str:
    return " ".join(repr(value).split())
