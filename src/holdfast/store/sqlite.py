"""SQLite as an engine, through `apsw`, which brings a current SQLite, the only one that our processes load.

A commit has returned only when the write-ahead log is synced (`synchronous` FULL or stricter). Nothing here opens the
database file except SQLite: POSIX drops all of a process's locks on a file when *any* of its descriptors closes, so one
stray `open()` would let another process remove the journal while we use it.
"""

import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from itertools import chain
from pathlib import Path

import apsw

from holdfast.store import faults, files, wal
from holdfast.store.engine import Alone, ConstraintViolated, Row, Transaction, Value, Watch

BUSY_TIMEOUT_S = 10.0
"""How long a transaction waits for another process's transaction, in seconds."""

BUSY_PAUSE_S = 0.002
"""The longest pause between two tries; SQLite's own growing pauses let one process starve another."""

QUICK_CHECK_BYTES_MAX = 268_435_456
"""Up to this size a file is checked whenever it is opened for writing; `holdfast check` does it at any size."""

JOURNAL_CHECK_BYTES_MAX = 33_554_432
"""Up to this size the write-ahead log of a dead process is checked; it is usually an eighth of this at most."""

JOURNAL_LOOKS = 3
JOURNAL_PAUSE_S = 0.1
"""How often, and at which interval, a journal must look damaged to count as such: another process may be writing to it."""

LOOKUP_ROWS = 512
"""How many keys one statement looks up; SQLite limits the values in a statement."""

INSERT_ROWS = 32
"""How many rows one statement inserts at most. More per statement is faster: after each, other threads get their turn."""

STATEMENTS_KEPT = 512
"""How many prepared statements a connection keeps, the most recently used ones."""

LOG_PAGES = 1_000
"""After how many pages (of 4 KiB) the write-ahead log is copied into the file, by default."""

MEMORY = ":memory:"

_ROLLBACK_HEADER = b"\x01\x01"  # bytes 18 and 19 of a file whose last writer used no write-ahead log

# Errors of SQLite and our faults for them. The first match counts.
_FAULTS: tuple[tuple[type[apsw.Error], type[faults.Fault]], ...] = (
    (apsw.BusyError, faults.Busy),
    (apsw.LockedError, faults.Busy),
    (apsw.ProtocolError, faults.Busy),
    (apsw.FullError, faults.DiskFull),
    (apsw.ReadOnlyError, faults.NoAccess),
    (apsw.PermissionsError, faults.NoAccess),
    (apsw.AuthError, faults.NoAccess),
    (apsw.CantOpenError, faults.NoAccess),
    (apsw.NotADBError, faults.NotOurs),
    (apsw.CorruptError, faults.Corrupt),
    (apsw.IOError, faults.DiskFailed),
    (apsw.ConnectionClosedError, faults.Closed),
    (apsw.SQLError, faults.NotUnderstood),
    (apsw.Error, faults.Unexpected),
)


