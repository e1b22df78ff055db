"""The relay's database: its schema, and opening it."""

import os
from pathlib import Path
from typing import overload

from holdfast.protocol.history import LOG_ID_BYTES
from holdfast.relay import feed_check, message_check
from holdfast.store import history, migrations
from holdfast.store.address import is_url
from holdfast.store.engine import Engine
from holdfast.store.migrations import Migration, Schema
from holdfast.store.sqlite import SqliteEngine
from holdfast.store.statements import Statements
from holdfast.store.world import Clock, Random, wall_clock

EXPORT_READER = "holdfast.relay.exported"
"""The module that reads for the export; only its name, because importing it loads Arrow."""

LOG_PAGES = 4_000
"""Pages in the write-ahead log, 16 MiB, before they are copied into the file. A batch of messages writes hundreds of pages,
many of them again with the next batch: with a longer log fewer pages are copied, and fewer batches wait for the copying."""

SCHEMA = Schema(
    program="relay",
    migrations=(
        history.MIGRATION,
        Migration.load(__package__, "relay"),
        Migration.load(__package__, "queue"),
        Migration.load(__package__, "feed"),
        Migration.load(__package__, "mesh"),
        Migration.load(__package__, "neighbours"),
        Migration.load(__package__, "console"),
        Migration.load(__package__, "delivery"),
        Migration.load(__package__, "sender"),
        Migration.load(__package__, "restoration"),
        Migration.load(__package__, "expiry"),
        Migration.load(__package__, "bootstrap"),
    ),
    checks=(history.CHECKS, Statements(__package__, "checks.sql")),
    walks=(history.verify, feed_check.verify, message_check.verify),
)


def prepare(engine: Engine, clock: Clock, random: Random) -> None:
    """Prepare an open database for a relay: check that it is ours, migrate it, and give it a log id."""
    migrations.current(engine, SCHEMA)  # refuses what is not ours before anything is touched
    engine.prepare()
    migrations.migrate(engine, SCHEMA, clock)
    with engine.write() as transaction:
        history.create(transaction, random(LOG_ID_BYTES))


@overload
def open_relay(where: Path, *, clock: Clock = ..., random: Random = ...) -> SqliteEngine: ...


@overload
def open_relay(where: str | os.PathLike[str], *, clock: Clock = ..., random: Random = ...) -> Engine: ...


def open_relay(where: str | os.PathLike[str], *, clock: Clock = wall_clock, random: Random = os.urandom) -> Engine:
    """Open a relay's database, by a path or a URL; a new one gets its tables."""
    engine = engine_at(where)
    try:
        prepare(engine, clock, random)
    except BaseException:
        engine.close()
        raise
    return engine


def open_to_read(where: str | os.PathLike[str]) -> Engine:
    """Open a relay's database for reading only."""
    return migrations.readable(engine_at(where, read_only=True), SCHEMA)


def engine_at(where: str | os.PathLike[str], *, read_only: bool = False) -> Engine:
    """The engine for a path, or for the URL of a database on a server."""
    if not is_url(os.fspath(where)):
        return SqliteEngine(where, read_only=read_only, log_pages=LOG_PAGES)
    # Imported here, because the driver is large and a relay on a file needs none.
    from holdfast.store.postgres import PostgresEngine

    return PostgresEngine(os.fspath(where), read_only=read_only)
