"""The tape: in what order it is walked, what it frees, what it keeps apart, and what it leaves alone."""

import asyncio
import copy
import gc
import threading
import weakref
from contextlib import contextmanager

import numpy as np
import pytest

import tinynorm as tn
from tinynorm import graph
from tinynorm.memory import Guard, cached_arrays
from tinynorm.testing.cases import CASES


@pytest.fixture
def rng():
    return np.random.default_rng(20240502)


def leaf(array):
    return tn.tensor(array, requires_grad=True)


@contextmanager
def no_collector():
    """Only reference counts free what is dropped inside."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Probe:
    """An operation, sin, that keeps a watch on its caches and counts its backwards."""

    def __init__(self):
        self.caches = []
        self.alive = []  # at each backward: which of the caches were still there

        @tn.op("probe")
        def run(xp, x):
            slope = xp.cos(x)
            self.caches.append(weakref.ref(slope))
            return xp.sin(x), (slope,)

        @run.backward
        def _(xp, dy, cache):
            self.alive.append(self.left())
            return dy * cache[0]

        self.run = run

    def left(self):
        return [cache() is not None for cache in self.caches]


# The walk


def test_a_diamond(rng):
    x = leaf(3.0)
    b = 2.0 * x
    c = b + 1.0
    d = 2.0 * b * c + c  # 2·2x(2x + 1) + 2x + 1, whose slope is 16x + 6
    d.backward()
    assert x.grad == 54.0


def test_paths_of_unequal_length(rng):
    x, g = rng.normal(size=4), rng.normal(size=4)
    t = leaf(x)
    a = t * t
    b = a * t
    c = b * a + t  # x⁵ + x
    y = c * a + b  # x⁷ + 2x³
    y.backward(g)
    np.testing.assert_allclose(t.grad, g * (7 * x**6 + 6 * x**2), rtol=1e-12)


def test_each_node_is_visited_once():
    probe = Probe()
    x = leaf(np.array([0.3, -0.2]))
    shared = probe.run(x)
    y = shared
    for _ in range(40):  # 2⁴⁰ paths
        y = y + y
    y.sum().backward()
    assert len(probe.alive) == 1
    np.testing.assert_allclose(x.grad, 2.0**40 * np.cos([0.3, -0.2]), rtol=1e-14)


def test_each_node_of_a_dense_graph_is_visited_once_and_after_all_that_use_it(rng):
    """Every result uses all those before it; the gradient by the chain rule, from the last one back."""
    probe = Probe()
    x = rng.normal(size=3)
    t = leaf(x)
    tensors, values = [t], [x]
    for _ in range(12):
        tensors.append(probe.run(sum(tensors)))
        values.append(np.sin(sum(values)))
    g = rng.normal(size=3)
    tensors[-1].backward(g)
    assert len(probe.alive) == 12
    gradients = [np.zeros(3) for _ in values]
    gradients[-1] = g
    for k in reversed(range(1, 13)):
        for earlier in range(k):
            gradients[earlier] = gradients[earlier] + gradients[k] * np.cos(sum(values[:k]))
    np.testing.assert_allclose(t.grad, gradients[0], rtol=1e-11)


@pytest.mark.parametrize("walked", [False, True])
def test_a_deep_graph(walked):
    """Forward, backward, and dropping what is left of it."""
    n = 20_000
    x = leaf(np.array([1.0, -2.0]))
    y = x
    for _ in range(n):
        y = y * 1.0001
    if walked:
        y.backward(np.array([1.0, 3.0]), retain_graph=True)
        np.testing.assert_allclose(x.grad, np.array([1.0, 3.0]) * 1.0001**n, rtol=1e-10)
        x.grad = None
        y.backward(np.array([1.0, 3.0]))
        np.testing.assert_allclose(x.grad, np.array([1.0, 3.0]) * 1.0001**n, rtol=1e-10)
    with no_collector():
        node = weakref.ref(y._source)
        del y
        assert node() is None


def test_a_wide_graph():
    x = leaf(np.array(2.0))
    total = sum(x * float(k) for k in range(5000))
    total.backward()
    assert x.grad == sum(range(5000))


# Leaves accumulate


def test_leaves_accumulate():
    x = leaf([6.0])
    (x * x).backward()
    assert x.grad.tolist() == [12.0]
    (x * x).backward()
    assert x.grad.tolist() == [24.0]
    (x * 3.0).backward()
    assert x.grad.tolist() == [27.0]


def test_n_backwards_of_a_loss_divided_by_n_are_one_of_the_whole(rng):
    x, w0 = rng.normal(size=(8, 3)), rng.normal(size=3)
    whole, parts = leaf(w0), leaf(w0)
    ((x @ whole) ** 2).mean().backward()
    for rows in np.split(x, 4):
        (((rows @ parts) ** 2).mean() / 4).backward()
    np.testing.assert_allclose(whole.grad, 2 * x.T @ (x @ w0) / 8, rtol=1e-12)
    np.testing.assert_allclose(parts.grad, whole.grad, rtol=1e-12)


def test_one_leaf_in_several_places(rng):
    """A tied weight: its gradient is the sum over its uses."""
    w0, x, g = rng.normal(size=(3, 3)), rng.normal(size=(5, 3)), rng.normal(size=(5, 3))
    w = leaf(w0)
    y = tn.functional.linear(tn.functional.linear(x, w), w) * w.sum() + w[1]
    y.backward(g)
    h = x @ w0.T
    out = h @ w0.T
    s = w0.sum()
    expected = (g * s).T @ h + (g * s @ w0).T @ x + np.sum(g * out)
    expected[1] += g.sum(axis=0)
    np.testing.assert_allclose(w.grad, expected, rtol=1e-11)


def test_one_operand_twice(rng):
    x, g = rng.normal(size=3), rng.normal(size=3)
    for function, gradient in [
        (lambda t: t * t, 2 * g * x),
        (lambda t: t + t, 2 * g),
        (lambda t: t - t, 0 * g),
        (lambda t: t / t, 0 * g),
        (lambda t: tn.maximum(t, t), g),
        (lambda t: tn.stack([t, t])[0] + t, 2 * g),
    ]:
        t = leaf(x)
        function(t).backward(g)
        np.testing.assert_allclose(t.grad, gradient, atol=1e-14)


# Backward's arguments


def test_backward_of_one_element_starts_from_one():
    for shape in [(), (1,), (1, 1, 1)]:
        x = leaf(np.full(shape, 3.0))
        (x * x).backward()
        assert x.grad.shape == shape
        assert x.grad.item() == 6.0


@pytest.mark.parametrize(
    "give",
    [
        lambda g: g, lambda g: g.tolist(), tn.tensor, leaf, np.asfortranarray, lambda g: g[::-1][::-1],
        lambda g: g.astype(">f8"),
    ],
    ids=["array", "list", "Tensor", "Tensor with gradient", "Fortran", "view", "byte-swapped"],
)  # fmt: skip
def test_backward_takes_a_gradient(rng, give):
    x, g = rng.normal(size=(2, 3)), rng.integers(-3, 4, size=(2, 3)) / 4  # exact in float32, as lists become
    t = leaf(x)
    (t * t).backward(give(g))
    np.testing.assert_allclose(t.grad, 2 * g * x, rtol=1e-14)


def test_backward_takes_integers_and_numbers():
    x = leaf([1.0, 2.0])
    (x * x).backward(np.array([1, 10]))
    assert x.grad.tolist() == [2.0, 40.0]
    s = leaf(3.0)
    (s * s).backward(2)
    assert s.grad == 12.0
    (s * s).backward(gradient=np.float64(0.5))
    assert s.grad == 15.0
    assert s.grad.dtype == np.float32


def test_backward_on_a_leaf():
    x = leaf([1.0, 2.0])
    x.backward(np.array([3.0, 4.0]))
    x.backward(np.array([3.0, 4.0]))
    assert x.grad.tolist() == [6.0, 8.0]


@pytest.mark.parametrize("shape", [(2, 3), (0,), (2, 1), (4,)])
def test_backward_on_many_elements_asks_for_a_gradient(shape):
    y = leaf(np.ones(shape)) * 2.0
    with pytest.raises(tn.errors.ShapeError, match=r"backward.*gradient="):
        y.backward()


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 1), (1, 2, 3), (3, 2), (2, 4)])
def test_a_gradient_of_another_shape_is_refused_also_where_it_would_broadcast(shape):
    x = leaf(np.ones((2, 3)))
    with pytest.raises(tn.errors.ShapeError, match=r"backward: gradient has shape .*\(2, 3\)"):
        (x * 2.0).backward(np.ones(shape))
    assert x.grad is None


def test_backward_without_a_graph():
    with tn.no_grad():
        unrecorded = leaf([1.0]) * 2.0
    for t in (tn.tensor(1.0), leaf(1.0).detach(), leaf([1.0, 2.0]) > 1.0, unrecorded, (leaf(2.0) * 1.0).astype(int)):
        with pytest.raises(tn.errors.GraphError, match=r"no graph.*requires_grad=True"):
            t.backward()


# Twice


def test_a_second_backward_says_how_to_keep_the_graph():
    x = leaf([1.0, 2.0])
    for loss in ((x * x).sum(), (x + 1.0).sum(), x.reshape(2, 1).sum()):
        loss.backward()
        before = x.grad
        with pytest.raises(tn.errors.GraphError, match="retain_graph=True"):
            loss.backward()
        assert x.grad is before


def test_a_part_that_two_losses_share_is_freed_by_the_first():
    x, w = leaf([1.0, 2.0]), leaf([1.0, 1.0])
    shared = x * x
    first, second = shared.sum(), (shared * w).sum()
    first.backward()
    with pytest.raises(tn.errors.GraphError, match=r"multiply.*retain_graph=True"):
        second.backward()
    assert x.grad.tolist() == [2.0, 4.0]
    assert w.grad is None


def test_retain_graph_keeps_it(rng):
    x, g = rng.normal(size=4), rng.normal(size=4)
    t = leaf(x)
    y = tn.exp(tn.sin(t) * t) + t
    s, c = np.sin(x), np.cos(x)
    expected = g * (np.exp(s * x) * (c * x + s) + 1)
    for _ in range(3):
        t.grad = None
        y.backward(g, retain_graph=True)
        np.testing.assert_allclose(t.grad, expected, rtol=1e-12)
    y.backward(g)
    np.testing.assert_allclose(t.grad, 2 * expected, rtol=1e-12)
    with pytest.raises(tn.errors.GraphError, match="retain_graph=True"):
        y.backward(g)


def test_shared_parts_can_be_kept_for_a_second_loss():
    x = leaf([1.0, 2.0])
    shared = x * x
    shared.sum().backward(retain_graph=True)
    (shared * 10.0).sum().backward()
    assert x.grad.tolist() == [22.0, 44.0]


# Memory


def test_memory_is_freed_as_backward_goes():
    probe = Probe()
    x = leaf([0.1, 0.2])
    with no_collector():
        loss = probe.run(probe.run(probe.run(x))).sum()
        assert probe.left() == [True, True, True]
        loss.backward()
    assert probe.alive == [[True, True, True], [True, True, False], [True, False, False]]
    assert probe.left() == [False, False, False]  # though the loss is still held


@pytest.mark.parametrize("walk", [lambda y, x: y.backward(), lambda y, x: tn.grad(y, x)], ids=["backward", "grad"])
def test_a_cotangent_is_dropped_once_it_was_handed_on(walk):
    cotangents, alive = [], []

    @tn.op("watch")
    def watch(xp, x):
        return x * 2.0, None

    @watch.backward
    def _(xp, dy, cache):
        alive.append([c() is not None for c in cotangents])
        cotangents.append(weakref.ref(dy))
        return dy * 2.0

    x = leaf(np.ones(3))
    with no_collector():
        walk(watch(watch(watch(x))).sum(), x)
    assert alive == [[], [False], [False, False]]


def test_memory_is_freed_although_the_intermediate_results_are_held():
    probe = Probe()
    first = probe.run(leaf([0.1, 0.2]))
    second = probe.run(first)
    second.sum().backward()
    assert probe.left() == [False, False]
    assert np.allclose(second.data, np.sin(np.sin([0.1, 0.2])))


def test_retain_graph_frees_nothing():
    probe = Probe()
    loss = probe.run(probe.run(leaf([0.1]))).sum()
    loss.backward(retain_graph=True)
    assert probe.left() == [True, True]
    loss.backward()
    assert probe.left() == [False, False]


def end_without_backward(loss):
    pass


def end_with_backward(loss):
    loss.backward()


def end_with_two_backwards(loss):
    loss.backward(retain_graph=True)
    loss.backward(retain_graph=True)


def end_refused(loss):
    with pytest.raises(tn.errors.ShapeError):
        loss.backward(np.ones(3))


@pytest.mark.parametrize("end", [end_without_backward, end_with_backward, end_with_two_backwards, end_refused])
def test_a_dropped_loss_frees_its_graph_at_once(end):
    probe = Probe()
    x = leaf([0.1, 0.2])
    with no_collector():
        h = probe.run(x)
        loss = (probe.run(h) * h + h.data).sum()  # h has been handed out, too
        nodes = [weakref.ref(h._source), weakref.ref(loss._source)]
        tensors = [weakref.ref(h), weakref.ref(loss)]
        end(loss)
        del h, loss
        assert [node() for node in nodes] == [None, None]
        assert [tensor() for tensor in tensors] == [None, None]
        assert probe.left() == [False, False]


def test_training_leaves_nothing_to_the_garbage_collector(rng):
    x = rng.normal(size=(6, 4)).astype(np.float32)

    def step():
        model = tn.nn.PreNormMLP(4, 8, 2, 3, rng=0)
        loss = tn.functional.cross_entropy(model(x), np.zeros(6, int))
        loss.backward()
        tn.functional.cross_entropy(model(x), np.zeros(6, int))  # dropped without a backward
        return [weakref.ref(loss._source), weakref.ref(loss), weakref.ref(model), weakref.ref(model.head.weight)]

    step()  # once first, for whatever is imported or made late
    with no_collector():
        assert [found() for found in step()] == [None] * 4
        assert gc.collect() == 0


def test_a_graph_keeps_no_result_that_no_backward_needs():
    """Constants and leaves it keeps, to run the forwards again; results can be computed again."""
    x = leaf(np.ones(3))
    with no_collector():
        constant, result = tn.tensor(np.ones(3)), x * 2.0
        kept, dropped = weakref.ref(constant._data), weakref.ref(result._data)
        y = result + constant + x.reshape(3)  # addition needs no operand
        del constant, result
        assert dropped() is None
        assert kept() is not None
        (g,) = tn.grad(y.sum(), x, create_graph=True)
        assert g.numpy().tolist() == [3.0, 3.0, 3.0]
        y.sum().backward()
        assert kept() is None
    assert x.grad.tolist() == [3.0, 3.0, 3.0]


def test_a_node_knows_what_it_ran_on():
    """Numbers and options as they are, arrays of leaves and constants under guard, nothing of another result."""
    x, c = leaf(np.ones((2, 3))), np.ones(3)
    h = x * c
    y = tn.clip(tn.sum(h, axis=1), None, 5.0)
    (made, total, clipped) = graph.topological_order(y._source)[::-1]
    assert [type(value) for value in made.inputs] == [Guard, Guard]
    assert made.inputs[0].array is x._data
    assert total.inputs == (None,)
    assert total.params == {"axis": 1, "keepdims": False}
    assert clipped.inputs == (None, None, 5.0)
    assert graph.replay(y._source, {x._source: np.full((2, 3), 2.0)}).tolist() == [5.0, 5.0]
    y.sum().backward()
    assert made.inputs == total.inputs == clipped.inputs == ()


def test_the_order_to_run_again_is_found_only_where_nothing_changed():
    x = leaf(np.ones(3))
    h = x + 1.0
    y, z = h * h, h - 2.0
    order = graph.inputs_first(y._source, z._source)
    assert len(order) == len(set(order)) == 3
    assert order[0] is h._source
    x.data[0] = 2.0
    with pytest.raises(tn.errors.GraphError, match="add still needs an array"):
        graph.inputs_first(y._source)
    y.sum().backward()  # whose formulas need h alone
    assert x.grad.tolist() == [4.0, 4.0, 4.0]
    with pytest.raises(tn.errors.GraphError, match="freed"):
        graph.inputs_first(z._source)


def test_inside_of_a_closed_part_everything_is_recorded_and_nothing_leaves():
    x = leaf([1.0, 2.0])
    with graph.closed():
        with tn.no_grad():
            assert (x * x).requires_grad
        assert (x > 1.0).numpy().tolist() == [False, True]
        assert bool((x > 1.0)[1])
        for leave in (
            lambda: x.data, lambda: x.numpy(), lambda: x[0].item(), lambda: float(x[0]), lambda: np.asarray(x),
            lambda: x.detach(), lambda: tn.tensor(x), lambda: tn.Tensor(x), lambda: tn.nn.Parameter(x),
            lambda: copy.deepcopy(x), lambda: np.array(x * x), lambda: bool(x[0]), lambda: f"{x[0]:.2f}",
        ):  # fmt: skip
            with pytest.raises(tn.errors.GraphError, match="plain numbers have no history"):
                leave()
        assert copy.copy(x).requires_grad
    assert x.numpy().tolist() == [1.0, 2.0]
    with pytest.raises(KeyError), graph.closed():
        raise KeyError
    assert not graph.is_closed()


def test_nothing_is_kept_where_no_gradient_is_wanted():
    probe = Probe()
    constant = probe.run(np.ones(3))
    assert probe.left() == [False]
    with tn.no_grad():
        y = probe.run(leaf([1.0, 2.0]))
        assert probe.left() == [False, False]
    assert constant.requires_grad is y.requires_grad is False


# no_grad


def test_no_grad_as_a_context():
    x = leaf([1.0, 2.0])
    with tn.no_grad():
        y = x * 2.0
        assert y.requires_grad is False
        assert (x @ x).requires_grad is False
        assert tn.functional.rms_norm(x, 2).requires_grad is False
        made = tn.tensor([1.0], requires_grad=True)
        assert made.requires_grad
    assert y.data.tolist() == [2.0, 4.0]
    assert (x * 2.0).requires_grad
    (made * 3.0).backward()
    assert made.grad.tolist() == [3.0]


def test_no_grad_as_a_decorator():
    x = leaf([1.0, 2.0])

    @tn.no_grad()
    def double(t, *, by=2.0):
        """Twice."""
        return t * by

    for _ in range(2):
        assert double(x).requires_grad is False
        assert double(x, by=3.0).data.tolist() == [3.0, 6.0]
        assert (x * 2.0).requires_grad
    assert double.__name__ == "double"
    assert double.__doc__ == "Twice."


def test_no_grad_as_a_decorator_of_a_recursion():
    @tn.no_grad()
    def power(t, n):
        return t if n == 1 else t * power(t, n - 1)

    x = leaf([2.0])
    assert power(x, 5).data.tolist() == [32.0]
    assert power(x, 5).requires_grad is False
    assert (x * x).requires_grad


def test_no_grad_inside_no_grad():
    x = leaf([1.0])
    with tn.no_grad():
        with tn.no_grad():
            assert not (x * x).requires_grad
        assert not (x * x).requires_grad
    assert (x * x).requires_grad


def test_recording_resumes_after_an_exception():
    x = leaf([1.0])

    @tn.no_grad()
    def fail():
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail()
    assert (x * x).requires_grad
    with pytest.raises(tn.errors.ShapeError), tn.no_grad():
        x @ tn.tensor([1.0, 2.0])
    assert (x * x).requires_grad


def test_a_graph_can_be_walked_under_no_grad():
    x = leaf([1.0, 2.0])
    loss = (x * x).sum()
    with tn.no_grad():
        loss.backward()
    assert x.grad.tolist() == [2.0, 4.0]


def test_threads_do_not_disturb_each_other():
    x = leaf([1.0])
    inside, done = threading.Event(), threading.Event()
    seen = {}

    def quiet():
        with tn.no_grad():
            inside.set()
            done.wait(10)
            seen["quiet"] = (x * x).requires_grad

    def recording():
        inside.wait(10)
        seen["recording"] = (x * x).requires_grad
        done.set()

    threads = [threading.Thread(target=f) for f in (quiet, recording)]
    for thread in threads:
        thread.start()
    inside.wait(10)
    seen["main"] = (x * x).requires_grad
    for thread in threads:
        thread.join(10)
    assert seen == {"quiet": False, "recording": True, "main": True}


def test_threads_can_walk_graphs_of_their_own(rng):
    values = rng.normal(size=(8, 50))
    gradients = [None] * 8

    def work(k):
        x = leaf(values[k])
        for _ in range(20):
            x.grad = None
            (tn.exp(x) * x).sum().backward()
        gradients[k] = x.grad

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    for x, gradient in zip(values, gradients, strict=True):
        np.testing.assert_allclose(gradient, np.exp(x) * (x + 1), rtol=1e-12)


def test_tasks_do_not_disturb_each_other():
    x = leaf([1.0])

    async def quiet(turns):
        found = []
        with tn.no_grad():
            for _ in range(turns):
                await asyncio.sleep(0)
                found.append((x * x).requires_grad)
        found.append((x * x).requires_grad)
        return found

    async def recording(turns):
        found = []
        for _ in range(turns):
            await asyncio.sleep(0)
            found.append((x * x).requires_grad)
        return found

    async def main():
        return await asyncio.gather(quiet(3), recording(5), quiet(4))

    assert asyncio.run(main()) == [[False] * 3 + [True], [True] * 5, [False] * 4 + [True]]
    assert (x * x).requires_grad


def test_no_grad_decorates_a_coroutine_or_refuses_to():
    """Called, a coroutine function only makes the coroutine: a plain wrapper would be over before it runs."""
    x = leaf([1.0])

    async def evaluate():
        await asyncio.sleep(0)
        return x * x

    try:
        decorated = tn.no_grad()(evaluate)
    except tn.errors.TinynormError:
        return
    assert asyncio.run(decorated()).requires_grad is False


def test_no_grad_decorates_a_generator_or_refuses_to():
    x = leaf([1.0])

    def values():
        yield x * x

    try:
        decorated = tn.no_grad()(values)
    except tn.errors.TinynormError:
        return
    assert [y.requires_grad for y in decorated()] == [False]


# Whose memory a gradient is


@tn.op("twins")
def twins(xp, a, b):
    return a + b, None


@twins.backward
def _(xp, dy, cache):
    d = 2.0 * dy
    return d, d


@tn.op("halves")
def halves(xp, a, b):
    return xp.concatenate([a, b]), a.shape[0]


@halves.backward
def _(xp, dy, n):
    d = 1.0 * dy
    return d[:n], d[n:]


@tn.op("keeper")
def keeper(xp, a, b):
    return xp.sum(a * b), (a, b)


@keeper.backward
def _(xp, dy, cache):  # right where dy is 1, and hands out the inputs themselves
    a, b = cache
    return b, a


@tn.op("keeper in a dict")
def dict_keeper(xp, a, b):
    return xp.sum(a * b), {"a": a, "b": b}


@dict_keeper.backward
def _(xp, dy, cache):
    return cache["b"], cache["a"]


TWO_LEAVES = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "add of sums": lambda a, b: a.sum() + b.sum(),
    "mean": lambda a, b: (a + b).mean(),
    "concatenate": lambda a, b: tn.concatenate([a, b]),
    "stack": lambda a, b: tn.stack([a, b]),
    "shapes": lambda a, b: (a.reshape(2, 3).T + b.reshape(2, 3).T).reshape(6),
    "views": lambda a, b: a[None] + b[::-1],
    "broadcast_to": lambda a, b: tn.broadcast_to(a, (2, 6)) + b,
    "astype": lambda a, b: a.astype(np.float64) + b.astype(np.float64),
    "where": lambda a, b: tn.where(np.arange(6) > 2, a, b),
    "clip": lambda a, b: tn.clip(a, b, None),
    "linear's bias": lambda a, b: tn.functional.linear(np.ones((1, 6)), np.ones((6, 6)), a)[0] + b,
    "layer_norm's bias": lambda a, b: tn.functional.layer_norm(a, 6, None, b),
    "itself": lambda a, b: a,
    "+a": lambda a, b: +a,
    "twins": twins,
    "halves": halves,
    "keeper": keeper,
    "keeper in a dict": dict_keeper,
}


@pytest.mark.parametrize("accumulates", [False, True], ids=["first gradient", "second gradient"])
@pytest.mark.parametrize("name", TWO_LEAVES)
def test_a_gradient_is_its_leafs_own(rng, name, accumulates):
    a, b = leaf(rng.normal(size=6)), leaf(rng.normal(size=6))
    y = TWO_LEAVES[name](a, b)
    g = rng.normal(size=y.shape)
    g_before = g.copy()
    leaves = [a] if name in ("itself", "+a") else [a, b]
    others = [g, a.data, b.data, y.data]
    if accumulates:
        for t in leaves:
            t.grad = np.zeros(6)
            others.append(t.grad)
    y.backward(g, retain_graph=True)
    np.testing.assert_array_equal(g, g_before)
    gradients = [t.grad for t in leaves]
    for k, gradient in enumerate(gradients):
        assert type(gradient) is np.ndarray
        assert gradient.flags.writeable
        assert gradient.flags.owndata
        for other in others + gradients[:k]:
            assert not np.shares_memory(gradient, other)
    # Writing to a gradient, as clipping does, must not reach a cache: the second walk gives the first one's gradient.
    expected = [gradient.copy() for gradient in gradients]
    for t in leaves:
        t.grad[...] = np.nan
        t.grad = None
    y.backward(g)
    for t, gradient in zip(leaves, expected, strict=True):
        np.testing.assert_array_equal(t.grad, gradient)


def test_accumulating_writes_to_no_array_that_someone_may_hold():
    x = leaf([1.0, 2.0])
    (x * x).sum().backward()
    held = x.grad
    (x * x).sum().backward()
    assert held.tolist() == [2.0, 4.0]
    assert x.grad.tolist() == [4.0, 8.0]
    mine = np.array([1.0, 1.0], np.float32)
    x.grad = mine
    (x * x).sum().backward()
    assert mine.tolist() == [1.0, 1.0]
    assert x.grad.tolist() == [3.0, 5.0]


def test_a_read_only_gradient_is_enough(rng):
    """Cotangents may be views of stride 0, which nobody can write to."""
    x = rng.normal(size=(2, 3))
    a, b = leaf(x), leaf(np.ones(3))
    y = a * b + b + a
    y.backward(np.broadcast_to(np.float64(2.0), (2, 3)))
    np.testing.assert_allclose(a.grad, np.full((2, 3), 4.0))
    np.testing.assert_allclose(b.grad, 2.0 * (x.sum(axis=0) + 2))
    a.grad += 1.0
    b.grad += 1.0


def test_inputs_are_never_written_to(rng):
    """All of it read-only: whatever writes, raises."""
    x, w, bias = rng.normal(size=(4, 3)), rng.normal(size=(3, 3)), rng.normal(size=3)
    for array in (x, w, bias):
        array.flags.writeable = False
    leaves = [tn.Tensor(array, requires_grad=True) for array in (x, w, bias)]
    tx, tw, tb = leaves
    h = tx + tn.functional.linear(tn.functional.layer_norm(tx, 3, tb, tb), tw, tb)
    h += tx
    loss = tn.functional.cross_entropy(tn.functional.gelu(h), [0, 1, 2, 0])
    loss.backward()
    for _ in range(2):
        (tn.functional.softmax(tx) @ tw).var().backward()
    assert all(t.grad.shape == t.shape for t in leaves)


# All or nothing


@tn.op("fragile")
def fragile(xp, x):
    return x * 1.0, None


@fragile.backward
def _(xp, dy, cache):
    raise ZeroDivisionError("from the user's formula")


@tn.op("misshapen")
def misshapen(xp, x):
    return x * 1.0, None


@misshapen.backward
def _(xp, dy, cache):
    return dy[:-1]


@pytest.mark.parametrize(
    ("bad", "error"),
    [(fragile, ZeroDivisionError), (misshapen, tn.errors.ShapeError)],
    ids=["raises", "gives a wrong shape"],
)
@pytest.mark.parametrize("order", ["first", "last"])
def test_a_backward_that_raises_leaves_no_half_done_gradient(bad, error, order):
    x, w, fresh = leaf([1.0, 2.0]), leaf([3.0, 4.0]), leaf([1.0, 1.0])
    (x * w).sum().backward()
    before = [(t.grad, t.grad.copy()) for t in (x, w)]
    good, other = (x * w) * fresh, bad(x * 2.0)
    loss = (good + other if order == "first" else other + good).sum()
    with pytest.raises(error):
        loss.backward()
    assert fresh.grad is None
    for t, (array, values) in zip((x, w), before, strict=True):
        assert t.grad is array
        np.testing.assert_array_equal(t.grad, values)


@pytest.mark.parametrize("retain_graph", [False, True])
def test_a_walk_that_is_refused_can_be_made_when_its_reason_is_gone(retain_graph):
    x, w = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    held = x.data
    loss = ((x * w) * (w * w)).sum()  # Σ x w³
    held[0] = 50.0
    with pytest.raises(tn.errors.GraphError, match="multiply"):
        loss.backward(retain_graph=retain_graph)
    assert x.grad is w.grad is None
    held[0] = 1.0
    loss.backward()
    assert x.grad.tolist() == [27.0, 64.0]
    assert w.grad.tolist() == [27.0, 96.0]


def test_a_refused_gradient_argument_leaves_the_graph_as_it_was():
    x = leaf([1.0, 2.0])
    y = x * x
    for gradient in (np.ones(3), "ab", [1j, 2], [True, False]):
        with pytest.raises(tn.errors.TinynormError):
            y.backward(gradient)
    y.backward(np.ones(2))
    assert x.grad.tolist() == [2.0, 4.0]


def test_one_no_grad_may_be_entered_again_inside_itself():
    pause, x = tn.no_grad(), leaf(np.ones(2))
    with pause:
        with pause:
            assert not (x * 2.0).requires_grad
        assert not (x * 2.0).requires_grad
    assert (x * 2.0).requires_grad


@pytest.mark.parametrize("uses", [3000, 5000])
def test_a_float16_tensor_that_is_used_often_loses_no_gradient(uses):
    """Added up in float16, ones stop at 2048. The gradient itself fits: 3000 and 5000 are float16 numbers."""
    x = tn.tensor(1.0, dtype=np.float16, requires_grad=True)
    tn.stack([x * 1.0] * 1 + [x] * (uses - 1)).sum().backward()
    assert x.grad == uses
    assert x.grad.dtype == np.float16
    y = leaf(np.float16(1.0))
    tn.stack([y * 1.0 for _ in range(uses)]).mean().backward()
    np.testing.assert_allclose(y.grad, 1.0, rtol=1e-3)


def test_an_error_in_a_users_backward_names_the_operation():
    @tn.op("clumsy")
    def clumsy(xp, x):
        return x * 2.0, x

    @clumsy.backward
    def _(xp, dy, x):
        return xp.matmul(dy, np.ones((7, 7)))

    x = leaf(np.ones(3))
    with pytest.raises(tn.errors.ArgumentError, match="backward: clumsy"):
        clumsy(x).sum().backward()
    assert x.grad is None


@pytest.mark.parametrize("name", CASES)
def test_an_operation_that_is_said_to_keep_no_arrays_keeps_none(name):
    """Its cache is not looked into, so a change of what is in there would go unnoticed."""
    case = CASES[name]
    for setting in case.always:
        inputs = case.inputs(np.random.default_rng(0), setting)
        y = case.call(*(tn.tensor(a, requires_grad=a.dtype.kind == "f") for a in inputs), **setting.options)
        if y.requires_grad:
            for node in graph.topological_order(y._source):
                assert node.op.keeps or not cached_arrays(node.cache), node.op
