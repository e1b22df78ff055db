"""Moderation: what nobody has yet is closed by a decision that the history keeps. It takes back no yes."""

import json
from collections.abc import Iterator

import pytest

from holdfast.protocol import keys
from holdfast.protocol.history import Kind
from tests.relay.queue_client import Friends, following, ids
from tests.relay.running import RunningRelay, running


@pytest.fixture(scope="module")
def one_relay(tmp_path_factory: pytest.TempPathFactory, on_store: str) -> Iterator[RunningRelay]:
    with running(tmp_path_factory.mktemp("moderation") / "relay") as started:
        yield started


@pytest.fixture
def friends(one_relay: RunningRelay) -> Friends:
    return Friends(one_relay)


def test_a_moderated_message_is_closed_for_those_who_lack_it_and_for_them_alone(friends: Friends) -> None:
    friends.make_topic()
    post = friends.alice.post("news")
    (answer,) = friends.taken(post)
    (kept,) = friends.send()
    assert ids(friends.drain(friends.carol)) == [post.id]
    answered = friends.moderate(answer["broker_message_id"], "it was spam")
    assert answered.status == 200
    decision, closing = friends.entries(Kind.MODERATED)
    assert answered.document == {
        "message_id": answer["broker_message_id"],
        "closed": 1,
        "history_id": decision.seq,
    }
    assert (decision.recipient, decision.destination_kind, decision.destination_ref, decision.reason) == (
        None,
        "moderation",
        keys.public_key(friends.relay.operator()),
        "it was spam",
    )
    assert (closing.recipient, closing.reason, closing.client_message_id) == (
        friends.bob.member,
        "it was spam",
        answer["client_message_id"],
    )
    with following(friends.relay, friends.bob) as bob:
        assert bob.status["pending_count"] == 1
        assert ids(bob.until_live()) == [kept.id]


def test_a_reason_that_not_every_database_can_hold_is_refused(friends: Friends) -> None:
    (answer,) = friends.taken(friends.alice.message(friends.bob))
    refused = friends.moderate(answer["broker_message_id"], "a\0b")
    assert (refused.status, refused.document["code"]) == (400, "malformed")
    assert friends.entries(Kind.MODERATED) == []
    assert friends.moderate(answer["broker_message_id"], "two\nlines").status == 200


def test_a_decision_is_on_record_though_nobody_waits_for_the_message(friends: Friends) -> None:
    (answer,) = friends.taken(friends.alice.message(friends.bob))
    friends.drain(friends.bob)
    for _ in range(2):
        assert friends.moderate(answer["broker_message_id"]).document["closed"] == 0
    assert [entry.recipient for entry in friends.entries(Kind.MODERATED)] == [None, None]


def test_moderation_is_no_rejection_and_nothing_brings_the_message_back(friends: Friends) -> None:
    event = friends.alice.message(friends.bob)
    (answer,) = friends.taken(event)
    friends.moderate(answer["broker_message_id"])
    (again,) = friends.publish(event)
    assert (again["status"], again["duplicate"], again["broker_message_id"]) == (200, True, answer["broker_message_id"])
    assert friends.drain(friends.bob) == []
    assert friends.drain(friends.bob, replay=True) == []


def test_who_had_the_message_sent_may_still_acknowledge_and_receipt_it(friends: Friends) -> None:
    event = friends.alice.message(friends.bob)
    (answer,) = friends.taken(event)
    with following(friends.relay, friends.bob) as bob:
        (message,) = bob.until_live()
        assert friends.moderate(answer["broker_message_id"]).document["closed"] == 1
        assert bob.acknowledge([message.seq]) == [message.seq]
    assert friends.entries(Kind.DELIVERED) == []
    friends.taken(friends.bob.receipt(friends.alice, event.id))


def test_the_sender_sees_what_became_of_it(friends: Friends) -> None:
    event = friends.alice.message(friends.bob)
    (answer,) = friends.taken(event)
    friends.moderate(answer["broker_message_id"], "against the house rules")
    (fate,) = friends.get(friends.alice, "/fates?after=0").document["fates"]
    assert (fate["kind"], fate["recipient"], fate["reason"]) == (
        "moderated",
        friends.bob.member,
        "against the house rules",
    )


def test_only_operators_moderate_and_only_what_there_is(friends: Friends) -> None:
    (answer,) = friends.taken(friends.alice.message(friends.bob))
    path, body = f"/v1/messages/{answer['broker_message_id']}/moderation", json.dumps({"reason": "no"}).encode()
    before = friends.relay.head_seq()
    assert str(friends.relay.signed(friends.alice.secret, "POST", path, body)) == "403 not_permitted"
    assert str(friends.relay.ask("POST", path, body)) == "401 auth_required"
    assert str(friends.moderate("01NOSUCHMESSAGE")) == "404 not_found"
    assert str(friends.moderate("%00")) == "400 malformed"
    assert str(friends.moderate(answer["broker_message_id"], "")) == "400 malformed"
    assert str(friends.moderate(answer["broker_message_id"], "x" * 501)) == "400 malformed"
    assert friends.relay.head_seq() == before
    assert len(friends.drain(friends.bob)) == 1
