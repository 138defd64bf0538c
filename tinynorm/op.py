"""An operation: a forward and a backward formula joined under a name, and how to run them on arrays."""

from collections.abc import Callable, Sequence
from functools import wraps
from inspect import Parameter, signature
from typing import Any

import numpy as np

from .convert import computed
from .errors import ArgumentError, DTypeError, OutOfRangeError, ShapeError, TinynormError
from .formulas.types import Array, Namespace
from .kernels import Kernel, enabled

Formula = Callable[..., Any]

WHAT = "the forward formula's y"

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
        keeps: whether arrays may be in the cache.
        late: whether NumPy refuses by itself, though in other words, all that `check` refuses: then it need only run to
            find these words.
        kernel: a faster pair, used where it suits.
        cuda: the same for CuPy's arrays.
        quiet: let NumPy warn of no overflow on the way, since the formulas look for it themselves and mend it.
    """

    __slots__ = (
        "_backward", "_forward", "backward", "backward_needs", "check", "cuda", "forward", "forward_needs", "keeps",
        "kernel", "late", "name", "quiet", "widen",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        forward: Formula,
        backward: Formula,
        check: Callable[..., None] | None = None,
        *,
        widen: bool = True,
        keeps: bool = True,
        late: bool = False,
        kernel: Kernel | None = None,
        cuda: Kernel | None = None,
        quiet: bool = False,
    ) -> None:
        self.name, self.forward, self.backward, self.check = name, forward, backward, check
        self.widen, self.keeps, self.late, self.quiet = widen, keeps, late, quiet
        self.kernel, self.cuda = kernel, cuda
        self._forward, self._backward = (_quiet(forward), _quiet(backward)) if quiet else (forward, backward)
        self.forward_needs, self.backward_needs = _takes_needs(forward), _takes_needs(backward)

    def __repr__(self) -> str:
        return f"<op {self.name}>"

    def argument(self, i: int) -> str:
        """What the forward formula calls its i-th input."""
        given = [p for p in [*signature(self.forward).parameters.values()][1:] if p.kind <= p.VAR_POSITIONAL]
        last = len(given) - 1
        if i < last or (i == last and given[i].kind is not Parameter.VAR_POSITIONAL):
            return given[i].name
        return f"{given[last].name if given else 'operands'}[{i - last}]"

    def run(
        self, xp: Namespace, inputs: tuple[Any, ...], needs: tuple[bool, ...], params: dict[str, Any]
    ) -> tuple[Array, Any]:
        """The forward's result and cache, for inputs that nobody has judged yet."""
        if self.check is not None:
            self.check(self.name, *inputs, **params)
        y, cache = self.evaluate(xp, inputs, needs, params)
        return self.rounded(computed(self.name, WHAT, y, xp), inputs), cache

    def run_plain(
        self, arrays: Sequence[Any], needs: tuple[bool, ...], params: dict[str, Any]
    ) -> tuple[Array, Any, Kernel | None]:
        """The same as `run`, for NumPy's arrays of dtypes that formulas compute in, and numbers.

        The third result is the kernel whose backward can read the cache; None where the formula has made it.
        """
        kernel = self.kernel
        if kernel is not None and enabled() and kernel.suits(*arrays, **params):
            found = kernel.forward(needs, *arrays, **params)
            if found is not None:
                return found[0], found[1], kernel
        if not self.late and self.check is not None:
            self.check(self.name, *arrays, **params)
        try:
            if self.forward_needs:
                result = self._forward(np, *arrays, needs=needs, **params)
            else:
                result = self._forward(np, *arrays, **params)
        except (*FORESEEN, TinynormError):
            result = None
        if type(result) is tuple and len(result) == 2:
            y = np.asarray(result[0]) if isinstance(result[0], np.generic) else result[0]
            if type(y) is np.ndarray and y.dtype.kind in "fiub":
                return y, result[1], None
        return *self.run(np, tuple(arrays), needs, params), None  # once more, where there is time for words

    def run_any(
        self, xp: Namespace, inputs: tuple[Any, ...], needs: tuple[bool, ...], params: dict[str, Any]
    ) -> tuple[Array, Any, Kernel | None]:
        """The same as `run_plain`, for what is not plain: CuPy's arrays, float16, and whatever may be refused."""
        kernel = self.cuda
        if kernel is not None and xp is not np and enabled() and kernel.suits(*inputs, **params):
            found = kernel.forward(needs, *inputs, **params)
            if found is not None:
                return found[0], found[1], kernel
        return *self.run(xp, inputs, needs, params), None

    def evaluate(
        self, xp: Namespace, inputs: Sequence[Any], needs: tuple[bool, ...], params: dict[str, Any]
    ) -> tuple[Any, Any]:
        """The forward formula's own result and cache, on whatever kind of number the array module computes with.

        float16 is for keeping numbers, not for computing with them: the formula sees float32 instead. NumPy's own
        errors, where a check has not foreseen them, come out as typed ones.
        """
        wide = [a.astype(np.float32) if _is_half(a) else a for a in inputs] if self.widen else inputs
        if self.forward_needs:
            params = {**params, "needs": needs}
        try:
            result = self._forward(xp, *wide, **params)
        except TinynormError:
            raise
        except FORESEEN as error:
            raise _typed(self.name, error, inputs) from error
        if not isinstance(result, tuple) or len(result) != 2:
            raise ArgumentError(f"{self.name}: a forward formula must return two things, (y, cache)")
        return result

    def rounded(self, y: Array, inputs: Sequence[Any]) -> Array:
        """The result, back in float16 if that is what went in."""
        if self.widen and y.dtype == np.float32 and any(map(_is_half, inputs)) and _promoted(inputs) == np.float16:
            with np.errstate(over="ignore"):
                return y.astype(np.float16)
        return y

    def pull_back(self, xp: Namespace, dy: Array, cache: Any, needs: tuple[bool, ...]) -> tuple[Any, ...]:
        """The backward's gradients as a tuple, one per input. Its formula, too, sees float32 in place of float16."""
        if dy.dtype.char == "e":
            dy = dy.astype(np.float32)
        try:
            gradients = self._backward(xp, dy, cache, needs) if self.backward_needs else self._backward(xp, dy, cache)
        except TinynormError:
            raise
        except FORESEEN as error:
            raise _typed(f"backward: {self.name}", error, (dy,)) from error
        if type(gradients) is not tuple:
            gradients = tuple(gradients) if isinstance(gradients, (tuple, list)) else (gradients,)
        if len(gradients) != len(needs):
            raise ShapeError(
                f"backward: {self.name} has {len(needs)} inputs, but its backward formula returned "
                f"{len(gradients)} gradients; return one per input, None for a constant"
            )
        return gradients


