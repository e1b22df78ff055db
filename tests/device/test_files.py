"""Files that cannot be a log: each has its own error that says what to do, and none is changed."""

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import apsw
import pytest

from holdfast import Fault, OperationLog
from holdfast.device.database import SCHEMA
from holdfast.store import faults
from holdfast.store.check import check
from holdfast.store.sqlite import SqliteEngine
from tests.disk import Disk

A = b"a" * 32
STRIDE_BYTES = 61 if "HOLDFAST_CRASH_CYCLES" in os.environ else 251  # between two bytes that are flipped


def _somebody_elses(path: Path) -> None:
    subprocess.run(  # in another process: ours must never load a second SQLite
        [
            sys.executable,
            "-c",
            f"import sqlite3; c = sqlite3.connect({str(path)!r}); c.execute('CREATE TABLE t (x)')",
        ],
        check=True,
    )


def _newer(path: Path) -> None:
    OperationLog(path).close()
    engine = SqliteEngine(path)
    with engine.write() as transaction:
        transaction.run("INSERT INTO holdfast_migration VALUES (99, 'device', 'from the future', 0)")
    engine.close()


def _another_programs(path: Path) -> None:
    OperationLog(path).close()
    engine = SqliteEngine(path)
    with engine.write() as transaction:
        transaction.run("UPDATE holdfast_migration SET program = 'relay'")
    engine.close()


def _damaged_header(path: Path) -> None:
    with OperationLog(path) as log:
        log.append_next(A, b"x")
    content = bytearray(path.read_bytes())
    content[100:200] = b"\xff" * 100  # the page that tells where every table is
    path.write_bytes(content)


