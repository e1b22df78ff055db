"""A WebSocket to one relay that brings an author's documents: their current state, and changes."""

import asyncio
from typing import Any

import msgspec

from holdfast.protocol.feed_filter import Mode
from holdfast.wire import feed_frames
from holdfast.wire.feed_frames import Frame
from holdfast.wire.relay_socket import FrameSocket

_SUBSCRIPTION = "documents"


class FeedSocket(FrameSocket[Frame]):
    """A connection with one subscription; the next one replaces it."""

    async def ask_state(self, author: str, kind: int) -> None:
        """Ask for the current snapshots of an author's documents; from then on `receive` returns them."""
        await self._ask({"mode": Mode.BOOTSTRAP.value, "authors": [author], "kinds": [kind]})

    async def ask_changes(self, author: str, kind: int, since: int) -> None:
        """Ask for the snapshots accepted after a position, and for new ones."""
        asked = {"mode": Mode.TAIL.value, "authors": [author], "kinds": [kind], "since": since, "live": True}
        await self._ask(asked)

    async def _ask(self, asked: dict[str, Any]) -> None:
        await self._send(msgspec.json.encode(("CHANGES", _SUBSCRIPTION, asked)))
        if self._reader is None:
            self._reader = asyncio.create_task(self._read_on())

    def _read(self, raw: bytes) -> Frame:
        try:
            frame = feed_frames.read(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._list(raw)  # raises with the relay's own words if it is a notice
            raise self._not_understood(str(error)) from error
        if frame is None:
            raise self._not_understood("it uses a word of the feed that is not known here")
        return frame
