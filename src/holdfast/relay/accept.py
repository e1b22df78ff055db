"""The accept: turns an authentic offer into a durable yes, or into a refusal that leaves nothing behind.

All of this happens inside the writer's transaction, for all waiting requests. In order: was this id used before (a
repetition gets its answer, whatever else has changed meanwhile); is the date right, the sender known and not too fast; may
the signer do it; can the destination take it. Only then all rows are written: dedupe, message, history, deliveries,
mentions. A refusal is decided before anything is written for its offer, so its id stays free. (Expired messages of a full
queue are closed either way: that was due.)
"""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import msgspec

from holdfast.protocol import idempotency, ulid
from holdfast.protocol.action import RevokeMember, RotateMemberKey
from holdfast.protocol.administration import Administration
from holdfast.protocol.envelope import Envelope
from holdfast.protocol.fingerprint import DestinationKind, fingerprint_prefix
from holdfast.protocol.history import Entry
from holdfast.protocol.receipt import Receipt
from holdfast.protocol.refusal import REFUSALS, Refusal, Refused
from holdfast.protocol.schedule import DAY, DedupeMode
from holdfast.relay import accepted as rows
from holdfast.relay import administration, closing, receipts
from holdfast.relay.accepted import BLOCKED, FULL, QUEUED, Accepted
from holdfast.relay.answer import Answer, refusal_answer, refuse
from holdfast.relay.directory import Directory, Earlier, Recipient, Signer, found_earlier
from holdfast.relay.limiter import Limiter
from holdfast.relay.offer import Lane, Offer, check_date
from holdfast.relay.settings import Settings
from holdfast.relay.snapshots import SnapshotOffer
from holdfast.relay.sweep import forgotten_before
from holdfast.store.engine import Transaction
from holdfast.store.world import Random


class Request(msgspec.Struct, frozen=True):
    """The offers of one caller, in the order in which they are to be taken."""

    offers: Sequence[Offer]
    local: bool = False  # from this machine to a relay that serves this machine only
    snapshots: Sequence[SnapshotOffer] = ()  # answered after the offers
    held: frozenset[Lane] = frozenset()  # an earlier offer in these was postponed: nothing new may be taken there


class Repetition(msgspec.Struct, frozen=True):
    """An offer under an id that was used before, perhaps a moment ago in this very batch."""

    offer: Offer
    earlier: Earlier


