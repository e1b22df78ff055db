"""Batches over a relay that runs: complete, once, in any number of steps, and whatever kills them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pyspark.sql import SparkSession

from holdfast.pipeline.lake import Lake, LakeBusy
from holdfast.pipeline.pages import Place
from holdfast.pipeline.table import load
from holdfast.pipeline.verify import verify
from tests.pipeline import lakes
from tests.relay.running import RunningRelay, running

Result = TypeVar("Result")


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRelay]:
    data = tmp_path_factory.mktemp("relay") / "data"
    with running(data) as found:
        found.found_mesh("anna", "ben", "cleo")
        send(found, 12)
        yield found


@pytest.fixture(scope="module")
def place(relay: RunningRelay, tmp_path_factory: pytest.TempPathFactory) -> Place:
    return lakes.place_of(relay, tmp_path_factory.mktemp("token"))


def send(relay: RunningRelay, count: int) -> None:
    for number in range(count):
        sender, recipient = relay.person("anna"), relay.person("ben" if number % 2 else "cleo")
        assert relay.publish(sender.message(recipient, f"message {number}".encode())).status == 201


class Killed(BaseException):
    """As good as a kill: nothing of ours catches it."""


class KillAt:
    """Ends the run before or after the n-th step; without a number it only counts."""

    def __init__(self, number: int | None = None, *, after: bool = False) -> None:
        self.names: list[str] = []
        self._number = number
        self._after = after

    def __call__(self, name: str, action: Callable[[], Any]) -> Any:
        self.names.append(name)
        is_it = len(self.names) - 1 == self._number
        if is_it and not self._after:
            raise Killed
        result = action()
        if is_it:
            raise Killed
        return result


def test_a_batch_brings_every_entry_into_the_lake(
    spark: SparkSession, relay: RunningRelay, place: Place, lake_path: Path
) -> None:
    outcome = lakes.run(spark, lake_path, place)
    assert outcome.entries == relay.head_seq()
    shelf = lakes.shelf_of(lake_path)
    rows = shelf.query("history", shelf.last_run().versions["history"], "SELECT seq FROM {rows} ORDER BY seq")
    assert [row["seq"] for row in rows] == list(range(1, relay.head_seq() + 1))
    assert (outcome.violations, outcome.balance["open"]) == (0, outcome.balance["recipients"])
    assert verify(shelf) == []


def test_a_batch_with_nothing_new_changes_no_row(spark: SparkSession, place: Place, lake_path: Path) -> None:
    lakes.run(spark, lake_path, place)
    before = lakes.contents(lake_path)
    assert lakes.run(spark, lake_path, place).entries == 0
    assert lakes.contents(lake_path) == before


def test_a_second_run_is_told_who_has_the_lake(lake_path: Path) -> None:
    import os

    lake = Lake(lake_path)
    lake.create()
    with lake.hold(), pytest.raises(LakeBusy, match=f"process {os.getpid()}"), Lake(lake_path).hold():
        pass
    with lake.hold():
        pass  # and afterwards it is free


def test_every_table_names_only_inputs_that_there_are() -> None:
    order = list(load())
    assert order[0] == "history"
