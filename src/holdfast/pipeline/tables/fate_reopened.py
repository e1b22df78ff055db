"""Deliveries that are open again at a restored relay, because they were closed after its backup was made."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that
from pyspark.sql.types import StructType

from holdfast.pipeline.table import Writing, table
from holdfast.pipeline.tables.fate import KEY, OPENED

SCHEMA = StructType(OPENED)


def nothing_is_reopened_and_open(fate_reopened: DataFrame, fate_open: DataFrame) -> DataFrame:
    """No delivery is both open again and open for the first time."""
    return fate_reopened.join(fate_open.select(*KEY), on=KEY, how="left_semi").select(*KEY)


@table(
    key=("origin", "message_id", "recipient"),
    schema=SCHEMA,
    writing=Writing.REPLACE,
    sort_by=("origin", "accepted_seq"),
    invariant=nothing_is_reopened_and_open,
)
def fate_reopened(new_fate: DataFrame) -> DataFrame:
    """One row per delivery that has a fate and is open again, because a restore undid its closing."""
    return new_fate.where(F.col("state") == "reopened").select(*SCHEMA.fieldNames())
