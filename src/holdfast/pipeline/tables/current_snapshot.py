"""The current snapshots of every document by the history: those that a new device is given."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that
from pyspark.sql.types import StructType

from holdfast.pipeline.table import Writing, table
from holdfast.pipeline.tables._snapshot import DOCUMENT, IS_PRUNED, SAID, covers
from holdfast.pipeline.tables.snapshot_standing import KINDS

SCHEMA = StructType([*SAID, IS_PRUNED])


def nothing_current_is_dominated(current_snapshot: DataFrame, new_snapshot_standing: DataFrame) -> DataFrame:
    """No current snapshot of a document that the batch touched dominates another or has the same clock."""
    touched = new_snapshot_standing.select(*DOCUMENT).distinct()
    current = current_snapshot.join(touched, on=DOCUMENT, how="left_semi").select(*DOCUMENT, "seq", "clock")
    others = current.select(*DOCUMENT, F.col("seq").alias("other_seq"), F.col("clock").alias("other_clock"))
    pairs = current.join(others, on=DOCUMENT, how="inner").where(F.col("seq") != F.col("other_seq"))
    return pairs.where(covers(F.col("other_clock"), F.col("clock"))).select(*DOCUMENT, "seq", "other_seq")


def touched_buckets(new_snapshot_standing: DataFrame) -> DataFrame:
    """The buckets of the documents that this batch touched."""
    return new_snapshot_standing.select("bucket").distinct()


@table(
    key=("origin", "author", "d", "seq"),
    schema=SCHEMA,
    writing=Writing.TOUCHED,
    partition_by="bucket",
    sort_by=("origin", "author", "d", "seq"),
    touches=touched_buckets,
    kinds=KINDS,
    invariant=nothing_current_is_dominated,
)
def current_snapshot(old_current_snapshot: DataFrame, new_snapshot_standing: DataFrame) -> DataFrame:
    """One row per snapshot that no other one of its document dominates; pruned ones stay and are marked."""
    buckets = F.broadcast(touched_buckets(new_snapshot_standing))
    touched = new_snapshot_standing.select(*DOCUMENT).distinct()
    kept = old_current_snapshot.join(buckets, on="bucket", how="left_semi").join(touched, on=DOCUMENT, how="left_anti")
    current = new_snapshot_standing.where("is_current")
    return kept.select(*SCHEMA.fieldNames()).unionByName(current.select(*SCHEMA.fieldNames()))
