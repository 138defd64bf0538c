"""The Tensor itself: what it holds, how it is made, its operators, and how it looks to Python and NumPy."""

import copy
import operator
import pickle

import numpy as np
import pytest

import tinynorm as tn


@pytest.fixture
def rng():
    return np.random.default_rng(20240501)


def leaf(array):
    return tn.tensor(array, requires_grad=True)


def summed_to(gradient, shape):
    """What broadcasting did, undone by the definition: every element of x collects from every place it went to."""
    places = np.broadcast_to(np.arange(int(np.prod(shape))).reshape(shape), gradient.shape)
    total = np.zeros(int(np.prod(shape)))
    for place, g in zip(places.ravel(), gradient.ravel(), strict=True):
        total[place] += g
    return total.reshape(shape)


# What it holds


def test_attributes():
    array = np.arange(6, dtype=np.float64).reshape(2, 3)
    t = tn.tensor(array)
    assert type(t.data) is np.ndarray
    np.testing.assert_array_equal(t.data, array)
    assert (t.shape, t.dtype, t.ndim, t.size, t.device) == ((2, 3), np.float64, 2, 6, "cpu")
    assert t.grad is None
    assert t.requires_grad is False
    assert tn.tensor(array, requires_grad=True).requires_grad is True


@pytest.mark.parametrize("name", ["shape", "dtype", "ndim", "size", "device", "T"])
def test_what_the_data_decides_cannot_be_set(name):
    t = tn.tensor([1.0])
    with pytest.raises(AttributeError):
        setattr(t, name, getattr(t, name))


def test_a_misspelt_attribute_cannot_be_set():
    with pytest.raises(AttributeError):
        tn.tensor([1.0]).gard = None


# Making one


def test_tensor_copies():
    array = np.ones(3)
    t = tn.tensor(array)
    array[0] = 7.0
    t.data[1] = 8.0
    assert t.data.tolist() == [1.0, 8.0, 1.0]
    assert array.tolist() == [7.0, 1.0, 1.0]
    again = tn.tensor(t)
    again.data[2] = 9.0
    assert t.data.tolist() == [1.0, 8.0, 1.0]


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3).T,
        np.arange(12.0).reshape(3, 4)[::-1, ::2],
        np.broadcast_to(np.arange(3.0), (2, 3)),
        np.array(2.5),
        np.zeros((2, 0, 3)),
    ],
    ids=["transposed", "strided", "broadcast", "0-d", "empty"],
)
def test_tensor_copies_any_layout(array):
    t = tn.tensor(array)
    assert type(t.data) is np.ndarray
    assert t.data.flags.writeable
    assert t.data.flags.owndata
    assert not np.shares_memory(t.data, array)
    np.testing.assert_array_equal(t.data, array)


def test_as_tensor_shares():
    array = np.ones(3)
    t = tn.as_tensor(array)
    array[0] = 7.0
    t.data[1] = 8.0
    assert t.data.tolist() == array.tolist() == [7.0, 8.0, 1.0]
    assert tn.as_tensor(t) is t
    assert t.requires_grad is False
    readonly = np.broadcast_to(np.ones(1), (3,))
    assert np.shares_memory(tn.as_tensor(readonly).data, readonly)


def test_as_tensor_copies_what_it_must_convert():
    array = np.ones(3)
    t = tn.as_tensor(array, dtype=np.float32)
    assert t.dtype == np.float32
    t.data[0] = 5.0
    assert array[0] == 1.0


def test_a_tensor_made_by_its_class_can_require_a_gradient():
    t = tn.Tensor([1.0, 2.0], requires_grad=True)
    assert t.dtype == np.float32
    (t * 3.0).sum().backward()
    assert t.grad.tolist() == [3.0, 3.0]


@pytest.mark.parametrize("make", [tn.tensor, tn.as_tensor, tn.Tensor])
@pytest.mark.parametrize(
    ("data", "dtype"),
    [
        (1.5, np.float32),
        ([1.5, 2.0], np.float32),
        ([[1, 2.0], [3, 4]], np.float32),
        ((1.5, 2.0), np.float32),
        ([], np.float32),
        (3, np.int64),
        ([1, 2], np.int64),
        (True, np.bool_),
        ([True, False], np.bool_),
        (np.float64(1.5), np.float64),
        (np.float16(1.5), np.float16),
        (np.int8(1), np.int8),
        (np.array([1.0]), np.float64),
        (np.array(1.0), np.float64),
        (np.array([1.0], np.float16), np.float16),
        (np.array([1.0], np.longdouble), np.longdouble),
        (np.array([1], np.uint8), np.uint8),
        (np.array([True]), np.bool_),
        (range(3), np.int64),
    ],
)
def test_dtype_of_the_data(make, data, dtype):
    t = make(data)
    assert t.dtype == dtype
    np.testing.assert_array_equal(t.data, np.asarray(data, dtype))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32, np.bool_, "float32", ">f4"])
def test_dtype_that_is_asked_for(dtype):
    wanted = np.dtype(dtype).newbyteorder("=")
    for t in (tn.tensor([0, 1], dtype=dtype), tn.as_tensor(np.array([0.0, 1.0]), dtype=dtype)):
        assert t.dtype == wanted
        assert t.dtype.isnative
        assert t.data.tolist() == [0, 1]


