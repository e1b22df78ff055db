"""The Spark source against a relay that runs, alone and with somebody in between."""

import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from holdfast.pipeline import pages, plan, source, state
from holdfast.pipeline.pages import Gap, LogShorter, NotAllowed, OtherLog, Place, RangePruned, SourceError, Unreachable
from holdfast.relay.database import open_relay
from holdfast.store import history
from tests.pipeline import lakes
from tests.pipeline.between import Answer, Between, between, without_row
from tests.relay.running import RunningRelay, running

MESSAGES = 20


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRelay]:
    with running(tmp_path_factory.mktemp("relay") / "data") as found:
        found.found_mesh("anna", "ben")
        for number in range(MESSAGES):
            body = f"message {number}".encode()
            assert found.publish(found.person("anna").message(found.person("ben"), body)).status == 201
        yield found


@pytest.fixture(scope="module")
def place(relay: RunningRelay, tmp_path_factory: pytest.TempPathFactory) -> Place:
    return lakes.place_of(relay, tmp_path_factory.mktemp("token"))


@pytest.fixture
def middle(relay: RunningRelay) -> Iterator[Between]:
    with between(relay.address) as found:
        yield found


def via(middle: Between, place: Place, patience_s: float = 10.0) -> Place:
    return Place(middle.url, place.token, patience_s, place.token_file)


def options(place: Place, **more: object) -> dict[str, str]:
    named = {"url": place.url, "table": "history", "patience_s": place.patience_s, **more}
    if place.token_file is not None:
        named.setdefault("token_file", place.token_file)
    return {name: str(value) for name, value in named.items()}


def read(spark: SparkSession, place: Place, **more: object) -> DataFrame:
    return spark.read.format("holdfast").options(**options(place, **more)).load()


def seqs(frame: DataFrame) -> list[int]:
    return [row.seq for row in frame.select("seq").collect()]


def read_all(place: Place, after: int, until: int, *, gaps: bool = False) -> list[int]:
    """Through the pages alone, as an executor reads."""
    found: list[int] = []
    log_id = pages.read_head(place).log_id
    for page in pages.read_pages(place, "history", after, until, ("seq",), log_id, gaps=gaps):
        found += [seq for batch in page.batches for seq in batch.column("seq").to_pylist()]
    return found


def test_a_read_gives_every_entry_once_with_its_page(spark: SparkSession, relay: RunningRelay, place: Place) -> None:
    rows = read(spark, place).collect()
    assert [row.seq for row in rows] == list(range(1, relay.head_seq() + 1))
    assert {row.as_of_seq for row in rows} == {relay.head_seq()}
    assert {bytes(row.export_log_id) for row in rows} == {pages.read_head(place).log_id}
    accepted = [row for row in rows if row.kind == "accepted"]
    assert [(one.member, one.outcome) for row in accepted for one in row.recipients] == [
        ("member-ben", "queued")
    ] * MESSAGES


def test_bounds_and_columns_are_those_that_were_asked_for(spark: SparkSession, place: Place) -> None:
    frame = read(spark, place, after=3, until=7, columns="kind,seq")
    assert frame.columns == ["kind", "seq", "export_log_id", "as_of_seq"]
    assert seqs(frame) == [4, 5, 6, 7]


def test_several_ranges_are_read_as_one(spark: SparkSession, place: Place) -> None:
    assert seqs(read(spark, place, table="dedupe", ranges="0-2,4-6,9-9")) == [1, 2, 5, 6]


