"""Migrations: a schema only moves forward, one transaction per step, and a database of a newer version is refused."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from typing import TypeVar

import msgspec

from holdfast.store import faults
from holdfast.store.engine import Engine, Transaction
from holdfast.store.finding import Finding
from holdfast.store.sqlite import SqliteEngine
from holdfast.store.statements import Statement, Statements
from holdfast.store.world import Clock

_SQL = Statements(__package__, "migrations.sql")

E = TypeVar("E", bound=Engine)


class Migration(msgspec.Struct, frozen=True):
    """One step: a name for people, and the statements."""

    name: str
    statements: str

    @classmethod
    def load(cls, package: str, name: str) -> "Migration":
        """The migration in the package's `schema/<name>.sql`."""
        text = resources.files(package).joinpath("schema", f"{name}.sql").read_text(encoding="utf-8")
        return cls(name, text)


class Schema(msgspec.Struct, frozen=True):
    """A program's schema: its migrations, and the checks on its tables."""

    program: str
    migrations: Sequence[Migration]
    checks: Sequence[Mapping[str, Statement]] = ()
    walks: Sequence[Callable[[Engine], Iterator[Finding]]] = ()


def version(engine: Engine, program: str) -> int:
    """The schema version of a database, 0 if it is empty. A database of another program is refused."""
    with engine.read() as transaction:
        return _version(transaction, engine.where, program)


def owner(engine: Engine) -> str:
    """The program whose database this is."""
    with engine.read() as transaction:
        if "holdfast_migration" not in transaction.tables():
            raise faults.NotOurs(engine.where)
        return str(transaction.rows(_SQL["owner"])[0][0])


def current(engine: Engine, schema: Schema) -> bool:
    """Whether the database has all migrations; a newer database raises."""
    found = version(engine, schema.program)
    if found > len(schema.migrations):
        raise faults.NewerStore(engine.where, f"schema {found}, this one knows {len(schema.migrations)}")
    return found == len(schema.migrations)


def open_to_read(path: str | os.PathLike[str], schema: Schema) -> SqliteEngine:
    """Open a program's file for reading only."""
    return readable(SqliteEngine(path, read_only=True), schema)


def readable(engine: E, schema: Schema) -> E:
    """The engine itself, if its database is the program's and up to date; otherwise it is closed and a fault raised."""
    try:
        if not current(engine, schema):
            if version(engine, schema.program) == 0:
                raise faults.NotOurs(engine.where, "it is empty")
            raise faults.Outdated(engine.where)
    except BaseException:
        engine.close()
        raise
    return engine


def migrate(engine: Engine, schema: Schema, clock: Clock) -> None:
    """Bring the database up to date. A crash keeps the steps that were finished."""
    while not current(engine, schema):
        with engine.write() as transaction:
            found = _version(transaction, engine.where, schema.program)
            if found >= len(schema.migrations):
                return  # another process finished the last step while we waited
            _take_step(transaction, schema, found + 1, clock())


def _take_step(transaction: Transaction, schema: Schema, number: int, applied_at: int) -> None:
    if number == 1:
        transaction.script(_SQL["create"])
    migration = schema.migrations[number - 1]
    transaction.script(migration.statements)
    transaction.run(
        _SQL["record"],
        {"version": number, "program": schema.program, "name": migration.name, "applied_at": applied_at},
    )


def _version(transaction: Transaction, where: str, program: str) -> int:
    tables = transaction.tables()
    if not tables:
        return 0
    if "holdfast_migration" not in tables:
        raise faults.NotOurs(where, "it has other tables")
    ((found, by),) = transaction.rows(_SQL["version"])
    if by != program:
        raise faults.NotOurs(where, f"it belongs to the {by}, not to the {program}")
    return int(found)
