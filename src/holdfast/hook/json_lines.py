"""Files of JSON lines that we add to, one whole line at a time; a large one is put aside."""

import os
from pathlib import Path

import msgspec

FILE_BYTES_MAX = 104_857_600  # then it is put aside, in the place of what was put aside before


def append(path: Path, value: object, *, is_synced: bool = False) -> None:
    """Add a line; on disk when this returns, if it is to be synced."""
    line = msgspec.json.encode(value) + b"\n"
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line  # the line before was cut short
        while line:
            line = line[os.write(descriptor, line) :]
        if is_synced:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if size > FILE_BYTES_MAX:
        os.replace(path, path.with_name(f"{path.name}.1"))
