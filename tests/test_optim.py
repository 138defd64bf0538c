"""Optimizers, clipping, schedule. Right values come from hand, or from the papers' algorithms on Python floats."""

import copy
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tinynorm as tn
from tinynorm.errors import ArgumentError, DTypeError, GraphError, StateError
from tinynorm.optim import (
    SGD,
    Adam,
    AdamW,
    Optimizer,
    WarmupCosine,
    clip_grad_norm_,
    decay_groups,
    rules,
    warmup_cosine,
)

GRADIENTS = [0.5, -2.0, 0.0, 1.25, 3.0, -0.125]

ALL: list[Callable[[Any], Optimizer]] = [
    lambda params: SGD(params, lr=0.1),
    lambda params: SGD(params, lr=0.1, momentum=0.9, weight_decay=0.1),
    lambda params: SGD(params, lr=0.1, momentum=0.9, nesterov=True),
    lambda params: Adam(params, lr=0.1, weight_decay=0.1),
    lambda params: AdamW(params, lr=0.1, weight_decay=0.1),
]
WITH_STATE = ALL[1:]


def parameter(values: Any, dtype: Any = np.float64) -> tn.Tensor:
    return tn.tensor(values, dtype=dtype, requires_grad=True)


def set_grad(p: tn.Tensor, value: Any) -> None:
    p.grad = np.full(p.shape, value, p.dtype)


def walk(make: Callable[[Any], Optimizer], start: float, gradients: Sequence[float], dtype: Any = np.float64) -> float:
    """Where a scalar parameter ends that is given these gradients."""
    p = parameter(start, dtype)
    optimizer = make([p])
    for g in gradients:
        set_grad(p, g)
        optimizer.step()
    assert p.dtype == dtype
    return float(p.item())


# The papers' algorithms on Python floats


def paper_momentum(start: float, gradients: Sequence[float], lr: float, momentum: float, decay: float = 0.0) -> float:
    """Sutskever et al. (2013), equations 1 and 2: the velocity is a displacement and holds the learning rate."""
    theta, displacement = start, 0.0
    for g in gradients:
        displacement = momentum * displacement - lr * (g + decay * theta)
        theta += displacement
    return theta


def paper_nesterov(start: float, gradients: Sequence[float], lr: float, momentum: float) -> float:
    """Sutskever et al. (2013), equations 3 and 4, followed at the point ahead, where the gradients are taken."""
    theta, displacement = start, 0.0
    for g in gradients:
        displacement = momentum * displacement - lr * g
        theta += displacement
    return theta + momentum * displacement


def paper_adam(
    start: float, gradients: Sequence[float], lr: float, betas: tuple[float, float], eps: float, l2: float, decay: float
) -> float:
    """Kingma and Ba (2015), Algorithm 1, the moments written out as sums (their equation 1)."""
    p, seen = start, []
    for t, gradient in enumerate(gradients, 1):
        seen.append(gradient + l2 * p)
        means = [
            (1 - beta) * sum(beta ** (t - i) * g**power for i, g in enumerate(seen, 1)) / (1 - beta**t)
            for power, beta in enumerate(betas, 1)
        ]
        p = p - lr * decay * p - lr * means[0] / (math.sqrt(means[1]) + eps)
    return p


# Values


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_plain_sgd(decay: float) -> None:
    expected = 2.0
    for g in GRADIENTS:
        expected = expected - 0.1 * g - 0.1 * decay * expected
    assert walk(lambda p: SGD(p, 0.1, weight_decay=decay), 2.0, GRADIENTS) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_momentum(decay: float) -> None:
    got = walk(lambda p: SGD(p, lr=0.1, momentum=0.9, weight_decay=decay), 2.0, GRADIENTS)
    assert got == pytest.approx(paper_momentum(2.0, GRADIENTS, 0.1, 0.9, decay), rel=1e-13)


def test_nesterov() -> None:
    got = walk(lambda p: SGD(p, lr=0.1, momentum=0.9, nesterov=True), 2.0, GRADIENTS)
    assert got == pytest.approx(paper_nesterov(2.0, GRADIENTS, 0.1, 0.9), rel=1e-13)


def test_first_velocity_is_the_gradient() -> None:
    assert walk(lambda p: SGD(p, lr=0.5, momentum=0.5), 1.0, [1.0]) == 0.5
    assert walk(lambda p: SGD(p, lr=0.5, momentum=0.5, nesterov=True), 1.0, [1.0]) == 0.25


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("eps", [1e-8, 0.1])
@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("kind", [Adam, AdamW])
def test_adam_and_adamw(kind: type[Adam], decay: float, eps: float, dtype: Any) -> None:
    got = walk(lambda p: kind(p, 0.05, (0.8, 0.95), eps, decay), 2.0, GRADIENTS, dtype)
    l2, decoupled = (decay, 0.0) if kind is Adam else (0.0, decay)
    expected = paper_adam(2.0, GRADIENTS, 0.05, (0.8, 0.95), eps, l2, decoupled)
    assert got == pytest.approx(expected, rel=1e-12 if dtype == np.float64 else 1e-6)


