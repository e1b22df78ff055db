"""Hook events, read out of the entries of devices."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that

from holdfast.pipeline.tables._entry import of_device, utf8

SESSION = ["device", "agent", "session"]
SYNTHETIC = "holdfast-doctor-"
"""How the names of those sessions begin that `hook doctor` makes up for its test events."""

_LENGTH_BYTES = 4
_NUMBER_BYTES = 8
_TEXTS = ("agent", "session", "event_type", "event_name")


def hook_events(new_history: DataFrame, extent: DataFrame, history: DataFrame) -> DataFrame:
    """The hook events of this batch, each once; those of unnamed and of test sessions are left out."""
    found = received(new_history).withColumnRenamed("origin", "device")
    own = found.where((F.col("session") != "") & ~F.col("session").startswith(SYNTHETIC))
    events = own.select(*SESSION, "log_id", "event_id", "seq", "at", "event_type", "event_name", "received_at")
    return _told_first(events, extent, history).drop("log_id", "event_id")


def received(entries: DataFrame) -> DataFrame:
    """The entries of hook events, with the fields of their details as columns; null where a detail is damaged."""
    told = entries.where(of_device() & (F.col("kind") == "hook_received"))
    place: Column = F.lit(1)
    for name in _TEXTS:
        length = _number("detail", place, _LENGTH_BYTES).try_cast("int")
        told = told.withColumn(name, utf8(F.substring("detail", place + _LENGTH_BYTES, length)))
        told = told.withColumn(f"after_{name}", place + _LENGTH_BYTES + length)
        place = F.col(f"after_{name}")
    at = F.timestamp_micros(_number("detail", place, _NUMBER_BYTES))
    return told.withColumn("received_at", at).drop(*(f"after_{name}" for name in _TEXTS))


def _told_first(events: DataFrame, extent: DataFrame, history: DataFrame) -> DataFrame:
    """The events that no earlier entry has: a restored device may receive an event a second time."""
    restored = extent.where(of_device() & F.col("valid_until").isNotNull()).select(F.col("origin").alias("device"))
    if restored.isEmpty():  # only for restored devices the past is read
        return events
    told = history.where(of_device() & (F.col("kind") == "hook_received")).withColumnRenamed("origin", "device")
    again = told.join(F.broadcast(restored.distinct()), on="device", how="left_semi").select(
        *("device", "event_id"), F.struct("at", "seq", "log_id").alias("place")
    )
    first = again.groupBy("device", "event_id").agg(F.min("place").alias("first"))
    place = F.struct("at", "seq", "log_id")
    met = events.join(first, on=["device", "event_id"], how="left")
    return met.where(F.col("first").isNull() | (F.col("first") == place)).drop("first")


def _number(bytes_column: str, start: Column, length: int) -> Column:
    """The big-endian number at a place that counts from 1; null where there are fewer bytes."""
    digits = F.hex(F.substring(bytes_column, start, F.lit(length)))
    return F.when(F.length(digits) == 2 * length, F.conv(digits, 16, 10).try_cast("bigint"))
