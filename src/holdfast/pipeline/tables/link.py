"""The parts of histories in which each entry follows from the one before, and the entries that do not.

The runner writes these rows while it reads a history. The function is for a batch that was interrupted after that, and for a lake that
computes its tables anew.
"""

from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, BooleanType, LongType, StringType, StructField, StructType, TimestampType

from holdfast.pipeline.table import Writing, table
from holdfast.pipeline.tables import _links as links

SCHEMA = StructType(
    [
        StructField("origin", StringType()),
        StructField("log_id", BinaryType()),
        StructField("seq", LongType()),  # of the first entry of a part, or of a wrong entry inside of one
        StructField("at", TimestampType()),
        StructField("chain", BinaryType()),
        StructField("bytes", BinaryType()),  # of the first entry of a part; null for a wrong entry
        StructField("last_seq", LongType()),  # where the part ends
        StructField("last_at", TimestampType()),
        StructField("last_chain", BinaryType()),
        StructField("is_back", BooleanType()),  # is earlier than the entry before it
        StructField("is_other", BooleanType()),  # does not hash to its chain
    ]
)


@table(key=(), schema=SCHEMA, writing=Writing.PASSING)
def link(new_history: DataFrame) -> DataFrame:
    """One row per part of a batch without gaps, with its first and last entry; and one per entry that does not follow."""
    return new_history.select(*links.COLUMNS).mapInArrow(links.parts, SCHEMA)
