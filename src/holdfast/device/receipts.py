"""Receipts that this device owes, which go through its log, and receipts and fates of its own sends, which it keeps.

A receipt has a line per message; a fate is the relay's word on what became of a send at a recipient. A line about something
that this device did not send, or not to the receipt's signer, proves nothing: it is reported and left out.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum

import msgspec

from holdfast.device import operations
from holdfast.device.forks import Fork, kept_through
from holdfast.device.operations import Address, Facts
from holdfast.protocol import receipt as protocol
from holdfast.protocol.event import Event
from holdfast.protocol.fingerprint import NO_OBJECT, DestinationKind
from holdfast.protocol.history import Draft, Kind
from holdfast.protocol.receipt import RECEIPTED_MAX, Receipt, Receipted
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.store import history
from holdfast.store.engine import Transaction
from holdfast.store.statements import Statements
from holdfast.store.world import Random
from holdfast.wire.client import Fate

_SQL = Statements(__package__, "receipts.sql")

RECEIPT = "receipt"  # the destination kind of a receipt; its ref is the member who gets it
FATES = "fates"  # the name of the cursor


class FateKind(StrEnum):
    """What the relay can say became of a send at one recipient."""

    DELIVERED = "delivered"
    EXPIRED = "expired"
    DROPPED = "dropped"
    QUARANTINED = "quarantined"
    MODERATED = "moderated"
    FULL = "full"
    BLOCKED = "blocked"


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """The result of taking lines: how many were new, how many known, and the ids of those that prove nothing."""

    taken: int = 0
    repeated: int = 0
    forged: tuple[str, ...] = ()  # about a send that did not go to the receipt's signer
    unknown: tuple[str, ...] = ()  # about a send that is not in this log
    refused: str = ""  # why the whole receipt does not count


class _Send(msgspec.Struct, frozen=True):
    """The fields of an own send that a receipt is checked against."""

    sequence: int
    client_message_id: str
    destination_kind: str | None
    destination_ref: str | None
    event_id: bytes | None
    epoch: bytes | None

    def may_reach(self, member: str) -> bool:
        """Whether the send may have gone to this member; the relay decides who gets a post to a topic."""
        if self.destination_kind == DestinationKind.TOPIC:
            return True
        return self.destination_kind in (DestinationKind.DM, RECEIPT) and self.destination_ref == member


def encode(lines: Sequence[Receipted]) -> bytes:
    """The blob of a receipt in the log."""
    return msgspec.json.encode(lines)


def decode(blob: bytes) -> tuple[Receipted, ...]:
    return msgspec.json.decode(blob, type=tuple[Receipted, ...])


def owe(
    transaction: Transaction, facts: Facts, now: int, random: Random, to: str, lines: Sequence[Receipted]
) -> Iterator[tuple[int, Sequence[Receipted]]]:
    """Put receipts for a sender into the outbox; yields each one's sequence and lines."""
    address = Address(destination_kind=RECEIPT, destination_ref=to, mesh=facts.mesh)
    for start in range(0, len(lines), RECEIPTED_MAX):
        part = lines[start : start + RECEIPTED_MAX]
        yield operations.append_next(transaction, now, random, NO_OBJECT, encode(part), address), part


def take(
    transaction: Transaction, facts: Facts, now: int, event: Event, raw: bytes, message_id: str, sender: str
) -> Taken:
    """Keep the lines of a receipt that arrived. The event is verified, and its key is or was `sender`'s."""
    try:
        receipt = _read(facts, event)
    except Refused as refused:
        return Taken(refused=refused.detail)
    if transaction.rows(_SQL["is_known"], {"event_id": bytes.fromhex(event.id)}):
        return Taken(repeated=len(receipt.messages))
    proofs, taken = _sort(transaction, receipt, sender)
    told = [_tell(transaction, facts, now, event, message_id, sender, *proof) for proof in proofs]
    drafts = [draft for draft in told if draft is not None]
    if drafts:
        transaction.run(
            _SQL["keep_receipt"],
            {
                "event_id": bytes.fromhex(event.id),
                "event": raw,
                "message_id": message_id,
                "sender": sender,
                "now": now,
            },
        )
        history.append(transaction, now, drafts)
    return msgspec.structs.replace(taken, taken=len(drafts), repeated=len(told) - len(drafts))


