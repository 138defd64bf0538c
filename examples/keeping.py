"""A training run that survives: all that its next step depends on, and the file that keeps it.

What to look for: `Progress.state_dict`. A run that goes on from it makes the very steps that it would have made without
a break, bit for bit; without the moments, the generator or the rows that are left, it would make others. When the file
is written is the business of `Keeper`: at the start, after every epoch, and when Ctrl-C or a job scheduler's SIGTERM
asks for an end, which then comes after the step at hand.
"""

import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import tinynorm as tn


class History(NamedTuple):
    """What happened, epoch by epoch."""

    loss: list[float]
    accuracy: list[float]


class Progress:
    """All that the next step depends on, beside the data and the options.

    `left` are the row numbers, in their shuffled order, that this epoch still has to see; None between two epochs.
    """

    def __init__(
        self,
        model: tn.nn.Module,
        optimizer: tn.optim.Optimizer,
        schedule: tn.optim.WarmupCosine,
        guard: tn.optim.LossGuard,
        rng: np.random.Generator,
    ) -> None:
        self.model, self.optimizer, self.schedule, self.guard, self.rng = model, optimizer, schedule, guard, rng
        self.history = History([], [])
        self.left: np.ndarray | None = None
        self.total, self.seen = 0.0, 0  # the losses of this epoch's rows, added up, and how many these are

    @property
    def step(self) -> int:
        """How many steps are behind it."""
        return self.schedule.t

    def batches(self, rows: int, size: int) -> Iterator[np.ndarray]:
        """The row numbers of each batch that this epoch still has, of so many rows in all."""
        if self.left is None:
            self.left = self.rng.permutation(rows)
        while len(self.left):
            indices, self.left = self.left[:size], self.left[size:]
            yield indices

    def count(self, loss: float, rows: int) -> None:
        """Add a batch's loss, summed over its rows, to the epoch's."""
        self.total += loss
        self.seen += rows

    def end_epoch(self, accuracy: float) -> None:
        """Write down how the epoch went."""
        self.history.loss.append(self.total / self.seen if self.seen else float("nan"))  # nan: all was skipped
        self.history.accuracy.append(accuracy)
        self.left, self.total, self.seen = None, 0.0, 0

    def state_dict(self) -> dict[str, Any]:
        """The run as plain numbers and arrays."""
        return {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "bad in a row": self.guard.in_a_row,
            "rng": self.rng.bit_generator.state,
            "epoch": {"left": self.left, "total": self.total, "seen": self.seen},
            "history": self.history._asdict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.guard.in_a_row = state["bad in a row"]
        self.rng.bit_generator.state = state["rng"]
        epoch = state["epoch"]
        self.left, self.total, self.seen = epoch["left"], epoch["total"], epoch["seen"]
        self.history = History(**state["history"])


class Stop(Exception):
    """A signal has asked for an end, and the run is saved."""


class Keeper:
    """Keeps a run in its file while `with` lasts. Without a file, as it is without --checkpoint, it does nothing.

    Args:
        progress: what is kept.
        file: where; or None.
        resume: whether to go on from a file that is there.
        configuration: what a run has to have in common with the one in the file to go on from it.
        ranks: the processes of the run, of which the first writes, and all read.
    """

    def __init__(
        self,
        progress: Progress,
        file: str | None,
        resume: bool,
        configuration: dict[str, Any],
        ranks: tn.parallel.Ranks,
    ) -> None:
        self.progress, self.configuration, self.ranks = progress, configuration, ranks
        self.file, self.resume = file, resume
        self.signals: list[int] = []  # those that have come
        self.handlers: dict[int, Any] = {}  # that were there before

    def __enter__(self) -> "Keeper":
        if self.file is not None:
            self._begin(self.file)
            for number in signal.SIGINT, signal.SIGTERM:
                if signal.getsignal(number) is not signal.SIG_IGN:  # as Ctrl-C is in a script's background
                    self.handlers[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._obey()
        if kind is Stop:
            self._end()

    def save(self) -> None:
        """Write the file. Whatever happens meanwhile, the old one or the new one is there, and whole."""
        if self.file is not None and self.ranks.rank == 0:
            tn.save({"configuration": self.configuration, "progress": self.progress.state_dict()}, self.file)

    def after_step(self) -> None:
        """Save and stop, if a signal has come to any of the processes."""
        if self.file is not None and self.ranks.total(len(self.signals)):
            self.save()
            raise Stop

    def _begin(self, file: str) -> None:
        """Go on from the file, or begin it."""
        exists = self.ranks.total(self.ranks.rank == 0 and Path(file).exists()) > 0  # as the first process sees it
        if exists and not self.resume:
            raise tn.errors.DataError(
                f"--checkpoint: {file} is there already; add --resume to go on from it, or give another name"
            )
        if exists:
            self._load(file)
            self._tell(f"going on after step {self.progress.step}, from {file}")
        elif self.resume:
            self._tell(f"starting anew, since there is no {file} yet")
        self.save()  # what cannot be written is known now, and not after the first epoch

    def _load(self, file: str) -> None:
        """Take the run over from the file, if it is this one."""
        state = tn.load(file)
        if not isinstance(state, dict) or not isinstance(theirs := state.get("configuration"), dict):
            raise tn.errors.DataError(f"--checkpoint: {file} holds something else than a run; give another name")
        other = [(name, ours) for name, ours in self.configuration.items() if theirs.get(name) != ours]
        if other:
            differs = ", ".join(f"{name} is {theirs.get(name)} there and {ours} here" for name, ours in other)
            raise tn.errors.DataError(f"--resume: {file} belongs to another run: {differs}")
        try:
            self.progress.load_state_dict(state["progress"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            fault = f"{type(error).__name__}: {error}"
            raise tn.errors.DataError(f"--resume: {file} does not hold what this run needs ({fault})") from error
        if self.ranks.total(self.progress.step) != self.progress.step * self.ranks.size:
            raise tn.errors.DataError(f"--resume: {file} is not the same file for all processes")

    def _note(self, number: int, _: object) -> None:
        """A signal is noted, and the next one obeyed at once."""
        self.signals.append(number)
        self._obey()

    def _obey(self) -> None:
        for number, handler in self.handlers.items():
            signal.signal(number, handler)

    def _end(self) -> None:
        """Say how to go on, and end the program with the status that shells have for the signal."""
        again = [] if "--resume" in sys.argv else ["--resume"]
        together = ["mpiexec", "-n", str(self.ranks.size)] if self.ranks.size > 1 else []
        command = shlex.join([*together, *sys.orig_argv, *again])
        self._tell(f"stopped after step {self.progress.step}, which {self.file} has; to go on:\n{command}")
        terminated = self.ranks.total(signal.SIGTERM in self.signals)  # all wait here until that is told
        sys.exit(128 + (signal.SIGTERM if terminated else signal.SIGINT))

    def _tell(self, text: str) -> None:
        if self.ranks.rank == 0:
            print(text, file=sys.stderr)
