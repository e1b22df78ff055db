"""Two events under one sequence: their sender tells different things to different people, or a history was forged."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that

from holdfast.pipeline import few
from holdfast.pipeline.table import Writing, table
from holdfast.pipeline.tables._entry import key_of, text_of
from holdfast.pipeline.tables._finding import SCHEMA
from holdfast.pipeline.tables.anchor import kept_anchors
from holdfast.pipeline.tables.sequence import accepted_sends

_SEND = ["origin", "mesh", "sender", "epoch", "sequence"]
_KNOWN = [*_SEND, "log_id", "seq", "at", "event_id", "relay_log_id"]


def equivocations_name_their_entry(new_equivocation: DataFrame) -> DataFrame:
    """A finding names the position of the second event."""
    return new_equivocation.where(F.col("seq").isNull()).select("origin", "key")


@table(
    key=("origin", "kind", "key"),
    schema=SCHEMA,
    writing=Writing.APPEND,
    finds=True,
    invariant=equivocations_name_their_entry,
)
def equivocation(new_sequence: DataFrame, history: DataFrame) -> DataFrame:
    """Findings: sends with the sender, epoch and sequence of an earlier send but another event id, by a relay's or a device's history."""
    # Only for sequences that came a second time the past is read; without a restore there are none.
    repeated = new_sequence.where(F.col("what") == "repeated").withColumn("sequence", F.col("first"))
    if repeated.isEmpty():
        return few.listed(repeated.sparkSession, [], SCHEMA)
    sends = _accepted(history).unionByName(_relayed(history))
    again = sends.join(repeated.select("log_id", "seq", "event_id"), on=["log_id", "seq", "event_id"], how="left_semi")
    return _told(_pairs(again, sends))


def _accepted(history: DataFrame) -> DataFrame:
    return accepted_sends(history).withColumn("relay_log_id", F.lit(None).cast("binary")).select(*_KNOWN)


def _relayed(history: DataFrame) -> DataFrame:
    """The sends by the histories of devices. After a restore a device may seal a send anew, so each log of a relay counts by itself."""
    return kept_anchors(history).select(*_KNOWN)


def _pairs(again: DataFrame, sends: DataFrame) -> DataFrame:
    """Each send that came again, with the earlier ones of its sequence that have another event."""
    others = {"log_id": "other_log_id", "seq": "other_seq", "event_id": "other_id", "relay_log_id": "other_relay"}
    other = sends.select(*_SEND, *(F.col(name).alias(alias) for name, alias in others.items()))
    is_earlier = (F.col("other_log_id") != F.col("log_id")) | (F.col("other_seq") < F.col("seq"))
    is_unlike = (F.col("other_id") != F.col("event_id")) & F.col("other_relay").eqNullSafe(F.col("relay_log_id"))
    return again.join(other, on=_SEND, how="inner").where(is_earlier & is_unlike)


def _told(pairs: DataFrame) -> DataFrame:
    told = pairs.groupBy(*_SEND, "log_id", "seq", "at", "event_id").agg(F.min("other_seq").alias("other_seq"))
    return told.select(
        "origin",
        F.lit("equivocation").alias("kind"),
        key_of("mesh", "sender", text_of("epoch"), "sequence", text_of("log_id"), "seq").alias("key"),
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
