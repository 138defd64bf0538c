"""The checker is checked: planted faults must be found, all of them, and a weak check must be seen to be weak."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from helpers import l2_norm

import tinynorm as tn
from tinynorm import table
from tinynorm.errors import ArgumentError, GradientError
from tinynorm.graph import topological_order
from tinynorm.op import Op
from tinynorm.testing.cases import CASES, OPS, cases_of
from tinynorm.testing.faults import planted
from tinynorm.testing.hunt import ABSENT, EQUIVALENT, UNCHANGED, corners_of, examples_of
from tinynorm.testing.hunt import hunt as hunt_anew

NORMS = ("linear", *(name for name in OPS if "norm" in name))

hunt = cache(hunt_anew)
mutants = cache(tn.testing.mutants)


# Every operation


@pytest.mark.parametrize("name", OPS)
def test_every_mutant_is_found(name):
    found = hunt(name)
    assert found.survivors == ()
    assert found.planted >= (8 if name in NORMS else 3)


def test_the_table():
    """Shown by `pytest -s`, and by `python -m tinynorm check`."""
    found = [hunt(name) for name in OPS]
    print(f"\n{'operation':16}  mutants  killed  equivalent")
    for f in found:
        print(f"{f.op:16}  {f.planted:7}  {len(f.killed):6}  {len(f.equivalents):10}")
    print(f"{'all':16}  {sum(f.planted for f in found):7}  {sum(len(f.killed) for f in found):6}")
    assert [f.op for f in found] == [op.name for op in vars(table).values() if isinstance(op, Op)]
    assert sum(f.planted for f in found) > 1000


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("rms_norm", "rms_norm_backward drops `- h * "),  # r taken for a constant
        ("rms_norm", "rms_norm_backward drops `* weight`"),
        ("rms_norm", "rms_norm_backward goes over all axes in "),
        ("rms_norm", "rms_norm_backward loses the axes of "),
        ("rms_norm", "rms_norm_backward takes sum for mean in "),
        ("rms_norm", "cached by a forward: rms_norm adds eps outside the root of "),
        ("rms_norm", "cached by a forward: rms_norm subtracts the mean's square from "),  # the variance
        ("layer_norm", "layer_norm_backward drops `- average(xp, dh, "),  # the mean taken for a constant
        ("layer_norm", "layer_norm_backward drops `- h * "),
        ("layer_norm", "cached by a forward: layer_norm adds eps outside the root of "),
        ("layer_norm", "gradients 1 and 2 swapped"),
        ("linear", "linear_backward leaves out transpose of "),
        ("linear", "gradient 1 transposed"),
        ("linear", "gradient 2 of one slice instead of the sum over a broadcast axis"),
        ("matmul", "matmul_backward leaves out swapaxes of "),
        ("exp", "the cache of an earlier call"),
        ("mean", "mean_backward drops `/ reduced_count("),
        ("divide", "divide_backward drops the minus of "),
    ],
)
def test_faults_that_people_make_are_among_them(name, words):
    assert [what for what in hunt(name).killed if what.startswith(words)]


@pytest.mark.parametrize("name", OPS)
def test_faults_that_need_no_source_are_planted_in_every_input(name):
    """Without them, an operation whose gradient is just the cotangent would have no mutants."""
    killed = hunt(name).killed
    floats = {k for example in examples_of(OPS[name], cases_of(OPS[name]), random=0) for k in _differentiated(example)}
    for k in floats & {0, 1, 2}:
        for what in ("times 1.01", "1 % too large in one element", "with the wrong sign", "zero, as for a constant"):
            assert f"gradient {k} {what}" in killed


def _differentiated(example):
    return [k for node, *_ in example.recorded for k, source in enumerate(node.sources) if source is not None]


# Equivalents


@pytest.mark.parametrize(("function", "code", "reason"), EQUIVALENT)
def test_what_is_excused_is_there_and_changes_no_value(function, code, reason):
    """In examples that the hunt has not seen."""
    excused = [
        mutant
        for name in OPS
        for mutant in mutants(name)
        if mutant.what.startswith(f"{function} ") and (code in mutant.what or code in mutant.statement)
        if mutant.what in hunt(name).equivalents
    ]
    assert excused
    assert reason
    for op in {mutant.op for mutant in excused}:
        examples = examples_of(op, cases_of(op), random=30)
        fresh = [replace(example, seed=example.seed + 1000) for example in examples] + corners_of(op)
        for mutant in (m for m in excused if m.op is op):
            assert {example.shows(mutant) for example in fresh} <= {UNCHANGED, ABSENT}


def test_few_are_excused():
    assert sum(len(hunt(name).equivalents) for name in OPS) <= 0.03 * sum(hunt(name).planted for name in OPS)


# Weak checks


def weak(**options):
    """A check that passes these options to gradcheck; a cotangent is made by a function of the result's shape."""

    def prop(case, inputs, chosen, *, seed):
        def function(*tensors):
            return case.call(*tensors, **chosen)

        shape = function(*map(tn.as_tensor, inputs)).shape
        given = {key: value(shape) if callable(value) else value for key, value in options.items()}
        tn.testing.gradcheck(function, inputs, seed=seed, **given)

    return prop


