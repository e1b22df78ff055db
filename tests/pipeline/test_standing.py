"""A run that has nothing to do says how the lake stands: it makes no batch, and starts no Spark."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from holdfast.pipeline import plan, watch
from holdfast.pipeline.certificate import KEY_FILE, KeyExposed
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.pages import Place
from holdfast.pipeline.plan import Source
from holdfast.pipeline.runner import Runner
from holdfast.pipeline.table import Table, in_order
from tests.pipeline import lakes
from tests.pipeline.test_kill import Killed, Steps
from tests.pipeline.toys import LATEST, TOYS
from tests.relay.running import RunningRelay, running


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRelay]:
    with running(tmp_path_factory.mktemp("relay") / "data") as found:
        found.found_mesh("anna", "ben")
        yield found


@pytest.fixture
def place(relay: RunningRelay, tmp_path: Path) -> Place:
    return lakes.place_of(relay, tmp_path)


@pytest.fixture
def source(place: Place) -> Source:
    (found,) = plan.find_sources(place, [])
    return found


def no_spark() -> SparkSession:
    raise AssertionError("Spark was started")


def runner(path: Path, tables: dict[str, Table] = TOYS) -> Runner:
    return Runner(no_spark, Lake(path), tables)


def test_a_run_without_anything_new_makes_no_batch(
    spark: SparkSession, place: Place, source: Source, lake_path: Path
) -> None:
    done = lakes.run(spark, lake_path, place, tables=TOYS)
    before = lakes.shelf_of(lake_path, TOYS).last_run()
    (outcome,) = watch.once(runner(lake_path), [source], full=False)
    assert outcome == replace(done, entries=0, is_full=False, is_new=False)
    assert outcome.balance == done.balance != {}
    assert lakes.shelf_of(lake_path, TOYS).last_run() == before
    with pytest.raises(AssertionError, match="Spark was started"):  # all of the state is to be compared
        list(watch.once(runner(lake_path), [source], full=True))


def _shorter(source: Source) -> Source:
    return replace(source, head=replace(source.head, seq=source.head.seq - 1))


def _longer(source: Source) -> Source:
    return replace(source, head=replace(source.head, seq=source.head.seq + 1))


def _another(source: Source) -> Source:
    return replace(source, origin="relay:another", head=replace(source.head, seq=0))


@pytest.mark.parametrize(
    "sources",
    [
        pytest.param(lambda one: [_longer(one)], id="an entry waits"),
        pytest.param(lambda one: [_shorter(one)], id="the log is shorter than it was"),
        pytest.param(lambda one: [one, _another(one)], id="a history that the lake has not"),
    ],
)
def test_a_history_that_stands_elsewhere_is_something_to_do(
    spark: SparkSession, place: Place, source: Source, lake_path: Path, sources: Callable[[Source], list[Source]]
) -> None:
    lakes.run(spark, lake_path, place, tables=TOYS)
    assert runner(lake_path).standing([source]) is not None
    assert runner(lake_path).standing(sources(source)) is None


def test_what_was_told_of_a_history_is_not_told_again(
    spark: SparkSession, place: Place, source: Source, lake_path: Path
) -> None:
    lakes.run(spark, lake_path, place, tables=TOYS)
    shorter = [_shorter(source)]
    (told,) = watch.once(Runner(lambda: spark, Lake(lake_path), TOYS), shorter, full=False)
    assert (told.number, told.violations, told.is_new) == (2, 1, True)
    (again,) = watch.once(runner(lake_path), shorter, full=False)
    assert (again.number, again.violations, again.is_new) == (2, 1, False)


def _with_another_table() -> dict[str, Table]:
    return in_order({**TOYS, "younger": replace(TOYS["listed"], name="younger")})


def _with_other_columns() -> dict[str, Table]:
    return in_order(
        {**TOYS, "listed": replace(TOYS["listed"], schema=StructType([*LATEST, StructField("more", StringType())]))}
    )


@pytest.mark.parametrize("tables", [_with_another_table, _with_other_columns], ids=["another table", "other columns"])
def test_a_table_that_is_to_be_computed_is_something_to_do(
    spark: SparkSession, place: Place, source: Source, lake_path: Path, tables: Callable[[], dict[str, Table]]
) -> None:
    lakes.run(spark, lake_path, place, tables=TOYS)
    assert runner(lake_path, tables()).standing([source]) is None


def test_no_batch_and_half_a_batch_are_something_to_do(
    spark: SparkSession, place: Place, source: Source, lake_path: Path
) -> None:
    Lake(lake_path).create()
    assert runner(lake_path).standing([source]) is None
    lakes.run(spark, lake_path, place, tables=TOYS)
    with pytest.raises(Killed):
        lakes.run(spark, lake_path, place, tables=TOYS, step=Steps("commit history", after=True))
    assert runner(lake_path).standing([source]) is None


@pytest.mark.parametrize("name", ["history", "counted", "daily"])
def test_a_table_that_was_put_back_is_something_to_do(
    spark: SparkSession, place: Place, source: Source, lake_path: Path, name: str
) -> None:
    for _ in range(2):
        lakes.run(spark, lake_path, place, tables=TOYS)
    assert runner(lake_path).standing([source]) is not None
    (lake_path / name / "_delta_log" / f"{2:020d}.json").unlink()
    assert runner(lake_path).standing([source]) is None


def test_a_key_that_others_may_read_is_refused(
    spark: SparkSession, place: Place, source: Source, lake_path: Path
) -> None:
    lakes.run(spark, lake_path, place, tables=TOYS)
    (Lake(lake_path).private / KEY_FILE).chmod(0o644)
    with pytest.raises(KeyExposed):
        runner(lake_path).standing([source])


def test_rows_are_those_that_wait_or_all_where_all_are_worked_on(
    spark: SparkSession, place: Place, source: Source, lake_path: Path
) -> None:
    lakes.run(spark, lake_path, place, tables=TOYS)
    longer = [_longer(source)]
    assert runner(lake_path).rows(longer, full=False) == 1
    assert runner(lake_path).rows(longer, full=True) == source.head.seq + 1
    assert runner(lake_path, _with_another_table()).rows(longer, full=False) == source.head.seq + 1


def test_a_certificate_that_is_gone_is_something_to_do(
    spark: SparkSession, place: Place, source: Source, lake_path: Path
) -> None:
    for _ in range(2):
        lakes.run(spark, lake_path, place, tables=TOYS)
    (lake_path / "certificate" / "_delta_log" / f"{2:020d}.json").unlink()
    assert runner(lake_path).standing([source]) is None
