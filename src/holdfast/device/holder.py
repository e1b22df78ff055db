"""Which process is a home's daemon, as `daemon.pid` notes it."""

import os
from contextlib import suppress
from pathlib import Path

import msgspec

from holdfast.device.home import Home, read_private
from holdfast.store import faults, files, notes

FILE_NAME = "daemon.pid"


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """The process of a daemon, its start (microseconds) and its socket."""

    pid: int
    since: int
    socket: str
    url: str | None = None


def note(home: Home, holder: Holder) -> None:
    """Note the home's daemon. Only for information: the home's lock keeps other daemons out."""
    files.replace(_path(home), notes.write(holder))


def clear(home: Home) -> None:
    """Remove the note when the daemon ends."""
    _path(home).unlink(missing_ok=True)


def find(home: Home) -> Holder | None:
    """The daemon that is noted, if its process still exists."""
    with suppress(faults.Fault, msgspec.DecodeError, UnicodeDecodeError):
        holder = notes.read(read_private(_path(home)), Holder)  # a changed digit would name another process
        if is_alive(holder.pid):
            return holder
    return None


def working(home: Home) -> Holder | None:
    """The daemon that works here, or that we may not look for: the number of one that died may be another process's by now."""
    found = find(home)
    with suppress(faults.Fault):
        if found is not None:
            with home.entered(wait_s=0.0):
                return None
    return found


def is_alive(pid: int) -> bool:
    """Whether a process with this id exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _path(home: Home) -> Path:
    return home.path / FILE_NAME