class SqliteEngine:
    """One SQLite file. Writes go through one connection, reads through another, each by one thread at a time."""

    is_shared = False  # a program has its file to itself; the few programs that share one poll it themselves

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        read_only: bool = False,
        vfs: str | None = None,
        exclusive: bool = False,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        journal_mode: str = "wal",
        beside: tuple[str, str] | None = None,
        log_pages: int = LOG_PAGES,
    ) -> None:
        """`beside` is the path of a second file, attached for reading if it exists, and its schema name in SQL.

        `exclusive` keeps the lock all the time and needs no shared memory; for a `vfs` that has none.

        Every connection to a file must use the same kind of journal: `wal`, or a rollback journal such as `truncate`.
        """
        self._is_file = os.fspath(path) != MEMORY and vfs is None
        self.where = os.path.abspath(path) if self._is_file else os.fspath(path)
        self._vfs = vfs
        self._busy_timeout_s = busy_timeout_s
        self._journal_mode = journal_mode
        self._beside = beside
        self._log_pages = log_pages
        self._process = os.getpid()
        self._fatal: faults.Fault | None = None
        self._scratch = "DEFAULT"
        self._write_turn = threading.RLock()
        self._read_turn = threading.RLock()
        # A memory database or an exclusive lock belongs to one connection, which then serves readers too.
        self._alone = exclusive or self.where == MEMORY
        self._reader: apsw.Connection | None = None
        if self._is_file:
            files.find(Path(self.where), create=not read_only)
        self._writer = self._connect(read_only)
        try:
            self._look(read_only, exclusive)
        except BaseException:
            self._writer.close()
            raise

    def prepare(self) -> None:
        """Set the journal mode and `synchronous`, on which durability depends. The file is known to be ours by now."""
        self._look_at_journal()
        if self._is_file and os.stat(self.where).st_size <= QUICK_CHECK_BYTES_MAX:
            self._look_through()
        with self._write_turn:
            # EXTRA is FULL, and also syncs the removal of the rollback journal that the switch to WAL leaves behind:
            # a journal that came back after a power cut would undo everything committed since.
            self._execute(self._writer, "PRAGMA synchronous=EXTRA; PRAGMA fullfsync=ON; PRAGMA checkpoint_fullfsync=ON")
            self._execute(self._writer, f"PRAGMA journal_mode={self._journal_mode}")
            self._execute(self._writer, f"PRAGMA wal_autocheckpoint={self._log_pages}")
            self._begin_journal()

    def write(self, *, brief: bool = False) -> AbstractContextManager[Transaction]:
        return self._write("MEMORY" if brief else "FILE")

    def read(self) -> AbstractContextManager[Transaction]:
        return self._read()

    def watch(self, told: Callable[[], None]) -> Watch:
        return Alone()

    def damage(self) -> list[str]:
        found = self._journal_damage(None)
        return [*([] if found is None else [found]), *self._damage("PRAGMA integrity_check")]

    def backup(self, path: str | os.PathLike[str]) -> None:
        """Copy a consistent state of the database into a new file, while readers and writers go on."""
        self._stay_in_process()
        target_path = os.path.abspath(path)
        files.create(Path(target_path))
        source = self._writer if self._alone else self._connect(read_only=True)
        try:
            target = apsw.Connection(target_path, flags=apsw.SQLITE_OPEN_READWRITE)
            try:
                with target.backup("main", source, "main") as copying:
                    copying.step()
                self._execute(target, "PRAGMA journal_mode=DELETE")  # so that the copy is a single file
            finally:
                target.close()
        except apsw.Error as error:
            raise _meaning(error, target_path) from error
        finally:
            if source is not self._writer:
                source.close()

    def settle(self) -> None:
        """Bring everything into the one file, so that it may be moved by itself. Closing would not say that it failed to."""
        with self._write_turn, self._read_turn:
            if self._reader is not None:
                self._reader.close()
                self._reader = None
            self._execute(self._writer, "PRAGMA journal_mode=DELETE")

    def close(self) -> None:
        if self._process != os.getpid():
            return  # these are the parent's connections
        with self._write_turn, self._read_turn:
            try:
                if self._reader is not None:
                    self._reader.close()
                self._writer.close()
            except apsw.Error as error:
                raise _meaning(error, self.where) from error

    def _connect(self, read_only: bool) -> apsw.Connection:
        mode = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE
        if not self._is_file:
            mode |= apsw.SQLITE_OPEN_CREATE
        try:
            connection = apsw.Connection(self.where, mode, self._vfs, STATEMENTS_KEPT)
            if self._is_file:
                files.remember(self.where, connection)
            connection.set_busy_handler(_BusyHandler(self._busy_timeout_s))
            connection.execute("PRAGMA foreign_keys=ON; PRAGMA trusted_schema=OFF; PRAGMA cell_size_check=ON")
            if self._beside is not None:
                with suppress(apsw.Error):  # a statement that needs the attached file reports it; others can go on
                    connection.execute(f"ATTACH ? AS {self._beside[1]}", (self._beside[0],))
        except apsw.Error as error:
            raise _meaning(error, self.where) from error
        return connection

    def _look(self, read_only: bool, exclusive: bool) -> None:
        """Read before setting anything: a file that is no database must be refused unchanged."""
        if self._is_file:
            self._check_journal()
        if exclusive:
            self._execute(self._writer, "PRAGMA locking_mode=EXCLUSIVE")
        self._execute(self._writer, "SELECT count(*) FROM sqlite_schema")
        if not read_only and self._writer.readonly("main"):
            raise faults.NoAccess(self.where)

    def _check_journal(self) -> None:
        """Refuse a journal that belongs to another file: SQLite would silently play it into this one."""
        with suppress(OSError):
            if os.stat(f"{self.where}-wal").st_size > 0 and self._header()[18:20] == _ROLLBACK_HEADER:
                raise faults.StaleJournal(self.where)

    def _header(self) -> bytes:
        """The file's first bytes, read through SQLite's own file layer, so that closing it drops no locks."""
        try:
            file = apsw.VFSFile("", self.where, [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY, 0])
            try:
                return file.xRead(100, 0)
            finally:
                file.xClose()
        except apsw.Error as error:
            raise _meaning(error, self.where) from error

    def _look_at_journal(self) -> None:
        """Refuse a file whose damaged journal would make SQLite silently drop commits."""
        found = self._journal_damage(JOURNAL_CHECK_BYTES_MAX)
        if found is not None:
            raise faults.Corrupt(self.where, found)

    def _begin_journal(self) -> None:
        """Checkpoint the write-ahead log that a dead process left, so that no half transaction stays in it."""
        if self._journal_mode == "wal":
            self._writer.set_busy_handler(None)  # no waiting: if others use the file, they have done this already
            with suppress(faults.Busy, faults.DiskFull):  # on a full disk it is done later, when there is room
                self._execute(self._writer, "PRAGMA wal_checkpoint(TRUNCATE)")
            self._writer.set_busy_handler(_BusyHandler(self._busy_timeout_s))

    def _journal_damage(self, bytes_max: int | None) -> str | None:
        """The damage of the write-ahead log, if it shows at every look and not only while another process writes to it."""
        found = None
        for look in range(JOURNAL_LOOKS):
            time.sleep(JOURNAL_PAUSE_S if look else 0)
            found, before = self._read_journal(bytes_max), found
            if found is None or (look and found != before):
                return None
        return found

    def _read_journal(self, bytes_max: int | None) -> str | None:
        if self.where == MEMORY:
            return None
        try:
            file = apsw.VFSFile(
                self._vfs or "", f"{self.where}-wal", [apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_READONLY, 0]
            )
        except apsw.Error:
            return None  # there is none
        try:
            size = file.xFileSize()
            return wal.damage(file.xRead, size) if bytes_max is None or size <= bytes_max else None
        except apsw.Error as error:
            raise _meaning(error, self.where) from error
        finally:
            file.xClose()

    def _look_through(self) -> None:
        found = self._damage("PRAGMA quick_check(1)")
        if found:
            raise faults.Corrupt(self.where, found[0])

    def _damage(self, pragma: str) -> list[str]:
        try:
            with self._looking() as transaction:
                lines = [str(line) for (line,) in transaction.rows(pragma)]
        except faults.Corrupt as fault:
            return [fault.detail]
        return [] if lines == ["ok"] else lines

    @contextmanager
    def _write(self, scratch: str) -> Iterator[Transaction]:
        self._stay_in_process()
        with self._write_turn:
            if self._fatal is not None:
                raise self._fatal.again()
            self._keep_scratch_in(scratch)
            with self._remembering(), self._transaction(self._writer, "BEGIN IMMEDIATE") as transaction:
                yield transaction

    def _keep_scratch_in(self, scratch: str) -> None:
        """Choose where statement journals go: those of a brief transaction fit into memory and need no file."""
        if self._scratch != scratch:
            self._execute(self._writer, f"PRAGMA temp_store={scratch}")
            self._scratch = scratch

    @contextmanager
    def _read(self) -> Iterator[Transaction]:
        self._stay_in_process()
        with self._write_turn if self._alone else self._read_turn:
            if self._reader is None and not self._alone:
                self._reader = self._connect(read_only=True)
            with self._remembering(), self._transaction(self._reader or self._writer, "BEGIN") as transaction:
                yield transaction

    @contextmanager
    def _looking(self) -> Iterator[Transaction]:
        """A read transaction to check the file itself, on a connection that could write but is set to query_only.

        On a read-only connection SQLite does not check the constraints of columns.
        """
        self._stay_in_process()
        if self._alone or self._has_rollback_journal():
            with self._read() as transaction:
                yield transaction
            return
        connection = self._connect(read_only=False)
        try:
            self._execute(connection, "PRAGMA query_only=ON")
            with self._remembering(), self._transaction(connection, "BEGIN") as transaction:
                yield transaction
        finally:
            connection.close()

    def _has_rollback_journal(self) -> bool:
        """Whether a transaction is under way or was left by a dead process; a connection that may write would undo it."""
        try:
            return os.stat(f"{self.where}-journal").st_size > 0
        except FileNotFoundError:
            return False

    @contextmanager
    def _remembering(self) -> Iterator[None]:
        """Remember a fatal fault raised in the block, after which nothing more is written."""
        try:
            yield
        except faults.Fault as fault:
            if fault.fatal:
                self._fatal = fault
            raise

    @contextmanager
    def _transaction(self, connection: apsw.Connection, begin: str) -> Iterator[Transaction]:
        transaction = _SqliteTransaction(connection, self.where)
        try:
            self._execute(connection, begin)
            yield transaction
            self._execute(connection, "COMMIT")
        except BaseException:
            with suppress(apsw.Error):  # the error that brought us here is the one to report
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            raise
        finally:
            transaction.end()

    def _execute(self, connection: apsw.Connection, statements: str) -> None:
        try:
            for _ in connection.execute(statements):
                pass
        except apsw.Error as error:
            raise _meaning(error, self.where) from error

    def _stay_in_process(self) -> None:
        if self._process != os.getpid():  # before any lock: a thread of the parent may have held it at the fork
            raise faults.Forked(self.where)


