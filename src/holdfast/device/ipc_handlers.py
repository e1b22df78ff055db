"""The handlers of the daemon's routes."""

import os
from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.device import administration, inbox, ipc_administration, ipc_queries, local_token, outbox, scheduled, send
from holdfast.device import ipc_documents as documents
from holdfast.device import requeue as requeues
from holdfast.device import trace as traces
from holdfast.device.daemon import Daemon, LinkState
from holdfast.device.database import SCHEMA
from holdfast.device.ipc_events import Events
from holdfast.device.ipc_feed import FeedHandlers
from holdfast.device.ipc_routes import routes
from holdfast.device.local_token import LocalToken
from holdfast.device.trouble import TROUBLES, Troubled
from holdfast.export import exporter as export
from holdfast.protocol import features
from holdfast.protocol.outbox import RelayWord, Status
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.schedule import SECOND
from holdfast.protocol.tags import shown
from holdfast.store import history
from holdfast.store.engine import Transaction
from holdfast.store.statements import Statements
from holdfast.wire.metrics import CONTENT_TYPE as METRICS
from holdfast.wire.metrics import Counts
from holdfast.wire.openapi import Security, openapi
from holdfast.wire.problem import PROBLEM_JSON
from holdfast.wire.request import read_document
from holdfast.wire.route import JSON, Reply, Request, Route, RouteTable, Stream, json_reply

IPC_VERSION = 1
IPC_FEATURES = ("send", "topic", "inbox", "outbox", "scheduled", "events", "feed", "export", "reload")
PAGE_BYTES_MAX = 8_388_608  # of messages in one answer
PAYLOAD_COLUMNS = frozenset({"blob", "body", "event", "meta", "payload", "request"})  # of exported tables

_SQL = Statements(__package__, "ipc.sql")
_SECURITY = Security(
    schemes={
        "local": {"type": "http", "scheme": "bearer", "description": "On the loopback port: what is in `local-token`."}
    },
    accepted={"local": ("local",)},
)
_DESCRIPTION = (
    "The daemon of one home: sends what it is given, keeps what arrives, and knows what became of everything."
)


