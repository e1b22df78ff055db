"""The doctor: fires an event through an installed command, as the agent would, and follows it to its end."""

import asyncio
import json
import os
import shlex
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from holdfast.hook import agents, database, entries, outbox
from holdfast.hook.installer import Unreadable
from holdfast.hook.intake import Intake
from holdfast.hook.json_text import NotJson
from holdfast.hook.layout import DATABASE_NAME, DOCTOR_SESSION, SPOOL_NAME
from holdfast.hook.store import Store
from holdfast.protocol.hook_row import HookStatus
from holdfast.store import faults
from holdfast.store.engine import Transaction
from holdfast.store.world import wall_clock

COMMAND_TIMEOUT_S = 30.0
FOLLOW_S = 20.0  # for a daemon to handle the event and to write its history
FOLLOW_POLL_S = 0.1
FIRST_EVENTS = ("SessionStart",)  # what is fired where it is installed


class Installed(msgspec.Struct, frozen=True, kw_only=True):
    """Our commands in one settings file."""

    agent: str
    kind: str  # hooks or notify
    scope: str
    path: str
    commands: dict[str, list[str]]  # by event


class Followed(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an event that the doctor fired: how far it came, and what was wrong."""

    event_name: str
    stage: str  # failed, spooled, stored, or the status of its row
    is_reported: bool = False
    milliseconds: int | None = None  # that the command took
    wrong: tuple[str, ...] = ()


def find(directory: Path, environment: dict[str, str]) -> list[Installed]:
    """Every settings file in which commands of ours stand."""
    found = []
    for agent, scope, path in agents.places(directory, environment):
        ours = _read(path, entries.commands) or {}
        if ours:
            found.append(Installed(agent=agent, kind="hooks", scope=scope, path=str(path), commands=ours))
    path = agents.notify_path(environment)
    words = _read(path, entries.notify)
    if isinstance(words, list) and agents.is_ours(words):
        line = {"agent-turn-complete": [shlex.join(words)]}
        found.append(Installed(agent="codex", kind="notify", scope="user", path=str(path), commands=line))
    return found


def _read(path: Path, meaning: Callable[[str], Any]) -> Any:
    """What a settings file means; None if there is no file, Unreadable if it cannot be understood."""
    try:
        return meaning(path.read_text()) if path.is_file() else None
    except (NotJson, OSError, UnicodeDecodeError) as error:
        raise Unreadable(str(path), str(error)) from error


def home_of(command: str) -> Path | None:
    """The home that an installed command stores into."""
    words = shlex.split(command)
    place = words.index("--home") + 1 if "--home" in words else len(words)
    return Path(words[place]) if place < len(words) else None


def complaints(installed: Installed, allowed: frozenset[str], python: str, home: Path) -> list[str]:
    """How installed commands differ from what an install would write now."""
    wrong = []
    if installed.kind == "hooks":
        missing = [name for name in agents.events(installed.agent, allowed) if name not in installed.commands]
        wrong += [f"not installed for {', '.join(missing)}"] if missing else []
        expected = agents.command_line(installed.agent, python, home)
    else:
        expected = shlex.join([*agents.arguments("codex", python, home), "--notify"])
    found = {command for commands in installed.commands.values() for command in commands}
    if found - {expected}:
        wrong.append("the command is not the one that an install would write now")
    programs = {shlex.split(command)[0] for command in found}
    wrong += [f"there is no program {name}" for name in sorted(programs) if not os.access(name, os.X_OK)]
    twice = [event for event, commands in installed.commands.items() if len(commands) > 1]
    return wrong + ([f"installed twice for {', '.join(twice)}"] if twice else [])


def fire(installed: Installed, directory: Path, is_daemon_up: Callable[[Path], bool]) -> Followed:
    """Run an installed command as the agent would, and follow its event."""
    names = list(installed.commands)
    name = next((known for known in FIRST_EVENTS if known in names), names[0])
    command = installed.commands[name][0]
    session = DOCTOR_SESSION + os.urandom(8).hex()
    began = time.monotonic()
    done = _run(command, _payload(installed, name, session, directory), is_notify=installed.kind == "notify")
    took = round((time.monotonic() - began) * 1000)
    wrong = _what_it_said(done)
    home = home_of(command)
    if home is None:
        return Followed(event_name=name, stage="failed", wrong=(*wrong, "the command names no home"))
    stage, is_reported = _follow(home, installed.agent, session, wait=is_daemon_up(home))
    if stage == "failed":
        wrong.append("nothing was stored")
    return Followed(event_name=name, stage=stage, is_reported=is_reported, milliseconds=took, wrong=tuple(wrong))


def is_used(home: Path) -> bool:
    """Whether anything was ever stored in a home."""
    return any((home / name).exists() for name in (DATABASE_NAME, SPOOL_NAME))


def look(home: Path, query: Callable[[Transaction], Any]) -> Any:
    """Read a home's hook database, after taking in the spool: there may be no worker to do that."""
    store = Store(database.opened(home / DATABASE_NAME, wall_clock), threaded=False)
    try:
        with suppress(faults.Busy):
            asyncio.run(Intake(home, store).take_in())
        return store.look(query)
    finally:
        store.close()


def _payload(installed: Installed, name: str, session: str, directory: Path) -> dict[str, Any]:
    common: dict[str, Any] = {"cwd": str(directory), "holdfast_doctor": True}
    if installed.kind == "notify":
        return common | {
            "type": name,
            "thread-id": session,
            "turn-id": session,
            "input-messages": ["holdfast hook doctor"],
            "last-assistant-message": "",
        }
    return common | {"session_id": session, "transcript_path": None, "hook_event_name": name, "source": "startup"}


def _run(command: str, payload: dict[str, Any], *, is_notify: bool) -> "subprocess.CompletedProcess[bytes] | str":
    text = json.dumps(payload)
    words = [*shlex.split(command), text] if is_notify else ["/bin/sh", "-c", command]
    said = b"" if is_notify else text.encode()
    try:
        return subprocess.run(words, input=said, capture_output=True, timeout=COMMAND_TIMEOUT_S, check=False)  # noqa: S603 - what the agent would run
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)


