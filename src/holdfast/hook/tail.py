"""Reading on in a file that others append to: whole lines only, from a mark that is never taken for one of another file."""

import os
import stat
from hashlib import sha256

import msgspec

LINE_BYTES_MAX = 16_777_216  # nobody writes longer ones; no more is read to find the end of one


class Mark(msgspec.Struct, frozen=True):
    """How far a file was read: a line of this size and digest ends there."""

    end: int = 0
    size: int = 0
    line: str = ""


def read(path: str | os.PathLike[str], mark: Mark, length: int) -> tuple[bytes, int, bool]:
    """The bytes after a mark, their start, and whether that is all; more than `length` bytes if one line is longer."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would keep us waiting
    except FileNotFoundError:
        return b"", 0, True
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return b"", 0, True
        start = found(descriptor, mark)
        content = _content(descriptor, start, length)
        while b"\n" not in content.strip(b"\n") and len(content) == length < LINE_BYTES_MAX:
            length *= 2
            content = _content(descriptor, start, length)
        return content, start, len(content) < length
    finally:
        os.close(descriptor)


def behind(content: bytes, start: int) -> Mark:
    """The mark behind some lines."""
    last = content[content.rstrip(b"\n").rfind(b"\n") + 1 :]
    return Mark(start + len(content), len(last), sha256(last).hexdigest())


def found(descriptor: int, mark: Mark) -> int:
    """Where to read on: behind the last line that was read, or at 0 if this is another file."""
    line = os.pread(descriptor, mark.size, mark.end - mark.size)
    return mark.end if mark.size and sha256(line).hexdigest() == mark.line else 0


def at_end(path: str | os.PathLike[str]) -> Mark:
    """The mark at the end of the last whole line."""
    mark = Mark()
    while True:
        content, start, is_whole = read(path, mark, 1_048_576)
        content = content[: content.rfind(b"\n") + 1]
        if not content.strip(b"\n"):
            return mark
        mark = behind(content, start)
        if is_whole:
            return mark


def _content(descriptor: int, start: int, length: int) -> bytes:
    parts: list[bytes] = []
    while length > 0 and (part := os.pread(descriptor, length, start)):
        parts.append(part)
        start += len(part)
        length -= len(part)
    return b"".join(parts)