def test_conditions_on_seq_are_asked_of_the_relay(spark: SparkSession, middle: Between, place: Place) -> None:
    assert seqs(read(spark, via(middle, place)).where("seq > 5 AND seq <= 9 AND kind = 'accepted'")) == [6, 7, 8, 9]
    assert any("after=5&until=9" in path for path in middle.asked)


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (EqualTo(("seq",), 5), (4, 5)),
        (GreaterThan(("seq",), 5), (5, 23)),
        (GreaterThanOrEqual(("seq",), 5), (4, 23)),
        (LessThan(("seq",), 5), (0, 4)),
        (LessThanOrEqual(("seq",), 5), (0, 5)),
    ],
)
def test_a_condition_narrows_the_range_exactly(
    relay: RunningRelay, place: Place, one: Filter, expected: tuple[int, int]
) -> None:
    reader = source.HoldfastReader(source.Settings(options(place)), StructType())
    assert list(reader.pushFilters([one])) == []
    (part,) = reader.partitions()
    assert isinstance(part, source.SeqRange)
    assert (part.after, part.until) == (expected[0], min(expected[1], relay.head_seq()))


def test_conditions_on_other_columns_are_left_to_spark(place: Place) -> None:
    reader = source.HoldfastReader(source.Settings(options(place)), StructType())
    others: list[Filter] = [EqualTo(("kind",), "accepted"), GreaterThan(("size",), 5), EqualTo(("seq",), None)]
    assert list(reader.pushFilters(others)) == others


@pytest.mark.parametrize(("width", "partitions"), [(1, 1), (19_999, 1), (20_000, 2), (1_000_003, 4)])
def test_ranges_are_split_without_gap_or_overlap(width: int, partitions: int) -> None:
    parts = source.split(7, 7 + width, b"", 4)
    assert len(parts) == partitions
    assert [part.after for part in parts] == [7, *(part.until for part in parts[:-1])]
    assert parts[-1].until == 7 + width


