"""Seals a row of the operation log into the signed event that is sent, and opens events that arrived.

A direct message is sealed to the recipient's current key, a post with the topic's current key; a receipt is only signed.
If a row cannot be sealed yet, CannotSeal says why, and its lane waits.
"""

from collections.abc import Callable, Sequence

import msgspec

from holdfast.device import receipts, topic_keys
from holdfast.device.device import Device
from holdfast.device.directory import Directory
from holdfast.device.receipts import RECEIPT
from holdfast.device.sending import Operation
from holdfast.protocol import keys, payload
from holdfast.protocol.envelope import Destination, Envelope, Head, sign_message
from holdfast.protocol.event import Event, encode
from holdfast.protocol.fingerprint import DestinationKind, Priority
from holdfast.protocol.payload import Payload
from holdfast.protocol.receipt import Receipt, sign_receipt
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.schedule import SECOND
from holdfast.protocol.sealing import NONCE_BYTES, ConversationKeys, open_sealed, seal
from holdfast.protocol.topic_key import sealing_key

_mentions_decoder = msgspec.json.Decoder(tuple[str, ...])


class CannotSeal(Exception):
    """A row cannot be sealed now, mostly because a key is missing; the reason is a refusal's code."""

    def __init__(self, refusal: Refusal, detail: str) -> None:
        super().__init__(f"{refusal}: {detail}")
        self.refusal = refusal
        self.detail = detail


class Sealer:
    """Seals and opens with the keys of one device and the directory of its mesh."""

    def __init__(self, device: Device, mesh: str, directory: Callable[[], Directory]) -> None:
        self._device = device
        self._mesh = mesh
        self._directory = directory
        self._conversations: dict[str, ConversationKeys] = {}  # by our own key, the present one or an earlier one

    def seal(self, operation: Operation) -> bytes:
        """The event to send for an operation; raises CannotSeal."""
        if operation.event is not None:
            return operation.event  # it may have been sent, so the same bytes are offered again
        try:
            signed = self._receipt if operation.destination_kind == RECEIPT else self._message
            return encode(signed(operation))
        except Refused as refused:  # what the relay tells of its mesh may make no sense: one lane waits, and no other
            raise CannotSeal(refused.refusal, refused.detail) from refused

    def open(self, event: Event, envelope: Envelope) -> Payload | None:
        """The content of a message; None if no key here opens it, or if it is malformed."""
        for key in self._opening_keys(event, envelope):
            try:
                return payload.decode(open_sealed(key, event.content))
            except Refused:
                continue
        return None

    def lacks_key(self, envelope: Envelope) -> bool:
        """Whether a message was sealed with a topic key that is not here."""
        topic, epoch = envelope.destination.ref, envelope.key_epoch
        return epoch is not None and not self._device.look(lambda tx: topic_keys.of_epoch(tx, topic, epoch))

    def _receipt(self, operation: Operation) -> Event:
        said = Receipt(
            head=self._head(operation),
            destination=Destination(DestinationKind.DM, operation.destination_ref),
            # A log may have rows with a line twice, from before that was seen to: such a receipt could never be signed.
            messages=tuple(dict.fromkeys(receipts.decode(operation.blob or b""))),
        )
        return sign_receipt(self._device.secret, self._now_s(), said, self._device.random(keys.AUX_BYTES))

    def _message(self, operation: Operation) -> Event:
        destination = Destination(DestinationKind(operation.destination_kind), operation.destination_ref)
        is_topic = destination.kind is DestinationKind.TOPIC
        key, named = self._topic_key(destination.ref) if is_topic else self._member_key(destination.ref)
        device = self._device
        said = Envelope(
            head=self._head(operation),
            destination=destination,
            priority=Priority(operation.priority),
            expires_at=operation.expires_at,
            reply_to=operation.reply_to,
            mentions=_mentions_decoder.decode(operation.mentions),
            **named,
        )
        sealed = seal(key, operation.blob or b"", device.random(NONCE_BYTES))
        return sign_message(device.secret, self._now_s(), said, sealed, device.random(keys.AUX_BYTES))

    def _head(self, operation: Operation) -> Head:
        return Head(
            mesh=self._mesh,
            client_message_id=operation.client_message_id,
            epoch=self._device.epoch,
            sequence=operation.sequence,
        )

    def _member_key(self, member: str) -> tuple[bytes, dict[str, str]]:
        pubkey = self._directory().sealing_key_of(member)
        if pubkey is None:
            raise CannotSeal(Refusal.DESTINATION_UNKNOWN, f"no key of member {member} is known here")
        return self._with(self._device.pubkey, self._device.secret).key(pubkey), {"recipient_key": pubkey}

    def _topic_key(self, topic: str) -> tuple[bytes, dict[str, int]]:
        known = self._directory().topics.get(topic)
        epoch, named = (0, None) if known is None else (known.key_epoch, known.key_id)
        key = self._device.look(lambda tx: topic_keys.in_force(tx, self._mesh, topic, epoch, named)) if epoch else None
        if key is None:
            raise CannotSeal(Refusal.WAITING_FOR_KEY, f"the key of topic {topic} (epoch {epoch}) is not here yet")
        return sealing_key(key, self._device.pubkey), {"key_epoch": epoch}

    def _opening_keys(self, event: Event, envelope: Envelope) -> Sequence[bytes]:
        epoch = envelope.key_epoch
        if epoch is None:
            own = envelope.recipient_key or ""
            secret = self._device.secret_of(own)
            return [] if secret is None else [self._with(own, secret).key(event.pubkey)]
        topic = envelope.destination.ref
        found = self._device.look(lambda tx: topic_keys.of_epoch(tx, topic, epoch))
        return [sealing_key(key, event.pubkey) for key in found]

    def _with(self, own: str, secret: bytes) -> ConversationKeys:
        """The conversation keys of one of our keys."""
        if own not in self._conversations:
            self._conversations[own] = ConversationKeys(secret)
        return self._conversations[own]

    def _now_s(self) -> int:
        return self._device.clock() // SECOND
