"""The accept: from an authentic offer to a yes that is on disk, or a no that left nothing behind.

All of this happens inside the writer's transaction, for all requests that wait. In order: was this id used before (a
repetition is answered, whatever else has changed meanwhile); may this signer do it; can the destination take it; and only
then the rows, all of them: dedupe, message, history, deliveries, mentions. A refusal is decided before anything is
written for its offer, so it leaves no row of it, and its id stays free. (What had expired in a full queue is closed either
way: that was due.)
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from itertools import groupby
from typing import Any, NoReturn

import msgspec

from holdfast.protocol import idempotency, ulid
from holdfast.protocol.administration import Administration
from holdfast.protocol.envelope import Envelope
from holdfast.protocol.fingerprint import DestinationKind, fingerprint_prefix
from holdfast.protocol.history import Draft, Entry, Kind
from holdfast.protocol.refusal import REFUSALS, Refusal, Refused
from holdfast.protocol.schedule import DAY, DedupeMode, dedupe_expires_at
from holdfast.relay import administration, closing
from holdfast.relay.answer import Answer, refuse
from holdfast.relay.directory import SQL, Directory, Earlier, Recipient, found_earlier
from holdfast.relay.offer import Lane, Offer
from holdfast.relay.settings import Settings
from holdfast.store import history
from holdfast.store.engine import Transaction, Value
from holdfast.store.world import Random

QUEUED, FULL, BLOCKED = "queued", "full", "blocked"
HELD_BACK_DETAIL = "an earlier one to the same destination was put off"


class Request(msgspec.Struct, frozen=True):
    """What one caller offers at once, in the order in which it wants it taken."""

    offers: Sequence[Offer]
    local: bool = False  # from this machine to a relay that serves this machine only


class Accepted(msgspec.Struct, frozen=True):
    """An offer that is taken, before its rows are written."""

    offer: Offer
    sender: str
    message_id: str
    recipients: tuple[tuple[str, str], ...] = ()  # (member, outcome)
    expires_at: int | None = None  # of its deliveries

    @property
    def skipped(self) -> tuple[str, ...]:
        """Who does not get it because their queue is full. A block stays the blocker's secret."""
        return tuple(member for member, outcome in self.recipients if outcome == FULL)

    @property
    def destination(self) -> tuple[str, str]:
        said = self.offer.said
        if isinstance(said, Administration):
            return "admin", said.head.mesh
        return said.destination.kind.value, said.destination.ref


class Repetition(msgspec.Struct, frozen=True):
    """An offer under an id that was used before, perhaps a moment ago in this very batch."""

    offer: Offer
    earlier: Earlier


