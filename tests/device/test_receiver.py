"""The receiver: verified, opened, stored, then acknowledged; and what a relay cannot make it believe."""

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.cli.check import inspect
from holdfast.device import inbox
from holdfast.device.device import at_work
from holdfast.device.home import Home
from holdfast.device.inbox import Message
from holdfast.device.receiver import Receiver
from holdfast.protocol import envelope, event, payload, receipt
from holdfast.protocol.envelope import Destination, Envelope
from holdfast.protocol.event import Event
from holdfast.protocol.fingerprint import DestinationKind
from holdfast.protocol.history import Kind
from holdfast.protocol.payload import Payload
from holdfast.protocol.receipt import Receipt, Receipted, ReceiptStatus
from holdfast.protocol.sealing import conversation_key, seal
from holdfast.store import history
from holdfast.wire import relay_socket
from holdfast.wire.network import SystemNetwork
from holdfast.wire.relay_socket import SocketClosed
from tests.device.place import START, Clock, Place, PlainRelay
from tests.device.scripted_relay import Connection, Script, scripted
from tests.people import Person, topic_key

BOB, EVE = Person("bob"), Person("eve")


class Reader(Place):
    """A device that receives."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.learned = 0
        self.allowed: list[int] = []
        self.receiver = Receiver(
            self.device,
            self.facts,
            self.sealer,
            lambda: self.directory,
            learn=self._learn,
            allow_receipts=self.allowed.append,
        )

    async def _learn(self) -> bool:
        self.learned += 1
        return True

    def meets(self, *scripts: Script) -> None:
        """Receive on a connection for each script, until it ends."""
        asyncio.run(self._meet(scripts))

    async def _meet(self, scripts: Sequence[Script]) -> None:
        async with scripted(*scripts) as url:
            for _ in scripts:
                async with relay_socket.connected(
                    url, self.device.secret, network=SystemNetwork(), clock=self.device.clock, random=self.device.random
                ) as socket:
                    status = await socket.open_queue("01MESH", self.device.epoch)
                    with pytest.raises(SocketClosed):
                        await self.receiver.run(socket, bytes.fromhex(status.log_id))

    def messages(self) -> list[Message]:
        return self.device.look(lambda tx: inbox.page(tx, limit=500))

    def bodies(self) -> list[bytes | None]:
        return [message.body for message in self.messages()]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Reader]:
    home = Home(tmp_path / "home")
    with at_work(home, create=True, clock=Clock(), threaded=True) as device:
        yield Reader(device, PlainRelay())
    assert inspect(home.database) == ("device", [])


def _to(place: Place, body: bytes, sender: Person = BOB, **more: Any) -> Event:
    key = conversation_key(sender.secret, place.device.pubkey)
    sealed = seal(key, payload.encode(Payload(body=body)), body.ljust(32, b"\0")[:32])
    said = Envelope(
        head=sender.head(more.pop("client_message_id", None)),
        destination=Destination(DestinationKind.DM, "member-ann"),
        recipient_key=place.device.pubkey,
    )
    return envelope.sign_message(sender.secret, START // 1_000_000, said, sealed, bytes(32))


Brought = tuple[int, Event, str]  # position, event, sender as the relay says


def _bringing(*brought: Brought, acked: list[Any] | None = None, confirms: bool = True, **facts: Any) -> Script:
    """A relay that brings messages, waits for all acknowledgements, confirms them, and goes away."""

    async def follow(connection: Connection) -> None:
        await connection.authenticate()
        sub = await connection.open_queue()
        for seq, signed, sender in brought:
            about = {"was_stored": True, "message_id": f"01M{seq}", "sender": sender, "accepted_at": START, **facts}
            await connection.say("QUEUE", sub, "MSG", seq, about, msgspec.to_builtins(signed))
        await connection.say("QUEUE", sub, "LIVE", 99)
        waiting = {seq for seq, *_ in brought}
        while waiting:
            _, _, word, seqs = await connection.hear()
            assert word == "ACK"
            waiting -= set(seqs)
            if acked is not None:
                acked.extend(seqs)
            if confirms:
                await connection.say("QUEUE", sub, "ACKED", seqs)
        await connection.socket.close()

    return follow


def test_what_comes_is_stored_in_its_order_and_then_acknowledged(place: Reader) -> None:
    acked: list[int] = []
    brought = [(seq, _to(place, b"%d" % seq), "member-bob") for seq in range(1, 121)]
    place.meets(_bringing(*brought, acked=acked))
    assert place.bodies() == [b"%d" % seq for seq in range(1, 121)]
    assert acked == list(range(1, 121))
    first = place.messages()[0]
    assert (first.sender, first.sender_name, first.was_stored) == ("member-bob", "bob", True)
    assert first.broker_message_id == "01M1"
    assert place.receiver.counts["stored"] == 120


def test_the_receipt_stands_in_the_outbox_before_the_relay_hears_of_the_message(place: Reader) -> None:
    owed: list[Any] = []

    async def follow(connection: Connection) -> None:
        await connection.authenticate()
        sub = await connection.open_queue()
        about = {"was_stored": False, "message_id": "01M1", "sender": "member-bob", "accepted_at": START}
        await connection.say("QUEUE", sub, "MSG", 1, about, msgspec.to_builtins(_to(place, b"hello")))
        await connection.hear()
        owed.extend(place.rows("destination_kind, destination_ref, status"))
        await connection.socket.close()

    place.meets(follow)
    assert owed == [("receipt", "member-bob", "pending")]


def test_receipts_may_go_when_the_relay_has_confirmed_the_acknowledgement(place: Reader) -> None:
    place.meets(_bringing((1, _to(place, b"one"), "member-bob"), confirms=False))
    assert place.allowed == []
    place.meets(_bringing((2, _to(place, b"two"), "member-bob")))
    assert place.allowed == [1]


def test_what_is_brought_again_has_no_second_effect_and_is_acknowledged_again(place: Reader) -> None:
    one = _to(place, b"one")
    acked: list[int] = []
    place.meets(
        _bringing((1, one, "member-bob"), (2, one, "member-bob"), acked=acked),
        _bringing((1, one, "member-bob"), acked=acked),
    )
    assert place.bodies() == [b"one"]
    assert acked == [1, 2, 1]
    kinds = [entry.kind for entry in place.device.look(lambda tx: history.read(tx, 0, 100))]
    assert kinds.count(Kind.STORED) == 1


FORGED: dict[str, Callable[[Place, Event], tuple[Event, str]]] = {
    "a changed body": lambda _, good: (msgspec.structs.replace(good, content=good.content[:-4] + "AAA="), "member-bob"),
    "another's signature": lambda _, good: (msgspec.structs.replace(good, sig=EVE.message(BOB).sig), "member-bob"),
    "the key of a stranger": lambda place, _: (_to(place, b"forged", EVE), "member-bob"),
    "the key of another member": lambda place, _: (_to(place, b"forged", Person("cat")), "member-bob"),
    "a stranger who says so": lambda place, _: (_to(place, b"forged", EVE), "member-eve"),
    "another kind": lambda _, __: (BOB.create_topic("news"), "member-bob"),
}


@pytest.mark.parametrize("name", FORGED)
def test_what_its_sender_did_not_sign_is_no_message_and_jams_nothing(place: Reader, name: str) -> None:
    signed, sender = FORGED[name](place, _to(place, b"forged"))
    acked: list[int] = []
    place.meets(_bringing((1, signed, sender), (2, _to(place, b"true"), "member-bob"), acked=acked))
    assert place.bodies() == [b"true"]
    assert acked == [1, 2]
    assert place.receiver.counts["invalid"] == 1


def test_a_signer_who_is_not_known_is_asked_for_once(place: Reader) -> None:
    dan = Person("dan")

    async def learn() -> bool:
        place.learned += 1
        place.knows("bob", "dan")
        return True

    place.receiver._learn = learn
    brought = [(seq, _to(place, b"%d" % seq, dan), "member-dan") for seq in (1, 2)]
    place.meets(_bringing(*brought))
    assert place.bodies() == [b"1", b"2"]
    assert place.learned == 1


def test_a_signer_who_cannot_be_asked_for_is_neither_stored_nor_acknowledged(place: Reader) -> None:
    """It may be a member who came a moment ago: what cannot be judged stays in the queue."""
    acked: list[int] = []
    brought = [(1, _to(place, b"true"), "member-bob"), (2, _to(place, b"dear", Person("dan")), "member-dan")]
    first = place.receiver._learn

    async def learn() -> bool:
        return False

    place.receiver._learn = learn
    place.meets(_bringing(*brought, acked=acked))
    assert (place.bodies(), acked) == ([], [])
    place.receiver._learn = first
    place.knows("bob", "dan")
    place.meets(_bringing(*brought, acked=acked))
    assert (place.bodies(), acked) == ([b"true", b"dear"], [1, 2])


def test_what_was_signed_with_a_key_before_the_last_is_still_its_members(place: Reader) -> None:
    signed = _to(place, b"before")
    place.knows("bob", keys_of={"bob": Person("bob anew").key}, had={"bob": BOB.key})
    place.meets(_bringing((1, signed, "member-bob")))
    assert place.bodies() == [b"before"]


def test_a_post_whose_key_is_missing_is_fetched_for_before_it_is_called_unreadable(place: Reader) -> None:
    async def learn() -> bool:
        place.learned += 1
        place.has_key("news", 1, topic_key("news", 1))
        return True

    place.receiver._learn = learn
    place.meets(_bringing((1, BOB.post("news", b"to all"), "member-bob")))
    assert (place.bodies(), place.learned) == ([b"to all"], 1)


def test_what_cannot_be_opened_is_kept_acknowledged_and_holds_up_nothing(place: Reader) -> None:
    acked: list[int] = []
    place.meets(_bringing((1, BOB.post("news"), "member-bob"), (2, _to(place, b"after"), "member-bob"), acked=acked))
    assert [message.status for message in place.messages()] == ["unreadable", "stored"]
    assert acked == [1, 2]


def test_a_receipt_is_taken_as_proof_and_not_as_a_message(place: Reader) -> None:
    place.send("bob")
    place.runs(lambda: place.rows() == ["done"])
    sent = place.relay.batches[0][0]["id"]
    said = Receipt(
        head=BOB.head(),
        destination=Destination(DestinationKind.DM, "member-ann"),
        messages=(Receipted(sent, True, ReceiptStatus.STORED),),
    )
    acked: list[int] = []
    signed = receipt.sign_receipt(BOB.secret, START // 1_000_000, said, bytes(32))
    place.meets(_bringing((1, signed, "member-bob"), acked=acked))
    assert place.bodies() == []
    assert acked == [1]
    found = place.device.look(lambda tx: tx.rows("SELECT sequence, recipient, status FROM send_receipt"))
    assert found == [(0, "member-bob", "stored")]
    assert place.receiver.counts["receipts"] == 1
    assert len(place.rows()) == 1  # a receipt is not receipted


def test_a_crash_between_the_disk_and_the_acknowledgement_loses_and_doubles_nothing(place: Reader) -> None:
    one = _to(place, b"one")

    async def cut(connection: Connection) -> None:
        await connection.authenticate()
        sub = await connection.open_queue()
        about = {"was_stored": True, "message_id": "01M1", "sender": "member-bob", "accepted_at": START}
        await connection.say("QUEUE", sub, "MSG", 1, about, json.loads(event.encode(one)))
        connection.socket.transport.pause_reading()
        while not place.messages():
            await asyncio.sleep(0.01)
        connection.socket.transport.abort()

    acked: list[int] = []
    place.meets(cut, _bringing((1, one, "member-bob"), acked=acked))
    assert place.bodies() == [b"one"]
    assert acked == [1]
    assert place.rows("destination_kind") == ["receipt"]
