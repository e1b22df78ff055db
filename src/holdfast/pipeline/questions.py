"""How DuckDB is asked about a lake: its connections, the files of a table as SQL or as a dataset, and the check of a user's SQL."""

import os
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa  # type: ignore[import-untyped]  # the package ships no types
import pyarrow.dataset as ds  # type: ignore[import-untyped]  # likewise
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # likewise
from duckdb import StatementType

from holdfast.pipeline import records, times
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.table import Table
from holdfast.store import faults

# DuckDB parses a query with a PIVOT into several statements and calls it MULTI.
_QUESTIONS = (StatementType.SELECT, StatementType.EXPLAIN, StatementType.MULTI)
_MAKING = {b"create", b"insert"}
"""Words that write, where a statement may be more than a question."""
_COPY = b"copy"  # can write from inside a question, too
_SPILLED = "duckdb"
QUESTION_CHARACTERS_SHOWN = 80


class NoQuestion(faults.Fault):
    what = "this is not one question"
    remedy = "Ask with one statement that begins with SELECT, FROM, WITH, SHOW, DESCRIBE or EXPLAIN: a lake is read, never changed."


class NoValue(faults.Fault):
    what = "a value of the answer cannot be shown: a date or time outside of the years 1 to 9999, or finer than a microsecond"
    remedy = "Ask for it as text: CAST(… AS VARCHAR)."


def connect(lake: Lake) -> duckdb.DuckDBPyConnection:
    """A connection to DuckDB that spills into the lake's private directory, since only the owner may read what it spills."""
    connection = duckdb.connect(":memory:")
    connection.execute("SET TimeZone = 'UTC'")
    room = str(lake.private / _SPILLED) if os.access(lake.private, os.W_OK) else ""
    connection.execute("SET temp_directory = $1", [room])
    return connection


def connect_walled(lake: Lake) -> duckdb.DuckDBPyConnection:
    """A connection that can open no file and change no setting: it sees only the rows that are registered with it."""
    connection = connect(lake)
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def rows_of(found: Any) -> list[dict[str, Any]]:
    """The rows of an Arrow table as Python values; a damaged time, which Python cannot express, becomes None."""
    for place, field in enumerate(found.schema):
        if pa.types.is_timestamp(field.type):
            found = found.set_column(place, field, times.known(found.column(place)))
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


def answered(found: Any) -> list[dict[str, Any]]:
    """The rows of the answer to a user's question, whose values may be any of DuckDB's."""
    try:
        return rows_of(found)
    except (OverflowError, ValueError) as error:
        raise NoValue(str(error)) from None


def told_apart(found: Any) -> Any:
    """An Arrow table in which no two columns have one name: of a join's equal names the later ones get a number, as in a subquery of DuckDB's."""
    names: list[str] = []
    for name in found.column_names:
        others = {*names, *found.column_names}
        numbered = (f"{name}_{number}" for number in count(1))
        names.append(name if name not in names else next(one for one in numbered if one not in others))
    return found.rename_columns(names)


def check_question(sql: str) -> None:
    """Refuse SQL that is not one question, to say so in plain words.

    What keeps it from files is the walled connection. Only the directory that DuckDB spills into is open to COPY even there.
    """
    readable = sql.encode("utf-8", "replace").decode()
    kinds = [one.type for one in duckdb.extract_statements(readable)]
    wrong = {_COPY} if kinds == [StatementType.SELECT] else {_COPY, *_MAKING}
    if len(kinds) != 1 or kinds[0] not in _QUESTIONS or not wrong.isdisjoint(_keywords(readable)):
        raise NoQuestion(repr(sql[:QUESTION_CHARACTERS_SHOWN]))


def _keywords(sql: str) -> Iterator[bytes]:
    """The words of a statement that are neither names in quotes, nor values, nor comments; in lower case."""
    raw, tokens = sql.encode(), duckdb.tokenize(sql)
    ends = [place for place, _ in tokens[1:]] + [len(raw)]  # places in bytes
    for (place, kind), end in zip(tokens, ends, strict=True):
        if kind == duckdb.token_type.keyword:
            yield raw[place:end].strip().lower()


def relation(table: Table, paths: Sequence[Path], *, is_other: bool = False) -> str:
    """The SQL of the rows in some files of a table, with the columns of its schema even where there is no file.

    With `is_other` the files are of another version of Holdfast: columns that they lack are NULL, and columns that only they have
    come last.
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
    # As the schema spells them: a file may have one in capitals, which DuckDB takes for the same.
    names = ", ".join(f'"{field.name}" AS "{field.name}"' for field in table.schema.fields)
    return f"(SELECT {names} FROM {stored})"  # noqa: S608 - likewise


def dataset(table: Table, root: Path, paths: Sequence[Path], *, is_other: bool) -> Any:
    """The same rows as an Arrow dataset, for a connection that may open no file."""
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
    """DuckDB's name of a Spark type."""
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
