"""What happens, as it happens: server-sent events that say that something changed; pages then fetch what they show."""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager

import msgspec

from holdfast.console.rendering import SECURITY_HEADERS
from holdfast.protocol.refusal import Refusal, Refused

STREAMS_MAX = 32
KEEP_ALIVE_S = 15.0
PACE_S = 1.0  # between two words at least: a page need not be fetched more often than one can read it

Change = Callable[[int], Awaitable[int]]
"""Waits until there is something new after a number, and tells the number then. A program that is started anew counts anew."""

_VERSION = re.compile(r"[0-9a-f]+\.[0-9]+")


class LiveStream(msgspec.Struct, frozen=True):
    """One open stream."""

    chunks: AsyncIterator[bytes]

    def headers(self) -> dict[str, str]:
        return {**SECURITY_HEADERS, "content-type": "text/event-stream"}


class Live:
    """The streams of one console."""

    def __init__(self, change: Change, run: str) -> None:
        """`run` is this run of the program, in hex: another one may count as far, and shows something else."""
        self._change = change
        self._run = run
        self._ending = asyncio.Event()
        self.open_count = 0

    def end(self) -> None:
        """End every stream; its page connects again by itself."""
        self._ending.set()

    @asynccontextmanager
    async def open(
        self, is_wanted: Callable[[], bool] = lambda: True, since: str | None = None
    ) -> AsyncIterator[LiveStream]:
        """A stream of changes. It ends when `is_wanted` says no, at the next keep-alive at the latest.

        `since` is the version that its page shows: what came before the stream was there, or while it was away, is told.
        """
        if since is not None and _VERSION.fullmatch(since) is None:
            raise Refused(Refusal.MALFORMED, "since is the version that a page shows")
        if self.open_count >= STREAMS_MAX:
            raise Refused(Refusal.TOO_MANY_STREAMS, f"{STREAMS_MAX} pages are being kept up to date")
        self.open_count += 1
        try:
            async with aclosing(self._chunks(is_wanted, since)) as chunks:
                yield LiveStream(chunks)
        finally:
            self.open_count -= 1

    async def version(self) -> str:
        """The current version, for a page that reads its data after this call."""
        return self._version(await self._change(-1))

    def _version(self, number: int) -> str:
        return f"{self._run}.{number}"

    async def _chunks(self, is_wanted: Callable[[], bool], since: str | None) -> AsyncGenerator[bytes, None]:
        number = await self._change(-1)
        yield b": holdfast\n\n"
        if since is not None and since != self._version(number):
            yield self._changed(number)
            await self._pause()
        while not self._ending.is_set() and is_wanted():
            found = await self._next(number)
            if found is None:
                yield b": still here\n\n"
            elif found != number:
                number = found
                yield self._changed(number)
                await self._pause()

    async def _next(self, number: int) -> int | None:
        """The next version's number; None if a keep-alive is due first."""
        waits = [asyncio.ensure_future(self._change(number)), asyncio.ensure_future(self._ending.wait())]
        try:
            done, _ = await asyncio.wait(waits, timeout=KEEP_ALIVE_S, return_when=asyncio.FIRST_COMPLETED)
            return (int(waits[0].result()) if waits[0] in done else number) if done else None
        finally:
            for wait in waits:
                wait.cancel()

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(PACE_S):
                await self._ending.wait()
        except TimeoutError:
            return

    def _changed(self, number: int) -> bytes:
        return f"event: changed\ndata: {self._version(number)}\n\n".encode()
