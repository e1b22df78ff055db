"""Offers: published events that are well-formed, before the relay has decided about them."""

from collections.abc import Callable

import msgspec

from holdfast.protocol import administration, envelope, receipt, snapshot
from holdfast.protocol.action import AdmitAuthor, CreateMesh, Join, RotateMemberKey
from holdfast.protocol.administration import (
    ADMINISTRATION_KIND,
    Administration,
    check_agreement,
    check_countersignature,
    check_vouched,
)
from holdfast.protocol.envelope import MESSAGE_KIND, Envelope, Head
from holdfast.protocol.event import Event, check_id, decode
from holdfast.protocol.receipt import RECEIPT_KIND, Receipt
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.schedule import SECOND, clock_refusal
from holdfast.protocol.snapshot import SYNC_KINDS
from holdfast.relay.snapshots import SnapshotOffer

Said = Envelope | Receipt | Administration

_READERS: dict[int, Callable[[Event], Said]] = {
    MESSAGE_KIND: envelope.from_event,
    RECEIPT_KIND: receipt.from_event,
    ADMINISTRATION_KIND: administration.from_event,
}


Lane = tuple[str, str, str, str]
"""Offers of one lane keep their order: the same sender, mesh, and kind and name of destination."""


class Offer(msgspec.Struct, frozen=True):
    """An event, its parsed meaning, and the bytes it came in."""

    event: Event
    said: Said
    raw: bytes
    # Derived from the event and stored, because they are needed repeatedly:
    head: Head
    event_id: bytes
    lane: Lane  # by the sender's device (its epoch), because its key may change between two sends
    lanes: frozenset[Lane]  # the lane, and the one by key: a restored device continues under another epoch

    @classmethod
    def of(cls, event: Event, said: Said, raw: bytes) -> "Offer":
        place = _place(said)
        lane = (said.head.epoch.hex(), *place)
        lanes = frozenset((lane, (event.pubkey, *place)))
        return cls(event, said, raw, said.head, bytes.fromhex(event.id), lane, lanes)


def _place(said: Said) -> tuple[str, str, str]:
    """The destination part of a lane; the sender is the other part."""
    if isinstance(said, Administration):
        return said.head.mesh, "admin", ""
    if isinstance(said, Receipt):  # a full queue must not hold up receipts
        return said.head.mesh, "receipt", said.destination.ref
    return said.head.mesh, said.destination.kind.value, said.destination.ref


def read(raw: bytes) -> Offer | SnapshotOffer:
    """The offer in bytes from anybody; its signature and its date are not checked yet."""
    event = decode(raw)
    check_id(event)
    if event.kind in SYNC_KINDS:
        return SnapshotOffer(event, snapshot.from_event(event), raw)
    reader = _READERS.get(event.kind)
    if reader is None:
        ours = f"{', '.join(map(str, _READERS))} or from {SYNC_KINDS[0]} to {SYNC_KINDS[-1]}"
        raise Refused(Refusal.KIND_UNSUPPORTED, f"kind {event.kind} is not one of {ours}")
    return Offer.of(event, reader(event), raw)


def check_date(offer: Offer, now: int, window_days: int | None, forgotten_before: int) -> None:
    """Refuse an event dated in the future, or before the time for which ids are remembered.

    Ids may have been forgotten under a shorter window than today's: events from before `forgotten_before` are refused,
    whatever is set now.
    """
    created_at = offer.event.created_at
    refusal = clock_refusal(created_at, now, window_days)
    if refusal is None and created_at * SECOND <= forgotten_before:
        refusal = Refusal.EVENT_TOO_OLD
    if refusal is not None:
        raise Refused(refusal, f"created_at is {created_at}, the relay's clock says {now // SECOND}")


def check_consent(offer: Offer | SnapshotOffer) -> None:
    """Refuse an event without the countersignature it needs. As slow as a signature, so not for the loop or the writer."""
    if not isinstance(offer.said, Administration):
        return
    action = offer.said.action
    if isinstance(action, Join):
        check_agreement(offer.head.mesh, action, offer.event.pubkey)
    elif isinstance(action, CreateMesh):
        check_vouched(offer.head.mesh, action)
    elif isinstance(action, RotateMemberKey | AdmitAuthor):
        check_countersignature(offer.head.mesh, action)
