"""Sending an answer over ASGI: whole, or as a stream until it ends or the client leaves."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from holdfast.wire.route import Reply, Stream

RESPONSE_BYTES_MAX = 8_388_608  # that a client of ours reads of one answer

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class Response:
    """The answer to one request, while it is being sent."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self.status = 0  # until the first byte is sent

    async def give(self, reply: Reply | Stream) -> None:
        if isinstance(reply, Reply):
            about = {"content-type": reply.content_type, "content-length": str(len(reply.body))}
            await self._start(reply.status, {**(about if reply.content_type else {}), **reply.headers})
            await self._send({"type": "http.response.body", "body": reply.body})
            return
        async with reply as opened:
            await self._start(200, opened.headers())
            await self._pour(opened.chunks)

    async def _start(self, status: int, headers: dict[str, str]) -> None:
        self.status = status
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def _pour(self, chunks: AsyncIterator[bytes]) -> None:
        """Send a stream until it ends or the client leaves."""
        gone = asyncio.ensure_future(self._receive())  # after the request only a disconnect can be received
        try:
            while (chunk := await _next(chunks, gone)) is not None:
                await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
                await asyncio.sleep(0)  # sending to a client that left never waits, so the disconnect would go unseen
            if not gone.done():
                await self._send({"type": "http.response.body", "body": b""})
        finally:
            gone.cancel()


async def _next(chunks: AsyncIterator[bytes], gone: "asyncio.Future[Any]") -> bytes | None:
    """The next piece; None if the stream has ended or the client left."""
    if gone.done():
        return None
    coming: asyncio.Future[Any] = asyncio.ensure_future(anext(chunks, None))
    try:
        await asyncio.wait({coming, gone}, return_when=asyncio.FIRST_COMPLETED)
        return coming.result() if coming.done() else None
    finally:
        if not coming.done():
            coming.cancel()
            await asyncio.wait({coming})  # otherwise the stream would be closed while it still runs
