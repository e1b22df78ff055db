"""Finds entries that do not follow from the one before, and histories that are not the ones their relays signed.

The bytes of each entry are made anew and hashed together with the chain of the entry before. Inside of parts without gaps `link` does
that; here the first entry of each part is compared with the last one of the part before.
Where a relay pruned its history it signed the chain at that position, as it does for devices. The entry that the lake has there must
have this chain, and a lake that began later must go on from it. What no relay signed is no cut: somebody took the beginning away.
"""

from collections.abc import Iterator

import pyarrow as pa  # type: ignore[import-untyped]  # the package ships no types
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that

from holdfast.pipeline import few
from holdfast.pipeline.table import Batch, Writing, table
from holdfast.pipeline.tables import _links as links
from holdfast.pipeline.tables._entry import clock, key_of, number_at, of_relay, text_of
from holdfast.pipeline.tables._finding import SCHEMA
from holdfast.pipeline.tables.extent import Log, logs_of
from holdfast.pipeline.tables.link import SCHEMA as LINK
from holdfast.protocol import keys
from holdfast.protocol.anchor import digest

CUT_BYTES = 104  # position, chain, signature

_LOG = ["origin", "log_id"]


def findings_name_their_entry(new_chain_break: DataFrame) -> DataFrame:
    """A finding names the position of an entry."""
    return new_chain_break.where(F.col("seq").isNull()).select("origin", "kind", "key")


@table(
    key=("origin", "kind", "key"),
    schema=SCHEMA,
    writing=Writing.APPEND,
    finds=True,
    invariant=findings_name_their_entry,
)
def chain_break(
    new_history: DataFrame,
    history: DataFrame,
    old_extent: DataFrame,
    extent: DataFrame,
    new_anchor: DataFrame,
    new_link: DataFrame,
    old_chain_break: DataFrame,
    batch: Batch,
) -> DataFrame:
    """Findings: entries that do not follow from the one before, anchors that a relay's history contradicts, and beginnings without one."""
    logs = logs_of(extent)
    cuts = _cuts(new_history.where(F.lit("pruned" in batch.kinds)), extent)
    linked = _linked(new_link, _starts(old_extent, batch)).unionByName(_begun_late(history, logs, cuts, batch), True)
    anchors = new_anchor.where(F.col("state") == "met").withColumn("is_cut", F.lit(False)).unionByName(cuts, True)
    found = _breaks(linked).unionByName(_against_anchors(history, logs, anchors, batch))
    if batch.full:  # everything was read up to the heads, so nothing that is missing can still come
        found = found.unionByName(_tails(new_anchor, extent)).unionByName(_beginnings(extent))
        found = found.unionByName(_unproved(history, extent, logs))
    told = found.select(*SCHEMA.fieldNames()).dropDuplicates(["origin", "kind", "key"])  # one anchor, many devices
    return told.join(
        old_chain_break.select("origin", "kind", "key"), on=["origin", "kind", "key"], how="left_anti"
    ).select(*SCHEMA.fieldNames())


def _cuts(history: DataFrame, extent: DataFrame) -> DataFrame:
    """The anchors that relays signed where they pruned their histories.

    A restored log keeps those of the log before it, which were signed under that one's id: there is a row for every id it may be.
    """
    is_cut = (F.col("kind") == "pruned") & (F.octet_length("detail") == CUT_BYTES)
    ids = extent.select("origin", F.col("log_id").alias("relay_log_id"))
    return (
        history.where(of_relay() & is_cut)
        .join(F.broadcast(ids), on="origin", how="inner")
        .select(
            *("origin", "seq", F.col("origin").alias("relay_origin"), "relay_log_id"),
            number_at("detail", 1).alias("relay_seq"),
            F.substring("detail", 9, 32).alias("relay_chain"),
            F.substring("detail", 41, 64).alias("signature"),
            F.lit(True).alias("is_cut"),
        )
    )


