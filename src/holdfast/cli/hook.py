"""`holdfast hook`: put our command into the agents' own settings, take it out again, and see whether it works.

`holdfast hook --agent …` itself, which agents run, is answered before this is even loaded.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from holdfast.cli import session as sessions
from holdfast.cli.daemon import AtHome, find_home
from holdfast.cli.output import AsJson, ExitCode, Failure, console, plain, print_json, show_time
from holdfast.device import holder
from holdfast.device.home import Home
from holdfast.hook import (
    agent_sessions,
    agent_settings,
    agents,
    doctor,
    entries,
    intake,
    outbox,
    programs,
    settings,
    spool,
)
from holdfast.hook.agents import NoSuchScope, Scope
from holdfast.hook.installer import Installer, NotInstalled
from holdfast.hook.layout import REJECTED_NAME, SETTINGS_NAME
from holdfast.protocol import hook_event
from holdfast.protocol.hook_row import HookStatus
from holdfast.protocol.schedule import DAY, SECOND
from holdfast.store import faults
from holdfast.store.engine import Transaction
from holdfast.store.world import wall_clock

DEAD_SHOWN_MAX = 5

app = typer.Typer(
    help="Keep what coding agents tell: install, look, examine. Agents run `holdfast hook --agent NAME`, payload on stdin.",
    no_args_is_help=True,
)


def _agent(value: str | None) -> str | None:
    if value is not None and value not in hook_event.AGENTS:
        raise typer.BadParameter(f"one of {', '.join(hook_event.AGENTS)}")
    return value


Agent = Annotated[str, typer.Option("--agent", callback=_agent, metavar="|".join(hook_event.AGENTS), help="Whose.")]
OneAgent = Annotated[
    str | None,
    typer.Option("--agent", callback=_agent, metavar="|".join(hook_event.AGENTS), help="This one only."),
]
AtScope = Annotated[
    Scope, typer.Option("--scope", help="The user's settings, the project's in this directory, or the user's for it.")
]
Notify = Annotated[bool, typer.Option("--notify", help="Codex: its `notify` command, for versions without hooks.")]


@app.command()
def install(
    agent: Agent,
    scope: AtScope = Scope.USER,
    notify: Notify = False,
    allow: Annotated[
        list[str] | None, typer.Option("--allow", help="Store this type, too: session_end, compact, …")
    ] = None,
    home: AtHome = None,
    as_json: AsJson = False,
) -> None:
    """Have an agent report to this home. Everything else in its settings stays; a copy of them is kept beside."""
    found = find_home(home)
    kind, path = _place(agent, scope, notify=notify)
    allowed = hook_event.ALLOWED | set(_allowed(found, allow or []))
    command = agents.command_line(agent, sys.executable, found.path)
    names = agents.events(agent, allowed)
    words = [*agents.arguments(agent, sys.executable, found.path), "--notify"]

    def add(text: str) -> str:
        return entries.with_notify(text, words) if notify else entries.with_hooks(text, agent, names, command)

    try:
        done = Installer(found.path).install(agent, kind, path, add)
    except entries.Taken as taken:
        raise Failure(ExitCode.VIOLATION, "taken", f"{path}: {taken}. Nothing was changed.") from taken
    events = ["agent-turn-complete"] if notify else names
    if as_json:
        print_json({"agent": agent, "kind": kind, "path": done.path, "backup": done.backup, "events": events})
        return
    console().print(f"{agent} now reports {', '.join(events)}: {done.path}")
    if done.backup is not None:
        console().print(f"The settings as they were: {done.backup}")
    if agent == "codex" and not notify:
        console().print("Codex runs new hooks only after you have trusted them: see /hooks there.")
    console().print(f"Try it: holdfast hook doctor --agent {agent}")


@app.command()
def uninstall(agent: Agent, scope: AtScope = Scope.USER, home: AtHome = None, as_json: AsJson = False) -> None:
    """Take our command out of an agent's settings; what nobody has changed since is as it was, to the byte."""
    found = find_home(home)
    kinds = [False, True] if agent == "codex" and scope is Scope.USER else [False]
    removed = [str(path) for notify in kinds for path in _removed(found, agent, scope, notify=notify)]
    if not removed:
        message = f"nothing of ours is in the {scope} settings of {agent}."
        raise Failure(ExitCode.NOT_FOUND, "not_installed", message)
    if as_json:
        print_json({"agent": agent, "removed": removed})
    else:
        console().print(f"{agent} no longer reports to Holdfast: {', '.join(removed)}")


