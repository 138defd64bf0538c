"""detect_anomaly: the operation that made the first nan or infinity, and the user's line that called it."""

import asyncio
import gc
import re
import threading
from pathlib import Path

import numpy as np
import pytest
import strict_cupy

import tinynorm as tn
from tinynorm import anomaly
from tinynorm.errors import AnomalyError
from tinynorm.watch import watching

F = tn.functional
LINES = Path(__file__).read_text(encoding="utf-8").splitlines()
BIG = np.float32(3e38)


@pytest.fixture(autouse=True)
def quiet():
    """NumPy's warnings come as ever, which one test shows; the others look at the error."""
    with np.errstate(all="ignore"):
        yield
    assert watching() is None


def here(mark):
    """What an error says of the line of this file that ends in the comment."""
    (number,) = (i for i, line in enumerate(LINES, 1) if line.endswith(f"  # {mark}"))
    return f"{__file__}:{number}: {LINES[number - 1].strip()}"


def caught(run):
    with tn.detect_anomaly(), pytest.raises(AnomalyError) as found:
        run()
    return str(found.value)


def quietly(function, *arguments):
    """In a thread, which begins with NumPy's own settings."""
    with np.errstate(all="ignore"):
        return function(*arguments)


def leaf(*values, dtype=np.float32):
    return tn.tensor(np.array(values, dtype), requires_grad=True)


# Forward


FORWARD = {
    "divide": lambda: leaf(1.0, 0.0) / [1.0, 0.0],
    "log": lambda: tn.log([1.0, 0.0]),
    "sqrt": lambda: tn.sqrt([4.0, -1.0]),
    "power": lambda: leaf(0.0, 1.0) ** -1.0,
    "exp": lambda: tn.exp([1000.0, 0.0]),
    "multiply": lambda: leaf(BIG) * 10.0,
    "sum": lambda: leaf(BIG, BIG).sum(),
    "matmul": lambda: leaf(BIG, BIG) @ [1.0, 1.0],
    "linear": lambda: F.linear(leaf(BIG, BIG), [[1.0, 1.0]]),
    "mse_loss": lambda: F.mse_loss([1e30], [-1e30]),
    "astype": lambda: tn.tensor(np.array([1e300])).astype(np.float32),
    "log1p": lambda: tn.log1p([-1.0]),
}


@pytest.mark.parametrize("name", FORWARD)
@pytest.mark.parametrize("kernels", [True, False], ids=["kernels", "formulas"])
def test_what_a_forward_makes_is_found(name, kernels):
    if kernels:
        message = caught(FORWARD[name])
    else:
        with tn.formulas_only():
            message = caught(FORWARD[name])
    assert message.startswith(f"{name}: makes ")
    (line,) = (f"{__file__}:{i}: {text.strip()}" for i, text in enumerate(LINES, 1) if f'    "{name}": lambda' in text)
    assert line in message


def test_the_first_operation_is_the_one_that_is_named():
    def run():
        x = leaf(4.0, 0.0)
        y = tn.sqrt(x) + 1.0
        z = 1.0 / (y - 1.0)  # the first
        return tn.log(z - z)

    message = caught(run)
    assert message.startswith("divide: makes inf from finite input, in 1 of the 2 elements of its result, at\n")
    assert here("the first") in message
    assert re.search("clip, where or an eps", message)


def test_inside_a_function_of_the_librarys_it_is_the_line_that_called_it():
    target = np.array([0, 1])
    model = tn.nn.Sequential(tn.nn.Linear(2, 2, rng=0), tn.nn.ReLU())
    model[0].weight.data[...] = BIG

    def run():
        out = model(tn.tensor([[1.0, 2.0], [3.0, 4.0]]))  # a module of the library's
        return F.cross_entropy(out, target)

    assert here("a module of the library's") in caught(run)


def test_a_line_of_several_is_that_of_the_call():
    def run():
        return (
            tn.tensor([1.0])
            + tn.log([0.0])  # amid an expression
            + tn.tensor([2.0])
        )

    assert here("amid an expression") in caught(run)


def test_it_is_found_on_constants_and_under_no_grad():
    with tn.no_grad():
        assert "log" in caught(lambda: tn.log(leaf(0.0)))
    assert "log" in caught(lambda: tn.log(0.0))


