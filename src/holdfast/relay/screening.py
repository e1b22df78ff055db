"""What can be answered without the writer: forgeries, repetitions, strangers, wrong dates, too fast a pace.

It is the dear part of an accept, for it checks signatures: it runs on threads, never on the event loop or the writer.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from holdfast.protocol.action import AdmitAuthor
from holdfast.protocol.administration import Administration
from holdfast.protocol.anchor import Anchor
from holdfast.protocol.event import Event, bad_signature, is_signed
from holdfast.protocol.receipt import Receipt
from holdfast.protocol.refusal import REFUSALS, Refusal, Refused
from holdfast.protocol.schedule import SECOND, DedupeMode, clock_refusal
from holdfast.relay import snapshots
from holdfast.relay.accept import HELD_BACK_DETAIL, refuse_stranger, repeated
from holdfast.relay.answer import Answer, refuse
from holdfast.relay.directory import Earlier, Signer, found_earlier, load_earlier, load_meshes, load_signers
from holdfast.relay.limiter import Limiter
from holdfast.relay.offer import Lane, Offer, check_consent, check_date, read
from holdfast.relay.settings import Settings
from holdfast.relay.snapshots import SnapshotOffer
from holdfast.relay.sweep import forgotten_before
from holdfast.store import history
from holdfast.store.engine import Engine, Transaction
from holdfast.store.world import Clock

AnyOffer = TypeVar("AnyOffer", Offer, SnapshotOffer)

Verify = Callable[[Sequence[Event]], Sequence[bool]]
"""Says of each event whether its author signed it."""


def verify_here(events: Sequence[Event]) -> list[bool]:
    return [is_signed(event) for event in events]


Cover = Callable[[int, history.Head], Anchor]
"""The relay's signature under a position, or one behind it."""


class Offers(msgspec.Struct, frozen=True):
    """What somebody publishes at once, by number: messages and the like, snapshots, and the answers to what is neither."""

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
                offers.answers[number] = refuse(refused.refusal, refused.detail, event_id=_claimed_id(raw))
                continue
            if isinstance(found, Offer):
                offers.messages[number] = found
            else:
                offers.snapshots[number] = found
        return offers

    def all(self) -> Iterable[tuple[int, Offer | SnapshotOffer]]:
        yield from self.messages.items()
        yield from self.snapshots.items()


Asked = tuple[Offers, frozenset[Lane]]
"""What somebody publishes at once, and the lanes in which nothing new of it may be taken."""


