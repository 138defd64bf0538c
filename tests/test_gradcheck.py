"""The checker is checked: planted faults must be reported, and right gradients must pass."""

import re
import warnings
from functools import partial

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import tinynorm as tn
from tinynorm import functional as F
from tinynorm import nn
from tinynorm.errors import ArgumentError, DTypeError, GradientError, GraphError, ShapeError
from tinynorm.testing import central_difference, complex_step, derivative, examine, gradcheck, gradgradcheck
from tinynorm.testing.cases import CASES
from tinynorm.testing.examine import SAFETY
from tinynorm.testing.numeric import slope


def normal(*shape, seed=0):
    return np.asarray(np.random.default_rng(seed).normal(size=shape))


def message_of(fn, inputs, check=gradcheck, **options):
    with pytest.raises(GradientError) as caught:
        check(fn, inputs, **options)
    assert check(fn, inputs, raise_exception=False, **options) is False
    return str(caught.value)


# Planted faults


def mix_with(fault):
    """sin(x) @ w, whose two gradients have gone through `fault`."""

    @tn.op("mix")
    def mix(xp, x, w):
        return xp.matmul(xp.sin(x), w), (x, w)

    @mix.backward
    def _(xp, dy, cache):
        x, w = cache
        return fault(xp.cos(x) * xp.matmul(dy, w.T), xp.matmul(xp.sin(x).T, dy))

    return mix


def one_element(argument, index, factor=1.01):
    def fault(*gradients):
        gradients[argument][index] *= factor
        return gradients

    return fault


def right(*gradients):
    return gradients


def overlapping(x):
    """Rows that share all but one element with the next."""
    return as_strided(x.reshape(-1).copy(), x.shape, (8, 8))


LAYOUTS = {
    "C": np.array,
    "Fortran": np.asfortranarray,
    "reversed": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "strided": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "broadcast": lambda x: np.broadcast_to(x[:1], x.shape),
    "overlapping": overlapping,
    "float32": lambda x: x.astype(np.float32),
    "list": lambda x: x.tolist(),
}


@pytest.mark.filterwarnings("ignore:.* is examined as float64")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("method", ["auto", "central", "complex"])
def test_one_percent_in_one_element_is_seen_in_every_layout(layout, method):
    inputs = [LAYOUTS[layout](a) for a in (normal(3, 4), normal(4, 4, seed=1))]
    assert gradcheck(mix_with(right), inputs, method=method)
    for argument, index in [(0, (0, 0)), (0, (2, 3)), (1, (0, 3)), (1, (3, 1))]:
        message = message_of(mix_with(one_element(argument, index)), inputs, method=method)
        assert f"mix: argument {argument}, at {index}" in message


@pytest.mark.parametrize(("index", "seed"), [(0, 0), (1234, 1), (9999, 2)])
def test_one_percent_in_one_of_ten_thousand_elements_is_seen(index, seed):
    """Blocks of several elements each, and the message still names the one."""

    @tn.op("long sine")
    def long_sine(xp, x):
        return xp.sin(x), x

    @long_sine.backward
    def _(xp, dy, x):
        dx = dy * xp.cos(x)
        dx[index] *= 1.01
        return dx

    x = np.random.default_rng(seed).uniform(-1.4, 1.4, 10_000)
    assert f"argument 0, at ({index},)" in message_of(long_sine, [x], method="central", seed=seed)


