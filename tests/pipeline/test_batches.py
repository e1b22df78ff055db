"""All tables over a relay and two devices: however the histories are cut into batches, the lake is the same."""

import itertools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import polars
import pytest
from pyspark.sql import SparkSession

from holdfast.pipeline import few
from holdfast.pipeline.delta_table import BATCH_APPLICATION
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.table import SETTLED, load, load_search
from holdfast.pipeline.verify import verify
from tests.pipeline import lakes
from tests.pipeline.test_kill import Killed, Steps
from tests.pipeline.worlds import World, generated

BATCHES = int(os.environ.get("HOLDFAST_PIPELINE_BATCHES", "3"))  # fifty take minutes, so `make crash` asks for them
KILLS = int(os.environ.get("HOLDFAST_PIPELINE_KILLS", "1"))  # and so do all the writes and commits of a batch
PATIENCE_S = 1200 if (BATCHES, KILLS) == (3, 1) else 0  # then as long as it takes
BOUNDED = ("history", "fate_open", "message_fate", "receipt", "sender_open", "sender_fate")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with generated(tmp_path_factory.mktemp("world"), 150, homes=2) as found:
        yield found


@pytest.fixture(scope="module")
def steps() -> Steps:
    """The writes and commits of a batch; `whole` makes it."""
    return Steps()


