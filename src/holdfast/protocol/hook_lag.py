"""How late hook events are handled: the last samples, and percentiles by nearest rank."""

from collections.abc import Sequence

import msgspec

SAMPLES_MAX = 2048


class Lag(msgspec.Struct, frozen=True):
    """Percentiles of the lag, in microseconds, and how many samples they are of."""

    samples: int
    p95: int
    p99: int


def lag(samples: Sequence[int]) -> Lag:
    """The percentiles of these samples; zero if there are none."""
    ordered = sorted(samples)
    return Lag(len(ordered), _rank(ordered, 95), _rank(ordered, 99))


def _rank(ordered: Sequence[int], percent: int) -> int:
    return ordered[round((len(ordered) - 1) * percent / 100)] if ordered else 0
