"""Lean requests: a fast path for busy routes that bypasses ASGI.

A lean route takes a whole body and gives a whole reply, so it needs none of ASGI's messages, events and tasks. Limits,
deadlines and the order of pipelined requests are the connection's, as for any other request.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from holdfast.wire.route import Reply

RawHeaders = list[tuple[bytes, bytes]]
Client = tuple[str, int] | None

LeanHandler = Callable[[RawHeaders, Client, bytes], Awaitable[Reply]]
"""Answers a request from its headers, the client's address and its body. It does not raise: every refusal is a reply. If it
returns a future, no task is needed."""

LeanRoutes = Mapping[tuple[bytes, bytes], LeanHandler]
"""Handlers by method and by URL, as written in the request and without a query."""


class LeanCycle:
    """One request and its answer; it takes the place of uvicorn's own cycle."""

    def __init__(self, handler: LeanHandler, headers: RawHeaders, keep_alive: bool) -> None:
        self.handler = handler
        self.headers = headers
        self.keep_alive = keep_alive
        self.parts: list[bytes] = []
        self.more_body = True
        self.has_turn = False  # whether all earlier requests on the connection have been answered
        self.disconnected = False
        self.response_started = False
        self.response_complete = False
        self.message_event = _NOBODY_WAITS

    @property
    def may_begin(self) -> bool:
        return self.has_turn and not self.more_body and not self.response_started and not self.disconnected

    def ask(self, client: Client) -> asyncio.Future[Reply]:
        self.response_started = True
        return asyncio.ensure_future(self.handler(self.headers, client, b"".join(self.parts)))

    def answer(
        self, reply: Reply, transport: asyncio.Transport, date: RawHeaders, on_response: Callable[[], None]
    ) -> None:
        if self.disconnected:
            return
        transport.write(response(reply, date, self.keep_alive))
        self.response_complete = True
        if not self.keep_alive:
            transport.close()
        on_response()


def response(reply: Reply, date: Iterable[tuple[bytes, bytes]], keep_alive: bool) -> bytes:
    """The bytes of a whole answer."""
    lines = [STATUS_LINE[reply.status]]
    lines += [b"%s: %s\r\n" % header for header in date]
    if reply.content_type:
        lines.append(b"content-type: %s\r\ncontent-length: %d\r\n" % (reply.content_type.encode(), len(reply.body)))
    lines += [f"{name}: {value}\r\n".encode("latin-1") for name, value in reply.headers.items()]
    if not keep_alive:
        lines.append(b"connection: close\r\n")
    lines += [b"\r\n", reply.body]
    return b"".join(lines)


class _NobodyWaits:
    """Stands in for the event that uvicorn's protocol sets when data comes; nobody waits for it here."""

    def set(self) -> None:
        pass


_NOBODY_WAITS: Any = _NobodyWaits()
