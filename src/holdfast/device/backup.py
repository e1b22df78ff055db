"""Back up a home into one sealed file, and restore it: its keys, its mesh, its operation log and its inbox.

Not in a backup: the local token, sockets, logs, the relay that `holdfast up` runs, and the note of the machine. A restored
home is another sender with a new epoch, because the original may have sent more after the backup, and it asks the relay
again for what it had acknowledged since. A restore happens whole or not at all.
"""

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import BinaryIO

import msgspec
import structlog

from holdfast.device import database, holder, operations, recover, scheduled, sealed_file
from holdfast.device.home import Home
from holdfast.device.member_keys import ARCHIVE_NAME, NEXT_NAME
from holdfast.device.sealed_file import PIECE_BYTES, SealBroken
from holdfast.store import faults, files
from holdfast.store.check import check
from holdfast.store.sqlite import SqliteEngine
from holdfast.store.world import Clock, Random

KEY_FILES = (NEXT_NAME, "member.key", ARCHIVE_NAME, "home.json")
DATABASE = "device.db"
STAYS = (
    "relay",
    "hook-installs.json",
)  # kept of a home that is replaced: they belong to the machine or another program
ATTEMPTS_MAX = 3  # to copy a home while none of its keys changes
MANIFEST_BYTES_MAX = 1_048_576

_MODE = 0o600

_log = structlog.get_logger(__name__)


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """Files of a home that other programs own and a backup takes along: plain files, and databases."""

    plain: tuple[str, ...] = ()
    databases: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All file names in the order of copying, sources first: a row that moves meanwhile is in both, not in neither."""
        return (*self.plain, *self.databases, *KEY_FILES, DATABASE)


class _File(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    size: int
    digest: str  # sha256


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The list of files in a backup, and whose home it is. Times are microseconds."""

    version: int = 1
    made_at: int
    member: str | None
    mesh: str | None
    files: tuple[_File, ...]


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What a restore did: the time of the backup, the home's new epoch, and where the replaced home was put."""

    made_at: int
    epoch: str
    waiting: int
    before: str | None


class KeysMoved(faults.Fault):
    what = "the member's key changed again and again while it was copied"
    remedy = "Try again when nobody rotates it."
    temporary = True


class HomeThere(faults.Fault):
    what = "there is a home here already; it was left as it is"
    remedy = "Name another home, or use --replace: the home that is here is then put aside, not removed."


def back_up(home: Home, path: Path, passphrase: str, clock: Clock, random: Random, others: Contents) -> Manifest:
    """Seal a home into a new file, which gets its name when it is whole. The daemon may run meanwhile."""
    if path.exists():
        raise faults.FileThere(str(path))
    with _staging(home.path, ".backup-", str(os.getpid())) as staged:
        _copy_at_one_moment(home, staged, others)
        manifest = _manifest(home, staged, clock())
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            _write(partial, passphrase, random, _content(manifest, staged))
            files.give_name(partial, path)
        finally:
            partial.unlink(missing_ok=True)
    return manifest


def restore(
    home: Home, path: Path, passphrase: str, clock: Clock, random: Random, others: Contents, *, replace: bool = False
) -> Restored:
    """Restore a home from a backup; `replace` puts an existing home aside. Refused while anybody works in it."""
    undo(home.path)
    is_there, now = home.path.exists(), clock()
    with home.entered(wait_s=0.0) if is_there else nullcontext():
        _check_place(home, replace)
        with _staging(home.path.parent, _restoring(home.path), f"{now}-{os.getpid()}") as staged:
            manifest = _unpack(path, passphrase, staged, others)
            epoch, waiting = _made_another_sender(staged / DATABASE, clock, random, str(path))
            before = _exchange(home.path, staged, _aside(home.path, now) if is_there else None)
    return Restored(
        made_at=manifest.made_at, epoch=epoch, waiting=waiting, before=None if before is None else str(before)
    )


