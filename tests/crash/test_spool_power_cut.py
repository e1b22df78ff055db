"""Power cuts under the spool: an event that a receiver has said to be stored is there afterwards, whatever else was under way.

The file system is a model: contents are promised by a sync of their file, names by a sync of their directory, and of the
rest a cut keeps what luck decides. At every step of a receiver another one may come, or the worker, who takes a file's name.
"""

import errno
import os
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.hook import spool
from tests.disk import File

CUTS = int(os.environ.get("HOLDFAST_CRASH_CYCLES", "20")) * 50
EVENTS = 4
NESTED_MAX = 2
HOME = "/mesh/home"


class PowerCut(Exception):
    """The machine is off."""


class Ground:
    """A file system with one home, in place of `os`; `last_step` is the one at which the power goes."""

    path = os.path
    O_CREAT, O_WRONLY, O_APPEND, O_CLOEXEC, O_RDONLY = 1, 2, 4, 8, 16

    def __init__(self, luck: random.Random, last_step: int, between: Callable[[], None]) -> None:
        self._luck = luck
        self._left = last_step
        self._between = between
        self._open: dict[int, File | str] = {}
        self.names: dict[str, dict[str, File]] = {"/mesh": {"home": File()}, HOME: {}}
        self.promised: dict[str, dict[str, File]] = {"/mesh": {}, HOME: {}}

    def step(self) -> None:
        self._left -= 1
        if self._left <= 0:
            raise PowerCut
        self._between()

    def open(self, path: str, flags: int, mode: int = 0) -> int:
        self.step()
        directory, _, name = path.rpartition("/")
        if flags == self.O_RDONLY:
            return self._opened(path)
        if not flags & self.O_CREAT and name not in self.names[directory]:
            raise FileNotFoundError
        return self._opened(self.names[directory].setdefault(name, File()))

    def write(self, descriptor: int, data: bytes) -> int:
        self.step()
        file = self._file(descriptor)
        file.write(len(file.content), data)
        return len(data)

    def fsync(self, descriptor: int) -> None:
        self.step()
        what = self._open[descriptor]
        if isinstance(what, str):
            self.promised[what] = dict(self.names[what])
        else:
            what.sync()

    def fstat(self, descriptor: int) -> SimpleNamespace:
        file = self._file(descriptor)
        return SimpleNamespace(st_size=len(file.content), st_dev=1, st_ino=id(file))

    def stat(self, path: str) -> SimpleNamespace:
        self.step()
        directory, _, name = path.rpartition("/")
        if name not in self.names[directory]:
            raise FileNotFoundError(errno.ENOENT, path)
        return SimpleNamespace(st_dev=1, st_ino=id(self.names[directory][name]))

    def close(self, descriptor: int) -> None:
        del self._open[descriptor]

    def after_power_cut(self) -> list[bytes]:
        """What is found in the home's files."""
        if "home" not in self._kept("/mesh"):
            return []
        return [bytes(file.after_power_cut(self._luck).content) for file in self._kept(HOME).values()]

    def _kept(self, directory: str) -> dict[str, File]:
        """Names are changed one after the other; a cut keeps all up to one of the changes that were not promised."""
        return self._luck.choice((self.promised[directory], self.names[directory]))

    def _opened(self, what: File | str) -> int:
        descriptor = max(self._open, default=2) + 1
        self._open[descriptor] = what
        return descriptor

    def _file(self, descriptor: int) -> File:
        file = self._open[descriptor]
        assert isinstance(file, File)
        return file


class Scene:
    """Receivers that come while others are under way, and a worker that reads what is there."""

    def __init__(self, seed: int) -> None:
        self.luck = random.Random(seed)
        self.said: set[str] = set()
        self.taken: set[str] = set()
        self.ground = Ground(self.luck, self.luck.randrange(1, 60), self.between)
        self._nested = 0

    def play(self) -> set[str]:
        """What was said and is nowhere after the cut."""
        try:
            for _ in range(EVENTS):
                self.receive()
        except PowerCut:
            pass
        found = {event_id for content in self.ground.after_power_cut() for event_id in _events(content)}
        return self.said - found - self.taken

    def receive(self) -> None:
        event_id = self.luck.randbytes(4).hex()
        spool.append(HOME, {"id": event_id, "filling": "x" * self.luck.choice((0, 700))})
        self.said.add(event_id)

    def between(self) -> None:
        if self._nested >= NESTED_MAX:
            return
        self._nested += 1
        chance = self.luck.random()
        if chance < 0.1:
            self.receive()
        elif chance < 0.15:
            self.rotate()
        self._nested -= 1

    def rotate(self) -> None:
        """Take the file's name, read it to its end, have that on a disk of its own, and remove it."""
        names = self.ground.names[HOME]
        if "hooks.spool" in names:
            self.taken |= _events(bytes(names.pop("hooks.spool").content))


def _events(content: bytes) -> set[str]:
    return {str(record["id"]) for record in spool.parse(content)[0]}


def lost(monkeypatch: pytest.MonkeyPatch, cuts: int, **instead: Any) -> int:
    """How many events were said to be stored and are not, over so many cuts; with some steps done otherwise."""
    count = 0
    for seed in range(cuts):
        scene = Scene(seed)
        monkeypatch.setattr(spool, "os", scene.ground)
        monkeypatch.setattr(spool, "_sync", scene.ground.fsync)
        for name, value in instead.items():
            monkeypatch.setattr(spool, name, value)
        count += len(scene.play())
    return count


def test_every_event_that_was_stored_survives_a_power_cut(
    monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    assert lost(monkeypatch, CUTS) == 0
    record_property("power cuts", CUTS)


@pytest.mark.parametrize(
    "instead",
    [
        {"_sync": lambda descriptor: None},
        {"_sync_directory": lambda path: None},
        {"_has_name": lambda descriptor, path: True},
    ],
)
def test_without_any_one_of_its_steps_some_are_lost(instead: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert lost(monkeypatch, CUTS, **instead) > 0
