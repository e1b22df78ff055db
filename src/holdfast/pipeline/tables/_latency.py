"""The bucket of a latency, by Spark's own functions."""

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that

from holdfast.pipeline.latency import BITS, EDGES, PER_OCTAVE


def bucket(latency: Column) -> Column:
    """floor(32 · log2 of a latency in µs); anything under one counts as one."""
    least = F.greatest(latency, F.lit(1).cast("bigint"))
    octave = F.length(F.bin(least)) - 1
    scaled = F.call_function("shiftleft", least, (F.lit(BITS) - octave).cast("int"))
    passed = F.size(F.filter(F.array(*map(F.lit, EDGES)), lambda edge: edge <= scaled))
    return (octave * PER_OCTAVE + passed - 1).cast("int")
