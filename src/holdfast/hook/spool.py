"""The spool: where receivers put events, one checked line each, on disk before it is said; the worker takes them from here.

Nobody waits for anybody. A receiver appends its line in one write, syncs it, and then looks whether the file still has its
name: if it has, the worker will read the line; if not, the worker may have read its last of that file, so the line is
appended to the next one, too. What is read twice is stored once, by its event id. The worker reads from where it was, and
takes the name from a file only to finish it. Imported by the receiver: the standard library only, and little of it.
"""

import os

from holdfast.hook import plain_json
from holdfast.hook.layout import REJECTED_NAME, SPOOL_NAME

Record = dict[str, object]

_sync = getattr(os, "fdatasync", os.fsync)  # not every system has it


class CutShort(OSError):
    """The disk took only a part of a line."""


def append(home: str, record: Record) -> None:
    """Append a record, on disk when this returns. A failure leaves half a line, which its checksum reveals."""
    line = b"\n" + _line(record)  # the line before may have been cut short
    path = f"{home}/{SPOOL_NAME}"
    while not _append(home, path, line):
        pass  # the worker has just begun a new file; it does so once in hundreds of events


def size(home: str) -> int:
    """How many bytes are in the spool, taken in or not."""
    return _size(f"{home}/{SPOOL_NAME}")


def rejected_size(home: str) -> int:
    """How many bytes were put aside, for a person to look at."""
    return _size(f"{home}/{REJECTED_NAME}")


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def put_aside(home: str, records: list[Record], damaged: list[bytes]) -> None:
    """Keep records that the database refused and damaged lines, for a person to look at."""
    descriptor = os.open(f"{home}/{REJECTED_NAME}", os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        _write(descriptor, b"".join([*map(_line, records), *(line + b"\n" for line in damaged)]))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def parse(content: bytes) -> tuple[list[Record], list[bytes]]:
    """The records in some lines, and the lines that are damaged."""
    records: list[Record] = []
    damaged: list[bytes] = []
    for line in content.split(b"\n"):
        record = _record(line)
        if record is not None:
            records.append(record)
        elif line:
            damaged.append(line)
    return records, damaged


def _append(home: str, path: str, line: bytes) -> bool:
    """Append and sync a line; whether the file still has the spool's name after that."""
    descriptor = _open(home, path)
    try:
        if os.fstat(descriptor).st_size == 0:
            # Nobody has said yet that anything is in this file: its name, and that of a new home, must be on disk before.
            _sync_directory(home)
            try:  # noqa: SIM105 - what `suppress` is in costs too much to load
                _sync_directory(os.path.dirname(home) or ".")
            except PermissionError:
                pass  # who may not even look into it has not made the home there
        if os.write(descriptor, line) != len(line):
            raise CutShort(f"{SPOOL_NAME} could not be written to its end")
        _sync(descriptor)
        return _has_name(descriptor, path)
    finally:
        os.close(descriptor)


def _open(home: str, path: str) -> int:
    flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:
        os.makedirs(home, 0o700, exist_ok=True)
        return os.open(path, flags, 0o600)


def _has_name(descriptor: int, path: str) -> bool:
    try:
        named = os.stat(path)
    except FileNotFoundError:
        return False
    ours = os.fstat(descriptor)
    return (named.st_dev, named.st_ino) == (ours.st_dev, ours.st_ino)


def _write(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]


def _line(record: Record) -> bytes:
    content = plain_json.write(record).encode()
    return b"%s %s\n" % (_check(content), content)


def _check(content: bytes) -> bytes:
    from binascii import crc32  # here, because whoever only asks for the size needs none

    return b"%08x" % crc32(content)


def _record(line: bytes) -> Record | None:
    check, _, content = line.partition(b" ")
    if check != _check(content):
        return None
    try:
        record = plain_json.read(content.decode())
    except ValueError:  # even of nothing at all there is a right checksum
        return None
    return record if isinstance(record, dict) else None


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
