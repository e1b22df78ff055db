"""The relay's side of generated traffic: what an accept, a closing and a sweep leave in a relay's database.

Rows are written when their life is over, or at the end, because a row that never changes again is inserted once.
"""

import os
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path
from random import Random

import msgspec

from holdfast.cli.generate_book import Book
from holdfast.cli.generate_people import Accepted, Kept, Member, Mesh, Send, Waiting
from holdfast.protocol import keys, ulid
from holdfast.protocol.anchor import Anchor, sign_anchor
from holdfast.protocol.history import Draft, Kind
from holdfast.protocol.schedule import CLOCK_AHEAD_MAX, DAY, dedupe_expires_at
from holdfast.relay.accepted import digest
from holdfast.relay.database import open_relay
from holdfast.relay.identity import DATABASE, Identity
from holdfast.relay.settings import FILE_NAME
from holdfast.store.engine import Value

QUEUE_TTL = 7 * DAY
MESSAGE_RETENTION_DAYS = 14
DEDUPE_RETENTION_DAYS = 21

_DEDUPE = (
    *("mesh", "sender", "client_message_id", "event_id", "message_id", "seq"),
    *("destination_kind", "destination_ref", "first_seen_at", "expires_at", "history_available", "skipped"),
)
_MESSAGE = (
    *("message_id", "mesh", "sender", "client_message_id", "event_id", "seq", "kind"),
    *("destination_kind", "destination_ref", "event", "size", "accepted_at", "expires_at", "digest"),
)
_DELIVERY = (
    *("mesh", "member", "seq", "message_id", "state", "expires_at"),
    *("closed_at", "was_stored", "is_receipt", "receipted_at"),
)
_MENTION = ("mesh", "member", "seq", "message_id")

_Old = tuple[int, int, tuple[str, str, str, str]]  # (accepted at, seq, (mesh, sender, client_message_id, message_id))
_PRUNE = (
    "DELETE FROM message WHERE seq <= :seq",
    "DELETE FROM delivery WHERE seq <= :seq",
    "DELETE FROM mention WHERE seq <= :seq",
    "UPDATE dedupe SET history_available = 0 WHERE seq <= :seq",
)
_KINDS = {4201: Kind.ACCEPTED, 4202: Kind.RECEIPT, 4204: Kind.ADMIN}


