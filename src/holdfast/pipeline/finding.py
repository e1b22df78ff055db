"""A finding: one thing that is not as the histories say it must be. Every table that finds has these columns and no others."""

from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType, TimestampType

SCHEMA = StructType(
    [
        StructField("origin", StringType(), nullable=False),  # the history that shows it
        StructField("kind", StringType(), nullable=False),  # what is wrong, one word of the table's own list
        StructField("key", StringType(), nullable=False),  # which row: the parts of its key joined by "/"
        StructField("detail", StringType(), nullable=False),  # a sentence
        StructField("seq", LongType()),  # the entry that shows it, if one does
        StructField("at", TimestampType()),  # that entry's time
        StructField("is_violation", BooleanType(), nullable=False),  # False: unexplained, or only worth knowing
    ]
)
