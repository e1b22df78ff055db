"""What is left of a record batch of entries: the parts without gaps, and whatever is not as it should be inside of them."""

import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]  # the package ships no types
import pytest
from pyspark.sql import SparkSession

from holdfast.pipeline import few
from holdfast.pipeline.tables import _links as links
from holdfast.protocol.history import Draft, Entry, Kind, encode, link
from tests.pipeline.tables.memory_lake import ENTRY, MemoryLake, Part, as_time, entry_row
from tests.pipeline.twins.random_world import Log

FIRST, LAST = 1, 8


@pytest.fixture
def log() -> Log:
    made = Log(b"A" * 16)
    for number in range(FIRST, LAST + 1):
        draft = Draft(
            kind=Kind.ACCEPTED,
            mesh="mesh-1",
            message_id=f"message-{number}",
            client_message_id="mine",
            sender="ann",
            epoch=b"E" * 16,
            sequence=number,
            recipient="ben",
            recipients=(("ben", "queued"),),
            mentions=("ben",),
            destination_kind="member",
            destination_ref="ben",
            event_id=bytes(32),
            size=number,
            was_stored=True,
            reason="none",
            detail=b"detail",
        )
        made.say(draft, 1_000_000)
    return made


def left_of(*parts: tuple[Log, list[Entry]]) -> list[dict[str, Any]]:
    rows = [entry_row(Part("relay:x", log.log_id, 0, 0, entries), entry) for log, entries in parts for entry in entries]
    batch = pa.Table.from_pylist(rows, few.arrow_schema(ENTRY)).combine_chunks().to_batches()[0]
    (found,) = links.parts(iter([batch]))
    kept: list[dict[str, Any]] = found.to_pylist()
    return kept


def wrong(rows: list[dict[str, Any]]) -> list[tuple[int, bool, bool]]:
    return [(row["seq"], row["is_back"], row["is_other"]) for row in rows if row["is_back"] or row["is_other"]]


def parts(rows: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(row["seq"], row["last_seq"]) for row in rows if row["bytes"] is not None]


def test_of_a_whole_part_only_the_ends_are_left(log: Log) -> None:
    rows = left_of((log, log.entries))
    (row,) = rows
    assert (parts(rows), wrong(rows)) == ([(FIRST, LAST)], [])
    assert (row["bytes"], row["chain"]) == (encode(FIRST, log.entries[0].at, log.entries[0]), log.entries[0].chain)
    assert (row["last_chain"], row["last_at"]) == (log.chain, as_time(log.at))


CHANGES: dict[str, Any] = {
    "kind": Kind.DROPPED,
    "mesh": "mesh-2",
    "message_id": None,
    "client_message_id": "yours",
    "sender": "",
    "epoch": None,
    "sequence": 0,
    "recipient": "bem",
    "recipients": (("ben", "full"),),
    "mentions": (),
    "destination_kind": None,
    "destination_ref": "bem",
    "event_id": b"\x01" + bytes(31),
    "size": None,
    "was_stored": False,
    "reason": None,
    "detail": b"",
}


@pytest.mark.parametrize("name", CHANGES)
def test_whatever_is_changed_in_an_entry_it_does_not_hash_any_more(log: Log, name: str) -> None:
    changed = list(log.entries)
    changed[4] = msgspec.structs.replace(changed[4], **{name: CHANGES[name]})
    rows = left_of((log, changed))
    assert (parts(rows), wrong(rows)) == ([(FIRST, LAST)], [(5, False, True)])


def test_every_column_of_an_entry_is_looked_at() -> None:
    assert set(CHANGES) == set(Draft.__struct_fields__)
    assert set(links.COLUMNS) == {field.name for field in ENTRY}


def test_another_chain_breaks_two_links(log: Log) -> None:
    changed = list(log.entries)
    changed[4] = msgspec.structs.replace(changed[4], chain=bytes(32))
    assert wrong(left_of((log, changed))) == [(5, False, True), (6, False, True)]


