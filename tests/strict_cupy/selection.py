"""Which of CuPy's functions the stand-in has, in kinds that differ in what they ask and do.

Whatever stands here is compared with the real package, in `expressions`. The rest is refused, although CuPy has it,
until somebody needs it and adds it here and there.
"""

UFUNCS = (
    "abs", "absolute", "acos", "add", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "asin",
    "atan", "bitwise_and", "bitwise_or", "bitwise_xor", "cbrt", "ceil", "conj", "conjugate", "copysign", "cos", "cosh",
    "divide", "divmod", "equal", "exp", "exp2", "expm1", "float_power", "floor", "floor_divide", "fmax", "fmin",
    "frexp", "greater", "greater_equal", "hypot", "invert", "isfinite", "isinf", "isnan", "ldexp", "left_shift", "less",
    "less_equal", "log", "log10", "log1p", "log2", "logaddexp", "logical_and", "logical_not", "logical_or",
    "logical_xor", "maximum", "minimum", "mod", "modf", "multiply", "negative", "nextafter", "not_equal", "positive",
    "pow", "power", "reciprocal", "remainder", "right_shift", "rint", "sign", "signbit", "sin", "sinh", "sqrt",
    "square", "subtract", "tan", "tanh", "true_divide", "trunc",
)  # fmt: skip

REDUCED = ("add", "multiply")
"""The ufuncs that have a `reduce` and an `accumulate`."""

WRITTEN_AT = {"add": "iIlLqQefd", "subtract": "iI", "maximum": "iIlLqQfd", "minimum": "iIlLqQfd"}
"""The ufuncs that have an `at`, and the dtypes that it can write to."""

VIEWS = (
    "array_split", "atleast_1d", "atleast_2d", "atleast_3d", "broadcast_to", "diagonal", "expand_dims", "flip",
    "moveaxis", "permute_dims", "ravel", "real", "reshape", "split", "squeeze", "swapaxes", "transpose",
)  # fmt: skip
"""What is no work for a device, wherever a view will do."""

COMPUTED = (
    "all", "allclose", "amax", "amin", "any", "argmax", "argmin", "array_equal", "ascontiguousarray", "average",
    "concat", "concatenate", "count_nonzero", "cumprod", "cumsum", "diag", "dot", "empty_like", "full_like", "hstack",
    "imag", "inner", "isclose", "matmul", "max", "mean", "min", "nan_to_num", "ones_like", "outer", "pad", "prod",
    "put_along_axis", "repeat", "roll", "round", "stack", "std", "sum", "take", "take_along_axis", "tensordot", "tile",
    "trace", "tril", "triu", "var", "vdot", "vstack", "where", "zeros_like",
)  # fmt: skip
"""What is work for a device."""

MADE = ("arange", "empty", "eye", "identity", "indices", "linspace", "ones", "tri", "zeros")
"""What makes an array out of numbers."""

COUNTED = ("argwhere", "flatnonzero", "nonzero")
"""What has a shape that only the device knows: it is copied to the host, unseen."""

ASKED = (
    "broadcast_shapes", "can_cast", "iscomplexobj", "isscalar", "issubdtype", "may_share_memory", "ndim",
    "promote_types", "result_type", "shape", "size",
)  # fmt: skip
"""What is known without a look at the numbers."""

ONE_ARRAY = (*VIEWS, *COMPUTED, *COUNTED)
"""What takes a device array first."""
TWO_ARRAYS = ("dot", "inner", "matmul", "outer", "take_along_axis", "tensordot", "vdot")
"""What takes two, and no number in the place of one."""
SEQUENCES = ("concat", "concatenate", "hstack", "stack", "vstack")
"""What takes a list or tuple of them first, or an array as a list of its rows."""

VIEW_METHODS = ("diagonal", "ravel", "reshape", "squeeze", "swapaxes", "transpose", "view")
METHODS = (
    "all", "any", "argmax", "argmin", "conj", "cumprod", "cumsum", "dot", "flatten", "max", "mean", "min", "prod",
    "repeat", "round", "std", "sum", "take", "trace", "var", *VIEW_METHODS,
)  # fmt: skip
"""The methods of an array that are NumPy's but for their keywords."""
