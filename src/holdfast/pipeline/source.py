"""The Spark data source "holdfast": an export as a data frame, in one go or as a stream.

    holdfast.register(spark)
    spark.read.format("holdfast").option("url", URL).option("table", "history").option("token_file", FILE).load()

Options: `url` (http://…, or unix:/path of a daemon's socket), `table`, `token_file` (or HOLDFAST_TOKEN in the environment),
`columns` (a,b,c), `after` and `until` (positions), or `ranges` (after-until,after-until,…), `partitions`, `max_rows` (per micro-batch of a stream), `patience_s`,
`log_id` (hex; anything else is refused), `gaps` (`fail`, or `pass` to see what is left of a damaged history). Each row also has the
`export_log_id` and the `as_of_seq` (the head when it was read) of its page. The classes travel to executors by value.
"""

import itertools
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # the package ships no types
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import BinaryType, LongType, StructType

from holdfast.pipeline import pages
from holdfast.pipeline.pages import (
    Head,
    LogShorter,
    OtherLog,
    Place,
    RangePruned,
    SourceError,
    TokenMissing,
    TokenUnfit,
)

NAME = "holdfast"
TOKEN_VARIABLE = "HOLDFAST_TOKEN"  # noqa: S105 - the variable's name
_TOKEN = re.compile(r"[!-~]+")
ROWS_PER_PARTITION_MIN = 10_000
OPTIONS = (
    "url",
    "table",
    "token_file",
    "columns",
    "after",
    "until",
    "ranges",
    "partitions",
    "max_rows",
    "patience_s",
    "log_id",
    "gaps",
)


def register(spark: SparkSession) -> None:
    """Let a session read format("holdfast"), on executors that lack this package, too."""
    for module in (pages, sys.modules[__name__]):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]  # the library has no types here
    spark.dataSource.register(HoldfastSource)


class Settings:
    """The options of one read, checked."""

    def __init__(self, options: Mapping[str, str]) -> None:
        unknown = sorted(set(options) - set(OPTIONS) - {"path"})
        if unknown:
            raise SourceError(f"unknown option {unknown[0]}; there are {', '.join(OPTIONS)}")
        for name in ("url", "table"):
            if not options.get(name):
                raise SourceError(f"the option {name} is missing")
        self.table = options["table"]
        is_device = options["url"].startswith("unix:")  # its socket needs no token, and must not learn the relay's
        own_token = None if is_device else token(options.get("token_file") or None)
        self.place = Place(options["url"], own_token, _patience(options.get("patience_s") or pages.PATIENCE_S))
        self.columns = tuple(options["columns"].split(",")) if options.get("columns") else None
        self.after = _position(options, "after")
        self.until = _position(options, "until")
        self.ranges = _ranges(options.get("ranges"))
        self.partitions = _count(options, "partitions") or os.cpu_count() or 1
        self.max_rows = _count(options, "max_rows")
        self.log_id = _log_id(options.get("log_id"))
        if options.get("gaps", "fail") not in ("fail", "pass"):
            raise SourceError(f"the option gaps is fail or pass, not {options['gaps']}")
        self.gaps = options.get("gaps") == "pass"

    def head(self) -> Head:
        """The head of the log, which is refused if `log_id` names another."""
        head = pages.read_head(self.place)
        self.check_log(head.log_id)
        return head

    def check_log(self, log_id: bytes) -> None:
        if self.log_id not in (None, log_id):
            raise OtherLog(
                f"{self.place.url}: the log is {log_id.hex()}, not {(self.log_id or b'').hex()}: the relay was restored or "
                "replaced. `holdfast pipeline run` follows a restored log by itself; a stream begins anew with another checkpoint."
            )

    def check_begin(self, head: Head, after: int) -> None:
        """Refuse a range that cannot be read without a gap."""
        if after > head.seq:
            raise LogShorter(
                f"{self.place.url}: the log ends at {head.seq}, before {after}: it lost entries, or an old copy was put in its place"
            )
        if self.table == "history" and after < head.anchor_seq:
            message = (
                f"{self.place.url}: the entries up to {head.anchor_seq} are pruned; reading after {after} would leave a gap. "
                f"Set the option after to {head.anchor_seq} to begin there."
            )
            raise RangePruned(message, head.anchor_seq)