def test_an_entry_that_is_earlier_than_the_one_before_is_left(log: Log) -> None:
    log.at -= 5_000_000
    log.say(log.entries[0])
    log.say(log.entries[1], 1)
    assert wrong(left_of((log, log.entries))) == [(LAST + 1, True, False)]


def test_behind_a_missing_entry_another_part_begins(log: Log) -> None:
    rows = left_of((log, [entry for entry in log.entries if entry.seq != 4]))
    assert (parts(rows), wrong(rows)) == ([(1, 3), (5, 8)], [])


def test_an_entry_that_is_there_twice_begins_a_part(log: Log) -> None:
    rows = left_of((log, [*log.entries[:4], log.entries[3], *log.entries[4:]]))
    assert (parts(rows), wrong(rows)) == ([(1, 4), (4, 8)], [])


def test_a_log_goes_on_from_no_other_though_its_positions_do(log: Log) -> None:
    other = Log(b"B" * 16, log.entries[:5], log.entries[4].chain, log.entries[4].at)
    rows = left_of((log, log.entries[:5]), (other, log.entries[5:]))
    assert (parts(rows), wrong(rows)) == ([(1, 5), (6, 8)], [])


def test_no_entries_leave_nothing(log: Log) -> None:
    assert list(links.parts(iter([pa.RecordBatch.from_pylist([], few.arrow_schema(ENTRY))]))) == []


def _other(log: Log, number: int) -> Entry:
    """Another entry of a position, hashed rightly behind the one before it."""
    before = log.entries[number - 2]
    return link(before.chain, number, before.at, Draft(kind=Kind.DROPPED, mesh="mesh-1"))


@pytest.mark.parametrize(
    "doubled",
    [
        pytest.param(lambda log: [*log.entries, log.entries[1], log.entries[2]], id="some once more"),
        pytest.param(lambda log: [*log.entries, _other(log, 2)], id="another one of a position, at the end"),
        pytest.param(lambda log: [*log.entries[:2], _other(log, 2), *log.entries[2:]], id="another one, behind it"),
        pytest.param(lambda log: [log.entries[0], _other(log, 2), *log.entries[1:]], id="another one, before it"),
        pytest.param(lambda log: log.entries * 2, id="all of them"),
    ],
)
def test_a_position_that_is_there_twice_is_told(
    spark: SparkSession, log: Log, doubled: Callable[[Log], list[Entry]]
) -> None:
    lake = MemoryLake(spark, ["chain_break"])
    lake.run([Part("relay:x", log.log_id, 0, LAST, doubled(log))])
    assert "position_gap" in {row["kind"] for row in lake.rows["chain_break"]}


STEPS = {
    "the next one is earlier": [*[1] * 4, -1_000_000, *[1] * 3],
    "one is of the far future": [*[1] * 3, 2**62, -(2**62) + 1, *[1] * 3],
    "one is of the far future, and the next one, too": [*[1] * 2, 2**62, -5, -(2**62) + 1, *[1] * 3],
}


@pytest.mark.parametrize(
    "cuts", [(), (4,), (5,), (4, 5)], ids=["in one batch", "before it", "after it", "on both sides"]
)
@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_an_entry_that_is_earlier_than_the_one_before_is_told_wherever_batches_end(
    spark: SparkSession, cuts: tuple[int, ...], steps: list[int]
) -> None:
    log = Log(b"A" * 16)
    for step in steps:
        log.say(Draft(kind=Kind.EXPIRED, mesh="mesh-1"), step)
    lake = MemoryLake(spark, ["chain_break"])
    for after, until in itertools.pairwise((0, *cuts, LAST)):
        chain = log.entries[after - 1].chain if after else None
        lake.run([Part("relay:x", log.log_id, after, until, log.entries[after:until], chain)])
    assert [(row["kind"], row["seq"]) for row in lake.rows["chain_break"]] == [("time_goes_back", 5)]
