"""Installing: our entries in an agent's own settings file, with the file as it was kept beside it until they go again.

What was written is noted in the home. If the file is still exactly that when our entries are to go, the one from before comes
back, byte for byte; if somebody has changed it meanwhile, only our entries go.
"""

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from holdfast.hook import entries
from holdfast.hook.json_text import NotJson
from holdfast.store import faults, files, notes

RECORD_NAME = "hook-installs.json"
BACKUP_ENDING = ".before-holdfast"
FILE_MODE = 0o600  # of settings that were not there


class Unreadable(faults.Fault):
    what = "these settings cannot be read; they were left as they are"
    remedy = "Correct them, then try again."


class Changed(faults.Fault):
    what = "somebody has changed these settings in this very moment; they were left as they are"
    remedy = "Try again."
    temporary = True


class NotInstalled(Exception):
    """There is nothing of ours to remove."""


class Install(msgspec.Struct, frozen=True, kw_only=True):
    """One install into a settings file. `backup` is None if the file did not exist before."""

    agent: str
    kind: str  # hooks or notify
    path: str
    sha256: str  # of what was written
    backup: str | None
    made_directory: bool
    backup_sha256: str | None = None  # None in what was written before there was one


class _Installs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the record file."""

    installs: list[Install]


def _noted(raw: bytes) -> list[Install]:
    if raw.lstrip().startswith(b"["):  # as it was written before there was a digest
        return msgspec.json.decode(raw, type=list[Install])
    return notes.read(raw, _Installs).installs


class Installer:
    """Puts entries into settings files and takes them out again; remembers in the home what it did."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._record = home / RECORD_NAME

    def install(self, agent: str, kind: str, path: Path, add: Callable[[str], str]) -> Install:
        """Have our entries in a file; those of an earlier install are replaced."""
        with self._alone():
            return self._install(agent, kind, _real(path), add)

    def uninstall(self, kind: str, path: Path) -> None:
        """Take our entries out of a file."""
        with self._alone():
            self._uninstall(kind, _real(path))

    def _install(self, agent: str, kind: str, path: Path, add: Callable[[str], str]) -> Install:
        before = _read(path)
        base = self._base(kind, path, before)
        with _readable(path):
            text = add("" if base is None else base.decode())
        made_directory = _make_directory(path.parent) or self._has_made_directory(kind, path)
        backup = None if base is None else f"{path}{BACKUP_ENDING}"
        mode = _mode(path)
        if base is not None and backup is not None:
            files.replace(Path(backup), base, mode)
        done = Install(
            agent=agent,
            kind=kind,
            path=str(path),
            sha256=_digest(text.encode()),
            backup=backup,
            made_directory=made_directory,
            backup_sha256=None if base is None else _digest(base),
        )
        self._remember([*self._others(kind, path), done])
        _exchange(path, before, text.encode(), mode)
        return done

    def _uninstall(self, kind: str, path: Path) -> None:
        before = _read(path)
        known = self._find(kind, path)
        base = self._base(kind, path, before)
        if base == before and known is None:
            raise NotInstalled
        if base != before:
            _exchange(path, before, base, _mode(path))
        if known is not None:
            self._remember(self._others(kind, path))
            _clean_up(known, path)

    def installs(self) -> list[Install]:
        """The installs that were not uninstalled."""
        try:
            return _noted(self._record.read_bytes())
        except FileNotFoundError:
            return []
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Unreadable(str(self._record), str(error)) from error

    def _base(self, kind: str, path: Path, before: bytes | None) -> bytes | None:
        """The file without our entries: the backup, if nobody has changed the file since the install."""
        known = self._find(kind, path)
        if known is not None and before is not None and _digest(before) == known.sha256:
            kept = None if known.backup is None else _read(Path(known.backup))
            if known.backup is None or _is_as_kept(kept, known):
                return kept
        if before is None:
            return None
        remove = entries.without_notify if kind == "notify" else entries.without_hooks
        with _readable(path):
            return remove(before.decode()).encode()

    def _find(self, kind: str, path: Path) -> Install | None:
        return next((one for one in self.installs() if (one.kind, one.path) == (kind, str(path))), None)

    def _others(self, kind: str, path: Path) -> list[Install]:
        return [one for one in self.installs() if (one.kind, one.path) != (kind, str(path))]

    def _has_made_directory(self, kind: str, path: Path) -> bool:
        known = self._find(kind, path)
        return known is not None and known.made_directory

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold a lock on the home, so that nobody else changes the record meanwhile."""
        files.make_directory(self._home)
        descriptor = os.open(self._home, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _remember(self, installs: list[Install]) -> None:
        files.replace(self._record, notes.write(_Installs(installs=installs)))


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Say in which file something could not be understood."""
    try:
        yield
    except (NotJson, UnicodeDecodeError) as error:
        raise Unreadable(str(path), str(error)) from error


def _real(path: Path) -> Path:
    """The file behind a link: people keep their settings elsewhere and link to them."""
    return Path(os.path.realpath(path))


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise files.meaning(error, path) from error


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode & 0o777
    except FileNotFoundError:
        return FILE_MODE


def _make_directory(path: Path) -> bool:
    if path.is_dir():
        return False
    files.make_directory(path)
    return True


def _exchange(path: Path, before: bytes | None, after: bytes | None, mode: int) -> None:
    """Replace a file's content; Changed if it is no longer what was read."""
    if _read(path) != before:
        raise Changed(str(path))
    if after is None:
        path.unlink(missing_ok=True)
        files.sync_directory(path.parent)
    else:
        files.replace(path, after, mode)


def _clean_up(known: Install, path: Path) -> None:
    if known.backup is not None:
        Path(known.backup).unlink(missing_ok=True)
    if known.made_directory:
        with suppress(OSError):  # somebody else uses it by now
            path.parent.rmdir()


def _is_as_kept(found: bytes | None, known: Install) -> bool:
    """Whether a backup still has the content that was backed up."""
    return found is not None and known.backup_sha256 in (None, _digest(found))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
