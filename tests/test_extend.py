"""`tn.op`: what a new operation costs its author, and what its author is told."""

import numpy as np
import pytest
from helpers import l2_norm

import tinynorm as tn
from tinynorm.kernels import Kernel


@pytest.fixture
def rng():
    return np.random.default_rng(20240504)


def leaf(array):
    return tn.tensor(array, requires_grad=True)


def refusal(call):
    """What the library says when it refuses; None when it does not."""
    try:
        call()
    except tn.errors.TinynormError as error:
        return str(error)
    return None


# The whole of a new operation


def reference(x, weight, eps):
    return weight * x / np.sqrt((x**2).sum(-1, keepdims=True) + eps)


def slopes(x, weight, eps, g):
    """Both gradients of Σ g·reference by the complex step."""
    gradients = []
    for k in range(2):
        inputs = [np.array(x, complex), np.array(weight, complex)]
        gradient = np.zeros(inputs[k].shape)
        for i in np.ndindex(gradient.shape):
            inputs[k][i] += 1e-30j
            gradient[i] = np.sum(g * reference(*inputs, eps).imag) / 1e-30
            inputs[k][i] -= 1e-30j
        gradients.append(gradient)
    return gradients


@pytest.mark.parametrize(
    ("shape_x", "shape_w"),
    [((3,), (3,)), ((4, 3), (3,)), ((2, 4, 3), (3,)), ((3, 3), (3,)), ((4, 3), ()), ((4, 3), (1,)), ((4, 3), (4, 1)),
     ((3,), (4, 3)), ((0, 3), (3,)), ((1,), (1,))],
)  # fmt: skip
def test_it_computes_broadcasts_and_differentiates(rng, shape_x, shape_w):
    x, w = rng.normal(size=shape_x), rng.normal(size=shape_w)
    tx, tw = leaf(x), leaf(w)
    y = l2_norm(tx, tw, eps=0.1)
    assert isinstance(y, tn.Tensor)
    np.testing.assert_allclose(y.data, reference(x, w, 0.1), rtol=1e-13)
    g = rng.normal(size=y.shape)
    y.backward(g)
    for t, expected in zip((tx, tw), slopes(x, w, 0.1, g), strict=True):
        assert t.grad.shape == t.shape
        np.testing.assert_allclose(t.grad, expected, rtol=1e-10, atol=1e-13)


def test_it_is_a_function_like_any_other_of_the_library(rng):
    x, w = rng.normal(size=(4, 3)), rng.normal(size=3)
    t = leaf(x)
    h = l2_norm(t * 2.0, w, eps=0.1)
    y = tn.exp(l2_norm(h, 1.0, eps=0.1)).sum()
    assert repr(h).endswith("op=l2_norm)")
    y.backward()
    inner = reference(2.0 * x, w, 0.1)
    outer = reference(inner, 1.0, 0.1)
    dh, _ = slopes(inner, 1.0, 0.1, np.exp(outer))
    dx, _ = slopes(2.0 * x, w, 0.1, dh)
    np.testing.assert_allclose(t.grad, 2.0 * dx, rtol=1e-9)
    with tn.no_grad():
        assert not l2_norm(t, w, eps=0.1).requires_grad


def test_only_what_requires_a_gradient_gets_one(rng):
    x, w, g = rng.normal(size=(4, 3)), rng.normal(size=3), rng.normal(size=(4, 3))
    for k, inputs in enumerate([(leaf(x), tn.tensor(w)), (tn.tensor(x), leaf(w))]):
        l2_norm(*inputs, eps=0.1).backward(g)
        np.testing.assert_allclose(inputs[k].grad, slopes(x, w, 0.1, g)[k], rtol=1e-10)
        assert inputs[1 - k].grad is None


def test_arrays_numbers_and_lists_are_constants(rng):
    x, w = rng.normal(size=(4, 3)), rng.normal(size=3)
    expected = reference(x, w, 0.1)
    y = l2_norm(x, w, eps=0.1)
    assert isinstance(y, tn.Tensor)
    assert not y.requires_grad
    np.testing.assert_allclose(y.data, expected)
    np.testing.assert_allclose(l2_norm(x.tolist(), w.tolist(), eps=0.1).data, expected, rtol=1e-5)
    assert l2_norm([3.0, 4.0], 2, eps=0.0).dtype == np.float32
    np.testing.assert_allclose(l2_norm([3.0, 4.0], 2, eps=0.0).data, [1.2, 1.6], rtol=1e-6)
    np.testing.assert_allclose(l2_norm([3.0, 4.0], np.float64(2), eps=0.0).data, [1.2, 1.6], rtol=1e-6)