def test_a_stream_brings_every_entry_in_batches_of_the_size_asked_for(
    spark: SparkSession, relay: RunningRelay, place: Place, tmp_path: Path
) -> None:
    def start(name: str) -> None:
        stream = spark.readStream.format("holdfast").options(**options(place, max_rows=10, columns="seq")).load()
        query = (
            stream.writeStream.format("memory")
            .queryName(name)
            .outputMode("append")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(100)
        sizes.extend(int(one["numInputRows"]) for one in query.recentProgress if one["numInputRows"])

    sizes: list[int] = []
    head = relay.head_seq()
    start("all_of_it")
    assert sorted(seqs(spark.table("all_of_it"))) == list(range(1, head + 1))
    assert sizes == [10] * (head // 10) + ([head % 10] if head % 10 else [])


def test_a_stream_of_another_log_ends_with_an_error(place: Place) -> None:
    stream = source.HoldfastStreamReader(source.Settings(options(place)), StructType())
    begun = stream.initialOffset()
    assert stream.latestOffset(begun, ReadMaxRows(3)) == {**begun, "seq": 3}
    with pytest.raises(OtherLog, match="another checkpoint"):
        stream.latestOffset({"log_id": "00" * 16, "seq": 1}, ReadAllAvailable())
    with pytest.raises(LogShorter):
        stream.partitions({**begun, "seq": 10_000}, {**begun, "seq": 10_001})


def test_a_wrong_token_is_refused_with_the_remedy(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hft1_wrong")
    with pytest.raises(PySparkException, match="holdfast relay token"):
        read(spark, Place(place.url, None, 1.0, str(tmp_path / "token")))
    with pytest.raises(NotAllowed):
        pages.read_head(Place(place.url, None, 1.0))


def test_a_relay_that_is_away_is_waited_for(middle: Between, relay: RunningRelay, place: Place) -> None:
    failures: list[Callable[[Answer], Answer | None]] = [
        lambda answer: None,
        lambda answer: Answer(answer.path, 503, {"Retry-After": "0"}, b"{}"),
        lambda answer: Answer(answer.path, answer.status, answer.headers, answer.body[:-100]),
    ]

    def spoil(answer: Answer) -> Answer | None:
        return failures.pop(0)(answer) if answer.has_rows and failures else answer

    middle.spoil = spoil
    assert read_all(via(middle, place), 0, relay.head_seq()) == list(range(1, relay.head_seq() + 1))
    assert failures == []


def test_a_relay_that_stays_away_is_given_up_with_the_remedy(middle: Between, place: Place) -> None:
    middle.spoil = lambda answer: None
    with pytest.raises(Unreachable, match="Start it, or correct the address"):
        pages.read_head(via(middle, place, patience_s=0.5))


def test_a_missing_entry_is_never_passed_over(middle: Between, place: Place) -> None:
    middle.spoil = lambda answer: without_row(answer, 4) if answer.has_rows else answer
    with pytest.raises(Gap, match="holdfast check"):
        read_all(via(middle, place), 0, 10)
    assert read_all(via(middle, place), 0, 10, gaps=True) == [1, 2, 3, 4, 6, 7, 8, 9, 10]


def test_a_page_with_fewer_rows_than_it_says_is_refused(middle: Between, place: Place) -> None:
    def spoil(answer: Answer) -> Answer:
        less = without_row(answer, 0) if answer.has_rows else answer
        return Answer(
            less.path, less.status, {**less.headers, "Holdfast-Rows": answer.headers["Holdfast-Rows"]}, less.body
        )

    middle.spoil = spoil
    with pytest.raises(Gap):
        read_all(via(middle, place), 0, 10, gaps=True)


def test_a_log_that_changes_while_it_is_read_is_refused(middle: Between, place: Place) -> None:
    def spoil(answer: Answer) -> Answer:
        headers = {**answer.headers, "Holdfast-Log-Id": "ab" * 16} if answer.has_rows else answer.headers
        return Answer(answer.path, answer.status, headers, answer.body)

    middle.spoil = spoil
    with pytest.raises(OtherLog, match="restored or replaced"):
        read_all(via(middle, place), 0, 10)


def test_a_position_past_the_end_is_refused(place: Place) -> None:
    reader = source.HoldfastReader(source.Settings(options(place, after=10_000)), StructType())
    with pytest.raises(LogShorter):
        reader.partitions()
    with pytest.raises(LogShorter):
        pages.read_page(place, "history", 10_000, 10_001, None)


def test_a_pruned_range_is_refused_and_what_follows_is_read(tmp_path: Path) -> None:
    with running(tmp_path / "data") as relay:
        relay.found_mesh("anna", "ben")
    engine = open_relay(tmp_path / "data" / "relay.db")
    with engine.write() as transaction:
        history.prune(transaction, 0, 2)
    engine.close()
    with running(tmp_path / "data") as relay:
        place = lakes.place_of(relay, tmp_path)
        head = pages.read_head(place)
        assert (head.anchor_seq, head.seq) == (2, 4)
        reader = source.HoldfastReader(source.Settings(options(place)), StructType())
        with pytest.raises(RangePruned, match="Set the option after to 2"):
            reader.partitions()
        assert read_all(place, 2, 4) == [3, 4]


@pytest.mark.parametrize("body", [b"{}", b"<html>", b"[1]", b"\xff", b"[" * 100_000], ids=lambda body: repr(body[:6]))
def test_something_that_is_no_holdfast_is_told(middle: Between, place: Place, body: bytes) -> None:
    middle.spoil = lambda answer: Answer(answer.path, 200, {"Content-Length": str(len(body))}, body)
    with pytest.raises(SourceError, match="is it a Holdfast"):
        pages.read_head(via(middle, place))
    with pytest.raises(SourceError, match="is it a Holdfast"):
        plan.find_sources(via(middle, place), [])


STRANGERS = (
    (404, b'{"code": 404, "detail": null}', r"answered 404 Not Found: is it a Holdfast\?$"),
    (404, b'{"error": "gone"}', r"answered 404 Not Found: is it a Holdfast\?$"),
    (401, b"who are you", r"answered 401 Unauthorized: is it a Holdfast\? Mint a token"),
)


def test_a_refusal_of_something_that_is_no_holdfast_is_told(middle: Between, place: Place) -> None:
    for status, body, told in STRANGERS:
        middle.spoil = lambda answer: Answer(answer.path, status, {"Content-Length": str(len(body))}, body)  # noqa: B023 - used at once
        with pytest.raises(SourceError, match=told):
            plan.find_sources(via(middle, place), [])


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"tabel": "history"}, "unknown option tabel"),
        ({"table": ""}, "table is missing"),
        ({"after": "x"}, "whole number"),
        ({"ranges": "1,2"}, "after-until"),
        ({"gaps": "maybe"}, "fail or pass"),
        ({"patience_s": "soon"}, "number of seconds"),
        ({"patience_s": "nan"}, "number of seconds"),
        ({"patience_s": "inf"}, "number of seconds"),
        ({"patience_s": "-1"}, "number of seconds"),
        ({"log_id": "xyz"}, "in hex"),
        ({"max_rows": "0"}, "at least 1"),
        ({"partitions": "0"}, "at least 1"),
        ({"token_file": "/nowhere/token"}, "cannot be read"),
    ],
)
def test_options_that_mean_nothing_are_refused(place: Place, more: dict[str, Any], what: str) -> None:
    with pytest.raises(SourceError, match=what):
        source.Settings(options(place, **more))


