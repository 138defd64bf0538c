"""Optimizers, schedules and clipping on CuPy's arrays: the numbers of NumPy, no copies, and nothing half-done."""

import copy
from contextlib import contextmanager
from functools import partial

import cupy_on_cpu
import numpy as np
import pytest

import tinynorm as tn
from tinynorm.backend import device_of, to_device
from tinynorm.errors import ArgumentError, DeviceError, GraphError, OutOfMemoryError

MAKE = {
    "sgd": lambda groups: tn.optim.SGD(groups, lr=0.1),
    "sgd, decay": lambda groups: tn.optim.SGD(groups, lr=0.1, weight_decay=0.3),
    "momentum": lambda groups: tn.optim.SGD(groups, lr=0.1, momentum=0.9),
    "momentum, decay": lambda groups: tn.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=0.3),
    "nesterov": lambda groups: tn.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True),
    "nesterov, decay": lambda groups: tn.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.3),
    "adam": lambda groups: tn.optim.Adam(groups, lr=0.1),
    "adam, decay": lambda groups: tn.optim.Adam(groups, lr=0.1, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.3),
    "adam, no memory": lambda groups: tn.optim.Adam(groups, lr=0.1, betas=(0.0, 0.0)),
    "adamw": lambda groups: tn.optim.AdamW(groups, lr=0.1, weight_decay=0.3),
    "adamw, no decay": lambda groups: tn.optim.AdamW(groups, lr=0.1, weight_decay=0.0),
}
every = pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
with_state = pytest.mark.parametrize("make", [MAKE[name] for name in ("momentum", "adam", "adamw")])
some = pytest.mark.parametrize("make", [MAKE["nesterov, decay"], MAKE["adamw"]], ids=["nesterov", "adamw"])

SHAPES = [(), (1,), (3, 0), (2, 2), (5,), (7, 3)]
RTOL = {"e": 1e-3, "f": 1e-6, "d": 1e-14}


class Run:
    """Parameters in two groups on a device, an optimizer, and gradients that are the same wherever it runs."""

    def __init__(self, make, device="cuda:0", dtype="f", shapes=SHAPES):
        self.rng, self.device = np.random.default_rng(0), device
        values = [np.asarray(self.rng.standard_normal(shape)).astype(dtype) for shape in shapes]
        self.params = [tn.tensor(v, dtype=v.dtype, device=device, requires_grad=True) for v in values]
        self.optimizer = make([{"params": self.params[:2]}, {"params": self.params[2:], "lr": 0.03}])

    def gradients(self, resting=()):
        for i, p in enumerate(self.params):
            g = np.asarray(self.rng.standard_normal(p.shape)).astype(p.dtype)
            p.grad = None if i in resting else to_device(g, p.device)

    def step(self, resting=()):
        self.gradients(resting)
        self.optimizer.step()

    def outcome(self):
        """All parameters, and all of the state, on the host."""
        state = copy.deepcopy(self.optimizer.state_dict()["state"])
        values = {f"parameter {i}": p.numpy().copy() for i, p in enumerate(self.params)}
        return values | {f"{slot} {i}": value for i, entry in state.items() for slot, value in entry.items()}


def assert_same(got, right, rtol=0.0):
    """Equal, to the bit or to rounding."""
    assert got.keys() == right.keys()
    for name, value in right.items():
        assert np.shape(got[name]) == np.shape(value)
        assert np.asarray(got[name]).dtype == np.asarray(value).dtype
        np.testing.assert_allclose(got[name], value, rtol=rtol, atol=rtol, err_msg=name)


def is_same(got, right):
    return got.keys() == right.keys() and all(np.array_equal(got[name], right[name]) for name in right)


def rounding(cupy, dtype="f"):
    """None on the stand-in, whose numbers are NumPy's."""
    return 0.0 if hasattr(cupy, "machine") else RTOL[dtype]


