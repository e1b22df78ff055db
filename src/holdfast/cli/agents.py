"""`holdfast agents`: what coding agents are doing, here or, through a topic of the mesh, on other machines."""

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from holdfast.cli import asking
from holdfast.cli.daemon import AtHome, find_home
from holdfast.cli.following import Following
from holdfast.cli.output import (
    AsJson,
    ExitCode,
    Failure,
    console,
    plain,
    print_json,
    print_list,
    print_table,
    show_time,
)
from holdfast.cli.session import check_directory, teller
from holdfast.device import holder
from holdfast.device.home import Home
from holdfast.hook import agent_sessions, agent_settings, database, doctor
from holdfast.hook.agent_service import adapter_names
from holdfast.hook.agent_sessions import AgentSession, Report
from holdfast.hook.layout import DATABASE_NAME
from holdfast.protocol.agent_event import AgentEvent
from holdfast.protocol.schedule import DAY
from holdfast.store import faults
from holdfast.store.world import wall_clock

if TYPE_CHECKING:
    from holdfast.device.ipc_documents import Message

SESSIONS_MAX = 500
EVENTS_SHOWN = 20
WATCH_POLL_S = 0.5
PREVIEW_CHARACTERS = 80
SESSION_CHARACTERS = 12  # of an id, in a table
PAGE_ROWS = 500

app = typer.Typer(help="What coding agents are doing.", no_args_is_help=True)

Days = Annotated[
    float, typer.Option("--days", min=0, max=36_500, help="Only sessions that were heard of within so many days.")
]


@app.command("list")
def list_sessions(
    days: Days = 1.0,
    agent: Annotated[str | None, typer.Option("--agent", help="Only this agent's.")] = None,
    home: AtHome = None,
    as_json: AsJson = False,
) -> None:
    """Sessions of agents on this machine, the latest first."""
    since = wall_clock() - int(days * DAY)
    sessions: list[AgentSession] = _look(
        _told_home(home), lambda tx: agent_sessions.latest(tx, since, SESSIONS_MAX + 1, agent), empty=[]
    )
    if len(sessions) > SESSIONS_MAX:
        teller(as_json=as_json)(f"only the latest {SESSIONS_MAX} are shown; ask for fewer with --days or --agent.")
        del sessions[SESSIONS_MAX:]
    if as_json:
        print_list([_document(session) for session in sessions])
        return
    rows = [
        (
            session.agent,
            plain(session.session_id)[:SESSION_CHARACTERS],
            session.state,
            show_time(session.last_event_at),
            str(session.turns),
            plain(session.cwd),
            _preview(_doing(session)),
        )
        for session in sessions
    ]
    print_table(("agent", "session", "state", "last heard of", "turns", "directory", ""), rows, right=("turns",))


@app.command()
def show(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="A session's id, or the beginning of it.")],
    home: AtHome = None,
    as_json: AsJson = False,
) -> None:
    """One session: what it was asked, what it said, and what it told last."""
    found_home = _told_home(home)
    found: list[AgentSession] = _look(found_home, lambda tx: agent_sessions.like(tx, session, 2), empty=[])
    exact = [one for one in found if one.session_id == session] or found
    if not exact:
        raise Failure(ExitCode.NOT_FOUND, "not_found", f"no session's id begins with {plain(session)}.")
    if len(exact) > 1:
        raise Failure(
            ExitCode.USAGE, "ambiguous", f"several sessions' ids begin with {plain(session)}; give more of it."
        )
    events: list[AgentEvent] = _look(
        found_home, lambda tx: agent_sessions.told_of(tx, exact[0], EVENTS_SHOWN), empty=[]
    )
    if as_json:
        print_json({**_document(exact[0]), "events": [msgspec.to_builtins(event) for event in events]})
        return
    for name, value in _document(exact[0]).items():
        shown = show_time(value) if name.endswith("_at") else str(value)
        if shown:
            console().print(f"{name:<16}{plain(shown)}")
    for event in events:
        _print_event(event, as_json=False)