FLOAT = np.dtype(np.float32)
MADE = {
    "a dtype that is named": lambda a: tn.tensor(a.tolist(), dtype="float32"),
    "another dtype": lambda a: tn.tensor(a.astype(np.float64)).astype(np.float32),
    "another byte order": lambda a: tn.tensor(a.astype(FLOAT.newbyteorder())),
    "a dtype with metadata": lambda a: tn.as_tensor(a.astype(np.dtype(FLOAT, metadata={"unit": "m"}))),
    "a pickled array": lambda a: tn.as_tensor(pickle.loads(pickle.dumps(a))),
    "assigned": lambda a: assigned(tn.tensor(a), pickle.loads(pickle.dumps(a))),
    "a pickled tensor": lambda a: pickle.loads(pickle.dumps(tn.tensor(a))),
}


def assigned(t, array):
    t.data = array
    return t


@pytest.mark.parametrize("made", MADE)
def test_equal_dtypes_are_one_object(made):
    """As those of NumPy's results are: kernels, which compare them by `is`, would otherwise never serve."""
    a = np.ones((2, 3), FLOAT)
    t = MADE[made](a)
    np.testing.assert_array_equal(t.data, a)
    assert t.data is t.data
    assert t.data.dtype is FLOAT


def test_a_pickled_array_is_shared_all_the_same():
    a = pickle.loads(pickle.dumps(np.zeros(3, FLOAT)))
    t = tn.as_tensor(a)
    a[1] = 5.0
    assert t.data.tolist() == [0.0, 5.0, 0.0]


@pytest.mark.parametrize("make", [tn.tensor, tn.as_tensor])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int16, np.int64])
def test_byte_swapped_arrays_are_converted(make, dtype):
    swapped = np.array([1, 2, 30]).astype(np.dtype(dtype).newbyteorder())
    assert not swapped.dtype.isnative
    t = make(swapped)
    assert t.dtype == dtype
    assert t.dtype.isnative
    assert t.data.tolist() == [1, 2, 30]
    if t.dtype.kind == "f":
        t.requires_grad = True
        (t * swapped).sum().backward()
        assert t.grad.dtype.isnative
        assert t.grad.tolist() == [1.0, 2.0, 30.0]


class Backwards(np.ndarray):
    """An array that multiplies in its own way, as np.matrix does."""

    def __mul__(self, other):
        return np.asarray(self) @ np.asarray(other)


@pytest.mark.parametrize("make", [tn.tensor, tn.as_tensor])
@pytest.mark.parametrize(
    "array",
    [np.arange(4.0).reshape(2, 2).view(Backwards), np.ma.array([[1.0, 2.0], [3.0, 4.0]], mask=[[1, 0], [0, 0]])],
    ids=["another product", "masked"],
)
def test_an_array_subclass_is_refused_or_loses_its_own_ways(make, array):
    try:
        t = make(array)
    except tn.errors.DTypeError:
        return
    assert type(t.data) is np.ndarray
    np.testing.assert_array_equal((t * t).data, np.asarray(array) ** 2)


# Arithmetic

BINARY = {
    # the function, and ∂/∂a, ∂/∂b of Σ g·f(a, b)
    "add": (operator.add, lambda g, a, b: (g, g)),
    "sub": (operator.sub, lambda g, a, b: (g, -g)),
    "mul": (operator.mul, lambda g, a, b: (g * b, g * a)),
    "div": (operator.truediv, lambda g, a, b: (g / b, -g * a / b**2)),
    "pow": (operator.pow, lambda g, a, b: (g * b * a ** (b - 1), g * a**b * np.log(a))),
}


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize(
    ("shape_a", "shape_b"),
    [
        ((), ()),
        ((3,), (3,)),
        ((2, 1), (1, 3)),
        ((2, 3), (3,)),
        ((), (2, 2)),
        ((0,), (1,)),
        ((3, 1, 2), (2, 1)),
        ((1,), ()),
    ],
)
def test_operators_and_their_broadcasting(rng, name, shape_a, shape_b):
    function, gradients = BINARY[name]
    a, b = rng.uniform(0.5, 2.0, shape_a), rng.uniform(0.5, 2.0, shape_b)
    ta, tb = leaf(a), leaf(b)
    y = function(ta, tb)
    expected = function(a, b)
    assert isinstance(y, tn.Tensor)
    np.testing.assert_allclose(y.data, expected, rtol=1e-14)
    g = rng.normal(size=np.shape(expected))
    y.backward(g)
    for t, gradient in zip((ta, tb), gradients(g, a, b), strict=True):
        assert type(t.grad) is np.ndarray
        assert t.grad.shape == t.shape
        np.testing.assert_allclose(t.grad, summed_to(np.broadcast_to(gradient, g.shape), t.shape), rtol=1e-12)


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize(
    "other",
    [2.0, 2, np.float64(2.0), np.float32(2.0), np.int64(2), np.array(2.0), np.array([2.0, 3.0]), [2.0, 3.0], True],
    ids=lambda v: f"{type(v).__name__}{np.shape(v)}",
)
def test_operators_take_numbers_arrays_and_lists_on_either_side(rng, name, other):
    function, gradients = BINARY[name]
    x = rng.uniform(0.5, 2.0, 2)
    as_array = np.asarray(other, np.float32 if isinstance(other, list) else None)
    plain = as_array if isinstance(other, list) else other
    g = rng.normal(size=2)
    for left in (False, True):
        t = leaf(x)
        y = function(other, t) if left else function(t, other)
        assert isinstance(y, tn.Tensor)
        expected = function(plain, x) if left else function(x, plain)
        assert y.dtype == expected.dtype
        np.testing.assert_allclose(y.data, expected, rtol=1e-14)
        y.backward(g)
        constant = as_array.astype(np.float64)
        gradient = gradients(g, constant, x)[1] if left else gradients(g, x, constant)[0]
        np.testing.assert_allclose(t.grad, gradient, rtol=1e-12)