def test_adam_over_all_of_float32() -> None:
    """Steps of gradients whose squares are no float32, or hardly, against the paper's formula in long double."""
    rng = np.random.default_rng(0)
    sizes = 10.0 ** np.linspace(-35, 20.2, 200)
    p = parameter(np.zeros(200), np.float32)
    optimizer = Adam([p], lr=1.0)
    at, m, v = (np.zeros(200, np.longdouble) for _ in range(3))
    for t in range(1, 8):
        p.grad = (rng.uniform(0.5, 1.0, 200) * sizes).astype(np.float32)
        g = p.grad.astype(np.longdouble)
        optimizer.step()
        beta1, beta2 = np.longdouble(0.9), np.longdouble(0.999)
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
        at -= m / (1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + np.longdouble(1e-8))
        np.testing.assert_allclose(p.data, at, rtol=1e-6)


def test_each_element_goes_its_own_way() -> None:
    p = parameter([[2.0, -1.0], [0.5, 3.0]])
    optimizer = Adam([p], lr=0.05)
    for g in GRADIENTS:
        p.grad = np.array([[g, -g], [1.0, g * g]])
        optimizer.step()
    for got, start, gradients in [
        (p.data[0, 0], 2.0, GRADIENTS),
        (p.data[0, 1], -1.0, [-g for g in GRADIENTS]),
        (p.data[1, 0], 0.5, [1.0] * len(GRADIENTS)),
        (p.data[1, 1], 3.0, [g * g for g in GRADIENTS]),
    ]:
        assert got == pytest.approx(paper_adam(start, gradients, 0.05, (0.9, 0.999), 1e-8, 0.0, 0.0), rel=1e-12)


def test_defaults_are_those_of_the_field() -> None:
    p = parameter(1.0)
    assert SGD([p]).defaults == {"lr": 1e-3, "momentum": 0.0, "nesterov": False, "weight_decay": 0.0}
    assert Adam([p]).defaults == {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}
    assert AdamW([p]).defaults == {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2}


# Known faults of other libraries


def test_constant_gradient_moves_exactly_lr_a_step() -> None:
    assert walk(lambda p: Adam(p, lr=0.1), 0.0, [3.0] * 10) == pytest.approx(-1.0, rel=1e-7)


def test_eps_is_not_scaled_by_the_bias_correction() -> None:
    """With g = ε = 1, m̂ = √v̂ = 1 at every step, and each moves lr · 1 / (1 + 1)."""
    assert walk(lambda p: Adam(p, lr=0.1, eps=1.0), 0.0, [1.0] * 10) == pytest.approx(-0.5, rel=1e-12)


def test_adamw_decays_first_and_apart_from_the_gradient() -> None:
    """2 (1 − 0.1·0.5) − 0.1 = 1.8; after the step it would be (2 − 0.1)·0.95 = 1.805, in the gradient 1.9."""
    assert walk(lambda p: AdamW(p, lr=0.1, weight_decay=0.5), 2.0, [7.0]) == pytest.approx(1.8, rel=1e-7)
    assert walk(lambda p: Adam(p, lr=0.1, weight_decay=0.5), 2.0, [7.0]) == pytest.approx(1.9, rel=1e-7)


def test_adamw_under_a_zero_gradient_only_decays() -> None:
    assert walk(lambda p: AdamW(p, lr=0.1, weight_decay=0.5), 2.0, [0.0]) == pytest.approx(1.9, rel=1e-14)
    assert walk(lambda p: Adam(p, lr=0.1, weight_decay=0.5), 2.0, [0.0]) == pytest.approx(
        1.9, rel=1e-7
    )  # g = λp, so lr
    assert walk(lambda p: Adam(p, lr=0.1), 2.0, [0.0]) == 2.0


def test_zero_gradient_coasts_and_no_gradient_rests() -> None:
    p = parameter(1.0)
    optimizer = SGD([p], lr=0.1, momentum=0.9)
    set_grad(p, 1.0)
    optimizer.step()  # v = 1, p = 0.9
    set_grad(p, 0.0)
    optimizer.step()  # v = 0.9
    assert p.item() == pytest.approx(0.81, rel=1e-14)
    optimizer.zero_grad()
    optimizer.step()
    assert p.item() == pytest.approx(0.81, rel=1e-14)
    assert p.grad is None


@pytest.mark.parametrize("make", ALL)
def test_without_a_gradient_nothing_moves_nor_counts(make: Callable[[Any], Optimizer]) -> None:
    moving, resting, alone = parameter(1.0), parameter(1.0), parameter(1.0)
    optimizer, other = make([moving, resting]), make([alone])
    for _ in range(3):
        set_grad(moving, 2.0)
        optimizer.step()
    assert resting.item() == 1.0
    assert list(optimizer.state_dict()["state"]) in ([], [0])
    set_grad(resting, 2.0)
    set_grad(alone, 2.0)
    optimizer.step()
    other.step()
    assert resting.item() == alone.item() != 1.0  # its own first step


