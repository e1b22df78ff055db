"""Compares a relay's snapshots with its history: each is there, unchanged, and current if no other one dominates it."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that

from holdfast.pipeline.tables._entry import key_of
from holdfast.pipeline.tables._snapshot import DOCUMENT, clock_of, prunings, snapshots

_COMPARED = ("event_id", "author", "kind", "d", "o", "c", "clock", "created_at", "size", "is_current")
_DETAILS = {
    "missing": "the history says that it is there, and it is not",
    "unknown": "it is there, and the history knows nothing of it",
    "differs": "it is not what the history says",
}


def standing_by_all(entries: DataFrame, current_snapshot: DataFrame) -> DataFrame:
    """Every snapshot of a whole history, with whether it is current, pruned or thinned."""
    current = current_snapshot.select("origin", "seq", "is_pruned", F.lit(True).alias("is_current"))
    rows = snapshots(entries).join(current, on=["origin", "seq"], how="left")
    gone = rows.join(prunings(entries), on=DOCUMENT, how="left")
    return gone.withColumns(
        {
            "is_current": F.coalesce("is_current", F.lit(False)),
            "is_pruned": F.coalesce("is_pruned", F.lit(False)),
            "is_thinned": F.coalesce(F.col("seq") <= F.col("thinned_until"), F.lit(False)),
        }
    )


def snapshot_orphans(
    standing: DataFrame, state_snapshot: DataFrame, later_entry: DataFrame, looked_at: DataFrame
) -> DataFrame:
    """Findings: snapshots that a relay lacks, or has otherwise than its history says."""
    expected = standing.where(~F.col("is_pruned")).select(
        *("origin", "seq", "is_thinned", F.col("accepted_at").alias("at")), _fact().alias("expected")
    )
    untils = looked_at.select("origin", "until")
    is_current = F.coalesce(F.col("superseded_seq") > F.col("until"), F.lit(True))
    clock = clock_of(F.from_json("clock", "array<array<string>>"))
    found = state_snapshot.join(untils, on="origin", how="inner").withColumns(
        {"is_current": is_current, "clock": clock}
    )
    paired = expected.join(
        found.select("origin", "seq", _fact().alias("found")), on=["origin", "seq"], how="full_outer"
    )
    told = paired.select(
        "*", *(F.coalesce(f"expected.{name}", f"found.{name}").alias(name) for name in ("author", "d"))
    )
    later = snapshots(later_entry).select(*DOCUMENT).unionByName(prunings(later_entry).select(*DOCUMENT)).distinct()
    settled = told.join(later, on=DOCUMENT, how="left_anti").join(looked_at, on="origin", how="inner")
    return _told(settled.withColumn("wrong", _wrong()).where(F.col("wrong").isNotNull()))


def _fact() -> Column:
    return F.struct(*_COMPARED)


def _wrong() -> Column:
    """Judge only snapshots accepted after the lake's history begins; compare dominance only if the history is complete."""
    seq, expected, found = F.col("seq"), F.col("expected"), F.col("found")
    began = F.coalesce("began_seq", F.lit(1))
    is_read = (seq > F.col("after")) & (seq <= F.col("until"))
    may_be_gone = F.col("is_thinned") & (~expected["is_current"] | (began > 1))
    is_same = F.when(began > 1, _whatever_dominates(expected).eqNullSafe(_whatever_dominates(found))).otherwise(
        expected.eqNullSafe(found)
    )
    wrong = (
        F.when(expected.isNull(), F.when(is_read, "unknown"))
        .when(found.isNull(), F.when(~may_be_gone, "missing"))
        .when(~is_same, "differs")
    )
    return F.when(seq >= began, wrong)


def _whatever_dominates(fact: Column) -> Column:
    return fact.withField("is_current", F.lit(None).cast("boolean"))


def _told(wrong: DataFrame) -> DataFrame:
    detail = F.create_map(*(F.lit(text) for pair in _DETAILS.items() for text in pair))[F.col("wrong")]
    return wrong.select(
        "origin",
        F.concat(F.lit("snapshot_"), F.col("wrong")).alias("kind"),
        key_of("author", "d", "seq").alias("key"),
        F.concat(F.lit("snapshot "), F.col("seq"), F.lit(" of document "), F.col("d"), F.lit(": "), detail).alias(
            "detail"
        ),
        *("seq", "at"),
        F.lit(True).alias("is_violation"),
    )
