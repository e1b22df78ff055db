"""State against history: a row of the relay exists if and only if its history says so, up to the position it was read at.

An accept leaves an id, a message, deliveries and mentions together. What a batch touched is compared with every batch,
everything when it is full. A key that is touched again while the state is read is left to the next run.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that

from holdfast.pipeline.finding import SCHEMA
from holdfast.pipeline.table import Batch, Writing, table
from holdfast.pipeline.tables._entry import CLOSINGS, key_of, of_relay
from holdfast.pipeline.tables.chain_break import alive
from holdfast.pipeline.tables.extent import logs_of
from holdfast.pipeline.tables.sequence import ACCEPTS

_MESSAGE = ["origin", "message_id"]
_MEMBER = ["origin", "message_id", "member"]


def orphans_are_told_once(new_orphan: DataFrame) -> DataFrame:
    """A row is told once."""
    return new_orphan.groupBy("origin", "kind", "key").count().where(F.col("count") > 1)


@table(
    key=("origin", "kind", "key"),
    schema=SCHEMA,
    writing=Writing.APPEND,
    finds=True,
    invariant=orphans_are_told_once,
)
def orphan(
    history: DataFrame,
    new_history: DataFrame,
    new_fate: DataFrame,
    extent: DataFrame,
    state_dedupe: DataFrame,
    state_message: DataFrame,
    state_delivery: DataFrame,
    state_mention: DataFrame,
    state_range: DataFrame,
    later_entry: DataFrame,
    old_orphan: DataFrame,
    batch: Batch,
) -> DataFrame:
    """Rows of a relay that its history does not account for, and rows that it should have and has not."""
    logs = logs_of(extent)
    entries = (alive(history, logs) if batch.full else new_history).where(of_relay())
    accepted = entries.where(F.col("kind").isin(*ACCEPTS) & F.col("message_id").isNotNull())
    pruned = _ids(entries, "pruned")
    kept = accepted.join(pruned, on=_MESSAGE, how="left_anti")
    scope = _Scope(extent, later_entry, state_range, batch)
    found = (
        scope.compare(
            "dedupe", _MESSAGE, _dedupe(accepted, pruned, _ids(entries, "dedupe_expired")), _dedupe_rows(state_dedupe)
        )
        .unionByName(scope.compare("message", _MESSAGE, _messages(kept), _message_rows(state_message)))
        .unionByName(
            scope.compare(
                "delivery",
                _MEMBER,
                _deliveries(kept, _closed(entries, new_fate), pruned),
                _delivery_rows(state_delivery),
            )
        )
        .unionByName(scope.compare("mention", _MEMBER, _mentions(kept), _mention_rows(state_mention)))
        .unionByName(_unmatched(new_fate, extent))
    )
    told = ["origin", "kind", "key"]
    return found.join(old_orphan.select(*told), on=told, how="left_anti").select(*SCHEMA.fieldNames())


def _ids(entries: DataFrame, kind: str) -> DataFrame:
    is_one = (F.col("kind") == kind) & F.col("message_id").isNotNull()
    return entries.where(is_one).select(*_MESSAGE).distinct()


def _fact(name: Column, **facts: Column) -> list[Column]:
    """What is compared: the key that people read, the position, and everything else that must agree."""
    parts = [value.alias(column) for column, value in facts.items()]
    return [F.struct(name.alias("name"), F.col("seq").alias("seq"), *parts).alias("fact")]


def _columns(*names: str) -> dict[str, Column]:
    return {name: F.col(name) for name in names}


def _dedupe(accepted: DataFrame, pruned: DataFrame, forgotten: DataFrame) -> DataFrame:
    known = accepted.join(forgotten, on=_MESSAGE, how="left_anti")
    gone = pruned.withColumn("is_pruned", F.lit(True))
    joined = known.join(gone, on=_MESSAGE, how="left")
    return joined.select(*_MESSAGE, "at", *_dedupe_fact(F.col("is_pruned").isNull()))


def _dedupe_rows(state_dedupe: DataFrame) -> DataFrame:
    return state_dedupe.select(*_MESSAGE, *_dedupe_fact(F.col("history_available")))


def _dedupe_fact(history_available: Column) -> list[Column]:
    name = key_of("mesh", "sender", "client_message_id")
    return _fact(
        name, **_columns("event_id", "destination_kind", "destination_ref"), history_available=history_available
    )


def _messages(kept: DataFrame) -> DataFrame:
    return kept.select(*_MESSAGE, "at", *_message_fact())


def _message_rows(state_message: DataFrame) -> DataFrame:
    return state_message.select(*_MESSAGE, *_message_fact())


def _message_fact() -> list[Column]:
    columns = ("mesh", "sender", "client_message_id", "event_id", "destination_kind", "destination_ref", "size")
    return _fact(F.col("message_id"), **_columns(*columns))


def _closed(entries: DataFrame, new_fate: DataFrame) -> DataFrame:
    """How each delivery was closed first, without closings that nothing was open for: those are findings themselves."""
    is_closing = F.col("kind").isin(*CLOSINGS) & F.col("recipient").isNotNull()
    loose = new_fate.where(F.col("state") == "unmatched").select(
        *_MESSAGE, F.col("recipient").alias("member"), F.col("closed_seq").alias("seq")
    )
    closings = entries.where(is_closing).withColumnRenamed("recipient", "member")
    closing = F.struct("seq", F.col("kind").alias("state"), "was_stored", "mesh", "at")
    matched = closings.join(loose, on=[*_MEMBER, "seq"], how="left_anti")
    return matched.groupBy(*_MEMBER).agg(F.min_by(closing, "seq").alias("closing"))


def _deliveries(kept: DataFrame, closed: DataFrame, pruned: DataFrame) -> DataFrame:
    """Open from the accept on, then as the closing says; of older messages only what was closed is known here."""
    queued = kept.where(F.col("kind") != "admin").select("*", F.explode("recipients").alias("one"))
    opened = queued.where(F.col("one.outcome") == "queued").select(
        "origin", "message_id", F.col("one.member").alias("member"), "mesh", F.col("seq").alias("accepted_seq"), "at"
    )
    both = opened.join(closed.join(pruned, on=_MESSAGE, how="left_anti"), on=_MEMBER, how="full_outer")
    return both.select(
        *_MEMBER,
        F.coalesce("at", "closing.at").alias("at"),
        F.struct(
            F.concat_ws("/", F.coalesce("mesh", "closing.mesh"), "member").alias("name"),
            F.col("accepted_seq").alias("seq"),
            F.coalesce("closing.state", F.lit("open")).alias("state"),
            F.col("closing.was_stored").alias("was_stored"),
        ).alias("fact"),
    )


def _delivery_rows(state_delivery: DataFrame) -> DataFrame:
    return state_delivery.select(
        *_MEMBER, *_fact(F.concat_ws("/", "mesh", "member"), **_columns("state", "was_stored"))
    )


def _mentions(kept: DataFrame) -> DataFrame:
    exploded = kept.select("*", F.explode(F.array_distinct("mentions")).alias("member"))
    return exploded.select(*_MEMBER, "at", *_fact(F.concat_ws("/", "mesh", "member")))


def _mention_rows(state_mention: DataFrame) -> DataFrame:
    return state_mention.select(*_MEMBER, *_fact(F.concat_ws("/", "mesh", "member")))


class _Scope:
    """Which rows are compared in this batch."""

    def __init__(self, extent: DataFrame, later_entry: DataFrame, state_range: DataFrame, batch: Batch) -> None:
        self._later = later_entry.where(F.col("message_id").isNotNull()).select(*_MESSAGE).distinct()
        looked_at = state_range.select("origin").distinct()
        began = extent.groupBy("origin").agg(F.min("first_seq").alias("began_seq"))
        rows = [(one.origin, 0 if batch.full else one.after, one.until) for one in batch.ranges]
        ranges = extent.sparkSession.createDataFrame(rows, "origin string, after long, until long")
        self._ranges = F.broadcast(
            ranges.join(looked_at, on="origin", how="inner").join(began, on="origin", how="left")
        )

    def compare(self, what: str, key: Sequence[str], expected: DataFrame, found: DataFrame) -> DataFrame:
        """What should be and is not, what is and should not be, and what is otherwise."""
        nothing = F.lit(None)
        sides = expected.select(*key, "at", "fact", F.lit(True).alias("is_expected")).unionByName(
            found.select(*key, nothing.cast("timestamp").alias("at"), "fact", F.lit(False).alias("is_expected"))
        )
        met = sides.groupBy(*key).agg(
            F.max(F.when(F.col("is_expected"), F.col("fact"))).alias("expected"),
            F.max(F.when(~F.col("is_expected"), F.col("fact"))).alias("found"),
            F.max("at").alias("at"),
        )
        left = met.join(self._later, on=_MESSAGE, how="left_anti").join(self._ranges, on="origin", how="inner")
        return _told(what, left.where(self._is_in_scope()).withColumn("wrong", _wrong()).where("wrong IS NOT NULL"))

    def _is_in_scope(self) -> Column:
        """Rows that nothing is expected of count where the lake knows everything that was accepted."""
        seq = F.col("found.seq")
        is_known = (seq > F.col("after")) & (seq <= F.col("until")) & (seq >= F.coalesce("began_seq", F.lit(1)))
        return F.col("expected").isNotNull() | is_known


def _wrong() -> Column:
    """`missing`, `unknown` or `differs`. Where the accept is older than the batch its position is not compared."""
    expected, found = F.col("expected"), F.col("found")
    comparable = F.when(expected["seq"].isNull(), found.withField("seq", F.lit(None).cast("bigint"))).otherwise(found)
    return (
        F.when(found.isNull(), "missing")
        .when(expected.isNull(), "unknown")
        .when(~expected.eqNullSafe(comparable), "differs")
    )


_DETAILS = {
    "missing": "the history says that it is there, and it is not",
    "unknown": "it is there, and the history knows nothing of it",
    "differs": "it is not what the history says",
}


def _told(what: str, wrong: DataFrame) -> DataFrame:
    seq = F.coalesce("expected.seq", "found.seq")
    name = F.coalesce("expected.name", "found.name")
    key = F.concat_ws("/", name, seq.cast("string")) if what in ("delivery", "mention") else name
    detail = F.create_map(*(F.lit(text) for pair in _DETAILS.items() for text in pair))[F.col("wrong")]
    return wrong.select(
        "origin",
        F.concat(F.lit(f"{what}_"), F.col("wrong")).alias("kind"),
        key.alias("key"),
        F.concat(F.lit(f"{what} of message "), F.col("message_id"), F.lit(": "), detail).alias("detail"),
        seq.alias("seq"),
        "at",
        F.lit(True).alias("is_violation"),
    )


def _unmatched(new_fate: DataFrame, extent: DataFrame) -> DataFrame:
    """Closings that nothing was open for; before a lake's first entry something may have been."""
    began = extent.groupBy("origin").agg(F.min("first_seq").alias("began_seq"))
    loose = new_fate.where(F.col("state") == "unmatched").join(F.broadcast(began), on="origin", how="left")
    return loose.select(
        "origin",
        F.lit("closing_unknown").alias("kind"),
        key_of("mesh", "recipient", "message_id", "closed_seq").alias("key"),
        F.concat(F.lit("entry "), F.col("closed_seq"), F.lit(" closes a delivery that was not open")).alias("detail"),
        F.col("closed_seq").alias("seq"),
        F.col("closed_at").alias("at"),
        (F.coalesce("began_seq", F.lit(1)) <= 1).alias("is_violation"),
    )
