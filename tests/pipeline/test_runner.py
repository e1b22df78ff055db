"""What a runner does with a batch, on small tables."""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that
from pyspark.sql.types import LongType, StringType, StructField, StructType

from holdfast.cli import at_lake
from holdfast.cli.output import Failure
from holdfast.pipeline import few, pages, plan, records, taking, upkeep
from holdfast.pipeline.checkpoint import consumer_of, move
from holdfast.pipeline.digest import of_files
from holdfast.pipeline.inputs import entries
from holdfast.pipeline.lake import BatchUnderWay, Lake, LakeBusy, OffsetGap
from holdfast.pipeline.pages import Place
from holdfast.pipeline.runner import Runner
from holdfast.pipeline.shelf import AsOf, NotThen, Shelf, Vacuumed
from holdfast.pipeline.table import Range, Table, Writing, in_order, table
from holdfast.pipeline.tables.history import history
from holdfast.pipeline.tables.link import link
from holdfast.pipeline.verify import verify
from tests.pipeline import lakes
from tests.pipeline.between import between, without_row
from tests.pipeline.test_kill import Killed, Steps
from tests.pipeline.toys import COUNT, LATEST, TOYS
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


def test_what_is_too_much_for_the_driver_is_taken_by_tasks_and_the_same(
    spark: SparkSession, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source,) = plan.find_sources(place, [])
    pieces = entries([(source, Range(source.origin, source.head.log_id, 0, source.head.seq, None))]).pieces()
    spread = [replace(piece, after=seq, until=seq + 1) for piece in pieces for seq in range(piece.after, piece.until)]
    opened: list[SparkSession] = []

    def open_spark() -> SparkSession:
        opened.append(spark)
        return spark

    found = {}
    for name, shares_max, rows_max in (("driver", 64, 10_000), ("task", 64, 0), ("tasks", 3, 0)):
        monkeypatch.setattr(taking, "SHARES_MAX", shares_max)
        monkeypatch.setattr(few, "ROWS_MAX", rows_max)
        target, links = tmp_path / name, tmp_path / f"{name}-links"
        wanted = pieces if name == "task" else spread
        digest = taking.take_history(open_spark, wanted, history.schema, target, links)
        rows = few.read(history.schema, sorted(target.rglob("*.parquet")), "day").sort_by("seq").to_pylist()
        linked = few.read(link.schema, sorted(links.rglob("*.parquet"))).to_pylist()
        assert digest == of_files(sorted(target.rglob("*.parquet")), target, records.arrow_schema(history))
        assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".parquet"]
        found[name] = rows, digest, max(row["last_seq"] for row in linked)
    assert len(opened) == 2
    assert [row["seq"] for row in found["driver"][0]] == [*range(1, source.head.seq + 1)]
    assert found["driver"] == found["task"] == found["tasks"]


def test_a_row_that_breaks_a_rule_is_told_once(spark: SparkSession, place: Place, lake_path: Path) -> None:
    def nothing_is_accepted(listed: DataFrame) -> DataFrame:
        """There is no such kind."""
        return listed.where("kind = 'accepted' AND seq = 4")

    tables = {**TOYS, "listed": replace(TOYS["listed"], invariant=nothing_is_accepted)}
    assert lakes.run(spark, lake_path, place, tables=tables).violations == 1
    assert lakes.run(spark, lake_path, place, tables=tables).violations == 1
    ((kind, key),) = lakes.findings(lake_path, tables)
    assert (kind, key) == ("invariant", 'listed/{"seq":4,"kind":"accepted","known":0}')


@pytest.mark.parametrize("killed", [None, "commit certificate"])
def test_a_violation_is_still_new_to_the_run_after_one_whose_relay_went_away(
    spark: SparkSession, place: Place, lake_path: Path, monkeypatch: pytest.MonkeyPatch, killed: str | None
) -> None:
    """Otherwise nobody would be alarmed: the run that found it ends without an outcome."""

    def away(*asked: object, **more: object) -> Iterator[pages.Page]:
        raise pages.Unreachable("it does not answer")

    def step(name: str, action: Callable[[], Any]) -> Any:
        result = action()
        if name == "commit breach":
            monkeypatch.setattr(pages, "read_pages", away)
        return result

    tables = {**TOYS, "listed": replace(TOYS["listed"], invariant=lambda listed: listed.where("seq = 4"))}
    sources = plan.find_sources(place, [])
    if killed is not None:
        with pytest.raises(Killed):
            lakes.run(spark, lake_path, place, sources=sources, tables=tables, step=Steps(killed, after=True))
        monkeypatch.setattr(pages, "read_pages", away)
    with pytest.raises(pages.Unreachable):
        lakes.run(spark, lake_path, place, sources=sources, tables=tables, step=step)
    monkeypatch.undo()
    assert lakes.run(spark, lake_path, place, tables=tables).new_violations == 1


