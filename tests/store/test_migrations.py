"""Schemas move forward only, one transaction a step."""

import multiprocessing
from pathlib import Path

import pytest

from holdfast.store import faults, migrations
from holdfast.store.engine import Engine
from holdfast.store.migrations import Migration, Schema
from holdfast.store.sqlite import SqliteEngine

ONE = Migration("one", "CREATE TABLE one (id INTEGER PRIMARY KEY) STRICT; INSERT INTO one VALUES (1)")
TWO = Migration("two", "ALTER TABLE one ADD COLUMN name TEXT; UPDATE one SET name = 'first'")
BROKEN = Migration("broken", "CREATE TABLE other (id INTEGER PRIMARY KEY) STRICT; INSERT INTO nowhere VALUES (1)")


def _schema(*steps: Migration, program: str = "test") -> Schema:
    return Schema(program, steps, ())


def _tables(engine: Engine) -> set[str]:
    with engine.read() as transaction:
        return transaction.tables()


def test_a_new_database_takes_every_step(engine: Engine) -> None:
    migrations.migrate(engine, _schema(ONE, TWO), lambda: 5)
    with engine.read() as transaction:
        assert transaction.rows("SELECT * FROM one") == [(1, "first")]
        taken = transaction.rows("SELECT version, program, name, applied_at FROM holdfast_migration")
    assert taken == [(1, "test", "one", 5), (2, "test", "two", 5)]


def test_an_older_database_takes_the_steps_it_lacks_and_keeps_its_rows(engine: Engine) -> None:
    migrations.migrate(engine, _schema(ONE), lambda: 1)
    with engine.write() as transaction:
        transaction.run("INSERT INTO one VALUES (2)")
    assert not migrations.current(engine, _schema(ONE, TWO))
    migrations.migrate(engine, _schema(ONE, TWO), lambda: 2)
    with engine.read() as transaction:
        assert transaction.rows("SELECT * FROM one ORDER BY id") == [(1, "first"), (2, "first")]


def test_a_current_database_is_left_alone(engine: Engine) -> None:
    migrations.migrate(engine, _schema(ONE), lambda: 1)
    migrations.migrate(engine, _schema(ONE), lambda: 2)
    with engine.read() as transaction:
        assert transaction.rows("SELECT applied_at FROM holdfast_migration") == [(1,)]


def test_a_newer_database_is_refused(engine: Engine) -> None:
    migrations.migrate(engine, _schema(ONE, TWO), lambda: 1)
    with pytest.raises(faults.NewerStore, match="Upgrade Holdfast"):
        migrations.migrate(engine, _schema(ONE), lambda: 2)


def test_a_step_that_fails_leaves_nothing_of_itself_and_all_before_it(engine: Engine) -> None:
    with pytest.raises(faults.NotUnderstood, match="nowhere"):
        migrations.migrate(engine, _schema(ONE, BROKEN), lambda: 1)
    assert "one" in _tables(engine)
    assert "other" not in _tables(engine)
    assert migrations.version(engine, "test") == 1


def test_another_programs_database_is_refused(engine: Engine) -> None:
    migrations.migrate(engine, _schema(ONE), lambda: 1)
    with pytest.raises(faults.NotOurs, match="belongs to the test"):
        migrations.migrate(engine, _schema(ONE, program="relay"), lambda: 2)


def test_somebody_elses_database_is_refused_and_not_changed(engine: Engine) -> None:
    with engine.write() as transaction:
        transaction.script("CREATE TABLE customers (id INTEGER)")
    with pytest.raises(faults.NotOurs):
        migrations.migrate(engine, _schema(ONE), lambda: 1)
    assert _tables(engine) == {"customers"}


def _migrate_file(path: str) -> None:
    engine = SqliteEngine(path)
    engine.prepare()
    migrations.migrate(engine, _schema(ONE, TWO), lambda: 1)
    engine.close()


def test_processes_that_open_a_new_database_at_once_take_each_step_once(tmp_path: Path) -> None:
    path = str(tmp_path / "store.db")
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        pool.map(_migrate_file, [path] * 8, chunksize=1)
    engine = SqliteEngine(path, read_only=True)
    with engine.read() as transaction:
        assert transaction.rows("SELECT count(*) FROM one") == [(1,)]
        assert transaction.rows("SELECT count(*) FROM holdfast_migration") == [(2,)]
    engine.close()


def test_a_file_with_nothing_in_it_is_not_called_an_older_one(tmp_path: Path) -> None:
    (tmp_path / "empty").touch(0o600)
    with pytest.raises(faults.NotOurs, match="it is empty"):
        migrations.open_to_read(tmp_path / "empty", _schema(ONE))


def test_a_file_that_lacks_a_step_is_an_older_one(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path / "older")
    migrations.migrate(engine, _schema(ONE), lambda: 1)
    engine.close()
    with pytest.raises(faults.Outdated):
        migrations.open_to_read(tmp_path / "older", _schema(ONE, TWO))