def test_inputs_and_cotangents_stay_as_they_are(rng):
    x, w = rng.normal(size=(4, 3)), rng.normal(size=3)
    x.flags.writeable = w.flags.writeable = False
    tx, tw = tn.Tensor(x, True), tn.Tensor(w, True)
    l2_norm(tx, tw, eps=0.1).sum().backward()  # whose cotangent is a read-only view of stride 0
    expected = slopes(x, w, 0.1, np.ones((4, 3)))
    np.testing.assert_allclose(tx.grad, expected[0], rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(tw.grad, expected[1], rtol=1e-10)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_dtypes(rng, dtype):
    x, w = rng.normal(size=(4, 3)).astype(dtype), rng.normal(size=3).astype(dtype)
    tx, tw = leaf(x), leaf(w)
    y = l2_norm(tx, tw, eps=np.float64(0.1) if dtype == np.float64 else 0.1)
    assert y.dtype == dtype
    g = rng.normal(size=(4, 3)).astype(dtype)
    y.backward(g)
    tolerance = 4 * float(np.finfo(dtype).eps)
    exact = [a.astype(float) for a in (x, w, g)]
    np.testing.assert_allclose(y.data, reference(*exact[:2], 0.1), rtol=tolerance)
    for t, expected in zip((tx, tw), slopes(*exact[:2], 0.1, exact[2]), strict=True):
        assert t.grad.dtype == dtype
        np.testing.assert_allclose(t.grad, expected, rtol=4 * tolerance, atol=4 * tolerance)


def test_float16_is_computed_in_float32():
    """300² + 400² = 500² is no float16; and the formula is shown float32, also backward."""
    seen = []

    @tn.op("spy")
    def spy(xp, x):
        seen.append(x.dtype)
        return x * x, x

    @spy.backward
    def _(xp, dy, x):
        seen.extend([dy.dtype, x.dtype])
        return 2.0 * dy * x

    x = tn.tensor([300.0, 400.0], dtype=np.float16, requires_grad=True)
    y = l2_norm(x, 1.0, eps=0.0)
    assert y.dtype == np.float16
    np.testing.assert_allclose(y.data, [0.6, 0.8], rtol=1e-3)
    y.backward(np.array([1.0, 0.0]))
    np.testing.assert_allclose(x.grad, [0.64 / 500, -0.48 / 500], rtol=1e-3)
    z = spy(tn.tensor([2.0], dtype=np.float16, requires_grad=True))
    assert z.dtype == np.float16
    z.backward()
    assert seen == [np.float32] * 3


def test_float16_with_float32_gives_float32():
    half, single = (tn.tensor([3.0, 4.0], dtype=d, requires_grad=True) for d in (np.float16, np.float32))
    y = l2_norm(half, single, eps=0.0)
    assert y.dtype == np.float32
    y.sum().backward()
    assert (half.grad.dtype, single.grad.dtype) == (np.float16, np.float32)


# What a formula may return


def test_a_lone_gradient_needs_no_tuple():
    for wrap in (lambda g: g, lambda g: (g,)):

        @tn.op("cube")
        def cube(xp, x):
            return x**3, x

        @cube.backward
        def _(xp, dy, x, wrap=wrap):
            return wrap(3.0 * dy * x * x)

        x = leaf([1.0, 2.0])
        cube(x).backward(np.array([1.0, 10.0]))
        assert x.grad.tolist() == [3.0, 120.0]


def test_an_operation_without_a_cache():
    @tn.op("twice")
    def twice(xp, x):
        return 2.0 * x, None

    @twice.backward
    def _(xp, dy, cache):
        assert cache is None
        return 2.0 * dy

    x = leaf(3.0)
    twice(x).backward()
    assert x.grad == 2.0


def test_none_is_an_input_and_a_gradient():
    @tn.op("scaled")
    def scaled(xp, x, factor):
        return (x, None) if factor is None else (x * factor, factor)

    @scaled.backward
    def _(xp, dy, factor):
        return dy if factor is None else dy * factor, None

    x = leaf([1.0, 2.0])
    scaled(x, None).sum().backward()
    scaled(x, 3.0).sum().backward()
    assert x.grad.tolist() == [4.0, 4.0]


def test_a_backward_can_ask_what_is_needed():
    asked = []

    @tn.op("product")
    def product(xp, a, b, c):
        return a * b * c, (a, b, c)

    @product.backward
    def _(xp, dy, cache, needs):
        asked.append(needs)
        a, b, c = cache
        return dy * b * c if needs[0] else None, None, dy * a * b if needs[2] else None

    a, c = leaf([2.0]), leaf([5.0])
    product(a, 3.0, c).backward()
    product(a.detach(), 3.0, c).backward()
    assert asked == [(True, False, True), (False, False, True)]
    assert a.grad.tolist() == [15.0]
    assert c.grad.tolist() == [12.0]


def test_broadcasting_and_promotion_are_undone_for_the_author(rng):
    """The backward says what each element of y sends back; the engine sums and rounds."""

    @tn.op("plus")
    def plus(xp, a, b):
        return a + b, None

    @plus.backward
    def _(xp, dy, cache):
        return dy.astype(np.float64), dy

    g = rng.normal(size=(2, 3, 4))
    for shape in [(), (1,), (4,), (3, 1), (2, 1, 1), (1, 3, 4), (2, 3, 4)]:
        a = tn.tensor(np.zeros(shape), dtype=np.float32, requires_grad=True)
        plus(a, np.zeros((2, 3, 4))).backward(g)
        padded = (1,) * (3 - len(shape)) + shape
        expected = g.sum(axis=tuple(i for i in range(3) if padded[i] == 1), keepdims=True).reshape(shape)
        assert a.grad.dtype == np.float32
        np.testing.assert_allclose(a.grad, expected, rtol=1e-5, atol=1e-6)


def test_results_of_any_kind():
    """NumPy's reductions give scalars, comparisons bools: no gradient can flow through those."""

    @tn.op("total")
    def total(xp, x):
        return x.sum(), x.shape

    @total.backward
    def _(xp, dy, shape):
        return xp.broadcast_to(dy, shape)

    @tn.op("sign")
    def positive(xp, x):
        return x > 0, None

    x = leaf([1.0, 2.0])
    y = total(x)
    assert type(y.data) is np.ndarray
    y.backward(np.float32(3.0))
    assert x.grad.tolist() == [3.0, 3.0]
    assert positive(x).requires_grad is False
    assert positive(x).data.tolist() == [True, True]


# Keywords


def test_keywords_are_options():
    x = leaf([3.0, 4.0])
    np.testing.assert_allclose(l2_norm(x, 1.0, eps=0.0).data, [0.6, 0.8])
    np.testing.assert_allclose(l2_norm(x, 1.0, eps=75.0).data, [0.3, 0.4])


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda x: l2_norm(x, 1.0), r"l2_norm: .*'eps'"),
        (lambda x: l2_norm(x, 1.0, epsilon=0.1), r"l2_norm: .*'epsilon'"),
        (lambda x: l2_norm(x, eps=0.1), r"l2_norm: .*'weight'"),
        (lambda x: l2_norm(x, 1.0, 2.0, eps=0.1), r"l2_norm: .*positional"),
        (lambda x: l2_norm(eps=0.1), r"l2_norm: .*'x' and 'weight'"),
    ],
)
def test_wrong_arguments_are_named(call, match):
    with pytest.raises(tn.errors.DTypeError, match=match):
        call(leaf([1.0, 2.0]))


