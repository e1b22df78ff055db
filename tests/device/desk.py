"""A device's database at work, with the world around it reduced to arguments: what a daemon would ask of it, without one."""

import hashlib
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from holdfast.cli.check import inspect
from holdfast.device import arrivals, database, inbox, operations, outbox, receipts, requeue, send, sending
from holdfast.device.arrivals import Arrival, Stored
from holdfast.device.operations import Facts
from holdfast.device.outbox import Item
from holdfast.device.receipts import Taken
from holdfast.device.send import Answer, Send
from holdfast.protocol import envelope, payload, receipt, sealing
from holdfast.protocol.anchor import sign_anchor
from holdfast.protocol.envelope import Destination, Envelope, Head
from holdfast.protocol.event import Event, encode
from holdfast.protocol.fingerprint import DestinationKind
from holdfast.protocol.history import Entry, Kind
from holdfast.protocol.outbox import Status
from holdfast.protocol.payload import Payload
from holdfast.protocol.reaction import Confirmation, RelaySays
from holdfast.protocol.receipt import Receipt, Receipted, ReceiptStatus
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.store import history
from holdfast.store.engine import Transaction
from holdfast.store.sqlite import SqliteEngine
from holdfast.wire.client import Said, Yes
from tests.people import MESH, Person, secret_of

START = 1_800_000_000_000_000
LOG = b"\x0a" * 16
NEW_LOG = b"\x0b" * 16

T = TypeVar("T")


class Book:
    """Who can be written to."""

    def __init__(self, *people: Person) -> None:
        self.members = {person.name: person.member for person in people}
        self.topics = {"news"}
        self.asked: list[str] = []

    def resolve(self, to: str) -> tuple[str, str]:
        self.asked.append(to)
        if to.removeprefix("@") in self.topics and to.startswith("@"):
            return "topic", to.removeprefix("@")
        if to in self.members:
            return "dm", self.members[to]
        raise Refused(Refusal.DESTINATION_UNKNOWN, f"nobody is called {to}")


