"""Damage of a write-ahead log. SQLite reads it up to the first frame with a wrong checksum, and silently drops the rest.

That is right after a power cut, which leaves at most one transaction half written: each is synced before the next begins.
If more than one commit follows the broken frame, SQLite would drop synced ones: then the file counts as damaged.
"""

import struct
from collections.abc import Callable

Read = Callable[[int, int], bytes]
"""Reads (size, offset) of the log."""

HEADER_BYTES = 32
FRAME_HEADER_BYTES = 24
UNSYNCED_COMMITS_MAX = 1

_MAGIC = {0x377F0682: "<", 0x377F0683: ">"}  # the byte order of the checksums
_MASK = 0xFFFFFFFF

Sums = tuple[int, int]


def damage(read: Read, size: int) -> str | None:
    """The damage of a write-ahead log of this size, beyond what a power cut leaves; None if there is none."""
    if size <= HEADER_BYTES:
        return None
    header = read(HEADER_BYTES, 0)
    magic, _, page_bytes, _, *salts, first, second = struct.unpack(">8I", header)
    order = _MAGIC.get(magic)
    if order is None or _summed(header[:24], (0, 0), order) != (first, second):
        return "the head of its write-ahead log is damaged"
    frame_bytes = FRAME_HEADER_BYTES + page_bytes
    frames = (size - HEADER_BYTES) // frame_bytes
    broken, sums = 0, (first, second)
    while broken < frames:
        frame = read(frame_bytes, HEADER_BYTES + broken * frame_bytes)
        sums = _summed(frame[FRAME_HEADER_BYTES:], _summed(frame[:8], sums, order), order)
        if len(frame) < frame_bytes or struct.unpack(">4I", frame[8:24]) != (*salts, *sums):
            break
        broken += 1
    behind = (read(16, HEADER_BYTES + number * frame_bytes) for number in range(broken, frames))
    commits = sum(_is_commit(head, salts) for head in behind)
    if commits <= UNSYNCED_COMMITS_MAX:
        return None
    return f"frame {broken} of its write-ahead log is damaged, and {commits} commits stand behind it"


def _is_commit(head: bytes, salts: list[int]) -> bool:
    """Whether a frame of this generation ends a transaction."""
    _, pages, *found = struct.unpack(">4I", head) if len(head) == 16 else (0, 0)
    return found == salts and pages > 0


def _summed(content: bytes, sums: Sums, order: str) -> Sums:
    first, second = sums
    words = struct.unpack(f"{order}{len(content) // 8 * 2}I", content[: len(content) // 8 * 8])
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & _MASK
        second = (second + odd + first) & _MASK
    return first, second
