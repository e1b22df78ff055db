"""A relay that prunes what a reader of its history has acknowledged, and nothing else; on both engines, while it serves."""

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast.protocol.history import Kind
from holdfast.protocol.schedule import DAY, HOUR
from holdfast.relay import closing
from holdfast.relay.settings import Retention, Settings
from holdfast.relay.sweep import passed_by_all
from holdfast.store.world import wall_clock
from tests.people import MESH, Person
from tests.relay.place import Place
from tests.relay.running import ANSWER_S, Answered, RunningRelay, running

SETTINGS = """
[retention]
history_retention_days = 1
message_retention_days = 1
queue_ttl_days = 1
sweep_interval_s = 1
proof_required = true
"""
AGE_DAYS = 40  # longer than any consumer is waited for
AGED_ENTRIES = 9  # five to found a mesh, two messages, and their deliveries


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory, on_store: str) -> Path:
    """The data of a relay that was last used some weeks ago."""
    data = tmp_path_factory.mktemp("retention") / "relay"
    data.mkdir(mode=0o700)
    place = Place(data / "relay.db", Settings())
    place.now = wall_clock() - AGE_DAYS * DAY
    for person in (place.alice, place.bob, place.carol):
        person.now_s = place.now // 1_000_000
    place.settle()
    place.expect(201, place.alice.message(place.bob), place.bob.message(place.carol))
    _deliver(place, place.bob, 6)
    _deliver(place, place.carol, 7)
    asyncio.run(place.relay.close())
    place.engine.close()
    return data


@dataclass(frozen=True)
class Told:
    """What a relay said of itself at one time."""

    entries: int
    messages: int
    below: Answered  # to somebody who asks for the history from its beginning


@dataclass(frozen=True)
class Story:
    """A relay before anybody has read its history, after a reader has acknowledged half of it, and all of it."""

    unread: Told
    half: Told
    whole: Told
    half_seq: int
    whole_seq: int


@pytest.fixture(scope="module")
def story(old: Path) -> Iterator[Story]:
    """Afterwards every rule of the database was checked, the chain of its history among them."""
    with running(old, SETTINGS) as relay:
        bearer = {"authorization": f"Bearer {relay.token()}"}
        unread = _told(relay, bearer)
        half_seq = 4
        _acknowledge(relay, bearer, half_seq)
        half = _told(relay, bearer)
        whole_seq = relay.head_seq()
        _acknowledge(relay, bearer, whole_seq)
        yield Story(unread, half, _told(relay, bearer), half_seq, whole_seq)


def test_nothing_that_nobody_has_read_is_pruned_however_old(story: Story) -> None:
    assert (story.unread.messages, story.unread.below.status) == (7, 200)


def test_what_a_reader_has_acknowledged_goes_and_what_it_has_not_stays(story: Story) -> None:
    assert story.half.messages == 3
    assert f"ask after {story.half_seq}" in story.half.below.document["detail"]


def test_what_was_acknowledged_and_is_young_stays(story: Story) -> None:
    assert story.whole.messages == 0
    assert story.whole.entries > story.whole_seq - AGED_ENTRIES, "the prunings of today"
    assert f"ask after {AGED_ENTRIES}" in story.whole.below.document["detail"]


def test_who_reads_from_below_is_told_where_to_find_it(story: Story) -> None:
    assert str(story.whole.below) == "410 range_pruned"
    assert "lake" in story.whole.below.document["detail"]


@pytest.mark.parametrize(("proof_required", "passed"), [(True, 3), (False, 5)], ids=["with proof", "by age alone"])
def test_a_reader_who_stays_away_is_not_waited_for_but_what_nobody_has_stays(
    tmp_path: Path, proof_required: bool, passed: int
) -> None:
    place = Place(tmp_path / "relay.db", Settings()).settle()
    log_id = place.relay.head().log_id
    for name, seq in (("fast", 3), ("slow", 1)):
        asyncio.run(place.relay.move_consumer(name, log_id, seq))
    heads = place.relay.head().seq - 5  # what the readers' own registration added

    def found(history_hold_bytes: int = 1_000_000_000) -> int:
        rules = Retention(proof_required=proof_required, history_hold_bytes=history_hold_bytes)
        with place.engine.read() as transaction:
            return passed_by_all(transaction, place.now, rules)

    assert found() == 1
    place.now += 8 * DAY
    assert found() == (passed if proof_required else passed + heads)
    asyncio.run(place.relay.move_consumer("slow", log_id, 2))
    assert found() == 2
    assert found(history_hold_bytes=66_560) == (passed if proof_required else passed + heads)
    asyncio.run(place.relay.close())