class Acceptance:
    """One batch of the writer: decides its requests one after another, then writes the accepted ones, table by table."""

    def __init__(
        self,
        transaction: Transaction,
        now: int,
        settings: Settings,
        operators: frozenset[str],
        random: Random,
        limiter: Limiter,
    ) -> None:
        self._transaction = transaction
        self._now = now
        self._settings = settings
        self._operators = operators
        self._random = random
        self._limiter = limiter
        self._forgotten_before = forgotten_before(transaction)

    def take(self, requests: Sequence[Request]) -> list[list[Answer]]:
        """An answer to every offer of every request."""
        flat = [(number, offer) for number, request in enumerate(requests) for offer in request.offers]
        held: list[set[Lane]] = [set(request.held) for request in requests]
        answers: list[list[Answer]] = [[] for _ in requests]
        # Administration changes the state that decides later offers, so offers are decided in runs between such events.
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
                held[number] |= offer.lanes
            outcomes.append(outcome)
        entries = rows.write(self._transaction, self._now, self._settings.retention, self._accepted)
        created = {
            one.message_id: self._created(one, entry) for one, entry in zip(self._accepted, entries, strict=True)
        }
        return [_final(outcome, created) for outcome in outcomes]

    def _decide(self, offer: Offer, local: bool, held: set[Lane]) -> "Answer | Accepted | Repetition":
        earlier = found_earlier(offer, self._directory.signers, self._directory.earlier)
        if earlier is not None:
            return Repetition(offer, earlier)
        try:
            check_date(offer, self._now, self._window_days, self._forgotten_before)
            self._check_stranger(offer)
            if not held.isdisjoint(offer.lanes):
                raise Refused(Refusal.HELD_BACK, "an earlier one to the same destination was put off")
            self._check_pace(offer)
            accepted = self._judge(offer, local)
        except Refused as refused:
            if refused.refusal is Refusal.RECEIPT_UNKNOWN:  # so that useless receipts are not free
                self._limiter.charge(self._paced(offer), self._now)
            return refusal_answer(refused, offer.event.id)
        self._accepted.append(accepted)
        claimed = (offer.head.mesh, accepted.sender, offer.head.client_message_id)
        # So that a repetition within the batch is recognised, though the position is not known yet.
        self._directory.earlier[claimed] = Earlier(
            offer.event_id, accepted.message_id, 0, self._now, True, accepted.skipped
        )
        return accepted

    def _check_stranger(self, offer: Offer) -> None:
        if not isinstance(offer.said, Administration) and self._signer(offer) is None:
            if offer.head.mesh not in self._directory.meshes:
                raise Refused(Refusal.MESH_UNKNOWN, f"there is no mesh {offer.head.mesh}")
            raise Refused(Refusal.NOT_A_MEMBER, f"{offer.event.pubkey} is no key of a member")

    def _check_pace(self, offer: Offer) -> None:
        if isinstance(offer.said, Receipt):  # deliveries limit the valid ones; only useless ones are charged
            self._limiter.check_debt(self._paced(offer), self._now)
        else:
            self._limiter.check(self._paced(offer), offer.event.id, self._now)

    def _paced(self, offer: Offer) -> str:
        """Whose pace an offer takes: its member's. A key that is no longer in force has its own, for it may be stolen."""
        signer = self._signer(offer)
        return f"{offer.head.mesh}:{signer.member}" if signer and signer.is_in_force else offer.event.pubkey

    def _signer(self, offer: Offer) -> Signer | None:
        return self._directory.signers.get((offer.head.mesh, offer.event.pubkey))

    @property
    def _window_days(self) -> int | None:
        retention = self._settings.retention
        return None if retention.dedupe_mode is DedupeMode.PERMANENT else retention.dedupe_retention_days

    def _judge(self, offer: Offer, local: bool) -> Accepted:
        if isinstance(offer.said, Administration):
            office = administration.Office(self._transaction, self._now, self._settings.mesh, self._operators, local)
            sender = office.carry_out(offer, self._directory)
            return Accepted(offer=offer, sender=sender, message_id=self._mint())
        sender = self._check_member(offer)
        if isinstance(offer.said, Receipt):
            return self._judge_receipt(offer, offer.said, sender)
        return self._judge_message(offer, offer.said, sender)

    def _judge_message(self, offer: Offer, envelope: Envelope, sender: str) -> Accepted:
        if envelope.expires_at is not None and envelope.expires_at <= self._now:
            raise Refused(Refusal.MAX_AGE_PASSED, f"it expired at {envelope.expires_at}")
        recipients = _DESTINATIONS[envelope.destination.kind](self, offer, envelope, sender)
        return Accepted(
            offer=offer,
            sender=sender,
            message_id=self._mint(),
            recipients=recipients,
            expires_at=self._expiry(envelope.expires_at),
        )

    def _judge_receipt(self, offer: Offer, receipt: Receipt, signer: str) -> Accepted:
        """Accept a receipt for the sender of the messages, past its queue's cap and its blocks: it asked for it by sending."""
        recipient = self._directory.recipients.get((offer.head.mesh, receipt.destination.ref))
        if recipient is None or recipient.status != "active":
            raise Refused(Refusal.DESTINATION_UNKNOWN, f"member {receipt.destination.ref} is not in the mesh")
        receipted, untaken = receipts.judge(receipt, signer, self._directory.receiptable, self._now)
        return Accepted(
            offer=offer,
            sender=signer,
            message_id=self._mint(),
            recipients=((receipt.destination.ref, QUEUED),),
            expires_at=self._expiry(None),
            receipted=receipted,
            untaken=untaken,
        )

    def _check_member(self, offer: Offer) -> str:
        signer = self._directory.signers[offer.head.mesh, offer.event.pubkey]
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
        has_key = self._directory.posters.get((mesh, topic, sender))
        if has_key is None:
            raise Refused(Refusal.MAY_NOT_POST, f"member {sender} holds no key of topic {topic}")
        if not has_key:  # a keeper grants it, again if the relay was restored
            raise Refused(Refusal.WAITING_FOR_KEY, f"the key of topic {topic} is not granted to member {sender} yet")
        if envelope.key_epoch != key_epoch:
            raise Refused(Refusal.STALE_KEY, f"the key epoch of topic {topic} is now {key_epoch}")
        others = (member for member in self._directory.subscribers[mesh, topic] if member != sender)
        return tuple((member, self._outcome(mesh, sender, member)) for member in others)

    def _to_queue(self, offer: Offer, envelope: Envelope, sender: str) -> tuple[tuple[str, str], ...]:
        raise Refused(Refusal.DESTINATION_KIND_UNSUPPORTED, "work queues are not served yet")

    def _outcome(self, mesh: str, sender: str, member: str) -> str:
        """The outcome of a topic's message for one subscriber; a full or blocking one does not refuse it for the others."""
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
        if recipient.expires_from is None or recipient.expires_from > self._now:
            return False  # without reading the queue: a topic may have many subscribers with a full queue
        rows_max = self._settings.retention.sweep_rows_max
        expired = closing.expire_queue(self._transaction, self._now, mesh, member, rows_max)
        recipient.queue_count -= expired
        if expired < rows_max:
            recipient.expires_from = None  # everything that has expired is closed
        return recipient.queue_count < most

    def _expiry(self, expires_at: int | None) -> int:
        at_last = self._now + self._settings.retention.queue_ttl_days * DAY
        return at_last if expires_at is None else min(at_last, expires_at)

    def _mint(self) -> str:
        return ulid.mint(self._now, self._random(ulid.RANDOM_BYTES))

    def _created(self, accepted: Accepted, entry: Entry) -> Answer:
        claimed = (accepted.offer.head.mesh, accepted.sender, accepted.offer.head.client_message_id)
        self._directory.earlier[claimed].seq = entry.seq
        members = _members(accepted.message_id, accepted.offer, entry.seq, accepted.skipped)
        return Answer(
            event_id=accepted.offer.event.id,
            http_status=201,
            members={**members, "duplicate": False},
            wakes=tuple((accepted.offer.head.mesh, member) for member in accepted.queued),
            ends=_ends(accepted.offer),
        )


