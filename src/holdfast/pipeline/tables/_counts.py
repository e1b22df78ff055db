"""Counts by day: a batch adds what it brings to what the partitions of those days held."""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that


def summed(old: DataFrame, brought: DataFrame, days: DataFrame, key: Sequence[str], counts: Sequence[str]) -> DataFrame:
    """The counts of some days after a batch: what they held, and what the batch brought.

    `days` has every day that anything is brought for, because their partitions are replaced.
    """
    kept = old.join(F.broadcast(days.distinct()), on="day", how="left_semi")
    both = kept.select(*key, *counts).unionByName(brought.select(*key, *counts))
    return both.groupBy(*key).agg(*(F.sum(name).alias(name) for name in counts))


def fallen_short(table: DataFrame, brought: DataFrame, key: Sequence[str], counts: Sequence[str]) -> DataFrame:
    """The keys for which a table counts less than a batch brought; a null in a key equals a null."""
    mine, theirs = table.alias("mine"), brought.alias("theirs")
    same = F.lit(True)
    for name in key:
        same = same & F.col(f"mine.{name}").eqNullSafe(F.col(f"theirs.{name}"))
    is_short = F.lit(False)
    for name in counts:
        is_short = is_short | F.coalesce(F.col(f"mine.{name}") < F.col(f"theirs.{name}"), F.lit(True))
    met = theirs.join(mine, on=same, how="left")
    return met.where(is_short).select(*(F.col(f"theirs.{name}").alias(name) for name in key))