@pytest.mark.parametrize("n", [2_000, 100_000])
def test_one_percent_in_one_element_of_a_long_sum_is_seen(n):
    def square_sum_with(fault):
        @tn.op("square sum")
        def square_sum(xp, x):
            return xp.sum(x * x), x

        square_sum.backward(lambda xp, dy, x: fault(dy * 2.0 * x))
        return square_sum

    def wrong(dx):
        dx[n // 3] *= 1.01
        return dx

    x = np.random.default_rng(0).uniform(0.5, 1.5, n)
    assert gradcheck(square_sum_with(lambda dx: dx), [x])
    assert f"at ({n // 3},)" in message_of(square_sum_with(wrong), [x], method="central")


@pytest.mark.parametrize(
    "fault",
    [
        lambda dx, dw: (-dx, dw),
        lambda dx, dw: (dx, dw.T),
        lambda dx, dw: (dx, dw / 3.0),
        lambda dx, dw: (dx - dx.mean(), dw),
        lambda dx, dw: (dx, None),
        lambda dx, dw: (0.0 * dx, dw),
        lambda dx, dw: (dx, dw + 1e-4),
        lambda dx, dw: (dx * np.nan, dw),
        lambda dx, dw: (dx, dw.astype(np.float32)),
    ],
    ids=["sign", "transposed", "a mean for a sum", "centred", "none", "zero", "offset", "nan", "rounded"],
)
@pytest.mark.parametrize("method", ["auto", "complex"])
def test_every_kind_of_fault_is_seen(fault, method):
    """Square, so that a transposed gradient keeps its shape. Float32 rounding, 1e-8, is what only complex steps see."""
    message_of(mix_with(fault), [normal(4, 4), normal(4, 4, seed=1)], method=method)


@pytest.mark.parametrize("shape", [(), (1,), (3,)])
def test_a_backward_that_is_not_linear_in_its_cotangent_is_seen(shape):
    """dy² is right for a cotangent of 1."""

    @tn.op("twice")
    def twice(xp, x):
        return 2.0 * x, None

    twice.backward(lambda xp, dy, cache: 2.0 * dy * dy)
    message_of(twice, [normal(*shape)])


def test_a_small_entry_of_the_jacobian_is_seen_beside_large_ones():
    """1 % of a millionth of what stands beside it in the same gradient: that result has a row of its own."""
    scales = np.array([1.0, 1e-6, 1e3])

    def spread_with(factor):
        @tn.op("spread")
        def spread(xp, x):
            return x * scales, None

        spread.backward(lambda xp, dy, cache: dy * scales * factor)
        return spread

    assert gradcheck(spread_with(1.0), [2.0])
    for i in range(3):
        factor = np.where(np.arange(3) == i, 1.01, 1.0)
        assert "argument 0, at ()" in message_of(spread_with(factor), [2.0])


def test_a_fault_in_a_small_element_is_not_hidden_by_a_large_one():
    """Gradients of 3e-4 beside 2700."""

    def cube_with(factor):
        @tn.op("cube")
        def cube(xp, x):
            return x * x * x, x

        cube.backward(lambda xp, dy, x: 3.0 * dy * x * x * factor)
        return cube

    x = np.array([1e-2, 1.0, 30.0])
    assert gradcheck(cube_with(1.0), [x])
    for i in range(3):
        assert f"at ({i},)" in message_of(cube_with(np.where(np.arange(3) == i, 1.01, 1.0)), [x])


def test_a_wrong_constant_that_differences_cannot_see_is_seen_by_complex_steps():
    @tn.op("almost")
    def almost(xp, x):
        return xp.exp(x), x

    almost.backward(lambda xp, dy, x: dy * xp.exp(x) * (1.0 + 1e-8))
    assert gradcheck(almost, [normal(3)], method="central")
    for method in ("auto", "complex"):
        assert "by a complex step" in message_of(almost, [normal(3)], method=method)


def test_statistics_that_are_treated_as_constants_are_seen():
    def frozen(x):
        """A LayerNorm whose μ and σ get no gradient."""
        mean, std = x.detach().mean(-1, keepdims=True), x.detach().var(-1, keepdims=True)
        return (x - mean) / tn.sqrt(std + 1e-5)

    message_of(frozen, [normal(3, 4)])


# Right gradients pass


@pytest.mark.parametrize("scale", [1e-300, 1e-150, 1e-8, 1.0, 1e8, 1e150, 1e300])
@pytest.mark.parametrize(
    "fn", [lambda x: 3.0 * x, tn.log, lambda x: x / (x + 1.0), tn.sqrt], ids=["3x", "log", "x/(x+1)", "sqrt"]
)
def test_every_scale(fn, scale):
    x = np.abs(normal(5)) * scale
    report = examine(fn, [x])
    assert report.passed, report.message


@pytest.mark.parametrize("scale", [1e-100, 1e-8, 1e8, 1e100])
def test_a_fault_is_seen_at_every_scale(scale):
    """The gradient of x³ is between 1e-200 and 1e200 here: nothing is compared with 1."""

    @tn.op("cube")
    def cube(xp, x):
        return x * x * x, x

    cube.backward(lambda xp, dy, x: dy * 3.0 * x * x * np.where(np.arange(5) == 2, 1.01, 1.0))
    assert gradcheck(lambda x: x * x * x, [normal(5) * scale])
    for method in ("central", "complex"):
        assert "at (2,)" in message_of(cube, [normal(5) * scale], method=method)


PASS = {
    "flat": (lambda x: x * 0.0 + 5.0, normal(4)),
    "flat and large": (lambda x: x * 0.0 + 1e9, normal(4)),
    "constant": (lambda x: tn.tensor(5.0), normal(4)),
    "a number": (lambda x: 5.0, normal(4)),
    "integers": (lambda x: tn.tensor(np.arange(3)), normal(4)),
    "a mask": (lambda x: x > 0.0, normal(4)),
    "identity": (lambda x: x, normal(4)),
    "a view": (lambda x: x[1:3], normal(4)),
    "several results": (lambda x: (x * 2.0, tn.exp(x), 3.0), normal(4)),
    "no results": (lambda x: [], normal(4)),
    "saddle": (lambda x: x * x * x, np.zeros(3)),
    "fifth power at 0": (lambda x: x**5, np.zeros(3)),
    "exp of 30": (tn.exp, np.array([30.0, -30.0, 0.0])),
    "curved": (lambda x: tn.exp(300.0 * x), normal(4)),
    "fast": (lambda x: tn.sin(1e5 * x), normal(4)),
    "far out": (tn.sin, 1e8 * normal(4)),
    "tiny among large": (tn.log, np.array([1e-12, 1e-5, 1.0, 3.0])),
    "one tiny": (tn.log, np.array(1e-200)),
    "cancelled": (lambda x: tn.tanh(x) - tn.tanh(x), normal(4)),
    "cancelled digits": (lambda x: (x + 1e6) - 1e6, normal(4)),
    "sum of softmax": (lambda x: F.softmax(x).sum(), normal(5)),
    "sum of layer norm": (lambda x: F.layer_norm(x, 5).sum(), normal(2, 5)),
    "sin² + cos²": (lambda x: tn.sin(x) ** 2 + tn.cos(x) ** 2, normal(4)),
    "empty": (lambda x: x * 2.0, np.zeros((3, 0))),
    "scalar": (lambda x: x * x, np.array(1.5)),
    "kink nearby": (F.relu, np.array([1e-5, -1e-7, 1e-12, 1.0])),
    "jump nearby": (lambda x: (x > 0.0) + x, np.array([1e-6, -1e-4])),
    "matmul": (lambda x: x @ x.T, normal(5, 5)),
}


@tn.formulas_only()  # a kernel's rounding of a sum that is 0 may look like a kink, of 1e-16
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", PASS)
def test_right_gradients_pass(name, seed):
    fn, x = PASS[name]
    report = examine(fn, [x], seed=seed)
    assert report.passed, report.message
    assert report.central_error < 1e-6
    assert report.complex_error < 1e-12
    assert report.notices == ()


def test_an_argument_that_is_ignored():
    assert gradcheck(lambda a, b, i: a[i] * 2.0, [normal(3), normal(2), [0, 2]])
    assert "argument 1" in message_of(lambda a, b: a * b.detach(), [normal(3), normal(3, seed=1)])


@pytest.mark.parametrize("name", CASES)
def test_second_derivatives_of_every_op(name):
    call, setting = CASES[name].call, CASES[name].typical
    inputs = CASES[name].inputs(np.random.default_rng(3), setting)
    assert gradgradcheck(lambda *x: call(*x, **setting.options), inputs)


# Kinks, jumps, nothing to compare


def test_a_kink_is_named_as_one():
    message = message_of(F.relu, [[0.0, 1.0]], method="central", cotangent=[2.0, 1.0])
    assert "argument 0, at (0,): the analytic gradient is 0, the numeric one 1" in message
    assert "the slope is 0 from below and 2 from above, so fn has a kink there" in message
    assert "away_from=" in message


@pytest.mark.parametrize("away_from", [0, 0.0, [0.0], [3.0, 0.0], np.zeros(1)])
def test_a_kink_that_is_named_is_avoided(away_from):
    x = np.array([0.0, -0.0, 1e-9, -1e-9, 2.0])
    seen = []

    def relu(x):
        seen.append(x.numpy().copy())
        return F.relu(x)

    assert gradcheck(relu, [x], away_from=away_from)
    assert np.abs(seen[0][:4]).min() > 0.005
    assert np.all(np.sign(seen[0]) == [1, 1, 1, -1, 1])
    assert x.tolist() == [0.0, 0.0, 1e-9, -1e-9, 2.0]


def test_what_is_wrong_beside_a_kink_that_is_named_is_still_seen():
    message_of(lambda x: F.relu(x) + x.detach(), [[0.0, 1.0]], away_from=0.0)


def test_the_mean_of_both_slopes_passes_at_a_kink_with_a_notice():
    """|x| at 0, and a maximum of two that are equal: the formulas promise what differences give."""
    for fn, x in ((tn.abs, [0.0, 1.0]), (tn.max, [1.0, 1.0, 0.0])):
        report = examine(fn, [x])
        assert report.passed
        assert "kink" in report.notices[0]
    message_of(tn.max, [[1.0, 1.0, 1.0]])


@pytest.mark.parametrize(
    ("fn", "x", "words"),
    [
        (lambda x: (x > 0.0) + x, [0.0, 1.0], "too rough to judge by"),
        (tn.sqrt, [0.0, 1.0], "too rough to judge by"),
        (lambda x: x + 1e16, [1.0, 2.0], "too rough to judge by"),
        (tn.log, [0.0, 1.0], r"the result is -inf at \(0,\)"),
        (lambda x: (x, tn.exp(1000.0 * x)), [0.0, 1.0], r"the result 1 is inf at \(1,\)"),
        (tn.exp, [np.nan, 1.0], "argument 0 holds inf or nan"),
    ],
)
def test_where_nothing_can_be_said_it_says_so(fn, x, words):
    assert re.search(words, message_of(fn, [np.array(x)]))


# Functions that misbehave


def test_a_function_that_changes_its_inputs_is_reported():
    def doubles(a, b):
        b.data[1] *= 2.0
        return a * b

    inputs = [normal(3), normal(3, seed=1)]
    before = [a.copy() for a in inputs]
    message = message_of(doubles, inputs)
    assert re.search(r"argument 1 is not what it was, at \(1,\): the function changes it", message)
    np.testing.assert_array_equal(inputs, before)

    def counts(a, i):
        i.data[0] += 1
        return a * 2.0

    assert "argument 1" in message_of(counts, [normal(3), np.arange(3)])


def test_a_function_that_is_random_is_reported():
    rng = np.random.default_rng(0)
    for fn in (lambda x: x * rng.normal(), lambda x: F.dropout(x, 0.5, rng=rng)):
        assert "two calls with equal inputs give different results" in message_of(fn, [normal(20)])
    assert gradcheck(lambda x: F.dropout(x, 0.5, rng=0), [normal(20)])


def writing(what):
    """exp, whose backward writes to something; the gradient it returns is right the first time."""

    @tn.op("writing exp")
    def op(xp, x):
        y = xp.exp(x)
        return y, {"x": x, "y": y, "own": y.copy()}

    @op.backward
    def _(xp, dy, cache):
        dx = dy * cache["own"]
        target = dy if what == "dy" else cache[what]
        target *= 2.0
        return dx

    return op


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("dy", "a backward formula writes to its cotangent"),
        ("x", "argument 0 is not what it was, at (0,): a backward formula writes to it"),
        ("y", "a backward formula writes to its cache"),
        ("own", "a backward formula writes to its cache"),
    ],
)
def test_a_backward_that_writes_is_reported(what, words):
    assert words in message_of(writing(what), [normal(3)])


