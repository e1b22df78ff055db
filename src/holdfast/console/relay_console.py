"""The console of a relay, for its operator: pages over what the relay keeps, and the few things that an operator decides."""

import asyncio
import os
from typing import Any

import msgspec

from holdfast.console import relay_messages, relay_names, relay_overview, relay_places
from holdfast.console.application import BASE, Console, Visit
from holdfast.console.audit import Audit, LakeUnavailable, Report
from holdfast.console.listing import read
from holdfast.console.signing_in import Role
from holdfast.protocol.http_auth import SCHEME
from holdfast.protocol.refusal import REFUSALS, Refusal, Refused
from holdfast.relay import queue
from holdfast.relay.http_auth import HttpAuth
from holdfast.relay.relay import Relay
from holdfast.relay.server import Application
from holdfast.store import history
from holdfast.store.world import Clock, Random, wall_clock
from holdfast.wire.request import read_document
from holdfast.wire.route import Reply, Request, json_reply

POLL_S = 1.0  # between two looks for something new: another relay on the same store may have written it
REASON_CHARACTERS_MAX = 500

NAV = (
    ("/", "Overview"),
    ("/messages", "Messages"),
    ("/queues", "Queues"),
    ("/meshes", "Meshes"),
    ("/feed", "Feed"),
    ("/history", "History"),
    ("/audit", "Audit"),
)