def in_one_setting(name, **wanted):
    """The operation's last case in its typical setting, or that with the options wanted."""
    case = CASES[name]
    settings = [s for s in case.always if wanted.items() <= s.options.items()]
    return [replace(case, always=settings[-1:])]


def survivors(name, cases, prop):
    return [words.split(" (line")[0].split(": changes no")[0].removesuffix(": survived") for words in
            hunt_anew(name, cases, prop=prop, random=0).survivors]  # fmt: skip


def test_a_cotangent_of_ones_misses_faults_in_layer_norm():
    """Σ LayerNorm(x) is constant: the right gradient is 0, and so is 1.01 times it, or minus it."""
    cases = in_one_setting("layer_norm", given=())
    missed = survivors("layer_norm", cases, weak(cotangent=np.ones))
    assert {"gradient 0 times 1.01", "gradient 0 with the wrong sign", "gradient 0 zero, as for a constant"} <= {
        *missed
    }
    assert "the cotangent taken for ones" in missed
    assert not {"gradient 0 times 1.01", "the cotangent taken for ones"} & {*survivors("layer_norm", cases, weak())}


def test_a_cotangent_that_resembles_the_input_misses_a_transposed_gradient():
    """Aᵀ dy is symmetric where dy is A: so the two must not be drawn from one seed alike."""
    cases = in_one_setting("matmul")

    def prop(case, inputs, options, *, seed):
        tn.testing.gradcheck(case.call, inputs, seed=seed, cotangent=inputs[0])

    assert "gradient 1 transposed" in survivors("matmul", cases, prop)
    assert "gradient 1 transposed" not in survivors("matmul", cases, weak())


def test_a_wide_tolerance_misses_one_percent():
    missed = survivors("rms_norm", in_one_setting("rms_norm", given=("weight",)), weak(rtol=0.02, method="central"))
    assert {f"gradient {k} times 1.01" for k in (0, 1)} <= {*missed}
    assert not [what for what in missed if "sign" in what]


def test_a_check_of_one_element_misses_the_others():
    def prop(case, inputs, options, *, seed):
        leaves = [tn.tensor(a, requires_grad=True) for a in inputs]
        y = case.call(*leaves, **options)
        dy = np.random.default_rng([seed, 5]).normal(size=y.shape)
        y.backward(dy)
        numeric = tn.testing.central_difference(lambda a: case.call(a, **options).numpy(), inputs[0], dy)
        np.testing.assert_allclose(leaves[0].grad.flat[0], numeric.flat[0], rtol=1e-6)

    missed = survivors("sin", in_one_setting("sin"), prop)
    assert missed == ["gradient 0 1 % too large in one element", "gradient 0 transposed"]


def test_a_check_of_one_shape_misses_what_shows_in_others():
    """On a single row, the mean over all axes is the mean over the last."""
    (case,) = in_one_setting("rms_norm", given=("weight",))
    row = replace(case, always=[case.always[-1]._replace(shapes=((1, 4), (4,)))])
    missed = survivors("rms_norm", [row], weak())
    assert [what for what in missed if what.startswith("rms_norm_backward goes over all axes")]


