"""The envelope of a message: all that the relay may see of it, as the tags of a signed event of kind 4201.

The content of the event is the sealed payload. Tags stand in the order of `MESSAGE_TAGS`, and any other order is refused:
so an envelope has one spelling, and the signed tags can be rebuilt from its columns. The head, which receipts and
administration share, names the send for ever: (epoch, sequence) at the device, client_message_id at the relay.
"""

from collections.abc import Mapping, Sequence

import msgspec

from holdfast.protocol.event import Event, sign_event
from holdfast.protocol.fingerprint import DestinationKind, Priority
from holdfast.protocol.keys import PUBLIC_KEY_BYTES
from holdfast.protocol.payload import PAYLOAD_BYTES_MAX
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.sealing import PAYLOAD_CHARACTERS_MIN, is_payload, payload_characters
from holdfast.protocol.tables import total
from holdfast.protocol.tags import (
    IDENTIFIER,
    REFERENCE,
    TOPIC,
    TagRule,
    Tags,
    TextRule,
    check_bytes,
    check_distinct,
    check_hex,
    check_range,
    check_type,
    read_choice,
    read_integer,
    read_tags,
)

MESSAGE_KIND = 4201
EPOCH_BYTES = 16
MENTIONS_MAX = 64  # members named in one message
SEALED_CHARACTERS_MIN = PAYLOAD_CHARACTERS_MIN  # 132: the smallest padding
SEALED_CHARACTERS_MAX = payload_characters(PAYLOAD_BYTES_MAX)  # 54,704: one byte more would take 65,628

Found = Mapping[str, Sequence[tuple[str, ...]]]


# The form of a destination's ref, by kind.
DESTINATION_REFS: Mapping[DestinationKind, TextRule] = total(
    {DestinationKind.DM: IDENTIFIER, DestinationKind.TOPIC: TOPIC, DestinationKind.QUEUE: IDENTIFIER},
    DestinationKind,
)
# The tag that names the key a message was sealed with, so that the relay recognises a stale one.
SEALED_WITH: Mapping[DestinationKind, str] = total(
    {
        DestinationKind.DM: "recipient_key",
        DestinationKind.TOPIC: "key_epoch",
        DestinationKind.QUEUE: "key_epoch",
    },
    DestinationKind,
)

HEAD_TAGS = (TagRule("mesh"), TagRule("client_message_id"), TagRule("epoch"), TagRule("sequence"))
DESTINATION_TAGS = (TagRule("destination_kind"), TagRule("destination_ref"))
MESSAGE_TAGS = (
    *HEAD_TAGS,
    *DESTINATION_TAGS,
    TagRule("recipient_key", least=0),
    TagRule("key_epoch", least=0),
    TagRule("priority"),
    TagRule("expires_at", least=0),
    TagRule("reply_to", least=0),
    TagRule("mention", least=0, most=None),
)


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The first tags of every event of a device: the mesh, and which of the device's sends this is."""

    mesh: str
    client_message_id: str
    epoch: bytes
    sequence: int

    def __post_init__(self) -> None:
        IDENTIFIER.check(self.mesh, "mesh")
        REFERENCE.check(self.client_message_id, "client_message_id")
        check_bytes(self.epoch, "epoch", EPOCH_BYTES)
        check_range(self.sequence, "sequence", 0)


class Destination(msgspec.Struct, frozen=True):
    """A member id, a topic's name or a queue's id."""

    kind: DestinationKind
    ref: str

    def __post_init__(self) -> None:
        check_type(self.kind, DestinationKind, "destination_kind")
        DESTINATION_REFS[self.kind].check(self.ref, "destination_ref")


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """A message as the relay sees it, without its sealed content."""

    head: Head
    destination: Destination
    recipient_key: str | None = None  # the member's key, in hex, that a direct message is sealed to
    key_epoch: int | None = None  # from 1: which key of the topic or queue it is sealed with
    priority: Priority = Priority.NEXT
    expires_at: int | None = None  # microseconds
    reply_to: str | None = None
    mentions: tuple[str, ...] = ()  # member ids, as the caller ordered them

    def __post_init__(self) -> None:
        check_type(self.head, Head, "head")
        check_type(self.destination, Destination, "destination")
        check_type(self.priority, Priority, "priority")
        check_type(self.mentions, tuple, "mentions")  # a str would pass as a sequence of one-letter members
        _check_sealed_with(self)
        if self.expires_at is not None:
            check_range(self.expires_at, "expires_at", 1)
        if self.reply_to is not None:
            REFERENCE.check(self.reply_to, "reply_to")
        if len(self.mentions) > MENTIONS_MAX:
            raise Refused(Refusal.TOO_LARGE, f"{len(self.mentions)} mentions, at most {MENTIONS_MAX} allowed")
        for member in self.mentions:
            IDENTIFIER.check(member, "mention")
        check_distinct(self.mentions, "mention")


