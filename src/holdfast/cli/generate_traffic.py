"""Generated traffic: bursts of talk in virtual time, with people who are away, queues that fill, retries and receipts.

A burst is a conversation in one mesh. Whoever is there first takes what waited, then talks; commits of the relay are
milliseconds apart inside a burst, and bursts minutes to hours. Every draw comes from one seeded source, so that the same
seed makes the same bytes.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random

from holdfast.cli.generate_founding import Founding
from holdfast.cli.generate_people import Accepted, Kept, Member, Mesh, Send, Waiting
from holdfast.cli.generate_relay import RelayBook
from holdfast.protocol import administration, event, keys, receipt
from holdfast.protocol.action import Action, RevokeMember
from holdfast.protocol.envelope import MESSAGE_KIND, Destination
from holdfast.protocol.fingerprint import DestinationKind
from holdfast.protocol.history import Draft, Kind
from holdfast.protocol.receipt import RECEIPT_KIND, RECEIPTED_MAX, Receipted, ReceiptStatus
from holdfast.protocol.schedule import DAY, HOUR, SECOND

DAYS = 35  # long enough for expiries, and for messages and ids to be let go of
MESSAGES_PER_BURST = 400
BURSTS_MIN = 60
BATCH_MAX = 50  # deliveries acknowledged at once
MAX_AGE = 144 * HOUR  # an unsent row dies

# How often something happens, of a hundred thousand.
_TO_A_TOPIC = 30_000
_SHORT_LIVED = 4_000
_MENTIONING = 10_000
_WRITTEN_OFFLINE = 6_000
_REFUSED = 400
_REQUEUED = 200
_FAULTED = 2_000
_UNREADABLE = 300
_UNAPPLIED = 3_000
_PARKED = 500
_LATE_RECEIPT = 5_000
_MODERATED = 2_000  # of bursts
_QUARANTINED = 2_000  # likewise


@dataclass(frozen=True)
class Plan:
    """What is to be made."""

    messages: int
    starts_at: int
    span: int  # µs


class Traffic:
    """The world at work; `relay.at` is its clock."""

    def __init__(self, plan: Plan, relay: RelayBook, meshes: list[Mesh], random: Random) -> None:
        self._plan = plan
        self._relay = relay
        self._meshes = meshes
        self._random = random
        self._founding = Founding(relay, random)
        self._confirmed: list[Accepted] = []
        self._swept_at = plan.starts_at
        self._left = plan.messages
        self._bursts = max(BURSTS_MIN, plan.messages // MESSAGES_PER_BURST)
        self._per_burst = -(-plan.messages // self._bursts)

    def run(self, progress: Callable[[int], None]) -> None:
        """Make all of it; `progress` is told how many messages were sent."""
        self._found()
        burst = 0
        while self._left:
            burst += 1
            self._wait(round(self._plan.span / self._bursts * self._random.uniform(0.2, 1.8)))
            self._now_and_then(burst)
            before = self._left
            self._burst()
            progress(before - self._left)
            self._relay.commit_if_due()
        self._finish()

    # Time.

    def _wait(self, gap: int) -> None:
        """End the commit under way, and let time pass."""
        homes = any(one.send.sender.home for one in self._confirmed)
        anchor = self._relay.end_commit(sign=homes)
        self._relay.at += max(1, gap)
        for accepted in self._confirmed:
            home = accepted.send.sender.home
            if home is not None and anchor is not None:
                home.relayed(accepted, self._relay.at, anchor)
        self._confirmed.clear()

    def _tick(self) -> None:
        self._wait(round(self._random.lognormvariate(9.5, 1.2)))  # about 13 ms

    def _happens(self, of_a_hundred_thousand: int) -> bool:
        return self._random.randrange(100_000) < of_a_hundred_thousand

    # Beginning, end, and what happens between bursts.

    def _found(self) -> None:
        for mesh in self._meshes:
            asked = self._founding.found(mesh)
            self._joined(mesh.members[0])
            for signer, action in asked:
                self._tick()
                self._administer(signer, action)
            self._tick()
            for member in mesh.members:
                self._founding.sign_events(member)

    def _administer(self, signer: Member, action: Action) -> None:
        send = self._founding.administer(signer, action)
        if signer.home is not None and not signer.sequence > 1:
            signer.home.keep(signer, self._relay.identity.pubkey, send.client_message_id)
        self._enqueue(send)
        self._try(send)
        self._accept(send, ())
        for member in signer.mesh.members:
            if getattr(action, "member", None) == member.member:
                self._joined(member)

    def _joined(self, member: Member) -> None:
        if not member.joined_at:
            member.joined_at = self._relay.at
            member.mesh.active.append(member)
            member.keys.append((member.key, self._relay.at))

    def _now_and_then(self, burst: int) -> None:
        if self._relay.at - self._swept_at >= DAY:
            self._sweep()
        if self._happens(_MODERATED):
            self._moderate()
        if self._happens(_QUARANTINED):
            self._quarantine()
        for mesh in self._meshes:
            if burst == self._bursts // 2:
                self._rotate(mesh.members[1:2])
            if burst == self._bursts * 3 // 4 and len(mesh.members) > 4:
                self._revoke(mesh.members[0], mesh.members[4])
        self._tick()

    def _sweep(self) -> None:
        self._swept_at = self._relay.at
        for mesh in self._meshes:
            for member in mesh.active:
                self._expire(member)
                self._age_out(member)
        self._relay.sweep()

    def _expire(self, member: Member) -> None:
        if not member.queue or member.expires_next_at > self._relay.at:
            return
        left: deque[Waiting] = deque()
        for waiting in member.queue:
            if waiting.expires_at <= self._relay.at:
                self._close(waiting, Kind.EXPIRED)
            else:
                left.append(waiting)
        member.queue = left
        member.expires_next_at = min((waiting.expires_at for waiting in left), default=0)

    def _age_out(self, member: Member) -> None:
        old = [send for send in member.unsent if self._relay.at - send.enqueued_at >= MAX_AGE]
        for send in old:
            member.unsent.remove(send)
            if member.home is not None:
                member.home.dead(send, self._relay.at, "max_age_passed", "it waited for more than 144 hours")

    def _moderate(self) -> None:
        """An operator takes a message down: whoever has not got it will not."""
        waiting = self._some_waiting()
        if waiting is None:
            return
        accepted = waiting.accepted
        mesh, operator = accepted.send.sender.mesh, self._relay.identity.operators[0]
        self._relay.say(
            Draft(
                kind=Kind.MODERATED,
                mesh=mesh.mesh,
                message_id=accepted.message_id,
                event_id=accepted.send.event_id,
                destination_kind="moderation",
                destination_ref=operator,
                reason="spam",
            )
        )
        for member in mesh.active:
            for copy in [one for one in member.queue if one.accepted is accepted]:
                member.queue.remove(copy)
                self._close(copy, Kind.MODERATED, reason="spam")

    def _quarantine(self) -> None:
        waiting = self._some_waiting()
        if waiting is not None:
            waiting.member.queue.remove(waiting)
            self._close(waiting, Kind.QUARANTINED, reason="corrupt")

    def _some_waiting(self) -> Waiting | None:
        found = [
            waiting
            for mesh in self._meshes
            for member in mesh.active
            for waiting in list(member.queue)[:5]
            if not waiting.is_receipt
        ]
        return self._random.choice(found) if found else None

    def _rotate(self, members: Iterable[Member]) -> None:
        """A member takes another key; not where a home has the old one in a file."""
        for member in members:
            if member.home is not None or member.revoked_at is not None:
                continue
            secret, aux = self._random.randbytes(32), self._random.randbytes(32)
            action = administration.rotate_member_key(secret, member.mesh.mesh, member.member, aux)
            self._administer(member, action)
            member.secret, member.key = secret, action.key
            member.keys.append((member.key, self._relay.at))

    def _revoke(self, admin: Member, member: Member) -> None:
        """A member is out: what waits for it is dropped, and it leaves its topics."""
        for waiting in member.queue:
            self._close(waiting, Kind.DROPPED)
        member.queue.clear()
        self._administer(admin, RevokeMember(member=member.member))
        member.revoked_at = self._relay.at
        member.mesh.active.remove(member)
        self._forget_receipts(member)
        for topic in member.mesh.topics:
            topic.subscribers = [one for one in topic.subscribers if one is not member]

    def _forget_receipts(self, member: Member) -> None:
        """Neither can it sign any more nor does anybody owe it a receipt."""
        for other in member.mesh.members:
            owed = [kept for whom, ones in other.unreceipted.items() if member in (other, whom) for kept in ones]
            self._put_kept(owed)
            other.unreceipted = {whom: ones for whom, ones in other.unreceipted.items() if member not in (other, whom)}

    def _finish(self) -> None:
        self._wait(SECOND)
        for mesh in self._meshes:
            for member in mesh.members:
                for waiting in member.queue:
                    self._relay.put_delivery(waiting, "open")
                for kept in member.unreceipted.values():
                    self._put_kept(kept)
                if member.home is not None:
                    member.home.put_pending()
        self._relay.put_state(self._meshes)

    def _put_kept(self, owed: Iterable[Kept]) -> None:
        for kept in owed:
            self._relay.put_delivery(kept.waiting, "delivered", kept.closed_at, kept.was_stored)

    # A burst.

    def _burst(self) -> None:
        mesh = self._random.choice(self._meshes)
        online = [one for one in mesh.active if self._random.random() < one.presence] or mesh.active[:1]
        there = set(online)
        live: list[Waiting] = []
        self._catch_up(online, live)
        count = min(self._left, self._random.randint(1, 2 * self._per_burst))
        while count:
            self._tick()
            now = min(count, self._random.randint(1, 30))
            for _ in range(now):
                self._write(mesh, online, there, live)
            count -= now
            self._left -= now
            self._acknowledge(live, patience=0.15)
            if self._random.random() < 0.1:
                self._receipt(online, live)
        while live:
            self._tick()
            self._acknowledge(live, patience=0.0)
        self._tick()
        self._receipt([one for one in online if not self._happens(_LATE_RECEIPT)], live)
        self._tick()
        self._acknowledge(live, patience=0.0)

    def _catch_up(self, online: list[Member], live: list[Waiting]) -> None:
        """Whoever comes back sends what was written offline, and takes what waited, in batches."""
        for member in online:
            unsent, member.unsent = member.unsent, []
            for send in unsent:
                self._offer(send, live, set())  # nobody's stream is live yet, so all of it joins the queues
            self._expire(member)
        backlog = [member for member in online if member.queue]
        while backlog:
            self._tick()
            for member in backlog:
                for _ in range(min(BATCH_MAX, len(member.queue))):
                    self._deliver(member.queue.popleft(), was_stored=True)
            backlog = [member for member in backlog if member.queue]
        self._tick()
        self._receipt(online, live)

    def _write(self, mesh: Mesh, online: list[Member], there: set[Member], live: list[Waiting]) -> None:
        """Somebody writes something: to one member, or to a topic."""
        offline = self._happens(_WRITTEN_OFFLINE)
        sender = self._random.choice(mesh.active if offline else online)
        send = self._message(mesh, sender)
        self._enqueue(send)
        if self._happens(_REFUSED):
            self._refuse(send)
        elif self._happens(_REQUEUED):
            self._requeue(send, live, there)
        elif offline and sender not in there:
            sender.unsent.append(send)
        else:
            self._offer(send, live, there)

    def _message(self, mesh: Mesh, sender: Member) -> Send:
        topics = [topic for topic in mesh.topics if sender in topic.subscribers]
        mentions: tuple[str, ...] = ()
        if topics and self._happens(_TO_A_TOPIC):
            topic = self._random.choice(topics)
            kind, ref = "topic", topic.topic
            if self._happens(_MENTIONING):
                mentions = (self._random.choice(topic.subscribers).member,)
        else:
            others = [member for member in mesh.active if member is not sender] or [sender]
            kind, ref = "dm", self._random.choice(others).member
        head = sender.next_head(self._relay.mint())
        return Send(
            sender=sender,
            sequence=head.sequence,
            client_message_id=head.client_message_id,
            destination_kind=kind,
            destination_ref=ref,
            event_id=self._random.randbytes(32),
            event=self._random.choice(sender.events),
            enqueued_at=self._relay.at,
            epoch=sender.epoch,
            kind=MESSAGE_KIND,
            log_kind=kind,
            mentions=mentions,
            expires_at=self._relay.at + HOUR if self._happens(_SHORT_LIVED) else None,
        )

    def _enqueue(self, send: Send) -> None:
        if send.sender.home is not None:
            send.sender.home.enqueued(send)

    def _refuse(self, send: Send) -> None:
        """The relay says no for good: the sequence is used, and nothing is at the relay."""
        home = send.sender.home
        if home is not None:
            home.attempted(send, self._relay.at)
            home.dead(send, self._relay.at, "may_not_post", "the topic is closed to this member")

    def _requeue(self, send: Send, live: list[Waiting], online: set[Member]) -> None:
        """An operator gives the content to another row with another id."""
        successor = self._message(send.sender.mesh, send.sender)
        self._enqueue(successor)
        if send.sender.home is not None:
            send.sender.home.aborted(send, self._relay.at, successor)
        self._offer(successor, live, online)

    def _try(self, send: Send) -> None:
        """An attempt, and sometimes a failed one before it."""
        home = send.sender.home
        if home is None:
            return
        if self._happens(_FAULTED):
            home.attempted(send, self._relay.at)
            reason, detail = self._random.choice(
                [
                    ("unreachable", "connection refused"),
                    ("restarted", "the process that sent it ended before the answer"),
                ]
            )
            home.put_back(send, self._relay.at, reason, detail)
        home.attempted(send, self._relay.at)

    def _offer(self, send: Send, live: list[Waiting], online: set[Member]) -> None:
        """A message comes to the relay, which takes it or puts it off."""
        self._try(send)
        mesh = send.sender.mesh
        if send.expires_at is not None and send.expires_at <= self._relay.at:
            if send.sender.home is not None:
                send.sender.home.dead(send, self._relay.at, "max_age_passed", "it expired")
            return
        if send.destination_kind == "topic":
            topic = next(topic for topic in mesh.topics if topic.topic == send.destination_ref)
            members = [member for member in topic.subscribers if member is not send.sender]
        else:
            members = [mesh.called(send.destination_ref)]
        outcomes = [(member, self._outcome(send, member)) for member in members]
        if send.destination_kind == "dm" and outcomes[0][1] in ("full", "out"):
            self._put_off(send, outcomes[0][1])
            return
        accepted = self._accept(send, [(member.member, outcome) for member, outcome in outcomes])
        self._queue(accepted, [member for member, outcome in outcomes if outcome == "queued"], live, online)

    def _outcome(self, send: Send, member: Member) -> str:
        if member.revoked_at is not None:
            return "out"
        if member.member in send.sender.blocked_by:
            return "blocked"
        if member.queue_count >= self._relay.queue_messages_max:
            self._expire(member)
        return "full" if member.queue_count >= self._relay.queue_messages_max else "queued"

    def _put_off(self, send: Send, outcome: str) -> None:
        home = send.sender.home
        if outcome == "full":
            send.sender.unsent.append(send)
            if home is not None:
                home.put_back(send, self._relay.at, "queue_full", f"no room for member {send.destination_ref}")
        elif home is not None:
            home.dead(send, self._relay.at, "destination_unknown", f"member {send.destination_ref} is not in the mesh")

    def _accept(self, send: Send, recipients: Iterable[tuple[str, str]]) -> Accepted:
        accepted = self._relay.accept(send, tuple(recipients))
        if send.sender.home is not None:
            self._confirmed.append(accepted)
        return accepted

    def _queue(self, accepted: Accepted, members: Iterable[Member], live: list[Waiting], online: "set[Member]") -> None:
        expires_at = self._relay.expiry(accepted.send)
        for member in members:
            waiting = Waiting(member, accepted, expires_at)
            member.queue_count += not waiting.is_receipt
            if member in online and not member.queue:
                live.append(waiting)
            else:
                least = member.expires_next_at if member.queue else expires_at
                member.expires_next_at = min(least, expires_at)
                member.queue.append(waiting)

    # Deliveries and receipts.

    def _acknowledge(self, live: list[Waiting], patience: float) -> None:
        """Those who are there acknowledge what they were just sent; some need a moment longer, and all keep the order."""
        slow: set[Member] = set()
        left = []
        for waiting in live:
            if waiting.accepted.at == self._relay.at or waiting.member in slow or self._random.random() < patience:
                slow.add(waiting.member)
                left.append(waiting)
            else:
                self._deliver(waiting, was_stored=False)
        live[:] = left

    def _deliver(self, waiting: Waiting, *, was_stored: bool) -> None:
        """The recipient stores, then acknowledges."""
        home = waiting.member.home
        if waiting.is_receipt:
            if home is not None:
                for kept, status in waiting.accepted.send.lines:
                    home.receipted(waiting.accepted, kept, status, self._relay.at)
            self._close(waiting, Kind.DELIVERED, was_stored=was_stored)
            return
        if home is not None:
            home.stored(waiting, self._relay.at, was_stored, _status(waiting.accepted), self._relay.log_id)
            self._apply(waiting)
        self._close(waiting, Kind.DELIVERED, was_stored=was_stored)

    def _apply(self, waiting: Waiting) -> None:
        home = waiting.member.home
        if home is None or _status(waiting.accepted) != "stored" or self._happens(_UNAPPLIED):
            return
        if self._happens(_PARKED):
            home.parked(waiting, self._relay.at)
        else:
            home.applied(waiting, self._relay.at)

    def _close(
        self, waiting: Waiting, kind: Kind, *, was_stored: bool | None = None, reason: str | None = None
    ) -> None:
        kept = self._relay.close(waiting, kind, was_stored=was_stored, reason=reason)
        sender = waiting.accepted.send.sender
        if kind is Kind.DELIVERED and not waiting.is_receipt and sender.revoked_at is None:
            waiting.member.unreceipted.setdefault(sender, []).append(kept)
        else:
            self._relay.put_delivery(waiting, kind.value, kept.closed_at, was_stored)

    def _receipt(self, online: list[Member], live: list[Waiting]) -> None:
        """Members tell senders what they have: one receipt for up to fifty messages."""
        there = set(online)
        for member in online:
            owed, member.unreceipted = member.unreceipted, {}
            for sender, kept in owed.items():
                for start in range(0, len(kept), RECEIPTED_MAX):
                    self._publish_receipt(member, sender, kept[start : start + RECEIPTED_MAX], live, there)

    def _publish_receipt(
        self, member: Member, sender: Member, kept: list[Kept], live: list[Waiting], online: "set[Member]"
    ) -> None:
        lines = tuple((one, _status(one.waiting.accepted)) for one in kept)
        send = self._signed_receipt(member, sender, lines)
        self._enqueue(send)
        self._try(send)
        accepted = self._accept(send, [(sender.member, "queued")])
        for one in kept:
            self._relay.put_delivery(one.waiting, "delivered", one.closed_at, one.was_stored, self._relay.at)
        self._queue(accepted, [sender], live, online)

    def _signed_receipt(self, member: Member, sender: Member, lines: tuple[tuple[Kept, str], ...]) -> Send:
        head = member.next_head(self._relay.mint())
        said = receipt.Receipt(
            head=head,
            destination=Destination(DestinationKind.DM, sender.member),
            messages=tuple(
                Receipted(kept.waiting.accepted.send.event_id.hex(), kept.was_stored, ReceiptStatus(status))
                for kept, status in lines
            ),
        )
        aux = self._random.randbytes(keys.AUX_BYTES)
        signed = receipt.sign_receipt(member.secret, self._relay.at // SECOND, said, aux)
        raw = event.encode(signed)
        return Send(
            sender=member,
            sequence=head.sequence,
            client_message_id=head.client_message_id,
            destination_kind="dm",
            destination_ref=sender.member,
            event_id=bytes.fromhex(signed.id),
            event=raw,
            enqueued_at=self._relay.at,
            epoch=member.epoch,
            kind=RECEIPT_KIND,
            log_kind="receipt",
            detail=raw,
            lines=lines,
        )


def _status(accepted: Accepted) -> str:
    """What became of a message at whoever got it; a few could not be opened, and the same few for everybody."""
    return "unreadable" if int.from_bytes(accepted.send.event_id[:4], "big") % 100_000 < _UNREADABLE else "stored"
