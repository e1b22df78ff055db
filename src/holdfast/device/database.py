"""The device's database: its schema, and what opening it means."""

import os
from pathlib import Path

from holdfast.device import operations
from holdfast.protocol.history import LOG_ID_BYTES
from holdfast.store import faults, history, migrations
from holdfast.store.engine import Engine
from holdfast.store.migrations import Migration, Schema
from holdfast.store.sqlite import SqliteEngine, sync_directory
from holdfast.store.statements import Statements
from holdfast.store.world import Clock, Random

SCHEMA = Schema(
    program="device",
    migrations=(history.MIGRATION, Migration.load(__package__, "operation_log")),
    checks=(history.CHECKS, Statements(__package__, "checks.sql")),
    walks=(history.verify, operations.verify),
)


def prepare(engine: Engine, clock: Clock, random: Random) -> None:
    """Make an open database fit to be a device's: ours, up to date, with a log id and an epoch of its own."""
    migrations.current(engine, SCHEMA)  # refuses what is not ours before anything is touched
    engine.prepare()
    migrations.migrate(engine, SCHEMA, clock)
    with engine.write() as transaction:
        history.create(transaction, random(LOG_ID_BYTES))
        operations.take_identity(transaction, clock(), random)


def open_to_read(path: str | os.PathLike[str]) -> SqliteEngine:
    """Open a device's database without the power to change it."""
    engine = SqliteEngine(path, read_only=True)
    try:
        if not migrations.current(engine, SCHEMA):
            raise faults.Outdated(engine.where)
    except BaseException:
        engine.close()
        raise
    return engine


def back_up(engine: SqliteEngine, path: Path) -> None:
    """Copy the database into a new file, marked as a copy; the name appears only when the copy is whole."""
    if path.exists():
        raise faults.FileThere(str(path))
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)
    engine.backup(partial)
    copy = SqliteEngine(partial)
    try:
        with copy.write() as transaction:
            operations.mark_backup(transaction)
    finally:
        copy.close()
    partial.rename(path)
    sync_directory(path.parent)
