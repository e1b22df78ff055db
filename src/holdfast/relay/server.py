"""The relay as an ASGI application: routing, authentication, and answers to failures.

Publishing is the hot path and does only what it must. Every refusal is a problem document with its code; a fault is 503 and
may pass; a bug is 500 with a number that the log has too.
"""

import asyncio
import os
from typing import Any
from urllib.parse import unquote

import msgspec
from uvicorn._types import ASGI3Application

from holdfast.export.exporter import Exporter
from holdfast.protocol.connection_auth import CHALLENGE_BYTES
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.relay import metrics
from holdfast.relay.changes import Feeds
from holdfast.relay.handlers import Handlers
from holdfast.relay.publishing import MESSAGES, Publisher
from holdfast.relay.reading import Reading
from holdfast.relay.relay import Relay
from holdfast.relay.session import Session
from holdfast.relay.stream import Streams
from holdfast.store.world import Clock, Random, wall_clock
from holdfast.wire.budget import Budget
from holdfast.wire.lean import Client, LeanRoutes, RawHeaders
from holdfast.wire.network import address, is_loopback
from holdfast.wire.problem import Problem, refusal_problem
from holdfast.wire.request import MET_LOG, Headers, by_name, host_of, read_body, read_headers
from holdfast.wire.response import Receive, Response, Send
from holdfast.wire.route import Reply, Request, problem_reply, read_query
from holdfast.wire.telling import told

INTERNAL_ERROR = 1011  # the close code after an error of ours
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")

# Headers that a proxy adds: such a request comes from somebody behind it.
FORWARDING = ("forwarded", "via", "x-forwarded-", "x-real-ip")  # names of headers, or how they begin


