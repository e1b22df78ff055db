"""Store and forward over real sockets: what waits comes in order, stays until it is acknowledged, and is told apart from live."""

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.protocol.history import Kind
from tests.relay.queue_client import Friends, Message, connected, eventually, following, ids
from tests.relay.running import RunningRelay, running

# Nobody is helped by the safety net: what is not woken stays where it is, and the test sees it.
NO_POLL = "[queue]\npoll_interval_s = 86400\n"
GENEROUS = "[limits]\nqueue_messages_max = 1000000\nmessages_burst = 1000000\n"
ROUNDS_AT_THE_END = 60


@pytest.fixture(scope="module")
def one_relay(tmp_path_factory: pytest.TempPathFactory, on_store: str) -> Iterator[RunningRelay]:
    with running(tmp_path_factory.mktemp("queue") / "relay", NO_POLL) as started:
        yield started


@pytest.fixture
def friends(one_relay: RunningRelay) -> Friends:
    return Friends(one_relay)


def test_what_was_sent_while_somebody_was_away_comes_in_order_before_live(friends: Friends) -> None:
    sent = friends.send(3)
    with following(friends.relay, friends.bob) as bob:
        assert bob.status["pending_count"] == 3
        assert bob.status["seq"] == friends.relay.head_seq()
        got = bob.messages(3)
        assert ids(got) == ids(sent)
        assert all(message.was_stored for message in got)
        assert bob.live() == friends.relay.head_seq()
        (event,) = friends.send()
        message = bob.message()
        assert (message.id, message.was_stored) == (event.id, False)
        seqs = [one.seq for one in (*got, message)]
        assert bob.acknowledge(seqs) == seqs
    with following(friends.relay, friends.bob) as bob:
        assert bob.status["pending_count"] == 0
        assert bob.until_live() == []
    delivered = friends.entries(Kind.DELIVERED)
    assert [(entry.recipient, entry.was_stored) for entry in delivered] == [
        *[(friends.bob.member, True)] * 3,
        (friends.bob.member, False),
    ]


def test_a_message_says_whose_it_is_and_what_the_relay_calls_it(friends: Friends) -> None:
    event = friends.alice.message(friends.bob)
    (answer,) = friends.taken(event)
    with following(friends.relay, friends.bob) as bob:
        message = bob.message()
        assert message.seq == answer["history_id"]
        assert message.about == {
            "was_stored": True,
            "message_id": answer["broker_message_id"],
            "sender": friends.alice.member,
            "accepted_at": next(entry.at for entry in friends.entries(Kind.ACCEPTED)),
        }
        assert message.event["sig"] == event.sig


def test_an_empty_queue_is_live_at_once(friends: Friends) -> None:
    with following(friends.relay, friends.bob) as bob:
        assert bob.status["pending_count"] == 0
        assert bob.live() == friends.relay.head_seq()


def test_queues_of_several_members_do_not_mix(friends: Friends) -> None:
    for_bob, for_carol = friends.send(3), friends.send(2, to=friends.carol)
    with following(friends.relay, friends.bob) as bob, following(friends.relay, friends.carol) as carol:
        assert ids(bob.until_live()) == ids(for_bob)
        assert ids(carol.until_live()) == ids(for_carol)


def test_a_queue_is_for_its_member_alone(friends: Friends) -> None:
    friends.send()
    with connected(friends.relay) as nobody:
        nobody.say("QUEUE", "q", {"mesh": friends.mesh})
        assert nobody.refused() == "auth_required"
    stranger = Friends(friends.relay).bob
    with connected(friends.relay, stranger) as other:
        other.say("QUEUE", "q", {"mesh": friends.mesh})
        assert other.refused() == "not_a_member"


def test_an_acknowledgement_of_somebody_elses_rows_is_refused_and_changes_nothing(friends: Friends) -> None:
    (for_bob,) = friends.send()
    (for_carol,) = friends.send(to=friends.carol)
    with following(friends.relay, friends.bob) as bob, following(friends.relay, friends.carol) as carol:
        (his,) = bob.until_live()
        (hers,) = carol.until_live()
        carol.say("QUEUE", "q", "ACK", [his.seq, hers.seq, 10**12])
        assert carol.hear() == ["QUEUE", "q", "ACKED", [hers.seq]], "her own is taken all the same"
        frame = carol.hear()
        assert frame[:3] == ["QUEUE", "q", "ERR"]
        assert frame[3] == f"restricted: ack_unknown: positions {his.seq}, {10**12}"
    assert [entry.event_id.hex() for entry in friends.entries(Kind.DELIVERED) if entry.event_id] == [for_carol.id]
    assert ids(friends.drain(friends.bob)) == [for_bob.id]


