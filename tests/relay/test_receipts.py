"""Receipts: the signed word of a recipient goes back to the sender, once for each message, outside every limit."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.protocol.event import Event, decode, encode, verify
from holdfast.protocol.history import Kind
from holdfast.protocol.receipt import RECEIPT_KIND, ReceiptStatus
from holdfast.protocol.refusal import Refusal
from holdfast.protocol.schedule import SECOND
from holdfast.relay.settings import Limits, Settings
from tests.relay.place import Place
from tests.relay.queue_client import Friends, eventually, following, ids, soon
from tests.relay.running import RunningRelay, running

NO_POLL = "[queue]\npoll_interval_s = 86400\n"


@pytest.fixture(scope="module")
def one_relay(tmp_path_factory: pytest.TempPathFactory, on_store: str) -> Iterator[RunningRelay]:
    with running(tmp_path_factory.mktemp("receipts") / "relay", NO_POLL) as started:
        yield started


@pytest.fixture
def friends(one_relay: RunningRelay) -> Friends:
    return Friends(one_relay)


def delivered(friends: Friends, count: int = 1) -> list[Event]:
    """Messages from alice that bob has acknowledged."""
    events = friends.send(count)
    friends.drain(friends.bob)
    return events


def test_a_receipt_goes_to_the_sender_through_its_queue(friends: Friends) -> None:
    events = delivered(friends, 2)
    with following(friends.relay, friends.alice) as alice:
        alice.live()
        receipt = friends.bob.receipt(friends.alice, *ids(events))
        (answer,) = friends.taken(receipt)
        assert answer["skipped"] == []
        message = alice.message()
        assert (message.id, message.was_stored, message.about["sender"]) == (receipt.id, False, friends.bob.member)
        assert message.event["kind"] == RECEIPT_KIND
        assert [tag[1:] for tag in message.event["tags"] if tag[0] == "r"] == [
            [event.id, "true", "stored"] for event in events
        ]
        assert alice.acknowledge([message.seq]) == [message.seq]
    assert friends.drain(friends.alice) == []


def test_the_history_keeps_a_receipt_whole_so_that_anybody_can_verify_it(friends: Friends) -> None:
    (event,) = delivered(friends)
    receipt = friends.bob.receipt(friends.alice, event.id, was_stored=False, status=ReceiptStatus.UNREADABLE)
    (answer,) = friends.taken(receipt)
    (entry,) = friends.entries(Kind.RECEIPT)
    assert entry.seq == answer["history_id"]
    assert (entry.sender, entry.destination_kind, entry.destination_ref) == (
        friends.bob.member,
        "dm",
        friends.alice.member,
    )
    assert entry.recipients == ((friends.alice.member, "queued"),)
    kept = decode(entry.detail)
    verify(kept)
    assert kept == receipt
    assert entry.reason is None


def test_a_receipt_is_taken_once(friends: Friends) -> None:
    (event,) = delivered(friends)
    first = friends.bob.receipt(friends.alice, event.id)
    friends.taken(first)
    assert friends.publish(first)[0]["duplicate"] is True
    assert (
        friends.refused(friends.bob.receipt(friends.alice, event.id, status=ReceiptStatus.DUPLICATE))
        == "receipt_unknown"
    )
    assert ids(friends.drain(friends.alice)) == [first.id]


def test_two_receipts_in_one_batch_for_one_message_are_one(friends: Friends) -> None:
    (event,) = delivered(friends)
    one, other = (friends.bob.receipt(friends.alice, event.id) for _ in range(2))
    answers = friends.publish(one, other)
    assert [answer.get("code", answer["status"]) for answer in answers] == [201, "receipt_unknown"]


def test_lines_that_do_not_count_are_named_and_spoil_nothing(friends: Friends) -> None:
    known, again = delivered(friends, 2)
    friends.taken(friends.bob.receipt(friends.alice, again.id))
    (for_carol,) = friends.send(to=friends.carol)
    unknown = "ab" * 32
    receipt = friends.bob.receipt(friends.alice, unknown, known.id, again.id, for_carol.id)
    (answer,) = friends.taken(receipt)
    assert answer["skipped"] == [unknown, again.id, for_carol.id]
    assert friends.publish(receipt)[0]["skipped"] == [unknown, again.id, for_carol.id]
    assert friends.refused(friends.bob.receipt(friends.alice, known.id)) == "receipt_unknown"


def test_a_receipt_that_is_good_for_nothing_is_refused_and_leaves_nothing(friends: Friends) -> None:
    (event,) = delivered(friends)
    (from_carol,) = friends.send(sender=friends.carol)
    friends.drain(friends.bob)
    before = friends.relay.head_seq()
    assert friends.refused(friends.bob.receipt(friends.alice, "cd" * 32)) == "receipt_unknown"
    assert friends.refused(friends.carol.receipt(friends.alice, event.id)) == "receipt_unknown", "it was not hers"
    assert friends.refused(friends.bob.receipt(friends.alice, from_carol.id)) == "receipt_unknown", "carol sent it"
    assert friends.refused(friends.bob.receipt(friends.carol, event.id)) == "receipt_unknown", "alice sent it"
    assert friends.relay.head_seq() == before
    friends.taken(friends.bob.receipt(friends.alice, event.id), friends.bob.receipt(friends.carol, from_carol.id))


def test_a_receipt_before_the_acknowledgement_is_put_off(friends: Friends) -> None:
    (known,) = delivered(friends)
    (early,) = friends.send()
    receipt = friends.bob.receipt(friends.alice, known.id, early.id)
    answered = friends.relay.publish(receipt)
    assert str(answered) == "424 receipt_early"
    assert answered.document["temporary"] is True
    assert early.id in answered.document["detail"]
    assert friends.drain(friends.alice) == [], "it is one event: taken whole or later"
    friends.drain(friends.bob)
    (answer,) = friends.taken(receipt)
    assert answer["skipped"] == []


def test_a_receipt_for_what_expired_is_taken_for_it_is_proof(tmp_path: Path) -> None:
    with running(tmp_path / "relay", NO_POLL + "[retention]\nsweep_interval_s = 1\n") as relay:
        friends = Friends(relay)
        (event,) = friends.send(expires_at=soon())
        with following(relay, friends.bob) as bob:
            bob.until_live()
            eventually(lambda: len(friends.entries(Kind.EXPIRED)) == 1)
        receipt = friends.bob.receipt(friends.alice, event.id)
        friends.taken(receipt)
        assert ids(friends.drain(friends.alice)) == [receipt.id]


def test_receipts_are_outside_cap_and_pace_and_count(tmp_path: Path) -> None:
    settings = "[limits]\nqueue_messages_max = 3\nmessages_per_s = 1\nmessages_burst = 40\n" + NO_POLL
    with running(tmp_path / "relay", settings) as relay:
        friends = Friends(relay)
        events = []
        for _ in range(10):
            events += delivered(friends, 3)
        friends.send(3, sender=friends.carol, to=friends.alice)
        assert friends.refused(friends.carol.message(friends.alice)) == "queue_full"
        receipts = [friends.bob.receipt(friends.alice, event.id) for event in events]
        friends.taken(*receipts)
        friends.taken(*[friends.bob.message(friends.carol)])
        with following(relay, friends.alice) as alice:
            assert alice.status["pending_count"] == 3
            got = alice.until_live()
            assert ids(got[3:]) == ids(receipts)
            alice.acknowledge([message.seq for message in got])
        assert relay.metric("holdfast_deliveries_open") == 1


def test_receipts_are_exempt_from_the_pace_that_messages_keep(tmp_path: Path) -> None:
    settings = "[limits]\nmessages_per_s = 0.001\nmessages_burst = 12\n" + NO_POLL
    with running(tmp_path / "relay", settings) as relay:
        friends = Friends(relay)
        events = friends.send(3) + friends.send(3, sender=friends.carol)
        friends.drain(friends.bob)
        receipts = [friends.bob.receipt(friends.alice, event.id) for event in events[:3]]
        while friends.publish(friends.bob.message(friends.carol))[0].get("code") != "rate_limited":
            pass
        friends.taken(*receipts)


def test_a_receipt_is_not_receipted(friends: Friends) -> None:
    (event,) = delivered(friends)
    receipt = friends.bob.receipt(friends.alice, event.id)
    friends.taken(receipt)
    friends.drain(friends.alice)
    assert friends.refused(friends.alice.receipt(friends.bob, receipt.id)) == "receipt_unknown"


def test_receipts_and_messages_come_in_one_order(friends: Friends) -> None:
    events = delivered(friends, 2)
    sent = []
    for event in events:
        sent += friends.send(sender=friends.carol, to=friends.alice)
        receipt = friends.bob.receipt(friends.alice, event.id)
        friends.taken(receipt)
        sent.append(receipt)
    assert ids(friends.drain(friends.alice)) == ids(sent)


def test_a_block_does_not_keep_a_receipt_from_whoever_asked_for_it_by_sending(friends: Friends) -> None:
    (event,) = delivered(friends)
    friends.taken(friends.alice.block(friends.bob))
    receipt = friends.bob.receipt(friends.alice, event.id)
    friends.taken(receipt)
    assert ids(friends.drain(friends.alice)) == [receipt.id]


def test_every_recipient_of_a_topic_receipts_for_itself(friends: Friends) -> None:
    friends.make_topic()
    post = friends.alice.post("news")
    friends.taken(post)
    friends.drain(friends.bob)
    friends.drain(friends.carol)
    receipts = [person.receipt(friends.alice, post.id) for person in (friends.bob, friends.carol)]
    friends.taken(*receipts)
    assert ids(friends.drain(friends.alice)) == ids(receipts)


def test_a_receipt_to_somebody_who_is_out_is_refused(friends: Friends) -> None:
    (event,) = friends.send(sender=friends.carol)
    friends.drain(friends.bob)
    friends.taken(friends.alice.revoke(friends.carol))
    assert friends.refused(friends.bob.receipt(friends.carol, event.id)) == "destination_unknown"


def test_a_refused_receipt_holds_up_no_message_to_the_same_member(friends: Friends) -> None:
    (event,) = friends.send()
    early, message = friends.bob.receipt(friends.alice, event.id), friends.bob.message(friends.alice)
    answers = friends.publish(early, message)
    assert [answer.get("code", answer["status"]) for answer in answers] == ["receipt_early", 201]


def test_receipts_travel_over_a_websocket_too(friends: Friends) -> None:
    with following(friends.relay, friends.bob) as bob:
        bob.live()
        (event,) = friends.send()
        message = bob.message()
        bob.acknowledge([message.seq])
        receipt = friends.bob.receipt(friends.alice, event.id, was_stored=False)
        bob.say("EVENT", json.loads(encode(receipt)))
        verb, event_id, accepted, text = bob.hear()
        assert (verb, event_id, accepted) == ("OK", receipt.id, True)
        assert json.loads(text)["skipped"] == []
    assert ids(friends.drain(friends.alice)) == [receipt.id]


def test_receipts_that_are_good_for_nothing_are_counted_like_messages(tmp_path: Path) -> None:
    limits = Limits(messages_per_s=1.0, messages_burst=3)
    place = Place(tmp_path / "relay.db", Settings(limits=limits))
    place.settle()
    place.now += 60 * SECOND
    invented = [f"{number:064x}" for number in range(10)]
    refusals = [place.one(place.bob.receipt(place.alice, one)).refusal for one in invented]
    assert refusals[:4] == [Refusal.RECEIPT_UNKNOWN] * 4
    assert set(refusals[4:]) == {Refusal.RATE_LIMITED}
