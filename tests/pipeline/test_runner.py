"""What a runner does with a batch, on small tables."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from holdfast.pipeline.checkpoint import consumer_of, move
from holdfast.pipeline.lake import Lake, LakeBusy, OffsetGap
from holdfast.pipeline.pages import Place
from holdfast.pipeline.table import Table, Writing, in_order, table
from holdfast.pipeline.verify import verify
from tests.pipeline import lakes
from tests.pipeline.toys import LATEST, TOYS
from tests.relay.running import RunningRelay, running


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


def test_a_batch_brings_every_entry_and_the_next_one_changes_nothing(
    spark: SparkSession, relay: RunningRelay, place: Place, lake_path: Path
) -> None:
    head = relay.head_seq()
    outcome = lakes.run(spark, lake_path, place, tables=TOYS)
    assert (outcome.number, outcome.entries, outcome.violations) == (1, head, 0)
    shelf = lakes.shelf_of(lake_path, TOYS)
    rows = shelf.query(
        "history", shelf.last_run().versions["history"], 'SELECT seq, epoch_us("at") AS at_us FROM {rows} ORDER BY seq'
    )
    assert [row["seq"] for row in rows] == list(range(1, head + 1))
    assert outcome.at == rows[-1]["at_us"]
    before = lakes.contents(lake_path, TOYS)
    assert lakes.run(spark, lake_path, place, tables=TOYS).entries == 0
    assert lakes.contents(lake_path, TOYS) == before
    assert verify(lakes.shelf_of(lake_path, TOYS)) == []


def test_a_row_that_breaks_a_rule_is_told_once(spark: SparkSession, place: Place, lake_path: Path) -> None:
    def nothing_is_accepted(listed: DataFrame) -> DataFrame:
        """There is no such kind."""
        return listed.where("kind = 'accepted' AND seq = 4")

    tables = {**TOYS, "listed": replace(TOYS["listed"], invariant=nothing_is_accepted)}
    assert lakes.run(spark, lake_path, place, tables=tables).violations == 1
    assert lakes.run(spark, lake_path, place, tables=tables).violations == 1
    ((kind, key),) = lakes.findings(lake_path, tables)
    assert (kind, key) == ("invariant", 'listed/{"seq":4,"kind":"accepted"}')


def test_a_table_that_has_more_of_a_log_than_the_lake_knows_is_an_error(
    spark: SparkSession, place: Place, lake_path: Path
) -> None:
    lakes.run(spark, lake_path, place, tables=TOYS, entries_max=4)
    for name in TOYS:  # as if somebody had put an old copy of all but one table back
        if name not in ("history", "seen"):
            for later in (lake_path / name / "_delta_log").glob(f"{1:020d}.json"):
                later.unlink()
    for name in ("run", "certificate", "breach"):
        (lake_path / name / "_delta_log" / f"{1:020d}.json").unlink()
    (lake_path / ".holdfast" / "plan.json").unlink()
    with pytest.raises((OffsetGap, FileNotFoundError)):
        lakes.run(spark, lake_path, place, tables=TOYS)


def test_a_second_run_is_told_who_has_the_lake(lake_path: Path) -> None:
    lake = Lake(lake_path)
    lake.create()
    with lake.hold(), pytest.raises(LakeBusy, match=f"process {os.getpid()}"), Lake(lake_path).hold():
        pass
    with lake.hold():
        pass  # and afterwards it is free


def test_the_lake_is_its_owners_alone(lake_path: Path) -> None:
    Lake(lake_path).create()
    assert lake_path.stat().st_mode & 0o777 == 0o700


def test_the_relay_is_told_how_far_the_lake_is(
    spark: SparkSession, relay: RunningRelay, place: Place, lake_path: Path
) -> None:
    outcome = lakes.run(spark, lake_path, place, tables=TOYS, entries_max=5)
    assert consumer_of(place.token) == "pipeline"
    assert move(place, outcome.marks) is None
    told = relay.ask("GET", "/v1/consumers/pipeline", headers={"authorization": f"Bearer {place.token}"}).document
    assert told["seq"] == 5
    assert "not moved" in str(move(replace(place, token=f"{place.token}x", patience_s=1.0), outcome.marks))


def test_tables_come_in_the_order_in_which_they_can_be_computed() -> None:
    assert list(TOYS) == ["history", "daily", "seen", "counted", "listed"]


def test_tables_that_cannot_be_computed_are_refused() -> None:
    def made(name: str, function: object, **more: object) -> Table:
        function.__name__ = name  # type: ignore[attr-defined]  # as if it had been written so
        function.__doc__ = "Of a test."
        return table(key=("seq",), schema=LATEST, **{"writing": Writing.APPEND, **more})(function)  # type: ignore[arg-type]  # likewise

    one, other = made("one", lambda other: other), made("other", lambda one: one)
    with pytest.raises(ValueError, match="read each other"):
        in_order({"one": one, "other": other})
    with pytest.raises(ValueError, match="there is no table none"):
        in_order({"one": made("one", lambda none: none)})
    replaced = made("replaced", lambda old_replaced: old_replaced, writing=Writing.REPLACE)
    with pytest.raises(ValueError, match="name replaced"):
        in_order({"replaced": replaced, "one": made("one", lambda new_replaced: new_replaced)})
    passing = made("passing", lambda old_replaced: old_replaced, writing=Writing.PASSING)
    with pytest.raises(ValueError, match="name new_passing"):
        in_order({"replaced": replaced, "passing": passing, "one": made("one", lambda passing: passing)})
    with pytest.raises(ValueError, match="has no column"):
        made("one", lambda old_one: old_one, sort_by=("nothing",))
    with pytest.raises(ValueError, match="has none"):
        made("one", lambda old_one: old_one, writing=Writing.TOUCHED)