@pytest.mark.parametrize("clock", [HOUR, 0, -HOUR], ids=["runs", "stands still", "goes back"])
def test_a_message_stays_until_every_reader_has_passed_what_closed_it(tmp_path: Path, clock: int) -> None:
    retention = Retention(message_retention_days=1, queue_ttl_days=5, proof_required=True)
    place, seq = _delivered(tmp_path, retention, clock)
    place.now += 3 * DAY
    assert _pruned(place) == 5, "what founded the mesh"
    assert place.rows("SELECT seq, state FROM delivery") == [(seq, "delivered")]
    _move(place, _last(place, Kind.DELIVERED) - 1)
    assert _pruned(place) == 0
    _move(place, _last(place, Kind.DELIVERED))
    assert _pruned(place) == 1
    assert place.rows("SELECT seq FROM delivery") == []
    asyncio.run(place.relay.close())


def test_a_reader_who_comes_back_after_the_cut_still_finds_what_closed_behind_its_checkpoint(tmp_path: Path) -> None:
    """When that was nobody can tell any more: the entries are gone."""
    retention = Retention(message_retention_days=30, history_retention_days=1)
    place, seq = _delivered(tmp_path, retention, HOUR)
    place.now += 10 * DAY
    assert _pruned(place) == 0
    assert place.relay.head().anchor_seq >= seq + 2
    place.now += 21 * DAY
    _move(place, seq + 1)
    assert _pruned(place) == 5
    _move(place, place.relay.head().seq)
    assert _pruned(place) == 1
    asyncio.run(place.relay.close())


def _delivered(tmp_path: Path, retention: Retention, after: int) -> tuple[Place, int]:
    """A relay with one message, whose reader has passed the accept and not yet that it was delivered, so much later."""
    place = Place(tmp_path / "relay.db", Settings(retention=retention)).settle()
    seq = _sent(place)
    _move(place, seq)
    place.now += after
    _deliver(place, place.bob, seq)
    return place, seq


def _sent(place: Place) -> int:
    place.expect(201, place.alice.message(place.bob))
    return _last(place, Kind.ACCEPTED)


def _move(place: Place, seq: int) -> None:
    asyncio.run(place.relay.move_consumer("lake", place.relay.head().log_id, seq))


def _deliver(place: Place, to: Person, seq: int) -> None:
    with place.engine.write() as transaction:
        closing.acknowledge(transaction, place.now, MESH, to.member, {seq: True})


def _last(place: Place, kind: Kind) -> int:
    return place.entries(kind)[-1].seq


def _pruned(place: Place) -> int:
    return asyncio.run(place.relay.sweep())["pruned_messages"].total()


def _acknowledge(relay: RunningRelay, bearer: dict[str, str], seq: int) -> None:
    log_id = relay.ask("GET", "/v1/export/dedupe?until=0", headers=bearer).headers["holdfast-log-id"]
    body = json.dumps({"log_id": log_id, "seq": seq}).encode()
    assert relay.ask("PUT", "/v1/consumers/pipeline", body, bearer).status == 200


def _told(relay: RunningRelay, bearer: dict[str, str]) -> Told:
    """After two rounds of sweeps: one that may have been under way, and one that was not."""
    rounds, give_up_at = relay.metric("holdfast_sweeps_total"), time.monotonic() + ANSWER_S
    while relay.metric("holdfast_sweeps_total") < rounds + 2:
        assert time.monotonic() < give_up_at
        time.sleep(0.05)
    below = relay.ask("GET", "/v1/export/history?columns=seq", headers=bearer)
    messages = relay.ask("GET", "/v1/export/message?columns=seq", headers=bearer)
    return Told(relay.head_seq(), int(messages.headers["holdfast-rows"]), below)