@app.command()
def adapters(home: AtHome = None, as_json: AsJson = False) -> None:
    """Who is told what agents do, how far each has come, and what went wrong last."""
    found = _told_home(home)
    followers: list[dict[str, Any]] = _look(found, agent_sessions.followers, empty=[])
    head: int = _look(found, agent_sessions.head, empty=0)
    named = adapter_names(found.path, agent_settings.load(found.path))
    followers = [
        {**one, "waiting": max(0, head - one["position"]), "is_named": one["name"] in named} for one in followers
    ]
    if as_json:
        print_list(followers)
        return
    rows = [
        (
            _adapter(one),
            str(one["delivered"]),
            str(one["waiting"]),
            str(one["given_up"]),
            plain(one["last_error"] or one["given_up_error"] or ""),
        )
        for one in followers
    ]
    print_table(
        ("adapter", "delivered", "waiting", "given up", "last error"), rows, right=("delivered", "waiting", "given up")
    )


def _adapter(follower: dict[str, Any]) -> str:
    name = plain(follower["name"])
    return name if follower["is_named"] else f"{name} (no longer named)"


@app.command()
def watch(
    topic: Annotated[
        str | None,
        typer.Option("--topic", metavar="TOPIC", help="What agents tell on other machines, through this topic."),
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="With --topic: from then on, as inbox --since.")
    ] = None,
    home: AtHome = None,
    as_json: AsJson = False,
) -> None:
    """What agents tell, as it happens, until interrupted. With --json one event a line."""
    if topic is None:
        if since is not None:
            raise Failure(ExitCode.USAGE, "usage", "--since goes with --topic; `agents show` has what was told here.")
        _watch_here(_told_home(home), as_json=as_json)
        return
    started_at = wall_clock() if since is None else asking.read_past(since, "--since")
    with asking.daemon(home) as client:
        for message in Following(client, {"topic": topic, "since": started_at}).messages():
            event = _event_in(message)
            if event is not None:
                _print_event(event, as_json=as_json, sender=message.sender_name)


def _watch_here(home: Home, *, as_json: bool) -> None:
    """Print reports from the database itself, without asking the daemon that writes them."""
    if not as_json and holder.working(home) is None:
        teller(as_json=False)("no daemon runs in this home; what agents tell is shown when one does.")
    engine = database.opened(home.path / DATABASE_NAME, wall_clock)
    try:
        with engine.read() as transaction:
            position = agent_sessions.head(transaction)
        while True:
            told: list[Report] = []
            with suppress(faults.Busy), engine.read() as transaction:  # whoever has it lets go of it some day
                told = agent_sessions.told(transaction, position, PAGE_ROWS)
            for report in told:
                _print_event(report.event, as_json=as_json)
            position = told[-1].position if told else position
            time.sleep(WATCH_POLL_S)
    finally:
        engine.close()


def _event_in(message: "Message") -> AgentEvent | None:
    """The report in a message; None if the message is something else."""
    if message.body is None:
        return None
    try:
        return msgspec.json.decode(message.body, type=AgentEvent)
    except msgspec.DecodeError:
        return None


def _print_event(event: AgentEvent, *, as_json: bool, sender: str | None = None) -> None:
    told = msgspec.to_builtins(event) | ({} if sender is None else {"sender": sender})
    if as_json:
        print_json(told)
    else:
        who = f"{plain(event.agent)} {plain(event.session_id)[:SESSION_CHARACTERS]}"
        where = "" if sender is None else f"{plain(sender)}: "
        console().print(f"{show_time(event.at)}  {where}{who}  {event.kind}  {_preview(event.text)}")
    sys.stdout.flush()


def _document(session: AgentSession) -> dict[str, Any]:
    """A session as JSON, without our own marks in its transcript."""
    found: dict[str, Any] = msgspec.to_builtins(session)
    return {name: value for name, value in found.items() if name not in _OURS}


_OURS = frozenset({"last_event_id", "transcript_end", "transcript_size", "transcript_line"})


def _doing(session: AgentSession) -> str:
    """The text that a list shows of a session: what it wants, was asked or said last."""
    wanted = {"waiting": session.notification, "working": session.prompt, "idle": session.message}
    return wanted.get(session.state, "") or session.prompt


def _preview(text: str) -> str:
    line = plain(" ".join(text.split()))
    return line if len(line) <= PREVIEW_CHARACTERS else line[: PREVIEW_CHARACTERS - 1] + "…"


def _told_home(home: Path | None) -> Home:
    """The home that is named; refused if its directory does not exist."""
    found = find_home(home)
    check_directory(found)
    return found


def _look(home: Home, query: Callable[[Any], Any], *, empty: Any) -> Any:
    return doctor.look(home.path, query) if doctor.is_used(home.path) else empty
