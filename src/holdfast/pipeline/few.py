"""Reads and writes few rows in the driver itself: Spark takes longer to open one file than the driver to read them all.

Spark has the rows that the driver read while it plans, so it drops what would be computed from no rows before anything runs.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]  # the package ships no types
import pyarrow.compute as pc  # type: ignore[import-untyped]  # likewise
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # likewise

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

ROWS_MAX = 10_000
"""Up to so many entries, the driver copies an export itself, without Spark's tasks."""

FILE_BYTES_MAX = 262_144
"""Up to so many bytes, the driver reads the files of an input itself. More would cost more than they save: while Spark plans, it looks
through rows that it has again and again."""

COMPRESSION = "zstd"
FILE_ROWS_MAX = 1_000_000

UNLIKE = (
    *("message_id", "client_message_id", "event_id", "receipt_event_id", "chain", "detail", "sequence"),
    *("seq", "accepted_seq", "closed_seq", "enqueued_seq"),
)
"""Columns that are written without a dictionary of their values: with one, a history was no smaller (95 MB instead of 92 for
1.3 million entries), and to look every value up was a fifth of what writing it took."""

_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"  # Spark's name for the folder of a NULL partition


def are_few(paths: Sequence[Path]) -> bool:
    """Whether the driver reads these files itself."""
    return not paths or sum(path.stat().st_size for path in paths) <= FILE_BYTES_MAX


def arrow_schema(schema: "StructType") -> Any:
    """The columns in Arrow's types, all nullable: a row that lacks a value is for the rules to find, and must not fail the read."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return pa.schema([field.with_nullable(True) for field in to_arrow_schema(schema, timezone="UTC")])


def read(schema: "StructType", paths: Sequence[Path], partition_by: str | None = None) -> Any:
    """The rows of some files as an Arrow table; the value of a partition comes from the name of its folder."""
    expected = arrow_schema(schema)
    return pa.concat_tables([expected.empty_table(), *(_file(path, expected, partition_by) for path in paths)])


def _file(path: Path, expected: Any, partition_by: str | None) -> Any:
    found = pq.ParquetFile(path).read()
    return as_expected(found, expected, {} if partition_by is None else {partition_by: _value(path.parent)})


def as_expected(found: Any, expected: Any, constants: dict[str, Any]) -> Any:
    """An Arrow table with the expected columns and types; those in `constants` have one value in every row, missing ones are NULL."""
    columns = []
    for field in expected:
        if field.name in found.schema.names and field.name not in constants:
            columns.append(found.column(field.name).cast(field.type))
        else:
            value = pa.scalar(constants.get(field.name)).cast(field.type)
            columns.append(pa.repeat(value, found.num_rows))
    return pa.table(columns, schema=expected)


def _value(folder: Path) -> str | None:
    text = folder.name.partition("=")[2]
    return None if text == _NO_VALUE else text


def frame(spark: "SparkSession", schema: "StructType", rows: Any) -> "DataFrame":
    """An Arrow table as a data frame."""
    from pyspark.sql.types import StructField, StructType

    nullable = StructType([StructField(one.name, one.dataType) for one in schema])
    # In one chunk: of several, Spark drops all that come after an empty one, and Spark itself writes empty files.
    return spark.createDataFrame(rows.combine_chunks(), nullable)


def listed(spark: "SparkSession", rows: Sequence[tuple[Any, ...]], schema: "StructType | str") -> "DataFrame":
    """A data frame of Python values."""
    from pyspark.sql.types import StructType

    whole = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(whole, StructType):
        raise TypeError(f"{schema} are no columns")
    named = [dict(zip(whole.names, map(_exact, row), strict=True)) for row in rows]
    return frame(spark, whole, pa.Table.from_pylist(named, arrow_schema(whole)))


def _exact(value: Any) -> Any:
    """The value; a time without a zone, which Spark gives in the zone of this machine, in UTC."""
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def write(rows: Any, target: Path, sort_by: Sequence[str] = (), partition_by: str | None = None) -> None:
    """Write an Arrow table as Spark would: a file in a folder for each value of the partition, and none for no rows."""
    target.mkdir(parents=True)
    if rows.num_rows == 0:
        return
    if sort_by:
        keys = [(name, "ascending", "at_start") for name in sort_by]
        rows = rows.take(pc.sort_indices(rows, sort_keys=keys))
    for folder, part in divided(rows, partition_by):
        (target / folder).mkdir(exist_ok=True)
        with writer(target / folder / "part.parquet", part.schema) as file:
            file.write_table(part)


def divided(rows: Any, partition_by: str | None) -> Iterator[tuple[str, Any]]:
    """For each value of the partition column its folder, and its rows without that column."""
    if partition_by is None:
        yield ".", rows
        return
    column = rows.column(partition_by)
    for value in pc.unique(column):
        is_here = pc.equal(column, value) if value.is_valid else pc.is_null(column)
        folder = f"{partition_by}={pc.cast(value, pa.string()) if value.is_valid else _NO_VALUE}"
        yield folder, rows.filter(is_here).drop_columns([partition_by])


def _leaves(path: str, kind: Any) -> list[str]:
    """The Parquet columns of one column of a table: of a list or a struct, those of its parts."""
    if pa.types.is_list(kind):
        return _leaves(f"{path}.list.element", kind.value_type)
    if pa.types.is_struct(kind):
        return [leaf for part in kind for leaf in _leaves(f"{path}.{part.name}", part.type)]
    return [path]


def writer(path: Path, schema: Any) -> Any:
    """An open Parquet file for tables of this schema, with the settings of all files that Spark does not write."""
    repeating = [path for field in schema if field.name not in UNLIKE for path in _leaves(field.name, field.type)]
    return pq.ParquetWriter(path, schema, compression=COMPRESSION, use_dictionary=repeating, store_schema=False)
