"""A disk that can lose power, fill up or fail, for SQLite to live on through an `apsw` VFS.

Written bytes are only promised after a sync, as on a real disk. A cut keeps what was synced; of the rest it keeps
nothing, or any of the 512-byte sectors in any combination, as its random generator says.
"""

import random
from collections.abc import Callable
from typing import Any

import apsw

SECTOR_BYTES = 512


class File:
    """What a process sees (`content`), what is promised (`durable`), and the changes in between."""

    def __init__(self, durable: bytearray | None = None) -> None:
        self.durable = durable or bytearray()
        self.content = bytearray(self.durable)
        self.unsynced: list[tuple[int, bytes] | int] = []  # (offset, bytes) of a write, or the size of a truncation
        self.deleted = False  # by a delete that was not synced, so that a cut may bring the file back

    def write(self, offset: int, data: bytes) -> None:
        _put(self.content, offset, data)
        self.unsynced.append((offset, data))

    def truncate(self, size: int) -> None:
        del self.content[size:]
        self.unsynced.append(size)

    def sync(self) -> None:
        for change in self.unsynced:
            if isinstance(change, int):
                del self.durable[change:]
            else:
                _put(self.durable, *change)
        self.unsynced = []

    def after_power_cut(self, luck: random.Random | None) -> "File":
        survivor = bytearray(self.durable)
        if luck is None:
            return File(survivor)
        for change in self.unsynced:
            if isinstance(change, int):
                if luck.random() < 0.5:
                    del survivor[change:]
                continue
            offset, data = change
            for start in range(0, len(data), SECTOR_BYTES):
                if luck.random() < 0.5:
                    _put(survivor, offset + start, data[start : start + SECTOR_BYTES])
        return File(survivor)

    def after_kill(self) -> "File":
        """The same file for another process: the system has everything that was written, the disk what was synced."""
        survivor = File(bytearray(self.durable))
        survivor.content = bytearray(self.content)
        survivor.unsynced = list(self.unsynced)
        survivor.deleted = self.deleted
        return survivor


class Disk:
    """Files that outlive the processes using them. Every write, truncation, sync and deletion counts as one step."""

    def __init__(self) -> None:
        self.files: dict[str, File] = {}
        self.off = True
        self.steps = 0
        self.trouble: Callable[[int, str], None] = lambda step, what: None
        self._machine: _Vfs | None = None

    def boot(self) -> str:
        """Start the machine; returns the name of a VFS for SQLite to use until the power goes."""
        self.off = False
        self.steps = 0
        self._machine = _Vfs(self)
        return self._machine.name

    def cut(self, luck: random.Random | None = None) -> None:
        """Lose power. Without luck everything unsynced is gone; with it, any part of it may have got through.

        The process that was running notices nothing: it goes on with files that no longer matter, and its caller must
        look at `off` before believing an answer, which nobody would have heard.
        """
        self.off = True
        gone = {name for name, file in self.files.items() if file.deleted and (luck is None or luck.random() < 0.5)}
        self.files = {name: file.after_power_cut(luck) for name, file in self.files.items() if name not in gone}

    def kill(self) -> None:
        """End the process, not the machine: nothing is lost that was written, and it writes nothing more."""
        self.off = True
        self.files = {name: file.after_kill() for name, file in self.files.items()}

    def step(self, machine: "_Vfs", what: str) -> None:
        """Called before the change is made. Trouble may raise, or cut the power: then the change is for nothing."""
        if machine is self._machine and not self.off:
            self.steps += 1
            self.trouble(self.steps, what)


class _Vfs(apsw.VFS):
    _boots = 0

    def __init__(self, disk: Disk) -> None:
        _Vfs._boots += 1
        self.name = f"disk-{_Vfs._boots}"
        self._disk = disk
        self._files = disk.files  # after a cut the disk has others
        super().__init__(self.name, base="")

    def step(self, what: str) -> None:
        self._disk.step(self, what)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> Any:  # noqa: N802 - SQLite's names
        path = name.filename() if isinstance(name, apsw.URIFilename) else name or ""
        file = self._files.get(path)
        if file is None or file.deleted:
            if not flags[0] & apsw.SQLITE_OPEN_CREATE:
                raise apsw.CantOpenError(path)
            file = self._files[path] = File()
        flags[1] = flags[0]
        return _Handle(self, file)

    def xDelete(self, name: str, sync_directory: bool) -> None:  # noqa: N802
        self.step("delete")
        if sync_directory:
            self._files.pop(name, None)
        elif name in self._files:
            self._files[name].deleted = True

    def xAccess(self, name: str, flags: int) -> bool:  # noqa: N802
        return name in self._files and not self._files[name].deleted

    def xFullPathname(self, name: str) -> str:  # noqa: N802
        return name


class _Handle:
    """An open file, of the kind that SQLite wants. One process uses the disk, so locks always succeed."""

    def __init__(self, machine: _Vfs, file: File) -> None:
        self._machine = machine
        self._file = file
        self._level = 0

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        return bytes(self._file.content[offset : offset + amount])

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        self._machine.step("write")
        self._file.write(offset, bytes(data))

    def xTruncate(self, size: int) -> None:  # noqa: N802
        self._machine.step("truncate")
        self._file.truncate(size)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._machine.step("sync")
        self._file.sync()

    def xFileSize(self) -> int:  # noqa: N802
        return len(self._file.content)

    def xLock(self, level: int) -> None:  # noqa: N802
        self._level = max(self._level, level)

    def xUnlock(self, level: int) -> None:  # noqa: N802
        self._level = min(self._level, level)

    def xCheckReservedLock(self) -> bool:  # noqa: N802
        return self._level >= apsw.SQLITE_LOCK_RESERVED

    def xFileControl(self, operation: int, pointer: int) -> bool:  # noqa: N802
        return False

    def xSectorSize(self) -> int:  # noqa: N802
        return SECTOR_BYTES

    def xDeviceCharacteristics(self) -> int:  # noqa: N802
        return int(apsw.SQLITE_IOCAP_POWERSAFE_OVERWRITE)  # as SQLite assumes of real disks

    def xClose(self) -> None:  # noqa: N802
        pass


def _put(content: bytearray, offset: int, data: bytes) -> None:
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data
