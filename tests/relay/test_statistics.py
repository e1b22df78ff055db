"""The numbers of a relay, against a scene whose numbers are known."""

import asyncio
import os
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.relay import statistics
from holdfast.relay.database import open_relay
from holdfast.relay.relay import Relay
from holdfast.relay.settings import Settings
from holdfast.relay.statistics import ConsumerStatistics, OpenByAge, Statistics
from holdfast.store import faults, history
from tests.people import Person, raw
from tests.relay import scene

SECOND = 1_000_000
MINUTE, HOUR, DAY, WEEK = 60 * SECOND, 3_600 * SECOND, 86_400 * SECOND, 604_800 * SECOND


@pytest.fixture
def data(tmp_path: Path) -> Path:
    scene.populated(tmp_path / "relay.db")
    return tmp_path


def test_everything_is_counted(data: Path) -> None:
    found = statistics.read(str(data / "relay.db"), scene.NOW)
    with closing(open_relay(data / "relay.db")) as engine, engine.read() as transaction:
        head = history.head(transaction)
    assert found == Statistics(
        log_id=head.log_id.hex(),
        seq=27,
        at=head.at,
        entries=27,
        meshes=1,
        members=3,
        members_revoked=0,
        topics=1,
        messages=18,
        ids=18,
        deliveries_open=0,  # all of them expired
        open_by_age=OpenByAge(0, 0, 0, 0, 0),
        oldest_open_at=None,
        last_accepted_at=scene.NOW,
        consumers=[],
        files=found.files,
    )
    assert found.files["relay.db"] == (data / "relay.db").stat().st_size


def test_an_empty_relay_has_numbers_too(tmp_path: Path) -> None:
    open_relay(tmp_path / "relay.db").close()
    found = statistics.read(str(tmp_path / "relay.db"), scene.NOW)
    assert (found.seq, found.at, found.entries, found.messages) == (0, None, 0, 0)
    assert (found.oldest_open_at, found.last_accepted_at) == (None, None)


AGES = {
    "now": (0, OpenByAge(3, 0, 0, 0, 0)),
    "a moment before a minute": (MINUTE - 1, OpenByAge(3, 0, 0, 0, 0)),
    "a minute": (MINUTE, OpenByAge(0, 3, 0, 0, 0)),
    "a moment before an hour": (HOUR - 1, OpenByAge(0, 3, 0, 0, 0)),
    "an hour": (HOUR, OpenByAge(0, 0, 3, 0, 0)),
    "a day": (DAY, OpenByAge(0, 0, 0, 3, 0)),
    "a moment before a week": (WEEK - 1, OpenByAge(0, 0, 0, 3, 0)),
    "a week": (WEEK, OpenByAge(0, 0, 0, 0, 3)),
    "before it was accepted, by a clock that went back": (-HOUR, OpenByAge(3, 0, 0, 0, 0)),
}


@pytest.mark.parametrize("name", AGES)
def test_open_deliveries_are_told_by_the_age_of_their_message(data: Path, name: str) -> None:
    age, expected = AGES[name]
    accepted_at = scene.NOW + 8 * DAY
    _publish(data, accepted_at, 3)
    found = statistics.read(str(data / "relay.db"), accepted_at + age)
    assert found.open_by_age == expected
    assert (found.deliveries_open, found.oldest_open_at, found.last_accepted_at) == (3, accepted_at, accepted_at)


def _publish(data: Path, now: int, count: int) -> None:
    async def publish() -> None:
        engine = open_relay(data / "relay.db")
        relay = Relay(engine, Settings(), scene.IDENTITY, clock=lambda: now, inline=True)
        alice, bob = Person("alice"), Person("bob")
        events = [alice.message(bob, client_message_id=f"late {n}".replace(" ", "-")) for n in range(count)]
        answers = await relay.publish([raw(event) for event in events])
        assert {answer.http_status for answer in answers} == {201}
        await relay.close()

    asyncio.run(publish())


def test_consumers_are_told_with_their_distance(data: Path) -> None:
    async def move() -> None:
        engine = open_relay(data / "relay.db")
        relay = Relay(engine, Settings(), scene.IDENTITY, clock=lambda: 5, inline=True)
        await relay.move_consumer("lake", relay.head().log_id, 10)
        await relay.close()

    asyncio.run(move())
    assert statistics.read(str(data / "relay.db"), scene.NOW).consumers == [ConsumerStatistics("lake", 10, 18, 5)]
    with closing(open_relay(data / "relay.db")) as engine, engine.write() as transaction:
        history.fork(transaction, scene.NOW, os.urandom(16))
    assert statistics.read(str(data / "relay.db"), scene.NOW).consumers == [ConsumerStatistics("lake", 10, None, 5)]


def test_a_directory_without_a_relay_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(faults.FileMissing):
        statistics.read(str(tmp_path / "relay.db"), 0)
