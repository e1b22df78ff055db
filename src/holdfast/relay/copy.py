"""Backups of a relay, and restoring a relay from one.

A backup is a directory (0700) with `relay.db`, both key files, `relay.toml` if there is one, and `backup.json`, which
describes it and keeps a relay from running on it. A backup contains the relay's secret keys. A restored relay is a fork:
it continues under a new log id, because the original may have continued too.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec

from holdfast.protocol.history import LOG_ID_BYTES
from holdfast.relay import identity
from holdfast.relay.database import SCHEMA, open_relay, open_to_read
from holdfast.relay.identity import BACKUP_NOTE, DATABASE, KEY_FILES, RESTORING
from holdfast.relay.lock import hold
from holdfast.relay.settings import FILE_NAME as SETTINGS
from holdfast.store import faults, files, history, migrations, notes
from holdfast.store.check import check
from holdfast.store.engine import Engine
from holdfast.store.files import sync_directory
from holdfast.store.sqlite import SqliteEngine
from holdfast.store.world import Clock, Random, wall_clock

_FORMAT = 1
_JOURNALS = ("-wal", "-shm", "-journal")  # left by a removed database; SQLite would use them with the new one


class CopyBroken(faults.Fault):
    what = "the copy does not keep the rules of a relay's database; it was thrown away"
    remedy = "Run `holdfast check` on the database that it was made from."


class NotABackup(faults.Fault):
    what = "this is not a backup of a relay"
    remedy = "Give the directory that `holdfast relay backup` made."


class Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `backup.json`: which history the backup holds, and when it was made."""

    format: int
    log_id: str
    seq: int
    chain: str
    made_at: int

    @classmethod
    def of(cls, head: history.Head, made_at: int) -> "Note":
        return cls(_FORMAT, head.log_id.hex(), head.seq, head.chain.hex(), made_at)


class Restored(msgspec.Struct, frozen=True):
    """The result of a restore: the old and the new log, and where they part."""

    log_id: str
    seq: int
    old_log_id: str
    fork_seq: int
    backup_made_at: int


def backup(data: Path, target: Path, *, clock: Clock = wall_clock) -> Note:
    """Copy a relay, which may be running, into a new directory. It gets its name only when the copy is complete and checked."""
    if target.exists():
        raise faults.FileThere(str(target))
    with closing(migrations.open_to_read(data / DATABASE, SCHEMA)) as engine, _partial(target) as partial:
        engine.backup(partial / DATABASE)
        for name in KEY_FILES:
            identity.write_key(partial / name, identity.read_key(data / name))
        settings = _settings(data)
        if settings is not None:
            files.write_new(partial / SETTINGS, settings)
        note = _checked(partial / DATABASE, clock())
        files.write_new(partial / BACKUP_NOTE, notes.write(note))
        partial.rename(target)
    sync_directory(target.parent)
    return note


def restore(source: Path, data: Path, *, clock: Clock = wall_clock, random: Random = os.urandom) -> Restored:
    """Restore a backup into a directory that has no relay.

    A crash leaves a directory without a database and with a mark: no relay runs on it until the restore is repeated.
    """
    note = _read_note(source)
    secrets = {name: identity.read_key(source / name) for name in KEY_FILES}
    settings = _settings(source)
    files.make_directory(data)
    with hold(data):
        _refuse_occupied(data, secrets, settings)
        staging = _clear(data / RESTORING)
        try:
            restored = _stage(source / DATABASE, staging / DATABASE, note, clock, random)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise
        for name in KEY_FILES:
            if not (data / name).exists():
                identity.write_key(data / name, secrets[name])
        if settings is not None and not (data / SETTINGS).exists():
            files.write_new(data / SETTINGS, settings)
        (staging / DATABASE).rename(data / DATABASE)  # last: a directory with a database counts as a relay's
        sync_directory(data)
        shutil.rmtree(staging, ignore_errors=True)  # if it stays, it means nothing beside a database
    return restored


def _settings(folder: Path) -> bytes | None:
    """The bytes of a directory's settings file; None without one. A backup has it, because retention is part of a relay."""
    try:
        return (folder / SETTINGS).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise files.meaning(error, folder / SETTINGS) from error


@contextmanager
def _partial(target: Path) -> Iterator[Path]:
    """A new directory beside the target, which is removed afterwards unless it was renamed."""
    if not target.parent.is_dir():
        raise faults.DirectoryMissing(str(target))
    try:
        partial = Path(tempfile.mkdtemp(prefix=f"{target.name}.", suffix=".partial", dir=target.parent))
    except OSError as error:
        raise files.meaning(error, target) from error
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _checked(path: Path, now: int) -> Note:
    """The note of a copied database, after all checks have passed on the copy."""
    with closing(open_to_read(path)) as copy:
        _refuse_broken(copy)
        with copy.read() as transaction:
            return Note.of(history.head(transaction), now)


def _refuse_broken(copy: Engine) -> None:
    findings = list(check(copy, SCHEMA))
    if findings:
        raise CopyBroken(copy.where, "; ".join(f"{finding.check}: {finding.found}" for finding in findings[:3]))


def _read_note(source: Path) -> Note:
    try:
        note = notes.read((source / BACKUP_NOTE).read_bytes(), Note)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotABackup(str(source), f"it has no {BACKUP_NOTE}") from error
    except OSError as error:
        raise files.meaning(error, source / BACKUP_NOTE) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotABackup(str(source / BACKUP_NOTE), str(error)) from error
    if note.format != _FORMAT:
        raise faults.NewerStore(str(source / BACKUP_NOTE), f"format {note.format}, this one knows {_FORMAT}")
    return note


def _refuse_occupied(data: Path, secrets: dict[str, bytes], settings: bytes | None) -> None:
    for name in (DATABASE, *(DATABASE + journal for journal in _JOURNALS)):
        if (data / name).exists():
            raise faults.FileThere(str(data / name))
    for name, secret in secrets.items():
        if (data / name).exists() and identity.read_key(data / name) != secret:
            raise faults.FileThere(str(data / name), "it is the key of another relay")
    if settings is not None and _settings(data) not in (None, settings):
        raise faults.FileThere(str(data / SETTINGS), "it has other settings than the backup")
    if (data / BACKUP_NOTE).exists():
        raise identity.IsBackup(str(data))


def _clear(staging: Path) -> Path:
    """Make an empty staging directory whose name is durable before anything else is."""
    if staging.exists():
        shutil.rmtree(staging)  # of a restore that was interrupted
    staging.mkdir(mode=0o700)
    sync_directory(staging.parent)
    return staging


def _stage(source: Path, staged: Path, note: Note, clock: Clock, random: Random) -> Restored:
    """Copy the database, bring it up to date, fork its history, and check the result."""
    with closing(SqliteEngine(source, read_only=True)) as engine:
        migrations.current(engine, SCHEMA)  # refuses what is not a relay's; an older version is fine
        engine.backup(staged)
    with closing(open_relay(staged, clock=clock, random=random)) as engine:
        with engine.read() as transaction:
            old = history.head(transaction)
        if Note.of(old, note.made_at) != note:
            raise CopyBroken(str(source), f"it is not the database that {BACKUP_NOTE} tells of")
        with engine.write() as transaction:
            history.fork(transaction, clock(), random(LOG_ID_BYTES))
            new = history.head(transaction)
        _refuse_broken(engine)
        engine.settle()
    return Restored(new.log_id.hex(), new.seq, old.log_id.hex(), old.seq, note.made_at)