def test_a_tensor_by_keyword_loses_no_gradient_in_silence():
    """As an input it would be differentiated; as an option it cannot be."""
    w, x = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    message = refusal(lambda: l2_norm(x, weight=w, eps=0.0).backward(np.array([1.0, 1.0])))
    if message is None:
        np.testing.assert_allclose(w.grad, [0.6, 0.8], rtol=1e-6)
    else:
        assert "l2_norm" in message
        assert "weight" in message


# What goes wrong


def test_a_missing_backward():
    @tn.op("half_done")
    def half_done(xp, x):
        return x * x, x

    assert half_done([2.0]).data.tolist() == [4.0]
    x = leaf([2.0])
    y = half_done(x)
    with pytest.raises(tn.errors.GraphError, match=r"half_done has no backward.*@half_done\.backward"):
        y.backward()
    assert x.grad is None


def two_inputs(name, gradients):
    @tn.op(name)
    def made(xp, a, b):
        return a * b, (a, b)

    @made.backward
    def _(xp, dy, cache):
        return gradients(dy, *cache)

    return made


@pytest.mark.parametrize(
    ("gradients", "count"),
    [(lambda dy, a, b: dy * b, 1), (lambda dy, a, b: (dy * b,), 1), (lambda dy, a, b: (dy * b, dy * a, None), 3),
     (lambda dy, a, b: (), 0)],
)  # fmt: skip
def test_a_wrong_number_of_gradients(gradients, count):
    x = leaf([1.0, 2.0])
    with pytest.raises(tn.errors.ShapeError, match=f"pair has 2 inputs.*returned {count} gradients.*one per input"):
        two_inputs("pair", gradients)(x, x).sum().backward()
    assert x.grad is None


