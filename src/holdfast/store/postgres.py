"""PostgreSQL as an engine, through `psycopg`: one database that several relays write to.

One writer at a time has the database to itself until it commits, as on SQLite: a transaction begins with a lock that all
writers take. So positions are given in the order of commit, and writers never deadlock. A writer that stalls in its
transaction, because its process was stopped or its machine is gone, loses its turn after a while, and its transaction is
undone.
"""

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import lru_cache
from typing import Any

import psycopg
from psycopg import pq

from holdfast.store import faults
from holdfast.store.address import shown
from holdfast.store.engine import Row, Transaction, Value, Watch
from holdfast.store.postgres_session import (
    DURABLE_NOW,
    WRITE_LOCK,
    WRITERS_CHANNEL,
    check_durable,
    connect,
    end_deaf,
    meaning,
)
from holdfast.store.postgres_watch import PostgresWatch
from holdfast.store.statements import Statement

READERS_IDLE_MAX = 4
"""How many connections for reading are kept open while nobody reads."""

# Not the database's default level: at any other the transaction would see the state from before its turn came.
_BEGIN_WRITE = (
    f"BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE; SELECT pg_advisory_xact_lock({WRITE_LOCK}), {DURABLE_NOW}"
)
_COMMIT_WRITE = f"NOTIFY {WRITERS_CHANNEL}; COMMIT"  # sent only if the commit succeeds, and once per commit
_BEGIN_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"

_PARAMETER = re.compile(r"(?<!:):([a-z_]\w*)")
_TYPES = {"INTEGER": "bigint", "BLOB": "bytea", "TEXT": 'text COLLATE "C"'}  # texts compare by bytes, as on SQLite
_TYPE = re.compile(rf"\b({'|'.join(_TYPES)})\b")
_HINT = re.compile(r" INDEXED BY \w+")  # PostgreSQL has no such hints and plans by itself
_OPTIONS = re.compile(r"\)\s*STRICT\b(,\s*WITHOUT ROWID\b)?")


_Taken = tuple["psycopg.Connection[Row]", bool]
"""A connection, and whether it is new, so that it cannot have died while it was idle."""


