"""Who decided what: administration, moderation, requeues, and logs that were restored or let go of a part."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that
from pyspark.sql.types import BinaryType, DateType, LongType, StringType, StructField, StructType, TimestampType

from holdfast.pipeline.table import Writing, table
from holdfast.pipeline.tables._entry import device_member, of_device, of_relay, utf8

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
"""What a program writes down by itself."""

_ASKED = "action STRING, member STRING, topic STRING, name STRING, invite STRING, author STRING"


def decisions_are_named(new_audit_log: DataFrame) -> DataFrame:
    """A decision of a mesh has an actor and is not called unknown."""
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
    """One row per decision of a person or of a program about what the others may do, see or lose."""
    admin = new_history.where(of_relay() & (F.col("kind") == "admin"))
    is_reader = F.col("destination_kind").eqNullSafe("consumer")  # who reads the export, and how far it has come
    asked, readers = _asked(admin.where(~is_reader)), admin.where(is_reader)
    moderated = new_history.where(of_relay() & (F.col("kind") == "moderated") & F.col("recipient").isNull())
    kept = new_history.where(F.col("kind").isin("restored", "pruned"))
    requeued = new_history.where(of_device() & (F.col("kind") == "aborted"))
    rows = (
        asked.unionByName(_row(moderated, "moderate", F.col("destination_ref"), F.col("message_id"), F.col("reason")))
        .unionByName(_row(readers, "register_consumer", F.lit(None), F.col("destination_ref"), F.lit(None)))
        .unionByName(_row(kept, F.col("kind"), F.lit(None), F.lit(None), F.col("reason")))
        .unionByName(_row(requeued, "requeue", device_member(), F.col("client_message_id"), utf8("detail")))
    )
    return rows.withColumn("day", F.to_date("at")).select(*SCHEMA.fieldNames())


def _asked(admin: DataFrame) -> DataFrame:
    told = admin.withColumn("text", utf8("detail")).withColumn("asked", F.from_json("text", _ASKED))
    subject = F.coalesce(*(f"asked.{name}" for name in ("member", "topic", "author", "invite", "name")))
    return _row(told, F.coalesce("asked.action", F.lit("unknown")), F.col("sender"), subject, F.col("text"))


def _row(entries: DataFrame, action: str | Column, actor: Column, subject: Column, detail: Column) -> DataFrame:
    named = F.lit(action) if isinstance(action, str) else action
    return entries.select(
        *("origin", "log_id", "seq", "at", "mesh"),
        actor.cast("string").alias("actor"),
        named.alias("action"),
        subject.cast("string").alias("subject"),
        detail.cast("string").alias("detail"),
    )
