"""Screening: refusing, without the database, what is no event or what its author did not sign.

It is the slow part of an accept, because it checks signatures: it runs on threads, never on the event loop or the writer.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from holdfast.protocol.event import Event, bad_signature, is_signed
from holdfast.protocol.refusal import Refused
from holdfast.relay.answer import Answer, refusal_answer
from holdfast.relay.offer import Offer, check_consent, read
from holdfast.relay.snapshots import SnapshotOffer

Verify = Callable[[Sequence[Event]], Sequence[bool]]
"""Returns, for each event, whether its author signed it."""


def verify_here(events: Sequence[Event]) -> list[bool]:
    return [is_signed(event) for event in events]


class Offers(msgspec.Struct, frozen=True):
    """The events of one publication by number: offers, snapshots, and the answers to those that were refused."""

    messages: dict[int, Offer] = {}
    snapshots: dict[int, SnapshotOffer] = {}
    answers: dict[int, Answer] = {}

    @classmethod
    def read(cls, raws: Sequence[bytes]) -> "Offers":
        offers = cls()
        for number, raw in enumerate(raws):
            try:
                found = read(raw)
            except Refused as refused:
                offers.answers[number] = refusal_answer(refused, _claimed_id(raw))
                continue
            if isinstance(found, Offer):
                offers.messages[number] = found
            else:
                offers.snapshots[number] = found
        return offers

    def all(self) -> Iterable[tuple[int, Offer | SnapshotOffer]]:
        yield from self.messages.items()
        yield from self.snapshots.items()

    def refuse(self, number: int, refused: Refused) -> None:
        offer = self.messages.pop(number, None) or self.snapshots.pop(number)
        self.answers[number] = refusal_answer(refused, offer.event.id)


def screen(published: Sequence[Sequence[bytes]], verify: Verify = verify_here) -> list[Offers]:
    """The offers of each publication; all signatures are checked together."""
    read = [Offers.read(raws) for raws in published]
    flat = [(offers, *pair) for offers in read for pair in offers.all()]
    signed = verify([offer.event for _, _, offer in flat])
    for (offers, number, offer), is_good in zip(flat, signed, strict=True):
        try:
            if not is_good:
                raise bad_signature()
            check_consent(offer)
        except Refused as refused:
            offers.refuse(number, refused)
    return read


def _claimed_id(raw: bytes) -> str:
    """The id in refused bytes, if any, so that the sender knows which of its events is meant."""
    try:
        found = msgspec.json.decode(raw, type=_Claim).id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return found if len(found) == 64 and found.isalnum() and found.isascii() else ""


class _Claim(msgspec.Struct):
    id: str = ""
