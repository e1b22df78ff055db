"""Gathering: questions that come at about the same time are answered together, in one piece of work on a thread.

Under load the cost of waking a thread is shared by all questions that came during the last piece of work; without load a
question is answered at once, alone.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Generic, TypeVar

TOGETHER_MAX = 100
"""How many questions one piece of work answers at most, which bounds a caller's wait."""

Q = TypeVar("Q")
A = TypeVar("A")

Outcome = tuple[A] | Exception
"""The answer, or the exception that prevented it."""

HandOn = Callable[[Sequence[tuple[Q, tuple[A] | Exception]]], None]
"""Called on the event loop with the questions and outcomes of one piece of work."""


class Gathering(Generic[Q, A]):
    """Answers the questions of one event loop. Without an executor each is answered at once, by itself."""

    def __init__(
        self,
        serve: Callable[[Sequence[Q]], Sequence[A]],
        hand_on: HandOn[Q, A],
        executor: Executor | None,
        at_once: int,
    ) -> None:
        self._serve = serve
        self._hand_on = hand_on
        self._executor = executor
        self._free = at_once  # pieces of work that may begin now
        self._waiting: list[Q] = []
        self._begins_soon = False

    def put(self, question: Q) -> None:
        """Queue a question; its outcome is passed to `hand_on`."""
        if self._executor is None:
            self._hand_on([(question, self._outcomes([question])[0])])
            return
        self._waiting.append(question)
        if not self._begins_soon:  # further questions of this turn of the loop join the same piece of work
            self._begins_soon = True
            loop = asyncio.get_running_loop()
            loop.call_soon(self._begin, loop)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._begins_soon = False
        while self._waiting and self._free:
            together, self._waiting = self._waiting[:TOGETHER_MAX], self._waiting[TOGETHER_MAX:]
            self._free -= 1
            work = loop.run_in_executor(self._executor, self._outcomes, together)
            work.add_done_callback(lambda done, asked=together: self._end(loop, asked, done))  # type: ignore[misc]

    def _end(
        self, loop: asyncio.AbstractEventLoop, asked: Sequence[Q], done: "asyncio.Future[list[Outcome[A]]]"
    ) -> None:
        self._free += 1
        if not done.cancelled():  # cancelled only when the loop ends, and all callers with it
            self._hand_on(list(zip(asked, done.result(), strict=True)))
        self._begin(loop)

    def _outcomes(self, questions: Sequence[Q]) -> list[Outcome[A]]:
        """The outcomes of all questions together; if that fails, of each by itself, so that only the faulty one fails."""
        try:
            return [(answer,) for answer in self._serve(questions)]
        except Exception as error:
            if len(questions) == 1:
                return [error]
            return [outcome for question in questions for outcome in self._outcomes([question])]
