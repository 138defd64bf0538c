"""Memory that is used again: never while anybody sees it, soon after nobody does, and no more of it than is bounded."""

import gc
import pickle
import sys
import threading

import numpy as np
import pytest

import tinynorm as tn
from tinynorm import nn
from tinynorm.kernels import buffers

F = tn.functional
SHAPE = (96, 256)  # of float32: blocks are kept of it, and every kernel serves it
SIZE = 96 * 256 * 4


@pytest.fixture
def rng():
    return np.random.default_rng(20240504)


@pytest.fixture(autouse=True)
def blocks(monkeypatch):
    """No blocks but those of the test."""
    monkeypatch.setattr(buffers, "_blocks", buffers._Blocks())


def address(array):
    return array.ctypes.data


# Ways to keep a tensor's numbers. Each takes a tensor that went through kernels, and its leaf, and gives a function
# that reads the numbers again.


def closure(y, x):
    return lambda: y.numpy()


def state_of_a_layer(y, x):
    layer = nn.Linear(y.shape[1], y.shape[0], bias=False)
    layer.load_state_dict({"weight": y.detach()})
    state = layer.state_dict()
    return lambda: np.asarray(state["weight"])


def reader(function):
    def make(y, x):
        kept = function(y, x)
        return lambda: np.asarray(kept)

    return make


REFERENCES = {
    "tensor": closure,
    "detached": lambda y, x: closure(y.detach(), x),
    "view": lambda y, x: closure(y[3:5], x),
    "reshaped": lambda y, x: closure(y.reshape(-1), x),
    "view of a view": lambda y, x: closure(y.T[2:, ::2], x),
    "tensor of a tensor": lambda y, x: closure(tn.as_tensor(y.data), x),
    "a result that caches it": lambda y, x: closure((y * y)[0], x),
    ".data": reader(lambda y, x: y.data),
    ".numpy()": reader(lambda y, x: y.numpy()),
    "NumPy view": reader(lambda y, x: y.data[::2]),
    "NumPy view of a view": reader(lambda y, x: y.data[::2].T.reshape(-1)[5:].view(np.uint32)),
    "one element's view": reader(lambda y, x: y.data[1, 2, ...]),
    "row in a list": lambda y, x: (lambda rows: lambda: np.stack(rows))(list(y.data)),
    "memoryview": reader(lambda y, x: memoryview(y.data)),
    "part of a memoryview": reader(lambda y, x: memoryview(y.data)[1:3]),
    "array over a memoryview": reader(lambda y, x: np.frombuffer(memoryview(y.data.reshape(-1)), np.uint8)),
    "DLPack": reader(lambda y, x: np.from_dlpack(y.data)),
    "pickle buffer": reader(lambda y, x: pickle.PickleBuffer(y.data)),
    "pickled copy": lambda y, x: closure(pickle.loads(pickle.dumps(y.detach())), x),
    "state dict": state_of_a_layer,
    ".grad": reader(lambda y, x: x.grad),
    "view of .grad": reader(lambda y, x: x.grad[1:]),
    "in a dict of a generator": lambda y, x: (lambda g: lambda: g.gi_frame.f_locals["kept"]["y"])(
        started(holding(y.data))
    ),
}


def holding(array):
    kept = {"y": array}
    yield kept


def started(generator):
    next(generator)
    return generator


def layers(rng):
    weight = tn.tensor(rng.normal(size=(SHAPE[1], SHAPE[1])).astype(np.float32) / 16, requires_grad=True)
    bias, gain = (tn.tensor(rng.normal(size=SHAPE[1]).astype(np.float32), requires_grad=True) for _ in range(2))

    def results(x):
        """What each of the kernels makes of x."""
        h = F.linear(F.rms_norm(x, SHAPE[1], gain), weight, bias)
        return [
            h,
            F.relu(h),
            h + x,
            h * x,
            F.layer_norm(h, SHAPE[1]),
            F.cross_entropy(h, [1] * SHAPE[0], reduction="none"),
        ]

    return results, (weight, bias, gain)


