"""Compares state with history: a row of a relay, or of a device's operation log, exists if and only if the history says so.

An accept makes a dedupe row, a message, deliveries and mentions; a snapshot has a row of its own. A batch compares the rows that it touched,
a full one all of them. A message that is touched again while the state is read is left to the next batch. What the history says of a
message is gathered once. The rows that follow from it and the rows that are there are brought into one shape, a fact, and must be equal.
"""

from functools import partial, reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from holdfast.pipeline import few
from holdfast.pipeline.table import Batch, Writing, table
from holdfast.pipeline.tables._entry import CLOSINGS, key_of, of_relay
from holdfast.pipeline.tables._finding import SCHEMA
from holdfast.pipeline.tables._operation import operation_orphans, told_by_all, told_by_batch
from holdfast.pipeline.tables._snapshot_state import snapshot_orphans, standing_by_all
from holdfast.pipeline.tables.chain_break import alive
from holdfast.pipeline.tables.extent import began_frame, logs_of
from holdfast.pipeline.tables.history import SCHEMA as HISTORY
from holdfast.pipeline.tables.sequence import ACCEPTS

_MESSAGE = ["message_id", "origin"]  # the most varied first, because rows are sorted by these

# The columns that are compared. A table has some of them; the others are null on both sides.
_COMPARED: dict[str, DataType] = {
    "event_id": BinaryType(),
    "sender": StringType(),
    "client_message_id": StringType(),
    "destination_kind": StringType(),
    "destination_ref": StringType(),
    "size": LongType(),
    "history_available": BooleanType(),
    "state": StringType(),
    "was_stored": BooleanType(),
}
_OF_TABLE = {
    "dedupe": ("event_id", "sender", "client_message_id", "destination_kind", "destination_ref", "history_available"),
    "message": ("event_id", "sender", "client_message_id", "destination_kind", "destination_ref", "size"),
    "delivery": ("state", "was_stored"),
    "mention": (),
}
_FACT = StructType(
    [
        StructField("table", StringType()),
        StructField("member", StringType()),  # null where the row is the message's own
        StructField("mesh", StringType()),
        StructField("seq", LongType()),  # of the accept; null where that entry is not looked at
        StructField("at", TimestampType()),
        StructField("compared", StructType([StructField(name, type_) for name, type_ in _COMPARED.items()])),
        StructField("sender", StringType()),  # for the key that people read
        StructField("client_message_id", StringType()),
    ]
)


def orphans_are_told_once(new_orphan: DataFrame) -> DataFrame:
    """A finding is there once."""
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
    new_sender: DataFrame,
    new_snapshot_standing: DataFrame,
    current_snapshot: DataFrame,
    extent: DataFrame,
    state_dedupe: DataFrame,
    state_message: DataFrame,
    state_delivery: DataFrame,
    state_mention: DataFrame,
    state_operation: DataFrame,
    state_snapshot: DataFrame,
    state_range: DataFrame,
    later_entry: DataFrame,
    old_orphan: DataFrame,
    batch: Batch,
) -> DataFrame:
    """Findings: rows of a relay or a device that its history does not explain, rows that are missing, and closings of deliveries that were not open."""
    whole = alive(history, logs_of(extent))
    entries = (whole if batch.full else new_history).where(of_relay())
    rows = {"dedupe": state_dedupe, "message": state_message, "delivery": state_delivery, "mention": state_mention}
    found = reduce(DataFrame.unionByName, (_row_facts(name, rows[name]) for name in rows))
    paired = _paired(_unlike(_records(entries, new_fate, found), batch))
    later = later_entry.where(F.col("message_id").isNotNull()).select(*_MESSAGE).distinct()
    looked_at = F.broadcast(_looked_at(extent, state_range, batch))
    settled = paired.join(later, on=_MESSAGE, how="left_anti").join(looked_at, on="origin", how="inner")
    wrong = settled.where(_is_in_scope()).withColumn("wrong", _wrong()).where(F.col("wrong").isNotNull())
    told = ["origin", "kind", "key"]
    sends = told_by_all(whole) if batch.full else told_by_batch(new_sender, batch)
    standing = standing_by_all(whole, current_snapshot) if batch.full else new_snapshot_standing
    all_of_them = (
        _told(wrong)
        .unionByName(_unmatched(new_fate, extent))
        .unionByName(operation_orphans(sends, state_operation, later_entry, state_range))
        .unionByName(snapshot_orphans(standing, state_snapshot, later_entry, looked_at))
    )
    return all_of_them.join(old_orphan.select(*told), on=told, how="left_anti").select(*SCHEMA.fieldNames())