def test_float16_that_overflows_when_the_result_is_rounded():
    x = tn.tensor(np.array([300.0], np.float16))
    assert caught(lambda: x * x).startswith("multiply: makes inf")
    message = caught(lambda: F.layer_norm(np.array([[1.0, 2.0]], np.float16), 2, np.full(2, 65504.0, np.float16) * 1.0,
                                          np.full(2, 65504.0, np.float16)))  # fmt: skip
    assert message.startswith("layer_norm: makes inf")


def test_an_operation_of_the_users_own():
    @tn.op("reciprocal")
    def reciprocal(xp, x):
        return 1.0 / x, x

    @reciprocal.backward
    def _(xp, dy, x):
        return xp.where(x > 1.0, xp.nan, -dy / (x * x))

    message = caught(lambda: reciprocal(leaf(0.0)))  # the operation of my own
    assert message.startswith("reciprocal: makes inf")
    assert here("the operation of my own") in message
    assert "backward: reciprocal: makes nan" in caught(lambda: reciprocal(leaf(2.0)).backward([0.5]))


# What is no anomaly


@pytest.mark.parametrize(
    "run",
    [
        lambda: F.softmax(leaf(1.0, -np.inf, 2.0)).backward([0.3, 0.1, -0.7]),
        lambda: F.cross_entropy(tn.tensor([[1.0, -np.inf, 2.0]], requires_grad=True), [0], [1.0, 2.0, 3.0]).backward(),
        lambda: F.cross_entropy(tn.tensor([[1.0, -np.inf]], requires_grad=True), [1]).backward(),
        lambda: (leaf(np.inf) - np.inf).backward([1.0]),
        lambda: (leaf(np.nan, 1.0) * leaf(0.0, 2.0)).sum().backward(),
        lambda: tn.where(leaf(1.0) > 2.0, leaf(1.0), -np.inf) * 0.0,
        lambda: tn.maximum(leaf(1.0), float("inf")),
        lambda: tn.exp([np.inf]),
        lambda: tn.log(leaf(2.0)).backward([np.inf]),
        lambda: (leaf(2.0) * 3.0 + leaf(1.0) * 0.0).backward(np.array([np.nan], np.float32)),
        lambda: F.rms_norm(leaf(0.0, 0.0), 2, eps=0.0).backward([1.0, 2.0]),
        lambda: F.rms_norm(leaf(1e30, 2e30), 2).backward([1.0, 2.0]),
        lambda: tn.grad(F.rms_norm(leaf(0.0, 0.0), 2, eps=0.0)[0], leaf(1.0), create_graph=True),
        lambda: tn.stack([leaf(np.inf), leaf(1.0)]).sum() + tn.tensor([1, 2]),
    ],
)  # fmt: skip
def test_what_came_in_amiss_or_comes_out_finite_is_none(run):
    with tn.detect_anomaly():
        run()


def test_formulas_on_tensors_may_make_infinities_on_the_way():
    """Where rows are mended, 1 / 0 is made and then not chosen: on arrays nobody sees that, so neither on Tensors."""
    x = tn.tensor([[0.0, 0.0], [1e-30, 2e-30]], requires_grad=True)
    with tn.detect_anomaly():
        (g,) = tn.grad(F.rms_norm(x, 2, eps=0.0)[1, 0], x, create_graph=True)
    assert np.isfinite(g.numpy()).all()


def test_training_without_a_fault_passes_and_gives_the_same_bits():
    def weights(detecting):
        model = tn.nn.PreNormMLP(6, 8, 2, 3, rng=0)
        optimizer, rng = tn.optim.AdamW(model, lr=0.01), np.random.default_rng(1)
        for _ in range(3):
            x, y = rng.normal(size=(5, 6)).astype(np.float32), rng.integers(0, 3, 5)
            optimizer.zero_grad()
            if detecting:
                with tn.detect_anomaly():
                    F.cross_entropy(model(x), y).backward()
            else:
                F.cross_entropy(model(x), y).backward()
            optimizer.step()
        return model.state_dict()

    plain, watched = weights(False), weights(True)
    assert all(np.array_equal(plain[name], watched[name]) for name in plain)


# Backward


