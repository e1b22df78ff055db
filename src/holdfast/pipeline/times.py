"""The times that Python, Delta and its readers can express: those of the years 1 to 9999. A damaged entry may have another."""

from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # the package ships no types
import pyarrow.compute as pc  # type: ignore[import-untyped]  # likewise

MIN_US, MAX_US = -62_135_596_800_000_000, 253_402_300_799_999_999


def known(times: Any) -> Any:
    """A column of times, with NULL for those of other years."""
    micros = pc.cast(pc.cast(times, pa.timestamp("us", times.type.tz)), pa.int64())
    is_one = pc.and_(pc.greater_equal(micros, MIN_US), pc.less_equal(micros, MAX_US))
    return pc.if_else(is_one, times, pa.scalar(None, times.type))
