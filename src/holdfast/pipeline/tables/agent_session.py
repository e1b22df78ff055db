"""The last turn of every session of an agent, which the next batch goes on from."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that
from pyspark.sql.types import IntegerType, StructField, StructType

from holdfast.pipeline.table import Writing, table
from holdfast.pipeline.tables._entry import bucket
from holdfast.pipeline.tables._hook import SESSION, received
from holdfast.pipeline.tables.turn import KINDS, STOP_NAME, TURN

SCHEMA = StructType([*TURN, STOP_NAME, StructField("bucket", IntegerType(), nullable=False)])


def hook_entries_can_be_read(new_history: DataFrame) -> DataFrame:
    """The detail of every entry of a hook event names an agent and an event, and says when it came."""
    told = received(new_history)
    is_right = F.col("agent").isNotNull() & F.col("event_type").isNotNull() & F.col("received_at").isNotNull()
    return told.where(~is_right).select("origin", "seq")


def touched_buckets(new_turn: DataFrame) -> DataFrame:
    """The buckets of the sessions that this batch touched."""
    return new_turn.select(bucket(*SESSION).alias("bucket")).distinct()


@table(
    key=("device", "agent", "session"),
    schema=SCHEMA,
    writing=Writing.TOUCHED,
    partition_by="bucket",
    sort_by=("device", "agent", "session"),
    touches=touched_buckets,
    kinds=KINDS,
    invariant=hook_entries_can_be_read,
)
def agent_session(old_agent_session: DataFrame, new_turn: DataFrame) -> DataFrame:
    """One row per session of an agent: its last turn."""
    kept = old_agent_session.join(F.broadcast(touched_buckets(new_turn)), on="bucket", how="left_semi").join(
        new_turn.select(*SESSION), on=SESSION, how="left_anti"
    )
    last = new_turn.groupBy(*SESSION).agg(F.max_by(F.struct("*"), "n").alias("last")).select("last.*")
    new = last.withColumn("bucket", bucket(*SESSION))
    return kept.select(*SCHEMA.fieldNames()).unionByName(new.select(*SCHEMA.fieldNames()))
