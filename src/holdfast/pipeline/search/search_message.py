"""The messages of the owner that can be read, with their text. They stay when the home has deleted them."""

import pyarrow as pa  # type: ignore[import-untyped]  # the package ships no types
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that
from pyspark.sql.types import BinaryType, DateType, LongType, StringType, StructField, StructType, TimestampType

from holdfast.pipeline.search._words import WORD, composed
from holdfast.pipeline.table import Writing, table
from holdfast.pipeline.tables._entry import day_of, device_mesh, utf8

KEY = ("origin", "direction", "peer", "client_message_id")
SCHEMA = StructType(
    [
        StructField("origin", StringType(), nullable=False),
        StructField("log_id", BinaryType(), nullable=False),
        StructField("seq", LongType(), nullable=False),  # of the entry that tells of its arrival, or of its sending
        StructField("at", TimestampType(), nullable=False),
        StructField("direction", StringType(), nullable=False),  # received or sent
        StructField("peer", StringType(), nullable=False),  # who wrote it, or to whom it was written
        StructField("peer_name", StringType()),  # at that time; of received messages
        StructField("mesh", StringType(), nullable=False),
        StructField("topic", StringType()),
        StructField("client_message_id", StringType(), nullable=False),
        StructField("message_id", StringType()),  # at the relay
        StructField("text", StringType(), nullable=False),
        StructField("words", LongType(), nullable=False),
        StructField("day", DateType(), nullable=False),  # of `at`, UTC
    ]
)
_META_AT = 42  # where the length of the meta is in a blob of version 1


def messages_can_be_found(new_search_message: DataFrame) -> DataFrame:
    """A message is there once, has words, and is of the mesh of its device."""
    is_right = (
        (F.col("words") > 0)
        & (F.col("mesh") == device_mesh("origin"))
        & F.col("direction").isin("received", "sent")
        & (F.length("text") > 0)
    )
    twice = new_search_message.groupBy(*KEY).count().where(F.col("count") > 1)
    return new_search_message.where(~is_right).select(*KEY).unionByName(twice.select(*KEY))


@table(
    key=KEY,
    schema=SCHEMA,
    writing=Writing.APPEND,
    partition_by="day",
    sort_by=("origin", "seq"),
    kinds=("stored", "opened", "enqueued"),
    invariant=messages_can_be_found,
)
def search_message(
    new_history: DataFrame,
    new_reopened: DataFrame,
    state_inbox: DataFrame,
    state_sent: DataFrame,
    old_search_message: DataFrame,
) -> DataFrame:
    """One row per message that the owner received or sent and that has words in it."""
    came = new_history.where(F.col("kind") == "stored").select("origin", "seq").unionByName(new_reopened).distinct()
    went = new_history.where(F.col("kind") == "enqueued").select("origin", "seq")
    both = _received(state_inbox.join(came, on=["origin", "seq"], how="left_semi")).unionByName(
        _sent(state_sent.join(went, on=["origin", "seq"], how="left_semi"))
    )
    words = F.size(words_of("text")).cast("bigint")
    found = both.withColumn("text", utf8("body")).withColumn("words", words).withColumn("day", day_of("at"))
    # A restored home receives messages again that it had lost.
    order = F.row_number().over(Window.partitionBy(*KEY).orderBy("seq"))
    first = found.where(F.col("words") > 0).withColumn("order", order).where(F.col("order") == 1)
    return first.join(old_search_message.select(*KEY), on=list(KEY), how="left_anti").select(*SCHEMA.fieldNames())


def words_of(column: str) -> Column:
    """The words of a text, composed and in lower case, with repetitions; none where there is no text."""
    # Spark has no function for Unicode normal forms.
    text = F.arrow_udf(_composed, StringType())(column)  # type: ignore[attr-defined]  # which the stubs leave out
    return F.coalesce(F.regexp_extract_all(F.lower(text), F.lit(WORD), F.lit(0)), F.array().cast("array<string>"))


def _composed(texts: pa.Array) -> pa.Array:
    return pa.array([None if text is None else composed(text) for text in texts.to_pylist()], pa.string())


def _received(inbox: DataFrame) -> DataFrame:
    return inbox.select(
        *("origin", "log_id", "seq", F.col("received_at").alias("at")),
        F.lit("received").alias("direction"),
        F.col("sender").alias("peer"),
        F.col("sender_name").alias("peer_name"),
        *("mesh", "topic", "client_message_id", F.col("broker_message_id").alias("message_id"), "body"),
    )


def _sent(sent: DataFrame) -> DataFrame:
    """The messages to members and topics. A blob is what was sealed: version, object, sequence, then meta and body."""
    meta_bytes = _length("blob", F.lit(_META_AT))
    body = F.expr("substring(blob, body_at)")
    is_text = F.col("destination_kind").isin("dm", "topic") & (F.hex(F.substring("blob", 1, 1)) == "01")
    return (
        sent.where(is_text)
        .withColumn("body_at", meta_bytes + _META_AT + 8)
        .select(
            *("origin", "log_id", "seq", F.col("enqueued_at").alias("at")),
            F.lit("sent").alias("direction"),
            F.col("destination_ref").alias("peer"),
            F.lit(None).cast("string").alias("peer_name"),
            device_mesh("origin").alias("mesh"),
            F.when(F.col("destination_kind") == "topic", F.col("destination_ref")).alias("topic"),
            *("client_message_id", F.col("broker_message_id").alias("message_id"), body.alias("body")),
        )
    )


def _length(column: str, at: Column) -> Column:
    """The four-byte big-endian number at a place that counts from 1."""
    return F.conv(F.hex(F.substring(F.col(column), at, F.lit(4))), 16, 10).cast("int")
