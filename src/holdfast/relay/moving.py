"""Moving a relay's database from its file to a server: everything or nothing, compared row by row before the commit.

The history continues under the same log id, so the file must not be used any more: it is renamed, and a directory with the
renamed file runs a relay only with its store. All rows are written in one transaction, in which they are read back,
counted, and checked by all rules and along the chain. An interrupted move is simply repeated.
"""

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import msgspec

from holdfast.protocol.history import LOG_ID_BYTES
from holdfast.relay import neighbours
from holdfast.relay.database import SCHEMA, engine_at, open_relay, prepare
from holdfast.relay.identity import DATABASE, MOVED, Identity
from holdfast.relay.lock import RelayRunning, hold
from holdfast.store import faults, history, migrations
from holdfast.store.check import check
from holdfast.store.engine import Engine, Row, Transaction, Watch
from holdfast.store.files import sync_directory
from holdfast.store.sqlite import SqliteEngine
from holdfast.store.world import Clock, Random, wall_clock

PAGE_ROWS = 500
"""How many rows are copied at once."""

PAGE_BLOCKS = 16
"""How many blocks of the server's file are read back at once."""

_OWN = frozenset({"holdfast_migration"})  # the new database has its own
_BEGUN = ("history_head", "forgotten", "feed")  # tables that have a row in a new database; it is replaced

Progress = Callable[[str, int, int], None]
"""Called with the table, how many rows of all were copied or compared, and the total of such steps."""


class StoreOccupied(faults.Fault):
    what = "there is a relay's history in this database already; nothing was changed"
    remedy = "Name an empty database."


class MoveBroken(faults.Fault):
    what = "what arrived is not what was sent, or breaks a rule; nothing was changed"
    remedy = "Run `holdfast check` on the file. If that is sound, please report this."


class Moved(msgspec.Struct, frozen=True):
    """The result of a move: the end of the history, and how many rows each table has."""

    log_id: str
    seq: int
    chain: str
    rows: dict[str, int]  # by table


def move(data: Path, store: str, told: Progress = lambda table, done, total: None) -> Moved:
    """Move the relay of a directory, which must not run, into an empty database."""
    with hold(data):
        if not (data / DATABASE).exists():
            raise faults.FileMissing(str(data / DATABASE))
        pubkey = Identity.read(data).pubkey
        with closing(open_relay(data / DATABASE)) as source, _opened(store, pubkey, wall_clock, os.urandom) as target:
            moved = _moved(source, target, pubkey, told)
        (data / DATABASE).rename(data / MOVED)
        sync_directory(data)
    return moved


def fork(store: str, pubkey: str, *, clock: Clock = wall_clock, random: Random = os.urandom) -> tuple[str, int]:
    """Continue a database that was restored to an earlier moment under a new log id; returns that id and its first position."""
    with closing(engine_at(store, read_only=True)) as engine:
        if migrations.version(engine, SCHEMA.program) == 0:
            raise faults.NotOurs(engine.where, "it is empty")
    with _opened(store, pubkey, clock, random) as engine, engine.write() as transaction:
        history.fork(transaction, clock(), random(LOG_ID_BYTES))
        head = history.head(transaction)
    return head.log_id.hex(), head.seq


@contextmanager
def _opened(store: str, pubkey: str, clock: Clock, random: Random) -> Iterator[Engine]:
    """A database on which no relay runs and that is no other relay's; only then is it brought up to date."""
    with closing(engine_at(store)) as engine, alone_on(engine):
        neighbours.refuse_other(engine, pubkey)
        prepare(engine, clock, random)
        yield engine


@contextmanager
def alone_on(engine: Engine) -> Iterator[Watch]:
    """Hold the duty lock of a shared database, or raise RelayRunning: any running relay holds it."""
    watch = engine.watch(lambda: None)
    try:
        if not watch.wait_for_duty():
            raise RelayRunning(engine.where)
        yield watch
    finally:
        watch.close()


def _moved(source: SqliteEngine, target: Engine, pubkey: str, told: Progress) -> Moved:
    with source.read() as there:
        head = history.head(there)
        columns = {table: _columns(there, table) for table in sorted(there.tables() - _OWN)}
        counts = {table: _count(there, table) for table in columns}
        with target.write() as here:
            # The rows were moved before, and only the file is still to be renamed.
            if history.head(here) == head and head.seq > 0:
                return Moved(head.log_id.hex(), head.seq, head.chain.hex(), counts)
            _refuse_occupied(here, columns)
            carrying = _Carrying(there, here, columns, 2 * sum(counts.values()), told)
            carrying.carry()
            _compare(here, head, counts)
            neighbours.claim_key(here, pubkey)
    return Moved(head.log_id.hex(), head.seq, head.chain.hex(), counts)