# dtypes


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 2)])
@pytest.mark.parametrize("number", [np.float64, lambda v: np.array(v, np.float64)])
def test_numpy_hyperparameters_widen_nothing(
    dtype: Any, shape: tuple[int, ...], number: Callable[[float], Any]
) -> None:
    lr, half, decay, eps = number(0.1), number(0.5), number(0.01), number(1e-8)
    for make in (
        lambda p: SGD(p, lr, half, np.True_, decay),
        lambda p: SGD(p, lr, number(0.0), np.False_, decay),
        lambda p: Adam(p, lr, (half, half), eps, decay),
        lambda p: AdamW(p, lr, (half, half), eps, decay),
    ):
        p = parameter(np.ones(shape), dtype)
        optimizer = make([p])
        optimizer.param_groups[0]["lr"] = lr  # as a schedule may do it
        array = p.data
        for _ in range(2):
            set_grad(p, 2.0)
            optimizer.step()
        assert p.data is array  # written in place
        assert p.dtype == dtype
        wanted = np.float32 if dtype == np.float16 else dtype
        for entry in optimizer.state.values():
            for slot, value in entry.items():
                assert slot == "step" or (
                    isinstance(value, np.ndarray) and value.dtype == wanted and value.shape == shape
                )
        assert (p.data < 1).all()


def test_rules_keep_the_dtype_and_write_to_nothing() -> None:
    p, g, m, v = (np.full(3, x, np.float32) for x in (1.0, 2.0, 3.0, 4.0))
    results = [
        rules.sgd(np, p, g, lr=0.1, weight_decay=0.1),
        *rules.sgd_momentum(np, p, g, v, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
        *rules.adam(np, p, g, m, v, 3, lr=0.1, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1),
        *rules.adamw(np, p, g, m, v, 3, lr=0.1, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1),
    ]
    for result in results:
        assert result.dtype == np.float32
        assert not any(np.shares_memory(result, given) for given in (p, g, m, v))
    assert [a[0] for a in (p, g, m, v)] == [1.0, 2.0, 3.0, 4.0]


def test_float16_computes_in_float32_and_rounds_once() -> None:
    """1e-4² is 0 in float16, and so would eps be: the step would be 0/0 or far too long."""
    assert walk(lambda p: Adam(p, lr=0.25), 1.0, [1e-4], np.float16) == 0.75
    assert walk(lambda p: Adam(p, lr=0.25), 1.0, [0.0], np.float16) == 1.0
    assert walk(lambda p: Adam(p, lr=0.25), 1.0, [60000.0], np.float16) == 0.75  # and 60000² is not inf


def test_float16_momentum_keeps_what_float16_would_drop() -> None:
    """2048 + 1 is no float16, so a velocity of that dtype would lose the second gradient."""
    p = parameter(0.0, np.float16)
    optimizer = SGD([p], lr=1.0, momentum=1.0)
    for g in (2048.0, 1.0):
        set_grad(p, g)
        optimizer.step()
    assert optimizer.state_dict()["state"][0]["velocity"] == 2049.0


def test_gradients_are_not_written_to() -> None:
    for make in ALL:
        p = parameter([1.0, 2.0])
        g = np.array([3.0, 4.0])
        g.flags.writeable = False
        p.grad = g
        make([p]).step()
        assert p.grad is g
        assert g.tolist() == [3.0, 4.0]


# With the graph


@pytest.mark.parametrize("make", ALL)
def test_step_makes_older_graphs_refuse(make: Callable[[Any], Optimizer]) -> None:
    w = parameter([1.0, 2.0])
    optimizer = make([w])
    set_grad(w, 1.0)
    y = (w * w).sum()
    optimizer.step()
    with pytest.raises(GraphError, match="changed in place"):
        y.backward()
    optimizer.zero_grad()
    (w * w).sum().backward()  # a new graph is fine
    np.testing.assert_array_equal(w.grad, 2 * w.data)


def test_training_reaches_the_minimum() -> None:
    """Least squares whose solution is known: y = 2 x − 1."""
    x = np.linspace(-1, 1, 20)
    w, b = parameter(0.0), parameter(0.0)
    optimizer = Adam([w, b], lr=0.1)
    for _ in range(300):
        optimizer.zero_grad()
        error = w * x + b - (2 * x - 1)
        (error * error).mean().backward()
        optimizer.step()
    assert (w.item(), b.item()) == pytest.approx((2.0, -1.0), abs=1e-3)


# Groups


def test_groups_have_their_own_options() -> None:
    a, b, c = parameter(1.0), parameter(1.0), parameter(1.0)
    groups: list[dict[str, Any]] = [
        {"params": [a], "lr": 0.5},
        {"params": (q for q in [b]), "weight_decay": 1.0},
        {"params": [c]},
    ]
    optimizer = SGD(groups, lr=0.25)
    for p in (a, b, c):
        set_grad(p, 1.0)
    optimizer.step()
    assert (a.item(), b.item(), c.item()) == (0.5, 0.5, 0.75)
    assert groups[0] == {"params": [a], "lr": 0.5}  # the caller's dicts stay as they are
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.25, 0.25]


def test_lr_is_read_at_each_step() -> None:
    p = parameter(1.0)
    optimizer = SGD([p], lr=0.5)
    optimizer.param_groups[0]["lr"] = 0.25
    set_grad(p, 1.0)
    optimizer.step()
    assert p.item() == 0.75
    optimizer.param_groups[0]["lr"] = -0.25
    with pytest.raises(ArgumentError, match=r"SGD: lr must be a finite number >= 0, not -0\.25"):
        optimizer.step()
    assert p.item() == 0.75


