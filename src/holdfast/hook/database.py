"""The hook database, for whoever is not in a hurry: its schema and its rules, through the store like every other one."""

import os

from holdfast.hook import outbox
from holdfast.hook.layout import JOURNAL_MODE, PROGRAM, STEPS
from holdfast.store import migrations
from holdfast.store.engine import Engine
from holdfast.store.migrations import Migration, Schema
from holdfast.store.sqlite import SqliteEngine
from holdfast.store.statements import Statements
from holdfast.store.world import Clock

BUSY_TIMEOUT_S = 1.0  # whoever empties the spool must let go of it soon

SCHEMA = Schema(
    program=PROGRAM,
    migrations=tuple(Migration.load(__package__, step) for step in STEPS),
    checks=(Statements(__package__, "checks.sql"),),
    walks=(outbox.verify,),
)


def prepare(engine: Engine, clock: Clock) -> None:
    """Make an open database fit to be a hook outbox: ours and up to date."""
    migrations.current(engine, SCHEMA)  # refuses what is not ours before anything is touched
    engine.prepare()
    migrations.migrate(engine, SCHEMA, clock)


def opened(path: str | os.PathLike[str], clock: Clock) -> SqliteEngine:
    """The database at this path, made if there is none."""
    engine = SqliteEngine(path, journal_mode=JOURNAL_MODE, busy_timeout_s=BUSY_TIMEOUT_S)
    try:
        prepare(engine, clock)
    except BaseException:
        engine.close()
        raise
    return engine