_Destination = Callable[[Acceptance, Offer, Envelope, str], tuple[tuple[str, str], ...]]
_DESTINATIONS: dict[DestinationKind, _Destination] = {
    DestinationKind.DM: Acceptance._to_member,
    DestinationKind.TOPIC: Acceptance._to_topic,
    DestinationKind.QUEUE: Acceptance._to_queue,
}

# The refusal with which an action ends the member's connections at once.
_ENDINGS: dict[type, Refusal] = {RevokeMember: Refusal.MEMBER_REVOKED, RotateMemberKey: Refusal.STALE_KEY}


class NoRoom(Refused):
    """A recipient's queue is full, and nothing in it has expired."""

    def __init__(self, member: str, most: int) -> None:
        super().__init__(Refusal.QUEUE_FULL, f"{most} messages wait for member {member}, and no more may")
        self.members = {"member": member}


def _final(outcome: Answer | Accepted | Repetition, created: dict[str, Answer]) -> Answer:
    match outcome:
        case Accepted():
            return created[outcome.message_id]
        case Repetition():
            return repeated(outcome.offer, outcome.earlier)
        case Answer():
            return outcome


def repeated(offer: Offer, earlier: Earlier) -> Answer:
    """The answer to an id that was used before: the first answer again for the same event, a conflict for another."""
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


def _ends(offer: Offer) -> tuple[tuple[str, str, Refusal], ...]:
    """The (mesh, member, reason) whose connections an administration event ends."""
    if isinstance(offer.said, Administration) and isinstance(offer.said.action, RevokeMember | RotateMemberKey):
        action = offer.said.action
        return ((offer.head.mesh, action.member, _ENDINGS[type(action)]),)
    return ()


def _is_administration(offer: Offer) -> bool:
    return isinstance(offer.said, Administration)
