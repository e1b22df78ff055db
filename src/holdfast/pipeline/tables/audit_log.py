"""Who decided what: administration, moderation, requeues, and logs that were restored or pruned."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that
from pyspark.sql.types import BinaryType, DateType, LongType, StringType, StructField, StructType, TimestampType

from holdfast.pipeline.table import Writing, table
from holdfast.pipeline.tables._entry import day_of, device_member, of_device, of_relay, utf8

SCHEMA = StructType(
    [
        StructField("day", DateType(), nullable=False),  # of `at`, UTC
        StructField("origin", StringType(), nullable=False),
        StructField("log_id", BinaryType(), nullable=False),
        StructField("seq", LongType(), nullable=False),
        StructField("at", TimestampType(), nullable=False),
        StructField("mesh", StringType()),
        StructField("actor", StringType()),  # a member, an operator's key, or null where the program did it itself
        StructField("action", StringType(), nullable=False),
        StructField("subject", StringType()),  # a member, a topic, a message
        StructField("detail", StringType()),  # as it was asked for
    ]
)
_OWN = ("restored", "pruned", "register_consumer")
"""Actions that a program takes by itself."""

_ASKED = "action STRING, member STRING, topic STRING, name STRING, invite STRING, author STRING"


def decisions_are_named(new_audit_log: DataFrame) -> DataFrame:
    """A decision in a mesh has an actor, and no action is unknown."""
    is_asked = ~F.col("action").isin(*_OWN)
    is_wrong = (F.col("action") == "unknown") | (is_asked & F.col("actor").isNull())
    return new_audit_log.where(F.coalesce(is_wrong, F.lit(True))).select("origin", "seq")


@table(
    key=("origin", "log_id", "seq"),
    schema=SCHEMA,
    writing=Writing.APPEND,
    partition_by="day",
    sort_by=("origin", "seq"),
    kinds=("admin", "moderated", "restored", "pruned", "aborted"),
    invariant=decisions_are_named,
)
def audit_log(new_history: DataFrame) -> DataFrame:
    """One row per decision of a person or a program about what others may do, see or lose."""
    decisions = _decisions()
    told = new_history.where(reduce(or_, (one.is_so for one in decisions)))
    asked = F.when(F.col("kind") == "admin", F.from_json(utf8("detail"), _ASKED))
    return told.withColumn("asked", asked).select(
        *(day_of("at").alias("day"), "origin", "log_id", "seq", "at", "mesh"),
        *(_of_whichever(decisions, name).alias(name) for name in ("actor", "action", "subject", "detail")),
    )


@dataclass(frozen=True)
class _Decision:
    """One sort of decision: which entries tell of it, and where in them its parts are."""

    is_so: Column
    action: Column
    actor: Column
    subject: Column
    detail: Column


def _of_whichever(decisions: Sequence[_Decision], name: str) -> Column:
    return F.coalesce(*(F.when(one.is_so, getattr(one, name).cast("string")) for one in decisions))


def _decisions() -> list[_Decision]:
    """Every sort of decision; an entry is of one sort at most."""
    kind, nothing = F.col("kind"), F.lit(None)
    is_admin = of_relay() & (kind == "admin")
    is_reader = F.col("destination_kind").eqNullSafe("consumer")  # who reads the export, and how far it has come
    # A message or a topic's key that is pruned because its time is over is nobody's decision; the history has those entries.
    is_log_pruned = (kind == "pruned") & F.col("message_id").isNull() & F.col("recipient").isNull()
    is_moderated = of_relay() & (kind == "moderated") & F.col("recipient").isNull()
    action = F.coalesce("asked.action", F.lit("unknown"))
    subject = F.coalesce(*(f"asked.{name}" for name in ("member", "topic", "author", "invite", "name")))
    send, text = F.col("client_message_id"), utf8("detail")
    return [
        _Decision(is_admin & ~is_reader, action, F.col("sender"), subject, text),
        _Decision(is_admin & is_reader, F.lit("register_consumer"), nothing, F.col("destination_ref"), nothing),
        _Decision(is_moderated, F.lit("moderate"), F.col("destination_ref"), F.col("message_id"), F.col("reason")),
        _Decision((kind == "restored") | is_log_pruned, kind, nothing, nothing, F.col("reason")),
        _Decision(of_device() & (kind == "aborted"), F.lit("requeue"), device_member(), send, text),
    ]
