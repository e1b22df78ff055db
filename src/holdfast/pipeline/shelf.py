"""The lake without Spark: rows and counts of its tables at the versions that the last complete batch names."""

import os
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa  # type: ignore[import-untyped]  # the package ships no types
import pyarrow.compute as pc  # type: ignore[import-untyped]  # likewise
import pyarrow.dataset as ds  # type: ignore[import-untyped]  # likewise
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # likewise
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from duckdb import StatementType

from holdfast.pipeline import catalog, certificate, content, digest, records, times
from holdfast.pipeline.certificate import Certificate
from holdfast.pipeline.digest import Digest
from holdfast.pipeline.findings import Files, Findings
from holdfast.pipeline.lake import Lake, LakeOther, VersionMissing, has_columns_of, live_files, misplaced
from holdfast.pipeline.plan import Mark
from holdfast.pipeline.table import Range, Table
from holdfast.store import faults, files

_OWN = "search_posting"
_NUMBERED = (records.RUN.name, records.CERTIFICATE.name)
"""Tables whose rows bear the number of their batch: those of then are among those of now, whatever became of files."""

_UNKNOWN = re.compile(r"Table with name (\w+) does not exist!")
# The last is whatever has a PIVOT in it.
_QUESTIONS = (StatementType.SELECT, StatementType.EXPLAIN, StatementType.MULTI)
_WRITES = re.compile(r"^\s*(explain\b.*\bcopy|copy|create|insert)\b", re.IGNORECASE | re.DOTALL)
_SPILLED = "duckdb"
QUESTION_CHARACTERS_SHOWN = 80


@dataclass(frozen=True)
class Run:
    """The last complete batch."""

    number: int
    at: int
    marks: Mapping[str, Mark]
    versions: Mapping[str, int]


NO_RUN = Run(0, 0, {}, {})


@dataclass(frozen=True)
class Step:
    """Batches that follow each other, and went on with every history where it had been read to."""

    at: int  # of the last of them
    ranges: tuple[Range, ...]  # one for each history


class NotThen(faults.Fault):
    what = "the lake has no batch of then"
    remedy = "Name a batch or a time that it has: `holdfast pipeline show run` lists them."


class Vacuumed(faults.Fault):
    what = "files that this table had then, or the part of its log that names them, are gone"
    remedy = "Name a later batch, or ask for another table: each is shown as it was for as long as it has both."


class NoQuestion(faults.Fault):
    what = "this is not one question"
    remedy = "Ask with one statement that begins with SELECT, FROM, WITH, SHOW, DESCRIBE or EXPLAIN: a lake is read, never changed."


@dataclass(frozen=True)
class AsOf:
    """A batch by its number, or the last one whose entries are none of them younger than a time."""

    number: int | None = None
    at: int | None = None  # µs

    @property
    def condition(self) -> str:
        return f"number <= {self.number}" if self.at is None else f'epoch_us("at") <= {self.at}'

    def __str__(self) -> str:
        return f"batch {self.number}" if self.at is None else records.as_time(self.at).isoformat()