@pytest.mark.parametrize("missing", [0, 3, 11])
def test_an_entry_that_the_export_leaves_out_is_a_violation(
    spark: SparkSession, relay: RunningRelay, place: Place, lake_path: Path, missing: int
) -> None:
    with between(relay.address) as middle:
        middle.spoil = lambda answer: without_row(answer, missing) if answer.has_rows else answer
        outcome = lakes.run(spark, lake_path, replace(place, url=middle.url), tables=TOYS, entries_max=12)
    assert outcome.violations == 1
    ((kind, key),) = lakes.findings(lake_path, TOYS)
    assert (kind, key.partition("/")[0]) == ("invariant", "history")
    ((origin, mark),) = outcome.kept.items()
    assert (mark.seq, dict(outcome.in_doubt)) == (0, {origin: 0}), "the relay may have the only copy"
    again = lakes.run(spark, lake_path, place, tables=TOYS)
    assert [one.seq for one in again.kept.values()] == [0], "and no later batch makes it whole"
    assert again.violations == 1, "nor takes the log for another one, if it was the last"


def test_a_lake_that_was_put_back_in_part_is_refused(spark: SparkSession, place: Place, lake_path: Path) -> None:
    for _ in range(3):
        lakes.run(spark, lake_path, place, tables=TOYS, entries_max=2)
    for version in (2, 3):  # `run` as it was after the first batch, everything else as it is
        (lake_path / "run" / "_delta_log" / f"{version:020d}.json").unlink()
    with pytest.raises(OffsetGap, match="history has batch 3, the last complete one is 1"):
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
    (mark,) = outcome.kept.values()
    own = replace(place, token=relay.token("--consumer", "told"))  # or the lakes of other tests would be behind theirs
    assert move(own, mark) is None
    told = relay.ask("GET", "/v1/consumers/told", headers={"authorization": f"Bearer {own.token}"}).document
    assert told["seq"] == 5
    assert "not moved" in str(move(replace(place, token=f"{place.token}x", patience_s=1.0), mark))


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


GROWN = {name: TOYS[name] for name in ("history", "seen", "counted", "daily")}


@dataclass(frozen=True)
class Younger:
    """A lake of two batches that lacks tables, or has them in an older form; and what one holds that never did."""

    old: Path
    expected: dict[str, list[str]]


def _younger(
    spark: SparkSession, place: Place, folder: Path, before: dict[str, Table], after: dict[str, Table]
) -> Younger:
    for _ in range(2):
        lakes.run(spark, folder / "old", place, tables=before, entries_max=4)
    lakes.run(spark, folder / "new", place, tables=after)
    return Younger(folder / "old", lakes.contents(folder / "new", after))


@pytest.fixture(scope="module")
def younger(spark: SparkSession, place: Place, tmp_path_factory: pytest.TempPathFactory) -> Younger:
    return _younger(spark, place, tmp_path_factory.mktemp("younger"), {"history": TOYS["history"]}, GROWN)


@pytest.mark.parametrize("killed_at", [None, "write counted", "commit counted", "commit daily", "commit run"])
def test_a_lake_gets_tables_that_are_younger_than_it_with_all_that_it_has_read(
    spark: SparkSession, place: Place, younger: Younger, tmp_path: Path, killed_at: str | None
) -> None:
    shutil.copytree(younger.old, tmp_path / "old")
    if killed_at is not None:
        with pytest.raises(Killed):
            lakes.run(spark, tmp_path / "old", place, tables=GROWN, entries_max=4, step=Steps(killed_at, after=True))
    for _ in range(2):
        lakes.run(spark, tmp_path / "old", place, tables=GROWN)
    assert lakes.contents(tmp_path / "old", GROWN) == younger.expected
    assert lakes.findings(tmp_path / "old", GROWN) == []


