"""Buckets of latencies: exact at their edges, the same in Spark and in Python, and quantiles that stay close."""

import math
from collections import Counter
from random import Random

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that

from holdfast.pipeline.latency import EDGES, quantiles
from holdfast.pipeline.tables._latency import bucket
from tests.pipeline.twins.latency import bucket_of


def _latencies() -> list[int]:
    """Both sides of every edge of some octaves, and a few beside them."""
    octaves = (0, 1, 5, 10, 20, 33, 45)
    around = [(edge >> (52 - octave)) + step for octave in octaves for edge in EDGES for step in (-1, 0, 1)]
    return sorted({*range(200), *around, *(Random(1).randrange(1 << 45) for _ in range(500))} - {-1})


def test_an_octave_has_32_buckets_and_its_edges_are_exact() -> None:
    assert EDGES[0] == 1 << 52
    assert all((edge - 1) ** 32 < 2 ** (part + 52 * 32) <= edge**32 for part, edge in enumerate(EDGES))


def test_a_bucket_is_32_times_the_binary_logarithm_rounded_down() -> None:
    for latency in _latencies():
        found = bucket_of(latency)
        assert 2**found <= max(1, latency) ** 32 < 2 ** (found + 1)
    assert bucket_of(-5) == bucket_of(0) == bucket_of(1) == 0


def test_spark_and_python_agree_on_every_edge(spark: SparkSession) -> None:
    latencies = _latencies()
    frame = spark.createDataFrame([(latency,) for latency in latencies], "latency long")
    found = [row.bucket for row in frame.select(bucket(F.col("latency")).alias("bucket")).collect()]
    assert found == [bucket_of(latency) for latency in latencies]


def test_a_quantile_is_at_most_a_bucket_above_the_exact_one() -> None:
    random = Random(2)
    latencies = sorted(round(random.lognormvariate(11, 2)) + 1 for _ in range(5000))
    found = quantiles(list(Counter(map(bucket_of, latencies)).items()))
    for share in (0.5, 0.9, 0.99):
        exact = latencies[math.ceil(share * len(latencies)) - 1]
        assert 1 <= found[f"p{share * 100:g}"] * 1_000_000 / exact < 1.022
    assert quantiles([]) == {}
