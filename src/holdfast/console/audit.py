"""What the lake proves, for the pages: asked of a process of its own, because what reads a lake is large, and kept for a moment."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.protocol.schedule import SECOND
from holdfast.store.world import Clock

KEPT_S = 30  # for which an answer is given again: a lake changes with each batch, not with each look

Report = Callable[[], Awaitable[dict[str, Any]]]
"""Reads the lake; raises LakeUnavailable."""


class LakeUnavailable(Exception):
    """There is no lake to read, or nothing to read it with: says what, and what to do."""


class Audit:
    """Reads the lake's report, and keeps it for a moment."""

    def __init__(self, report: Report | None, clock: Clock) -> None:
        self._report = report
        self._clock = clock
        self._lock = asyncio.Lock()
        self._found: dict[str, Any] | LakeUnavailable | None = None
        self._found_at = 0

    async def read(self) -> dict[str, Any]:
        """The lake's report; one process at a time reads it, however many pages ask."""
        async with self._lock:
            if self._found is None or self._clock() - self._found_at > KEPT_S * SECOND:
                self._found, self._found_at = await self._ask(), self._clock()
        if isinstance(self._found, LakeUnavailable):
            raise self._found
        return self._found

    async def _ask(self) -> dict[str, Any] | LakeUnavailable:
        if self._report is None:
            return LakeUnavailable(
                "This relay was started without a lake. Name one with `holdfast relay run --lake DIR`."
            )
        try:
            return await self._report()
        except LakeUnavailable as unavailable:
            return unavailable
