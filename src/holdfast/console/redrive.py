"""Sending many given-up messages again: one after the other at a pace, watched, and stopped whenever somebody says so."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from holdfast.protocol.refusal import Refused

RATE_PER_S = 20.0
RATE_PER_S_MAX = 200.0
ROWS_MAX = 10_000  # in one go

Requeue = Callable[[str], Awaitable[object]]


class Redrive:
    """One run of sending messages again, with its counts so far."""

    def __init__(self, ids: Sequence[str], rate_per_s: float, requeue: Requeue) -> None:
        self.total = len(ids)
        self.done = 0
        self.refused: Counter[str] = Counter()
        self.is_stopped = False
        self._ids = ids
        self._rate = rate_per_s
        self._requeue = requeue
        self._task = asyncio.create_task(self._run(), name="holdfast-redrive")

    @property
    def is_running(self) -> bool:
        return not self._task.done()

    @property
    def tried(self) -> int:
        return self.done + sum(self.refused.values())

    def stop(self) -> None:
        """Leave the rest as it is."""
        self.is_stopped = self.is_running
        self._task.cancel()

    async def ended(self) -> None:
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        for number, name in enumerate(self._ids):
            if number:
                await asyncio.sleep(1 / self._rate)
            try:
                await self._requeue(name)
                self.done += 1
            except Refused as refused:
                self.refused[refused.refusal.value] += 1
            except Exception as error:  # told with the rest; the others may still be sent
                self.refused[type(error).__name__] += 1