def test_a_table_that_a_killed_run_made_and_did_not_fill_is_filled_whatever_was_said_of_it_meanwhile(
    spark: SparkSession, place: Place, younger: Younger, tmp_path: Path
) -> None:
    shutil.copytree(younger.old, tmp_path / "old")
    with pytest.raises(Killed):
        lakes.run(spark, tmp_path / "old", place, tables=GROWN, step=Steps("create counted", after=True))
    DeltaTable(tmp_path / "old" / "counted").alter.set_table_properties({"delta.enableExpiredLogCleanup": "true"})
    lakes.run(spark, tmp_path / "old", place, tables=GROWN)
    assert lakes.contents(tmp_path / "old", GROWN) == younger.expected


def _changed(*, columns: bool) -> dict[str, Table]:
    """The toys, of which two were changed: what they say of an entry, and with which columns."""
    more = [StructField("more", StringType())] if columns else []
    marked = StructType([StructField("seq", LongType()), StructField("kind", StringType()), *more])
    counts = StructType([*COUNT.fields, *more])

    def old_and_new(old: DataFrame, added: DataFrame) -> DataFrame:
        found = old.select("kind", "entries").unionByName(added).groupBy("kind").agg(F.sum("entries").alias("entries"))
        return found.withColumn("more", F.lit("m")) if columns else found

    def counted(old_counted: DataFrame, new_marked: DataFrame) -> DataFrame:
        return old_and_new(old_counted, new_marked.select("kind", F.lit(1).cast("long").alias("entries")))

    def marks(new_history: DataFrame) -> DataFrame:
        return new_history.select("seq", F.upper("kind").alias("kind") if columns else "kind", F.lit("m").alias("more"))

    counted.__doc__, marks.__doc__, marks.__name__ = "Of a test.", "Of a test.", "marked"
    made = table(key=("seq",), schema=marked, writing=Writing.APPEND, sort_by=("seq",))(marks)
    grown = table(key=("kind",), schema=counts, writing=Writing.REPLACE)(counted)
    return in_order({one.name: one for one in (TOYS["history"], TOYS["daily"], made, grown)})


@pytest.fixture(scope="module")
def changed(spark: SparkSession, place: Place, tmp_path_factory: pytest.TempPathFactory) -> Younger:
    before, after = _changed(columns=False), _changed(columns=True)
    return _younger(spark, place, tmp_path_factory.mktemp("changed"), before, after)


@pytest.mark.parametrize(
    "killed_at", [None, ("rebuild marked", False), ("rebuild marked", True), ("commit counted", True)], ids=str
)
def test_a_lake_gets_tables_of_other_columns_with_all_that_it_has_read(
    spark: SparkSession, place: Place, changed: Younger, tmp_path: Path, killed_at: tuple[str, bool] | None
) -> None:
    shutil.copytree(changed.old, tmp_path / "old")
    after = _changed(columns=True)
    if killed_at is not None:
        with pytest.raises(Killed):
            step = Steps(killed_at[0], after=killed_at[1])
            lakes.run(spark, tmp_path / "old", place, tables=after, entries_max=4, step=step)
    for _ in range(2):
        lakes.run(spark, tmp_path / "old", place, tables=after)
    assert lakes.contents(tmp_path / "old", after) == changed.expected
    assert lakes.findings(tmp_path / "old", after) == []
    assert verify(lakes.shelf_of(tmp_path / "old", after)) == []
    with pytest.raises(DeltaError, match=r"(?i)append"):
        DeltaTable(tmp_path / "old" / "marked").delete("seq = 1")
    before = Shelf(Lake(tmp_path / "old"), after, AsOf(number=2))
    assert before.ask("SELECT count(*) AS rows, count(more) AS more FROM marked") == (
        ["rows", "more"],
        [{"rows": 8, "more": 0}],
    )