@pytest.mark.parametrize("shape", [(3,), (1, 3), (5, 2), (0, 2), (2, 3, 1)])
def test_a_gradient_of_a_wrong_shape(shape):
    a, b = leaf(np.ones((3, 2))), leaf(np.ones((3, 2)))
    made = two_inputs("pair", lambda dy, a, b: (dy * b, np.ones(shape)))
    with pytest.raises(tn.errors.ShapeError) as caught:
        made(a, b).sum().backward()
    assert f"pair returned a gradient of shape {shape} for an input of shape (3, 2)" in str(caught.value)
    assert a.grad is b.grad is None


@pytest.mark.parametrize(
    ("gradients", "expected"),
    [
        (lambda dy, a, b: [dy * b, dy * a], [1.0, 2.0]),
        (lambda dy, a, b: (dy * b, [5.0, 6.0]), [5.0, 6.0]),
        (lambda dy, a, b: (dy * b, tn.tensor(dy * a)), [1.0, 2.0]),
        (lambda dy, a, b: (dy * b, 0.0), None),
        (lambda dy, a, b: (dy * b, 0), None),
        (lambda dy, a, b: (dy * b, "zero"), None),
        (lambda dy, a, b: (dy * b, 1j * dy), None),
        (lambda dy, a, b: (dy * b, [[1.0], [2.0, 3.0]]), None),
        (lambda dy, a, b: None, None),
    ],
    ids=["a list", "a list as gradient", "a Tensor", "0.0", "0", "a string", "complex", "ragged", "nothing"],
)
def test_what_is_no_array_is_taken_for_what_it_means_or_refused(gradients, expected):
    """A typed error that names the operation, or the right gradients: never an AttributeError from the depths."""
    a, b = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    message = refusal(lambda: two_inputs("pair", gradients)(a, b).sum().backward())
    if message is None:
        assert a.grad.tolist() == [3.0, 4.0]
        assert type(b.grad) is np.ndarray
        assert b.grad.tolist() == expected
    else:
        assert "pair" in message
        assert a.grad is b.grad is None


@pytest.mark.parametrize(
    "result", [lambda x: x, lambda x: (x,), lambda x: (x, x, x), lambda x: None, lambda x: [x, None]]
)
def test_a_forward_returns_a_result_and_a_cache(result):
    @tn.op("careless")
    def careless(xp, x):
        return result(x * 2.0)

    with pytest.raises(tn.errors.ArgumentError, match=r"careless.*\(y, cache\)"):
        careless(leaf([1.0, 2.0]))


@pytest.mark.parametrize(
    "y", [None, "text", [1.0, [2.0, 3.0]], np.array([1j])], ids=["None", "text", "ragged", "complex"]
)
def test_a_forward_returns_real_numbers(y):
    @tn.op("careless")
    def careless(xp, x):
        return y, None

    with pytest.raises(tn.errors.TinynormError, match="careless"):
        careless(leaf([1.0, 2.0]))


def test_shapes_that_a_formula_cannot_take_are_named():
    for x, w in [(np.ones(3), np.ones(2)), (np.ones((2, 3)), np.ones((3, 2)))]:
        with pytest.raises(tn.errors.TinynormError) as caught:
            l2_norm(leaf(x), w, eps=0.1)
        for part in ("l2_norm", str(x.shape), str(w.shape)):
            assert part in str(caught.value)


