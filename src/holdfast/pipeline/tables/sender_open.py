"""The sends that wait in the outboxes of devices, by their histories."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that
from pyspark.sql.types import StructType

from holdfast.pipeline.table import Writing, table
from holdfast.pipeline.tables.sender import ENQUEUED, KEY, KEY_FIELDS, TRIED

SCHEMA = StructType([*KEY_FIELDS, *ENQUEUED, *TRIED])


def sends_wait_once(sender_open: DataFrame, new_sender_fate: DataFrame) -> DataFrame:
    """A send is open once, and not if this batch settled it."""
    twice = sender_open.groupBy(*KEY).count().where(F.col("count") > 1).select(*KEY)
    settled = new_sender_fate.where(~F.col("is_late") & (F.col("status") != "rolled_back")).select(*KEY, "closed_seq")
    both = sender_open.join(
        settled, on=KEY, how="inner"
    )  # one that a relay lost is open again, later than it was settled
    return twice.unionByName(both.where(F.col("closed_seq") > F.col("enqueued_seq")).select(*KEY))


@table(
    key=("origin", "sequence"),
    schema=SCHEMA,
    writing=Writing.REPLACE,
    sort_by=("origin", "sequence"),
    invariant=sends_wait_once,
)
def sender_open(new_sender: DataFrame) -> DataFrame:
    """One row per send that a device has enqueued and not settled."""
    return new_sender.where(F.col("state") == "open").select(*SCHEMA.fieldNames())
