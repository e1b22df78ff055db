"""Messages that arrive: each gets one row of the inbox, for ever, and a receipt in the outbox.

Row, history entry and receipt are one transaction. The relay is told only afterwards, so it may bring an event again; that
changes nothing. A message that no key opens is kept sealed until one does. What is wrong about a sender (a hole, a lost
state, two events in one place) is reported with the message and never stops it.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec

from holdfast.device import evidence, receipts
from holdfast.device.inbox import names
from holdfast.device.operations import Facts
from holdfast.protocol import envelope, ulid
from holdfast.protocol.envelope import Envelope
from holdfast.protocol.event import Event
from holdfast.protocol.fingerprint import DestinationKind
from holdfast.protocol.history import Draft, Kind
from holdfast.protocol.payload import Payload
from holdfast.protocol.receipt import Receipted, ReceiptStatus
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.schedule import SECOND
from holdfast.store import history
from holdfast.store.engine import Transaction, Value
from holdfast.store.statements import Statements
from holdfast.store.world import Random

_SQL = Statements(__package__, "arrivals.sql")


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """A message as the relay brought it. The event is verified, and its key is or was the sender's."""

    event: Event
    raw: bytes
    seq: int  # in the relay's log of this id
    log_id: bytes
    message_id: str  # the relay's name for it
    was_stored: bool
    sender: str  # a member's id
    sender_name: str = ""
    replayed: bool = False  # acknowledged before, and brought again because this home lost its inbox
    payload: Payload | None = None  # None if no key here opens it


