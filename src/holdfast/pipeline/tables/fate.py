"""What a batch does to deliveries: those that open, those that close, and closings that nothing was open for."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from holdfast.pipeline.table import Writing, table
from holdfast.pipeline.tables._entry import CLOSINGS, of_relay
from holdfast.pipeline.tables.extent import Log, logs_of

OPENED = [
    StructField("origin", StringType(), nullable=False),
    StructField("log_id", BinaryType(), nullable=False),  # of the accept
    StructField("mesh", StringType(), nullable=False),
    StructField("message_id", StringType(), nullable=False),
    StructField("recipient", StringType(), nullable=False),
    StructField("kind", StringType(), nullable=False),  # message or receipt
    StructField("sender", StringType(), nullable=False),
    StructField("client_message_id", StringType()),
    StructField("event_id", BinaryType()),
    StructField("destination_kind", StringType()),
    StructField("destination_ref", StringType()),
    StructField("size", LongType()),
    StructField("accepted_seq", LongType(), nullable=False),
    StructField("accepted_at", TimestampType(), nullable=False),
]
CLOSED = [
    StructField("closed_log_id", BinaryType(), nullable=False),
    StructField("closed_seq", LongType(), nullable=False),
    StructField("closed_at", TimestampType(), nullable=False),
    StructField("outcome", StringType(), nullable=False),
    StructField("was_stored", BooleanType()),
    StructField("reason", StringType()),
]
PASSED_OVER = StructField("passed_over", BooleanType(), nullable=False)
SCHEMA = StructType(
    [
        StructField("state", StringType(), nullable=False),  # open, closed, reopened, unmatched
        *(StructField(field.name, field.dataType) for field in (*OPENED, *CLOSED)),
        PASSED_OVER,
    ]
)

KEY = ["origin", "message_id", "recipient"]
_OPENED = [field.name for field in OPENED]
_CLOSED = [field.name for field in CLOSED]


@table(key=(), schema=SCHEMA, writing=Writing.PASSING)
def fate(
    old_fate_open: DataFrame,
    old_fate_reopened: DataFrame,
    old_message_fate: DataFrame,
    old_extent: DataFrame,
    extent: DataFrame,
    new_history: DataFrame,
) -> DataFrame:
    """What this batch opens, leaves open and closes."""
    accepted = _accepted(new_history)
    at_once = accepted.where(F.col("outcome") != "queued")
    opened = accepted.where(F.col("outcome") == "queued").select(*_OPENED, F.lit(False).alias("passed_over"))
    held = _with_cut(old_fate_open, extent)
    rolled_back = held.where(_is_cut()).select(*_OPENED, *_rolled_back(), F.lit(False).alias("passed_over"))
    waiting = held.where(~_is_cut()).select(*_OPENED, "passed_over").unionByName(opened)
    reopened = _reopened(old_fate_reopened, old_message_fate, logs_of(old_extent), extent)
    met = _met(waiting, reopened, _closings(new_history))
    return _shown(met).unionByName(_tagged(at_once, "closed")).unionByName(_tagged(rolled_back, "closed"))


def _accepted(new_history: DataFrame) -> DataFrame:
    """A row per recipient of what was accepted. Who was full or blocked is done with at once."""
    accepts = new_history.where(of_relay() & F.col("kind").isin("accepted", "receipt"))
    exploded = accepts.withColumn("one", F.explode("recipients"))
    return exploded.select(
        "origin",
        "log_id",
        "mesh",
        "message_id",
        F.col("one.member").alias("recipient"),
        F.when(F.col("kind") == "receipt", "receipt").otherwise("message").alias("kind"),
        *("sender", "client_message_id", "event_id", "destination_kind", "destination_ref", "size"),
        F.col("seq").alias("accepted_seq"),
        F.col("at").alias("accepted_at"),
        F.col("log_id").alias("closed_log_id"),
        F.col("seq").alias("closed_seq"),
        F.col("at").alias("closed_at"),
        F.col("one.outcome").alias("outcome"),
        F.lit(None).cast("boolean").alias("was_stored"),
        F.lit(None).cast("string").alias("reason"),
        F.lit(False).alias("passed_over"),
    )


def _closings(new_history: DataFrame) -> DataFrame:
    """The closings of one delivery in their order: the first counts, and there should be no other."""
    closing = F.struct(
        F.col("seq").alias("closed_seq"),
        F.col("log_id").alias("closed_log_id"),
        F.col("at").alias("closed_at"),
        F.col("kind").alias("outcome"),
        *("was_stored", "reason", "mesh", "sender", "client_message_id", "event_id"),
    )
    is_closing = of_relay() & F.col("kind").isin(*CLOSINGS) & F.col("recipient").isNotNull()
    return new_history.where(is_closing).groupBy(*KEY).agg(F.sort_array(F.collect_list(closing)).alias("closings"))


def _with_cut(rows: DataFrame, extent: DataFrame) -> DataFrame:
    """Rows with the point up to which the log of their accept counts."""
    cuts = extent.where(F.col("valid_until").isNotNull()).select("origin", "log_id", "valid_until", "cut_seq", "cut_at")
    return rows.join(F.broadcast(cuts), on=["origin", "log_id"], how="left")


def _is_cut() -> Column:
    return F.coalesce(F.col("accepted_seq") > F.col("valid_until"), F.lit(False))


def _rolled_back() -> list[Column]:
    return [
        F.col("log_id").alias("closed_log_id"),
        F.col("cut_seq").alias("closed_seq"),
        F.col("cut_at").alias("closed_at"),
        F.lit("rolled_back").alias("outcome"),
        F.lit(None).cast("boolean").alias("was_stored"),
        F.lit(None).cast("string").alias("reason"),
    ]


def _reopened(
    old_fate_reopened: DataFrame, old_message_fate: DataFrame, old_logs: list[Log], extent: DataFrame
) -> DataFrame:
    """What a restored relay has open again though it was closed past the fork: the fate stays what it was.

    Only here old fates are read, and only those past a fork that was not known before.
    """
    known = _with_cut(old_fate_reopened, extent).where(~_is_cut()).select(*_OPENED)
    before = {(log.origin, log.log_id): log.valid_until for log in old_logs}
    for log in logs_of(extent):
        if log.valid_until is None or before.get((log.origin, log.log_id)) == log.valid_until:
            continue
        is_undone = (
            (F.col("origin") == log.origin)
            & (F.col("closed_log_id") == F.lit(log.log_id))
            & (F.col("closed_seq") > log.valid_until)
            & F.col("outcome").isin(*CLOSINGS)
        )
        undone = _with_cut(old_message_fate.where(is_undone), extent).where(~_is_cut()).select(*_OPENED)
        known = known.unionByName(undone)
    return known.dropDuplicates(KEY)  # two forks may both lie before one closing


def _met(waiting: DataFrame, reopened: DataFrame, closings: DataFrame) -> DataFrame:
    """Whatever is open beside whatever closes it."""
    both = waiting.withColumn("was_closed", F.lit(False)).unionByName(
        reopened.withColumn("passed_over", F.lit(False)).withColumn("was_closed", F.lit(True))
    )
    return both.join(closings, on=KEY, how="full_outer")


def _shown(met: DataFrame) -> DataFrame:
    """Each row with its state; closings that found nothing open are rows of their own."""
    is_open, is_closing = F.col("accepted_seq").isNotNull(), F.col("closings").isNotNull()
    left = met.where(is_open & ~is_closing)
    first = met.withColumn("closing", F.col("closings")[0])
    closed = first.where(is_open & is_closing & ~F.col("was_closed")).select(
        *_OPENED, *(F.col(f"closing.{name}").alias(name) for name in _CLOSED), "passed_over"
    )
    still = left.where(~F.col("was_closed")).select(*_OPENED, *_nothing(CLOSED), "passed_over")
    again = left.where(F.col("was_closed")).select(*_OPENED, *_nothing(CLOSED), "passed_over")
    return (
        _tagged(closed, "closed")
        .unionByName(_tagged(_overtaken(still, closed), "open"))
        .unionByName(_tagged(again, "reopened"))
        .unionByName(_tagged(_unmatched(met), "unmatched"))
    )


def _overtaken(still: DataFrame, closed: DataFrame) -> DataFrame:
    """Rows that stay open though their recipient acknowledged something younger: a queue is taken in order."""
    delivered = closed.where((F.col("outcome") == "delivered") & (F.col("kind") == "message"))
    latest = delivered.groupBy("origin", "mesh", "recipient").agg(F.max("accepted_seq").alias("latest_seq"))
    overtaken = F.col("passed_over") | F.coalesce(F.col("accepted_seq") < F.col("latest_seq"), F.lit(False))
    joined = still.join(latest, on=["origin", "mesh", "recipient"], how="left")
    return joined.select(*_OPENED, *_CLOSED, overtaken.alias("passed_over"))


def _unmatched(met: DataFrame) -> DataFrame:
    """Closings beyond the first, and all of those that found nothing open."""
    extra = F.when(F.col("accepted_seq").isNull(), F.col("closings")).otherwise(
        F.slice("closings", 2, F.greatest(F.size("closings") - 1, F.lit(0)))
    )
    closing = met.where(F.col("closings").isNotNull()).select(*KEY, F.explode(extra).alias("closing"))
    given = {"mesh", "sender", "client_message_id", "event_id", *_CLOSED}
    return closing.select(
        *(
            F.col(name)
            if name in KEY
            else (F.col(f"closing.{name}") if name in given else F.lit(None).cast(type_)).alias(name)
            for name, type_ in ((field.name, field.dataType) for field in (*OPENED, *CLOSED))
        ),
        F.lit(False).alias("passed_over"),
    )


def _nothing(fields: list[StructField]) -> list[Column]:
    return [F.lit(None).cast(field.dataType).alias(field.name) for field in fields]


def _tagged(rows: DataFrame, state: str) -> DataFrame:
    return rows.select(F.lit(state).alias("state"), *_OPENED, *_CLOSED, "passed_over")