def test_a_backward_that_writes_to_what_was_handed_out_is_reported():
    """Here the engine notices first, at the second walk."""

    def fn(x):
        z = x * 2.0
        z.data.sum()
        return writing("x")(z)

    assert "a second walk back fails: a backward formula writes to its cache" in message_of(fn, [normal(3)])


def test_a_function_that_leaves_the_graph_is_reported():
    """Complex steps cannot see that; differences can."""

    def half(x):
        return x * tn.tensor(np.tanh(x.numpy()))

    assert "by central differences" in message_of(half, [normal(4)])
    assert gradcheck(half, [normal(4)], method="complex")


def test_too_few_digits():
    with pytest.raises(DTypeError, match="returns float32 for float64 inputs"):
        gradcheck(lambda x: x.astype(np.float32), [normal(3)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the report says it, so nobody need be warned
        report = examine(tn.exp, [np.float16([0.5, 1.5])])
    assert report.passed
    assert report.notices == ("argument 0 was float16 and is examined as float64",)


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
def test_more_digits_than_were_given_are_no_secret(check):
    narrow = [normal(3), np.float16([0.5, 1.5, 1.0]), tn.tensor([0.1, 0.2, 0.3])]
    with pytest.warns(UserWarning, match="is examined as float64") as caught:
        assert check(lambda a, b, c: a * tn.exp(b * c), narrow)
    assert [str(w.message) for w in caught] == [
        f"{check.__name__}: argument 1 was float16 and is examined as float64",
        f"{check.__name__}: argument 2 was float32 and is examined as float64",
    ]
    assert {w.filename for w in caught} == {__file__}


def gradients_that(change):
    """x · y, whose two gradients come out in another form."""

    @tn.op("form")
    def form(xp, x, y):
        return x * y, (x, y)

    form.backward(lambda xp, dy, cache: change(dy * cache[1], dy * cache[0]))
    return form


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda dx, dy: (dx, dy[:2]), r"form returned a gradient of shape \(2,\) for an input of shape \(3,\)"),
        (lambda dx, dy: dx, "form has 2 inputs, but its backward formula returned 1 gradients; return one per input"),
        (lambda dx, dy: (dx, dy, dx), "form has 2 inputs, but its backward formula returned 3 gradients"),
    ],
)
@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
def test_gradients_of_a_wrong_form_are_wrong_gradients(check, change, words):
    message = message_of(gradients_that(change), [normal(3), normal(3, seed=1)], check=check)
    assert re.search(f"^{check.__name__}: .*{words}", message)


