"""Messages that arrived before the key to read them."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that
from pyspark.sql.types import LongType, StringType, StructField, StructType

from holdfast.pipeline.table import Writing, table

SCHEMA = StructType(
    [
        StructField("origin", StringType(), nullable=False),
        StructField("seq", LongType(), nullable=False),  # of the entry that tells of its arrival
    ]
)


@table(key=("origin", "seq"), schema=SCHEMA, writing=Writing.PASSING, kinds=("opened",))
def reopened(new_history: DataFrame, history: DataFrame) -> DataFrame:
    """One row per message that arrived earlier and can be read since this batch, because its key came."""
    opened = new_history.where(F.col("kind") == "opened").select("origin", "event_id").distinct()
    stored = history.where(F.col("kind") == "stored")
    return stored.join(F.broadcast(opened), on=["origin", "event_id"], how="left_semi").select("origin", "seq")
