"""The function under test, as a function of plain numbers: float64 arrays in, one long vector out."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from .. import backend
from ..derivatives import grad
from ..errors import ArgumentError, DTypeError, GradientError, GraphError, ShapeError
from ..extend import NewOp
from ..formulas.types import Array
from ..graph import differentiated, replay
from ..options import count, finite
from ..tensor import Tensor, as_tensor, fresh, tensor

Points = dict[int, Array]  #: by argument: where it stands


class Subject:
    """A function and where it is examined, on copies of its inputs.

    Args:
        caller: whom error messages speak for.
        fn: takes Tensors; gives a Tensor, or several in a tuple or list.
        inputs: fn's arguments. Those that `as_argument` makes floating-point Tensors of are differentiated, in float64;
            the others are passed on as they are.
        away_from: where fn has kinks. Elements close to one of these numbers are moved a little further away.
    """

    def __init__(self, caller: str, fn: Callable[..., Any], inputs: Sequence[Any], away_from: Any) -> None:
        if not callable(fn):
            raise DTypeError(
                f"{caller}: fn must be a function of Tensors, not {type(fn).__name__}; its result will not do"
            )
        self.fn, self.name, self.caller = fn, name_of(fn), caller
        given = [as_argument(value) for value in inputs]
        self.constants: list[Any] = []
        self.points: Points = {}
        self.strides: dict[int, tuple[int, ...]] = {}
        self.devices: dict[int, str] = {}
        self.notices = raised(given)
        self.as_leaves = False  #: whether fn gets Tensors that require gradients also where none is asked for
        kinks = [finite(caller, "away_from", kink) for kink in np.ravel(away_from).tolist()]
        for k, t in enumerate(given):
            if not _is_floating(t):
                self.constants.append(tensor(t) if isinstance(t, Tensor) else t)
                continue
            host = t.numpy()
            self.points[k] = point = _moved(np.array(host, dtype=np.float64, order="C"), kinks)
            self.constants.append(tensor(point, device=t.device))
            self.strides[k], self.devices[k] = host.strides, t.device
        if not self.points:
            raise ArgumentError(f"{caller}: no input is floating-point, so there is nothing to differentiate")

    # Values

    def __call__(self, moved: Points) -> Array:
        """All results in one vector, where these arguments stand somewhere else. The arrays become fn's."""
        arguments = list(self.constants)
        for k, point in moved.items():
            arguments[k] = fresh(backend.to_device(point, self.devices[k]))
        if self.as_leaves:
            arguments = [as_tensor(t, requires_grad=True) if k in self.points else t for k, t in enumerate(arguments)]
        with differentiated():
            return self._flat(several(self.fn(*arguments)))

    @staticmethod
    def _flat(results: list[Tensor]) -> Array:
        vectors = [backend.to_device(r._data, backend.CPU).reshape(-1) for r in results]
        joined = vectors[0] if len(vectors) == 1 else np.concatenate([np.zeros(0), *vectors])
        return joined.astype(np.result_type(joined.dtype, np.float64))

    # The graph

    def record(self) -> None:
        """Run the function for its graph, from inputs in the memory layout of those given.

        Raises `GradientError` when it changes its inputs, gives another result the second time, or no finite one.
        """
        self.leaves: dict[int, Tensor] = {}
        for k, point in self.points.items():
            laid_out = backend.to_device(_laid_out(point, self.strides[k]), self.devices[k])
            self.leaves[k] = as_tensor(laid_out, requires_grad=True)
        before = {k: t.numpy().copy() for k, t in enumerate(self.constants) if isinstance(t, Tensor)}
        arguments = [self.leaves.get(k, constant) for k, constant in enumerate(self.constants)]
        with differentiated():
            self.results = several(self.fn(*arguments))
        self.shapes = [r.shape for r in self.results]
        self.value = self._flat(self.results)
        for k, known in before.items():
            self._same(k, known, arguments[k].detach().numpy(), "the function changes it")
        self._check_digits()
        self._check_repeatable()
        self._check_finite()

    def _check_digits(self) -> None:
        for r in self.results:
            if r.requires_grad and r.dtype.itemsize < 8:
                raise DTypeError(
                    f"{self.caller}: {self.name} returns {r.dtype} for float64 inputs, which has too few digits for "
                    "differences; let it keep the dtype of its inputs"
                )

    def _check_repeatable(self) -> None:
        try:
            again = self(self._copies())
        except GraphError:  # fn takes derivatives itself, which it can of leaves alone; all else asks for less work
            self.as_leaves = True
            again = self(self._copies())
        if again.shape != self.value.shape or not alike(self.value, again):
            raise GradientError(
                "two calls with equal inputs give different results, so there is nothing to compare; "
                "if it draws random numbers, let it take a fixed seed"
            )

    def _copies(self) -> Points:
        return {k: point.copy() for k, point in self.points.items()}

    def _check_finite(self) -> None:
        for k, point in self.points.items():
            if not np.all(np.isfinite(point)):
                raise GradientError(f"argument {k} holds inf or nan, where nothing can be differentiated")
        if not np.all(np.isfinite(self.value)):
            position = int(np.argmin(np.isfinite(self.value)))
            index, which = self.place(position)
            raise GradientError(
                f"the result{which} is {self.value[position]} at {index}, where nothing can be differentiated"
            )

    def gradients(self, cotangent: Array) -> Points:
        """cotangent · ∂results/∂argument as the backward formulas have it, flat, for each argument."""
        parts = [
            (r, as_tensor(backend.to_device(part, r.device)))
            for r, part in zip(self.results, self.parts(cotangent), strict=True)
            if r.requires_grad
        ]
        if not parts:
            return {k: np.zeros(point.size) for k, point in self.points.items()}
        before = cotangent.copy()
        outputs, cotangents = zip(*parts, strict=True)
        try:
            found = grad(list(outputs), list(self.leaves.values()), list(cotangents))
        except ShapeError as error:  # in which a backward formula's gradients come
            raise GradientError(str(error)) from error
        for k, leaf in self.leaves.items():
            self._same(k, self.points[k], leaf.detach().numpy(), "a backward formula writes to it")
        if not np.array_equal(before, cotangent):
            raise GradientError("a backward formula writes to its cotangent; it must compute with copies")
        return {k: g.numpy().reshape(-1) for k, g in zip(self.leaves, found, strict=True)}

    def check_results(self) -> None:
        """Raise `GradientError` if the results are no longer what they were."""
        if not np.array_equal(self._flat(self.results), self.value):
            raise GradientError("a backward formula writes to its cache, which fn's result shares; it must copy first")

    def complex_slope(self, direction: "Direction", h: float) -> Array:
        """The results' derivative along a direction, by a complex step through the recorded graph.

        Raises what the formulas raise that do not take complex numbers.
        """
        k = direction.argument
        point = self.points[k].astype(np.complex128)
        point.reshape(-1)[direction.indices] += 1j * h * direction.weights
        source = self.leaves[k]._source
        assert source is not None
        values = {source: backend.to_device(point, self.devices[k])}
        slopes = []
        for r in self.results:
            if r._source is None:
                slopes.append(np.zeros(r.size))
            else:
                y = backend.to_device(backend.as_array(replay(r._source, values)), backend.CPU)
                slopes.append(np.imag(y).reshape(-1) / h)
        return np.concatenate([np.zeros(0), *slopes])

    # Words

    def parts(self, vector: Array) -> list[Array]:
        """A vector like the results', cut into their shapes."""
        pieces = np.split(vector, self._ends())[:-1]
        return [piece.reshape(shape) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def vector(self, cotangent: Any) -> Array:
        """A given cotangent, one array for each result, in one vector like the results'."""
        parts = cotangent if len(self.shapes) > 1 and isinstance(cotangent, (tuple, list)) else [cotangent]
        arrays = [np.asarray(as_tensor(part).detach().numpy(), dtype=np.float64) for part in parts]
        if [a.shape for a in arrays] != self.shapes:
            raise ShapeError(
                f"{self.caller}: cotangent must have the shape of fn's result, {self.shapes}, "
                f"not {[a.shape for a in arrays]}"
            )
        return np.concatenate([np.zeros(0), *(a.reshape(-1) for a in arrays)])

    def index(self, direction: "Direction") -> tuple[int, ...]:
        """Where a direction's first element stands in its argument."""
        return index_in(self.points[direction.argument].shape, int(direction.indices[0]))

    def place(self, position: int) -> tuple[tuple[int, ...], str]:
        """The index of a position in the vector of results, and which of several results it lies in."""
        number = int(np.searchsorted(self._ends(), position, side="right"))
        start = int(self._ends()[number - 1]) if number else 0
        which = f" {number}" if len(self.shapes) > 1 else ""
        return index_in(self.shapes[number], position - start), which

    def _ends(self) -> Array:
        return np.cumsum([int(np.prod(shape)) for shape in self.shapes])

    def _same(self, k: int, before: Array, after: Array, what: str) -> None:
        if not np.array_equal(before, after, equal_nan=before.dtype.kind == "f"):
            different = ~((before == after) | ((before != before) & (after != after)))
            where = index_in(before.shape, int(np.argmax(different)))
            raise GradientError(
                f"argument {k} is not what it was, at {where}: {what}; it must compute with a copy instead"
            )


class Direction:
    """A straight line through one argument: some of its elements move at once, each at its own speed."""

    __slots__ = ("argument", "indices", "weights")

    def __init__(self, argument: int, indices: Array, weights: Array) -> None:
        self.argument, self.indices, self.weights = argument, indices, weights

    def along(self, subject: Subject) -> Callable[[float], Array]:
        """The results as a function of how far one has gone."""
        start = subject.points[self.argument]

        def at(t: float) -> Array:
            point = start.copy()
            point.reshape(-1)[self.indices] += t * self.weights
            return subject({self.argument: point})

        return at

    def of(self, gradients: Points) -> Array:
        """The derivative in this direction that follows from gradients, each in a row of its own."""
        return gradients[self.argument][:, self.indices] @ self.weights

    def size_of(self, gradients: Points) -> Array:
        """The size of the terms that `of` adds up."""
        return np.abs(gradients[self.argument][:, self.indices]) @ np.abs(self.weights)


def arguments_of(caller: str, inputs: Any) -> list[Any]:
    """fn's arguments as a list; a Tensor or an array is the only one."""
    if isinstance(inputs, Tensor) or backend.is_array(inputs):
        return [inputs]
    if not isinstance(inputs, Sequence) or isinstance(inputs, (str, bytes)):
        raise ArgumentError(f"{caller}: inputs must be a list of fn's arguments; for a single x write [x]")
    return list(inputs)


def as_argument(value: Any) -> Any:
    """A Tensor in place of an array, a float, or a list of floats, sharing memory; all else, such as an axis, as it is.

    Python's floats keep all their digits.
    """
    if isinstance(value, Tensor) or backend.is_array(value):
        return as_tensor(value).detach()
    if not _holds_floats(value):
        return value
    try:
        whole = np.asarray(value)
    except ValueError:  # nested lists of unequal length, for which as_tensor has words
        return as_tensor(value)
    return as_tensor(whole if whole.dtype == np.float64 else value).detach()


def _holds_floats(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_holds_floats, value))
    return isinstance(value, (float, np.floating)) or _is_floating(value)


