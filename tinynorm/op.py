"""An operation: a forward and a backward formula joined under a name, and how to run them on arrays."""

from collections.abc import Callable
from inspect import signature
from typing import Any

import numpy as np

from .backend import is_array
from .convert import computed
from .errors import ArgumentError, DTypeError, OutOfRangeError, TinynormError
from .formulas.types import Array, Namespace

Formula = Callable[..., Any]

# What NumPy raises for arrays that do not suit it.
FORESEEN = (IndexError, OverflowError, TypeError, ValueError)


class Op:
    """A pair of pure functions, and what the engine must know to run it.

    Args:
        name: what error messages and `repr` call it.
        forward: ``forward(xp, *inputs, **params) -> (y, cache)``.
        backward: ``backward(xp, dy, cache) -> gradients``, one per input. Either formula may take `needs`; see
            `tinynorm.formulas`.
        check: ``check(name, *inputs, **params)``, which raises a typed error for inputs the forward cannot take.
        widen: compute float16 in float32 and round once at the end. True for all that computes; False for operations
            that only move elements.
    """

    __slots__ = ("backward", "backward_needs", "check", "forward", "forward_needs", "name", "widen")

    def __init__(
        self,
        name: str,
        forward: Formula,
        backward: Formula,
        check: Callable[..., None] | None = None,
        *,
        widen: bool = True,
    ) -> None:
        self.name, self.forward, self.backward, self.check, self.widen = name, forward, backward, check, widen
        self.forward_needs, self.backward_needs = _takes_needs(forward), _takes_needs(backward)

    def __repr__(self) -> str:
        return f"<op {self.name}>"

    def run(
        self, xp: Namespace, inputs: tuple[Any, ...], needs: tuple[bool, ...], params: dict[str, Any]
    ) -> tuple[Array, Any]:
        """The forward's result and cache.

        float16 is for keeping numbers, not for computing with them: the formula sees float32 instead, and its result is
        rounded once. NumPy's own errors, where a check has not foreseen them, come out as typed ones.
        """
        if self.check is not None:
            self.check(self.name, *inputs, **params)
        half = self.widen and any(_is_half(a) for a in inputs)
        wide = [a.astype(np.float32) if _is_half(a) else a for a in inputs] if half else inputs
        if self.forward_needs:
            params = {**params, "needs": needs}
        try:
            result = self.forward(xp, *wide, **params)
        except TinynormError:
            raise
        except FORESEEN as error:
            raise _typed(self.name, error, inputs) from error
        if not isinstance(result, tuple) or len(result) != 2:
            raise ArgumentError(f"{self.name}: a forward formula must return two things, (y, cache)")
        y, cache = computed(self.name, "the forward formula's y", result[0]), result[1]
        if half and y.dtype == np.float32 and _promoted(inputs) == np.float16:
            y = y.astype(np.float16)
        return y, cache

    def pull_back(self, xp: Namespace, dy: Array, cache: Any, needs: tuple[bool, ...]) -> tuple[Any, ...]:
        """The backward's gradients as a tuple, one per input. Its formula, too, sees float32 in place of float16."""
        if dy.dtype == np.float16:
            dy = dy.astype(np.float32)
        try:
            gradients = self.backward(xp, dy, cache, needs) if self.backward_needs else self.backward(xp, dy, cache)
        except TinynormError:
            raise
        except FORESEEN as error:
            raise _typed(f"backward: {self.name}", error, (dy,)) from error
        return tuple(gradients) if isinstance(gradients, (tuple, list)) else (gradients,)


def _takes_needs(formula: Formula) -> bool:
    return "needs" in signature(formula).parameters


def _is_half(value: Any) -> bool:
    return is_array(value) and bool(value.dtype == np.float16)


def _promoted(inputs: tuple[Any, ...]) -> Any:
    """The dtype that NumPy's promotion gives these inputs."""
    return np.result_type(*(getattr(a, "dtype", a) for a in inputs if a is not None))


def _typed(name: str, error: Exception, inputs: tuple[Any, ...]) -> TinynormError:
    """NumPy's error as the library's own, with the operation's name and the inputs' shapes."""
    kind: type[TinynormError] = ArgumentError
    for builtin, typed in ((IndexError, OutOfRangeError), (TypeError, DTypeError)):
        if isinstance(error, builtin):
            kind = typed
    shapes = ", ".join(str(getattr(a, "shape", a)) for a in inputs)
    return kind(f"{name}: {error} (inputs: {shapes})")
