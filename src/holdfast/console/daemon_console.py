"""The console of a daemon, for the owner of its home: served on this machine alone, from the first time that a link is asked for.

Whatever it changes it changes by asking the daemon what every program asks it, at the same routes and with the same answers.
"""

import asyncio
from collections.abc import Mapping
from typing import TypeVar
from urllib.parse import unquote

import msgspec

from holdfast.console import daemon_lists, health
from holdfast.console.application import Console, Visit
from holdfast.console.daemon_documents import DocumentPages
from holdfast.console.daemon_outbox import OutboxPages, names, part
from holdfast.console.listing import read
from holdfast.console.signing_in import Role
from holdfast.device import ipc_documents as documents
from holdfast.device.daemon import Daemon
from holdfast.device.ipc_feed import Feed
from holdfast.device.ipc_handlers import Handlers
from holdfast.device.ipc_service import LOOPBACK
from holdfast.device.trace import Trace
from holdfast.hook.layout import DATABASE_NAME
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.tags import shown
from holdfast.wire.metrics import Counts
from holdfast.wire.network import Network
from holdfast.wire.request import read_document
from holdfast.wire.route import Reply, Request, Route, json_reply
from holdfast.wire.server import Server
from holdfast.wire.state import Limits

CONSOLE_PATH = "/v1/console"
LIMITS = Limits(connections_max=256, request_bytes_max=524_288, bodies_bytes_max=16_777_216, drain_timeout_s=2.0)

NAV = (
    ("/", "Overview"),
    ("/outbox", "Outbox"),
    ("/inbox", "Inbox"),
    ("/trace", "Trace"),
    ("/documents", "Documents"),
    ("/agents", "Agents"),
    ("/health", "Health"),
)

T = TypeVar("T")


class Wanted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request for a link, with the role that it gives."""

    role: Role = Role.OPERATOR


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """A link that signs in once, within two minutes."""

    url: str
    role: Role


class Asking:
    """Calls the daemon's routes in this process, without a socket."""

    def __init__(self, handlers: Handlers) -> None:
        self._handlers = handlers

    async def __call__(
        self, method: str, path: str, shape: type[T], *, query: Mapping[str, object] | None = None, body: object = None
    ) -> T:
        route, parameters = self._handlers.routes.find(method, path)
        request = Request(
            method=method,
            path=path,
            query={name: str(value) for name, value in (query or {}).items()},
            headers={},
            body=b"" if body is None else msgspec.json.encode(body),
            urls=frozenset(),
            local=True,
            parameters={name: unquote(value) for name, value in parameters.items()},
        )
        reply = await route.handler(request)
        if not isinstance(reply, Reply):
            raise TypeError(f"{path} is answered by a stream")
        return msgspec.json.decode(reply.body, type=shape)


