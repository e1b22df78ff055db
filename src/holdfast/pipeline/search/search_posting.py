"""Which words are in which message: the index that a search uses."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from holdfast.pipeline.search.search_message import words_of
from holdfast.pipeline.table import Writing, table

MESSAGE = ("origin", "log_id", "seq")
SCHEMA = StructType(
    [
        StructField("word", StringType(), nullable=False),  # composed, in lower case
        StructField("origin", StringType(), nullable=False),
        StructField("log_id", BinaryType(), nullable=False),
        StructField("seq", LongType(), nullable=False),
        StructField("times", LongType(), nullable=False),  # how often the word is in the message
    ]
)


def every_word_is_counted(new_search_posting: DataFrame, new_search_message: DataFrame) -> DataFrame:
    """The postings of a message count as many words as it has."""
    counted = new_search_posting.groupBy(*MESSAGE).agg(F.sum("times").alias("counted"))
    both = new_search_message.select(*MESSAGE, "words").join(counted, on=list(MESSAGE), how="full_outer")
    return both.where(~F.coalesce(F.col("words") == F.col("counted"), F.lit(False))).select(*MESSAGE)


@table(
    key=("word", *MESSAGE),
    schema=SCHEMA,
    writing=Writing.APPEND,
    sort_by=("word", "origin", "seq"),
    kinds=("stored", "opened", "enqueued"),
    invariant=every_word_is_counted,
)
def search_posting(new_search_message: DataFrame) -> DataFrame:
    """One row per word and message: how often the word is in it."""
    words = new_search_message.select(*MESSAGE, F.explode(words_of("text")).alias("word"))
    return words.groupBy("word", *MESSAGE).agg(F.count("word").alias("times"))
