"""The deliveries that wait: bounded by the caps of the queues, and replaced as a whole by every batch."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that
from pyspark.sql.types import StructType

from holdfast.pipeline.table import Writing, table
from holdfast.pipeline.tables.fate import KEY, OPENED, PASSED_OVER

SCHEMA = StructType([*OPENED, PASSED_OVER])


def nothing_is_open_and_closed(fate_open: DataFrame, new_message_fate: DataFrame) -> DataFrame:
    """What this batch closed is not open any more, and nothing is open twice."""
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
    """Every delivery that the history has opened and not closed."""
    return new_fate.where(F.col("state") == "open").select(*SCHEMA.fieldNames())
