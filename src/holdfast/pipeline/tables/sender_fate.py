"""What became of every send, by its device's history. A row never changes."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that
from pyspark.sql.types import BooleanType, DateType, StructField, StructType

from holdfast.pipeline.table import Writing, table
from holdfast.pipeline.tables._entry import day_of
from holdfast.pipeline.tables.sender import ENQUEUED, KEY, KEY_FIELDS, SETTLED, TRIED

STATUSES = ("relayed", "dead", "aborted", "rolled_back")
SCHEMA = StructType(
    [
        *KEY_FIELDS,
        *ENQUEUED,
        *TRIED,
        *SETTLED,
        StructField("is_late", BooleanType(), nullable=False),  # a settlement after the first
        StructField("day", DateType(), nullable=False),  # of closed_at, UTC
    ]
)


def sends_end_once(new_sender_fate: DataFrame) -> DataFrame:
    """A send is settled once, late answers aside, with a known status, after it was enqueued; an aborted one names its successor."""
    is_wrong = (
        ~F.col("status").isin(*STATUSES)
        | ((F.col("closed_seq") < F.col("enqueued_seq")) & (F.col("status") != "rolled_back"))
        | ((F.col("status") == "aborted") & F.col("superseded_by").isNull())
    )
    first = new_sender_fate.where(~F.col("is_late"))
    twice = first.groupBy(*KEY, "log_id", "enqueued_seq").count().where(F.col("count") > 1)
    return new_sender_fate.where(is_wrong).select(*KEY).unionByName(twice.select(*KEY))


@table(
    key=("origin", "sequence", "closed_seq", "log_id", "is_late"),
    schema=SCHEMA,
    writing=Writing.APPEND,
    partition_by="day",
    sort_by=("origin", "closed_seq"),
    invariant=sends_end_once,
)
def sender_fate(new_sender: DataFrame) -> DataFrame:
    """One row per settlement of a send: when it was enqueued, how often it was tried, how it ended."""
    closed = new_sender.where(F.col("state") == "closed")
    return closed.withColumn("day", day_of("closed_at")).select(*SCHEMA.fieldNames())
