"""The bucket of a latency, by Spark's own functions."""

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that

from holdfast.pipeline.latency import BITS, EDGES, PER_OCTAVE


def bucket(latency: Column) -> Column:
    """floor(32 · log2 of a latency in µs); anything under one counts as one."""
    least = F.greatest(latency, F.lit(1).cast("bigint"))
    octave = F.length(F.bin(least)) - 1
    scaled = F.call_function("shiftleft", least, (F.lit(BITS) - octave).cast("int"))
    return (octave * PER_OCTAVE + _part(scaled)).cast("int")


def _part(scaled: Column) -> Column:
    """Which part of its octave a number lies in: the logarithm may be off by one, so it is compared with the exact edges beside it."""
    edges = F.array(*map(F.lit, EDGES))
    guess = F.floor((F.log2(scaled.cast("double")) - BITS) * PER_OCTAVE).cast("int")
    near = F.greatest(F.lit(0), F.least(guess, F.lit(PER_OCTAVE - 1)))
    is_above = F.get(edges, near) > scaled
    is_below = F.get(edges, near + 1) <= scaled  # null behind the last edge
    return F.when(is_above, near - 1).when(is_below, near + 1).otherwise(near)
