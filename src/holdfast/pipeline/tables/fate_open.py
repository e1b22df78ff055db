"""The open deliveries. Queues have caps, so there are few enough to replace all of them with every batch."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that
from pyspark.sql.types import StructType

from holdfast.pipeline.table import Writing, table
from holdfast.pipeline.tables.fate import KEY, OPENED, PASSED_OVER

SCHEMA = StructType([*OPENED, PASSED_OVER])
_QUEUE = ["origin", "mesh", "recipient"]


def nothing_is_open_and_closed(fate_open: DataFrame, new_message_fate: DataFrame) -> DataFrame:
    """No delivery is open that this batch closed, and none is open twice."""
    both = fate_open.join(new_message_fate.select(*KEY), on=KEY, how="left_semi").select(*KEY)
    twice = fate_open.groupBy(*KEY).count().where(F.col("count") > 1).select(*KEY)
    return both.unionByName(twice)


@table(
    key=("origin", "message_id", "recipient"),
    schema=SCHEMA,
    writing=Writing.REPLACE,
    sort_by=("origin", "accepted_seq"),
    invariant=nothing_is_open_and_closed,
)
def fate_open(new_fate: DataFrame) -> DataFrame:
    """One row per delivery that was accepted and is not closed."""
    waiting, taken = new_fate.where(F.col("state") == "open").alias("waiting"), _taken(new_fate).alias("taken")
    # Damaged accepts name no mesh: they count as one queue.
    is_of_queue = [F.col(f"waiting.{name}").eqNullSafe(F.col(f"taken.{name}")) for name in _QUEUE]
    met = waiting.join(taken, on=is_of_queue, how="left").select("waiting.*", "taken_seq")
    is_overtaken = F.coalesce(F.col("accepted_seq") < F.col("taken_seq"), F.lit(False))
    return met.withColumn("passed_over", F.col("passed_over") | is_overtaken).select(*SCHEMA.fieldNames())


def _taken(new_fate: DataFrame) -> DataFrame:
    """Per queue the position of the last message that was delivered in this batch: older ones that are open were passed over."""
    is_taken = (F.col("state") == "closed") & (F.col("outcome") == "delivered") & (F.col("kind") == "message")
    return new_fate.where(is_taken).groupBy(*_QUEUE).agg(F.max("accepted_seq").alias("taken_seq"))
