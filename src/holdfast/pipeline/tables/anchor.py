"""The anchors that relays signed for devices: those that can be compared with the relay's history now, and those that wait for it."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType, TimestampType

from holdfast.pipeline.table import Writing, table
from holdfast.pipeline.tables._entry import device_member, device_mesh, number_at, of_device
from holdfast.pipeline.tables.extent import began_frame

ANCHOR_BYTES = 120  # log id, position, chain, signature

KEPT = [
    StructField("origin", StringType(), nullable=False),  # the device
    StructField("log_id", BinaryType(), nullable=False),
    StructField("seq", LongType(), nullable=False),  # of its `relayed` entry
    StructField("at", TimestampType(), nullable=False),
    StructField("mesh", StringType(), nullable=False),
    StructField("sender", StringType(), nullable=False),
    StructField("epoch", BinaryType()),
    StructField("sequence", LongType()),
    StructField("destination_kind", StringType()),
    StructField("event_id", BinaryType()),
    StructField("relay_log_id", BinaryType(), nullable=False),
    StructField("relay_seq", LongType(), nullable=False),
    StructField("relay_chain", BinaryType(), nullable=False),
    StructField("signature", BinaryType(), nullable=False),
]
SCHEMA = StructType(
    [
        StructField("state", StringType(), nullable=False),  # met: the lake has the relay's entry; open: not yet
        *KEPT,
        StructField("relay_origin", StringType()),
    ]
)


@table(key=(), schema=SCHEMA, writing=Writing.PASSING)
def anchor(old_anchor_open: DataFrame, extent: DataFrame, new_history: DataFrame) -> DataFrame:
    """One row per anchor that a device kept: it can be checked in this batch, or waits for the relay's history."""
    kept = [field.name for field in KEPT]
    both = old_anchor_open.select(*kept).unionByName(kept_anchors(new_history).select(*kept))
    joined = both.join(F.broadcast(_relay_logs(extent)), on="relay_log_id", how="left")
    # An anchor past a fork is void: the restored relay never had that entry. One before the lake's first entry cannot be checked.
    counts = F.coalesce(F.col("relay_seq") <= F.col("valid_until"), F.lit(True)) & F.coalesce(
        F.col("relay_seq") >= F.col("began_seq"), F.lit(True)
    )
    is_met = F.coalesce(F.col("relay_seq") <= F.col("reached_seq"), F.lit(False))
    state = F.when(is_met, "met").otherwise("open").alias("state")
    return joined.where(counts).select(state, *kept, "relay_origin")


def kept_anchors(history: DataFrame) -> DataFrame:
    """The anchors in the `relayed` entries of devices: what a relay signed when it accepted a send."""
    relayed = history.where(of_device() & (F.col("kind") == "relayed") & (F.octet_length("detail") == ANCHOR_BYTES))
    return relayed.select(
        *("origin", "log_id", "seq", "at"),
        device_mesh("origin").alias("mesh"),
        device_member("origin").alias("sender"),
        *("epoch", "sequence", "destination_kind", "event_id"),
        F.substring("detail", 1, 16).alias("relay_log_id"),
        F.coalesce(number_at("detail", 17), F.lit(0)).alias("relay_seq"),
        F.substring("detail", 25, 32).alias("relay_chain"),
        F.substring("detail", 57, 64).alias("signature"),
    )


def _relay_logs(extent: DataFrame) -> DataFrame:
    """Every log of a relay whose id is known, and how far the lake has read that relay's history."""
    relays = extent.where(F.col("origin").startswith("relay:"))
    reached = relays.groupBy("origin").agg(
        F.max(F.least("last_seq", "valid_until")).alias("reached_seq"),  # `least` passes over a null
    )
    known = relays.join(reached, on="origin", how="inner").join(began_frame(extent), on="origin", how="left")
    return known.select(
        F.col("origin").alias("relay_origin"),
        F.col("log_id").alias("relay_log_id"),
        *("valid_until", "began_seq", "reached_seq"),
    )
