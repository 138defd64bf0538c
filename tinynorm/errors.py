"""Typed errors. Each says what went wrong, names the function and the arguments, and ends with the remedy.

Every class derives from `TinynormError` and from the built-in exception that a NumPy user would expect, so that both
``except tn.errors.ShapeError`` and ``except ValueError`` catch a shape that does not fit.
"""


class TinynormError(Exception):
    """Base of everything that tinynorm raises on purpose."""


class ShapeError(TinynormError, ValueError):
    """Shapes that do not fit each other, or do not fit what the function computes."""


class DTypeError(TinynormError, TypeError):
    """A dtype that the function cannot take: text, objects, complex numbers, integers where a gradient is asked for."""


class ArgumentError(TinynormError, ValueError):
    """An option whose value makes no sense, such as a negative eps or an unknown reduction."""


class OutOfRangeError(TinynormError, IndexError, ValueError):
    """An index, an axis or a class that does not exist."""


class DeviceError(TinynormError, RuntimeError):
    """Host and device arrays that meet in one operation, or a device that is not there, or no longer."""


class OutOfMemoryError(DeviceError, MemoryError):
    """A device without as much free memory as was asked for. Nothing has been changed."""


class GraphError(TinynormError, RuntimeError):
    """`backward` on something that has no graph, or whose graph was freed or changed since it was recorded."""


class GradientError(TinynormError, AssertionError):
    """An analytic gradient that disagrees with the numeric one."""


class StateError(TinynormError, ValueError):
    """A state dict that does not fit the module or optimizer it is loaded into. Nothing has been changed."""


class DataError(TinynormError, ValueError):
    """A data file that is truncated, or is not what its name promises."""


class MissingExtraError(TinynormError, ImportError):
    """An optional package that the function needs and that is not installed."""
