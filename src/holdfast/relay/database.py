"""The relay's database: its schema, and what opening it means."""

import os

from holdfast.protocol.history import LOG_ID_BYTES
from holdfast.relay import feed_check
from holdfast.store import history, migrations
from holdfast.store.engine import Engine
from holdfast.store.migrations import Migration, Schema
from holdfast.store.sqlite import SqliteEngine
from holdfast.store.statements import Statements
from holdfast.store.world import Clock, Random, wall_clock

EXPORT_READER = "holdfast.relay.exported"
"""The module that reads for the export; a name, because Arrow comes with it."""

SCHEMA = Schema(
    program="relay",
    migrations=(
        history.MIGRATION,
        Migration.load(__package__, "relay"),
        Migration.load(__package__, "queue"),
        Migration.load(__package__, "feed"),
        Migration.load(__package__, "mesh"),
    ),
    checks=(history.CHECKS, Statements(__package__, "checks.sql")),
    walks=(history.verify, feed_check.verify),
)


def prepare(engine: Engine, clock: Clock, random: Random) -> None:
    """Make an open database fit to be a relay's: ours, up to date, with a log id."""
    migrations.current(engine, SCHEMA)  # refuses what is not ours before anything is touched
    engine.prepare()
    migrations.migrate(engine, SCHEMA, clock)
    with engine.write() as transaction:
        history.create(transaction, random(LOG_ID_BYTES))


def open_relay(path: str | os.PathLike[str], *, clock: Clock = wall_clock, random: Random = os.urandom) -> SqliteEngine:
    """Open a relay's database, or create it."""
    engine = SqliteEngine(path)
    try:
        prepare(engine, clock, random)
    except BaseException:
        engine.close()
        raise
    return engine


def open_to_read(path: str | os.PathLike[str]) -> SqliteEngine:
    """Open a relay's database without the power to change it."""
    return migrations.open_to_read(path, SCHEMA)