@pytest.mark.parametrize("wrap", [np.asarray, tn.tensor, list], ids=["ndarray", "Tensor", "list"])
def test_matrix_products_on_either_side(rng, wrap):
    x, m = rng.normal(size=(2, 3)).astype(np.float32), rng.normal(size=(3, 2)).astype(np.float32)
    other = m.tolist() if wrap is list else wrap(m)
    g = rng.normal(size=(2, 2)).astype(np.float32)
    t = leaf(x)
    y = t @ other
    assert isinstance(y, tn.Tensor)
    np.testing.assert_allclose(y.data, np.einsum("ij,jk->ik", x, m), rtol=1e-5)
    y.backward(g)
    np.testing.assert_allclose(t.grad, np.einsum("ik,jk->ij", g, m), rtol=1e-5)

    t = leaf(x)
    g = rng.normal(size=(3, 3)).astype(np.float32)
    y = other @ t
    assert isinstance(y, tn.Tensor)
    np.testing.assert_allclose(y.data, np.einsum("ij,jk->ik", m, x), rtol=1e-5)
    y.backward(g)
    np.testing.assert_allclose(t.grad, np.einsum("ji,jk->ik", m, g), rtol=1e-5)


def test_unary_operators(rng):
    x, g = np.array([-2.0, 0.0, 3.0]), rng.normal(size=3)
    for function, expected, gradient in [
        (operator.neg, -x, -g),
        (operator.pos, x, g),
        (abs, np.abs(x), g * np.sign(x)),
    ]:
        t = leaf(x)
        y = function(t)
        assert y.data.tolist() == expected.tolist()
        y.backward(g)
        assert t.grad.tolist() == gradient.tolist()


def test_powers_of_and_to_a_number(rng):
    x, g = rng.uniform(0.5, 2.0, 4), rng.normal(size=4)
    for function, value, gradient in [
        (lambda t: t**2, x * x, 2 * g * x),
        (lambda t: t**0.5, np.sqrt(x), g / (2 * np.sqrt(x))),
        (lambda t: t**-1, 1 / x, -g / x**2),
        (lambda t: t**0, np.ones(4), np.zeros(4)),
        (lambda t: 2**t, 2**x, g * np.log(2) * 2**x),
        (lambda t: 0.5**t, 0.5**x, g * np.log(0.5) * 0.5**x),
        (lambda t: 0**t, np.zeros(4), np.zeros(4)),
    ]:
        t = leaf(x)
        y = function(t)
        np.testing.assert_allclose(y.data, value, rtol=1e-14)
        y.backward(g)
        np.testing.assert_allclose(t.grad, gradient, rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(
    "function",
    [
        lambda t: 2.0 * t, lambda t: t + 1, lambda t: 1 / (t + 3), lambda t: t**2, lambda t: 2**t, lambda t: t - True,
        lambda t: t * (t > 0), lambda t: tn.where(t > 0, t, 0.0), lambda t: tn.maximum(t, 0.0),
        lambda t: tn.clip(t, 0.0, 1.0), lambda t: t * tn.where(t > 0, 1.0, 0.0).astype(t.dtype), lambda t: t.mean(),
        lambda t: t.var(), lambda t: t.sum() / 3, lambda t: t * t.sum().item(), lambda t: t / 7.0 * t.mean(),
    ],
    ids=[
        "2.0*t", "t+1", "1/(t+3)", "t**2", "2**t", "t-True", "mask", "where", "maximum", "clip", "where of two numbers",
        "mean", "var", "sum/3", "item", "0-d",
    ],
)  # fmt: skip
def test_python_numbers_never_widen_a_dtype(dtype, function):
    t = tn.tensor([-1.0, 0.5, 2.0], dtype=dtype, requires_grad=True)
    y = function(t)
    assert y.dtype == dtype
    y.backward(np.ones(y.shape))
    assert t.grad.dtype == dtype


def test_promotion_follows_numpy_and_gradients_come_back_in_the_tensors_dtype(rng):
    dtypes = [np.float16, np.float32, np.float64, np.int8, np.int64, np.uint8, np.bool_]
    for a in dtypes:
        for b in dtypes:
            x, y = np.array([1, 1]).astype(a), np.array([1, 0]).astype(b)
            tx, ty = tn.tensor(x), tn.tensor(y)
            for t in (tx, ty):
                t.requires_grad = t.dtype.kind == "f"
            product = tx * ty
            assert product.dtype == np.result_type(a, b), (a, b)
            assert (tx * y).dtype == (x * ty).dtype == (tx * b(1)).dtype == product.dtype
            if product.requires_grad:
                product.backward(np.array([2.0, 3.0]))
                for t, other in ((tx, y), (ty, x)):
                    if t.requires_grad:
                        assert t.grad.dtype == t.dtype
                        assert t.grad.tolist() == [2.0 * other[0], 3.0 * other[1]]


def test_integers_stay_integers_and_require_no_gradient():
    t = tn.tensor([1, 2, 3])
    assert (t + 1).dtype == np.int64
    assert t.sum().item() == 6
    assert type(t.sum().item()) is int
    assert (t / 2).data.tolist() == [0.5, 1.0, 1.5]
    mixed = tn.tensor([1.0, 1.0, 1.0], requires_grad=True) * t
    mixed.backward(np.ones(3))
    assert t.grad is None


# Comparisons and masks


@pytest.mark.parametrize("compare", [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne])
def test_comparisons_are_constants(compare):
    a, b = np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.0, 1.0])
    t = leaf(a)
    for other in (leaf(b), b, b.tolist(), 2.0, np.float64(2.0), 2):
        plain = other.data if isinstance(other, tn.Tensor) else other
        for y, expected in [(compare(t, other), compare(a, plain)), (compare(other, t), compare(plain, a))]:
            assert isinstance(y, tn.Tensor)
            assert y.dtype == np.bool_
            assert y.requires_grad is False
            assert y.data.tolist() == expected.tolist()


