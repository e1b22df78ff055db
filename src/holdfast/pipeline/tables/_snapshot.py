"""Snapshots, read out of entries, and which of a document's snapshots no other one dominates."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from holdfast.pipeline.tables._entry import bucket, number_at, of_relay, utf8

DOCUMENT = ["origin", "author", "d"]

CLOCK = ArrayType(StructType([StructField("device", StringType()), StructField("counter", LongType())]))
SAID = StructType(
    [
        StructField("bucket", IntegerType(), nullable=False),
        StructField("origin", StringType(), nullable=False),
        StructField("author", StringType(), nullable=False),
        StructField("d", StringType(), nullable=False),
        StructField("seq", LongType(), nullable=False),
        StructField("event_id", BinaryType(), nullable=False),
        StructField("kind", LongType(), nullable=False),
        StructField("o", StringType(), nullable=False),  # put or del
        StructField("c", StringType()),
        StructField("clock", CLOCK, nullable=False),
        StructField("created_at", LongType(), nullable=False),  # s, as the author says
        StructField("accepted_at", TimestampType(), nullable=False),
        StructField("size", LongType(), nullable=False),
    ]
)
IS_PRUNED = StructField("is_pruned", BooleanType(), nullable=False)  # the relay has deleted it and keeps its clock

_DETAIL = "author string, c string, created_at long, d string, kind long, o string, vc array<array<string>>"

CHUNK = 1_000
"""How many positions of a document are compared at once at first, so that no task holds all snapshots of a busy document."""


def snapshots(entries: DataFrame) -> DataFrame:
    """The snapshots among entries. An entry whose detail is no snapshot is left out: `chain_break` finds it."""
    told = entries.where(of_relay() & (F.col("kind") == "snapshot")).select(
        *("origin", "seq", "event_id", "size"),
        F.col("at").alias("accepted_at"),
        F.from_json(F.col("detail").cast("string"), _DETAIL).alias("said"),
    )
    said = told.where(F.col("said.author").isNotNull() & F.col("said.d").isNotNull()).select(
        *("origin", "seq", "event_id", "size", "accepted_at"),
        *(F.col(f"said.{name}").alias(name) for name in ("author", "c", "created_at", "d", "kind", "o")),
        clock_of(F.col("said.vc")).alias("clock"),
    )
    return said.withColumn("bucket", bucket(*DOCUMENT)).select(*SAID.fieldNames())


def prunings(entries: DataFrame) -> DataFrame:
    """Per pruned document: the position up to which all rows are gone, and that up to which superseded rows are gone."""
    told = entries.where(of_relay() & (F.col("kind") == "compacted") & F.col("reason").isin("deleted", "superseded"))
    last_seq, name = number_at("detail", 1), F.substring("detail", 9, 1 << 20)
    return told.groupBy(
        "origin",
        F.col("destination_ref").alias("author"),
        F.coalesce(utf8(name), F.hex(name)).alias("d"),
    ).agg(
        F.max(F.when(F.col("reason") == "deleted", last_seq)).alias("pruned_until"),
        F.max(last_seq).alias("thinned_until"),
    )


def clock_of(pairs: Column) -> Column:
    """A vector clock made of pairs of device and counter, both text."""
    return F.transform(pairs, lambda one: F.struct(one[0].alias("device"), one[1].try_cast("bigint").alias("counter")))


def covers(known: Column, other: Column) -> Column:
    """Whether a clock is at least as far as another for every device that the other one names."""
    return F.forall(
        other,
        lambda one: F.exists(
            known, lambda mine: (mine["device"] == one["device"]) & (mine["counter"] >= one["counter"])
        ),
    )


def with_standing(rows: DataFrame) -> DataFrame:
    """The rows with `is_current`: whether no other row of the same document dominates it."""
    one = F.struct(*rows.columns)
    placed = rows.select(
        *DOCUMENT,
        F.floor(F.col("seq") / CHUNK).alias("chunk"),
        F.struct((-_events("clock")).alias("behind"), (-F.col("seq")).alias("older"), "seq", "clock").alias("clocked"),
        one.alias("one"),
    )
    parts = placed.groupBy(*DOCUMENT, "chunk").agg(
        F.collect_list("one").alias("ones"), _frontier(F.sort_array(F.collect_list("clocked"))).alias("kept")
    )
    documents = parts.select(*DOCUMENT, F.explode("kept").alias("clocked")).groupBy(*DOCUMENT)
    current = documents.agg(_seqs(_frontier(F.sort_array(F.collect_list("clocked")))).alias("current"))
    exploded = parts.select(*DOCUMENT, F.explode("ones").alias("one"))
    joined = exploded.join(current, on=DOCUMENT, how="inner")
    return joined.select("one.*", F.array_contains("current", F.col("one.seq")).alias("is_current"))


def _events(clock: str) -> Column:
    """The sum of a clock's counters: a clock that dominates another has the greater sum."""
    return F.aggregate(clock, F.lit(0).cast("bigint"), lambda total, one: total + one["counter"])


def _seqs(clocked: Column) -> Column:
    return F.transform(clocked, lambda one: one["seq"])


def _frontier(clocked: Column) -> Column:
    """The clocks that no other one covers. They come by descending sum, so none can dominate one that was kept before.

    Two are equal where a deletion was pruned and published anew: the newer one comes first and is kept.
    """
    return F.aggregate(
        clocked,
        F.slice(clocked, 1, 0),
        lambda kept, one: F.when(F.exists(kept, lambda other: covers(other["clock"], one["clock"])), kept).otherwise(
            F.concat(kept, F.array(one))
        ),
    )
