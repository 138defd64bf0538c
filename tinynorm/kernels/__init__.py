"""The same mathematics made fast: for some operations a second pair, of the same results in another order of steps.

The readable formulas are the specification. A kernel serves an operation where its `suits` says that it can (arrays of
NumPy's, and in `cuda` of CuPy's, of a dtype and layout that it was written for), and otherwise, or inside of ``with
tn.formulas_only():``, the formula runs. Everything that is not a plain forward and backward, such as complex steps and
derivatives of derivatives, runs the formulas in any case. tests/test_kernels*.py, and tests/device/ for `cuda`, hold
each kernel to its formula.

What makes those for NumPy fast: results go into memory that was used before (`buffers`), rows are taken in blocks that
stay in the cache (`blocks`), and large arrays are shared among threads (`threads`), with results that do not depend on
how many.
"""

from .kernel import Kernel
from .switch import enabled, formulas_only

__all__ = ["Kernel", "enabled", "formulas_only"]