@pytest.mark.parametrize("name", REFERENCES)
def test_no_bit_changes_while_somebody_can_see_it(name, rng):
    results, parameters = layers(rng)
    kept = []
    for step in range(6):
        x = tn.tensor(rng.normal(size=SHAPE).astype(np.float32), requires_grad=True)
        ys = results(x)
        loss = sum((y.sum() for y in ys[1:]), ys[0].sum())
        loss.backward()
        for y in ys[:5]:
            read = REFERENCES[name](y, x)
            kept.append((read, np.array(read(), copy=True).tobytes()))
        del ys, loss, x, y, read
        for p in parameters:
            if step % 2:
                kept.append((lambda g=p.grad: g, p.grad.tobytes()))
            p.grad = None
        for read, before in kept:
            assert np.asarray(read()).tobytes() == before
    assert len({before for _, before in kept}) > 10  # or nothing was put to the test


def test_arrays_that_live_at_once_never_overlap(rng):
    """Many sizes and lives, drawn at random; each array is stamped, and still bears its stamp when it dies."""
    alive = {}
    for stamp in range(4000):
        shape = (int(rng.integers(1, 5)) * 64, int(rng.choice([128, 256])))
        a = buffers.empty(shape, rng.choice([np.float32, np.float64]))
        a.fill(stamp)
        assert a.flags.c_contiguous
        assert a.flags.writeable
        assert address(a) % 64 == 0
        alive[stamp] = a[::2] if stamp % 3 else a
        del a
        while len(alive) > 40 or (alive and rng.random() < 0.45):
            old = int(rng.choice(list(alive)))
            assert np.all(alive.pop(old) == old)
    for stamp, a in alive.items():
        assert np.all(a == stamp)


def test_memory_is_used_again_once_nobody_sees_it():
    a = buffers.empty(SHAPE)
    first = address(a)
    view = a[1:, 3]
    assert address(buffers.empty(SHAPE)) != first
    del a
    assert address(buffers.empty(SHAPE)) != first  # the view still looks into it
    del view
    found = [buffers.empty(SHAPE) for _ in range(buffers.LOOKS)]
    assert first in map(address, found)


def test_sole_is_true_of_one_array_over_a_whole_block_only():
    a = buffers.empty(SHAPE)
    assert buffers.sole(a)
    assert not buffers.sole(a[1:])
    view = a.T
    assert not buffers.sole(a)
    del view
    assert buffers.sole(a)
    own = np.empty(SIZE + buffers.ALIGNMENT, np.uint8)
    assert not buffers.sole(np.ndarray(SHAPE, np.float32, own))
    assert not buffers.sole(np.empty(SHAPE))
    elsewhere = in_a_thread(lambda: buffers.empty(SHAPE))
    assert not buffers.sole(elsewhere)


def in_a_thread(function):
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def test_however_many_are_in_use_few_are_looked_at_and_few_lie_idle():
    used = [buffers.empty(SHAPE) for _ in range(500)]
    looks = []

    def count(frame, event, argument):
        if event == "c_call" and argument is sys.getrefcount:
            looks.append(1)

    for k in range(4000):
        sys.setprofile(count)
        temporary = buffers.empty(SHAPE)
        sys.setprofile(None)
        used[k % 7] = temporary
    assert len(looks) / 4000 <= buffers.LOOKS + 8
    total, idle = buffers.held()
    assert total <= SIZE * 500 * (1 + 2 / buffers.LOOKS) + 8 * SIZE
    assert total - idle >= 500 * SIZE
    del used, temporary


def train(model, batches, rng):
    totals = []
    for n in batches:
        x, target = rng.normal(size=(n, 64)).astype(np.float32), rng.integers(0, 10, n)
        loss = F.cross_entropy(model(tn.tensor(x)), target)
        loss.backward()
        for p in model.parameters():
            p.data -= 1e-3 * p.grad
            p.grad = None
        totals.append(buffers.held()[0])
    return totals


def model():
    return nn.Sequential(nn.Linear(64, 128, rng=0), nn.RMSNorm(128), nn.ReLU(), nn.Linear(128, 10, rng=0))


