"""Every table against its slow twin, on random histories that are read in random batches."""

import copy
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # the package ships no types
import pytest
from pyspark.sql import SparkSession

from holdfast.pipeline import backfill, few, records
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.records import RUN
from holdfast.pipeline.shelf import Run, Shelf
from holdfast.pipeline.table import load, reads_state
from holdfast.protocol.history import Entry, Kind, Restored
from tests.pipeline.tables.memory_lake import MemoryLake, Part, Rows, as_time, entry_rows
from tests.pipeline.twins import documents, ledgers, twins
from tests.pipeline.twins.random_world import RandomDevice, RandomRelay

BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"

pytestmark = pytest.mark.timeout(600)  # a session of Spark on a busy machine takes its time


@dataclass
class Reading:
    """Batches, and what the relay's state was at the end of each."""

    batches: list[list[Part]] = field(default_factory=list)
    states: list[dict[str, Rows]] = field(default_factory=list)
    laters: list[list[Part]] = field(default_factory=list)

    @property
    def parts(self) -> list[Part]:
        return [part for batch in self.batches for part in batch]


@dataclass
class Read:
    """How far a lake has read one history."""

    origin: str
    seq: int = 0
    chain: bytes | None = None
    log_id: bytes = b""

    def next(self, log_id: bytes, entries: list[Entry], until: int) -> Part:
        """The entries up to a position; of a log that was restored, from its fork on."""
        if self.log_id not in (b"", log_id):
            self._go_back(entries)
        self.log_id = log_id
        after, chain = self.seq, self.chain
        until = max(after, until)
        part = Part(self.origin, log_id, after, until, entries[after:until], chain)
        if part.entries:
            self.seq, self.chain = until, part.entries[-1].chain
        return part

    def _go_back(self, entries: list[Entry]) -> None:
        for entry in reversed(entries):
            if entry.kind is Kind.RESTORED:
                fork = Restored.decode(entry.detail)
                if fork.old_log_id == self.log_id:
                    if self.seq > fork.fork_seq:
                        self.seq, self.chain = fork.fork_seq, fork.fork_chain
                    return
        raise AssertionError("a log that was not restored from the one before")


def told(seed: int, *, restores: int, batches: int) -> Reading:
    """A world that goes on while it is read, and is restored in each of the last batches."""
    random = Random(seed)
    relay = RandomRelay(random, b"A" * 16)
    devices = [RandomDevice(random, relay, name) for name in ("ann", "bob")]
    reads = {origin: Read(origin) for origin in (relay.origin, *(device.origin for device in devices))}
    reading = Reading()
    backup = relay.snapshot()
    for number in range(batches):
        steps = random.randint(20, 40)
        for step in range(steps):
            if step == steps // 2 and number < batches - restores:
                backup = relay.snapshot()  # the lake will have read past it when the relay goes back to it
            relay.step()
            random.choice(devices).step()
        if number >= batches - restores:
            backup = _restore(random, relay, devices, backup, number)
        is_last = number == batches - 1
        # The state is a little younger than the batch, as it is where writers go on; in the end nobody writes.
        until = len(relay.log.entries)
        for _ in range(0 if is_last else random.randint(0, 6)):
            relay.step()
        batch = [reads[relay.origin].next(relay.log.log_id, relay.log.entries, until)]
        for device in devices:
            log = device.log
            until = len(log.entries) if is_last or random.random() < 0.6 else 0
            batch += [reads[device.origin].next(log.log_id, log.entries, until)] if until else []
        until, head = batch[0].until, len(relay.log.entries)
        later = Part(relay.origin, relay.log.log_id, until, head, relay.log.entries[until:head])
        reading.batches.append(batch)
        operations = [row for device in devices for row in device.rows()]
        reading.states.append({**relay.rows(copy.deepcopy(relay.state)), "operation": operations})
        reading.laters.append([later])
    return reading


def _restore(
    random: Random, relay: RandomRelay, devices: list[RandomDevice], backup: RandomRelay, number: int
) -> RandomRelay:
    """The relay goes back to its backup, one device some steps; both go on under new log ids. Returns the next backup."""
    relay.restore(backup, b"relay%011d" % number)
    entries = devices[0].log.entries
    forks = [entry.seq for entry in entries if entry.kind is Kind.RESTORED]
    keep = max(1, len(entries) - random.randint(20, 40), *forks)
    devices[0].restore(b"device%010d" % number, keep)
    for step in range(30):
        if step == 15:
            backup = relay.snapshot()
        relay.step()
        random.choice(devices).step()
    return backup