def test_other_errors_than_wrong_gradients_are_raised_in_any_case():
    def fails(x):
        raise GraphError("on purpose")

    for check in (gradcheck, gradgradcheck):
        with pytest.raises(GraphError, match="on purpose"):
            check(fails, [normal(3)], raise_exception=False)


def test_what_cannot_be_differentiated_again_has_no_second_derivative():
    @tn.op("once")
    def once(xp, x):
        return xp.sin(x), x

    once.backward(lambda xp, dy, x: dy * np.cos(np.asarray(x)))
    assert gradcheck(once, [normal(3)])
    assert gradgradcheck(once, [normal(3)], raise_exception=False) is False
    with pytest.raises(GraphError, match="once cannot be differentiated again"):
        gradgradcheck(once, [normal(3)])


# What fn is called with


@pytest.mark.parametrize(
    ("fn", "inputs"),
    [
        (F.rms_norm, [normal(3, 4), 4, normal(4)]),
        (F.rms_norm, [normal(3, 4), (4,), None]),
        (F.softmax, [normal(3, 4), -1]),
        (F.linear, [normal(3, 4), normal(2, 4), None]),
        (F.gelu, [normal(3), "tanh"]),
        (tn.reshape, [normal(2, 4), (4, 2)]),
        (tn.reshape, [normal(1), ()]),
        (tn.sum, [normal(2, 4), (0, 1), True]),
        (F.cross_entropy, [normal(2, 4), [0, 2]]),
        (F.cross_entropy, [normal(2, 4), np.array([0, 2])]),
        (lambda x, i: x[i] * 2.0, [normal(5), slice(1, None)]),
        (lambda x, i: x[i] * 2.0, [normal(5, 2), (np.array([0, 0, 3]), 1)]),
        (lambda x, m: tn.where(m, x, 2.0 * x), [normal(2), np.array([True, False])]),
    ],
)
def test_what_is_no_floating_point_number_is_passed_on_as_it_is(fn, inputs):
    seen = []

    def listening(*arguments):
        seen.append(arguments)
        return fn(*arguments)

    assert gradcheck(listening, inputs)
    for given, got in zip(inputs, seen[0], strict=True):
        assert got is given if not isinstance(given, np.ndarray) else isinstance(got, tn.Tensor)
    assert gradgradcheck(fn, inputs)
    assert gradcheck(derivative(fn, 1), inputs)


