"""Mini-batches of arrays in memory."""

from collections.abc import Iterator
from typing import Any, Protocol, TypeVar

from ..backend import on_device_of
from ..convert import real_array
from ..errors import DTypeError, ShapeError
from ..formulas.types import Array
from ..options import count
from ..random import Rng, generator


class _Rows(Protocol):
    """What `batches` asks of an array: a shape and indexing. NumPy, CuPy and `Tensor` all have them."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    def __getitem__(self, index: Any, /) -> Any: ...


X = TypeVar("X", bound=_Rows)
Y = TypeVar("Y", bound=_Rows)


def batches(
    x: X,
    y: Y,
    batch_size: int,
    shuffle: bool = True,
    rng: Rng = None,
    drop_last: bool = False,
) -> Iterator[tuple[X, Y]]:
    """Iterate once over the rows of x and y in mini-batches: one call is one epoch.

    x (N, ...) and y (N, ...) are NumPy arrays, CuPy arrays or Tensors of any dtype; each batch is a pair of the same
    kinds with up to `batch_size` rows. Lists are made arrays; a pandas object, which indexes by label, is refused.

    With `shuffle`, each call draws one permutation from `rng`: pass the same Generator to every epoch, since an int
    seed repeats one order; None is the library's default. Without `shuffle`, the batches are views of x and y.

    The last batch is smaller when `batch_size` does not divide N, unless `drop_last` leaves it out. Weight its mean
    loss by its size when averaging over the epoch: Σ len(batch) · loss / Σ len(batch), not the mean of the losses.

    Raises, at the call and not at the first batch: ShapeError if x or y is 0-d or their lengths differ; ArgumentError
    if `batch_size` is not a positive integer; DTypeError if x or y is not an array.

    Source: Bottou, "Curiously Fast Convergence of some Stochastic Gradient Descent Algorithms" (2009).

    >>> import numpy as np
    >>> from tinynorm.data import batches
    >>> x, y = np.arange(10).reshape(5, 2), np.arange(5)
    >>> [labels.tolist() for _, labels in batches(x, y, 2, shuffle=False)]
    [[0, 1], [2, 3], [4]]
    >>> rng = np.random.default_rng(0)
    >>> float(sum(len(labels) * labels.mean() for _, labels in batches(x, y, 2, rng=rng)) / len(y))
    2.0
    """
    x, y = _rows("x", x), _rows("y", y)
    n = x.shape[0]
    if n != y.shape[0]:
        raise ShapeError(f"batches: x has {n} rows and y has {y.shape[0]}; give exactly one row of y per row of x")
    size = count("batches", "batch_size", batch_size, least=1)
    rng = generator(rng)

    stop = n - n % size if drop_last else n
    parts = (slice(start, start + size) for start in range(0, stop, size))
    if not shuffle:
        return ((x[part], y[part]) for part in parts)
    order = rng.permutation(n)  # on the host: the same seed gives the same batches on every device
    return ((_taken(x, order[part]), _taken(y, order[part])) for part in parts)


def _taken(rows: Any, index: Array) -> Any:
    """Rows as a new array, on their device."""
    with on_device_of(rows, "batches"):
        return rows[index]


def _rows(name: str, data: Any) -> Any:
    """An array of at least one row; a list is made one."""
    rows = real_array("batches", data) if isinstance(data, (list, tuple)) else data
    if not hasattr(rows, "shape") or hasattr(rows, "iloc"):
        raise DTypeError(f"batches: {name} is a {type(rows).__name__}, not an array; pass np.asarray({name})")
    if not rows.shape:
        raise ShapeError(f"batches: {name} is 0-d and has no rows; give it a first axis, one entry per example")
    return rows
