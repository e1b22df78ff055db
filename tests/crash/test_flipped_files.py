"""One bit changed in any file that a relay, a daemon and hooks leave on a disk: noticed, or harmless.

The directories are walked, and every file that is found has to be in the table here: a new one belongs there, with whoever
reads it. Lakes have a test of their own (`tests/pipeline/test_certificate.py`).
"""

import os
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from holdfast.cli import settings_seen
from holdfast.device import holder, host, local_token, member_keys
from holdfast.device import settings as daemon_settings
from holdfast.device.home import Home
from holdfast.hook import agent_settings
from holdfast.hook import settings as hook_settings
from holdfast.hook.installer import Installer
from holdfast.relay import copy, identity, lock
from holdfast.relay import settings as relay_settings
from holdfast.store import faults, wal
from holdfast.store.settings import SettingsInvalid
from holdfast.store.world import wall_clock
from tests.crash import lived_in
from tests.crash.test_flipped_bits import Noticed, look_at_device, look_at_hooks, look_at_relay, look_at_spool

CYCLES = int(os.environ.get("HOLDFAST_CRASH_CYCLES", "0"))
DATABASE = ".db"  # in the name of one, and of its journals
LOOKS = 10 * CYCLES or 61  # at a file
DEAR = CYCLES or 8  # at one that takes long to look at
ALL = 400  # at one of which every bit may make something else that is good
NOTICED = (faults.Fault, Noticed, SettingsInvalid)

Look = Callable[[Path], Any]


def database(look: Look) -> Look:
    """At the database to which this file belongs."""
    return lambda path: look(path.with_name(path.name.partition("-")[0]))


def at_start(whose: str, load: Callable[[Path], Any]) -> Look:
    """A program reads its settings, and says which it did not have before."""

    def look(path: Path) -> Any:
        found = load(path)
        settings_seen.tell(path.parent, whose, found)
        return found

    return look


def daemon_of(path: Path) -> holder.Holder:
    found = holder.find(Home(path.parent))
    if found is None:
        raise Noticed
    return found


def enter_by_token(path: Path) -> None:
    """Whoever reads the file is let in, whatever it is."""
    local_token.LocalToken(path.parent, wall_clock, os.urandom).check(path.read_text().strip())


def uninstalled(path: Path) -> bytes:
    """The agent's own settings, when our entries go again."""
    settings = path.with_name("settings.json")
    Installer(path.parents[1] / "ann").uninstall("hooks", settings)
    return settings.read_bytes()


def seen(path: Path) -> None:
    """What a program makes of what it noted at its last start."""
    if path.parent.name == "relay":
        settings_seen.tell(path.parent, "relay", relay_settings.load(path.with_name("relay.toml"), {}))
    else:
        settings_seen.tell(path.parent, "daemon", daemon_settings.load(path.parent, {}))


NOBODY = "nobody reads it but people"
LOCKED = "the lock on it counts, and not what it says"

FILES: dict[str, tuple[Look | str, int]] = {
    "relay/relay.db*": (database(look_at_relay), DEAR),
    "relay/relay.toml": (at_start("relay", lambda path: relay_settings.load(path, {})), ALL),
    "relay/relay.pid": (lambda path: lock.address(path.parent), LOOKS),
    "*/*.key": (identity.read_key, LOOKS),
    "backup/relay.db": (look_at_relay, DEAR),
    "backup/relay.toml": ("it is read when it has been restored", LOOKS),
    "backup/backup.json": (lambda path: copy._read_note(path.parent), LOOKS),
    "*/device.db*": (database(look_at_device), DEAR),
    "*/home.json": (lambda path: Home(path.parent).membership(), LOOKS),
    "*/member-keys.json": (lambda path: member_keys.archived(Home(path.parent), 0), LOOKS),
    "*/member.key.next": (lambda path: member_keys.asked_for(Home(path.parent)), LOOKS),
    "*/local-token": (enter_by_token, LOOKS),
    "*/daemon.pid": (daemon_of, LOOKS),
    "*/host.json": (lambda path: host.noted(Home(path.parent)), LOOKS),
    "*/daemon.toml": (at_start("daemon", lambda path: daemon_settings.load(path.parent, {})), ALL),
    "*/hooks.json": (at_start("hooks", lambda path: hook_settings.load(path.parent)), ALL),
    "*/agents.json": (at_start("agents", lambda path: agent_settings.load(path.parent)), ALL),
    "*/hooks.db*": (database(look_at_hooks), DEAR),
    "*/hooks.spool": (look_at_spool, LOOKS),
    "*/hook-installs.json": (lambda path: Installer(path.parent).installs(), LOOKS),
    "*/settings-seen.json": (seen, LOOKS),
    "agent/settings.json.before-holdfast": (uninstalled, LOOKS),
    "agent/settings.json": ("it is the agent's own", LOOKS),
    "*/agents.jsonl": (NOBODY, LOOKS),
    "*.log": (NOBODY, LOOKS),
    "*/lock": (LOCKED, LOOKS),
    "*/hook-workers/*": (LOCKED, LOOKS),
}
"""Who reads it, or why nobody does; and at how many places that is tried, at most."""