@pytest.mark.parametrize("value", [0.5, np.float64(0.5), [0.5, 1], (0.5, 1.5), [normal(2), normal(2)]])
def test_numbers_and_lists_of_them_are_differentiated(value):
    assert gradcheck(lambda x: tn.exp(x), [value])
    assert "argument 0" in message_of(lambda x: tn.exp(x.detach()) + x, [value])


@pytest.mark.parametrize("x", [normal(3), np.array(0.5), tn.tensor(normal(2, 2))])
def test_one_array_or_tensor_stands_for_itself(x):
    for check in (gradcheck, gradgradcheck):
        assert check(tn.sin, x)
    assert examine(tn.sin, x).passed
    assert message_of(lambda x: x * x.detach(), x).partition("again")[2] == message_of(
        lambda x: x * x.detach(), [x]
    ).partition("again")[2]  # fmt: skip


# Functions that take derivatives themselves

SLOPES = {
    "grad with a graph": lambda x: tn.grad(tn.exp(x * x).sum(), x, create_graph=True)[0],
    "grad": lambda x: tn.grad(tn.exp(x * x).sum(), x)[0],
    "grad of a part": lambda x: x * tn.grad((x * x * x).sum(), x)[0] + tn.sin(x),
    "grad twice": lambda x: tn.grad(tn.grad((x**4).sum(), x)[0].sum(), x)[0],
    "grad of a product with grad": lambda x: tn.grad((x * tn.grad((x**4).sum(), x)[0]).sum(), x)[0],
    "vjp": lambda x: tn.vjp(tn.sin, x, np.arange(1.0, 4.0))[1],
    "jvp": lambda x: tn.jvp(tn.sin, x, np.arange(1.0, 4.0))[1],
    "hvp": lambda x: tn.hvp(lambda x: tn.exp(x).sum(), x, np.arange(1.0, 4.0))[1],
    "jacobian": lambda x: tn.jacobian(tn.tanh, x),
    "norm": lambda x: tn.grad(F.rms_norm(x, 3).sum() * x[0], x)[0],
}


@pytest.mark.parametrize("name", SLOPES)
def test_a_function_that_takes_derivatives(name):
    report = examine(SLOPES[name], [normal(3)])
    assert report.passed, report.message
    assert report.complex_error < 1e-12
    assert gradgradcheck(SLOPES[name], [normal(3)])
    with tn.no_grad():
        assert gradcheck(SLOPES[name], [normal(3)])


def test_a_function_that_takes_wrong_derivatives_is_seen():
    """Minus a factor that it treats as constant; and a backward that is wrong when it is differentiated."""
    message_of(lambda x: tn.grad((x * x * x.detach()).sum(), x)[0], [normal(3)])
    message_of(lambda x: tn.vjp(lambda x: x * x * x.detach(), x, np.ones(3))[1], [normal(3)])
    message_of(lambda x: tn.grad(tn.exp(x).sum(), x)[0] * x.detach(), [normal(3)], check=gradgradcheck)


def test_plain_calls_ask_for_no_gradients_where_that_is_possible():
    seen = []

    def fn(x):
        seen.append(x.requires_grad)
        return tn.exp(x)

    assert gradcheck(fn, [normal(3)])
    assert seen[0]
    assert not any(seen[1:])


# Nothing is left behind


