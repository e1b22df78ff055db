"""The trace of one message: every step that it has reached, with its time, as far as this device knows.

For an own send: its acceptance, each attempt, the relay's yes, and per recipient what recipient and relay said. For a message
that arrived: when it was stored, opened and applied. An id may name both; then both are shown.
"""

from collections.abc import Iterator, Sequence

import msgspec

from holdfast.device import inbox, outbox, scheduled
from holdfast.device.inbox import Message
from holdfast.device.outbox import Item
from holdfast.device.sending import Attempt
from holdfast.protocol.fate import RECEIPTS, Fact, shown
from holdfast.protocol.fingerprint import DestinationKind
from holdfast.protocol.history import Kind
from holdfast.protocol.outbox import Signal, Status
from holdfast.protocol.receipt import ReceiptStatus
from holdfast.store.engine import Transaction, Value
from holdfast.store.statements import Statements

_SQL = Statements(__package__, "trace.sql")

RUNGS_MAX = 1_000  # history entries of one send that are read; one that waits for days has many attempts
RECIPIENTS_MAX = 1_000  # rows of recipients that are read


class Rung(msgspec.Struct, frozen=True, omit_defaults=True):
    """One step, and its time (microseconds), which for the relay's steps is by the relay's clock."""

    what: str
    at: int
    attempt: int | None = None
    was_stored: bool | None = None
    reason: str | None = None
    detail: str | None = None


class AtRecipient(msgspec.Struct, frozen=True):
    """The state of a send at one recipient."""

    member: str
    state: Fact
    rungs: tuple[Rung, ...]


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """An own send; without a sequence it is a scheduled one."""

    client_message_id: str
    id: str | None = None
    sequence: int | None = None
    destination_kind: str | None
    destination_ref: str | None
    status: str
    state: Fact  # of the send itself; each recipient has its own
    broker_message_id: str | None = None
    superseded_by: str | None = None
    not_before: int | None = None
    rungs: tuple[Rung, ...]
    recipients: tuple[AtRecipient, ...] = ()


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """A message that arrived."""

    id: str
    client_message_id: str
    sender: str
    sender_name: str
    topic: str | None
    state: str
    broker_message_id: str
    rungs: tuple[Rung, ...]


class Trace(msgspec.Struct, frozen=True):
    """The send and the messages that an id names."""

    sent: Sent | None
    received: tuple[Received, ...]


class _Told(msgspec.Struct, frozen=True):
    """An entry of the history about an own send."""

    kind: str
    at: int
    reason: str | None
    detail: bytes


def trace(transaction: Transaction, name: str) -> Trace | None:
    """The trace of a message, by its client_message_id or by its id in the log or in the inbox."""
    item = outbox.find(transaction, name)
    sent = _waiting(transaction, name) if item is None else _sent(transaction, item)
    found = inbox.find(transaction, name)
    messages = inbox.called(transaction, name) if found is None else [found]
    if sent is None and not messages:
        return None
    return Trace(sent, tuple(_received(message) for message in messages))


def document(found: Trace) -> dict[str, object]:
    """A trace as a JSON object."""
    shown_as: dict[str, object] = msgspec.to_builtins(found)
    return shown_as


def _waiting(transaction: Transaction, client_message_id: str) -> Sent | None:
    """A scheduled send that was not released."""
    found = scheduled.find(transaction, client_message_id)
    if found is None or found.sequence is not None:
        return None
    accepted, cancelled_at = Rung(Fact.ACCEPTED.value, found.accepted_at), found.cancelled_at
    cancelled = () if cancelled_at is None else (Rung(Fact.ABORTED.value, cancelled_at, reason=scheduled.CANCELLED),)
    return Sent(
        client_message_id=client_message_id,
        destination_kind=found.destination_kind,
        destination_ref=found.destination_ref,
        status=(Status.ABORTED if cancelled else Status.PENDING).value,
        state=Fact.ABORTED if cancelled else Fact.ACCEPTED,
        not_before=found.not_before,
        rungs=(accepted, *cancelled),
    )


def _sent(transaction: Transaction, item: Item) -> Sent:
    parameters: dict[str, Value] = {"client_message_id": item.client_message_id, "limit": RUNGS_MAX}
    told = [_Told(*row) for row in reversed(transaction.rows(_SQL["told"], parameters))]
    facts = _facts(item, told)
    recipients = tuple(_recipients(transaction, item, facts))
    ahead = scheduled.find(transaction, item.client_message_id)
    asked = () if ahead is None else (Rung(Fact.ACCEPTED.value, ahead.accepted_at),)
    to_one = item.destination_kind == DestinationKind.DM
    return Sent(
        client_message_id=item.client_message_id,
        id=item.id,
        sequence=item.sequence,
        destination_kind=item.destination_kind,
        destination_ref=item.destination_ref,
        status=item.status.value,
        state=recipients[0].state if to_one else shown(facts),
        broker_message_id=item.broker_message_id,
        superseded_by=item.superseded_by,
        not_before=None if ahead is None else ahead.not_before,
        rungs=(*asked, *_rungs(item, told, is_released=ahead is not None)),
        recipients=recipients,
    )