@dataclass(frozen=True)
class Left:
    """Where programs have worked, and a copy of what they left."""

    place: Path
    kept: Path

    def told(self, name: str, content: bytes, look: Look) -> str | None:
        """What somebody learns who reads a file that has this content; None if it is that something is wrong."""
        for folder in {Path(name).parts[0], *(["ann"] if name.startswith("agent/") else [])}:
            self._restore(folder, with_databases=DATABASE in name)
        (self.place / name).write_bytes(content)
        with capture_logs() as logs:
            try:
                answer = repr(look(self.place / name))
            except lock.NotRunning:
                answer = "no relay runs"
            except NOTICED:
                return None
        return None if any(line["log_level"] in ("warning", "error") for line in logs) else answer

    def _restore(self, folder: str, *, with_databases: bool) -> None:
        """Undo what somebody did who read something; to a database only those do who look at one."""
        place, kept = self.place / folder, self.kept / folder
        for path in place.iterdir():
            if path.is_file() and not (kept / path.name).exists():
                path.unlink()
        for path in kept.iterdir():
            if path.is_file() and (with_databases or DATABASE not in path.name):
                shutil.copy(path, place / path.name)


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Left:
    place, kept = tmp_path_factory.mktemp("lived-in"), tmp_path_factory.mktemp("kept")
    lived_in.furnish(place)
    shutil.copytree(place, kept, ignore=shutil.ignore_patterns("*.sock"), dirs_exist_ok=True)
    return Left(place, kept)


def _entry(name: str) -> tuple[Look | str, int] | None:
    return next((entry for pattern, entry in FILES.items() if fnmatch(name, pattern)), None)


def _files(left: Left) -> list[str]:
    return sorted(str(path.relative_to(left.kept)) for path in left.kept.rglob("*") if path.is_file())


def test_every_file_that_is_left_is_in_the_table(left: Left) -> None:
    assert [name for name in _files(left) if _entry(name) is None] == []
    assert [pattern for pattern in FILES if not any(fnmatch(name, pattern) for name in _files(left))] == []


# Whoever needs them does without what they say; what a database says lies in its journal until that is worked off.
HARMLESS = ("relay.pid", "-shm", "local-token", ".before-holdfast", "device.db", "relay/relay.db")


@pytest.mark.timeout(0 if CYCLES else 900)  # every look opens a file anew, and a disk may be busy
def test_a_changed_bit_in_any_file_is_noticed_or_harmless(
    left: Left, record_property: Callable[[str, object], None]
) -> None:
    silent, unseen, flips = [], [], 0
    for name in _files(left):
        look, looks = _entry(name) or ("", 1)
        content = (left.kept / name).read_bytes()
        if isinstance(look, str) or not content:
            continue
        expected, noticed = left.told(name, content, look), 0
        assert expected is not None, name
        bits = 8 * (_settled(content) if name.endswith("-wal") else len(content))
        for bit in range(0, bits, -(-bits // looks) | 1):  # an odd step comes to every bit of a byte
            found = left.told(name, _flipped(content, bit), look)
            flips, noticed = flips + 1, noticed + (found is None)
            silent += [] if found in (None, expected) else [f"{name}: bit {bit}"]
        unseen += [] if noticed or name.endswith(HARMLESS) else [name]
    assert silent == []
    assert unseen == [], "no change of these was ever noticed"
    record_property("changed bits", flips)


def _settled(journal: bytes) -> int:
    """Where the last two transactions of a write-ahead log begin: damage in them is what a power cut would leave."""
    frame_bytes = wal.FRAME_HEADER_BYTES + int.from_bytes(journal[8:12])
    starts = range(wal.HEADER_BYTES, len(journal), frame_bytes)
    frames = [struct.unpack(">4I", journal[at : at + 16]) for at in starts]
    ends = [
        at + frame_bytes
        for at, (_, pages, *salts) in zip(starts, frames, strict=True)
        if pages and salts == [*struct.unpack(">2I", journal[16:24])]
    ]
    return ends[-3]


def _flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)
