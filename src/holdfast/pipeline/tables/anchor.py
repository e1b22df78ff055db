"""The relay's signed anchors that devices kept: those that can be held against its history now, and those that cannot yet."""

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
        StructField("state", StringType(), nullable=False),  # open: the relay's history does not reach so far; met
        *KEPT,
        StructField("relay_origin", StringType()),
    ]
)


@table(key=(), schema=SCHEMA, writing=Writing.PASSING)
def anchor(old_anchor_open: DataFrame, extent: DataFrame, new_history: DataFrame) -> DataFrame:
    """What relays signed for devices: what this batch can check, and what waits for the relay's history."""
    kept = [field.name for field in KEPT]
    both = old_anchor_open.select(*kept).unionByName(kept_anchors(new_history).select(*kept))
    joined = both.join(F.broadcast(_relay_logs(extent)), on="relay_log_id", how="left")
    # What a restored relay never saw is void, and what was pruned before the lake began cannot be checked any more.
    counts = F.coalesce(F.col("relay_seq") <= F.col("valid_until"), F.lit(True)) & F.coalesce(
        F.col("relay_seq") >= F.col("began_seq"), F.lit(True)
    )
    is_met = F.coalesce(F.col("relay_seq") <= F.col("reached_seq"), F.lit(False))
    state = F.when(is_met, "met").otherwise("open").alias("state")
    return joined.where(counts).select(state, *kept, "relay_origin")


def kept_anchors(history: DataFrame) -> DataFrame:
    """What devices tell of the relay's yes, with its signature."""
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
    """Every log of a relay that is known by name, and how far its relay's history is known at all."""
    relays = extent.where(F.col("origin").startswith("relay:"))
    reached = relays.groupBy("origin").agg(
        F.max(F.least("last_seq", "valid_until")).alias("reached_seq"),  # of two the lesser that is known
    )
    known = relays.join(reached, on="origin", how="inner").join(began_frame(extent), on="origin", how="left")
    return known.select(
        F.col("origin").alias("relay_origin"),
        F.col("log_id").alias("relay_log_id"),
        *("valid_until", "began_seq", "reached_seq"),
    )
