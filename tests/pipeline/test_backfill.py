"""Tables computed anew from all that a lake has read, where that is not one range of one log."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from holdfast.pipeline import watch
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.runner import Runner
from holdfast.pipeline.table import Range
from holdfast.relay import copy
from holdfast.relay.database import open_relay
from tests.pipeline import lakes
from tests.pipeline.worlds import generated
from tests.relay.running import RunningRelay, running

TABLES = lakes.with_what_they_need("chain_break", "message_fate", "conflict")

pytestmark = pytest.mark.timeout(600)


def test_a_backfill_leaves_what_batches_left_of_a_history_that_begins_late_lacks_entries_and_was_restored(
    spark: SparkSession, tmp_path: Path
) -> None:
    data, lake = tmp_path / "data", tmp_path / "lake"
    with running(data) as relay:
        relay.found_mesh("anna", "ben")
        first = _sent(relay)
    lakes.prune(data, first)
    with running(data) as relay:
        second = _read_after_sending(spark, relay, lake, tmp_path)
        copy.backup(data, tmp_path / "backup")
        third = _sent(relay)
    lakes.prune(data, third - 1)
    with running(data) as relay:
        fourth = _read_after_sending(spark, relay, lake, tmp_path)
    copy.restore(tmp_path / "backup", tmp_path / "restored")
    with running(tmp_path / "restored") as relay:
        last = _read_after_sending(spark, relay, lake, tmp_path)
    before = lakes.contents(lake, TABLES)
    found = lakes.shelf_of(lake, TABLES).steps(3)
    read = [[(one.after, one.until) for one in step.ranges] for step in found]
    assert read == [[(first, second)], [(third - 1, fourth)], [(second, last)]]
    assert {kind for kind, _ in lakes.findings(lake, TABLES)} == {"began_late", "pruned_unread"}

    for number, name in enumerate(("extent", "chain_break"), 4):
        outcome = Runner(lambda: spark, Lake(lake), TABLES).backfill([name])
        assert outcome.number == number
        assert lakes.contents(lake, TABLES) == before


def test_what_batches_went_on_with_is_one_range(spark: SparkSession, tmp_path: Path) -> None:
    with running(tmp_path / "data") as relay:
        relay.found_mesh("anna", "ben")
        for _ in range(2):
            last = _read_after_sending(spark, relay, tmp_path / "lake", tmp_path)
        lakes.run(spark, tmp_path / "lake", lakes.place_of(relay, tmp_path), tables=TABLES)
    shelf = lakes.shelf_of(tmp_path / "lake", TABLES)
    (mark,) = shelf.last_run().marks.values()
    assert [step.ranges for step in shelf.steps(3)] == [(Range(mark.origin, mark.log_id, 0, last, None),)]
    assert shelf.steps(0) == []


def test_ledgers_that_are_computed_anew_are_what_batches_built(spark: SparkSession, tmp_path: Path) -> None:
    names = ("usage", "audit_log", "retry_profile")
    tables, lake = lakes.with_what_they_need(*names), tmp_path / "lake"
    with generated(tmp_path, 60, homes=2) as world:
        runner = Runner(lambda: spark, Lake(lake), tables, batch_entries_max=200)
        Lake(lake).create()
        batches = list(watch.once(runner, world.sources, full=False))
    before = lakes.contents(lake, tables)
    assert len(batches) > 2
    assert all(before[name] for name in names)
    assert runner.backfill(names).number == len(batches) + 1
    assert lakes.contents(lake, tables) == before
    shelf = lakes.shelf_of(lake, tables)
    assert all(shelf.lake.is_rebuilt_for(tables[name], len(batches) + 1) for name in names)


def _sent(relay: RunningRelay) -> int:
    """Where the log ends after some messages, which no relay before this one has had."""
    anna, first = relay.person("anna"), relay.head_seq()
    anna.sequences = iter(range(first, first + 3))
    for _ in range(3):
        assert relay.publish(anna.message(relay.person("ben"))).status == 201
    return relay.head_seq()


def _read_after_sending(spark: SparkSession, relay: RunningRelay, lake: Path, folder: Path) -> int:
    _sent(relay)
    place = lakes.place_of(relay, folder)
    lakes.run(spark, lake, place, tables=TABLES)
    return relay.head_seq()


def test_what_finds_is_owed_a_comparison_of_everything_after_it_was_computed_anew(
    spark: SparkSession, tmp_path: Path
) -> None:
    tables = lakes.with_what_they_need("orphan")
    with running(tmp_path / "data") as relay:
        relay.found_mesh("anna", "ben")
        _sent(relay)
    engine = open_relay(tmp_path / "data" / "relay.db")
    with engine.write() as transaction:
        transaction.run("DELETE FROM dedupe WHERE seq = (SELECT min(seq) FROM dedupe)", {})
    engine.close()
    lake = tmp_path / "lake"
    with lakes.running_damaged(tmp_path / "data") as relay:
        place = lakes.place_of(relay, tmp_path)
        found = [lakes.run(spark, lake, place, tables=tables).violations]
        computed = Runner(lambda: spark, Lake(lake), tables).backfill(["orphan"])
        found.append(computed.violations)
        again = lakes.run(spark, lake, place, tables=tables, full=False)
        found.append(again.violations)
    assert found == [1, 0, 1], "what the table has lost is found again, whether everything was asked for or not"
    assert list(computed.uncompared) == list(again.kept)
    assert (computed.kept, again.uncompared, again.is_full) == ({}, [], True)
