"""The spool: where events go while the database cannot take them, one checked line each, on disk before it is said.

Everybody appends under the file's lock, and while it is not empty every event goes there, so that none overtakes another.
Whoever empties it holds the same lock from reading to truncating; the file is never removed, so the lock is always the
same one. Imported by the receiver: the standard library only, and little of it.
"""

import os
import time

from holdfast.hook import plain_json
from holdfast.hook.layout import REJECTED_NAME, SPOOL_NAME

LOCK_WAIT_S = 2.0  # for whoever empties it; some agents give a hook three seconds
LOCK_POLL_S = 0.002

Record = dict[str, object]


class Occupied(OSError):
    """Somebody has held the spool for too long."""


def is_empty(home: str) -> bool:
    """Whether the database may be written to directly."""
    try:
        return os.stat(f"{home}/{SPOOL_NAME}").st_size == 0
    except FileNotFoundError:
        return True


def mentions(home: str, text: str) -> bool:
    """Whether something that waits here has this text in it."""
    if is_empty(home):
        return False
    with open(f"{home}/{SPOOL_NAME}", "rb") as file:
        return text.encode() in file.read()


def append(home: str, record: Record) -> None:
    """Have a record on disk. A failure leaves the spool as it was."""
    descriptor = _open(home)
    try:
        _lock(descriptor, LOCK_WAIT_S)
        size = os.fstat(descriptor).st_size
        try:
            _write(descriptor, _mended(descriptor, size) + _line(record))
            os.fsync(descriptor)
            if size == 0:
                _sync_directory(home)  # the file may be new
        except BaseException:
            os.ftruncate(descriptor, size)  # half a line would stand in the way of the next one
            raise
    finally:
        os.close(descriptor)


def put_aside(home: str, records: list[Record]) -> None:
    """Keep, for a person to look at, what no database would take."""
    descriptor = os.open(f"{home}/{REJECTED_NAME}", os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        _write(descriptor, b"".join(map(_line, records)))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Emptying:
    """The spool, held: `records` are to be stored, then `truncate`. Where somebody else has it there are none."""

    def __init__(self, home: str) -> None:
        self.records: list[Record] = []
        self.damaged = 0  # lines that were never wholly written, so nobody was told that they are stored
        self._descriptor: int | None = None
        if is_empty(home):
            return
        descriptor = _open(home)
        try:
            _lock(descriptor, 0.0)
        except Occupied:
            os.close(descriptor)
            return
        self._descriptor = descriptor
        for line in _content(descriptor).split(b"\n"):
            record = _record(line)
            if record is not None:
                self.records.append(record)
            elif line:
                self.damaged += 1

    def truncate(self) -> None:
        """Everything is stored elsewhere."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.fsync(self._descriptor)

    def __enter__(self) -> "Emptying":
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _open(home: str) -> int:
    return os.open(f"{home}/{SPOOL_NAME}", os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, 0o600)


def _lock(descriptor: int, wait_s: float) -> None:
    import fcntl  # here, because most receivers only look whether the spool is empty

    give_up_at = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= give_up_at:
                raise Occupied(f"{SPOOL_NAME} has been locked for {wait_s:g} s") from None
            time.sleep(LOCK_POLL_S)
        else:
            return


def _mended(descriptor: int, size: int) -> bytes:
    """What must stand before the next line: a crash may have left half of one."""
    return b"" if size == 0 or os.pread(descriptor, 1, size - 1) == b"\n" else b"\n"


def _write(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]


def _content(descriptor: int) -> bytes:
    size = os.fstat(descriptor).st_size
    parts: list[bytes] = []
    while size > 0:
        part = os.pread(descriptor, size, sum(map(len, parts)))
        if not part:
            break
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _line(record: Record) -> bytes:
    content = plain_json.write(record).encode()
    return b"%s %s\n" % (_check(content), content)


def _check(content: bytes) -> bytes:
    from binascii import crc32  # likewise

    return b"%08x" % crc32(content)


def _record(line: bytes) -> Record | None:
    check, _, content = line.partition(b" ")
    if check != _check(content):
        return None
    record = plain_json.read(content.decode())
    return record if isinstance(record, dict) else None


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