@contextmanager
def counting(cupy):
    """A list that in the end has a number: of copies to the host."""
    found = []
    if hasattr(cupy, "machine"):
        before = len(cupy.machine.to_host)
        yield found
        found.append(len(cupy.machine.to_host) - before)
    elif on_the_cpu(cupy):
        with cupy_on_cpu.counted() as counts:
            yield found
        found.append(counts.copies_to_host)
    else:
        pytest.skip("a real device counts no copies")


@contextmanager
def refusing(cupy, n):
    """Within it, no memory for the n-th array on a device, counted from 0."""
    if hasattr(cupy, "machine"):
        cupy.machine.fail_allocation(n + 1)
        yield
        cupy.machine.fail_allocation(10**9)
    elif on_the_cpu(cupy):
        with cupy_on_cpu.out_of_memory(n):
            yield
    else:
        pytest.skip("a real device has its memory")


def on_the_cpu(cupy):
    """Whether this is the real CuPy without a device."""
    return "cupy_on_cpu" in cupy.RawModule.__module__


# The same numbers


@every
@pytest.mark.parametrize("dtype", ["e", "f", "d"])
def test_every_optimizer_moves_as_on_the_host(cupy, make, dtype):
    there, here = Run(make, "cuda:0", dtype), Run(make, "cpu", dtype)
    for resting in [(), (1, 3), (), (5,)]:
        there.step(resting)
        with tn.formulas_only():
            here.step(resting)
    assert_same(there.outcome(), here.outcome(), rounding(cupy, dtype))
    held = [v for entry in there.optimizer.state.values() for k, v in entry.items() if k != "step"]
    assert {device_of(array) for array in held} <= {"cuda:0"}


@some
def test_options_are_read_at_every_step(cupy, make):
    there, here = Run(make), Run(make, "cpu")
    schedules = [tn.optim.WarmupCosine(run.optimizer, warmup_steps=2, total_steps=4) for run in (there, here)]
    for k in range(4):
        for run, schedule in zip((there, here), schedules, strict=True):
            run.optimizer.param_groups[1]["weight_decay"] = 0.1 * k
            run.step()
            schedule.step()
    assert_same(there.outcome(), here.outcome(), rounding(cupy))


@with_state
@pytest.mark.parametrize(("first", "second"), [("cuda:0", "cpu"), ("cpu", "cuda:0"), ("cuda:0", "cuda:0")])
def test_a_state_goes_from_one_device_to_another(cupy, make, first, second):
    before, after, whole = Run(make, first), Run(make, second), Run(make, "cpu")
    for run in (before, before, whole, whole, whole):
        run.step()
    saved = before.optimizer.state_dict()
    kept = copy.deepcopy(saved)
    for p, q in zip(after.params, before.params, strict=True):
        p.data = to_device(q.numpy().copy(), second)
    after.optimizer.load_state_dict(saved)
    after.rng = before.rng
    after.step()
    np.testing.assert_equal(saved, kept)
    assert_same(after.outcome(), whole.outcome(), RTOL["f"])


@with_state
def test_a_module_that_moves_between_steps(cupy, make):
    rng = np.random.default_rng(1)
    inputs = rng.standard_normal((6, 3, 4)).astype("f")

    def train(devices):
        module = tn.nn.Linear(4, 3, rng=0)
        optimizer = make(module)
        for device, x in zip(devices, inputs, strict=True):
            module.to(device)
            optimizer.zero_grad()
            (module(tn.tensor(x, device=device)) ** 2).sum().backward()
            optimizer.step()
            slot = optimizer.slots[-1]
            assert {device_of(optimizer.state[p][slot]) for p in module.parameters()} == {device}
        return module.state_dict()

    last = f"cuda:{cupy.cuda.runtime.getDeviceCount() - 1}"
    moved = train(["cpu", "cuda:0", "cuda:0", last, last, "cpu"])
    assert_same(moved, train(["cpu"] * 6), 1e-5)


