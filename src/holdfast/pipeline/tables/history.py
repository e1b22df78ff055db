"""The entries of all histories, as they were read. Every other table is computed from this one."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DateType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from holdfast.pipeline import few
from holdfast.pipeline.table import Batch, Table, Writing

OUTCOME = StructType([StructField("member", StringType()), StructField("outcome", StringType())])

SCHEMA = StructType(
    [
        StructField("origin", StringType(), nullable=False),
        StructField("log_id", BinaryType(), nullable=False),
        StructField("seq", LongType(), nullable=False),
        StructField("at", TimestampType(), nullable=False),
        StructField("kind", StringType(), nullable=False),
        StructField("mesh", StringType()),
        StructField("message_id", StringType()),
        StructField("client_message_id", StringType()),
        StructField("sender", StringType()),
        StructField("epoch", BinaryType()),
        StructField("sequence", LongType()),
        StructField("recipient", StringType()),
        StructField("recipients", ArrayType(OUTCOME), nullable=False),
        StructField("mentions", ArrayType(StringType()), nullable=False),
        StructField("destination_kind", StringType()),
        StructField("destination_ref", StringType()),
        StructField("event_id", BinaryType()),
        StructField("size", LongType()),
        StructField("was_stored", BooleanType()),
        StructField("reason", StringType()),
        StructField("detail", BinaryType(), nullable=False),
        StructField("chain", BinaryType(), nullable=False),
        StructField("day", DateType(), nullable=False),  # of `at`, in UTC; monotone with seq
    ]
)


_WORD = 64
"""How many positions are the bits of one number: to count distinct positions one by one would take longer than most tables."""


def positions_are_dense(new_history: DataFrame, batch: Batch) -> DataFrame:
    """A batch has every position of the ranges that it reads, each once, and no other."""
    read = [(one.origin, one.log_id, one.after + 1, one.until) for one in batch.ranges if one.after < one.until]
    wanted = few.listed(new_history.sparkSession, read, "origin string, log_id binary, first_seq long, last_seq long")
    bit = F.call_function("shiftleft", F.lit(1).cast("bigint"), F.col("seq").bitwiseAND(_WORD - 1).cast("int"))
    words = new_history.groupBy("origin", "log_id", F.col("seq").bitwiseAND(-_WORD).alias("word")).agg(
        F.min("seq").alias("first"),
        F.max("seq").alias("last"),
        F.count("seq").alias("entries"),
        F.bit_or(bit).alias("bits"),
    )
    found = words.groupBy("origin", "log_id").agg(
        F.min("first").alias("found_first_seq"),
        F.max("last").alias("found_last_seq"),
        F.sum("entries").alias("entries"),
        F.sum(F.bit_count("bits")).alias("positions"),
    )
    width = F.col("last_seq") - F.col("first_seq") + 1
    is_whole = (
        (F.col("found_first_seq") == F.col("first_seq"))
        & (F.col("found_last_seq") == F.col("last_seq"))
        & (F.col("entries") == width)
        & (F.col("positions") == width)
    )
    return wanted.join(found, on=["origin", "log_id"], how="full_outer").where(~F.coalesce(is_whole, F.lit(False)))


history = Table(
    name="history",
    meaning="One row per entry of a history, as it was exported.",
    key=("origin", "log_id", "seq"),
    schema=SCHEMA,
    writing=Writing.APPEND,
    function=None,  # it is taken over as it is: nothing is computed
    partition_by="day",
    invariant=positions_are_dense,
)
