"""The times that Python, Delta and its readers can express: those of the years 1 to 9999. A damaged entry may have another.

The first and the last day of them are left out: in some time zones they are of year 0 or 10000, and Python counts in the machine's.
"""

from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # the package ships no types
import pyarrow.compute as pc  # type: ignore[import-untyped]  # likewise

_DAY_US = 86_400_000_000
MIN_US, MAX_US = -62_135_596_800_000_000 + _DAY_US, 253_402_300_799_999_999 - _DAY_US

ABSENT_US = -1
"""What a time that is missing counts as, where times are compared."""


def known(times: Any) -> Any:
    """A column of times, with NULL for those of other years."""
    micros = pc.cast(pc.cast(times, pa.timestamp("us", times.type.tz)), pa.int64())
    is_one = pc.and_(pc.greater_equal(micros, MIN_US), pc.less_equal(micros, MAX_US))
    return pc.if_else(is_one, times, pa.scalar(None, times.type))