@pytest.mark.parametrize("table", ["nothing", "two words", "Tür", "history?until=1", "../history"])
def test_a_table_that_there_is_not_is_told(place: Place, table: str) -> None:
    with pytest.raises(SourceError, match="there is no"):
        pages.read_page(place, table, 0, 1, None)


def test_the_source_runs_where_this_package_is_not(place: Place, tmp_path: Path) -> None:
    packed = (source.HoldfastSource, options(place, columns="seq", until=5))
    (tmp_path / "source").write_bytes(cloudpickle.dumps(packed))  # type: ignore[no-untyped-call]  # no types there
    program = (
        "import sys; sys.modules['holdfast'] = None\n"
        "import pickle\n"
        f"kind, options = pickle.load(open({str(tmp_path / 'source')!r}, 'rb'))\n"
        "found = kind(options); reader = found.reader(found.schema())\n"
        "print([seq for part in reader.partitions() for batch in reader.read(part) for seq in batch.column('seq').to_pylist()])"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert told.stdout.strip() == "[1, 2, 3, 4, 5]", told.stderr


def test_the_declared_columns_of_state_tables_are_among_those_that_a_relay_exports(
    spark: SparkSession, place: Place
) -> None:
    for name, columns in state.TABLES.items():
        told = read(spark, place, table=name).dtypes
        assert set(spark.createDataFrame([], columns).dtypes) <= set(told)


@pytest.mark.parametrize(
    "raw",
    [
        b"hft1_secret\nhft1_other\n",
        b"hft1_secret\r\nX: y",
        b"hft1_se\x00cret",
        b"hft1_secret\xff",
        "hft1_secretü".encode(),
    ],
)
def test_a_token_that_cannot_be_one_is_refused_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raw: bytes
) -> None:
    path = tmp_path / "token"
    path.write_bytes(raw)
    with pytest.raises(pages.TokenUnfit, match=f"the token file {path} has a line break") as refused:
        source.token(str(path))
    shown = "".join(traceback.format_exception(refused.value))
    assert "hft1_" not in shown
    assert "holdfast relay token" in str(refused.value)
    if b"\x00" not in raw:  # which no variable can have
        monkeypatch.setenv("HOLDFAST_TOKEN", os.fsdecode(raw))
        with pytest.raises(pages.TokenUnfit, match="the variable HOLDFAST_TOKEN"):
            source.token(None)


def test_an_empty_token_file_is_refused_and_what_surrounds_a_token_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "token"
    path.write_text(" \n")
    with pytest.raises(pages.TokenUnfit, match="is empty"):
        source.token(str(path))
    path.write_text("hft1_secret\r\n")
    monkeypatch.setenv("HOLDFAST_TOKEN", "hft1_other\n")
    assert (source.token(str(path)), source.token(None)) == ("hft1_secret", "hft1_other")


def test_a_devices_socket_is_not_told_the_token_of_a_relay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_TOKEN", "hft1_secret")
    assert source.Settings({"url": "unix:/tmp/daemon.sock", "table": "history"}).place.token is None
    assert source.Settings({"url": "http://relay", "table": "history"}).place.token == "hft1_secret"
