"""The default generator and what an `rng=` argument may be. Streams are compared with NumPy's own, by seed."""

import asyncio
import contextvars
import math
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import tinynorm as tn
from tinynorm.errors import ArgumentError
from tinynorm.random import _default, generator


def stream(seed: int, n: int = 5, skip: int = 0) -> list[float]:
    """What NumPy draws from this seed."""
    return np.random.default_rng(seed).random(skip + n)[skip:].tolist()


def draw(n: int = 5) -> list[float]:
    """The next numbers of the default generator."""
    return generator(None).random(n).tolist()


def in_a_fresh_context(function: Callable[[], Any]) -> Any:
    return contextvars.Context().run(function)


@pytest.fixture(autouse=True)
def _the_default_generator_is_put_back() -> Any:
    token = _default.set(None)
    yield
    _default.reset(token)


# manual_seed


def test_manual_seed_starts_the_stream_of_that_seed() -> None:
    tn.manual_seed(42)
    assert draw() == stream(42)
    assert draw() == stream(42, skip=5)
    tn.manual_seed(42)
    assert draw() == stream(42)
    tn.manual_seed(43)
    assert draw() == stream(43)


def test_manual_seed_returns_the_default_generator() -> None:
    rng = tn.manual_seed(1)
    assert isinstance(rng, np.random.Generator)
    assert generator(None) is rng
    rng.random(3)
    assert draw(2) == stream(1, 2, skip=3)


def test_manual_seed_leaves_earlier_generators_alone() -> None:
    before = tn.manual_seed(1)
    after = tn.manual_seed(2)
    assert before is not after
    assert before.random(5).tolist() == stream(1)
    assert draw() == stream(2)


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**100, np.int64(7), np.uint8(7)])
def test_any_integer_of_zero_or_more_is_a_seed(seed: Any) -> None:
    tn.manual_seed(seed)
    assert draw() == stream(int(seed))
    assert generator(seed).random(5).tolist() == stream(int(seed))


BAD = [-1, -(2**70), np.int64(-1), 1.0, 1.5, math.nan, "0", "", b"1", True, False, np.True_, [0], (0,), {}, 1j]
BAD += [np.array(3), np.array([1, 2]), np.random.SeedSequence(0), np.random.PCG64(0), np.random, object()]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: type(bad).__name__)
def test_what_is_neither_seed_nor_generator_is_refused(bad: Any) -> None:
    tn.manual_seed(5)
    for function in (generator, tn.manual_seed):
        with pytest.raises(ArgumentError, match=r"rng|seed"):
            function(bad)
    assert draw() == stream(5)  # the default is the one it was


def test_manual_seed_wants_a_seed() -> None:
    """None stands for the default generator elsewhere: here it would restart nothing, and say nothing."""
    tn.manual_seed(5)
    draw()
    with pytest.raises(ArgumentError, match="seed"):
        tn.manual_seed(None)


def test_numpys_own_global_state_is_neither_read_nor_set() -> None:
    kept = np.random.get_state()  # noqa: NPY002
    tn.manual_seed(0)
    tn.nn.Linear(3, 3)
    tn.functional.dropout(np.ones(5))
    assert repr(np.random.get_state()) == repr(kept)  # noqa: NPY002
    unseeded = []
    try:
        for _ in range(2):
            np.random.seed(1)  # noqa: NPY002
            unseeded.append(in_a_fresh_context(draw))
    finally:
        np.random.set_state(kept)  # noqa: NPY002
    assert unseeded[0] != unseeded[1]


# generator


def test_none_is_the_default_and_goes_on() -> None:
    tn.manual_seed(9)
    first = generator(None)
    assert generator(None) is first
    assert first.random(5).tolist() == stream(9)
    assert draw() == stream(9, skip=5)


def test_without_a_seed_the_default_is_one_generator_from_fresh_entropy() -> None:
    def two() -> tuple[Any, Any, list[float]]:
        return generator(None), generator(None), draw()

    (a, again, drawn), (b, _, others) = in_a_fresh_context(two), in_a_fresh_context(two)
    assert a is again
    assert a is not b
    assert drawn != others


def test_a_seed_is_a_new_generator_each_time() -> None:
    tn.manual_seed(1)
    a, b = generator(8), generator(8)
    assert a is not b
    assert a.random(5).tolist() == b.random(5).tolist() == stream(8)
    assert draw() == stream(1)  # untouched by the seeds


