"""Closings of deliveries that had a fate already, because a restore had undone the one before. A row never changes."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that

from holdfast.pipeline.table import Writing, table
from holdfast.pipeline.tables._entry import CLOSINGS, day_of
from holdfast.pipeline.tables.fate import KEY
from holdfast.pipeline.tables.message_fate import SCHEMA


def closings_repeat_a_fate(new_fate_repeated: DataFrame) -> DataFrame:
    """A log closes a delivery once, and not before its accept."""
    is_early = (F.col("closed_at") < F.col("accepted_at")) | (F.col("closed_seq") < F.col("accepted_seq"))
    twice = new_fate_repeated.groupBy("closed_log_id", *KEY).count().where(F.col("count") > 1)
    return new_fate_repeated.where(is_early).select(*KEY).unionByName(twice.select(*KEY))


@table(
    key=("closed_log_id", "mesh", "message_id", "recipient"),
    schema=SCHEMA,
    writing=Writing.APPEND,
    partition_by="day",
    sort_by=("origin", "closed_seq"),
    invariant=closings_repeat_a_fate,
    kinds=CLOSINGS,
)
def fate_repeated(new_fate: DataFrame) -> DataFrame:
    """One row per closing after the first: a restored relay had the delivery open again and closed it once more."""
    repeated = new_fate.where(F.col("state") == "repeated")
    return repeated.withColumn("day", day_of("closed_at")).select(*SCHEMA.fieldNames())
