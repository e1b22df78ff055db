"""A batch that was interrupted, taken up again by a run that knows of more histories than the one that began it."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from holdfast.pipeline import few, plan, watch
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.runner import Runner
from holdfast.relay import copy
from tests.pipeline import lakes
from tests.pipeline.between import between, without_row
from tests.pipeline.toys import TOYS
from tests.pipeline.worlds import generated
from tests.relay.running import RunningRelay, running

TABLES = lakes.with_what_they_need("orphan")

pytestmark = pytest.mark.timeout(600)


class Interrupted(Exception):
    """Somebody pulled the plug."""


def until_the_history_is_there(name: str, action: Callable[[], Any]) -> Any:
    found = action()
    if name == "commit history":
        raise Interrupted
    return found


def test_a_device_that_is_named_only_when_a_batch_goes_on_is_read_by_the_next(
    spark: SparkSession, tmp_path: Path
) -> None:
    with generated(tmp_path, 20, homes=1) as world:
        with pytest.raises(Interrupted):
            lakes.run(spark, tmp_path / "lake", world.place, tables=TABLES, step=until_the_history_is_there)
        runner = Runner(lambda: spark, Lake(tmp_path / "lake"), TABLES)
        resumed, after = watch.once(runner, plan.find_sources(world.place, world.devices), full=True)
    relay, device = world.sources
    assert resumed.entries == relay.head.seq
    assert (after.entries, after.violations) == (device.head.seq, 0)


def test_a_relay_that_was_restored_before_a_batch_went_on_is_compared_by_the_next(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    with running(tmp_path / "data") as relay:
        relay.found_mesh("anna", "ben")
        copy.backup(tmp_path / "data", tmp_path / "backup")
        assert relay.publish(relay.person("anna").message(relay.person("ben"))).status == 201
        with pytest.raises(Interrupted):
            place = lakes.place_of(relay, tmp_path)
            lakes.run(spark, lake, place, tables=TABLES, step=until_the_history_is_there)
    copy.restore(tmp_path / "backup", tmp_path / "restored")
    with running(tmp_path / "restored") as relay:
        sources = plan.find_sources(lakes.place_of(relay, tmp_path), [])
        resumed, after = watch.once(Runner(lambda: spark, Lake(lake), TABLES), sources, full=True)
    assert (resumed.uncompared, resumed.violations, dict(resumed.kept)) == ([sources[0].origin], 0, {})
    assert (after.uncompared, after.violations, after.is_full) == ([], 0, True)


def send_later(relay: RunningRelay, count: int) -> None:
    """Messages of somebody who has sent others before the relay was started again."""
    relay.person("anna").sequences = iter(range(500, 600))
    for _ in range(count):
        assert relay.publish(relay.person("anna").message(relay.person("ben"))).status == 201


def test_a_log_that_is_another_when_a_batch_goes_on_is_not_said_to_be_kept(spark: SparkSession, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    with running(tmp_path / "data") as relay:
        relay.found_mesh("anna", "ben")
    shutil.copytree(tmp_path / "data", tmp_path / "older")
    with running(tmp_path / "data") as relay:
        send_later(relay, 1)
        with pytest.raises(Interrupted):
            place = lakes.place_of(relay, tmp_path)
            lakes.run(spark, lake, place, tables=TOYS, step=until_the_history_is_there)
    with running(tmp_path / "older") as relay:
        send_later(relay, 2)
        resumed = lakes.run(spark, lake, lakes.place_of(relay, tmp_path), tables=TOYS)
        after = lakes.run(spark, lake, lakes.place_of(relay, tmp_path), tables=TOYS)
    assert [mark.seq for one in (resumed, after) for mark in one.kept.values()] == [0, 0]
    assert [kind for kind, _ in lakes.findings(lake, TOYS)] == ["log_rewritten"]


def test_chains_are_followed_in_a_batch_that_goes_on_as_in_one_that_was_never_interrupted(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Who takes a history over tells of its links; who takes up a batch reads them from the files."""
    tables = lakes.with_what_they_need("chain_break")
    told: list[str] = []
    found = {}

    def noted(name: str, action: Callable[[], Any]) -> Any:
        told.append(name)
        return action()

    with running(tmp_path / "data") as relay:
        relay.found_mesh("anna", "ben")
        for _ in range(9):
            assert relay.publish(relay.person("anna").message(relay.person("ben"))).status == 201
        place = lakes.place_of(relay, tmp_path)
        with between(relay.address) as middle:
            middle.spoil = lambda answer: without_row(answer, 5) if answer.has_rows else answer
            spoiled = replace(place, url=middle.url)
            lakes.run(spark, tmp_path / "whole", spoiled, tables=tables)
            with pytest.raises(Interrupted):
                lakes.run(spark, tmp_path / "resumed", spoiled, tables=tables, step=until_the_history_is_there)
            lakes.run(spark, tmp_path / "resumed", spoiled, tables=tables, step=noted)
        for name in ("whole", "resumed"):
            found[name] = lakes.findings(tmp_path / name, tables)
    assert "write link" in told
    assert found["resumed"] == found["whole"]
    assert {"position_gap", "chain_mismatch"} <= {kind for kind, _ in found["whole"]}


def test_what_an_attempt_left_of_the_state_is_not_read(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(few, "FILE_BYTES_MAX", -1)  # so that Spark reads the files, and not the driver
    planted = []

    def with_leftover(name: str, action: Callable[[], Any]) -> Any:
        found = action()
        if name == "write state_delivery":
            (folder,) = (tmp_path / "lake" / ".holdfast" / "staging").glob("state_delivery-*")
            (folder / "torn.taken").write_bytes(b"half a file")
            planted.append(folder)
        return found

    with generated(tmp_path, 20, homes=0) as world:
        outcome = lakes.run(spark, tmp_path / "lake", world.place, tables=TABLES, step=with_leftover)
    assert (len(planted), outcome.violations) == (1, 0)
