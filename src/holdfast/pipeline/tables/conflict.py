"""Documents that were changed in several places at once, until somebody resolves that."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from holdfast.pipeline.table import Writing, table
from holdfast.pipeline.tables._snapshot import DOCUMENT
from holdfast.pipeline.tables.snapshot_standing import KINDS

SIDE = StructType(
    [
        StructField("seq", LongType()),
        StructField("event_id", BinaryType()),
        StructField("o", StringType()),
    ]
)
SCHEMA = StructType(
    [
        StructField("origin", StringType(), nullable=False),
        StructField("author", StringType(), nullable=False),
        StructField("d", StringType(), nullable=False),
        StructField("count", IntegerType(), nullable=False),
        StructField("latest_at", TimestampType(), nullable=False),  # when the last of them was accepted
        StructField("sides", ArrayType(SIDE), nullable=False),  # in the order of the history
    ]
)


def conflicts_have_sides(conflict: DataFrame, current_snapshot: DataFrame) -> DataFrame:
    """A document is there once and has at least two sides, all of them current snapshots."""
    told = conflict.groupBy(*DOCUMENT).agg(F.count("count").alias("times"), F.max("count").alias("count"))
    current = current_snapshot.where(~F.col("is_pruned")).join(told, on=DOCUMENT, how="left_semi")
    counted = current.groupBy(*DOCUMENT).agg(F.count("seq").alias("current"))
    is_wrong = (F.col("times") > 1) | (F.col("count") < 2) | ~F.col("count").eqNullSafe(F.col("current"))
    return told.join(counted, on=DOCUMENT, how="left").where(is_wrong)


@table(
    key=("origin", "author", "d"),
    schema=SCHEMA,
    writing=Writing.REPLACE,
    sort_by=("origin", "author", "d"),
    kinds=KINDS,
    invariant=conflicts_have_sides,
)
def conflict(old_conflict: DataFrame, new_snapshot_standing: DataFrame) -> DataFrame:
    """One row per document with several current snapshots, which are its sides."""
    touched = new_snapshot_standing.select(*DOCUMENT).distinct()
    sides = new_snapshot_standing.where(F.col("is_current") & ~F.col("is_pruned"))
    found = sides.groupBy(*DOCUMENT).agg(
        F.count("seq").cast("int").alias("count"),
        F.max("accepted_at").alias("latest_at"),
        F.sort_array(F.collect_list(F.struct("seq", "event_id", "o"))).alias("sides"),
    )
    kept = old_conflict.join(touched, on=DOCUMENT, how="left_anti").select(*SCHEMA.fieldNames())
    return kept.unionByName(found.where(F.col("count") > 1).select(*SCHEMA.fieldNames()))
