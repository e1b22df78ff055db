"""On which engine a test runs: with its file, or in a database of PostgreSQL that stands for that very file."""

from contextlib import closing
from pathlib import Path

from holdfast.relay.database import SCHEMA
from holdfast.store import migrations
from holdfast.store.engine import Engine
from holdfast.store.postgres import PostgresEngine
from holdfast.store.sqlite import SqliteEngine
from tests.postgres import Server

SQLITE, POSTGRES = "sqlite", "postgres"

_server: list[Server] = []  # the one in use, while a test runs on PostgreSQL
_databases: dict[Path, str] = {}
_engines: list[PostgresEngine] = []


def use(server: Server | None) -> None:
    """From now on relays keep everything on this server, or in files again."""
    for opened in _engines:
        opened.close()
    _engines.clear()
    _databases.clear()  # they go with the server: to drop one costs a checkpoint of all
    _server[:] = [] if server is None else [server]


def where(path: Path) -> str:
    """Where the database is that a relay has, or would have, in this file."""
    if not _server:
        return str(path)
    if path not in _databases:
        _databases[path] = database(_server[0])
    return _databases[path]


def database(server: Server) -> str:
    """A new database with a relay's tables."""
    return server.database(server.template("relay", _fill))


def engine(path: Path) -> Engine:
    """That database, open."""
    found = where(path)
    if not _server:
        return SqliteEngine(found)
    _engines.append(PostgresEngine(found))
    return _engines[-1]


def url(data: Path) -> str | None:
    """The same as a setting."""
    return where(data / "relay.db") if _server else None


def options(data: Path) -> list[str]:
    """What `holdfast relay` has to be told for it."""
    return ["--store", where(data / "relay.db")] if _server else []


def _fill(url: str) -> None:
    """Tables and nothing in them: every database made of it gets a log id of its own."""
    with closing(PostgresEngine(url)) as made:
        migrations.migrate(made, SCHEMA, lambda: 0)