def test_a_check_that_finds_nothing_lets_all_survive():
    found = hunt_anew("sin", prop=lambda *arguments, **options: None, random=0)
    assert found.killed == ()
    assert len(found.survivors) == found.planted == hunt("sin").planted


def test_a_check_that_always_fails_proves_nothing():
    def prop(*arguments, **options):
        raise GradientError("always")

    with pytest.raises(GradientError, match="always"):
        hunt_anew("sin", prop=prop)


# How they are planted


def double_of(x):
    return x + SCALE * x


SCALE = 3.0


def formula(xp, dy, cache):
    x = xp.sum(cache, axis=0, keepdims=True)
    if x.size == 0:
        return dy
    y = xp.where(x < 2.0 * 1.5, dy * 0.5, -dy)
    y /= 2
    return xp.exp(y) - double_of(x) ** 2


def test_faults_are_planted_one_by_one():
    """In words, by hand; comparisons and conditions are left alone, and a helper's constant is found."""
    assert [fault.what for fault in planted(formula)] == [
        "leaves out sum of `xp.sum(cache, axis=0, keepdims=True)`",
        "takes mean for sum in `xp.sum(cache, axis=0, keepdims=True)`",
        "goes over all axes in `xp.sum(cache, axis=0, keepdims=True)`",
        "loses the axes of `xp.sum(cache, axis=0, keepdims=True)`",
        "swaps the arms of `xp.where(x < 2.0 * 1.5, dy * 0.5, -dy)`",
        "drops `* 0.5`",
        "drops `dy` of `dy * 0.5`",
        "takes `/` for `*` in `dy * 0.5`",
        "takes 0.505 for 0.5",
        "drops the minus of `-dy`",
        "turns `y /= 2` into `y *= 2`",
        "drops `y /= 2`",
        "drops `- double_of(x) ** 2`",
        "drops `xp.exp(y)` of `xp.exp(y) - double_of(x) ** 2`",
        "takes `+` for `-` in `xp.exp(y) - double_of(x) ** 2`",
        "leaves out exp of `xp.exp(y)`",
        "raises to 3: `double_of(x) ** 2`",
        "raises to 1: `double_of(x) ** 2`",
        "drops `+ SCALE * x`",
        "drops `x` of `x + SCALE * x`",
        "takes `-` for `+` in `x + SCALE * x`",
        "drops `* x`",
        "drops `SCALE` of `SCALE * x`",
        "takes `/` for `*` in `SCALE * x`",
        "takes 1.01 SCALE for SCALE",
    ]


def test_a_fault_does_what_it_says_and_nothing_else():
    x, dy = np.array([[1.0], [2.0]]), np.array([4.0])  # Σ x = 3: not below 3, so y = −4 / 2 = −2, and 3 + 3·3 = 12
    right = np.exp(-2.0) - 12.0**2
    expected = {
        "leaves out sum of `xp.sum(cache, axis=0, keepdims=True)`": np.array([np.exp(1) - 16.0, np.exp(1) - 64.0]),
        "takes mean for sum in `xp.sum(cache, axis=0, keepdims=True)`": np.exp(1.0) - 6.0**2,
        "swaps the arms of `xp.where(x < 2.0 * 1.5, dy * 0.5, -dy)`": np.exp(1.0) - 12.0**2,
        "drops the minus of `-dy`": np.exp(2.0) - 12.0**2,
        "turns `y /= 2` into `y *= 2`": np.exp(-8.0) - 12.0**2,
        "drops `y /= 2`": np.exp(-4.0) - 12.0**2,
        "drops `xp.exp(y)` of `xp.exp(y) - double_of(x) ** 2`": -(12.0**2),
        "leaves out exp of `xp.exp(y)`": -2.0 - 12.0**2,
        "raises to 3: `double_of(x) ** 2`": np.exp(-2.0) - 12.0**3,
        "drops `+ SCALE * x`": np.exp(-2.0) - 3.0**2,
        "takes 1.01 SCALE for SCALE": np.exp(-2.0) - (3.0 + 3.03 * 3.0) ** 2,
    }
    faults = {fault.what: fault for fault in planted(formula)}
    for what, value in expected.items():
        np.testing.assert_allclose(faults[what].formula(np, dy, x).ravel(), np.ravel(value), rtol=1e-14)
        np.testing.assert_allclose(formula(np, dy, x), right, rtol=1e-15)
    assert faults["takes 1.01 SCALE for SCALE"].function is double_of
    assert SCALE == 3.0