def _is_floating(value: Any) -> bool:
    return (isinstance(value, Tensor) or backend.is_array(value)) and bool(value.dtype.kind == "f")


def raised(arguments: Sequence[Any]) -> list[str]:
    """A notice for each of `as_argument`'s Tensors that has fewer digits than it is examined in."""
    return [
        f"argument {k} was {t.dtype} and is examined as float64"
        for k, t in enumerate(arguments)
        if _is_floating(t) and t.dtype != np.float64
    ]


def check_choices(caller: str, cotangent: Any, seed: Any) -> None:
    """Raise `ArgumentError` for a cotangent that is a word of another meaning, or a seed that is none."""
    if cotangent is None or (isinstance(cotangent, str) and cotangent != "random"):
        raise ArgumentError(
            f'{caller}: cotangent must be "random", or an array in the shape of fn\'s result, not {cotangent!r}'
        )
    count(caller, "seed", seed, 0)


def name_of(fn: Any) -> str:
    """What to call a function: operations by their name, partial objects by what they hold, objects by their type."""
    while isinstance(fn, partial):
        fn = fn.func
    if isinstance(fn, NewOp):
        return fn._op.name
    return getattr(fn, "__name__", None) or type(fn).__name__


def several(results: Any) -> list[Tensor]:
    """What a function gives, be it one Tensor or more."""
    return [as_tensor(r) for r in (results if isinstance(results, (tuple, list)) else [results])]