class Screening:
    """Answers what it can. May be used from several threads."""

    def __init__(
        self, engine: Engine, settings: Settings, clock: Clock, cover: Cover, verify: Verify = verify_here
    ) -> None:
        self._engine = engine
        self._verify = verify
        self._settings = settings
        self._clock = clock
        self._cover = cover
        self._limiter = Limiter(settings.limits)

    def screen(self, asked: "Sequence[Asked]") -> list[dict[int, Answer]]:
        """The answers to each, by number; what has none goes on to the writer. All is looked up as one moment saw it."""
        answers = self._refuse_forged([offers for offers, _ in asked])
        messages = [_left(offers.messages, given) for (offers, _), given in zip(asked, answers, strict=True)]
        snapshots = [_left(offers.snapshots, given) for (offers, _), given in zip(asked, answers, strict=True)]
        if not any(messages) and not any(snapshots):
            return answers
        with self._engine.read() as transaction:
            seen = _Seen.load(transaction, _all(messages))
            known = _Known.load(transaction, _all(snapshots)) if any(snapshots) else None
        for (offers, held), given, of_one in zip(asked, answers, messages, strict=True):
            given.update(self._screen_messages(of_one, seen, held))
            if known is not None:
                left = _left(offers.snapshots, given)
                given.update(self._screen_snapshots(left, seen, known, _admitting(offers)))
        return answers

    def _refuse_forged(self, given: Sequence[Offers]) -> list[dict[int, Answer]]:
        """Answers to what its author, or whoever else has to agree, did not sign."""
        answers: list[dict[int, Answer]] = [{} for _ in given]
        flat = [(of_one, *pair) for of_one, offers in zip(answers, given, strict=True) for pair in offers.all()]
        signed = self._verify([offer.event for _, _, offer in flat])
        for (of_one, number, offer), is_good in zip(flat, signed, strict=True):
            try:
                if not is_good:
                    raise bad_signature()
                check_consent(offer)
            except Refused as refused:
                of_one[number] = refuse(refused.refusal, refused.detail, event_id=offer.event.id)
        return answers

    def _screen_snapshots(
        self, offers: dict[int, SnapshotOffer], seen: "_Seen", known: "_Known", admitting: set[str]
    ) -> dict[int, Answer]:
        """The same of snapshots: repetitions, authors nobody vouches for, wrong dates, too fast a pace."""
        answers: dict[int, Answer] = {}
        admitted = known.admitted | admitting
        for number, offer in offers.items():
            earlier = known.snapshots.get(offer.event_id)
            answer = self._hinder_snapshot(offer, admitted) if earlier is None else snapshots.repeated(offer, earlier)
            if earlier is not None and answer is not None:
                answer.members["anchor"] = self._cover(earlier.seq, seen.head)
            if answer is not None:
                answers[number] = answer
        return answers

    def _hinder_snapshot(self, offer: SnapshotOffer, admitted: set[str]) -> Answer | None:
        """A refusal for a snapshot that need not reach the writer. However old it is, it is taken: its id is remembered."""
        now = self._clock()
        try:
            if clock_refusal(offer.event.created_at, now, None) is not None:
                raise Refused(
                    Refusal.CLOCK_AHEAD, f"created_at is {offer.event.created_at}, here it is {now // SECOND}"
                )
            snapshots.check_admitted(offer, admitted, self._settings.feed)
        except Refused as refused:
            return refuse(refused.refusal, refused.detail, event_id=offer.event.id)
        return self._too_fast(offer.event, now)

    def _screen_messages(self, offers: dict[int, Offer], seen: "_Seen", held: frozenset[Lane]) -> dict[int, Answer]:
        """What can be answered without the writer: repetitions, strangers, wrong dates, too fast a pace.

        Behind an offer that is put off here nothing of its lane goes on to the writer: order is kept.
        """
        answers: dict[int, Answer] = {}
        put_off = set(held)
        # Meshes that an earlier offer changes: who is a stranger there, only the writer knows.
        changing: set[str] = set()
        for number, offer in offers.items():
            found = found_earlier(offer, seen.signers, seen.earlier)
            answer = self._repeated(offer, found, seen.head) if found else self._hinder(offer, seen, put_off, changing)
            if isinstance(offer.said, Administration):
                changing.add(offer.head.mesh)
            if answer is not None:
                answers[number] = answer
            if answer is not None and answer.refusal and not REFUSALS[answer.refusal].is_permanent:
                put_off |= offer.lanes
        return answers

    def _repeated(self, offer: Offer, earlier: Earlier, head: history.Head) -> Answer:
        """What was said before, with an anchor that covers it: the last one signed may lie behind it for a moment."""
        answer = repeated(offer, earlier)
        if answer.accepted:
            answer.members["anchor"] = self._cover(earlier.seq, head)
        return answer

    def _hinder(self, offer: Offer, seen: "_Seen", put_off: set[Lane], changing: set[str]) -> Answer | None:
        """A refusal for what need not reach the writer."""
        now = self._clock()
        try:
            check_date(offer, now, self._window_days, seen.forgotten_before)
            if offer.head.mesh not in changing:
                seen.check_stranger(offer)
        except Refused as refused:
            return refuse(refused.refusal, refused.detail, event_id=offer.event.id)
        if not put_off.isdisjoint(offer.lanes):
            return refuse(Refusal.HELD_BACK, HELD_BACK_DETAIL, event_id=offer.event.id)
        if isinstance(offer.said, Receipt):  # there are no more good ones than deliveries; the others are counted
            return self._slow_down(offer.event, self._limiter.debt_s(offer.event.pubkey, now))
        return self._too_fast(offer.event, now)

    def charge(self, answers: Iterable[tuple[Offer, Answer]]) -> None:
        """Count receipts that were good for nothing: nobody keeps the writer busy with them for free."""
        for offer, answer in answers:
            if answer.refusal is Refusal.RECEIPT_UNKNOWN:
                self._limiter.charge(offer.event.pubkey, self._clock())

    def _too_fast(self, event: Event, now: int) -> Answer | None:
        return self._slow_down(event, self._limiter.wait_s(event.pubkey, event.id, now))

    def _slow_down(self, event: Event, wait_s: int) -> Answer | None:
        if not wait_s:
            return None
        pace = f"more than {self._settings.limits.messages_per_s:g} a second"
        return refuse(Refusal.RATE_LIMITED, pace, event_id=event.id, retry_after_s=wait_s)

    @property
    def _window_days(self) -> int | None:
        retention = self._settings.retention
        return None if retention.dedupe_mode is DedupeMode.PERMANENT else retention.dedupe_retention_days


class _Seen(msgspec.Struct, frozen=True):
    """What the store says of a few offers, at one moment."""

    signers: dict[tuple[str, str], Signer]
    earlier: dict[tuple[str, str, str], Earlier]
    meshes: set[str]
    head: history.Head
    forgotten_before: int

    @classmethod
    def load(cls, transaction: Transaction, offers: Sequence[Offer]) -> "_Seen":
        signers = load_signers(transaction, offers)
        return cls(
            signers,
            load_earlier(transaction, offers, signers),
            load_meshes(transaction, offers),
            history.head(transaction),
            forgotten_before(transaction),
        )

    def check_stranger(self, offer: Offer) -> None:
        """Refuse the messages of strangers here, so that they cost the writer nothing."""
        takes_a_member = not isinstance(offer.said, Administration)
        if takes_a_member and (offer.head.mesh, offer.event.pubkey) not in self.signers:
            refuse_stranger(offer, self.meshes)


class _Known(msgspec.Struct, frozen=True):
    """What the store says of a few snapshots, at the same moment."""

    snapshots: dict[bytes, snapshots.Known]
    admitted: set[str]

    @classmethod
    def load(cls, transaction: Transaction, offers: Sequence[SnapshotOffer]) -> "_Known":
        return cls(snapshots.load_known(transaction, offers), snapshots.load_admitted(transaction, offers))


def _left(offers: dict[int, AnyOffer], answers: dict[int, Answer]) -> dict[int, AnyOffer]:
    return {number: offer for number, offer in offers.items() if number not in answers} if answers else offers


def _all(of_each: Sequence[dict[int, AnyOffer]]) -> list[AnyOffer]:
    return [offer for of_one in of_each for offer in of_one.values()]


def _admitting(offers: Offers) -> set[str]:
    """Authors whom somebody admits along with their snapshots: whether they are admitted, only the writer knows."""
    actions = (offer.said.action for offer in offers.messages.values() if isinstance(offer.said, Administration))
    return {action.author for action in actions if isinstance(action, AdmitAuthor)}


def _claimed_id(raw: bytes) -> str:
    """The id that bytes claim which were refused, so that whoever sent them knows which of its events is meant."""
    try:
        found = msgspec.json.decode(raw, type=_Claim).id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return found if len(found) == 64 and found.isalnum() and found.isascii() else ""


class _Claim(msgspec.Struct):
    id: str = ""