def test_options_that_change_in_place_are_read_at_each_step() -> None:
    """A 0-d array and a list stay the same objects, whatever is in them."""
    p = parameter(1.0)
    optimizer = Adam([p], lr=0.5, betas=(0.0, 0.0), eps=0.0)
    lr, betas = np.array(0.25), [0.0, 0.0]
    optimizer.param_groups[0].update(lr=lr, betas=betas)
    set_grad(p, 1.0)
    optimizer.step()
    lr[...] = 0.5
    optimizer.step()
    assert p.item() == 0.25
    betas[1] = 1.0
    with pytest.raises(ArgumentError, match=r"^Adam: betas\[1\] must be"):
        optimizer.step()
    assert p.item() == 0.25


def test_momentum_may_change_on_the_way() -> None:
    p = parameter(0.0)
    optimizer = SGD([p], lr=1.0)
    set_grad(p, 1.0)
    expected = [-1.0, -2.0, -3.5, -4.5, -5.5]  # momentum 0, then 0.5 from rest, then 0, then 0.5 from rest again
    for momentum, value in zip([0.0, 0.5, 0.5, 0.0, 0.5], expected, strict=True):
        optimizer.param_groups[0]["momentum"] = momentum
        optimizer.step()
        assert p.item() == value
        SGD([parameter(0.0)]).load_state_dict(optimizer.state_dict())


class Small:
    """Something with `parameters`, in the way of a module."""

    def __init__(self) -> None:
        self.weight, self.gain, self.bias = parameter(np.ones((2, 3))), parameter([1.0, 1.0]), parameter(0.0)

    def parameters(self) -> Any:
        return iter([self.weight, self.gain, self.bias])


def test_modules_are_taken_as_they_are() -> None:
    module = Small()
    for optimizer in (SGD(module), SGD(module.parameters()), SGD([{"params": module}])):
        assert list(map(id, optimizer.param_groups[0]["params"])) == list(map(id, module.parameters()))
    set_grad(module.bias, 5.0)
    assert clip_grad_norm_(module, 1.0) == 5.0


def test_decay_groups() -> None:
    module = Small()
    for groups in (decay_groups(module, 0.1), decay_groups(list(module.parameters()), np.float64(0.1))):
        first, second = groups
        assert (first["weight_decay"], second["weight_decay"]) == (0.1, 0.0)
        assert [id(p) for p in first["params"]] == [id(module.weight)]
        assert [id(p) for p in second["params"]] == [id(module.gain), id(module.bias)]
    for p in module.parameters():
        set_grad(p, 0.0)
    SGD(decay_groups(module, 0.5), lr=1.0, weight_decay=0.25).step()
    assert [float(p.data.flat[0]) for p in module.parameters()] == [0.5, 1.0, 0.0]


def test_decay_groups_leaves_out_what_is_empty() -> None:
    module = Small()
    assert [g["weight_decay"] for g in decay_groups([module.weight], 0.1)] == [0.1]
    assert [g["weight_decay"] for g in decay_groups([module.gain, module.bias], 0.1)] == [0.0]
    with pytest.raises(ArgumentError, match="weight_decay"):
        decay_groups(module, -0.1)


# What is refused


@pytest.mark.parametrize("kind", [SGD, Adam, AdamW])
@pytest.mark.parametrize("option", ["lr", "weight_decay"])
@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf, "0.1", None, [0.1]])
def test_options_out_of_range(kind: Any, option: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=f"^{kind.__name__}: {option} must be") as caught:
        kind([parameter(1.0)], **{option: value})
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (SGD, {"momentum": -0.9}, r"SGD: momentum must be a finite number >= 0, not -0\.9"),
        (SGD, {"nesterov": True}, r"SGD: nesterov=True needs a momentum > 0, not 0\.0"),
        (SGD, {"nesterov": 0.9}, r"SGD: nesterov must be True or False, not 0\.9"),
        (Adam, {"eps": -1e-8}, r"Adam: eps must be a finite number >= 0, not -1e-08"),
        (Adam, {"betas": (1.0, 0.9)}, r"Adam: betas\[0\] must be at least 0 and less than 1, not 1\.0"),
        (AdamW, {"betas": (0.9, -0.1)}, r"AdamW: betas\[1\] must be at least 0 and less than 1, not -0\.1"),
        (Adam, {"betas": (0.9, math.nan)}, r"Adam: betas\[1\] must be at least 0"),
        (Adam, {"betas": 0.9}, r"Adam: betas must be two numbers, such as \(0\.9, 0\.999\), not 0\.9"),
        (Adam, {"betas": (0.9,)}, r"Adam: betas must be two numbers"),
    ],
)
def test_other_options_out_of_range(kind: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=f"^{message}"):
        kind([parameter(1.0)], **options)
    with pytest.raises(ArgumentError, match=message.replace(":", ": group 1:", 1)):
        kind([{"params": [parameter(1.0)]}, {"params": [parameter(1.0)], **options}])


def test_a_beta_of_zero_has_no_memory() -> None:
    """β₁ = β₂ = 0 leaves lr · sign(g)."""
    assert walk(lambda p: Adam(p, lr=0.5, betas=(0, 0), eps=0), 0.0, [3.0, -7.0, 0.1]) == -0.5


def test_unknown_options_in_a_group_name_the_nearest() -> None:
    with pytest.raises(ArgumentError, match=r"unknown option 'weigth_decay'; did you mean 'weight_decay'\?"):
        Adam([{"params": [parameter(1.0)], "weigth_decay": 0.1}])
    with pytest.raises(
        ArgumentError, match=r"unknown option 'xyz'; the options are params, lr, betas, eps, weight_decay"
    ):
        Adam([{"params": [parameter(1.0)], "xyz": 0.1}])


