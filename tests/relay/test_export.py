"""The export: every row once, in order, provably; and never a part that looks like the whole."""

import asyncio
import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apsw
import pyarrow as pa  # type: ignore[import-untyped]  # the package ships no types
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.export.exchange import PAGE_LIMITS, Chunk, Closed, Page, PageLimits, Query, Reply, Request
from holdfast.export.exporter import (
    CONTENT_TYPE,
    REPLY_TIMEOUT_S,
    Export,
    Exporter,
    Link,
    LocalLink,
    ReaderLost,
    read_query,
    start_process,
)
from holdfast.export.reader import read_page
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.relay.database import EXPORT_READER, open_relay, open_to_read, prepare
from holdfast.relay.exported import EXPORTED
from holdfast.store import faults, history
from holdfast.store.engine import Engine
from holdfast.store.sqlite import MEMORY, SqliteEngine
from tests.relay import scene

MANY = 25_000


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, on_store: str) -> Path:
    return scene.populated(tmp_path_factory.mktemp("small") / "relay.db")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory, on_store: str) -> Path:
    return scene.with_entries(tmp_path_factory.mktemp("large") / "relay.db", MANY)


@asynccontextmanager
async def _through_process(path: Path) -> AsyncIterator[Exporter]:
    exporter = Exporter(path, EXPORT_READER)
    try:
        yield exporter
    finally:
        await exporter.close()


@asynccontextmanager
async def _in_process(path: Path) -> AsyncIterator[Exporter]:
    with closing(open_to_read(path)) as engine:
        yield Exporter.within(engine, EXPORT_READER)


FORMS = {"in process": _in_process, "through a process": _through_process}


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> Any:
    return FORMS[request.param]


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """One event loop for all who ask one exporter."""
    with asyncio.Runner() as made:
        yield made


@pytest.fixture(scope="module", params=FORMS)
def exporter(request: pytest.FixtureRequest, runner: asyncio.Runner, small: Path) -> Iterator[Exporter]:
    """Of the small scene, for those who leave its reader as it was: to start one is the dear part of asking it."""
    opened = FORMS[request.param](small)
    yield runner.run(opened.__aenter__())
    runner.run(opened.__aexit__(None, None, None))


async def _bytes(export: Export) -> bytes:
    return b"".join([chunk async for chunk in export.chunks])


async def _table(exporter: Exporter, table: str, **query: Any) -> pa.Table:
    async with exporter.open(table, **query) as export:
        return pa.ipc.open_stream(await _bytes(export)).read_all()