class _SqliteTransaction:
    def __init__(self, connection: apsw.Connection, where: str) -> None:
        self._open: apsw.Connection | None = connection
        self.where = where

    def rows(self, statement: str, parameters: Mapping[str, Value] | None = None) -> list[Row]:
        return self._rows(statement, parameters)

    def _rows(self, statement: str, parameters: Mapping[str, Value] | Sequence[Value] | None) -> list[Row]:
        try:
            return list(self._connection.execute(statement, parameters))
        except apsw.Error as error:
            raise _meaning(error, self.where) from error
        except UnicodeDecodeError as error:
            raise faults.Corrupt(self.where, f"a text is not UTF-8: {error}") from error

    def run(self, statement: str, parameters: Mapping[str, Value] | None = None) -> int:
        before = self._connection.total_changes()
        self.rows(statement, parameters)
        # `changes` leaves out what triggers did, but still has the count of an earlier statement if this one changed nothing.
        return self._connection.changes() if self._connection.total_changes() != before else 0

    def insert(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Value]]) -> None:
        left, start = list(rows), 0
        try:
            while start < len(left):
                # Powers of two, so that a few statements serve every number and stay prepared.
                size = min(INSERT_ROWS, 1 << ((len(left) - start).bit_length() - 1))
                values = list(chain.from_iterable(left[start : start + size]))
                self._connection.execute(_inserting(table, tuple(columns), size), values)
                start += size
        except apsw.Error as error:
            raise _meaning(error, self.where) from error

    def lookup(self, statement: str, columns: Sequence[str], wanted: Sequence[Sequence[Value]]) -> list[Row]:
        found: list[Row] = []
        for start in range(0, len(wanted), LOOKUP_ROWS):
            found += self._lookup(statement, columns, wanted[start : start + LOOKUP_ROWS])
        return found

    def _lookup(self, statement: str, columns: Sequence[str], wanted: Sequence[Sequence[Value]]) -> list[Row]:
        # Padded to a power of two, so that a few statements serve every size and stay prepared.
        size = 1 << (len(wanted) - 1).bit_length()
        rows = [*wanted, *[wanted[-1]] * (size - len(wanted))]
        return self._rows(_looking_up(statement, tuple(columns), size), [value for row in rows for value in row])

    def script(self, statements: str) -> None:
        self.rows(statements)

    def tables(self) -> set[str]:
        return {name for (name,) in self.rows("SELECT name FROM sqlite_schema WHERE type = 'table'")}

    def size_bytes(self) -> int:
        pragmas = ("page_count", "freelist_count", "page_size")
        pages, free, page_bytes = (int(self.rows(f"PRAGMA {name}")[0][0]) for name in pragmas)
        return (pages - free) * page_bytes  # not the file's size: it does not shrink when rows are deleted

    def end(self) -> None:
        self._open = None

    @property
    def _connection(self) -> apsw.Connection:
        if self._open is None:
            raise RuntimeError("a transaction was used after its end")
        return self._open