def test_states_that_users_write_to(cupy):
    there, here = Run(MAKE["adamw"]), Run(MAKE["adamw"], "cpu")
    for run in (there, here):
        run.step()
        first, second, third = run.params[3:]
        run.optimizer.state[first]["v"][...] = 0.5
        mine = to_device(np.full(second.shape, 0.25, np.float32), run.device)
        run.optimizer.state[second]["m"] = mine
        del run.optimizer.state[third]
        run.step()
        run.step()
        assert to_device(mine, "cpu").tolist() == [0.25] * 5  # it is the user's, and is read only
    assert_same(there.outcome(), here.outcome(), rounding(cupy))


def test_parameters_that_are_given_other_arrays(cupy):
    there, here = Run(MAKE["adamw"]), Run(MAKE["adamw"], "cpu")
    for run in (there, here):
        run.step()
        held = run.params[4].data
        before = to_device(held, "cpu").copy()
        run.params[4].data = to_device(np.arange(5, dtype=np.float32), run.device)
        run.params[5].data = to_device(np.ones((7, 6), np.float32), run.device)[:, ::2]
        run.step()
        run.step()
        np.testing.assert_array_equal(to_device(held, "cpu"), before)  # no longer anybody's
    assert_same(there.outcome(), here.outcome(), rounding(cupy))


@pytest.mark.parametrize("make", [MAKE["sgd"], MAKE["adamw"]], ids=["sgd", "adamw"])
def test_an_array_that_was_broadcast_is_no_parameter(cupy, make):
    """CuPy would write to all rows at once, where NumPy's array is read-only."""
    rows = cupy.broadcast_to(to_device(np.ones(2, np.float32), "cuda"), (3, 2))
    with pytest.raises(ArgumentError, match="broadcast"):
        make([tn.as_tensor(rows, requires_grad=True)])
    p = tn.tensor(np.zeros((3, 2), np.float32), device="cuda", requires_grad=True)
    p.data = rows  # copied, as on the host
    right = tn.tensor(np.ones((3, 2), np.float32), requires_grad=True)
    right.grad = np.arange(6, dtype=np.float32).reshape(3, 2)
    p.grad = to_device(right.grad, "cuda")
    make([p]).step(), make([right]).step()
    np.testing.assert_allclose(p.numpy(), right.numpy(), rtol=1e-6)
    assert to_device(rows, "cpu").tolist() == [[1.0, 1.0]] * 3
    make([tn.tensor(np.zeros(shape, np.float32), device="cuda", requires_grad=True) for shape in ((3, 0), (1, 2))])


@pytest.mark.parametrize("make", [MAKE["sgd"], MAKE["adamw"]], ids=["sgd", "adamw"])
def test_parameters_that_share_memory_see_each_others_steps(cupy, make):
    def run(device):
        memory = to_device(np.linspace(1, 2, 10), device)
        params = [tn.as_tensor(view, requires_grad=True) for view in (memory[:6], memory[4:], memory[9::-2])]
        optimizer = make(params)
        for k in range(3):
            for p in params:
                p.grad = to_device(np.full(p.shape, k - 0.7), device)
            optimizer.step()
        return {"memory": to_device(memory, "cpu")}

    there, here = run("cuda:0"), run("cpu")
    assert_same(there, here, rounding(cupy, "d"))


@some
def test_gradients_that_lie_in_parameters_count_as_they_were(cupy, make):
    there, here = Run(make, shapes=[(6,)] * 4), Run(make, "cpu", shapes=[(6,)] * 4)
    for run in (there, here):
        run.gradients()
        run.params[1].grad, run.params[2].grad = run.params[0].data, run.params[1].data[::-1]
        if run is here:
            for p in run.params:
                p.grad = p.grad.copy()
        run.optimizer.step()
    assert_same(there.outcome(), here.outcome(), rounding(cupy))


@some
def test_older_graphs_refuse(cupy, make):
    run = Run(make)
    for w in run.params[3:]:
        run.gradients()
        y = (w * w).sum()
        run.optimizer.step()
        with pytest.raises(GraphError, match="changed in place"):
            y.backward()


# Copies


