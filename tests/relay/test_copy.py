"""Backups are consistent, checked, and whole or not there; a restored relay is another log, and says so."""

import asyncio
import json
import os
import shutil
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.protocol import history as protocol_history
from holdfast.protocol.history import Kind
from holdfast.relay import copy
from holdfast.relay.copy import CopyBroken, NotABackup
from holdfast.relay.database import SCHEMA, open_relay, open_to_read
from holdfast.relay.identity import Identity, IsBackup, KeyExposed, RestoreUnfinished
from holdfast.relay.lock import RelayRunning, hold
from holdfast.relay.relay import Relay
from holdfast.relay.settings import Settings
from holdfast.store import faults, history, sqlite
from holdfast.store.check import check
from holdfast.store.sqlite import SqliteEngine
from tests.people import Person, raw
from tests.relay import scene

SETTINGS = "[retention]\nmessage_retention_days = 90\n"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    made.mkdir(mode=0o700)
    Identity.load(made, os.urandom)
    scene.populated(made / "relay.db")
    (made / "relay.toml").write_text(SETTINGS)
    return made


@pytest.fixture
def backup(data: Path, tmp_path: Path) -> Path:
    copy.backup(data, tmp_path / "backup", clock=lambda: 7)
    return tmp_path / "backup"


def _head(path: Path) -> history.Head:
    with closing(open_to_read(path)) as engine, engine.read() as transaction:
        return history.head(transaction)


def _dump(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    with closing(open_to_read(path)) as engine, engine.read() as transaction:
        return {table: transaction.rows(f"SELECT * FROM {table}") for table in sorted(transaction.tables())}


def _findings(path: Path) -> list[Any]:
    with closing(open_to_read(path)) as engine:
        return list(check(engine, SCHEMA))


def _last_entry(path: Path) -> protocol_history.Entry:
    with closing(open_to_read(path)) as engine:
        return list(history.walk(engine))[-1]


def _modes(folder: Path) -> dict[str, int]:
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}


