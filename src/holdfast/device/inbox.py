"""The inbox as applications see it: messages in the order of arrival, and whether an application has acted on each.

A message is applied when an application says that it has acted on it. If its handler keeps failing, it is parked, for people
to look at. No row is ever deleted: after the retention a message loses its content, and is still known by its ids.
"""

import base64
from collections.abc import Sequence
from enum import StrEnum
from typing import TypedDict

import msgspec

from holdfast.device.operations import Facts
from holdfast.device.sending import Attempt
from holdfast.protocol.history import Draft, Kind
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.schedule import DAY
from holdfast.protocol.tags import shown
from holdfast.store import history
from holdfast.store.engine import Row, Transaction, Value
from holdfast.store.statements import Statements

_SQL = Statements(__package__, "inbox.sql")

HANDLER_ATTEMPTS_MAX = 5  # failures after which a message is parked
ERROR_CHARACTERS_MAX = 500  # kept of a handler's error
PAGE_ROWS = 50
PAGE_ROWS_MAX = 500
RETENTION_DAYS = 30  # of bodies and events; the ids by which a repetition is recognised stay
PRUNED_MAX = 1_000  # rows that one transaction prunes


class Message(msgspec.Struct, frozen=True):
    """A message that arrived. Its content is empty while it is unreadable, and again after the retention."""

    arrival: int
    id: str
    client_message_id: str
    broker_message_id: str
    mesh: str
    topic: str | None
    sender: str
    sender_pubkey: str
    sender_name: str
    epoch: bytes
    sequence: int
    previous_sequence: int | None
    event_id: bytes
    status: str
    object_id: bytes | None
    body: bytes | None
    meta: bytes | None  # a JSON object in canonical form
    priority: str
    reply_to: str | None
    mentions: tuple[str, ...]
    expires_at: int | None
    sent_at: int
    received_at: int
    was_stored: bool
    replayed: bool
    opened_at: int | None
    pruned_at: int | None
    applied_at: int | None
    parked_at: int | None
    handler_attempts: int
    last_error: str | None


class Acknowledged(msgspec.Struct, frozen=True):
    """The answer to an acknowledgement: ids now applied, ids that were applied before, and ids that are unknown."""

    applied: tuple[str, ...]
    already: tuple[str, ...]
    unknown: tuple[str, ...]


class ReportKind(StrEnum):
    """What can be wrong about a sender."""

    HOLE = "hole"  # a message that it sent before this one never came
    EQUIVOCATION = "equivocation"  # it signed two events with one epoch and sequence
    RESET = "reset"  # it came back with a new epoch: its state was lost or restored


class Report(msgspec.Struct, frozen=True):
    """Something wrong about a sender: the message that shows it, and the sequence and epoch that it is about."""

    kind: ReportKind
    sender: str
    sequence: int | None
    epoch: bytes
    event_id: bytes | None
    at: int


class Names(TypedDict):
    """The fields that all history entries about an arrived message have."""

    mesh: str
    recipient: str
    message_id: str
    client_message_id: str
    sender: str
    event_id: bytes


def names(facts: Facts, message_id: str, client_message_id: str, sender: str, event_id: bytes) -> Names:
    return Names(
        mesh=facts.mesh,
        recipient=facts.member,
        message_id=message_id,
        client_message_id=client_message_id,
        sender=sender,
        event_id=event_id,
    )


def page(
    transaction: Transaction,
    *,
    after: int = 0,
    limit: int = PAGE_ROWS,
    since: int | None = None,
    topic: str | None = None,
    sender: str | None = None,
    mentions_of: str | None = None,
    unapplied: bool = False,
    parked: bool = False,
) -> list[Message]:
    """Messages that pass all filters, in the order of arrival, after an arrival number; `sender` is a member's id."""
    parameters: dict[str, Value] = {
        "after": after,
        "limit": min(limit, PAGE_ROWS_MAX),
        "since": since,
        "topic": topic,
        "sender": sender,
        "mentions_of": mentions_of,
        "parked": int(parked),
    }
    name = "page_of_unapplied" if unapplied else "page"
    return [_message(row) for row in transaction.rows(_SQL[name], parameters)]