class Outcome(StrEnum):
    """What became of an arrival. Every outcome is final, so the relay always gets its acknowledgement."""

    STORED = "stored"
    UNREADABLE = "unreadable"
    DUPLICATE = "duplicate"  # another event of this sender has its client_message_id: kept as evidence only
    REPEATED = "repeated"  # this very event was stored before
    REFUSED = "refused"  # not addressed to this device, though the relay brought it


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of an arrival, and what is wrong about its sender."""

    seq: int
    outcome: Outcome
    sender: str
    client_message_id: str = ""
    id: str | None = None
    equivocates: str | None = None  # the id of another event that the sender signed with the same epoch and sequence
    missing_sequence: int | None = None  # of the message that the sender sent here just before, if that never came
    reset_from: str | None = None  # the epoch that the sender had before this one
    detail: str = ""


class Sealed(msgspec.Struct, frozen=True):
    """A message that could not be opened yet."""

    arrival: int
    id: str
    topic: str | None
    sender: str
    event: bytes


class _Ruling(msgspec.Struct, frozen=True):
    """An arrival, its envelope, and the outcome that was decided for it."""

    arrival: Arrival
    said: Envelope
    outcome: Outcome
    event_id: bytes


def store(
    transaction: Transaction, facts: Facts, now: int, random: Random, arrivals: Sequence[Arrival]
) -> list[Stored]:
    """Store arrivals and the receipts for them; returns the outcome of each, in order."""
    told: list[Stored] = []
    drafts: list[Draft] = []
    owed: dict[str, dict[Receipted, None]] = defaultdict(
        dict
    )  # an event may come twice at a time, and is receipted once
    for arrival in arrivals:
        ruling = _rule(transaction, facts, arrival)
        if isinstance(ruling, Stored):
            told.append(ruling)
            if ruling.outcome is Outcome.REPEATED:
                owed[arrival.sender] |= dict.fromkeys(_owed_again(transaction, arrival))
            continue
        told.append(_write(transaction, facts, now, random, ruling))
        drafts.append(_stored_entry(facts, ruling))
        owed[arrival.sender][_line(ruling)] = None
    history.append(transaction, now, drafts)
    _owe_receipts(transaction, facts, now, random, owed)
    return told


def unreadable(transaction: Transaction, *, topic: str | None = None, after: int = 0, limit: int = 100) -> list[Sealed]:
    """Messages that no key has opened yet, in the order of arrival: those of one topic, or all."""
    parameters: dict[str, Value] = {"topic": topic, "after": after, "limit": limit}
    return [Sealed(*row) for row in transaction.rows(_SQL["unreadable"], parameters)]


def reopen(transaction: Transaction, facts: Facts, now: int, opened: Sequence[tuple[str, Payload]]) -> list[str]:
    """Fill in the content of messages that were stored unreadable; returns the ids of those that can be read now."""
    drafts, ids = [], []
    for message, payload in opened:
        content = {**_content(payload), "id": message, "now": now}
        for row in transaction.rows(_SQL["open"], content):
            drafts.append(Draft(kind=Kind.OPENED, **names(facts, *row)))
            ids.append(message)
    history.append(transaction, now, drafts)
    return ids


def _rule(transaction: Transaction, facts: Facts, arrival: Arrival) -> "_Ruling | Stored":
    """Decide the outcome of an arrival: a ruling if a row is to be written for it, else the answer."""
    try:
        said = _said(facts, arrival.event)
    except Refused as refused:
        return _left_out(arrival, Outcome.REFUSED, detail=str(refused))
    event_id = bytes.fromhex(arrival.event.id)
    name = said.head.client_message_id
    if transaction.rows(_SQL["is_known"], {"event_id": event_id}):
        return _left_out(arrival, Outcome.REPEATED, name)
    if transaction.rows(_SQL["is_taken"], {"sender": arrival.sender, "client_message_id": name}):
        return _Ruling(arrival, said, Outcome.DUPLICATE, event_id)
    return _Ruling(arrival, said, Outcome.UNREADABLE if arrival.payload is None else Outcome.STORED, event_id)


def _said(facts: Facts, event: Event) -> Envelope:
    """The envelope of a message; refuses one that is not for this device."""
    said = envelope.from_event(event)
    if said.head.mesh != facts.mesh:
        raise Refused(Refusal.MESH_UNKNOWN, f"the message is for mesh {said.head.mesh}")
    if said.destination.kind is DestinationKind.DM and said.destination.ref != facts.member:
        raise Refused(Refusal.DESTINATION_UNKNOWN, f"the message is for member {said.destination.ref}")
    return said


def _left_out(arrival: Arrival, outcome: Outcome, client_message_id: str = "", detail: str = "") -> Stored:
    return Stored(
        seq=arrival.seq,
        outcome=outcome,
        sender=arrival.sender,
        client_message_id=client_message_id,
        detail=detail,
    )


def _write(transaction: Transaction, facts: Facts, now: int, random: Random, ruling: _Ruling) -> Stored:
    arrival, head = ruling.arrival, ruling.said.head
    place: dict[str, Value] = {"sender": arrival.sender, "epoch": head.epoch, "sequence": head.sequence}
    rivals = transaction.rows(_SQL["rivals"], place)
    row_id = None
    missing = None
    if ruling.outcome is Outcome.DUPLICATE:
        _write_duplicate(transaction, now, ruling)
    else:
        missing = _missing(transaction, ruling)
        row_id = _write_message(transaction, now, random, ruling)
    return Stored(
        seq=arrival.seq,
        outcome=ruling.outcome,
        sender=arrival.sender,
        client_message_id=head.client_message_id,
        id=row_id,
        equivocates=rivals[0][0].hex() if rivals else None,
        missing_sequence=missing,
        reset_from=_reset_from(transaction, now, arrival.sender, head.epoch),
    )


def _write_message(transaction: Transaction, now: int, random: Random, ruling: _Ruling) -> str:
    arrival, said = ruling.arrival, ruling.said
    row_id = ulid.mint(now, random(ulid.RANDOM_BYTES))
    ((number,),) = transaction.rows(
        _SQL["store"],
        {
            **_content(arrival.payload),
            "id": row_id,
            "client_message_id": said.head.client_message_id,
            "broker_message_id": arrival.message_id,
            "mesh": said.head.mesh,
            "topic": said.destination.ref if said.destination.kind is DestinationKind.TOPIC else None,
            "sender": arrival.sender,
            "sender_pubkey": arrival.event.pubkey,
            "sender_name": arrival.sender_name or arrival.sender,
            "epoch": said.head.epoch,
            "sequence": said.head.sequence,
            "event_id": ruling.event_id,
            "event": arrival.raw,
            "status": ruling.outcome.value,
            "priority": said.priority.value,
            "reply_to": said.reply_to,
            "mentions": msgspec.json.encode(said.mentions).decode(),
            "expires_at": said.expires_at,
            "sent_at": arrival.event.created_at * SECOND,
            "now": now,
            "was_stored": int(arrival.was_stored),
            "replayed": int(arrival.replayed),
            "log_id": arrival.log_id,
            "history_id": arrival.seq,
        },
    )
    transaction.insert("inbox_mention", ("member", "arrival"), [(member, number) for member in said.mentions])
    return row_id


def _write_duplicate(transaction: Transaction, now: int, ruling: _Ruling) -> None:
    head = ruling.said.head
    transaction.run(
        _SQL["store_duplicate"],
        {
            "event_id": ruling.event_id,
            "event": ruling.arrival.raw,
            "client_message_id": head.client_message_id,
            "broker_message_id": ruling.arrival.message_id,
            "sender": ruling.arrival.sender,
            "epoch": head.epoch,
            "sequence": head.sequence,
            "now": now,
        },
    )


def _content(payload: Payload | None) -> dict[str, Value]:
    """The columns of a message's content, all NULL while no key opens it."""
    if payload is None:
        return {"object_id": None, "body": None, "meta": None, "previous_sequence": None, "digest": None}
    return {
        "object_id": payload.object_id,
        "body": payload.body,
        "meta": payload.meta,
        "previous_sequence": payload.previous_sequence,
        "digest": evidence.content_digest(payload.object_id, payload.meta, payload.body),
    }