def _starts(old_extent: DataFrame, batch: Batch) -> DataFrame:
    """The position, time and chain that each range goes on from; no chain for a log's very first entry, which `extent` checks."""
    rows = [(one.origin, one.log_id, one.after, one.chain if one.after else None) for one in batch.ranges]
    known = few.listed(old_extent.sparkSession, rows, "origin string, log_id binary, after long, start binary")
    ends = old_extent.select(*_LOG, F.col("last_seq").alias("after"), F.col("last_at").alias("start_at"))
    return known.join(F.broadcast(ends), on=[*_LOG, "after"], how="left")


def _begun_late(history: DataFrame, logs: list[Log], cuts: DataFrame, batch: Batch) -> DataFrame:
    """The first entries of logs that begin at a cut of this batch, each with the chain that the relay signed there.

    A cut is signed in a later entry of the log: its first one may have come in an earlier batch.
    """
    late = [log for log in logs if log.first_seq is not None and log.first_seq > 1]
    if not late or "pruned" not in batch.kinds:
        return few.listed(history.sparkSession, [], LINK)
    is_first = F.lit(False)
    for log in late:
        is_of_log = (F.col("origin") == log.origin) & (F.col("log_id") == F.lit(log.log_id))
        is_first = is_first | (is_of_log & (F.col("seq") == log.first_seq))
    first = alive(history.where(is_first), logs).select(*links.COLUMNS).mapInArrow(links.parts, LINK)
    # A position is pruned once; where a damaged log says so twice either will do, for the other one is found to be wrong.
    signed = cuts.select("origin", (F.col("relay_seq") + 1).alias("seq"), F.col("relay_chain").alias("start"))
    return first.join(F.broadcast(signed.dropDuplicates(["origin", "seq"])), on=["origin", "seq"], how="inner")


def _linked(new_link: DataFrame, starts: DataFrame) -> DataFrame:
    """The rows of `link`, each with the end of the parts before it. Of parts that overlap, all but one begin in a wrong place."""
    end = F.when(F.col("last_seq").isNotNull(), F.struct("last_seq", "last_at", "last_chain"))
    order = Window.partitionBy(*_LOG).orderBy("seq", F.col("last_seq").desc_nulls_last(), "at", "chain", "bytes")
    before = F.max(end).over(order.rowsBetween(Window.unboundedPreceding, -1))
    return new_link.join(F.broadcast(starts), on=_LOG, how="left").select("*", before.alias("before"))


def _breaks(linked: DataFrame) -> DataFrame:
    previous_seq = F.coalesce("before.last_seq", "after")
    previous_at = F.when(F.col("before").isNotNull(), clock("before.last_at")).otherwise(F.unix_micros("start_at"))
    previous_chain = F.coalesce("before.last_chain", "start")
    hashed = F.unhex(F.sha2(F.concat(previous_chain, F.col("bytes")), 256))
    begins = F.col("bytes").isNotNull()
    is_gap = begins & (F.col("seq") != previous_seq + 1)
    is_back = F.col("is_back") | (begins & (clock("at") < previous_at))
    is_other = F.col("is_other") | (begins & (hashed != F.col("chain")))
    said = F.array(
        _said(is_gap, "position_gap", F.concat(F.lit("follows position "), previous_seq)),
        _said(is_back, "time_goes_back", F.lit("is earlier than the entry before it")),
        _said(is_other, "chain_mismatch", F.lit("does not hash to its chain")),
    )
    broken = linked.where(is_gap | is_back | is_other)  # nearly none: what is wrong is worked out for these alone
    wrong = broken.select("*", F.explode(F.filter(said, lambda one: one.isNotNull())).alias("said"))
    return wrong.select(
        "origin",
        F.col("said.kind").alias("kind"),
        key_of(text_of("log_id"), "seq").alias("key"),
        F.concat(F.lit("entry "), F.col("seq"), F.lit(" "), F.col("said.detail")).alias("detail"),
        *("seq", "at"),
        F.lit(True).alias("is_violation"),
    )


def _said(is_wrong: Column, kind: str, detail: Column) -> Column:
    return F.when(is_wrong, F.struct(F.lit(kind).alias("kind"), detail.alias("detail")))