def find(transaction: Transaction, message: str) -> Message | None:
    """The message with this id."""
    found = transaction.rows(_SQL["find"], {"id": message})
    return _message(found[0]) if found else None


def called(transaction: Transaction, client_message_id: str) -> list[Message]:
    """The messages with this client_message_id; each sender may have one."""
    found = transaction.rows(_SQL["called"], {"client_message_id": client_message_id})
    return [_message(row) for row in found]


def document(message: Message) -> dict[str, object]:
    """A message as a JSON object: bytes in hex, the body as text, or in base64 if it is not UTF-8."""
    shown_as = {name: getattr(message, name) for name in message.__struct_fields__}
    for name in ("epoch", "event_id", "object_id"):
        shown_as[name] = None if shown_as[name] is None else shown_as[name].hex()
    shown_as["meta"] = None if message.meta is None else msgspec.json.decode(message.meta)
    try:
        shown_as["body"] = None if message.body is None else message.body.decode()
    except UnicodeDecodeError:
        shown_as["body"] = None
        shown_as["body_base64"] = base64.b64encode(message.body or b"").decode()
    return shown_as


def acknowledge(transaction: Transaction, facts: Facts, now: int, messages: Sequence[str]) -> Acknowledged:
    """Mark messages as applied, parked ones too."""
    drafts: list[Draft] = []
    applied: list[str] = []
    already: list[str] = []
    unknown: list[str] = []
    for message in dict.fromkeys(messages):
        rows = transaction.rows(_SQL["apply"], {"id": message, "now": now})
        if rows:
            drafts.append(Draft(kind=Kind.APPLIED, **names(facts, *rows[0])))
            applied.append(message)
        else:
            (already if find(transaction, message) else unknown).append(message)
    history.append(transaction, now, drafts)
    return Acknowledged(tuple(applied), tuple(already), tuple(unknown))


def fail(transaction: Transaction, facts: Facts, now: int, message: str, error: str) -> Message:
    """Count a handler's failure; the last attempt parks the message. Applied and parked messages stay as they are."""
    parameters: dict[str, Value] = {
        "id": message,
        "now": now,
        "attempts_max": HANDLER_ATTEMPTS_MAX,
        "last_error": error[:ERROR_CHARACTERS_MAX],
    }
    changed = transaction.run(_SQL["fail"], parameters)
    found = find(transaction, message)
    if found is None:
        raise Refused(Refusal.NOT_FOUND, f"there is no message {shown(message)} in the inbox")
    if changed and found.parked_at is not None:
        about = names(facts, found.broker_message_id, found.client_message_id, found.sender, found.event_id)
        detail = Attempt(found.handler_attempts, found.last_error or "").encode()
        history.append(transaction, now, [Draft(kind=Kind.PARKED, **about, reason="handler_failed", detail=detail)])
    return found


def prune(transaction: Transaction, now: int, *, days: int = RETENTION_DAYS, limit: int = PRUNED_MAX) -> int:
    """Drop the content of old messages, the oldest first; returns of how many. Their ids stay."""
    parameters = {"before": now - days * DAY, "limit": limit}
    transaction.run(_SQL["prune_duplicates"], parameters)
    return transaction.run(_SQL["prune"], {**parameters, "now": now})


def reports(transaction: Transaction, limit: int = PAGE_ROWS) -> list[Report]:
    """What this inbox shows to be wrong about senders, the newest of each kind first."""
    found = [
        row for name in ("holes", "equivocations", "resets") for row in transaction.rows(_SQL[name], {"limit": limit})
    ]
    return [Report(ReportKind(kind), *rest) for kind, *rest in found]


def _message(row: Row) -> Message:
    values = dict(zip(Message.__struct_fields__, row, strict=True))
    values["mentions"] = msgspec.json.decode(values["mentions"], type=tuple[str, ...])
    values["was_stored"] = bool(values["was_stored"])
    values["replayed"] = bool(values["replayed"])
    return Message(**values)
