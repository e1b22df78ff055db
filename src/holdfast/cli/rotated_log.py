"""The log of a daemon that runs for a year: put aside when it is large or old, and gone when that was long ago.

Everything goes through stderr, which `daemon up` has tied to the file: a traceback of the interpreter lands there, too. So the
file is exchanged beneath it, and no line is ever cut in two.
"""

import json
import logging
import os
import sys
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from holdfast.device.settings import LogSettings
from holdfast.protocol.schedule import DAY, SECOND
from holdfast.store.world import Clock

_STDERR = 2
_MODE = 0o600
_LOOK_LINES = 256  # between two looks at the size: it need not be exact


class RotatedLog(logging.StreamHandler):  # type: ignore[type-arg]  # its stream is stderr
    """Writes to stderr, which is this file."""

    def __init__(self, path: Path, settings: LogSettings, clock: Clock) -> None:
        super().__init__(sys.stderr)
        self._path = path
        self.settings = settings
        self._clock = clock
        self._lines = 0
        self.look()

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        self._lines += 1
        if self._lines % _LOOK_LINES == 0:
            try:
                self.look()
            except OSError:  # whoever logs has other work; the lines go on into the file that is open
                self.handleError(record)

    def look(self) -> None:
        """Put the file aside if it is large or old, and remove what was put aside long ago.

        A file that is gone is begun anew: somebody has moved it away, or there was no room for it the last time.
        """
        now = self._clock()
        if self._is_over(now):
            put_aside(self._path, self.settings.files_max)
        if not self._path.exists():
            self._open()
        for aside in self._path.parent.glob(f"{self._path.name}.*"):
            with suppress(OSError):
                if now - aside.stat().st_mtime_ns // 1000 > self.settings.days_max * DAY:
                    aside.unlink()

    def _is_over(self, now: int) -> bool:
        try:
            size = self._path.stat().st_size
        except OSError:
            return False
        began_at = _began_at(self._path)
        is_old = began_at is not None and now - began_at > self.settings.days_max * DAY
        return size > self.settings.bytes_max or is_old

    def _open(self) -> None:
        self.flush()
        descriptor = os.open(self._path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, _MODE)
        os.dup2(descriptor, _STDERR)
        os.close(descriptor)


def put_aside(path: Path, files_max: int) -> None:
    """Rename the log to `.1`, each older one to the next number, and drop the oldest."""
    for number in range(files_max, 0, -1):
        source = path if number == 1 else path.with_name(f"{path.name}.{number - 1}")
        if source.exists():
            source.replace(path.with_name(f"{path.name}.{number}"))


def _began_at(path: Path) -> int | None:
    """When the first line was written (microseconds), if it says so."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError), path.open("rb") as file:
        return int(datetime.fromisoformat(json.loads(file.readline())["timestamp"]).timestamp() * SECOND)
    return None
