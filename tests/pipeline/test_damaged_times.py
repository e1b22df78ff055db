"""An entry whose time no calendar has: it is told as damaged, and ends no run."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]  # the package ships no types
import pytest
from pyspark.sql import SparkSession

from holdfast.cli import pipeline_lake
from holdfast.pipeline.verify import verify
from tests.pipeline import lakes
from tests.pipeline.between import Answer, between
from tests.relay.running import running

pytestmark = pytest.mark.timeout(600)

DAMAGED = 6


def with_time(answer: Answer, seq: int, at: int) -> Answer:
    """A page of a history in which one entry has another time."""
    with pa.ipc.open_stream(answer.body) as stream:
        table = stream.read_all()
    if not {"seq", "at", "chain"} <= set(table.schema.names):
        return answer
    place = table.schema.get_field_index("at")
    times = table.column("at").cast(pa.int64()).to_pylist()
    told = [at if one == seq else time for one, time in zip(table.column("seq").to_pylist(), times, strict=True)]
    field = table.schema.field(place)
    table = table.set_column(place, field, pa.array(told, pa.int64()).cast(field.type))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    body = sink.getvalue().to_pybytes()
    return Answer(answer.path, answer.status, {**answer.headers, "Content-Length": str(len(body))}, body)


@pytest.mark.parametrize("at", [2**62, -(2**62)])
def test_an_entry_of_no_time_is_told_and_the_lake_goes_on(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], at: int
) -> None:
    lake = tmp_path / "lake"
    with running(tmp_path / "data") as relay:
        relay.found_mesh("anna", "ben")
        anna, ben = relay.person("anna"), relay.person("ben")
        place = lakes.place_of(relay, tmp_path)
        with between(relay.address) as middle:
            middle.spoil = lambda answer: with_time(answer, DAMAGED, at) if answer.has_rows else answer
            for number in range(2):
                for _ in range(9):
                    assert relay.publish(anna.message(ben)).status == 201
                found = lakes.run(spark, lake, replace(place, url=middle.url), full=number == 0)
                assert found.number == number + 1
    told = lakes.findings(lake)
    assert {(kind, key.rpartition("/")[2]) for kind, key in told} >= {("chain_mismatch", str(DAMAGED))}
    assert "time_goes_back" in {kind for kind, _ in told}
    assert found.balance["open"] == 18
    shelf = lakes.shelf_of(lake)
    assert verify(shelf) == []
    sql = f"SELECT client_message_id AS name FROM {{rows}} WHERE seq = {DAMAGED}"
    (entry,) = shelf.query("history", shelf.last_run().versions["history"], sql)
    pipeline_lake.trace(entry["name"], lake)
    assert capsys.readouterr().out.startswith("at no time           accepted")