class Handlers:
    """The routes of a daemon and their handlers."""

    def __init__(
        self, daemon: Daemon, exporter: export.Exporter, events: Events, counts: Counts, token: LocalToken | None
    ) -> None:
        self._daemon = daemon
        self._device = daemon.device
        self._exporter = exporter
        self._events = events
        self._counts = counts
        self._token = token
        self._started_at = self._device.clock()
        self.routes = RouteTable([*routes(self), *FeedHandlers(daemon).routes()])
        counts.watch("connected", "1 while the relay is in reach.", lambda: self._is_connected)
        counts.watch_counts(self._counted)

    def add(self, *routes: Route) -> None:
        """Add routes."""
        self.routes = RouteTable([*self.routes.routes, *routes])

    async def post_send(self, request: Request) -> Reply:
        return await self.take_send(request.headers, request.body)

    async def take_send(self, headers: Mapping[str, str], body: bytes) -> Reply:
        """Take a send, from either door."""
        return await self._send(headers, read_document(body, send.Send))

    async def post_topic_post(self, request: Request) -> Reply:
        post = read_document(request.body, documents.TopicPost)
        fields = {name: getattr(post, name) for name in post.__struct_fields__ if name != "topic"}
        return await self._send(request.headers, send.Send(to=documents.TOPIC_SIGN + post.topic, **fields))

    async def get_topics(self, request: Request) -> Reply:
        done = await self._administer("list_topics", ipc_administration.Arguments())
        return json_reply({"topics": done.document})

    async def post_subscribe(self, request: Request) -> Reply:
        topic = read_document(request.body, documents.NamedTopic).topic
        return json_reply(
            (await self._administer("subscribe", ipc_administration.TopicArguments(topic=topic))).document
        )

    async def post_unsubscribe(self, request: Request) -> Reply:
        topic = read_document(request.body, documents.NamedTopic).topic
        return json_reply(
            (await self._administer("unsubscribe", ipc_administration.TopicArguments(topic=topic))).document
        )

    async def post_administration(self, request: Request) -> Reply:
        verb = request.parameters["verb"]
        return json_reply(await self._administer(verb, administration.read_arguments(verb, request.body)))

    async def get_inbox(self, request: Request) -> Reply:
        query = ipc_queries.read(request.query, ipc_queries.InboxQuery)
        return self._messages(
            query,
            since=None if query.since is None else ipc_queries.read_time(query.since),
            topic=None if query.topic is None else self._topic(query.topic),
            sender=None if query.sender is None else self._member(query.sender),
            unapplied=query.unapplied,
            parked=query.parked,
        )

    async def get_mentions(self, request: Request) -> Reply:
        query = ipc_queries.read(request.query, ipc_queries.PageQuery)
        return self._messages(query, mentions_of=self._daemon.facts.member)

    async def get_message(self, request: Request) -> Reply:
        name = request.parameters["id"]
        found = self._daemon.look(lambda tx: inbox.find(tx, name))
        if found is None:
            raise Refused(Refusal.NOT_FOUND, f"there is no message {shown(name)} in the inbox")
        return json_reply(inbox.document(found))

    async def post_acknowledge(self, request: Request) -> Reply:
        ids = read_document(request.body, documents.Acknowledge).ids
        facts, now = self._daemon.facts, self._device.clock()
        return json_reply(await self._daemon.do(lambda tx: inbox.acknowledge(tx, facts, now, ids)))

    async def post_fail(self, request: Request) -> Reply:
        failed = read_document(request.body, documents.Failed)
        facts, now = self._daemon.facts, self._device.clock()
        message = await self._daemon.do(lambda tx: inbox.fail(tx, facts, now, failed.id, failed.error))
        return json_reply(inbox.document(message))

    async def get_reports(self, request: Request) -> Reply:
        ipc_queries.read(request.query, ipc_queries.NoQuery)
        found = self._daemon.look(inbox.reports)
        names = self._daemon.directory.name_of
        return json_reply({"reports": [{**_hexed(report), "sender_name": names(report.sender)} for report in found]})

    async def get_peers(self, request: Request) -> Reply:
        me = self._daemon.facts.member
        peers = [
            {**msgspec.structs.asdict(known), "is_me": known.member == me}
            for known in self._daemon.directory.members.values()
        ]
        return json_reply({"mesh": self._daemon.facts.mesh, "peers": peers})

    async def get_events(self, request: Request) -> Stream:
        return self._events.open(request)

    async def get_outbox(self, request: Request) -> Reply:
        query = ipc_queries.read(request.query, ipc_queries.OutboxQuery)
        statuses = ipc_queries.read_statuses(query.status)
        destination = None if query.to is None else self._daemon.directory.resolve(query.to)
        found, counts = self._daemon.look(
            lambda tx: (
                outbox.page(tx, statuses=statuses, destination=destination, after=query.after, limit=query.limit),
                {"scheduled": scheduled.count(tx), **outbox.count(tx)},
            )
        )
        following = found[-1].sequence if len(found) == query.limit else None
        return json_reply({"items": [_hexed(item) for item in found], "next_after": following, "counts": counts})

    async def get_outbox_row(self, request: Request) -> Reply:
        name = request.parameters["id"]
        found = self._daemon.look(lambda tx: outbox.inspect(tx, name))
        if found is None:
            raise Refused(Refusal.NOT_FOUND, f"there is no operation {shown(name)} in the log")
        return json_reply({"item": _hexed(found.item), "chain": [_hexed(item) for item in found.chain]})

    async def post_requeue(self, request: Request) -> Reply:
        asked = read_document(request.body, documents.Requeue)
        doubt = self._daemon.look(lambda tx: requeues.doubt(tx, asked.id))
        word, committed = (None, None) if doubt is None else await self._daemon.committed(doubt)
        done = await self._daemon.do(lambda tx: self._requeue(tx, asked, doubt, word, committed))
        if isinstance(done, Refused):
            raise done
        return json_reply(
            documents.Requeued(
                aborted_row_id=done.aborted_id,
                new_row_id=done.id,
                new_client_message_id=done.client_message_id,
                sequence=done.sequence,
            )
        )

    async def post_cancel(self, request: Request) -> Reply:
        asked = read_document(request.body, documents.Cancel)
        facts, now = self._daemon.facts, self._device.clock()
        return json_reply(await self._daemon.do(lambda tx: scheduled.cancel(tx, facts, now, asked.id)))

    async def get_scheduled(self, request: Request) -> Reply:
        query = ipc_queries.read(request.query, ipc_queries.ScheduledQuery)
        destination = None if query.to is None else self._daemon.directory.resolve(query.to)
        found = self._daemon.look(
            lambda tx: scheduled.waiting(tx, destination=destination, after=query.after, limit=query.limit)
        )
        following = found[-1].client_message_id if len(found) == query.limit else None
        return json_reply({"scheduled": found, "next_after": following})

    async def get_trace(self, request: Request) -> Reply:
        name = request.parameters["id"]
        found = self._daemon.look(lambda tx: traces.trace(tx, name))
        if found is None:
            raise Refused(Refusal.NOT_FOUND, f"nothing was sent or received here under {shown(name)}")
        return json_reply(traces.document(found))

    async def get_export(self, request: Request) -> Stream:
        query = export.read_query(request.parameters["table"], request.query)
        if not request.local and (payloads := PAYLOAD_COLUMNS.intersection(query.columns or ())):
            raise Refused(Refusal.SOCKET_ONLY, f"the columns {', '.join(sorted(payloads))} hold what people wrote")
        return self._exporter.open(query.table, query.after, query.until, query.columns)

    async def get_health(self, request: Request) -> Reply:
        state, membership = self._daemon.state, self._daemon.membership
        now, room = self._device.clock(), self._daemon.room.look()
        head, held = self._daemon.look(lambda tx: (history.head(tx), _held(tx, now)))
        return json_reply(
            documents.Health(
                connected=self._is_connected,
                since=state.since,
                detail=state.detail,
                relay=state.relay,
                last_error=state.last_error,
                last_error_at=state.last_error_at,
                pending_count=state.pending_count,
                pressure=room.pressure.value,
                pressure_of=room.of,
                pressure_percent=room.percent,
                **held,
                mesh=membership.mesh,
                mesh_name=membership.mesh_name,
                member=membership.member,
                member_name=membership.member_name,
                member_pubkey=self._device.pubkey,
                log_id=head.log_id.hex(),
                seq=head.seq,
                epoch=self._device.epoch.hex(),
                pid=os.getpid(),
                started_at=self._started_at,
                uptime_s=(now - self._started_at) // SECOND,
                daemon_version=_version(),
                schema_version=len(SCHEMA.migrations),
            )
        )

    async def get_compat(self, request: Request) -> Reply:
        return json_reply(
            documents.Compatibility(
                daemon_version=_version(),
                ipc_versions=[IPC_VERSION],
                required_relay_features=features.wanted(required=True),
                optional_relay_features=features.wanted(required=False),
                schema_version=len(SCHEMA.migrations),
            )
        )

    async def get_version(self, request: Request) -> Reply:
        negotiated = self._daemon.negotiated
        return json_reply(
            documents.Version(
                daemon_version=_version(),
                ipc_version=IPC_VERSION,
                ipc_features=list(IPC_FEATURES),
                relay_features_negotiated=None if negotiated is None else negotiated.features,
                schema_version=len(SCHEMA.migrations),
                mesh=self._daemon.facts.mesh,
                member=self._daemon.facts.member,
            )
        )

    async def post_reload(self, request: Request) -> Reply:
        if not request.local:
            raise Refused(Refusal.SOCKET_ONLY, "settings are read anew over the socket")
        return json_reply({"changed": self._daemon.reload()})

    async def post_rotate_token(self, request: Request) -> Reply:
        """Rotate the token, over the socket only: a stolen token must not be able to shut out its owner."""
        if not request.local:
            raise Refused(Refusal.SOCKET_ONLY, "the token is rotated over the socket")
        if self._token is None:
            local_token.renew(self._device.home.path, self._device.random)
            return json_reply(documents.TokenRotated(old_until=None))
        return json_reply(documents.TokenRotated(old_until=self._token.rotate()))

    async def get_metrics(self, request: Request) -> Reply:
        return Reply(body=self._counts.text(), content_type=METRICS)

    async def get_openapi(self, request: Request) -> Reply:
        return json_reply(
            openapi(
                self.routes.routes,
                title="Holdfast daemon",
                version=_version(),
                description=_DESCRIPTION,
                url="http://localhost",
                security=_SECURITY,
            )
        )

    @property
    def _is_connected(self) -> bool:
        return self._daemon.state.link is LinkState.CONNECTED

    async def _send(self, headers: Mapping[str, str], asked: send.Send) -> Reply:
        chosen = send.chosen_id(headers.get("idempotency-key"), asked.client_message_id)
        prepared = send.prepare(msgspec.structs.replace(asked, client_message_id=chosen))
        answer = await self._taken(prepared)
        if answer.refusal is Refusal.DESTINATION_UNKNOWN and await self._daemon.find_out():
            answer = await self._taken(prepared)
        return Reply(
            status=answer.http_status,
            body=msgspec.json.encode(answer.body),
            content_type=JSON if answer.refusal is None else PROBLEM_JSON,
        )

    async def _taken(self, prepared: send.Prepared) -> send.Answer:
        daemon, device = self._daemon, self._device
        taking = send.Taking(
            daemon.facts, daemon.directory, device.clock, device.random, prepared, daemon.room.for_send()
        )
        return await daemon.do(taking)

    async def _administer(self, verb: str, arguments: ipc_administration.Arguments) -> ipc_administration.Done:
        try:
            async with self._daemon.session() as session:
                return await administration.run(session, verb, arguments)
        except TROUBLES as trouble:
            raise Troubled(trouble) from trouble

    def _requeue(
        self,
        tx: Transaction,
        asked: documents.Requeue,
        doubt: requeues.Doubt | None,
        word: RelayWord | None,
        committed: outbox.Committed | None,
    ) -> requeues.Requeued | Refused:
        return requeues.requeue(
            tx,
            self._daemon.facts,
            self._device.clock(),
            self._device.random,
            asked.id,
            doubt=doubt,
            word=word,
            committed=committed,
            new_client_message_id=asked.new_client_message_id,
            patch=asked.patch,
            force=asked.force,
        )

    def _messages(self, query: ipc_queries.PageQuery, **filters: Any) -> Reply:
        """A page of messages, which ends early if its bodies get too large."""
        found = self._daemon.look(lambda tx: inbox.page(tx, after=query.after, limit=query.limit, **filters))
        taken: list[inbox.Message] = []
        size = 0
        for message in found:
            size += len(message.body or b"") + len(message.meta or b"")
            if taken and size > PAGE_BYTES_MAX:
                break
            taken.append(message)
        is_last = len(taken) == len(found) < query.limit
        following = None if is_last else taken[-1].arrival
        return json_reply({"messages": [inbox.document(message) for message in taken], "next_after": following})

    def _member(self, who: str) -> str:
        """The id of the member that a caller names; revoked members can be named by id."""
        directory = self._daemon.directory
        kind, ref = ("dm", who) if who in directory.members else directory.resolve(who)
        if kind != "dm":
            raise Refused(Refusal.MALFORMED, f"from: {shown(who)} is not a member")
        return ref

    def _topic(self, name: str) -> str:
        """The topic that a caller names: one of the mesh, or a former one that the inbox has messages of."""
        topic = name.removeprefix(documents.TOPIC_SIGN)
        if topic not in self._daemon.directory.topics:
            posted = self._daemon.look(lambda tx: inbox.page(tx, topic=topic, limit=1))
            if not posted:
                self._daemon.directory.resolve(documents.TOPIC_SIGN + topic)  # refuses it, and says why
        return topic

    def _counted(self) -> Mapping[str, int]:
        """The counters for the metrics."""
        held = self._daemon.look(lambda tx: _held(tx, self._device.clock()))
        counted = {
            "outbox_waiting": held["queue_depth"],
            "outbox_inflight": held["inflight"],
            "outbox_oldest_age_s": held["oldest_waiting_s"] or 0,
            "outbox_scheduled": held["scheduled"],
            "outbox_dead": held["dead"],
            "inbox_unapplied": held["unapplied"],
            "inbox_parked": held["parked"],
            "relay_pending": self._daemon.state.pending_count,
            "room_used_percent": self._daemon.room.look().percent,
        }
        return counted | dict(self._daemon.counters)


def _held(transaction: Transaction, now: int) -> dict[str, Any]:
    """The part of health about unfinished work: sends that wait, scheduled sends, messages that nobody has applied."""
    of_status = outbox.count(transaction)
    ((unapplied, parked),) = transaction.rows(_SQL["inbox_counts"])
    oldest_at, reason = next(iter(transaction.rows(_SQL["oldest"])), (None, None))
    return {
        "queue_depth": of_status[Status.PENDING] + of_status[Status.INFLIGHT],
        "inflight": of_status[Status.INFLIGHT],
        "oldest_waiting_at": oldest_at,
        "oldest_waiting_s": None if oldest_at is None else max(0, now - oldest_at) // SECOND,
        "oldest_waiting_reason": reason,
        "scheduled": scheduled.count(transaction),
        "dead": outbox.given_up(transaction),
        "unapplied": unapplied,
        "parked": parked,
    }


def _hexed(found: msgspec.Struct) -> dict[str, Any]:
    """The fields of a row as JSON, bytes in hex."""
    fields = msgspec.structs.asdict(found)
    return {name: value.hex() if isinstance(value, bytes) else value for name, value in fields.items()}


def _version() -> str:
    from holdfast import __version__  # here, because the package imports this module

    return __version__
