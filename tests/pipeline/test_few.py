"""Files of few rows: the driver writes and reads them as Spark would."""

from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]  # the package ships no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # likewise
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DateType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from holdfast.pipeline import few

SCHEMA = StructType(
    [
        StructField("seq", LongType(), nullable=False),
        StructField("at", TimestampType()),
        StructField("raw", BinaryType()),
        StructField("names", ArrayType(StructType([StructField("name", StringType())]))),
        StructField("day", DateType(), nullable=False),
    ]
)
AT = datetime(2026, 1, 2, 3, 4, 5, 678_901, UTC)
ROWS = [
    {"seq": 3, "at": AT, "raw": b"\x00", "names": [{"name": "a"}, {"name": None}], "day": date(2026, 1, 2)},
    {"seq": None, "at": None, "raw": None, "names": None, "day": date(2026, 1, 1)},
    {"seq": 1, "at": AT, "raw": b"", "names": [], "day": date(2026, 1, 2)},
    {"seq": 2, "at": AT, "raw": b"x", "names": [{"name": ""}], "day": None},
]


def table() -> pa.Table:
    return pa.Table.from_pylist(ROWS, few.arrow_schema(SCHEMA))


def files_in(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.parquet"))


def test_rows_are_read_as_they_were_written_by_partition_and_in_order(tmp_path: Path) -> None:
    few.write(table(), tmp_path / "rows", ("seq",), "day")
    folders = ["day=2026-01-01", "day=2026-01-02", "day=__HIVE_DEFAULT_PARTITION__"]
    assert [path.parent.name for path in files_in(tmp_path / "rows")] == folders
    assert few.read(SCHEMA, files_in(tmp_path / "rows"), "day").to_pylist() == [ROWS[1], ROWS[2], ROWS[0], ROWS[3]]
    assert "day" not in pq.read_schema(files_in(tmp_path / "rows")[0]).names


def test_what_has_no_value_comes_first_as_spark_has_it(tmp_path: Path) -> None:
    few.write(table(), tmp_path / "rows", ("seq",))
    (file,) = files_in(tmp_path / "rows")
    assert few.read(SCHEMA, [file]).column("seq").to_pylist() == [None, 1, 2, 3]


def test_of_no_rows_there_is_no_file(tmp_path: Path) -> None:
    few.write(table().slice(0, 0), tmp_path / "rows", ("seq",), "day")
    assert files_in(tmp_path / "rows") == []
    assert few.read(SCHEMA, []).to_pylist() == []


def test_a_column_that_a_file_lacks_has_no_values(tmp_path: Path) -> None:
    few.write(table().select(["seq"]), tmp_path / "rows")
    found = few.read(SCHEMA, files_in(tmp_path / "rows"))
    assert (found.column("seq").to_pylist(), found.column("raw").null_count) == ([3, None, 1, 2], 4)


def test_spark_reads_what_the_driver_wrote_and_the_other_way_about(spark: SparkSession, tmp_path: Path) -> None:
    few.write(table(), tmp_path / "driver", ("seq",), "day")
    read = spark.read.schema(SCHEMA).parquet(str(tmp_path / "driver"))
    read.select(*SCHEMA.names).write.partitionBy("day").parquet(str(tmp_path / "spark"))
    written = [few.read(SCHEMA, files_in(tmp_path / name), "day") for name in ("driver", "spark")]
    assert [sorted(map(str, one.to_pylist())) for one in written] == [sorted(map(str, table().to_pylist()))] * 2


def test_a_time_keeps_its_moment_whatever_its_zone(spark: SparkSession) -> None:
    local = AT.astimezone().replace(tzinfo=None)  # as Spark hands it out
    rows = [(local,), (AT.astimezone(timezone(timedelta(hours=5))),), (None,)]
    found = few.listed(spark, rows, "at timestamp").toArrow().column("at").to_pylist()
    assert found == [AT, AT, None]


@pytest.mark.parametrize("sizes", [[0, 2, 2], [2, 0, 2], [0, 0, 4], [2, 2, 0]])
def test_files_without_rows_take_none_from_the_others(spark: SparkSession, tmp_path: Path, sizes: list[int]) -> None:
    """Spark writes a file for each of its partitions, and some of them are empty."""
    paths, first = [], 0
    for number, size in enumerate(sizes):
        paths.append(tmp_path / f"part-{number}.parquet")
        pq.write_table(table().slice(first, size), paths[-1])
        first += size
    assert few.frame(spark, SCHEMA, few.read(SCHEMA, paths)).count() == len(ROWS)


def test_files_are_few_by_their_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few.write(table(), tmp_path / "rows", (), "day")
    files = files_in(tmp_path / "rows")
    assert few.are_few(files)
    monkeypatch.setattr(few, "FILE_BYTES_MAX", sum(path.stat().st_size for path in files) - 1)
    assert not few.are_few(files)
    assert few.are_few(files[:-1])


def test_a_name_of_javas_is_looked_up_once(spark: SparkSession) -> None:
    view = spark.sparkContext._jvm
    assert view is not None
    assert view.functions.col is view.functions.col
