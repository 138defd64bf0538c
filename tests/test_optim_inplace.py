"""Steps in place: the same bits as the rules', and everything that users do with parameters still works."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import strict_cupy

import tinynorm as tn
from tinynorm.backend import to_device
from tinynorm.errors import ArgumentError, DeviceError, GraphError, ShapeError, StateError
from tinynorm.formulas.types import Array
from tinynorm.kernels import buffers, threads
from tinynorm.kernels.blocks import BLOCK
from tinynorm.optim import SGD, Adam, AdamW, Optimizer, rules
from tinynorm.optim.plan import SMALL

MAKE: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda params: SGD(params, lr=0.1),
    "sgd, decay": lambda params: SGD(params, lr=0.1, weight_decay=0.3),
    "momentum": lambda params: SGD(params, lr=0.1, momentum=0.9),
    "momentum, decay": lambda params: SGD(params, lr=0.1, momentum=0.9, weight_decay=0.3),
    "nesterov": lambda params: SGD(params, lr=0.1, momentum=0.9, nesterov=True),
    "nesterov, decay": lambda params: SGD(params, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.3),
    "adam": lambda params: Adam(params, lr=0.1),
    "adam, decay": lambda params: Adam(params, lr=0.1, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.3),
    "adam, no memory": lambda params: Adam(params, lr=0.1, betas=(0.0, 0.0)),
    "adamw": lambda params: AdamW(params, lr=0.1, weight_decay=0.3),
    "adamw, no decay": lambda params: AdamW(params, lr=0.1, weight_decay=0.0),
}
every = pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
with_state = pytest.mark.parametrize("make", [MAKE["momentum"], MAKE["adam"], MAKE["adamw"]])

SHAPES = [(), (1,), (3, 0), (2, 2), (64,), (7, 11), (SMALL,), (SMALL + 1,), (3, BLOCK + 5)]


def parameter(value: Any, dtype: Any = np.float32) -> tn.Tensor:
    return tn.tensor(np.asarray(value, dtype), requires_grad=True)


def same(a: Any, b: Any) -> bool:
    """Whether all bits are; that bytes differ, and where, would take pytest minutes to show."""
    return np.asarray(a).tobytes() == np.asarray(b).tobytes()


class Twins:
    """The same parameters twice: the first are stepped as usual, the others by the rules."""

    def __init__(self, make: Callable[[Any], Optimizer], shapes: Any = ((5,), (2, 3), (SMALL + 1,)), dtype: Any = "f"):
        self.rng = np.random.default_rng(0)
        values = [np.asarray(self.rng.standard_normal(shape), dtype) for shape in shapes]
        self.fast, self.slow = ([parameter(value, dtype) for value in values] for _ in range(2))
        self.optimizer, self.rule = make(self.fast), make(self.slow)

    def pairs(self) -> Any:
        return zip(self.fast, self.slow, strict=True)

    def step(self, resting: Any = (), layout: Callable[[Array], Array] = np.asarray) -> None:
        for i, (p, q) in enumerate(self.pairs()):
            g = np.asarray(self.rng.standard_normal(p.shape)).astype(p.dtype)
            p.grad = q.grad = None if i in resting else layout(g)
        self.go()

    def go(self) -> None:
        self.optimizer.step()
        with tn.formulas_only():
            self.rule.step()
        self.check()

    def check(self) -> None:
        for p, q in self.pairs():
            assert same(p._data, q._data)
        alike(self.optimizer, self.rule)


def alike(one: Optimizer, other: Optimizer) -> None:
    """Equal state dicts, to the bit and in the same order."""
    a, b = one.state_dict(), other.state_dict()
    assert a["param_groups"] == b["param_groups"]
    assert a["state"].keys() == b["state"].keys()
    for i in a["state"]:
        assert list(a["state"][i]) == list(b["state"][i])
        for slot, value in a["state"][i].items():
            theirs = b["state"][i][slot]
            assert (type(value), np.shape(value)) == (type(theirs), np.shape(theirs))
            assert same(value, theirs)


def moments(optimizer: Optimizer) -> list[int]:
    """Which arrays the state is: they stay where steps are made in place, and are new ones after a rule."""
    return [id(v) for entry in optimizer.state.values() for slot, v in entry.items() if slot != "step"]


# The same bits


@every
@pytest.mark.parametrize("dtype", ["f", "d", "e"])
def test_the_same_bits_as_the_rules(make: Callable[[Any], Optimizer], dtype: str) -> None:
    twins = Twins(make, SHAPES, dtype)
    for _ in range(4):
        twins.step()


@pytest.mark.parametrize("dtype", ["f", "d"])
def test_adam_against_the_rule_itself(dtype: str) -> None:
    rng = np.random.default_rng(1)
    w = parameter(rng.standard_normal((2, BLOCK)), dtype)
    optimizer = Adam([w], lr=0.1, weight_decay=0.3)
    p, m, v = w.data.copy(), np.zeros_like(w.data), np.zeros_like(w.data)
    for t in range(1, 4):
        w.grad = rng.standard_normal(w.shape).astype(dtype)
        optimizer.step()
        p, m, v = rules.adam(np, p, w.grad, m, v, t, lr=0.1, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.3)
        for got, expected in ((w.data, p), (optimizer.state[w]["m"], m), (optimizer.state[w]["v"], v)):
            assert same(got, expected)


@with_state
def test_which_steps_are_in_place(make: Callable[[Any], Optimizer]) -> None:
    twins = Twins(make)
    twins.step()
    before, rule = moments(twins.optimizer), moments(twins.rule)
    held = [twins.optimizer.state[p] for p in twins.fast], [twins.rule.state[p] for p in twins.slow]
    for _ in range(2):
        twins.step()
        assert moments(twins.optimizer) == before
    assert len({*before}) == len(before) > 0
    assert not {*moments(twins.rule)} & {*rule}
    assert held


@every
@pytest.mark.parametrize(
    "layout",
    [
        lambda g: np.asfortranarray(g),
        lambda g: np.repeat(g[..., None], 2, -1)[..., 0],
        lambda g: np.broadcast_to(g.dtype.type(0.5), g.shape),
        lambda g: g[::-1],
        lambda g: np.ma.masked_array(g),
    ],
)
def test_gradients_of_any_layout(make: Callable[[Any], Optimizer], layout: Any) -> None:
    twins = Twins(make, [(5, 4), (6,), (130, SMALL // 64)])
    for _ in range(3):
        twins.step(layout=layout)


@pytest.mark.parametrize("count", [2, 3])
@every
def test_the_same_bits_for_any_number_of_threads(
    make: Callable[[Any], Optimizer], count: int, monkeypatch: pytest.MonkeyPatch, restored: None
) -> None:
    monkeypatch.setattr(threads, "ENOUGH", 1)
    tn.set_num_threads(count)
    twins = Twins(make, [(3, 4), (BLOCK + 1,), (5,), (2, BLOCK - 1)])
    for _ in range(3):
        twins.step()


def test_a_threads_warnings_follow_the_callers_settings(monkeypatch: pytest.MonkeyPatch, restored: None) -> None:
    monkeypatch.setattr(threads, "ENOUGH", 1)
    tn.set_num_threads(2)
    p = parameter(np.zeros(4 * BLOCK))
    p.grad = np.zeros_like(p.data)
    with np.errstate(invalid="ignore"):
        Adam([p], eps=0.0).step()  # 0/0
    assert np.isnan(p.data).all()


def test_many_small_ones_fill_several_bundles() -> None:
    twins = Twins(MAKE["adam"], [(SMALL,)] * 6 + [(3,)] * 4)
    for _ in range(3):
        twins.step()


@every
def test_dtypes_side_by_side(make: Callable[[Any], Optimizer]) -> None:
    twins = Twins(make, [(3,), (4,)])
    for params, optimizer in ((twins.fast, twins.optimizer), (twins.slow, twins.rule)):
        params += [parameter(np.full(3, 1 / 3), dtype) for dtype in "dfe"]
        optimizer.param_groups[0]["params"] += params[2:]
    for _ in range(3):
        twins.step()


# What users do


def test_counts_and_members_that_are_replaced() -> None:
    twins = Twins(MAKE["adam"])
    twins.step()
    for optimizer, params in ((twins.optimizer, twins.fast), (twins.rule, twins.slow)):
        optimizer.state[params[1]]["step"] = 7
    twins.step()
    for optimizer, params in ((twins.optimizer, twins.fast), (twins.rule, twins.slow)):
        other = params[0].detach()
        other.requires_grad = True
        params[0] = optimizer.param_groups[0]["params"][0] = other
    twins.step()


@every
def test_users_write_to_parameters_between_steps(make: Callable[[Any], Optimizer]) -> None:
    twins = Twins(make)
    held = [p.data for p in twins.fast]
    for k in range(3):
        twins.step()
        for p, q in twins.pairs():
            p.data[...] = q.data[...] = np.full(p.shape, k + 0.5)
    twins.step()
    assert all(p.data is array for p, array in zip(twins.fast, held, strict=True))


@every
def test_parameters_are_given_other_arrays(make: Callable[[Any], Optimizer]) -> None:
    twins = Twins(make, [(5,), (4, 3), (SMALL + 1,)])
    twins.step()
    for p, q in twins.pairs():
        old, value = p.data, twins.rng.standard_normal(p.shape).astype("f")
        before = old.copy()
        p.data, q.data = value.copy(), value.copy()
        twins.step()
        np.testing.assert_array_equal(old, before)  # no longer anybody's
    for p, q in twins.pairs():  # in another order, and then in rows that are apart
        p.data, q.data = (np.asfortranarray(value) for value in (p.data, q.data))
    twins.step()
    for p, q in twins.pairs():
        p.data, q.data = (np.repeat(value[..., None], 2, -1)[..., 0] for value in (p.data, q.data))
    twins.step()


@every
def test_some_rest_at_times(make: Callable[[Any], Optimizer]) -> None:
    twins = Twins(make, [(5,), (2, 3), (4,), (SMALL + 1,)])
    for resting in ((), (1,), (0, 3), (), (0, 1, 2, 3), (2,), ()):
        before = [p.data.copy() for p in twins.fast]
        twins.step(resting)
        assert all(np.array_equal(twins.fast[i].data, before[i]) for i in resting)


def test_groups_and_options_that_change() -> None:
    def make(params: list[tn.Tensor]) -> Optimizer:
        return SGD([{"params": params[:2]}, {"params": params[2:], "lr": 0.5, "weight_decay": 0.1}], lr=0.1)

    twins = Twins(make, [(5,), (2, 3), (4,), (SMALL + 1,)])
    both = twins.optimizer, twins.rule
    for momentum, lr in ((0.0, 0.1), (0.9, 0.2), (0.9, 0.3), (0.0, 0.1), (0.5, 0.1)):
        for optimizer in both:
            optimizer.param_groups[0].update(momentum=momentum, lr=lr)
        twins.step()
    for optimizer in both:  # one that changes groups
        optimizer.param_groups[1]["params"].insert(0, optimizer.param_groups[0]["params"].pop())
    twins.step()


@with_state
def test_state_that_is_loaded_or_replaced(make: Callable[[Any], Optimizer]) -> None:
    twins = Twins(make)
    twins.step()
    saved = twins.optimizer.state_dict()
    kept = copy.deepcopy(saved)
    twins.step()
    for optimizer in (twins.optimizer, twins.rule):
        optimizer.load_state_dict(saved)
    twins.step()
    twins.step()
    np.testing.assert_equal(saved, kept)
    mine = np.full(5, 0.25, np.float32)
    for optimizer, p in ((twins.optimizer, twins.fast[0]), (twins.rule, twins.slow[0])):
        optimizer.state[p][optimizer.slots[-1]] = mine
    twins.step()
    assert mine.tolist() == [0.25] * 5  # it is the user's, and is read only
    for optimizer, p in ((twins.optimizer, twins.fast[1]), (twins.rule, twins.slow[1])):
        optimizer.state[p][optimizer.slots[-1]][...] = 0.5
    twins.step()
    for optimizer, p in ((twins.optimizer, twins.fast[2]), (twins.rule, twins.slow[2])):
        del optimizer.state[p]
    twins.step()


@pytest.mark.parametrize("place", [1, -1])
@pytest.mark.parametrize("wrong", [None, np.zeros(3, np.float32), np.zeros((1, 2, 3), np.float32), ...])
def test_a_state_that_lacks_something_is_not_taken_for_whole(place: int, wrong: Any) -> None:
    twins = Twins(MAKE["adam"])
    twins.step()
    twins.step()
    before = [p.numpy().copy() for p in twins.fast]
    entry = twins.optimizer.state[twins.fast[place]]
    if wrong is ...:
        del entry["v"]
    else:
        entry["v"] = wrong
    with pytest.raises(StateError, match=r"step: the state of a parameter of shape .* must hold 'v'"):
        twins.optimizer.step()
    assert all(same(p.data, old) for p, old in zip(twins.fast, before, strict=True))
    del twins.optimizer.state[twins.fast[place]]
    twins.optimizer.step()


@with_state
def test_state_that_was_got_long_before(make: Callable[[Any], Optimizer]) -> None:
    twins = Twins(make)
    both = (twins.optimizer, twins.fast), (twins.rule, twins.slow)
    held = [optimizer.state for optimizer, _ in both]
    twins.step()
    twins.step()
    for (optimizer, params), state in zip(both, held, strict=True):
        state[params[0]] = dict(state[params[0]])
        state[params[1]][optimizer.slots[-1]] = np.full((2, 3), 0.25, np.float32)
        del state[params[2]]
    twins.step()
    twins.step()
    for (optimizer, params), state in zip(both, held, strict=True):
        assert optimizer.state is state
        assert state[params[0]] is optimizer.state[params[0]]


def test_a_step_that_fails_leaves_a_state_that_can_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    strict_cupy.install(monkeypatch)
    p, q = parameter([1.0]), parameter([1.0, 2.0])
    optimizer = Adam([p, q])
    p.grad, q.grad = np.ones(1, np.float32), np.ones(2, np.float32)
    here, q._data = q._data, to_device(q.data, "cuda")  # while its gradient stays where it is
    with pytest.raises(DeviceError, match=r"^Adam\.step: .*'cuda:0'.*'cpu'"):
        optimizer.step()
    assert p.item() == 1.0
    assert optimizer.state_dict()["state"] == {}
    q._data = here
    optimizer.step()
    assert [entry["step"] for entry in optimizer.state_dict()["state"].values()] == [1, 1]


@every
def test_in_place_and_rules_in_turn(make: Callable[[Any], Optimizer]) -> None:
    twins = Twins(make)
    for k in range(6):
        if k % 3 == 2:
            with tn.formulas_only():
                twins.step()
        else:
            twins.step()


@with_state
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
def test_copies_of_an_optimizer_go_their_own_way(make: Callable[[Any], Optimizer], copied: Any) -> None:
    twins = Twins(make)
    twins.step()
    optimizer = copied(twins.optimizer)
    members = optimizer.param_groups[0]["params"]
    for p, q in zip(members, twins.fast, strict=True):
        p.grad = q.grad
    before = [q.data.copy() for q in twins.fast]
    optimizer.step()
    assert all(np.array_equal(q.data, value) for q, value in zip(twins.fast, before, strict=True))
    twins.check()
    twins.go()  # with the same gradients
    alike(optimizer, twins.optimizer)
    assert all(same(p.data, q.data) for p, q in zip(members, twins.fast, strict=True))


@every
def test_tied_weights_and_loading_a_module(make: Callable[[Any], Optimizer]) -> None:
    class Tied(tn.nn.Module):
        def __init__(self) -> None:
            self.first, self.second = tn.nn.Linear(4, 4, rng=0), tn.nn.Linear(4, 4, rng=1)
            self.second.weight = self.first.weight

        def forward(self, x: Any) -> tn.Tensor:
            return self.second(self.first(x))

    x = np.random.default_rng(0).standard_normal((3, 4)).astype("f")

    def train(fast: bool) -> list[bytes]:
        module = Tied()
        optimizer, saved = make(module), module.state_dict()
        for k in range(4):
            if k == 2:
                module.load_state_dict(saved)
            optimizer.zero_grad()
            (module(x) ** 2).sum().backward()
            if fast:
                optimizer.step()
            else:
                with tn.formulas_only():
                    optimizer.step()
        assert module.first.weight is module.second.weight
        return [value.tobytes() for value in module.state_dict().values()]

    assert train(True) == train(False)


@with_state
def test_a_module_that_goes_to_a_device_and_back(
    make: Callable[[Any], Optimizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    strict_cupy.install(monkeypatch)

    def train(fast: bool) -> list[bytes]:
        rng = np.random.default_rng(1)
        module = tn.nn.Linear(4, 3, rng=0)
        optimizer = make(module)
        for device in ["cpu", "cpu", "cuda:0", "cuda:0", "cpu", "cpu"]:
            module.to(device)
            for p in module.parameters():
                p.grad = to_device(rng.standard_normal(p.shape).astype("f"), device)
            if fast:
                optimizer.step()
            else:
                with tn.formulas_only():
                    optimizer.step()
            assert isinstance(optimizer.state[module.weight][optimizer.slots[-1]], type(module.weight.data))
        found = optimizer.state_dict()["state"].values()
        return [p.data.tobytes() for p in module.parameters()] + [
            np.asarray(v).tobytes() for e in found for v in e.values()
        ]

    assert train(True) == train(False)


def test_parameters_that_share_memory_see_each_others_steps() -> None:
    def make(memory: Array) -> tuple[Optimizer, list[tn.Tensor]]:
        params = [tn.as_tensor(view, requires_grad=True) for view in (memory[:6], memory[4:], memory[:3])]
        return Adam(params, lr=0.1, weight_decay=0.5), params

    memories = [np.linspace(1, 2, 10) for _ in range(2)]
    (fast, ps), (slow, qs) = map(make, memories)
    for k in range(3):
        for p in (*ps, *qs):
            p.grad = np.full(p.shape, k - 0.7)
        fast.step()
        with tn.formulas_only():
            slow.step()
        assert same(*memories)


@every
@pytest.mark.parametrize("shape", [(3, 2), (SMALL + 2,)])
def test_gradients_that_lie_in_parameters_or_moments(make: Callable[[Any], Optimizer], shape: Any) -> None:
    twins = Twins(make, [shape, shape])
    twins.step()
    for optimizer, params in ((twins.optimizer, twins.fast), (twins.rule, twins.slow)):
        params[0].grad = params[0].data[::-1]
        params[1].grad = optimizer.state.get(params[1], {}).get("m", params[1].data)
    twins.go()


@every
def test_gradients_that_lie_in_parameters_stepped_before(make: Callable[[Any], Optimizer]) -> None:
    """All gradients count as they are before the step, whoever is stepped first."""
    for shape in ((5,), (SMALL + 1,), (BLOCK + 1,)):
        twins = Twins(make, [shape, shape, shape])
        twins.step()
        first, second, third = twins.fast
        second.grad, third.grad = first.data, first.data[::-1]
        for q, g in zip(twins.slow, (first.grad, second.grad, third.grad), strict=True):
            q.grad = g.copy()
        twins.go()


def test_older_graphs_refuse() -> None:
    ws = parameter([1.0, 2.0]), parameter(np.ones(SMALL + 1)), parameter([3.0])
    for w in ws:
        optimizer = Adam(ws)
        for p in ws:
            p.grad = np.ones_like(p.data)
        y = (w * w).sum()
        optimizer.step()
        with pytest.raises(GraphError, match="changed in place"):
            y.backward()


def test_memory_that_became_read_only_is_not_written_to() -> None:
    for shape in ((3,), (SMALL + 1,), (BLOCK + 1,)):
        p, q = parameter(np.ones(shape)), parameter(np.ones(shape))
        optimizer = Adam([p, q])
        for _ in range(2):
            p.grad = q.grad = np.ones(shape, np.float32)
            optimizer.step()
        before = p.data.copy()
        p.data.flags.writeable = False
        with pytest.raises(ValueError, match="read-only"):
            optimizer.step()
        np.testing.assert_array_equal(p.data, before)


@tn.formulas_only()
def test_rules_refuse_memory_that_became_read_only_before_anything_moves() -> None:
    p, q = parameter([1.0, 2.0]), parameter([3.0])
    p.grad, q.grad = np.ones(2, np.float32), np.ones(1, np.float32)
    optimizer = Adam([q, p])
    p.data.flags.writeable = False
    with pytest.raises(
        ArgumentError, match=r"^Adam\.step: a parameter, of shape \(2,\), lies in memory that became re"
    ):
        optimizer.step()
    assert (p.data.tolist(), q.data.tolist()) == ([1.0, 2.0], [3.0])


class Full:
    """Memory that is full after so many more arrays."""

    def __init__(self, after: int) -> None:
        self.left, self.array = after, buffers._array

    def __call__(self, *arguments: Any) -> Array:
        self.left -= 1
        if self.left < 0:
            raise MemoryError
        return self.array(*arguments)


@every
def test_a_step_without_memory_changes_nothing(
    make: Callable[[Any], Optimizer], monkeypatch: pytest.MonkeyPatch, restored: None
) -> None:
    monkeypatch.setattr(threads, "ENOUGH", 1)
    tn.set_num_threads(2)
    twins = Twins(make, [(5,), (2, 3), (SMALL + 1,), (2, BLOCK + 1)])
    twins.step()
    for p, q in twins.pairs():
        p.grad = q.grad = twins.rng.standard_normal(p.shape).astype("f")
    for after in range(20):
        with monkeypatch.context() as patch:
            patch.setattr(buffers, "_array", Full(after))
            try:
                twins.optimizer.step()
                break
            except MemoryError:
                twins.check()
    else:
        pytest.fail("20 arrays were not enough")
    assert after > 0
    with tn.formulas_only():
        twins.rule.step()
    twins.check()


def test_a_rule_that_fails_for_one_parameter_moves_none() -> None:
    class Picky(SGD):
        def update(self, xp: Any, p: Any, g: Any, state: Any, options: Any) -> Any:
            if p.shape == (2,):
                raise MemoryError
            return p - g, {"velocity": g}

    params = [parameter(value) for value in ([1.0], [1.0, 2.0], [3.0, 4.0, 5.0])]
    optimizer = Picky(params)
    for p in params:
        p.grad = np.ones_like(p.data)
    with pytest.raises(MemoryError):
        optimizer.step()
    assert [p.data.tolist() for p in params] == [[1.0], [1.0, 2.0], [3.0, 4.0, 5.0]]
    assert optimizer.state == {}


def test_a_rule_that_makes_another_shape_moves_nothing() -> None:
    class Short(SGD):
        def update(self, xp: Any, p: Any, g: Any, state: Any, options: Any) -> Any:
            return (p - g)[:1], {}

    params = [parameter([1.0]), parameter([1.0, 2.0])]
    for p in params:
        p.grad = np.ones_like(p.data)
    with pytest.raises(ShapeError, match=r"^Short\.update: made values of shape \(1,\) from \(2,\)"):
        Short(params).step()
    assert [p.data.tolist() for p in params] == [[1.0], [1.0, 2.0]]


def test_an_error_that_numpy_raises_leaves_the_parameter_as_it_was() -> None:
    p = parameter([1.0, 2.0])
    optimizer = Adam([p], eps=0.0)
    p.grad = np.zeros(2, np.float32)
    with np.errstate(invalid="raise"), pytest.raises(FloatingPointError):
        optimizer.step()
    assert p.data.tolist() == [1.0, 2.0]
    assert optimizer.state_dict()["state"] == {}


def test_a_subclass_with_a_rule_of_its_own_uses_it() -> None:
    class Backwards(SGD):
        def update(self, xp: Any, p: Any, g: Any, state: Any, options: Any) -> Any:
            return p + g, {}

    class Named(SGD):
        pass

    p = parameter([1.0])
    p.grad = np.ones(1, np.float32)
    Backwards([p], lr=0.5).step()
    assert p.item() == 2.0
    Named([p], lr=0.5).step()
    assert p.item() == 1.5
    assert Named.in_place is SGD.in_place


def test_gradients_that_change_their_type() -> None:
    twins = Twins(MAKE["momentum"], [(3, 3), (2, 2)])
    for k in range(4):
        twins.step(layout=(lambda g: g.view(np.matrix)) if k % 2 else np.asarray)


# Clipping


@pytest.mark.parametrize("dtype", ["e", "f", "d"])
@pytest.mark.parametrize("scale", [1.0, 1e-7, 1e4])
def test_clipping_agrees_with_its_formula(dtype: str, scale: float) -> None:
    rng = np.random.default_rng(2)
    gradients = [np.asarray(rng.standard_normal(shape) * scale).astype(dtype) for shape in SHAPES]
    gradients += [gradients[-1].T, gradients[4][::-2], np.broadcast_to(gradients[1], (3,))]
    fast, slow = ([parameter(g, dtype) for g in gradients] for _ in range(2))
    for p, q, g in zip(fast, slow, gradients, strict=True):
        p.grad = q.grad = g
    norm = tn.optim.clip_grad_norm_(fast, np.inf)
    wide = [g.astype(np.longdouble) for g in gradients]
    assert norm == pytest.approx(float(np.sqrt(sum((g * g).sum() for g in wide))), rel=1e-14)
    tn.optim.clip_grad_norm_(fast, norm / 3)
    with tn.formulas_only():
        assert tn.optim.clip_grad_norm_(slow, norm / 3) == pytest.approx(norm, rel=1e-14)
    for p, q, g in zip(fast, slow, gradients, strict=True):
        assert p.grad.dtype == g.dtype
        assert not np.shares_memory(p.grad, g)
        np.testing.assert_allclose(
            p.grad, q.grad, rtol=2 * np.finfo(dtype).eps, atol=np.finfo(dtype).smallest_subnormal
        )