class Desk:
    """One home's database. Everything it is asked is one transaction."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now = START
        self.me, self.bob, self.carol = Person("me"), Person("bob"), Person("carol")
        self.facts = Facts(mesh=MESH, member=self.me.member)
        self.book = Book(self.me, self.bob, self.carol)
        self._bytes = itertools.count()
        self._positions = itertools.count(1)
        self.engine = SqliteEngine(path)
        database.prepare(self.engine, lambda: self.now, self.random)

    def random(self, size: int) -> bytes:
        return hashlib.shake_256(f"random {next(self._bytes)}".encode()).digest(size)

    def close(self) -> None:
        self.engine.close()
        assert inspect(self.path) == ("device", [])

    def do(self, request: Callable[[Transaction], T]) -> T:
        with self.engine.write() as transaction:
            return request(transaction)

    def look(self, query: Callable[[Transaction], T]) -> T:
        with self.engine.read() as transaction:
            return query(transaction)

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        return self.look(lambda tx: tx.rows(statement))

    def entries(self, *kinds: Kind) -> list[Entry]:
        found = self.look(lambda tx: history.read(tx, 0, 1_000_000))
        return [entry for entry in found if not kinds or entry.kind in kinds]

    # own sends

    def send(self, to: str = "bob", message: str = "hello", **more: Any) -> Answer:
        request = msgspec.convert({"to": to, "message": message, **more}, Send)
        return self.do(lambda tx: send.send(tx, self.facts, self.book, self.now, self.random, request))

    def sent(self, to: str = "bob", message: str = "hello", **more: Any) -> Item:
        """A send that was accepted, as its row."""
        answer = self.send(to, message, **more)
        assert answer.http_status == 202
        return self.item(str(answer.body["client_message_id"]))

    def item(self, name: str) -> Item:
        found = self.look(lambda tx: outbox.find(tx, name))
        assert found is not None
        return found

    def content(self, item: Item) -> Payload:
        ((blob,),) = self.rows(f"SELECT blob FROM operation_log WHERE sequence = {item.sequence}")
        return payload.decode(blob)

    def claim(self, item: Item) -> Item:
        """Have it signed and taken into an attempt."""
        operation = self.look(lambda tx: sending.called(tx, item.client_message_id))
        assert operation is not None
        event = operation.event or encode(self._sign(item))
        self.do(lambda tx: sending.claim(tx, self.now, operation, event))
        return self.item(item.id)

    def settle(self, item: Item, says: RelaySays, detail: str = "", **yes: Any) -> Item:
        """Have the attempt answered."""
        operation = self.look(lambda tx: sending.called(tx, item.client_message_id))
        assert operation is not None
        said = Said(says=says, detail=detail, yes=self._yes(item, **yes) if isinstance(says, Confirmation) else None)
        self.do(lambda tx: sending.settle(tx, self.now, self.random, operation, said))
        return self.item(item.id)

    def relay(self, item: Item, **yes: Any) -> Item:
        return self.settle(self.claim(item), Confirmation.CREATED, **yes)

    def refuse(self, item: Item, refusal: Refusal = Refusal.MAY_NOT_POST) -> Item:
        return self.settle(self.claim(item), refusal, "the detail")

    def in_status(self, status: Status, item: Item) -> Item:
        """Bring a new row where a test needs it."""
        if status is Status.INFLIGHT:
            return self.claim(item)
        if status is Status.DONE:
            return self.relay(item)
        if status is Status.DEAD:
            return self.refuse(item)
        if status is Status.ABORTED:
            self.do(lambda tx: requeue.requeue(tx, self.facts, self.now, self.random, item.id))
        return self.item(item.id)

    def _sign(self, item: Item) -> Event:
        head = Head(
            mesh=MESH,
            client_message_id=item.client_message_id,
            epoch=self.look(operations.epoch),
            sequence=item.sequence,
        )
        if item.destination_kind == receipts.RECEIPT:
            ((blob,),) = self.rows(f"SELECT blob FROM operation_log WHERE sequence = {item.sequence}")
            destination = Destination(DestinationKind.DM, item.destination_ref or "")
            said = Receipt(head=head, destination=destination, messages=receipts.decode(blob))
            return receipt.sign_receipt(self.me.secret, self.now // 1_000_000, said, bytes(32))
        kind = DestinationKind(item.destination_kind or "")
        said_of_message = Envelope(
            head=head,
            destination=Destination(kind, item.destination_ref or ""),
            recipient_key=self.bob.key if kind is DestinationKind.DM else None,
            key_epoch=1 if kind is DestinationKind.TOPIC else None,
        )
        sealed = sealing.seal(bytes(32), payload.encode(self.content(item)), self.random(32))
        return envelope.sign_message(self.me.secret, self.now // 1_000_000, said_of_message, sealed, bytes(32))

    def _yes(self, item: Item, *, log_id: bytes = LOG, history_id: int | None = None) -> Yes:
        position = history_id or next(self._positions)
        return Yes(
            broker_message_id=f"broker-{item.sequence}-{position}",
            client_message_id=item.client_message_id,
            history_id=position,
            log_id=log_id.hex(),
            duplicate=False,
            anchor=sign_anchor(secret_of("relay"), log_id, position, bytes(32), bytes(32)),
        )

    # what others send

    def arrival(
        self, event: Event, sender: Person | None = None, body: bytes | None = b"hello", **more: Any
    ) -> Arrival:
        content = more.pop("payload", None if body is None else Payload(body=body))
        seq = next(self._positions)
        values = {"seq": seq, "log_id": LOG, "message_id": f"relay-{seq}", "was_stored": True, **more}
        author = sender or self.bob
        return Arrival(
            event=event,
            raw=encode(event),
            sender=author.member,
            sender_name=author.name,
            payload=content,
            **values,
        )

    def store(self, *arrived: Arrival) -> list[Stored]:
        return self.do(lambda tx: arrivals.store(tx, self.facts, self.now, self.random, arrived))

    def message(self, name: str) -> inbox.Message:
        found = self.look(lambda tx: inbox.find(tx, name))
        assert found is not None
        return found

    def inbox(self, **filters: Any) -> list[inbox.Message]:
        return self.look(lambda tx: inbox.page(tx, **filters))

    def receipts_owed(self) -> list[tuple[str, list[tuple[str, bool, str]]]]:
        """The receipts in the log: for whom, and their lines."""
        found = self.rows(
            "SELECT destination_ref, blob FROM operation_log WHERE destination_kind = 'receipt' ORDER BY sequence"
        )
        return [
            (to, [(line.message_id, line.was_stored, line.status.value) for line in receipts.decode(blob)])
            for to, blob in found
        ]

    def receipt(self, by: Person, *lines: tuple[Item | str, str], was_stored: bool = True, **head: Any) -> Event:
        """A receipt that a recipient signs; a line is about an own send, or an event's id."""
        messages = tuple(
            Receipted(
                about if isinstance(about, str) else (about.event_id or b"").hex(), was_stored, ReceiptStatus(status)
            )
            for about, status in lines
        )
        named = msgspec.structs.replace(by.head(), **head)
        said = Receipt(head=named, destination=Destination(DestinationKind.DM, self.me.member), messages=messages)
        return receipt.sign_receipt(by.secret, self.now // 1_000_000, said, bytes(32))

    def take(self, event: Event, by: Person, message_id: str = "receipt-1") -> Taken:
        return self.do(lambda tx: receipts.take(tx, self.facts, self.now, event, encode(event), message_id, by.member))
