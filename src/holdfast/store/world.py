"""The world as arguments: what every program is given instead of reaching for it, so that a simulation can give another."""

import time
from collections.abc import Callable

Clock = Callable[[], int]  # microseconds since 1970, UTC
Random = Callable[[int], bytes]  # that many unpredictable bytes


def wall_clock() -> int:
    """The machine's own clock."""
    return time.time_ns() // 1000
