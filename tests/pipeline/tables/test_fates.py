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