def test_a_backup_has_the_database_the_keys_and_a_note_its_owners_alone(data: Path, tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        note = copy.backup(data, tmp_path / "backup", clock=lambda: 7)
    finally:
        os.umask(previous)
    backup = tmp_path / "backup"
    assert _modes(backup) == dict.fromkeys(
        ("relay.db", "relay.key", "operator.key", "relay.toml", "backup.json"), 0o600
    )
    assert stat.S_IMODE(backup.stat().st_mode) == 0o700
    head = _head(data / "relay.db")
    kept = json.loads((backup / "backup.json").read_text())
    assert kept == {
        "digest": kept["digest"],
        "format": 1,
        "log_id": head.log_id.hex(),
        "seq": head.seq,
        "chain": head.chain.hex(),
        "made_at": 7,
    }
    assert note.seq == head.seq
    assert _dump(backup / "relay.db") == _dump(data / "relay.db")
    assert Identity.read(backup) == Identity.read(data)
    assert {path.name for path in tmp_path.iterdir()} == {"data", "backup"}


WRITER = """
    import asyncio, itertools, os, sys
    from holdfast.relay.database import open_relay
    from holdfast.relay.relay import Relay
    from holdfast.relay.settings import Limits, Settings
    from tests.people import Person, raw
    from tests.relay import scene

    async def main():
        limits = Limits(queue_messages_max=10**6, messages_per_s=10**9, messages_burst=10**9)
        engine = open_relay(sys.argv[1], clock=lambda: scene.NOW)
        relay = Relay(engine, Settings(limits=limits), scene.IDENTITY, clock=lambda: scene.NOW)
        alice, bob = Person("alice"), Person("bob")
        alice.sequences = itertools.count(100)
        for n in itertools.count():
            (answer,) = await relay.publish([raw(alice.message(bob, str(n).encode()))])
            assert answer.http_status == 201, answer
            print(answer.members["history_id"], flush=True)

    asyncio.run(main())
"""


def test_backups_of_a_busy_relay_are_sound_and_have_all_that_was_acknowledged(data: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(WRITER), str(data / "relay.db")]
    relay = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    try:
        assert relay.stdout is not None
        for n in range(5):
            for _ in range(20):
                acknowledged = int(relay.stdout.readline())
            note = copy.backup(data, tmp_path / f"backup-{n}")
            assert note.seq >= acknowledged
            assert _findings(tmp_path / f"backup-{n}" / "relay.db") == []
        assert relay.poll() is None
    finally:
        relay.kill()
        relay.communicate()


def test_a_restored_relay_goes_on_as_another_log_and_the_history_says_so(
    data: Path, backup: Path, tmp_path: Path
) -> None:
    old, there = _head(data / "relay.db"), tmp_path / "there"
    restored = copy.restore(backup, there, clock=lambda: scene.NOW)
    assert _modes(there) == dict.fromkeys(("relay.db", "relay.key", "operator.key", "relay.toml", "relay.pid"), 0o600)
    assert stat.S_IMODE(there.stat().st_mode) == 0o700
    new = _head(there / "relay.db")
    assert new.log_id != old.log_id
    assert (restored.log_id, restored.seq) == (new.log_id.hex(), old.seq + 1)
    assert (restored.old_log_id, restored.fork_seq, restored.backup_made_at) == (old.log_id.hex(), old.seq, 7)
    entry = _last_entry(there / "relay.db")
    assert entry.kind is Kind.RESTORED
    assert entry.detail == old.log_id + new.log_id + old.seq.to_bytes(8, "big") + old.chain
    assert _findings(there / "relay.db") == []
    assert Identity.load(there, os.urandom) == Identity.read(data)


def test_everything_but_the_log_id_is_as_it_was(data: Path, backup: Path, tmp_path: Path) -> None:
    copy.restore(backup, tmp_path / "there")
    before, after = _dump(data / "relay.db"), _dump(tmp_path / "there" / "relay.db")
    assert after["history"][:-1] == before["history"]
    for table in before.keys() - {"history", "history_head"}:
        assert after[table] == before[table], table


def test_two_relays_of_one_backup_are_two_logs(backup: Path, tmp_path: Path) -> None:
    logs = {copy.restore(backup, tmp_path / name).log_id for name in ("one", "other")}
    assert len(logs) == 2


def test_a_restored_relay_works_and_knows_what_it_took_before(backup: Path, tmp_path: Path) -> None:
    copy.restore(backup, tmp_path / "there", clock=lambda: scene.NOW)

    async def scenario() -> list[int]:
        engine = open_relay(tmp_path / "there" / "relay.db")
        relay = Relay(engine, Settings(), scene.IDENTITY, clock=lambda: scene.NOW, inline=True)
        alice = Person("alice")
        events = [alice.found_mesh(), alice.message(Person("bob"), b"after the restore", client_message_id="new")]
        answers = await relay.publish([raw(event) for event in events], local=True)
        await relay.close()
        return [answer.http_status for answer in answers]

    assert asyncio.run(scenario()) == [200, 201]
    assert _findings(tmp_path / "there" / "relay.db") == []


def test_a_backup_of_an_older_schema_is_brought_up_to_date(
    backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.relay import database
    from holdfast.store.migrations import Migration, Schema

    newer = Schema(
        SCHEMA.program,
        (*SCHEMA.migrations, Migration("later", "CREATE TABLE later (id INTEGER) STRICT")),
        SCHEMA.checks,
        SCHEMA.walks,
    )
    monkeypatch.setattr(database, "SCHEMA", newer)
    monkeypatch.setattr(copy, "SCHEMA", newer)
    copy.restore(backup, tmp_path / "there")
    assert "later" in _dump(tmp_path / "there" / "relay.db")


WATCHED = """
    import sys
    from pathlib import Path
    seen = []

    def watch(event, arguments):
        if event.startswith("sqlite3") or (event == "open" and "relay.db" in Path(str(arguments[0])).name):
            seen.append((event, str(arguments[0])))

    sys.addaudithook(watch)
    from holdfast.relay import copy, statistics
    folder = Path(sys.argv[1])
    copy.backup(folder / "data", folder / "backup")
    copy.restore(folder / "backup", folder / "there")
    statistics.read(str(folder / "there" / "relay.db"), 0)
    print([path for event, path in seen if not Path(path).name.startswith(".relay.db.")])
"""


def test_databases_are_opened_by_sqlite_alone(data: Path, tmp_path: Path) -> None:
    """A descriptor of ours that closes would drop its locks. New files, which nobody has open, are made by hand."""
    command = [sys.executable, "-c", textwrap.dedent(WATCHED), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


# What is refused, and left as it is


def test_a_backup_does_not_replace_anything(data: Path, backup: Path, tmp_path: Path) -> None:
    before = (backup / "backup.json").read_bytes()
    with pytest.raises(faults.FileThere):
        copy.backup(data, backup)
    assert (backup / "backup.json").read_bytes() == before


def _without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _changed(statement: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        with closing(SqliteEngine(folder / "relay.db")) as engine, engine.write() as transaction:
            transaction.run(statement)

    return change


def _overwritten(name: str, content: bytes) -> Callable[[Path], None]:
    def overwrite(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return overwrite


def _exposed(folder: Path) -> None:
    (folder / "relay.key").chmod(0o644)


_TAMPERED = "UPDATE history SET reason = 'x' WHERE seq = 3"
_UNBALANCED = "UPDATE member SET queue_count = queue_count + 1"

BROKEN_DATA: dict[str, tuple[Callable[[Path], None], type[faults.Fault]]] = {
    "no database": (_without("relay.db"), faults.FileMissing),
    "no relay key": (_without("relay.key"), faults.FileMissing),
    "no operator key": (_without("operator.key"), faults.FileMissing),
    "a key that others may read": (_exposed, KeyExposed),
    "a changed entry": (_changed(_TAMPERED), CopyBroken),
    "a broken rule": (_changed(_UNBALANCED), CopyBroken),
    "another program's database": (_changed("UPDATE holdfast_migration SET program = 'device'"), faults.NotOurs),
    "no database of any kind": (_overwritten("relay.db", b"no database " * 1000), faults.NotOurs),
}


@pytest.mark.parametrize("name", BROKEN_DATA)
def test_what_is_not_sound_is_not_backed_up(data: Path, tmp_path: Path, name: str) -> None:
    spoil, fault = BROKEN_DATA[name]
    spoil(data)
    with pytest.raises(fault):
        copy.backup(data, tmp_path / "backup")
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


BROKEN_BACKUPS: dict[str, tuple[Callable[[Path], None], type[faults.Fault]]] = {
    "no note": (_without("backup.json"), NotABackup),
    "a note that is none": (_overwritten("backup.json", b"{}"), NotABackup),
    "a note of another backup": (
        _overwritten("backup.json", b'{"format":1,"log_id":"00","seq":1,"chain":"00","made_at":7}'),
        CopyBroken,
    ),
    "a note from the future": (
        _overwritten("backup.json", b'{"format":2,"log_id":"00","seq":1,"chain":"00","made_at":7}'),
        faults.NewerStore,
    ),
    "no database": (_without("relay.db"), faults.FileMissing),
    "no key": (_without("operator.key"), faults.FileMissing),
    "a key that others may read": (_exposed, KeyExposed),
    "a changed entry": (_changed(_TAMPERED), CopyBroken),
    "a broken rule": (_changed(_UNBALANCED), CopyBroken),
    "a database from the future": (
        _changed("INSERT INTO holdfast_migration VALUES (99, 'relay', 'x', 0)"),
        faults.NewerStore,
    ),
}


@pytest.mark.parametrize("name", BROKEN_BACKUPS)
def test_what_is_not_a_sound_backup_is_not_restored(backup: Path, tmp_path: Path, name: str) -> None:
    spoil, fault = BROKEN_BACKUPS[name]
    spoil(backup)
    there = tmp_path / "there"
    with pytest.raises(fault):
        copy.restore(backup, there)
    assert not there.exists() or [path.name for path in there.iterdir()] == ["relay.pid"]


def _relay_db(there: Path) -> None:
    (there / "relay.db").touch()


def _journal(there: Path) -> None:
    (there / "relay.db-wal").write_bytes(b"of a database that went")


def _other_key(there: Path) -> None:
    Identity.load(there, os.urandom)


def _other_settings(there: Path) -> None:
    (there / "relay.toml").write_text("port = 1\n")


def _is_backup(there: Path) -> None:
    (there / "backup.json").write_text("{}")


OCCUPIED: dict[str, tuple[Callable[[Path], None], type[faults.Fault]]] = {
    "a database": (_relay_db, faults.FileThere),
    "a journal without its database": (_journal, faults.FileThere),
    "the keys of another relay": (_other_key, faults.FileThere),
    "other settings": (_other_settings, faults.FileThere),
    "a backup": (_is_backup, IsBackup),
}


@pytest.mark.parametrize("name", OCCUPIED)
def test_a_relay_is_not_restored_over_something(backup: Path, tmp_path: Path, name: str) -> None:
    occupy, fault = OCCUPIED[name]
    there = tmp_path / "there"
    there.mkdir()
    occupy(there)
    before = {path.name: path.read_bytes() for path in there.iterdir()}
    with pytest.raises(fault):
        copy.restore(backup, there)
    assert {path.name: path.read_bytes() for path in there.iterdir() if path.name != "relay.pid"} == before


def test_a_restore_leaves_nothing_of_the_database_in_a_journal_behind_it(
    backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a disk that is full: the database is closed and its journal not copied into it, and nobody says so."""
    refuse_broken, readers = copy._refuse_broken, []

    def checked(engine: SqliteEngine) -> None:
        refuse_broken(engine)
        readers.append(apsw.Connection(engine.where))
        readers[-1].execute("SELECT count(*) FROM history").fetchall()

    monkeypatch.setattr(copy, "_refuse_broken", checked)
    monkeypatch.setattr(sqlite._BusyHandler, "__call__", lambda handler, prior: False)
    try:
        with pytest.raises(faults.Busy):
            copy.restore(backup, tmp_path / "there")
    finally:
        readers[-1].close()
    assert not (tmp_path / "there" / "relay.db").exists()
    monkeypatch.undo()
    copy.restore(backup, tmp_path / "there")
    assert _last_entry(tmp_path / "there" / "relay.db").kind is Kind.RESTORED


def test_a_restore_onto_a_disk_that_really_fills_up_says_so(backup: Path, tmp_path: Path) -> None:
    """On a file system of a few megabytes, in a name space of its own; needs the right to mount."""
    program = textwrap.dedent("""
        import os, shutil, sys
        from pathlib import Path
        from holdfast.relay import copy, database
        from holdfast.store import faults
        from holdfast.store.migrations import Migration, Schema

        backup, place = map(Path, sys.argv[1:])
        refuse_broken, ballast = copy._refuse_broken, place / "ballast"
        large = Migration("large", "CREATE TABLE large (content BLOB) STRICT; INSERT INTO large VALUES (zeroblob(300000))")
        more = Migration("more", "CREATE TABLE more (id INTEGER) STRICT")
        old = database.SCHEMA
        copy.SCHEMA = database.SCHEMA = Schema(old.program, (*old.migrations, large, more), old.checks, old.walks)
        (place / "there").mkdir(mode=0o700)
        for name in copy.KEY_FILES:
            shutil.copy(backup / name, place / "there" / name)

        def checked(engine):
            refuse_broken(engine)
            descriptor = os.open(ballast, os.O_CREAT | os.O_WRONLY)
            try:
                while True:
                    os.write(descriptor, bytes(4096))
            except OSError:
                os.close(descriptor)

        copy._refuse_broken = checked
        try:
            copy.restore(backup, place / "there")
        except faults.DiskFull:
            assert not (place / "there" / "relay.db").exists()
            print("full")
        copy._refuse_broken = refuse_broken
        ballast.unlink()
        copy.restore(backup, place / "there")
    """)
    (tmp_path / "small").mkdir()
    (backup / "relay.toml").unlink()  # nothing else is written that could meet the full disk
    mount = f"mount -t tmpfs -o size=3m none {tmp_path / 'small'}"
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-rm", "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount")
    there = [sys.executable, program, str(backup), str(tmp_path / "small")]
    command = [unshare, "-rm", "sh", "-c", f'{mount} && exec "$0" -c "$@"', *there]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("full\n", 0), done.stderr


def test_a_relay_is_not_restored_where_one_runs(backup: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    with hold(there), pytest.raises(RelayRunning, match=str(os.getpid())):
        copy.restore(backup, there)
    copy.restore(backup, there)


def test_a_relay_is_not_restored_into_nowhere_or_a_file(backup: Path, tmp_path: Path) -> None:
    with pytest.raises(faults.DirectoryMissing):
        copy.restore(backup, tmp_path / "no" / "where")
    (tmp_path / "file").write_text("x")
    with pytest.raises(faults.FileThere):
        copy.restore(backup, tmp_path / "file")


def test_the_keys_of_the_backup_may_be_there_already(data: Path, backup: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    shutil.copy2(data / "relay.key", there / "relay.key")
    copy.restore(backup, there)
    assert Identity.read(there) == Identity.read(data)


def test_the_settings_come_back_with_the_rest(backup: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    copy.restore(backup, there)
    assert (there / "relay.toml").read_text() == SETTINGS


def test_a_relay_without_settings_is_restored_without_any(data: Path, tmp_path: Path) -> None:
    (data / "relay.toml").unlink()
    copy.backup(data, tmp_path / "backup")
    copy.restore(tmp_path / "backup", tmp_path / "there")
    assert not (tmp_path / "backup" / "relay.toml").exists()
    assert not (tmp_path / "there" / "relay.toml").exists()


def test_a_relay_does_not_run_on_a_backup(backup: Path) -> None:
    with pytest.raises(IsBackup):
        Identity.load(backup, os.urandom)


# Killed at every step

# Runs `work(n)` in a child that dies before its n-th change of a directory, for n = 1, 2, … until a child gets through.
KILLED = """
    import os, signal, sys
    from pathlib import Path
    from holdfast.relay import copy

    CHANGES = {"os.mkdir", "os.rename", "os.link", "os.remove", "os.rmdir", "open"}

    def count(events, die_at):
        def hook(event, arguments):
            if event in CHANGES and (event != "open" or arguments[2] & os.O_CREAT):
                events.append(event)
                if len(events) == die_at:
                    os.kill(os.getpid(), signal.SIGKILL)
        return hook

    folder, what, n = Path(sys.argv[1]), sys.argv[2], 0
    while True:
        n += 1
        child = os.fork()
        if child == 0:
            sys.addaudithook(count([], n))
            if what == "backup":
                copy.backup(folder / "data", folder / f"killed-{n}")
            else:
                copy.restore(folder / "backup", folder / f"killed-{n}")
            os._exit(0)
        if os.waitpid(child, 0)[1] == 0:
            break
    print(n)
"""


def _kill(folder: Path, what: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), str(folder), what], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_a_backup_that_is_killed_is_whole_or_not_there(data: Path, tmp_path: Path) -> None:
    steps = _kill(tmp_path, "backup")
    assert steps > 10
    whole = [n for n in range(1, steps + 1) if (tmp_path / f"killed-{n}").exists()]
    for n in whole:
        copy.restore(tmp_path / f"killed-{n}", tmp_path / f"restored-{n}")
    assert whole[-1] == steps
    assert 1 not in whole


def test_a_restore_that_is_killed_is_whole_or_says_so_and_can_be_repeated(backup: Path, tmp_path: Path) -> None:
    steps = _kill(tmp_path, "restore")
    assert steps > 15
    unfinished, whole = 0, 0
    for n in range(1, steps + 1):
        there = tmp_path / f"killed-{n}"
        if (there / "relay.db").exists():
            whole += 1
            with pytest.raises(faults.FileThere):
                copy.restore(backup, there)
        else:
            if (there / "relay.key").exists():
                unfinished += 1
                with pytest.raises(RestoreUnfinished):
                    Identity.load(there, os.urandom)
            copy.restore(backup, there)
        assert _findings(there / "relay.db") == []
        assert _last_entry(there / "relay.db").kind is Kind.RESTORED
        assert Identity.load(there, os.urandom) == Identity.read(backup)
        assert (there / "relay.toml").read_text() == SETTINGS
    assert unfinished > 1
    assert whole >= 1
