"""Small files that must be there whole or not at all, and what it means when a file cannot be had."""

import errno
import os
from contextlib import suppress
from pathlib import Path

from holdfast.store import faults
from holdfast.store.files import give_name, sync_directory

_MODE = 0o600

_MEANINGS: dict[int | None, type[faults.Fault]] = {
    errno.ENOENT: faults.FileMissing,
    errno.ENOTDIR: faults.FileMissing,
    errno.EEXIST: faults.FileThere,
    errno.EACCES: faults.NoAccess,
    errno.EPERM: faults.NoAccess,
    errno.EROFS: faults.NoAccess,
    errno.ENOSPC: faults.DiskFull,
    errno.EDQUOT: faults.DiskFull,
}


def create(path: Path, content: bytes) -> None:
    """Make a file that only its owner can read, durably. A crash leaves the whole file, or none of that name."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        partial.unlink(missing_ok=True)  # of an earlier process with our number
        descriptor = os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, _MODE)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise meaning(error, path) from error
    try:
        give_name(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def make_directory(path: Path) -> None:
    """See to it that there is a directory; a new one is its owner's alone."""
    if not path.parent.is_dir():
        raise faults.DirectoryMissing(str(path))
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        sync_directory(path.parent)
    except OSError as error:
        raise meaning(error, path) from error


def meaning(error: OSError, path: Path) -> faults.Fault:
    """The fault that an error of the operating system is."""
    return _MEANINGS.get(error.errno, faults.DiskFailed)(str(path), error.strerror or "")
