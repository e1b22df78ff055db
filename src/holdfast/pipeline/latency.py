"""Latencies in logarithmic buckets, 32 to an octave: exact counts that merge, and percentiles from them.

A latency of x µs is in bucket floor(32 · log2 x). The 32 edges of an octave are whole numbers here, computed once and exactly,
because a floating-point logarithm may put an edge on either side.
"""

from collections.abc import Mapping
from math import isqrt

PER_OCTAVE = 32
BITS = 52  # of the edges; a latency of 2^52 µs is a century and a half


def _edge(part: int) -> int:
    """ceil(2^BITS · 2^(part / 32)), by five exact square roots."""
    value = 1 << part + PER_OCTAVE * BITS  # 2^(part + 32·BITS), whose 32nd root is wanted
    for _ in range(PER_OCTAVE.bit_length() - 1):
        root = isqrt(value)
        value = root if root * root == value else root + 1
    return value


EDGES = tuple(_edge(part) for part in range(PER_OCTAVE))


def bucket_of(latency: int) -> int:
    """The bucket of a latency in µs; anything under one counts as one."""
    return int(max(1, latency) ** PER_OCTAVE).bit_length() - 1


def middle(found: int) -> float:
    """A latency in µs that stands for a bucket: its geometric middle, at most 1.1 % from any in it."""
    return float(2 ** ((found + 0.5) / PER_OCTAVE))


def percentile(counts: Mapping[int, int], share: float) -> float | None:
    """The latency in µs under which this share of the counted ones lies; None if none were counted."""
    wanted, passed = share * sum(counts.values()), 0
    for found in sorted(counts):
        passed += counts[found]
        if passed >= wanted:
            return middle(found)
    return None
