"""Reading queues from the database: waiting messages in pages, in the order of the history, and the fates of sent ones.

Nothing is remembered between two calls, so any number of connections, or of relays on one database, may read a queue.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from holdfast.protocol.event import check_id, decode
from holdfast.protocol.history import Draft, Kind, Restored
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.relay import closing
from holdfast.relay.accepted import QUEUED, digest
from holdfast.relay.answer import EVERYBODY, FEED
from holdfast.store import history
from holdfast.store.engine import Row, Transaction, Value
from holdfast.store.statements import Statements

_SQL = Statements(__package__, "queue.sql")

PAGE_BYTES_MAX = 262_144  # of events in one page of a queue; the last one may exceed it
FATES_MAX = 1_000  # in one answer; further ones only of its last entry
FATES_ENTRIES = 20  # read at once: an entry may tell of thousands of members who were left out
GROWN_MAX = 10_000  # rows that `grown_since` reads at most


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """The STATUS of a queue when it is opened: how much waits, which log this is, and the device's last known sequence."""

    member: str
    pubkey: str  # the key that the member reads with
    pending_count: int
    log_id: bytes
    seq: int
    highest_sequence: int | None
    forks: tuple[Restored, ...]

    def shown(self) -> dict[str, Any]:
        return {
            "pending_count": self.pending_count,
            "log_id": self.log_id.hex(),
            "seq": self.seq,
            "highest_sequence": self.highest_sequence,
            "forks": [{"log_id": fork.old_log_id.hex(), "seq": fork.fork_seq} for fork in self.forks],
        }


class Waiting(msgspec.Struct, frozen=True):
    """A message to send to a member. Fields are None if the message is gone from the database."""

    seq: int
    message_id: str
    sender: str | None
    event_id: bytes | None
    accepted_at: int | None
    event: bytes | None
    digest: bytes | None = None  # None if accepted by a version without digests

    def fault(self) -> str | None:
        """The reason why these bytes are not the accepted event; None if they are."""
        if self.event is None or self.event_id is None:
            return "the message is gone"
        if self.digest is not None:
            return None if self.digest == digest(self.event_id, self.event) else "the message is not what was accepted"
        try:
            event = decode(self.event)
            check_id(event)
        except Refused as refused:
            return f"the message is not what was accepted: {refused.detail}"
        return None if event.id == self.event_id.hex() else "the message is another one than was accepted"


class Page(msgspec.Struct, frozen=True):
    """The next messages of a queue, and the head of the history when they were read."""

    messages: Sequence[Waiting]
    seq: int


class Depth(msgspec.Struct, frozen=True):
    """How much waits in one queue."""

    mesh: str
    member: str
    name: str
    messages: int
    receipts: int
    expired: int  # of the messages; the next sweep closes them
    oldest_at: int | None
    size: int | None  # bytes


def standing(transaction: Transaction, now: int, mesh: str, pubkey: str, epoch: bytes | None) -> Standing:
    """The standing of the member with this key; refused if the key is no member's."""
    member = reader(transaction, mesh, pubkey)
    ((pending,),) = transaction.rows(_SQL["pending"], {"mesh": mesh, "member": member, "now": now})
    highest = transaction.rows(_SQL["highest_sequence"], {"mesh": mesh, "member": member, "epoch": epoch})
    head = history.head(transaction)
    return Standing(
        member=member,
        pubkey=pubkey,
        pending_count=pending,
        log_id=head.log_id,
        seq=head.seq,
        highest_sequence=highest[0][0] if highest else None,
        forks=tuple(Restored.decode(detail) for _, detail in transaction.rows(_SQL["forks"])),
    )


def reader(transaction: Transaction, mesh: str, pubkey: str) -> str:
    """The active member whose current key this is."""
    parameters: dict[str, Value] = {"mesh": mesh, "pubkey": pubkey}
    found = transaction.rows(_SQL["reader"], parameters)
    if not found:
        refusal = Refusal.STALE_KEY if transaction.rows(_SQL["was_reader"], parameters) else Refusal.NOT_A_MEMBER
        raise Refused(refusal, f"{pubkey} is no current key of an active member of mesh {mesh}")
    return str(found[0][0])


def standing_lost(transaction: Transaction, mesh: str, member: str, pubkey: str) -> Refusal | None:
    """The refusal, if this key may no longer read the member's queue."""
    if transaction.rows(_SQL["reader"], {"mesh": mesh, "pubkey": pubkey}) == [(member,)]:
        return None
    ((status,),) = transaction.rows(_SQL["status"], {"mesh": mesh, "member": member})
    return Refusal.STALE_KEY if status == "active" else Refusal.MEMBER_REVOKED


def waiting(transaction: Transaction, now: int, mesh: str, member: str, after: int, limit: int) -> Page:
    """The messages that wait for a member after a position."""
    return _page(transaction, "waiting", mesh=mesh, member=member, now=now, after=after, limit=limit)


def delivered_before(transaction: Transaction, mesh: str, member: str, after: int, until: int, limit: int) -> Page:
    """The messages that a member has acknowledged between two positions."""
    return _page(transaction, "delivered_before", mesh=mesh, member=member, after=after, until=until, limit=limit)


def _page(transaction: Transaction, name: str, **parameters: Value) -> Page:
    rows = transaction.rows(_SQL[name], {**parameters, "bytes_max": PAGE_BYTES_MAX})
    return Page([Waiting(*row) for row in rows], history.head(transaction).seq)


