"""Columns that several tables read out of entries: whose they are, and what is in their details."""

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that

from holdfast.pipeline import times
from holdfast.protocol.event import EVENT_BYTES_MAX
from holdfast.protocol.tags import INTEGER_MAX

CLOSINGS = ("delivered", "expired", "dropped", "quarantined", "moderated")
"""Kinds of entries that end an open delivery, and its outcome at the same time."""

BUCKETS = 64
"""How many partitions a table without days has; a batch rewrites those that it touches."""


def of_relay(origin: str = "origin") -> Column:
    """Whether an entry is a relay's."""
    return F.col(origin).startswith("relay:")


def of_device(origin: str = "origin") -> Column:
    """Whether an entry is a device's."""
    return F.col(origin).startswith("device:")


def device_mesh(origin: str = "origin") -> Column:
    """The mesh in a device's origin, which is `device:MESH/MEMBER`."""
    return F.regexp_extract(F.col(origin), "^device:([^/]*)/(.*)$", 1)


def device_member(origin: str = "origin") -> Column:
    """The member in a device's origin."""
    return F.regexp_extract(F.col(origin), "^device:([^/]*)/(.*)$", 2)


def number_at(bytes_column: str, start: int) -> Column:
    """The eight-byte big-endian number at a place that counts from 1; null where there are fewer bytes, or it is too great."""
    digits = F.hex(F.substring(F.col(bytes_column), start, 8))
    return F.when(F.length(digits) == 16, F.conv(digits, 16, 10).try_cast("bigint"))


def utf8(bytes_column: str | Column) -> Column:
    """Bytes as text; null where they are not UTF-8, since a detail that somebody damaged must not end the run."""
    return F.try_validate_utf8(F.col(bytes_column) if isinstance(bytes_column, str) else bytes_column)


def known_time(time: str) -> Column:
    """A time; null where a damaged entry has one outside of what `times` can write."""
    return F.when(F.unix_micros(time).between(times.MIN_US, times.MAX_US), F.col(time))


def clock(time: str) -> Column:
    """A time as a number to compare with others, as `_links` compares those of entries side by side."""
    return F.greatest(
        F.lit(times.MIN_US), F.least(F.lit(times.MAX_US), F.coalesce(F.unix_micros(time), F.lit(times.ABSENT_US)))
    )


def known_size(size: str) -> Column:
    """The bytes of a message; null where a damaged entry has a number that no message has, and sums would never be right again."""
    return F.when(F.col(size).between(0, EVENT_BYTES_MAX), F.col(size))


def known_sequence(sequence: str) -> Column:
    """The sequence of a send; null where a damaged entry has a number that no send has, and the width of a hole would not fit a number."""
    return F.when(F.col(sequence).between(0, INTEGER_MAX), F.col(sequence))


def day_of(time: str) -> Column:
    """The day of a time, UTC; 1970-01-01 for a damaged time, where the history has its entry, too."""
    return F.coalesce(F.to_date(known_time(time)), F.lit("1970-01-01").cast("date"))


def bucket(*key: str) -> Column:
    """The number of the partition for a row with this key."""
    return F.pmod(F.xxhash64(*key), F.lit(BUCKETS)).cast("int")


def text_of(column: str | Column) -> Column:
    """Bytes as lower-case hex."""
    return F.lower(F.hex(column))


def key_of(*parts: str | Column) -> Column:
    """The key of a finding: its parts joined by slashes, `-` where one is absent."""
    texts = [F.coalesce((F.col(part) if isinstance(part, str) else part).cast("string"), F.lit("-")) for part in parts]
    return F.concat_ws("/", *texts)