def test_comparisons_broadcast():
    y = tn.tensor([[1.0], [2.0]]) < tn.tensor([0.0, 1.5, 3.0])
    assert y.data.tolist() == [[False, True, True], [False, False, True]]


def test_equality_with_what_is_no_number_is_false():
    t = tn.tensor([1.0])
    assert (t == None) is False  # noqa: E711
    assert (t != None) is True  # noqa: E711
    assert (t == "a") is False


def test_a_mask_multiplies_and_is_a_constant(rng):
    x, g = rng.normal(size=6), rng.normal(size=6)
    t = leaf(x)
    (t * (t < 0)).backward(g)
    assert t.grad.tolist() == (g * (x < 0)).tolist()


def test_masks_combine():
    a, b = np.array([True, True, False, False]), np.array([True, False, True, False])
    ta, tb = tn.tensor(a), tn.tensor(b)
    assert (ta & tb).data.tolist() == [True, False, False, False]
    assert (ta | tb).data.tolist() == [True, True, True, False]
    assert (~ta).data.tolist() == [False, False, True, True]
    for y in (a & tb, a | tb, ta & b, ta | b, True & tb, ta | False):
        assert isinstance(y, tn.Tensor)
        assert y.dtype == np.bool_
    assert (a & tb).data.tolist() == [True, False, False, False]
    x = leaf([1.0, 2.0, 3.0, 4.0])
    inside = x[(x > 1) & (x < 4)]
    assert inside.data.tolist() == [2.0, 3.0]
    inside.backward(np.array([5.0, 6.0]))
    assert x.grad.tolist() == [0.0, 5.0, 6.0, 0.0]


def test_membership():
    t = tn.tensor([1.0, 2.0])
    assert 2.0 in t
    assert 3.0 not in t


@pytest.mark.parametrize("value", [None, "a"])
def test_what_is_no_number_is_in_no_tensor(value):
    assert value not in tn.tensor([1.0, 2.0])


def test_tensors_are_hashed_by_identity():
    a, b = tn.tensor([1.0]), tn.tensor([1.0])
    assert {a: "a", b: "b"}[a] == "a"
    assert len({a, b, a}) == 2


# In-place operators


