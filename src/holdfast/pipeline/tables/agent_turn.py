"""The turns of agents, from a prompt to the end of the work on it, as the hooks on their devices told them."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that
from pyspark.sql.types import DateType, StructField, StructType

from holdfast.pipeline.table import Writing, table
from holdfast.pipeline.tables._entry import day_of
from holdfast.pipeline.tables.turn import KINDS, TURN

SCHEMA = StructType([*TURN, StructField("day", DateType(), nullable=False)])  # of began_at, UTC

OUTCOMES = ("complete", "interrupted", "open")
_KEY = ["device", "agent", "session", "n"]


def turns_follow_each_other(new_turn: DataFrame, agent_turn: DataFrame) -> DataFrame:
    """A turn is there once, has a known outcome and no negative count; only the last turn of a session is open."""
    days = F.broadcast(new_turn.select(day_of("began_at").alias("day")).distinct())
    near = agent_turn.join(days, on="day", how="left_semi")
    is_wrong = ~F.col("outcome").isin(*OUTCOMES) | (F.col("tools") < 0) | (F.col("errors") < 0) | (F.col("n") < 1)
    twice = near.groupBy(*_KEY).count().where(F.col("count") > 1).select(*_KEY)
    last = new_turn.groupBy(*_KEY[:3]).agg(F.max("n").alias("last"))
    early = near.where(F.col("outcome") == "open").join(last, on=_KEY[:3], how="inner").where("n < last").select(*_KEY)
    return near.where(is_wrong).select(*_KEY).unionByName(twice).unionByName(early)


def touched_days(new_turn: DataFrame) -> DataFrame:
    """The days on which those turns began that this batch began, went on with or ended."""
    return new_turn.select(day_of("began_at").alias("day")).distinct()


@table(
    key=("device", "agent", "session", "n"),
    schema=SCHEMA,
    writing=Writing.TOUCHED,
    partition_by="day",
    sort_by=("device", "agent", "session", "n"),
    touches=touched_days,
    kinds=KINDS,
    invariant=turns_follow_each_other,
)
def agent_turn(old_agent_turn: DataFrame, new_turn: DataFrame) -> DataFrame:
    """One row per turn of an agent: when it was prompted, when it stopped, its tool calls and errors, and how it ended."""
    kept = old_agent_turn.join(F.broadcast(touched_days(new_turn)), on="day", how="left_semi").join(
        new_turn.select(*_KEY), on=_KEY, how="left_anti"
    )
    new = new_turn.withColumn("day", day_of("began_at"))
    return kept.select(*SCHEMA.fieldNames()).unionByName(new.select(*SCHEMA.fieldNames()))
