"""Exports copied into files: the task that reads a page writes it with Arrow, and no row passes through Java.

Java takes ten times as long to write an entry, and has to be given it first. Spark's tasks copy many pieces, and the driver a few, in
the same way. A task that copies a history also hashes its entries, for the certificate and for their chain: to do so later, they
would have to be read again.
"""

import itertools
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]  # the package ships no types
import pyarrow.compute as pc  # type: ignore[import-untyped]  # likewise

from holdfast.pipeline import digest, few, pages, tasks, times
from holdfast.pipeline.digest import Digest
from holdfast.pipeline.pages import Page, Place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

SHARES_MAX = 64
"""How many tasks there are at most: each leaves files of its own, so with more pieces a task takes several."""

FILES_OPEN_MAX = 8
"""How many files a task has open at most. Entries come in the order of days, so more are needed only where times are damaged."""

_TAKEN = ".taken"  # the suffix of a file until Spark reports that the attempt which wrote it counts
_DONE = ".parquet"


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
    """How the rows of a page are written."""

    target: Path
    schema: Any  # pa.Schema
    links: Path | None = None  # the folder for the rows of `link`; None: no table reads them
    is_history: bool = False  # partitioned by day, with a digest of its rows


def take(
    open_spark: "Callable[[], SparkSession]", pieces: Sequence[Piece], columns: "StructType", target: Path
) -> None:
    """Write the rows of some pieces into a folder, each with its origin and with the log id of its page."""
    _take(open_spark, pieces, Form(target, few.arrow_schema(columns)))


def take_history(
    open_spark: "Callable[[], SparkSession]",
    pieces: Sequence[Piece],
    columns: "StructType",
    target: Path,
    links: Path | None,
) -> Digest:
    """Write entries into folders by day, and the rows of `link` into the folder `links`; returns the digest of the entries."""
    if links is not None:
        links.mkdir(parents=True)
    return _take(open_spark, pieces, Form(target, few.arrow_schema(columns), links, is_history=True))


def _take(open_spark: "Callable[[], SparkSession]", pieces: Sequence[Piece], form: Form) -> Digest:
    form.target.mkdir(parents=True)
    shares, do = _shared_out(pieces), partial(_taken, form)
    is_little = sum(one.until - one.after for one in pieces) <= few.ROWS_MAX
    reports = [do(share) for share in shares] if is_little else tasks.done(open_spark(), shares, do)
    for path in (Path(path) for one in reports for path in one["paths"]):
        path.rename(path.with_suffix(_DONE))  # if a task was started twice, only one attempt is reported
    return sum((Digest.of_text(one["rows"], one["digest"]) for one in reports), Digest())


def _shared_out(pieces: Sequence[Piece]) -> list[Sequence[Piece]]:
    """The pieces of each task: one, or several that are adjacent."""
    count = min(len(pieces), SHARES_MAX)
    bounds = [len(pieces) * number // count for number in range(count + 1)] if count else []
    return [pieces[low:high] for low, high in itertools.pairwise(bounds)]


def _taken(form: Form, pieces: Sequence[Piece]) -> dict[str, Any]:
    """One task: read some pieces and write them; returns the files, and the digest of the rows of a history."""
    files, beside, proved = _Files(form.target), _Files(form.links), Digest()
    for piece in pieces:
        for page in filter(_has_rows, piece.pages()):
            rows = _rows(form, piece, page)
            for folder, part in few.divided(rows, "day" if form.is_history else None):
                files.add(folder, part)
            if form.is_history:
                proved += digest.of_table(rows)
            if form.links is not None:
                beside.add(".", _links(rows))
    return {"paths": [*files.close(), *beside.close()], "rows": proved.rows, "digest": proved.text()}


def _links(rows: Any) -> Any:
    from holdfast.pipeline.tables import _links as links  # here, because Spark comes with it

    return pa.Table.from_batches(links.parts(rows.combine_chunks().to_batches()))


def _has_rows(page: Page) -> bool:
    return page.rows > 0


def _rows(form: Form, piece: Piece, page: Page) -> Any:
    """The rows of a page with the wanted columns, in the order of their positions."""
    found = pa.Table.from_batches(page.batches, page.schema)
    constants = {"origin": piece.origin, "log_id": page.log_id}
    if form.is_history:
        found = found.append_column("day", _days(found.column("at")))
    lacking = [name for name in form.schema.names if name not in (*found.schema.names, *constants)]
    if lacking:
        raise pages.SourceError(
            f"{piece.place.url}: the export of {piece.table} has no column {lacking[0]}: is it of an older Holdfast? Update it."
        )
    rows = few.as_expected(
        found, form.schema, {name: constants[name] for name in constants if name in form.schema.names}
    )
    seqs = rows.column("seq")
    is_in_order = not pc.any(pc.less(pc.pairwise_diff(seqs.combine_chunks()), 0)).as_py()
    return rows if is_in_order else rows.take(pc.sort_indices(seqs))


def _days(at: Any) -> Any:
    """The date of each time; an unknown or impossible time gets 1970-01-01, because a row needs a partition."""
    return pc.cast(pc.fill_null(times.known(at), pa.scalar(0, at.type)), pa.date32())


class _Files:
    """The files that one task writes below a folder, one at a time in each subfolder."""

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
        if count + rows.num_rows >= few.FILE_ROWS_MAX:
            self._open.pop(folder)[0].close()

    def close(self) -> list[str]:
        """Close all files; returns their paths."""
        self._close_all()
        return self._paths

    def _close_all(self) -> None:
        while self._open:
            self._open.popitem()[1][0].close()
