"""Anchors of positions that the lake has not read at the relay yet."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that
from pyspark.sql.types import StructType

from holdfast.pipeline.table import Writing, table
from holdfast.pipeline.tables.anchor import KEPT

SCHEMA = StructType(KEPT)

ANCHORS_OPEN_MAX = 10_000
"""How many anchors of a device are kept per log of a relay, which the lake may never read: the last ones, whose chains cover all before."""


def anchors_have_the_size_of_anchors(anchor_open: DataFrame) -> DataFrame:
    """An anchor has a chain of 32 bytes and a signature of 64, and no device has more of them than the limit."""
    is_wrong = (F.octet_length("relay_chain") != 32) | (F.octet_length("signature") != 64)
    waiting = anchor_open.groupBy("origin", "relay_log_id").agg(F.count("seq").alias("seq"))
    many = waiting.where(F.col("seq") > ANCHORS_OPEN_MAX)
    return anchor_open.where(is_wrong).select("origin", "seq").unionByName(many.select("origin", "seq"))


@table(
    key=("origin", "seq"),
    schema=SCHEMA,
    writing=Writing.REPLACE,
    sort_by=("relay_log_id", "relay_seq"),
    invariant=anchors_have_the_size_of_anchors,
)
def anchor_open(new_anchor: DataFrame) -> DataFrame:
    """One row per anchor that a device kept and the lake cannot check yet."""
    latest = Window.partitionBy("origin", "relay_log_id").orderBy(F.desc("relay_seq"), F.desc("seq"), "log_id")
    waiting = new_anchor.where(F.col("state") == "open").withColumn("place", F.row_number().over(latest))
    return waiting.where(F.col("place") <= ANCHORS_OPEN_MAX).select(*SCHEMA.fieldNames())
