"""The world as arguments: what every program is given instead of reaching for it, so that a simulation can give another."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], int]  # microseconds since 1970, UTC
Random = Callable[[int], bytes]  # that many unpredictable bytes


def wall_clock() -> int:
    """The machine's own clock."""
    return time.time_ns() // 1000


def iso_time(at: int) -> str:
    """Microseconds since 1970 as a person reads them, in UTC."""
    try:
        return datetime.fromtimestamp(at / 1_000_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError):  # no time of any calendar: a damaged file, or somebody's joke
        return str(at)