class Shelf:
    """Tables of a lake as they were after a batch; the last one, unless another is named."""

    def __init__(self, lake: Lake, tables: Mapping[str, Table], as_of: "AsOf | None" = None) -> None:
        self.lake = lake
        self.as_of = as_of
        self.tables = {**tables, **{table.name: table for table in records.RECORDS}}
        self._then: dict[tuple[str, int], DeltaTable | None] = {}  # who looks back looks at each more than once
        self.connection = _connection(lake)

    def last_run(self) -> Run:
        """Where the lake stands."""
        handle = self.lake.delta(records.RUN.name)
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
        """Refuse a batch that the lake does not have, and a time before its first; of any later time the last one is the answer."""
        if last == 0:
            raise NotThen(str(self.lake.path), str(as_of))
        if as_of.number is not None and as_of.number != last:
            raise NotThen(str(self.lake.path), f"{as_of}, and the last one is {last}")

    def steps(self, until: int) -> list[Step]:
        """What all batches up to one have read, in order; one that did not go on where a history had been read to begins a step."""
        handle = self.lake.delta(records.RUN.name)
        sql = f'SELECT "at", ranges FROM {{rows}} WHERE number <= {until} ORDER BY number'  # noqa: S608 - a number
        rows = [] if handle is None else self._rows_of(records.RUN, live_files(handle), sql)
        steps: list[Step] = []
        reached: dict[str, tuple[bytes, int]] = {}
        for row in rows:
            read = [Range(**one) for one in row["ranges"] if one["after"] < one["until"]]
            goes_on = all(reached.get(one.origin, (one.log_id, one.after)) == (one.log_id, one.after) for one in read)
            if not (steps and goes_on):
                steps.append(Step(0, ()))
            steps[-1] = Step(_micros(row["at"]), _joined(steps[-1].ranges, read))
            reached |= {one.origin: (one.log_id, one.until) for one in read}
        return steps

    def runs(self, until: int) -> list[dict[str, Any]]:
        """The rows of all batches up to one, in order."""
        handle = self.lake.delta(records.RUN.name)
        sql = f"SELECT * FROM {{rows}} WHERE number <= {until} ORDER BY number"  # noqa: S608 - a number
        return [] if handle is None else self._rows_of(records.RUN, live_files(handle), sql)

    def certificates(self, until: int | None = None) -> list[Certificate]:
        """All of them, or those up to a batch, in order."""
        return self._certificates("ORDER BY number" if until is None else f"WHERE number <= {until} ORDER BY number")

    def certificate(self, until: int) -> Certificate | None:
        """The last one up to a batch."""
        found = self._certificates(f"WHERE number <= {until} ORDER BY number DESC LIMIT 1")
        return found[0] if found else None

    def _certificates(self, which: str) -> list[Certificate]:
        handle = self.lake.delta(records.CERTIFICATE.name)
        if handle is None:
            return []
        sql = f"SELECT document, pubkey, signature FROM {{rows}} {which}"  # noqa: S608 - numbers are all that varies
        rows = self._rows_of(records.CERTIFICATE, live_files(handle), sql)
        return [Certificate(row["document"], row["pubkey"], row["signature"]) for row in rows]

    def files(self, name: str, version: int | None) -> list[Path]:
        """Where the rows of a table lie."""
        handle = self._handle(name, version)
        return [] if handle is None else live_files(handle)

    def removed(self, versions: Mapping[str, int]) -> set[str]:
        """The tables that cannot be shown any more as they were, since files of theirs have been removed."""
        if self.as_of is None:
            return set()
        return {name for name, version in versions.items() if name in self.tables and not self._is_there(name, version)}

    def _handle(self, name: str, version: int | None) -> DeltaTable | None:
        """A table at a version, of which as of an earlier batch everything must still be there."""
        if self.as_of is not None and not self._is_there(name, version):
            raise self._vacuumed(name)
        return self._opened(name, version)

    def _opened(self, name: str, version: int | None) -> DeltaTable | None:
        """A table at a version. Of those whose rows say of which batch they are, all that there is by now."""
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
        """Whether all is left that a table was made of at a version."""
        try:
            handle = self._opened(name, version)
        except (VersionMissing, DeltaError):  # the latter of a log that has lost its beginning
            return False
        return handle is None or all(path.exists() for path in live_files(handle))

    def _vacuumed(self, name: str) -> Vacuumed:
        """The error for a vacuumed table, naming a later batch that can be shown (not necessarily the first)."""
        sql = f"""
            SELECT number, list_filter(versions, lambda one: one.table = $1)[1].version AS version
            FROM {{rows}} WHERE number > {self.last_run().number} ORDER BY number
        """  # noqa: S608 - a number
        handle = self.lake.delta(records.RUN.name)
        later = [] if handle is None else self._rows_of(records.RUN, live_files(handle), sql, [name])
        place = bisect_left(later, True, key=lambda one: self._is_there(name, one["version"]))
        there = f", while batch {later[place]['number']} can be shown" if place < len(later) else ""
        return Vacuumed(str(self.lake.root(name)), f"{self.as_of}{there}")

    def misplaced(self, name: str, version: int | None) -> list[str]:
        """Files of a table that lie where the log does not say."""
        handle = None if version is None else self.lake.delta(name, version)
        known = self.tables.get(name)  # a newer Holdfast may have another one
        return [] if handle is None or known is None else misplaced(handle, known)

    def query(self, name: str, version: int | None, sql: str, values: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """Rows of a question about one table; `{rows}` is the table, and what was not written by us is among the values."""
        return self._answer(self._source(name, version), sql, values)

    def rows(self, name: str, version: int | None) -> int:
        """How many rows a table has."""
        if name not in self.tables:
            return 0
        return int(self.query(name, version, "SELECT count(*) AS rows FROM {rows}")[0]["rows"])

    def query_files(self, name: str, paths: Sequence[Path], sql: str) -> list[dict[str, Any]]:
        """The same about some of its files."""
        return self._rows_of(self.tables[name], paths, sql)

    def digest(self, name: str, paths: Sequence[Path]) -> Digest:
        return digest.of_files(paths, self.lake.root(name), records.arrow_schema(self.tables[name]))

    def listings(self, versions: Mapping[str, int]) -> dict[str, str]:
        """Which files the tables have that are not proved row by row, as a digest for each."""
        found = {}
        for name in versions.keys() - set(certificate.PROVED):
            handle = self.lake.delta(name)
            is_last = handle is not None and handle.version() == versions[name]  # then its log need not be read again
            paths = live_files(handle) if handle is not None and is_last else self.files(name, versions[name])
            found[name] = content.listing(self.lake.root(name), paths)
        return found

    def findings(self, versions: Mapping[str, int]) -> Findings:
        """What is wrong, or worth knowing."""
        tables = [table for table in self.tables.values() if table.finds and table.is_stored]
        kept = {table.name: self._files(table, versions.get(table.name)) for table in tables}
        return Findings(kept, lambda sql: self._answer("", sql, ()))

    def _files(self, table: Table, version: int | None) -> Files:
        handle = self._handle(table.name, version)
        paths = [] if handle is None else live_files(handle)
        is_other = handle is not None and not has_columns_of(handle, table)
        return Files(paths, partial(relation, table, is_other=is_other))

    def look_up(self, sql: str, values: Sequence[Any]) -> list[dict[str, Any]]:
        """Rows of a question of our own, in which every table has its name."""
        with self._told_of_removed(versions := self.last_run().versions) as removed:
            for name in self._stored - removed:
                source = self._source(name, versions.get(name))
                self.connection.execute(f'CREATE OR REPLACE VIEW "{name}" AS SELECT * FROM {source}')  # noqa: S608 - names out of the registry
            return self._answer("", sql, values)

    def ask(self, sql: str) -> tuple[list[str], list[dict[str, Any]]]:
        """The columns and rows of anybody's question, in which every table has its name; it sees their rows and nothing else.

        It is asked of a connection of its own, which may open no file and change no setting: the kind of a statement does not
        tell whether something in it writes.
        """
        check_question(sql)
        asked = self._asking()
        with self._told_of_removed(versions := self.last_run().versions) as removed:
            for name in self._stored - removed:
                asked.register(name, self._dataset(name, versions.get(name)))
            answer: Any = asked.sql(sql)
            return list(answer.columns), _said(answer.to_arrow_table())

    def _asking(self) -> duckdb.DuckDBPyConnection:
        """A connection that sees only the rows it is given."""
        asked = _connection(self.lake)
        asked.execute("SET enable_external_access = false")
        asked.execute("SET lock_configuration = true")
        return asked

    @property
    def _stored(self) -> set[str]:
        return {table.name for table in self.tables.values() if table.is_stored}

    @contextmanager
    def _told_of_removed(self, versions: Mapping[str, int]) -> Iterator[set[str]]:
        """The tables that cannot be shown: questions that need none of these are answered, the others told what they lack."""
        removed = self.removed(versions)
        try:
            yield removed
        except duckdb.CatalogException as error:
            unknown = _UNKNOWN.search(str(error))
            if unknown is not None and (name := unknown[1].lower()) in removed:
                raise self._vacuumed(name) from None
            raise

    def _dataset(self, name: str, version: int | None) -> Any:
        """The rows of a table, and not where they lie: whoever may open a file of DuckDB's may also write it."""
        table, handle = self.tables[name], self._handle(name, version)
        paths = [] if handle is None else live_files(handle)
        is_other = handle is not None and not has_columns_of(handle, table)
        found = _dataset(table, self.lake.root(name), paths, is_other=is_other)
        if self.as_of is not None and name in _NUMBERED:
            found = found.filter(pc.field("number") <= self.last_run().number)
        return found

    def _source(self, name: str, version: int | None) -> str:
        """The SQL of a table's rows."""
        kept = self._files(self.tables[name], version)
        found = kept.relation(kept.paths)
        if self.as_of is not None and name in _NUMBERED:
            found = f"(SELECT * FROM {found} WHERE number <= {self.last_run().number})"  # noqa: S608 - a number
        return found

    def _rows_of(
        self, table: Table, paths: Sequence[Path], sql: str, values: Sequence[Any] = ()
    ) -> list[dict[str, Any]]:
        return self._answer(relation(table, paths), sql, values)

    def _answer(self, source: str, sql: str, values: Sequence[Any]) -> list[dict[str, Any]]:
        whole = sql.replace("{rows}", source)
        return _said(self.connection.sql(whole, params=list(values) or None).to_arrow_table())


def _connection(lake: Lake) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(":memory:")
    connection.execute("SET TimeZone = 'UTC'")
    # What does not fit into memory is as much its owner's alone as the lake is.
    room = str(lake.private / _SPILLED) if os.access(lake.private, os.W_OK) else ""
    connection.execute("SET temp_directory = $1", [room])
    return connection


def _said(found: Any) -> list[dict[str, Any]]:
    """An Arrow table as Python has it; a damaged time, for which Python has no word, as none."""
    for place, field in enumerate(found.schema):
        if pa.types.is_timestamp(field.type):
            found = found.set_column(place, field, times.known(found.column(place)))
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


def check_question(sql: str) -> None:
    """Refuse what is no question. This is to be told so, and is no wall: what a question may not do it cannot do."""
    kinds = [one.type for one in duckdb.extract_statements(sql.encode("utf-8", "replace").decode())]
    if len(kinds) != 1 or kinds[0] not in _QUESTIONS or _WRITES.search(sql):
        raise NoQuestion(repr(sql[:QUESTION_CHARACTERS_SHOWN]))


def tables_of(lake: Lake) -> dict[str, Table]:
    """The tables that a lake has, by its kind."""
    return catalog.shown(catalog.OWN if is_own(lake) else catalog.RELAYS)


def is_own(lake: Lake) -> bool:
    """Whether a lake is an owner's index of messages; a relay's has no such table."""
    return lake.root(_OWN).is_dir()


def check_relays(lake: Lake) -> None:
    """Refuse an owner's index where a relay's lake is meant."""
    if is_own(lake):
        raise LakeOther(str(lake.path), "it is an index of messages")


def make_own(lake: Lake) -> None:
    """Make a lake an owner's index from the beginning, so that one whose first batch was interrupted is known for what it is."""
    if not is_own(lake) and lake.root("history").is_dir():
        raise LakeOther(str(lake.path), "it is a relay's")
    lake.root(_OWN).mkdir(mode=0o700, exist_ok=True)
    files.sync_directory(lake.path)


def relation(table: Table, paths: Sequence[Path], *, is_other: bool = False) -> str:
    """The SQL of some files of a table, with the columns of its schema even where there is no file.

    Files of another version of Holdfast have other columns: those that they lack are empty, and those that only they have come last.
    """
    columns = ", ".join(f'NULL::{_type(field.dataType)} AS "{field.name}"' for field in table.schema.fields)
    nothing = f"SELECT {columns} WHERE false"
    if not paths:
        return f"({nothing})"
    listed = ", ".join(f"'{_quoted(path)}'" for path in paths)
    hive = ""
    if table.partition_by:
        kind = _type(table.schema[table.partition_by].dataType)
        hive = f", hive_partitioning = true, hive_types = {{'{table.partition_by}': {kind}}}"
    stored = f"read_parquet([{listed}]{hive})"
    if is_other:
        return f"({nothing} UNION ALL BY NAME SELECT * FROM {stored})"  # noqa: S608 - paths of the lake's own log
    names = ", ".join(f'"{field.name}"' for field in table.schema.fields)
    return f"(SELECT {names} FROM {stored})"  # noqa: S608 - likewise


def _dataset(table: Table, root: Path, paths: Sequence[Path], *, is_other: bool) -> Any:
    """The same files as rows that come from nowhere."""
    schema = pa.schema([field.with_nullable(True) for field in records.arrow_schema(table)])
    if is_other:
        schema = pa.unify_schemas([schema, *map(pq.read_schema, paths)], promote_options="permissive")
    folders = None
    if table.partition_by:
        folders = ds.partitioning(pa.schema([schema.field(table.partition_by)]), flavor="hive")
    if not paths:
        return ds.dataset(schema.empty_table())
    try:
        return ds.dataset(list(map(str, paths)), schema, "parquet", partitioning=folders, partition_base_dir=str(root))
    except FileNotFoundError as error:
        raise faults.FileMissing(str(error)) from None


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")


def _type(kind: Any) -> str:
    """DuckDB's name of a type of Spark's."""
    name = kind.typeName()
    if name == "array":
        return _type(kind.elementType) + "[]"
    if name == "struct":
        parts = ", ".join(f'"{field.name}" {_type(field.dataType)}' for field in kind.fields)
        return f"STRUCT({parts})"
    names = {
        "string": "VARCHAR",
        "long": "BIGINT",
        "integer": "INTEGER",
        "double": "DOUBLE",
        "boolean": "BOOLEAN",
        "binary": "BLOB",
        "timestamp": "TIMESTAMPTZ",
        "date": "DATE",
    }
    return names[name]


def _joined(known: Sequence[Range], read: Sequence[Range]) -> tuple[Range, ...]:
    """Ranges, and what a batch went on with behind them."""
    found = {one.origin: one for one in known}
    for one in read:
        found[one.origin] = replace(found.get(one.origin, one), until=one.until)
    return tuple(found.values())


def _micros(at: Any) -> int:
    return int(at.timestamp()) * 1_000_000 + int(at.microsecond)


def balance(
    shelf: Shelf, before: Mapping[str, int], added: Mapping[str, Sequence[Path]], open_rows: int
) -> dict[str, int]:
    """The balance after a batch: the one before, and what the batch added."""
    after = {**certificate.no_balance(), **before, "open": open_rows}
    sql = "SELECT coalesce(sum(len(recipients)), 0)::BIGINT AS recipients FROM {rows} WHERE origin LIKE 'relay:%' AND kind IN ('accepted', 'receipt')"
    after["recipients"] += shelf.query_files("history", added["history"], sql)[0]["recipients"]
    if "message_fate" in shelf.tables:
        sql = "SELECT outcome, count(*) AS rows FROM {rows} GROUP BY outcome"
        for row in shelf.query_files("message_fate", added["message_fate"], sql):
            after[row["outcome"]] = after.get(row["outcome"], 0) + row["rows"]
    return after
