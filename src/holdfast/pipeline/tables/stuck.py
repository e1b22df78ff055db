"""Deliveries and sends that wait, counted by member and cause."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from holdfast.pipeline.table import Batch, Writing, table
from holdfast.pipeline.tables._entry import device_member, device_mesh
from holdfast.protocol.schedule import DAY

OVERDUE_AFTER = 8 * DAY  # a queue's week, and a day for the sweep

SCHEMA = StructType(
    [
        StructField("origin", StringType(), nullable=False),
        StructField("mesh", StringType()),
        StructField("member", StringType()),  # who would receive, or whose device would send
        StructField("cause", StringType(), nullable=False),
        StructField("count", LongType(), nullable=False),
        StructField("oldest_at", TimestampType()),
        StructField("newest_at", TimestampType()),
    ]
)
KEY = ("origin", "mesh", "member", "cause")


def everything_open_has_a_cause(stuck: DataFrame, fate_open: DataFrame, sender_open: DataFrame) -> DataFrame:
    """The counts add up to the number of open deliveries and sends."""
    told = stuck.agg(F.coalesce(F.sum("count"), F.lit(0)).alias("told"))
    waiting = fate_open.select("origin").unionByName(sender_open.select("origin")).agg(F.count("origin").alias("open"))
    return told.crossJoin(waiting).where(F.col("told") != F.col("open"))


@table(key=KEY, schema=SCHEMA, writing=Writing.REPLACE, sort_by=KEY, invariant=everything_open_has_a_cause)
def stuck(fate_open: DataFrame, sender_open: DataFrame, batch: Batch) -> DataFrame:
    """One row per member and cause of waiting: recipient away, passed over, overdue, or why sends failed; with count and times."""
    overdue_at = F.timestamp_micros(F.lit(batch.at - OVERDUE_AFTER))
    waiting = fate_open.select(
        *("origin", "mesh"),
        F.col("recipient").alias("member"),
        F.when(F.col("accepted_at") < overdue_at, "overdue")
        .when(F.col("passed_over"), "passed_over")
        .otherwise("recipient_away")
        .alias("cause"),
        F.col("accepted_at").alias("since"),
    )
    unsent = sender_open.select(
        "origin",
        F.coalesce("mesh", device_mesh("origin")).alias("mesh"),
        device_member("origin").alias("member"),
        F.concat(F.lit("unsent:"), F.coalesce("last_reason", F.lit("not_tried"))).alias("cause"),
        F.col("enqueued_at").alias("since"),
    )
    counted = waiting.unionByName(unsent).groupBy(*KEY)
    return counted.agg(
        F.count("since").alias("count"), F.min("since").alias("oldest_at"), F.max("since").alias("newest_at")
    ).select(*SCHEMA.fieldNames())
