"""The state that decides a batch of offers, read with one look-up per table and kept up to date while it is decided.

The offers of one batch see each other: an id used by one is taken for the next, and a place in a queue is used once.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from holdfast.protocol.administration import Administration
from holdfast.protocol.fingerprint import DestinationKind
from holdfast.protocol.receipt import Receipt
from holdfast.relay import receipts
from holdfast.relay.offer import Offer
from holdfast.relay.receipts import Place, Receiptable
from holdfast.store.engine import Transaction
from holdfast.store.statements import Statements

SQL = Statements(__package__, "accept.sql")


class Signer(msgspec.Struct, frozen=True):
    """The member that a key belongs to."""

    member: str
    until: int | None  # when the key was replaced
    status: str
    role: str

    @property
    def is_current(self) -> bool:
        return self.until is None

    @property
    def is_in_force(self) -> bool:
        return self.is_current and self.status == "active"


class Earlier(msgspec.Struct):
    """The event accepted under an id; within a batch its position is filled in when the batch is written."""

    event_id: bytes
    message_id: str
    seq: int
    first_seen_at: int
    history_available: bool
    skipped: tuple[str, ...]


class Recipient(msgspec.Struct):
    """A member as the destination of a message."""

    status: str
    queue_count: int
    expires_from: int | None  # nothing in its queue expires before this; None if nothing waits
    pubkey: str | None


class Directory:
    """The state that decides a batch."""

    def __init__(self, transaction: Transaction, offers: Sequence[Offer]) -> None:
        self._transaction = transaction
        self.signers = load_signers(transaction, offers)
        self.meshes = load_meshes(transaction, offers)
        self.earlier = load_earlier(transaction, offers, self.signers)
        self._load_destinations(offers)

    def sender(self, offer: Offer) -> str:
        return sender_of(offer, self.signers)

    def _load_destinations(self, offers: Sequence[Offer]) -> None:
        dms, topics, posts, senders = set(), set(), set(), set()
        places: set[Place] = set()
        for offer in offers:
            if isinstance(offer.said, Administration):
                continue
            mesh, destination, sender = offer.head.mesh, offer.said.destination, self.sender(offer)
            if isinstance(offer.said, Receipt):
                places |= set(receipts.places(offer.said, sender))
            else:
                senders.add((mesh, sender))
            if destination.kind is DestinationKind.TOPIC:
                topics.add((mesh, destination.ref))
                posts.add((mesh, destination.ref, sender))
            else:
                dms.add((mesh, destination.ref))
        self.recipients: dict[tuple[str, str], Recipient] = {
            (mesh, member): Recipient(*rest)
            for mesh, member, *rest in _look(self._transaction, "members", ("mesh", "member"), dms)
        }
        self.topics: dict[tuple[str, str], int] = {
            (mesh, topic): epoch for mesh, topic, epoch in _look(self._transaction, "topics", ("mesh", "topic"), topics)
        }
        self.subscribers: dict[tuple[str, str], list[str]] = defaultdict(list)
        for mesh, topic, member, count, expires in _look(self._transaction, "subscribers", ("mesh", "topic"), topics):
            self.subscribers[mesh, topic].append(member)
            self.recipients.setdefault((mesh, member), Recipient("active", count, expires, None))
        # Who may post; False for those who wait for the topic's current key.
        self.posters: dict[tuple[str, str, str], bool] = {
            (mesh, topic, member): bool(has_key)
            for mesh, topic, member, has_key in _look(self._transaction, "posters", ("mesh", "topic", "member"), posts)
        }
        self.blocks = set(_look(self._transaction, "blockers", ("mesh", "blocked"), senders))
        self.receiptable: dict[Place, Receiptable] = {
            (mesh, member, event_id): Receiptable(*rest)
            for mesh, member, event_id, *rest in _look(
                self._transaction, "receiptable", ("mesh", "member", "event_id"), places
            )
        }


def load_signers(transaction: Transaction, offers: Iterable[Offer]) -> dict[tuple[str, str], Signer]:
    keys = {(offer.head.mesh, offer.event.pubkey) for offer in offers}
    rows = _look(transaction, "signers", ("mesh", "pubkey"), keys)
    return {(mesh, pubkey): Signer(*rest) for mesh, pubkey, *rest in rows}


def load_earlier(
    transaction: Transaction, offers: Iterable[Offer], signers: dict[tuple[str, str], Signer]
) -> dict[tuple[str, str, str], Earlier]:
    """The dedupe rows of these offers, by (mesh, sender, client_message_id)."""
    wanted = {key for offer in offers for key in dedupe_keys(offer, signers)}
    rows = _look(transaction, "earlier", ("mesh", "sender", "client_message_id"), wanted)
    return {
        (mesh, sender, client_message_id): Earlier(
            event_id, message_id, seq, first_seen_at, bool(history_available), tuple(json.loads(skipped))
        )
        for mesh, sender, client_message_id, event_id, message_id, seq, first_seen_at, history_available, skipped in rows
    }


def load_meshes(transaction: Transaction, offers: Iterable[Offer]) -> set[str]:
    """The offers' meshes that exist."""
    return {mesh for (mesh,) in _look(transaction, "meshes", ("mesh",), {(offer.head.mesh,) for offer in offers})}


def sender_of(offer: Offer, signers: dict[tuple[str, str], Signer]) -> str:
    """The name under which a signer's sends are stored: its member id, or its key if it is no member."""
    signer = signers.get((offer.head.mesh, offer.event.pubkey))
    return _stranger(offer) if signer is None else signer.member


def dedupe_keys(offer: Offer, signers: dict[tuple[str, str], Signer]) -> list[tuple[str, str, str]]:
    """The keys under which this send may have been stored: the signer may not have been a member at the time."""
    names = dict.fromkeys((sender_of(offer, signers), _stranger(offer)))
    return [(offer.head.mesh, name, offer.head.client_message_id) for name in names]


def found_earlier(
    offer: Offer, signers: dict[tuple[str, str], Signer], earlier: dict[tuple[str, str, str], Earlier]
) -> Earlier | None:
    return next((earlier[key] for key in dedupe_keys(offer, signers) if key in earlier), None)


def _stranger(offer: Offer) -> str:
    return f"key:{offer.event.pubkey}"  # no member id has a colon


def _look(transaction: Transaction, name: str, columns: Sequence[str], wanted: set[Any]) -> list[tuple[Any, ...]]:
    return transaction.lookup(SQL[name], columns, sorted(wanted))