@app.command()
def status(agent: OneAgent = None, home: AtHome = None, as_json: AsJson = False) -> None:
    """What is installed where, and what is in the hook database: waiting, dead, dropped."""
    found = find_home(home)
    sessions.check_directory(found)
    told = numbers_of(found) | {"installed": [msgspec.to_builtins(one) for one in _installed(agent)]}
    if as_json:
        print_json(told)
        return
    for one in told["installed"]:
        console().print(
            f"{one['agent']} ({one['scope']}, {one['kind']}): {', '.join(one['commands'])} in {one['path']}"
        )
    if not told["installed"]:
        console().print("nothing is installed; `holdfast hook install --agent claude` does that")
    console().print(f"worker: {_worker(told)}")
    events = ", ".join(f"{number} {name}" for name, number in told["events"].items())
    console().print(f"events: {events or 'none'}")
    for problem in problems_of(told):
        console().print(f"! {problem}")


@app.command("doctor")
def examine(agent: OneAgent = None, home: AtHome = None, as_json: AsJson = False) -> None:
    """Fire an event through every installed command, as its agent would, and follow it to its end.

    Exit code 3 if nothing is installed, 4 if something is wrong, 5 if events are stored but no daemon handles them.
    """
    found = find_home(home)
    installed = _installed(agent)
    if not installed:
        advice = f"holdfast hook install --agent {agent or 'claude'}"
        raise Failure(ExitCode.NOT_FOUND, "not_installed", f"no command of ours is installed; `{advice}` does that.")
    allowed = hook_event.ALLOWED | set(settings.load(found.path).allow)
    seen = [_examined(one, allowed, found) for one in installed]
    problems = problems_of(numbers_of(found))
    if as_json:
        print_json({"installed": seen, "problems": problems})
    else:
        _print_examined(seen, problems)
    if any(one["wrong"] for one in seen):
        raise typer.Exit(ExitCode.VIOLATION)
    if any(one["stage"] != "done" for one in seen):
        raise typer.Exit(ExitCode.UNAVAILABLE)


def _examined(installed: doctor.Installed, allowed: frozenset[str], home: Home) -> dict[str, Any]:
    followed = doctor.fire(installed, Path.cwd(), _is_daemon_up)
    wrong = [*doctor.complaints(installed, allowed, sys.executable, home.path), *followed.wrong]
    if followed.stage in ("dead", "coalesced") or (followed.stage == "done" and not followed.is_reported):
        wrong.append(f"the event ended as {followed.stage}{'' if followed.is_reported else ', and is in no history'}")
    if followed.stage not in ("done", "failed") and _is_daemon_up(home.path):
        wrong.append(f"a daemon runs, but has not handled the event within {doctor.FOLLOW_S:g} s")
    told: dict[str, Any] = msgspec.to_builtins(followed)
    return told | {
        "agent": installed.agent,
        "kind": installed.kind,
        "scope": installed.scope,
        "path": installed.path,
        "wrong": wrong,
    }


def _print_examined(seen: list[dict[str, Any]], problems: list[str]) -> None:
    for one in seen:
        sign = "✗" if one["wrong"] else "✓"
        told = " and told in the history" if one["is_reported"] else ""
        took = f", {one['milliseconds']} ms" if one["milliseconds"] is not None else ""
        console().print(
            f"{sign} {one['agent']} ({one['scope']}, {one['kind']}): {one['event_name']} {one['stage']}{told}{took}"
        )
        for wrong in one["wrong"]:
            console().print(f"  ! {plain(wrong)}")
    if any(not one["wrong"] and one["stage"] != "done" for one in seen):
        console().print("Events are kept, but nobody handles them: start a daemon with `holdfast daemon up`.")
    for problem in problems:
        console().print(f"! {problem}")


def _worker(told: dict[str, Any]) -> str:
    if told["faults"]:  # a daemon that was there before may still have one
        return "none can start"
    return "at work" if told["worker"] else "none: no daemon runs in this home"


def numbers_of(home: Home) -> dict[str, Any]:
    """The numbers of a home's hook database, and what keeps a worker from starting there."""
    told: dict[str, Any] = {
        "worker": _is_daemon_up(home.path),
        "faults": list(_faults(home.path)),
        "events": {},
        "stuck": 0,
        "dropped": [],
        "dead": [],
        "without_session": 0,
        "undelivered": [],
    }
    known = intake.Place()
    if doctor.is_used(home.path):
        known = doctor.look(home.path, intake.place)
        chosen = settings.load(home.path)
        stuck_before = wall_clock() - int(chosen.stuck_after_s * SECOND)
        told |= doctor.look(home.path, lambda tx: _counted(tx, stuck_before))
        news_since = wall_clock() - outbox.RETENTION_DAYS * DAY
        for one in told["dropped"]:
            one["is_allowed"] = hook_event.spelled(one["event_name"]) in chosen.allow
            one["is_news"] = one["last_at"] > news_since
    return told | {
        "spool_bytes": intake.waiting_bytes(home.path, known),
        "rejected_bytes": spool.rejected_size(str(home.path)),
    }


def _faults(home: Path) -> Iterator[str]:
    """What is wrong with the settings that a worker reads when it starts."""
    for read in (agent_settings.load, programs.found):
        try:
            read(home)
        except faults.Fault as fault:
            yield str(fault)


