"""A lake read without Spark: its record of batches, and the rows of its tables as one of those batches left them."""

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.compute as pc  # type: ignore[import-untyped]  # the package ships no types
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from holdfast.pipeline import content, digest, questions, records
from holdfast.pipeline.certificate import Certificate
from holdfast.pipeline.delta_table import has_columns_of, live_files, misplaced
from holdfast.pipeline.digest import Digest
from holdfast.pipeline.findings import Files, Findings
from holdfast.pipeline.lake import Lake, VersionMissing
from holdfast.pipeline.plan import Mark
from holdfast.pipeline.table import Range, Table
from holdfast.store import faults

_NUMBERED = (records.RUN.name, records.CERTIFICATE.name)
"""Tables whose rows bear the number of their batch: an earlier state is read out of the newest version, which is never vacuumed."""

_UNKNOWN = re.compile(r"Table with name (\w+) does not exist!")


@dataclass(frozen=True)
class Run:
    """A complete batch: its number, its clock, where every history stood after it, and the version of every table."""

    number: int
    at: int
    marks: Mapping[str, Mark]
    versions: Mapping[str, int]


NO_RUN = Run(0, 0, {}, {})


@dataclass(frozen=True)
class Step:
    """Consecutive batches that continued every history without a break, taken together as one."""

    at: int  # the clock of the last of them
    ranges: tuple[Range, ...]  # what they read, one range for each history


class NotThen(faults.Fault):
    what = "the lake has no such batch"
    remedy = "Name a batch or a time that it has: `holdfast pipeline show run` lists them."


class Vacuumed(faults.Fault):
    what = "this table cannot be shown as it was then: some of its files, or the part of its log that names them, have been removed"
    remedy = "Name a later batch, or ask for another table."


@dataclass(frozen=True)
class AsOf:
    """The batch with a number, or the last batch that had read no entry younger than a time."""

    number: int | None = None
    at: int | None = None  # µs

    @property
    def condition(self) -> str:
        return f"number <= {self.number}" if self.at is None else f'epoch_us("at") <= {self.at}'

    def __str__(self) -> str:
        return f"batch {self.number}" if self.at is None else records.as_time(self.at).isoformat()


