"""Who looks on: the one place at which something can see operations, modules' calls, walks back and optimizers' steps.

`tensor.apply`, `Module.__call__`, `graph.walk` and `Optimizer.step` ask `watching` and, where somebody watches, hand
over what they were about to do. The watcher does it by the same function, while whoever watched before looks on, and
keeps what it wants to know. `graph` and `derivatives` show it what gradients become at a walk's end. Where nobody
watches, that is one question of some 30 ns.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_watcher: ContextVar["Watcher | None"] = ContextVar("tinynorm_watcher", default=None)

watching = _watcher.get  #: the watcher of this thread or async task, or None

PullBack = Callable[[Any, Any], Sequence[Any]]  #: of a node and its cotangent, the gradients of the node's inputs


class Watcher:
    """Sees what happens, and lets it happen. A subclass overrides what it wants to see, and calls what stands here."""

    def __init__(self) -> None:
        self.outer = watching()

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Whoever watched before looks on inside: what is done there would come back here for ever."""
        token = _watcher.set(self.outer)
        try:
            yield
        finally:
            _watcher.reset(token)

    def operation(self, apply: Callable[..., Any], op: Any, inputs: tuple[Any, ...], params: dict[str, Any]) -> Any:
        """Run an operation; its result."""
        with self._aside():
            return apply(op, *inputs, **params)

    def call(self, module: Any, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Run a module's forward; what it gives. This watcher goes on to see what happens inside."""
        if self.outer is not None:
            return self.outer.call(module, inputs, options)
        return module.forward(*inputs, **options)

    def step(self, step: Callable[[Any], None], optimizer: Any) -> None:
        """Let an optimizer make its step."""
        with self._aside():
            step(optimizer)

    def walk(self, cotangents: dict[Any, Any], pull_back: PullBack) -> PullBack:
        """What a walk back shall do at each node, in place of `pull_back`. The walk adds up in `cotangents`."""
        return pull_back if self.outer is None else self.outer.walk(cotangents, pull_back)

    def deliver(self, known: Any, gradient: Any, result: Any) -> None:
        """See what a gradient becomes at the end of a walk, in its own dtype and added to the `grad` already known."""
        if self.outer is not None:
            self.outer.deliver(known, gradient, result)


def begin(watcher: Watcher) -> None:
    """Let the watcher look on from here."""
    _watcher.set(watcher)


def end() -> None:
    """Let whoever looked on before the last `begin` do so again."""
    watcher = watching()
    _watcher.set(None if watcher is None else watcher.outer)


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Let the watcher look on inside."""
    begin(watcher)
    try:
        yield
    finally:
        end()
