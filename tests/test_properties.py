"""`property_test` and what it asks of an operation: faults that it must find, and right operations that must pass."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import strict_cupy
from helpers import l2_norm

import tinynorm as tn
from tinynorm.backend import why_no_device
from tinynorm.errors import ArgumentError, GradientError, MissingExtraError
from tinynorm.testing import values
from tinynorm.testing.cases import CASES, Setting
from tinynorm.testing.choices import Choose
from tinynorm.testing.verify import verify

test_l2_norm = tn.testing.property_test(l2_norm, "...D", "D", eps=1e-3)
test_log = tn.testing.property_test(tn.log, ("...", values.positive))
test_abs = tn.testing.property_test(tn.abs, ("...", values.away_from_zero))
test_linear = tn.testing.property_test(tn.functional.linear, "...I", "OI", "O")
test_classes = tn.testing.property_test(tn.functional.cross_entropy, "N3", ("N", values.below(3)), reduction="sum")
test_several = tn.testing.property_test(
    lambda x, w: tn.mean(tn.functional.rms_norm(x * 2.0, x.shape[-1], w), axis=-1), "...D", "D"
)


# Faults, one of each kind. `product` is right but for the one formula it is given.


def product(forward=None, backward=None):
    """y = w · x², a vector's elements for themselves."""
    made = tn.op("product")(forward or (lambda xp, x, w: (w * x * x, (x, w))))
    made.backward(backward or (lambda xp, dy, cache: (2.0 * dy * cache[1] * cache[0], dy * cache[0] * cache[0])))
    return made


def in_memory_order(a):
    """Right for a C-contiguous array; for another, its elements in the wrong places."""
    return a.ravel(order="K").reshape(a.shape) if isinstance(a, np.ndarray) else a


def spoils_what_is_strided(xp, dy, cache):
    x, w = cache
    gradients = 2.0 * dy * w * x, dy * x * x
    if isinstance(dy, np.ndarray) and dy.flags.writeable and not dy.flags.c_contiguous:
        dy *= 2.0
    return gradients


def needs_both(xp, dy, cache, needs):
    x, w = cache
    return (2.0 * dy * w * x, dy * x * x) if all(needs) else (dy * x * x, 2.0 * dy * w * x)


def remembers_the_last_call():
    last = []

    def forward(xp, x, w):
        last[:] = [x, w]
        return w * x * x, None

    return product(forward, lambda xp, dy, cache: (2.0 * dy * last[1] * last[0], dy * last[0] * last[0]))


def forgets(xp, dy, cache):
    x, w = cache
    return 2.0 * dy * w * x, None