class _Wanted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What somebody asks a link for."""

    role: Role = Role.OPERATOR


class RelayConsole:
    """Pages of one relay."""

    def __init__(
        self,
        relay: Relay,
        app: Application,
        *,
        report: Report | None = None,
        readers: frozenset[str] = frozenset(),
        clock: Clock = wall_clock,
        random: Random = os.urandom,
    ) -> None:
        """`readers` are keys that may look and change nothing; operators are the relay's own."""
        self._relay = relay
        self._metrics = app.metrics
        self._auth = HttpAuth(clock)
        self._readers = readers
        self._audit = Audit(report, clock)
        self._rates_read = relay_overview.Rates()
        self.console = Console(
            kind="relay",
            nav=NAV,
            title=lambda: relay.settings.name,
            change=self._change,
            clock=clock,
            random=random,
            counts=app.metrics,
            local_only=lambda: app.is_private,
            public_url=relay.settings.public_url,
        )
        page = self.console.page
        self.console.add(
            self.console.open_route("POST", "/sign-in", self._sign_in),
            page("GET", "/", self._overview),
            page("GET", "/rates", self._rates),
            page("GET", "/messages", self._messages),
            page("GET", "/messages/{message_id}", self._message),
            page("POST", "/messages/{message_id}/moderation", self._moderate, Role.OPERATOR),
            page("GET", "/queues", self._queues),
            page("GET", "/meshes", self._meshes),
            page("GET", "/meshes/{mesh}", self._mesh),
            page("GET", "/meshes/{mesh}/members/{member}", self._member),
            page("GET", "/feed", self._feed),
            page("GET", "/feed/{author}/{d}", self._document),
            page("GET", "/history", self._history),
            page("GET", "/audit", self._audit_page),
            page("GET", "/audit/latency", self._latency),
        )
        app.mounted[BASE.strip("/")] = self.console

    def end(self) -> None:
        """Let live pages go, so that the relay can stop."""
        self.console.live.end()

    async def _change(self, version: int) -> int:
        """The history's head plus the answers given; waits until it is greater than `version`."""
        while True:
            head = await self._relay.look(history.head)
            found = head.seq + sum(self._metrics.answered().values())
            if found > version:
                return found
            await asyncio.sleep(POLL_S)

    async def _sign_in(self, request: Request) -> Reply:
        """A link for an operator or a reader, who signs the request (NIP-98)."""
        scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != SCHEME.lower():
            raise Refused(Refusal.AUTH_REQUIRED, "this takes an Authorization header with a signed event (NIP-98)")
        signed = self._auth.verify(credentials.strip(), request.method, request.urls, request.body)
        is_operator = self._relay.is_operator(signed.pubkey)
        if not is_operator and signed.pubkey not in self._readers:
            raise Refused(
                Refusal.AUTH_FAILED,
                "this key is neither an operator's nor one of the `readers` in this relay's settings",
            )
        self._auth.spend(signed)
        wanted = read_document(request.body or b"{}", _Wanted)
        role = wanted.role if is_operator else Role.READER
        return json_reply({"path": self.console.link(role, signed.pubkey), "role": role.value})

    async def _overview(self, visit: Visit) -> Reply:
        now = self._relay.now()
        found = await self._relay.look(lambda tx: relay_overview.overview(tx, now))
        answers = self._metrics.answered()
        refusals = sorted(
            ((code, count) for code, count in answers.items() if code not in ("accepted", "duplicate") and count),
            key=lambda row: (-row[1], row[0]),
        )
        return self.console.render(
            visit,
            "relay/overview.html",
            **found,
            answers=answers,
            refusals=[(code, count, _sentence(code)) for code, count in refusals],
            is_ready=self._relay.ready,
            cap=self._relay.settings.limits.queue_messages_max,
        )

    async def _rates(self, visit: Visit) -> Reply:
        now = self._relay.now()
        return json_reply(await self._relay.look(lambda tx: self._rates_read.read(tx, now)))

    async def _messages(self, visit: Visit) -> Reply:
        query = read(visit.query, relay_messages.Query)
        if query.q is not None:
            return await self._found(visit, query.q)
        (rows, following), names, meshes = await self._relay.look(lambda tx: _listed(tx, query))
        page = self.console.list(visit, query, rows, following)
        return self.console.render(
            visit, "relay/messages.html", page=page, query=query, names=names, meshes=meshes, missing=None
        )

    async def _found(self, visit: Visit, name: str) -> Reply:
        """Go to the message of an id, or list the messages that it may mean."""
        found = await self._relay.look(lambda tx: relay_messages.find(tx, name))
        if len(found) == 1:
            return self.console.back(visit, f"/messages/{found[0]}")
        meshes = await self._relay.look(relay_names.meshes)
        query = relay_messages.Query()
        return self.console.render(
            visit,
            "relay/messages.html",
            page=self.console.list(visit, query, [], None),
            query=query,
            names={},
            meshes=meshes,
            missing=(name, found),
        )

    async def _message(self, visit: Visit) -> Reply:
        at = visit.query.get("at", "")
        found = await self._relay.look(lambda tx: relay_messages.message(tx, visit.part("message_id"), at))
        return self.console.render(visit, "relay/message.html", **found, reason_max=REASON_CHARACTERS_MAX)

    async def _moderate(self, visit: Visit) -> Reply:
        message_id, reason, now = visit.part("message_id"), visit.field("reason").strip(), self._relay.now
        page = f"/messages/{message_id}"
        if not 1 <= len(reason) <= REASON_CHARACTERS_MAX:
            return self.console.back(visit, page, f"A reason has 1 to {REASON_CHARACTERS_MAX} characters.", is_bad=True)
        done = await self._relay.decide(lambda tx: queue.moderate(tx, now(), message_id, visit.session.who, reason))
        closed = done["closed"]
        many = "nobody waited for it any more" if not closed else f"closed for {closed} recipient{'s' * (closed != 1)}"
        return self.console.back(visit, page, f"Taken down: {many}. Entry {done['history_id']} of the history says so.")

    async def _queues(self, visit: Visit) -> Reply:
        query = read(visit.query, relay_places.QueueQuery)
        found = await self._relay.look(lambda tx: relay_places.queues(tx, query))
        page = self.console.list(visit, query, found["rows"], found["following"])
        cap = self._relay.settings.limits.queue_messages_max
        return self.console.render(visit, "relay/queues.html", page=page, query=query, meshes=found["meshes"], cap=cap)

    async def _meshes(self, visit: Visit) -> Reply:
        query = read(visit.query, relay_places.MeshQuery)
        rows, following = await self._relay.look(lambda tx: relay_places.meshes(tx, query))
        page = self.console.list(visit, query, rows, following)
        return self.console.render(visit, "relay/meshes.html", page=page, query=query)

    async def _mesh(self, visit: Visit) -> Reply:
        query = read(visit.query, relay_places.MemberQuery)
        found = await self._relay.look(lambda tx: relay_places.mesh(tx, visit.part("mesh"), query))
        page = self.console.list(visit, query, found.pop("rows"), found.pop("following"))
        return self.console.render(visit, "relay/mesh.html", page=page, query=query, **found)

    async def _member(self, visit: Visit) -> Reply:
        mesh, member = visit.part("mesh"), visit.part("member")
        waiting = relay_messages.Query(mesh=mesh, recipient=member, state="waiting", order="oldest")

        def look(tx: Any) -> tuple[dict[str, Any], Any]:
            found = relay_places.member(tx, mesh, member)
            rows = relay_messages.page(tx, waiting)[0][: relay_places.WAITING_SHOWN]
            found["names"] = relay_names.names(tx, [(row.mesh, row.sender) for row in rows])
            return found, rows

        found, rows = await self._relay.look(look)
        cap = self._relay.settings.limits.queue_messages_max
        return self.console.render(visit, "relay/member.html", waiting=rows, cap=cap, **found)

    async def _feed(self, visit: Visit) -> Reply:
        query = read(visit.query, relay_places.DocumentQuery)
        found = await self._relay.look(lambda tx: relay_places.feed(tx, query))
        page = self.console.list(visit, query, found.pop("rows"), found.pop("following"))
        return self.console.render(visit, "relay/feed.html", page=page, query=query, **found)

    async def _document(self, visit: Visit) -> Reply:
        query = read(visit.query, relay_places.SeqQuery)
        author, d = visit.part("author"), visit.part("d")
        found = await self._relay.look(lambda tx: relay_places.document(tx, author, d, query))
        page = self.console.list(visit, query, found.pop("rows"), found.pop("following"))
        return self.console.render(visit, "relay/document.html", page=page, **found)

    async def _history(self, visit: Visit) -> Reply:
        query = read(visit.query, relay_places.SeqQuery)
        found = await self._relay.look(lambda tx: relay_places.entries(tx, query))
        page = self.console.list(visit, query, found.pop("rows"), found.pop("following"))
        return self.console.render(visit, "relay/history.html", page=page, **found)

    async def _audit_page(self, visit: Visit) -> Reply:
        try:
            found, why = await self._audit.read(), ""
        except LakeUnavailable as unavailable:
            found, why = None, str(unavailable)
        return self.console.render(visit, "relay/audit.html", found=found, why=why)

    async def _latency(self, visit: Visit) -> Reply:
        try:
            latency = (await self._audit.read())["report"]["latency"]
        except LakeUnavailable as unavailable:
            raise Refused(Refusal.UNAVAILABLE, str(unavailable)) from unavailable
        lines = {name: [hour.get(name) for hour in latency] for name in ("p50", "p90", "p99")}
        return json_reply({"at": [hour["hour"] // 1_000_000 for hour in latency], "lines": lines})


def _listed(transaction: Any, query: relay_messages.Query) -> tuple[Any, Any, Any]:
    """A page of messages, the names on it, and the meshes to choose from."""
    page = relay_messages.page(transaction, query)
    people = [(row.mesh, row.sender) for row in page[0]] + [(row.mesh, row.destination_ref) for row in page[0]]
    return page, relay_names.names(transaction, people), relay_names.meshes(transaction)


def _sentence(code: str) -> str:
    """What a refusal means, and what helps."""
    try:
        return REFUSALS[Refusal(code)].sentence
    except ValueError:
        return ""