def _what_it_said(done: "subprocess.CompletedProcess[bytes] | str") -> list[str]:
    """What an agent would see of a command: a wrong code, or output."""
    if isinstance(done, str):
        return [f"it cannot be run: {done}"]
    wrong = [f"it ended with code {done.returncode}"] if done.returncode else []
    wrong += ["it wrote to stdout, which the agent reads"] if done.stdout else []
    return wrong + ([done.stderr.decode(errors="replace").strip()] if done.stderr else [])


def _follow(home: Path, agent: str, session: str, *, wait: bool) -> tuple[str, bool]:
    """How far an event has come; with `wait`, after waiting for its end."""
    give_up_at = time.monotonic() + FOLLOW_S
    while True:
        stage, is_reported = _stage(home, agent, session)
        has_ended = stage in (HookStatus.DONE, HookStatus.DEAD, HookStatus.COALESCED) and is_reported
        if has_ended or not wait or time.monotonic() >= give_up_at:
            return stage, is_reported
        time.sleep(FOLLOW_POLL_S)


def _stage(home: Path, agent: str, session: str) -> tuple[str, bool]:
    if is_used(home):
        found = look(home, lambda tx: outbox.session_events(tx, agent, session))
        if found:
            status = found[0]["status"]
            return ("stored" if status == HookStatus.PENDING else str(status)), bool(found[0]["ended_reported"])
    return ("spooled" if _is_spooled(home, session) else "failed"), False


def _is_spooled(home: Path, session: str) -> bool:
    path = home / SPOOL_NAME
    return path.exists() and session.encode() in path.read_bytes()
