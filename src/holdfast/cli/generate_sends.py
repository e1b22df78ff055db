"""Generated sends: what members write, and what becomes of it at their devices until the relay has it, or nobody."""

import msgspec

from holdfast.cli.generate_deliveries import Deliveries
from holdfast.cli.generate_people import Member, Mesh, Send, Waiting
from holdfast.cli.generate_stage import Stage
from holdfast.protocol import event
from holdfast.protocol.envelope import MESSAGE_KIND, Destination, Envelope, to_tags
from holdfast.protocol.event import Event
from holdfast.protocol.fingerprint import DestinationKind
from holdfast.protocol.schedule import HOUR, SECOND

MAX_AGE = 144 * HOUR  # an unsent row dies

# How often something happens, of a hundred thousand.
_TO_A_TOPIC = 30_000
_SHORT_LIVED = 4_000
_MENTIONING = 10_000
_WRITTEN_OFFLINE = 6_000
_REFUSED = 400
_REQUEUED = 200


class Sends:
    """From somebody who writes to the relay."""

    def __init__(self, stage: Stage, deliveries: Deliveries) -> None:
        self._stage = stage
        self._deliveries = deliveries

    def write(self, mesh: Mesh, online: list[Member], there: set[Member], live: list[Waiting]) -> None:
        """Somebody writes something: to one member, or to a topic."""
        offline = self._stage.happens(_WRITTEN_OFFLINE)
        sender = self._stage.random.choice(mesh.active if offline else online)
        send = self._message(mesh, sender)
        self._stage.enqueue(send)
        if self._stage.happens(_REFUSED):
            self._refuse(send)
        elif self._stage.happens(_REQUEUED):
            self._requeue(send, live, there)
        elif offline and sender not in there:
            sender.unsent.append(send)
        else:
            self.offer(send, live, there)

    def _message(self, mesh: Mesh, sender: Member) -> Send:
        topics = [topic for topic in mesh.topics if sender in topic.subscribers]
        mentions: tuple[str, ...] = ()
        if topics and self._stage.happens(_TO_A_TOPIC):
            topic = self._stage.random.choice(topics)
            kind, ref = "topic", topic.topic
            if self._stage.happens(_MENTIONING):
                mentions = (self._stage.random.choice(topic.subscribers).member,)
        else:
            others = [member for member in mesh.active if member is not sender] or [sender]
            kind, ref = "dm", self._stage.random.choice(others).member
        head = sender.next_head(self._stage.relay.mint())
        at, template = self._stage.relay.at, self._stage.random.choice(sender.events)
        said = Envelope(
            head=head,
            destination=Destination(DestinationKind(kind), ref),
            recipient_key=mesh.called(ref).key if kind == "dm" else None,
            key_epoch=1 if kind == "topic" else None,
            mentions=mentions,
            expires_at=at + HOUR if self._stage.happens(_SHORT_LIVED) else None,
        )
        made = _named(template, said, at // SECOND)
        return Send(
            sender=sender,
            sequence=head.sequence,
            client_message_id=head.client_message_id,
            destination_kind=kind,
            destination_ref=ref,
            event_id=bytes.fromhex(made.id),
            event=event.encode(made),
            enqueued_at=at,
            epoch=sender.epoch,
            kind=MESSAGE_KIND,
            log_kind=kind,
            mentions=mentions,
            expires_at=said.expires_at,
        )

    def _refuse(self, send: Send) -> None:
        """The relay says no for good: the sequence is used, and nothing is at the relay."""
        home = send.sender.home
        if home is not None:
            home.attempted(send, self._stage.relay.at)
            home.dead(send, self._stage.relay.at, "may_not_post", "the topic is closed to this member")

    def _requeue(self, send: Send, live: list[Waiting], online: set[Member]) -> None:
        """An operator gives the content to another row with another id."""
        successor = self._message(send.sender.mesh, send.sender)
        self._stage.enqueue(successor)
        if send.sender.home is not None:
            send.sender.home.aborted(send, self._stage.relay.at, successor)
        self.offer(successor, live, online)

    def offer(self, send: Send, live: list[Waiting], online: set[Member]) -> None:
        """A message comes to the relay, which takes it or puts it off."""
        self._stage.attempt(send)
        mesh = send.sender.mesh
        if send.expires_at is not None and send.expires_at <= self._stage.relay.at:
            if send.sender.home is not None:
                send.sender.home.dead(send, self._stage.relay.at, "max_age_passed", "it expired")
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
        accepted = self._stage.accept(send, [(member.member, outcome) for member, outcome in outcomes])
        self._deliveries.queue(accepted, [member for member, outcome in outcomes if outcome == "queued"], live, online)

    def _outcome(self, send: Send, member: Member) -> str:
        if member.revoked_at is not None:
            return "out"
        if member.member in send.sender.blocked_by:
            return "blocked"
        if member.queue_count >= self._stage.relay.queue_messages_max:
            self._deliveries.expire(member)
        return "full" if member.queue_count >= self._stage.relay.queue_messages_max else "queued"

    def _put_off(self, send: Send, outcome: str) -> None:
        home = send.sender.home
        if outcome == "full":
            send.sender.unsent.append(send)
            if home is not None:
                home.put_back(send, self._stage.relay.at, "queue_full", f"no room for member {send.destination_ref}")
        elif home is not None:
            home.dead(
                send, self._stage.relay.at, "destination_unknown", f"member {send.destination_ref} is not in the mesh"
            )

    def age_out(self, member: Member) -> None:
        old = [send for send in member.unsent if self._stage.relay.at - send.enqueued_at >= MAX_AGE]
        for send in old:
            member.unsent.remove(send)
            if member.home is not None:
                member.home.dead(send, self._stage.relay.at, "max_age_passed", "it waited for more than 144 hours")


def _named(template: Event, said: Envelope, created_at: int) -> Event:
    """An event that says where it goes, under the id of what it says; content and signature are another's."""
    tags = to_tags(said)
    named = event.event_id(template.pubkey, created_at, MESSAGE_KIND, tags, template.content)
    return msgspec.structs.replace(template, id=named, created_at=created_at, tags=tags)
