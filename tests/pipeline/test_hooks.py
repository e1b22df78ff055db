"""What agents tell, from their hooks' real command through a daemon to the turns in the lake."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from holdfast.pipeline.pages import Place
from tests.cli.person import PATIENCE_S, Person, founder
from tests.hook import receivers
from tests.hook.recorded import SESSIONS
from tests.pipeline import lakes
from tests.relay.running import RunningRelay, running

POLL_S = 0.1
TABLES = lakes.with_what_they_need("agent_turn", "agent_session")

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[RunningRelay]:
    with running(tmp_path / "relay") as found:
        yield found


def test_a_recorded_session_of_every_agent_is_a_turn_in_the_lake(
    spark: SparkSession, relay: RunningRelay, tmp_path: Path
) -> None:
    ann = founder(Person(tmp_path / "ann"), relay.url)
    for agent, session in SESSIONS.items():
        for recorded in session:
            assert receivers.run(ann.home, agent, recorded.payload, "--strict").stderr == b""
    told = sum(recorded.event_type is not None for session in SESSIONS.values() for recorded in session)
    with ann.daemon():
        _wait_until_told(ann, told)
        place = lakes.place_of(relay, tmp_path)
        device = Place(f"unix:{ann.home / 'daemon.sock'}", None, lakes.PATIENCE_S)
        assert lakes.run(spark, tmp_path / "lake", place, [device], tables=TABLES).violations == 0
    shelf = lakes.shelf_of(tmp_path / "lake", TABLES)
    rows = shelf.query("agent_turn", shelf.last_run().versions["agent_turn"], "SELECT * FROM {rows} ORDER BY agent, n")
    assert [_short(row) for row in rows] == [
        ("claude", 1, "complete", 2, 2),  # a permission that was denied, and a tool that failed
        ("codex", 1, "complete", 1, 0),
        ("gemini", 1, "complete", 1, 1),
    ]
    assert all(row["prompt_at"] < row["stop_at"] for row in rows)


def _short(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("agent", "n", "outcome", "tools", "errors"))


def _wait_until_told(person: Person, events: int) -> None:
    """Until the device's history has as many events as the agents told."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        rows = receivers.rows(person.home, "received_reported")
        if len(rows) == events and all(rows):
            return
        time.sleep(POLL_S)
    raise AssertionError(f"{rows} were told, of {events}")
