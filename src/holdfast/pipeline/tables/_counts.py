"""Counts by day that batches add to: what a day's partition held, and what came to it."""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that


def summed(old: DataFrame, brought: DataFrame, days: DataFrame, key: Sequence[str], counts: Sequence[str]) -> DataFrame:
    """The counts of the days that a batch touched, after it. `days` has those of all that is brought, which would be counted twice for them."""
    kept = old.join(F.broadcast(days.distinct()), on="day", how="left_semi")
    both = kept.select(*key, *counts).unionByName(brought.select(*key, *counts))
    return both.groupBy(*key).agg(*(F.sum(name).alias(name) for name in counts))


def fallen_short(table: DataFrame, brought: DataFrame, key: Sequence[str], counts: Sequence[str]) -> DataFrame:
    """Keys for which a table counts less than a batch brought; an absent value is a value like others here."""
    mine, theirs = table.alias("mine"), brought.alias("theirs")
    same = F.lit(True)
    for name in key:
        same = same & F.col(f"mine.{name}").eqNullSafe(F.col(f"theirs.{name}"))
    is_short = F.lit(False)
    for name in counts:
        is_short = is_short | F.coalesce(F.col(f"mine.{name}") < F.col(f"theirs.{name}"), F.lit(True))
    met = theirs.join(mine, on=same, how="left")
    return met.where(is_short).select(*(F.col(f"theirs.{name}").alias(name) for name in key))
