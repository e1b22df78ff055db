"""One relay per data directory: the process that holds the lock on its `relay.pid` has the directory to itself.

The file holds the id of the process and, once it serves, its address. The kernel releases the lock when the process ends,
however it ends. The file stays: removing it could leave two processes each with a lock, on two files of the same name.
"""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.store import faults, files

PID_FILE = "relay.pid"


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
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN):
            raise files.meaning(error, path) from error
        holder = os.pread(descriptor, 20, 0).decode(errors="replace").partition("\n")[0]
        raise RelayRunning(str(path.parent), f"process {holder}") from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