@pytest.mark.parametrize("value", ["a", None, 1j, object(), np.array(["a"]), [1.0, [2.0]]])
def test_inputs_that_are_no_numbers(value):
    with pytest.raises(tn.errors.TinynormError):
        l2_norm(leaf([1.0, 2.0]), value, eps=0.1)


def test_an_exception_of_the_authors_own_passes_through():
    class Mine(Exception):
        pass

    @tn.op("raising")
    def raising(xp, x):
        raise Mine

    with pytest.raises(Mine):
        raising(leaf([1.0]))


def test_a_formula_that_calls_the_library_instead_of_xp_gives_right_gradients_or_a_typed_error():
    """The commonest slip of all: tn.exp where xp.exp was meant."""

    @tn.op("slip")
    def slip(xp, x):
        y = tn.exp(x)
        return y, y

    @slip.backward
    def _(xp, dy, y):
        return dy * y

    x = leaf([0.0, 1.0])
    message = refusal(lambda: slip(x).sum().backward())
    if message is None:
        assert type(x.grad) is np.ndarray
        np.testing.assert_allclose(x.grad, np.exp([0.0, 1.0]), rtol=1e-6)
    else:
        assert "slip" in message


def test_the_decorator_wants_a_name():
    """@tn.op without its parentheses."""
    with pytest.raises(tn.errors.TinynormError, match="op"):

        @tn.op
        def bare(xp, x):
            return x, None


# What it looks like


def test_an_operation_shows_its_name_and_its_docstring():
    assert repr(l2_norm) == "<op l2_norm>"
    assert l2_norm.__doc__ == "y = g ⊙ x / √(Σ x² + ε)"


def test_operations_of_one_name_do_not_meet():
    """Nothing is registered anywhere: the name is for messages alone."""

    def make(factor):
        @tn.op("exp")
        def f(xp, x):
            return factor * x, None

        @f.backward
        def _(xp, dy, cache):
            return factor * dy

        return f

    double, triple = make(2.0), make(3.0)
    x = leaf([1.0])
    (double(x) + triple(x) * tn.exp(x.detach() * 0.0)).backward()
    assert x.grad.tolist() == [5.0]


def test_a_recorded_operation_keeps_the_backward_that_it_had():
    @tn.op("changing")
    def changing(xp, x):
        return x, None

    changing.backward(lambda xp, dy, cache: 2.0 * dy)
    x = leaf([1.0])
    y = changing(x)
    changing.backward(lambda xp, dy, cache: 3.0 * dy)
    y.backward()
    assert x.grad.tolist() == [2.0]
    changing(x).backward()
    assert x.grad.tolist() == [5.0]


@pytest.mark.parametrize("option", [np.ones(2), np.array(1e-5), tn.tensor(1.0)])
def test_an_array_is_an_input_not_an_option(option):
    """An option is neither guarded against changes nor kept from widening a dtype."""

    @tn.op("scaled")
    def scaled(xp, x, *, by):
        return x * by, by

    with pytest.raises(tn.errors.ArgumentError, match=r"^scaled: .*'by' by position"):
        scaled(leaf([1.0, 2.0]), by=option)
    assert scaled(tn.tensor([1.0, 2.0]), by=np.float64(2.0)).dtype == np.float32


def test_an_operation_looks_like_its_formula():
    @tn.op("documented")
    def documented(xp, x):
        """y = x"""
        return x, None

    assert documented.__doc__ == "y = x"
    assert documented.__name__ == "documented"


def test_a_typed_error_raised_by_a_formula_comes_through_as_it_is():
    @tn.op("picky")
    def picky(xp, x):
        raise tn.errors.ShapeError("picky: wants other shapes")

    with pytest.raises(tn.errors.ShapeError, match=r"^picky: wants other shapes$"):
        picky(tn.tensor([1.0]))


def test_a_backward_that_takes_something_else_is_refused_where_it_is_written():
    @tn.op("pair")
    def pair(xp, a, b):
        return a + b, None

    with pytest.raises(tn.errors.ArgumentError, match=r"pair: a backward formula takes \(xp, dy, cache\)"):
        pair.backward(lambda dy, cache: (dy, dy))
    pair.backward(lambda xp, dy, cache, needs: (dy, dy))


# A kernel of one's own