def grown_since(transaction: Transaction, after: int) -> tuple[int, list[tuple[str, str]]]:
    """The head of the history, and whose queues and feeds grew after a position; EVERYBODY if there are too many.

    There are too many if this relay could not read for a while, and others wrote.
    """
    seq = history.head(transaction).seq
    if seq <= after:
        return seq, []
    since: dict[str, Value] = {"after": after, "limit": GROWN_MAX}
    queues = [(mesh, member) for mesh, member in transaction.rows(_SQL["waiting_since"], since)]
    feeds = [(FEED, author) for (author,) in transaction.rows(_SQL["changed_since"], since)]
    if GROWN_MAX in (len(queues), len(feeds)):
        return seq, [EVERYBODY]
    return seq, list(dict.fromkeys(queues + feeds))


def oldest_at(transaction: Transaction) -> int | None:
    """When the longest-waiting message was accepted."""
    found = transaction.rows(_SQL["oldest"])
    return found[0][0] if found else None


def depths(transaction: Transaction, now: int, mesh: str | None = None, member: str | None = None) -> list[Depth]:
    """The depth of every queue that is not empty; optionally of one mesh, or of members with one id or name."""
    rows = transaction.rows(_SQL["depths"], {"now": now, "mesh": mesh, "member": member})
    return [Depth(*row) for row in rows]


def has_member(transaction: Transaction, mesh: str | None, member: str) -> bool:
    """Whether anybody has this id or name."""
    return bool(transaction.rows(_SQL["named"], {"mesh": mesh, "member": member}))


def has_mesh(transaction: Transaction, mesh: str) -> bool:
    """Whether there is a mesh of this id."""
    return bool(transaction.rows(_SQL["mesh"], {"mesh": mesh}))


def moderate(transaction: Transaction, now: int, message_id: str, operator: str, reason: str) -> dict[str, Any]:
    """Close the deliveries of a message that were not acknowledged yet. The decision is recorded even if there are none."""
    found = transaction.rows(_SQL["message"], {"message_id": message_id})
    if not found:
        raise Refused(Refusal.NOT_FOUND, f"there is no message {message_id}; it may have been pruned")
    mesh, _, client_message_id, sender, event_id, _ = found[0]
    decision = Draft(
        kind=Kind.MODERATED,
        mesh=mesh,
        message_id=message_id,
        client_message_id=client_message_id,
        sender=sender,
        destination_kind="moderation",
        destination_ref=operator,
        event_id=event_id,
        reason=reason,
    )
    (entry,) = history.append(transaction, now, [decision])
    closed = closing.take_down(transaction, now, message_id, reason)
    return {"message_id": message_id, "closed": closed, "history_id": entry.seq}


def fates(transaction: Transaction, mesh: str, pubkey: str, after: int, limit: int) -> dict[str, Any]:
    """The fates of a member's own messages after a position, and the position up to which the list is complete.

    It ends with the entry that brings it to `limit`, because the fates of one entry stay together.
    """
    member, head = reader(transaction, mesh, pubkey), history.head(transaction)
    through_seq = head.seq
    told: list[dict[str, Any]] = []
    for row in _ends(transaction, mesh, member, after, head.seq):
        told += _fates(*row)
        if len(told) >= limit:
            through_seq = row[0]
            break
    return {"log_id": head.log_id.hex(), "through_seq": through_seq, "fates": told}


def _ends(transaction: Transaction, mesh: str, sender: str, after: int, until: int) -> Iterator[Row]:
    """The entries that say how a sender's messages ended, in order, a few of them in memory."""
    while True:
        wanted: dict[str, Value] = {"mesh": mesh, "sender": sender, "after": after, "until": until}
        rows = transaction.rows(_SQL["fates"], {**wanted, "limit": FATES_ENTRIES})
        yield from rows
        if len(rows) < FATES_ENTRIES:
            return
        after = rows[-1][0]


def _fates(
    seq: int,
    at: int,
    kind: str,
    client_message_id: str | None,
    message_id: str | None,
    event_id: bytes | None,
    recipient: str | None,
    recipients: str,
    was_stored: int | None,
    reason: str | None,
) -> list[dict[str, Any]]:
    """The fates in one entry: for an accept those of the members left out, for a closing that of its recipient."""
    names = {
        "seq": seq,
        "at": at,
        "client_message_id": client_message_id,
        "message_id": message_id,
        "event_id": None if event_id is None else event_id.hex(),
    }
    if kind == Kind.ACCEPTED:
        left_out = [(member, outcome) for member, outcome in json.loads(recipients) if outcome != QUEUED]
        return [
            {**names, "kind": outcome, "recipient": member, "was_stored": None, "reason": None}
            for member, outcome in left_out
        ]
    if recipient is None:
        return []  # the entry of a moderation's decision, which closes nothing by itself
    waited = None if was_stored is None else bool(was_stored)
    return [{**names, "kind": kind, "recipient": recipient, "was_stored": waited, "reason": reason}]


def find_send(transaction: Transaction, mesh: str, pubkey: str, client_message_id: str) -> dict[str, Any]:
    """Whether one of the reader's own ids was used, and by which event."""
    member = reader(transaction, mesh, pubkey)
    found = transaction.rows(_SQL["send"], {"mesh": mesh, "sender": member, "client_message_id": client_message_id})
    if not found:
        return {"committed": False}
    event_id, message_id, seq, first_seen_at = found[0]
    return {
        "committed": True,
        "event_id": event_id.hex(),
        "broker_message_id": message_id,
        "history_id": seq,
        "first_seen_at": first_seen_at,
    }
