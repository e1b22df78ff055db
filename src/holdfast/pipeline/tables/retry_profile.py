"""How often sends had to be tried, and why: where a network, a relay or a queue is in the way."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that
from pyspark.sql.types import DateType, LongType, StringType, StructField, StructType

from holdfast.pipeline.table import Writing, table
from holdfast.pipeline.tables._counts import fallen_short, summed

KEY = ("day", "origin", "destination_kind", "status", "last_reason", "attempts")
COUNTS = ("sends", "waited_us")
SCHEMA = StructType(
    [
        StructField("day", DateType(), nullable=False),  # on which they were settled, UTC
        StructField("origin", StringType(), nullable=False),  # the device
        StructField("destination_kind", StringType()),
        StructField("status", StringType(), nullable=False),  # relayed, dead, aborted
        StructField("last_reason", StringType()),  # why the last attempt failed that did; null where none failed
        StructField("attempts", LongType(), nullable=False),
        StructField("sends", LongType(), nullable=False),
        StructField("waited_us", LongType(), nullable=False),  # from written down to settled, all of them together
    ]
)


def profiles_count_what_came(retry_profile: DataFrame, new_sender_fate: DataFrame) -> DataFrame:
    """Profiles that a batch touched count no fewer sends than it settled."""
    return fallen_short(retry_profile, _counted(new_sender_fate), KEY, ("sends",))


@table(
    key=KEY,
    schema=SCHEMA,
    writing=Writing.TOUCHED,
    partition_by="day",
    sort_by=("origin", "destination_kind", "status", "last_reason", "attempts"),
    invariant=profiles_count_what_came,
)
def retry_profile(old_retry_profile: DataFrame, new_sender_fate: DataFrame) -> DataFrame:
    """Sends by their end, the number of attempts and the reason of the last that failed."""
    days = new_sender_fate.select("day")
    return summed(old_retry_profile, _counted(new_sender_fate), days, KEY, COUNTS).select(*SCHEMA.fieldNames())


def _counted(new_sender_fate: DataFrame) -> DataFrame:
    """What was settled for the first time; a send that its relay forgot is open again and not settled."""
    settled = new_sender_fate.where(~F.col("is_late") & (F.col("status") != "rolled_back"))
    waited = F.unix_micros("closed_at") - F.unix_micros(F.coalesce("enqueued_at", "closed_at"))
    return settled.groupBy(*KEY).agg(F.count("status").alias("sends"), F.sum(waited).alias("waited_us"))
