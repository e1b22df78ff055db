"""An event loop on which the same things happen in the same order every time, and an hour takes seconds.

Time moves only when everybody waits. Work for threads is done on the loop itself, a moment later. Tasks belong to the life
of the machine that began them, so that all of them can be ended with it.
"""

import asyncio
import contextvars
import itertools
import random
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

from tests.hook.virtual import START

THREAD_S_MAX = 0.002  # until a thread has done a piece of work
STALL_S_MAX = 2.0  # if it stalls
STALL_SHARE = 0.02  # of pieces of work over which it does


class Life:
    """One process of a machine, from its start to its end. What a dead one still does concerns nobody."""

    def __init__(self, name: str, slow_s: Callable[[], float] = lambda: 0.0) -> None:
        """`slow_s` is what its machine's disk takes longer at the moment, over whatever a thread does."""
        self.name = name
        self.slow_s = slow_s
        self.is_alive = True
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.context = contextvars.copy_context()
        self.context.run(_LIFE.set, self)


_LIFE: contextvars.ContextVar[Life | None] = contextvars.ContextVar("life", default=None)


class _Task(asyncio.Task[Any]):
    """A task whose place in a set does not depend on where it lies in memory."""

    def __init__(self, *arguments: Any, loop: "WorldLoop", **options: Any) -> None:
        self._number = loop.number()
        super().__init__(*arguments, loop=loop, **options)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class _Selector(selectors.SelectSelector):
    """Nothing comes from outside: instead of waiting, moves the clock to when somebody has something to do."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("everybody waits for something that will never happen")
        self.now_s += max(timeout, 0.0)
        return []


class WorldLoop(asyncio.SelectorEventLoop):
    """The loop of one world."""

    def __init__(self, luck: random.Random) -> None:
        self._virtual = _Selector()
        self._luck = luck
        self._numbers = itertools.count()
        super().__init__(self._virtual)
        self.set_task_factory(_begin)  # type: ignore[arg-type]  # the stubs know no keyword arguments

    def time(self) -> float:
        return self._virtual.now_s

    def number(self) -> int:
        """One after the other, from the beginning of this world on."""
        return next(self._numbers)

    def now(self) -> int:
        """Microseconds since 1970, as a clock has them that is right."""
        return START + round(self._virtual.now_s * 1_000_000)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":  # type: ignore[override]
        """As if on a thread: the caller goes on, and some time later the work is done at once."""
        done: asyncio.Future[Any] = self.create_future()
        life = _LIFE.get()

        def work() -> None:
            if done.done() or not (life is None or life.is_alive):
                return
            try:
                result = func(*args)
            except Exception as error:
                done.set_exception(error)
            else:
                done.set_result(result)

        most_s = STALL_S_MAX if self._luck.random() < STALL_SHARE else THREAD_S_MAX
        slow_s = 0.0 if life is None else life.slow_s()
        self.call_later(self._luck.random() * most_s + slow_s, work)
        return done

    def _write_to_self(self) -> None:
        """There are no threads whose calls the loop could sleep through."""


def _begin(loop: WorldLoop, work: Coroutine[Any, Any, Any], **options: Any) -> _Task:
    task = _Task(work, loop=loop, **options)
    context = options.get("context")
    life = _LIFE.get() if context is None else context.get(_LIFE)
    if life is not None:
        life.tasks[task] = None
        task.add_done_callback(lambda ended: life.tasks.pop(ended, None))
    return task
