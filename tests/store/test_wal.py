"""A write-ahead log that is damaged is not taken for one that a power cut has left."""

import shutil
from pathlib import Path

import apsw
import pytest

from holdfast.store import faults
from holdfast.store.sqlite import SqliteEngine
from holdfast.store.wal import FRAME_HEADER_BYTES, HEADER_BYTES
from tests.disk import Disk

COMMITS = 6
PAGE_BYTES = 4096
FRAME_BYTES = FRAME_HEADER_BYTES + PAGE_BYTES


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """The log of a database whose program was killed."""
    path = tmp_path / "killed"
    writer = apsw.Connection(str(path))
    list(writer.execute("PRAGMA journal_mode=WAL; CREATE TABLE note (id INTEGER PRIMARY KEY, text TEXT)"))
    for number in range(COMMITS):
        writer.execute("INSERT INTO note (text) VALUES (?)", (f"number {number}",))
    for name in ("killed", "killed-wal"):
        shutil.copy(tmp_path / name, tmp_path / name.replace("killed", "file"))
    writer.close()
    return tmp_path / "file-wal"


def notes(journal: Path) -> int:
    """How many there are for whoever opens the database to write."""
    engine = SqliteEngine(journal.with_name("file"))
    try:
        engine.prepare()
        with engine.read() as transaction:
            ((found,),) = transaction.rows("SELECT count(*) FROM note")
            return int(found)
    finally:
        engine.close()


def change(journal: Path, position: int) -> None:
    content = bytearray(journal.read_bytes())
    content[position] ^= 4
    journal.write_bytes(content)


def frames(journal: Path) -> int:
    return (journal.stat().st_size - HEADER_BYTES) // FRAME_BYTES


def test_a_whole_log_is_read(journal: Path) -> None:
    assert notes(journal) == COMMITS


@pytest.mark.parametrize("place", range(0, HEADER_BYTES, 5))
def test_a_changed_head_is_refused(journal: Path, place: int) -> None:
    change(journal, place)
    with pytest.raises(faults.Corrupt, match="head of its write-ahead log"):
        notes(journal)


@pytest.mark.parametrize("place", [1, 6, 9, 14, 17, 22, 100, 4_000])
@pytest.mark.parametrize("frame", [0, 2])
def test_a_changed_frame_with_commits_behind_it_is_refused(journal: Path, frame: int, place: int) -> None:
    change(journal, HEADER_BYTES + frame * FRAME_BYTES + place)
    with pytest.raises(faults.Corrupt, match=f"frame {frame} of its write-ahead log"):
        notes(journal)


def test_check_tells_of_it_too(journal: Path) -> None:
    change(journal, HEADER_BYTES + 100)
    engine = SqliteEngine(journal.with_name("file"), read_only=True)
    assert "write-ahead log" in engine.damage()[0]
    engine.close()


def test_a_last_transaction_that_did_not_come_through_is_dropped(journal: Path) -> None:
    change(journal, HEADER_BYTES + (frames(journal) - 1) * FRAME_BYTES + 100)
    assert notes(journal) == COMMITS - 1


def test_frames_of_the_generation_before_mean_nothing(journal: Path) -> None:
    """The log was worked off and begun anew, and behind its new frames lie old ones."""
    path = journal.with_name("file")
    old = journal.read_bytes()
    writer = apsw.Connection(str(path))
    list(writer.execute("PRAGMA wal_checkpoint(RESTART); INSERT INTO note (text) VALUES ('the first of the next')"))
    new = journal.read_bytes()
    assert len(new) == len(old)
    for name in ("file", "file-wal"):
        shutil.copy(journal.with_name(name), journal.with_name(f"next-{name}"))
    writer.close()
    for name in ("file", "file-wal"):
        shutil.move(journal.with_name(f"next-{name}"), journal.with_name(name))
    assert notes(journal) == COMMITS + 1


def test_what_somebody_who_died_left_is_worked_off_before_anything_is_added(journal: Path) -> None:
    """Half of a transaction that stayed behind the next ones would one day look like damage."""
    engine = SqliteEngine(journal.with_name("file"))
    engine.prepare()
    assert journal.stat().st_size == 0
    engine.close()


def test_a_full_disk_does_not_keep_anybody_from_opening_what_is_there() -> None:
    disk = Disk()
    writer = SqliteEngine("file", vfs=disk.boot(), exclusive=True)
    writer.prepare()
    with writer.write() as transaction:
        transaction.script("CREATE TABLE note (text TEXT); INSERT INTO note VALUES ('here')")
    disk.cut()

    def full(step: int, what: str) -> None:
        if what == "write":
            raise apsw.FullError

    disk.trouble = lambda step, what: None
    engine = SqliteEngine("file", vfs=disk.boot(), exclusive=True)
    disk.trouble = full
    engine.prepare()
    with engine.read() as transaction:
        assert transaction.rows("SELECT text FROM note") == [("here",)]
    disk.trouble = lambda step, what: None
    engine.close()