def _against_anchors(history: DataFrame, logs: list[Log], anchors: DataFrame, batch: Batch) -> DataFrame:
    """Findings: anchors that differ from their entries, or that were not signed. Only positions between the least and greatest are read."""
    distinct = anchors.groupBy("relay_origin", "relay_log_id", "relay_seq", "relay_chain", "signature", "is_cut").agg(
        F.min("origin").alias("device"), F.min_by("seq", "origin").alias("device_seq")
    )
    bounds = anchors.agg(F.min("relay_seq").alias("least"), F.max("relay_seq").alias("greatest")).collect()[0]
    if bounds.least is None:
        return _no_finding(anchors)
    is_wanted = F.col("seq").between(bounds.least, bounds.greatest) & F.col("origin").startswith("relay:")
    entries = alive(history.where(is_wanted), logs).select(
        F.col("origin").alias("relay_origin"), F.col("seq").alias("relay_seq"), "at", "chain"
    )
    joined = _signed(distinct, batch).join(entries, on=["relay_origin", "relay_seq"], how="left")
    # The lake may lack an entry only if it was pruned.
    differs = F.coalesce(F.col("chain") != F.col("relay_chain"), ~F.col("is_cut"))
    is_forged = ~F.col("is_signed")
    forged = F.concat(F.lit("entry "), F.col("device_seq"), F.lit(" keeps an anchor that its relay did not sign"))
    whom = F.when(F.col("is_cut"), "when it pruned").otherwise(F.concat(F.lit("for "), F.col("device")))
    mismatch = F.concat(F.lit("entry "), F.col("relay_seq"), F.lit(" has another chain than the relay signed "), whom)
    return joined.where(is_forged | differs).select(
        F.when(is_forged, F.col("device")).otherwise(F.col("relay_origin")).alias("origin"),
        F.when(is_forged, "anchor_forged").otherwise("anchor_mismatch").alias("kind"),
        key_of(text_of("relay_log_id"), "relay_seq").alias("key"),
        F.when(is_forged, forged).otherwise(mismatch).alias("detail"),
        F.when(is_forged, F.col("device_seq")).otherwise(F.col("relay_seq")).alias("seq"),
        F.when(~is_forged, F.col("at")).alias("at"),
        F.lit(True).alias("is_violation"),
    )


def _unproved(history: DataFrame, extent: DataFrame, logs: list[Log]) -> DataFrame:
    """Findings: logs of relays that begin late though their relay signed no cut there, now that all of its entries are known."""
    late = _late(logs)
    if not late:
        return _no_finding(history)
    begun = few.listed(history.sparkSession, late, "origin string, log_id binary, relay_seq long")
    place = ["origin", "relay_seq"]
    cuts = _cuts(history, extent).join(F.broadcast(begun.select(*place)), on=place, how="left_semi")
    proved = cuts.mapInArrow(_verified, f"{_ddl(cuts)}, is_signed boolean").where("is_signed")
    seq = F.col("relay_seq") + 1
    return begun.join(F.broadcast(proved.select(*place)), on=place, how="left_anti").select(
        "origin",
        F.lit("beginning_unproved").alias("kind"),
        key_of(text_of("log_id"), seq).alias("key"),
        F.concat(F.lit("the log begins at "), seq, F.lit(", and its relay signed no cut there")).alias("detail"),
        seq.alias("seq"),
        F.lit(None).cast("timestamp").alias("at"),
        F.lit(True).alias("is_violation"),
    )


def _late(logs: list[Log]) -> list[tuple[str, bytes, int]]:
    """The relays' logs that begin past the first entry and past all that the lake has of the logs before them, with the position before."""
    found = []
    for log in logs:
        left = [(one.last_seq, one.valid_until) for one in logs if one.origin == log.origin]
        end = max((min(last, until) for last, until in left if last is not None and until is not None), default=0)
        is_of_now = log.origin.startswith("relay:") and log.valid_until is None
        if is_of_now and log.first_seq is not None and log.first_seq > end + 1:
            found.append((log.origin, log.log_id, log.first_seq - 1))
    return found