def _records(entries: DataFrame, new_fate: DataFrame, found: DataFrame) -> DataFrame:
    """One row per message: its accept, its closings, whether it was pruned or forgotten, and the facts that were found of it."""
    loose = new_fate.where(F.col("state") == "unmatched").select(
        *_MESSAGE, F.lit("loose").alias("kind"), "recipient", F.col("closed_seq").alias("seq")
    )
    about = entries.where(
        F.col("message_id").isNotNull() & F.col("kind").isin(*ACCEPTS, *CLOSINGS, "pruned", "dedupe_expired")
    )
    kind, is_closing = F.col("kind"), F.col("kind").isin(*CLOSINGS) & F.col("recipient").isNotNull()
    accept = F.struct(
        *("seq", "at", "mesh", "sender", "client_message_id", "event_id", "destination_kind", "destination_ref"),
        "size",
        *(_none_if_absent(name).alias(name) for name in ("recipients", "mentions")),
    )
    closing = F.struct("seq", "recipient", F.col("kind").alias("state"), "was_stored", "at", "mesh")
    told = about.unionByName(loose, allowMissingColumns=True).unionByName(found, allowMissingColumns=True)
    # Without `repartition` Spark would group before the shuffle, too, where nothing is together yet: a sort for nothing. The hash is
    # quicker to sort by than ids, of which those of one second begin alike.
    return (
        told.withColumn("hash", F.xxhash64(*_MESSAGE))
        .repartition("hash")
        .groupBy("hash", *_MESSAGE)
        .agg(
            F.min_by(F.when(kind.isin(*ACCEPTS), accept), F.when(kind.isin(*ACCEPTS), F.col("seq"))).alias("accept"),
            F.sort_array(F.collect_list(F.when(is_closing, closing))).alias("closings"),
            F.collect_list(F.when(kind == "loose", F.struct("recipient", "seq"))).alias("loose"),
            F.coalesce(F.max(kind == "pruned"), F.lit(False)).alias("is_pruned"),
            F.coalesce(F.max(kind == "dedupe_expired"), F.lit(False)).alias("is_forgotten"),
            F.collect_list("fact").alias("found"),
        )
    )


def _none_if_absent(name: str) -> Column:
    """A list of an entry; an empty one where a damaged entry lacks it, so that the rest can be compared."""
    return F.coalesce(name, F.array().cast(HISTORY[name].dataType))


def _unlike(records: DataFrame, batch: Batch) -> DataFrame:
    """All facts, expected and found, of the messages for which they differ. There are nearly none."""
    matched = F.filter(
        "closings", lambda one: ~F.array_contains(F.col("loose"), F.struct(one["recipient"], one["seq"]))
    )
    known = records.withColumn("closings", matched).select(*_MESSAGE, _expected(batch).alias("expected"), "found")
    unlike = known.where(~_in_order("expected").eqNullSafe(_in_order("found")))
    sides = F.concat(*(F.transform(name, partial(_on_side, name)) for name in ("expected", "found")))
    return unlike.select(*_MESSAGE, F.explode(sides).alias("side")).select(*_MESSAGE, "side.*", "side.fact.*")


def _in_order(facts: str) -> Column:
    """The compared parts of facts, in an order that does not depend on where they were found."""
    return F.sort_array(
        F.transform(facts, lambda one: F.struct(*(one[name] for name in ("table", "member", "seq", "compared"))))
    )


def _on_side(name: str, fact: Column) -> Column:
    return F.struct(F.lit(name == "expected").alias("is_expected"), fact.alias("fact"))


def _expected(batch: Batch) -> Column:
    """The facts that a message should have. Where its accept is not among the entries, only its closed deliveries are known."""
    accept, nothing = F.col("accept"), F.array().cast(ArrayType(_FACT))
    dedupe = F.array(_accept_fact("dedupe", history_available=~F.col("is_pruned")))
    of_accept = F.concat(F.array(_accept_fact("message")), _opened(), _mentioned())
    facts = F.when(
        accept.isNull(), nothing if batch.full else F.when(~F.col("is_pruned"), _closed()).otherwise(nothing)
    )
    return facts.otherwise(
        F.concat(
            F.when(F.col("is_forgotten"), nothing).otherwise(dedupe),
            F.when(F.col("is_pruned"), nothing).otherwise(of_accept),
        )
    )


def _fact(table_name: str, given: dict[str, Column]) -> Column:
    """A fact of a table; a column that the table lacks is null."""
    own = _OF_TABLE[table_name]
    compared = F.struct(
        *((given[name] if name in own else F.lit(None)).cast(type_).alias(name) for name, type_ in _COMPARED.items())
    )
    given = {**given, "table": F.lit(table_name), "compared": compared}
    return F.struct(*(given.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name) for field in _FACT))


def _accept_fact(table_name: str, **more: Column) -> Column:
    names = (
        "seq",
        "at",
        "mesh",
        "sender",
        "client_message_id",
        "event_id",
        "destination_kind",
        "destination_ref",
        "size",
    )
    return _fact(table_name, {**{name: F.col(f"accept.{name}") for name in names}, **more})


def _opened() -> Column:
    """The deliveries of an accept, one per queued recipient: open, or with the state of its first closing."""
    queued = F.filter("accept.recipients", lambda one: one["outcome"] == "queued")

    def delivery(one: Column) -> Column:
        closing = F.get(F.filter("closings", lambda other: other["recipient"] == one["member"]), 0)
        state = F.coalesce(closing["state"], F.lit("open"))
        return _accept_fact("delivery", member=one["member"], state=state, was_stored=closing["was_stored"])

    return F.transform(queued, delivery)


