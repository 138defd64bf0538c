"""tinynorm: tensors, autograd and norms from scratch, to be read.

Every operation is a pair of pure functions, forward beside backward, in `tinynorm.formulas`. Everything else exists to
run those pairs: on NumPy, on CuPy, on complex numbers.
"""

from . import array, data, errors, functional, nn, optim, testing
from .array import *  # noqa: F403
from .derivatives import grad, hvp, jacobian, jvp, vjp
from .extend import op
from .graph import no_grad
from .kernels import formulas_only
from .kernels.threads import get_num_threads, set_num_threads
from .random import manual_seed
from .tensor import Tensor, as_tensor, tensor
from .testing import gradcheck, gradgradcheck

__version__ = "0.1.0"

__all__ = [
    "Tensor", "as_tensor", "data", "errors", "formulas_only", "functional", "get_num_threads", "grad", "gradcheck",
    "gradgradcheck", "hvp", "jacobian", "jvp", "manual_seed", "nn", "no_grad", "op", "optim", "set_num_threads",
    "tensor", "testing", "vjp", *array.__all__,
]  # fmt: skip
