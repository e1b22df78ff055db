"""Whatever somebody does to a relay's files is found, by its kind and its row; and where nobody did anything, nothing is."""

import shutil
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from holdfast.cli import generate
from tests.pipeline import plant
from tests.pipeline.files import Files
from tests.pipeline.tables.memory_lake import MemoryLake

FINDING = ("chain_break", "orphan", "sequence_gap", "sender_reset", "equivocation", "receipt_forged")
END = 1_790_000_000_000_000

pytestmark = pytest.mark.timeout(600)  # a session of Spark on a busy machine takes its time


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("generated") / "world"
    generate.make(out, 400, Random(11), 12, 3, END)
    return out


def _found(spark: SparkSession, files: Files) -> MemoryLake:
    lake = MemoryLake(spark, FINDING)
    lake.run(files.parts(), full=True, state=files.state())
    return lake


def test_nothing_is_found_where_nothing_was_done(spark: SparkSession, generated: Path) -> None:
    lake = _found(spark, Files(generated))
    assert lake.violations() == []
    assert lake.breaches == []


@pytest.mark.parametrize("group", list(plant.ALL))
def test_what_was_done_is_found_and_nothing_else(
    spark: SparkSession, generated: Path, tmp_path: Path, group: str
) -> None:
    shutil.copytree(generated, tmp_path / "world")
    files = Files(tmp_path / "world")
    expected = plant.plant(files, plant.ALL[group])
    assert len(expected) >= len(plant.ALL[group])
    lake = _found(spark, files)
    assert set(lake.violations()) == expected
    assert len(lake.violations()) == len(expected)