FAULTS = {
    "a factor": (product(backward=lambda xp, dy, c: (2.02 * dy * c[1] * c[0], dy * c[0] * c[0])), "argument 0"),
    "the other input's": (product(backward=lambda xp, dy, c: (2.0 * dy * c[1] * c[0], dy * c[0])), "argument 1"),
    "a gradient forgotten": (product(backward=forgets), "argument 1"),
    "the sum of all": (product(backward=lambda xp, dy, c: (2.0 * dy * c[1] * c[0], xp.sum(dy) * c[0] * c[0])), "argum"),
    "a last call": (remembers_the_last_call(), "backward number 1"),
    "both needed": (product(backward=needs_both), "input 0 alone is differentiated"),
    "order of inputs": (
        product(lambda xp, x, w: (w * in_memory_order(x) * in_memory_order(x), (in_memory_order(x), w))),
        "where inputs are transposed, the value",
    ),
    "order of the cotangent": (
        product(backward=lambda xp, dy, c: (2.0 * in_memory_order(dy) * c[1] * c[0], dy * c[0] * c[0])),
        "where the cotangent is transposed, the gradient of input 0",
    ),
    "writes to a cotangent": (
        product(backward=spoils_what_is_strided),
        "where the cotangent is strided, the cotangent has been written to",
    ),
    "widens": (product(lambda xp, x, w: ((w * x * x).astype(np.float64), (x, w))), "dtype float64 .* float32"),
    "range of the value": (
        product(lambda xp, x, w: (w * x * 1e-30 * 1e-30 * x * 1e30 * 1e30, (x, w))),
        "in float32, the value",
    ),
    "range of a gradient": (
        product(backward=lambda xp, dy, c: (2.0 * dy * 1e-30 * c[1] * 1e-30 * c[0] * 1e30 * 1e30, dy * c[0] * c[0])),
        "in float32, the gradient of input 0",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(fault):
    operation, match = FAULTS[fault]
    with pytest.raises(GradientError, match=match):
        tn.testing.property_test(operation, "...D", "...D")()


def test_the_same_without_a_fault_passes():
    tn.testing.property_test(product(), "...D", "...D")()


def test_a_value_that_does_not_repeat_is_found():
    rng = np.random.default_rng(0)

    @tn.op("noisy")
    def noisy(xp, x):
        return x + rng.normal(size=x.shape), None

    noisy.backward(lambda xp, dy, cache: dy)
    with pytest.raises(GradientError, match="two calls"):
        verify(noisy, [np.ones(3)])


def test_a_failure_shows_shapes_options_and_seed():
    @tn.op("off")
    def off(xp, x, *, by):
        return x * by, by

    off.backward(lambda xp, dy, by: dy * (1.01 * by))
    with pytest.raises(GradientError) as caught:
        tn.testing.property_test(off, "...D", by=2.5)()
    text = "\n".join([str(caught.value), *caught.value.__notes__])
    assert "off: argument 0" in text
    assert re.search(r"in off of shapes \[\(.*\)\] with options {'by': 2.5} and seed \d+", text)
    assert re.search(r"setting=Setting\(shapes=\(\(.*\),\), options={'by': 2.5}\),\s+seed=\d+", text)


def test_what_an_operation_raises_itself_says_where_too():
    @tn.op("square")
    def square(xp, x):
        if x.shape[-1] > 1:
            raise ZeroDivisionError
        return x * x, x

    square.backward(lambda xp, dy, x: 2.0 * dy * x)
    with pytest.raises(ZeroDivisionError) as caught:
        tn.testing.property_test(square, "...D")()
    assert any("in square of shapes" in note for note in caught.value.__notes__)


# Right operations where rounding is at its worst


@pytest.mark.parametrize(
    "function",
    [
        lambda x: tn.functional.rms_norm(x, x.shape[-1], eps=0.0),  # of one number: its sign, whose gradient is 0
        lambda x: tn.functional.layer_norm(x, x.shape[-1], eps=1e-9),  # of two numbers, too
        lambda x: (x * x).mean(axis=-1) - x.mean(axis=-1) ** 2,  # of one number 0, but for rounding
        lambda x: tn.functional.softmax(x * 3.0, axis=-1),
        lambda x: tn.exp(x) - tn.exp(x) + x,
    ],
    ids=["rms_norm", "layer_norm", "variance", "softmax", "cancelled"],
)
def test_rounding_is_no_fault(function):
    for seed in range(40):
        rng = np.random.default_rng(seed)
        verify(function, [rng.normal(size=(int(rng.integers(1, 4)), int(rng.integers(1, 4))))], seed=seed)


def test_numbers_beyond_float16_are_not_held_against_a_function():
    verify(lambda x: tn.exp(x) * 1e5, [np.array([0.1, 1.0, 2.0])])


# What is drawn


def test_shapes_agree_and_are_as_promised():
    case = tn.testing.property_test(lambda *x: x[0], "A...B", "BA", "...", "2B").case
    choose = Choose.from_rng(np.random.default_rng(0))
    settings = [case.setting(choose) for _ in range(1000)] + case.always
    batches, named = set(), set()
    for setting in settings:
        (a, *batch, b), others = setting.shapes[0], setting.shapes[1:]
        assert others == ((b, a), tuple(batch), (2, b))
        batches.add(tuple(batch))
        named |= {(a, b)}
    assert named == {(a, b) for a in range(1, 5) for b in range(1, 5)}
    assert {len(batch) for batch in batches} == {0, 1, 2, 3}
    assert {n for batch in batches for n in batch} == {0, 1, 2, 3}


def test_every_run_has_something_of_nothing_something_of_one_and_a_square():
    always = tn.testing.property_test(l2_norm, "...D", "D", eps=1e-3).case.always
    shapes = [setting.shapes[0] for setting in always]
    assert any(0 in shape for shape in shapes)
    assert (1,) in shapes
    assert any(len(shape) == 2 and shape[0] == shape[1] > 1 for shape in shapes)


def test_values_come_from_the_seed_and_from_their_makers():
    case = tn.testing.property_test(tn.functional.nll_loss, "N5", ("N", values.below(5))).case
    setting = Setting(((200, 5), (200,)), {})
    scores, target = case.inputs(np.random.default_rng(1), setting)
    again = case.inputs(np.random.default_rng(1), setting)
    other = case.inputs(np.random.default_rng(2), setting)
    assert scores.tobytes() == again[0].tobytes() != other[0].tobytes()
    assert set(target.tolist()) == {0, 1, 2, 3, 4}
    assert abs(scores.mean()) < 0.2 < 0.8 < scores.std() < 1.2


def test_the_case_is_there_for_others():
    case = test_l2_norm.case
    assert (case.name, case.op.forward, case.typical.options) == ("l2_norm", l2_norm.__wrapped__, {"eps": 1e-3})
    assert test_l2_norm.__name__ == "test_l2_norm"
    assert test_several.case.op is None


def test_any_name_will_do():
    made = tn.op("a new-op")(lambda xp, x: (x + 1.0, None))
    made.backward(lambda xp, dy, cache: dy)
    assert tn.testing.property_test(made, "...").__name__ == "test_a_new_op"


@pytest.mark.parametrize("shape", ["D...D...", "....", "D-", "..", 3, None, ("D",), ["D"], "D,E", "…D"])
def test_shapes_that_cannot_be_read(shape):
    with pytest.raises(ArgumentError, match=r"^property_test: input 1 is .*write its shape in letters"):
        tn.testing.property_test(l2_norm, "...D", shape, eps=1e-3)


def test_inputs_are_wanted():
    with pytest.raises(ArgumentError, match="property_test: name the shapes"):
        tn.testing.property_test(l2_norm, eps=1e-3)


def test_spaces_in_shapes_are_nothing():
    def shapes(*inputs):
        return tn.testing.property_test(lambda *x: x[0], *inputs).case.always

    assert shapes("N D", "... D", " 2 ") == shapes("ND", "...D", "2")


@pytest.mark.parametrize(
    ("function", "inputs", "options", "says"),
    [
        (l2_norm, ["...D"], {"eps": 1e-3}, "l2_norm takes 2 inputs; name a shape for each, not 1"),
        (l2_norm, ["...D", "D", "D"], {"eps": 1e-3}, "l2_norm takes 2 inputs; name a shape for each, not 3"),
        (tn.functional.linear, ["...I"], {}, "linear takes 2 to 3 inputs; name a shape for each, not 1"),
        (tn.functional.linear, ["...I", "OI", "O"], {"bias": None}, "linear takes 2 inputs; .* not 3"),
        (lambda x, *others: x, ["2"], {}, None),
        (lambda x, y, *others: x, ["..."], {}, "takes 2 or more inputs; name a shape for each, not 1"),
        (tn.functional.softmax, ["...D"], {"axis": -1}, None),
    ],
)
def test_as_many_shapes_as_the_function_has_inputs(function, inputs, options, says):
    if says is None:
        assert tn.testing.property_test(function, *inputs, **options).case.typical.options == options
        return
    with pytest.raises(ArgumentError, match=f"^property_test: .*{says}"):
        tn.testing.property_test(function, *inputs, **options)


def test_a_misspelt_option_is_named():
    with pytest.raises(tn.errors.DTypeError, match="epsilon"):
        tn.testing.property_test(l2_norm, "...D", "D", epsilon=1e-3)()


# Devices


@pytest.fixture
def device(monkeypatch):
    strict_cupy.install(monkeypatch)
    assert why_no_device() is None


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("name", ["multiply", "exp", "sum", "linear", "log_softmax", "where"])
def test_a_device_is_used_where_there_is_one(name):
    case = CASES[name]
    verify(case, case.inputs(np.random.default_rng(0), case.typical), case.typical.options)


@pytest.mark.usefixtures("device")
def test_a_fault_on_the_device_alone_is_found():
    made = product(lambda xp, x, w: (w * x * x * (1.0 if xp is np else 1.01), (x, w)))
    with pytest.raises(GradientError, match="on the GPU, the value"):
        verify(made, [np.ones(2), np.ones(2)])


def test_without_one_the_reason_is_known(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert re.search(r"CuPy.*tinynorm\[cuda1", why_no_device())


# Layouts, values, strategies


@pytest.mark.parametrize("shape", [(3,), (3, 4), (2, 3, 4)])
def test_layouts_are_what_they_are_called(shape):
    x = np.random.default_rng(0).normal(size=shape)
    stored = {name: layout(x) for name, layout in values.LAYOUTS.items()}
    for name in ("strided", "reversed", "transposed"):
        np.testing.assert_array_equal(stored[name], x)
    np.testing.assert_array_equal(stored["repeated"], np.stack([x[0]] * len(x)))
    assert all(s >= 16 for s in stored["strided"].strides)
    assert all(s < 0 for s in stored["reversed"].strides)
    assert stored["transposed"].flags.f_contiguous
    assert stored["repeated"].strides[0] == 0
    assert not stored["repeated"].flags.writeable


@pytest.mark.parametrize(
    ("maker", "holds"),
    [
        (values.positive, lambda a: (a >= 0.3) & (a <= 3)),
        (values.above(-1.0), lambda a: (a >= -0.7) & (a <= 2)),
        (values.away_from_zero, lambda a: (np.abs(a) >= 0.3) & (np.abs(a) <= 3)),
        (values.distinct, lambda a: np.abs(a) > 0.07),
        (values.on_grid(0.2), lambda a: np.isclose((a - 0.2) * 2 % 1, 0) | np.isclose((a - 0.2) * 2 % 1, 1)),
        (values.below(3), lambda a: (a >= 0) & (a < 3) & (a.dtype.kind == "i")),
    ],
)
@pytest.mark.parametrize("shape", [(), (0,), (1000,), (10, 10)])
def test_makers_keep_to_their_range(maker, holds, shape):
    a = maker(np.random.default_rng(0), shape)
    assert (type(a), a.shape) == (np.ndarray, shape)
    assert np.all(holds(a))
    if maker is values.distinct and a.size > 1:
        assert np.diff(np.sort(a.ravel())).min() > 0.29


def test_strategies_are_explained_each_with_an_example():
    """The examples run with all others."""
    for name in tn.testing.strategies.__all__:
        assert ">>> " in getattr(tn.testing.strategies, name).__doc__


def test_strategies_draw_all_that_they_promise():
    from hypothesis import given, settings

    seen = set()

    @settings(max_examples=300, derandomize=True, database=None)
    @given(
        tn.testing.strategies.tensors(), tn.testing.strategies.norm_inputs(2), tn.testing.strategies.class_targets(3)
    )
    def collect(t, inputs, pair):
        x, weight, bias = inputs
        scores, target = pair
        assert t.requires_grad
        assert x.dtype == weight.dtype == bias.dtype
        assert weight.shape == bias.shape == x.shape[-1:]
        assert scores.shape == (*target.shape, 3)
        assert scores.requires_grad > target.requires_grad
        seen.update([t.dtype.name, t.ndim, *(f"side {n}" for n in t.shape), *np.unique(target.numpy()).tolist()])
        seen.update(f"stride {np.sign(s)}" for s in t.data.strides if t.size > 1)

    collect()
    assert {"float16", "float32", "float64", "side 0", "side 1", "side 3", 0, 1, 2, 3} <= seen
    assert {"stride -1", "stride 0", "stride 1"} <= seen


# Hypothesis is asked for where it is used, and nowhere else


@pytest.mark.parametrize("use", ['tn.testing.property_test(tn.exp, "...")()', "tn.testing.strategies"])
def test_without_hypothesis_the_extra_is_named(use):
    code = (
        "import sys; sys.modules['hypothesis'] = None; import tinynorm as tn\n"
        f"try: {use}\nexcept ImportError as e: print(type(e).__name__, e)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(tn.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert re.fullmatch(r"MissingExtraError hypothesis .*pip install 'tinynorm\[test\]'\n", done.stdout)
    assert issubclass(MissingExtraError, ImportError)


def test_a_name_that_is_not_there_is_no_name():
    with pytest.raises(AttributeError, match="strategy"):
        tn.testing.strategy  # noqa: B018
