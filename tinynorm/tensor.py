"""The Tensor: an array that knows what it was computed from.

The walk of one array through the library: a function such as `exp` hands its Tensors to `apply`, which takes their
arrays, finds the array module they belong to, runs the operation's forward formula and wraps the result. When a
gradient is wanted, the wrapping includes a `Node` with the cache; `Tensor.backward` walks those nodes.
"""

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np

from . import backend, graph, table
from .checks import broadcast, indices, mask_axes
from .convert import real_array, real_dtype, sizes
from .errors import DeviceError, DTypeError, GraphError, ShapeError
from .formulas.types import Array, Axis, Shape
from .graph import Leaf, Node, Source
from .kernels import Kernel
from .memory import Guard, Memory, owner
from .op import Op
from .options import finite
from .watch import watching

PLAIN = "fdlqiB?"  #: dtypes that are computed in as they are
NUMBERS = (float, int, bool)


def _constant_one(dtype: str) -> Array:
    one = np.ones((), dtype)
    one.flags.writeable = False
    return one


ONES = {dtype: _constant_one(dtype) for dtype in "fd"}  #: where backward starts most of the time


def tensor(data: Any, dtype: Any = None, device: str | None = None, requires_grad: bool = False) -> "Tensor":
    """A Tensor with a copy of the data.

    Args:
        data: an array, a Tensor, a Python number, or nested lists of numbers.
        dtype: of the result. By default arrays keep theirs (in native byte order), Python floats and lists of them
            become float32, Python integers int64 and bools bool.
        device: "cpu", "cuda" or "cuda:N"; by default where the data is.
        requires_grad: whether `backward` collects a gradient in `grad`.

    Raises:
        DTypeError: for text, objects and complex numbers, and for a gradient of integers or bools.
        DeviceError: for a device that is not there.

    >>> import tinynorm as tn
    >>> tn.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    Tensor([[1., 2.],
            [3., 4.]], dtype=float32, requires_grad=True)
    """
    given = operand("tensor", data, dtype)
    given._stay("tensor")
    array = given._data if device is None else backend.to_device(given._data, device)
    # Always a copy: nothing outside can write to it until it is handed out.
    if array is given._data or not array.flags.c_contiguous:
        array = backend.copy(array)
    return Tensor._wrap(array, Memory(), _leaf("tensor", array, requires_grad))


def as_tensor(data: Any, dtype: Any = None, device: str | None = None, requires_grad: bool = False) -> "Tensor":
    """A Tensor that shares the data's memory where it can; a Tensor passes through.

    An array of another dtype, byte order or device is copied, as lists and numbers are. See `tensor` for the dtypes,
    and `Tensor.data` for what happens if shared memory is written to.

    >>> import numpy as np
    >>> import tinynorm as tn
    >>> a = np.zeros(2)
    >>> t = tn.as_tensor(a)
    >>> a[0] = 5.0
    >>> t
    Tensor([5., 0.], dtype=float64)
    """
    made = operand("as_tensor", data, dtype)
    made = made if device is None else made.to(device)
    if requires_grad and not made.requires_grad:
        made = Tensor._wrap(made._data, made._memory, _leaf("as_tensor", made._data, True))
    return made


def from_dlpack(array: Any) -> "Tensor":
    """A Tensor that shares the memory of another library's array, such as PyTorch's or JAX's, on its device.

    The array has `__dlpack__` and `__dlpack_device__`; see https://dmlc.github.io/dlpack. The other direction is that
    library's own from_dlpack, which takes a Tensor that requires no gradient.

    Raises:
        DTypeError: for what is no such array, or holds numbers that a Tensor cannot hold.
        DeviceError: for an array on a device that is neither the host nor a GPU that CuPy knows.

    >>> import numpy as np
    >>> import tinynorm as tn
    >>> a = np.zeros(2)
    >>> t = tn.from_dlpack(a)
    >>> a[0] = 5.0
    >>> t
    Tensor([5., 0.], dtype=float64)
    """
    return Tensor._wrap(real_array("from_dlpack", backend.from_dlpack(array)), Memory(exposed=True), None)