def _mentioned() -> Column:
    return F.transform(F.array_distinct("accept.mentions"), lambda member: _accept_fact("mention", member=member))


def _closed() -> Column:
    """The closed deliveries of a message whose accept is not looked at."""

    def delivery(one: Column) -> Column:
        given = {name: one[name] for name in ("at", "mesh", "state", "was_stored")}
        return _fact("delivery", {**given, "member": one["recipient"]})

    return F.transform("closings", delivery)


def _row_facts(table_name: str, rows: DataFrame) -> DataFrame:
    """The rows of a table as facts."""
    columns = set(rows.columns)
    given = {name: F.col(name) for name in (*_COMPARED, "seq", "mesh", "member", "sender") if name in columns}
    fact = _fact(table_name, {**given, "client_message_id": given.get("client_message_id", F.lit(None))})
    return rows.select(*_MESSAGE, fact.alias("fact"))


def _paired(sides: DataFrame) -> DataFrame:
    """One row per row that is there or should be, with the fact that is expected and the one that was found."""
    fact = F.struct("seq", "compared", "mesh", "at", "sender", "client_message_id")
    return sides.groupBy(*_MESSAGE, "table", "member").agg(
        F.max(F.when(F.col("is_expected"), fact)).alias("expected"),
        F.max(F.when(~F.col("is_expected"), fact)).alias("found"),
    )


def _looked_at(extent: DataFrame, state_range: DataFrame, batch: Batch) -> DataFrame:
    """Per history whose state was read: the range of the batch, and the lake's first position."""
    rows = [(one.origin, 0 if batch.full else one.after, one.until) for one in batch.ranges]
    ranges = few.listed(extent.sparkSession, rows, "origin string, after long, until long")
    return ranges.join(state_range.select("origin").distinct(), on="origin", how="inner").join(
        began_frame(extent), on="origin", how="left"
    )


def _is_in_scope() -> Column:
    """Whether a difference can be judged: a message that was accepted before the lake's first position cannot."""
    began, seq = F.coalesce("began_seq", F.lit(1)), F.col("found.seq")
    is_known = (seq > F.col("after")) & (seq <= F.col("until")) & (seq >= began)
    is_whole = F.coalesce(F.col("expected.seq") >= began, F.lit(True))  # null if the accept is not looked at
    return F.when(F.col("expected").isNotNull(), is_whole).otherwise(is_known)


def _wrong() -> Column:
    """`missing`, `unknown`, `differs` or null; the position is compared where it is known."""
    expected, found = F.col("expected"), F.col("found")
    moved = expected["seq"].isNotNull() & (expected["seq"] != found["seq"])
    return (
        F.when(found.isNull(), "missing")
        .when(expected.isNull(), "unknown")
        .when(moved | ~expected["compared"].eqNullSafe(found["compared"]), "differs")
    )


_DETAILS = {
    "missing": "the history says that it is there, and it is not",
    "unknown": "it is there, and the history knows nothing of it",
    "differs": "it is not what the history says",
}


def _told(wrong: DataFrame) -> DataFrame:
    def either(name: str) -> Column:
        return F.coalesce(F.col(f"expected.{name}"), F.col(f"found.{name}"))

    key = (
        F.when(F.col("table") == "dedupe", key_of(either("mesh"), either("sender"), either("client_message_id")))
        .when(F.col("table") == "message", F.col("message_id"))
        .otherwise(key_of(either("mesh"), "member", F.coalesce(either("seq").cast("string"), F.col("message_id"))))
    )
    detail = F.create_map(*(F.lit(text) for pair in _DETAILS.items() for text in pair))[F.col("wrong")]
    return wrong.select(
        "origin",
        F.concat_ws("_", "table", "wrong").alias("kind"),
        key.alias("key"),
        F.concat(F.col("table"), F.lit(" of message "), F.col("message_id"), F.lit(": "), detail).alias("detail"),
        either("seq").alias("seq"),
        either("at").alias("at"),
        F.lit(True).alias("is_violation"),
    )


def _unmatched(new_fate: DataFrame, extent: DataFrame) -> DataFrame:
    """Findings: closings of deliveries that were not open; no violation if the accept may lie before the lake's first entry."""
    loose = new_fate.where(F.col("state") == "unmatched").join(
        F.broadcast(began_frame(extent)), on="origin", how="left"
    )
    return loose.select(
        "origin",
        F.lit("closing_unknown").alias("kind"),
        key_of("mesh", "recipient", "message_id", "closed_seq").alias("key"),
        F.concat(F.lit("entry "), F.col("closed_seq"), F.lit(" closes a delivery that was not open")).alias("detail"),
        F.col("closed_seq").alias("seq"),
        F.col("closed_at").alias("at"),
        (F.coalesce("began_seq", F.lit(1)) <= 1).alias("is_violation"),
    )
