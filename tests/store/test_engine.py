"""What our programs may expect of any engine."""

import os
import threading
from pathlib import Path

import pytest

from holdfast.store import faults
from holdfast.store.engine import ConstraintViolated, Engine
from holdfast.store.sqlite import SqliteEngine

TABLE = "CREATE TABLE thing (id INTEGER PRIMARY KEY, name TEXT NOT NULL, body BLOB) STRICT"


@pytest.fixture(autouse=True)
def _table(request: pytest.FixtureRequest) -> None:
    if "engine" in request.fixturenames:
        engine: Engine = request.getfixturevalue("engine")
        with engine.write() as transaction:
            transaction.script(TABLE)


def _things(engine: Engine) -> list[tuple[object, ...]]:
    with engine.read() as transaction:
        return transaction.rows("SELECT id, name, body FROM thing ORDER BY id")


def test_a_transaction_that_ends_well_is_kept(engine: Engine) -> None:
    with engine.write() as transaction:
        assert (
            transaction.run("INSERT INTO thing VALUES (:id, :name, :body)", {"id": 1, "name": "a", "body": b"\x00"})
            == 1
        )
    assert _things(engine) == [(1, "a", b"\x00")]


def test_a_transaction_that_raises_leaves_nothing(engine: Engine) -> None:
    with pytest.raises(ZeroDivisionError), engine.write() as transaction:
        transaction.run("INSERT INTO thing VALUES (1, 'a', NULL)")
        raise ZeroDivisionError
    assert _things(engine) == []


def test_an_interrupt_inside_a_transaction_undoes_it_and_the_engine_goes_on(engine: Engine) -> None:
    with pytest.raises(KeyboardInterrupt), engine.write() as transaction:
        transaction.run("INSERT INTO thing VALUES (1, 'a', NULL)")
        raise KeyboardInterrupt
    with engine.write() as transaction:
        transaction.run("INSERT INTO thing VALUES (2, 'b', NULL)")
    assert _things(engine) == [(2, "b", None)]


def test_a_broken_constraint_is_told_apart_from_a_fault(engine: Engine) -> None:
    with pytest.raises(ConstraintViolated), engine.write() as transaction:
        transaction.run("INSERT INTO thing VALUES (1, NULL, NULL)")


def test_many_rows_are_inserted_together(engine: Engine) -> None:
    with engine.write() as transaction:
        transaction.insert("thing", ("id", "name"), [(number, str(number)) for number in range(5)])
    assert [row[0] for row in _things(engine)] == [0, 1, 2, 3, 4]


def test_run_says_how_many_rows_changed(engine: Engine) -> None:
    with engine.write() as transaction:
        transaction.insert("thing", ("id", "name"), [(number, "x") for number in range(5)])
        assert transaction.run("UPDATE thing SET name = 'y' WHERE id < 3") == 3
        assert transaction.run("UPDATE thing SET name = 'y' WHERE id > 9") == 0
        assert transaction.run("INSERT INTO thing VALUES (1, 'z', NULL) ON CONFLICT DO NOTHING") == 0


def test_run_does_not_count_what_triggers_change_nor_what_was_changed_before(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path / "engine.db")
    with engine.write() as transaction:
        transaction.script(TABLE)
        transaction.script("CREATE TABLE note (id INTEGER)")
        transaction.script("CREATE TRIGGER noting AFTER UPDATE ON thing BEGIN INSERT INTO note VALUES (OLD.id); END")
        transaction.run("INSERT INTO thing VALUES (1, 'a', NULL), (2, 'b', NULL)")
        assert transaction.run("CREATE INDEX thing_by_name ON thing (name)") == 0
        assert transaction.run("UPDATE thing SET name = 'c'") == 2
        assert transaction.run("UPDATE thing SET name = 'd' WHERE id = 7") == 0
    engine.close()


def test_rows_that_a_statement_returns_are_all_seen(engine: Engine) -> None:
    with engine.write() as transaction:
        assert transaction.rows("INSERT INTO thing VALUES (1, 'a', NULL), (2, 'b', NULL) RETURNING id") == [
            (1,),
            (2,),
        ]


def test_the_tables_of_a_database_can_be_listed(engine: Engine) -> None:
    with engine.read() as transaction:
        assert transaction.tables() == {"thing"}


def test_a_sound_database_reports_no_damage(engine: Engine) -> None:
    assert engine.damage() == []


def test_a_value_that_its_column_does_not_allow_is_damage_and_looking_for_it_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    engine = SqliteEngine(path)
    engine.prepare()
    with engine.write() as transaction:
        transaction.script("CREATE TABLE lamp (state TEXT NOT NULL CHECK (state <> 'bad')) STRICT")
        transaction.run("INSERT INTO lamp VALUES ('bed')")
    engine.close()
    damaged = path.read_bytes().replace(b"bed", b"bad")
    path.write_bytes(damaged)
    engine = SqliteEngine(path, read_only=True)
    assert engine.damage() == ["CHECK constraint failed in lamp"]
    engine.close()
    assert path.read_bytes() == damaged


def test_a_reader_sees_one_moment_while_a_writer_goes_on(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path / "store.db")
    engine.prepare()
    with engine.write() as transaction:
        transaction.script(TABLE)
    with engine.read() as reading:
        before = reading.rows("SELECT count(*) FROM thing")
        with engine.write() as writing:
            writing.run("INSERT INTO thing VALUES (1, 'a', NULL)")
        assert reading.rows("SELECT count(*) FROM thing") == before
    assert _things(engine) == [(1, "a", None)]
    engine.close()


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path / "store.db")
    engine.prepare()
    with engine.write() as transaction:
        transaction.script(TABLE)
    with pytest.raises(faults.NoAccess), engine.read() as reading:
        reading.run("INSERT INTO thing VALUES (1, 'a', NULL)")
    engine.close()


