"""Somebody else commits to a table between two batches: the next one says so, once, and tells no relay that it may prune by that."""

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from holdfast.pipeline import plan, upkeep
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.outcome import Outcome
from holdfast.pipeline.pages import Place
from holdfast.pipeline.plan import Source
from holdfast.pipeline.runner import Runner
from tests.pipeline import lakes
from tests.pipeline.test_certificate import certify_as_before
from tests.pipeline.test_kill import Killed, Steps
from tests.pipeline.toys import TOYS
from tests.relay.running import RunningRelay, running

BATCHES = 3
VERSION = BATCHES  # of every table after so many batches: version 0 has no row


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRelay]:
    with running(tmp_path_factory.mktemp("relay") / "data") as found:
        found.found_mesh("anna", "ben")
        for _ in range(9):
            assert found.publish(found.person("anna").message(found.person("ben"))).status == 201
        yield found


@pytest.fixture(scope="module")
def place(relay: RunningRelay, tmp_path_factory: pytest.TempPathFactory) -> Place:
    return lakes.place_of(relay, tmp_path_factory.mktemp("token"))


@pytest.fixture(scope="module")
def source(place: Place) -> Source:
    (found,) = plan.find_sources(place, [])
    return found


@pytest.fixture(scope="module")
def built(spark: SparkSession, place: Place, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake of some batches, the last of which brought nothing."""
    path = tmp_path_factory.mktemp("built") / "lake"
    for entries_max in (4, plan.BATCH_ENTRIES_MAX, plan.BATCH_ENTRIES_MAX):
        assert lakes.run(spark, path, place, tables=TOYS, entries_max=entries_max).violations == 0
    return path


@pytest.fixture
def lake(built: Path, tmp_path: Path) -> Path:
    shutil.copytree(built, tmp_path / "lake")
    return tmp_path / "lake"


def _delete(path: Path, name: str) -> None:
    """Take all rows out of a table, as any program that writes Delta can."""
    handle = DeltaTable(path / name)
    if handle.metadata().configuration.get("delta.appendOnly") == "true":
        handle.alter.set_table_properties({"delta.appendOnly": "false"})
    handle.delete()


def _append(path: Path, name: str) -> None:
    """Repeat all rows of a table."""
    handle = DeltaTable(path / name)
    write_deltalake(handle, handle.to_pyarrow_table(), mode="append")


def _restore(path: Path, name: str) -> None:
    """Bring an earlier version back, in which the table had no row."""
    DeltaTable(path / name).restore(0)


def _rewrite_log(path: Path, name: str) -> None:
    """Let the log name one file less than it named when it was certified."""
    for entry in sorted((path / name / "_delta_log").glob("*.json")):
        lines = entry.read_text().splitlines()
        if any("add" in json.loads(line) for line in lines):
            entry.write_text("".join(f"{line}\n" for line in lines if "add" not in json.loads(line)))
            return


def _standing(path: Path, source: Source) -> Outcome | None:
    return Runner(_no_spark, Lake(path), TOYS).standing([source])


def _no_spark() -> SparkSession:
    raise AssertionError("Spark was started")


def _kept(path: Path, source: Source) -> int:
    """Up to where the relay would be told at the beginning of a run that its history is kept."""
    return Runner(_no_spark, Lake(path), TOYS).kept([source])[source.origin].seq


def _changed(path: Path) -> list[str]:
    return [key for kind, key in lakes.findings(path, TOYS) if kind == "table_changed"]


CHANGES: list[tuple[Callable[[Path, str], None], str, int]] = [
    (_delete, "history", VERSION + 2),  # after the commit that lets rows be deleted
    (_delete, "listed", VERSION + 2),
    (_delete, "daily", VERSION + 1),
    (_append, "daily", VERSION + 1),
    (_restore, "counted", VERSION + 1),
    (_rewrite_log, "listed", VERSION),
    (_rewrite_log, "history", VERSION),
]


@pytest.mark.parametrize(
    ("change", "name", "version"), CHANGES, ids=[f"{change.__name__[1:]}-{name}" for change, name, _ in CHANGES]
)
def test_a_table_that_somebody_else_changed_is_told_once(
    spark: SparkSession,
    place: Place,
    source: Source,
    lake: Path,
    change: Callable[[Path, str], None],
    name: str,
    version: int,
) -> None:
    assert _standing(lake, source) is not None
    change(lake, name)
    assert _standing(lake, source) is None, "there is something to tell"
    told = lakes.run(spark, lake, place, tables=TOYS, full=False)
    assert (told.new_violations, _changed(lake)) == (1, [f"{name}/{version}"])
    assert _standing(lake, source) is not None
    again = lakes.run(spark, lake, place, tables=TOYS, full=False)
    assert (again.new_violations, _changed(lake)) == (0, [f"{name}/{version}"])
    expected = 0 if name == "history" else source.head.seq
    assert [told.kept[source.origin].seq, again.kept[source.origin].seq, _kept(lake, source)] == [expected] * 3


def test_a_finding_that_somebody_deleted_lets_no_relay_prune(
    spark: SparkSession, place: Place, source: Source, lake: Path
) -> None:
    shorter = replace(source, head=replace(source.head, seq=source.head.seq - 1))
    assert lakes.run(spark, lake, place, sources=[shorter], tables=TOYS).violations == 1
    _delete(lake, "breach")
    told = lakes.run(spark, lake, place, tables=TOYS, full=False)
    assert (_changed(lake), told.kept[source.origin].seq) == ([f"breach/{VERSION + 2}"], 0)


def test_a_history_that_lacks_files_that_were_certified_lets_no_relay_prune_at_the_beginning_of_a_run(
    lake: Path, source: Source
) -> None:
    assert _kept(lake, source) == source.head.seq
    _rewrite_log(lake, "history")
    assert _kept(lake, source) == 0


def test_what_somebody_changed_before_an_interrupted_batch_goes_on_is_told(
    spark: SparkSession, place: Place, lake: Path
) -> None:
    with pytest.raises(Killed):
        lakes.run(spark, lake, place, tables=TOYS, step=Steps("commit daily", after=True))
    _delete(lake, "daily")
    lakes.run(spark, lake, place, tables=TOYS)
    assert _changed(lake) == [f"daily/{VERSION + 2}"]


def test_what_somebody_changed_after_an_interrupted_batch_had_looked_is_told_by_the_next(
    spark: SparkSession, place: Place, source: Source, lake: Path
) -> None:
    with pytest.raises(Killed):
        lakes.run(spark, lake, place, tables=TOYS, step=Steps("commit breach", after=True))
    _delete(lake, "daily")
    lakes.run(spark, lake, place, tables=TOYS)
    assert (_standing(lake, source), _changed(lake)) == (None, [])
    lakes.run(spark, lake, place, tables=TOYS)
    assert _changed(lake) == [f"daily/{VERSION + 2}"]


def test_a_certificate_of_before_that_lists_fewer_files_is_no_change(lake: Path, source: Source) -> None:
    certify_as_before(lake)
    assert _standing(lake, source) is not None
    _delete(lake, "history")
    assert _standing(lake, source) is None


def test_upkeep_and_tables_computed_anew_are_changes_by_nobody_else(
    spark: SparkSession, place: Place, source: Source, lake: Path
) -> None:
    def shelf_upkeep(do: Callable[..., object], **more: int) -> None:
        shelf = lakes.shelf_of(lake, TOYS)
        do(shelf.lake, shelf.tables, shelf.last_run(), **more)

    shelf_upkeep(upkeep.compact, small_files_max=1)
    shelf_upkeep(upkeep.vacuum, hours=0)
    DeltaTable(lake / "daily").alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"})
    assert lakes.shelf_of(lake, TOYS).lake.delta("listed").version() > VERSION  # type: ignore[union-attr]  # it is there
    assert _standing(lake, source) is not None
    with pytest.raises(Killed):
        Runner(lambda: spark, Lake(lake, Steps("commit counted", after=True)), TOYS, tables_at_once=1).backfill(
            ["daily"]
        )
    outcome = lakes.run(spark, lake, place, tables=TOYS)
    assert (outcome.number, outcome.violations, _changed(lake)) == (BATCHES + 1, 0, [])
    Runner(lambda: spark, Lake(lake), TOYS).backfill(["listed"])
    assert _changed(lake) == []


def test_a_log_that_cannot_be_read_for_a_moment_is_no_change_for_good(
    spark: SparkSession, place: Place, source: Source, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(root: Path, version: int) -> list[dict[str, Any]]:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(root))

    _delete(lake, "daily")
    with monkeypatch.context() as patched:
        patched.setattr("holdfast.pipeline.lake.actions", fail)
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            _standing(lake, source)
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            lakes.run(spark, lake, place, tables=TOYS)
    told = lakes.run(spark, lake, place, tables=TOYS)
    assert (_changed(lake), told.kept[source.origin].seq) == ([f"daily/{VERSION + 1}"], source.head.seq)
