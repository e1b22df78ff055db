"""`holdfast relay queues|moderate` as an operator runs them, beside a relay that runs and beside one that does not."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.relay.queue_client import Friends
from tests.relay.running import RunningRelay, running
from tests.terminal import typed


def _holdfast(*arguments: object, code: int = 0) -> str:
    done = typed("relay", *arguments, environment={**os.environ, "NO_COLOR": "1", "COLUMNS": "200"})
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout if code == 0 else done.stderr


def _queues(relay: RunningRelay, *options: object) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(_holdfast("queues", "--data", relay.data, "--json", *options))["queues"]
    return found


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRelay]:
    with running(tmp_path_factory.mktemp("queues") / "relay") as started:
        yield started


def test_queues_tell_what_waits_for_whom_longest_first(relay: RunningRelay) -> None:
    friends = Friends(relay)
    for_bob = friends.send(3)
    friends.send(1, to=friends.carol)
    (receipted,) = friends.send(sender=friends.carol, to=friends.alice)
    friends.drain(friends.alice)
    friends.taken(friends.alice.receipt(friends.carol, receipted.id))
    bob, carol = _queues(relay, "--mesh", friends.mesh)
    assert (bob["mesh"], bob["member"], bob["name"]) == (friends.mesh, friends.bob.member, friends.bob.name)
    assert (bob["messages"], bob["receipts"], bob["expired"]) == (3, 0, 0)
    assert bob["size"] == sum(
        entry.size or 0
        for entry in friends.entries()
        if entry.event_id in {bytes.fromhex(event.id) for event in for_bob}
    )
    assert bob["oldest_at"] == min(
        entry.at for entry in friends.entries() if entry.event_id == bytes.fromhex(for_bob[0].id)
    )
    assert 0 <= bob["oldest_age_s"] < 3600
    assert (carol["member"], carol["messages"], carol["receipts"]) == (friends.carol.member, 1, 1)
    text = _holdfast("queues", "--data", relay.data, "--mesh", friends.mesh)
    head, first, second = text.splitlines()
    assert head.split() == ["mesh", "name", "member", "messages", "receipts", "expired", "bytes", "oldest"]
    assert first.split()[:6] == [friends.mesh, friends.bob.name, friends.bob.member, "3", "0", "0"]
    assert second.split()[3:5] == ["1", "1"]


def test_queues_of_one_member_are_found_by_id_or_name(relay: RunningRelay) -> None:
    friends = Friends(relay)
    friends.send(2)
    by_id = _queues(relay, "--member", friends.bob.member)
    by_name = _queues(relay, "--member", friends.bob.name)
    assert [one["messages"] for one in by_id] == [one["messages"] for one in by_name] == [2]
    assert _queues(relay, "--member", friends.carol.name) == [], "an empty queue is no error"
    assert "Nothing waits." in _holdfast("queues", "--data", relay.data, "--member", friends.carol.name)
    assert "no member has the id or the name 'nobody'" in _holdfast(
        "queues", "--data", relay.data, "--member", "nobody", code=3
    )
    assert "no mesh here has the id 'nomesh'" in _holdfast("queues", "--data", relay.data, "--mesh", "nomesh", code=3)


def test_moderate_closes_what_nobody_has_yet(relay: RunningRelay) -> None:
    friends = Friends(relay)
    friends.make_topic()
    (answer,) = friends.taken(friends.alice.post("news"))
    message_id = answer["broker_message_id"]
    done = json.loads(_holdfast("moderate", message_id, "--data", relay.data, "--reason", "rude", "--json"))
    assert (done["message_id"], done["closed"], done["history_id"] > answer["history_id"]) == (message_id, 2, True)
    assert friends.drain(friends.bob) == []
    again = _holdfast("moderate", message_id, "--data", relay.data)
    assert f"✓ {message_id}: nobody waited for it any more; entry " in again
    (fate, _) = friends.get(friends.alice, "/fates?after=0").document["fates"]
    assert (fate["kind"], fate["reason"]) == ("moderated", "rude")


def test_moderate_says_what_is_wrong(relay: RunningRelay, tmp_path: Path) -> None:
    assert "no message 01NOPE" in _holdfast("moderate", "01NOPE", "--data", relay.data, code=3)
    assert "1 to 500 characters" in _holdfast("moderate", "01NOPE", "--data", relay.data, "--reason", "", code=2)
    assert "no relay is running" in _holdfast("moderate", "01NOPE", "--data", tmp_path, code=5)


def test_queues_can_be_read_and_nothing_moderated_without_the_operators_key_or_a_running_relay(tmp_path: Path) -> None:
    with running(tmp_path / "relay") as relay:
        friends = Friends(relay)
        (answer,) = friends.taken(friends.alice.message(friends.bob))
        key = relay.data / "operator.key"
        key.rename(tmp_path / "elsewhere")
        text = _holdfast("moderate", answer["broker_message_id"], "--data", relay.data, code=3)
        assert f"{key}: there is no such file" in text
        (tmp_path / "elsewhere").rename(key)
    (found,) = _queues(relay)
    assert found["messages"] == 1
    text = _holdfast("moderate", answer["broker_message_id"], "--data", relay.data, code=5)
    assert "no relay is running on this directory" in text
    assert "holdfast relay run" in text
    (found,) = _queues(relay)
    assert found["messages"] == 1
