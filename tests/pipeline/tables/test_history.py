"""Positions of a batch: each once, none missing, whatever number they have."""

from pathlib import Path

import pyarrow.parquet as pq  # type: ignore[import-untyped]  # the package ships no types
import pytest
from pyspark.sql import SparkSession

from holdfast.pipeline import few
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.table import Batch, Range, Table, Writing
from holdfast.pipeline.tables.history import positions_are_dense

LOG = b"A" * 16
FAR = 2**60 - 5  # no floating point number is between it and the next position

CASES: dict[str, tuple[int, int, list[int], bool]] = {  # after, until, the positions that came, whether that is right
    "all": (0, 200, [*range(1, 201)], True),
    "all, in any order": (0, 200, [*reversed(range(1, 201))], True),
    "all, far out": (FAR, FAR + 200, [*range(FAR + 1, FAR + 201)], True),
    "one": (63, 64, [64], True),
    "none of one": (63, 64, [], False),
    "the first is missing": (0, 200, [*range(2, 201)], False),
    "the last is missing": (0, 200, [*range(1, 200)], False),
    "one is missing": (0, 200, [*range(1, 64), *range(65, 201)], False),
    "one too many": (0, 200, [*range(1, 202)], False),
    "one twice": (0, 200, [*range(1, 201), 100], False),
    "one twice instead of its neighbour": (0, 200, [*range(1, 100), 99, *range(101, 201)], False),
    "one twice instead of one of another word": (
        0,
        200,
        [*range(1, 100), 100, 100, *range(101, 150), *range(151, 201)],
        False,
    ),
    "the last of a word twice instead of the next": (0, 200, [*range(1, 64), 63, *range(65, 201)], False),
    "one twice instead of its neighbour, far out": (FAR, FAR + 3, [FAR + 1, FAR + 1, FAR + 3], False),
    "one below zero instead of the first": (0, 2, [-1, 2], False),
}


@pytest.mark.parametrize("name", CASES)
def test_a_batch_has_exactly_the_positions_that_it_set_out_to_read(name: str, spark: SparkSession) -> None:
    after, until, found, is_right = CASES[name]
    entries = spark.createDataFrame([("relay:x", LOG, seq) for seq in found], "origin string, log_id binary, seq long")
    batch = Batch(1, 0, (Range("relay:x", LOG, after, until, None),), full=False)
    assert positions_are_dense(entries, batch).isEmpty() == is_right


def test_a_log_that_nobody_set_out_to_read_is_told(spark: SparkSession) -> None:
    entries = spark.createDataFrame([("relay:x", b"B" * 16, 1)], "origin string, log_id binary, seq long")
    (row,) = positions_are_dense(entries, Batch(1, 0, (), full=False)).collect()
    assert bytes(row.log_id) == b"B" * 16


def test_nobody_keeps_a_dictionary_of_values_that_seldom_repeat(spark: SparkSession, lake_path: Path) -> None:
    lake = Lake(lake_path)
    lake.create()
    rows = spark.range(1, 1001).selectExpr(
        *("id AS seq", "'accepted' AS kind", "cast('same' AS binary) AS chain"),
        *("array(named_struct('member', 'ann')) AS recipients", "array('ben') AS mentions"),
    )
    made = Table("made", "Rows of a test.", ("seq",), rows.schema, Writing.APPEND, None)
    staged = [lake.stage(made, rows), lake.stage_by("made", lambda target: few.write(rows.toArrow(), target))]
    for path in (file for folder in staged for file in folder.rglob("*.parquet")):
        group = pq.ParquetFile(path).metadata.row_group(0)
        columns = [group.column(place) for place in range(group.num_columns)]
        with_one = {one.path_in_schema for one in columns if any("DICTIONARY" in name for name in one.encodings)}
        assert with_one == {"kind", "recipients.list.element.member", "mentions.list.element"}
