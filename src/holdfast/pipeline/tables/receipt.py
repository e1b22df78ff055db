"""The receipts that recipients signed. Queries join them with fates."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DateType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from holdfast.pipeline.table import Writing, table
from holdfast.pipeline.tables._entry import day_of, of_relay, utf8
from holdfast.protocol.receipt import MESSAGE_ID_BYTES, ReceiptStatus

SCHEMA = StructType(
    [
        StructField("origin", StringType(), nullable=False),
        StructField("log_id", BinaryType(), nullable=False),
        StructField("seq", LongType(), nullable=False),
        StructField("at", TimestampType(), nullable=False),
        StructField("mesh", StringType(), nullable=False),
        StructField("message_id", StringType(), nullable=False),  # the receipt's own at the relay
        StructField("receipt_event_id", BinaryType()),
        StructField("recipient", StringType(), nullable=False),  # of the message: who signed
        StructField("sender", StringType()),  # of the message: who is told
        StructField("pubkey", StringType()),
        StructField("line", LongType(), nullable=False),  # from 0, in the order of the receipt
        StructField("event_id", BinaryType()),  # of the message
        StructField("was_stored", BooleanType()),
        StructField("status", StringType()),
        StructField("day", DateType(), nullable=False),  # of `at`, UTC
    ]
)
EVENT = "id STRING, pubkey STRING, tags ARRAY<ARRAY<STRING>>"
STATUSES = [status.value for status in ReceiptStatus]


def lines_can_be_read(new_receipt: DataFrame) -> DataFrame:
    """A line has an event id of 32 bytes, `was_stored` and a status, and a receipt names an event once."""
    is_readable = (
        (F.octet_length("event_id") == MESSAGE_ID_BYTES)
        & F.col("was_stored").isNotNull()
        & F.col("status").isin(*STATUSES)
    )
    twice = new_receipt.groupBy("origin", "log_id", "seq", "event_id").count().where(F.col("count") > 1)
    unread = new_receipt.where(~F.coalesce(is_readable, F.lit(False)))
    return unread.select("origin", "seq").unionByName(twice.select("origin", "seq"))


@table(
    key=("origin", "log_id", "seq", "line"),
    schema=SCHEMA,
    writing=Writing.APPEND,
    partition_by="day",
    sort_by=("origin", "seq", "line"),
    invariant=lines_can_be_read,
)
def receipt(new_history: DataFrame) -> DataFrame:
    """One row per line of a receipt that a relay accepted: a message that the recipient got, and what became of it."""
    receipts = new_history.where(of_relay() & (F.col("kind") == "receipt"))
    event = F.from_json(utf8("detail"), EVENT)
    read = receipts.withColumn("event", event)
    lines = F.filter(F.coalesce("event.tags", F.array().cast("array<array<string>>")), lambda tag: F.get(tag, 0) == "r")
    exploded = read.select("*", F.posexplode(lines).alias("line", "tag"))
    truth = F.get("tag", 2)
    return exploded.select(
        *("origin", "log_id", "seq", "at", "mesh", "message_id"),
        F.col("event_id").alias("receipt_event_id"),
        F.col("sender").alias("recipient"),
        F.col("destination_ref").alias("sender"),
        F.col("event.pubkey").alias("pubkey"),
        F.col("line").cast("bigint").alias("line"),
        F.unhex(F.get("tag", 1)).alias("event_id"),
        F.when(truth == "true", True).when(truth == "false", False).alias("was_stored"),
        F.get("tag", 3).alias("status"),
        day_of("at").alias("day"),
    )