class Application:
    """The relay as an ASGI application."""

    def __init__(
        self,
        relay: Relay,
        exporter: Exporter,
        *,
        clock: Clock = wall_clock,
        random: Random = os.urandom,
    ) -> None:
        self.metrics = metrics.Metrics()
        self.draining = False
        self.lean_routes: LeanRoutes = {(b"POST", MESSAGES.encode()): self._publish}
        # Other applications served here, by the first segment of their paths.
        self.mounted: dict[str, ASGI3Application] = {}
        self.streams = Streams(relay)
        self.feeds = Feeds(relay)
        self._relay = relay
        self._settings = relay.settings
        self._random = random
        self._publisher = Publisher(relay, self.metrics)
        self._routes = Handlers(relay, exporter, self._publisher, self.metrics, lambda: self.draining, clock).routes
        self._frames = Budget(self._settings.limits.bodies_bytes_max)
        # Only this machine can connect; with a public address a proxy would pass on strangers.
        self.is_private = is_loopback(self._settings.host) and self._settings.public_url is None
        self.metrics.watch("ready", "1 while the relay takes events.", lambda: relay.ready and not self.draining)
        self.metrics.watch("queue_streams", "Queues that are being read.", lambda: self.streams.open)
        self.metrics.watch("slow_consumers", "Of these, readers with a full window.", lambda: self.streams.paused)
        self.metrics.watch("feed_subscriptions", "Subscriptions to the feed.", lambda: self.feeds.open)
        self.metrics.watch_counts(relay.counts)

    @property
    def is_read(self) -> bool:
        """Whether any connection follows a queue or the feed."""
        return bool(self.streams.open or self.feeds.open)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        elif (other := self.mounted.get(scope["path"].lstrip("/").partition("/")[0])) is not None:
            await other(scope | {"urls": self._urls(scope)}, receive, send)
        else:
            await self._http(scope, receive, send)

    async def _http(self, scope: Any, receive: Receive, send: Send) -> None:
        body = await read_body(receive)
        if body is None:
            return  # the client left before its request was complete
        response = Response(receive, send)
        route = "none"
        try:
            headers = read_headers(scope)
            self._check_host(headers)
            request = self._request(scope, headers, body)
            # The raw path: an id in it may have an escaped slash.
            found, parameters = self._routes.find(request.method, scope["raw_path"].decode("latin-1"))
            route, named = found.path, {name: unquote(value) for name, value in parameters.items()}
            await response.give(await found.handler(msgspec.structs.replace(request, parameters=named)))
        except Exception as error:  # of any kind: the caller gets an answer
            problem = self._told(error, scope)
            if response.status:
                raise  # part of an answer was sent: now only breaking the connection can tell
            await response.give(problem_reply(problem))
        self.metrics.request(route, response.status)

    def _publish(self, raw_headers: RawHeaders, client: Client, body: bytes) -> asyncio.Future[Reply]:
        """The lean handler of publishing, which is the hot path."""
        promised: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

        def give(outcome: Reply | Exception) -> None:
            if isinstance(outcome, Exception):  # of any kind: the caller gets an answer
                outcome = problem_reply(told(outcome, MESSAGES, self.metrics, self._random))
            self.metrics.request(MESSAGES, outcome.status)
            if not promised.done():
                promised.set_result(outcome)

        try:
            headers = by_name(raw_headers)
            self._check_host(headers)
            self._publisher.body_soon(body, self._is_near(client, headers), give, headers.get(MET_LOG))
        except Exception as error:
            give(error)
        return promised

    def _request(self, scope: Any, headers: Headers, body: bytes) -> Request:
        return Request(
            method=scope["method"],
            path=scope["path"],
            query=read_query(scope["query_string"]),
            headers=headers,
            body=body,
            urls=self._urls(scope),
            local=self._is_local(scope, headers),
        )

    def _told(self, error: Exception, scope: Any) -> Problem:
        return told(error, scope["path"], self.metrics, self._random)

    def _check_host(self, headers: Headers) -> None:
        """Refuse foreign Host headers: a web page can let its own name point at this machine (DNS rebinding)."""
        if self.is_private and not is_loopback(host_of(headers)):
            raise Refused(Refusal.HOST_NOT_ALLOWED, "this relay is for this machine only")

    def _is_local(self, scope: Any, headers: Headers) -> bool:
        return self._is_near(scope["client"], headers)

    def _is_near(self, client: Client, headers: Headers) -> bool:
        """Whether a request comes from this machine itself: not through a proxy, and not from a web page."""
        is_near = self.is_private and client is not None and is_loopback(client[0])
        return is_near and "origin" not in headers and not any(name.startswith(FORWARDING) for name in headers)

    def _urls(self, scope: Any) -> frozenset[str]:
        """All spellings of the address of a request, by what the relay knows of itself."""
        query = scope["query_string"].decode("latin-1")
        asked = scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
        return frozenset(base + asked for base in self._bases(scope))

    def _bases(self, scope: Any) -> set[str]:
        """All spellings of the address of this relay."""
        host, port = scope["server"]
        names = {host, *LOOPBACK_NAMES} if is_loopback(host) else {host}
        bases = {f"http://{address(name, port)}" for name in names}
        if self._settings.public_url is not None:
            bases.add(self._settings.public_url.rstrip("/"))
        return bases

    async def _websocket(self, scope: Any, receive: Receive, send: Send) -> None:
        await receive()  # the connect message
        headers = read_headers(scope)
        try:
            self._admit(scope, headers)
        except Refused as refused:
            await _reject(send, refusal_problem(refused.refusal, refused.detail))
            return
        await send({"type": "websocket.accept"})
        local = self._is_local(scope, headers)
        session = Session(
            lambda raws, held: self._publisher.events(raws, local, held),
            send,
            self._frames,
            self._settings.limits.events_in_flight_max,
            self.metrics.notice,
            lambda say, close: Reading(
                self._relay,
                self.streams,
                self.feeds,
                self._bases(scope),
                self._random(CHALLENGE_BYTES).hex(),
                say,
                close,
            ),
        )
        with self.metrics.websockets.track_inprogress():
            try:
                await session.run(receive)
            except ExceptionGroup as group:  # of any kind: the other side is told
                problem = self._told(group.exceptions[0], scope)
                reason = f"{problem.document['code']} {problem.document.get('number', '')}".strip()
                await send({"type": "websocket.close", "code": INTERNAL_ERROR, "reason": reason})

    def _admit(self, scope: Any, headers: Headers) -> None:
        read_query(scope["query_string"])
        self._check_host(headers)
        if scope["path"] != "/":
            raise Refused(Refusal.NOT_FOUND, "a WebSocket opens at /")
        if self.draining:
            raise Refused(Refusal.SHUTTING_DOWN, "it takes no connections")


async def _reject(send: Send, problem: Problem) -> None:
    """Refuse a handshake with a problem document."""
    start = {"type": "websocket.http.response.start", "status": problem.status, "headers": problem.all_headers()}
    await send(start)
    await send({"type": "websocket.http.response.body", "body": problem.body})