def _quiet(formula: Formula) -> Formula:
    @wraps(formula)
    def run(*arguments: Any, **params: Any) -> Any:
        with np.errstate(all="ignore"):
            return formula(*arguments, **params)

    return run


def _takes_needs(formula: Formula) -> bool:
    code = None if hasattr(formula, "__wrapped__") else getattr(formula, "__code__", None)
    if code is None:
        return "needs" in signature(formula).parameters
    return "needs" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]  # in a tenth of the time


def _is_half(value: Any) -> bool:
    return bool(getattr(value, "dtype", None) == np.float16) and not isinstance(value, np.generic)


def _promoted(inputs: Sequence[Any]) -> Any:
    """The dtype that NumPy's promotion gives these inputs."""
    return np.result_type(*(getattr(a, "dtype", a) for a in inputs if a is not None))


def _typed(name: str, error: Exception, inputs: Sequence[Any]) -> TinynormError:
    """NumPy's error as the library's own, with the operation's name and the inputs' shapes."""
    kind: type[TinynormError] = ArgumentError
    for builtin, typed in ((IndexError, OutOfRangeError), (TypeError, DTypeError)):
        if isinstance(error, builtin):
            kind = typed
    shapes = ", ".join(str(getattr(a, "shape", a)) for a in inputs)
    return kind(f"{name}: {error} (inputs: {shapes})")
