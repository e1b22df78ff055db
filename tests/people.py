"""People for tests: keys, homes' counters, and the signed events that they publish, the same on every run."""

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from holdfast.protocol import administration, envelope, keys, payload, receipt, sealing
from holdfast.protocol.action import (
    Action,
    AdvanceTopicKey,
    Block,
    CreateMesh,
    CreateTopic,
    Grant,
    GrantTopicKey,
    Invite,
    RevokeMember,
    Role,
    Subscribe,
    Unblock,
)
from holdfast.protocol.envelope import Destination, Envelope, Head
from holdfast.protocol.event import Event, encode
from holdfast.protocol.fingerprint import DestinationKind
from holdfast.protocol.receipt import Receipt, Receipted, ReceiptStatus
from holdfast.protocol.topic_key import key_id, sealing_key

MESH = "01MESH"


public_key = cache(keys.public_key)
conversation_key = cache(sealing.conversation_key)


@cache
def secret_of(name: str) -> bytes:
    """A key from a name; a real one is random."""
    return hashlib.sha256(b"a person of the tests: " + name.encode()).digest()


@dataclass
class Person:
    """A member's home, reduced to what signs events."""

    name: str
    now_s: int = 1_800_000_000
    mesh: str = MESH
    sequences: Any = field(default_factory=itertools.count)
    counter: int = 0
    epoch: bytes | None = None  # of a home that was restored; else it follows from the name

    @property
    def secret(self) -> bytes:
        return secret_of(self.name)

    @property
    def key(self) -> str:
        return public_key(self.secret)

    @property
    def member(self) -> str:
        return f"member-{self.name}"

    def head(self, client_message_id: str | None = None, mesh: str | None = None) -> Head:
        sequence = next(self.sequences)
        epoch = self.epoch or hashlib.sha256(self.name.encode()).digest()[:16]
        return Head(
            mesh=mesh or self.mesh,
            client_message_id=client_message_id or f"{self.name}-{sequence}",
            epoch=epoch,
            sequence=sequence,
        )

    def administer(self, action: Action, *, mesh: str | None = None, client_message_id: str | None = None) -> Event:
        self.counter += 1
        said = administration.Administration(
            head=self.head(client_message_id, mesh), counter=self.counter, action=action
        )
        return administration.sign_administration(self.secret, self.now_s, said, bytes(32))

    def found_mesh(self) -> Event:
        return self.administer(CreateMesh(name="friends", member=self.member, member_name=self.name, key=self.key))

    def invite(self, secret: bytes, *, role: Role = Role.MEMBER, hours: int = 24) -> Event:
        expires_at = (self.now_s + hours * 3600) * 1_000_000
        return self.administer(Invite(key=public_key(secret), expires_at=expires_at, role=role))

    def join(self, secret: bytes) -> Event:
        return self.administer(administration.join(secret, self.mesh, self.member, self.name, self.key, bytes(32)))

    def message(
        self, to: "Person", body: bytes = b"hello", *, client_message_id: str | None = None, **more: Any
    ) -> Event:
        sealed = sealing.seal(
            conversation_key(self.secret, to.key), payload.encode(payload.Payload(body=body)), _nonce(body)
        )
        said = Envelope(
            head=self.head(client_message_id),
            destination=Destination(DestinationKind.DM, to.member),
            recipient_key=more.pop("recipient_key", to.key),
            **more,
        )
        return envelope.sign_message(self.secret, self.now_s, said, sealed, bytes(32))

    def post(self, topic: str, body: bytes = b"hello all", *, key_epoch: int = 1, **more: Any) -> Event:
        key = sealing_key(topic_key(topic, key_epoch), self.key)
        sealed = sealing.seal(key, payload.encode(payload.Payload(body=body)), _nonce(body))
        said = Envelope(
            head=self.head(more.pop("client_message_id", None)),
            destination=Destination(DestinationKind.TOPIC, topic),
            key_epoch=key_epoch,
            **more,
        )
        return envelope.sign_message(self.secret, self.now_s, said, sealed, bytes(32))

    def receipt(
        self,
        to: "Person",
        *event_ids: str,
        was_stored: bool = True,
        status: ReceiptStatus = ReceiptStatus.STORED,
        client_message_id: str | None = None,
    ) -> Event:
        """The word to a sender about messages of its own."""
        said = Receipt(
            head=self.head(client_message_id),
            destination=Destination(DestinationKind.DM, to.member),
            messages=tuple(Receipted(event_id, was_stored, status) for event_id in event_ids),
        )
        return receipt.sign_receipt(self.secret, self.now_s, said, bytes(32))

    def block(self, other: "Person") -> Event:
        return self.administer(Block(member=other.member))

    def unblock(self, other: "Person") -> Event:
        return self.administer(Unblock(member=other.member))

    def revoke(self, other: "Person") -> Event:
        return self.administer(RevokeMember(member=other.member))

    def rotate(self, secret: bytes) -> Event:
        """From now on this is the person's key; the old one signs."""
        return self.administer(administration.rotate_member_key(secret, self.mesh, self.member, bytes(32)))

    def create_topic(self, topic: str) -> Event:
        return self.administer(CreateTopic(topic=topic))

    def subscribe(self, topic: str) -> Event:
        return self.administer(Subscribe(topic=topic))

    def grant(self, topic: str, key_epoch: int, to: "Sequence[Person]") -> Event:
        grants = tuple(
            Grant(
                member=person.member,
                key=person.key,
                sealed=sealing.seal(
                    conversation_key(self.secret, person.key),
                    topic_key(topic, key_epoch),
                    _nonce(topic.encode()),
                ),
            )
            for person in to
        )
        return self.administer(
            GrantTopicKey(topic=topic, key_epoch=key_epoch, key_id=self.key_id(topic, key_epoch), grants=grants)
        )

    def advance(self, topic: str, key_epoch: int) -> Event:
        named = self.key_id(topic, key_epoch + 1)
        return self.administer(AdvanceTopicKey(topic=topic, key_epoch=key_epoch, key_id=named))

    def key_id(self, topic: str, key_epoch: int) -> str:
        return key_id(self.mesh, topic, key_epoch, topic_key(topic, key_epoch))


def topic_key(topic: str, key_epoch: int) -> bytes:
    return hashlib.sha256(f"{topic} {key_epoch}".encode()).digest()


def _nonce(of: bytes) -> bytes:
    return hashlib.sha256(b"nonce " + of).digest()


def raw(event: Event) -> bytes:
    return encode(event)
