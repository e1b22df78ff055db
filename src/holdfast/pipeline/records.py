"""The tables that the runner writes itself, without Spark: one row per batch or finding."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa  # type: ignore[import-untyped]  # the package ships no types

from holdfast.pipeline import finding, schema
from holdfast.pipeline.schema import BYTES, NUMBER, TEXT, TIME, Array, Struct, columns, with_optional
from holdfast.pipeline.table import Table, Writing

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from holdfast.pipeline.lake import Lake

_RANGE = with_optional(columns(origin=TEXT, log_id=BYTES, after=NUMBER, until=NUMBER, chain=BYTES), "chain")
_HEAD = with_optional(columns(origin=TEXT, log_id=BYTES, seq=NUMBER, chain=BYTES), "chain")
_VERSION = columns(table=TEXT, version=NUMBER)


def _record(name: str, meaning: str, key: tuple[str, ...], struct: Struct, **more: Any) -> Table:
    found = cast("StructType", struct)  # it has the same methods, and Spark never writes these tables
    return Table(name=name, meaning=meaning, key=key, schema=found, writing=Writing.RECORD, function=None, **more)


BREACH = _record(
    "breach",
    "Findings of the runner itself: tables that broke their rule or that somebody else changed, and logs that lost entries.",
    ("kind", "key"),
    finding.COLUMNS,
    finds=True,
    rule="A finding is there once.",
)

CERTIFICATE = _record(
    "certificate",
    "One row per certificate: what the lake holds after a batch, signed with its key; it names the one before by its hash.",
    ("number",),
    columns(number=NUMBER, at=TIME, document=TEXT, pubkey=TEXT, signature=BYTES),
    reads=("history", "message_fate", "fate_open", "receipt"),
    rule="A certificate is signed, names the one before, and the last one is of the last certified batch.",
)

RUN = _record(
    "run",
    "One row per complete batch: what it read, where every log stands, and the version of every table; committed last.",
    ("number",),
    columns(
        number=NUMBER,
        at=TIME,
        entries=NUMBER,
        ranges=Array(_RANGE, containsNull=False),
        heads=Array(_HEAD, containsNull=False),
        versions=Array(_VERSION, containsNull=False),
    ),
    reads=("certificate",),
    rule="Batches are numbered from 1 without holes.",
)

RECORDS = (BREACH, CERTIFICATE, RUN)


def arrow_schema(table: Table) -> Any:
    """A table's schema in Arrow's types, as its files have them."""
    return schema.arrow(table.schema)


def arrow_rows(table: Table, rows: list[dict[str, Any]]) -> Any:
    """Rows of a record table as an Arrow table."""
    return pa.Table.from_pylist(rows, schema=arrow_schema(table))


def write(lake: "Lake", table: Table, number: int, rows: list[dict[str, Any]]) -> None:
    """Commit a batch's rows to a record table."""
    lake.commit(table, number, lake.stage_rows(table, arrow_rows(table, rows)))


def as_time(at: int) -> datetime:
    """A time in µs since 1970 as a datetime, exact to the microsecond."""
    seconds, micros = divmod(at, 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=micros)
