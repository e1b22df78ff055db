"""The device's database: its schema, how it is opened, copied and restored."""

import os
import secrets
from pathlib import Path

from holdfast.device import evidence, feed_verify, operations
from holdfast.protocol.history import LOG_ID_BYTES
from holdfast.store import faults, files, history, migrations
from holdfast.store.engine import Engine
from holdfast.store.migrations import Migration, Schema
from holdfast.store.sqlite import SqliteEngine
from holdfast.store.statements import Statements
from holdfast.store.world import Clock, Random

SCHEMA = Schema(
    program="device",
    migrations=(
        history.MIGRATION,
        *(
            Migration.load(__package__, name)
            for name in (
                *("operation_log", "topic_key", "directory", "inbox", "lane", "outbox", "feed", "hook_entry"),
                *("listing", "console", "inbox_digest", "given_up", "relayed", "unfired", "restored", "topic_key_id"),
                "scheduled_epoch",
            )
        ),
    ),
    checks=(history.CHECKS, Statements(__package__, "checks.sql"), Statements(__package__, "feed_checks.sql")),
    walks=(history.verify, operations.verify, evidence.verify, evidence.verify_contents, feed_verify.verify),
)


def prepare(engine: Engine, clock: Clock, random: Random) -> None:
    """Prepare an open database for a device: check that it is ours, migrate it, give it a log id and an epoch."""
    migrations.current(engine, SCHEMA)  # refuses what is not ours before anything is touched
    engine.prepare()
    migrations.migrate(engine, SCHEMA, clock)
    with engine.write() as transaction:
        history.create(transaction, random(LOG_ID_BYTES))
        operations.take_identity(transaction, clock(), random)


def open_to_read(path: str | os.PathLike[str]) -> SqliteEngine:
    """Open a device's database read-only."""
    return migrations.open_to_read(path, SCHEMA)


def back_up(engine: SqliteEngine, path: Path) -> None:
    """Copy the database into a new file that is marked as a backup, and gets its name only when it is whole."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        engine.backup(partial)
        copy = SqliteEngine(partial)
        try:
            with copy.write() as transaction:
                operations.mark_backup(transaction)
        finally:
            copy.close()
        files.give_name(partial, path)
    finally:
        for ending in ("", "-journal"):
            partial.with_name(partial.name + ending).unlink(missing_ok=True)


def restore(backup: Path, path: Path) -> None:
    """Copy a backup to `path`, where no log may be; the journal files of one that was there are removed.

    The copy takes a new epoch when it is opened as a log, because a backup is marked.
    """
    if path.exists():
        raise faults.FileThere(str(path))
    source = open_to_read(backup)
    try:
        for ending in ("-wal", "-shm", "-journal"):
            path.with_name(path.name + ending).unlink(missing_ok=True)
        back_up(source, path)
    finally:
        source.close()