def test_a_tied_parameter_is_listed_once() -> None:
    p, q = parameter([1.0]), parameter([1.0])
    with pytest.raises(ArgumentError, match="parameters 0 and 2 are one and the same"):
        SGD([p, q, p])
    with pytest.raises(ArgumentError, match="parameters 1 and 2 are one and the same"):
        SGD([{"params": [q, p]}, {"params": [p]}])
    with pytest.raises(ArgumentError, match="parameters 0 and 1 are one and the same"):
        clip_grad_norm_([p, p], 1.0)
    with pytest.raises(ArgumentError, match="parameters 0 and 1 are one and the same"):
        decay_groups([p, p], 1.0)
    SGD([p, q])  # equal values are no reason


def test_only_leaves_that_require_a_gradient() -> None:
    p = parameter([1.0])
    with pytest.raises(ArgumentError, match="parameter 1 is the result of multiply"):
        SGD([p, p * 2.0])
    with pytest.raises(ArgumentError, match="does not require a gradient"):
        SGD([tn.tensor([1.0])])
    read_only = np.ones(3)
    read_only.flags.writeable = False
    with pytest.raises(ArgumentError, match="read-only"):
        SGD([tn.Tensor(read_only, requires_grad=True)])


@pytest.mark.parametrize("params", [[], iter([]), [{"params": []}], [{"params": [parameter(1.0)]}, {"params": []}]])
def test_no_parameters(params: Any) -> None:
    with pytest.raises(ArgumentError, match="no parameters to optimize"):
        SGD(params)