class PostgresEngine:
    """One database of a PostgreSQL server. Writes go through one connection, each read through one of a few."""

    is_shared = True

    def __init__(self, url: str, *, read_only: bool = False) -> None:
        self.where = shown(url)
        self._url = url
        self._read_only = read_only
        self._process = os.getpid()
        self._closed = False
        self._write_turn = threading.RLock()
        self._writer: psycopg.Connection[Row] | None = None
        self._idle: list[psycopg.Connection[Row]] = []
        self._columns: dict[str, dict[str, str]] = {}  # by table: the types of its columns
        try:
            with self._read():
                pass  # only to see that the server can be reached and lets us in
        except BaseException:
            self.close()
            raise

    def prepare(self) -> None:
        """Check that the server is durable. Every new writing connection is checked again."""
        with self._write_turn:
            self._writing()

    def write(self, *, brief: bool = False) -> AbstractContextManager[Transaction]:
        return self._write()

    def read(self) -> AbstractContextManager[Transaction]:
        return self._read()

    def watch(self, told: Callable[[], None]) -> Watch:
        """Listen for commits of other relays, and compete for the duty."""
        return PostgresWatch(self._url, told, lambda: self.writer_pid)

    def damage(self) -> list[str]:
        """Read every row: the server checks its pages on the way and reports what it cannot read."""
        found = []
        with self.read() as transaction:
            tables = sorted(transaction.tables())
        for table in tables:
            try:
                with self.read() as transaction:
                    transaction.rows(f"SELECT max(length(CAST(whole AS text))) FROM {table} AS whole")  # noqa: S608 - names of ours
            except faults.Corrupt as fault:
                found.append(f"{table}: {fault.detail}")
        return found

    def close(self) -> None:
        if self._process != os.getpid():
            return  # these are the parent's connections
        with self._write_turn:
            self._closed = True
            for connection in [*self._idle, *([] if self._writer is None else [self._writer])]:
                connection.close()
            self._idle.clear()
            self._writer = None

    @property
    def writer_pid(self) -> int | None:
        """The server's process id of the writing connection; None without one."""
        writer = self._writer
        return None if writer is None or writer.closed else writer.info.backend_pid

    @contextmanager
    def _write(self) -> Iterator[Transaction]:
        self._stay_in_process()
        with self._write_turn:
            if self._read_only:
                raise faults.NoAccess(self.where, "it was opened for reading only")
            connection, begun = self._begun(self._writing, _BEGIN_WRITE)
            with self._transaction(connection, _COMMIT_WRITE) as transaction:
                begun.nextset()
                check_durable(begun.fetchall()[0][1:], self.where)  # they may be changed while the server runs
                yield transaction

    @contextmanager
    def _read(self) -> Iterator[Transaction]:
        self._stay_in_process()
        connection, _ = self._begun(self._reading, _BEGIN_READ)
        try:
            with self._transaction(connection, "COMMIT") as transaction:
                yield transaction
        finally:
            self._put_back(connection)

    def _put_back(self, connection: "psycopg.Connection[Row]") -> None:
        is_sound = connection.info.transaction_status == pq.TransactionStatus.IDLE
        if is_sound and not self._closed and len(self._idle) < READERS_IDLE_MAX:
            self._idle.append(connection)
        else:
            connection.close()

    def _writing(self) -> "_Taken":
        if self._closed:
            raise faults.Closed(self.where)
        if self._writer is not None and not self._writer.closed:
            return self._writer, False
        self._writer = connect(self._url, durable=True, by_key=True)
        return self._writer, True

    def _reading(self) -> "_Taken":
        if self._closed:
            raise faults.Closed(self.where)
        with suppress(IndexError):
            return self._idle.pop(), False
        return connect(self._url, by_key=not self._read_only), True

    def _begun(self, take: "Callable[[], _Taken]", begin: str) -> "tuple[psycopg.Connection[Row], psycopg.Cursor[Row]]":
        """A connection in a new transaction, and what the server answered. Connections that died while idle are replaced.

        A writer that waits too long for its turn ends the session of a writer that has stalled.
        """
        while True:
            connection, is_new = take()
            try:
                begun = connection.execute(begin)
            except psycopg.Error as error:
                if connection.closed and not is_new:
                    continue
                if isinstance(error, psycopg.errors.LockNotAvailable) and end_deaf(connection):
                    continue
                connection.close()
                raise meaning(error, self.where) from error
            return connection, begun

    @contextmanager
    def _transaction(self, connection: "psycopg.Connection[Row]", commit: str) -> Iterator[Transaction]:
        transaction = _PostgresTransaction(connection, self.where, self._columns)
        try:
            yield transaction
            self._commit(connection, commit)
        except BaseException:
            with suppress(psycopg.Error):  # the error that brought us here is the one to report
                if _is_open(connection):
                    connection.execute("ROLLBACK")
            if _is_open(connection):
                connection.close()  # otherwise the next statements would join the transaction that was to be undone
            if commit == _COMMIT_WRITE:
                self._columns.clear()  # tables created in the transaction are gone
            raise
        finally:
            transaction.end()

    def _commit(self, connection: "psycopg.Connection[Row]", commit: str) -> None:
        try:
            with _warnings(connection) as warnings:
                connection.execute(commit)
        except psycopg.Error as error:
            if connection.closed and commit == _COMMIT_WRITE:
                raise faults.Unanswered(self.where, str(error).strip()) from error
            raise meaning(error, self.where) from error
        if warnings:  # it is committed here, but somebody ended the wait for the standby that was to have it, too
            raise faults.Unanswered(self.where, warnings[0])

    def _stay_in_process(self) -> None:
        if self._process != os.getpid():  # before any lock: a thread of the parent may have held it at the fork
            raise faults.Forked(self.where)


