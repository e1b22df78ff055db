"""What the doctor looks at. Every check is a function from a patient to findings; the table at the end has their order.

Nothing is changed by looking. What another command finds out, too, is asked of the same code: `hook doctor`, `check`, the
console's overview, the pipeline's report.
"""

import asyncio
import importlib.util
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.cli import hook as hooks
from holdfast.cli.check import inspect
from holdfast.cli.lake_report import index_report, is_index, lake_report
from holdfast.console import health as healths
from holdfast.console.audit import LakeUnavailable
from holdfast.device import holder, host, settings
from holdfast.device.client import Client
from holdfast.device.feed_client import FeedClient
from holdfast.device.home import Damaged, Home, Membership
from holdfast.device.ipc_documents import Health
from holdfast.device.ipc_link import DaemonLost, NoDaemon, NotUnderstood
from holdfast.device.room import free_bytes
from holdfast.hook import doctor as hook_doctor
from holdfast.hook import settings as hook_settings
from holdfast.hook.installer import Unreadable
from holdfast.protocol import hook_event
from holdfast.protocol.pressure import Pressure, Use, pressure_of, reserve_use, tightest
from holdfast.protocol.reaction import FaultKind
from holdfast.protocol.refusal import REFUSALS, Refusal, Refused
from holdfast.protocol.schedule import CLOCK_AHEAD_MAX, SECOND
from holdfast.relay import identity, lock
from holdfast.relay.http_auth import WINDOW_S
from holdfast.store import faults
from holdfast.store.settings import SettingsInvalid
from holdfast.store.world import Clock, wall_clock
from holdfast.wire.client import InvalidUrl, RelayClient, Unreachable

ANSWER_TIMEOUT_S = 10.0  # for a daemon or a relay to say how it is; one that takes longer is not well
CLOCK_OFF_MAX = WINDOW_S * SECOND  # what is signed at another time than that is not taken
_DATA = "relay"  # in a home, of `holdfast up`
_NO_KEY = bytes(31) + b"\x01"  # for questions that take none


class State(StrEnum):
    """How bad it is."""

    OK = "ok"
    NOTE = "note"  # worth knowing
    AWAY = "away"  # does not run, or does not answer
    WRONG = "wrong"


class Finding(msgspec.Struct, frozen=True):
    """Something to know, and what to do about it."""

    state: State
    what: str
    remedy: str = ""
    area: str = ""


@dataclass(frozen=True)
class Patient:
    """What is examined, and the world that it lives in."""

    home: Home
    data: Path | None = None
    lake: Path | None = None
    is_thorough: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    clock: Clock = wall_clock

    @cached_property
    def membership(self) -> Membership | None:
        return self.home.membership() if self.home.exists() else None

    @cached_property
    def relay_data(self) -> Path | None:
        """The directory of a relay on this machine."""
        own = self.home.path / _DATA
        return self.data or (own if (own / identity.RELAY_KEY).exists() else None)

    @cached_property
    def relay_url(self) -> str | None:
        if self.membership is not None:
            return self.membership.relay
        return None if self.relay_data is None else lock.address(self.relay_data)

    @cached_property
    def relay_answer(self) -> "RelayAnswer | Unreachable | None":
        """What the relay says of itself, asked once; None if there is no relay to ask."""
        if self.relay_url is None:
            return None
        try:
            return asyncio.run(_ask_relay(self.relay_url))
        except Unreachable as fault:
            return fault
        except TimeoutError:
            return Unreachable(self.relay_url, FaultKind.TIMEOUT, f"no whole answer within {ANSWER_TIMEOUT_S:g} s")
        except InvalidUrl as error:
            raise Damaged(str(self.home.path / "home.json"), str(error)) from error

    @cached_property
    def health(self) -> Health:
        with Client(home=self.home.path, answer_timeout_s=ANSWER_TIMEOUT_S) as client:
            return client.health()


class RelayAnswer(NamedTuple):
    """The key that a relay shows, and what time it is there (microseconds), if it says."""

    pubkey: str
    date: int | None


async def _ask_relay(url: str) -> RelayAnswer:
    async with asyncio.timeout(ANSWER_TIMEOUT_S), RelayClient(url, _NO_KEY) as client:
        return RelayAnswer((await client.information()).pubkey, await client.date())