@cache  # at most six per table
def _inserting(table: str, columns: tuple[str, ...], size: int) -> str:
    places = ", ".join([f"({', '.join('?' * len(columns))})"] * size)
    # OR FAIL: a broken constraint ends the whole transaction anyway, so SQLite need not prepare to undo this statement alone.
    return f"INSERT OR FAIL INTO {table} ({', '.join(columns)}) VALUES {places}"  # noqa: S608 - names of ours


@cache  # at most ten per statement
def _looking_up(statement: str, columns: tuple[str, ...], size: int) -> str:
    places = ", ".join([f"({', '.join('?' * len(columns))})"] * size)
    keys = f"WITH wanted ({', '.join(columns)}) AS (SELECT DISTINCT * FROM (VALUES {places}))"  # noqa: S608 - names of ours
    return f"{keys} {statement}"


class _BusyHandler:
    """Waits for another process's transaction in short random pauses, so that no process starves."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._since = 0.0

    def __call__(self, prior: int) -> bool:
        now = time.monotonic()
        if prior == 0:
            self._since = now
        if now - self._since >= self._timeout_s:
            return False
        time.sleep(random.uniform(0, BUSY_PAUSE_S))  # noqa: S311 - nothing secret about a pause
        return True


def _meaning(error: apsw.Error, where: str) -> Exception:
    """Our exception for an error of SQLite."""
    if isinstance(error, apsw.ConstraintError):
        return ConstraintViolated(str(error))
    fault = next(fault for kind, fault in _FAULTS if isinstance(error, kind))
    # The extended code says more, such as at which call the disk failed.
    exact = apsw.mapping_extended_result_codes.get(getattr(error, "extendedresult", 0))
    return fault(where, f"{error}, {exact}" if isinstance(exact, str) else str(error))