def test_inputs_come_back_bit_for_bit_and_no_gradient_is_left():
    block = np.arange(1.0, 13.0)
    inputs = [
        as_strided(block, (3, 4), (16, 8)),
        block[::-1],
        np.broadcast_to(block[:1], (4,)),
        tn.Tensor(block[:4], requires_grad=True),
    ]
    inputs[3].grad = kept = np.full(4, 7.0)
    layer = nn.Linear(4, 2, rng=0)
    before, weight = block.tobytes(), layer.weight.numpy().tobytes()
    assert gradcheck(lambda a, b, c, d: layer(tn.tanh(a * c) + d) * b.sum(), inputs)
    message_of(lambda a, b, c, d: layer(a * c + d) * b.detach().sum(), inputs)
    assert (block.tobytes(), layer.weight.numpy().tobytes()) == (before, weight)
    assert inputs[3].grad is kept
    assert np.all(kept == 7.0)
    assert [p.grad for p in layer.parameters()] == [None, None]
    assert gradgradcheck(lambda a: layer(tn.tanh(a)), [normal(3, 4)])
    assert [p.grad for p in layer.parameters()] == [None, None]


@pytest.mark.parametrize("layout", ["C", "Fortran", "reversed"])
def test_the_function_sees_the_layout_that_was_given(layout):
    x, seen = LAYOUTS[layout](normal(3, 4)), []
    assert gradcheck(lambda a: (seen.append(a.numpy().strides), a * 2.0)[1], [x])
    assert seen[0] == x.strides


# Words and options


def test_a_failure_says_all_that_one_needs():
    fn, inputs = mix_with(one_element(1, (1, 0))), [normal(2, 2), normal(2, 1, seed=1)]
    message = message_of(fn, inputs, seed=3)
    found = re.search(
        r"^gradcheck: mix: argument 1, at \(1, 0\)(.*): the analytic gradient is (\S+), "
        r"the numeric one (\S+) ± (\S+) by central differences, (\S+) by a complex step; they may differ by (\S+)\n"
        r"again: (tn\.gradcheck\(mix, .*, seed=3\))$",
        message,
    )
    analytic, numeric, error, exact, bound = map(float, found.groups()[1:6])
    assert analytic == pytest.approx(1.01 * exact, rel=1e-9)
    assert abs(numeric - exact) <= error < bound < 0.001 * abs(exact)
    if found[1]:  # an entry of the Jacobian
        row = int(found[1].removeprefix(", for result at (")[0])
        assert exact == pytest.approx(np.sin(inputs[0][row, 1]))

    with pytest.raises(GradientError) as again:
        eval(found[7], {"tn": tn, "np": np, "mix": fn})
    assert str(again.value) == message


def test_the_line_that_repeats_a_check_has_all_that_was_chosen():
    options = {"method": "central", "cotangent": [1.0, 2.0], "rtol": 1e-4, "atol": 1e-8, "seed": 2, "away_from": 0.5}
    message = message_of(lambda x: x * x.detach(), [[3.0, 0.0]], **options)
    call = re.search(r"again: tn.gradcheck\(fn, \[\[3.0, 0.0\]\], (.*)\)$", message)[1]
    assert eval(f"dict({call})") == options
    assert message_of(lambda x: x * x.detach(), [normal(100)]).endswith("\nagain: tn.gradcheck(fn, inputs, seed=0)")


def test_the_line_that_repeats_a_check_has_all_that_was_given():
    """Every kind of input, to the last digit."""

    def wrong(x, *others):
        return x * x.detach()

    given = [
        normal(2, 2), np.float64(1 / 3), tn.tensor(normal(3)), np.arange(2), np.zeros((0, 3)), [0.1, 2], (1,), None,
        "a", slice(1, None), True, np.array([True]), np.array(0.1), [np.inf],
    ]  # fmt: skip
    line = message_of(wrong, given[:-1]).splitlines()[1]
    shown = eval(line.removeprefix("again: "), {"tn": StandIn, "np": np, "wrong": wrong})
    for a, b in zip(given[:-1], shown, strict=True):
        assert type(a) is type(b)
        if hasattr(a, "shape"):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            np.testing.assert_array_equal(a, b)
        else:
            assert a == b
    assert message_of(wrong, [1.0, [np.inf, -np.inf, np.nan]]).endswith(
        "(wrong, [1.0, [float('inf'), float('-inf'), float('nan')]], seed=0)"
    )
    with pytest.warns(UserWarning, match="is examined as float64"):
        assert "[np.array([0.5], dtype='float32')]" in message_of(wrong, [np.float32([0.5])])
    for unknown in (np.random.default_rng(0), [np.random.default_rng(0)], [0] * 500):
        assert message_of(wrong, [1.0, unknown]).endswith("again: tn.gradcheck(wrong, inputs, seed=0)")
    cotangent = np.array([1.0, 2.0])
    assert "seed=0, cotangent=np.array([1.0, 2.0]))" in message_of(wrong, [normal(2)], cotangent=cotangent)


class StandIn:
    """In place of tinynorm: a check that gives back its inputs."""

    tensor = tn.tensor

    def gradcheck(fn, inputs, *, seed):
        return inputs


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        (partial(tn.max, axis=0), "max"),
        (nn.RMSNorm(3), "RMSNorm"),
        (lambda x: tn.max(x), "<lambda>"),
        (tn.op("my max")(lambda xp, x: (xp.max(x), None)), "my max"),
    ],
)
def test_the_function_is_named(fn, name):
    message = message_of(fn, [[np.nan, 0.0, 1.0]])
    assert f"gradcheck: {name}: argument 0 holds inf or nan" in message
    assert "\nagain: tn.gradcheck(fn, [[float('nan'), 0.0, 1.0]], seed=0)" in message  # none has a name in Python


