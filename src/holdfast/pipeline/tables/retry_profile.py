"""How often sends had to be tried, and why attempts failed: shows where a network, a relay or a queue is in the way."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that
from pyspark.sql.types import DateType, LongType, StringType, StructField, StructType

from holdfast.pipeline.table import Writing, table
from holdfast.pipeline.tables._counts import fallen_short, summed
from holdfast.pipeline.tables._entry import known_time

KEY = ("day", "origin", "destination_kind", "status", "last_reason", "attempts")
COUNTS = ("sends", "waited_us")
SCHEMA = StructType(
    [
        StructField("day", DateType(), nullable=False),  # on which they were settled, UTC
        StructField("origin", StringType(), nullable=False),  # the device
        StructField("destination_kind", StringType()),
        StructField("status", StringType(), nullable=False),  # relayed, dead, aborted
        StructField("last_reason", StringType()),  # of the last attempt that failed; null where none did
        StructField("attempts", LongType(), nullable=False),
        StructField("sends", LongType(), nullable=False),
        StructField("waited_us", LongType(), nullable=False),  # from enqueued to settled, summed up
    ]
)


def profiles_count_what_came(retry_profile: DataFrame, new_sender_fate: DataFrame) -> DataFrame:
    """Every row counts no fewer sends than the batch settled for it."""
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
    """The number of settled sends per day, device, status, number of attempts and reason of the last failure."""
    days = new_sender_fate.select("day")
    return summed(old_retry_profile, _counted(new_sender_fate), days, KEY, COUNTS).select(*SCHEMA.fieldNames())


def _counted(new_sender_fate: DataFrame) -> DataFrame:
    """The first settlements of sends, counted. One that was rolled back is open again, so it does not count."""
    settled = new_sender_fate.where(~F.col("is_late") & (F.col("status") != "rolled_back"))
    # From or to a damaged time nobody knows how long it was.
    waited = F.coalesce(F.unix_micros(known_time("closed_at")) - F.unix_micros(known_time("enqueued_at")), F.lit(0))
    return settled.groupBy(*KEY).agg(F.count("status").alias("sends"), F.sum(waited).alias("waited_us"))
