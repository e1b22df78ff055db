"""The history: what one entry holds, and the chain of hashes that makes a changed, lost or moved entry show.

An entry's bytes are its fields in a fixed order, each behind a four-byte length, so that any language, and Spark's own
functions, can compute them again: no JSON, no optional spelling. `chain = sha256(previous chain ‖ bytes)`; the first
previous chain is made from the log id, so that two histories never share a link.
"""

import hashlib
import struct
from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache

import msgspec

LOG_ID_BYTES = 16

NAMES_KEPT = 4_096
"""Names whose encoded bytes are cached: the same few members and meshes are in nearly all entries."""

_GENESIS = b"holdfast history 1\x00"
_length = struct.Struct(">I").pack
_eight_bytes = struct.Struct(">Iq").pack  # a length of four bytes, then a signed number of eight
_place = struct.Struct(">IqIq").pack  # two of them
_EMPTY = _length(0)
_ABSENT = b"\xff\xff\xff\xff"  # as a length; no field is that long, so an absent field differs from an empty one


class Kind(StrEnum):
    """The kind of an entry. Relay and device histories have the same columns and share this list."""

    # of a relay
    ACCEPTED = "accepted"
    DELIVERED = "delivered"
    EXPIRED = "expired"
    QUARANTINED = "quarantined"
    DROPPED = "dropped"
    MODERATED = "moderated"
    DEDUPE_EXPIRED = "dedupe_expired"
    ADMIN = "admin"
    SNAPSHOT = "snapshot"
    COMPACTED = "compacted"
    # of a device
    ENQUEUED = "enqueued"
    ATTEMPTED = "attempted"
    RELAYED = "relayed"
    DEAD = "dead"
    ABORTED = "aborted"
    STORED = "stored"
    OPENED = "opened"  # it was stored unreadable, and its key has come
    APPLIED = "applied"
    PARKED = "parked"
    HOOK_RECEIVED = "hook_received"
    HOOK_DONE = "hook_done"
    HOOK_DEAD = "hook_dead"
    HOOK_COALESCED = "hook_coalesced"
    # of both
    RECEIPT = "receipt"
    PRUNED = "pruned"
    RESTORED = "restored"


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that has no position yet."""

    kind: Kind
    mesh: str | None = None
    message_id: str | None = None
    client_message_id: str | None = None
    sender: str | None = None
    epoch: bytes | None = None
    sequence: int | None = None
    recipient: str | None = None
    recipients: tuple[tuple[str, str], ...] = ()  # (member, outcome)
    mentions: tuple[str, ...] = ()
    destination_kind: str | None = None
    destination_ref: str | None = None
    event_id: bytes | None = None
    size: int | None = None  # bytes
    was_stored: bool | None = None
    reason: str | None = None
    detail: bytes = b""  # canonical bytes, their form set by the kind


class Entry(Draft, frozen=True, kw_only=True):
    """A draft with its place: position, time in microseconds, and the chain up to and including it."""

    seq: int
    at: int
    chain: bytes


def genesis(log_id: bytes) -> bytes:
    """The chain before the first entry of a new history."""
    return hashlib.sha256(_GENESIS + log_id).digest()


def encode(seq: int, at: int, draft: Draft) -> bytes:
    """The bytes of an entry that the chain covers: everything but the chain."""
    recipients, mentions = draft.recipients, draft.mentions
    return b"".join(
        (
            _place(8, seq, 8, at),
            _name(draft.kind),
            _name(draft.mesh),
            _text(draft.message_id),
            _text(draft.client_message_id),
            _name(draft.sender),
            _field(draft.epoch),
            _integer(draft.sequence),
            _name(draft.recipient),
            _field(b"".join([_name(name) for pair in recipients for name in pair])) if recipients else _EMPTY,
            _field(b"".join([_name(member) for member in mentions])) if mentions else _EMPTY,
            _name(draft.destination_kind),
            _name(draft.destination_ref),
            _field(draft.event_id),
            _integer(draft.size),
            _flag(draft.was_stored),
            _text(draft.reason),
            _field(draft.detail),
        )
    )


def link(previous: bytes, seq: int, at: int, draft: Draft) -> Entry:
    """The entry that follows `previous`."""
    return Entry(
        seq=seq,
        at=at,
        chain=hashlib.sha256(previous + encode(seq, at, draft)).digest(),
        # Field by field, because entries are made by the thousand and copying by way of a dictionary takes twice as long.
        kind=draft.kind,
        mesh=draft.mesh,
        message_id=draft.message_id,
        client_message_id=draft.client_message_id,
        sender=draft.sender,
        epoch=draft.epoch,
        sequence=draft.sequence,
        recipient=draft.recipient,
        recipients=draft.recipients,
        mentions=draft.mentions,
        destination_kind=draft.destination_kind,
        destination_ref=draft.destination_ref,
        event_id=draft.event_id,
        size=draft.size,
        was_stored=draft.was_stored,
        reason=draft.reason,
        detail=draft.detail,
    )


def broken_links(anchor_seq: int, anchor_chain: bytes, entries: Iterable[Entry]) -> Iterable[tuple[int, str]]:
    """The entries after an anchor that break the chain: (position, what is wrong).

    The walk goes on from each entry's own chain, so that one changed entry is one finding and not a thousand.
    """
    seq, chain, at = anchor_seq, anchor_chain, 0
    for entry in entries:
        if entry.seq != seq + 1:
            yield entry.seq, f"follows position {seq}"
        if entry.at < at:
            yield entry.seq, "is earlier than the entry before it"
        if hashlib.sha256(chain + encode(entry.seq, entry.at, entry)).digest() != entry.chain:
            yield entry.seq, "does not hash to its chain"
        seq, chain, at = entry.seq, entry.chain, entry.at


class Restored(msgspec.Struct, frozen=True):
    """Detail of `restored`: the log this one was copied from, and the last position they share."""

    old_log_id: bytes
    new_log_id: bytes
    fork_seq: int
    fork_chain: bytes

    def encode(self) -> bytes:
        return self.old_log_id + self.new_log_id + self.fork_seq.to_bytes(8, "big") + self.fork_chain

    @classmethod
    def decode(cls, detail: bytes) -> "Restored":
        return cls(detail[:16], detail[16:32], int.from_bytes(detail[32:40], "big"), detail[40:])


class Pruned(msgspec.Struct, frozen=True):
    """Detail of `pruned`: the last pruned position, the chain there, and a relay's signature under both."""

    through_seq: int
    through_chain: bytes
    signature: bytes = b""

    def encode(self) -> bytes:
        return self.through_seq.to_bytes(8, "big") + self.through_chain + self.signature


def _field(value: bytes | None) -> bytes:
    return _ABSENT if value is None else _length(len(value)) + value


def _text(value: str | None) -> bytes:
    if value is None:
        return _ABSENT
    encoded = value.encode()
    return _length(len(encoded)) + encoded


_name = lru_cache(NAMES_KEPT)(_text)


def _integer(value: int | None) -> bytes:
    return _ABSENT if value is None else _eight_bytes(8, value)


def _flag(value: bool | None) -> bytes:
    return _ABSENT if value is None else _field(b"\x01" if value else b"\x00")