def _signed(distinct: DataFrame, batch: Batch) -> DataFrame:
    """The anchors with whether their relay signed them; for a pruned position that is known once all log ids of the history are."""
    verified = distinct.mapInArrow(_verified, f"{_ddl(distinct)}, is_signed boolean")
    anchors = verified.where(~F.col("is_cut"))
    same = ["relay_origin", "relay_seq", "relay_chain", "signature", "is_cut", "device", "device_seq"]
    cuts = (
        verified.where("is_cut")
        .groupBy(*same)
        .agg(
            F.max_by("relay_log_id", F.struct("is_signed", "relay_log_id")).alias("relay_log_id"),
            (F.max("is_signed") | F.lit(not batch.full)).alias("is_signed"),
        )
    )
    return anchors.unionByName(cuts) if "pruned" in batch.kinds else anchors


def _tails(new_anchor: DataFrame, extent: DataFrame) -> DataFrame:
    """Findings: logs that were read to their end, and of which an anchor signs a later entry."""
    logs = extent.where(F.col("origin").startswith("relay:") & F.col("valid_until").isNull()).select(
        F.col("origin").alias("log_origin"), F.col("log_id").alias("relay_log_id"), "last_seq"
    )
    beyond = new_anchor.where(F.col("state") == "open").join(F.broadcast(logs), on="relay_log_id", how="inner")
    missing = beyond.groupBy("log_origin", "relay_log_id", "last_seq").agg(F.max("relay_seq").alias("signed_seq"))
    return missing.select(
        F.col("log_origin").alias("origin"),
        F.lit("tail_missing").alias("kind"),
        key_of(text_of("relay_log_id"), F.col("last_seq") + 1).alias("key"),
        F.concat(
            F.lit("the log ends at "), F.col("last_seq"), F.lit(", and its relay signed entry "), F.col("signed_seq")
        ).alias("detail"),
        F.col("last_seq").alias("seq"),
        F.lit(None).cast("timestamp").alias("at"),
        F.lit(True).alias("is_violation"),
    )


def _beginnings(extent: DataFrame) -> DataFrame:
    """Findings: first entries that follow from no log id of their history, now that all ids are known."""
    return extent.where(F.col("first_bytes").isNotNull()).select(
        "origin",
        F.lit("chain_mismatch").alias("kind"),
        key_of(text_of("log_id"), F.lit(1)).alias("key"),
        F.lit("entry 1 is not where a log of this id begins").alias("detail"),
        F.lit(1).cast("bigint").alias("seq"),
        F.lit(None).cast("timestamp").alias("at"),
        F.lit(True).alias("is_violation"),
    )


def alive(history: DataFrame, logs: list[Log]) -> DataFrame:
    """The entries that count: those past a fork are left out."""
    is_cut = F.lit(False)
    for log in logs:
        if log.valid_until is not None:
            is_of_log = (F.col("origin") == log.origin) & (F.col("log_id") == F.lit(log.log_id))
            is_cut = is_cut | (is_of_log & (F.col("seq") > log.valid_until))
    return history.where(~is_cut)


def _no_finding(like: DataFrame) -> DataFrame:
    return few.listed(like.sparkSession, [], SCHEMA)


def _ddl(frame: DataFrame) -> str:
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in frame.schema)


def _verified(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Record batches of anchors, with whether the relay signed each."""
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in _SIGNED)
        verdicts = [_is_signed(*row) for row in zip(*columns, strict=True)]
        arrays = [*batch.columns, pa.array(verdicts, pa.bool_())]
        yield pa.RecordBatch.from_arrays(arrays, names=[*batch.schema.names, "is_signed"])


_SIGNED = ("relay_origin", "relay_log_id", "relay_seq", "relay_chain", "signature")


def _is_signed(origin: str, log_id: bytes, seq: int, chain: bytes, signature: bytes) -> bool:
    return keys.verify(origin.removeprefix("relay:"), digest(log_id, seq, chain), signature)