def _copy_at_one_moment(home: Home, staged: Path, others: Contents) -> None:
    """Copy all files of a home, and again if a key changed meanwhile: keys and log must belong together."""
    for _ in range(ATTEMPTS_MAX):
        _empty(staged)
        before = _keys_of(home)
        for name in others.names:
            source = home.path / name
            if name in (DATABASE, *others.databases):
                _copy_database(source, staged / name, is_ours=name == DATABASE)
            else:
                _copy_plain(source, staged / name)
        if _keys_of(home) == before:
            return
    raise KeysMoved(str(home.path))


def _keys_of(home: Home) -> dict[str, bytes]:
    found = {}
    for name in KEY_FILES:
        with suppress(FileNotFoundError):  # a rotation may end at any moment
            found[name] = (home.path / name).read_bytes()
    return found


def _copy_database(source: Path, target: Path, *, is_ours: bool) -> None:
    if not is_ours and not source.exists():
        return
    engine = database.open_to_read(source) if is_ours else SqliteEngine(source, read_only=True)
    try:
        if is_ours:
            database.back_up(engine, target)
        else:
            engine.backup(target)
    finally:
        engine.close()


def _copy_plain(source: Path, target: Path) -> None:
    """Copy a file, if it exists."""
    with suppress(FileNotFoundError), source.open("rb") as reading, _created(target) as writing:
        shutil.copyfileobj(reading, writing)


def _manifest(home: Home, staged: Path, now: int) -> Manifest:
    membership = home.membership()
    found = [_File(name=path.name, size=path.stat().st_size, digest=_digest(path)) for path in sorted(staged.iterdir())]
    return Manifest(
        made_at=now,
        member=None if membership is None else membership.member,
        mesh=None if membership is None else membership.mesh,
        files=tuple(found),
    )


def _content(manifest: Manifest, staged: Path) -> Iterator[bytes]:
    yield msgspec.json.encode(manifest) + b"\n"
    for one in manifest.files:
        with (staged / one.name).open("rb") as file:
            while part := file.read(PIECE_BYTES):
                yield part


