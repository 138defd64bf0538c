"""The guard of long runs: what it lets pass, what it skips, and what it says when it stops."""

import math
import pickle

import numpy as np
import pytest

import tinynorm as tn
from tinynorm.errors import ArgumentError, DivergedError

NAN, INF = math.nan, math.inf


def stopped(guard, loss, *arguments, **options):
    with pytest.raises(DivergedError) as caught:
        guard.check(loss, *arguments, **options)
    return caught.value


@pytest.mark.parametrize("loss", [0.5, -3, np.float32(1), 1e308, tn.tensor(2.0), tn.tensor([[2.0]]), np.array(0.0)])
def test_finite_losses_pass(loss):
    assert tn.optim.LossGuard().check(loss, 0, [1]) is True


@pytest.mark.parametrize("loss", [NAN, INF, -INF, np.float16("inf"), tn.tensor(NAN), tn.tensor([INF])])
def test_others_stop_the_run(loss):
    error = stopped(tn.optim.LossGuard(), loss, 7, np.array([3, 1, 2]), checkpoint="a/run.npz")
    assert (error.step, error.indices, error.checkpoint) == (7, (3, 1, 2), "a/run.npz")
    value = loss.item() if isinstance(loss, tn.Tensor) else float(loss)
    assert str(error) == (
        f"the loss of step 7 is {value}; its batch has the indices 3, 1, 2; "
        "go on from the last good checkpoint, a/run.npz"
    )


def test_without_a_checkpoint(tmp_path):
    assert "no checkpoint has been saved" in str(stopped(tn.optim.LossGuard(), NAN, 0, [1]))
    assert stopped(tn.optim.LossGuard(), NAN, 0, [1]).checkpoint is None
    path = tmp_path / "x.npz"
    assert stopped(tn.optim.LossGuard(), NAN, 0, [1], path).checkpoint == str(path)


def test_many_indices_are_abbreviated_in_the_message_alone():
    error = stopped(tn.optim.LossGuard(), NAN, 0, range(100, 200))
    assert "the indices 100, 101, 102," in str(error)
    assert ", 162, 163, … (100 in all);" in str(error)
    assert error.indices == tuple(range(100, 200))
    assert "…" not in str(stopped(tn.optim.LossGuard(), NAN, 0, range(64)))


@pytest.mark.parametrize("skip", [0, 1, 3])
def test_so_many_in_a_row_are_skipped_and_one_more_is_not(skip):
    guard = tn.optim.LossGuard(skip)
    for loss in (NAN, INF):  # a finite one between them starts the count anew
        assert [guard.check(loss, i, [0]) for i in range(skip)] == [False] * skip
        assert guard.in_a_row == skip
        assert guard.check(1.0, skip, [0])
        assert guard.in_a_row == 0
    assert [guard.check(NAN, i, [0]) for i in range(skip)] == [False] * skip
    error = stopped(guard, NAN, 9, [0])
    assert ("in a row" in str(error)) == (skip > 0)


def test_the_place_in_a_row_is_told_as_people_do():
    for skip, place in ((1, "2nd"), (2, "3rd"), (3, "4th"), (10, "11th"), (11, "12th"), (20, "21st"), (111, "112th")):
        guard = tn.optim.LossGuard(skip)
        for i in range(skip):
            guard.check(NAN, i, [0])
        assert f"the {place} in a row" in str(stopped(guard, NAN, skip, [0]))


def test_the_error_survives_the_way_to_another_process():
    error = stopped(tn.optim.LossGuard(), NAN, 7, [3, 1], "run.npz")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.step, copy.indices, copy.checkpoint) == (str(error), 7, (3, 1), "run.npz")


def test_what_makes_no_sense():
    for skip in (-1, 1.5, True, "2", None):
        with pytest.raises(ArgumentError, match="LossGuard: skip must be an integer >= 0"):
            tn.optim.LossGuard(skip)
    guard = tn.optim.LossGuard()
    for loss in ("1", None, [1.0, 2.0], tn.tensor([1.0, 2.0])):
        with pytest.raises(ArgumentError, match=r"LossGuard\.check: loss must be a number"):
            guard.check(loss, 0, [0])
    with pytest.raises(ArgumentError, match=r"LossGuard\.check: step must be an integer"):
        guard.check(1.0, 0.5, [0])


def test_the_weights_of_a_skipped_batch_stay():
    """As it is used: the bad batch leaves no trace, and the run is that of the good ones."""

    def run(batches):
        w, guard = tn.tensor([1.0], requires_grad=True), tn.optim.LossGuard(skip=1)
        optimizer = tn.optim.AdamW([w], lr=0.1)
        for step, x in enumerate(batches):
            loss = ((w * x) ** 2).mean()
            if guard.check(loss, step, [step]):
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return w.item()

    assert run([2.0, NAN, 3.0]) == run([2.0, 3.0])


def test_indices_may_come_one_by_one_and_be_anything():
    assert stopped(tn.optim.LossGuard(), NAN, 3, (i for i in [1, 2])).indices == (1, 2)
    assert stopped(tn.optim.LossGuard(), NAN, 3, [(1, 2), (3,)]).indices == ((1, 2), (3,))
    assert stopped(tn.optim.LossGuard(), NAN, 3, tn.tensor([4, 5])).indices == (4, 5)
