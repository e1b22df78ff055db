"""How much each member used a relay: what an operator bills, or looks at when somebody is loud."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that
from pyspark.sql.types import DateType, LongType, StringType, StructField, StructType, TimestampType

from holdfast.pipeline.table import Writing, table
from holdfast.pipeline.tables._counts import fallen_short, summed
from holdfast.pipeline.tables._entry import day_of, known_size, known_time, of_relay

KEY = ("day", "origin", "mesh", "member", "minute")
COUNTS = ("sent", "sent_bytes", "recipients", "receipts", "received", "missed")
SCHEMA = StructType(
    [
        StructField("day", DateType(), nullable=False),  # of the minute, UTC
        StructField("origin", StringType(), nullable=False),  # the relay
        StructField("mesh", StringType(), nullable=False),
        StructField("member", StringType(), nullable=False),
        StructField("minute", TimestampType(), nullable=False),
        StructField("sent", LongType(), nullable=False),  # messages that the relay accepted
        StructField("sent_bytes", LongType(), nullable=False),
        StructField("recipients", LongType(), nullable=False),  # of those messages, summed up
        StructField("receipts", LongType(), nullable=False),  # signed by this member
        StructField("received", LongType(), nullable=False),  # delivered to this member, receipts among them
        StructField("missed", LongType(), nullable=False),  # closed for this member in any other way
    ]
)
_SENDS = ("accepted", "receipt")
_MISSES = ("expired", "dropped", "quarantined", "moderated")
_ENDS = ("delivered", *_MISSES)


def usage_counts_what_came(usage: DataFrame, new_history: DataFrame) -> DataFrame:
    """Every row counts no less than the batch brought for it."""
    return fallen_short(usage, _counted(new_history), KEY, COUNTS)


@table(
    key=KEY,
    schema=SCHEMA,
    writing=Writing.TOUCHED,
    partition_by="day",
    sort_by=("origin", "mesh", "member", "minute"),
    kinds=(*_SENDS, *_ENDS),
    invariant=usage_counts_what_came,
)
def usage(old_usage: DataFrame, new_history: DataFrame) -> DataFrame:
    """One row per member and minute: what the member sent and received; what a restore undid counts, too."""
    days = _of_meshes(new_history).select("day")
    return summed(old_usage, _counted(new_history), days, KEY, COUNTS).select(*SCHEMA.fieldNames())


def _counted(new_history: DataFrame) -> DataFrame:
    """The counts of a batch: an accept counts for the sender, a closing for the recipient."""
    kind = F.col("kind")
    member = F.when(kind.isin(*_SENDS), F.col("sender")).when(kind.isin(*_ENDS), F.col("recipient"))
    entries = _of_meshes(new_history).withColumn("member", member).where(F.col("member").isNotNull())
    # A damaged time is of the first minute of its day in the history.
    minute = F.coalesce(F.date_trunc("minute", known_time("at")), F.col("day").cast("timestamp"))
    timed = entries.withColumn("minute", minute).withColumn("day", day_of("minute"))
    is_message = kind == "accepted"
    counted = {
        "sent": F.count_if(is_message),
        "sent_bytes": F.sum(F.when(is_message, known_size("size"))),
        "recipients": F.sum(F.when(is_message, F.array_size("recipients").cast("bigint"))),
        "receipts": F.count_if(kind == "receipt"),
        "received": F.count_if(kind == "delivered"),
        "missed": F.count_if(kind.isin(*_MISSES)),
    }
    return timed.groupBy(*KEY).agg(
        *(F.coalesce(one, F.lit(0)).cast("bigint").alias(name) for name, one in counted.items())
    )


def _of_meshes(new_history: DataFrame) -> DataFrame:
    return new_history.where(of_relay() & F.col("mesh").isNotNull())
