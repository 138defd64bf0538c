"""Whether kernels are used."""

import os
from collections.abc import Callable
from contextlib import ContextDecorator
from contextvars import ContextVar
from typing import Any, TypeVar

from ..options import decorable

F = TypeVar("F", bound=Callable[..., Any])

_pauses: ContextVar[int] = ContextVar("tinynorm_formulas_only", default=int(os.environ.get("TINYNORM_KERNELS") == "0"))


def enabled() -> bool:
    """Whether kernels may serve here."""
    return _pauses.get() == 0


class formulas_only(ContextDecorator):
    """Run the readable formulas inside, and no kernels. The environment variable TINYNORM_KERNELS=0 does so everywhere.

    Works as ``with tn.formulas_only():`` and as a decorator of functions, ``@tn.formulas_only()``, for the thread or
    async task that enters it.

    >>> import tinynorm as tn
    >>> x = tn.tensor([3.0, 4.0])
    >>> with tn.formulas_only():
    ...     y = tn.functional.rms_norm(x, 2, eps=0.0)
    >>> bool(abs(y - tn.functional.rms_norm(x, 2, eps=0.0)).max() < 1e-6)
    True
    """

    def __enter__(self) -> None:
        _pauses.set(_pauses.get() + 1)

    def __exit__(self, *exception: object) -> None:
        _pauses.set(_pauses.get() - 1)

    def __call__(self, function: F) -> F:
        """Decorate a function."""
        decorable("formulas_only", function)
        return super().__call__(function)