class Acceptance:
    """One batch of the writer: decides its requests one after another and writes what it took, table by table."""

    def __init__(
        self, transaction: Transaction, now: int, settings: Settings, operators: frozenset[str], random: Random
    ) -> None:
        self._transaction = transaction
        self._now = now
        self._settings = settings
        self._operators = operators
        self._random = random

    def take(self, requests: Sequence[Request]) -> list[list[Answer]]:
        """An answer to every offer of every request."""
        flat = [(number, offer) for number, request in enumerate(requests) for offer in request.offers]
        held: list[set[Lane]] = [set() for _ in requests]
        answers: list[list[Answer]] = [[] for _ in requests]
        # Administration changes what decides the offers after it, so runs of messages are decided between such changes.
        for _, run in groupby(flat, key=lambda pair: id(pair) if _is_administration(pair[1]) else None):
            pairs = list(run)
            locals_ = [requests[number].local for number, _ in pairs]
            for (number, _), answer in zip(pairs, self._take_run(pairs, locals_, held), strict=True):
                answers[number].append(answer)
        return answers

    def _take_run(
        self, pairs: Sequence[tuple[int, Offer]], locals_: Sequence[bool], held: list[set[Lane]]
    ) -> list[Answer]:
        self._directory = Directory(self._transaction, [offer for _, offer in pairs])
        self._accepted: list[Accepted] = []
        outcomes: list[Answer | Accepted | Repetition] = []
        for (number, offer), local in zip(pairs, locals_, strict=True):
            outcome = self._decide(offer, local, held[number])
            if isinstance(outcome, Answer) and outcome.refusal and not REFUSALS[outcome.refusal].is_permanent:
                held[number].add(offer.lane)
            outcomes.append(outcome)
        entries = self._write(self._accepted)
        created = {
            one.message_id: self._created(one, entry) for one, entry in zip(self._accepted, entries, strict=True)
        }
        return [_final(outcome, created) for outcome in outcomes]

    def _decide(self, offer: Offer, local: bool, held: set[Lane]) -> "Answer | Accepted | Repetition":
        earlier = found_earlier(offer, self._directory.signers, self._directory.earlier)
        if earlier is not None:
            return Repetition(offer, earlier)
        try:
            if offer.lane in held:
                raise Refused(Refusal.HELD_BACK, HELD_BACK_DETAIL)
            accepted = self._judge(offer, local)
        except NoRoom as full:
            return refuse(Refusal.QUEUE_FULL, full.detail, event_id=offer.event.id, member=full.member)
        except Refused as refused:
            return refuse(refused.refusal, refused.detail, event_id=offer.event.id)
        self._accepted.append(accepted)
        claimed = (offer.head.mesh, accepted.sender, offer.head.client_message_id)
        # Whoever repeats this id within the batch meets it, though its position is not known yet.
        self._directory.earlier[claimed] = Earlier(
            offer.event_id, accepted.message_id, 0, self._now, True, accepted.skipped
        )
        return accepted

    def _judge(self, offer: Offer, local: bool) -> Accepted:
        if isinstance(offer.said, Administration):
            office = administration.Office(self._transaction, self._now, self._operators, local)
            return Accepted(offer, office.carry_out(offer, self._directory), self._mint())
        sender = self._check_member(offer)
        envelope = offer.said
        if envelope.expires_at is not None and envelope.expires_at <= self._now:
            raise Refused(Refusal.MAX_AGE_PASSED, f"it expired at {envelope.expires_at}")
        recipients = _DESTINATIONS[envelope.destination.kind](self, offer, envelope, sender)
        return Accepted(offer, sender, self._mint(), recipients, self._expiry(envelope))

    def _check_member(self, offer: Offer) -> str:
        signer = self._directory.signers.get((offer.head.mesh, offer.event.pubkey))
        if signer is None:
            refuse_stranger(offer, self._directory.meshes)
        if signer.status != "active":
            raise Refused(Refusal.NOT_A_MEMBER, f"member {signer.member} was revoked")
        if not signer.is_current:
            raise Refused(Refusal.STALE_KEY, "the signer's key was rotated")
        return signer.member

    def _to_member(self, offer: Offer, envelope: Envelope, sender: str) -> tuple[tuple[str, str], ...]:
        mesh, member = offer.head.mesh, envelope.destination.ref
        recipient = self._directory.recipients.get((mesh, member))
        if recipient is None or recipient.status != "active":
            raise Refused(Refusal.DESTINATION_UNKNOWN, f"member {member} is not in the mesh")
        if envelope.recipient_key != recipient.pubkey:
            raise Refused(Refusal.STALE_KEY, f"the key of member {member} is now {recipient.pubkey}")
        if (mesh, sender, member) in self._directory.blocks:
            return ((member, BLOCKED),)
        if not self._has_room(mesh, member, recipient):
            raise NoRoom(member, self._settings.limits.queue_messages_max)
        recipient.queue_count += 1
        return ((member, QUEUED),)

    def _to_topic(self, offer: Offer, envelope: Envelope, sender: str) -> tuple[tuple[str, str], ...]:
        mesh, topic = offer.head.mesh, envelope.destination.ref
        key_epoch = self._directory.topics.get((mesh, topic))
        if key_epoch is None:
            raise Refused(Refusal.DESTINATION_UNKNOWN, f"there is no topic {topic}")
        if key_epoch == 0:
            raise Refused(Refusal.WAITING_FOR_KEY, f"topic {topic} has no key yet")
        if (mesh, topic, sender) not in self._directory.may_post:
            raise Refused(Refusal.MAY_NOT_POST, f"member {sender} holds no key of topic {topic}")
        if envelope.key_epoch != key_epoch:
            raise Refused(Refusal.STALE_KEY, f"the key epoch of topic {topic} is now {key_epoch}")
        others = (member for member in self._directory.subscribers[mesh, topic] if member != sender)
        return tuple((member, self._outcome(mesh, sender, member)) for member in others)

    def _to_queue(self, offer: Offer, envelope: Envelope, sender: str) -> tuple[tuple[str, str], ...]:
        raise Refused(Refusal.DESTINATION_KIND_UNSUPPORTED, "work queues are not served yet")

    def _outcome(self, mesh: str, sender: str, member: str) -> str:
        """What a topic's message is to one subscriber: never a reason to refuse it to the others."""
        if (mesh, sender, member) in self._directory.blocks:
            return BLOCKED
        recipient = self._directory.recipients[mesh, member]
        if not self._has_room(mesh, member, recipient):
            return FULL
        recipient.queue_count += 1
        return QUEUED

    def _has_room(self, mesh: str, member: str, recipient: Recipient) -> bool:
        most = self._settings.limits.queue_messages_max
        if recipient.queue_count < most:
            return True
        rows_max = self._settings.retention.sweep_rows_max
        recipient.queue_count -= closing.expire_queue(self._transaction, self._now, mesh, member, rows_max)
        return recipient.queue_count < most

    def _expiry(self, envelope: Envelope) -> int:
        at_last = self._now + self._settings.retention.queue_ttl_days * DAY
        return at_last if envelope.expires_at is None else min(at_last, envelope.expires_at)

    def _mint(self) -> str:
        return ulid.mint(self._now, self._random(ulid.RANDOM_BYTES))

    def _write(self, accepted: Sequence[Accepted]) -> list[Entry]:
        """The rows of everything that was taken, one insert a table."""
        entries = history.append(self._transaction, self._now, [_draft(one) for one in accepted])
        placed = list(zip(accepted, entries, strict=True))
        self._insert("dedupe", _DEDUPE, (self._dedupe(one, entry) for one, entry in placed))
        self._insert("message", _MESSAGE, (_message(one, entry) for one, entry in placed))
        deliveries = [
            (one, entry, member) for one, entry in placed for member, what in one.recipients if what == QUEUED
        ]
        self._insert(
            "delivery",
            ("mesh", "member", "seq", "message_id", "state", "expires_at"),
            ((o.offer.head.mesh, member, e.seq, o.message_id, "open", o.expires_at) for o, e, member in deliveries),
        )
        for (mesh, member), count in Counter((o.offer.head.mesh, member) for o, _, member in deliveries).items():
            self._transaction.run(SQL["add_to_queue"], {"mesh": mesh, "member": member, "count": count})
        self._insert(
            "mention",
            ("mesh", "member", "seq", "message_id"),
            ((o.offer.head.mesh, member, e.seq, o.message_id) for o, e in placed for member in _mentions(o.offer)),
        )
        return entries

    def _insert(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Value]]) -> None:
        self._transaction.insert(table, columns, rows)

    def _dedupe(self, accepted: Accepted, entry: Entry) -> tuple[Value, ...]:
        retention = self._settings.retention
        scoped = retention.dedupe_mode is DedupeMode.RETENTION_SCOPED
        expires_at = dedupe_expires_at(self._now, retention.dedupe_retention_days) if scoped else None
        offer = accepted.offer
        return (
            *(offer.head.mesh, accepted.sender, offer.head.client_message_id, offer.event_id, accepted.message_id),
            *(entry.seq, *accepted.destination, self._now, expires_at, msgspec.json.encode(accepted.skipped).decode()),
        )

    def _created(self, accepted: Accepted, entry: Entry) -> Answer:
        claimed = (accepted.offer.head.mesh, accepted.sender, accepted.offer.head.client_message_id)
        self._directory.earlier[claimed].seq = entry.seq
        members = _members(accepted.message_id, accepted.offer, entry.seq, accepted.skipped)
        return Answer(event_id=accepted.offer.event.id, http_status=201, members={**members, "duplicate": False})


