"""Queues when something went wrong: bytes that the disk changed, a wake-up that never came, a device or a relay from a backup."""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.protocol.event import Event
from holdfast.protocol.history import Kind
from holdfast.protocol.receipt import RECEIPT_KIND
from holdfast.relay.database import open_relay
from holdfast.relay.identity import Identity
from holdfast.relay.relay import Relay
from holdfast.relay.settings import Settings
from holdfast.store.world import wall_clock
from tests.people import public_key, raw, secret_of
from tests.relay import store
from tests.relay.queue_client import Friends, connected, following, ids, tags_of
from tests.relay.running import RunningRelay, running
from tests.terminal import typed

NO_POLL = "[queue]\npoll_interval_s = 86400\n"


@pytest.fixture(scope="module")
def one_relay(tmp_path_factory: pytest.TempPathFactory, on_store: str) -> Iterator[RunningRelay]:
    with running(tmp_path_factory.mktemp("trouble") / "relay", NO_POLL) as started:
        yield started


@pytest.fixture
def friends(one_relay: RunningRelay) -> Friends:
    return Friends(one_relay)


Change = Callable[[bytes], bytes]


def _another_kind(event: bytes) -> bytes:
    return event.replace(b"4201", b"4207")


def damage(data: Path, event_id: str, change: Change = _another_kind) -> None:
    """Change a message's bytes, as a bad disk does, while nobody looks."""
    engine, named = store.engine(data / "relay.db"), {"event_id": bytes.fromhex(event_id)}
    with closing(engine), engine.write() as transaction:
        ((event,),) = transaction.rows("SELECT event FROM message WHERE event_id = :event_id", named)
        (other,), *_ = transaction.rows(
            "SELECT event FROM message WHERE event_id <> :event_id ORDER BY seq DESC", named
        )
        changed = other if change is _another_message else change(event)
        assert changed != event
        statement = "UPDATE message SET event = :event WHERE event_id = :event_id"
        assert transaction.run(statement, {**named, "event": changed}) == 1


def _another_message(event: bytes) -> bytes:
    raise NotImplementedError  # it is looked up


CHANGES: dict[str, Change] = {
    "another kind": _another_kind,
    "another signature": lambda event: event[:-3] + (b"1" if event[-3:-2] == b"0" else b"0") + event[-2:],
    "cut short": lambda event: event[:100],
    "empty": lambda event: b"",
    "no text": lambda event: b"\xff\x00",
    "nothing": lambda event: b"null",
    "another message": _another_message,
}


def test_messages_that_the_disk_changed_are_set_aside_and_reported_and_jam_nothing(tmp_path: Path) -> None:
    with running(tmp_path / "relay", NO_POLL) as relay:
        friends = Friends(relay)
        sent = friends.send(2 * len(CHANGES) + 1)
    good, broken = sent[::2], sent[1::2]
    for event, change in zip(broken, CHANGES.values(), strict=True):
        damage(tmp_path / "relay", event.id, change)
    with running(tmp_path / "relay", NO_POLL) as relay:
        friends.relay = relay
        with following(relay, friends.bob) as bob:
            got = bob.until_live()
            assert ids(got) == ids(good)
            bob.acknowledge([message.seq for message in got])
        entries = friends.entries(Kind.QUARANTINED)
        assert [entry.event_id.hex() for entry in entries if entry.event_id] == ids(broken)
        assert {entry.recipient for entry in entries} == {friends.bob.member}
        assert all("accepted" in (entry.reason or "") for entry in entries)
        lines = [line for line in relay.log() if line["event"] == "quarantined"]
        assert [line["seq"] for line in lines] == [message.seq + 1 for message in got[:-1]]
        assert {(line["level"], line["mesh"], line["member"]) for line in lines} == {
            ("error", friends.mesh, friends.bob.member)
        }
        assert friends.drain(friends.bob) == []
        assert ids(friends.drain(friends.bob, replay=True)) == ids(good)
        fates = friends.get(friends.alice, "/fates?after=0").document["fates"]
        assert [fate["event_id"] for fate in fates if fate["kind"] == "quarantined"] == ids(broken)