@pytest.mark.parametrize(
    ("params", "error"),
    [
        (parameter([1.0, 2.0]), DTypeError),  # would be walked row by row
        ({"params": [parameter(1.0)]}, DTypeError),
        ({parameter(1.0)}, DTypeError),
        ([np.ones(3)], DTypeError),
        (["weight"], DTypeError),
        (3, DTypeError),
        ([{"params": parameter([1.0])}], DTypeError),
        ([{"params": [parameter(1.0)]}, parameter(1.0)], ArgumentError),
        ([{"lr": 0.1}], ArgumentError),
    ],
)
def test_other_things_than_parameters(params: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        SGD(params)


def test_a_subclass_must_define_its_rule() -> None:
    with pytest.raises(NotImplementedError, match="Optimizer defines no checked"):
        Optimizer([parameter(1.0)], {})


# State


def fresh(make: Callable[[Any], Optimizer], dtype: Any = np.float32) -> tuple[list[tn.Tensor], Optimizer]:
    params = [parameter([[1.0, -2.0], [0.5, 3.0]], dtype), parameter([0.25, 4.0], dtype), parameter(1.0, dtype)]
    return params, make([{"params": params[:2]}, {"params": params[2:], "lr": 0.01}])


def run(params: list[tn.Tensor], optimizer: Optimizer, rng: np.random.Generator, steps: int) -> None:
    for _ in range(steps):
        for p in params:
            p.grad = np.asarray(rng.standard_normal(p.shape)).astype(p.dtype)
        optimizer.step()


def bits(params: list[tn.Tensor]) -> list[bytes]:
    return [p.data.tobytes() for p in params]


def as_json(state: dict[str, Any]) -> dict[str, Any]:
    """Through JSON, with the arrays apart, as a checkpoint might do it: keys become text and tuples lists."""
    arrays: list[np.ndarray] = []

    def put(value: np.ndarray) -> dict[str, int]:
        arrays.append(value)
        return {"array": len(arrays) - 1}

    text = json.dumps(state, default=put)
    return json.loads(text, object_hook=lambda d: arrays[d["array"]] if set(d) == {"array"} else d)


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("through", [copy.deepcopy, as_json])
def test_resuming_continues_bit_for_bit(make: Callable[[Any], Optimizer], dtype: Any, through: Any) -> None:
    params, optimizer = fresh(make, dtype)
    rng = np.random.default_rng(0)
    run(params, optimizer, rng, 3)
    saved, values = through(optimizer.state_dict()), [p.data.copy() for p in params]
    run(params, optimizer, rng, 3)

    again, resumed = fresh(lambda groups: type(optimizer)(groups, lr=0.7), dtype)
    for p, value in zip(again, values, strict=True):
        p.data[...] = value
    resumed.load_state_dict(saved)
    rng = np.random.default_rng(0)
    for _ in range(3):
        for p in params:
            rng.standard_normal(p.shape)
    run(again, resumed, rng, 3)
    assert bits(again) == bits(params)


@pytest.mark.parametrize("make", WITH_STATE)
def test_state_dicts_share_nothing(make: Callable[[Any], Optimizer]) -> None:
    params, optimizer = fresh(make)
    others, other = fresh(make)
    rng = np.random.default_rng(0)
    run(params, optimizer, rng, 2)
    saved = optimizer.state_dict()
    kept = copy.deepcopy(saved)
    other.load_state_dict(saved)
    run(params, optimizer, rng, 2)
    np.testing.assert_equal(saved, kept)
    np.testing.assert_equal(other.state_dict(), kept)
    run(others, other, rng, 2)
    np.testing.assert_equal(saved, kept)
    own = optimizer.state_dict()
    for entry in own["state"].values():
        for slot in entry.keys() - {"step"}:
            entry[slot][...] = 77.0
    own["param_groups"][0]["lr"] = 77.0
    own["param_groups"][0]["params"].clear()
    assert 77.0 not in [v for e in optimizer.state_dict()["state"].values() for k in e for v in np.ravel(e[k])]
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert len(optimizer.param_groups[0]["params"]) == 2


def test_state_dict_holds_numbers_and_arrays_only() -> None:
    params, optimizer = fresh(lambda p: Adam(p, lr=np.float64(0.1)))
    run(params[1:], optimizer, np.random.default_rng(0), 2)
    state = optimizer.state_dict()
    assert list(state["state"]) == [1, 2]
    assert [group["params"] for group in state["param_groups"]] == [[0, 1], [2]]
    assert type(state["param_groups"][0]["lr"]) is float
    entry = state["state"][2]
    assert entry["step"] == 2
    assert type(entry["step"]) is int
    assert {slot: type(entry[slot]) for slot in ("m", "v")} == {"m": np.ndarray, "v": np.ndarray}


def test_loading_takes_the_options_too() -> None:
    _, optimizer = fresh(lambda p: SGD(p, lr=0.3, momentum=0.5, nesterov=True, weight_decay=0.2))
    _, other = fresh(SGD)
    other.load_state_dict(optimizer.state_dict())
    for mine, theirs in zip(other.param_groups, optimizer.param_groups, strict=True):
        assert {k: v for k, v in mine.items() if k != "params"} == {k: v for k, v in theirs.items() if k != "params"}


def test_loading_replaces_all_state() -> None:
    params, optimizer = fresh(Adam)
    blank = optimizer.state_dict()
    run(params, optimizer, np.random.default_rng(0), 2)
    optimizer.load_state_dict(blank)
    assert optimizer.state_dict()["state"] == {}


def spoil(path: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    """A change to a state dict: a value put at a path such as "state/0/m"; the value `del` deletes."""

    def change(state: dict[str, Any]) -> Any:
        *parents, last = [int(part) if part.isdecimal() else part for part in path.split("/")]
        place: Any = state
        for part in parents:
            place = place[part]
        if value == "del":
            del place[last]
        else:
            place[last] = value
        return state

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: [], "must be a dict, not a list"),
        (spoil("state", "del"), "must have the keys"),
        (spoil("extra", 1), "must have the keys"),
        (spoil("state", []), "must be a dict, not a list"),
        (spoil("param_groups", {}), "must list 2 groups"),
        (spoil("param_groups/1", "del"), "must list 2 groups, as the optimizer has, not 1 groups"),
        (spoil("param_groups/0", 3), "group 0: it must be a dict"),
        (spoil("param_groups/1/params", [2, 3]), r"group 1: params must be \[2\], as in the optimizer, not \[2, 3\]"),
        (spoil("param_groups/0/params", [1, 0]), r"group 0: params must be \[0, 1\], .*, not \[1, 0\]"),
        (spoil("param_groups/1/params", 3), r"group 1: params must be \[2\], as in the optimizer, not 3"),
        (spoil("param_groups/1/momentum", 0.9), "group 1: it must have the keys"),
        (spoil("param_groups/1/eps", "del"), "group 1: it must have the keys"),
        (spoil("param_groups/1/lr", -1.0), "group 1: lr must be"),
        (spoil("param_groups/1/betas", [0.9, 1.0]), r"group 1: betas\[1\] must be"),
        (spoil("state/3", {}), "state for parameter 3, but there are 3, counted from 0"),
        (spoil("state/2", {}), "parameter 2: its state must have the keys"),
        (spoil("state/2/m", "del"), "parameter 2: its state must have the keys"),
        (spoil("state/2/velocity", np.zeros((), np.float32)), "parameter 2: its state must have the keys"),
        (spoil("state/2/step", -1), "parameter 2: step must be an integer >= 1"),
        (spoil("state/2/step", 1.5), "parameter 2: step must be an integer >= 1"),
        (
            spoil("state/2/v", np.zeros(1, np.float32)),
            r"parameter 2: v must be an array \(\) float32, not \(1,\) float32",
        ),
        (
            spoil("state/2/v", np.zeros((), np.float64)),
            r"parameter 2: v must be an array \(\) float32, not \(\) float64",
        ),
        (spoil("state/2/v", 0.0), r"parameter 2: v must be an array \(\) float32, not float"),
    ],
)
def test_a_load_that_fails_changes_nothing(change: Callable[[dict[str, Any]], Any], message: str) -> None:
    params, optimizer = fresh(Adam)
    run(params, optimizer, np.random.default_rng(0), 2)
    before = optimizer.state_dict()
    others, other = fresh(lambda p: Adam(p, lr=0.9, betas=(0.5, 0.5)))
    run(others, other, np.random.default_rng(1), 5)
    with pytest.raises(StateError, match=message) as caught:
        optimizer.load_state_dict(change(other.state_dict()))
    assert str(caught.value).startswith("Adam.load_state_dict: ")
    assert str(caught.value).endswith("nothing was loaded")
    np.testing.assert_equal(optimizer.state_dict(), before)
    optimizer.load_state_dict(other.state_dict())  # the unchanged one fits
    np.testing.assert_equal(optimizer.state_dict(), other.state_dict())


def test_loading_the_state_of_another_rule() -> None:
    with pytest.raises(StateError, match="must have the keys"):
        fresh(Adam)[1].load_state_dict(fresh(SGD)[1].state_dict())


