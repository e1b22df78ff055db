"""Anchors that devices kept of positions that the lake has not read at the relay yet."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that
from pyspark.sql.types import StructType

from holdfast.pipeline.table import Writing, table
from holdfast.pipeline.tables.anchor import KEPT

SCHEMA = StructType(KEPT)


def anchors_have_the_size_of_anchors(anchor_open: DataFrame) -> DataFrame:
    """An anchor has a chain of 32 bytes and a signature of 64."""
    is_wrong = (F.octet_length("relay_chain") != 32) | (F.octet_length("signature") != 64)
    return anchor_open.where(is_wrong).select("origin", "seq")


@table(
    key=("origin", "seq"),
    schema=SCHEMA,
    writing=Writing.REPLACE,
    sort_by=("relay_log_id", "relay_seq"),
    invariant=anchors_have_the_size_of_anchors,
)
def anchor_open(new_anchor: DataFrame) -> DataFrame:
    """What relays signed for devices and the lake could not check yet."""
    return new_anchor.where(F.col("state") == "open").select(*SCHEMA.fieldNames())