@pytest.mark.parametrize("batches", [0, 2])
@pytest.mark.parametrize(
    "killed_at", ["commit history", "commit marked", "commit counted", "commit breach", "commit certificate"]
)
def test_a_batch_that_an_older_version_began_is_completed_with_the_columns_of_now(
    spark: SparkSession, place: Place, changed: Younger, tmp_path: Path, killed_at: str, batches: int
) -> None:
    if batches:
        shutil.copytree(changed.old, tmp_path / "old")
    after = _changed(columns=True)
    with pytest.raises(Killed):
        step = Steps(killed_at, after=True)
        lakes.run(spark, tmp_path / "old", place, tables=_changed(columns=False), entries_max=3, step=step)
    outcome = lakes.run(spark, tmp_path / "old", place, tables=after)
    assert (outcome.number, outcome.entries, outcome.violations) == (batches + 1, 3, 0)
    is_certified = killed_at == "commit certificate"  # then it is what it says, and the next one brings the columns
    assert Lake(tmp_path / "old").is_outdated(after["marked"]) == is_certified
    assert verify(lakes.shelf_of(tmp_path / "old", after)) == []
    lakes.run(spark, tmp_path / "old", place, tables=after)
    assert lakes.contents(tmp_path / "old", after) == changed.expected
    assert verify(lakes.shelf_of(tmp_path / "old", after)) == []


@pytest.mark.parametrize("killed_at", ["create marked", "commit marked", "commit counted"])
def test_a_table_that_an_older_version_was_filling_is_filled_with_the_columns_of_now(
    spark: SparkSession, place: Place, younger: Younger, changed: Younger, tmp_path: Path, killed_at: str
) -> None:
    shutil.copytree(younger.old, tmp_path / "old")
    after = _changed(columns=True)
    with pytest.raises(Killed):
        step = Steps(killed_at, after=True)
        lakes.run(spark, tmp_path / "old", place, tables=_changed(columns=False), step=step)
    lakes.run(spark, tmp_path / "old", place, tables=after)
    assert lakes.contents(tmp_path / "old", after) == changed.expected


def test_what_an_older_version_computed_anew_of_a_table_that_has_other_columns_again_is_computed_once_more(
    spark: SparkSession, place: Place, changed: Younger, tmp_path: Path
) -> None:
    shutil.copytree(changed.old, tmp_path / "old")
    between = _changed(columns=True)
    last = in_order({**between, "marked": _marked_backwards()})
    for tables, killed_at in ((between, "rebuild counted"), (last, "rebuild marked")):
        with pytest.raises(Killed):
            lakes.run(spark, tmp_path / "old", place, tables=tables, step=Steps(killed_at, after=True))
    lakes.run(spark, tmp_path / "old", place, tables=last)
    lakes.run(spark, tmp_path / "new", place, tables=last)
    assert lakes.contents(tmp_path / "old", last) == lakes.contents(tmp_path / "new", last)


def _marked_backwards() -> Table:
    """One of the changed toys, changed again."""

    def marked(new_history: DataFrame) -> DataFrame:
        """Of a test."""
        return new_history.select("seq", F.reverse("kind").alias("kind"), F.lit("o").alias("other"))

    columns = StructType(
        [StructField("seq", LongType()), *(StructField(one, StringType()) for one in ("kind", "other"))]
    )
    return table(key=("seq",), schema=columns, writing=Writing.APPEND, sort_by=("seq",))(marked)


@pytest.mark.parametrize("killed_at", ["rebuild marked", "rebuild counted", "commit history", "commit counted"])
def test_nothing_is_removed_that_a_batch_which_was_interrupted_goes_on_from(
    spark: SparkSession, place: Place, changed: Younger, tmp_path: Path, killed_at: str
) -> None:
    shutil.copytree(changed.old, tmp_path / "old")
    after = _changed(columns=True)
    with pytest.raises(Killed):
        lakes.run(spark, tmp_path / "old", place, tables=after, step=Steps(killed_at, after=True))
    with pytest.raises(BatchUnderWay, match="complete it first"):
        _vacuum(tmp_path / "old", after)
    lakes.run(spark, tmp_path / "old", place, tables=after)
    assert _vacuum(tmp_path / "old", after) != []
    assert lakes.contents(tmp_path / "old", after) == changed.expected


@pytest.mark.parametrize("killed_at", ["create counted", "commit counted"])
def test_nothing_is_removed_while_a_table_that_is_younger_than_the_lake_is_filled(
    spark: SparkSession, place: Place, younger: Younger, tmp_path: Path, killed_at: str
) -> None:
    shutil.copytree(younger.old, tmp_path / "old")
    with pytest.raises(Killed):
        lakes.run(spark, tmp_path / "old", place, tables=GROWN, step=Steps(killed_at, after=True))
    with pytest.raises(BatchUnderWay, match="counted is past batch 2, the last complete one"):
        _vacuum(tmp_path / "old", GROWN)