def _counted(transaction: Transaction, stuck_before: int) -> dict[str, Any]:
    return {
        "events": outbox.numbers(transaction),
        "stuck": outbox.stuck(transaction, stuck_before)[0],
        "dropped": outbox.dropped(transaction),
        "dead": outbox.dead(transaction, DEAD_SHOWN_MAX),
        "without_session": outbox.without_session(transaction),
        "undelivered": _undelivered(transaction),
    }


def _undelivered(transaction: Transaction) -> list[dict[str, Any]]:
    """The adapters that lately went without a report."""
    since = agent_sessions.outdated(wall_clock())
    return [
        {
            "adapter": one["name"],
            "count": one["given_up"],
            "last_at": one["given_up_at"],
            "last_error": one["given_up_error"],
        }
        for one in agent_sessions.followers(transaction)
        if (one["given_up_at"] or 0) > since
    ]


def _unknown(dropped: dict[str, Any]) -> str:
    """What to do about an event that is in no table: nothing, where no setting can name it."""
    agent, name = dropped["agent"], plain(dropped["event_name"])
    event_type = hook_event.spelled(dropped["event_name"])
    times = "once" if dropped["count"] == 1 else f"{dropped['count']} times"
    was_dropped = f"was dropped {times}, last {show_time(dropped['last_at'])}"
    if not name:
        return f"an event of {agent} without a name {was_dropped}"
    said = f"{agent} has an event {name} that we do not know; it {was_dropped}"
    if not settings.is_type(event_type):
        return said
    # It came, so the command is installed already, wherever that is: only the setting is missing.
    return f'{said}. "allow": ["{event_type}"] in {SETTINGS_NAME} in the home keeps it'


def problems_of(told: dict[str, Any]) -> list[str]:
    """The problems that these numbers show, in words."""
    problems = [
        f"events are kept, but no worker can start to handle them: {plain(fault).removesuffix('.')}"
        for fault in told["faults"]
    ]
    problems += [
        _unknown(one)
        for one in told["dropped"]
        if one["reason"] == hook_event.DROPPED_UNKNOWN and one["is_news"] and not one["is_allowed"]
    ]
    problems += [
        f"{one['event_type']} {one['event_id']} of {one['agent']} was given up after {one['attempts']} attempts:"
        f" {plain(one['last_error'])}"
        for one in told["dead"]
    ]
    if more := told["events"].get(HookStatus.DEAD, 0) - len(told["dead"]):
        problems.append(f"{more} more event{'s were' if more > 1 else ' was'} given up")
    if told["stuck"]:
        problems.append(f"{told['stuck']} event{'s have' if told['stuck'] > 1 else ' has'} been waiting for too long")
    if told["without_session"]:
        many = "events name" if told["without_session"] > 1 else "event names"
        problems.append(f"{told['without_session']} {many} no session: the agent may have changed its format")
    problems += [
        f"{plain(one['adapter'])} went without {one['count']} report{'s' if one['count'] > 1 else ''},"
        f" last {show_time(one['last_at'])}: {plain(one['last_error'])}"
        for one in told["undelivered"]
    ]
    if told["rejected_bytes"]:
        problems.append(
            f"{told['rejected_bytes']} bytes of the spool could not be read as events: look at {REJECTED_NAME} in the home,"
            " then remove it"
        )
    if told["spool_bytes"] and told["worker"]:
        problems.append(
            f"{told['spool_bytes']} bytes wait in the spool: they are on their way, or the hook database is locked"
        )
    return problems


def _place(agent: str, scope: Scope, *, notify: bool) -> tuple[str, Path]:
    """The kind of entry (hooks or notify), and the file for it."""
    if notify and (agent != "codex" or scope is not Scope.USER):
        raise Failure(ExitCode.USAGE, "usage", "only Codex has `notify`, and only in the user's settings.")
    if notify:
        return "notify", agents.notify_path(os.environ)
    try:
        return "hooks", agents.settings_path(agent, scope, Path.cwd(), os.environ)
    except NoSuchScope as error:
        raise Failure(ExitCode.USAGE, "usage", f"{error}.") from error


def _removed(home: Home, agent: str, scope: Scope, *, notify: bool) -> list[Path]:
    kind, path = _place(agent, scope, notify=notify)
    try:
        Installer(home.path).uninstall(kind, path)
    except NotInstalled:
        return []
    return [path]


def _allowed(home: Home, types: list[str]) -> tuple[str, ...]:
    if not types:
        return settings.load(home.path).allow
    try:
        return settings.allow(home.path, types).allow
    except msgspec.ValidationError as error:
        raise Failure(ExitCode.USAGE, "usage", f"--allow takes types such as session_end: {error}.") from error


def _installed(agent: str | None) -> list[doctor.Installed]:
    found = doctor.find(Path.cwd(), dict(os.environ))
    return [one for one in found if agent is None or one.agent == agent]


def _is_daemon_up(home: Path) -> bool:
    return holder.working(Home(home)) is not None
