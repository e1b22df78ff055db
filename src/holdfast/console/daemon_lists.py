"""What a daemon's pages list: what was sent, what arrived, what agents did. Reads only."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from holdfast.console.listing import PAGE_ROWS, Position, cut
from holdfast.hook import database as hook_database
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.tags import INTEGER_MAX
from holdfast.store import faults, migrations
from holdfast.store.engine import Transaction, Value
from holdfast.store.sqlite import SqliteEngine
from holdfast.store.statements import Statements

_SQL = Statements(__package__, "device.sql")
_HOOKS = Statements(__package__, "hook.sql")

FUNNEL_MESSAGES_MAX = 5_000  # the latest ones, that the funnel looks at
LATELY_SHOWN = 12
DROPPED_SHOWN = 20
BUSY_TIMEOUT_S = 0.25  # a receiver that stores an event is done sooner; a page can be loaded again

_OUTBOX = {
    "sent": ("newest_sent", "oldest_sent"),
    "everything": ("newest_everything", "oldest_everything"),
    "waiting": ("newest_waiting", "oldest_waiting"),
    "dead": ("newest_dead", "oldest_dead"),
    "aborted": ("newest_aborted", "oldest_aborted"),
    "done": ("newest_done", "oldest_done"),
    "to": ("newest_to", "oldest_to"),
}
"""By what is looked for: the statement that finds the newest first, and the one that finds the oldest."""

_INBOX = {
    "arrived": ("newest_arrived", "oldest_arrived"),
    "unapplied": ("newest_unapplied", "oldest_unapplied"),
    "parked": ("newest_parked", "oldest_parked"),
    "from": ("newest_from", "oldest_from"),
    "topic": ("newest_topic", "oldest_topic"),
}

Order = Literal["newest", "oldest"]


class OutboxQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which operations."""

    show: Literal["sent", "waiting", "dead", "done", "aborted", "everything"] = "sent"
    to: str | None = None
    order: Order = "newest"
    at: Position | None = None


class InboxQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which messages."""

    show: Literal["arrived", "unapplied", "parked"] = "arrived"
    sender: str | None = msgspec.field(name="from", default=None)
    topic: str | None = None
    order: Order = "newest"
    at: Position | None = None


class SessionQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which sessions: `at` is how many come before."""

    at: Position | None = None


class EventQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which events of a session."""

    at: Position | None = None


class Operation(msgspec.Struct, frozen=True):
    """A row of the operation log in a list."""

    sequence: int
    id: str
    client_message_id: str
    destination_kind: str | None
    destination_ref: str | None
    status: str
    enqueued_at: int
    attempts: int
    next_attempt_at: int
    last_error: str | None
    delivered_at: int | None
    superseded_by: str | None
    size: int | None


class Arrived(msgspec.Struct, frozen=True):
    """A message of the inbox in a list."""

    arrival: int
    id: str
    client_message_id: str
    sender: str
    sender_name: str
    topic: str | None
    status: str
    priority: str
    received_at: int
    was_stored: int
    replayed: int
    applied_at: int | None
    parked_at: int | None
    handler_attempts: int
    size: int | None

    @property
    def state(self) -> str:
        if self.applied_at is not None:
            return "applied"
        return "parked" if self.parked_at is not None else self.status


def operations(
    transaction: Transaction, query: OutboxQuery, destination: tuple[str, str] | None, limit: int = PAGE_ROWS
) -> tuple[list[Operation], int | None]:
    """A page of operations, and where the next one begins."""
    status = {"waiting": "pending", "dead": "dead", "done": "done", "aborted": "aborted"}.get(query.show)
    kind, ref = destination or (None, None)
    also = "inflight" if query.show == "waiting" else status
    parameters: dict[str, Value] = {"kind": kind, "ref": ref, "status": status, "or_status": also, "limit": limit + 1}
    name = _OUTBOX[query.show if destination is None else "to"][query.order == "oldest"]
    found = transaction.rows(_SQL[name], {**parameters, "at": _start(query.order, query.at)})
    rows, last = cut(found, limit)
    shown = (
        {row[0]: Operation(*row) for row in transaction.lookup(_SQL["operations"], ("sequence",), rows)} if rows else {}
    )
    return [shown[sequence] for (sequence,) in rows], None if last is None else last[0]


def messages(transaction: Transaction, query: InboxQuery) -> tuple[list[Arrived], int | None]:
    """A page of messages, and where the next one begins."""
    filters = [name for name in ("from", "topic") if getattr(query, "sender" if name == "from" else name)]
    if len(filters) > 1 or (filters and query.show != "arrived"):
        raise Refused(Refusal.MALFORMED, "look for a sender, for a topic or for a state, not for several at once")
    name = _INBOX[filters[0] if filters else query.show][query.order == "oldest"]
    parameters: dict[str, Value] = {"sender": query.sender, "topic": query.topic, "limit": PAGE_ROWS + 1}
    found = transaction.rows(_SQL[name], {**parameters, "at": _start(query.order, query.at)})
    rows, last = cut(found)
    shown = {row[0]: Arrived(*row) for row in transaction.lookup(_SQL["messages"], ("arrival",), rows)} if rows else {}
    return [shown[arrival] for (arrival,) in rows], None if last is None else last[0]


def overview(transaction: Transaction) -> Mapping[str, Any]:
    """How far the latest messages have come, and what happened last."""
    ((sent, relayed, receipted, dead, since),) = transaction.rows(_SQL["funnel"], {"limit": FUNNEL_MESSAGES_MAX})
    return {
        "sent": sent,
        "relayed": relayed or 0,
        "receipted": receipted or 0,
        "given_up": dead or 0,
        "since": since,
        "is_cut": sent >= FUNNEL_MESSAGES_MAX,
        "lately": transaction.rows(_SQL["lately"], {"limit": LATELY_SHOWN}),
    }


class Agents:
    """The sessions of agents, read beside whoever handles their events."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def sessions(self, query: SessionQuery) -> dict[str, Any] | None:
        """A page of sessions; None where no agent was ever installed."""
        skip = query.at or 0
        wanted: dict[str, Value] = {"limit": PAGE_ROWS + 1, "skip": skip}
        found = self._look("sessions", wanted)
        if found is None:
            return None
        rows, last = cut(found)
        following = None if last is None else skip + PAGE_ROWS
        return {"rows": rows, "following": following, "dropped": self._look("dropped", {"limit": DROPPED_SHOWN}) or []}

    def events(self, agent: str, session_id: str, query: EventQuery) -> tuple[list[Any], int | None]:
        """A page of a session's events, the newest first."""
        at = INTEGER_MAX if query.at is None else query.at
        wanted: dict[str, Value] = {"agent": agent, "session_id": session_id, "at": at, "limit": PAGE_ROWS + 1}
        rows, last = cut(self._look("events", wanted) or [])
        return list(rows), None if last is None else last[0]

    def _look(self, name: str, parameters: Mapping[str, Value]) -> list[Any] | None:
        if not self._path.exists():
            return None
        engine = SqliteEngine(self._path, read_only=True, busy_timeout_s=BUSY_TIMEOUT_S)
        try:
            if not migrations.current(engine, hook_database.SCHEMA):
                raise faults.Outdated(engine.where)
            with engine.read() as transaction:
                return transaction.rows(_HOOKS[name], parameters)
        finally:
            engine.close()


def _start(order: Order, at: int | None) -> int:
    if at is not None:
        return at
    return INTEGER_MAX if order == "newest" else -1