def _missing(transaction: Transaction, ruling: _Ruling) -> int | None:
    """The sequence of the message before this one to the same destination, if that message never came."""
    payload, said = ruling.arrival.payload, ruling.said
    if payload is None or payload.previous_sequence is None:
        return None
    parameters: dict[str, Value] = {
        "sender": ruling.arrival.sender,
        "topic": said.destination.ref if said.destination.kind is DestinationKind.TOPIC else None,
        "sequence": said.head.sequence,
        "previous_sequence": payload.previous_sequence,
    }
    return payload.previous_sequence if transaction.rows(_SQL["is_missing"], parameters) else None


def _reset_from(transaction: Transaction, now: int, sender: str, epoch: bytes) -> str | None:
    """The sender's epoch before this one, if this one is new: the sender lost or restored its state."""
    before = transaction.rows(_SQL["last_epoch"], {"sender": sender})
    is_new = transaction.run(_SQL["meet_epoch"], {"sender": sender, "epoch": epoch, "now": now})
    return bytes(before[0][0]).hex() if is_new and before else None


def _line(ruling: _Ruling) -> Receipted:
    """The line of a receipt for an arrival that was stored."""
    return Receipted(ruling.arrival.event.id, ruling.arrival.was_stored, ReceiptStatus(ruling.outcome.value))


def _owed_again(transaction: Transaction, arrival: Arrival) -> list[Receipted]:
    """The receipt line of a message that came again, if its receipt failed, as it does at a relay that lost the message."""
    event_id, log_id = bytes.fromhex(arrival.event.id), arrival.log_id
    found = transaction.rows(_SQL["receipt_in_vain"], {"event_id": event_id, "log_id": log_id})
    return [line for (blob,) in found for line in receipts.decode(blob) if line.message_id == arrival.event.id]


def _owe_receipts(
    transaction: Transaction, facts: Facts, now: int, random: Random, owed: Mapping[str, Iterable[Receipted]]
) -> None:
    for sender, lines in owed.items():
        for sequence, part in receipts.owe(transaction, facts, now, random, sender, tuple(lines)):
            for line in part:
                name = "duplicate_receipted" if line.status is ReceiptStatus.DUPLICATE else "receipted"
                transaction.run(_SQL[name], {"event_id": bytes.fromhex(line.message_id), "sequence": sequence})


def _stored_entry(facts: Facts, ruling: _Ruling) -> Draft:
    arrival, said = ruling.arrival, ruling.said
    return Draft(
        kind=Kind.STORED,
        **names(facts, arrival.message_id, said.head.client_message_id, arrival.sender, ruling.event_id),
        epoch=said.head.epoch,
        sequence=said.head.sequence,
        destination_kind=said.destination.kind.value,
        destination_ref=said.destination.ref,
        size=len(arrival.raw),
        was_stored=arrival.was_stored,
        reason=ruling.outcome.value,
        detail=arrival.log_id + arrival.seq.to_bytes(8, "big"),
    )