def operand(name: str, value: Any, dtype: Any = None) -> "Tensor":
    """What a function was given, as a Tensor that shares its memory. The function's name goes into the errors."""
    if isinstance(value, Tensor):
        return value if dtype is None else value.astype(dtype)
    if _holds_tensors(value):
        raise DTypeError(
            f"{name}: a list that holds Tensors; join them with stack or concatenate, which keep the graph"
        )
    private = isinstance(value, (bool, int, float, list, tuple, np.generic))  # made of these, the array is new
    return Tensor._wrap(real_array(name, value, dtype), Memory(exposed=not private), None)


def fresh(array: Array) -> "Tensor":
    """A constant of an array that nobody else holds."""
    return Tensor._wrap(array, None, None)


def cotangent(name: str, argument: str, y: "Tensor", value: Any) -> "Tensor":
    """What a function was given as ∂ℒ/∂y, in the shape and dtype of y; None stands for 1, where y is one element."""
    if value is None:
        if y._data.size != 1:
            raise ShapeError(
                f"{name}: shape {y.shape} holds {y.size} elements; reduce it to one, for example with .sum(), or pass "
                f"{argument}= of that shape"
            )
        one = ONES.get(y._data.dtype.char) if type(y._data) is np.ndarray and y._data.ndim == 0 else None
        if one is not None:
            return fresh(one)
        with backend.on_device_of(y._data, name):
            return fresh(backend.namespace(y._data).ones(y.shape, dtype=y.dtype))
    if isinstance(value, Tensor) and _alike(value._data, y._data):
        return value
    given = operand(f"{name}: {argument}", value)
    if given.shape != y.shape:
        raise ShapeError(f"{name}: {argument} has shape {given.shape}, but must have the tensor's, {y.shape}")
    if given.dtype.kind not in "fiu":
        raise DTypeError(f"{name}: {argument} must hold real numbers, not {given.dtype}")
    if isinstance(value, (*NUMBERS, np.generic)):  # a number goes with either device
        given = given.to(y.device)
    backend.common_namespace(name, (given._data, y._data), (argument, "the tensor").__getitem__)
    return given.astype(y.dtype)


def _alike(a: Array, b: Array) -> bool:
    return type(a) is type(b) is np.ndarray and a.dtype is b.dtype and a.shape == b.shape


def _holds_tensors(data: Any) -> bool:
    """Whether nested lists hold a Tensor, which would become a constant without a word."""
    return isinstance(data, (list, tuple)) and any(isinstance(d, Tensor) or _holds_tensors(d) for d in data)


def _leaf(name: str, array: Array, requires_grad: bool) -> Leaf | None:
    if not requires_grad:
        return None
    if array.dtype.kind != "f":
        raise DTypeError(
            f"{name}: only floating-point tensors can require gradients, not {array.dtype}; "
            "write the numbers as floats or pass dtype=np.float32"
        )
    return Leaf(array.shape, array.dtype, backend.device_of(array))


def apply(op: Op, *inputs: Any, **params: Any) -> "Tensor":
    """Run an operation on Tensors, arrays, numbers or None, and record it if a gradient is wanted."""
    if (watcher := watching()) is not None:
        return cast(Tensor, watcher.operation(apply, op, inputs, params))
    arrays, sources, needed, numbers = [], [], [], 0
    for value in inputs:
        if isinstance(value, Tensor):
            array, source = value._data, value._source
            if type(array) is not np.ndarray or array.dtype.char not in PLAIN:
                return _apply_any(op, inputs, params)
            arrays.append(array)
            sources.append(source)
            needed.append(source is not None)
        elif value is None or type(value) in NUMBERS:
            arrays.append(value)
            sources.append(None)
            needed.append(False)
            numbers += 1
        else:
            return _apply_any(op, inputs, params)
    if numbers == len(inputs):
        return _apply_any(op, inputs, params)
    needs = tuple(needed)
    if True in needed and not graph.is_recording():
        needs = (False,) * len(needs)
    y, cache, kernel = op.run_plain(arrays, needs, params)
    return _recorded(op, np, y, cache, kernel, inputs, sources, needs, params)