# Clipping


def test_clipping_scales_all_gradients_by_one_factor() -> None:
    a, b, c = parameter([0.0, 0.0], np.float32), parameter(0.0, np.float64), parameter([0.0])
    held = np.array([3.0, 0.0], np.float32)
    a.grad, b.grad = held, np.array(-4.0)
    norm = clip_grad_norm_(iter([a, c, b]), 2.5)
    assert norm == 5.0
    assert type(norm) is float
    assert a.grad.tolist() == [1.5, 0.0]
    assert b.grad.tolist() == -2.0
    assert (a.grad.dtype, b.grad.dtype) == (np.float32, np.float64)
    assert c.grad is None
    assert held.tolist() == [3.0, 0.0]  # what the user holds stays


@pytest.mark.parametrize("max_norm", [5.0, 6.0, math.inf])
def test_short_gradients_stay_as_they_are(max_norm: float) -> None:
    p = parameter([0.0, 0.0])
    g = np.array([3.0, 4.0])
    p.grad = g
    assert clip_grad_norm_([p], max_norm) == 5.0
    assert p.grad is g


@pytest.mark.parametrize(
    ("dtype", "value", "n"),
    [
        (np.float32, 1e30, 4),  # the square is no float32
        (np.float32, 1e38, 4),  # and a factor that float32 holds to three digits only
        (np.float32, 1e-30, 4),
        (np.float16, 60000.0, 4),
        (np.float16, 6e-8, 4),  # the smallest float16, rounded
        (np.float16, 1.0, 250_000),  # the sum is no float16
        (np.float64, 1e300, 4),  # the square is no float64
        (np.float64, 1e-300, 4),
        (np.float64, 5e-324, 4),
    ],
)
def test_norm_neither_overflows_nor_vanishes(dtype: Any, value: float, n: int) -> None:
    """n equal elements have the norm √n · |value|, and each is 1/√n of it."""
    p = parameter(np.zeros(n), dtype)
    p.grad = np.full(n, value, dtype)
    norm = math.sqrt(n) * float(dtype(value))
    assert clip_grad_norm_([p], math.inf) == pytest.approx(norm, rel=1e-12)
    clip_grad_norm_([p], norm / 2)
    np.testing.assert_allclose(p.grad, np.full(n, float(dtype(value)) / 2).astype(dtype), rtol=1e-6)
    p.grad = np.full(n, value, dtype)
    clip_grad_norm_([p], 1e-3)
    largest = min(1e-3 / math.sqrt(n), float(dtype(value)))
    np.testing.assert_allclose(p.grad, np.full(n, largest).astype(dtype), rtol=1e-6)


@given(st.lists(st.lists(st.floats(-1e6, 1e6, width=32), max_size=5), max_size=4), st.floats(1e-3, 1e6))
def test_clipped_norm_is_at_most_max_norm(gradients: list[list[float]], max_norm: float) -> None:
    params = [parameter(np.zeros(len(g))) for g in gradients]
    for p, g in zip(params, gradients, strict=True):
        p.grad = np.array(g, np.float64)
    norm = math.hypot(*(x for g in gradients for x in g))
    assert clip_grad_norm_(params, max_norm) == pytest.approx(norm, rel=1e-12)
    after = math.hypot(*(x for p in params for x in p.grad.tolist()))
    assert after == pytest.approx(min(norm, max_norm), rel=1e-12)


def test_nothing_to_clip() -> None:
    assert clip_grad_norm_([], 1.0) == 0.0
    assert clip_grad_norm_([parameter(1.0)], 1.0) == 0.0
    p = parameter(np.zeros((0, 3)))
    set_grad(p, 1.0)
    assert clip_grad_norm_([p], 1.0) == 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_norms_that_are_not_finite(bad: float) -> None:
    p, q = parameter([1.0, 2.0]), parameter([[1.0]])
    set_grad(p, 9.0)
    set_grad(q, bad)
    held = p.grad, q.grad
    with pytest.raises(ArgumentError, match=rf"norm of the gradients is {abs(bad)}.* parameter 1, of shape \(1, 1\)"):
        clip_grad_norm_([p, q], 1.0)
    norm = clip_grad_norm_([p, q], 1.0, error_if_nonfinite=False)
    assert norm == pytest.approx(abs(bad), nan_ok=True)
    assert p.grad is held[0]
    assert q.grad is held[1]


def test_finite_gradients_whose_norm_is_no_float() -> None:
    p, q = parameter(0.0), parameter(0.0)
    set_grad(p, 1.5e308)
    set_grad(q, 1.5e308)
    with pytest.raises(ArgumentError, match="norm of the gradients is inf; nothing was changed"):
        clip_grad_norm_([p, q], 1.0)


@pytest.mark.parametrize("max_norm", [0.0, -1.0, math.nan, "1"])
def test_max_norm_out_of_range(max_norm: Any) -> None:
    with pytest.raises(ArgumentError, match="clip_grad_norm_: max_norm must be"):
        clip_grad_norm_([parameter(1.0)], max_norm)


def test_clipping_refuses_what_is_no_list_of_parameters() -> None:
    with pytest.raises(DTypeError, match="not a Tensor"):
        clip_grad_norm_(parameter([1.0, 2.0]), 1.0)


# The schedule