class DaemonConsole:
    """Pages of one home."""

    def __init__(self, daemon: Daemon, handlers: Handlers, counts: Counts, network: Network) -> None:
        device = daemon.device
        self._daemon = daemon
        self._network = network
        self._starting = asyncio.Lock()
        self._agents = daemon_lists.Agents(device.home.path / DATABASE_NAME)
        self.ask = Asking(handlers)
        self.console = Console(
            kind="daemon",
            nav=NAV,
            title=lambda: f"{daemon.membership.member_name} in {daemon.membership.mesh_name}",
            change=self._change,
            clock=device.clock,
            random=device.random,
            counts=counts,
            local_only=lambda: True,
        )
        self._server: Server | None = None
        self._outbox = OutboxPages(self.console, daemon, self.ask)
        page = self.console.page
        self.console.add(
            page("GET", "/", self._overview),
            page("GET", "/inbox", self._inbox),
            page("GET", "/inbox/{id}", self._message),
            page("POST", "/inbox/{id}/apply", self._apply, Role.OPERATOR),
            page("GET", "/trace", self._trace),
            page("GET", "/agents", self._sessions),
            page("GET", "/agents/{agent}/{session}", self._session),
            page("GET", "/health", self._health),
            *self._outbox.routes(),
            *DocumentPages(self.console, self.ask).routes(),
        )
        handlers.add(
            Route(
                method="POST",
                path=CONSOLE_PATH,
                handler=self._link,
                summary="A link that opens the console once; on the socket only.",
                auth="local",
                body=Wanted,
                answers={200: (Link,)},
            )
        )

    async def close(self) -> None:
        """End live pages, and stop the server."""
        self.console.live.end()
        await self._outbox.close()
        if self._server is not None:
            await self._server.close()

    async def _link(self, request: Request) -> Reply:
        if not request.local:  # whoever has the port's token is a program; this opens everything to a person
            raise Refused(Refusal.SOCKET_ONLY, "a link to the console is given out on the socket")
        wanted = read_document(request.body or b"{}", Wanted)
        url = await self._served()
        return json_reply(Link(url=url + self.console.link(wanted.role, "owner"), role=wanted.role))

    async def _served(self) -> str:
        """The address of the pages; the first call starts the server."""
        async with self._starting:
            if self._server is None:
                server = Server(self.console, LIMITS, clock=self._daemon.device.clock)
                await server.start(self._network, LOOPBACK, 0)
                self._server = server
        return self._server.url

    async def _change(self, version: int) -> int:
        changes = self._daemon.changes
        return changes.version if version < 0 else await changes.wait(version)

    async def _overview(self, visit: Visit) -> Reply:
        found = self._daemon.look(daemon_lists.overview)
        known = await self.ask("GET", "/v1/health", documents.Health)
        outbox = await self.ask("GET", "/v1/outbox", documents.OutboxPage, query={"limit": 1, "status": "dead"})
        return self.console.render(
            visit, "daemon/overview.html", health=known, counts=outbox.counts, names=names(self._daemon), **found
        )

    async def _inbox(self, visit: Visit) -> Reply:
        query = read(visit.query, daemon_lists.InboxQuery)
        asked = query
        if query.sender is not None:
            asked = msgspec.structs.replace(query, sender=self._member(query.sender))
        rows, following = self._daemon.look(lambda tx: daemon_lists.messages(tx, asked))
        page = self.console.list(visit, query, rows, following)
        return self.console.render(visit, "daemon/inbox.html", page=page, query=query)

    async def _message(self, visit: Visit) -> Reply:
        found = await self.ask("GET", f"/v1/inbox/{part(visit.part('id'))}", documents.Message)
        return self.console.render(visit, "daemon/message.html", message=found, names=names(self._daemon))

    async def _apply(self, visit: Visit) -> Reply:
        name = visit.part("id")
        done = await self.ask("POST", "/v1/inbox/ack", documents.Acknowledged, body={"ids": [name]})
        if done.unknown:
            raise Refused(Refusal.NOT_FOUND, f"there is no message {shown(name)} in the inbox")
        text = "Marked as dealt with." if done.applied else "Somebody had dealt with it already."
        return self.console.back(visit, f"/inbox/{name}", text)

    async def _trace(self, visit: Visit) -> Reply:
        name = visit.query.get("id", "").strip()
        found, why = None, ""
        if name:
            try:
                found = await self.ask("GET", f"/v1/trace/{part(name)}", Trace)
            except Refused as refused:
                why = refused.detail
        return self.console.render(
            visit, "daemon/trace.html", name=name, found=found, why=why, names=names(self._daemon)
        )

    async def _sessions(self, visit: Visit) -> Reply:
        query = read(visit.query, daemon_lists.SessionQuery)
        found = self._agents.sessions(query)
        page = self.console.list(visit, query, [], None)
        if found is not None:
            page = self.console.list(visit, query, found["rows"], found["following"])
        return self.console.render(
            visit,
            "daemon/agents.html",
            page=page,
            is_installed=found is not None,
            dropped=[] if found is None else found["dropped"],
        )

    async def _session(self, visit: Visit) -> Reply:
        query = read(visit.query, daemon_lists.EventQuery)
        agent, session = visit.part("agent"), visit.part("session")
        rows, following = self._agents.events(agent, session, query)
        if not rows and query.at is None:
            raise Refused(Refusal.NOT_FOUND, f"nothing is known of session {shown(session)} of {shown(agent)}")
        page = self.console.list(visit, query, rows, following)
        return self.console.render(visit, "daemon/agent.html", page=page, agent=agent, session_id=session)

    async def _health(self, visit: Visit) -> Reply:
        known = await self.ask("GET", "/v1/health", documents.Health)
        reports = await self.ask("GET", "/v1/reports", documents.Reports)
        feed = await self.ask("GET", "/v1/feed", Feed)
        return self.console.render(
            visit, "daemon/health.html", health=known, signs=health.signs(known, feed, reports.reports)
        )

    def _member(self, who: str) -> str:
        directory = self._daemon.directory
        return who if who in directory.members else directory.resolve(who)[1]
