"""A batch that was interrupted, taken up again by a run that knows of more histories than the one that began it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.pipeline import lakes
from tests.pipeline.worlds import generated

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
        resumed = lakes.run(spark, tmp_path / "lake", world.place, world.devices, tables=TABLES)
        after = lakes.run(spark, tmp_path / "lake", world.place, world.devices, tables=TABLES)
    relay, device = world.sources
    assert resumed.entries == relay.head.seq
    assert (after.entries, after.violations) == (device.head.seq, 0)
