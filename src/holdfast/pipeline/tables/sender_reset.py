"""Finds senders that began a new epoch, because a device was restored or lost its log. That is no violation."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that

from holdfast.pipeline.table import Writing, table
from holdfast.pipeline.tables._entry import key_of, of_device, text_of
from holdfast.pipeline.tables._finding import SCHEMA
from holdfast.pipeline.tables.sequence import accepted_sends

_SENDER = ["origin", "mesh", "sender"]


def resets_are_told_once(new_sender_reset: DataFrame) -> DataFrame:
    """An epoch begins once in a history."""
    return new_sender_reset.groupBy("origin", "key").count().where(F.col("count") > 1)


@table(
    key=("origin", "kind", "key"),
    schema=SCHEMA,
    writing=Writing.APPEND,
    finds=True,
    invariant=resets_are_told_once,
)
def sender_reset(old_sequence_run: DataFrame, new_history: DataFrame) -> DataFrame:
    """Findings: the first send of a sender's second and every later epoch, and devices that say that they were restored."""
    began = (
        accepted_sends(new_history).groupBy(*_SENDER, "epoch").agg(F.min("seq").alias("seq"), F.min("at").alias("at"))
    )
    known = old_sequence_run.where(F.col("claim") == "accepted").select(*_SENDER, "epoch").distinct()
    fresh = began.join(known, on=[*_SENDER, "epoch"], how="left_anti")
    earlier = known.select(*_SENDER).distinct().withColumn("is_known", F.lit(True))
    order = Window.partitionBy(*_SENDER).orderBy("seq")
    ranked = fresh.join(earlier, on=_SENDER, how="left").withColumn("place", F.row_number().over(order))
    resets = ranked.where(F.col("is_known") | (F.col("place") > 1))
    return _seen_by_relay(resets).unionByName(_told_by_device(new_history))


def _seen_by_relay(resets: DataFrame) -> DataFrame:
    return resets.select(
        "origin",
        F.lit("sender_reset").alias("kind"),
        key_of("mesh", "sender", text_of("epoch")).alias("key"),
        F.lit("the sender's device goes on under a new epoch").alias("detail"),
        *("seq", "at"),
        F.lit(False).alias("is_violation"),
    )


def _told_by_device(new_history: DataFrame) -> DataFrame:
    restored = new_history.where(of_device() & (F.col("kind") == "restored") & F.col("epoch").isNotNull())
    return restored.select(
        "origin",
        F.lit("sender_reset").alias("kind"),
        text_of("epoch").alias("key"),
        F.lit("the device's log was restored and goes on under a new epoch").alias("detail"),
        *("seq", "at"),
        F.lit(False).alias("is_violation"),
    )