def test_a_repeated_acknowledgement_succeeds_and_appends_nothing(friends: Friends) -> None:
    friends.send(2)
    with following(friends.relay, friends.bob) as bob:
        seqs = [message.seq for message in bob.until_live()]
        assert bob.acknowledge(seqs) == seqs
        assert bob.acknowledge(list(reversed(seqs))) == seqs
    assert len(friends.entries(Kind.DELIVERED)) == 2
    with following(friends.relay, friends.bob) as bob:
        bob.live()
        assert bob.acknowledge(seqs) == seqs
    assert len(friends.entries(Kind.DELIVERED)) == 2


def test_messages_may_be_acknowledged_in_any_order_and_the_others_come_again(friends: Friends) -> None:
    sent = friends.send(5)
    with following(friends.relay, friends.bob) as bob:
        got = bob.until_live()
        bob.acknowledge([got[3].seq, got[1].seq])
    assert ids(friends.drain(friends.bob)) == [sent[0].id, sent[2].id, sent[4].id]


@pytest.mark.parametrize(
    ("read", "acknowledged"),
    [(0, 0), (1, 0), (7, 3), (50, 49), (50, 50), (51, 50), (100, 100), (120, 0), (120, 119), (120, 120)],
    ids=str,
)
def test_a_cut_anywhere_in_the_flush_loses_nothing_and_repeats_only_what_was_not_acknowledged(
    friends: Friends, read: int, acknowledged: int
) -> None:
    sent = friends.send(120)
    with following(friends.relay, friends.bob) as bob:
        got = bob.messages(read)
        if acknowledged:
            bob.acknowledge([message.seq for message in got[:acknowledged]])
        bob.cut()
    with following(friends.relay, friends.bob) as bob:
        assert bob.status["pending_count"] == 120 - acknowledged
        rest = bob.until_live()
        assert ids(rest) == ids(sent[acknowledged:])
        assert all(message.was_stored for message in rest)


def test_a_cut_before_status_leaves_the_queue_as_it_was(friends: Friends) -> None:
    sent = friends.send(3)
    with connected(friends.relay, friends.bob) as bob:
        bob.say("QUEUE", "q", {"mesh": friends.mesh})
        bob.cut()
    assert ids(friends.drain(friends.bob)) == ids(sent)


def test_an_acknowledgement_counts_though_its_answer_was_never_heard(friends: Friends) -> None:
    friends.send(3)
    with following(friends.relay, friends.bob) as bob:
        seqs = [message.seq for message in bob.until_live()]
        bob.say("QUEUE", "q", "ACK", seqs)
        eventually(lambda: len(friends.entries(Kind.DELIVERED)) == 3)
        bob.cut()
    assert friends.drain(friends.bob) == []


def test_who_acknowledges_and_leaves_at_once_has_acknowledged(friends: Friends) -> None:
    for count in range(1, 11):
        friends.send()
        with following(friends.relay, friends.bob) as bob:
            bob.say("QUEUE", "q", "ACK", [message.seq for message in bob.until_live()])
        eventually(lambda wanted=count: len(friends.entries(Kind.DELIVERED)) == wanted)  # type: ignore[misc]  # bound now
    assert friends.drain(friends.bob) == []


def test_a_message_sent_live_and_not_acknowledged_has_waited_when_it_comes_again(friends: Friends) -> None:
    with following(friends.relay, friends.bob) as bob:
        bob.live()
        (event,) = friends.send()
        assert bob.message().was_stored is False
        bob.cut()
    (again,) = friends.drain(friends.bob)
    assert (again.id, again.was_stored) == (event.id, True)
    (entry,) = friends.entries(Kind.DELIVERED)
    assert entry.was_stored is True, "of the connection that acknowledged it"


def test_beyond_the_window_nothing_comes_until_something_is_acknowledged(friends: Friends) -> None:
    sent = friends.send(230)
    with following(friends.relay, friends.bob) as bob:
        got = bob.messages(200)
        eventually(lambda: friends.relay.metric("holdfast_slow_consumers") == 1)
        bob.nothing_came()
        assert bob.acknowledge([got[0].seq, got[199].seq]) == [got[0].seq, got[199].seq]
        got += bob.messages(2)
        eventually(lambda: friends.relay.metric("holdfast_slow_consumers") == 1)
        bob.nothing_came()
        bob.say("QUEUE", "q", "ACK", [message.seq for message in got])
        got += [Message(*frame[3:]) for frame in (bob.hear() for _ in range(29)) if frame[2] == "MSG"]
        assert ids(got) == ids(sent)
        bob.live()
        assert friends.relay.metric("holdfast_slow_consumers") == 0