_Destination = Callable[[Acceptance, Offer, Envelope, str], tuple[tuple[str, str], ...]]
_DESTINATIONS: dict[DestinationKind, _Destination] = {
    DestinationKind.DM: Acceptance._to_member,
    DestinationKind.TOPIC: Acceptance._to_topic,
    DestinationKind.QUEUE: Acceptance._to_queue,
}

_DEDUPE = (
    *("mesh", "sender", "client_message_id", "event_id", "message_id"),
    *("seq", "destination_kind", "destination_ref", "first_seen_at", "expires_at", "skipped"),
)
_MESSAGE = (
    *("message_id", "mesh", "sender", "client_message_id", "event_id", "seq", "kind"),
    *("destination_kind", "destination_ref", "event", "size", "accepted_at", "expires_at"),
)


class NoRoom(Exception):
    """A recipient's queue is full, and nothing in it has expired."""

    def __init__(self, member: str, most: int) -> None:
        self.member = member
        self.detail = f"{most} messages wait for member {member}, and no more may"
        super().__init__(self.detail)


def _final(outcome: Answer | Accepted | Repetition, created: dict[str, Answer]) -> Answer:
    match outcome:
        case Accepted():
            return created[outcome.message_id]
        case Repetition():
            return repeated(outcome.offer, outcome.earlier)
        case Answer():
            return outcome


