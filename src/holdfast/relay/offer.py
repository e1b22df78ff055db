"""What somebody offers to the relay: an event that is authentic and well-formed, and nothing decided about it yet."""

from collections.abc import Callable

import msgspec

from holdfast.protocol import administration, envelope
from holdfast.protocol.administration import ADMINISTRATION_KIND, Administration
from holdfast.protocol.envelope import MESSAGE_KIND, Envelope, Head
from holdfast.protocol.event import Event, check_id, check_signature, decode
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.schedule import SECOND, clock_refusal

_READERS: dict[int, Callable[[Event], Envelope | Administration]] = {
    MESSAGE_KIND: envelope.from_event,
    ADMINISTRATION_KIND: administration.from_event,
}


Lane = tuple[str, str, str]
"""Where order counts: one signer and one destination of one kind."""


class Offer(msgspec.Struct, frozen=True):
    """An event, what it says, and the bytes it came in."""

    event: Event
    said: Envelope | Administration
    raw: bytes

    @property
    def head(self) -> Head:
        return self.said.head

    @property
    def event_id(self) -> bytes:
        return bytes.fromhex(self.event.id)

    @property
    def lane(self) -> Lane:
        if isinstance(self.said, Administration):
            return self.event.pubkey, "admin", self.head.mesh
        return self.event.pubkey, self.said.destination.kind.value, self.said.destination.ref


def read(raw: bytes) -> Offer:
    """The offer in somebody's bytes, except for its signature and its date."""
    event = decode(raw)
    check_id(event)
    reader = _READERS.get(event.kind)
    if reader is None:
        raise Refused(Refusal.KIND_UNSUPPORTED, f"kind {event.kind} is not one of {', '.join(map(str, _READERS))}")
    return Offer(event, reader(event), raw)


def check_date(offer: Offer, now: int, window_days: int | None) -> None:
    """Refuse what is dated in the future, or before the time for which ids are remembered."""
    created_at = offer.event.created_at
    refusal = clock_refusal(created_at, now, window_days)
    if refusal is not None:
        raise Refused(refusal, f"created_at is {created_at}, the relay's clock says {now // SECOND}")


def check_author(offer: Offer) -> None:
    """Refuse what its author did not sign. The dear part, kept off the event loop."""
    check_signature(offer.event)