BAD_FILES: dict[str, tuple[Callable[[Path], object], type[Fault]]] = {
    "text": (lambda path: path.write_text("Dear diary, this is not a database. " * 100), faults.NotOurs),
    "a few bytes": (lambda path: path.write_bytes(b"SQLite"), faults.NotOurs),
    "a directory": (lambda path: path.mkdir(), faults.NotOurs),
    "somebody else's database": (_somebody_elses, faults.NotOurs),
    "another program of ours": (_another_programs, faults.NotOurs),
    "a newer version": (_newer, faults.NewerStore),
    "a damaged header": (_damaged_header, faults.Corrupt),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_file_that_is_no_log_is_refused_unchanged(path: Path, name: str) -> None:
    make, expected = BAD_FILES[name]
    make(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(expected) as raised:
        OperationLog(path)
    assert str(path) in str(raised.value)
    assert raised.value.remedy in str(raised.value)
    assert (path.read_bytes() if path.is_file() else None) == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_missing_directory_is_said_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(faults.DirectoryMissing, match="create the directory"):
        OperationLog(tmp_path / "no" / "log")
    assert not (tmp_path / "no").exists()


def test_an_empty_file_becomes_a_log(path: Path) -> None:
    path.touch()
    with OperationLog(path) as log:
        assert log.append_next(A, b"x") == 0


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A directory that every user may reach, which the tests' own are not."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.mark.parametrize("locked", ["file", "directory"])
def test_a_read_only_place_is_refused(open_folder: Path, locked: str) -> None:
    """Permissions do not bind root, so the child becomes an ordinary user if it can."""
    folder = open_folder / "home"
    folder.mkdir()
    with OperationLog(folder / "log") as log:
        log.append_next(A, b"x")
    before = (folder / "log").read_bytes()
    (folder / "log").chmod(0o444 if locked == "file" else 0o666)
    folder.chmod(0o755 if locked == "file" else 0o555)
    program = textwrap.dedent(f"""
        import os
        from holdfast import OperationLog
        from holdfast.store import faults
        import holdfast.device.operation_log
        if os.geteuid() == 0:
            os.seteuid(65534)
        try:
            OperationLog({str(folder / "log")!r}).append_next(b"a" * 32, b"y")
        except faults.NoAccess as fault:
            print(fault)
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    folder.chmod(0o755)
    assert "permission" in done.stdout, done
    assert (folder / "log").read_bytes() == before


def test_a_truncated_log_is_damage_and_not_an_empty_log(path: Path) -> None:
    with OperationLog(path) as log:
        for _ in range(50):
            log.append_next(A, b"x" * 3000)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(faults.Corrupt, match="restore a backup"), OperationLog(path) as log:
        log.entries_from(A, 0)


def test_flipped_bits_are_noticed_or_harmless(path: Path, tmp_path: Path) -> None:
    """One byte changed anywhere: an error, a finding of the check, or the same entries as before. Never other ones."""
    with OperationLog(path) as log:
        for number in range(8):
            log.append_next(A, f"entry {number}".encode())
        expected = [(entry.sequence, entry.blob, entry.delivered) for entry in log.entries_from(A, 0)]
    content = path.read_bytes()
    noticed = harmless = 0
    for position in range(0, len(content), STRIDE_BYTES):
        victim = tmp_path / "victim.db"
        victim.write_bytes(content[:position] + bytes([content[position] ^ 0x55]) + content[position + 1 :])
        try:
            with OperationLog(victim) as log:
                found = [(entry.sequence, entry.blob, entry.delivered) for entry in log.entries_from(A, 0)]
            engine = SqliteEngine(victim, read_only=True)
            findings = list(check(engine, SCHEMA))
            engine.close()
        except faults.Fault:
            noticed += 1
        else:
            if findings:
                noticed += 1
            else:
                assert found == expected, f"byte {position}"
                harmless += 1
        for leftover in tmp_path.glob("victim.db*"):
            leftover.unlink()
    assert noticed > 20
    assert harmless > 20  # free space within pages


def test_a_full_disk_fails_the_append_and_leaves_the_log_as_it_was() -> None:
    disk = Disk()
    log = OperationLog("log", open_engine=partial(SqliteEngine, vfs=disk.boot(), exclusive=True))
    log.append_next(A, b"before")

    def full(step: int, what: str) -> None:
        if what == "write":
            raise apsw.FullError("no space")

    disk.trouble = full
    with pytest.raises(faults.DiskFull, match="nothing was written") as raised:
        log.append_next(A, b"does not fit")
    assert raised.value.temporary
    assert [entry.blob for entry in log.outbox()] == [b"before"]
    disk.trouble = lambda step, what: None
    assert log.append_next(A, b"fits again") == 1
    log.close()


def test_a_really_full_disk_is_told_from_a_broken_one(tmp_path: Path) -> None:
    """On a file system of one megabyte, in a name space of its own; needs the right to mount."""
    program = textwrap.dedent(f"""
        import sys
        from holdfast import OperationLog
        from holdfast.store import faults
        log = OperationLog({str(tmp_path / "small" / "log")!r})
        said = []
        try:
            while True:
                said.append(log.append_next(b"a" * 32, b"x" * 10_000))
        except faults.DiskFull as fault:
            assert [entry.sequence for entry in log.outbox()] == said
            print(len(said), fault)
    """)
    (tmp_path / "small").mkdir()
    mount = f"mount -t tmpfs -o size=1m none {tmp_path / 'small'}"
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-rm", "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount; the disk of tests/disk.py has filled up above")
    done = subprocess.run(
        [unshare, "-rm", "sh", "-c", f'{mount} && exec "$0" -c "$1"', sys.executable, program],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "Free some space" in done.stdout
    assert int(done.stdout.split()[0]) > 5


def test_a_log_with_a_damaged_page_is_refused_unchanged(path: Path) -> None:
    with OperationLog(path) as log:
        for number in range(200):
            log.append_next(A, f"entry {number}".encode() * 20)
    content = bytearray(path.read_bytes())
    content[5 * 4096 : 6 * 4096] = b"\xff" * 4096
    path.write_bytes(content)
    with pytest.raises(faults.Corrupt):
        OperationLog(path)
    assert path.read_bytes() == content


def test_after_damage_was_read_nothing_more_is_written(path: Path) -> None:
    with OperationLog(path) as log:
        log.append_next(A, b"x")
        with log._engine.write() as transaction:
            transaction.run("UPDATE operation_log SET blob = x'00'")
        with pytest.raises(faults.Corrupt, match="entry 0 is not what was written"):
            log.outbox()
        with pytest.raises(faults.Corrupt):
            log.append_next(A, b"y")


@pytest.mark.parametrize(
    ("place", "expected"),
    [("x" * 300, faults.NameInvalid), ("file/inside", faults.DirectoryMissing), ("link", faults.NameInvalid)],
)
def test_a_name_that_can_be_no_file_is_said(tmp_path: Path, place: str, expected: type[Fault]) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    with pytest.raises(expected):
        OperationLog(tmp_path / place)


def test_an_empty_file_that_others_may_read_becomes_the_owners_alone(path: Path) -> None:
    path.touch(0o644)
    OperationLog(path).close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_device_is_not_a_log() -> None:
    with pytest.raises(faults.NotOurs, match="no regular file"):
        OperationLog("/dev/null")