def check_home(patient: Patient) -> Iterator[Finding]:
    """There is one, it is whole, in a mesh, and on the machine that it knows."""
    path = patient.home.path
    if path.exists() and not path.is_dir():
        remedy = "Name a directory, with --home or in HOLDFAST_HOME."
        yield Finding(State.WRONG, f"The home {path} is a file.", remedy)
        return
    if not patient.home.exists():
        remedy = "Make one (holdfast mesh create NAME --relay URL), join one (holdfast mesh join INVITE), or name another with --home."
        yield Finding(State.AWAY, f"There is no home at {path}.", remedy)
        return
    membership = patient.membership
    if membership is None:
        yield Finding(State.AWAY, f"The home {path} is in no mesh.", "holdfast mesh create or holdfast mesh join.")
    else:
        yield Finding(State.OK, f"{path}: {membership.member_name} in {membership.mesh_name} at {membership.relay}.")
    chosen = settings.load(path, patient.environment)
    machine = host.read_machine(override=chosen.host_id)
    if host.judge(host.noted(patient.home), machine) is host.Verdict.OTHER:
        what = f"The home {path} was last used on another machine."
        yield Finding(State.WRONG, what, REFUSALS[Refusal.HOST_CHANGED].sentence)


def check_modes(patient: Patient) -> Iterator[Finding]:
    """You can open what is yours, and nobody else what is secret, here or at the relay."""
    found = [*patient.home.exposed(), *_exposed_keys(patient.relay_data), *_closed(patient.home)]
    for one in found:
        yield Finding(State.WRONG, f"{one.where}: {one.what} ({one.detail}).", one.remedy)
    if not found and patient.home.exists():
        yield Finding(State.OK, "Only you can open what is secret here.")


def _closed(home: Home) -> Iterator[faults.Fault]:
    """What belongs to another user, as after a command under sudo: no daemon starts with it."""
    for path in (home.path, home.database, home.path / "hooks.db", home.path / "lock"):
        if home.exists() and path.exists() and not os.access(path, os.R_OK | os.W_OK):
            yield faults.NoAccess(str(path), "Permission denied")


def _exposed_keys(data: Path | None) -> Iterator[faults.Fault]:
    for path in [] if data is None else [data / name for name in identity.KEY_FILES]:
        mode = path.stat().st_mode if path.exists() else 0
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            yield identity.KeyExposed(str(path), f"mode {stat.S_IMODE(mode):04o}")


def check_rules(patient: Patient) -> Iterator[Finding]:
    """Every rule of every database, where that is asked for."""
    places = [patient.home.database, patient.home.path / "hooks.db"]
    if patient.relay_data is not None:
        places.append(patient.relay_data / identity.DATABASE)
    for place in places if patient.is_thorough else []:
        if place.exists():
            _, broken = inspect(place)
            yield from (
                Finding(State.WRONG, f"{place}: {one.check}: {one.found}.", f"The rule: {one.rule}") for one in broken
            )
            if not broken:
                yield Finding(State.OK, f"{place} keeps every rule.")


def check_daemon(patient: Patient) -> Iterator[Finding]:
    """One runs, answers, and is well; what it says of itself is what the console shows."""
    if patient.membership is None:
        return
    try:
        health = patient.health
        with FeedClient(home=patient.home.path, answer_timeout_s=ANSWER_TIMEOUT_S) as client:
            is_away = not health.connected and isinstance(patient.relay_answer, Unreachable)  # the next check tells it
            found = healths.signs(health, client.feed(), client.reports().reports, is_relay_away=is_away)
    except (NoDaemon, DaemonLost, NotUnderstood) as error:
        yield _without_daemon(patient, error)
        return
    yield Finding(State.OK, f"The daemon runs as process {health.pid}.")
    yield from (Finding(_STATES[sign.state], sign.what, sign.remedy) for sign in found)


_STATES = {"ok": State.OK, "waiting": State.NOTE, "dead": State.WRONG}