def test_two_threads_take_turns_at_writing(engine: Engine) -> None:
    def work(first: int) -> None:
        for number in range(first, first + 50):
            with engine.write() as transaction:
                transaction.run("INSERT INTO thing VALUES (:id, 'x', NULL)", {"id": number})

    threads = [threading.Thread(target=work, args=(first,)) for first in (0, 100, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(_things(engine)) == 150


def test_a_lock_that_another_process_keeps_is_a_temporary_fault(tmp_path: Path) -> None:
    first = SqliteEngine(tmp_path / "store.db")
    first.prepare()
    second = SqliteEngine(tmp_path / "store.db", busy_timeout_s=0.05)
    second.prepare()
    with first.write(), pytest.raises(faults.Busy) as raised, second.write():
        pass
    assert raised.value.temporary
    with second.write():
        pass
    first.close()
    second.close()


def test_a_store_cannot_cross_a_fork(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path / "store.db")
    engine.prepare()
    child = os.fork()
    if child == 0:
        try:
            with engine.write():
                os._exit(1)
        except faults.Forked:
            engine.close()  # must not touch the parent's files
            os._exit(0)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with engine.write() as transaction:
        transaction.script(TABLE)
    assert (tmp_path / "store.db-wal").exists()
    engine.close()


def test_the_file_and_its_journal_belong_to_their_owner_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        engine = SqliteEngine(tmp_path / "store.db")
        engine.prepare()
        with engine.write() as transaction:
            transaction.script(TABLE)
        modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
        engine.close()
    finally:
        os.umask(old)
    assert modes == {"store.db": 0o600, "store.db-wal": 0o600, "store.db-shm": 0o600}


def test_commits_are_synced_and_never_less(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path / "store.db")
    engine.prepare()
    with engine.write() as transaction:
        assert transaction.rows("PRAGMA journal_mode") == [("wal",)]
        assert transaction.rows("PRAGMA synchronous") == [(3,)]
        assert transaction.rows("PRAGMA fullfsync") == transaction.rows("PRAGMA checkpoint_fullfsync") == [(1,)]
    engine.close()


def test_both_connections_distrust_the_file(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path / "store.db")
    engine.prepare()
    for opened in (engine.write, engine.read):
        with opened() as transaction:
            assert transaction.rows("PRAGMA trusted_schema") == [(0,)]
            assert transaction.rows("PRAGMA cell_size_check") == [(1,)]
            assert transaction.rows("PRAGMA foreign_keys") == [(1,)]
    engine.close()


def test_a_transaction_cannot_be_used_after_its_end(engine: Engine) -> None:
    with engine.write() as transaction:
        pass
    with pytest.raises(RuntimeError, match="after its end"):
        transaction.run("INSERT INTO thing VALUES (1, 'a', NULL)")
    assert _things(engine) == []


def test_many_keys_are_looked_up_at_once(engine: Engine) -> None:
    with engine.write() as transaction:
        transaction.insert("thing", ("id", "name"), [(number, f"n{number}") for number in range(20)])
        statement = (
            "SELECT thing.name FROM wanted JOIN thing ON thing.id = wanted.id AND thing.name = wanted.name ORDER BY 1"
        )
        wanted = [(1, "n1"), (7, "n7"), (8, "n9"), (99, "n99"), (7, "n7")]
        assert transaction.lookup(statement, ("id", "name"), wanted) == [("n1",), ("n7",)]
        assert transaction.lookup(statement, ("id", "name"), []) == []


def test_more_keys_are_looked_up_than_one_statement_takes(engine: Engine) -> None:
    with engine.write() as transaction:
        transaction.insert("thing", ("id", "name"), [(number, "x") for number in range(20_000)])
        statement = "SELECT thing.id FROM wanted JOIN thing ON thing.id = wanted.id AND thing.name = wanted.name"
        found = transaction.lookup(statement, ("id", "name"), [(number, "x") for number in range(20_000)])
    assert sorted(found) == [(number,) for number in range(20_000)]


def test_the_room_that_rows_take_is_known(engine: Engine) -> None:
    with engine.write() as transaction:
        small = transaction.size_bytes()
        transaction.insert("thing", ("id", "name"), [(number, "x" * 1000) for number in range(1_000)])
        assert small + 1_000_000 < transaction.size_bytes() < small + 2_000_000


def test_the_room_that_rows_took_is_given_back_when_they_go(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path / "store.db")
    with engine.write() as transaction:
        transaction.script(TABLE)
        transaction.insert("thing", ("id", "name"), [(number, "x" * 1000) for number in range(1_000)])
        large = transaction.size_bytes()
    with engine.write() as transaction:
        transaction.run("DELETE FROM thing")
        assert transaction.size_bytes() < large / 4
    engine.close()


def test_nobody_looks_for_damage_in_a_child(tmp_path: Path) -> None:
    """Closing a file in a child would drop its parent's locks."""
    engine = SqliteEngine(tmp_path / "store.db")
    engine.prepare()
    child = os.fork()
    if child == 0:
        try:
            engine.damage()
        except faults.Forked:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    engine.close()


def test_what_a_statement_may_have_to_undo_is_in_memory_only_where_that_is_little(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path / "store.db")
    engine.prepare()
    for brief, kept_in in ((False, 1), (True, 2), (False, 1), (True, 2)):
        with engine.write(brief=brief) as transaction:
            assert transaction.rows("PRAGMA temp_store") == [(kept_in,)]
    engine.close()
