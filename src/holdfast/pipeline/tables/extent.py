"""How far the lake has read each log, and which part of it counts: what lies past the fork of a restored log does not."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType, TimestampType

from holdfast.pipeline import few
from holdfast.pipeline.table import Batch, Range, Writing, table
from holdfast.pipeline.tables._entry import clock
from holdfast.protocol.history import Restored, genesis

SCHEMA = StructType(
    [
        StructField("origin", StringType(), nullable=False),
        StructField("log_id", BinaryType(), nullable=False),
        StructField("first_seq", LongType()),  # read from here on without a gap; null where only a fork names the log
        StructField("last_seq", LongType()),
        StructField("last_at", TimestampType()),  # of a damaged time the nearest that can be written
        StructField("last_chain", BinaryType()),
        StructField("valid_until", LongType()),  # the last position that counts; null where all do
        StructField("cut_seq", LongType()),  # position of the `restored` entry that says so
        StructField("cut_at", TimestampType()),
        StructField("first_bytes", BinaryType()),  # of entry 1, until it is shown to follow from the id of a log
        StructField("first_chain", BinaryType()),
    ]
)

RESTORED_BYTES = 72  # old log id, new log id, position and chain of the fork


@dataclass(frozen=True)
class Log:
    """One row of the table."""

    origin: str
    log_id: bytes
    first_seq: int | None = None
    last_seq: int | None = None
    last_at: datetime | None = None
    last_chain: bytes | None = None
    valid_until: int | None = None
    cut_seq: int | None = None
    cut_at: datetime | None = None
    first_bytes: bytes | None = None
    first_chain: bytes | None = None

    def cut(self, seq: int, cut_seq: int, cut_at: datetime) -> "Log":
        """The log, of which nothing past a fork counts."""
        if self.valid_until is not None and self.valid_until <= seq:
            return self
        return replace(self, valid_until=seq, cut_seq=cut_seq, cut_at=cut_at)


def logs_are_where_their_entries_end(extent: DataFrame) -> DataFrame:
    """A log that was read ends at or after its first entry, and of each history only one log was not left by a restore."""
    backwards = extent.where(F.col("last_seq") < F.col("first_seq")).select("origin", "log_id")
    whole = extent.where(F.col("valid_until").isNull() & F.col("first_seq").isNotNull())
    several = whole.groupBy("origin").agg(F.count("log_id").alias("logs"), F.min("log_id").alias("log_id"))
    return backwards.unionByName(several.where(F.col("logs") > 1).select("origin", "log_id"))


@table(
    key=("origin", "log_id"),
    schema=SCHEMA,
    writing=Writing.REPLACE,
    invariant=logs_are_where_their_entries_end,
)
def extent(old_extent: DataFrame, new_history: DataFrame, new_link: DataFrame, batch: Batch) -> DataFrame:
    """One row per log: from where to where the lake has read it, and up to where it counts if a restored log replaced it."""
    parts = new_link.where(F.col("bytes").isNotNull())
    read = parts.groupBy("origin", "log_id").agg(
        F.min("seq").alias("first_seq"),
        F.max("last_seq").alias("last_seq"),
        F.max_by(F.timestamp_micros(clock("last_at")), "last_seq").alias("last_at"),
        F.max_by("last_chain", "last_seq").alias("last_chain"),
        # A damaged log may have several entries 1: any will do, if it is always the same.
        F.max(F.when(F.col("seq") == 1, F.struct("bytes", "chain"))).alias("first"),
    )
    logs = {(log.origin, log.log_id): log for log in logs_of(old_extent)}
    known = {place: log.last_seq for place, log in logs.items()}
    for row in read.collect():  # a row per log
        _note(logs, row)
    _leave_out_gaps(logs, known, batch.ranges)
    _cut_off(logs, _forks(new_history) if "restored" in batch.kinds else [])
    rows = [tuple(vars(_begun(log, logs)).values()) for log in logs.values()]
    return few.listed(new_history.sparkSession, rows, SCHEMA)


def _forks(new_history: DataFrame) -> list[Row]:
    """The `restored` entries of a batch by position, which is their order: a batch has one log of each history."""
    is_whole = (F.col("kind") == "restored") & (F.octet_length("detail") == RESTORED_BYTES)
    return new_history.where(is_whole).select("origin", "seq", "at", "detail").orderBy("seq").collect()


def _cut_off(logs: dict[tuple[str, bytes], Log], forks: Sequence[Row]) -> None:
    """Mark, at each fork, the log that was left there; one that was never read gets a row.

    The logs before it ended at earlier forks, each of which is an entry of its own.
    """
    for row in forks:
        fork = Restored.decode(bytes(row.detail))
        place = row.origin, fork.old_log_id
        logs[place] = logs.get(place, Log(*place)).cut(fork.fork_seq, row.seq, row.at)


def logs_of(extent: DataFrame) -> list[Log]:
    """The rows of the table as values; there are few, one more per history than it was restored."""
    rows = (row.asDict() for row in extent.collect())
    return [Log(**{name: _plain(value) for name, value in row.items()}) for row in rows]


def began(logs: Sequence[Log]) -> dict[str, int]:
    """Per history the position from which on the lake has all of it without a gap, through all of its logs."""
    found: dict[str, int] = {}
    for log in logs:
        if log.valid_until is None and log.first_seq is not None:
            found[log.origin] = max(log.first_seq, found.get(log.origin, 0))
    return {origin: _followed_back([log for log in logs if log.origin == origin], seq) for origin, seq in found.items()}


def _followed_back(logs: Sequence[Log], seq: int) -> int:
    """The first position of the logs that lead up to a position without a gap."""
    for log in logs:
        if log.first_seq is not None and log.last_seq is not None and log.first_seq < seq:
            end = log.last_seq if log.valid_until is None else min(log.last_seq, log.valid_until)
            if seq <= end + 1:
                return _followed_back(logs, log.first_seq)
    return seq


def began_frame(extent: DataFrame) -> DataFrame:
    """What `began` gives, as rows (origin, began_seq)."""
    return few.listed(extent.sparkSession, list(began(logs_of(extent)).items()), "origin string, began_seq long")


def _note(logs: dict[tuple[str, bytes], Log], row: Row) -> None:
    """Write down what a batch has read of a log."""
    place = row.origin, bytes(row.log_id)
    known = logs.get(place, Log(*place))
    if known.first_seq is None:
        first_bytes, first_chain = (None, None) if row.first is None else map(_plain, row.first)
        known = replace(known, first_seq=row.first_seq, first_bytes=first_bytes, first_chain=first_chain)
    logs[place] = replace(known, **{name: _plain(row[name]) for name in ("last_seq", "last_at", "last_chain")})


def _leave_out_gaps(
    logs: dict[tuple[str, bytes], Log], known: Mapping[tuple[str, bytes], int | None], ranges: Sequence[Range]
) -> None:
    """Let a log begin after entries that were pruned unread, since the lake has no longer all of it from its first entry on."""
    reached = {place: seq for place, seq in known.items() if seq is not None}
    for one in sorted(ranges, key=lambda one: one.after):
        place = one.origin, one.log_id
        if place in logs and reached.get(place, one.after) < one.after < one.until:
            logs[place] = replace(logs[place], first_seq=one.after + 1)
        reached[place] = max(one.until, reached.get(place, 0))


def _plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytearray) else value


def _begun(log: Log, logs: dict[tuple[str, bytes], Log]) -> Log:
    """The log; without its first entry once that follows from the id of a log of this history, since restored logs keep the oldest's."""
    if log.first_bytes is None:
        return log
    for origin, log_id in logs:
        begun = hashlib.sha256(genesis(log_id) + log.first_bytes).digest()
        if origin == log.origin and begun == log.first_chain:
            return replace(log, first_bytes=None, first_chain=None)
    return log