@pytest.mark.parametrize("has_digest", [True, False])
def test_a_queue_with_nothing_but_broken_messages_becomes_live(tmp_path: Path, has_digest: bool) -> None:
    """Messages from before there were digests are known by their ids."""
    with running(tmp_path / "relay", NO_POLL) as relay:
        friends = Friends(relay)
        whole = friends.send(1, to=friends.carol)
        events = friends.send(60)
    for event in events:
        damage(tmp_path / "relay", event.id)
    if not has_digest:
        engine = store.engine(tmp_path / "relay" / "relay.db")
        with closing(engine), engine.write() as transaction:
            assert transaction.run("UPDATE message SET digest = NULL") > 0
    with running(tmp_path / "relay", NO_POLL) as relay, following(relay, friends.bob) as bob:
        bob.live()
        friends.relay = relay
        (event,) = friends.send()
        assert bob.message().id == event.id
        assert len(friends.entries(Kind.QUARANTINED)) == 60
        assert ids(friends.drain(friends.carol)) == ids(whole)


def elsewhere(data: Path, *events: Event) -> None:
    """Have events accepted by another relay on the same store, which wakes nobody in this one."""
    with closing(open_relay(store.where(data / "relay.db"))) as engine:
        other = Relay(engine, Settings(), Identity.read(data), clock=wall_clock, inline=True)
        answers = asyncio.run(other.publish([raw(event) for event in events]))
        assert [answer.http_status for answer in answers] == [201] * len(events)


def test_what_another_process_accepts_is_found_by_looking(tmp_path: Path) -> None:
    with running(tmp_path / "relay") as relay:
        friends = Friends(relay)
        with following(relay, friends.bob) as bob:
            bob.live()
            event = friends.alice.message(friends.bob)
            elsewhere(relay.data, event)
            message = bob.message()
            assert (message.id, message.was_stored) == (event.id, False)


def test_a_key_that_another_process_rotated_reads_no_further(tmp_path: Path) -> None:
    """Nobody tells this relay; it looks, before it sends, whether the reader still is who it was."""
    with running(tmp_path / "relay") as relay:
        friends = Friends(relay)
        secret = secret_of("bob's second key")
        with following(relay, friends.bob) as bob:
            bob.live()
            message = friends.alice.message(friends.bob, recipient_key=public_key(secret))
            elsewhere(relay.data, friends.bob.rotate(secret), message)
            assert bob.refused() == "stale_key"
            assert bob.authenticate(secret)[2] is True
            bob.open(friends.mesh)
            assert ids(bob.until_live()) == [message.id]


def test_a_device_that_lost_its_copy_gets_everything_once_more_and_nothing_is_appended(friends: Friends) -> None:
    delivered = friends.send(230)
    friends.drain(friends.bob)
    waiting = friends.send(2)
    head = friends.relay.head_seq()
    with following(friends.relay, friends.bob, replay=True) as bob:
        assert bob.status["pending_count"] == 2
        got = bob.until_live(acknowledge=True)
        assert ids(got) == ids(delivered + waiting)
        assert [message.about.get("replayed") for message in got] == [*[True] * 230, None, None]
        assert all(message.was_stored for message in got)
        bob.acknowledge([message.seq for message in got])
    assert friends.relay.head_seq() == head + 2, "what was delivered before is no news"
    assert friends.drain(friends.bob) == []


def test_the_window_holds_for_a_replay_too(tmp_path: Path) -> None:
    with running(tmp_path / "relay", "[queue]\nwindow_messages = 10\npoll_interval_s = 86400\n") as relay:
        friends = Friends(relay)
        friends.send(25)
        friends.drain(friends.bob)
        with following(relay, friends.bob, replay=True) as bob:
            got = bob.messages(10)
            bob.nothing_came()
            bob.say("QUEUE", "q", "ACK", [message.seq for message in got])
            assert bob.hear()[2] == "ACKED"
            bob.messages(10)