def test_a_backward_is_named_with_the_line_of_its_forward():
    def run():
        x = leaf(0.0, 1.0)
        y = x**0.5  # recorded here
        (y * 2.0).sum().backward()

    message = caught(run)
    assert message.startswith("backward: power: makes inf from finite input, in 1 of the 2 elements of the gradient of")
    assert here("recorded here") in message


BACKWARD = {
    "power": (lambda: leaf(0.0) ** 0.5, [1.0]),
    "divide": (lambda: 1.0 / leaf(1e-30), [1.0]),
    "multiply": (lambda: leaf(1.0) * BIG, [10.0]),
    "log": (lambda: tn.log(leaf(1e-30)), [1e30]),
    "exp": (lambda: tn.exp(leaf(80.0)), [1e30]),
    "matmul": (lambda: leaf(1.0, 1.0) @ tn.tensor([[BIG, BIG], [1.0, 1.0]]), [1.0, 1.0]),
    "prod": (lambda: tn.prod(tn.tensor([1e-30, 1e30, 1e30], requires_grad=True)), 1.0),
}


@pytest.mark.parametrize("name", BACKWARD)
@pytest.mark.parametrize("create_graph", [False, True])
def test_what_a_backward_makes_is_found(name, create_graph):
    make, dy = BACKWARD[name]
    (line,) = (f"{__file__}:{i}: {text.strip()}" for i, text in enumerate(LINES, 1) if f'    "{name}": (lambda' in text)
    with tn.detect_anomaly():
        y, dy = make(), np.array(dy, np.float32)
        (source,) = [s for s in y._source.sources if s is not None]
        x = tn.Tensor._wrap(np.zeros(source.shape, source.dtype), None, source)
        with pytest.raises(AnomalyError) as found:
            tn.grad(y, x, dy, create_graph=True) if create_graph else y.backward(dy)
    assert re.match(f"backward: {name}: makes -?inf", str(found.value))
    assert line in str(found.value)
    assert source.grad is None


def test_the_second_derivative_is_named_with_the_line_that_took_the_first():
    def run():
        x = leaf(0.0, 1.0, dtype=np.float64)
        (slope,) = tn.grad((x**1.5).sum(), x, create_graph=True)  # the first derivative
        slope.sum().backward()

    message = caught(run)
    assert message.startswith("backward: power: makes inf")
    assert here("the first derivative") in message


def test_gradients_that_overflow_where_they_meet():
    def run():
        x = leaf(0.1)
        h = x * 1.0
        y = h * 2e38 + h * 2.5e38  # two that meet
        return y.backward([1.0])

    message = caught(run)
    assert message.startswith("backward: finite gradients that meet at the result of multiply add up to inf")
    assert here("two that meet") in message
    x = leaf(2e38)
    assert "that meet at a leaf of shape (1,) add up to inf" in caught(lambda: (x + x).backward([BIG]))
    assert x.grad is None


def test_a_gradient_that_overflows_in_grad():
    def run():
        x = leaf(1.0)
        x.grad = np.array([BIG])
        (x * 2e38).backward([1.0])  # added to grad

    message = caught(run)
    assert "when it is added to the grad that is there" in message
    assert here("added to grad") in message


def test_a_gradient_that_overflows_when_it_is_rounded_to_float16():
    x = tn.tensor(np.array([1.0], np.float16), requires_grad=True)

    def run(x=x):
        return (x * 60000.0).astype(np.float32) * 10.0

    message = caught(lambda: run().backward([1.0]))  # rounded at the end
    assert "a finite gradient" in message.replace("the finite", "a finite")
    assert "rounded to float16" in message
    assert here("rounded at the end") in message
    assert x.grad is None
    assert "rounded to float16" in caught(lambda: tn.grad(run(), x))


def test_what_was_recorded_outside_is_judged_by_what_it_kept():
    x, bad = leaf(0.0, 4.0), leaf(np.inf, 1.0)
    y, z = (x**0.5).sum(), (bad * 2.0 * leaf(1.0, 1.0)).sum()
    message = caught(y.backward)
    assert "backward: power: makes inf" in message
    assert "a line that is not known" in message
    with tn.detect_anomaly():
        z.backward()


