"""Room in queues: the cap and what counts against it, what expires, who is left out of a topic, and who wants nothing."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast.protocol.event import Event
from holdfast.protocol.history import Entry, Kind
from tests.people import Person
from tests.relay.queue_client import (
    Friends,
    Message,
    QueueClient,
    connected,
    eventually,
    following,
    ids,
    in_time,
)
from tests.relay.running import RunningRelay, running

CAP = 5
SMALL = (
    f"[limits]\nqueue_messages_max = {CAP}\n[retention]\nsweep_interval_s = 86400\n[queue]\npoll_interval_s = 86400\n"
)


@pytest.fixture(scope="module")
def one_relay(tmp_path_factory: pytest.TempPathFactory, on_store: str) -> Iterator[RunningRelay]:
    with running(tmp_path_factory.mktemp("room") / "relay", SMALL) as started:
        yield started


@pytest.fixture
def friends(one_relay: RunningRelay) -> Friends:
    return Friends(one_relay)


def let_pass(at: int) -> None:
    time.sleep(max(0.0, at / 1_000_000 - time.time()) + 0.05)


def outcomes(entry: Entry) -> dict[str, str]:
    return dict(entry.recipients)


def test_the_message_over_the_cap_is_refused_by_name_and_leaves_nothing(friends: Friends) -> None:
    sent = friends.send(CAP)
    one_more = friends.alice.message(friends.bob)
    before = friends.relay.head_seq()
    answered = friends.relay.publish(one_more)
    assert str(answered) == "429 queue_full"
    assert answered.document["member"] == friends.bob.member
    assert f"{CAP} messages wait for member {friends.bob.member}" in answered.document["detail"]
    assert answered.document["temporary"] is True
    assert friends.relay.head_seq() == before
    with following(friends.relay, friends.bob) as bob:
        assert bob.status["pending_count"] == CAP, "nobody was put out for it"
        got = bob.until_live()
        assert ids(got) == ids(sent)
        assert friends.refused(one_more) == "queue_full", "what is sent still waits"
        bob.acknowledge([got[2].seq])
        assert friends.taken(one_more)[0]["duplicate"] is False, "its id was not consumed"
        assert bob.message().id == one_more.id


def test_the_batch_that_fills_a_queue_is_taken_up_to_the_cap_and_no_further(friends: Friends) -> None:
    answers = friends.publish(*(friends.alice.message(friends.bob) for _ in range(CAP + 3)))
    assert [answer.get("code", answer["status"]) for answer in answers] == [
        *[201] * CAP,
        "queue_full",
        *["held_back"] * 2,
    ]


def test_expired_messages_do_not_count_against_the_cap(one_relay: RunningRelay) -> None:
    def fill(expires_at: int) -> tuple[Friends, list[Event], list[Event]]:
        friends = Friends(one_relay)
        sent = friends.send(3, expires_at=expires_at), friends.send(2)
        assert friends.refused(friends.alice.message(friends.bob)) == "queue_full"
        return friends, *sent

    expires_at, (friends, expiring, kept) = in_time(fill)
    let_pass(expires_at)
    new = friends.send(3)
    assert [entry.event_id.hex() for entry in friends.entries(Kind.EXPIRED) if entry.event_id] == ids(expiring)
    assert friends.refused(friends.alice.message(friends.bob)) == "queue_full"
    assert ids(friends.drain(friends.bob)) == ids(kept + new)


def test_an_expired_message_is_neither_counted_nor_sent(one_relay: RunningRelay) -> None:
    def send(expires_at: int) -> Friends:
        friends = Friends(one_relay)
        friends.send(2, expires_at=expires_at)
        return friends

    expires_at, friends = in_time(send)
    (kept,) = friends.send()
    let_pass(expires_at)
    with following(friends.relay, friends.bob) as bob:
        assert bob.status["pending_count"] == 1
        assert ids(bob.until_live()) == [kept.id]


def test_what_expires_during_the_flush_is_not_sent_any_more_and_the_history_says_so(tmp_path: Path) -> None:
    settings = "[queue]\nwindow_messages = 2\npoll_interval_s = 86400\n[retention]\nsweep_interval_s = 1\n"
    with running(tmp_path / "relay", settings) as relay, ExitStack() as readers:
        played = []

        def flush(expires_at: int) -> tuple[Friends, list[Event], list[Event], QueueClient, list[Message]]:
            friends = Friends(relay)
            played.append(friends)
            first, expiring, last = friends.send(2), friends.send(3, expires_at=expires_at), friends.send(2)
            bob = readers.enter_context(following(relay, friends.bob))
            assert bob.status["pending_count"] == 7
            return friends, first + last, expiring, bob, bob.messages(2)

        expires_at, (friends, staying, expiring, bob, got) = in_time(flush)
        let_pass(expires_at)
        bob.acknowledge([message.seq for message in got])
        got += bob.messages(2)
        bob.acknowledge([message.seq for message in got[2:]])
        assert ids(got) == ids(staying)
        eventually(lambda: len(friends.entries(Kind.EXPIRED)) == 3)
        assert [entry.event_id.hex() for entry in friends.entries(Kind.EXPIRED) if entry.event_id] == ids(expiring)
        expected = {"event": "expired", "queue": f"{friends.mesh}/{friends.bob.member}", "messages": 3}
        eventually(lambda: any(expected.items() <= line.items() for line in relay.log()))
        told = sum(len(one.entries(Kind.EXPIRED)) for one in played)
        assert relay.metric('holdfast_swept_rows_total{sweep="expired_deliveries"}') == told


def test_what_was_sent_and_expires_before_its_acknowledgement_stays_expired(tmp_path: Path) -> None:
    settings = "[queue]\npoll_interval_s = 86400\n[retention]\nsweep_interval_s = 1\n"
    with running(tmp_path / "relay", settings) as relay, ExitStack() as readers:

        def send(expires_at: int) -> tuple[Friends, QueueClient, Message]:
            friends = Friends(relay)
            friends.send(1, expires_at=expires_at)
            bob = readers.enter_context(following(relay, friends.bob))
            message = bob.message()
            bob.live()
            return friends, bob, message

        _, (friends, bob, message) = in_time(send)
        eventually(lambda: len(friends.entries(Kind.EXPIRED)) == 1)
        assert bob.acknowledge([message.seq]) == [message.seq], "it is on somebody's disk: that is no error"
        assert friends.entries(Kind.DELIVERED) == []


def test_a_topic_skips_who_is_full_and_says_so_then_and_later(friends: Friends) -> None:
    friends.make_topic()
    friends.send(CAP)
    post = friends.alice.post("news")
    (answer,) = friends.taken(post)
    assert answer["skipped"] == [friends.bob.member]
    (again,) = friends.publish(post)
    assert (again["status"], again["duplicate"], again["skipped"]) == (200, True, [friends.bob.member])
    (entry,) = [entry for entry in friends.entries(Kind.ACCEPTED) if entry.destination_kind == "topic"]
    assert outcomes(entry) == {friends.bob.member: "full", friends.carol.member: "queued"}
    assert entry.reason == "skipped"
    (fate,) = friends.get(friends.alice, "/fates?after=0").document["fates"]
    assert (fate["kind"], fate["recipient"], fate["event_id"]) == ("full", friends.bob.member, post.id)
    assert ids(friends.drain(friends.carol)) == [post.id]
    assert post.id not in ids(friends.drain(friends.bob))


def test_a_topics_message_makes_room_by_what_has_expired(one_relay: RunningRelay) -> None:
    def fill(expires_at: int) -> Friends:
        friends = Friends(one_relay)
        friends.make_topic()
        friends.send(CAP, expires_at=expires_at)
        return friends

    expires_at, friends = in_time(fill)
    let_pass(expires_at)
    (answer,) = friends.taken(friends.alice.post("news"))
    assert answer["skipped"] == []
    assert len(friends.drain(friends.bob)) == 1


def test_a_block_is_silent_to_the_sender_and_told_by_the_history(friends: Friends) -> None:
    friends.make_topic()
    before = friends.send(2)
    friends.taken(friends.bob.block(friends.alice))
    blocked = friends.alice.message(friends.bob)
    posted = friends.alice.post("news")
    answers = friends.taken(blocked, posted)
    assert [answer["skipped"] for answer in answers] == [[], []]
    from_carol = friends.send(sender=friends.carol)
    friends.taken(friends.bob.unblock(friends.alice))
    after = friends.send()
    assert ids(friends.drain(friends.bob)) == ids(before + from_carol + after), "what was queued before stays"
    assert ids(friends.drain(friends.carol)) == [posted.id]
    told = {entry.event_id.hex(): outcomes(entry) for entry in friends.entries(Kind.ACCEPTED) if entry.event_id}
    assert told[blocked.id] == {friends.bob.member: "blocked"}
    assert told[posted.id] == {friends.bob.member: "blocked", friends.carol.member: "queued"}
    fates = friends.get(friends.alice, "/fates?after=0").document["fates"]
    assert [(fate["event_id"], fate["recipient"]) for fate in fates if fate["kind"] == "blocked"] == [
        (blocked.id, friends.bob.member),
        (posted.id, friends.bob.member),
    ]


def test_a_blocked_sender_is_answered_though_the_queue_is_full(friends: Friends) -> None:
    """A refusal would tell it that it is not blocked, and its absence that it is."""
    friends.send(CAP)
    friends.taken(friends.bob.block(friends.alice))
    friends.send()


def test_the_metrics_know_depth_age_readers_and_refusals(tmp_path: Path) -> None:
    with running(tmp_path / "relay", SMALL) as relay:
        friends = Friends(relay)
        assert relay.metric("holdfast_deliveries_open") == 0
        assert relay.metric("holdfast_queue_oldest_age_s") == 0
        friends.send(CAP)
        friends.send(2, to=friends.carol)
        friends.refused(friends.alice.message(friends.bob))
        assert relay.metric("holdfast_deliveries_open") == CAP + 2
        assert relay.metric("holdfast_queue_messages_longest") == CAP
        eventually(lambda: relay.metric("holdfast_queue_oldest_age_s") >= 1)
        assert relay.metric('holdfast_answers_total{code="queue_full"}') == 1
        with following(relay, friends.bob) as bob, connected(relay, friends.carol):
            bob.until_live()
            assert relay.metric("holdfast_queue_streams") == 1
            assert relay.metric("holdfast_slow_consumers") == 0
        friends.drain(friends.bob)
        friends.drain(friends.carol)
        assert relay.metric("holdfast_deliveries_open") == 0
        assert relay.metric("holdfast_queue_oldest_age_s") == 0
        eventually(lambda: relay.metric("holdfast_queue_streams") == 0)


def test_a_member_may_write_to_itself(friends: Friends) -> None:
    """Two homes of one person are two members, but a note to oneself is a message like any other."""
    me: Person = friends.alice
    (event,) = friends.send(to=me)
    assert ids(friends.drain(me)) == [event.id]