def test_a_replay_brings_back_receipts_too(friends: Friends) -> None:
    (event,) = friends.send()
    friends.drain(friends.bob)
    friends.taken(friends.bob.receipt(friends.alice, event.id))
    friends.drain(friends.alice)
    (again,) = friends.drain(friends.alice, replay=True)
    assert (again.event["kind"], again.about["replayed"]) == (RECEIPT_KIND, True)


def test_the_relay_tells_a_device_the_greatest_sequence_of_its_epoch(friends: Friends) -> None:
    (event,) = friends.send(sender=friends.carol)
    tags = tags_of(event)

    def highest(**asked: Any) -> Any:
        with following(friends.relay, friends.carol, **asked) as carol:
            return carol.status["highest_sequence"]

    assert highest() is None
    assert highest(epoch="00" * 16) is None
    assert highest(epoch=tags["epoch"]) == int(tags["sequence"])
    friends.drain(friends.bob)
    receipt = friends.carol.receipt(friends.alice, "ab" * 32)
    assert friends.refused(receipt) == "receipt_unknown"
    assert highest(epoch=tags["epoch"]) == int(tags["sequence"]), "what was refused was not accepted"
    (event,) = friends.send(sender=friends.carol)
    assert highest(epoch=tags["epoch"]) == int(tags_of(event)["sequence"])
    with connected(friends.relay, friends.bob) as bob:
        assert bob.open(friends.mesh, epoch=tags["epoch"])["highest_sequence"] is None, "of the own device"


def test_a_sequence_that_comes_late_does_not_lower_the_greatest(friends: Friends) -> None:
    first, second = friends.carol.message(friends.bob), friends.carol.message(friends.alice)
    friends.taken(second)
    friends.taken(first)
    tags = tags_of(second)
    with following(friends.relay, friends.carol, epoch=tags["epoch"]) as carol:
        assert carol.status["highest_sequence"] == int(tags["sequence"])


def _relay_command(*arguments: object) -> dict[str, Any]:
    done = typed("relay", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_a_restored_relay_tells_where_its_log_forked_and_what_was_lost_can_be_sent_again(
    tmp_path: Path, on_store: str
) -> None:
    if on_store == store.POSTGRES:
        pytest.skip("PostgreSQL is restored by its own means")
    with running(tmp_path / "relay", NO_POLL) as relay:
        friends = Friends(relay)
        kept = friends.send(2)
        with following(relay, friends.bob) as bob:
            assert bob.status["forks"] == []
            log_id = bob.status["log_id"]
        fork_seq = relay.head_seq()
        _relay_command("backup", "--data", relay.data, tmp_path / "backup")
        lost = friends.send()
        friends.drain(friends.bob)
    _relay_command("restore", "--data", tmp_path / "restored", tmp_path / "backup")
    with running(tmp_path / "restored", NO_POLL) as relay:
        friends.relay = relay
        with following(relay, friends.bob) as bob:
            assert bob.status["forks"] == [{"log_id": log_id, "seq": fork_seq}]
            assert bob.status["log_id"] != log_id
            assert ids(bob.until_live()) == ids(kept), "what was delivered after the backup waits again"
            friends.taken(*lost)
            assert bob.message().id == lost[0].id
            second_log_id = bob.status["log_id"]
        second_fork = relay.head_seq()
        _relay_command("backup", "--data", relay.data, tmp_path / "backup 2")
    _relay_command("restore", "--data", tmp_path / "again", tmp_path / "backup 2")
    with running(tmp_path / "again", NO_POLL) as relay, following(relay, friends.bob) as bob:
        assert bob.status["forks"] == [
            {"log_id": log_id, "seq": fork_seq},
            {"log_id": second_log_id, "seq": second_fork},
        ]
