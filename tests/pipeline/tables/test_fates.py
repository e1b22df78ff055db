"""Deliveries of entries that are odd or damaged."""

import pytest
from pyspark.sql import SparkSession

from holdfast.protocol.history import Draft, Kind
from tests.pipeline.tables.memory_lake import MemoryLake, Part
from tests.pipeline.twins.random_world import Log

pytestmark = pytest.mark.timeout(600)  # a session of Spark on a busy machine takes its time


def _accept(message_id: str, mesh: str | None) -> Draft:
    recipients = (("ben", "queued"),)
    return Draft(kind=Kind.ACCEPTED, mesh=mesh, message_id=message_id, sender="ann", recipients=recipients)


def test_what_was_passed_over_is_found_though_its_accept_names_no_mesh(spark: SparkSession) -> None:
    log = Log(b"A" * 16)
    for message_id, mesh in (("first", None), ("other", "mesh-1"), ("second", None)):
        log.say(_accept(message_id, mesh))
    log.say(Draft(kind=Kind.DELIVERED, message_id="second", recipient="ben", was_stored=True))
    lake = MemoryLake(spark, ["fate_open"])
    lake.run([Part("relay:x", log.log_id, 0, 4, log.entries)])
    assert {row["message_id"]: row["passed_over"] for row in lake.rows["fate_open"]} == {"first": True, "other": False}


def _deliver(log: Log, *message_ids: str) -> None:
    for message_id in message_ids:
        log.say(
            Draft(kind=Kind.DELIVERED, mesh="mesh-1", message_id=message_id, recipient="ben", was_stored=True), pause=1
        )


def _read(lake: MemoryLake, log: Log, after: int) -> None:
    lake.run([Part("relay:x", log.log_id, after, len(log.entries), log.entries[after:], log.entries[after - 1].chain)])


def test_a_second_restore_opens_what_was_closed_between_the_two(spark: SparkSession) -> None:
    lake = MemoryLake(spark, ["fate_reopened", "fate_repeated", "message_fate", "orphan"])
    first = Log(b"A" * 16)
    first.say(_accept("after the backup", "mesh-1"))
    first.say(_accept("before the backup", "mesh-1"))
    second = first.forked(b"B" * 16)
    _deliver(first, "before the backup", "after the backup")
    _read(lake, first, 0)
    _deliver(second, "before the backup")
    third = second.forked(b"C" * 16)
    _deliver(second, "after the backup")
    _read(lake, second, 2)
    assert lake.rows["fate_reopened"] == []
    _read(lake, third, 4)
    assert [row["message_id"] for row in lake.rows["fate_reopened"]] == ["after the backup"]
    _deliver(third, "after the backup", "before the backup")
    _read(lake, third, 5)
    assert lake.rows["fate_reopened"] == []
    assert lake.findings() == [("closing_unknown", "mesh-1/ben/before the backup/7", True)]
    assert [row["closed_log_id"] for row in lake.rows["message_fate"]] == [first.log_id] * 2, (
        "fates stay what they were"
    )
    repeated = [(row["message_id"], row["closed_log_id"][:1]) for row in lake.rows["fate_repeated"]]
    assert sorted(repeated) == [("after the backup", b"B"), ("after the backup", b"C"), ("before the backup", b"B")]
