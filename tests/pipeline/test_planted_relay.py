"""The whole way: a generated relay that runs, its export, a lake, and what the last batch knows to be wrong."""

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from holdfast.cli import generate
from tests.pipeline import lakes, plant
from tests.pipeline.files import Files
from tests.relay.running import ANSWER_S, RunningRelay, command


@pytest.fixture
def generated(tmp_path: Path) -> Files:
    out = tmp_path / "world"
    generate.make(out, 300, Random(5), 8, 0, time.time_ns() // 1000, days=9)
    return Files(out)


@contextmanager
def _serving(data: Path) -> Iterator[RunningRelay]:
    """A relay that runs on a database of which nothing is promised."""
    log_file = data.with_suffix(".log")
    with log_file.open("ab") as log:
        process = subprocess.Popen(command(data), stdout=subprocess.PIPE, stderr=log)
    assert process.stdout is not None
    try:
        yield RunningRelay(json.loads(process.stdout.readline())["url"], data, process, log_file)
    finally:
        process.terminate()
        process.wait(ANSWER_S)
        process.stdout.close()


def _violations(spark: SparkSession, files: Files, folder: Path) -> plant.Found:
    folder.mkdir()
    with _serving(files.database.parent) as relay:
        lakes.run(spark, folder / "lake", lakes.place_of(relay, folder), full=True)
    return {(kind, key) for kind, key, _ in lakes.violations(folder / "lake")}


@pytest.mark.timeout(600)
def test_a_relay_that_nobody_touched_has_nothing_wrong_and_one_that_somebody_did_has_just_that(
    spark: SparkSession, generated: Files, tmp_path: Path
) -> None:
    assert _violations(spark, generated, tmp_path / "clean") == set()
    expected = plant.plant(generated, [one for one in plant.ROWS if "device" not in one.name])
    assert _violations(spark, generated, tmp_path / "planted") == expected
