"""Salvage: copying the readable rows of a damaged database, from both ends of every table, into a sound one.

Nothing is guessed: a row is read whole or it is lost, and a row that the sound database's own rules refuse is lost too.
"""

from collections.abc import Iterator
from pathlib import Path

import apsw
import msgspec

from holdfast.store.engine import ConstraintViolated, Row, Transaction
from holdfast.store.sqlite import SqliteEngine

_OWN = frozenset({"holdfast_migration"})  # the sound database has its own


class Salvaged(msgspec.Struct, frozen=True):
    """The result for one table; `is_whole` if it could be read from beginning to end."""

    table: str
    rows: int
    is_whole: bool


def salvage(source: Path, target: SqliteEngine) -> list[Salvaged]:
    """Copy all readable rows of a damaged database into a sound one."""
    try:
        damaged = apsw.Connection(str(source), flags=apsw.SQLITE_OPEN_READONLY)
    except apsw.Error:
        damaged = apsw.Connection(":memory:")  # nothing at all can be read: go on with an empty database
    try:
        with target.write() as transaction:
            return [_table(damaged, transaction, table) for table in sorted(transaction.tables() - _OWN)]
    finally:
        damaged.close()


def _table(damaged: apsw.Connection, transaction: Transaction, table: str) -> Salvaged:
    try:
        there = {str(row[1]) for row in damaged.execute(f'PRAGMA table_info("{table}")')}
    except apsw.Error:
        there = set()
    columns = [str(row[1]) for row in transaction.rows(f'PRAGMA table_info("{table}")') if row[1] in there]
    if not columns:
        return Salvaged(table, 0, is_whole=False)
    kept, is_whole = 0, False
    for row in _readable(damaged, table, columns):
        if row is None:
            is_whole = True
            continue
        if not kept:
            transaction.run(f"DELETE FROM {table}")  # noqa: S608 - a table of ours; removes the rows of a new database
        kept += _insert(transaction, table, columns, row)
    return Salvaged(table, kept, is_whole)


def _insert(transaction: Transaction, table: str, columns: list[str], row: Row) -> int:
    marks = ", ".join(f":{column}" for column in columns)
    statement = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks}) ON CONFLICT DO NOTHING"  # noqa: S608 - names of ours
    try:
        return transaction.run(statement, dict(zip(columns, row, strict=True)))
    except ConstraintViolated:
        return 0


def _readable(damaged: apsw.Connection, table: str, columns: list[str]) -> Iterator[Row | None]:
    """Rows from the beginning and, after the first unreadable one, rows from the end. None if the end was reached."""
    wanted = f"SELECT rowid, {', '.join(columns)} FROM {table} ORDER BY rowid"  # noqa: S608 - names of ours
    reached = None
    try:
        for rowid, *row in damaged.execute(wanted):
            reached = rowid
            yield tuple(row)
    except apsw.Error:
        yield from _backwards(damaged, wanted + " DESC", reached)
    else:
        yield None


def _backwards(damaged: apsw.Connection, wanted: str, reached: int | None) -> Iterator[Row]:
    try:
        for rowid, *row in damaged.execute(wanted):
            if reached is not None and rowid <= reached:
                return
            yield tuple(row)
    except apsw.Error:
        return
