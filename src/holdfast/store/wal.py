"""Is a write-ahead log whole? SQLite reads it up to the first frame whose checksum is wrong, and drops what follows without a word.

That is right for what a power cut left half written, which is one transaction at most: each is synced before the next
begins. Where more than one commit stands behind the broken frame, synced ones would be dropped: the file is damaged.
"""

import struct
from collections.abc import Callable

Read = Callable[[int, int], bytes]
"""So many bytes from there on."""

HEADER_BYTES = 32
FRAME_HEADER_BYTES = 24
UNSYNCED_COMMITS_MAX = 1

_MAGIC = {0x377F0682: "<", 0x377F0683: ">"}  # the order of the bytes in what is summed up
_MASK = 0xFFFFFFFF

Sums = tuple[int, int]


def damage(read: Read, size: int) -> str | None:
    """What is wrong with a write-ahead log of this size, beyond what a power cut leaves."""
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
