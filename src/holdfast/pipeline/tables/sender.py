"""What a batch does to sends: those that devices enqueued, tried and settled."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that
from pyspark.sql.types import BinaryType, BooleanType, LongType, StringType, StructField, StructType, TimestampType

from holdfast.pipeline.table import Writing, table
from holdfast.pipeline.tables._entry import number_at, of_device, utf8

ENQUEUED = [
    StructField("enqueued_seq", LongType()),  # or of the `attempted` entry that says that a restored relay lost it
    StructField("enqueued_at", TimestampType()),
    StructField("log_id", BinaryType()),  # of that entry
    StructField("mesh", StringType()),
    StructField("epoch", BinaryType()),
    StructField("client_message_id", StringType()),
    StructField("destination_kind", StringType()),
    StructField("destination_ref", StringType()),
    StructField("size", LongType()),  # bytes of the blob
]
TRIED = [
    StructField("attempts", LongType(), nullable=False),
    StructField("attempted_at", TimestampType()),  # the last time
    StructField("attempted_seq", LongType()),
    StructField("last_reason", StringType()),  # of the last attempt that failed
]
SETTLED = [
    StructField("status", StringType(), nullable=False),  # relayed, dead, aborted, rolled_back
    StructField("closed_seq", LongType(), nullable=False),
    StructField("closed_at", TimestampType(), nullable=False),
    StructField("message_id", StringType()),  # at the relay
    StructField("event_id", BinaryType()),
    StructField("superseded_by", StringType()),
    StructField("reason", StringType()),
]
KEY_FIELDS = [
    StructField("origin", StringType(), nullable=False),
    StructField("sequence", LongType(), nullable=False),
]
SCHEMA = StructType(
    [
        StructField("state", StringType(), nullable=False),  # open or closed
        *(StructField(field.name, field.dataType) for field in (*KEY_FIELDS, *ENQUEUED, *TRIED, *SETTLED)),
        StructField("is_late", BooleanType(), nullable=False),  # it was settled before
    ]
)

KEY = ["origin", "sequence"]
_ENQUEUED = [field.name for field in ENQUEUED]
_TRIED = [field.name for field in TRIED]
_SETTLED = [field.name for field in SETTLED]
_SETTLING = ("relayed", "dead", "aborted")


@table(key=(), schema=SCHEMA, writing=Writing.PASSING)
def sender(old_sender_open: DataFrame, extent: DataFrame, new_history: DataFrame) -> DataFrame:
    """One row per send that was open before this batch or that it enqueues or settles, with its state after the batch."""
    entries = new_history.where(of_device() & F.col("sequence").isNotNull())
    cuts = extent.where(F.col("valid_until").isNotNull()).select("origin", "log_id", "valid_until", "cut_seq", "cut_at")
    held = old_sender_open.join(F.broadcast(cuts), on=["origin", "log_id"], how="left")
    is_cut = F.coalesce(F.col("enqueued_seq") > F.col("valid_until"), F.lit(False))
    waiting = held.where(~is_cut).select(*KEY, F.struct(*_ENQUEUED, *_TRIED).alias("opening"))
    rolled_back = held.where(is_cut).select(*KEY, *_ENQUEUED, *_TRIED, *_rolled_back(), F.lit(False).alias("is_late"))
    told = _told(entries).unionByName(waiting, allowMissingColumns=True).groupBy("sequence", "origin")
    met = told.agg(_in_order("opening", "opens"), _in_order("settling", "settlings"), _in_order("try", "tries"))
    return _shown(_paired(met)).unionByName(_tagged(rolled_back, "closed"))


def _in_order(one: str, many: str) -> Column:
    """All values of a column for one send, as an array sorted by position, which is their first field."""
    return F.sort_array(F.collect_list(one)).alias(many)


def _paired(met: DataFrame) -> DataFrame:
    """The first opening of a send with its first settlement, and so on: it opens again only after it was settled."""
    pairs = F.explode(F.arrays_zip("opens", "settlings"))
    return met.select(*KEY, "tries", pairs.alias("pair")).select(*KEY, "tries", "pair.*")


def _told(entries: DataFrame) -> DataFrame:
    """Each entry as an opening, a try or a settlement of its send; a try that tells of a loss is an opening, too."""
    kind = F.col("kind")
    is_lost = (kind == "attempted") & F.col("reason").eqNullSafe("rolled_back")  # by a restored relay
    return entries.where(kind.isin("enqueued", "attempted", *_SETTLING)).select(
        *KEY,
        F.when((kind == "enqueued") | is_lost, _opening()).alias("opening"),
        F.when(kind.isin(*_SETTLING), _settling()).alias("settling"),
        F.when(kind == "attempted", F.struct("seq", "at", number_at("detail", 1).alias("number"), "reason")).alias(
            "try"
        ),
    )


def _opening() -> Column:
    """The columns of a send that an entry opens."""
    return F.struct(
        F.col("seq").alias("enqueued_seq"),
        F.col("at").alias("enqueued_at"),
        *("log_id", "mesh", "epoch", "client_message_id", "destination_kind", "destination_ref", "size"),
        F.lit(0).cast("bigint").alias("attempts"),
        *(F.lit(None).cast(field.dataType).alias(field.name) for field in TRIED[1:]),
    )


def _settling() -> Column:
    return F.struct(
        F.col("seq").alias("closed_seq"),
        F.col("at").alias("closed_at"),
        F.col("kind").alias("status"),
        *("message_id", "event_id"),
        F.when(F.col("kind") == "aborted", utf8("detail")).alias("superseded_by"),
        "reason",
        *("mesh", "epoch", "client_message_id", "destination_kind", "destination_ref"),
    )


def _rolled_back() -> list[Column]:
    given = {
        "status": F.lit("rolled_back"),
        "closed_seq": F.col("cut_seq"),
        "closed_at": F.col("cut_at"),
    }
    return [given.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name) for field in SETTLED]


def _shown(paired: DataFrame) -> DataFrame:
    """Each pair as a row: an open send, a settled one, or a late settlement of one that was not open."""
    is_open, is_settled = F.col("opens").isNotNull(), F.col("settlings").isNotNull()
    state = F.when(is_settled, "closed").otherwise("open").alias("state")
    named = {"mesh", "epoch", "client_message_id", "destination_kind", "destination_ref"}
    opened = [
        (F.coalesce(f"opens.{name}", f"settlings.{name}") if name in named else F.col(f"opens.{name}")).alias(name)
        for name in _ENQUEUED
    ]
    settled = [F.col(f"settlings.{name}").alias(name) for name in _SETTLED]
    return paired.select(state, *KEY, *opened, *_tried(), *settled, (~is_open).alias("is_late"))


def _tried() -> list[Column]:
    """The columns about the attempts between an opening and its settlement."""

    def is_between(one: Column) -> Column:
        until = F.coalesce(F.col("settlings.closed_seq"), F.lit(2**63 - 1))
        return (one["seq"] > F.col("opens.enqueued_seq")) & (one["seq"] < until)

    own = F.filter("tries", is_between)
    failed = F.filter(own, lambda one: one["reason"].isNotNull())
    attempts = F.array_max(F.transform(own, lambda one: one["number"]))
    return [
        F.coalesce(F.greatest("opens.attempts", attempts), F.lit(0)).alias("attempts"),
        F.coalesce(F.array_max(F.transform(own, lambda one: one["at"])), "opens.attempted_at").alias("attempted_at"),
        F.coalesce(F.array_max(F.transform(own, lambda one: one["seq"])), "opens.attempted_seq").alias("attempted_seq"),
        F.coalesce(F.try_element_at(failed, F.lit(-1))["reason"], "opens.last_reason").alias("last_reason"),
    ]


def _tagged(rows: DataFrame, state: str) -> DataFrame:
    return rows.select(F.lit(state).alias("state"), *KEY, *_ENQUEUED, *_TRIED, *_SETTLED, "is_late")