def with_kernel(**parts):
    """3 x, whose kernel counts how often its forward and backward run, and gives parts that a test wants otherwise."""
    calls = {"forward": 0, "backward": 0}

    @tn.op("triple")
    def triple(xp, x):
        return 3.0 * x, None

    @triple.backward
    def _(xp, dy, cache):
        return 3.0 * dy

    def forward(needs, x):
        calls["forward"] += 1
        return x + x + x, x

    def backward(dy, x, needs):
        calls["backward"] += 1
        return (dy + dy + dy,)

    suits = {"suits": lambda x: isinstance(x, np.ndarray) and x.ndim == 1}
    triple.kernel(Kernel(**{**suits, "forward": forward, "backward": backward, **parts}))
    return triple, calls


def test_a_kernel_serves_where_it_suits():
    triple, calls = with_kernel()
    for value, runs in ([1.0, 2.0], 1), ([[1.0, 2.0]], 0), (1.0, 0):
        x, before = leaf(value), dict(calls)
        y = triple(x)
        y.backward(np.ones_like(y.data))
        np.testing.assert_array_equal(y.data, 3.0 * x.data)
        np.testing.assert_array_equal(x.grad, np.full(x.shape, 3.0))
        assert calls == {name: n + runs for name, n in before.items()}


def test_the_formulas_run_where_they_are_asked_for():
    triple, calls = with_kernel()
    with tn.formulas_only():
        triple(leaf([1.0])).backward()
    assert calls == {"forward": 0, "backward": 0}
    x = leaf([1.0])
    (slope,) = tn.grad((triple(x) ** 2).sum(), x, create_graph=True)
    np.testing.assert_allclose(tn.grad(slope.sum(), x)[0].data, [18.0])
    assert tn.gradcheck(triple, [[1.0, -2.0]])


def test_a_kernel_that_gives_up_leaves_it_to_the_formula():
    triple, calls = with_kernel(forward=lambda needs, x: None)
    x = leaf([1.0])
    triple(x).backward()
    assert x.grad.tolist() == [3.0]
    assert calls["backward"] == 0


def test_a_wrong_gradient_of_a_kernel_is_found():
    triple, _ = with_kernel(backward=lambda dy, x, needs: (2.0 * dy,))
    with pytest.raises(tn.errors.GradientError, match="triple"):
        tn.gradcheck(triple, [[1.0, -2.0]])


@pytest.mark.parametrize("gradients", [(), (np.ones(1), np.ones(1))])
def test_a_kernel_with_a_wrong_number_of_gradients(gradients):
    triple, _ = with_kernel(backward=lambda dy, x, needs: gradients)
    x = leaf([1.0])
    with pytest.raises(tn.errors.ShapeError, match=f"triple has 1 inputs.*returned {len(gradients)} gradients"):
        triple(x).backward()
    assert x.grad is None


def test_a_kernel_gives_away_no_array_of_its_cache():
    kept = np.ones(1, np.float32)
    triple, _ = with_kernel(forward=lambda needs, x: (3.0 * x, kept), backward=lambda dy, cache, needs: (cache,))
    x = leaf([1.0])
    triple(x).backward()
    x.grad[:] = 7.0
    assert kept.tolist() == [1.0]


def test_a_kernel_stays_with_its_operation():
    """Whatever was made of the operation before, such as its property test, means the same one."""
    triple, calls = with_kernel()
    operation = triple._op
    triple.kernel(operation.kernel)
    assert triple._op is operation
    triple.backward(lambda xp, dy, cache: 3.0 * dy)
    triple(leaf([1.0])).backward()
    assert calls == {"forward": 1, "backward": 1}


def test_a_kernel_is_a_kernel():
    triple, _ = with_kernel()
    with pytest.raises(tn.errors.ArgumentError, match=r"^triple: kernel takes a tinynorm\.kernels\.Kernel, not <"):
        triple.kernel(lambda x: x)


@pytest.mark.parametrize("result", [lambda x: x**3, lambda x: (x.astype(object), x)])
def test_a_kernel_whose_forward_gives_something_else_is_refused(result):
    @tn.op("cube")
    def cube(xp, x):
        return x**3, x

    cube.kernel(Kernel(lambda x: True, lambda needs, x: result(x), lambda dy, x, needs: (3 * dy * x * x,)))
    with pytest.raises(tn.errors.TinynormError, match=r"cube: .*kernel's"):
        cube(tn.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True))
