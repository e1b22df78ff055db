"""The exported tables that are compared with the histories: what the relay itself believes to be so.

They are read after the batch's entries, and the entries that came meanwhile after them, so that whatever changed while
they were read is known to have changed.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.pipeline.plan import DEVICE, RELAY, Source
from holdfast.pipeline.table import STATE, Range, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

BUCKET = 10_000
"""Positions that are looked at together, if one of them was touched."""

TABLES = {
    "dedupe": "mesh string, sender string, client_message_id string, event_id binary, message_id string, seq long, "
    "destination_kind string, destination_ref string, first_seen_at timestamp, expires_at timestamp, "
    "history_available boolean, skipped array<string>",
    "message": "message_id string, mesh string, sender string, client_message_id string, event_id binary, seq long, kind long, "
    "destination_kind string, destination_ref string, size long, accepted_at timestamp, expires_at timestamp",
    "delivery": "mesh string, member string, seq long, message_id string, state string, expires_at timestamp, "
    "closed_at timestamp, was_stored boolean, is_receipt boolean, receipted_at timestamp",
    "mention": "mesh string, member string, seq long, message_id string",
    "snapshot": "seq long, event_id binary, author string, kind long, d string, o string, c string, clock string, "
    "created_at long, accepted_at timestamp, superseded_seq long, compact_at timestamp, size long",
}
"""The relay's tables and their columns; a test compares them with what a relay exports."""

DEVICE_TABLES = {
    "operation": "seq long, sequence long, client_message_id string, status string",
    "inbox": "seq long, received_at timestamp, sender string, sender_name string, mesh string, topic string, "
    "client_message_id string, broker_message_id string, body binary",
    "sent": "seq long, enqueued_at timestamp, destination_kind string, destination_ref string, client_message_id string, "
    "broker_message_id string, blob binary",
}
"""The devices' tables and those of their columns that are compared, or in an owner's lake taken over."""

_EXPORTED_AS = {"sent": "operation"}
"""Tables that are read under another name, for other columns of them."""

_PAGE = ", export_log_id binary, as_of_seq long"
RANGE = "origin string, after long, until long"


def wanted(tables: Sequence[Table]) -> list[str]:
    """The exported tables that some table names as an input."""
    named = {name for table in tables for name in table.inputs if name.startswith(STATE)} - {"state_range"}
    return sorted(name.removeprefix(STATE) for name in named)


def ranges(whole: Sequence[Range], closed: Sequence[tuple[str, int]], *, full: bool) -> list[Range]:
    """Which positions to look at: all of them, or the batch's own and the buckets of what it closed."""
    found = []
    for one in whole:
        if one.until == 0:
            continue
        if full:
            found.append(Range(one.origin, one.log_id, 0, one.until, None))
            continue
        if one.after < one.until:
            found.append(one)
        buckets = sorted({(seq - 1) // BUCKET for origin, seq in closed if origin == one.origin and seq <= one.after})
        for bucket in buckets:
            until = min((bucket + 1) * BUCKET, one.after)
            found.append(Range(one.origin, one.log_id, bucket * BUCKET, until, None))
    return found


def frame(spark: "SparkSession", name: str, sources: Sequence[Source], looked_at: Sequence[Range]) -> "DataFrame":
    """The rows of an exported table, with the origin and the page they come from."""
    prefix, declared = (DEVICE, DEVICE_TABLES[name]) if name in DEVICE_TABLES else (RELAY, TABLES[name])
    schema = declared + _PAGE
    found = spark.createDataFrame([], f"origin string, {schema}").withColumnRenamed("export_log_id", "log_id")
    columns = ",".join(field.strip().split(" ")[0] for field in declared.split(","))
    for source in sources:
        parts = [one for one in looked_at if one.origin == source.origin and one.origin.startswith(prefix)]
        if not parts:
            continue
        rows = (
            export(spark, _EXPORTED_AS.get(name, name), source)
            .option("columns", columns)
            .option("log_id", source.head.log_id.hex())
        )
        rows = rows.option("ranges", ",".join(f"{one.after}-{one.until}" for one in parts))
        found = found.unionByName(with_origin(rows.schema(schema).load(), source.origin))
    return found


def with_origin(rows: "DataFrame", origin: str) -> "DataFrame":
    """Rows of an export under the names that the lake has."""
    from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that

    return rows.withColumnRenamed("export_log_id", "log_id").withColumn("origin", F.lit(origin))


def export(spark: "SparkSession", name: str, source: Source) -> "DataFrameReader":
    """A reader of a source's export."""
    reader = spark.read.format("holdfast").option("url", source.place.url).option("table", name)
    reader = reader.option("patience_s", str(source.place.patience_s))
    return reader if source.place.token_file is None else reader.option("token_file", source.place.token_file)
