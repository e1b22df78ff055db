"""Queues when something went wrong: bytes that the disk changed, a wake-up that never came, a device or a relay from a backup."""

import asyncio
import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.protocol.history import Kind
from holdfast.protocol.receipt import RECEIPT_KIND
from holdfast.relay.database import open_relay
from holdfast.relay.identity import Identity
from holdfast.relay.relay import Relay
from holdfast.relay.settings import Settings
from holdfast.store.sqlite import SqliteEngine
from holdfast.store.world import wall_clock
from tests.people import raw
from tests.relay.queue_client import Friends, connected, following, ids, tags_of
from tests.relay.running import running

NO_POLL = "[queue]\npoll_interval_s = 86400\n"


def damage(
    data: Path, event_id: str, change: str = "CAST(replace(CAST(event AS TEXT), '4201', '4207') AS BLOB)"
) -> None:
    """Change a message's bytes, as a bad disk does, while nobody looks."""
    engine = SqliteEngine(data / "relay.db")
    with closing(engine), engine.write() as transaction:
        assert transaction.run(f"UPDATE message SET event = {change} WHERE hex(event_id) = upper('{event_id}')") == 1


@pytest.mark.parametrize(
    "change",
    [
        "CAST(replace(CAST(event AS TEXT), '4201', '4207') AS BLOB)",
        "substr(event, 1, 100)",
        "x''",
        "x'ff00'",
        "CAST('null' AS BLOB)",
        "(SELECT other.event FROM message AS other WHERE other.seq <> message.seq ORDER BY seq DESC LIMIT 1)",
    ],
    ids=["changed", "cut short", "empty", "no text", "nothing", "another message"],
)
def test_a_message_that_the_disk_changed_is_set_aside_and_reported_and_jams_nothing(
    tmp_path: Path, change: str
) -> None:
    with running(tmp_path / "relay", NO_POLL) as relay:
        friends = Friends(relay)
        before, broken, after = friends.send(3)
    damage(tmp_path / "relay", broken.id, change)
    with running(tmp_path / "relay", NO_POLL) as relay:
        friends.relay = relay
        with following(relay, friends.bob) as bob:
            got = bob.until_live()
            assert ids(got) == [before.id, after.id]
            bob.acknowledge([message.seq for message in got])
        (entry,) = friends.entries(Kind.QUARANTINED)
        assert (entry.event_id, entry.recipient) == (bytes.fromhex(broken.id), friends.bob.member)
        assert "accepted" in (entry.reason or "")
        (line,) = [line for line in relay.log() if line["event"] == "quarantined"]
        assert (line["level"], line["member"], line["seq"]) == ("error", friends.bob.member, got[0].seq + 1)
        assert friends.drain(friends.bob) == friends.drain(friends.bob, replay=True)[2:] == []
        fates = friends.get(friends.alice, "/fates?after=0").document["fates"]
        assert [(fate["kind"], fate["event_id"]) for fate in fates if fate["kind"] != "delivered"] == [
            ("quarantined", broken.id)
        ]


def test_a_queue_with_nothing_but_broken_messages_becomes_live(tmp_path: Path) -> None:
    with running(tmp_path / "relay", NO_POLL) as relay:
        friends = Friends(relay)
        events = friends.send(60)
    for event in events:
        damage(tmp_path / "relay", event.id)
    with running(tmp_path / "relay", NO_POLL) as relay, following(relay, friends.bob) as bob:
        bob.live()
        friends.relay = relay
        (event,) = friends.send()
        assert bob.message().id == event.id
        assert len(friends.entries(Kind.QUARANTINED)) == 60


def test_what_another_process_accepts_is_found_by_looking(tmp_path: Path) -> None:
    """The wake-up is of one process. A second one on the same store wakes nobody here; the look for it does."""
    with running(tmp_path / "relay") as relay:
        friends = Friends(relay)
        with following(relay, friends.bob) as bob:
            bob.live()
            event = friends.alice.message(friends.bob)
            with closing(open_relay(relay.data / "relay.db")) as engine:
                other = Relay(engine, Settings(), Identity.read(relay.data), clock=wall_clock, inline=True)
                (answer,) = asyncio.run(other.publish([raw(event)]))
                assert answer.http_status == 201
            message = bob.message()
            assert (message.id, message.was_stored) == (event.id, False)


def test_a_device_that_lost_its_copy_gets_everything_once_more_and_nothing_is_appended(tmp_path: Path) -> None:
    with running(tmp_path / "relay", NO_POLL) as relay:
        friends = Friends(relay)
        delivered = friends.send(230)
        friends.drain(friends.bob)
        waiting = friends.send(2)
        head = relay.head_seq()
        with following(relay, friends.bob, replay=True) as bob:
            assert bob.status["pending_count"] == 2
            got = bob.until_live(acknowledge=True)
            assert ids(got) == ids(delivered + waiting)
            assert [message.about.get("replayed") for message in got] == [*[True] * 230, None, None]
            assert all(message.was_stored for message in got)
            bob.acknowledge([message.seq for message in got])
        assert relay.head_seq() == head + 2, "what was delivered before is no news"
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


def test_a_replay_brings_back_receipts_too(tmp_path: Path) -> None:
    with running(tmp_path / "relay", NO_POLL) as relay:
        friends = Friends(relay)
        (event,) = friends.send()
        friends.drain(friends.bob)
        friends.taken(friends.bob.receipt(friends.alice, event.id))
        friends.drain(friends.alice)
        (again,) = friends.drain(friends.alice, replay=True)
        assert (again.event["kind"], again.about["replayed"]) == (RECEIPT_KIND, True)


def test_the_relay_tells_a_device_the_greatest_sequence_of_its_epoch(tmp_path: Path) -> None:
    with running(tmp_path / "relay", NO_POLL) as relay:
        friends = Friends(relay)
        (event,) = friends.send(sender=friends.carol)
        tags = tags_of(event)

        def highest(**asked: Any) -> Any:
            with following(relay, friends.carol, **asked) as carol:
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
        with connected(relay, friends.bob) as bob:
            assert bob.open(friends.mesh, epoch=tags["epoch"])["highest_sequence"] is None, "of the own device"


def test_a_sequence_that_comes_late_does_not_lower_the_greatest(tmp_path: Path) -> None:
    with running(tmp_path / "relay", NO_POLL) as relay:
        friends = Friends(relay)
        first, second = friends.carol.message(friends.bob), friends.carol.message(friends.alice)
        friends.taken(second)
        friends.taken(first)
        tags = tags_of(second)
        with following(relay, friends.carol, epoch=tags["epoch"]) as carol:
            assert carol.status["highest_sequence"] == int(tags["sequence"])


def _relay_command(*arguments: object) -> dict[str, Any]:
    command = [sys.executable, "-m", "holdfast.cli", "relay", *map(str, arguments), "--json"]
    done: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return done


def test_a_restored_relay_tells_where_its_log_forked_and_what_was_lost_can_be_sent_again(tmp_path: Path) -> None:
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
