"""Compares the operation logs of devices with their histories: every send is there, with the status that the history says."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that

from holdfast.pipeline.table import Batch
from holdfast.pipeline.tables._entry import device_member, device_mesh, key_of, of_device

_SEND = ["origin", "sequence"]
_STATUSES = {"relayed": "done", "dead": "dead", "aborted": "aborted"}


def told_by_all(entries: DataFrame) -> DataFrame:
    """The status of every send by a whole history. A dead or aborted one stays so, whatever answer comes later."""
    sends = entries.where(of_device() & F.col("sequence").isNotNull())
    is_lost = (F.col("kind") == "attempted") & F.col("reason").eqNullSafe("rolled_back")
    moves = F.when((F.col("kind") == "enqueued") | is_lost, "pending").when(F.col("kind") == "relayed", "done")
    moved_seq = F.when(moves.isNotNull(), F.col("seq"))
    status = (
        F.when(F.max(F.col("kind") == "aborted"), "aborted")
        .when(F.max(F.col("kind") == "dead"), "dead")
        .otherwise(F.max_by(moves, moved_seq))
    )
    is_enqueued = F.col("kind") == "enqueued"
    return (
        sends.groupBy(*_SEND)
        .agg(
            F.max(F.when(is_enqueued, F.col("client_message_id"))).alias("client_message_id"),
            F.max(F.when(is_enqueued, F.col("seq"))).alias("seq"),
            F.max(F.when(is_enqueued, F.col("at"))).alias("at"),
            status.alias("status"),
        )
        .where(F.col("seq").isNotNull())
    )


def told_by_batch(new_sender: DataFrame, batch: Batch) -> DataFrame:
    """The status of the sends that a batch enqueued or settled; late answers change nothing."""
    is_new = F.lit(False)
    for one in batch.ranges:
        is_new = is_new | ((F.col("origin") == one.origin) & (F.col("enqueued_seq") > one.after))
    is_settled = (F.col("state") == "closed") & (F.col("status") != "rolled_back") & ~F.col("is_late")
    touched = new_sender.where(is_settled | ((F.col("state") == "open") & is_new))
    settled = F.create_map(*(F.lit(text) for pair in _STATUSES.items() for text in pair))[F.col("status")]
    now = F.struct(
        "client_message_id", "enqueued_seq", "enqueued_at", F.coalesce(settled, F.lit("pending")).alias("status")
    )
    last = touched.groupBy(*_SEND).agg(F.max_by(now, "enqueued_seq").alias("now"))
    return last.select(
        *_SEND,
        F.col("now.client_message_id").alias("client_message_id"),
        F.col("now.enqueued_seq").alias("seq"),
        F.col("now.enqueued_at").alias("at"),
        F.col("now.status").alias("status"),
    )


def operation_orphans(
    expected: DataFrame, state_operation: DataFrame, later_entry: DataFrame, looked_at: DataFrame
) -> DataFrame:
    """Findings: sends that an operation log lacks, or has with another status than the history."""
    in_hand = F.when(F.col("status") == "inflight", "pending").otherwise(F.col("status"))
    found = state_operation.select(*_SEND, F.col("client_message_id").alias("found_id"), in_hand.alias("found_status"))
    later = later_entry.where(F.col("sequence").isNotNull()).select(*_SEND).distinct()
    met = expected.join(found, on=_SEND, how="left").join(later, on=_SEND, how="left_anti")
    seen = met.join(F.broadcast(looked_at.select("origin").distinct()), on="origin", how="left_semi")
    wrong = seen.withColumn("wrong", _wrong()).where(F.col("wrong").isNotNull())
    detail = F.when(
        F.col("wrong") == "missing", "the history says that it was written down, and it is not there"
    ).otherwise(F.concat(F.lit("it is "), F.col("found_status"), F.lit(", and the history says "), F.col("status")))
    return wrong.select(
        "origin",
        F.concat(F.lit("operation_"), F.col("wrong")).alias("kind"),
        key_of(device_mesh("origin"), device_member("origin"), "sequence").alias("key"),
        F.concat(F.lit("send "), F.col("sequence"), F.lit(": "), detail).alias("detail"),
        *("seq", "at"),
        F.lit(True).alias("is_violation"),
    )


def _wrong() -> Column:
    differs = (F.col("found_id") != F.col("client_message_id")) | (F.col("found_status") != F.col("status"))
    return F.when(F.col("found_id").isNull(), "missing").when(differs, "differs")