@pytest.mark.parametrize(
    "function",
    [operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ipow],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_in_place_operators_rebind_and_write_nowhere(function, requires_grad):
    shared = np.array([1.0, 2.0])
    t = tn.as_tensor(shared)
    t.requires_grad = requires_grad
    view = t.reshape(2, 1)
    after = function(t, 3.0)
    assert after is not t
    assert isinstance(after, tn.Tensor)
    assert not np.shares_memory(after.data, shared)
    assert shared.tolist() == t.data.tolist() == [1.0, 2.0]
    assert view.data.tolist() == [[1.0], [2.0]]
    plain = {"iadd": shared + 3, "isub": shared - 3, "imul": shared * 3, "itruediv": shared / 3, "ipow": shared**3}
    np.testing.assert_allclose(after.data, plain[function.__name__], rtol=1e-15)


def test_in_place_statements():
    t = a = tn.tensor([1.0, 2.0], requires_grad=True)
    t += 1
    t *= 2.0
    t -= np.array([1.0, 1.0], np.float32)
    t /= 2
    t **= 2
    assert a.data.tolist() == [1.0, 2.0]
    assert t.data.tolist() == [2.25, 6.25]
    t.sum().backward()
    assert a.grad.tolist() == [3.0, 5.0]  # (x + ½)², so 2x + 1

    square = b = tn.tensor([[1.0, 2.0], [3.0, 4.0]])
    square @= square
    assert b.data.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert square.data.tolist() == [[7.0, 10.0], [15.0, 22.0]]


def test_in_place_on_a_view_leaves_its_base():
    t = tn.tensor([[1.0, 2.0], [3.0, 4.0]])
    for view in (t[0], t.T, t.reshape(4), t.detach()):
        before = t.data.copy()
        view += 10.0
        assert t.data.tolist() == before.tolist()


def test_an_array_takes_no_tensor_in_place():
    array = np.zeros(2)
    with pytest.raises(TypeError, match="Tensor"):
        array += leaf([1.0, 2.0])
    assert array.tolist() == [0.0, 0.0]


# Parts

INDICES = {
    "integer": 1, "negative": -1, "numpy integer": np.int64(2), "slice": slice(1, 3), "step": slice(None, None, 2),
    "reversed": slice(None, None, -1), "nothing": slice(2, 2), "ellipsis": ..., "new axis": None, "pair": (1, 2),
    "column": (slice(None), 1), "ellipsis and integer": (..., 0), "new axis inside": (slice(None), None, 1),
    "list": [0, 2], "duplicates": [1, 1, 1, 0], "array": np.array([[0, 2], [2, 2]]), "empty list": [],
    "two arrays": (np.array([0, 1, 0]), np.array([2, 2, 2])), "row and list": (1, [0, 0, 3]),
    "broadcast arrays": (np.array([[0], [2]]), np.array([1, 1])), "array and slice": ([2, 2], slice(None, None, -1)),
    "rows by mask": np.array([True, False, True]), "mask": np.arange(12).reshape(3, 4) % 3 == 0,
    "list of bools": [False, True, True], "no row by mask": np.zeros(3, bool), "bool": True,
    "uint8 array": np.array([2, 0, 2], np.uint8), "negative array": np.array([-1, -3]),
}  # fmt: skip


@pytest.mark.parametrize("name", INDICES)
def test_indexing(rng, name):
    index = INDICES[name]
    x = rng.normal(size=(3, 4))
    t = leaf(x)
    y = t[index]
    plain = np.array([], np.intp) if isinstance(index, list) and not index else index
    expected = x[plain]
    assert isinstance(y, tn.Tensor)
    np.testing.assert_array_equal(y.data, expected)
    g = rng.normal(size=np.shape(expected))
    y.backward(g)
    # Number the elements: y's element came from the one whose number stands in its place.
    numbers = np.arange(12).reshape(3, 4)[plain]
    gradient = [float(np.sum(np.where(numbers == k, g, 0.0))) for k in range(12)]
    np.testing.assert_allclose(t.grad.ravel(), gradient, rtol=1e-14)


@pytest.mark.parametrize("index", [[1, 1, 0], [True, False, True], [[0, 1], [2, 2]]], ids=str)
def test_a_tensor_is_an_index(rng, index):
    x, t_index = rng.normal(size=(3, 4)), tn.tensor(index)
    t = leaf(x)
    y = t[t_index]
    np.testing.assert_array_equal(y.data, x[np.array(index)])
    np.testing.assert_array_equal(t[t_index, 1].data, x[np.array(index), 1])
    g = rng.normal(size=y.shape)
    y.backward(g)
    expected = np.zeros((3, 4))
    np.add.at(expected, np.array(index), g)
    np.testing.assert_allclose(t.grad, expected)


@pytest.mark.parametrize("kind", ["array", "list", "tensor", "tuple"])
def test_an_index_that_changes_later_is_the_one_that_was_used(kind):
    array = np.array([0, 1])
    index = {"array": array, "list": [0, 1], "tensor": tn.as_tensor(array), "tuple": (array,)}[kind]
    t = leaf([1.0, 2.0, 3.0])
    y = t[index]
    if kind == "list":
        index[:] = [2, 2]
    array[:] = 2
    y.backward(np.array([5.0, 7.0]))
    assert t.grad.tolist() == [5.0, 7.0, 0.0]


def test_indexing_a_scalar():
    t = leaf(3.0)
    y = t[()]
    assert y.shape == ()
    y.backward()
    assert t.grad == 1.0
    assert t[None].shape == (1,)


def test_a_slice_is_a_view_and_a_selection_a_copy():
    t = tn.tensor([1.0, 2.0, 3.0])
    assert np.shares_memory(t[1:].data, t.data)
    assert not np.shares_memory(t[[0, 1]].data, t.data)


def test_length_and_iteration(rng):
    x, g = rng.normal(size=(3, 2)), rng.normal(size=(3, 2))
    t = leaf(x)
    assert len(t) == 3
    rows = list(t)
    assert [row.shape for row in rows] == [(2,)] * 3
    for row, gradient in zip(rows, g, strict=True):
        row.backward(gradient)
    np.testing.assert_array_equal(t.grad, g)
    first, second = tn.tensor([4.0, 5.0])
    assert (first.item(), second.item()) == (4.0, 5.0)
    assert len(tn.tensor(np.zeros((0, 2)))) == 0
    assert list(tn.tensor(np.zeros((0, 2)))) == []
    assert [row.item() for row in reversed(tn.tensor([1.0, 2.0]))] == [2.0, 1.0]


# Shapes and reductions as methods


def test_shape_methods(rng):
    x = rng.normal(size=(2, 3, 4))
    for function, expected in [
        (lambda t: t.T, x.T),
        (lambda t: t.transpose(), x.T),
        (lambda t: t.transpose(None), x.T),
        (lambda t: t.transpose(1, 0, 2), x.transpose(1, 0, 2)),
        (lambda t: t.transpose((2, 0, -2)), x.transpose(2, 0, 1)),
        (lambda t: t.reshape(6, 4), x.reshape(6, 4)),
        (lambda t: t.reshape((4, -1)), x.reshape(4, 6)),
        (lambda t: t.reshape([3, 8]), x.reshape(3, 8)),
        (lambda t: t.reshape(-1), x.ravel()),
        (lambda t: t.reshape(np.int64(24)), x.ravel()),
        (lambda t: t.T.reshape(24), x.T.ravel()),
    ]:
        t = leaf(x)
        y = function(t)
        np.testing.assert_array_equal(y.data, expected)
        g = rng.normal(size=y.shape)
        y.backward(g)
        # The elements were only moved, so that Σ g·y = Σ x̄·x, and this for every x.
        np.testing.assert_array_equal(np.sort(t.grad.ravel()), np.sort(g.ravel()))
        np.testing.assert_allclose(np.sum(t.grad * x), np.sum(g * expected))
    assert tn.tensor(2.0).T.shape == ()
    assert tn.tensor(2.0).reshape(()).shape == ()
    assert tn.tensor(2.0).reshape(1, 1).shape == (1, 1)


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2), (), np.int64(1)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reduction_methods(rng, axis, keepdims):
    x = rng.normal(size=(2, 3, 4))
    for name in ("sum", "mean", "max", "min", "var"):
        y = getattr(tn.tensor(x), name)(axis=axis, keepdims=keepdims)
        expected = getattr(np, name)(x, axis=axis, keepdims=keepdims)
        assert y.shape == np.shape(expected)
        np.testing.assert_allclose(y.data, expected, rtol=1e-12, atol=1e-15)
    if axis is None:
        expected = np.sum((x - x.mean()) ** 2) / 23
        np.testing.assert_allclose(tn.tensor(x).var(ddof=1).item(), expected)


