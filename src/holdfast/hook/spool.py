"""The spool: where events go while the database cannot take them, one checked line each, on disk before it is said.

Everybody appends under the file's lock, and while it is not empty every event goes there, so that none overtakes another.
Whoever empties it holds the same lock from reading the last lines to truncating; the file is never removed, so the lock is
always the same one. Imported by the receiver: the standard library only, and little of it.
"""

import os
import time

from holdfast.hook import plain_json
from holdfast.hook.layout import REJECTED_NAME, SPOOL_NAME

LOCK_WAIT_S = 2.0  # for whoever empties it; some agents give a hook three seconds
LOCK_POLL_S = 0.002
PIECE_BYTES = 1_048_576  # read and stored together; only what is less than that is read under the lock

Record = dict[str, object]


class Occupied(OSError):
    """Somebody has held the spool for too long."""


def is_empty(home: str) -> bool:
    """Whether the database may be written to directly."""
    return size(home) == 0


def size(home: str) -> int:
    """How many bytes wait here."""
    try:
        return os.stat(f"{home}/{SPOOL_NAME}").st_size
    except FileNotFoundError:
        return 0


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
        before = os.fstat(descriptor).st_size
        try:
            _write(descriptor, _mended(descriptor, before) + _line(record))
            os.fsync(descriptor)
            if before == 0:
                _sync_directory(home)  # the file may be new
        except BaseException:
            os.ftruncate(descriptor, before)  # half a line would stand in the way of the next one
            raise
    finally:
        os.close(descriptor)


def put_aside(home: str, records: list[Record], damaged: list[bytes]) -> None:
    """Keep, for a person to look at, what no database would take."""
    descriptor = os.open(f"{home}/{REJECTED_NAME}", os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        _write(descriptor, b"".join([*map(_line, records), *(line + b"\n" for line in damaged)]))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Mark:
    """How far the spool was read: `line` ends at `end`, and being one of a kind proves that nobody has emptied it since."""

    def __init__(self, end: int = 0, line: bytes = b"") -> None:
        self.end = end
        self.line = line

    def found(self, descriptor: int) -> int:
        """Where to read on."""
        start = self.end - len(self.line)
        return self.end if os.pread(descriptor, len(self.line), start) == self.line else 0


class Piece:
    """Lines of the spool: records, and what is damaged, because a receiver died over it or the disk lost it."""

    def __init__(self, content: bytes, mark: Mark) -> None:
        self.mark = mark
        self.records: list[Record] = []
        self.damaged: list[bytes] = []
        for line in content.split(b"\n"):
            record = _record(line)
            if record is not None:
                self.records.append(record)
            elif line:
                self.damaged.append(line)


def ahead(home: str, mark: Mark) -> Piece | None:
    """The next lines behind a mark, while there are many: they need no lock, only the last few do. None if there are few."""
    descriptor = _open_to_read(home)
    try:
        start, length = mark.found(descriptor), PIECE_BYTES
        if os.fstat(descriptor).st_size - start <= PIECE_BYTES:
            return None
        while b"\n" not in (content := _content(descriptor, start, length)) and len(content) == length:
            length *= 2
    finally:
        os.close(descriptor)
    content = content[: content.rfind(b"\n") + 1]
    last = content[content.rfind(b"\n", 0, -1) + 1 :]
    return Piece(content, Mark(start + len(content), last)) if content else None


class Emptying:
    """The spool behind a mark, held: `records` are to be stored, then `truncate`. Somebody else may have it: no `is_held`."""

    def __init__(self, home: str, mark: Mark | None = None) -> None:
        self._home = home
        self._descriptor: int | None = None
        content = b""
        if not is_empty(home):
            self._descriptor = _held(home)
        if self._descriptor is not None:
            start = (mark or Mark()).found(self._descriptor)
            content = _content(self._descriptor, start, os.fstat(self._descriptor).st_size - start)
        piece = Piece(content, Mark())
        self.records, self.damaged = piece.records, piece.damaged

    @property
    def is_held(self) -> bool:
        return self._descriptor is not None

    def truncate(self) -> None:
        """Everything is stored elsewhere."""
        if self._descriptor is not None:
            descriptor = _open(self._home)
            try:
                os.ftruncate(descriptor, 0)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def __enter__(self) -> "Emptying":
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _held(home: str) -> int | None:
    """The spool, locked; None where somebody else has it."""
    descriptor = _open_to_read(home)
    try:
        _lock(descriptor, 0.0)
    except Occupied:
        os.close(descriptor)
        return None
    return descriptor


def _open(home: str) -> int:
    return os.open(f"{home}/{SPOOL_NAME}", os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, 0o600)


def _open_to_read(home: str) -> int:
    """The spool, for the worker: it is told when somebody closes what could be written to, and must not tell itself."""
    return os.open(f"{home}/{SPOOL_NAME}", os.O_RDONLY | os.O_CLOEXEC)


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


def _content(descriptor: int, start: int, size: int) -> bytes:
    parts: list[bytes] = []
    while size > 0 and (part := os.pread(descriptor, size, start)):
        parts.append(part)
        start += len(part)
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
