"""The Delta tables themselves: what their logs say is true, they stay few files, and a commit is made once. No Spark."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # the package ships no types
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DateType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)
from typer.testing import CliRunner

from holdfast.cli import pipeline
from holdfast.cli.output import ExitCode
from holdfast.cli.pipeline_upkeep import VACUUM_HOURS_MAX
from holdfast.pipeline import content, records
from holdfast.pipeline.delta_table import live_files
from holdfast.pipeline.lake import SMALL_FILES_MAX, Lake, LakeOutdated
from holdfast.pipeline.shelf import Shelf
from holdfast.pipeline.table import Table, Writing

SCHEMA = StructType(
    [
        StructField("seq", LongType(), nullable=False),
        StructField("at", TimestampType(), nullable=False),
        StructField("name", StringType()),
        StructField("raw", BinaryType()),
        StructField("names", ArrayType(StringType())),
        StructField("day", DateType(), nullable=False),
    ]
)
MADE = Table("made", "Rows of a test.", ("seq",), SCHEMA, Writing.APPEND, None, partition_by="day")
SWAPPED = Table("swapped", "Rows that are replaced.", ("seq",), SCHEMA, Writing.REPLACE, None)
MANY_BATCHES = (
    1000 if "HOLDFAST_PIPELINE_BATCHES" in os.environ else 150
)  # past a checkpoint of the log, of which every hundredth is one
CHECKPOINT_BATCHES = 100
LOG_KEPT_DAYS = 30
"""For how long Delta keeps the log by itself."""

BEGAN_AT = datetime(2026, 1, 1, 23, 59, 59, 999_999, UTC)


def rows(first: int, count: int) -> list[dict[str, Any]]:
    return [
        {
            "seq": seq,
            "at": BEGAN_AT + timedelta(microseconds=seq),
            "name": None if seq % 3 == 0 else f"name {seq}",
            "raw": seq.to_bytes(4, "big"),
            "names": ["a"] * (seq % 3),
            "day": date(2026, 1, 1 + seq % 2),
        }
        for seq in range(first, first + count)
    ]


def add(lake: Lake, table: Table, number: int, found: list[dict[str, Any]]) -> None:
    """Commit rows, in a file for each partition, as Spark writes them."""
    staged = lake.staging / f"{table.name}-{number}"
    staged.mkdir(parents=True)
    whole = records.arrow_rows(table, found)
    if table.partition_by is None:
        pq.write_table(whole, staged / "part.parquet")
    else:
        for day in sorted({row["day"] for row in found}):
            folder = staged / f"day={day}"
            folder.mkdir()
            part = records.arrow_rows(table, [row for row in found if row["day"] == day]).drop_columns(["day"])
            pq.write_table(part, folder / "part.parquet")
    lake.commit(table, number, staged)


def read(lake: Lake, table: Table, version: int | None = None) -> list[dict[str, Any]]:
    handle = lake.delta(table.name, version)
    assert handle is not None
    shelf = Shelf(lake, {table.name: table})
    return shelf.query_files(table.name, live_files(handle), "SELECT * FROM {rows} ORDER BY seq")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    found = Lake(tmp_path / "lake")
    found.create()
    return found


def test_the_log_tells_the_true_count_and_bounds_of_every_file(lake: Lake) -> None:
    add(lake, MADE, 1, rows(1, 10))
    handle = DeltaTable(lake.root("made"))
    assert handle.count() == 10
    told = [json.loads(line)["add"] for line in _log(lake, "made", 1) if "add" in json.loads(line)]
    for one in told:
        found = [row for row in rows(1, 10) if str(row["day"]) == one["partitionValues"]["day"]]
        assert json.loads(one["stats"]) == {
            "numRecords": len(found),
            "minValues": {
                "seq": min(row["seq"] for row in found),
                "at": _spelled(min(row["at"] for row in found)),
                "name": min(row["name"] for row in found if row["name"]),
            },
            "maxValues": {
                "seq": max(row["seq"] for row in found),
                "at": _spelled(max(row["at"] for row in found)),
                "name": max(row["name"] for row in found if row["name"]),
            },
            "nullCount": {"seq": 0, "at": 0, "name": sum(row["name"] is None for row in found)},
        }


def test_the_name_of_every_file_says_what_is_in_it(lake: Lake) -> None:
    for number in range(1, 4):
        add(lake, MADE, number, rows(number * 10, 2))
        lake.compact(MADE, small_files_max=1)
    handle = lake.delta("made")
    assert handle is not None
    found = live_files(handle)
    assert [path.name.partition("-")[0] for path in found] == ["joined", "joined"], "one for each day"
    assert [content.told_by(path) for path in found] == [content.digest_of(path) for path in found]
    assert [row["seq"] for row in read(lake, MADE)] == [10, 11, 20, 21, 30, 31]


def test_a_repeated_batch_is_not_committed_again(lake: Lake) -> None:
    add(lake, MADE, 1, rows(1, 3))
    version = DeltaTable(lake.root("made")).version()
    add(Lake(lake.path), MADE, 1, rows(1, 3))
    assert DeltaTable(lake.root("made")).version() == version
    assert len(read(lake, MADE)) == 3


def test_a_replaced_table_has_only_the_new_rows(lake: Lake) -> None:
    add(lake, SWAPPED, 1, rows(1, 5))
    add(lake, SWAPPED, 2, rows(7, 2))
    assert [row["seq"] for row in read(lake, SWAPPED)] == [7, 8]
    add(lake, SWAPPED, 3, [])
    assert read(lake, SWAPPED) == []


def test_no_row_of_an_append_only_table_can_be_taken_away(lake: Lake) -> None:
    add(lake, MADE, 1, rows(1, 3))
    handle = DeltaTable(lake.root("made"))
    with pytest.raises(DeltaError, match=r"(?i)append"):
        handle.delete("seq = 1")
    assert len(read(lake, MADE)) == 3


@pytest.mark.timeout(600)
def test_many_batches_leave_few_files_and_every_row(lake: Lake) -> None:
    for number in range(1, MANY_BATCHES + 1):
        lake.compact(MADE)
        add(lake, MADE, number, rows(number, 1))
    lake.compact(MADE)
    handle = DeltaTable(lake.root("made"))
    for day in ("2026-01-01", "2026-01-02"):
        files = [path for path in live_files(handle) if path.parent.name == f"day={day}"]
        assert len(files) <= SMALL_FILES_MAX
    assert read(lake, MADE) == rows(1, MANY_BATCHES)
    commits = [[json.loads(line) for line in _log(lake, "made", version)] for version in range(1, handle.version() + 1)]
    assert sum(any("txn" in one for one in commit) for commit in commits) == MANY_BATCHES
    for commit in commits:  # what compaction moves is not told as changed
        is_batch = any("txn" in one for one in commit)
        changes = {one[kind]["dataChange"] for one in commit for kind in ("add", "remove") if kind in one}
        assert changes == {is_batch}


def test_files_may_be_kept_for_as_long_as_can_be_said(lake: Lake) -> None:
    for number in (1, 2):
        add(lake, SWAPPED, number, rows(1, 3))
    assert lake.vacuum(SWAPPED, [], hours=VACUUM_HOURS_MAX) == []
    asked = CliRunner().invoke(pipeline.app, ["vacuum", "--lake", str(lake.path), "--hours", str(VACUUM_HOURS_MAX + 1)])
    assert asked.exit_code == ExitCode.USAGE
    assert "--hours" in asked.stderr
    assert len(lake.vacuum(SWAPPED, [], hours=0)) == 1


def test_a_vacuum_is_refused_while_a_batch_is_under_way(lake: Lake) -> None:
    lake.commit_unchanged(records.BREACH, 1)
    command = [sys.executable, "-m", "holdfast.cli", "pipeline", "vacuum", "--lake", str(lake.path), "--json"]
    told = subprocess.run(command, capture_output=True, text=True)
    assert (told.returncode, json.loads(told.stderr)["error"]) == (ExitCode.ERROR, "batch_under_way")


def test_vacuum_removes_what_killed_runs_left_and_nothing_that_is_named(lake: Lake) -> None:
    for number in range(1, SMALL_FILES_MAX * 2 + 4):
        add(lake, MADE, number, rows(number, 1))
    named = DeltaTable(lake.root("made")).version()
    before = read(lake, MADE)
    lake.compact(MADE)
    left = lake.root("made") / "day=2026-01-01" / "batch-00000099-left.parquet"
    left.write_bytes(b"of a run that was killed")
    lake.vacuum(MADE, [named], hours=0)
    assert not left.exists()
    assert read(lake, MADE) == read(lake, MADE, named) == before
    lake.vacuum(MADE, [], hours=0)
    assert read(lake, MADE) == before
    assert len([*lake.root("made").rglob("*.parquet")]) == len(live_files(DeltaTable(lake.root("made"))))


@pytest.fixture(scope="module")
def aged(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A lake whose log has a checkpoint, and is older than Delta keeps one by itself."""
    lake = Lake(tmp_path_factory.mktemp("aged") / "lake")
    lake.create()
    for number in range(1, 4):
        add(lake, MADE, number, rows(number, 2))
    for number in range(4, CHECKPOINT_BATCHES):
        lake.commit_unchanged(MADE, number)
    _age(lake)
    return lake


