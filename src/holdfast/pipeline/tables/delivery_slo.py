"""How long deliveries took, as counts that can be added up over batches, hours and days."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that
from pyspark.sql.types import (
    BooleanType,
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from holdfast.pipeline.table import Writing, table
from holdfast.pipeline.tables._counts import fallen_short, summed
from holdfast.pipeline.tables._entry import day_of, known_time
from holdfast.pipeline.tables._latency import bucket

SCHEMA = StructType(
    [
        StructField("day", DateType(), nullable=False),  # of accepted_hour, UTC
        StructField("mesh", StringType(), nullable=False),
        StructField("accepted_hour", TimestampType(), nullable=False),
        StructField("was_stored", BooleanType(), nullable=False),
        StructField("bucket", IntegerType(), nullable=False),  # floor(32 · log2 of the latency in µs)
        StructField("count", LongType(), nullable=False),
    ]
)
KEY = ("day", "mesh", "accepted_hour", "was_stored", "bucket")


def counts_are_positive(delivery_slo: DataFrame, new_message_fate: DataFrame) -> DataFrame:
    """Every bucket counts no fewer deliveries than the batch brought for it."""
    return fallen_short(delivery_slo, _counted(new_message_fate), KEY, ("count",))


@table(
    key=KEY,
    schema=SCHEMA,
    writing=Writing.TOUCHED,
    partition_by="day",
    sort_by=("mesh", "accepted_hour", "was_stored", "bucket"),
    invariant=counts_are_positive,
)
def delivery_slo(old_delivery_slo: DataFrame, new_message_fate: DataFrame) -> DataFrame:
    """The number of deliveries per mesh, hour of the accept, whether the message had waited in a queue, and bucket of latency."""
    days = _delivered(new_message_fate).select(day_of("accepted_at").alias("day"))
    counted = _counted(new_message_fate)
    return summed(old_delivery_slo, counted, days, KEY, ("count",)).select(*SCHEMA.fieldNames())


def _counted(new_message_fate: DataFrame) -> DataFrame:
    delivered = _delivered(new_message_fate)
    latency = F.unix_micros("closed_at") - F.unix_micros("accepted_at")
    return (
        delivered.withColumn("accepted_hour", F.date_trunc("hour", "accepted_at"))
        .withColumn("day", day_of("accepted_hour"))
        .groupBy("day", "mesh", "accepted_hour", "was_stored", bucket(latency).alias("bucket"))
        .count()
    )


def _delivered(new_message_fate: DataFrame) -> DataFrame:
    """The deliveries whose latency is known; between damaged times there is none."""
    is_timed = known_time("accepted_at").isNotNull() & known_time("closed_at").isNotNull()
    is_delivered = (F.col("outcome") == "delivered") & (F.col("kind") == "message")
    return new_message_fate.where(is_delivered & is_timed & F.col("was_stored").isNotNull())