def test_under_no_grad():
    with tn.no_grad():
        assert gradcheck(tn.tanh, [normal(3)])
        assert gradgradcheck(tn.tanh, [normal(3)])
        message_of(lambda x: x * x.detach(), [normal(3)])


def test_numbers_for_a_table():
    report = examine(tn.tanh, [normal(3, 2)])
    assert report == (True, report.central_error, report.complex_error, None, ())
    assert 0.0 < report.central_error < 1e-10
    assert report.complex_error < 1e-14
    assert np.isnan(examine(tn.tanh, [normal(3)], method="complex").central_error)
    assert examine(tn.tanh, [normal(3)], method="central").complex_error is None


def test_without_a_second_witness_differences_decide():
    def split(xp, z):
        return np.real(z) * np.real(z), z

    op = tn.op("not analytic")(split)
    op.backward(lambda xp, dy, z: 2.0 * dy * z)
    report = examine(op, [normal(3)])
    assert report.passed
    assert report.complex_error is None
    assert "no complex step" in report.notices[0]
    with pytest.raises(GraphError, match="not analytic"):
        gradcheck(op, [normal(3)], method="complex")

    @tn.op("real only")
    def real_only(xp, x):
        if np.iscomplexobj(x):
            raise TypeError("no complex numbers, please")
        return x * x, x

    real_only.backward(lambda xp, dy, x: 2.0 * dy * x)
    assert gradcheck(real_only, [normal(3)])
    message = message_of(lambda x: real_only(x) * x.detach(), [normal(3)])
    assert "by central differences, and complex steps do not get through; they may differ by" in message
    with pytest.raises(GraphError, match=r"real only: no complex numbers, please.*use method='central'"):
        gradcheck(real_only, [normal(3)], method="complex")


def test_a_given_cotangent_is_used_instead_of_random_ones():
    """With ones, a LayerNorm's gradient is 0, and so is a wrong one."""

    @tn.op("zero gradient")
    def op(xp, x):
        c = x - xp.mean(x)
        return c / xp.sqrt(xp.mean(c * c)), x

    op.backward(lambda xp, dy, x: 0.0 * x)
    x = normal(5)
    message_of(op, [x])
    assert gradcheck(op, [x], cotangent=np.ones(5))
    message_of(op, [x], cotangent=[1.0, 2.0, 3.0, 4.0, 6.0])
    assert gradcheck(lambda x: (x, x.sum()), [x], cotangent=[np.ones(5), 2.0])
    with pytest.raises(ShapeError, match=r"cotangent must have the shape of fn's result, \[\(5,\)\], not \[\(4,\)\]"):
        gradcheck(op, [x], cotangent=np.ones(4))


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ([[1.0]], {"method": "forward"}, "method must be one of auto, central, complex"),
        ([[1.0]], {"rtol": -1.0}, "rtol"),
        ([[1.0]], {"atol": np.nan}, "atol"),
        (1.0, {}, r"inputs must be a list .* write \[x\]"),
        ("x", {}, r"inputs must be a list .* write \[x\]"),
        (normal(3) > 0.0, {}, "no input is floating-point"),
        ([[1]], {}, "no input is floating-point"),
        ([[1.0]], {"cotangent": "randm"}, """cotangent must be "random", or an array in .*, not 'randm'"""),
        ([[1.0]], {"cotangent": None}, """cotangent must be "random", or an array in .*, not None"""),
        ([[1.0]], {"seed": None}, "seed must be an integer >= 0, not None"),
        ([[1.0]], {"seed": -1}, "seed must be an integer >= 0, not -1"),
        ([[1.0]], {"seed": np.random.default_rng(0)}, "seed must be an integer >= 0, not Generator"),
        ([[1.0]], {"away_from": "zero"}, "away_from must be a number, not 'zero'"),
        ([[1.0]], {"away_from": [0.0, None]}, "away_from must be a number, not None"),
        ([[1.0]], {"away_from": np.nan}, "away_from must be a finite number, not nan"),
        ([[[1.0], [1.0, 2.0]]], {}, "nested lists must be of equal length"),
    ],
)
@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
def test_bad_arguments_are_refused(check, arguments, options, words):
    with pytest.raises((ArgumentError, ShapeError), match=words) as caught:
        check(lambda x: x, arguments, **options)
    assert "nested lists" in words or str(caught.value).startswith(f"{check.__name__}: ")


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
def test_what_is_no_function_or_no_cotangent_is_refused(check):
    with pytest.raises(
        DTypeError, match=rf"^{check.__name__}: fn must be a function of Tensors, not Tensor; its result"
    ):
        check(tn.tensor(1.0), [1.0])
    with pytest.raises(
        ShapeError, match=rf"^{check.__name__}: cotangent must have the shape of fn's result, .*\[\(\)\]"
    ):
        check(lambda x: (x, x), [1.0], cotangent=1.0)