def take_fates(transaction: Transaction, now: int, log_id: bytes, through_seq: int, fates: Sequence[Fate]) -> Taken:
    """Keep fates that the relay told, and the position up to which it was asked, for the next time."""
    told, forged, unknown = [], [], []
    for fate in fates:
        send = _called(transaction, fate.client_message_id)
        if send is None or fate.kind not in set(FateKind):
            unknown.append(fate.client_message_id)
        elif not send.may_reach(fate.recipient) or _is_other(send, fate):
            forged.append(fate.client_message_id)
        else:
            told.append(_keep_fate(transaction, send.sequence, log_id, fate))
    transaction.run(_SQL["move_cursor"], {"name": FATES, "log_id": log_id, "seq": through_seq, "now": now})
    return Taken(taken=sum(told), repeated=len(told) - sum(told), forged=tuple(forged), unknown=tuple(unknown))


def fates_after(transaction: Transaction, log_id: bytes, forks: Sequence[Fork]) -> int:
    """The position after which to ask the relay for fates, given its present log and its restorations."""
    found = transaction.rows(_SQL["cursor"], {"name": FATES})
    if not found:
        return 0
    read_log_id, seq = found[0]
    if read_log_id == log_id:
        return int(seq)
    return min(int(seq), kept_through(read_log_id, forks) or 0)


def _read(facts: Facts, event: Event) -> Receipt:
    receipt = protocol.from_event(event)
    if (receipt.head.mesh, receipt.destination.ref) != (facts.mesh, facts.member):
        raise Refused(Refusal.DESTINATION_UNKNOWN, "the receipt is for somebody else")
    return receipt


def _sort(transaction: Transaction, receipt: Receipt, sender: str) -> tuple[list[tuple[_Send, Receipted]], Taken]:
    """The lines that prove something, each with its send, and the ids of the others."""
    proofs: list[tuple[_Send, Receipted]] = []
    forged: list[str] = []
    unknown: list[str] = []
    for line in receipt.messages:
        send = _sent_as(transaction, line.message_id)
        if send is None:
            unknown.append(line.message_id)
        elif send.destination_kind == RECEIPT or not send.may_reach(sender):
            forged.append(line.message_id)
        else:
            proofs.append((send, line))
    return proofs, Taken(forged=tuple(forged), unknown=tuple(unknown))


def _tell(
    transaction: Transaction,
    facts: Facts,
    now: int,
    event: Event,
    message_id: str,
    sender: str,
    send: _Send,
    line: Receipted,
) -> Draft | None:
    """Keep one line; returns its history entry, None if this recipient has receipted the send before."""
    receipt_event_id = bytes.fromhex(event.id)
    kept = transaction.run(
        _SQL["keep_line"],
        {
            "sequence": send.sequence,
            "recipient": sender,
            "status": line.status.value,
            "was_stored": int(line.was_stored),
            "receipt_event_id": receipt_event_id,
            "now": now,
        },
    )
    if not kept:
        return None
    return Draft(
        kind=Kind.RECEIPT,
        mesh=facts.mesh,
        message_id=message_id,
        client_message_id=send.client_message_id,
        epoch=send.epoch,
        sequence=send.sequence,
        recipient=sender,
        event_id=send.event_id,
        was_stored=line.was_stored,
        reason=line.status.value,
        detail=receipt_event_id,
    )


def _keep_fate(transaction: Transaction, sequence: int, log_id: bytes, fate: Fate) -> int:
    return transaction.run(
        _SQL["keep_fate"],
        {
            "sequence": sequence,
            "recipient": fate.recipient,
            "kind": fate.kind,
            "at": fate.at,
            "was_stored": None if fate.was_stored is None else int(fate.was_stored),
            "reason": fate.reason,
            "log_id": log_id,
            "history_id": fate.seq,
        },
    )


def _is_other(send: _Send, fate: Fate) -> bool:
    """Whether a fate is about another event than the one that was sent from here under this id."""
    return send.event_id is not None and send.event_id.hex() != fate.event_id


def _sent_as(transaction: Transaction, event_id: str) -> _Send | None:
    found = transaction.rows(_SQL["sent_as"], {"event_id": bytes.fromhex(event_id)})
    return _Send(*found[0]) if found else None


def _called(transaction: Transaction, client_message_id: str) -> _Send | None:
    found = transaction.rows(_SQL["sent_under"], {"client_message_id": client_message_id})
    return _Send(*found[0]) if found else None