def test_memory_does_not_grow_over_thousands_of_steps(rng):
    totals = train(model(), [96] * 2000, rng)
    assert totals[0] > 0
    assert totals[-1] == totals[5] == max(totals)


def test_memory_does_not_grow_with_changing_batch_sizes(rng):
    """Each size has blocks of its own, so without a bound a hundred batch sizes would keep a hundred times as many."""
    one = in_a_thread(lambda: train(model(), [2000] * 3, rng))[-1]
    totals = train(model(), range(1000, 2000, 10), rng)
    bound = buffers.IDLE + 2 * one
    assert sum(np.diff(totals) > 0) > 10  # or the sizes were not new
    assert max(totals) <= bound * 9 / 8


def test_memory_that_is_no_longer_asked_for_goes_back():
    large = [buffers.empty((1024, 1024)) for _ in range(4)]
    del large
    assert buffers.held() == (1 << 24, 1 << 24)
    for _ in range(2 * buffers.PERIOD + 2):
        buffers.empty(SHAPE)
    assert buffers.held()[0] == SIZE


def test_a_freed_graph_gives_its_memory_back(rng):
    results, _ = layers(rng)
    x = tn.tensor(rng.normal(size=SHAPE).astype(np.float32), requires_grad=True)
    gc.disable()  # nothing here is to wait for the collector
    try:
        ys = results(x)
        total, idle = buffers.held()
        assert total - idle > 4 * SIZE
        del ys
        assert buffers.held() == (buffers.held()[0],) * 2
    finally:
        gc.enable()


def test_threads_have_memory_of_their_own(rng):
    mine = buffers.empty(SHAPE)
    mine.fill(1.0)
    first, before = address(mine), buffers.held()
    assert in_a_thread(buffers.held) == (0, 0)
    theirs = in_a_thread(lambda: [buffers.empty(SHAPE) for _ in range(20)])
    for a in theirs:
        a.fill(2.0)
    assert first not in map(address, theirs)
    assert np.all(mine == 1.0)
    assert buffers.held() == before  # what another thread made counts there, wherever it is now

    def work(seed):
        own = np.random.default_rng(seed)
        for k in range(200):
            a, b = buffers.empty(SHAPE), buffers.empty(SHAPE)
            a.fill(seed)
            b.fill(k)
            if own.random() < 0.5:
                kept.append((a, seed))
            good.append(bool(np.all(a == seed) and np.all(b == k)))

    kept, good = [], []
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(good) == 800
    assert all(good)
    assert all(np.all(a == seed) for a, seed in kept)


def test_who_comes_in_between_gets_memory_of_its_own(rng):
    """A finalizer may run in the middle of a search, and compute. Here a profiler does, at every call inside."""
    inside, found = [], []

    def interrupt(frame, event, argument):
        if not inside and frame.f_code.co_filename == buffers.__file__ and len(found) < 500:
            inside.append(True)
            for pool in buffers._blocks.of_size.values():
                pool.asked = False
            buffers._blocks.calls = buffers.PERIOD + 1  # it would even give back what is being searched
            found.append(buffers.empty(SHAPE))
            found[-1].fill(-1.0)
            inside.clear()

    kept = {}
    for k in range(300):
        sys.setprofile(interrupt)
        try:
            a = buffers.empty(SHAPE)
        finally:
            sys.setprofile(None)
        a.fill(k)
        assert address(a) not in {address(other) for other in (*found, *kept.values())}
        assert all(np.all(other == -1.0) for other in found)
        kept[k] = a
        for i in rng.choice(list(kept), len(kept) // 4, replace=False):
            assert np.all(kept.pop(i) == i)
        assert 1 < len(found) < 500  # somebody came in between, and the search came to an end
        found.clear()


def test_small_arrays_are_numpys_own():
    for shape in ((), (0,), (3,), (0, 5), (64, 127)):
        a = buffers.empty(shape, np.float32)
        assert a.base is None
        assert (a.shape, a.dtype) == (shape, np.float32)
    assert buffers.like(np.zeros((2, 3))[:, ::-1].T).flags.c_contiguous
