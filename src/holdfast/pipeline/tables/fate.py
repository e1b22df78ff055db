"""What a batch does to deliveries: those that it opens and closes, and closings of deliveries that were not open."""

from pyspark.sql import Column, DataFrame, Window
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
        StructField("state", StringType(), nullable=False),  # open, closed, reopened, repeated, unmatched
        *(StructField(field.name, field.dataType) for field in (*OPENED, *CLOSED)),
        PASSED_OVER,
    ]
)

KEY = ["origin", "message_id", "recipient"]
_BY = ["message_id", "recipient", "origin"]  # the same columns; the most varied first, because rows are sorted by these
_OPENED = [field.name for field in OPENED]
_CLOSED = [field.name for field in CLOSED]


_SAID = (*_CLOSED, "mesh", "sender", "client_message_id", "event_id")  # the columns of a closing


@table(key=(), schema=SCHEMA, writing=Writing.PASSING)
def fate(
    old_fate_open: DataFrame,
    old_fate_reopened: DataFrame,
    old_message_fate: DataFrame,
    old_fate_repeated: DataFrame,
    old_extent: DataFrame,
    extent: DataFrame,
    new_history: DataFrame,
) -> DataFrame:
    """One row per delivery that was open before this batch or that it opens or closes, with its state after the batch."""
    held = _with_cut(old_fate_open, extent).select(
        *_OPENED, "passed_over", F.lit(False).alias("was_closed"), F.when(_is_cut(), _rolled_back()).alias("given")
    )
    old_closed = _closed_before(old_message_fate, old_fate_repeated)
    reopened = _reopened(old_fate_reopened, old_closed, logs_of(old_extent), extent)
    waiting = held.unionByName(_accepted(new_history)).unionByName(reopened)
    met = waiting.join(_closings(new_history), on=_BY, how="full_outer")
    return _shown(met).select(*SCHEMA.fieldNames())


def _accepted(new_history: DataFrame) -> DataFrame:
    """One row per recipient of each accepted message; a recipient who is full or blocked gets a closed one."""
    accepts = new_history.where(of_relay() & F.col("kind").isin("accepted", "receipt"))
    exploded = accepts.withColumn("one", F.explode("recipients"))
    at_once = _closing(F.col("log_id"), F.col("seq"), F.col("at"), F.col("one.outcome"))
    return exploded.select(
        *("origin", "log_id", "mesh", "message_id"),
        F.col("one.member").alias("recipient"),
        F.when(F.col("kind") == "receipt", "receipt").otherwise("message").alias("kind"),
        *("sender", "client_message_id", "event_id", "destination_kind", "destination_ref", "size"),
        F.col("seq").alias("accepted_seq"),
        F.col("at").alias("accepted_at"),
        F.lit(False).alias("passed_over"),
        F.lit(False).alias("was_closed"),
        F.when(F.col("one.outcome") != "queued", at_once).alias("given"),
    )


def _closing(log_id: Column, seq: Column, at: Column, outcome: Column) -> Column:
    """A closing that has no entry of its own, in the shape of those that have one."""
    given = {"closed_seq": seq, "closed_log_id": log_id, "closed_at": at, "outcome": outcome}
    types = {"was_stored": "boolean", "event_id": "binary"}
    return F.struct(
        *(given.get(name, F.lit(None).cast(types.get(name, "string"))).alias(name) for name in _CLOSING_ORDER)
    )


_CLOSING_ORDER = ("closed_seq", *(name for name in _SAID if name != "closed_seq"))  # sorted by its first


def _closings(new_history: DataFrame) -> DataFrame:
    """The closings of this batch, numbered per delivery: the first one counts, and there should be no other."""
    named = {"closed_seq": "seq", "closed_log_id": "log_id", "closed_at": "at", "outcome": "kind"}
    closing = F.struct(*(F.col(named.get(name, name)).alias(name) for name in _CLOSING_ORDER))
    is_closing = of_relay() & F.col("kind").isin(*CLOSINGS) & F.col("recipient").isNotNull()
    told = new_history.where(is_closing).select(*KEY, closing.alias("closing"))
    return told.withColumn("nth", F.row_number().over(Window.partitionBy(*_BY).orderBy("closing")))


