"""Generated traffic: bursts of talk in virtual time, with people who are away, queues that fill, retries and receipts.

A burst is a conversation in one mesh. Whoever is there first takes what waited, then talks; commits of the relay are
milliseconds apart inside a burst, and bursts minutes to hours. Every draw comes from one seeded source, so that the same
seed makes the same bytes.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random

from holdfast.cli.generate_deliveries import Deliveries
from holdfast.cli.generate_founding import Founding
from holdfast.cli.generate_people import Member, Mesh, Waiting
from holdfast.cli.generate_relay import RelayBook
from holdfast.cli.generate_sends import Sends
from holdfast.cli.generate_stage import Stage
from holdfast.protocol import administration
from holdfast.protocol.action import Action, RevokeMember
from holdfast.protocol.history import Draft, Kind
from holdfast.protocol.schedule import DAY, SECOND

DAYS = 35  # long enough for expiries, and for messages and ids to be let go of
MESSAGES_PER_BURST = 400
BURSTS_MIN = 60
BATCH_MAX = 50  # deliveries acknowledged at once

# How often something happens, of a hundred thousand.
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
    """The world at work."""

    def __init__(self, plan: Plan, relay: RelayBook, meshes: list[Mesh], random: Random) -> None:
        self._plan = plan
        self._meshes = meshes
        self._stage = Stage(relay, random)
        self._deliveries = Deliveries(self._stage)
        self._sends = Sends(self._stage, self._deliveries)
        self._founding = Founding(relay, random)
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
            self._stage.wait(round(self._plan.span / self._bursts * self._stage.random.uniform(0.2, 1.8)))
            self._now_and_then(burst)
            before = self._left
            self._burst()
            progress(before - self._left)
            self._stage.relay.commit_if_due()
        self._finish()

    def _found(self) -> None:
        for mesh in self._meshes:
            asked = self._founding.found(mesh)
            self._joined(mesh.members[0])
            for signer, action in asked:
                self._stage.tick()
                self._administer(signer, action)
            self._stage.tick()
            for member in mesh.members:
                self._founding.sign_events(member)

    def _administer(self, signer: Member, action: Action) -> None:
        send = self._founding.administer(signer, action)
        if signer.home is not None and not signer.sequence > 1:
            signer.home.keep(signer, self._stage.relay.identity.pubkey, send.client_message_id)
        self._stage.enqueue(send)
        self._stage.attempt(send)
        self._stage.accept(send, ())
        for member in signer.mesh.members:
            if getattr(action, "member", None) == member.member:
                self._joined(member)

    def _joined(self, member: Member) -> None:
        if not member.joined_at:
            member.joined_at = self._stage.relay.at
            member.mesh.active.append(member)
            member.keys.append((member.key, self._stage.relay.at))

    def _now_and_then(self, burst: int) -> None:
        if self._stage.relay.at - self._swept_at >= DAY:
            self._sweep()
        if self._stage.happens(_MODERATED):
            self._moderate()
        if self._stage.happens(_QUARANTINED):
            self._quarantine()
        for mesh in self._meshes:
            if burst == self._bursts // 2:
                self._rotate(mesh.members[1:2])
            if burst == self._bursts * 3 // 4 and len(mesh.members) > 4:
                self._revoke(mesh.members[0], mesh.members[4])
        self._stage.tick()

    def _sweep(self) -> None:
        self._swept_at = self._stage.relay.at
        for mesh in self._meshes:
            for member in mesh.active:
                self._deliveries.expire(member)
                self._sends.age_out(member)
        self._stage.relay.sweep()

    def _moderate(self) -> None:
        """An operator takes a message down: whoever has not got it will not."""
        waiting = self._some_waiting()
        if waiting is None:
            return
        accepted = waiting.accepted
        mesh, operator = accepted.send.sender.mesh, self._stage.relay.identity.operators[0]
        self._stage.relay.say(
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
                self._deliveries.close(copy, Kind.MODERATED, reason="spam")

    def _quarantine(self) -> None:
        waiting = self._some_waiting()
        if waiting is not None:
            waiting.member.queue.remove(waiting)
            self._deliveries.close(waiting, Kind.QUARANTINED, reason="corrupt")

    def _some_waiting(self) -> Waiting | None:
        found = [
            waiting
            for mesh in self._meshes
            for member in mesh.active
            for waiting in list(member.queue)[:5]
            if not waiting.is_receipt
        ]
        return self._stage.random.choice(found) if found else None

    def _rotate(self, members: Iterable[Member]) -> None:
        """A member takes another key; not where a home has the old one in a file."""
        for member in members:
            if member.home is not None or member.revoked_at is not None:
                continue
            secret, aux = self._stage.random.randbytes(32), self._stage.random.randbytes(32)
            action = administration.rotate_member_key(secret, member.mesh.mesh, member.member, aux)
            self._administer(member, action)
            member.secret, member.key = secret, action.key
            member.keys.append((member.key, self._stage.relay.at))

    def _revoke(self, admin: Member, member: Member) -> None:
        """A member is out: what waits for it is dropped, and it leaves its topics."""
        for waiting in member.queue:
            self._deliveries.close(waiting, Kind.DROPPED)
        member.queue.clear()
        self._administer(admin, RevokeMember(member=member.member))
        member.revoked_at = self._stage.relay.at
        member.mesh.active.remove(member)
        self._deliveries.forget_receipts(member)
        for topic in member.mesh.topics:
            topic.subscribers = [one for one in topic.subscribers if one is not member]

    def _finish(self) -> None:
        self._stage.wait(SECOND)
        for mesh in self._meshes:
            for member in mesh.members:
                for waiting in member.queue:
                    self._stage.relay.put_delivery(waiting, "open")
                for kept in member.unreceipted.values():
                    self._deliveries.put_kept(kept)
                self._deliveries.owe(member)
                if member.home is not None:
                    member.home.put_pending()
        self._stage.relay.put_state(self._meshes)

    def _burst(self) -> None:
        mesh = self._stage.random.choice(self._meshes)
        online = [one for one in mesh.active if self._stage.random.random() < one.presence] or mesh.active[:1]
        there = set(online)
        live: list[Waiting] = []
        self._catch_up(online, live)
        count = min(self._left, self._stage.random.randint(1, 2 * self._per_burst))
        while count:
            self._stage.tick()
            now = min(count, self._stage.random.randint(1, 30))
            for _ in range(now):
                self._sends.write(mesh, online, there, live)
            count -= now
            self._left -= now
            self._deliveries.acknowledge(live, patience=0.15)
            if self._stage.random.random() < 0.1:
                self._deliveries.receipt(online, live)
        while live:
            self._stage.tick()
            self._deliveries.acknowledge(live, patience=0.0)
        self._stage.tick()
        self._deliveries.receipt([one for one in online if not self._stage.happens(_LATE_RECEIPT)], live)
        self._stage.tick()
        self._deliveries.acknowledge(live, patience=0.0)

    def _catch_up(self, online: list[Member], live: list[Waiting]) -> None:
        """Whoever comes back sends what was written offline, and takes what waited, in batches."""
        for member in online:
            unsent, member.unsent = member.unsent, []
            for send in unsent:
                self._sends.offer(send, live, set())  # nobody's stream is live yet, so all of it joins the queues
            self._deliveries.expire(member)
        backlog = [member for member in online if member.queue]
        while backlog:
            self._stage.tick()
            for member in backlog:
                for _ in range(min(BATCH_MAX, len(member.queue))):
                    self._deliveries.deliver(member.queue.popleft(), was_stored=True)
            backlog = [member for member in backlog if member.queue]
        self._stage.tick()
        self._deliveries.receipt(online, live)
