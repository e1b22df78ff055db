"""On which machine a home lives: noted at the first start, so that a copy on another machine is noticed before it does harm.

Two homes with one key put each other out at the relay, over and over. This finds a copy that was made by accident, a cloned
disk or a restored image; it stops nobody who means to. A machine is known by the id that its system gave it; where there is none,
by the address of its first real network card; where there is neither, as in many containers, nothing is checked.
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
_ID_COMMANDS = (  # where there are no such files: macOS, BSD
    (("ioreg", "-rd1", "-c", "IOPlatformExpertDevice"), r'"IOPlatformUUID" = "([0-9A-Fa-f-]+)"'),
    (("sysctl", "-n", "kern.hostuuid"), r"([0-9A-Fa-f-]{36})"),
)
_CARDS = "sys/class/net"
_UNREAL = re.compile(r"lo|tailscale|wg|utun|ppp|docker|br-|veth|tap|tun|vboxnet|vmnet|awdl|llw|virbr|bond|dummy")
_LOCAL_BIT = 0x02  # of an address that somebody made up: it may be another one tomorrow
_NO_ID = {"", "uninitialized"}

_log = structlog.get_logger(__name__)

Run = Callable[[tuple[str, ...]], str]
"""What a command of the system prints; nothing if there is no such command."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a machine, each as a hash: the file need not tell what a machine is called."""

    version: int = _VERSION
    host_id: str | None = None
    card: str | None = None


class Verdict(StrEnum):
    """How the machine is to the one that was noted."""

    NEW = "new"  # none was
    SAME = "same"
    OTHER = "other"
    UNKNOWN = "unknown"  # nothing can be said


class Deed(StrEnum):
    """What is to be done about it."""

    NOTE = "note"
    NOTHING = "nothing"
    WARN = "warn"
    REFUSE = "refuse"


DEEDS = total(
    {
        **{(Verdict.NEW, policy): Deed.NOTE for policy in ClonePolicy},
        **{(Verdict.SAME, policy): Deed.NOTE for policy in ClonePolicy},  # a card may have been exchanged
        **{(Verdict.UNKNOWN, policy): Deed.NOTHING for policy in ClonePolicy},
        (Verdict.OTHER, ClonePolicy.REFUSE): Deed.REFUSE,
        (Verdict.OTHER, ClonePolicy.WARN): Deed.WARN,
        (Verdict.OTHER, ClonePolicy.ALLOW): Deed.NOTE,
    },
    [(verdict, policy) for verdict in Verdict for policy in ClonePolicy],
)


def check(home: Home, machine: Machine, policy: ClonePolicy) -> None:
    """Refuse a home that was noted on another machine, if that is the policy."""
    found = noted(home)
    match DEEDS[judge(found, machine), policy]:
        case Deed.NOTE if found != machine:
            accept(home, machine)
        case Deed.WARN:
            _log.warning("clone_suspected", home=str(home.path))
        case Deed.REFUSE:
            raise Refused(Refusal.HOST_CHANGED, f"the home {home.path} was last used on another machine")


def judge(found: Machine | None, machine: Machine) -> Verdict:
    """How a machine is to the one that was noted: its id decides, its card only where one of the two has no id."""
    if found is None:
        return Verdict.NEW
    for name in ("host_id", "card"):
        before, now = getattr(found, name), getattr(machine, name)
        if before is not None and now is not None:
            return Verdict.SAME if before == now else Verdict.OTHER
    return Verdict.UNKNOWN


def accept(home: Home, machine: Machine) -> None:
    """The home lives on this machine from now on."""
    files.replace(home.path / FILE_NAME, notes.write(machine))


def noted(home: Home) -> Machine | None:
    """The machine that was noted. A note that cannot be read says nothing, and is left as it is."""
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
    """What this machine is known by; `override` stands for an id where the system's is not its own."""
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
    """The address of the first card that is real, cables before radio."""
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
