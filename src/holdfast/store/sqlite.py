"""SQLite as an engine, through `apsw`, whose SQLite is current and is the only one that our processes load.

A commit has returned only when the write-ahead log is synced (`synchronous` FULL or stricter). Nothing here opens the database file
except SQLite: POSIX drops all of a process's locks on a file when *any* of its descriptors closes, so one stray `open()`
would let another process take the journal away from under us.
"""

import errno
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import apsw

from holdfast.store import faults
from holdfast.store.engine import ConstraintViolated, NotUnderstood, Row, Transaction, Value

BUSY_TIMEOUT_S = 10.0
"""How long a transaction waits for another process's, in seconds."""

MEMORY = ":memory:"

# Each error of SQLite by what it means for whoever asked. Order matters: the first match counts.
_FAULTS: tuple[tuple[type[apsw.Error], type[faults.Fault]], ...] = (
    (apsw.BusyError, faults.Busy),
    (apsw.LockedError, faults.Busy),
    (apsw.FullError, faults.DiskFull),
    (apsw.ReadOnlyError, faults.NoAccess),
    (apsw.PermissionsError, faults.NoAccess),
    (apsw.AuthError, faults.NoAccess),
    (apsw.CantOpenError, faults.NoAccess),
    (apsw.NotADBError, faults.NotOurs),
    (apsw.CorruptError, faults.Corrupt),
    (apsw.IOError, faults.DiskFailed),
    (apsw.ProtocolError, faults.Busy),
    (apsw.ConnectionClosedError, faults.Closed),
)