def test_an_order_and_a_seed_are_integers():
    with pytest.raises(ArgumentError, match=r"derivative: order must be an integer >= 0, not 1\.5"):
        derivative(tn.exp, 1.5)
    with pytest.raises(ArgumentError, match="derivative: seed must be an integer >= 0, not None"):
        derivative(tn.exp, 1, None)


def test_loose_tolerances_pass_what_tight_ones_do_not():
    fn, inputs = mix_with(one_element(0, (0, 0), 1.0 + 1e-4)), [normal(3, 4), normal(4, 2)]
    message_of(fn, inputs)
    assert gradcheck(fn, inputs, method="central", rtol=1e-2)


# Higher orders


def test_a_wrong_second_derivative_is_seen():
    """A backward whose values are right, but which is constant in one of its factors when it is differentiated."""

    def cube_with(factor):
        @tn.op("cube")
        def cube(xp, x):
            return x * x * x, x

        cube.backward(lambda xp, dy, x: 3.0 * dy * x * factor(xp, x))
        return cube

    def rounded(xp, x):
        return xp.rint(x * 1e13) / 1e13

    x = [normal(3)]
    assert gradgradcheck(cube_with(lambda xp, x: x), x)
    assert gradcheck(cube_with(rounded), x)
    message = message_of(cube_with(rounded), x, check=gradgradcheck)
    assert message.startswith("gradgradcheck: gradient of cube: argument 0, at (")
    assert message.splitlines()[1] == f"again: tn.gradgradcheck(cube, [np.array({x[0].tolist()})], seed=0)"


def test_second_derivatives_of_what_has_none_or_a_kink():
    x = [normal(3)]
    assert gradgradcheck(lambda x: x * 2.0, x)
    assert gradgradcheck(lambda x: tn.tensor(1.0), x)
    assert gradgradcheck(lambda a, i: (a[i], 2.0), [normal(3), [0, 0, 2]])
    assert gradgradcheck(lambda x: F.relu(x) * x, x)
    assert "kink" in message_of(lambda x: F.relu(x) * x, [[0.0, 1.0]], check=gradgradcheck)
    assert "different results" in message_of(lambda x: F.dropout(x, 0.5), [normal(20)], check=gradgradcheck)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_derivatives_of_higher_order(order):
    """All derivatives of eˣ are eˣ, so that only the random factors differ, which depend on the seed alone."""
    at = [float(derivative(tn.exp, order, seed=5)(np.float64(x)).item()) for x in (0.0, 1.0)]
    assert at[1] / at[0] == pytest.approx(np.e)
    assert abs(at[0]) > 0.1
    assert float(derivative(lambda x: 2.0 * x, 2)(normal(3)).item()) == 0.0
    assert gradcheck(derivative(F.gelu, order), [normal(3)])
    assert derivative(tn.exp, 0) is tn.exp


# Differences themselves


@pytest.mark.parametrize("start", [1e-2, 1e-3, 1e-5])
@pytest.mark.parametrize(
    ("f", "slope_at", "unseen"),
    [
        (np.sin, np.cos, 1e-11),
        (np.exp, np.exp, 1e-11),
        (lambda x: np.exp(30.0 * x), lambda x: 30.0 * np.exp(30.0 * x), 1e-11),
        (lambda x: 1.0 / (2.0 + x), lambda x: -1.0 / (2.0 + x) ** 2, 1e-11),
        (lambda x: x**9, lambda x: 9.0 * x**8, 1e-11),
        (lambda x: (x + 1e4) - 1e4, np.ones_like, 1e-6),  # rounding that f itself does not show
    ],
)
def test_the_error_estimate_is_true(f, slope_at, unseen, start):
    x = np.linspace(-1.5, 1.5, 41)
    for levels in (2, 3, 5):
        found = slope(lambda t: f(x + t), f(x), start, levels, sure=1e-9)
        assert np.all(np.abs(found.value - slope_at(x)) <= SAFETY * found.error + unseen * np.abs(slope_at(x)))
        assert not found.kinked.any()


def test_differences_know_kinks():
    x = np.array([-1.0, 0.0, 1.0])
    found = slope(lambda t: np.abs(x + t) + np.maximum(x + t, 0.0), np.abs(x) + np.maximum(x, 0.0), 1e-3, 3, 1e-6)
    assert found.kinked.tolist() == [False, True, False]
    np.testing.assert_allclose(found.value, [-1.0, 0.5, 2.0], rtol=1e-9)


def test_plain_differences_and_complex_steps():
    x, dy = normal(2, 3), normal(3, seed=1)
    expected = dy * np.cos(x) * 2.0
    for numeric, accuracy in ((central_difference, 1e-8), (complex_step, 1e-14)):
        found = numeric(lambda x: np.sin(x).sum(axis=0) * 2.0, x, dy)
        np.testing.assert_allclose(found, expected, rtol=accuracy, atol=accuracy)