class Shelf:
    """The tables of a lake as the last complete batch left them, or an earlier one that `as_of` names."""

    def __init__(self, lake: Lake, tables: Mapping[str, Table], as_of: "AsOf | None" = None) -> None:
        self.lake = lake
        self.as_of = as_of
        self.tables = {**tables, **{table.name: table for table in records.RECORDS}}
        self._then: dict[
            tuple[str, int], DeltaTable | None
        ] = {}  # opened versions, each of which is asked for several times
        self.connection = questions.connect(lake)

    def last_run(self) -> Run:
        """The last complete batch, or the one that `as_of` names; `NO_RUN` in a lake without batches."""
        handle = self.lake.delta(records.RUN.name)  # asked once: its version has to be the one whose rows are read
        where = "" if self.as_of is None else f"WHERE {self.as_of.condition}"
        sql = f"SELECT * FROM {{rows}} {where} ORDER BY number DESC LIMIT 1"  # noqa: S608 - a number
        rows = [] if handle is None else self._rows_of(records.RUN, live_files(handle), sql)
        if self.as_of is not None:
            self._check_reached(self.as_of, rows[0]["number"] if rows else 0)
        if handle is None or not rows:
            return NO_RUN
        row = rows[0]
        marks = {one["origin"]: Mark(one["origin"], one["log_id"], one["seq"], one["chain"]) for one in row["heads"]}
        versions = {one["table"]: one["version"] for one in row["versions"]}
        return Run(row["number"], _micros(row["at"]), marks, {**versions, records.RUN.name: handle.version()})

    def _check_reached(self, as_of: AsOf, last: int) -> None:
        """Refuse a batch that the lake does not have, and a time before its first; a time after its last means the last."""
        if last == 0:
            raise NotThen(str(self.lake.path), str(as_of))
        if as_of.number is not None and as_of.number != last:
            raise NotThen(str(self.lake.path), f"{as_of}, and the last one is {last}")

    def steps(self, until: int) -> list[Step]:
        """What the batches up to a number read, in order; a batch that did not continue a history where it had ended begins a new step."""
        sql = f'SELECT "at", ranges FROM {{rows}} WHERE number <= {until} ORDER BY number'  # noqa: S608 - a number
        steps: list[Step] = []
        reached: dict[str, tuple[bytes, int]] = {}
        for row in self._recorded(records.RUN, sql):
            read = [Range(**one) for one in row["ranges"] if one["after"] < one["until"]]
            goes_on = all(reached.get(one.origin, (one.log_id, one.after)) == (one.log_id, one.after) for one in read)
            if not (steps and goes_on):
                steps.append(Step(0, ()))
            steps[-1] = Step(_micros(row["at"]), _joined(steps[-1].ranges, read))
            reached |= {one.origin: (one.log_id, one.until) for one in read}
        return steps

    def runs(self, after: int | None, until: int) -> list[dict[str, Any]]:
        """The rows of `run` of some batches, in order."""
        return self._recorded(records.RUN, f"SELECT * FROM {{rows}} {_of_batches(after, until)}")  # noqa: S608 - numbers

    def certificates(self, after: int | None, until: int) -> list[Certificate]:
        """The certificates of some batches, in order."""
        return self._certificates(_of_batches(after, until))

    def beside_certificates(self, after: int | None, until: int) -> list[dict[str, Any]]:
        """The number and the time that the table has beside each certificate of some batches, in order."""
        sql = f'SELECT number, "at" FROM {{rows}} {_of_batches(after, until)}'  # noqa: S608 - numbers
        return self._recorded(records.CERTIFICATE, sql)

    def certificate(self, until: int) -> Certificate | None:
        """The last certificate up to a batch."""
        found = self._certificates(f"WHERE number <= {until} ORDER BY number DESC LIMIT 1")
        return found[0] if found else None

    def uncompared(self, until: int) -> list[str]:
        """The histories that the last certificate up to a batch says were not compared yet with the tables of their relay or device."""
        found = self.certificate(until)
        return [] if found is None else found.uncompared

    def _certificates(self, which: str) -> list[Certificate]:
        sql = f"SELECT document, pubkey, signature FROM {{rows}} {which}"  # noqa: S608 - numbers are all that varies
        rows = self._recorded(records.CERTIFICATE, sql)
        return [Certificate(row["document"], row["pubkey"], row["signature"]) for row in rows]

    def _recorded(self, table: Table, sql: str, values: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """The answer to a question about a record table as it is now; nothing before its first commit."""
        handle = self.lake.delta(table.name)
        return [] if handle is None else self._rows_of(table, live_files(handle), sql, values)

    def files(self, name: str, version: int | None) -> list[Path]:
        """The files of a table at a version; none where the version is None."""
        handle = self._handle(name, version)
        return [] if handle is None else live_files(handle)

    def removed(self, versions: Mapping[str, int]) -> set[str]:
        """The tables that cannot be shown as they were at these versions, because their files have been removed since."""
        if self.as_of is None:
            return set()
        return {name for name, version in versions.items() if name in self.tables and not self._is_there(name, version)}

    def _handle(self, name: str, version: int | None) -> DeltaTable | None:
        """A table at a version; raises `Vacuumed` if an earlier batch is asked for and files of the table are gone."""
        if self.as_of is not None and not self._is_there(name, version):
            raise self._vacuumed(name)
        return self._opened(name, version)

    def _opened(self, name: str, version: int | None) -> DeltaTable | None:
        """A table at a version; as of an earlier batch, a table with numbered rows in its newest version."""
        if self.as_of is not None and name in _NUMBERED:
            return self.lake.delta(name)
        if version is None:
            return None
        if self.as_of is None:
            return self.lake.delta(name, version)
        if (name, version) not in self._then:
            self._then[name, version] = self.lake.delta(name, version)
        return self._then[name, version]

    def _is_there(self, name: str, version: int | None) -> bool:
        """Whether a table can still be read at a version: its log has the version, and every file of it exists."""
        try:
            handle = self._opened(name, version)
        except (VersionMissing, DeltaError):  # DeltaError: the log lacks its beginning
            return False
        return handle is None or all(path.exists() for path in live_files(handle))

    def _vacuumed(self, name: str) -> Vacuumed:
        """The error for a vacuumed table, naming a later batch that can be shown (not necessarily the first)."""
        sql = f"""
            SELECT number, list_filter(versions, lambda one: one.table = $1)[1].version AS version
            FROM {{rows}} WHERE number > {self.last_run().number} ORDER BY number
        """  # noqa: S608 - a number
        later = self._recorded(records.RUN, sql, [name])
        place = bisect_left(later, True, key=lambda one: self._is_there(name, one["version"]))
        there = f", while batch {later[place]['number']} can be shown" if place < len(later) else ""
        return Vacuumed(str(self.lake.root(name)), f"{self.as_of}{there}")

    def misplaced(self, name: str, version: int | None) -> list[str]:
        """Files of a table that lie in the folder of another partition than its log says."""
        handle = None if version is None else self.lake.delta(name, version)
        known = self.tables.get(name)  # None: a table of a newer Holdfast
        return [] if handle is None or known is None else misplaced(handle, known)

    def query(self, name: str, version: int | None, sql: str, values: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """The answer to SQL about one table, which stands for `{rows}`; text from outside is passed in `values`, never in the SQL."""
        return self._answer(self._source(name, version), sql, values)

    def rows(self, name: str, version: int | None) -> int:
        """How many rows a table has."""
        if name not in self.tables:
            return 0
        return int(self.query(name, version, "SELECT count(*) AS rows FROM {rows}")[0]["rows"])

    def query_files(self, name: str, paths: Sequence[Path], sql: str) -> list[dict[str, Any]]:
        """The answer to SQL about some files of a table, whose rows stand for `{rows}`."""
        return self._rows_of(self.tables[name], paths, sql)

    def digest(self, name: str, paths: Sequence[Path]) -> Digest:
        return digest.of_files(paths, self.lake.root(name), records.arrow_schema(self.tables[name]))

    def listings(self, versions: Mapping[str, int]) -> dict[str, str]:
        """For each table the digest of the names of its files."""
        return {name: self.listing(name, version) for name, version in versions.items()}

    def listing(self, name: str, version: int) -> str:
        """The digest of the names of a table's files."""
        handle = self.lake.delta(name)
        is_last = handle is not None and handle.version() == version  # then its log need not be read again
        paths = live_files(handle) if handle is not None and is_last else self.files(name, version)
        return content.listing(self.lake.root(name), paths)

    def findings(self, versions: Mapping[str, int]) -> Findings:
        """The findings of all tables at these versions."""
        tables = [table for table in self.tables.values() if table.finds and table.is_stored]
        kept = {table.name: self._files(table, versions.get(table.name)) for table in tables}
        return Findings(kept, lambda sql: self._answer("", sql, ()))

    def _files(self, table: Table, version: int | None) -> Files:
        handle = self._handle(table.name, version)
        paths = [] if handle is None else live_files(handle)
        is_other = handle is not None and not has_columns_of(handle, table)
        return Files(paths, partial(questions.relation, table, is_other=is_other))

    def chain_at(self, last: Run, origin: str, log_id: bytes, seq: int) -> bytes | None:
        """The chain of one entry; None if the lake does not have it after a batch."""
        sql = "SELECT chain FROM {rows} WHERE origin = $1 AND log_id = $2 AND seq = $3"
        rows = self.query("history", last.versions.get("history"), sql, [origin, log_id, seq])
        return rows[0]["chain"] if rows else None

    def look_up(self, sql: str, values: Sequence[Any]) -> list[dict[str, Any]]:
        """The answer to SQL of our own, in which every table is a view of its name."""
        with self._without_removed(versions := self.last_run().versions) as removed:
            for name in self._stored - removed:
                source = self._source(name, versions.get(name))
                self.connection.execute(f'CREATE OR REPLACE VIEW "{name}" AS SELECT * FROM {source}')  # noqa: S608 - names out of the registry
            return self._answer("", sql, values)

    def ask(self, sql: str) -> tuple[list[str], list[dict[str, Any]]]:
        """The columns and rows of the answer to a user's SQL, in which every table is there under its name.

        It runs on a connection that can open no file and change no setting: from the kind of a statement one cannot tell
        whether something in it writes.
        """
        questions.check_question(sql)
        asked = questions.connect_walled(self.lake)
        with self._without_removed(versions := self.last_run().versions) as removed:
            for name in self._stored - removed:
                asked.register(name, self._dataset(name, versions.get(name)))
            answer = questions.told_apart(asked.sql(sql).to_arrow_table())
            return answer.column_names, questions.answered(answer)

    @property
    def _stored(self) -> set[str]:
        return {table.name for table in self.tables.values() if table.is_stored}

    @contextmanager
    def _without_removed(self, versions: Mapping[str, int]) -> Iterator[set[str]]:
        """Yields the tables whose files have been removed; a question that names one of them fails with `Vacuumed`, others are answered."""
        removed = self.removed(versions)
        try:
            yield removed
        except duckdb.CatalogException as error:
            unknown = _UNKNOWN.search(str(error))
            if unknown is not None and (name := unknown[1].lower()) in removed:
                raise self._vacuumed(name) from None
            raise

    def _dataset(self, name: str, version: int | None) -> Any:
        """The rows of a table without their paths: a connection that may open files may also write them."""
        table, handle = self.tables[name], self._handle(name, version)
        paths = [] if handle is None else live_files(handle)
        is_other = handle is not None and not has_columns_of(handle, table)
        found = questions.dataset(table, self.lake.root(name), paths, is_other=is_other)
        if self.as_of is not None and name in _NUMBERED:
            found = found.filter(pc.field("number") <= self.last_run().number)
        return found

    def _source(self, name: str, version: int | None) -> str:
        """The SQL of a table's rows at a version."""
        kept = self._files(self.tables[name], version)
        found = kept.relation(kept.paths)
        if self.as_of is not None and name in _NUMBERED:
            found = f"(SELECT * FROM {found} WHERE number <= {self.last_run().number})"  # noqa: S608 - a number
        return found

    def _rows_of(
        self, table: Table, paths: Sequence[Path], sql: str, values: Sequence[Any] = ()
    ) -> list[dict[str, Any]]:
        return self._answer(questions.relation(table, paths), sql, values)

    def _answer(self, source: str, sql: str, values: Sequence[Any]) -> list[dict[str, Any]]:
        whole = sql.replace("{rows}", source)
        return questions.rows_of(self.connection.sql(whole, params=list(values) or None).to_arrow_table())


def _of_batches(after: int | None, until: int) -> str:
    """The part of a question that takes the rows of some batches; of all up to one, however low a damaged number is, if `after` is None."""
    lower = "" if after is None else f"number > {after} AND "
    return f"WHERE {lower}number <= {until} ORDER BY number"


def _joined(known: Sequence[Range], read: Sequence[Range]) -> tuple[Range, ...]:
    """Ranges of several batches, extended by what the next batch read of each history."""
    found = {one.origin: one for one in known}
    for one in read:
        found[one.origin] = replace(found.get(one.origin, one), until=one.until)
    return tuple(found.values())


def _micros(at: Any) -> int:
    """A time in µs since 1970; 0 if a damaged row has none, which is for `verify` to tell."""
    if at is None:
        return 0
    return int(at.timestamp()) * 1_000_000 + int(at.microsecond)