def _vacuum(path: Path, tables: dict[str, Table]) -> list[str]:
    shelf = lakes.shelf_of(path, tables)
    return upkeep.vacuum(shelf.lake, shelf.tables, shelf.last_run(), hours=0)


def test_a_table_whose_function_changed_is_computed_anew_and_with_it_what_is_made_of_it(
    spark: SparkSession, place: Place, lake_path: Path
) -> None:
    lakes.run(spark, lake_path, place, tables=_changed(columns=False), entries_max=4)
    changed = _changed(columns=False)
    silent = replace(changed["marked"], function=lambda new_history: new_history.where("false").select("seq", "kind"))
    tables = in_order({**changed, "marked": silent})
    lake = Lake(lake_path)
    outcome = Runner(lambda: spark, lake, tables).backfill(["marked"])
    assert (outcome.number, outcome.entries, outcome.violations) == (2, 0, 0)
    found = lakes.contents(lake_path, tables)
    assert (found["marked"], found["counted"]) == ([], [])
    assert len(found["daily"]) > 0
    with pytest.raises(Killed):
        lakes.run(spark, lake_path, place, tables=tables, step=Steps("commit history", after=True))
    with pytest.raises(BatchUnderWay, match="complete it first"):
        Runner(lambda: spark, Lake(lake_path), tables).backfill(["marked"])


def test_a_lake_that_is_set_aside_begins_again_with_its_key(spark: SparkSession, place: Place, lake_path: Path) -> None:
    lakes.run(spark, lake_path, place, tables=TOYS)
    before, key = lakes.contents(lake_path, TOYS), lakes.shelf_of(lake_path, TOYS).certificates(None, 1)[0].pubkey
    aside = upkeep.set_aside(Lake(lake_path), lakes.shelf_of(lake_path, TOYS))
    assert aside.name == "lake.until-1"
    assert lakes.shelf_of(lake_path, TOYS).last_run().number == 0
    lakes.run(spark, lake_path, place, tables=TOYS)
    assert lakes.contents(aside, TOYS) == lakes.contents(lake_path, TOYS) == before
    assert verify(lakes.shelf_of(lake_path, TOYS), key) == verify(lakes.shelf_of(aside, TOYS), key) == []


def test_a_lake_is_shown_as_it_was_after_any_batch_until_its_files_are_removed(
    spark: SparkSession, place: Place, lake_path: Path
) -> None:
    outcomes = [lakes.run(spark, lake_path, place, tables=TOYS, entries_max=4) for _ in range(3)]

    def shelf(**then: int) -> Shelf:
        return Shelf(Lake(lake_path), TOYS, AsOf(**then))

    for number, outcome in enumerate(outcomes, 1):
        for then in (shelf(number=number), shelf(at=outcome.at)):
            last = then.last_run()
            assert last.number == number
            assert then.rows("history", last.versions["history"]) == 4 * number
            assert then.query(
                "counted", last.versions["counted"], "SELECT sum(entries)::INT AS entries FROM {rows}"
            ) == [{"entries": 4 * number}]
    with pytest.raises(NotThen, match="1970-01-01"):
        shelf(at=1).last_run()
    upkeep.vacuum(Lake(lake_path), TOYS, lakes.shelf_of(lake_path, TOYS).last_run(), hours=0)
    assert shelf(number=1).rows("history", 1) == 4
    with pytest.raises(Vacuumed, match="batch 1"):
        shelf(number=1).rows("counted", shelf(number=1).last_run().versions["counted"])
    assert shelf(number=3).rows("counted", shelf(number=3).last_run().versions["counted"]) > 0


@pytest.mark.parametrize(
    ("text", "then"),
    [
        ("3", AsOf(number=3)),
        ("20260101", AsOf(number=20260101)),
        ("1970-01-01T00:01", AsOf(at=60_000_000)),
        ("1970-01-01T00:00:01Z", AsOf(at=1_000_000)),
        ("1970-01-01T01:00:01+01:00", AsOf(at=1_000_000)),
        ("1970-01-02", AsOf(at=86_400_000_000)),
    ],
)
def test_a_batch_or_a_time_is_named(text: str, then: AsOf) -> None:
    assert at_lake.then(text) == then


def test_what_names_neither_is_refused() -> None:
    with pytest.raises(Failure, match="--as-of is the number of a batch or a time"):
        at_lake.then("yesterday")