CHANGES: dict[str, Callable[[Lake], object]] = {
    "a commit": lambda lake: lake.commit_unchanged(MADE, CHECKPOINT_BATCHES),
    "compaction": lambda lake: lake.compact(MADE, small_files_max=1),
    "computing it anew": lambda lake: lake.rebuild(MADE, CHECKPOINT_BATCHES - 1, lake.staging),
    "protecting it": lambda lake: lake.protect(MADE),
    "a vacuum": lambda lake: lake.vacuum(MADE, [2], hours=0),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("is_older", [False, True])
def test_every_version_of_a_table_can_be_opened_however_old_it_is(
    aged: Lake, tmp_path: Path, change: str, is_older: bool
) -> None:
    shutil.copytree(aged.path, tmp_path / "lake")
    lake = Lake(tmp_path / "lake")
    if is_older:  # lakes were made without a word about it, which means yes
        DeltaTable(lake.root("made")).alter.set_table_properties({"delta.enableExpiredLogCleanup": "true"})
        shutil.copytree(aged.root("made") / "_delta_log", lake.root("made") / "_delta_log", dirs_exist_ok=True)
        _age(lake)
    (lake.root("made") / "day=2026-01-01" / "left.parquet").write_bytes(b"of a run that was killed")
    CHANGES[change](lake)
    lake.commit_unchanged(MADE, CHECKPOINT_BATCHES + 1)
    assert [row["seq"] for row in read(lake, MADE, 2)] == [1, 2, 2, 3]
    for version in range(DeltaTable(lake.root("made")).version() + 1):
        assert DeltaTable(lake.root("made"), version=version).version() == version


def test_a_table_of_other_columns_is_refused(lake: Lake) -> None:
    add(lake, MADE, 1, rows(1, 1))
    other = Table("made", "Rows of a test.", ("seq",), StructType(SCHEMA.fields[:2]), Writing.APPEND, None)
    with pytest.raises(LakeOutdated):
        add(lake, other, 2, [])


def test_polars_reads_what_duckdb_reads(lake: Lake) -> None:
    add(lake, MADE, 1, rows(1, 9))
    found = polars.scan_delta(str(lake.root("made"))).sort("seq").collect()
    assert found.select("seq", "name", "names", "raw", "day", "at").to_dicts() == [
        {name: row[name] for name in ("seq", "name", "names", "raw", "day", "at")} for row in read(lake, MADE)
    ]


def _age(lake: Lake) -> None:
    """Let files of the log be older than Delta keeps them by itself."""
    then = time.time() - (LOG_KEPT_DAYS + 1) * 86_400
    for path in (lake.root("made") / "_delta_log").iterdir():
        os.utime(path, (then, then))


def _log(lake: Lake, name: str, version: int) -> list[str]:
    return (lake.root(name) / "_delta_log" / f"{version:020d}.json").read_text().splitlines()


def _spelled(at: datetime) -> str:
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")