class _PostgresTransaction:
    def __init__(self, connection: "psycopg.Connection[Row]", where: str, columns: dict[str, dict[str, str]]) -> None:
        self._open: psycopg.Connection[Row] | None = connection
        self._columns = columns
        self.where = where

    def rows(self, statement: str, parameters: Mapping[str, Value] | None = None) -> list[Row]:
        return _fetched(self._execute(statement, parameters))

    def run(self, statement: str, parameters: Mapping[str, Value] | None = None) -> int:
        return max(0, self._execute(statement, parameters).rowcount)

    def insert(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Value]]) -> None:
        values = list(zip(*rows, strict=True))
        if not values:
            return
        types = self._types(table)
        places = ", ".join(f"${number}::{types[column]}[]" for number, column in enumerate(columns, 1))
        names = ", ".join(columns)
        statement = f"INSERT INTO {table} ({names}) SELECT * FROM unnest({places})"  # noqa: S608 - names of ours
        self._send(statement, [list(column) for column in values])

    def lookup(self, statement: str, columns: Sequence[str], wanted: Sequence[Sequence[Value]]) -> list[Row]:
        if not wanted:
            return []
        values = [list(column) for column in zip(*wanted, strict=True)]
        places = ", ".join(f"${number}::{_array(column)}" for number, column in enumerate(values, 1))
        keys = f"WITH wanted ({', '.join(columns)}) AS (SELECT DISTINCT * FROM unnest({places}))"  # noqa: S608 - names of ours
        return _fetched(self._send(f"{keys} {statement}", values))

    def script(self, statements: str) -> None:
        self._send(_OPTIONS.sub(")", _TYPE.sub(lambda found: _TYPES[found[1]], statements)), None)

    def tables(self) -> set[str]:
        found = self.rows("SELECT tablename FROM pg_catalog.pg_tables WHERE schemaname = current_schema()")
        return {str(name) for (name,) in found}

    def size_bytes(self) -> int:
        # The size of the files, with the free room of deleted rows in them: only the server knows how much that is.
        return int(
            self.rows(
                "SELECT coalesce(sum(pg_total_relation_size(oid)), 0) FROM pg_catalog.pg_class"
                " WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace"
            )[0][0]
        )

    def end(self) -> None:
        self._open = None

    def _types(self, table: str) -> dict[str, str]:
        if table not in self._columns:
            found = self.rows(
                "SELECT attname, format_type(atttypid, atttypmod) FROM pg_catalog.pg_attribute"
                " WHERE attrelid = CAST(:name AS regclass) AND attnum > 0",
                {"name": table},
            )
            self._columns[table] = {str(name): str(type_) for name, type_ in found}
        return self._columns[table]

    def _execute(self, statement: str, parameters: Mapping[str, Value] | None) -> "psycopg.Cursor[Row]":
        text, names = _numbered(statement)
        return self._send(text, [(parameters or {})[name] for name in names] if names else None)

    def _send(self, statement: str, values: Sequence[Any] | None) -> "psycopg.Cursor[Row]":
        if self._open is None:
            raise RuntimeError("a transaction was used after its end")
        try:
            return self._open.execute(statement.encode(), values)
        except psycopg.Error as error:
            raise meaning(error, self.where) from error


@lru_cache(maxsize=1024)
def _numbered(statement: str | Statement) -> tuple[str, tuple[str, ...]]:
    """A statement with numbered parameters, and their names in that order."""
    names: dict[str, int] = {}
    text = _PARAMETER.sub(lambda found: f"${names.setdefault(found[1], len(names) + 1)}", _HINT.sub("", statement))
    return text, tuple(names)


def _is_open(connection: "psycopg.Connection[Row]") -> bool:
    """Whether a connection has an open transaction."""
    return not connection.closed and connection.info.transaction_status != pq.TransactionStatus.IDLE


@contextmanager
def _warnings(connection: "psycopg.Connection[Row]") -> Iterator[list[str]]:
    """The warnings that the server gives in the block."""
    found: list[str] = []

    def note(told: psycopg.errors.Diagnostic) -> None:
        if told.severity_nonlocalized == "WARNING":
            found.append(told.message_primary or "")

    connection.add_notice_handler(note)
    try:
        yield found
    finally:
        connection.remove_notice_handler(note)


def _fetched(cursor: "psycopg.Cursor[Row]") -> list[Row]:
    return [] if cursor.description is None else cursor.fetchall()


def _array(values: Sequence[Value]) -> str:
    """The PostgreSQL array type of a column of looked-up keys."""
    first = next((value for value in values if value is not None), "")
    return "bytea[]" if isinstance(first, bytes) else "bigint[]" if isinstance(first, int) else "text[]"