class _Carrying:
    """Copies tables from one database to the other, and compares the sums of their rows' hashes."""

    def __init__(
        self, there: Transaction, here: Transaction, columns: dict[str, list[str]], steps: int, told: Progress
    ) -> None:
        self._there = there
        self._here = here
        self._columns = columns
        self._steps = steps
        self._told = told
        self._done = 0

    def carry(self) -> None:
        for table in _BEGUN:
            self._here.run(f"DELETE FROM {table}")  # noqa: S608 - names of ours
        for table, columns in self._columns.items():
            sent = self._sum(table, self._send(table, columns))
            arrived = self._sum(table, read_back(self._here, table, columns))
            if sent != arrived:
                raise MoveBroken(self._here.where, f"table {table}")

    def _send(self, table: str, columns: list[str]) -> Iterator[list[Row]]:
        key = _key(self._there, table)
        order, names = ", ".join(key), ", ".join(columns)
        marks = ", ".join(f":after_{name}" for name in key)
        statement = f"SELECT {order}, {names} FROM {table} {{0}} ORDER BY {order} LIMIT :limit"  # noqa: S608 - names of ours
        page = self._there.rows(statement.format(""), {"limit": PAGE_ROWS})
        while page:
            rows = [row[len(key) :] for row in page]
            self._here.insert(table, columns, rows)
            yield rows
            after = {f"after_{name}": value for name, value in zip(key, page[-1], strict=False)}
            page = self._there.rows(statement.format(f"WHERE ({order}) > ({marks})"), {**after, "limit": PAGE_ROWS})

    def _sum(self, table: str, pages: Iterator[list[Row]]) -> int:
        """The sum of the rows' hashes: the same for the same rows, in whatever order they come."""
        total = 0
        for page in pages:
            for row in page:
                total += int.from_bytes(hashlib.sha256(msgspec.msgpack.encode(row)).digest(), "big")
            self._done += len(page)
            self._told(table, self._done, self._steps)
        return total


def read_back(here: Transaction, table: str, columns: list[str]) -> Iterator[list[Row]]:
    """The rows of a table on the server in physical order, some blocks at a time; any other order would be sorted per page."""
    names = ", ".join(columns)
    statement = f"SELECT {names} FROM {table} WHERE ctid >= CAST(:first AS tid) AND ctid < CAST(:end AS tid)"  # noqa: S608 - names of ours
    size = "SELECT pg_relation_size(CAST(:name AS regclass)) / CAST(current_setting('block_size') AS bigint)"
    ((blocks,),) = here.rows(size, {"name": table})
    for first in range(0, blocks, PAGE_BLOCKS):
        yield here.rows(statement, {"first": f"({first},0)", "end": f"({first + PAGE_BLOCKS},0)"})


def _key(there: Transaction, table: str) -> list[str]:
    """The columns to order a table's rows by: the rowid, or the primary key of a table without one."""
    if there.rows("SELECT 1 FROM pragma_table_list WHERE name = :table AND NOT wr", {"table": table}):
        return ["rowid"]
    found = there.rows("SELECT name FROM pragma_table_info(:table) WHERE pk > 0 ORDER BY pk", {"table": table})
    return [str(name) for (name,) in found]


class _Within:
    """An engine whose reads run inside an open transaction, so that checks can run before the commit."""

    is_shared = True

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self.where = transaction.where

    @contextmanager
    def _read(self) -> Iterator[Transaction]:
        yield self._transaction

    def read(self) -> AbstractContextManager[Transaction]:
        return self._read()

    def write(self, *, brief: bool = False) -> AbstractContextManager[Transaction]:
        raise NotImplementedError

    def prepare(self) -> None:
        raise NotImplementedError

    def watch(self, told: Callable[[], None]) -> Watch:
        raise NotImplementedError

    def damage(self) -> list[str]:
        return []  # all rows were just read

    def close(self) -> None:
        pass


def _compare(here: Transaction, head: history.Head, counts: dict[str, int]) -> None:
    for table, count in counts.items():
        found = _count(here, table)
        if found != count:
            raise MoveBroken(here.where, f"table {table} has {found} rows, not {count}")
    if history.head(here) != head:
        raise MoveBroken(here.where, "the history ends elsewhere")
    findings = list(check(_Within(here), SCHEMA))
    if findings:
        raise MoveBroken(here.where, "; ".join(f"{finding.check}: {finding.found}" for finding in findings[:3]))


def _refuse_occupied(here: Transaction, tables: dict[str, list[str]]) -> None:
    if history.head(here).seq > 0:
        raise StoreOccupied(here.where)
    for table in tables:
        if table not in _BEGUN and _count(here, table):
            raise StoreOccupied(here.where, f"table {table} is not empty")


def _columns(there: Transaction, table: str) -> list[str]:
    return [str(row[1]) for row in there.rows(f'PRAGMA table_info("{table}")')]


def _count(transaction: Transaction, table: str) -> int:
    return int(transaction.rows(f"SELECT count(*) FROM {table}")[0][0])  # noqa: S608 - names of ours