def _check_sealed_with(envelope: Envelope) -> None:
    kind = envelope.destination.kind
    for name, value in (("recipient_key", envelope.recipient_key), ("key_epoch", envelope.key_epoch)):
        if SEALED_WITH[kind] == name and value is None:
            raise Refused(Refusal.MALFORMED, f"a message to a {kind} needs {name}")
        if SEALED_WITH[kind] != name and value is not None:
            raise Refused(Refusal.MALFORMED, f"a message to a {kind} may not have {name}")
    if envelope.recipient_key is not None:
        check_hex(envelope.recipient_key, "recipient_key", PUBLIC_KEY_BYTES)
    if envelope.key_epoch is not None:
        check_range(envelope.key_epoch, "key_epoch", 1)


def to_tags(envelope: Envelope) -> Tags:
    """The tags of a message."""
    return (
        *head_to_tags(envelope.head),
        *destination_to_tags(envelope.destination),
        *_optional("recipient_key", envelope.recipient_key),
        *_optional("key_epoch", envelope.key_epoch),
        ("priority", envelope.priority.value),
        *_optional("expires_at", envelope.expires_at),
        *_optional("reply_to", envelope.reply_to),
        *(("mention", member) for member in envelope.mentions),
    )


def from_event(event: Event) -> Envelope:
    """The envelope of a message event; its id and signature are checked elsewhere."""
    check_kind(event, MESSAGE_KIND)
    _check_sealed(event.content)
    found = read_tags(event.tags, MESSAGE_TAGS)
    return Envelope(
        head=head_from_tags(found),
        destination=destination_from_tags(found),
        recipient_key=_text(found, "recipient_key"),
        key_epoch=_integer(found, "key_epoch"),
        priority=read_choice(Priority, found["priority"][0][0], "priority"),
        expires_at=_integer(found, "expires_at"),
        reply_to=_text(found, "reply_to"),
        mentions=tuple(member for (member,) in found["mention"]),
    )


def sign_message(secret: bytes, created_at: int, envelope: Envelope, sealed: str, aux: bytes) -> Event:
    """The signed event of a message: visible envelope as tags, sealed payload as content."""
    _check_sealed(sealed)
    return sign_event(secret, created_at, MESSAGE_KIND, to_tags(envelope), sealed, aux)


def head_to_tags(head: Head) -> Tags:
    return (
        ("mesh", head.mesh),
        ("client_message_id", head.client_message_id),
        ("epoch", head.epoch.hex()),
        ("sequence", str(head.sequence)),
    )


def head_from_tags(found: Found) -> Head:
    epoch = found["epoch"][0][0]
    check_hex(epoch, "epoch", EPOCH_BYTES)
    return Head(
        mesh=found["mesh"][0][0],
        client_message_id=found["client_message_id"][0][0],
        epoch=bytes.fromhex(epoch),
        sequence=read_integer(found["sequence"][0][0], "sequence"),
    )


def destination_to_tags(destination: Destination) -> Tags:
    return (("destination_kind", destination.kind.value), ("destination_ref", destination.ref))


def destination_from_tags(found: Found) -> Destination:
    kind = read_choice(DestinationKind, found["destination_kind"][0][0], "destination_kind")
    return Destination(kind, found["destination_ref"][0][0])


def check_kind(event: Event, kind: int) -> None:
    if event.kind != kind:
        raise Refused(Refusal.KIND_UNSUPPORTED, f"event is of kind {event.kind}, not {kind}")


def _check_sealed(content: str) -> None:
    """Refuse content that cannot be a sealed payload, as far as one can tell without the key."""
    if len(content) < SEALED_CHARACTERS_MIN:
        raise Refused(
            Refusal.MALFORMED,
            f"content has {len(content)} characters, at least {SEALED_CHARACTERS_MIN} are needed",
        )
    if len(content) > SEALED_CHARACTERS_MAX:
        raise Refused(
            Refusal.TOO_LARGE,
            f"content has {len(content)} characters, at most {SEALED_CHARACTERS_MAX} allowed",
        )
    if not is_payload(content):
        raise Refused(Refusal.MALFORMED, "content is not a sealed payload of version 2 in base64")


def _text(found: Found, name: str) -> str | None:
    return found[name][0][0] if found[name] else None


def _integer(found: Found, name: str) -> int | None:
    return read_integer(found[name][0][0], name) if found[name] else None


def _optional(name: str, value: str | int | None) -> Tags:
    return () if value is None else ((name, str(value)),)