def token(token_file: str | None) -> str | None:
    """The token of a file or of the environment. It is read where reading is planned: executors may have no such file."""
    if token_file is None:
        text = os.environ.get(TOKEN_VARIABLE)
        return _token_in(text, f"the variable {TOKEN_VARIABLE}") if text else None
    try:
        raw = Path(token_file).read_bytes()
    except OSError as error:
        raise TokenMissing(
            f"the token file {token_file} cannot be read: {error.strerror}. Correct the path."
        ) from error
    return _token_in(raw.decode(errors="replace"), f"the token file {token_file}")


def _token_in(text: str, where: str) -> str:
    """The token in a text, without blanks around it; one that cannot go into a header is refused, and never shown."""
    found = text.strip()
    if _TOKEN.fullmatch(found):
        return found
    what = "has a line break, a blank or another character inside that no token has" if found else "is empty"
    raise TokenUnfit(
        f"{where} {what}. Mint a token with `holdfast relay token`, and let nothing else than that one line be there."
    )


def _position(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if not text:
        return None
    if not text.isdecimal():
        raise SourceError(f"the option {name} is a whole number, not {text}")
    return int(text)


def _count(options: Mapping[str, str], name: str) -> int | None:
    found = _position(options, name)
    if found == 0:
        raise SourceError(f"the option {name} is at least 1, not 0")
    return found


def _patience(text: str | float) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 <= found < math.inf:  # otherwise a relay that is away would be waited for without an end
        raise SourceError(f"the option patience_s is a number of seconds, not {text}")
    return found


def _log_id(text: str | None) -> bytes | None:
    try:
        return bytes.fromhex(text) if text else None
    except ValueError:
        raise SourceError(f"the option log_id is the id of a log in hex, not {text}") from None


def _ranges(text: str | None) -> list[tuple[int, int]] | None:
    """The ranges that the option `ranges` names."""
    if not text:
        return None
    try:
        return [(int(after), int(until)) for after, until in (part.split("-") for part in text.split(","))]
    except ValueError:
        raise SourceError(f"the option ranges is after-until,after-until,…, not {text}") from None


class SeqRange(InputPartition):
    """Rows with after < seq ≤ until of one log."""

    def __init__(self, after: int, until: int, log_id: bytes) -> None:
        self.after = after
        self.until = until
        self.log_id = log_id


def split(after: int, until: int, log_id: bytes, partitions: int) -> list[SeqRange]:
    """A range in parts of equal width, as many as there are cores, and fewer where there is little to read."""
    width = until - after
    count = max(1, min(partitions, width // ROWS_PER_PARTITION_MIN))
    bounds = [after + width * part // count for part in range(count + 1)]
    return [SeqRange(low, high, log_id) for low, high in itertools.pairwise(bounds) if low < high]


def read_range(settings: Settings, schema: StructType, part: InputPartition) -> Iterator[Any]:
    """The record batches of a part, each with the log id and head of its page, in exactly the types that Spark expects."""
    if not isinstance(part, SeqRange):
        raise TypeError(f"{part!r} is no range of positions")
    found = pages.read_pages(
        settings.place, settings.table, part.after, part.until, settings.columns, part.log_id, gaps=settings.gaps
    )
    expected = to_arrow_schema(schema, timezone="UTC")
    for page in found:
        for batch in page.batches:
            yield _with_page(batch, page, expected)


def _with_page(batch: Any, page: pages.Page, expected: Any) -> Any:
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    columns["export_log_id"] = pa.repeat(pa.scalar(page.log_id, pa.binary()), batch.num_rows)
    columns["as_of_seq"] = pa.repeat(pa.scalar(page.as_of_seq, pa.int64()), batch.num_rows)
    return pa.RecordBatch.from_arrays([_as(field.type, columns[field.name]) for field in expected], schema=expected)


def _as(kind: Any, column: Any) -> Any:
    """A column in a type, which most are in already."""
    return column if column.type == kind else column.cast(kind)


class HoldfastSource(DataSource):
    """The source of one data frame."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        """The schema of the export, taken from an empty page."""
        settings = Settings(self.options)
        head = settings.head()
        page = pages.read_page(settings.place, settings.table, head.seq, head.seq, settings.columns)
        found = from_arrow_schema(page.schema)
        return found.add("export_log_id", BinaryType(), False).add("as_of_seq", LongType(), False)

    def reader(self, schema: StructType) -> DataSourceReader:
        return HoldfastReader(Settings(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - called by this name
        return HoldfastStreamReader(Settings(self.options), schema)


class HoldfastReader(DataSourceReader):
    """Everything up to the head at the time of planning, or what the bounds leave of it."""

    def __init__(self, settings: Settings, schema: StructType) -> None:
        self._settings = settings
        self._schema = schema
        self._after = settings.after or 0
        self._until = settings.until

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - called by this name
        """Conditions on seq narrow the range; all others are left to Spark."""
        for one in filters:
            if not self._narrowed(one):
                yield one

    def _narrowed(self, one: Filter) -> bool:
        if getattr(one, "attribute", None) != ("seq",) or not isinstance(getattr(one, "value", None), int):
            return False
        after, until = _bounds(one)
        if after is None and until is None:
            return False
        self._after = max(self._after, after if after is not None else 0)
        if until is not None:
            self._until = until if self._until is None else min(self._until, until)
        return True

    def partitions(self) -> Sequence[SeqRange]:
        head = self._settings.head()
        if self._settings.ranges is not None:
            return [part for low, high in self._settings.ranges for part in self._split(head, low, high)]
        self._settings.check_begin(head, self._settings.after or 0)
        until = head.seq if self._until is None else min(self._until, head.seq)
        if self._settings.until is not None and self._settings.until > head.seq:
            self._settings.check_begin(head, self._settings.until)
        if self._settings.table == "history" and self._after < until:
            self._settings.check_begin(head, self._after)
        return self._split(head, self._after, until)

    def _split(self, head: Head, after: int, until: int) -> list[SeqRange]:
        after, until = max(after, self._after), until if self._until is None else min(until, self._until)
        return split(after, min(until, head.seq), head.log_id, self._settings.partitions)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_range(self._settings, self._schema, partition)


def _bounds(one: Filter) -> tuple[int | None, int | None]:
    """The (after, until] that a condition on seq allows."""
    value = getattr(one, "value", 0)
    if isinstance(one, EqualTo):
        return value - 1, value
    if isinstance(one, GreaterThan):
        return value, None
    if isinstance(one, GreaterThanOrEqual):
        return value - 1, None
    if isinstance(one, LessThan):
        return None, value - 1
    if isinstance(one, LessThanOrEqual):
        return None, value
    return None, None


class HoldfastStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The history as it grows. An offset is a log id and a position: a changed log ends the stream with an error."""

    def __init__(self, settings: Settings, schema: StructType) -> None:
        self._settings = settings
        self._schema = schema
        self._target: int | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - called by this name
        head = self._settings.head()
        after = self._settings.after or 0
        self._settings.check_begin(head, after)
        return {"log_id": head.log_id.hex(), "seq": after}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - called by this name
        self._target = self._settings.head().seq

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - called by this name
        return ReadAllAvailable() if self._settings.max_rows is None else ReadMaxRows(self._settings.max_rows)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - called by this name
        head = self._checked_head(start)
        seq = head.seq if self._target is None else min(head.seq, self._target)
        if self._settings.until is not None:
            seq = min(seq, self._settings.until)
        if isinstance(limit, ReadMaxRows):
            seq = min(seq, start["seq"] + limit.max_rows)
        return {"log_id": start["log_id"], "seq": max(seq, start["seq"])}

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - called by this name
        head = self._settings.head()
        return {"log_id": head.log_id.hex(), "seq": head.seq}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start["seq"] == end["seq"]:
            return []
        self._checked_head(start)
        return split(start["seq"], end["seq"], bytes.fromhex(start["log_id"]), self._settings.partitions)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_range(self._settings, self._schema, partition)

    def _checked_head(self, start: dict[str, Any]) -> Head:
        head = self._settings.head()
        if head.log_id.hex() != start["log_id"]:
            raise OtherLog(
                f"{self._settings.place.url}: the log is {head.log_id.hex()}, not {start['log_id']}: the relay was restored or "
                "replaced. Begin a new stream with another checkpoint."
            )
        self._settings.check_begin(head, start["seq"])
        return head
