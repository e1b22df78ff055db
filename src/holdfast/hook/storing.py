"""How the receiver stores: one row in the hook database, or one line in the spool when that cannot be had at once.

A rollback journal is truncated and synced at each commit (`synchronous` EXTRA), so a
commit that returned stays.
"""

import os

from holdfast.hook import plain_sqlite, spool
from holdfast.hook.layout import DATABASE_NAME, JOURNAL_MODE, PROGRAM, STEPS

BUSY_S = 0.25  # for other writers; then the spool takes it
OWNER_ONLY = 0o077  # what others may not do with a file that is made here

EVENT = "insert_event"
DROPPED = "count_dropped"

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_MIGRATIONS = os.path.join(os.path.dirname(_FOLDER), "store", "migrations.sql")


def store(home: str, statement: str, values: dict[str, object]) -> str:
    """Have an event, or the count of a dropped one, on disk; says where. Raises if there is no way to."""
    os.umask(OWNER_ONLY)
    is_direct = spool.is_empty(home)
    if is_direct:
        try:
            return _insert(home, statement, values)
        except plain_sqlite.Error:
            pass  # busy, full, damaged, older or newer than we are: whatever it is, the spool can wait for its end
    try:
        _make_home(home)
        spool.append(home, {"statement": statement, "values": values})
    except OSError:
        if is_direct:
            raise
        return _insert(home, statement, values)  # rather before its time than not at all
    return "spooled"


def _insert(home: str, statement: str, values: dict[str, object]) -> str:
    path = f"{home}/{DATABASE_NAME}"
    is_new = not os.path.exists(path)
    if is_new:
        _make_home(home)
    connection = plain_sqlite.connect(path, timeout=BUSY_S, isolation_level=None)
    try:
        connection.execute("PRAGMA synchronous=EXTRA")
        connection.execute("PRAGMA fullfsync=ON")
        connection.execute(f"PRAGMA journal_mode={JOURNAL_MODE}")
        if is_new or not connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone():
            _create(connection, values["received_at"])
        text = _statements(os.path.join(_FOLDER, "receiving.sql"))[statement]
        return "stored" if connection.execute(text, values).rowcount else "repeated"
    finally:
        connection.close()


def _create(connection: plain_sqlite.Connection, at: object) -> None:
    """The tables as the daemon would make them; another receiver may be at it, too."""
    ours = _statements(_MIGRATIONS)
    connection.execute("BEGIN IMMEDIATE")
    if not connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone():
        connection.execute(ours["create"])
        for number, name in enumerate(STEPS, start=1):
            for part in _text(os.path.join(_FOLDER, "schema", f"{name}.sql")).split(";\n"):
                connection.execute(part)
            values = {"version": number, "program": PROGRAM, "name": name, "applied_at": at}
            connection.execute(ours["record"], values)
    connection.execute("COMMIT")


def _make_home(home: str) -> None:
    try:
        os.mkdir(home, 0o700)
    except FileExistsError:
        return
    descriptor = os.open(os.path.dirname(home) or ".", os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _statements(path: str) -> dict[str, str]:
    """The statements of a file by name, read without the store's own reader, which would cost more than the commit."""
    parts = _text(path).split("-- name: ")[1:]
    return {part.partition("\n")[0]: part.partition("\n")[2] for part in parts}


def _text(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()
