"""The daemon's HTTP applications: who may ask, how many at once, and how refusals and failures are answered.

Two doors lead to the same routes. The mode of the Unix socket admits its owner only. Every program and browser of the machine
can reach the loopback port, so that one asks for the local token; and neither door takes requests from web pages.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from typing import Any
from urllib.parse import unquote

import structlog

from holdfast.device.daemon import Daemon
from holdfast.device.ipc_events import Events
from holdfast.device.ipc_handlers import Handlers
from holdfast.device.local_token import LocalToken
from holdfast.export.exporter import Exporter
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.wire.lean import Client, LeanRoutes, RawHeaders
from holdfast.wire.metrics import Counts
from holdfast.wire.network import is_loopback
from holdfast.wire.request import Headers, bearer_of, by_name, host_of, read_body, read_headers
from holdfast.wire.response import Receive, Response, Send
from holdfast.wire.route import Reply, Request, problem_reply, read_query
from holdfast.wire.telling import told

SEND = "/v1/send"
REQUEST_BYTES_MAX = 1_048_576  # of one request's body
REQUESTS_MAX = 64  # at once, not counting event streams
RETRY_AFTER_S = 1  # told to those beyond that

_log = structlog.get_logger(__name__)


class Door(StrEnum):
    """How a request came in."""

    SOCKET = "socket"
    LOOPBACK = "loopback"


class Application:
    """The daemon's routes as ASGI applications, one for each door."""

    def __init__(self, daemon: Daemon, exporter: Exporter, *, token: LocalToken | None = None) -> None:
        self.counts = Counts()
        self.events = Events(daemon)
        self._random = daemon.device.random
        self._token = token
        self.under_way = 0
        self.handlers = Handlers(daemon, exporter, self.events, self.counts, token)
        self.counts.watch("requests_under_way", "Requests that are being answered.", lambda: self.under_way)
        self.counts.watch("event_streams", "Open event streams.", lambda: self.events.open_count)

    async def socket(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer a request over the Unix socket."""
        await self._answer(Door.SOCKET, scope, receive, send)

    async def loopback(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer a request over the loopback port."""
        await self._answer(Door.LOOPBACK, scope, receive, send)

    def lean_routes(self, door: Door) -> LeanRoutes:
        """The fast path of a door, for sends."""
        return {(b"POST", SEND.encode()): partial(self._send, door)}

    async def _send(self, door: Door, raw_headers: RawHeaders, client: Client, body: bytes) -> Reply:
        try:
            headers = by_name(raw_headers)
            self._admit(door, {"path": SEND, "query_string": b""}, headers)
            with self._turn():
                reply = await self.handlers.take_send(headers, body)
        except Exception as error:  # whatever it is, the caller is told
            reply = problem_reply(told(error, SEND, self.counts, self._random))
        self.counts.request(SEND, reply.status)
        return reply

    async def _answer(self, door: Door, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close"})  # before it was accepted: the handshake is answered 403
            return
        body = await read_body(receive)
        if body is None:
            return  # the caller left before its request was complete
        response = Response(receive, send)
        route = "none"
        try:
            headers = read_headers(scope)
            query = self._admit(door, scope, headers)
            found, parameters = self.handlers.routes.find(scope["method"], scope["raw_path"].decode("latin-1"))
            route = found.path
            request = Request(
                method=scope["method"],
                path=scope["path"],
                query=query,
                headers=headers,
                body=body,
                urls=frozenset(),
                local=door is Door.SOCKET,
                parameters={name: unquote(value) for name, value in parameters.items()},
            )
            if found.is_endless:
                await response.give(await found.handler(request))
            else:
                with self._turn():
                    await response.give(await found.handler(request))
        except Exception as error:  # whatever it is, the caller is told
            problem = told(error, scope["path"], self.counts, self._random)
            if response.status:
                raise  # half of an answer is out: only a broken connection can say so now
            await response.give(problem_reply(problem))
        self.counts.request(route, response.status)

    def _admit(self, door: Door, scope: Any, headers: Headers) -> dict[str, str]:
        """Check that a request is allowed at a door; returns its query parameters."""
        host = host_of(headers)
        if host and not is_loopback(host):
            raise Refused(Refusal.HOST_NOT_ALLOWED, "the daemon serves this machine only")
        if "origin" in headers:
            raise Refused(Refusal.ORIGIN_NOT_ALLOWED, "the request comes from a page in a browser")
        try:
            query = read_query(scope["query_string"])
        except Refused as refused:
            if refused.refusal is Refusal.TOKEN_IN_QUERY:
                _log.warning("security", what="a token stood in a URL", door=door.value, path=scope["path"])
            raise
        if door is Door.LOOPBACK:
            self._check_token(headers, scope)
        return query

    def _check_token(self, headers: Headers, scope: Any) -> None:
        try:
            assert self._token is not None  # noqa: S101 - the port is open
            self._token.check(bearer_of(headers))
        except Refused:
            _log.warning("security", what="no token, or a wrong one", door=Door.LOOPBACK.value, path=scope["path"])
            raise

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if self.under_way >= REQUESTS_MAX:
            raise Busy
        self.under_way += 1
        try:
            yield
        finally:
            self.under_way -= 1


class Busy(Refused):
    """Too many requests at once; says when to try again."""

    def __init__(self) -> None:
        super().__init__(Refusal.DAEMON_BUSY, f"{REQUESTS_MAX} requests are under way")
        self.members = {"retry_after_s": RETRY_AFTER_S}
