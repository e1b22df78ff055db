"""A damaged home: what can be read is kept, the rest is said to be lost, and the home goes on as a new sender."""

import os
import shutil
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from holdfast.device import operations, recover
from holdfast.device.database import SCHEMA, prepare
from holdfast.device.home import Damaged, Home
from holdfast.store import faults, sqlite
from holdfast.store.check import check
from holdfast.store.migrations import Schema
from holdfast.store.sqlite import SqliteEngine
from holdfast.store.world import wall_clock

ENTRIES = 400


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home whose log has some entries."""
    tmp_path.chmod(0o700)
    home = Home(tmp_path)
    with closing(SqliteEngine(home.database)) as engine:
        prepare(engine, wall_clock, os.urandom)
        with engine.write() as transaction:
            for number in range(ENTRIES):
                blob = f"entry {number} ".encode() * 20
                operations.append_next(transaction, wall_clock(), os.urandom, bytes(32), blob)
    return home


def damage(path: Path, entry: int) -> None:
    """Overwrite the page that holds an entry's blob; pages that once held it may keep its bytes, and come before."""
    at = path.read_bytes().rindex(f"entry {entry} ".encode() * 3) // 4096 * 4096
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"\xff" * 4096)


def opened(home: Home) -> tuple[list[int], bytes, list[str]]:
    """The sequences, the epoch and what is wrong, once a device has opened it."""
    with closing(SqliteEngine(home.database)) as engine:
        prepare(engine, wall_clock, os.urandom)
        with engine.read() as transaction:
            found = [entry.sequence for entry in operations.entries(transaction, -1, None)]
            assert recover.replayed_in(transaction) == recover.IN_NO_LOG
            epoch = operations.epoch(transaction)
        return found, epoch, [str(finding) for finding in check(engine, SCHEMA)]


def epoch_of(home: Home) -> bytes:
    with closing(SqliteEngine(home.database, read_only=True)) as engine, engine.read() as transaction:
        return operations.epoch(transaction)


def _enqueued(home: Home) -> int:
    """How many sends the history tells of."""
    with closing(SqliteEngine(home.database, read_only=True)) as engine, engine.read() as transaction:
        ((count,),) = transaction.rows("SELECT count(*) FROM history WHERE kind = 'enqueued'")
    return int(count)


def test_a_sound_home_is_left_alone(home: Home) -> None:
    before = home.database.read_bytes()
    with pytest.raises(recover.NothingDamaged):
        recover.recover(home, wall_clock, os.urandom)
    assert home.database.read_bytes() == before


@pytest.mark.parametrize("entry", [0, 200, ENTRIES - 1])
def test_what_can_be_read_is_kept_in_order_and_the_rest_is_said_to_be_lost(home: Home, entry: int) -> None:
    epoch = epoch_of(home)
    damage(home.database, entry)
    done = recover.recover(home, wall_clock, os.urandom)
    found, new_epoch, wrong = opened(home)
    assert wrong == list(done.findings) == []
    assert found == sorted(set(found))
    assert entry not in found
    assert len(found) > ENTRIES - 50  # a page's worth is gone, whether at an end or between two
    kept = {one.table: one for one in done.tables}
    assert (kept["operation_log"].rows, kept["operation_log"].is_whole) == (len(found), False)
    assert kept["history"].is_whole
    assert not done.history_is_whole  # it tells of entries that are gone
    assert new_epoch != epoch
    assert Path(done.damaged).exists()


def test_nothing_is_lost_of_a_file_that_is_sound_after_all(home: Home) -> None:
    done = recover.recover(home, wall_clock, os.urandom, force=True)
    found, _, wrong = opened(home)
    assert (found, wrong, done.history_is_whole) == (list(range(ENTRIES)), [], True)
    assert all(one.is_whole for one in done.tables)