def test_astype(rng):
    x = rng.normal(size=3)
    t = leaf(x)
    y = t.astype(np.float32)
    assert y.dtype == np.float32
    assert t.astype(np.float64) is t
    y.backward(np.array([0.1, 0.2, 0.3]))
    assert t.grad.dtype == np.float64
    np.testing.assert_allclose(t.grad, [0.1, 0.2, 0.3], rtol=1e-7)
    assert t.astype(int).requires_grad is False
    assert t.astype(bool).dtype == np.bool_


# repr


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: tn.tensor([1.0, 2.0]), "Tensor([1., 2.], dtype=float32)"),
        (lambda: tn.tensor(1.5), "Tensor(1.5, dtype=float32)"),
        (lambda: tn.tensor([1, 2]), "Tensor([1, 2], dtype=int64)"),
        (lambda: tn.tensor([True]), "Tensor([ True], dtype=bool)"),
        (lambda: tn.tensor(np.zeros((2, 0))), "Tensor([], shape=(2, 0), dtype=float64)"),
        (lambda: tn.tensor([]), "Tensor([], shape=(0,), dtype=float32)"),
        (lambda: leaf([1.0]), "Tensor([1.], dtype=float32, requires_grad=True)"),
        (lambda: leaf([1.0]) * 2.0, "Tensor([2.], dtype=float32, op=multiply)"),
        (lambda: tn.exp(leaf(0.0)), "Tensor(1., dtype=float32, op=exp)"),
        (lambda: tn.nn.Parameter([1.0]), "Parameter([1.], dtype=float32, requires_grad=True)"),
        (lambda: tn.tensor([[1.0, 2.0], [3.0, 4.0]]), "Tensor([[1., 2.],\n        [3., 4.]], dtype=float32)"),
    ],
)
def test_repr(make, text):
    assert repr(make()) == text


def test_repr_of_many_elements_is_short_and_says_the_shape():
    text = repr(tn.tensor(np.arange(100_000.0).reshape(100, 1000)))
    assert len(text) < 1000
    assert "..." in text
    assert text.endswith("shape=(100, 1000), dtype=float64)")


# Python and NumPy look in


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_element_as_a_number(shape):
    t = tn.tensor(np.full(shape, 2.5))
    assert t.item() == float(t) == 2.5
    assert type(t.item()) is float
    assert int(t) == 2
    assert bool(t) is True
    assert bool(tn.tensor(np.zeros(shape))) is False
    assert type(tn.tensor(3).item()) is int
    assert type(tn.tensor(True).item()) is bool
    assert leaf(2.5).item() == 2.5


def test_detach_shares_the_memory_and_forgets_the_history():
    w = leaf([1.0, 2.0])
    y = w * 3.0
    d = y.detach()
    assert d.requires_grad is False
    assert d.grad is None
    assert np.shares_memory(d.data, y.data)
    (w * d).sum().backward()
    assert w.grad.tolist() == [3.0, 6.0]
    d.data[0] = 100.0
    assert y.data[0] == 100.0
    w2 = leaf([1.0])
    assert w2.detach().requires_grad is False
    assert w2.requires_grad is True