def _without_daemon(patient: Patient, error: Exception) -> Finding:
    """None was started, one died, one hangs, or something else answers."""
    home = patient.home
    running = holder.working(home)
    if running is not None:
        why = f" ({error})" if isinstance(error, NotUnderstood) else ""
        what = f"The daemon is process {running.pid}, and does not answer at {running.socket}{why}."
        remedy = (
            f"See holdfast daemon logs. holdfast daemon down ends it, or kill -9 {running.pid} where that does not, "
            "which loses nothing either; holdfast daemon up starts another."
        )
        return Finding(State.WRONG, what, remedy)
    if not isinstance(error, NoDaemon):
        what = f"What answers at {home.path / 'daemon.sock'} is no daemon ({error})."
        return Finding(State.WRONG, what, "End the program that listens there; holdfast daemon up starts a daemon.")
    if (home.path / "daemon.sock").exists():
        what = f"{home.path / 'daemon.sock'} is what a daemon left that died."
        return Finding(State.AWAY, what, "holdfast daemon up starts another; holdfast daemon logs says why it died.")
    return Finding(State.AWAY, f"No daemon runs in {home.path}.", error.remedy)


def check_relay(patient: Patient) -> Iterator[Finding]:
    """It answers, and is the one that this home knows."""
    if patient.relay_data is not None:
        yield _on_this_machine(patient.relay_data)
    answer, url = patient.relay_answer, patient.relay_url
    if answer is None:
        return
    if isinstance(answer, Unreachable):
        remedy = "See whether the relay runs, and the network is there. Nothing is lost: the outbox waits."
        yield Finding(State.AWAY, f"The relay {url} does not answer: {answer.detail}.", remedy)
        return
    known = None if patient.membership is None else patient.membership.relay_pubkey
    if known not in (None, answer.pubkey):
        remedy = "Ask its operator whether the relay lost its key; if not, another program answers in its place."
        yield Finding(State.WRONG, f"Another relay answers at {url}: its key is {answer.pubkey}.", remedy)
    else:
        yield Finding(State.OK, f"The relay {url} answers.")


def _on_this_machine(data: Path) -> Finding:
    try:
        return Finding(State.OK, f"A relay runs on {data}, at {lock.address(data)}.")
    except lock.NotRunning as fault:  # the home's own relay may be another one, and is asked all the same
        return Finding(State.AWAY, f"{fault.where}: {fault.what}.", f"holdfast relay run --data {data} starts it.")


def check_clock(patient: Patient) -> Iterator[Finding]:
    """This machine's and the relay's agree well enough."""
    answer = patient.relay_answer
    if not isinstance(answer, RelayAnswer) or answer.date is None:
        return  # that it does not answer was told before
    off = patient.clock() - answer.date
    if abs(off) <= CLOCK_OFF_MAX:
        yield Finding(State.OK, "This machine's clock agrees with the relay's.")
        return
    what = f"This machine's clock is {abs(off) // SECOND:,} s {'ahead of' if off > 0 else 'behind'} the relay's."
    refused = f" What is over {CLOCK_AHEAD_MAX // SECOND:,} s ahead is refused." if off > 0 else ""
    remedy = f"Set the clock, here or there (timedatectl set-ntp true).{refused}"
    yield Finding(State.WRONG, what, remedy)


def check_disk(patient: Patient) -> Iterator[Finding]:
    """There is room for what is to come."""
    places = [path for path in (patient.home.path, patient.relay_data) if path is not None and path.exists()]
    chosen = settings.load(patient.home.path, patient.environment).disk
    for path in places:
        free = free_bytes(path)
        uses = [reserve_use(free, chosen.reserved_bytes)] if chosen.reserved_bytes else []
        if path == patient.home.path and patient.home.database.exists():
            size = patient.home.database.stat().st_size
            uses.append(Use("disk.database_bytes_max", size, chosen.database_bytes_max))
        yield _room(path, free, uses)


def _room(path: Path, free: int, uses: list[Use]) -> Finding:
    use = tightest(uses) if uses else None
    if use is None or pressure_of(use) is Pressure.NORMAL:
        return Finding(State.OK, f"{path}: {free // 1_048_576:,} MB are free.")
    what = f"{path}: {use.percent} % of {use.of} is used, and {free // 1_048_576:,} MB are free."
    return Finding(State.WRONG, what, healths.ROOM_REMEDY)


