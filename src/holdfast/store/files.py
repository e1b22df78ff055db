"""Files: making them whole and durable, finding them, and keeping a forked child away from open databases.

A forked child inherits SQLite's table of locks but none of the locks. Opening the file again in the child would trust that
table, and closing an inherited connection could remove the journal of the process that uses the file now; both lose
commits. So a child neither closes nor opens the databases that its parent had open.
"""

import ctypes
import errno
import os
import secrets
import weakref
from contextlib import suppress
from pathlib import Path

import apsw

from holdfast.store import faults

_MODE = 0o600

_MEANINGS: dict[int | None, type[faults.Fault]] = {
    errno.EEXIST: faults.FileThere,
    errno.EISDIR: faults.FileThere,
    errno.ENOENT: faults.FileMissing,
    errno.ENOTDIR: faults.DirectoryMissing,
    errno.EACCES: faults.NoAccess,
    errno.EPERM: faults.NoAccess,
    errno.EROFS: faults.NoAccess,
    errno.ENOSPC: faults.DiskFull,
    errno.EDQUOT: faults.DiskFull,
    errno.ENAMETOOLONG: faults.NameInvalid,
    errno.ELOOP: faults.NameInvalid,
}

_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS}

_open: "weakref.WeakKeyDictionary[apsw.Connection, tuple[int, int]]" = weakref.WeakKeyDictionary()
_inherited: set[tuple[int, int]] = set()


def find(path: Path, *, create: bool) -> None:
    """Raise a fault for a wrong path before SQLite opens it, which would call it 'unable to open' like a broken file."""
    try:
        status = path.stat()
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise faults.DirectoryMissing(str(path)) from None
        if path.is_symlink():
            raise faults.NameInvalid(str(path), "it is a link to nothing") from None
        if not create:
            raise faults.FileMissing(str(path)) from None
        _create_or_find(path)
        return
    except OSError as error:
        raise meaning(error, path) from error
    if not path.is_file():
        raise faults.NotOurs(str(path), "it is no regular file")
    if (status.st_dev, status.st_ino) in _inherited:
        raise faults.Forked(str(path))
    if create and status.st_size == 0:
        _tighten(path)


def create(path: Path) -> None:
    """Make an empty file that only its owner can read, with a durable name; the journal gets the same mode.

    It is closed before it gets its name: closing a descriptor later would drop this process's locks on the file.
    """
    nameless = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        _claim(nameless)
        try:
            if not _linked(nameless, path):
                _claim(path)
        finally:
            nameless.unlink()
        sync_directory(path.parent)
    except OSError as error:
        raise meaning(error, path) from error


def write_new(path: Path, content: bytes) -> None:
    """Make a small file that only its owner can read. A crash leaves the whole file, or none of that name."""
    partial = _written(path, content)
    try:
        give_name(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def replace(path: Path, content: bytes, mode: int = _MODE) -> None:
    """Replace the content of a small file. A crash leaves the old or the new content, whole."""
    partial = _written(path, content, mode)
    try:
        partial.rename(path)
        sync_directory(path.parent)
    except OSError as error:
        raise meaning(error, path) from error
    finally:
        partial.unlink(missing_ok=True)


def make_directory(path: Path) -> None:
    """Create a directory, readable by its owner only, unless it exists."""
    if not path.parent.is_dir():
        raise faults.DirectoryMissing(str(path))
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        sync_directory(path.parent)
    except OSError as error:
        raise meaning(error, path) from error


def give_name(made: Path, path: Path) -> None:
    """Give a finished file its name, durably; never over an existing file."""
    try:
        if _linked(made, path):
            made.unlink()
        else:
            _claim(path)
            made.rename(path)  # over the empty file that only we can have made
        sync_directory(path.parent)
    except OSError as error:
        raise meaning(error, path) from error


def sync_directory(directory: Path) -> None:
    """Sync a directory, which makes the names in it durable."""
    sync_file(directory)


def sync_file(path: Path) -> None:
    """Sync a file, or a directory, that is already written."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remember(path: str, connection: apsw.Connection) -> None:
    """Remember that this process has the file open."""
    status = os.stat(path)
    _open[connection] = (status.st_dev, status.st_ino)


def _create_or_find(path: Path) -> None:
    try:
        create(path)
    except faults.FileThere:
        find(path, create=False)  # another process was faster


def _tighten(path: Path) -> None:
    """Make an empty file that somebody else created readable by its owner only, before it is filled."""
    try:
        path.chmod(_MODE)
    except OSError as error:
        raise meaning(error, path) from error


def _claim(path: Path) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, _MODE))


def _linked(source: Path, path: Path) -> bool:
    """Hard-link a file; False if the file system has no hard links, as on many USB sticks and network drives."""
    try:
        os.link(source, path)
    except OSError as error:
        if error.errno in _NO_LINKS:
            return False
        raise
    return True


def _written(path: Path, content: bytes, mode: int = _MODE) -> Path:
    """Write a file with this content beside `path`, synced, and return its path."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, _MODE)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(content)
            file.flush()
            os.fsync(descriptor)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise meaning(error, path) from error
    return partial


def meaning(error: OSError, path: Path) -> faults.Fault:
    """The fault for an error of the operating system."""
    fault = _MEANINGS.get(error.errno, faults.DiskFailed)
    if fault is faults.FileMissing and not path.parent.is_dir():
        fault = faults.DirectoryMissing
    return fault(str(path), error.strerror or "")


def _keep_from_child() -> None:
    """In a forked child: mark the inherited files as never to be opened or closed, not even when the interpreter ends."""
    for connection, inode in list(_open.items()):
        _inherited.add(inode)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
    _open.clear()


os.register_at_fork(after_in_child=_keep_from_child)
