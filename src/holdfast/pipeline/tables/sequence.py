"""Which sequences of each sender's device epoch were used: runs without holes, merged with what a batch brings."""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType, TimestampType

from holdfast.pipeline.table import Writing, table
from holdfast.pipeline.tables._entry import of_relay

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
        StructField("what", StringType(), nullable=False),  # run, or repeated: a sequence that was used before
        *RUN,
        StructField("log_id", BinaryType()),  # of an entry that repeats
        StructField("seq", LongType()),
        StructField("at", TimestampType()),
        StructField("event_id", BinaryType()),
    ]
)
GROUP = ["origin", "mesh", "sender", "epoch", "claim"]
ACCEPTS = ("accepted", "receipt", "admin")


@table(key=(), schema=SCHEMA, writing=Writing.PASSING)
def sequence(old_sequence_run: DataFrame, new_history: DataFrame, new_anchor: DataFrame) -> DataFrame:
    """Sequences that relays accepted and devices were told of: as runs, and each that comes a second time."""
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
    """What a relay took of a device that counts."""
    is_send = of_relay() & F.col("kind").isin(*ACCEPTS) & F.col("epoch").isNotNull() & F.col("sequence").isNotNull()
    return history.where(is_send & F.col("mesh").isNotNull() & F.col("sender").isNotNull())


def _relayed(new_anchor: DataFrame) -> DataFrame:
    """What devices were told is accepted, as soon as the relay's history reaches so far."""
    met = (F.col("state") == "met") & F.col("epoch").isNotNull() & F.col("sequence").isNotNull()
    # A snapshot is an author's, not a device's: its entry at the relay names no sequence, so none is missed there.
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
    """Parts in the order of their sequences, each with the number of its run, and whether it lies in an earlier part."""
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
