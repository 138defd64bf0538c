"""`tn.op`: a new operation, in its author's own file."""

from collections.abc import Callable
from functools import update_wrapper, wraps
from inspect import signature
from typing import Any

import numpy as np

from .backend import is_array
from .convert import computed
from .errors import ArgumentError, GraphError
from .kernels import Kernel
from .memory import cached_arrays
from .op import Formula, Op
from .tensor import Tensor, apply


def op(name: str) -> Callable[[Formula], "NewOp"]:
    """Make an operation out of a forward formula; the result's ``backward`` takes the other half of the pair.

    The operation is called on Tensors, arrays and numbers like any function of the library. It broadcasts, runs on both
    backends and is recorded; the engine undoes broadcasting and promotion. The rules for the two formulas stand in
    `tinynorm.formulas`.

    Args:
        name: what error messages call it.

    >>> import tinynorm as tn
    >>> @tn.op("cube")
    ... def cube(xp, x):
    ...     return x * x * x, x
    >>> @cube.backward
    ... def _(xp, dy, x):
    ...     return dy * (3.0 * x * x)
    >>> t = tn.tensor([1.0, 2.0], requires_grad=True)
    >>> cube(t).sum().backward()
    >>> t.grad
    array([ 3., 12.], dtype=float32)
    """

    if not isinstance(name, str):
        raise ArgumentError('op: needs a name; write @tn.op("name") above the forward formula')

    def join(forward: Formula) -> NewOp:
        return NewOp(name, forward)

    return join


class NewOp:
    """An operation of a user's own. Made by `op`; call it on Tensors, and give it its `backward` once.

    Where speed matters, it can have a `kernel` besides.
    """

    def __init__(self, name: str, forward: Formula) -> None:
        self._op = Op(name, forward, self._missing)
        update_wrapper(self, forward)

    def backward(self, formula: Formula) -> Formula:
        """Take ``formula(xp, dy, cache)``, which returns one gradient per input, as the backward. A decorator."""
        try:
            signature(formula).bind(*(None,) * (4 if "needs" in signature(formula).parameters else 3))
        except TypeError as error:
            raise ArgumentError(
                f"{self._op.name}: a backward formula takes (xp, dy, cache), or (xp, dy, cache, needs), but {error}"
            ) from error
        self._op = Op(self._op.name, self._op.forward, _with_gradients_of_its_own(formula), kernel=self._op.kernel)
        return formula

    def kernel(self, kernel: Kernel) -> Kernel:
        """Take a faster pair, which serves NumPy's arrays where its `suits` says so; `Kernel` has what it must be.

        Complex steps, derivatives of derivatives and ``with tn.formulas_only():`` run the formulas nevertheless.

        Raises:
            ArgumentError: for what is no Kernel.

        >>> import numpy as np
        >>> import tinynorm as tn
        >>> from tinynorm.kernels import Kernel
        >>> @tn.op("cube")
        ... def cube(xp, x):
        ...     return x**3, x
        >>> @cube.backward
        ... def _(xp, dy, x):
        ...     return dy * (3.0 * x * x)
        >>> _ = cube.kernel(Kernel(
        ...     suits=lambda x: isinstance(x, np.ndarray),
        ...     forward=lambda needs, x: (x * x * x, x),
        ...     backward=lambda dy, x, needs: (3.0 * (dy * x * x),),
        ... ))
        >>> float(cube(tn.tensor(2.0)))
        8.0
        """
        if not isinstance(kernel, Kernel):
            raise ArgumentError(f"{self._op.name}: kernel takes a tinynorm.kernels.Kernel, not {kernel!r}")

        def formula(xp: Any, dy: Any, cache: Any, needs: Any) -> Any:
            return kernel.backward(dy, cache, needs)

        pair = Op(self._op.name, self._op.forward, _with_gradients_of_its_own(formula))  # which checks gradients

        @wraps(kernel.forward)
        def forward(needs: Any, *inputs: Any, **options: Any) -> Any:
            found = kernel.forward(needs, *inputs, **options)
            if found is None:
                return None
            if not isinstance(found, tuple) or len(found) != 2:
                raise ArgumentError(f"{self._op.name}: a kernel's forward must return two things, (y, cache), or None")
            return computed(self._op.name, "the kernel's y", found[0], np), found[1]

        @wraps(kernel.backward)
        def backward(dy: Any, cache: Any, needs: Any) -> Any:
            return pair.pull_back(np, dy, cache, needs)

        self._op.kernel = kernel._replace(forward=forward, backward=backward)
        return kernel

    def __call__(self, *inputs: Any, **options: Any) -> Tensor:
        """Run the operation on its inputs, which are given by position; keywords are plain options."""
        for key, value in options.items():
            if isinstance(value, Tensor) or is_array(value):
                raise ArgumentError(f"{self._op.name}: pass the array {key!r} by position; keywords are plain options")
        # An option must not widen a dtype, as np.float64(1e-5) would and 1e-5 does not.
        plain = {key: value.item() if isinstance(value, np.generic) else value for key, value in options.items()}
        return apply(self._op, *inputs, **plain)

    def __repr__(self) -> str:
        return repr(self._op)

    def _missing(self, xp: Any, dy: Any, cache: Any) -> Any:
        name = self._op.name
        raise GraphError(f"backward: {name} has no backward formula; write one under @{name}.backward")


def _with_gradients_of_its_own(formula: Formula) -> Formula:
    """The formula, but never with an array of its cache as a gradient, which in the end its owner may write to."""

    @wraps(formula)
    def backward(xp: Any, dy: Any, cache: Any, *needs: Any) -> Any:
        gradients = formula(xp, dy, cache, *needs)
        cached = {id(array) for array in cached_arrays(cache)}
        several = gradients if isinstance(gradients, (tuple, list)) else (gradients,)
        return tuple(g.copy() if id(g) in cached else g for g in several)

    return backward
