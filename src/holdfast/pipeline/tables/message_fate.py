"""What became of every message for every recipient. A row never changes."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that
from pyspark.sql.types import DateType, StructField, StructType

from holdfast.pipeline.table import Writing, table
from holdfast.pipeline.tables._entry import CLOSINGS, day_of
from holdfast.pipeline.tables.fate import CLOSED, KEY, OPENED

OUTCOMES = (*CLOSINGS, "rolled_back", "full", "blocked")
SCHEMA = StructType([*OPENED, *CLOSED, StructField("day", DateType(), nullable=False)])  # day of closed_at, UTC


def fates_are_of_this_world(new_message_fate: DataFrame) -> DataFrame:
    """A delivery has one fate with a known outcome, not before its accept; `was_stored` is set if and only if it was delivered."""
    is_early = (F.col("closed_at") < F.col("accepted_at")) | (F.col("closed_seq") < F.col("accepted_seq"))
    is_wrong = (
        ~F.col("outcome").isin(*OUTCOMES)
        | (is_early & (F.col("outcome") != "rolled_back"))  # the fork that undoes an accept lies before it
        | (F.col("was_stored").isNotNull() != (F.col("outcome") == "delivered"))
    )
    twice = new_message_fate.groupBy(*KEY).count().where(F.col("count") > 1)
    return new_message_fate.where(is_wrong).select(*KEY).unionByName(twice.select(*KEY))


@table(
    key=("mesh", "message_id", "recipient"),
    schema=SCHEMA,
    writing=Writing.APPEND,
    partition_by="day",
    sort_by=("origin", "closed_seq"),
    invariant=fates_are_of_this_world,
)
def message_fate(new_fate: DataFrame) -> DataFrame:
    """One row per message and recipient: when it was accepted, when that delivery was closed, and with which outcome."""
    closed = new_fate.where(F.col("state") == "closed")
    return closed.withColumn("day", day_of("closed_at")).select(*SCHEMA.fieldNames())