@pytest.mark.parametrize("bits", [np.random.PCG64, np.random.Philox, np.random.MT19937])
def test_a_generator_is_itself(bits: Any) -> None:
    tn.manual_seed(1)
    rng = np.random.Generator(bits(3))
    state = rng.bit_generator.state
    assert generator(rng) is rng
    assert repr(rng.bit_generator.state) == repr(state)  # nothing was drawn
    assert draw() == stream(1)


def test_manual_seed_is_what_everything_without_an_rng_draws_from() -> None:
    x = np.ones((4, 4), np.float32)
    model = tn.nn.PreNormMLP(2, 3, 1, 2, rng=0)
    drop, seeded = tn.nn.Dropout(0.5), tn.nn.Dropout(0.5, rng=1)
    uses = {
        "Linear": lambda: tn.nn.Linear(4, 4).weight.numpy(),
        "PreNormMLP": lambda: tn.nn.PreNormMLP(2, 3, 1, 2).head.weight.numpy(),
        "Dropout": lambda: drop(x).numpy(),
        "dropout": lambda: tn.functional.dropout(x).numpy(),
        "batches": lambda: np.concatenate([b for b, _ in tn.data.batches(np.arange(50), np.arange(50), 10)]),
    }
    for name, use in uses.items():
        rng = tn.manual_seed(11)
        first = use()
        assert repr(rng.bit_generator.state) != repr(np.random.default_rng(11).bit_generator.state), name
        assert (use() != first).any(), name
        tn.manual_seed(11)
        np.testing.assert_array_equal(use(), first, err_msg=name)
    others = {
        "eval": lambda: tn.nn.Dropout(0.5).eval()(x),
        "p = 0": lambda: tn.functional.dropout(x, 0.0),
        "seeded": lambda: seeded(x),
        "forward": lambda: model(np.ones((3, 2), np.float32)),
        "norms": lambda: (tn.nn.RMSNorm(3), tn.nn.LayerNorm(3)),
        "an rng": lambda: tn.nn.Linear(4, 4, rng=np.random.default_rng(0)),
    }
    for use in others.values():
        rng = tn.manual_seed(11)
        use()
        assert draw() == stream(11)


# Each thread and each task has its own


def test_a_thread_neither_sees_nor_disturbs_the_default_of_another() -> None:
    main = tn.manual_seed(1)
    seen: dict[str, Any] = {}

    def other() -> None:
        seen["before"] = generator(None)
        tn.manual_seed(2)
        seen["drawn"] = draw()

    thread = threading.Thread(target=other, **({"context": contextvars.Context()} if _threads_inherit() else {}))
    thread.start()
    thread.join()
    assert seen["before"] is not main
    assert seen["drawn"] == stream(2)
    assert generator(None) is main
    assert draw() == stream(1)


def _threads_inherit() -> bool:
    """Free-threaded Python 3.14 hands a thread its parent's context."""
    return bool(getattr(sys.flags, "thread_inherit_context", False))


def test_threads_that_seed_draw_their_own_streams_side_by_side() -> None:
    barrier = threading.Barrier(4, timeout=30)

    def work(seed: int) -> list[float]:
        barrier.wait()
        tn.manual_seed(seed)
        drawn = []
        for _ in range(50):
            barrier.wait()  # in step, so that every draw of one lies between two of another
            drawn += draw(1)
        return drawn

    tn.manual_seed(99)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(work, range(4)))
    assert results == [stream(seed, 50) for seed in range(4)]
    assert draw() == stream(99)


def test_tasks_that_seed_draw_their_own_streams() -> None:
    async def work(seed: int) -> list[float]:
        tn.manual_seed(seed)
        drawn = []
        for _ in range(10):
            await asyncio.sleep(0)
            drawn += draw(1)
        return drawn

    async def all_of_them() -> list[list[float]]:
        tn.manual_seed(99)
        results = list(await asyncio.gather(*(work(seed) for seed in range(4))))
        return [*results, draw()]

    assert asyncio.run(all_of_them()) == [*(stream(seed, 10) for seed in range(4)), stream(99)]


def test_a_copied_context_may_be_seeded_apart() -> None:
    tn.manual_seed(1)
    assert contextvars.copy_context().run(lambda: (tn.manual_seed(2), draw())[1]) == stream(2)
    assert draw() == stream(1)