def _apply_any(op: Op, inputs: tuple[Any, ...], params: dict[str, Any]) -> "Tensor":
    """The same, for whatever may have to be converted, widened or looked at in other words."""
    operands = [_operand(op.name, value) for value in inputs]
    if any(isinstance(value, (list, tuple)) for value in operands):
        operands = weak_lists(op.name, operands)
    tensors = [value for value in operands if isinstance(value, Tensor)]
    if not tensors:
        operands = [None if value is None else operand(op.name, value) for value in operands]
        tensors = [value for value in operands if value is not None]
    arrays = tuple([value._data if isinstance(value, Tensor) else value for value in operands])
    xp = backend.common_namespace(op.name, arrays, op.argument)
    recording = graph.is_recording()
    sources = [value._source if recording and isinstance(value, Tensor) else None for value in operands]
    needs = tuple([source is not None for source in sources])
    with backend.on_device_of(tensors[0]._data, op.name) if tensors else backend.HERE:
        y, cache, kernel = op.run_any(xp, arrays, needs, params)
    return _recorded(op, xp, y, cache, kernel, operands, sources, needs, params)


def _recorded(
    op: Op,
    xp: Any,
    y: Array,
    cache: Any,
    kernel: Kernel | None,
    operands: Sequence[Any],
    sources: list[Source | None],
    needs: tuple[bool, ...],
    params: dict[str, Any],
) -> "Tensor":
    """The result as a Tensor, with a node where a gradient is wanted."""
    result = Tensor._wrap(y, None, None)
    recorded = True in needs and y.dtype.kind == "f"
    shared, inputs = y.base is not None, []
    for value in operands:
        if isinstance(value, Tensor):
            if value._data is y:
                shared = True
            if recorded:  # nothing is remembered of another node's result that nobody else sees
                value = None if value._block is None and type(value._source) is Node else value._watched()
        inputs.append(value)
    if recorded:
        result._source = Node(op, xp, y, tuple(sources), needs, tuple(inputs), params, cache, kernel)
    if shared:
        _share(result, operands)
    return result


def _share(result: "Tensor", operands: Sequence[Any]) -> None:
    """Let the result look into the memory of the Tensor whose array it has, or has a view of, if there is one."""
    block = owner(result._data)
    for t in operands:
        if isinstance(t, Tensor) and owner(t._data) is block:
            result._look_into(t._memory)
            return


def _operand(name: str, value: Any) -> Any:
    """A Tensor; or a number, a list or None, which stay as they are: they take the dtype of what they meet."""
    if value is None or isinstance(value, (Tensor, bool, int, float, list, tuple)):
        return value
    if isinstance(value, np.generic) and value.dtype.kind in "fiub":
        return value
    if isinstance(value, (str, bytes, complex, np.generic)):
        raise DTypeError(f"{name}: {value!r} is no real number; tensors hold floats, integers and bools")
    return operand(name, value)


def weak_lists(name: str, operands: list[Any]) -> list[Any]:
    """The operands with lists made Tensors. Beside floating Tensors they take their dtype, as Python numbers do."""
    floating = [value.dtype for value in operands if hasattr(value, "dtype") and value.dtype.kind == "f"]
    dtype = np.result_type(*floating) if floating else None
    return [operand(name, value, dtype) if isinstance(value, (list, tuple)) else value for value in operands]


def _operator(op: Op) -> tuple[Callable[["Tensor", Any], "Tensor"], Callable[["Tensor", Any], "Tensor"]]:
    """The methods for ``tensor ∘ other`` and ``other ∘ tensor``."""
    return lambda self, other: apply(op, self, other), lambda self, other: apply(op, other, self)


def _constant(function: Callable[[Any, Any], Any]) -> Callable[["Tensor", Any], "Tensor"]:
    """The method for an operator of NumPy's whose results are constants."""
    op = Op(
        function.__name__.strip("_"), lambda xp, a, b: (function(a, b), None), lambda xp, dy, cache: None, broadcast
    )

    def method(self: "Tensor", other: Any) -> "Tensor":
        if function in (operator.eq, operator.ne) and (other is None or isinstance(other, str)):
            return cast(Tensor, NotImplemented)  # Python then compares identities
        return apply(op, self._bare(), other._bare() if isinstance(other, Tensor) else other)

    return method


