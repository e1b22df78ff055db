"""How generated meshes come to be: founders, invitations, members, topics, blocks; all of it administration that is truly signed."""

from random import Random

from holdfast.cli.generate_people import Member, Mesh, Send, Topic
from holdfast.cli.generate_relay import RelayBook
from holdfast.protocol import action as actions
from holdfast.protocol import administration, envelope, event, keys, payload, sealing, topic_key
from holdfast.protocol.action import (
    Action,
    AddMember,
    AdvanceTopicKey,
    Block,
    CreateMesh,
    CreateTopic,
    Grant,
    GrantTopicKey,
    Invite,
    Role,
    Subscribe,
)
from holdfast.protocol.administration import ADMINISTRATION_KIND, Administration
from holdfast.protocol.envelope import Destination, Envelope, Head
from holdfast.protocol.event import Event
from holdfast.protocol.fingerprint import DestinationKind
from holdfast.protocol.schedule import DAY, SECOND

PRESENCES = (0.95, 0.8, 0.5, 0.25, 0.01)  # always there, mostly, half of the time, seldom, nearly never
TOPICS_PER_MESH = 2
BODIES = (b"ok", b"generated traffic; nothing to read here. " * 4)


class Founding:
    """Makes meshes and what is in them."""

    def __init__(self, relay: RelayBook, random: Random) -> None:
        self._relay = relay
        self._random = random

    def administer(self, signer: Member, action: Action) -> Send:
        """An administration event of a member, not yet at the relay."""
        signer.counter += 1
        at = self._relay.at
        head = signer.next_head(self._relay.mint())
        said = Administration(head=head, counter=signer.counter, action=action)
        signed = administration.sign_administration(signer.secret, at // SECOND, said, self._random.randbytes(32))
        return Send(
            sender=signer,
            sequence=head.sequence,
            client_message_id=head.client_message_id,
            destination_kind="admin",
            destination_ref=signer.mesh.mesh,
            event_id=bytes.fromhex(signed.id),
            event=event.encode(signed),
            enqueued_at=at,
            epoch=signer.epoch,
            kind=ADMINISTRATION_KIND,
            log_kind="admin",
            detail=actions.write_action(action).encode(),
        )

    def found(self, mesh: Mesh) -> list[tuple[Member, Action]]:
        """Everything that is asked for until a mesh is ready, with who asks, in order."""
        founder, *others = mesh.members
        created = CreateMesh(name=mesh.name, member=founder.member, member_name=founder.name, key=founder.key)
        asked: list[tuple[Member, Action]] = [(founder, created)]
        for number, member in enumerate(others):
            asked += self._admit(founder, member) if number % 2 else self._invite(founder, member)
        for number in range(TOPICS_PER_MESH):
            asked += self._topic(mesh, f"topic-{number}")
        asked += self._blocks(mesh)
        return asked

    def _admit(self, founder: Member, member: Member) -> list[tuple[Member, Action]]:
        return [(founder, AddMember(member=member.member, name=member.name, key=member.key, role=Role.MEMBER))]

    def _invite(self, founder: Member, member: Member) -> list[tuple[Member, Action]]:
        secret = self._random.randbytes(keys.SECRET_BYTES)
        pubkey, mesh = keys.public_key(secret), member.mesh.mesh
        expires_at = self._relay.at + DAY
        columns = ("mesh", "key", "role", "expires_at", "created_by", "used_at", "used_by")
        row = (mesh, pubkey, "member", expires_at, founder.member, self._relay.at, member.member)
        self._relay.put("invite", columns, row)
        aux = self._random.randbytes(keys.AUX_BYTES)
        join = administration.join(secret, mesh, member.member, member.name, member.key, aux)
        return [(founder, Invite(key=pubkey, expires_at=expires_at, role=Role.MEMBER)), (member, join)]

    def _topic(self, mesh: Mesh, name: str) -> list[tuple[Member, Action]]:
        founder, key = mesh.members[0], self._random.randbytes(32)
        key_id = topic_key.key_id(mesh.mesh, name, 1, key)
        topic = Topic(name, key, key_id, founder, self._relay.at)
        topic.subscribers = [member for member in mesh.members if self._random.random() < 0.8] or [founder]
        mesh.topics.append(topic)
        grants = tuple(self._grant(topic, member) for member in topic.subscribers)
        staged = [
            (founder, GrantTopicKey(topic=name, key_epoch=1, key_id=key_id, grants=grants[start : start + 64]))
            for start in range(0, len(grants), 64)
        ]
        return [
            (founder, CreateTopic(topic=name)),
            *((member, Subscribe(topic=name)) for member in topic.subscribers),
            *staged,
            (founder, AdvanceTopicKey(topic=name, key_epoch=0, key_id=key_id)),
        ]

    def _grant(self, topic: Topic, member: Member) -> Grant:
        conversation = sealing.conversation_key(topic.creator.secret, member.key)
        sealed = sealing.seal(conversation, topic.key, self._random.randbytes(32))
        columns = (
            *("mesh", "topic", "key_epoch", "key_id", "member"),
            *("key", "sealed", "granted_by", "granted_at"),
        )
        row = (
            *(member.mesh.mesh, topic.topic, 1, topic.key_id, member.member),
            *(member.key, sealed, topic.creator.key, self._relay.at),
        )
        self._relay.put("topic_grant", columns, row)
        return Grant(member=member.member, key=member.key, sealed=sealed)

    def _blocks(self, mesh: Mesh) -> list[tuple[Member, Action]]:
        """One member wants nothing from another."""
        if len(mesh.members) < 4:
            return []
        blocker, blocked = mesh.members[2], mesh.members[3]
        blocked.blocked_by.add(blocker.member)
        return [(blocker, Block(member=blocked.member))]

    def sign_events(self, member: Member) -> None:
        """A few messages that are truly sealed and signed, to stand for all that the member will send."""
        other = next((one for one in member.mesh.members if one is not member), member)
        conversation = sealing.conversation_key(member.secret, other.key)
        member.events = tuple(self._sign(member, other, conversation, body) for body in BODIES)

    def _sign(self, member: Member, other: Member, conversation: bytes, body: bytes) -> Event:
        said = Envelope(
            head=Head(mesh=member.mesh.mesh, client_message_id="reused", epoch=member.epoch, sequence=0),
            destination=Destination(DestinationKind.DM, other.member),
            recipient_key=other.key,
        )
        sealed = sealing.seal(conversation, payload.encode(payload.Payload(body=body)), self._random.randbytes(32))
        aux = self._random.randbytes(keys.AUX_BYTES)
        return envelope.sign_message(member.secret, self._relay.at // SECOND, said, sealed, aux)
