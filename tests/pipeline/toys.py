"""A registry of small tables, one for each way of writing: what a runner does with tables, without what ours compute."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that
from pyspark.sql.types import DateType, LongType, StringType, StructField, StructType

from holdfast.pipeline.table import Table, Writing, in_order, table
from holdfast.pipeline.tables.history import history

COUNT = StructType([StructField("kind", StringType()), StructField("entries", LongType())])
DAILY = StructType([StructField("day", DateType()), StructField("entries", LongType())])
LATEST = StructType(
    [StructField("seq", LongType()), StructField("kind", StringType()), StructField("known", LongType())]
)


@table(key=("seq",), schema=LATEST, writing=Writing.PASSING)
def seen(old_counted: DataFrame, new_history: DataFrame) -> DataFrame:
    """What came in this batch, and how many entries were known before it."""
    known = old_counted.agg(F.coalesce(F.sum("entries"), F.lit(0)).alias("known"))
    return new_history.select("seq", "kind").crossJoin(known)


def positions_are_positive(new_listed: DataFrame) -> DataFrame:
    """No position is under one."""
    return new_listed.where("seq < 1")


@table(key=("seq",), schema=LATEST, writing=Writing.APPEND, sort_by=("seq",), invariant=positions_are_positive)
def listed(new_seen: DataFrame) -> DataFrame:
    """Every position, its kind, and what was known then."""
    return new_seen.select("seq", "kind", "known")


@table(key=("kind",), schema=COUNT, writing=Writing.REPLACE)
def counted(old_counted: DataFrame, new_seen: DataFrame) -> DataFrame:
    """How many entries there are of each kind."""
    added = new_seen.select("kind", F.lit(1).cast("long").alias("entries"))
    return old_counted.unionByName(added).groupBy("kind").agg(F.sum("entries").alias("entries"))


@table(key=("day",), schema=DAILY, writing=Writing.TOUCHED, partition_by="day")
def daily(old_daily: DataFrame, new_history: DataFrame) -> DataFrame:
    """How many entries there are of each day."""
    added = new_history.groupBy("day").agg(F.count("seq").alias("entries"))
    before = old_daily.join(added.select("day"), on="day", how="left_semi")
    return before.unionByName(added).groupBy("day").agg(F.sum("entries").alias("entries"))


TOYS: dict[str, Table] = in_order({one.name: one for one in (history, seen, listed, counted, daily)})
