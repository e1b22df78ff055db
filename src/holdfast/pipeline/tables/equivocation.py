"""Two events under one sequence: a sender that says different things to different people, or a history that was forged."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that

from holdfast.pipeline.table import Writing, table
from holdfast.pipeline.tables._entry import key_of, text_of
from holdfast.pipeline.tables._finding import SCHEMA
from holdfast.pipeline.tables.sequence import accepted_sends

_SEND = ["origin", "mesh", "sender", "epoch", "sequence"]


def equivocations_name_their_entry(new_equivocation: DataFrame) -> DataFrame:
    """An equivocation has the position of the second event."""
    return new_equivocation.where(F.col("seq").isNull()).select("origin", "key")


@table(
    key=("origin", "kind", "key"),
    schema=SCHEMA,
    writing=Writing.APPEND,
    finds=True,
    invariant=equivocations_name_their_entry,
)
def equivocation(new_sequence: DataFrame, history: DataFrame) -> DataFrame:
    """Sends that have the sender, epoch and sequence of another send, and another event id."""
    # The past is read only for sequences that came a second time, which none does but after a relay was restored.
    repeated = new_sequence.where(F.col("what") == "repeated").withColumn("sequence", F.col("first"))
    if repeated.isEmpty():
        return repeated.sparkSession.createDataFrame([], SCHEMA)
    first = accepted_sends(history).select(
        *_SEND,
        F.col("log_id").alias("other_log_id"),
        F.col("seq").alias("other_seq"),
        F.col("event_id").alias("other_id"),
    )
    is_earlier = (F.col("other_log_id") != F.col("log_id")) | (F.col("other_seq") < F.col("seq"))
    pairs = repeated.join(first, on=_SEND, how="inner").where((F.col("other_id") != F.col("event_id")) & is_earlier)
    told = pairs.groupBy(*_SEND, "seq", "at", "event_id").agg(F.min("other_seq").alias("other_seq"))
    return told.select(
        "origin",
        F.lit("equivocation").alias("kind"),
        key_of("mesh", "sender", text_of("epoch"), "sequence", "seq").alias("key"),
        F.concat(
            F.lit("entry "),
            F.col("seq"),
            F.lit(" has the sequence of entry "),
            F.col("other_seq"),
            F.lit(" and another event"),
        ).alias("detail"),
        *("seq", "at"),
        F.lit(True).alias("is_violation"),
    )