def refuse_stranger(offer: Offer, meshes: Container[str]) -> NoReturn:
    """Tell somebody who is no member whether there is such a mesh at all."""
    if offer.head.mesh not in meshes:
        raise Refused(Refusal.MESH_UNKNOWN, f"there is no mesh {offer.head.mesh}")
    raise Refused(Refusal.NOT_A_MEMBER, f"{offer.event.pubkey} is no key of a member")


def repeated(offer: Offer, earlier: Earlier) -> Answer:
    """What is said to an id that was used before: the same as then, or that it was something else."""
    answer = idempotency.DUPLICATES[idempotency.earlier(earlier.event_id, offer.event_id), earlier.history_available]
    if answer.refusal is not None:
        return refuse(
            answer.refusal,
            "this client_message_id was used for another event",
            event_id=offer.event.id,
            client_message_id=offer.head.client_message_id,
            conflict=answer.conflict,
            broker_fingerprint_prefix=fingerprint_prefix(earlier.event_id),
        )
    members = _members(earlier.message_id, offer, earlier.seq, earlier.skipped)
    known = {"history_available": earlier.history_available, "first_seen_at": earlier.first_seen_at}
    return Answer(
        event_id=offer.event.id, http_status=answer.http_status, members={**members, "duplicate": True, **known}
    )


def _members(message_id: str, offer: Offer, seq: int, skipped: Sequence[str]) -> dict[str, Any]:
    return {
        "broker_message_id": message_id,
        "client_message_id": offer.head.client_message_id,
        "history_id": seq,
        "skipped": list(skipped),
    }


def _draft(accepted: Accepted) -> Draft:
    offer, (destination_kind, destination_ref) = accepted.offer, accepted.destination
    is_administration = _is_administration(offer)
    return Draft(
        kind=Kind.ADMIN if is_administration else Kind.ACCEPTED,
        mesh=offer.head.mesh,
        message_id=accepted.message_id,
        client_message_id=offer.head.client_message_id,
        sender=accepted.sender,
        epoch=offer.head.epoch,
        sequence=offer.head.sequence,
        recipients=accepted.recipients,
        mentions=tuple(_mentions(offer)),
        destination_kind=destination_kind,
        destination_ref=destination_ref,
        event_id=offer.event_id,
        size=len(offer.raw),
        detail=offer.event.content.encode() if is_administration else b"",
    )


def _message(accepted: Accepted, entry: Entry) -> tuple[Value, ...]:
    offer = accepted.offer
    return (
        *(accepted.message_id, offer.head.mesh, accepted.sender, offer.head.client_message_id, offer.event_id),
        *(entry.seq, offer.event.kind, *accepted.destination, offer.raw, len(offer.raw), entry.at, accepted.expires_at),
    )


def _mentions(offer: Offer) -> Sequence[str]:
    return offer.said.mentions if isinstance(offer.said, Envelope) else ()


def _is_administration(offer: Offer) -> bool:
    return isinstance(offer.said, Administration)
