"""Sealing and opening: what leaves is for its readers only, and what comes is opened with whatever key fits."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast.device import receipts, sending
from holdfast.device.device import at_work
from holdfast.device.home import Home
from holdfast.device.operations import Address
from holdfast.device.sealer import CannotSeal
from holdfast.device.sending import Operation
from holdfast.protocol import envelope, event, payload, receipt
from holdfast.protocol.envelope import Destination, Envelope
from holdfast.protocol.event import Event
from holdfast.protocol.fingerprint import DestinationKind
from holdfast.protocol.payload import Payload
from holdfast.protocol.receipt import Receipted, ReceiptStatus
from holdfast.protocol.refusal import Refusal
from holdfast.protocol.sealing import conversation_key, seal
from tests.device.place import Clock, Place, PlainRelay
from tests.people import Person, topic_key

BOB = Person("bob")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with at_work(Home(tmp_path / "home"), create=True, clock=Clock()) as device:
        yield Place(device, PlainRelay())


def _operation(place: Place, sequence: int = 0) -> Operation:
    return place.device.look(lambda tx: sending.with_sequences(tx, [sequence]))[0]


def test_a_row_that_has_its_event_keeps_it(place: Place) -> None:
    place.send("bob")
    (operation,) = [_operation(place)]
    raw = place.sealer.seal(operation)
    claimed = place.device.do(lambda tx: sending.claim(tx, place.device.clock(), operation, raw))
    assert place.sealer.seal(claimed) == raw
    assert place.sealer.seal(operation) != raw  # sealed anew it would be other bytes


def _owe(place: Place, *lines: Receipted) -> None:
    """Put a receipt into the log."""
    address = Address(
        destination_kind=receipts.RECEIPT, destination_ref="member-bob", mesh="01MESH", client_message_id="01R"
    )
    device = place.device
    device.do(lambda tx: sending.enqueue(tx, device.clock(), device.random, receipts.encode(lines), address))


def test_a_receipt_is_signed_with_its_lines_in_their_order(place: Place) -> None:
    lines = Receipted("ab" * 32, True, ReceiptStatus.STORED), Receipted("cd" * 32, False, ReceiptStatus.UNREADABLE)
    _owe(place, *lines)
    signed = event.decode(place.sealer.seal(_operation(place)))
    event.verify(signed)
    said = receipt.from_event(signed)
    assert said.messages == lines
    assert (said.destination.ref, said.head.sequence, said.head.client_message_id) == ("member-bob", 0, "01R")


def test_a_member_of_whom_no_key_is_known_cannot_be_sealed_to_yet(place: Place) -> None:
    place.send("bob")
    place.knows("cat")
    with pytest.raises(CannotSeal, match="no key of member member-bob") as reason:
        place.sealer.seal(_operation(place))
    assert reason.value.refusal is Refusal.DESTINATION_UNKNOWN


def test_a_member_whose_key_is_no_point_of_the_curve_cannot_be_sealed_to_yet(place: Place) -> None:
    """A relay that lies about a key may hold up this member's messages, but not those to everybody else."""
    place.send("bob")
    place.knows("bob", keys_of={"bob": "f" * 64})
    with pytest.raises(CannotSeal, match="not on the curve") as reason:
        place.sealer.seal(_operation(place))
    assert reason.value.refusal is Refusal.MALFORMED


def test_a_line_that_an_earlier_version_wrote_twice_is_signed_once(place: Place) -> None:
    """Otherwise the row could never be sealed, and every later receipt to that member would wait behind it."""
    twice, once = (Receipted(one * 32, True, ReceiptStatus.STORED) for one in ("ab", "cd"))
    _owe(place, twice, once, twice)
    assert receipt.from_event(event.decode(place.sealer.seal(_operation(place)))).messages == (twice, once)


def test_a_receipt_that_cannot_be_signed_holds_up_nobody_else(place: Place) -> None:
    line = Receipted("ab" * 32, True, ReceiptStatus.STORED)
    _owe(place, line, msgspec.structs.replace(line, status=ReceiptStatus.UNREADABLE))
    with pytest.raises(CannotSeal, match="message_id"):
        place.sealer.seal(_operation(place))


@pytest.mark.parametrize("epoch", [0, 2])
def test_a_topic_whose_current_key_is_not_here_cannot_be_posted_to_yet(place: Place, epoch: int) -> None:
    place.knows(topics=[("news", epoch)])
    place.send("@news")
    place.has_key("news", 1, b"\x05" * 32)
    with pytest.raises(CannotSeal) as reason:
        place.sealer.seal(_operation(place))
    assert reason.value.refusal is Refusal.WAITING_FOR_KEY


def _message(place: Place, body: bytes = b"hello") -> Event:
    """From bob to this device."""
    key = conversation_key(BOB.secret, place.device.pubkey)
    sealed = seal(key, payload.encode(Payload(body=body)), bytes(31) + b"\x01")
    said = Envelope(
        head=BOB.head(),
        destination=Destination(DestinationKind.DM, "member-ann"),
        recipient_key=place.device.pubkey,
    )
    return envelope.sign_message(BOB.secret, 1_800_000_000, said, sealed, bytes(32))


def _opened(place: Place, signed: Event) -> Payload | None:
    return place.sealer.open(signed, envelope.from_event(signed))


def test_a_message_to_this_device_is_opened(place: Place) -> None:
    found = _opened(place, _message(place))
    assert found is not None
    assert found.body == b"hello"


def test_a_message_to_another_key_is_not(place: Place) -> None:
    assert _opened(place, BOB.message(Person("cat"))) is None


def test_a_message_that_is_sealed_to_another_than_it_says_is_not_opened(place: Place) -> None:
    liar = BOB.message(Person("cat"), recipient_key=place.device.pubkey)
    assert _opened(place, liar) is None


def test_a_post_is_opened_with_whichever_key_of_its_epoch_fits(place: Place) -> None:
    post = BOB.post("news", b"to all", key_epoch=3)
    said = envelope.from_event(post)
    assert place.sealer.lacks_key(said)
    place.has_key("news", 3, b"\x05" * 32)  # another keeper's, who was slower
    assert not place.sealer.lacks_key(said)
    assert _opened(place, post) is None
    place.has_key("news", 3, topic_key("news", 3))
    found = _opened(place, post)
    assert found is not None
    assert found.body == b"to all"


def test_a_direct_message_lacks_no_topics_key(place: Place) -> None:
    assert not place.sealer.lacks_key(envelope.from_event(_message(place)))