@pytest.fixture(scope="module")
def whole(spark: SparkSession, world: World, steps: Steps, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "lake"
    lakes.run(spark, path, world.place, sources=world.sources, step=steps)
    return path


@pytest.fixture(scope="module")
def cut(spark: SparkSession, world: World, whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In several batches, every second one as if its rows were many: Spark reads what the driver wrote, and the other way about."""
    path = tmp_path_factory.mktemp("cut") / "lake"
    entries = sum(source.head.seq for source in world.sources)
    entries_max = first = _first_cut(whole, world, entries // BATCHES)
    for number in itertools.count():
        with pytest.MonkeyPatch.context() as patch:
            if number % 2:
                patch.setattr(few, "ROWS_MAX", -1)
                patch.setattr(few, "FILE_BYTES_MAX", -1)
            outcome = lakes.run(spark, path, world.place, sources=world.sources, entries_max=entries_max)
        if outcome.is_full:  # it has read everything
            break
        entries_max = (entries - first) // (BATCHES - 1)
    return path


@pytest.mark.timeout(PATIENCE_S)
def test_many_batches_leave_the_rows_that_one_leaves(
    whole: Path, cut: Path, record_property: Callable[[str, object], None]
) -> None:
    once, often = lakes.contents(whole), lakes.contents(cut)
    for name, rows in once.items():
        assert often[name] == rows, name
    number = lakes.shelf_of(cut).last_run().number
    assert number >= BATCHES
    record_property("batches", number)


@pytest.mark.timeout(PATIENCE_S)
def test_killed_at_its_writes_and_commits_a_batch_leaves_the_rows_of_one_that_was_not(
    spark: SparkSession,
    world: World,
    whole: Path,
    steps: Steps,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    places = sorted(Random(7).sample(range(len(steps.names)), min(KILLS, len(steps.names))))
    for place in places:  # each run takes up what the last one left
        with pytest.raises(Killed):
            kill = Steps(steps.names[place], after=place % 2 == 1)
            lakes.run(spark, tmp_path / "lake", world.place, sources=world.sources, step=kill)
    if lakes.shelf_of(tmp_path / "lake").last_run().number == 0:
        lakes.run(spark, tmp_path / "lake", world.place, sources=world.sources)
    assert lakes.shelf_of(tmp_path / "lake").last_run().number == 1
    assert lakes.contents(tmp_path / "lake") == lakes.contents(whole)
    assert verify(lakes.shelf_of(tmp_path / "lake")) == []
    record_property("kills", len(places))


def test_no_rule_is_broken_and_every_recipient_is_accounted_for(whole: Path, cut: Path) -> None:
    for path in (whole, cut):
        assert lakes.violations(path) == []
        shelf = lakes.shelf_of(path)
        said = shelf.certificates(None, 1_000)[-1].said
        assert said["balance_holds"]
        assert said["balance"]["delivered"] > 0
        assert (said["scope"], len(said["devices"])) == ("relay and devices", 2)
        assert verify(shelf) == []


def test_a_batch_writes_no_more_than_it_brings_and_what_is_open(cut: Path) -> None:
    shelf = lakes.shelf_of(cut)
    explode = "SELECT sum(greatest(1, len(recipients)))::BIGINT AS rows FROM {rows} WHERE "
    runs = shelf.query("run", shelf.last_run().versions["run"], "SELECT * FROM {rows} ORDER BY number")
    changed = {name: _changed_rows(Lake(cut), name) for name in BOUNDED}
    for run in runs:
        ranges = " OR ".join(
            f"(origin = '{one['origin']}' AND seq > {one['after']} AND seq <= {one['until']})" for one in run["ranges"]
        )
        brought = shelf.query("history", shelf.last_run().versions["history"], explode + ranges)[0]["rows"] or 0
        for name in BOUNDED:
            added, removed, left_open = changed[name].get(run["number"], (0, 0, 0))
            assert added + removed <= 3 * (brought + max(left_open, removed)), (name, run["number"])


def test_no_row_of_an_append_only_table_ever_changes(cut: Path) -> None:
    for name in ("history", "message_fate", "receipt", "sender_fate"):
        for actions in _log(Lake(cut), name):
            assert not [one for one in actions if "remove" in one and one["remove"]["dataChange"]]


def test_duckdb_and_polars_read_every_table(cut: Path) -> None:
    shelf = lakes.shelf_of(cut)
    versions = shelf.last_run().versions
    for name, table in shelf.tables.items():
        if table.is_stored:
            rows = shelf.rows(name, versions[name])
            found = polars.scan_delta(str(Lake(cut).root(name)), version=versions[name]).collect()
            assert (found.height, found.columns) == (rows, table.schema.fieldNames()), name


def test_the_tables_are_read_in_an_order_in_which_they_can_be() -> None:
    assert next(iter(load())) == "history"


def test_who_looks_at_the_state_comes_after_what_says_where_to_look() -> None:
    for tables, last in ((load(), "orphan"), (load_search(), "search_message")):
        names = list(tables)
        assert max(names.index(name) for name in SETTLED if name in tables) < names.index(last)


def test_a_send_and_a_message_were_settled_in_another_batch_than_they_began_in(cut: Path) -> None:
    shelf = lakes.shelf_of(cut)
    runs = shelf.query("run", shelf.last_run().versions["run"], "SELECT ranges FROM {rows}")
    for name in ("message_fate", "sender_fate"):
        began = SETTLED[name]
        over = " OR ".join(
            f"(origin = '{one['origin']}' AND {began} <= {one['until']} AND closed_seq > {one['until']})"
            for run in runs
            for one in run["ranges"]
        )
        rows = shelf.query(name, shelf.last_run().versions[name], f"SELECT count(*) AS rows FROM {{rows}} WHERE {over}")
        assert rows[0]["rows"] > 0, name


def _first_cut(whole: Path, world: World, entries: int) -> int:
    """About so many entries, so that the first batch ends while a device has written something down and not settled it."""
    shelf = lakes.shelf_of(whole)
    sends = shelf.query(
        "sender_fate", shelf.last_run().versions["sender_fate"], "SELECT origin, enqueued_seq, closed_seq FROM {rows}"
    )
    device, share = world.sources[1].origin, entries // len(world.sources)
    begun = [
        one["enqueued_seq"] for one in sends if one["origin"] == device and one["closed_seq"] > one["enqueued_seq"]
    ]
    return int(min(begun, key=lambda seq: abs(seq - share))) * len(world.sources)


def _log(lake: Lake, name: str) -> list[list[dict[str, Any]]]:
    """The actions of every commit of a table."""
    files = sorted((lake.root(name) / "_delta_log").glob("*.json"))
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def _changed_rows(lake: Lake, name: str) -> dict[int, tuple[int, int, int]]:
    """Per batch: rows added, rows removed, rows that are there afterwards; from the log alone."""
    sizes: dict[str, int] = {}
    live: dict[str, int] = {}
    found: dict[int, tuple[int, int, int]] = {}
    for actions in _log(lake, name):
        added = removed = 0
        for one in actions:
            if "add" in one:
                count = json.loads(one["add"]["stats"])["numRecords"]
                sizes[one["add"]["path"]] = live[one["add"]["path"]] = count
                added += count if one["add"]["dataChange"] else 0
            if "remove" in one:
                removed += sizes[one["remove"]["path"]] if one["remove"]["dataChange"] else 0
                live.pop(one["remove"]["path"], None)
        for one in actions:
            if "txn" in one and one["txn"]["appId"] == BATCH_APPLICATION:
                left_open = sum(live.values()) if name.endswith("_open") else 0
                found[one["txn"]["version"]] = (added, removed, left_open)
    return found
