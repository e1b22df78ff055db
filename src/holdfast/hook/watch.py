"""A file watch: wakes the worker when a receiver has written something. Only a hint; the worker looks by itself, too.

Linux tells of changes through inotify, for which Python has no module. Elsewhere there is no watch, and the look is all.
"""

import asyncio
import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.hook.layout import SPOOL_NAME

EVENTS_BYTES_MAX = 65_536  # read at once
IN_MODIFY = 0x2
IN_CLOSE_WRITE = 0x8
_WATCHED = SPOOL_NAME.encode() + b"\0"


@contextmanager
def watching(home: Path, told: Callable[[], None]) -> Iterator[bool]:
    """Call `told` on this event loop whenever the spool has changed; says whether that is possible."""
    descriptor = _watch(home)
    if descriptor is None:
        yield False
        return

    def read() -> None:
        with suppress(BlockingIOError):
            events = os.read(descriptor, EVENTS_BYTES_MAX)
            if _WATCHED in events:
                told()

    loop = asyncio.get_running_loop()
    try:
        loop.add_reader(descriptor, read)
        yield True
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _watch(home: Path) -> int | None:
    """A descriptor that can be read when something in a directory was written."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None, use_errno=True)
    descriptor: int = library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:
        return None
    if library.inotify_add_watch(descriptor, os.fsencode(home), IN_MODIFY | IN_CLOSE_WRITE) < 0:
        os.close(descriptor)
        return None
    return descriptor
