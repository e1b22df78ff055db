"""The inbox of a generated home: every message that its history says was stored, with the receipt that it owes for it."""

import hashlib
import json

from holdfast.cli.generate_book import Book
from holdfast.cli.generate_people import Kept, Member, Waiting
from holdfast.device.sending import NO_OBJECT
from holdfast.protocol import ulid
from holdfast.store.engine import Value

WORDS = (
    *("tea", "kettle", "door", "code", "garden", "table", "letter", "window", "winter", "train", "bread"),
    *("river", "paper", "lamp", "music", "road", "stone", "cloud", "market", "bridge", "island", "copper"),
    *("engine", "harbour", "lantern", "meadow", "orchard", "pepper", "saddle", "timber", "valley", "willow"),
)
WORDS_PER_MESSAGE = 7
HANDLER_ATTEMPTS = 5

_ROW = (
    *(
        "arrival",
        "id",
        "client_message_id",
        "broker_message_id",
        "mesh",
        "topic",
        "sender",
        "sender_pubkey",
        "sender_name",
    ),
    *("epoch", "sequence", "event_id", "event", "status", "object_id", "body", "priority", "mentions", "expires_at"),
    *("sent_at", "received_at", "was_stored", "replayed", "log_id", "history_id", "receipt_sequence"),
    *("applied_at", "parked_at", "handler_attempts", "last_error"),
)


class Inbox:
    """What arrives at one home. A row is written once it is known which receipt tells of it."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._owed: dict[bytes, tuple[Kept, dict[str, Value]]] = {}
        self._arrivals = 0
        self._met: set[tuple[str, bytes]] = set()

    def store(self, waiting: Waiting, at: int, was_stored: bool, status: str, log_id: bytes) -> None:
        send, is_readable = waiting.accepted.send, status == "stored"
        self._arrivals += 1
        self._meet(send.sender, send.epoch, at)
        row: dict[str, Value] = {
            "arrival": self._arrivals,
            "id": ulid.mint(at, hashlib.sha256(b"arrival" + send.event_id).digest()[: ulid.RANDOM_BYTES]),
            "client_message_id": send.client_message_id,
            "broker_message_id": waiting.accepted.message_id,
            "mesh": send.sender.mesh.mesh,
            "topic": send.destination_ref if send.destination_kind == "topic" else None,
            "sender": send.sender.member,
            "sender_pubkey": send.sender.key,
            "sender_name": send.sender.name,
            "epoch": send.epoch,
            "sequence": send.sequence,
            "event_id": send.event_id,
            "event": send.event,
            "status": status,
            "object_id": NO_OBJECT if is_readable else None,
            "body": text_of(send.event_id).encode() if is_readable else None,
            "priority": "next",
            "mentions": json.dumps(send.mentions),
            "expires_at": send.expires_at,
            "sent_at": send.enqueued_at,
            "received_at": at,
            "was_stored": int(was_stored),
            "replayed": 0,
            "log_id": log_id,
            "history_id": waiting.accepted.seq,
            "receipt_sequence": None,
            "applied_at": None,
            "parked_at": None,
            "handler_attempts": 0,
            "last_error": None,
        }
        self._owed[send.event_id] = Kept(waiting, at, was_stored), row
        for member in send.mentions:
            self._book.put("inbox_mention", ("member", "arrival"), (member, self._arrivals))

    def apply(self, event_id: bytes, at: int) -> None:
        self._owed[event_id][1]["applied_at"] = at

    def park(self, event_id: bytes, at: int, error: str) -> None:
        self._owed[event_id][1].update(parked_at=at, handler_attempts=HANDLER_ATTEMPTS, last_error=error)

    def receipt(self, event_id: bytes, sequence: int) -> None:
        """The receipt for a message is in the home's own log."""
        _, row = self._owed.pop(event_id)
        row["receipt_sequence"] = sequence
        self._book.put("inbox", _ROW, tuple(row[column] for column in _ROW))

    def owed(self) -> dict[Member, list[Kept]]:
        """What no receipt tells of yet, by whom it is of."""
        found: dict[Member, list[Kept]] = {}
        for kept, _ in self._owed.values():
            found.setdefault(kept.waiting.accepted.send.sender, []).append(kept)
        return found

    def _meet(self, sender: Member, epoch: bytes, at: int) -> None:
        if (sender.member, epoch) not in self._met:
            self._met.add((sender.member, epoch))
            self._book.put("sender_epoch", ("sender", "epoch", "number", "since"), (sender.member, epoch, 0, at))


def text_of(event_id: bytes) -> str:
    """What a message says: some words, the same for all who got it."""
    return " ".join(WORDS[number % len(WORDS)] for number in event_id[:WORDS_PER_MESSAGE])