@pytest.fixture(autouse=True)
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Entries are looked at by sevens, so that a chain of a few dozen crosses many borders."""
    before = spark.conf.get(BATCH_ROWS) or ""
    spark.conf.set(BATCH_ROWS, "7")
    yield
    spark.conf.set(BATCH_ROWS, before)


def run(spark: SparkSession, reading: Reading) -> MemoryLake:
    lake = MemoryLake(spark)
    for number, (parts, state, later) in enumerate(
        zip(reading.batches, reading.states, reading.laters, strict=True), 1
    ):
        lake.run(parts, full=number == len(reading.batches), state=state, later=later)
    return lake


@pytest.mark.parametrize(("seed", "restores", "batches"), [(234, 2, 3), pytest.param(3, 0, 2, marks=pytest.mark.long)])
def test_every_table_is_what_its_twin_says(spark: SparkSession, seed: int, restores: int, batches: int) -> None:
    reading = told(seed, restores=restores, batches=batches)
    lake = run(spark, reading)
    compare(lake, reading)
    outcomes = {row["outcome"] for row in lake.rows["message_fate"]}
    assert ("rolled_back" in outcomes) == (restores > 0)  # else the seed does not try what it is there for
    repeated = Counter((row["message_id"], row["recipient"]) for row in lake.rows["fate_repeated"])
    assert max(repeated.values(), default=0) == restores, "a delivery was closed in every log"


def test_every_table_that_is_computed_anew_is_what_its_twin_says(spark: SparkSession, tmp_path: Path) -> None:
    reading = told(234, restores=2, batches=3)
    tables = {name: table for name, table in load().items() if not reads_state(table)}
    lake = Lake(tmp_path / "lake")
    last = _taken_over(lake, reading)
    shelf = Shelf(lake, tables)
    assert [len(step.ranges) for step in shelf.steps(last.number)] == [3, 3, 3], (
        "the last two batches found two histories restored"
    )
    versions = backfill.fill(spark, shelf, tables, last).versions
    stored = {name for name, table in tables.items() if table.is_stored}
    rows = {name: shelf.query(name, versions[name], "SELECT * FROM {rows}") for name in stored}
    compare(MemoryLake(spark, rows=rows), reading)


def _taken_over(lake: Lake, reading: Reading) -> Run:
    """A lake that has read what a reading says, and has no table of it yet."""
    lake.create()
    history = load()["history"]
    for number, parts in enumerate(reading.batches, 1):
        rows = pa.Table.from_pylist(
            [{**row, "day": row["at"].date()} for row in entry_rows(parts)], few.arrow_schema(history.schema)
        )
        lake.commit(
            history,
            number,
            lake.stage_by("history", lambda target, rows=rows: few.write(rows, target, (), "day")),  # type: ignore[misc]  # called now
        )
        ranges = [
            {name: getattr(part, name) for name in ("origin", "log_id", "after", "until", "chain")} for part in parts
        ]
        at = as_time(max(entry.at for batch in reading.batches[:number] for part in batch for entry in part.entries))
        row = {"number": number, "at": at, "entries": rows.num_rows, "ranges": ranges, "heads": [], "versions": []}
        lake.commit(RUN, number, lake.stage_rows(RUN, records.arrow_rows(RUN, [row])))
    found = lake.delta("history")
    assert found is not None
    return replace(Shelf(lake, load()).last_run(), versions={"history": found.version()})


def compare(lake: MemoryLake, reading: Reading) -> None:
    """All tables of the lake with all twins."""
    story = twins.Story(reading.parts)
    fates, senders, sequences = twins.Fates(story), twins.Senders(story), twins.sequences(reading.batches)
    expected: dict[str, Rows] = {
        "extent": twins.extent(story),
        "fate_open": list(fates.open.values()),
        "message_fate": fates.closed,
        "fate_reopened": list(fates.reopened.values()),
        "fate_repeated": fates.repeated,
        "receipt": twins.receipts(story),
        "applied": twins.applied(story),
        "sender_open": list(senders.open.values()),
        "sender_fate": senders.closed,
        "current_snapshot": documents.current_snapshot(story),
        "conflict": documents.conflict(story),
        "usage": ledgers.usage(story),
        "retry_profile": ledgers.retry_profile(senders),
        "audit_log": ledgers.audit_log(story),
    }
    for name, rows in expected.items():
        columns = sorted(rows[0]) if rows else None
        assert seen(lake.rows.get(name, []), columns) == seen(rows, columns), name
    assert _slo(lake.rows["delivery_slo"]) == twins.delivery_slo(fates)
    assert {tuple(plain(value) for value in row.values()) for row in lake.rows["stuck"]} == twins.stuck(
        story, fates, senders
    )
    assert _keys(lake.rows["member_key"]) == twins.member_key(story)
    assert _runs(lake.rows["sequence_run"]) == {
        (*key, first, last) for key, numbers in sequences.items() for first, last in twins.runs(numbers)
    }
    assert len(lake.rows["history"]) == len(story.told)
    assert lake.rows["anchor_open"] == []
    findings: dict[str, twins.Found] = {
        "chain_break": twins.chain_break(reading.batches),
        "sequence_gap": twins.sequence_gap(sequences),
        "sender_reset": twins.sender_reset(story),
        "equivocation": twins.equivocation(story, reading.batches),
        "receipt_forged": twins.receipt_forged(story),
        "orphan": {("closing_unknown", _closing(entry)) for _, entry in fates.unmatched},
    }
    for name, found in findings.items():
        if name not in lake.rows:
            continue  # of a lake that has nothing to compare with
        assert {(row["kind"], row["key"]) for row in lake.rows[name]} == found, name
        assert len(lake.rows[name]) == len(found), name


def _closing(entry: Entry) -> str:
    return f"{entry.mesh}/{entry.recipient}/{entry.message_id}/{entry.seq}"


def plain(value: Any) -> Any:
    """A value as both sides write it: bytes that hash, times in UTC."""
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    return value


def seen(rows: Iterable[dict[str, Any]], columns: list[str] | None) -> list[tuple[str, ...]]:
    return sorted(tuple(repr(plain(row[name])) for name in columns or sorted(row)) for row in rows)


def _slo(rows: Rows) -> dict[tuple[Any, ...], int]:
    names = ("day", "mesh", "accepted_hour", "was_stored", "bucket")
    return {tuple(plain(row[name]) for name in names): row["count"] for row in rows}


def _keys(rows: Rows) -> set[tuple[Any, ...]]:
    names = ("origin", "log_id", "seq", "mesh", "member", "key", "invite")
    return {tuple(plain(row[name]) for name in names) for row in rows}


def _runs(rows: Rows) -> set[tuple[Any, ...]]:
    names = ("origin", "mesh", "sender", "epoch", "claim", "first", "last")
    return {tuple(plain(row[name]) for name in names) for row in rows}
