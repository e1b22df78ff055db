"""Entries that a relay pruned before the lake had them: the gap is named, and nobody is accused of what lies in it."""

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from holdfast.pipeline.plan import Source, renewed
from holdfast.pipeline.verify import verify
from tests.pipeline import lakes
from tests.pipeline.worlds import generated

pytestmark = pytest.mark.timeout(600)


def test_a_lake_that_missed_pruned_entries_names_them_and_accuses_nobody(spark: SparkSession, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    with generated(tmp_path, 150, homes=2) as world:
        relay, *devices = world.sources
        missed, head = relay.head.seq // 3, relay.head.seq
        anchor = 2 * missed
        lakes.run(spark, lake, world.place, sources=[_cut(relay, missed), *(_cut(one, 1) for one in devices)])
        assert lakes.violations(lake) == []
        lakes.prune(world.relay.data, anchor)
        for full in (False, True):
            lakes.run(spark, lake, world.place, sources=renewed(world.sources), full=full)
            found = lakes.violations(lake)
            assert [(kind, key.rpartition("/")[2]) for kind, key, _ in found] == [
                ("pruned_unread", f"{missed + 1}-{anchor}")
            ]
    shelf = lakes.shelf_of(lake)
    assert verify(shelf) == []
    sql = "SELECT first_seq, last_seq FROM {rows} WHERE origin LIKE 'relay:%'"
    (extent,) = shelf.query("extent", shelf.last_run().versions["extent"], sql)
    assert extent["first_seq"] == anchor + 1
    assert extent["last_seq"] >= head


def _cut(source: Source, seq: int) -> Source:
    """A history as it was when it ended there."""
    return replace(source, head=replace(source.head, seq=seq))
