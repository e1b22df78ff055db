"""The tables that the runner writes itself, one row a batch or a finding: no function of others, and no work for Spark."""

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # the package ships no types
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from holdfast.pipeline import finding
from holdfast.pipeline.table import Table, Writing

_RANGE = StructType(
    [
        StructField("origin", StringType(), nullable=False),
        StructField("log_id", BinaryType(), nullable=False),
        StructField("after", LongType(), nullable=False),
        StructField("until", LongType(), nullable=False),
        StructField("chain", BinaryType()),
    ]
)
_HEAD = StructType(
    [
        StructField("origin", StringType(), nullable=False),
        StructField("log_id", BinaryType(), nullable=False),
        StructField("seq", LongType(), nullable=False),
        StructField("chain", BinaryType()),
    ]
)
_VERSION = StructType(
    [StructField("table", StringType(), nullable=False), StructField("version", LongType(), nullable=False)]
)


def _record(name: str, meaning: str, key: tuple[str, ...], schema: StructType, **more: Any) -> Table:
    return Table(name=name, meaning=meaning, key=key, schema=schema, writing=Writing.RECORD, function=None, **more)


BREACH = _record(
    "breach",
    "A table that broke its rule, or a log that lost what it had: what the runner itself found.",
    ("kind", "key"),
    finding.SCHEMA,
    finds=True,
    rule="What is known already is not told again.",
)

CERTIFICATE = _record(
    "certificate",
    "What a batch certifies, signed with the lake's key; each names the one before by its hash.",
    ("number",),
    StructType(
        [
            StructField("number", LongType(), nullable=False),
            StructField("at", TimestampType(), nullable=False),
            StructField("document", StringType(), nullable=False),
            StructField("pubkey", StringType(), nullable=False),
            StructField("signature", BinaryType(), nullable=False),
        ]
    ),
    reads=("history", "message_fate", "fate_open", "receipt"),
    rule="It is signed, follows the one before, and is of the batch that was certified last.",
)

RUN = _record(
    "run",
    "A complete batch: what it read, where every log stands, and the version of every table; committed last.",
    ("number",),
    StructType(
        [
            StructField("number", LongType(), nullable=False),
            StructField("at", TimestampType(), nullable=False),
            StructField("entries", LongType(), nullable=False),
            StructField("ranges", ArrayType(_RANGE, containsNull=False), nullable=False),
            StructField("heads", ArrayType(_HEAD, containsNull=False), nullable=False),
            StructField("versions", ArrayType(_VERSION, containsNull=False), nullable=False),
        ]
    ),
    reads=("certificate",),
    rule="Batches are numbered from 1 without holes.",
)

RECORDS = (BREACH, CERTIFICATE, RUN)


def arrow_schema(table: Table) -> Any:
    """A table's schema in Arrow's types, as its files have them."""
    return to_arrow_schema(table.schema, timezone="UTC")


def arrow_rows(table: Table, rows: list[dict[str, Any]]) -> Any:
    """Rows of a record table."""
    return pa.Table.from_pylist(rows, schema=arrow_schema(table))


def as_time(at: int) -> datetime:
    """µs since 1970 as the lake has them, without losing one."""
    seconds, micros = divmod(at, 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=micros)