def _with_cut(rows: DataFrame, extent: DataFrame) -> DataFrame:
    """The rows with the fork, if any, up to which the log of their accept counts."""
    cuts = extent.where(F.col("valid_until").isNotNull()).select("origin", "log_id", "valid_until", "cut_seq", "cut_at")
    return rows.join(F.broadcast(cuts), on=["origin", "log_id"], how="left")


def _is_cut() -> Column:
    return F.coalesce(F.col("accepted_seq") > F.col("valid_until"), F.lit(False))


def _rolled_back() -> Column:
    return _closing(F.col("log_id"), F.col("cut_seq"), F.col("cut_at"), F.lit("rolled_back"))


def _closed_before(*closings: DataFrame) -> DataFrame:
    """Every closing before this batch: the first of each delivery, and those that followed after a restore."""
    first, repeated = (closed.select(*_OPENED, "closed_log_id", "closed_seq", "outcome") for closed in closings)
    return first.unionByName(repeated)


def _reopened(old_fate_reopened: DataFrame, old_closed: DataFrame, old_logs: list[Log], extent: DataFrame) -> DataFrame:
    """The deliveries that are closed in the log that a relay left, past the fork, and open again in the restored one.

    Only here old closings are read, and only those past a fork that is new in this batch.
    """
    known = old_fate_reopened.select(*_OPENED)
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
        known = known.unionByName(old_closed.where(is_undone).select(*_OPENED))
    return (
        _with_cut(known, extent)
        .where(~_is_cut())
        .dropDuplicates(KEY)  # it may have been closed in two logs
        .select(
            *_OPENED,
            F.lit(False).alias("passed_over"),
            F.lit(True).alias("was_closed"),
            F.lit(None).cast(_closing_type()).alias("given"),
        )
    )


def _closing_type() -> StructType:
    types = {field.name: field.dataType for field in (*OPENED, *CLOSED)}
    return StructType([StructField(name, types[name]) for name in _CLOSING_ORDER])


def _shown(met: DataFrame) -> DataFrame:
    """Every delivery with its state, and a row for each closing that found its delivery not open."""
    is_open, is_given, is_told = (F.col(name).isNotNull() for name in ("accepted_seq", "given", "closing"))
    is_first = F.coalesce("nth", F.lit(1)) == 1
    left = F.when(F.col("was_closed"), "reopened").otherwise("open")
    nothing = F.lit(None).cast(_closing_type())
    own = (
        F.when(is_given, _state(F.lit("closed"), F.col("given")))
        .when(~is_told, _state(left, nothing))
        .otherwise(_state(F.when(F.col("was_closed"), "repeated").otherwise("closed"), F.col("closing")))
    )
    is_loose = is_told & (~is_open | is_given | ~is_first)
    states = F.array(F.when(is_open & is_first, own), F.when(is_loose, _state(F.lit("unmatched"), F.col("closing"))))
    told = met.select("*", F.explode(F.array_compact(states)).alias("told"))
    is_unmatched = F.col("told.state") == "unmatched"
    opened = [
        (F.col(name) if name in KEY else F.when(~is_unmatched, F.col(name)).otherwise(_from_closing(name))).alias(name)
        for name in _OPENED
    ]
    closed = [F.col(f"told.closing.{name}").alias(name) for name in _CLOSED]
    return told.select(
        F.col("told.state").alias("state"),
        *opened,
        *closed,
        F.coalesce("passed_over", F.lit(False)).alias("passed_over"),
    )


def _state(state: Column, closing: Column) -> Column:
    return F.struct(state.alias("state"), closing.alias("closing"))


def _from_closing(name: str) -> Column:
    return F.col(f"told.closing.{name}") if name in _SAID else F.lit(None)
