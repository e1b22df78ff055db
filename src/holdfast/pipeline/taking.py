"""Exports taken over as files: a page is written where it is read, by Arrow, and none of its rows passes through Java.

Java takes ten times as long to write an entry, and has to be handed it first. Tasks of Spark's take over many pieces, the driver
a few, in the same way. While a task has the entries of a history in its hands, it also hashes them, for the certificate and
for their chain: whoever does that later has to read them all again.
"""

import itertools
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]  # the package ships no types
import pyarrow.compute as pc  # type: ignore[import-untyped]  # likewise

from holdfast.pipeline import digest, few, pages
from holdfast.pipeline.digest import Digest
from holdfast.pipeline.pages import Page, Place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

TASKS_MAX = 64
"""Pieces beyond that go to one task several at a time: each task leaves a file of its own."""

FILE_ROWS_MAX = 1_000_000
FILES_OPEN_MAX = 8
"""Entries come in the order of days, so more are needed only where times are damaged."""

_TAKEN = ".taken"  # what a file is called until it is known that the task which wrote it counts
_DONE = ".parquet"
_REPORT = "paths array<string>, rows bigint, digest string"
_DAY_MIN_US, _DAY_MAX_US = -62_135_596_800_000_000, 253_402_300_799_999_999  # of the years 1 to 9999


@dataclass(frozen=True)
class Piece:
    """A range of an export that one task reads."""

    origin: str
    place: Place
    table: str
    columns: tuple[str, ...] | None
    gaps: bool
    after: int
    until: int
    log_id: bytes

    def pages(self) -> Iterator[Page]:
        return pages.read_pages(
            self.place, self.table, self.after, self.until, self.columns, self.log_id, gaps=self.gaps
        )


@dataclass(frozen=True)
class Form:
    """What becomes of the rows of a page."""

    target: Path
    schema: Any  # pa.Schema
    links: Path | None = None  # where it is told how entries are chained; None: nobody asks
    is_history: bool = False  # lies by day, and its rows are proved


@dataclass(frozen=True)
class Report:
    """What a task has written."""

    paths: Sequence[str]
    digest: Digest  # of its rows, where these are proved


def take(
    open_spark: "Callable[[], SparkSession]", pieces: Sequence[Piece], columns: "StructType", target: Path
) -> None:
    """Write the rows of some pieces into a folder, each with its origin and with the log id and the head of its page."""
    _take(open_spark, pieces, Form(target, few.arrow_schema(columns)))


def take_history(
    open_spark: "Callable[[], SparkSession]",
    pieces: Sequence[Piece],
    columns: "StructType",
    target: Path,
    links: Path | None,
) -> Digest:
    """Write entries into folders by day; the digest of them all. How they are chained is written into a folder of its own."""
    if links is not None:
        links.mkdir(parents=True)
    reports = _take(open_spark, pieces, Form(target, few.arrow_schema(columns), links, is_history=True))
    return sum((one.digest for one in reports), Digest())


def _take(open_spark: "Callable[[], SparkSession]", pieces: Sequence[Piece], form: Form) -> list[Report]:
    form.target.mkdir(parents=True)
    tasks = _shared_out(pieces)
    if sum(one.until - one.after for one in pieces) <= few.ROWS_MAX:
        reports = [_taken(form, task) for task in tasks]
    else:
        numbers = open_spark().range(0, len(tasks), 1, len(tasks))
        rows = numbers.mapInArrow(partial(_by_task, form=form, tasks=tasks), _REPORT).collect()
        reports = [Report(row.paths, Digest.of_text(row.rows, row.digest)) for row in rows]
    for path in (Path(path) for one in reports for path in one.paths):
        path.rename(path.with_suffix(_DONE))  # of a task that was begun twice only one attempt is reported
    return reports


def _shared_out(pieces: Sequence[Piece]) -> list[Sequence[Piece]]:
    """A task for each piece; where there are more than tasks, those beside each other have one."""
    count = min(len(pieces), TASKS_MAX)
    bounds = [len(pieces) * number // count for number in range(count + 1)] if count else []
    return [pieces[low:high] for low, high in itertools.pairwise(bounds)]


def _by_task(batches: Iterable[Any], form: Form, tasks: Sequence[Sequence[Piece]]) -> Iterator[Any]:
    """What Spark calls: numbers of tasks come in, what these have written goes out."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            found = _taken(form, tasks[number])
            yield pa.RecordBatch.from_pylist(
                [{"paths": found.paths, "rows": found.digest.rows, "digest": found.digest.text()}],
                pa.schema([("paths", pa.list_(pa.string())), ("rows", pa.int64()), ("digest", pa.string())]),
            )


def _taken(form: Form, pieces: Sequence[Piece]) -> Report:
    """Read some pieces, and write them."""
    from holdfast.pipeline.tables import _links as links  # here, because Spark comes with it

    files, beside, proved = _Files(form.target), _Files(form.links), Digest()
    for piece in pieces:
        for page in piece.pages():
            rows = _rows(form, piece, page)
            for folder, part in few.divided(rows, "day" if form.is_history else None):
                files.add(folder, part)
            if form.is_history:
                proved += digest.of_table(rows)
            if form.links is not None:
                beside.add(".", pa.Table.from_batches(links.parts(rows.combine_chunks().to_batches())))
    return Report([*files.close(), *beside.close()], proved)


def _rows(form: Form, piece: Piece, page: Page) -> Any:
    """The rows of a page in the columns that they are to have, in order; one whose time is none that a day has is of no day."""
    found = pa.Table.from_batches(page.batches, page.schema)
    constants = {"origin": piece.origin, "log_id": page.log_id, "as_of_seq": page.as_of_seq}
    if form.is_history:
        found = found.append_column("day", _days(found.column("at")))
    rows = few.as_expected(
        found, form.schema, {name: constants[name] for name in constants if name in form.schema.names}
    )
    seqs = rows.column("seq")
    is_in_order = not pc.any(pc.less(pc.pairwise_diff(seqs.combine_chunks()), 0)).as_py()
    return rows if is_in_order else rows.take(pc.sort_indices(seqs))


def _days(at: Any) -> Any:
    micros = pc.cast(at, pa.int64())
    is_a_day = pc.and_(pc.greater_equal(micros, _DAY_MIN_US), pc.less_equal(micros, _DAY_MAX_US))
    return pc.cast(pc.if_else(is_a_day, at, pa.scalar(None, at.type)), pa.date32())


class _Files:
    """The files that one task writes below a folder, one in each of its folders at a time."""

    def __init__(self, target: Path | None) -> None:
        self._target = target
        self._open: dict[str, tuple[Any, int]] = {}
        self._paths: list[str] = []

    def add(self, folder: str, rows: Any) -> None:
        if rows.num_rows == 0 or self._target is None:
            return
        if folder not in self._open:
            if len(self._open) >= FILES_OPEN_MAX:
                self._close_all()
            path = self._target / folder / f"{secrets.token_hex(8)}{_TAKEN}"
            path.parent.mkdir(exist_ok=True)
            self._open[folder] = few.writer(path, rows.schema), 0
            self._paths.append(str(path))
        file, count = self._open.pop(folder)
        file.write_table(rows)
        self._open[folder] = file, count + rows.num_rows
        if count + rows.num_rows >= FILE_ROWS_MAX:
            self._open.pop(folder)[0].close()

    def close(self) -> list[str]:
        """Close what is open; the paths of all files."""
        self._close_all()
        return self._paths

    def _close_all(self) -> None:
        while self._open:
            self._open.popitem()[1][0].close()
