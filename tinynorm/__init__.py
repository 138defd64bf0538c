"""tinynorm: tensors, autograd and norms from scratch, to be read.

Every operation is a pair of pure functions, forward beside backward, in `tinynorm.formulas`. Everything else exists to
run those pairs: on NumPy, on CuPy, on complex numbers, on Tensors.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import array, errors
from .array import *  # noqa: F403
from .extend import op
from .graph import no_grad
from .kernels import formulas_only
from .kernels.threads import get_num_threads, set_num_threads
from .random import manual_seed
from .tensor import Tensor, as_tensor, from_dlpack, tensor

if TYPE_CHECKING:
    from . import data, functional, inspect, nn, optim, parallel, testing
    from .anomaly import detect_anomaly
    from .checkpoint import load, save
    from .derivatives import grad, hvp, jacobian, jvp, vjp
    from .testing.gradcheck import gradcheck, gradgradcheck

__version__ = "0.1.0"

__all__ = [
    "Tensor", "as_tensor", "data", "detect_anomaly", "errors", "formulas_only", "from_dlpack", "functional",
    "get_num_threads", "grad", "gradcheck", "gradgradcheck", "hvp", "inspect", "jacobian", "jvp", "load", "manual_seed",
    "nn", "no_grad", "op", "optim", "parallel", "save", "set_num_threads", "tensor", "testing", "vjp", *array.__all__,
]  # fmt: skip

_LATER = {
    **dict.fromkeys(("data", "functional", "inspect", "nn", "optim", "parallel", "testing"), ""),
    "detect_anomaly": "anomaly",
    **dict.fromkeys(("grad", "hvp", "jacobian", "jvp", "vjp"), "derivatives"),
    **dict.fromkeys(("load", "save"), "checkpoint"),
    **dict.fromkeys(("gradcheck", "gradgradcheck"), "testing"),
}
"""What is imported when it is asked for: a module, or a name and the module that has it."""


if not TYPE_CHECKING:  # a type checker would take any misspelt name for one that this function has

    def __getattr__(name: str) -> Any:
        """Parts that not every program needs are imported when they are asked for."""
        if name not in _LATER:
            raise AttributeError(f"module 'tinynorm' has no attribute {name!r}")
        module = import_module(f"{__name__}.{_LATER[name] or name}")
        found = getattr(module, name) if _LATER[name] else module
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    """All names, also of what has not been asked for."""
    return sorted({*globals(), *_LATER})
