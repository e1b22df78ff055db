"""Finds sequences that a relay lacks. Only if the device was told that one is accepted this is a violation."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that

from holdfast.pipeline.table import Writing, table
from holdfast.pipeline.tables._entry import key_of, text_of
from holdfast.pipeline.tables._finding import SCHEMA

_SENDER = ["origin", "mesh", "sender", "epoch"]


def gaps_are_told_once(sequence_gap: DataFrame) -> DataFrame:
    """A finding is there once."""
    return sequence_gap.groupBy("origin", "kind", "key").count().where(F.col("count") > 1)


@table(
    key=("origin", "kind", "key"),
    schema=SCHEMA,
    writing=Writing.REPLACE,
    finds=True,
    invariant=gaps_are_told_once,
)
def sequence_gap(sequence_run: DataFrame) -> DataFrame:
    """Findings: sequences that a device was told are accepted and its relay lacks, and holes of devices whose history the lake lacks."""
    holes = _holes(sequence_run.where(F.col("claim") == "accepted"))
    confirmed = sequence_run.where(F.col("claim") == "relayed")
    return _lost(sequence_run, holes, confirmed).unionByName(_unexplained(holes, confirmed))


def _holes(accepted: DataFrame) -> DataFrame:
    """The holes between the runs of each sender, before the first and after the last one."""
    order = Window.partitionBy(*_SENDER).orderBy("first")
    previous, following = F.lag("last").over(order), F.lead("first").over(order)
    placed = accepted.select(*_SENDER, "first", "last", previous.alias("previous"), following.alias("following"))
    before = placed.select(
        *_SENDER,
        (F.coalesce("previous", F.lit(-1)) + 1).alias("hole_first"),
        (F.col("first") - 1).alias("hole_last"),
        F.col("previous").isNotNull().alias("is_between"),
    )
    after = placed.where(F.col("following").isNull()).select(
        *_SENDER,
        (F.col("last") + 1).alias("hole_first"),
        F.lit(2**63 - 1).alias("hole_last"),
        F.lit(False).alias("is_between"),
    )
    return before.where(F.col("hole_first") <= F.col("hole_last")).unionByName(after)


def _lost(sequence_run: DataFrame, holes: DataFrame, confirmed: DataFrame) -> DataFrame:
    """Findings: confirmed sequences that lie in a hole. Only senders whose counts do not agree are looked at."""
    suspects = F.broadcast(_suspects(sequence_run))
    told = confirmed.join(suspects, on=_SENDER, how="left_semi")
    never_seen = told.join(holes.select(*_SENDER).distinct(), on=_SENDER, how="left_anti").select(
        *_SENDER, "first", "last"
    )
    overlaps = (F.col("hole_first") <= F.col("last")) & (F.col("hole_last") >= F.col("first"))
    inside = told.join(holes, on=_SENDER, how="inner").where(overlaps)
    lost = inside.select(
        *_SENDER, F.greatest("first", "hole_first").alias("first"), F.least("last", "hole_last").alias("last")
    )
    return lost.unionByName(never_seen).select(
        "origin",
        F.lit("sequence_gap").alias("kind"),
        key_of("mesh", "sender", text_of("epoch"), F.concat_ws("-", "first", "last")).alias("key"),
        F.concat(
            F.lit("the device was told that "),
            F.col("last") - F.col("first") + 1,
            F.lit(" sends were accepted, and the relay's history lacks them"),
        ).alias("detail"),
        F.lit(None).cast("bigint").alias("seq"),
        F.lit(None).cast("timestamp").alias("at"),
        F.lit(True).alias("is_violation"),
    )


def _suspects(sequence_run: DataFrame) -> DataFrame:
    """The senders that have more accepted and confirmed sequences together than accepted ones."""
    order = Window.partitionBy(*_SENDER).orderBy("first", "last")
    reached = F.max("last").over(order.rowsBetween(Window.unboundedPreceding, -1))
    fresh = F.col("last") - F.greatest(F.col("first") - 1, F.coalesce(reached, F.lit(-1)))
    width = F.when(F.col("claim") == "accepted", F.col("last") - F.col("first") + 1).otherwise(0)
    sizes = sequence_run.select(*_SENDER, F.greatest(fresh, F.lit(0)).alias("fresh"), width.alias("width"))
    totals = sizes.groupBy(*_SENDER).agg(F.sum("fresh").alias("all"), F.sum("width").alias("accepted"))
    return totals.where(F.col("all") > F.col("accepted")).select(*_SENDER)


def _unexplained(holes: DataFrame, confirmed: DataFrame) -> DataFrame:
    """Findings: holes of senders whose device's history is not in the lake, one per epoch."""
    between = holes.where(F.col("is_between"))
    unknown = between.join(confirmed.select(*_SENDER).distinct(), on=_SENDER, how="left_anti")
    counted = unknown.groupBy(*_SENDER).agg(
        F.sum(F.col("hole_last") - F.col("hole_first") + 1).alias("missing"),
        F.min("hole_first").alias("first"),
        F.max("hole_last").alias("last"),
    )
    return counted.select(
        "origin",
        F.lit("sequence_unexplained").alias("kind"),
        key_of("mesh", "sender", text_of("epoch")).alias("key"),
        F.concat(
            F.col("missing"),
            F.lit(" sequences between "),
            F.col("first"),
            F.lit(" and "),
            F.col("last"),
            F.lit(" never came; without the device's history nobody knows whether they should have"),
        ).alias("detail"),
        F.lit(None).cast("bigint").alias("seq"),
        F.lit(None).cast("timestamp").alias("at"),
        F.lit(False).alias("is_violation"),
    )
