"""A few threads for large arrays. NumPy lets go of the interpreter's lock while it computes.

Work is cut into the same blocks, and partial sums are added in the same order, whatever the number of threads; so a
result does not depend on it. The number is the process's; `set_num_threads` and TINYNORM_NUM_THREADS set it.
"""

import os
import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from itertools import pairwise
from typing import Any, TypeVar

from ..errors import ArgumentError
from ..options import count

T = TypeVar("T")
R = TypeVar("R")

ENOUGH = 1_200_000  #: elements from which on it pays to wake another core and to share what lies in its cache


class _Team:
    """The threads that help, made when they are first needed."""

    def __init__(self) -> None:
        self.size = 1
        self.forget()

    def forget(self) -> None:
        """In a process that was forked: threads do not come along, and whoever held the lock may have been one."""
        self.pool: Any = None
        self.lock = threading.Lock()

    def submit(self, run: Callable[[Sequence[T]], list[R]], shares: Sequence[Sequence[T]]) -> list[Any]:
        """Hand out shares, all before anybody can send the threads home; none once the program's end has begun.

        What is set in the caller's context, such as what NumPy says of overflow, holds for them, too.
        """
        handed_out: list[Any] = []
        with self.lock:
            try:
                if self.pool is None:
                    from concurrent.futures import ThreadPoolExecutor  # which takes a while to import

                    self.pool = ThreadPoolExecutor(max(1, self.size - 1), thread_name_prefix="tinynorm")
                for share in shares:
                    handed_out.append(self.pool.submit(copy_context().run, run, share))
            except RuntimeError as error:  # other threads, and functions of atexit, run on when the main one has ended
                if "shutdown" not in str(error):
                    raise
        return handed_out

    def resize(self, n: int) -> None:
        """As many from now on. What was handed out is still done."""
        with self.lock:
            self.size, pool, self.pool = n, self.pool, None
        if pool is not None:
            pool.shutdown(wait=False)


_team = _Team()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_team.forget)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_num_threads(n: int) -> None:
    """Let kernels use n threads for large arrays. Results are the same bits for any n.

    At the start it is the number in the environment variable TINYNORM_NUM_THREADS, or else that of the cores at hand.

    >>> import tinynorm as tn
    >>> before = tn.get_num_threads()
    >>> tn.set_num_threads(1)
    >>> tn.get_num_threads()
    1
    >>> tn.set_num_threads(before)
    """
    _team.resize(count("set_num_threads", "n", n, least=1))


def get_num_threads() -> int:
    """How many threads kernels use for large arrays.

    >>> import tinynorm as tn
    >>> tn.get_num_threads() >= 1
    True
    """
    return _team.size


def at_once(size: int) -> int:
    """How many parts of a task on so many elements may run at once: with few, it does not pay to wake a thread."""
    return _team.size if size >= ENOUGH else 1


def each(run: Callable[[T], R], parts: Sequence[T], size: int) -> list[R]:
    """``[run(part) for part in parts]``, by several threads where the arrays have so many elements that it pays."""
    n = min(at_once(size), len(parts))
    if n <= 1 or threading.current_thread().name.startswith("tinynorm"):
        return [run(part) for part in parts]
    cuts = [len(parts) * k // n for k in range(n + 1)]
    first, *rest = [parts[low:high] for low, high in pairwise(cuts)]
    others = _team.submit(lambda share: [run(part) for part in share], rest)
    found = [run(part) for part in first]
    for other in others:
        found += other.result()
    for share in rest[len(others) :]:
        found += [run(part) for part in share]
    return found


def _at_the_start() -> int:
    chosen = os.environ.get("TINYNORM_NUM_THREADS") or str(cores())
    if not chosen.isdecimal() or int(chosen) < 1:
        raise ArgumentError(f"TINYNORM_NUM_THREADS: must be an integer >= 1, not {chosen!r}")
    return int(chosen)


set_num_threads(_at_the_start())
