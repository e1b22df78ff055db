"""Who works in a home as its daemon: noted in `daemon.pid`, asked over its socket where that answers."""

import os
from contextlib import suppress
from pathlib import Path

import msgspec

from holdfast.device.home import Home, read_private
from holdfast.store import faults, files, notes

FILE_NAME = "daemon.pid"


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """The process of a daemon, and since when it has been at work (microseconds)."""

    pid: int
    since: int
    socket: str
    url: str | None = None


def note(home: Home, holder: Holder) -> None:
    """Say that this process is the home's daemon. It holds the home's lock: that, and not this file, keeps others out."""
    files.replace(_path(home), notes.write(holder))


def clear(home: Home) -> None:
    """Say that the daemon has ended."""
    _path(home).unlink(missing_ok=True)


def find(home: Home) -> Holder | None:
    """The daemon that noted itself last, if its process is still there."""
    with suppress(faults.Fault, msgspec.DecodeError, UnicodeDecodeError):
        holder = notes.read(read_private(_path(home)), Holder)  # another number would be another process
        if is_alive(holder.pid):
            return holder
    return None


def is_alive(pid: int) -> bool:
    """Whether there is such a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _path(home: Home) -> Path:
    return home.path / FILE_NAME