def test_schedule_by_hand() -> None:
    """W = 4, T = 10, f = 0.1: quarters up, then 0.55 + 0.45 cos(π k/6), whose cosines are known."""
    r3 = math.sqrt(3) / 2
    cosines = [1.0, r3, 0.5, 0.0, -0.5, -r3]
    expected = [0.25, 0.5, 0.75, 1.0, *(0.55 + 0.45 * c for c in cosines), 0.1, 0.1, 0.1]
    assert [warmup_cosine(t, 4, 10, 0.1) for t in range(13)] == pytest.approx(expected, rel=1e-14)


def test_schedule_at_its_limits() -> None:
    assert [warmup_cosine(t, 0, 2) for t in range(4)] == pytest.approx([1.0, 0.5, 0.0, 0.0], abs=1e-15)
    assert [warmup_cosine(t, 2, 2, 0.5) for t in range(4)] == [0.5, 1.0, 0.5, 0.5]
    assert [warmup_cosine(t, 0, 1) for t in range(3)] == [1.0, 0.0, 0.0]
    assert {warmup_cosine(t, 0, 5, 1.0) for t in range(9)} == {1.0}


def test_schedule_sets_the_groups() -> None:
    a, b = parameter(1.0), parameter(1.0)
    optimizer = SGD([{"params": [a], "lr": 8.0}, {"params": [b]}], lr=np.float64(2.0))
    schedule = WarmupCosine(optimizer, 2, 4, final_factor=0.5)
    seen = []
    for _ in range(6):
        seen.append([group["lr"] for group in optimizer.param_groups])
        schedule.step()
    factors = [0.5, 1.0, 1.0, 0.75, 0.5, 0.5]
    assert np.array(seen) == pytest.approx(np.outer(factors, [8.0, 2.0]), rel=1e-14)
    assert {type(lr) for lrs in seen for lr in lrs} == {float}


def test_optimizer_walks_at_the_scheduled_rate() -> None:
    p = parameter(0.0)
    optimizer = SGD([p], lr=1.0)
    schedule = WarmupCosine(optimizer, 4, 8)
    set_grad(p, 1.0)
    for _ in range(4):
        optimizer.step()
        schedule.step()
    assert p.item() == -(0.25 + 0.5 + 0.75 + 1.0)


def test_schedule_resumes() -> None:
    def make() -> tuple[Optimizer, WarmupCosine]:
        optimizer = SGD([parameter(1.0)], lr=1.0)
        return optimizer, WarmupCosine(optimizer, 3, 9, 0.1)

    optimizer, schedule = make()
    for _ in range(5):
        schedule.step()
    saved = json.loads(json.dumps([optimizer.state_dict(), schedule.state_dict()]))
    other = SGD([parameter(1.0)], lr=0.7)
    other.load_state_dict(saved[0])
    resumed = WarmupCosine(other, 3, 9, 0.1)  # made after the load, so that it took the scheduled lr for its base
    resumed.load_state_dict(saved[1])
    for _ in range(5):
        assert other.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
        schedule.step()
        resumed.step()
    saved[1]["base_lrs"][0] = resumed.state_dict()["base_lrs"][0] = 5.0
    assert resumed.base_lrs == [1.0]


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"t": 1},
        {"t": -1, "base_lrs": [1.0]},
        {"t": 1.5, "base_lrs": [1.0]},
        {"t": 1, "base_lrs": [1.0, 2.0]},
        {"t": 1, "base_lrs": [-1.0]},
        {"t": 1, "base_lrs": 1.0},
        {"t": 1, "base_lrs": [1.0], "x": 2},
        None,
    ],
)
def test_schedule_load_that_fails_changes_nothing(state: Any) -> None:
    optimizer = SGD([parameter(1.0)], lr=0.5)
    schedule = WarmupCosine(optimizer, 2, 4)
    schedule.step()
    with pytest.raises(StateError, match=r"WarmupCosine\.load_state_dict"):
        schedule.load_state_dict(state)
    assert schedule.state_dict() == {"t": 1, "base_lrs": [0.5]}
    assert optimizer.param_groups[0]["lr"] == 0.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, 4), "warmup_steps must be an integer >= 0, not -1"),
        ((5, 4), "warmup_steps must be at most total_steps, 4, not 5"),
        ((0, 0), "total_steps must be an integer >= 1, not 0"),
        ((1.5, 4), r"warmup_steps must be an integer >= 0, not 1\.5"),
        ((1, 4, 1.5), r"final_factor must lie between 0 and 1, not 1\.5"),
        ((1, 4, -0.5), r"final_factor must lie between 0 and 1, not -0\.5"),
        ((1, 4, math.nan), "final_factor must lie between 0 and 1, not nan"),
    ],
)
def test_schedule_arguments(arguments: Any, message: str) -> None:
    optimizer = SGD([parameter(1.0)], lr=0.5)
    with pytest.raises(ArgumentError, match=f"^WarmupCosine: {message}"):
        WarmupCosine(optimizer, *arguments)
    assert optimizer.param_groups[0]["lr"] == 0.5
    with pytest.raises(ArgumentError, match=f"^warmup_cosine: {message}"):
        warmup_cosine(0, *arguments)


def test_schedule_step_counts_from_zero() -> None:
    with pytest.raises(ArgumentError, match="step must be an integer >= 0, not -1"):
        warmup_cosine(-1, 2, 4)
