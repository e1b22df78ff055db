"""Clock and random bytes, passed to every program as arguments, so that a simulation can replace them."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], int]  # microseconds since 1970, UTC
Random = Callable[[int], bytes]  # that many unpredictable bytes


def wall_clock() -> int:
    """The machine's own clock."""
    return time.time_ns() // 1000


def iso_time(at: int) -> str:
    """Microseconds since 1970 as ISO 8601 text, in UTC."""
    try:
        return datetime.fromtimestamp(at / 1_000_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError):  # outside the calendar: a damaged file, or a bad sender
        return str(at)
