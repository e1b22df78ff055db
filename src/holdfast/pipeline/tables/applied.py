"""What recipients' applications did with their messages: the last step of a delivery."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that
from pyspark.sql.types import BinaryType, DateType, LongType, StringType, StructField, StructType, TimestampType

from holdfast.pipeline.table import Writing, table
from holdfast.pipeline.tables._entry import device_member, of_device

SCHEMA = StructType(
    [
        StructField("origin", StringType(), nullable=False),
        StructField("log_id", BinaryType(), nullable=False),
        StructField("seq", LongType(), nullable=False),
        StructField("at", TimestampType(), nullable=False),
        StructField("mesh", StringType()),
        StructField("message_id", StringType()),  # at the relay
        StructField("client_message_id", StringType()),
        StructField("sender", StringType()),
        StructField("recipient", StringType()),
        StructField("event_id", BinaryType()),
        StructField("outcome", StringType(), nullable=False),  # applied or parked
        StructField("reason", StringType()),
        StructField("day", DateType(), nullable=False),  # of `at`, UTC
    ]
)


def applications_speak_for_themselves(new_applied: DataFrame) -> DataFrame:
    """A row names a message and a sender, and its recipient is the member whose device wrote the entry."""
    is_right = (
        F.col("message_id").isNotNull() & F.col("sender").isNotNull() & (F.col("recipient") == device_member("origin"))
    )
    return new_applied.where(~F.coalesce(is_right, F.lit(False))).select("origin", "seq")


@table(
    key=("origin", "log_id", "seq"),
    schema=SCHEMA,
    writing=Writing.APPEND,
    partition_by="day",
    sort_by=("origin", "seq"),
    invariant=applications_speak_for_themselves,
)
def applied(new_history: DataFrame) -> DataFrame:
    """One row per message that an application applied, or that was parked because it could not."""
    told = new_history.where(of_device() & F.col("kind").isin("applied", "parked"))
    return told.withColumn("outcome", F.col("kind")).select(*SCHEMA.fieldNames())