def _rows(path: Path, statement: str) -> list[dict[str, Any]]:
    """What the database says itself, read by another connection."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        cursor = connection.execute(statement)
        return [dict(zip([name for name, _ in cursor.get_description()], row, strict=True)) for row in cursor]
    finally:
        connection.close()


# Every row, as it was written


_LISTS: dict[str, Callable[[Any], Any]] = {
    "recipients": lambda pairs: [{"member": member, "outcome": outcome} for member, outcome in pairs],
    "mentions": list,
    "skipped": list,
}


def _expected(name: str, value: Any) -> Any:
    """A column's value as a reader of Arrow should see it, by the rules of the data model."""
    if name in _LISTS:
        return _LISTS[name](json.loads(value))
    if value is None:
        return None
    if name != "created_at" and (name == "at" or name.endswith("_at")):  # an event's own date is in seconds
        return datetime.fromtimestamp(value // 1_000_000, UTC).replace(microsecond=value % 1_000_000)
    return bool(value) if name in ("was_stored", "history_available", "is_receipt") else value


@pytest.mark.parametrize("table", EXPORTED)
def test_a_table_is_exported_as_it_is(exporter: Exporter, runner: asyncio.Runner, small: Path, table: str) -> None:
    async def scenario() -> None:
        columns = tuple(EXPORTED[table].schema.names)
        found = await _table(exporter, table, columns=columns)
        stored = _rows(small, f"SELECT * FROM {table} ORDER BY seq")
        assert len(stored) > 2
        assert set(stored[0]) == set(columns)
        expected = [{name: _expected(name, row[name]) for name in columns} for row in stored]
        by = ("seq", "member") if "member" in columns else ("seq",)
        assert sorted(found.to_pylist(), key=lambda row: tuple(row[name] for name in by)) == sorted(
            expected, key=lambda row: tuple(row[name] for name in by)
        )

    runner.run(scenario())


def test_every_state_and_outcome_of_the_scene_is_there(small: Path) -> None:
    """The comparison above would hold for an empty relay, too."""

    async def scenario() -> None:
        async with _in_process(small) as exporter:
            entries = (await _table(exporter, "history")).to_pylist()
            outcomes = {pair["outcome"] for entry in entries for pair in entry["recipients"]}
            assert outcomes == {"queued", "full", "blocked"}
            assert {entry["kind"] for entry in entries} == {"admin", "accepted", "expired", "snapshot"}
            assert any(entry["mentions"] for entry in entries)
            assert any((await _table(exporter, "dedupe")).column("skipped").to_pylist())

    asyncio.run(scenario())


def _field(value: bytes | None) -> bytes:
    return b"\xff\xff\xff\xff" if value is None else len(value).to_bytes(4, "big") + value


def _bytes_of(entry: Mapping[str, Any]) -> bytes:
    """An entry's bytes, from the description in docs/data-model.md alone."""

    def text(value: str | None) -> bytes:
        return _field(None if value is None else value.encode("utf-8"))

    def integer(value: int | None) -> bytes:
        return _field(None if value is None else (value % 2**64).to_bytes(8, "big"))

    flag = {None: _field(None), True: _field(b"\x01"), False: _field(b"\x00")}
    microseconds = (entry["at"] - datetime(1970, 1, 1, tzinfo=UTC)) // (datetime.resolution)
    return b"".join(
        [
            integer(entry["seq"]),
            integer(microseconds),
            *(text(entry[name]) for name in ("kind", "mesh", "message_id", "client_message_id", "sender")),
            _field(entry["epoch"]),
            integer(entry["sequence"]),
            text(entry["recipient"]),
            _field(b"".join(text(pair["member"]) + text(pair["outcome"]) for pair in entry["recipients"])),
            _field(b"".join(text(mention) for mention in entry["mentions"])),
            text(entry["destination_kind"]),
            text(entry["destination_ref"]),
            _field(entry["event_id"]),
            integer(entry["size"]),
            flag[entry["was_stored"]],
            text(entry["reason"]),
            _field(entry["detail"]),
        ]
    )


@pytest.mark.parametrize("scenery", ["small", "large"])
def test_the_chain_can_be_recomputed_from_the_export_alone(scenery: str, request: pytest.FixtureRequest) -> None:
    async def scenario() -> None:
        async with _through_process(request.getfixturevalue(scenery)) as exporter:
            found = await _table(exporter, "history")
        log_id = bytes.fromhex(found.schema.metadata[b"log_id"].decode())
        chain = hashlib.sha256(b"holdfast history 1\x00" + log_id).digest()
        for position, entry in enumerate(found.to_pylist(), start=1):
            chain = hashlib.sha256(chain + _bytes_of(entry)).digest()
            assert (entry["seq"], entry["chain"]) == (position, chain)
        assert position == int(found.schema.metadata[b"as_of_seq"])

    asyncio.run(scenario())


# What a page says of itself


def test_a_page_names_its_log_and_head_in_schema_and_headers(
    exporter: Exporter, runner: asyncio.Runner, small: Path
) -> None:
    ((head),) = _rows(small, "SELECT * FROM history_head")

    async def scenario() -> None:
        async with exporter.open("history", 3, 7) as export:
            assert (export.page.log_id, export.page.as_of_seq) == (head["log_id"], head["seq"])
            body = await _bytes(export)
            told = {name.decode(): value.decode() for name, value in pa.ipc.open_stream(body).schema.metadata.items()}
            assert told == {
                "table": "history",
                "log_id": head["log_id"].hex(),
                "as_of_seq": str(head["seq"]),
                "after": "3",
                "until": "7",
                "next_after": "7",
                "rows": "4",
            }
            assert export.headers() == {
                "Content-Type": CONTENT_TYPE,
                "Content-Length": str(len(body)),
                "Holdfast-Log-Id": told["log_id"],
                "Holdfast-As-Of-Seq": told["as_of_seq"],
                "Holdfast-Until": "7",
                "Holdfast-Next-After": "7",
                "Holdfast-Rows": "4",
            }

    runner.run(scenario())


def test_a_range_without_rows_is_an_empty_page_that_goes_to_its_end(exporter: Exporter, runner: asyncio.Runner) -> None:
    async def scenario() -> None:
        async with exporter.open("history", 5, 5) as export:
            assert (export.page.rows, export.page.next_after) == (0, 5)
            assert pa.ipc.open_stream(await _bytes(export)).read_all().num_rows == 0
        async with exporter.open("mention", 0, 2) as export:
            assert (export.page.rows, export.page.next_after) == (0, 2)

    runner.run(scenario())


def test_record_batches_have_the_size_that_readers_like(large: Path) -> None:
    async def scenario() -> None:
        async with _through_process(large) as exporter, exporter.open("history") as export:
            batches = list(pa.ipc.open_stream(await _bytes(export)))
            assert [batch.num_rows for batch in batches] == [10_000, 10_000, 5_000]

    asyncio.run(scenario())


def test_payloads_come_only_when_named(exporter: Exporter, runner: asyncio.Runner) -> None:
    async def scenario() -> None:
        assert "event" not in (await _table(exporter, "message")).column_names
        found = await _table(exporter, "message", columns=("event", "seq"))
        assert found.column_names == ["event", "seq"]
        events = [json.loads(event) for event in found.column("event").to_pylist()]
        assert all(len(event["sig"]) == 128 for event in events)

    runner.run(scenario())


# Pages


async def _pages(exporter: Exporter, table: str, **query: Any) -> list[list[Any]]:
    after, pages = 0, []
    while True:
        async with exporter.open(table, after, **query) as export:
            found = pa.ipc.open_stream(await _bytes(export)).read_all()
            pages.append([tuple(row.values()) for row in found.to_pylist()])
            assert export.page.rows == len(pages[-1])
            after = export.page.next_after
            if after == export.page.until:
                return pages


def _memory() -> SqliteEngine:
    engine = SqliteEngine(MEMORY)
    prepare(engine, lambda: 0, os.urandom)
    return engine


def _mention(engine: Engine, counts: Mapping[int, int]) -> list[tuple[str, str, int, str]]:
    """So many rows at each position, under a head that is past them."""
    rows = [("m", f"member {n}", seq, str(seq)) for seq, count in counts.items() for n in range(count)]
    with engine.write() as transaction:
        transaction.insert("mention", ("mesh", "member", "seq", "message_id"), rows)
        transaction.run("UPDATE history_head SET seq = :seq", {"seq": max(counts, default=0) + 1})
    return rows


@given(
    st.dictionaries(st.integers(1, 30), st.integers(1, 9), max_size=12),
    st.builds(
        PageLimits,
        page_rows=st.integers(1, 12),
        page_bytes=st.sampled_from([1, 100, 400, 10**9]),
        batch_rows=st.integers(1, 5),
        step_rows=st.integers(1, 5),
    ),
)
def test_pages_join_without_gap_or_overlap_and_tear_no_position(counts: dict[int, int], limits: PageLimits) -> None:
    with closing(_memory()) as engine:
        rows = _mention(engine, counts)
        pages = asyncio.run(_pages(Exporter.within(engine, EXPORT_READER, limits), "mention"))
    assert sorted(row for page in pages for row in page) == sorted(rows)
    positions = [{row[2] for row in page} for page in pages]
    for earlier, later in itertools.pairwise(positions):
        assert not earlier or not later or max(earlier) < min(later)
    for page, found in zip(pages, positions, strict=True):
        assert len(page) <= limits.page_rows or len(found) == 1


def test_pages_of_the_history_join_while_it_grows(tmp_path: Path) -> None:
    path = scene.with_entries(tmp_path / "relay.db", 3_000)
    limits = PageLimits(page_rows=700, step_rows=100)
    with closing(open_relay(path)) as writer, closing(open_to_read(path)) as reader:

        async def scenario() -> None:
            exporter, after, found = Exporter.within(reader, EXPORT_READER, limits), 0, []
            while True:
                async with exporter.open("history", after) as export:
                    found += pa.ipc.open_stream(await _bytes(export)).read_all().column("seq").to_pylist()
                    after, head = export.page.next_after, export.page.as_of_seq
                if after == head:
                    break
                if head < 6_000:
                    scene.append(writer, 500)
            assert found == list(range(1, head + 1))
            assert head >= 6_000

        asyncio.run(scenario())


def test_a_page_ends_when_its_payloads_weigh_enough(tmp_path: Path) -> None:
    path = scene.populated(tmp_path / "relay.db")
    with closing(open_to_read(path)) as engine:
        limits = PageLimits(page_bytes=2_000, step_rows=1)
        pages = asyncio.run(_pages(Exporter.within(engine, EXPORT_READER, limits), "message", columns=("seq", "event")))
    sizes = [sum(len(event) for _, event in page) for page in pages]
    assert len(pages) > 3
    assert max(sizes) < 2_000 + 2_000
    assert [seq for page in pages for seq, _ in page] == [
        row["seq"] for row in _rows(path, "SELECT seq FROM message ORDER BY seq")
    ]


# What is refused


QUERIES: dict[str, tuple[str, dict[str, str], Refusal, str]] = {
    "an unknown table": ("snapshots", {}, Refusal.TABLE_UNKNOWN, "history, dedupe, message"),
    "a table that is not exported": ("topic_grant", {}, Refusal.TABLE_UNKNOWN, "history, dedupe, message"),
    "a table in capitals": ("History", {}, Refusal.TABLE_UNKNOWN, "'History'"),
    "SQL for a table": ("history; DROP TABLE history", {}, Refusal.TABLE_UNKNOWN, "DROP"),
    "an unknown column": ("history", {"columns": "seq,colour"}, Refusal.COLUMN_UNKNOWN, "'colour'"),
    "a column of another table": ("mention", {"columns": "event"}, Refusal.COLUMN_UNKNOWN, "it has mesh, member"),
    "SQL for a column": ("history", {"columns": "1 FROM x"}, Refusal.COLUMN_UNKNOWN, "'1 FROM x'"),
    "no column": ("history", {"columns": ""}, Refusal.COLUMN_UNKNOWN, "''"),
    "a column twice": ("history", {"columns": "seq,at,seq"}, Refusal.COLUMN_UNKNOWN, "at most once"),
    "a space among columns": ("history", {"columns": "seq, at"}, Refusal.COLUMN_UNKNOWN, "' at'"),
    "a word for a position": ("history", {"after": "five"}, Refusal.RANGE_INVALID, "after 'five'"),
    "an empty position": ("history", {"after": ""}, Refusal.RANGE_INVALID, "after ''"),
    "a negative position": ("history", {"after": "-1"}, Refusal.RANGE_INVALID, "after '-1'"),
    "a position with a sign": ("history", {"until": "+5"}, Refusal.RANGE_INVALID, "until '+5'"),
    "a position with a leading zero": ("history", {"until": "05"}, Refusal.RANGE_INVALID, "leading zero"),
    "a position with a point": ("history", {"until": "5.0"}, Refusal.RANGE_INVALID, "until '5.0'"),
    "a position in other digits": ("history", {"until": "\u0665"}, Refusal.RANGE_INVALID, "until"),
    "a position with underscores": ("history", {"until": "1_0"}, Refusal.RANGE_INVALID, "until '1_0'"),
    "a position past 2**53": ("history", {"after": "9007199254740992"}, Refusal.RANGE_INVALID, "9007199254740991"),
    "a position past every number": ("history", {"after": "9" * 5_000}, Refusal.RANGE_INVALID, "after '999"),
    "an end before its beginning": ("history", {"after": "5", "until": "4"}, Refusal.RANGE_INVALID, "past until 4"),
    "a beginning past the head": ("history", {"after": "1000"}, Refusal.CURSOR_AHEAD, "ends at 27"),
    "an end past the head": ("history", {"until": "28"}, Refusal.CURSOR_AHEAD, "ends at 27"),
    "an end past the head of a state": ("delivery", {"until": "28"}, Refusal.CURSOR_AHEAD, "ends at 27"),
    "a misspelt parameter": ("history", {"untill": "5"}, Refusal.RANGE_INVALID, "'untill'"),
    "a token in the query": ("history", {"token": "hft1_x"}, Refusal.RANGE_INVALID, "'token'"),
}


@pytest.mark.parametrize("name", QUERIES)
def test_a_bad_request_is_refused_by_name_and_the_next_one_is_served(
    exporter: Exporter, runner: asyncio.Runner, name: str
) -> None:
    table, parameters, refusal, detail = QUERIES[name]

    async def scenario() -> None:
        with pytest.raises(Refused) as caught:
            query = read_query(table, parameters)
            async with exporter.open(query.table, query.after, query.until, query.columns):
                pass
        assert caught.value.refusal is refusal
        assert detail in caught.value.detail
        assert len(caught.value.detail) < 400
        assert (await _table(exporter, "history", until=1)).num_rows == 1

    runner.run(scenario())


def test_a_good_request_is_read_as_it_is_meant() -> None:
    assert read_query("history", {}) == Query("history", 0, None, None)
    assert read_query("message", {"after": "0", "until": "9007199254740991", "columns": "seq,event"}) == Query(
        "message", 0, 9007199254740991, ("seq", "event")
    )


def test_what_was_pruned_is_refused_and_what_follows_is_not(form: Any, tmp_path: Path) -> None:
    path = scene.with_entries(tmp_path / "relay.db", 10)
    with closing(open_relay(path)) as engine, engine.write() as transaction:
        history.prune(transaction, scene.NOW, 6)

    async def scenario() -> None:
        async with form(path) as exporter:
            with pytest.raises(Refused, match="ask after 6") as caught:
                await _table(exporter, "history", after=5)
            assert caught.value.refusal is Refusal.RANGE_PRUNED
            assert (await _table(exporter, "history", after=6)).column("seq").to_pylist() == [7, 8, 9, 10, 11]
            assert (await _table(exporter, "dedupe", after=0)).num_rows == 0  # state outlives its entries

    asyncio.run(scenario())


def test_a_database_that_is_missing_is_a_fault_and_is_found_when_it_comes(tmp_path: Path) -> None:
    path = tmp_path / "relay.db"

    async def scenario() -> None:
        async with _through_process(path) as exporter:
            with pytest.raises(faults.FileMissing):
                await _table(exporter, "history")
            scene.with_entries(path, 3)
            assert (await _table(exporter, "history")).num_rows == 3

    asyncio.run(scenario())


DAMAGE = {
    "JSON that is none": ("recipients", "'[[\"bob\"'"),
    "JSON of another shape": ("recipients", "'[[\"bob\"]]'"),
    "JSON that would pass as two": ("mentions", "'[],[]'"),
    "text that is not UTF-8": ("reason", "CAST(x'ff' AS TEXT)"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_row_is_a_fault_and_never_left_out(form: Any, tmp_path: Path, name: str) -> None:
    path = scene.with_entries(tmp_path / "relay.db", 10)
    column, value = DAMAGE[name]
    with closing(SqliteEngine(path)) as engine, engine.write() as transaction:
        transaction.run(f"UPDATE history SET {column} = {value} WHERE seq = 7")

    async def scenario() -> None:
        async with form(path) as exporter:
            with pytest.raises(faults.Corrupt):
                await _table(exporter, "history")
            assert (await _table(exporter, "history", until=6)).num_rows == 6

    asyncio.run(scenario())


# The reader process


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def _gone(pid: int) -> bool:
    """Whether a process has ended, though nobody may have taken note of it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_page_whose_reader_is_killed_raises_and_the_next_request_is_served(large: Path) -> None:
    async def scenario() -> None:
        async with _through_process(large) as exporter:
            got = 0
            with pytest.raises(ReaderLost):
                async with exporter.open("history") as export:
                    async for chunk in export.chunks:
                        if got == 0:
                            os.kill(exporter.reader_pid or 0, signal.SIGKILL)
                        got += len(chunk)
            assert 0 < got < export.page.size
            assert (await _table(exporter, "history")).num_rows == MANY

    asyncio.run(scenario())


def test_a_reader_that_died_while_nobody_asked_is_replaced(small: Path) -> None:
    async def scenario() -> None:
        async with _through_process(small) as exporter:
            await _table(exporter, "history")
            first = exporter.reader_pid or 0
            os.kill(first, signal.SIGKILL)
            await _until(lambda: exporter.reader_pid is None)
            await _table(exporter, "history")
            assert exporter.reader_pid not in (None, first)

    asyncio.run(scenario())


def test_a_reader_that_falls_silent_is_ended_and_replaced(small: Path) -> None:
    async def scenario() -> None:
        exporter = Exporter(small, EXPORT_READER)
        await _table(exporter, "history")
        stopped = exporter.reader_pid or 0
        os.kill(stopped, signal.SIGSTOP)
        exporter.reply_timeout_s = 0.1
        with pytest.raises(ReaderLost, match=r"no reply in 0\.1 s"):
            await _table(exporter, "history")
        exporter.reply_timeout_s = REPLY_TIMEOUT_S
        assert (await _table(exporter, "mention")).num_rows == 3
        await _until(lambda: _gone(stopped))
        await exporter.close()

    asyncio.run(scenario())


def test_a_stream_that_was_cut_can_be_told_from_a_whole_one(large: Path) -> None:
    """Arrow's reader takes a stream that ends between two batches for complete: the number of rows says otherwise."""
    with closing(open_to_read(large)) as engine:
        page, stream = read_page(engine, EXPORTED, Query("history"))
    source = pa.BufferReader(stream)
    reader = pa.ipc.open_stream(source)
    cuts = [source.tell()]
    for _ in range(2):
        reader.read_next_batch()
        cuts.append(source.tell())
    for cut, rows in zip(cuts, (0, 10_000, 20_000), strict=True):
        part = pa.ipc.open_stream(stream[:cut]).read_all()  # no error
        assert part.num_rows == rows != int(part.schema.metadata[b"rows"])
    assert int(reader.schema.metadata[b"rows"]) == page.rows == MANY
    assert page.size == len(stream)


def test_a_page_that_is_not_taken_holds_up_neither_other_pages_nor_the_journal(tmp_path: Path) -> None:
    path = scene.with_entries(tmp_path / "relay.db", 5_000)

    async def scenario() -> None:
        async with _through_process(path) as exporter, exporter.open("history") as slow:
            first = await anext(slow.chunks)
            with closing(open_relay(path)) as writer:
                scene.append(writer, 1_000)
                assert (await _table(exporter, "history", after=5_000)).num_rows == 1_000
                (busy, *_) = _checkpoint(path)
                assert busy == 0
            found = pa.ipc.open_stream(first + await _bytes(slow)).read_all()
            assert found.num_rows == 5_000

    asyncio.run(scenario())


def _checkpoint(path: Path) -> tuple[Any, ...]:
    connection = apsw.Connection(str(path))
    try:
        return next(iter(connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")))
    finally:
        connection.close()


def test_whoever_comes_when_the_line_is_full_is_refused(small: Path) -> None:
    async def scenario() -> None:
        exporter = Exporter(small, EXPORT_READER, open_max=1, waiting_max=1)
        async with exporter.open("history"):
            waiting = asyncio.create_task(_table(exporter, "mention"))
            await asyncio.sleep(0)
            with pytest.raises(Refused) as caught:
                await _table(exporter, "mention")
            assert caught.value.refusal is Refusal.UNAVAILABLE
            assert not waiting.done()
        assert (await waiting).num_rows == 3
        await exporter.close()

    asyncio.run(scenario())


def test_whoever_goes_away_leaves_nothing_behind(large: Path) -> None:
    """In line, while the page is read, and between two pieces of it."""

    async def scenario() -> None:
        exporter = Exporter(large, EXPORT_READER, open_max=1, waiting_max=1)
        for turns in range(0, 30, 3):
            leaving = asyncio.create_task(_table(exporter, "history"))
            for _ in range(turns):
                await asyncio.sleep(0.002)
            leaving.cancel()
            await asyncio.wait({leaving})
            async with exporter.open("history", until=1) as export:
                waiting = asyncio.create_task(_table(exporter, "history"))
                await asyncio.sleep(0)
                waiting.cancel()
                await asyncio.wait({waiting})
                assert export.page.rows == 1
        assert (await _table(exporter, "history")).num_rows == MANY
        await exporter.close()

    asyncio.run(scenario())


def test_the_reader_lets_go_of_every_page_however_it_was_left(small: Path) -> None:
    with closing(open_to_read(small)) as engine:
        link = LocalLink(engine, EXPORT_READER, PAGE_LIMITS)

        async def connect() -> Link:
            return link

        async def taken(exporter: Exporter) -> None:
            await _table(exporter, "history")

        async def left_in_the_middle(exporter: Exporter) -> None:
            async with exporter.open("history") as export:
                await anext(export.chunks)
                assert link.reader.held == 1

        async def left_with_an_error(exporter: Exporter) -> None:
            with pytest.raises(ZeroDivisionError):
                async with exporter.open("history"):
                    raise ZeroDivisionError

        async def refused(exporter: Exporter) -> None:
            with pytest.raises(Refused):
                await _table(exporter, "nothing")

        async def scenario() -> None:
            exporter = Exporter(small, EXPORT_READER, connect=connect)
            for way in (taken, left_in_the_middle, left_with_an_error, refused):
                await way(exporter)
                assert link.reader.held == 0, way.__name__

        asyncio.run(scenario())


class Lying:
    """A reader that does not keep what it promised."""

    lost = False
    pid: int | None = None

    def __init__(self, chunks: list[Reply]) -> None:
        self._replies: list[Reply] = [Page("history", bytes(16), 1, 0, 1, 1, 1, 10), *chunks]

    def post(self, request: Request) -> "asyncio.Future[Reply]":
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        reply.set_result(self._replies.pop(0) if self._replies else Closed())
        return reply

    def abandon(self) -> None:
        self.lost = True

    async def close(self) -> None:
        self.lost = True


LIES: dict[str, list[Reply]] = {
    "nothing at all": [Chunk(b"")],
    "less, and then nothing": [Chunk(b"12345"), Chunk(b"")],
    "less, and then no page": [Chunk(b"12345"), Closed()],
    "more": [Chunk(b"12345678901")],
    "more in the end": [Chunk(b"12345"), Chunk(b"678901")],
}


@pytest.mark.parametrize("name", LIES)
def test_a_page_of_another_size_than_it_said_is_never_ended_as_if_it_were_whole(name: str) -> None:
    async def connect() -> Link:
        return Lying(list(LIES[name]))

    async def scenario() -> None:
        with pytest.raises(ReaderLost):
            async with Exporter("nowhere", EXPORT_READER, connect=connect).open("history") as export:
                await _bytes(export)

    asyncio.run(scenario())


def test_many_clients_at_once_each_get_their_own(large: Path) -> None:
    async def part(exporter: Exporter, n: int) -> list[int]:
        found = await _table(exporter, "history", after=n * 1_000, until=(n + 1) * 1_000, columns=("seq",))
        column: list[int] = found.column("seq").to_pylist()
        return column

    async def scenario() -> None:
        async with _through_process(large) as exporter:
            parts = await asyncio.gather(*(part(exporter, n) for n in range(25)))
            assert [seq for found in parts for seq in found] == list(range(1, MANY + 1))

    asyncio.run(scenario())


def test_closing_breaks_off_what_is_under_way_and_nothing_is_opened_afterwards(large: Path) -> None:
    async def scenario() -> None:
        exporter = Exporter(large, EXPORT_READER)
        with pytest.raises(ReaderLost):
            async with exporter.open("history") as export:
                pid = exporter.reader_pid or 0
                await exporter.close()
                await _bytes(export)
        assert _gone(pid)
        with pytest.raises(faults.Closed):
            await _table(exporter, "history")
        await exporter.close()

    asyncio.run(scenario())


def test_a_reader_that_is_being_started_is_ended_too(small: Path) -> None:
    async def scenario() -> None:
        started: list[Link] = []

        async def connect() -> Link:
            started.append(await start_process(str(small), EXPORT_READER))
            return started[0]

        exporter = Exporter(small, EXPORT_READER, connect=connect)
        opening = asyncio.create_task(_table(exporter, "history"))
        await asyncio.sleep(0)
        await exporter.close()
        with pytest.raises((ReaderLost, faults.Closed)):
            await opening
        assert [_gone(link.pid or 0) for link in started] == [True]

    asyncio.run(scenario())


OWNER = """
    import asyncio, sys
    from holdfast.export.exporter import Exporter

    async def main():
        exporter = Exporter(sys.argv[1], "holdfast.relay.exported")
        async with exporter.open("history"):
            print(exporter.reader_pid, flush=True)
            await asyncio.sleep(600)

    asyncio.run(main())
"""


def _program(text: str) -> str:
    return "\n".join(line.removeprefix("    ") for line in text.splitlines())


def test_a_reader_does_not_outlive_a_relay_that_is_killed(large: Path) -> None:
    relay = subprocess.Popen([sys.executable, "-c", _program(OWNER), str(large)], stdout=subprocess.PIPE)
    assert relay.stdout is not None
    pid = int(relay.stdout.readline())
    assert not _gone(pid)
    relay.kill()
    relay.communicate()
    while not _gone(pid):
        time.sleep(0.01)


def test_ctrl_c_in_the_terminal_leaves_the_reader_to_the_relay(small: Path) -> None:
    async def scenario() -> None:
        async with _through_process(small) as exporter:
            await _table(exporter, "history")
            pid = exporter.reader_pid
            os.kill(pid or 0, signal.SIGINT)
            await _table(exporter, "history")
            assert exporter.reader_pid == pid

    asyncio.run(scenario())


def test_only_the_reader_loads_arrow() -> None:
    program = "import sys, holdfast.export.exporter, holdfast.relay.service; print('pyarrow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_reader_that_cannot_be_started_is_a_fault(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")

    async def scenario() -> None:
        with pytest.raises(ReaderLost, match="cannot be started"):
            await _table(Exporter(small, EXPORT_READER), "history")

    asyncio.run(scenario())
