"""The sequences that each sender used in an epoch, as runs without holes, with those that a batch brings."""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType, TimestampType

from holdfast.pipeline.table import Writing, table
from holdfast.pipeline.tables._entry import known_sequence, of_relay

RUN = [
    StructField("origin", StringType(), nullable=False),  # the relay
    StructField("mesh", StringType(), nullable=False),
    StructField("sender", StringType(), nullable=False),
    StructField("epoch", BinaryType(), nullable=False),
    StructField("claim", StringType(), nullable=False),  # accepted: the relay's history; relayed: the device's
    StructField("first", LongType(), nullable=False),
    StructField("last", LongType(), nullable=False),
]
SCHEMA = StructType(
    [
        StructField("what", StringType(), nullable=False),  # run; repeated: an entry whose sequence was used before
        *RUN,
        StructField("log_id", BinaryType()),  # of a repeated entry
        StructField("seq", LongType()),
        StructField("at", TimestampType()),
        StructField("event_id", BinaryType()),
    ]
)
GROUP = ["origin", "mesh", "sender", "epoch", "claim"]
ACCEPTS = ("accepted", "receipt", "admin")


@table(key=(), schema=SCHEMA, writing=Writing.PASSING)
def sequence(old_sequence_run: DataFrame, new_history: DataFrame, new_anchor: DataFrame) -> DataFrame:
    """One row per run of sequences that a relay accepted or a device was told are accepted, and one per entry that repeats one."""
    singles = accepted_sends(new_history).select(
        *("origin", "mesh", "sender", "epoch"),
        F.lit("accepted").alias("claim"),
        F.col("sequence").alias("first"),
        F.col("sequence").alias("last"),
        *("log_id", "seq", "at", "event_id"),
    )
    known = old_sequence_run.select(*GROUP, "first", "last", *_no_entry())
    walked = _walked(known.unionByName(singles).unionByName(_relayed(new_anchor)))
    runs = walked.groupBy(*GROUP, "run").agg(F.min("first").alias("first"), F.max("last").alias("last"))
    told = runs.select(F.lit("run").alias("what"), *GROUP, "first", "last", *_no_entry())
    repeated = walked.where(F.col("is_repeated") & F.col("seq").isNotNull())
    return told.unionByName(repeated.select(F.lit("repeated").alias("what"), *SCHEMA.fieldNames()[1:]))


def accepted_sends(history: DataFrame) -> DataFrame:
    """The entries of sends that a relay accepted, as far as they have a sender, an epoch and a sequence that a send can have."""
    is_send = (
        of_relay() & F.col("kind").isin(*ACCEPTS) & F.col("epoch").isNotNull() & known_sequence("sequence").isNotNull()
    )
    return history.where(is_send & F.col("mesh").isNotNull() & F.col("sender").isNotNull())


def _relayed(new_anchor: DataFrame) -> DataFrame:
    """The sequences that devices were told are accepted, once the relay's history is read that far."""
    met = (F.col("state") == "met") & F.col("epoch").isNotNull() & known_sequence("sequence").isNotNull()
    # The relay's entry of a snapshot names no sequence, so that one would be missed there.
    counts = ~F.col("destination_kind").eqNullSafe("feed")
    return new_anchor.where(met & counts).select(
        F.col("relay_origin").alias("origin"),
        *("mesh", "sender", "epoch"),
        F.lit("relayed").alias("claim"),
        F.col("sequence").alias("first"),
        F.col("sequence").alias("last"),
        *("log_id", "seq", "at", "event_id"),
    )


def _walked(parts: DataFrame) -> DataFrame:
    """Runs and single sequences in order, each with the number of the run it belongs to, and whether an earlier one holds it."""
    order = Window.partitionBy(*GROUP).orderBy("first", F.col("seq").asc_nulls_first(), "last")
    before = order.rowsBetween(Window.unboundedPreceding, -1)
    reached = F.max("last").over(before)
    begins = F.coalesce((F.col("first") > reached + 1).cast("int"), F.lit(1))
    marked = parts.select(
        "*", begins.alias("begins"), F.coalesce(F.col("first") <= reached, F.lit(False)).alias("is_repeated")
    )
    return marked.withColumn("run", F.sum("begins").over(order.rowsBetween(Window.unboundedPreceding, 0)))


def _no_entry() -> list[Column]:
    nothing = {"log_id": "binary", "seq": "bigint", "at": "timestamp", "event_id": "binary"}
    return [F.lit(None).cast(kind).alias(name) for name, kind in nothing.items()]
