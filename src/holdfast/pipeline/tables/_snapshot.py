"""Snapshots as entries tell of them, and which of a document's snapshots nothing dominates."""

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
IS_PRUNED = StructField("is_pruned", BooleanType(), nullable=False)  # the relay let go of it and knows its clock

_DETAIL = "author string, c string, created_at long, d string, kind long, o string, vc array<array<string>>"

CHUNK = 1_000
"""Positions of one document that are looked at together first, so that no task has to hold all of a busy one."""


def snapshots(entries: DataFrame) -> DataFrame:
    """The snapshots among entries. What is no snapshot, though it says so, breaks the chain and is told there."""
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
    """A clock out of pairs of texts."""
    return F.transform(pairs, lambda one: F.struct(one[0].alias("device"), one[1].try_cast("bigint").alias("counter")))


def covers(known: Column, other: Column) -> Column:
    """Whether a clock is as far as another for every device that the other names."""
    return F.forall(
        other,
        lambda one: F.exists(
            known, lambda mine: (mine["device"] == one["device"]) & (mine["counter"] >= one["counter"])
        ),
    )


def with_standing(rows: DataFrame) -> DataFrame:
    """Rows of documents with whether nothing else of their document dominates them."""
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
    """How many events a clock counts; who dominates another counts more."""
    return F.aggregate(clock, F.lit(0).cast("bigint"), lambda total, one: total + one["counter"])


def _seqs(clocked: Column) -> Column:
    return F.transform(clocked, lambda one: one["seq"])


def _frontier(clocked: Column) -> Column:
    """Those that no other covers. The greatest come first, so nothing that comes later can dominate what is kept.

    Of two with one clock, which is a deletion that was pruned and told anew, the newer one counts.
    """
    return F.aggregate(
        clocked,
        F.slice(clocked, 1, 0),
        lambda kept, one: F.when(F.exists(kept, lambda other: covers(other["clock"], one["clock"])), kept).otherwise(
            F.concat(kept, F.array(one))
        ),
    )