def test_numpy_shares_on_the_cpu():
    t = leaf([1.0, 2.0])
    array = t.numpy()
    assert type(array) is np.ndarray
    array[0] = 5.0
    assert t.data.tolist() == [5.0, 2.0]


def test_numpy_converts_a_tensor_itself():
    t = leaf([1.0, 2.0])
    shared = np.asarray(t)
    assert np.shares_memory(shared, t.data)
    copied = np.array(t)
    assert not np.shares_memory(copied, t.data)
    assert np.asarray(t, dtype=np.float64).dtype == np.float64
    np.testing.assert_allclose(t, [1.0, 2.0])


def test_the_same_device_is_the_same_tensor():
    t = leaf([1.0])
    assert t.to("cpu") is t


def test_builtin_sum_adds_tensors():
    x = leaf([1.0, 2.0])
    total = sum(x * float(k) for k in range(1, 4))
    assert total.data.tolist() == [6.0, 12.0]
    total.backward(np.array([1.0, 10.0]))
    assert x.grad.tolist() == [6.0, 60.0]
    y = leaf([1.0, 2.0, 3.0])
    sum(tn.log(y)).backward()
    np.testing.assert_allclose(y.grad, [1.0, 1 / 2, 1 / 3], rtol=1e-6)
    x.grad = None
    sum(tn.log(x) for _ in range(3)).backward(np.ones(2))
    np.testing.assert_allclose(x.grad, [3.0, 1.5], rtol=1e-6)  # 3/x


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))], ids=["copy", "pickle"])
def test_copies_of_leaves_are_their_own(duplicate):
    w = leaf(np.array([1.0, 2.0]))
    (w * w).sum().backward()
    other = duplicate(w)
    assert other is not w
    assert other.requires_grad
    assert other.dtype == w.dtype
    assert other.data.tolist() == [1.0, 2.0]
    assert other.grad.tolist() == [2.0, 4.0]
    assert not np.shares_memory(other.data, w.data)
    assert not np.shares_memory(other.grad, w.grad)
    other.data[0] = 5.0
    (other * other).sum().backward()
    assert other.grad.tolist() == [12.0, 8.0]
    assert w.data.tolist() == [1.0, 2.0]
    assert w.grad.tolist() == [2.0, 4.0]
    constant = duplicate(tn.tensor([1, 2]))
    assert constant.requires_grad is False
    assert constant.dtype == np.int64


def test_deep_copies_of_modules_are_their_own(rng):
    model = tn.nn.Sequential(tn.nn.Linear(3, 4, rng=0), tn.nn.LayerNorm(4), tn.nn.Linear(4, 2, rng=0))
    other = copy.deepcopy(model)
    assert repr(other) == repr(model)
    originals, copies = dict(model.named_parameters()), dict(other.named_parameters())
    assert originals.keys() == copies.keys()
    assert len(originals) == 6
    before = {name: p.data.copy() for name, p in originals.items()}
    x = rng.normal(size=(5, 3)).astype(np.float32)
    np.testing.assert_array_equal(model(x).data, other(x).data)
    other(x).sum().backward()
    for name, p in originals.items():
        assert type(copies[name]) is tn.nn.Parameter
        assert copies[name].grad is not None
        assert p.grad is None
        copies[name].data[...] = 0.0
        assert p.data.tolist() == before[name].tolist()


def test_a_deep_copy_keeps_tied_weights_tied():
    model = tn.nn.Sequential(tn.nn.Linear(3, 3, rng=0), tn.nn.Linear(3, 3, rng=0))
    model[1].weight = model[0].weight
    other = copy.deepcopy(model)
    assert other[1].weight is other[0].weight
    assert other[0].weight is not model[0].weight


# Leaves: data, grad and requires_grad


def test_the_training_step_is_what_it_looks_like(rng):
    x = rng.normal(size=3).astype(np.float32)
    w = leaf(x)
    held = w.data
    for _ in range(3):
        w.grad = None
        (w * w).sum().backward()
        assert type(w.grad) is np.ndarray
        w.data -= 0.1 * w.grad
    np.testing.assert_allclose(w.data, x * 0.8**3, rtol=1e-5)
    assert w.data is held  # written to in place
    assert w.dtype == np.float32
    w.data -= np.float64(0.5) * w.grad
    assert w.dtype == np.float32
    w.data *= 2.0
    w.data[0] = 7.0
    assert w.data[0] == 7.0
    assert w.requires_grad


