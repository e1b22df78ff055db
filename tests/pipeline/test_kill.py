"""A run that is killed at any of its writes and commits leaves a lake that the next run completes, as if nothing had been."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from holdfast.pipeline.pages import Place
from holdfast.pipeline.verify import verify
from tests.pipeline import lakes
from tests.pipeline.toys import TOYS
from tests.relay.running import RunningRelay, running


class Killed(BaseException):
    """As good as a kill: nothing of ours catches it."""


class Steps:
    """Notes the steps of a run, and ends it before or after the one of a name."""

    def __init__(self, kill: str | None = None, *, after: bool = False) -> None:
        self.names: list[str] = []
        self._kill = kill
        self._after = after

    def __call__(self, name: str, action: Callable[[], Any]) -> Any:
        self.names.append(name)
        if name == self._kill and not self._after:
            raise Killed
        result = action()
        if name == self._kill:
            raise Killed
        return result


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRelay]:
    with running(tmp_path_factory.mktemp("relay") / "data") as found:
        found.found_mesh("anna", "ben")
        for number in range(80):
            body = f"message {number}".encode()
            assert found.publish(found.person("anna").message(found.person("ben"), body)).status == 201
        yield found


@pytest.fixture(scope="module")
def place(relay: RunningRelay, tmp_path_factory: pytest.TempPathFactory) -> Place:
    return lakes.place_of(relay, tmp_path_factory.mktemp("token"))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.long)])
def test_killed_at_its_steps_a_lake_ends_as_if_nothing_had_been(
    spark: SparkSession, place: Place, tmp_path: Path, every: int
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    first, second = Steps(), Steps()
    lakes.run(spark, whole, place, tables=TOYS, entries_max=20, step=first)
    lakes.run(spark, whole, place, tables=TOYS, step=second)
    for number, steps in ((1, first), (2, second)):
        # Each run takes up what the last one left, and dies one step further, or some.
        for name, after in _kills(steps.names, every, before=number == 2):
            with pytest.raises(Killed):
                lakes.run(spark, killed, place, tables=TOYS, entries_max=20 * number**9, step=Steps(name, after=after))
        assert lakes.shelf_of(killed, TOYS).last_run().number == number  # died after its last step, which was its last
    assert lakes.contents(killed, TOYS) == lakes.contents(whole, TOYS)
    assert verify(lakes.shelf_of(killed, TOYS)) == []


@pytest.mark.timeout(600)
def test_killed_while_tables_are_computed_side_by_side_a_lake_ends_as_if_nothing_had_been(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    whole = tmp_path / "whole"
    lakes.run(spark, whole, place, tables=TOYS)
    for name in (name for name in TOYS if TOYS[name].is_stored and name != "history"):
        killed = tmp_path / name
        with pytest.raises(Killed):
            lakes.run(spark, killed, place, tables=TOYS, step=Steps(f"commit {name}"), at_once=4)
        lakes.run(spark, killed, place, tables=TOYS, at_once=4)
        assert lakes.contents(killed, TOYS) == lakes.contents(whole, TOYS)
        assert verify(lakes.shelf_of(killed, TOYS)) == []


def _kills(names: list[str], every: int, *, before: bool) -> list[tuple[str, bool]]:
    """Which steps to die at, and whether after them: each that many apart, before one and after another, the last always."""
    kills = [(name, after) for name in names for after in ((False, True) if before else (True,))]
    step = every + 1 if before and every > 1 else every  # an odd stride, so that both befores and afters are among them
    return [*kills[:-1:step], kills[-1]]


def test_every_write_and_every_commit_is_a_step(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    steps = Steps()
    lakes.run(spark, tmp_path, place, tables=TOYS, step=steps)
    stored = [table for table in TOYS if TOYS[table].is_stored] + ["breach", "certificate", "run"]
    expected = {f"{what} {name}" for what in ("create", "write", "move", "commit") for name in stored}
    assert set(steps.names) == expected | {"write plan", "write seen"}
    assert steps.names[-1] == "commit run"


def test_a_batch_taken_up_again_reads_what_it_had_planned_to(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        lakes.run(spark, tmp_path, place, tables=TOYS, entries_max=3, step=Steps("commit history", after=True))
    outcome = lakes.run(spark, tmp_path, place, tables=TOYS)  # which alone would read everything
    assert (outcome.number, outcome.entries) == (1, 3)
