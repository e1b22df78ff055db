"""One relay per data directory: the process that holds the lock on its `relay.pid` has the directory to itself.

The file holds the id of the process and, once it serves, its address. The kernel releases the lock when the process ends,
however it ends. The file stays: removing it could leave two processes each with a lock, on two files of the same name.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.store import faults, files

PID_FILE = "relay.pid"

TRIES, TRY_S = 10, 0.02
"""How often, and at which interval, a lock must be held by another to count as a running relay's."""


class RelayRunning(faults.Fault):
    what = "a relay is running on this directory"
    remedy = "Stop it first, or choose another directory."
    temporary = True


class NotRunning(faults.Fault):
    what = "no relay is running on this directory"
    remedy = "Start it with `holdfast relay run`."
    temporary = True


@contextmanager
def hold(data: Path) -> Iterator[None]:
    """Hold the lock of a data directory, or raise RelayRunning."""
    path = data / PID_FILE
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise files.meaning(error, path) from error
    try:
        _take(descriptor, path)
        yield
    finally:
        os.close(descriptor)


def note_address(data: Path, url: str) -> None:
    """Write the address of this relay, which holds the lock, into the file."""
    with (data / PID_FILE).open("a", encoding="ascii") as file:
        file.write(f"{url}\n")


def address(data: Path) -> str:
    """The address of the relay that runs on a directory."""
    path = data / PID_FILE
    try:
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                _, url, *_ = [*file.read().decode(errors="replace").splitlines(), "", ""]
                if url:
                    return url
    except FileNotFoundError:
        pass
    except OSError as error:
        raise files.meaning(error, path) from error
    raise NotRunning(str(data))


def _take(descriptor: int, path: Path) -> None:
    for _ in range(TRIES - 1):  # somebody may only ask where a relay runs, and has the lock for a moment
        with suppress(BlockingIOError):
            return _take_now(descriptor, path)
        time.sleep(TRY_S)
    try:
        _take_now(descriptor, path)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 20, 0).decode(errors="replace").partition("\n")[0]
        raise RelayRunning(str(path.parent), f"process {holder}") from error


def _take_now(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        raise files.meaning(error, path) from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
