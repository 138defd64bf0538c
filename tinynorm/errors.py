"""Typed errors. Each says what went wrong, names the function and the arguments, and ends with the remedy.

Every class derives from `TinynormError` and from the built-in exception that a NumPy user would expect, so that both
``except tn.errors.ShapeError`` and ``except ValueError`` catch a shape that does not fit.
"""


class TinynormError(Exception):
    """Base of everything that tinynorm raises on purpose.

    >>> import tinynorm as tn
    >>> try:
    ...     tn.sum([1.0], axis=3)
    ... except tn.errors.TinynormError as error:
    ...     print(type(error).__name__, "is an IndexError:", isinstance(error, IndexError))
    OutOfRangeError is an IndexError: True
    """


class ShapeError(TinynormError, ValueError):
    """Shapes that do not fit each other, or do not fit what the function computes.

    >>> import tinynorm as tn
    >>> tn.matmul([[1.0, 2.0]], [[3.0, 4.0]])
    Traceback (most recent call last):
    tinynorm.errors.ShapeError: matmul: shapes (1, 2) and (1, 2) do not multiply: ...
    """


class DTypeError(TinynormError, TypeError):
    """A dtype that the function cannot take: text, objects, complex numbers, integers where a gradient is asked for.

    >>> import tinynorm as tn
    >>> tn.tensor([1, 2], requires_grad=True)
    Traceback (most recent call last):
    tinynorm.errors.DTypeError: tensor: only floating-point tensors can require gradients, not
    int64; write the numbers as floats or pass dtype=np.float32
    """


class ArgumentError(TinynormError, ValueError):
    """An option whose value makes no sense, such as a negative eps or an unknown reduction.

    >>> import tinynorm as tn
    >>> tn.functional.rms_norm([3.0, 4.0], 2, eps=-1.0)
    Traceback (most recent call last):
    tinynorm.errors.ArgumentError: rms_norm: eps must be a finite number >= 0, not -1.0
    """


class OutOfRangeError(TinynormError, IndexError, ValueError):
    """An index, an axis or a class that does not exist.

    >>> import tinynorm as tn
    >>> tn.functional.cross_entropy([[0.0, 0.0]], [2])
    Traceback (most recent call last):
    tinynorm.errors.OutOfRangeError: cross_entropy: target holds 2, but the 2 classes are numbered
    from 0; ...
    """


class DeviceError(TinynormError, RuntimeError):
    """Host and device arrays that meet in one operation, or a device that is not there, or no longer.

    >>> import tinynorm as tn
    >>> tn.tensor([1.0], device="gpu")
    Traceback (most recent call last):
    tinynorm.errors.DeviceError: unknown device 'gpu': write "cpu", "cuda" or "cuda:N" ...
    """


class OutOfMemoryError(DeviceError, MemoryError):
    """A device without as much free memory as was asked for. Nothing has been changed.

    >>> try:
    ...     raise OutOfMemoryError("linear: 'cuda:0' is out of memory")
    ... except MemoryError:
    ...     print("again, with a smaller batch")
    again, with a smaller batch
    """


class GraphError(TinynormError, RuntimeError):
    """`backward` on something that has no graph, or whose graph was freed or changed since it was recorded.

    >>> import tinynorm as tn
    >>> x = tn.tensor([3.0], requires_grad=True)
    >>> loss = (x * x).sum()
    >>> loss.backward()
    >>> loss.backward()
    Traceback (most recent call last):
    tinynorm.errors.GraphError: backward: the graph behind sum was freed by an earlier
    backward, ...
    """


class AnomalyError(TinynormError, FloatingPointError):
    """A nan or an infinity that was made from finite numbers while `tinynorm.detect_anomaly` looked on.

    >>> import numpy as np
    >>> import tinynorm as tn
    >>> with np.errstate(divide="ignore"), tn.detect_anomaly():
    ...     tn.log([0.0])
    Traceback (most recent call last):
    tinynorm.errors.AnomalyError: log: makes -inf from finite input, ...
    """


class GradientError(TinynormError, AssertionError):
    """An analytic gradient that disagrees with the numeric one.

    >>> import tinynorm as tn
    >>> tn.gradcheck(lambda x: x.detach() * x, [[3.0]])  # the first factor's share is missing
    Traceback (most recent call last):
    tinynorm.errors.GradientError: gradcheck: ...: argument 0, at (0,): the analytic
    gradient is ..., the numeric one ...
    """


class StateError(TinynormError, ValueError):
    """A state dict that does not fit the module or optimizer it is loaded into. Nothing has been changed.

    >>> import tinynorm as tn
    >>> tn.nn.Linear(2, 2).load_state_dict({})
    Traceback (most recent call last):
    tinynorm.errors.StateError: Linear.load_state_dict: missing: weight, bias; nothing was loaded
    """


class DataError(TinynormError, ValueError):
    """A data file that is truncated, or is not what its name promises.

    >>> import tinynorm as tn
    >>> tn.data.read_idx(tn.__file__)
    Traceback (most recent call last):
    tinynorm.errors.DataError: read_idx: path ... is not an IDX file: it starts with ...
    """


class DivergedError(TinynormError, RuntimeError):
    """A loss that is nan or infinite, in a run that should not go on.

    >>> import tinynorm as tn
    >>> try:
    ...     tn.optim.LossGuard().check(float("nan"), step=7, indices=[3, 1], checkpoint="run.npz")
    ... except tn.errors.DivergedError as error:
    ...     error.step, error.indices, error.checkpoint
    (7, (3, 1), 'run.npz')
    """

    step: int  #: where it happened
    indices: tuple[object, ...]  #: the rows of its batch in the data
    checkpoint: str | None  #: the path of the last good checkpoint


class MissingExtraError(TinynormError, ImportError):
    """An optional package that the function needs and that is not installed.

    >>> from tinynorm.extras import optional
    >>> optional("a_package_that_is_not_there", "examples")
    Traceback (most recent call last):
    tinynorm.errors.MissingExtraError: a_package_that_is_not_there cannot be imported (...);
    install it with: pip install 'tinynorm[examples]'
    """
