"""What a batch does to documents: the snapshots that it brings, compared with those that were current before."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that
from pyspark.sql.types import BooleanType, StructField, StructType

from holdfast.pipeline.table import Batch, Writing, table
from holdfast.pipeline.tables._snapshot import DOCUMENT, IS_PRUNED, SAID, prunings, snapshots, with_standing
from holdfast.pipeline.tables.chain_break import alive
from holdfast.pipeline.tables.extent import logs_of

KINDS = ("snapshot", "compacted", "restored")
SCHEMA = StructType(
    [
        *SAID,
        IS_PRUNED,
        StructField("is_thinned", BooleanType(), nullable=False),  # if it is superseded, its row may have gone
        StructField("is_current", BooleanType(), nullable=False),
    ]
)
_SAID = SAID.fieldNames()


@table(key=("origin", "author", "d", "seq"), schema=SCHEMA, writing=Writing.PASSING, kinds=KINDS)
def snapshot_standing(
    old_current_snapshot: DataFrame,
    history: DataFrame,
    new_history: DataFrame,
    extent: DataFrame,
    batch: Batch,
) -> DataFrame:
    """One row per snapshot, new or current before, of the documents that this batch touches, with whether it is current now."""
    logs = logs_of(extent)
    restored = [
        log.origin
        for log in logs
        if log.cut_seq is not None and any(one.origin == log.origin and one.after < log.cut_seq for one in batch.ranges)
    ]
    is_restored = F.col("origin").isin(*restored) if restored else F.lit(False)
    # The documents of a relay that was restored are computed from its whole history.
    entries = new_history.where(~is_restored)
    if restored:
        entries = entries.unionByName(alive(history.where(is_restored), logs))
    brought, gone = snapshots(entries), prunings(entries)
    touched = brought.select(*DOCUMENT).unionByName(gone.select(*DOCUMENT)).distinct()
    held = old_current_snapshot.where(~is_restored).join(touched, on=DOCUMENT, how="left_semi")
    rows = held.select(*_SAID, "is_pruned").unionByName(brought.withColumn("is_pruned", F.lit(False)))
    standing = with_standing(_pruned(rows, gone))
    if restored:
        standing = standing.unionByName(_vanished(old_current_snapshot.where(is_restored), standing))
    return standing.select(*SCHEMA.fieldNames())


def _pruned(rows: DataFrame, gone: DataFrame) -> DataFrame:
    def is_up_to(name: str) -> Column:
        return F.coalesce(F.col("seq") <= F.col(name), F.lit(False))

    return rows.join(gone, on=DOCUMENT, how="left").select(
        *_SAID,
        (F.col("is_pruned") | is_up_to("pruned_until")).alias("is_pruned"),
        is_up_to("thinned_until").alias("is_thinned"),
    )


def _vanished(old: DataFrame, standing: DataFrame) -> DataFrame:
    """The snapshots that a restored relay lost, as not current, so that their documents are touched."""
    # Compared by document, too, because new snapshots have the positions of those that were lost.
    place = [*DOCUMENT, "seq"]
    lost = old.join(standing.select(*place), on=place, how="left_anti")
    flags = {"is_pruned": True, "is_thinned": True, "is_current": False}
    return lost.select(*_SAID, *(F.lit(value).alias(name) for name, value in flags.items()))