class SqliteEngine:
    """One SQLite file. Writes go through one connection, reads through another, each by one thread at a time."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        read_only: bool = False,
        vfs: str | None = None,
        exclusive: bool = False,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
    ) -> None:
        """`exclusive` keeps the lock and needs no shared memory: for a `vfs` that has none."""
        self.where = os.fspath(path)
        self._vfs = vfs
        self._busy_timeout_s = busy_timeout_s
        self._process = os.getpid()
        self._fatal: faults.Fault | None = None
        self._write_turn = threading.RLock()
        self._read_turn = threading.RLock()
        # A memory database and an exclusive lock belong to one connection, which then serves readers too.
        self._alone = exclusive or self.where == MEMORY
        self._reader: apsw.Connection | None = None
        if self.where != MEMORY and vfs is None:
            _find(Path(self.where), create=not read_only)
        self._writer = self._connect(read_only)
        try:
            self._look(read_only, exclusive)
        except BaseException:
            self._writer.close()
            raise

    def prepare(self) -> None:
        """Switch the file to the journal and the syncing that our promises rest on; it is known to be ours by now."""
        with self._write_turn:
            # EXTRA is FULL, and also syncs the removal of the rollback journal that the switch to WAL leaves behind:
            # a journal that came back after a power cut would undo everything committed since.
            self._execute(self._writer, "PRAGMA synchronous=EXTRA; PRAGMA fullfsync=ON; PRAGMA checkpoint_fullfsync=ON")
            self._execute(self._writer, "PRAGMA journal_mode=WAL")

    def write(self) -> AbstractContextManager[Transaction]:
        return self._write()

    def read(self) -> AbstractContextManager[Transaction]:
        return self._read()

    def damage(self) -> list[str]:
        with self.read() as transaction:
            try:
                lines = [str(line) for (line,) in transaction.rows("PRAGMA integrity_check")]
            except faults.Corrupt as fault:
                return [fault.detail]
        return [] if lines == ["ok"] else lines

    def backup(self, path: str | os.PathLike[str]) -> None:
        """Copy the database, as one moment saw it, into a new file. Writers may go on meanwhile."""
        target_path = Path(path)
        _create(target_path)
        with self._read(), self._read_turn:
            target = apsw.Connection(str(target_path), flags=apsw.SQLITE_OPEN_READWRITE)
            try:
                with target.backup("main", self._reader or self._writer, "main") as copying:
                    copying.step()
                self._execute(target, "PRAGMA journal_mode=DELETE")  # one file that can be carried away
            except apsw.Error as error:
                raise _meaning(error, str(target_path)) from error
            finally:
                target.close()

    def close(self) -> None:
        with self._write_turn, self._read_turn:
            if self._process != os.getpid():
                return  # these are the parent's connections: closing them here could remove its journal
            try:
                if self._reader is not None:
                    self._reader.close()
                self._writer.close()
            except apsw.Error as error:
                raise _meaning(error, self.where) from error

    def _connect(self, read_only: bool) -> apsw.Connection:
        mode = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE
        if self._vfs is not None or self.where == MEMORY:
            mode |= apsw.SQLITE_OPEN_CREATE
        try:
            connection = apsw.Connection(self.where, flags=mode, vfs=self._vfs)
        except apsw.Error as error:
            raise _meaning(error, self.where) from error
        connection.set_busy_timeout(round(self._busy_timeout_s * 1000))
        return connection

    def _look(self, read_only: bool, exclusive: bool) -> None:
        """Read before anything is set: a file that is no database must be refused unchanged."""
        if exclusive:
            self._execute(self._writer, "PRAGMA locking_mode=EXCLUSIVE")
        self._execute(self._writer, "SELECT count(*) FROM sqlite_schema")
        self._execute(self._writer, "PRAGMA foreign_keys=ON; PRAGMA trusted_schema=OFF; PRAGMA cell_size_check=ON")
        if not read_only and self._writer.readonly("main"):
            raise faults.NoAccess(self.where)

    @contextmanager
    def _write(self) -> Iterator[Transaction]:
        with self._write_turn:
            self._stay_in_process()
            if self._fatal is not None:
                raise self._fatal.again()
            try:
                with self._transaction(self._writer, "BEGIN IMMEDIATE") as transaction:
                    yield transaction
            except faults.Fault as fault:
                if fault.fatal:
                    self._fatal = fault
                raise

    @contextmanager
    def _read(self) -> Iterator[Transaction]:
        with self._write_turn if self._alone else self._read_turn:
            self._stay_in_process()
            if self._reader is None and not self._alone:
                self._reader = self._connect(read_only=True)
            with self._transaction(self._reader or self._writer, "BEGIN") as transaction:
                yield transaction

    @contextmanager
    def _transaction(self, connection: apsw.Connection, begin: str) -> Iterator[Transaction]:
        try:
            self._execute(connection, begin)
            yield _SqliteTransaction(connection, self.where)
            self._execute(connection, "COMMIT")
        except BaseException:
            with suppress(apsw.Error):  # the error that brought us here is the one to report
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            raise

    def _execute(self, connection: apsw.Connection, statements: str) -> None:
        try:
            for _ in connection.execute(statements):
                pass
        except apsw.Error as error:
            raise _meaning(error, self.where) from error

    def _stay_in_process(self) -> None:
        if self._process != os.getpid():
            raise faults.Forked(self.where)


class _SqliteTransaction:
    def __init__(self, connection: apsw.Connection, where: str) -> None:
        self._connection = connection
        self.where = where

    def rows(self, statement: str, parameters: Mapping[str, Value] | None = None) -> list[Row]:
        try:
            return list(self._connection.execute(statement, parameters))
        except apsw.Error as error:
            raise _meaning(error, self.where) from error

    def run(self, statement: str, parameters: Mapping[str, Value] | None = None) -> int:
        before = self._connection.total_changes()
        self.rows(statement, parameters)
        return self._connection.total_changes() - before

    def insert(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Value]]) -> None:
        places = ", ".join("?" * len(columns))
        statement = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places})"  # noqa: S608 - names of ours
        try:
            self._connection.executemany(statement, rows)
        except apsw.Error as error:
            raise _meaning(error, self.where) from error

    def lookup(self, statement: str, columns: Sequence[str], wanted: Sequence[Sequence[Value]]) -> list[Row]:
        if not wanted:
            return []
        # Filled up to a power of two, so that a few statements serve every size and stay prepared.
        size = 1 << (len(wanted) - 1).bit_length()
        rows = [*wanted, *[wanted[-1]] * (size - len(wanted))]
        places = ", ".join([f"({', '.join('?' * len(columns))})"] * size)
        keys = f"WITH wanted ({', '.join(columns)}) AS (SELECT DISTINCT * FROM (VALUES {places}))"
        try:
            return list(self._connection.execute(f"{keys} {statement}", [value for row in rows for value in row]))
        except apsw.Error as error:
            raise _meaning(error, self.where) from error

    def script(self, statements: str) -> None:
        self.rows(statements)

    def tables(self) -> set[str]:
        return {name for (name,) in self.rows("SELECT name FROM sqlite_schema WHERE type = 'table'")}


def _meaning(error: apsw.Error, where: str) -> Exception:
    """What an error of SQLite means to whoever asked; a mistake of ours stays as it is."""
    if isinstance(error, apsw.ConstraintError):
        return ConstraintViolated(str(error))
    if isinstance(error, apsw.SQLError):
        return NotUnderstood(f"{where}: {error}")
    for kind, fault in _FAULTS:
        if isinstance(error, kind):
            return fault(where, str(error))
    return error


def _find(path: Path, *, create: bool) -> None:
    """Tell a wrong path apart from a broken file before SQLite, which calls both 'unable to open'."""
    if not path.parent.is_dir():
        raise faults.DirectoryMissing(str(path))
    if path.is_dir():
        raise faults.NotOurs(str(path), "it is a directory")
    if not path.exists():
        if not create:
            raise faults.FileMissing(str(path))
        with suppress(faults.FileThere):  # another process was faster
            _create(path)


def _create(path: Path) -> None:
    """Make an empty file that only its owner can read, its name durable; the journal takes over its mode."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        sync_directory(path.parent)
    except OSError as error:
        raise _CREATION.get(error.errno, faults.DiskFailed)(str(path), error.strerror or "") from error


_CREATION: dict[int | None, type[faults.Fault]] = {
    errno.EEXIST: faults.FileThere,
    errno.ENOENT: faults.DirectoryMissing,
    errno.EACCES: faults.NoAccess,
    errno.EPERM: faults.NoAccess,
    errno.EROFS: faults.NoAccess,
    errno.ENOSPC: faults.DiskFull,
    errno.EDQUOT: faults.DiskFull,
}


def sync_directory(directory: Path) -> None:
    """Make the names in a directory as durable as the files' contents."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