class RelayBook(Book):
    """A relay's database in the making; `at` is the time of the commit under way."""

    def __init__(self, data: Path, random: Random, queue_messages_max: int, starts_at: int) -> None:
        data.mkdir(mode=0o700)
        self.identity = Identity.load(data, random.randbytes)
        _write_settings(data, queue_messages_max)
        super().__init__(open_relay(data / DATABASE, clock=lambda: starts_at, random=random.randbytes))
        self.at = starts_at
        self.queue_messages_max = queue_messages_max
        self._random = random
        self._seq = 0
        self._drafts: list[Draft] = []
        self._messages: deque[_Old] = deque()  # by age: what sweeps let go of, first the messages, then their ids
        self._ids: deque[_Old] = deque()
        self._pruned_seq = 0
        self.counts: Counter[str] = Counter()

    def mint(self) -> str:
        return ulid.mint(self.at, self._random.randbytes(ulid.RANDOM_BYTES))

    def say(self, draft: Draft) -> int:
        """Add an entry to the commit under way; its position is known already, because nobody else writes."""
        self._drafts.append(draft)
        self._seq += 1
        return self._seq

    def end_commit(self, sign: bool) -> Anchor | None:
        """Append what was said; the relay's signature under it, if somebody keeps it."""
        if not self._drafts:
            return None
        entries = self.append(self.at, self._drafts)
        self.counts["entries"] += len(entries)
        self._drafts = []
        if not sign:
            return None
        last = entries[-1]
        aux = self._random.randbytes(keys.AUX_BYTES)
        return sign_anchor(self.identity.secret, self.log_id, last.seq, last.chain, aux)

    def accept(self, send: Send, recipients: Sequence[tuple[str, str]] = ()) -> Accepted:
        """Everything that an accept leaves, but for the delivery rows, which are written when they close."""
        message_id = self.mint()
        seq = self.say(_accepted_draft(send, message_id, tuple(recipients)))
        accepted = Accepted(send, seq, self.at, message_id)
        self._remember(accepted, [member for member, outcome in recipients if outcome == "full"])
        send.sender.accepted_sequence = max(send.sender.accepted_sequence, send.sequence)
        return accepted

    def _remember(self, accepted: Accepted, skipped: list[str]) -> None:
        send, mesh, sender = accepted.send, accepted.send.sender.mesh.mesh, accepted.send.sender.member
        destination = (send.destination_kind, send.destination_ref)
        names = (mesh, sender, send.client_message_id, send.event_id)
        forget_at = dedupe_expires_at(self.at, DEDUPE_RETENTION_DAYS)
        told = msgspec.json.encode(skipped).decode()
        self.put(
            "dedupe",
            _DEDUPE,
            (*names, accepted.message_id, accepted.seq, *destination, self.at, forget_at, 1, told),
        )
        until = None if send.kind == 4204 else self.expiry(send)
        self.put(
            "message",
            _MESSAGE,
            (
                *(accepted.message_id, *names, accepted.seq, send.kind, *destination),
                *(send.event, len(send.event), self.at, until, digest(send.event_id, send.event)),
            ),
        )
        for member in send.mentions:
            self.put("mention", _MENTION, (mesh, member, accepted.seq, accepted.message_id))
        self._messages.append((self.at, accepted.seq, (mesh, sender, send.client_message_id, accepted.message_id)))
        self.counts[_KINDS[send.kind]] += 1

    def expiry(self, send: Send) -> int:
        at_last = self.at + QUEUE_TTL
        return at_last if send.expires_at is None else min(at_last, send.expires_at)

    def close(self, waiting: Waiting, kind: Kind, *, was_stored: bool | None = None, reason: str | None = None) -> Kept:
        """The entry that ends a delivery; its row is the caller's to write, because a receipt may still come."""
        send = waiting.accepted.send
        self.say(
            Draft(
                kind=kind,
                mesh=send.sender.mesh.mesh,
                message_id=waiting.accepted.message_id,
                client_message_id=send.client_message_id,
                sender=send.sender.member,
                recipient=waiting.member.member,
                event_id=send.event_id,
                was_stored=was_stored,
                reason=reason,
            )
        )
        if not waiting.is_receipt:
            waiting.member.queue_count -= 1
        return Kept(waiting, self.at, bool(was_stored))

    def put_delivery(
        self,
        waiting: Waiting,
        state: str,
        closed_at: int | None = None,
        was_stored: bool | None = None,
        receipted_at: int | None = None,
    ) -> None:
        accepted = waiting.accepted
        if accepted.seq <= self._pruned_seq:
            return  # the message went before its receipt came, and its deliveries with it
        stored = None if was_stored is None else int(was_stored)
        self.put(
            "delivery",
            _DELIVERY,
            (
                *(accepted.send.sender.mesh.mesh, waiting.member.member, accepted.seq, accepted.message_id, state),
                *(waiting.expires_at, closed_at, stored, int(waiting.is_receipt), receipted_at),
            ),
        )

    def sweep(self) -> None:
        """Let go of old messages, and then of their ids."""
        pruned = self._past(self._messages, MESSAGE_RETENTION_DAYS * DAY, Kind.PRUNED)
        if pruned:
            self._ids += pruned
            self._pruned_seq = pruned[-1][1]
            for statement in _PRUNE:
                self.run(statement, seq=self._pruned_seq)
        forgotten = self._past(self._ids, dedupe_expires_at(0, DEDUPE_RETENTION_DAYS), Kind.DEDUPE_EXPIRED)
        if forgotten:
            at, seq, _ = forgotten[-1]
            self.run("DELETE FROM dedupe WHERE seq <= :seq", seq=seq)
            self.run("UPDATE forgotten SET before = :before", before=at + CLOCK_AHEAD_MAX)

    def _past(self, remembered: "deque[_Old]", age: int, kind: Kind) -> "list[_Old]":
        """Take what is at least this old, and say so; times only grow."""
        old = []
        while remembered and remembered[0][0] + age <= self.at:
            old.append(remembered.popleft())
            mesh, sender, client_message_id, message_id = old[-1][2]
            self.say(
                Draft(kind=kind, mesh=mesh, message_id=message_id, client_message_id=client_message_id, sender=sender)
            )
        return old

    def put_state(self, meshes: Sequence[Mesh]) -> None:
        """The rows of meshes and members, as they are in the end."""
        for mesh in meshes:
            self.put("mesh", ("mesh", "name", "created_at"), (mesh.mesh, mesh.name, mesh.created_at))
            for member in mesh.members:
                self._put_member(member)
            for topic in mesh.topics:
                self.put(
                    "topic",
                    ("mesh", "topic", "key_epoch", "key_id", "created_by", "created_at"),
                    (mesh.mesh, topic.topic, 1, topic.key_id, topic.creator.member, topic.created_at),
                )
                for member in topic.subscribers:
                    self.put(
                        "subscription",
                        ("mesh", "topic", "member", "since"),
                        (mesh.mesh, topic.topic, member.member, topic.created_at),
                    )

    def _put_member(self, member: Member) -> None:
        mesh, status = member.mesh.mesh, "active" if member.revoked_at is None else "revoked"
        self.put(
            "member",
            ("mesh", "member", "name", "role", "status", "joined_at", "revoked_at", "queue_count"),
            (
                *(mesh, member.member, member.name, member.role, status),
                *(member.joined_at, member.revoked_at, member.queue_count),
            ),
        )
        ends = [since for _, since in member.keys[1:]] + [member.revoked_at]
        for (key, since), until in zip(member.keys, ends, strict=True):
            row: tuple[Value, ...] = (mesh, key, member.member, since, until)
            self.put("member_key", ("mesh", "pubkey", "member", "since", "until"), row)
        if member.counter:
            self.put("admin_counter", ("mesh", "signer", "counter"), (mesh, member.keys[0][0], member.counter))
        for blocker in sorted(member.blocked_by):
            row = (mesh, blocker, member.member, member.joined_at)
            self.put("block", ("mesh", "member", "blocked", "since"), row)
        if member.accepted_sequence >= 0:
            row = (mesh, member.member, member.epoch, member.accepted_sequence)
            self.put("sender_epoch", ("mesh", "sender", "epoch", "sequence"), row)


def _accepted_draft(send: Send, message_id: str, recipients: tuple[tuple[str, str], ...]) -> Draft:
    return Draft(
        kind=_KINDS[send.kind],
        mesh=send.sender.mesh.mesh,
        message_id=message_id,
        client_message_id=send.client_message_id,
        sender=send.sender.member,
        epoch=send.epoch,
        sequence=send.sequence,
        recipients=recipients,
        mentions=send.mentions,
        destination_kind=send.destination_kind,
        destination_ref=send.destination_ref,
        event_id=send.event_id,
        size=len(send.event),
        reason="skipped" if any(outcome != "queued" for _, outcome in recipients) else None,
        detail=send.detail,
    )


def _write_settings(data: Path, queue_messages_max: int) -> None:
    """What the relay would have been set to, so that one started here goes on alike."""
    text = (
        f"[limits]\nqueue_messages_max = {queue_messages_max}\n\n"
        f"[retention]\nmessage_retention_days = {MESSAGE_RETENTION_DAYS}\n"
        f"dedupe_retention_days = {DEDUPE_RETENTION_DAYS}\n"
    )
    path = data / FILE_NAME
    path.write_text(text, encoding="utf-8")
    os.chmod(path, 0o600)