def test_a_formula_inside_of_a_function_keeps_its_variables():
    factor = 5.0

    def inner(xp, dy, cache):
        return inner(xp, dy, None) * factor if cache else dy * factor

    results = [(fault.what, fault.formula(np, 1.0, True)) for fault in planted(inner)]
    assert inner(np, 1.0, True) == 25.0
    assert ("leaves out inner of `inner(xp, dy, None)`", 5.0) in results
    assert sorted(value for what, value in results if what == "drops `* factor`") == [5.0, 5.0]


def test_a_formula_without_a_source_has_the_other_mutants():
    @tn.op("short")
    def short(xp, x):
        return x * x, x

    short.backward(lambda xp, dy, x: dy * 2.0 * x)
    typed = {}
    exec("def backward(xp, dy, x):\n    return dy * 2.0 * x", typed)

    for formula in (short._op.backward, typed["backward"]):
        assert list(planted(formula)) == []
    found = hunt_anew(short, [tn.testing.property_test(short, "...").case])
    assert found.survivors == ()
    assert {"gradient 0 times 1.01", "the cotangent taken for ones", "the cache of an earlier call"} <= {*found.killed}


def test_a_mutant_lives_in_one_graph_alone():
    x = np.random.default_rng(0).normal(size=(4, 4))

    @tn.formulas_only()
    def gradient(plant=None):
        leaf = tn.tensor(x, requires_grad=True)
        y = tn.functional.rms_norm(leaf, 4)
        (node,) = topological_order(y._source)
        if plant is not None:
            node.op = plant(node, node)
        y.backward(x[::-1])
        return leaf.grad

    before = gradient()
    faulty = [m for m in tn.testing.mutants("rms_norm") if m.what in ("gradient 0 transposed", "gradient 0 times 1.01")]
    assert len(faulty) == 2
    for mutant in faulty:
        assert not np.allclose(gradient(mutant.plant), before)
        np.testing.assert_array_equal(gradient(), before)


def test_an_operation_nobody_knows():
    with pytest.raises(ArgumentError, match="no operation is called 'rms_nrom'; did you mean 'rms_norm'"):
        tn.testing.mutants("rms_nrom")
    with pytest.raises(ArgumentError, match=r"mutants: 3 is no operation; give what tn\.op made, or the name"):
        tn.testing.mutants(3)


def test_a_function_of_the_library_stands_for_its_operation():
    assert [m.what for m in tn.testing.mutants(tn.functional.relu)] == [m.what for m in mutants("relu")]
    assert hunt_anew(tn.tanh) == hunt("tanh")
    with pytest.raises(ArgumentError, match="mutants: no operation is called 'jvp'"):
        tn.testing.mutants(tn.jvp)

    def relu(x):
        return x

    with pytest.raises(ArgumentError, match=r"mutants: <function .*relu.* is no operation"):  # not the library's
        tn.testing.mutants(relu)


# Operations of a user's own


def test_a_users_own_operation_has_mutants_and_they_are_found():
    found = hunt_anew(l2_norm, [tn.testing.property_test(l2_norm, "...D", "D", eps=1e-3).case])
    assert found.survivors == ()
    assert found.planted > 30
    assert [what for what in found.killed if what.startswith("cached by a forward: l2_norm adds eps outside the root")]


def test_a_users_own_operation_that_is_wrong_is_reported_as_such():
    @tn.op("wrong")
    def wrong(xp, x):
        return x * x, x

    @wrong.backward
    def _(xp, dy, x):
        return dy * x

    with pytest.raises(GradientError, match="wrong"):
        hunt_anew(wrong, [tn.testing.property_test(wrong, "...").case])


def test_an_operation_without_cases():
    with pytest.raises(ArgumentError, match=r"no case says how l2_norm is called; make one with tn\.testing\.property"):
        hunt_anew(l2_norm)