class Tensor:
    """An array with a gradient. Make one with `tensor` (copies) or `as_tensor` (shares).

    Arithmetic follows NumPy's broadcasting and, for dtypes, its promotion (NEP 50): a Python number takes the Tensor's
    dtype, an array or NumPy scalar brings its own. In-place operators (``t += 1``) bind the name to a new Tensor and
    write to no memory. Comparisons give bool Tensors, which are constants.

    >>> import tinynorm as tn
    >>> t = tn.Tensor([1.0, 2.0], requires_grad=True)
    >>> 2.0 * t + 1.0
    Tensor([3., 5.], dtype=float32, op=add)
    """

    __slots__ = ("__weakref__", "_block", "_data", "_guard", "_source")
    _data: Array
    _block: Memory | None  # made when somebody asks for it
    _guard: Guard | None  # the last one, which serves again as long as nothing has changed
    _source: Source | None
    __array_ufunc__ = None  # so that ndarray * tensor and np.float64(2) * tensor reach __rmul__

    def __init__(self, data: Any, requires_grad: bool = False) -> None:
        made = operand("Tensor", data)
        made._stay("Tensor")
        self._become(made)
        self._source = _leaf("Tensor", made._data, requires_grad)

    @classmethod
    def _wrap(cls, array: Array, memory: Memory | None, source: Source | None) -> "Tensor":
        self = object.__new__(cls)
        self._data = array
        self._block = memory
        self._guard = None
        self._source = source
        return self

    def _become(self, other: "Tensor") -> None:
        """Look into the same memory, with the same history, as another."""
        self._data, self._block, self._guard, self._source = other._data, other._memory, None, other._source

    @property
    def _memory(self) -> Memory:
        """The block of memory that this and perhaps others look into."""
        return self._look_into(Memory()) if self._block is None else self._block

    def _look_into(self, memory: Memory) -> Memory:
        """Look into memory that others may see. Whoever has cached the array must then notice a change, too."""
        self._block = memory
        if isinstance(self._source, Node):
            self._source.guard = self._watched()
        return memory

    def _watched(self) -> Guard:
        """A guard for the array as it is now."""
        guard, memory = self._guard, self._block
        if guard is None or memory is None or guard.version != memory.version or memory.exposed:
            self._guard = guard = self._memory.watch(self._data)
        return guard

    # What it holds

    @property
    def data(self) -> Array:
        """The array itself, NumPy's or CuPy's. Writing to it, as in ``w.data -= lr * w.grad``, changes the Tensor.

        An array that a recorded operation still needs must not change before `backward`, which notices and refuses.
        (On a device it notices only what the library writes: to compare contents would mean to copy them to the host.)
        """
        self._stay("data")
        self._memory.expose()
        return self._data

    @data.setter
    def data(self, value: Any) -> None:
        array = value._data if isinstance(value, Tensor) else value
        if array is self._data:  # the second half of `w.data -= ...`, which has written already
            return
        array = real_array("Tensor.data", array)
        leaf = self._source
        if isinstance(leaf, Node):
            raise GraphError(f"Tensor.data: this is the result of {leaf.op.name}; assign to a leaf, or detach() first")
        if leaf is not None and (array.shape, array.dtype) != (leaf.shape, leaf.dtype):
            raise ShapeError(
                f"Tensor.data: a tensor that requires a gradient keeps its shape and dtype, {leaf.shape} {leaf.dtype}; "
                f"got {array.shape} {array.dtype}"
            )
        if leaf is not None and leaf.device != backend.device_of(array):
            raise DeviceError(
                f"Tensor.data: a tensor that requires a gradient stays on its device, {leaf.device!r}; got an array on "
                f"{backend.device_of(array)!r}. On another device it is another tensor, made by .to(...)"
            )
        if leaf is not None and not backend.is_writeable(array):
            array = backend.copy(array)  # an optimizer will want to write to it
        self._data, self._guard = array, None
        self._block = value._memory if isinstance(value, Tensor) else Memory(exposed=True)

    @property
    def grad(self) -> Array | None:
        """The gradient that `backward` collected, a plain array of the Tensor's shape and dtype, or None."""
        return self._source.grad if isinstance(self._source, Leaf) else None

    @grad.setter
    def grad(self, value: Array | None) -> None:
        if not isinstance(self._source, Leaf):
            if value is not None:
                raise GraphError("Tensor.grad: only a leaf that requires a gradient holds one; set requires_grad first")
            return
        if value is not None:
            if not backend.is_array(value):
                raise DTypeError(f"Tensor.grad: must be a plain array or None, not {type(value).__name__}")
            if backend.device_of(value) != self.device:
                raise DeviceError(
                    f"Tensor.grad: is on {backend.device_of(value)!r}, the tensor on {self.device!r}; assign "
                    f'tn.as_tensor(..., device="{self.device}").data'
                )
            if (value.shape, value.dtype) != (self.shape, self.dtype):
                raise ShapeError(
                    f"Tensor.grad: must have the tensor's shape and dtype, {self.shape} {self.dtype}; "
                    f"got {value.shape} {value.dtype}"
                )
        self._source.grad = value

    @property
    def requires_grad(self) -> bool:
        """Whether operations on this Tensor are recorded. Can be set on leaves of a floating dtype."""
        return self._source is not None

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if isinstance(self._source, Node):
            if not value:
                raise GraphError(f"requires_grad: this is the result of {self._source.op.name}; use detach() instead")
        elif value != self.requires_grad:
            self._source = _leaf("requires_grad", self._data, value)

    @property
    def shape(self) -> Shape:
        """The size of each axis."""
        shape: Shape = self._data.shape
        return shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the elements."""
        dtype: np.dtype[Any] = self._data.dtype
        return dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._data.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(self._data.size)

    @property
    def device(self) -> str:
        """Where the array lives, "cpu" or "cuda:N"."""
        return backend.device_of(self._data)

    def numpy(self) -> np.ndarray[Any, Any]:
        """The elements as a NumPy array: on the CPU the Tensor's own memory, from a GPU a copy."""
        self._stay("numpy")
        array = backend.to_device(self._data, backend.CPU)
        if array is self._data:
            self._memory.expose()
        return cast("np.ndarray[Any, Any]", array)

    def item(self) -> Any:
        """The one element as a Python number."""
        self._stay("item")
        if self.size != 1:
            raise ShapeError(f"item: shape {self.shape} holds {self.size} elements, not one; index or reduce it first")
        with backend.on_device_of(self._data, "item"):
            return self._data.item()

    def _stay(self, name: str) -> None:
        """Raise where numbers would leave the graph unnoticed: in a formula that runs on Tensors."""
        if self._source is not None and graph.is_closed():
            raise GraphError(f"{name}: plain numbers have no history, so what is computed from them has no derivative")

    def detach(self) -> "Tensor":
        """The same memory without the history: a constant."""
        self._stay("detach")
        return self._bare()

    def _bare(self) -> "Tensor":
        return Tensor._wrap(self._data, self._memory, None)

    def to(self, device: str) -> "Tensor":
        """The Tensor on another device ("cpu", "cuda", "cuda:N"); itself when it is there already.

        A copy on another device is a new leaf that requires a gradient if this one does. Moving a result is not
        recorded, and refused.
        """
        array = backend.to_device(self._data, device)
        if array is self._data:
            return self
        if isinstance(self._source, Node):
            raise GraphError(
                f"to: moving the result of {self._source.op.name} is not recorded; move its inputs, or detach()"
            )
        return Tensor._wrap(array, Memory(), _leaf("to", array, self.requires_grad))

    def backward(self, gradient: Any = None, retain_graph: bool = False) -> None:
        """Add ∂(this)/∂leaf, times `gradient`, to the `grad` of every leaf this was computed from.

        Args:
            gradient: ∂ℒ/∂(this), of this Tensor's shape; may be left out for a single element, where it is 1.
            retain_graph: keep the graph for another backward. By default it is freed as the walk goes.

        Raises:
            GraphError: without a graph, after it was freed, or when an array it needs was overwritten meanwhile.
            ShapeError: for a gradient that is missing or has another shape.

        >>> import tinynorm as tn
        >>> x = tn.tensor([3.0, 4.0], requires_grad=True)
        >>> (x * x).sum().backward()
        >>> x.grad
        array([6., 8.], dtype=float32)
        """
        self._stay("backward")
        if self._source is None:
            raise GraphError(
                "backward: this tensor has no graph: nothing it was computed from requires a gradient, or it was "
                "computed under no_grad; make a leaf with requires_grad=True"
            )
        graph.backward(self._source, cotangent("backward", "gradient", self, gradient)._data, retain_graph)

    def _overwrite(self, values: Array) -> None:
        """Write new values into the array in place. Graphs that still need the old ones will notice."""
        with backend.on_device_of(self._data, "a write"):
            self._data[...] = values
        self._memory.version += 1

    def _there(self, device: str) -> tuple[Array, Array | None]:
        """The array and the gradient as they are on a device, for `_move`."""
        grad = self.grad
        return backend.to_device(self._data, device), None if grad is None else backend.to_device(grad, device)

    def _move(self, array: Array, grad: Array | None) -> None:
        """Hold these from now on, which `_there` has made: the same Tensor, on another device."""
        if array is not self._data:
            self._data, self._block, self._guard = array, None, None
            if isinstance(self._source, Leaf):
                self._source.device, self._source.grad = self.device, grad

    # Arithmetic: recorded

    __add__, __radd__ = _operator(table.add)
    __sub__, __rsub__ = _operator(table.subtract)
    __mul__, __rmul__ = _operator(table.multiply)
    __truediv__, __rtruediv__ = _operator(table.divide)
    __pow__, __rpow__ = _operator(table.power)
    __matmul__, __rmatmul__ = _operator(table.matmul)

    def __neg__(self) -> "Tensor":
        return apply(table.negative, self)

    def __pos__(self) -> "Tensor":
        return self

    def __abs__(self) -> "Tensor":
        return apply(table.absolute, self)

    # Comparisons and masks: constants, element by element

    __lt__, __gt__ = _constant(operator.lt), _constant(operator.gt)
    __le__, __ge__ = _constant(operator.le), _constant(operator.ge)
    __eq__, __ne__ = _constant(operator.eq), _constant(operator.ne)  # type: ignore[assignment]
    __and__ = __rand__ = _constant(operator.and_)
    __or__ = __ror__ = _constant(operator.or_)
    __hash__ = object.__hash__  # by identity, as Tensors change

    def __invert__(self) -> "Tensor":
        if self.dtype != np.bool_:
            raise DTypeError(f"invert: ~ takes bool masks, such as a comparison gives, not {self.dtype}")
        with backend.on_device_of(self._data, "invert"):
            return fresh(~self._data)

    # Parts and shapes

    def __getitem__(self, index: Any) -> "Tensor":
        return apply(table.getitem, self, index=plain_index("getitem", index, self._data))

    def __setitem__(self, index: Any, value: Any) -> None:
        raise GraphError(
            "Tensor: item assignment is not recorded; build a new tensor with where or concatenate, "
            "or write to .data[...] outside of any graph"
        )

    def __len__(self) -> int:
        if self.ndim == 0:
            raise DTypeError("len: a tensor of shape () has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator["Tensor"]:
        return (self[i] for i in range(len(self)))

    @property
    def T(self) -> "Tensor":
        """The axes in reverse order."""
        return self.transpose()

    def reshape(self, *shape: Any) -> "Tensor":
        """The same elements in another shape; one -1 stands for what is left."""
        return apply(table.reshape, self, shape=sizes("reshape", shape))

    def transpose(self, *axes: Any) -> "Tensor":
        """The axes in another order; without arguments, in reverse."""
        return apply(table.transpose, self, axes=None if axes in ((), (None,)) else sizes("transpose", axes))

    def astype(self, dtype: Any) -> "Tensor":
        """The elements in another dtype. The gradient comes back in this one's."""
        target = real_dtype("astype", dtype)
        return self if target == self.dtype else apply(table.astype, self, dtype=target)

    # Reductions

    def sum(self, axis: Axis = None, keepdims: bool = False) -> "Tensor":
        """The sum over some axes, or all."""
        return apply(table.sum, self, axis=axis, keepdims=keepdims)

    def mean(self, axis: Axis = None, keepdims: bool = False) -> "Tensor":
        """The mean over some axes, or all."""
        return apply(table.mean, self, axis=axis, keepdims=keepdims)

    def max(self, axis: Axis = None, keepdims: bool = False) -> "Tensor":
        """The largest element over some axes, or all; elements that tie share the gradient equally."""
        return apply(table.max, self, axis=axis, keepdims=keepdims)

    def min(self, axis: Axis = None, keepdims: bool = False) -> "Tensor":
        """The smallest element over some axes, or all; elements that tie share the gradient equally."""
        return apply(table.min, self, axis=axis, keepdims=keepdims)

    def var(self, axis: Axis = None, *, ddof: float = 0, keepdims: bool = False) -> "Tensor":
        """The variance over some axes, or all: the squares' sum is divided by n − ddof."""
        return apply(table.var, self, axis=axis, ddof=finite("var", "ddof", ddof), keepdims=keepdims)

    # Python and NumPy look in

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else str(self)

    def __copy__(self) -> "Tensor":
        """Another Tensor on the same memory, with the same history."""
        return self._wrap(self._data, self._memory, self._source)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Tensor":
        make, arguments = self.__reduce__()
        return cast(Tensor, make(*arguments))  # which has made copies already

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle and copy.deepcopy: a leaf with a copy of the data, on the same device."""
        self._stay("copy")
        if isinstance(self._source, Node):
            raise GraphError(f"copy: the result of {self._source.op.name} has a history; detach() it first")
        grad = None if self.grad is None else backend.copy(self.grad)
        return _rebuild, (type(self), backend.copy(self._data), self.requires_grad, grad, self.device)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if self.device != backend.CPU:
            raise DeviceError(f"a tensor on {self.device!r} does not turn into a NumPy array by itself; call .numpy()")
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        """The memory for another library; see `from_dlpack`."""
        if self._source is not None:
            raise GraphError("__dlpack__: a tensor that requires a gradient stays here; pass .detach()")
        self._memory.expose()
        with backend.on_device_of(self._data, "__dlpack__"):
            return self._data.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's numbers for the kind of device, and for the device."""
        kind, number = self._data.__dlpack_device__()
        return int(kind), int(number)

    def __repr__(self) -> str:
        head = f"{type(self).__name__}("
        body = np.array2string(backend.to_device(self._data, backend.CPU), separator=", ", prefix=head, threshold=100)
        notes = [f"dtype={self.dtype}"]
        if self.size > 100 or 0 in self.shape:
            notes.insert(0, f"shape={self.shape}")
        if self.device != backend.CPU:
            notes.append(f"device={self.device!r}")
        if isinstance(self._source, Node):
            notes.append(f"op={self._source.op.name}")
        elif self._source is not None:
            notes.append("requires_grad=True")
        return f"{head}{body}, {', '.join(notes)})"


def _rebuild(cls: type[Tensor], array: Array, requires_grad: bool, grad: Array | None, device: str) -> Tensor:
    array = real_array("copy", backend.to_device(array, device))  # a pickle of CuPy's gives it on the current device
    self = cls._wrap(array, Memory(), _leaf("copy", array, requires_grad))
    self.grad = None if grad is None else backend.to_device(grad, device)
    return self


def plain_index(name: str, index: Any, array: Array) -> Any:
    """An index without Tensors, for an array. Index arrays are copied: the backward needs them as they are now."""
    if isinstance(index, tuple):
        plain: Any = tuple([_plain_part(name, part, array) for part in index])
    else:
        plain = _plain_part(name, index, array)
    return plain if type(array) is np.ndarray else _index_there(name, plain, array)


def _plain_part(name: str, part: Any, array: Array) -> Any:
    if isinstance(part, list):
        part = operand(name, part) if part else np.empty(0, np.intp)
    if isinstance(part, Tensor):
        part = part._data
    if isinstance(part, np.ndarray):
        return part.copy()
    if not backend.is_device_array(part):
        return part
    if backend.device_of(part) != backend.device_of(array):
        raise DeviceError(
            f"{name}: the index is on {backend.device_of(part)!r}, the tensor on {backend.device_of(array)!r}; "
            "move one of them, or index with an array of the host, which goes with any device"
        )
    return backend.copy(part)


def _index_there(name: str, index: Any, array: Array) -> Any:
    """The index for an array on a device, with all that it holds there, and numbers in place of masks.

    How many elements a mask takes is known only once it has been counted, which for a mask on the device means to wait.
    With numbers, that is so here and not once more in the backward.
    """
    parts = index if isinstance(index, tuple) else (index,)
    indices(name, array.shape, parts)
    device, moved = backend.device_of(array), []
    with backend.on_device_of(array, name):
        for part in parts:
            numbers = backend.namespace(part).nonzero(part) if mask_axes(part) else (part,)
            moved += [backend.to_device(n, device) if backend.is_array(n) else n for n in numbers]
    return tuple(moved) if isinstance(index, tuple) or len(moved) > 1 else moved[0]