def test_the_window_holds_for_what_is_live_too(friends: Friends) -> None:
    with following(friends.relay, friends.bob) as bob:
        bob.live()
        sent = friends.send(230)
        got = bob.messages(200)
        eventually(lambda: friends.relay.metric("holdfast_slow_consumers") == 1)
        bob.nothing_came()
        bob.say("QUEUE", "q", "ACK", [message.seq for message in got])
        assert bob.hear()[2] == "ACKED"
        got += bob.messages(30)
        assert ids(got) == ids(sent)
        assert not any(message.was_stored for message in got)


def test_what_is_accepted_during_the_flush_comes_behind_the_backlog(friends: Friends) -> None:
    sent = friends.send(230)
    with following(friends.relay, friends.bob) as bob:
        got = bob.messages(200)  # as many as the window lets out: the flush waits for them
        sent += friends.send(2, sender=friends.carol)
        bob.say("QUEUE", "q", "ACK", [message.seq for message in got])
        assert bob.hear()[2] == "ACKED"
        got += bob.messages(32)
        assert ids(got) == ids(sent)
        assert [message.seq for message in got] == sorted(message.seq for message in got)
        assert all(message.was_stored for message in got), "it was first sent before LIVE"
        bob.live()


def test_what_arrives_as_the_flush_ends_is_not_stuck(tmp_path: Path) -> None:
    """With no pause and no poll, a message that slips in between the last page and LIVE has nobody else to wake it."""
    with running(tmp_path / "relay", GENEROUS + "[queue]\npoll_interval_s = 86400\npause_ms = 0\n") as relay:
        friends = Friends(relay)
        for _ in range(ROUNDS_AT_THE_END):
            sent = friends.send()
            with connected(relay, friends.bob) as bob:
                late = friends.alice.message(friends.bob)
                sender = threading.Thread(target=friends.taken, args=(late,))
                sender.start()
                bob.open(friends.mesh)
                got: list[Message] = []
                live: list[int] = []
                while len(got) < 2 or not live:
                    frame = bob.hear()
                    if frame[2] == "LIVE":
                        live.append(frame[3])
                    else:
                        got.append(Message(*frame[3:]))
                        assert got[-1].was_stored is not bool(live)
                sender.join()
                assert ids(got) == [*ids(sent), late.id]
                bob.acknowledge([message.seq for message in got])
        assert friends.drain(friends.bob) == []


def test_more_than_any_buffer_holds_waits_for_a_slow_reader_on_disk_and_not_in_memory(tmp_path: Path) -> None:
    settings = GENEROUS + "[queue]\nwindow_messages = 1000000\npoll_interval_s = 86400\n"
    with running(tmp_path / "relay", settings) as relay:
        friends = Friends(relay)
        sent = friends.send(800, b"x" * 30_000)
        size = sum(entry.size or 0 for entry in friends.entries(Kind.ACCEPTED))
        with connected(relay, friends.carol) as carol:  # the memory of a connection that nothing is sent to
            carol.open(friends.mesh)
            before = relay.memory_bytes()
        with following(relay, friends.bob) as bob:
            first = bob.messages(3)
            head = relay.head_seq()
            assert friends.relay.ask("GET", "/livez").status == 200
            grown = relay.memory_bytes() - before
            assert grown < size / 3, "of 35 megabytes that nobody reads, some are in the socket and few here"
            rest = bob.messages(797)
            assert bob.live() == head
        assert ids(first + rest) == ids(sent)


def test_a_relay_that_is_killed_in_the_middle_of_a_flush_forgets_no_acknowledgement_and_no_message(
    tmp_path: Path,
) -> None:
    with running(tmp_path / "relay", NO_POLL) as relay:
        friends = Friends(relay)
        sent = friends.send(120)
        with following(relay, friends.bob) as bob:
            got = bob.messages(70)
            bob.acknowledge([message.seq for message in got[:60]])
            relay.stop(signal.SIGKILL)
    with running(tmp_path / "relay", NO_POLL) as relay, following(relay, friends.bob) as bob:
        assert bob.status["pending_count"] == 60
        assert ids(bob.until_live()) == ids(sent[60:])


def test_a_relay_that_stops_says_so_to_whoever_follows_a_queue(tmp_path: Path) -> None:
    with running(tmp_path / "relay", NO_POLL) as relay:
        friends = Friends(relay)
        friends.send(2)
        with following(relay, friends.bob) as bob, following(relay, friends.carol) as carol:
            bob.until_live()
            relay.process.terminate()
            assert bob.closed() == (1012, "shutting_down")
            assert carol.closed() == (1012, "shutting_down")
        assert relay.process.wait(60) == 0
        assert not [line for line in relay.log() if line["event"] == "bug"]
