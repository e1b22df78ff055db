"""Writing the rows of accepted offers: dedupe, message, history, deliveries, mentions. All of them, or none."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from holdfast.protocol.administration import Administration
from holdfast.protocol.envelope import Envelope
from holdfast.protocol.history import Draft, Entry, Kind
from holdfast.protocol.receipt import Receipt
from holdfast.protocol.schedule import DedupeMode, dedupe_expires_at
from holdfast.relay.directory import SQL
from holdfast.relay.offer import Offer
from holdfast.relay.settings import Retention
from holdfast.store import history
from holdfast.store.engine import Transaction, Value

QUEUED, FULL, BLOCKED = "queued", "full", "blocked"
SKIPPED = "skipped"  # reason in the entry of an accept that left a recipient out, whether the sender was told or not


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """An accepted offer, before its rows are written."""

    offer: Offer
    sender: str
    message_id: str
    recipients: tuple[tuple[str, str], ...] = ()  # (member, outcome)
    expires_at: int | None = None  # of its deliveries
    receipted: tuple[int, ...] = ()  # positions in the sender's queue that this receipt is for
    untaken: tuple[str, ...] = ()  # ids of events that this receipt names and that it may not confirm

    @property
    def skipped(self) -> tuple[str, ...]:
        """The members who do not get it because their queue is full. Blocks are not listed: the sender learns of them later."""
        return self.untaken or tuple(member for member, outcome in self.recipients if outcome == FULL)

    @property
    def destination(self) -> tuple[str, str]:
        said = self.offer.said
        if isinstance(said, Administration):
            return "admin", said.head.mesh
        return said.destination.kind.value, said.destination.ref

    @property
    def is_receipt(self) -> bool:
        return isinstance(self.offer.said, Receipt)

    @property
    def queued(self) -> list[str]:
        return [member for member, outcome in self.recipients if outcome == QUEUED]


def write(transaction: Transaction, now: int, retention: Retention, accepted: Sequence[Accepted]) -> list[Entry]:
    """Write the rows of all accepted offers, one insert per table, and return the entries of the history."""
    entries = history.append(transaction, now, [_draft(one) for one in accepted])
    placed = list(zip(accepted, entries, strict=True))
    transaction.insert("dedupe", _DEDUPE, (_dedupe(one, entry, now, retention) for one, entry in placed))
    transaction.insert("message", _MESSAGE, (_message(one, entry) for one, entry in placed))
    transaction.insert("delivery", _DELIVERY, (row for one, entry in placed for row in _deliveries(one, entry)))
    transaction.insert("mention", _MENTION, (row for one, entry in placed for row in _mentions(one, entry)))
    _count_queued(transaction, accepted)
    _note_sequences(transaction, accepted)
    _mark_receipted(transaction, now, accepted)
    return entries


def digest(event_id: bytes, event: bytes) -> bytes:
    """The checksum stored beside a message, which reveals bytes that changed on disk."""
    return hashlib.sha256(event_id + event).digest()


def _count_queued(transaction: Transaction, accepted: Iterable[Accepted]) -> None:
    counts: Counter[tuple[str, str]] = Counter()
    soonest: dict[tuple[str, str], int] = {}
    for one in accepted:
        expires_at = one.expires_at or 0
        for member in one.queued:
            queue = (one.offer.head.mesh, member)
            counts[queue] += not one.is_receipt
            soonest[queue] = min(expires_at, soonest.get(queue, expires_at))
    added = [(*queue, count, soonest[queue]) for queue, count in counts.items()]
    transaction.lookup(SQL["add_to_queue"], ("mesh", "member", "count", "expires_at"), added)


def _note_sequences(transaction: Transaction, accepted: Iterable[Accepted]) -> None:
    greatest: dict[tuple[str, str, bytes], int] = {}
    for one in accepted:
        head = one.offer.head
        key = (head.mesh, one.sender, head.epoch)
        greatest[key] = max(head.sequence, greatest.get(key, 0))
    noted = [(*key, sequence) for key, sequence in greatest.items()]
    transaction.lookup(SQL["note_sequence"], ("mesh", "sender", "epoch", "sequence"), noted)


def _mark_receipted(transaction: Transaction, now: int, accepted: Iterable[Accepted]) -> None:
    rows = [(one.offer.head.mesh, one.sender, seq, now) for one in accepted for seq in one.receipted]
    marked = transaction.lookup(SQL["mark_receipted"], ("mesh", "member", "seq", "receipted_at"), rows)
    if len(marked) != len(rows):
        raise RuntimeError(f"{len(rows) - len(marked)} of {len(rows)} deliveries were receipted before")


_DEDUPE = (
    *("mesh", "sender", "client_message_id", "event_id", "message_id"),
    *("seq", "destination_kind", "destination_ref", "first_seen_at", "expires_at", "skipped"),
)
_MESSAGE = (
    *("message_id", "mesh", "sender", "client_message_id", "event_id", "seq", "kind"),
    *("destination_kind", "destination_ref", "event", "size", "accepted_at", "expires_at", "digest"),
)
_DELIVERY = ("mesh", "member", "seq", "message_id", "state", "expires_at", "is_receipt")
_MENTION = ("mesh", "member", "seq", "message_id")


def _dedupe(accepted: Accepted, entry: Entry, now: int, retention: Retention) -> tuple[Value, ...]:
    scoped = retention.dedupe_mode is DedupeMode.RETENTION_SCOPED
    expires_at = dedupe_expires_at(now, retention.dedupe_retention_days) if scoped else None
    offer = accepted.offer
    return (
        *(offer.head.mesh, accepted.sender, offer.head.client_message_id, offer.event_id, accepted.message_id),
        *(entry.seq, *accepted.destination, now, expires_at, msgspec.json.encode(accepted.skipped).decode()),
    )


def _message(accepted: Accepted, entry: Entry) -> tuple[Value, ...]:
    offer = accepted.offer
    return (
        *(accepted.message_id, offer.head.mesh, accepted.sender, offer.head.client_message_id, offer.event_id),
        *(entry.seq, offer.event.kind, *accepted.destination, offer.raw, len(offer.raw), entry.at, accepted.expires_at),
        digest(offer.event_id, offer.raw),
    )


def _deliveries(accepted: Accepted, entry: Entry) -> list[tuple[Value, ...]]:
    mesh, rest = accepted.offer.head.mesh, (accepted.message_id, "open", accepted.expires_at, int(accepted.is_receipt))
    return [(mesh, member, entry.seq, *rest) for member in accepted.queued]


def _mentions(accepted: Accepted, entry: Entry) -> list[tuple[Value, ...]]:
    mesh = accepted.offer.head.mesh
    return [(mesh, member, entry.seq, accepted.message_id) for member in _mentioned(accepted.offer)]


def _mentioned(offer: Offer) -> Sequence[str]:
    return offer.said.mentions if isinstance(offer.said, Envelope) else ()


def _draft(accepted: Accepted) -> Draft:
    offer, (destination_kind, destination_ref) = accepted.offer, accepted.destination
    kind, detail = _kind(offer)
    return Draft(
        kind=kind,
        mesh=offer.head.mesh,
        message_id=accepted.message_id,
        client_message_id=offer.head.client_message_id,
        sender=accepted.sender,
        epoch=offer.head.epoch,
        sequence=offer.head.sequence,
        recipients=accepted.recipients,
        mentions=tuple(_mentioned(offer)),
        destination_kind=destination_kind,
        destination_ref=destination_ref,
        event_id=offer.event_id,
        size=len(offer.raw),
        reason=None if len(accepted.queued) == len(accepted.recipients) else SKIPPED,
        detail=detail,
    )


def _kind(offer: Offer) -> tuple[Kind, bytes]:
    """The kind and detail of an event's history entry. A receipt is kept whole, so that anybody can verify it."""
    if isinstance(offer.said, Administration):
        return Kind.ADMIN, offer.event.content.encode()
    if isinstance(offer.said, Receipt):
        return Kind.RECEIPT, offer.raw
    return Kind.ACCEPTED, b""