def _facts(item: Item, told: Sequence[_Told]) -> frozenset[Fact]:
    """The facts about a send that do not depend on a recipient."""
    facts = {Fact.ACCEPTED}
    if item.status is Status.DONE or item.broker_message_id is not None:
        facts.add(Fact.RELAYED)
    facts |= {Fact(entry.kind) for entry in told if entry.kind in (Kind.DEAD, Kind.ABORTED)}
    if item.status in (Status.DEAD, Status.ABORTED):
        facts.add(Fact(item.status.value))
    about_the_relay = [entry for entry in told if entry.kind == Kind.RELAYED or _is_rolled_back(entry)]
    if about_the_relay and _is_rolled_back(about_the_relay[-1]):
        facts.add(Fact.ROLLED_BACK)
    return frozenset(facts)


def _is_rolled_back(entry: _Told) -> bool:
    return entry.reason == Signal.ROLLED_BACK


def _rungs(item: Item, told: Sequence[_Told], *, is_released: bool) -> Iterator[Rung]:
    """The steps of a send up to the relay; if the history was pruned, first and last are taken from the row."""
    kinds = {entry.kind for entry in told}
    accepted = "released" if is_released else Fact.ACCEPTED.value
    if Kind.ENQUEUED not in kinds:
        yield Rung(accepted, item.enqueued_at)
    for entry in told:
        yield Rung(accepted, entry.at) if entry.kind == Kind.ENQUEUED else _rung(entry)
    if Kind.RELAYED not in kinds and item.delivered_at is not None:
        yield Rung(Fact.RELAYED.value, item.delivered_at)


def _rung(entry: _Told) -> Rung:
    if entry.kind == Kind.ABORTED:
        return Rung(entry.kind, entry.at, reason=entry.reason, detail=entry.detail.decode())
    if entry.kind == Kind.RELAYED:
        return Rung(entry.kind, entry.at)
    attempt = Attempt.decode(entry.detail)
    what = Fact.ROLLED_BACK.value if _is_rolled_back(entry) else entry.kind
    return Rung(what, entry.at, attempt=attempt.attempts, reason=entry.reason, detail=attempt.error or None)


def _recipients(transaction: Transaction, item: Item, facts: frozenset[Fact]) -> Iterator[AtRecipient]:
    """The known recipients of a send, each with its receipt and the relay's fates."""
    found: dict[str, list[tuple[Fact, Rung]]] = {}
    if item.destination_kind == DestinationKind.DM and item.destination_ref is not None:
        found[item.destination_ref] = []
    parameters = {"sequence": item.sequence, "limit": RECIPIENTS_MAX}
    for member, status, was_stored, at in transaction.rows(_SQL["receipts"], parameters):
        rung = Rung(Fact.RECEIPT.value, at, was_stored=bool(was_stored), reason=status)
        found.setdefault(member, []).append((RECEIPTS[ReceiptStatus(status)], rung))
    for member, kind, at, was_stored, reason in transaction.rows(_SQL["fates"], parameters):
        rung = Rung(kind, at, was_stored=None if was_stored is None else bool(was_stored), reason=reason)
        found.setdefault(member, []).append((Fact(kind), rung))
    for member, known in sorted(found.items()):
        state = shown(facts | {fact for fact, _ in known})
        rungs = sorted((rung for _, rung in known), key=lambda rung: rung.at)
        yield AtRecipient(member, state, tuple(rungs))


def _received(message: Message) -> Received:
    times = (
        ("opened", message.opened_at),
        ("parked", message.parked_at),
        ("applied", message.applied_at),
    )
    stored = Rung("stored", message.received_at, was_stored=message.was_stored)
    rungs = [stored, *(Rung(what, at) for what, at in times if at is not None)]
    return Received(
        id=message.id,
        client_message_id=message.client_message_id,
        sender=message.sender,
        sender_name=message.sender_name,
        topic=message.topic,
        state=_state(message),
        broker_message_id=message.broker_message_id,
        rungs=tuple(sorted(rungs, key=lambda rung: rung.at)),
    )


def _state(message: Message) -> str:
    if message.applied_at is not None:
        return "applied"
    return "parked" if message.parked_at is not None else message.status