def index_in(shape: tuple[int, ...], position: int) -> tuple[int, ...]:
    """The index of a position in C order."""
    return tuple(int(i) for i in np.unravel_index(position, shape))


def signed(rng: np.random.Generator, shape: Any) -> Array:
    """Random weights ±(0.5 … 1.5): none is so small that what it stands before would not count."""
    return rng.choice([-1.0, 1.0], shape) * rng.uniform(0.5, 1.5, shape)


def typical(point: Array) -> float:
    """The root mean square of the elements that are not 0; 1 if there are none."""
    sizes = np.abs(point[(point != 0.0) & np.isfinite(point)])
    if not sizes.size:
        return 1.0
    largest = float(sizes.max())
    return largest * float(np.sqrt(np.mean((sizes / largest) ** 2)))


def _moved(point: Array, kinks: Sequence[float]) -> Array:
    """The point, its elements at least 0.01 (of its own scale, or the kink's) from each kink, on the side they were."""
    for kink in kinks:
        margin = 0.01 * max(abs(kink), typical(point))
        side = np.where(point < kink, -1.0, 1.0)
        point = np.where(np.abs(point - kink) < margin, kink + side * margin, point)
    return point


def _laid_out(values: Array, strides: tuple[int, ...]) -> Array:
    """A copy whose axes lie in memory in the order, and run in the direction, that these strides have."""
    flips = tuple(slice(None, None, -1 if s < 0 else None) for s in strides)
    axes = sorted(range(len(strides)), key=lambda a: -abs(strides[a]))
    block = np.array(values[flips].transpose(axes), order="C")
    return block.transpose(np.argsort(axes))[flips] if axes else block


def alike(a: Array, b: Array) -> bool:
    """Equal but for the last digits, which may depend on how memory is aligned."""
    scale = np.max(np.abs(a), initial=0.0, where=np.isfinite(a))
    return bool(np.allclose(a, b, rtol=1e-9, atol=1e-12 * scale, equal_nan=True))
