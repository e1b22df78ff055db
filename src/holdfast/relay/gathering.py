"""Those who ask at about the same time are served together: one piece of work on a thread, however many wait for it.

Under load a thread's wake-up, a transaction and a look-up are then shared by all who came while the last piece was done;
when nobody else asks, one is served at once and alone.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Generic, TypeVar

from holdfast.store import faults

TOGETHER_MAX = 100
"""How many are served by one piece of work at most, so that a caller's wait is bounded."""

Q = TypeVar("Q")
A = TypeVar("A")

_Outcome = tuple[A] | Exception


class Gathering(Generic[Q, A]):
    """Serves the callers of one event loop. Without an executor each is served where it asks, alone."""

    def __init__(self, serve: Callable[[Sequence[Q]], Sequence[A]], executor: Executor | None, at_once: int) -> None:
        self._serve = serve
        self._executor = executor
        self._free = at_once  # pieces of work that may begin now
        self._waiting: list[tuple[Q, asyncio.Future[A]]] = []
        self._begins_soon = False

    async def ask(self, question: Q) -> A:
        """The answer to one question; raises what kept it from being found."""
        if self._executor is None:
            return self._serve([question])[0]
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[A] = loop.create_future()
        self._waiting.append((question, reply))
        if not self._begins_soon:  # those who ask in the same turn of the loop are in it, too
            self._begins_soon = True
            loop.call_soon(self._begin, loop)
        return await reply

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._begins_soon = False
        while self._waiting and self._free:
            together, self._waiting = self._waiting[:TOGETHER_MAX], self._waiting[TOGETHER_MAX:]
            self._free -= 1
            work = loop.run_in_executor(self._executor, self._outcomes, [question for question, _ in together])
            work.add_done_callback(lambda done, replies=together: self._end(loop, done, replies))  # type: ignore[misc]

    def _end(
        self,
        loop: asyncio.AbstractEventLoop,
        done: "asyncio.Future[list[_Outcome[A]]]",
        together: list[tuple[Q, "asyncio.Future[A]"]],
    ) -> None:
        self._free += 1
        if done.cancelled():
            for _, reply in together:
                reply.cancel()
            return
        for (_, reply), outcome in zip(together, done.result(), strict=True):
            if reply.done():
                continue  # whoever asked has left
            if isinstance(outcome, Exception):
                reply.set_exception(outcome)
            else:
                reply.set_result(outcome[0])
        self._begin(loop)

    def _outcomes(self, questions: Sequence[Q]) -> list[_Outcome[A]]:
        """All of them together; if that fails, each by itself, so that it fails alone."""
        try:
            return [(answer,) for answer in self._serve(questions)]
        except faults.Fault as fault:  # the store's trouble, not one question's
            return [fault.again() for _ in questions]
        except Exception as error:
            if len(questions) == 1:
                return [error]
            return [outcome for question in questions for outcome in self._outcomes([question])]