def _write(path: Path, passphrase: str, random: Random, content: Iterator[bytes]) -> None:
    try:
        with _created(path) as file:
            sealed_file.write(file, passphrase, random, content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise files.meaning(error, path) from error


def _unpack(path: Path, passphrase: str, staged: Path, others: Contents) -> Manifest:
    try:
        with path.open("rb") as file:
            content = _Reader(sealed_file.read(file, passphrase, str(path)), str(path))
            manifest = content.manifest(others)
            for one in manifest.files:
                content.file(one, staged / one.name)
            content.end()
    except OSError as error:
        raise files.meaning(error, path) from error
    return manifest


class _Reader:
    """Reads the files of a backup from its decrypted content, in order."""

    def __init__(self, parts: Iterator[bytes], where: str) -> None:
        self._parts = parts
        self._waiting = b""
        self._where = where

    def manifest(self, others: Contents) -> Manifest:
        while b"\n" not in self._waiting and len(self._waiting) <= MANIFEST_BYTES_MAX and self._more():
            pass
        line, _, self._waiting = self._waiting.partition(b"\n")
        try:
            manifest = msgspec.json.decode(line, type=Manifest)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise SealBroken(self._where, f"its list of files: {error}") from error
        names = [one.name for one in manifest.files]
        unknown = set(names) - set(others.names)
        if manifest.version != 1 or unknown or len(set(names)) != len(names) or DATABASE not in names:
            raise SealBroken(self._where, f"its list of files is not one that is known here ({sorted(unknown)})")
        return manifest

    def file(self, one: _File, target: Path) -> None:
        left = one.size
        with _created(target) as file:
            while left and (self._waiting or self._more()):
                part, self._waiting = self._waiting[:left], self._waiting[left:]
                file.write(part)
                left -= len(part)
            file.flush()
            os.fsync(file.fileno())
        if left or _digest(target) != one.digest:
            raise SealBroken(self._where, one.name)

    def end(self) -> None:
        """Read to the end, which proves that the backup was not cut off; refuses anything beyond the listed files."""
        if self._waiting or self._more():
            raise SealBroken(self._where, "there is more in it than it says")

    def _more(self) -> bool:
        for part in self._parts:
            if part:
                self._waiting += part
                return True
        return False


def _made_another_sender(path: Path, clock: Clock, random: Random, where: str) -> tuple[str, int]:
    """Migrate and check a restored log, and give it a new epoch; returns the epoch and how many sends wait."""
    engine = SqliteEngine(path)
    try:
        database.prepare(engine, clock, random)
        with engine.write() as transaction:
            recover.begin_again(transaction, clock())
        found = [f"{finding.check}: {finding.found}" for finding in check(engine, database.SCHEMA)]
        if found:
            raise SealBroken(where, f"its log: {found[0]}")
        with engine.read() as transaction:
            waiting = operations.count(transaction)[1] + scheduled.count(transaction)
            return operations.epoch(transaction).hex(), waiting
    finally:
        engine.close()


def _check_place(home: Home, replace: bool) -> None:
    if home.path.exists() and not replace and any(path.name != "lock" for path in home.path.iterdir()):
        raise HomeThere(str(home.path))


def _exchange(home: Path, staged: Path, aside: Path | None) -> Path | None:
    """Give the staged home its name; an existing one is put aside, after what `STAYS` was moved over."""
    if aside is None and home.exists():
        raise HomeThere(str(home))  # it was made since we looked, so nobody has agreed to replace it
    if aside is not None:
        home.rename(aside)
        for name in STAYS:
            if (aside / name).exists():
                (aside / name).rename(staged / name)
    files.sync_directory(staged)
    staged.rename(home)
    files.sync_directory(home.parent)
    if aside is not None and [path.name for path in aside.iterdir()] == ["lock"]:
        shutil.rmtree(aside)  # it was an empty directory
        aside = None
    return aside


def undo(home: Path) -> None:
    """Put back the home that a restore put aside and then died before naming the new one."""
    stem = _restoring(home)
    for left in _left_by_the_dead(home.parent, stem):
        aside = _aside(home, left.name.removeprefix(stem).partition("-")[0])
        if home.exists() or not aside.exists():
            continue
        for name in STAYS:
            if (left / name).exists():
                (left / name).rename(aside / name)
        files.sync_directory(aside)
        aside.rename(home)
        files.sync_directory(home.parent)
        _log.warning("an earlier restore had not come to its end; the home before it is back", home=str(home))


def _restoring(home: Path) -> str:
    """How the name of a staged home begins; the time of its restore and the process id follow."""
    return f".{home.name}.restoring-"


def _aside(home: Path, now: int | str) -> Path:
    return home.with_name(f"{home.name}.before-restore-{now}")


@contextmanager
def _staging(place: Path, stem: str, name: str) -> Iterator[Path]:
    """A staging directory, removed afterwards unless it was renamed; so are those that dead processes left."""
    for left in _left_by_the_dead(place, stem):
        # One that holds what `STAYS` is no mere copy: those files were moved there, and exist nowhere else.
        if not any((left / stays).exists() for stays in STAYS):
            shutil.rmtree(left, ignore_errors=True)
    made = place / f"{stem}{name}"
    try:
        made.mkdir(mode=0o700)
    except OSError as error:
        raise files.meaning(error, made) from error
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _left_by_the_dead(place: Path, stem: str) -> list[Path]:
    """Staging directories whose process is gone."""
    found: list[Path] = []
    with suppress(FileNotFoundError, PermissionError):  # we may lack the right to list the parent directory
        found = [path for path in place.iterdir() if path.name.startswith(stem)]
    numbers = {path: path.name.rpartition("-")[2] for path in found}
    return [
        path
        for path, number in numbers.items()
        if number.isdigit() and (int(number) == os.getpid() or not holder.is_alive(int(number)))
    ]


def _empty(directory: Path) -> None:
    for path in directory.iterdir():
        path.unlink()


def _created(path: Path) -> BinaryIO:
    """A new file that only its owner can open."""
    return os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, _MODE), "wb")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