@every
def test_a_step_copies_nothing_to_the_host(cupy, make):
    run = Run(make)
    schedule = tn.optim.WarmupCosine(run.optimizer, warmup_steps=1, total_steps=4)
    for resting in [(), (2,), ()]:
        run.gradients(resting)
        with counting(cupy) as copies:
            run.optimizer.step()
            run.optimizer.zero_grad()
            schedule.step()
        assert copies == [0]


@pytest.mark.parametrize("dtype", ["e", "f", "d"])
@pytest.mark.parametrize("max_norm", [1e-3, np.inf])
def test_clipping_copies_one_number(cupy, dtype, max_norm):
    run = Run(MAKE["sgd"], dtype=dtype)
    run.gradients()
    with counting(cupy) as copies:
        tn.optim.clip_grad_norm_(run.params, max_norm)
    assert copies == [1]


@pytest.mark.parametrize("dtype", ["f", "d"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_norm_that_is_not_finite_is_one_number_too(cupy, dtype, bad):
    run = Run(MAKE["sgd"], dtype=dtype)
    run.gradients()
    run.params[4].grad[1] = bad
    before = [p.grad for p in run.params]
    with counting(cupy) as copies:
        norm = tn.optim.clip_grad_norm_(run.params, 1.0, error_if_nonfinite=False)
    assert copies == [1]
    assert norm == abs(bad) or (np.isnan(norm) and np.isnan(bad))
    with pytest.raises(ArgumentError, match=r"because of that of parameter 4, of shape \(5,\); nothing was changed"):
        tn.optim.clip_grad_norm_(run.params, 1.0)
    assert all(p.grad is g for p, g in zip(run.params, before, strict=True))


# Clipping


@pytest.mark.parametrize(
    ("dtype", "scale"), [("e", 2e4), ("e", 1e-7), ("f", 1e30), ("f", 1e-40), ("d", 1e200), ("d", 1e-300)]
)
def test_clipping_scales_all_by_one_factor(cupy, dtype, scale):
    run = Run(MAKE["sgd"], dtype=dtype)
    wide = []
    for i, p in enumerate(run.params):
        g = np.asarray(np.clip(run.rng.standard_normal(p.shape), -3, 3) * scale).astype(dtype)
        p.grad = None if i == 3 else to_device(g, "cuda:0")
        wide.append(g.astype(np.longdouble))
    right = float(np.sqrt(sum((g * g).sum() for i, g in enumerate(wide) if i != 3)))
    held = run.params[4].grad
    norm = tn.optim.clip_grad_norm_(run.params, right / 3)
    assert norm == pytest.approx(right, rel=1e-14)
    np.testing.assert_array_equal(to_device(held, "cpu"), wide[4].astype(dtype))  # bound anew, not written to
    assert run.params[3].grad is None
    for p, g in zip(run.params, wide, strict=True):
        if p.grad is not None:
            assert (p.grad.dtype, device_of(p.grad)) == (p.dtype, "cuda:0")
            tiny = np.finfo(dtype).smallest_normal if scale < 1e-30 else np.finfo(dtype).smallest_subnormal
            np.testing.assert_allclose(to_device(p.grad, "cpu"), g / 3, rtol=2 * np.finfo(dtype).eps, atol=tiny)


def test_clipping_where_there_is_nothing_to_clip(cupy):
    run = Run(MAKE["sgd"])
    assert tn.optim.clip_grad_norm_(run.params, 1.0) == 0.0
    for p in run.params:
        p.grad = to_device(np.zeros(p.shape, np.float32), "cuda:0")
    before = [p.grad for p in run.params]
    assert tn.optim.clip_grad_norm_(run.params, 1.0) == 0.0
    assert all(p.grad is g for p, g in zip(run.params, before, strict=True))


# Failures


def until_it_succeeds(cupy, work, unchanged, most, stride=1):
    """Let work fail at its first, second, … array until it has all; each time there must be an error, and no change.

    Where a call takes milliseconds, it fails with a stride. Returns what the errors say was being done.
    """
    doing = set()
    for n in range(0, most, 1 if hasattr(cupy, "machine") else stride):
        try:
            with refusing(cupy, n):
                work()
            return doing
        except OutOfMemoryError as error:
            unchanged()
            doing.add(str(error).partition(":")[0])
    pytest.fail(f"{most} arrays were not enough")


@some
@pytest.mark.parametrize("steps", [0, 2])
def test_a_step_without_memory_changes_nothing(cupy, make, steps):
    run, right = Run(make), Run(make, "cpu")
    for _ in range(steps):
        run.step()
        right.step()
    run.gradients()
    before, gradients = run.outcome(), [p.grad for p in run.params]

    def unchanged():
        assert_same(run.outcome(), before)
        assert all(p.grad is g for p, g in zip(run.params, gradients, strict=True))

    stride = 1 if make is MAKE["adamw"] else 7  # of a kernel, each
    doing = until_it_succeeds(cupy, run.optimizer.step, unchanged, most=300, stride=stride)
    assert doing in ({f"{type(run.optimizer).__name__}.step"}, {"step"})
    right.step()
    assert_same(run.outcome(), right.outcome(), RTOL["f"])
    run.step()
    right.step()
    assert_same(run.outcome(), right.outcome(), RTOL["f"])


def test_clipping_without_memory_changes_nothing(cupy):
    run = Run(MAKE["sgd"])
    run.gradients()
    gradients = [p.grad for p in run.params]
    values = [to_device(g, "cpu").copy() for g in gradients]

    def unchanged():
        for p, g, value in zip(run.params, gradients, values, strict=True):
            assert p.grad is g
            np.testing.assert_array_equal(to_device(g, "cpu"), value)

    clip = partial(tn.optim.clip_grad_norm_, run.params, 0.5)
    assert until_it_succeeds(cupy, clip, unchanged, most=100, stride=7) == {"clip_grad_norm_"}
    for p, value in zip(run.params, values, strict=True):
        assert (abs(to_device(p.grad, "cpu")) < abs(value)).all()


def test_a_load_without_memory_changes_nothing(cupy):
    run = Run(MAKE["adamw"])
    run.step()
    saved = run.optimizer.state_dict()
    saved["param_groups"][0]["lr"] = 0.7
    run.step()
    before = run.outcome()

    def unchanged():
        assert_same(run.outcome(), before)
        assert run.optimizer.param_groups[0]["lr"] == 0.1

    doing = until_it_succeeds(cupy, partial(run.optimizer.load_state_dict, saved), unchanged, most=20)
    assert all(text.startswith("a copy of float32") for text in doing)
    assert doing
    assert run.optimizer.param_groups[0]["lr"] == 0.7


@some
def test_a_device_that_is_lost_leaves_all_old_or_all_new(cupy, make):
    """What lies on a real one is lost as well. The stand-in's comes back, so that one sees what there was."""
    if not hasattr(cupy, "machine"):
        pytest.skip("no other device comes back")
    twin = Run(make)
    twin.step()
    old = twin.outcome()
    twin.step()
    new, found = twin.outcome(), set()
    for n in range(1, 300):
        run = Run(make)
        run.step()
        run.gradients()
        cupy.machine.fail_launch(n)
        try:
            run.optimizer.step()
        except DeviceError:
            cupy.machine.recover()
            outcome = run.outcome()
            found.add((is_same(outcome, old), is_same(outcome, new)))
        else:
            cupy.machine.recover()
            break
    assert found == {(True, False), (False, True)}
    assert is_same(run.outcome(), new)


@some
def test_a_gradient_that_is_elsewhere(cupy, make):
    run = Run(make)
    run.gradients()
    before = run.outcome()
    run.params[3]._source.grad = np.ones((2, 2), np.float32)  # Tensor.grad would refuse it
    with pytest.raises(DeviceError, match=r"\.step: .*'cuda:0'.*'cpu'"):
        run.optimizer.step()
    assert_same(run.outcome(), before)
