"""An entry whose time no calendar has: it is told as damaged, and ends no run."""

from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # the package ships no types
import pytest
from pyspark.sql import DataFrame, SparkSession

from holdfast.cli import pipeline_lake
from holdfast.pipeline import balance, certificate, few, records
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.table import Table
from holdfast.pipeline.tables.delivery_slo import delivery_slo
from holdfast.pipeline.tables.history import history
from holdfast.pipeline.tables.message_fate import message_fate
from holdfast.pipeline.tables.retry_profile import retry_profile
from holdfast.pipeline.tables.sender_fate import sender_fate
from holdfast.pipeline.tables.usage import usage
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


NOW = 1_780_000_000_000_000


def given(spark: SparkSession, table: Table, rows: list[dict[str, Any]]) -> DataFrame:
    """Rows whose times are numbers, since Python can express none that is damaged."""
    expected = few.arrow_schema(table.schema)
    plain = pa.schema([pa.field(one.name, pa.int64()) if pa.types.is_timestamp(one.type) else one for one in expected])
    return few.frame(spark, table.schema, pa.Table.from_pylist(rows, plain).cast(expected))


def made(table: Table, **inputs: DataFrame) -> list[dict[str, Any]]:
    assert table.function is not None
    rows: list[dict[str, Any]] = table.function(**inputs).toArrow().to_pylist()
    return rows


@pytest.mark.parametrize("at", [-(2**63), -(2**62), 2**63 - 1])
def test_between_damaged_times_nobody_knows_how_long_it_was(spark: SparkSession, at: int) -> None:
    fate = {"mesh": "mesh-1", "kind": "message", "outcome": "delivered", "was_stored": False}
    times = [(at, NOW), (NOW, at), (at, at), (NOW - 1, NOW)]
    fates = [{**fate, "message_id": str(n), "accepted_at": a, "closed_at": b} for n, (a, b) in enumerate(times)]
    (told,) = made(
        delivery_slo,
        old_delivery_slo=given(spark, delivery_slo, []),
        new_message_fate=given(spark, message_fate, fates),
    )
    assert (told["bucket"], told["count"]) == (0, 1)
    send = {"origin": "device:mesh-1/ann", "status": "relayed", "attempts": 1, "is_late": False}
    sends = [{**send, "sequence": n, "enqueued_at": a, "closed_at": b} for n, (a, b) in enumerate(times)]
    (told,) = made(
        retry_profile,
        old_retry_profile=given(spark, retry_profile, []),
        new_sender_fate=given(spark, sender_fate, sends),
    )
    assert (told["sends"], told["waited_us"]) == (4, 1)


@pytest.mark.parametrize("at", [-(2**63), 2**63 - 1])
def test_who_sent_at_no_time_sent_in_the_first_minute_of_that_day(spark: SparkSession, at: int) -> None:
    entry = {"origin": "relay:a", "mesh": "mesh-1", "sender": "ann", "kind": "accepted", "day": date(1970, 1, 1)}
    sent = given(spark, history, [{**entry, "seq": 1, "at": at, "size": 5}])
    (told,) = made(usage, old_usage=given(spark, usage, []), new_history=sent)
    assert (told["day"], told["minute"], told["sent_bytes"]) == (date(1970, 1, 1), datetime(1970, 1, 1, tzinfo=UTC), 5)


@pytest.mark.parametrize(
    "at",
    [-(2**63), pytest.param(2**62, marks=pytest.mark.long), pytest.param(-(2**62), marks=pytest.mark.long)],
)
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


@pytest.mark.parametrize("at", [2**62, -(2**63)])
def test_a_batch_of_no_time_is_told_by_verify(tmp_path: Path, at: int) -> None:
    lake = Lake(tmp_path / "lake")
    lake.create()
    facts = certificate.Facts(
        number=1,
        at=NOW,
        ranges=(),
        heads=(),
        versions={},
        digests={},
        listings={},
        findings=lakes.shelf_of(lake.path).findings({}),
        balance=balance.zero(),
        uncompared=(),
    )
    one = certificate.write(facts, None, certificate.lake_key(lake.private))
    signed = {"document": one.document, "pubkey": one.pubkey, "signature": one.signature}
    records.write(lake, records.CERTIFICATE, 1, [{"number": 1, "at": records.as_time(NOW), **signed}])
    run = {"number": 1, "at": records.as_time(NOW), "entries": 0, "ranges": [], "heads": [], "versions": []}
    rows = records.arrow_rows(records.RUN, [run])
    place = rows.schema.get_field_index("at")
    damaged = rows.set_column(place, rows.schema.field(place), pa.array([at]).cast(rows.schema.field(place).type))
    lake.commit(records.RUN, 1, lake.stage_rows(records.RUN, damaged))
    shelf = lakes.shelf_of(lake.path)
    assert verify(shelf) == ["batch 1: its at in `run` are not what was certified"]
    assert [step.at for step in shelf.steps(1)] == [0]
