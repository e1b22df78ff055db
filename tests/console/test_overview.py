"""The numbers of an overview, from a history that a test writes."""

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.console import relay_messages, relay_overview
from holdfast.console.relay_messages import Query
from holdfast.console.relay_overview import MINUTE, RATE_MINUTES, Rates, position_before
from holdfast.protocol.history import Draft, Kind
from holdfast.relay import database
from holdfast.store import history
from holdfast.store.sqlite import MEMORY, SqliteEngine

START = 1_800_000_000_000_000 // MINUTE * MINUTE


@pytest.fixture
def engine() -> Iterator[SqliteEngine]:
    opened = SqliteEngine(MEMORY)
    database.prepare(opened, lambda: START, bytes)
    yield opened
    opened.close()


def happen(engine: SqliteEngine, at: int, *kinds: Kind) -> None:
    with engine.write() as transaction:
        history.append(transaction, at, [Draft(kind=kind) for kind in kinds])


def read(engine: SqliteEngine, rates: Rates, now: int) -> dict[str, list[Any]]:
    with engine.read() as transaction:
        found = rates.read(transaction, now)
    assert found["at"][-1] == now // MINUTE * 60
    lines: dict[str, list[Any]] = found["lines"]
    return lines


@pytest.mark.parametrize("sought", [Query(mesh="quiet"), Query(mesh="busy", sender="quiet")], ids=["mesh", "sender"])
def test_messages_of_somebody_quiet_are_found_behind_any_number_of_others(
    engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch, sought: Query
) -> None:
    monkeypatch.setattr(relay_messages, "LOOKED_THROUGH_MAX", 10)
    columns = ("message_id", "mesh", "sender", "client_message_id", "event_id", "seq", "kind", "destination_kind")
    rest = ("destination_ref", "event", "size", "accepted_at")
    quiet = (sought.mesh, sought.sender or "ann")
    places = dict.fromkeys((5, 20, 38), quiet)
    rows = [
        (f"id{seq}", *places.get(seq, ("busy", "ann")), f"c{seq}", b"e", seq, 4201, "dm", "ben", b"{}", 2, START)
        for seq in range(1, 41)
    ]
    with engine.write() as transaction:
        transaction.insert("message", columns + rest, rows)
    for order in ("newest", "oldest"):
        found, at, pages = [], None, 0
        with engine.read() as transaction:
            while pages == 0 or at is not None:
                listed, at = relay_messages.page(transaction, replace(sought, order=order, at=at))
                found += [row.seq for row in listed]
                pages += 1
        assert (sorted(found), pages) == ([5, 20, 38], 5)


def test_each_minute_is_counted_and_what_is_older_than_an_hour_is_not(engine: SqliteEngine) -> None:
    happen(engine, START - RATE_MINUTES * MINUTE, Kind.ACCEPTED)
    happen(engine, START, Kind.ACCEPTED, Kind.ACCEPTED, Kind.DELIVERED, Kind.ADMIN)
    happen(engine, START + MINUTE, Kind.EXPIRED)
    lines = read(engine, Rates(), START + MINUTE)
    assert (lines["accepted"][-2:], lines["delivered"][-2:], lines["expired"][-2:]) == ([2, 0], [1, 0], [0, 1])
    assert (sum(lines["accepted"]), len(lines["accepted"])) == (2, RATE_MINUTES)


def test_a_minute_that_is_not_over_is_counted_again(engine: SqliteEngine) -> None:
    rates = Rates()
    for count in range(1, 4):
        happen(engine, START + count, Kind.ACCEPTED)
        assert read(engine, rates, START + MINUTE - 1)["accepted"][-1] == count
    assert read(engine, rates, START + 5 * MINUTE)["accepted"][-6] == 3
    happen(engine, START + MINUTE - 1, Kind.ACCEPTED)  # it came late to the same minute, which nothing had closed
    assert read(engine, rates, START + 5 * MINUTE)["accepted"][-6] == 4
    happen(engine, START + 5 * MINUTE, Kind.DELIVERED)
    lines = read(engine, rates, START + 6 * MINUTE)
    assert (lines["accepted"][-7], lines["delivered"][-2]) == (4, 1)
    assert sum(read(engine, rates, START + 100 * MINUTE)["accepted"]) == 0


def test_what_was_too_much_to_be_counted_is_unknown_and_not_nothing(
    engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_overview, "RATE_ENTRIES_MAX", 5)
    for number in range(4):
        happen(engine, START + number * MINUTE, *[Kind.ACCEPTED] * 3)
    rates, now = Rates(), START + 3 * MINUTE
    assert read(engine, rates, now)["accepted"] == [None] * (RATE_MINUTES - 1) + [3]
    happen(engine, START + 4 * MINUTE, Kind.ACCEPTED)
    assert read(engine, rates, now + MINUTE)["accepted"][-3:] == [None, 3, 1]
    happen(engine, START + 6 * MINUTE, Kind.ACCEPTED)
    assert read(engine, rates, now + 3 * MINUTE)["accepted"][-5:] == [None, 3, 1, 0, 1]
    happen(engine, START + 6 * MINUTE + 1, Kind.ACCEPTED)
    assert read(engine, Rates(), now + 3 * MINUTE)["accepted"][-5:] == [None, None, 1, 0, 2]


def test_minutes_are_counted_though_the_entry_where_counting_begins_is_gone(
    engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_overview, "RATE_ENTRIES_MAX", 5)
    for number in range(4):
        happen(engine, START + number * MINUTE, *[Kind.ACCEPTED] * 3)
    with engine.write() as transaction:
        transaction.run("DELETE FROM history WHERE seq = 7")
    assert read(engine, Rates(), START + 3 * MINUTE)["accepted"] == [None] * (RATE_MINUTES - 1) + [3]


def test_the_last_position_before_a_time_is_found_past_a_hole(engine: SqliteEngine) -> None:
    for number in range(4):
        happen(engine, START + number * MINUTE, *[Kind.ACCEPTED] * 3)
    with engine.write() as transaction:
        transaction.run("DELETE FROM history WHERE seq IN (5, 6, 7)")
    with engine.read() as transaction:
        head = history.head(transaction)
        found = [position_before(transaction, head, START + number * MINUTE) for number in range(5)]
    assert found == [0, 3, 4, 9, 12]


def test_the_last_position_before_a_time_is_found(engine: SqliteEngine) -> None:
    for number in range(1, 20):
        happen(engine, START + number // 3 * MINUTE, Kind.ACCEPTED)
    with engine.read() as transaction:
        head = history.head(transaction)
        times = [at for (at,) in transaction.rows("SELECT at FROM history ORDER BY seq")]
        for at in range(START - MINUTE, START + 9 * MINUTE, MINUTE // 2):
            assert position_before(transaction, head, at) == sum(1 for one in times if one < at)
