"""What is compared of a message whose entry is damaged: all that is left of it."""

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that

from holdfast.pipeline.state import TABLES
from holdfast.pipeline.table import Batch
from holdfast.pipeline.tables import orphan
from holdfast.pipeline.tables.fate import SCHEMA as FATE
from holdfast.protocol.history import Draft, Kind
from tests.pipeline.tables.memory_lake import ENTRY, Part, _nullable, entry_rows, local_frame
from tests.pipeline.twins.random_world import Log

ORIGIN = "relay:x"


@pytest.mark.parametrize("lacking", [(), ("recipients",), ("mentions",), ("recipients", "mentions")])
def test_lists_that_an_entry_lacks_hide_nothing_of_its_message(spark: SparkSession, lacking: tuple[str, ...]) -> None:
    log = Log(b"A" * 16)
    log.say(Draft(kind=Kind.ACCEPTED, mesh="mesh", message_id="m", client_message_id="mine", sender="ann", size=1), 1)
    rows = [{**row, **dict.fromkeys(lacking)} for row in entry_rows([Part(ORIGIN, log.log_id, 0, 1, log.entries)])]
    entries = local_frame(spark, rows, _nullable(ENTRY))
    kept = {"origin": ORIGIN, "message_id": "m", "mesh": "mesh", "sender": "ann", "client_message_id": "mine"}
    found = local_frame(spark, [{**kept, "seq": 1, "size": 1}], f"origin string, {TABLES['message']}")
    none_loose = local_frame(spark, [], FATE)
    records = orphan._records(entries, none_loose, orphan._row_facts("message", found))
    paired = orphan._paired(orphan._unlike(records, Batch(1, 0, (), full=True)))
    told = paired.withColumn("wrong", orphan._wrong()).select("table", F.coalesce("wrong", F.lit("right"))).collect()
    assert {tuple(row) for row in told} == {("dedupe", "missing"), ("message", "right")}