def test_data_can_be_replaced():
    w = leaf([1.0, 2.0])
    (w * w).sum().backward()
    w.data = np.array([3.0, 4.0], np.float32)
    assert w.data.tolist() == [3.0, 4.0]
    w.data = tn.tensor([5.0, 6.0])
    assert w.data.tolist() == [5.0, 6.0]
    w.data = [7.0, 8.0]
    assert type(w.data) is np.ndarray
    w.grad = None
    (w * w).sum().backward()
    assert w.grad.tolist() == [14.0, 16.0]
    constant = tn.tensor([1.0])
    constant.data = np.arange(3)
    assert constant.shape == (3,)
    assert constant.dtype == np.int64


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_grad_is_a_plain_array_of_the_tensors_kind(dtype):
    x = tn.tensor([1.0, 2.0], dtype=dtype, requires_grad=True)
    assert x.grad is None
    (x * np.float64(3.0)).sum().backward()
    assert type(x.grad) is np.ndarray
    assert x.grad.dtype == dtype
    assert x.grad.shape == (2,)
    scalar = tn.tensor(2.0, dtype=dtype, requires_grad=True)
    (scalar * scalar).backward()
    assert type(scalar.grad) is np.ndarray
    assert scalar.grad.shape == ()
    (scalar * scalar).backward()
    assert type(scalar.grad) is np.ndarray
    assert scalar.grad == 8.0


def test_only_leaves_collect_gradients():
    x = leaf([1.0, 2.0])
    y = x * 2.0
    y.sum().backward()
    assert y.grad is None
    assert x.grad.tolist() == [2.0, 2.0]
    constant = tn.tensor([1.0, 2.0])
    (x * constant).sum().backward()
    assert constant.grad is None
    constant.grad = None
    y.grad = None


def test_a_leaf_that_is_not_part_of_the_loss_gets_no_gradient():
    x, other = leaf([1.0]), leaf([1.0])
    (x * 2.0).sum().backward()
    assert other.grad is None
    unused = leaf([1.0, 2.0])
    (unused[0:0].sum() + x.sum()).backward()
    assert unused.grad.tolist() == [0.0, 0.0]


def test_grad_can_be_assigned():
    x = leaf([1.0, 2.0])
    x.grad = np.array([10.0, 20.0], np.float32)
    (x * 3.0).sum().backward()
    assert x.grad.tolist() == [13.0, 23.0]
    x.grad *= 0.5
    assert x.grad.tolist() == [6.5, 11.5]
    x.grad = None
    assert x.grad is None


def test_requires_grad_can_be_switched():
    x = tn.tensor([1.0, 2.0])
    assert (x * 2.0).requires_grad is False
    x.requires_grad = True
    x.requires_grad = True
    (x * 2.0).sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]
    x.requires_grad = True
    assert x.grad.tolist() == [2.0, 2.0]
    x.requires_grad = False
    assert x.grad is None
    assert (x * 2.0).requires_grad is False
    y = leaf([1.0]) * 2.0
    y.requires_grad = True
    assert y.requires_grad


def test_requires_grad_spreads_to_floating_results_alone():
    x, c = leaf([1.0, 2.0]), tn.tensor([1.0, 2.0])
    assert (x + c).requires_grad
    assert (c + x).requires_grad
    assert x[0].requires_grad
    assert not (c + c).requires_grad
    assert not x.astype(np.int64).requires_grad


def test_requires_grad_on_integers_is_refused_and_changes_nothing():
    t = tn.tensor([1, 2])
    with pytest.raises(tn.errors.DTypeError, match="floating-point"):
        t.requires_grad = True
    assert t.requires_grad is False


# Lists of Python numbers


def test_a_dtype_that_is_asked_for_gets_all_digits_of_a_python_float():
    for make in (tn.tensor, tn.as_tensor):
        assert make(0.1, dtype=np.float64).item() == 0.1
        assert make([[0.1], [0.2]], dtype=np.float64).numpy().tolist() == [[0.1], [0.2]]
        assert make([0.1], dtype=np.float16).numpy()[0] == np.float16(0.1)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("numbers", [[0.1, 2.0], [1, 2], [True, False], (0.1, 2.0)], ids=str)
def test_a_list_beside_a_floating_tensor_takes_its_dtype(dtype, numbers):
    t = tn.tensor([1.5, -2.0], dtype=dtype)
    same = np.array(numbers).astype(dtype)
    for y, right in [
        (t * numbers, t.data * same),
        (numbers + t, same + t.data),
        (tn.maximum(t, numbers), np.maximum(t.data, same)),
        (tn.stack([t, numbers]), np.stack([t.data, same])),
        (tn.concatenate([numbers, t]), np.concatenate([same, t.data])),
        (tn.where([True, False], t, numbers), np.where([True, False], t.data, same)),
    ]:
        assert y.dtype == dtype
        np.testing.assert_array_equal(y.numpy(), right)


def test_as_tensor_can_ask_for_a_gradient():
    a = np.array([1.0, 2.0])
    t = tn.as_tensor(a, requires_grad=True)
    (t * t).sum().backward()
    np.testing.assert_array_equal(t.grad, 2.0 * a)
    assert np.shares_memory(t.data, a)
    assert tn.as_tensor(t, requires_grad=True) is t
    with pytest.raises(tn.errors.DTypeError, match=r"^as_tensor: only floating-point"):
        tn.as_tensor(np.arange(3), requires_grad=True)


def test_a_single_element_takes_a_format():
    loss = tn.tensor(0.125, requires_grad=True) * 2.0
    assert f"{loss:.3f}" == "0.250"
    assert f"{loss}" == str(loss)
    with pytest.raises(tn.errors.ShapeError, match=r"\(2,\)"):
        f"{tn.tensor([1.0, 2.0]):.3f}"
