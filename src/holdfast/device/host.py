"""The machine of a home, noted at the first start, so that a copy of the home on another machine is noticed.

Two homes with one key would disconnect each other at the relay again and again. This finds copies made by accident, by a
cloned disk or a restored image; it stops nobody who means to copy. A machine is recognised by its system's id; without one,
by the address of its first physical network card; without either, as in many containers, nothing is checked.
"""

import hashlib
import re
import subprocess
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path

import msgspec
import structlog

from holdfast.device.home import Home, read_private
from holdfast.device.settings import ClonePolicy
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.tables import total
from holdfast.store import faults, files, notes

FILE_NAME = "host.json"
COMMAND_TIMEOUT_S = 5.0

_VERSION = 1
_ID_FILES = ("etc/machine-id", "var/lib/dbus/machine-id")
_ID_COMMANDS = (  # for systems without such files: macOS, BSD
    (("ioreg", "-rd1", "-c", "IOPlatformExpertDevice"), r'"IOPlatformUUID" = "([0-9A-Fa-f-]+)"'),
    (("sysctl", "-n", "kern.hostuuid"), r"([0-9A-Fa-f-]{36})"),
)
_CARDS = "sys/class/net"
_UNREAL = re.compile(r"lo|tailscale|wg|utun|ppp|docker|br-|veth|tap|tun|vboxnet|vmnet|awdl|llw|virbr|bond|dummy")
_LOCAL_BIT = 0x02  # marks an address that software made up, which may change at any time
_NO_ID = {"", "uninitialized"}

_log = structlog.get_logger(__name__)

Run = Callable[[tuple[str, ...]], str]
"""What a command of the system prints; nothing if there is no such command."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What identifies a machine, as hashes, so that the file does not reveal the ids."""

    version: int = _VERSION
    host_id: str | None = None
    card: str | None = None


class Verdict(StrEnum):
    """How this machine compares to the noted one."""

    NEW = "new"  # none was noted
    SAME = "same"
    OTHER = "other"
    UNKNOWN = "unknown"  # they have nothing in common to compare


class Deed(StrEnum):
    """What to do about a verdict."""

    NOTE = "note"
    NOTHING = "nothing"
    WARN = "warn"
    REFUSE = "refuse"


DEEDS = total(
    {
        **{(Verdict.NEW, policy): Deed.NOTE for policy in ClonePolicy},
        **{(Verdict.SAME, policy): Deed.NOTE for policy in ClonePolicy},  # the card may have been replaced
        **{(Verdict.UNKNOWN, policy): Deed.NOTHING for policy in ClonePolicy},
        (Verdict.OTHER, ClonePolicy.REFUSE): Deed.REFUSE,
        (Verdict.OTHER, ClonePolicy.WARN): Deed.WARN,
        (Verdict.OTHER, ClonePolicy.ALLOW): Deed.NOTE,
    },
    [(verdict, policy) for verdict in Verdict for policy in ClonePolicy],
)


def check(home: Home, machine: Machine, policy: ClonePolicy) -> None:
    """Compare this machine with the home's note; refuses another machine if that is the policy."""
    found = noted(home)
    match DEEDS[judge(found, machine), policy]:
        case Deed.NOTE if found != machine:
            accept(home, machine)
        case Deed.WARN:
            _log.warning("clone_suspected", home=str(home.path))
        case Deed.REFUSE:
            raise Refused(Refusal.HOST_CHANGED, f"the home {home.path} was last used on another machine")


def judge(found: Machine | None, machine: Machine) -> Verdict:
    """Compare a machine with the noted one: by id, or by card where one of the two has no id."""
    if found is None:
        return Verdict.NEW
    for name in ("host_id", "card"):
        before, now = getattr(found, name), getattr(machine, name)
        if before is not None and now is not None:
            return Verdict.SAME if before == now else Verdict.OTHER
    return Verdict.UNKNOWN


def accept(home: Home, machine: Machine) -> None:
    """Note this machine as the home's."""
    files.replace(home.path / FILE_NAME, notes.write(machine))


def noted(home: Home) -> Machine | None:
    """The noted machine; None if there is no note, or one that cannot be read."""
    path = home.path / FILE_NAME
    try:
        found = notes.read(read_private(path), Machine)
    except faults.FileMissing:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        _log.warning("host_unreadable", path=str(path), detail=str(error))
        return Machine()
    return found if found.version == _VERSION else Machine()


def read_machine(root: Path = Path("/"), run: Run | None = None, override: str | None = None) -> Machine:
    """Identify this machine; `override` replaces the system's id, where that is not unique."""
    host_id = override or _host_id(root, run or _run)
    card = _card(root / _CARDS)
    if host_id is None and card is None:
        _log.info("host_unknown")
    return Machine(host_id=_hashed("host_id", host_id), card=_hashed("card", card))


def _host_id(root: Path, run: Run) -> str | None:
    for name in _ID_FILES:
        text = _read(root / name)
        if text not in _NO_ID:
            return text
    for command, pattern in _ID_COMMANDS:
        found = re.search(pattern, run(command))
        if found:
            return found[1].lower()
    return None


def _card(cards: Path) -> str | None:
    """The address of the first physical network card, wired before wireless."""
    try:
        names = sorted(path.name for path in cards.iterdir())
    except OSError:
        return None
    for name in sorted(names, key=lambda name: (not name.startswith(("en", "eth")), name)):
        address = _read(cards / name / "address")
        if not _UNREAL.match(name) and _is_real(address):
            return address
    return None


def _is_real(address: str) -> bool:
    parts = address.split(":")
    if len(parts) != 6 or not all(re.fullmatch("[0-9a-f]{2}", part) for part in parts):
        return False
    return address != "00:00:00:00:00:00" and not int(parts[0], 16) & _LOCAL_BIT


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _run(command: Iterable[str]) -> str:
    try:
        done = subprocess.run(list(command), check=False, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S)  # noqa: S603 - fixed words
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def _hashed(what: str, value: str | None) -> str | None:
    return None if value is None else hashlib.sha256(f"holdfast {what}\0{value}".encode()).hexdigest()
