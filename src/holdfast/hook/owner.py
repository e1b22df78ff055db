"""Who a worker is: a name that is never used twice, and a file that it keeps locked for as long as it lives.

The system lets go of the lock when the process ends, however it ends. So others can see at once that an owner is dead; only
of one that has stalled they cannot be sure before its rows' locks lapse.
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from holdfast.store import files
from holdfast.store.world import Random

DIRECTORY_NAME = "hook-workers"
NAME_BYTES = 8


class Owner:
    """A living worker, from its making to `release`."""

    def __init__(self, home: Path, random: Random) -> None:
        files.make_directory(home / DIRECTORY_NAME)
        # The dead ones' files are removed here, for nobody else tidies up.
        gone(home, [name for name in os.listdir(home / DIRECTORY_NAME) if not name.startswith(".")])
        self.name = random(NAME_BYTES).hex()
        self._path = home / DIRECTORY_NAME / self.name
        try:
            self._descriptor = _held(self._path)
        except OSError as error:
            raise files.meaning(error, self._path) from error

    def release(self) -> None:
        """Give up the name and the lock."""
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


def gone(home: Path, names: list[str]) -> list[str]:
    """The owners that are dead for certain: an owner locks its file before the file gets the owner's name."""
    return [name for name in names if not _is_held(home / DIRECTORY_NAME / name)]


def _held(path: Path) -> int:
    """Make a file, lock it, and only then give it its name; returns its descriptor."""
    nameless = path.with_name(f".{path.name}")
    descriptor = os.open(nameless, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        nameless.rename(path)
    except BaseException:
        with suppress(OSError):
            nameless.unlink()
        os.close(descriptor)
        raise
    return descriptor


def _is_held(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        path.unlink(missing_ok=True)  # it left its file behind
        return False
    finally:
        os.close(descriptor)