def check_hooks(patient: Patient) -> Iterator[Finding]:
    """Every command of ours in an agent's settings could be run, and what agents told was handled."""
    home = patient.home
    try:
        installed = hook_doctor.find(Path.cwd(), patient.environment)
    except Unreadable as fault:
        yield Finding(State.WRONG, f"{fault.where}: {fault.what} ({fault.detail}).", fault.remedy)
        return
    allowed = hook_event.ALLOWED | set(hook_settings.load(home.path).allow)
    for one in installed:
        told = _home_told(one) or home.path
        wrong = hook_doctor.complaints(one, allowed, sys.executable, told)
        if told != home.path and not wrong:
            remedy = f"holdfast doctor --home {told} examines that one; an agent reports to one home."
            yield Finding(State.NOTE, f"{one.agent} reports to the home {told} ({one.path}).", remedy)
            continue
        remedy = f"holdfast hook install --agent {one.agent} --scope {one.scope} writes it anew."
        yield from (Finding(State.WRONG, f"{one.agent}, {one.path}: {what}.", remedy) for what in wrong)
        if not wrong:
            remedy = f"holdfast hook doctor --agent {one.agent} fires an event through it."
            yield Finding(State.OK, f"{one.agent} reports to this home ({one.path}).", remedy)
    if not installed:
        yield Finding(State.NOTE, "No agent reports to this home.", "holdfast hook install --agent claude")
    for problem in hooks.problems_of(hooks.numbers_of(home)):
        yield Finding(State.WRONG, f"{problem}.", "See holdfast hook status.")


def _home_told(installed: hook_doctor.Installed) -> Path | None:
    """The home that an agent's commands name; None if they do not agree, or name none."""
    found = {hook_doctor.home_of(command) for commands in installed.commands.values() for command in commands}
    return found.pop() if len(found) == 1 else None


def check_java(patient: Patient) -> Iterator[Finding]:
    """Where Spark is installed there is a Java for it."""
    if importlib.util.find_spec("pyspark") is None:
        remedy = "Install holdfast[pipeline], or run make pipeline, if you want lakes and certificates."
        yield Finding(State.NOTE, "Spark is not installed.", remedy)
        return
    from holdfast.pipeline.java import java_home

    with tempfile.TemporaryDirectory() as folder:
        java_home(patient.environment, Path(folder))
    yield Finding(State.OK, "Spark and a Java for it are installed.")


_NO_LAKE = "Correct the path; holdfast pipeline run --help says how a lake is made."


def check_lake(patient: Patient) -> Iterator[Finding]:
    """Its last batch found no violation."""
    if patient.lake is None:
        return
    lake, is_own = patient.lake.absolute(), is_index(patient.lake)
    shows = f"holdfast pipeline {'show breach' if is_own else 'report'} --lake {patient.lake}"
    try:
        told = asyncio.run(index_report(lake) if is_own else lake_report(lake))
    except LakeUnavailable as error:
        remedy = f"{shows} says more." if lake.is_dir() else _NO_LAKE
        yield Finding(State.WRONG, str(error), remedy)
        return
    violations = [one for one in told["report"]["findings"] if one["is_violation"]]
    remedy = f"{shows} shows the rows; the histories say who and when."
    yield from (Finding(State.WRONG, f"{one['kind']}: {one['key']}: {one['detail']}.", remedy) for one in violations)
    if not violations:
        yield Finding(State.OK, f"{patient.lake}: {len(told['certificates'])} certificates, no violation.")
    if uncompared := told["report"]["uncompared"]:
        what = f"Not compared yet with what is there now: {', '.join(uncompared)}."
        remedy = "holdfast pipeline run goes on with it; the batch that has caught up compares everything."
        yield Finding(State.NOTE, what, remedy)


def _settled(check: "Check") -> "Check":
    """A check that says what is wrong with settings or a refusal as a finding."""

    def checked(patient: Patient) -> Iterator[Finding]:
        try:
            yield from check(patient)
        except SettingsInvalid as error:
            yield Finding(State.WRONG, str(error), "Correct daemon.toml; until then no daemon starts here.")
        except Refused as refused:
            yield Finding(State.WRONG, refused.detail, REFUSALS[refused.refusal].sentence)

    return checked


Check = Callable[[Patient], Iterator[Finding]]

CHECKS: tuple[tuple[str, Check], ...] = tuple(
    (area, _settled(check))
    for area, check in (
        ("home", check_home),
        ("modes", check_modes),
        ("rules", check_rules),
        ("daemon", check_daemon),
        ("relay", check_relay),
        ("clock", check_clock),
        ("disk", check_disk),
        ("hooks", check_hooks),
        ("java", check_java),
        ("lake", check_lake),
    )
)