def test_a_changed_byte_in_one_row_does_not_cost_the_history(home: Home) -> None:
    with closing(SqliteEngine(home.database)) as engine, engine.write() as transaction:
        transaction.run("UPDATE operation_log SET blob = zeroblob(length(blob)) WHERE sequence = 7")
    done = recover.recover(home, wall_clock, os.urandom)
    assert done.history_is_whole
    assert [finding.partition(":")[0] for finding in done.findings] == ["entries"]
    assert _enqueued(home) == ENTRIES


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        ("INSERT INTO inbox_mention (member, arrival) VALUES ('ann', 7)", "every_mention_is_of_a_message"),
        (
            "INSERT INTO sighting (relay, event_id, state) VALUES ('gone', zeroblob(32), 'there')",
            "what_is_known_of_relays_is_of_relays",
        ),
    ],
)
def test_a_stray_row_of_which_the_history_does_not_tell_does_not_cost_the_history(
    home: Home, damage: str, found: str
) -> None:
    with closing(SqliteEngine(home.database)) as engine, engine.write() as transaction:
        transaction.run(damage)
    done = recover.recover(home, wall_clock, os.urandom)
    assert done.history_is_whole
    assert [finding.partition(":")[0] for finding in done.findings] == [found]
    assert _enqueued(home) == ENTRIES


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM history WHERE seq = 7",
        "UPDATE history SET mesh = 'other' WHERE seq = 7",
        "DELETE FROM operation_log WHERE sequence = 7",
        "DELETE FROM history_head",
    ],
    ids=["an entry is lost", "an entry is changed", "a row that it tells of is lost", "where it ends is lost"],
)
def test_a_history_that_proves_nothing_any_more_begins_anew(home: Home, damage: str) -> None:
    with closing(SqliteEngine(home.database)) as engine, engine.write() as transaction:
        transaction.run(damage)
    done = recover.recover(home, wall_clock, os.urandom)
    assert (done.history_is_whole, done.findings, _enqueued(home)) == (False, (), 0)
    assert opened(home)[2] == []


def test_a_file_that_is_no_database_any_more_leaves_an_empty_log(home: Home) -> None:
    home.database.write_bytes(b"\x00" * 8192)
    done = recover.recover(home, wall_clock, os.urandom)
    assert opened(home)[0] == []
    assert not any(one.rows for one in done.tables)


def test_a_database_that_is_not_there_is_no_empty_log(home: Home) -> None:
    home.database.unlink()
    with pytest.raises(Damaged):
        recover.recover(home, wall_clock, os.urandom)
    assert not home.database.exists()


def test_what_an_earlier_recovery_put_aside_does_not_come_back_for_a_database_that_is_gone(home: Home) -> None:
    recover.recover(home, wall_clock, os.urandom, force=True)
    readings = iter([wall_clock()])

    def clock_until_death() -> int:
        now = next(readings, None)
        if now is None:
            raise _Died
        return now

    with pytest.raises(_Died):
        recover.recover(home, clock_until_death, os.urandom, force=True)
    home.database.unlink()
    with pytest.raises(Damaged):
        recover.recover(home, wall_clock, os.urandom)
    assert not home.database.exists()


def _leave_a_journal(home: Home) -> None:
    """One more entry, which only the write-ahead log of somebody who died has."""
    with closing(SqliteEngine(home.database)) as engine:
        with engine.write() as transaction:
            operations.append_next(transaction, wall_clock(), os.urandom, bytes(32), b"the last")
        for name in ("device.db", "device.db-wal"):
            shutil.copyfile(home.path / name, home.path / f"left-{name}")
    for name in ("device.db", "device.db-wal"):
        (home.path / f"left-{name}").rename(home.path / name)


class _Died(BaseException):
    """Nobody catches it, as nobody catches a SIGKILL."""


@pytest.mark.parametrize("moves", range(4))
def test_a_recovery_that_dies_at_any_move_is_completed_by_the_next(
    home: Home, monkeypatch: pytest.MonkeyPatch, moves: int
) -> None:
    _leave_a_journal(home)
    with monkeypatch.context() as patched:
        rename, left = Path.rename, iter(range(moves))

        def rename_or_die(path: Path, target: Path) -> Path:
            if next(left, None) is None:
                raise _Died
            return rename(path, target)

        patched.setattr(Path, "rename", rename_or_die)
        with pytest.raises(_Died):
            recover.recover(home, wall_clock, os.urandom, force=True)
        with pytest.raises(_Died):
            left = iter(range(1))  # and so does the one after it, having moved one file back
            recover.recover(home, wall_clock, os.urandom, force=True)
    done = recover.recover(home, wall_clock, os.urandom, force=True)
    assert opened(home)[0] == list(range(ENTRIES + 1))
    assert Path(done.damaged).exists()


def test_a_recovery_leaves_nothing_of_the_database_in_a_journal_behind_it(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a disk that is full: the database is closed and its journal not copied into it, and nobody says so."""
    readers = []
    with monkeypatch.context() as patched:
        findings = recover._findings

        def found(engine: SqliteEngine, *schema: Schema) -> list[str]:
            if recover._NEW in engine.where:
                readers.append(apsw.Connection(engine.where))
                readers[-1].execute("SELECT count(*) FROM operation_log").fetchall()
            return findings(engine, *schema)

        patched.setattr(recover, "_findings", found)
        patched.setattr(sqlite._BusyHandler, "__call__", lambda handler, prior: False)
        with pytest.raises(faults.Busy):
            recover.recover(home, wall_clock, os.urandom, force=True)
        for reader in readers:
            reader.close()
    assert not list(home.path.glob("*.damaged-*"))
    recover.recover(home, wall_clock, os.urandom, force=True)
    assert opened(home)[0] == list(range(ENTRIES))