@pytest.mark.parametrize("in_place", [True, False])
def test_a_step_that_makes_an_infinity_of_a_parameter(in_place):
    w, fine = leaf(1.0, -1e38), leaf(np.inf)
    optimizer = tn.optim.SGD([{"params": [fine]}, {"params": [w]}], lr=3.0)
    w.grad, fine.grad = np.array([1.0, 3e38], np.float32), np.array([1.0], np.float32)

    def run():
        optimizer.step()  # too large a step

    if in_place:
        message = caught(run)
    else:
        with tn.formulas_only():
            message = caught(run)
    assert message.startswith("SGD.step: makes -inf from a finite gradient, in 1 of the 2 elements of a parameter of")
    assert "group 1" in message
    assert here("too large a step") in message
    with tn.detect_anomaly():
        run()


def test_on_a_device(monkeypatch):
    strict_cupy.install(monkeypatch)

    def run():
        x = tn.tensor([0.0, 4.0], device="cuda:1", requires_grad=True)
        y = x**0.5  # on the device
        z = y.sum()
        z.backward()

    message = caught(run)
    assert message.startswith("backward: power: makes inf from finite input, in 1 of the 2 elements")
    assert here("on the device") in message
    assert "divide" in caught(lambda: tn.tensor([1.0], device="cuda:1") / 0.0)


# The context


def test_nothing_is_looked_at_before_and_after():
    tn.log([0.0])
    with pytest.raises(AnomalyError), tn.detect_anomaly():
        tn.log([0.0])
    tn.log([0.0])


def test_nested_and_as_a_decorator():
    @tn.detect_anomaly()
    def inner(x):
        return tn.log(x) if x[0].item() < 1.0 else inner(x / x - 1.0)

    with pytest.raises(AnomalyError, match="log"):
        inner(tn.tensor([2.0]))
    with tn.detect_anomaly():
        with tn.detect_anomaly(), pytest.raises(AnomalyError):
            tn.log([0.0])
        with pytest.raises(AnomalyError, match="sqrt"):
            tn.sqrt([-1.0])
    tn.log([0.0])
    with pytest.raises(tn.errors.DTypeError, match="detect_anomaly"):

        @tn.detect_anomaly()
        def later():
            yield


def test_it_holds_for_its_own_thread_and_task():
    results = []
    with tn.detect_anomaly():
        thread = threading.Thread(target=lambda: results.append(quietly(tn.log, [0.0])))
        thread.start()
        thread.join()
    assert len(results) == 1

    async def one(ready, go):
        with tn.detect_anomaly():
            ready.set()
            await go.wait()

    async def both():
        ready, go = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(one(ready, go))
        await ready.wait()
        results.append(tn.log([0.0]))
        go.set()
        await task

    asyncio.run(both())
    assert len(results) == 2


def test_numpy_warns_as_ever_and_no_more_than_that():
    with np.errstate(divide="warn", over="warn"):
        with pytest.warns(RuntimeWarning, match="divide by zero") as warned:
            assert "log" in caught(lambda: tn.log(np.zeros(1)))
        assert len(warned) == 1
        x = leaf(0.1)
        with (
            tn.detect_anomaly(),
            pytest.raises(AnomalyError, match="meet"),
        ):  # the look ahead at the sum warns of nothing
            (x * 2e38 + x * 2.5e38).backward([1.0])


def test_other_errors_pass_and_nothing_is_kept():
    with pytest.raises(tn.errors.ShapeError), tn.detect_anomaly():
        leaf(1.0, 2.0) + leaf(1.0, 2.0, 3.0)
    gc.collect()
    before = len(anomaly._sites)
    with tn.detect_anomaly():
        y = leaf(1.0) * 2.0 + 1.0
        assert len(anomaly._sites) == before + 2
    del y
    assert len(anomaly._sites) == before


def test_a_failed_backward_leaves_no_half_done_gradient():
    a, b = leaf(1.0), leaf(0.0)
    with tn.detect_anomaly():
        loss = (a * 2.0 + b**0.5).sum()
        with pytest.raises(AnomalyError):
            loss.backward()
    assert a.grad is None
    assert b.grad is None


def test_an_option_that_is_infinite_makes_no_anomaly():
    @tn.op("scale")
    def scale(xp, a, *, k):
        return a * k, k

    @scale.backward
    def _(xp, dy, k):
        return dy * k

    x = tn.tensor([1.0, 2.0], requires_grad=True)
    with tn.detect_anomaly():
        y = scale(x, k=float("inf"))
        y.backward([1.0, 1.0])
    assert np.isinf(x.grad).all()
