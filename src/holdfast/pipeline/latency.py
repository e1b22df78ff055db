"""Latencies in logarithmic buckets, 32 to an octave: exact counts that merge, and quantiles from them.

A latency of x µs is in bucket floor(32 · log2 x). The 32 edges of an octave are whole numbers here, computed once and exactly,
because a floating-point logarithm may put an edge on either side.
"""

from collections.abc import Sequence
from math import isqrt

PER_OCTAVE = 32
QUANTILES = (0.5, 0.9, 0.99)
BITS = 52  # of the edges; a latency of 2^52 µs is a century and a half


def _edge(part: int) -> int:
    """ceil(2^BITS · 2^(part / 32)), by five exact square roots."""
    value = 1 << part + PER_OCTAVE * BITS  # 2^(part + 32·BITS), whose 32nd root is wanted
    for _ in range(PER_OCTAVE.bit_length() - 1):
        root = isqrt(value)
        value = root if root * root == value else root + 1
    return value


EDGES = tuple(_edge(part) for part in range(PER_OCTAVE))


def quantiles(buckets: Sequence[tuple[int, int]]) -> dict[str, float]:
    """Quantiles in seconds of (bucket, count): the upper edge of the bucket in which each lies."""
    total = sum(count for _, count in buckets)
    found = {}
    for quantile in QUANTILES:
        seen = 0
        for bucket, count in sorted(buckets):
            seen += count
            if seen >= quantile * total:
                found[f"p{quantile * 100:g}"] = 2 ** ((bucket + 1) / PER_OCTAVE) / 1_000_000
                break
    return found
