"""Agent sessions and what they tell, in the hook database: there an event, what it makes of its session and what is told of it
can be one transaction away from each other, and the home's own file stays as small as its messages. Transactions only.
"""

from collections.abc import Callable, Container
from typing import Any

import msgspec

from holdfast.hook.event import HookEvent
from holdfast.hook.layout import DOCTOR_SESSION
from holdfast.hook.tail import Mark
from holdfast.protocol import agent_event, hook_event
from holdfast.protocol.agent_event import AgentEvent, AgentKind, SessionState, fitting
from holdfast.protocol.schedule import DAY
from holdfast.store.engine import Transaction, Value
from holdfast.store.statements import Statements

EVENT_RETENTION_DAYS = 7  # of what was told, followed or not
SESSION_RETENTION_DAYS = 30  # after the last event
PRUNE_ROWS = 500  # in one transaction
NAME_CHARACTERS_MAX = 1_000  # of a directory, a path or a tool

_SQL = Statements(__package__, "agent_sessions.sql")


class AgentSession(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one agent session after its latest event."""

    agent: str
    session_id: str
    state: SessionState = SessionState.IDLE
    cwd: str = ""
    started_at: int = 0
    last_event_at: int = 0
    last_event_id: str = ""
    last_event_type: str = ""
    turns: int = 0  # prompts that were seen
    prompt: str = ""  # the last one
    message: str = ""  # what it said last at the end of a turn
    notification: str = ""  # what it wants, while it is waiting
    error: str = ""
    tool: str = ""  # the last that it used
    transcript_path: str = ""
    transcript_end: int = 0
    transcript_size: int = 0
    transcript_line: str = ""
    ended_at: int | None = None

    @property
    def transcript_mark(self) -> Mark:
        return Mark(self.transcript_end, self.transcript_size, self.transcript_line)

    def read_to(self, mark: Mark) -> "AgentSession":
        return msgspec.structs.replace(
            self, transcript_end=mark.end, transcript_size=mark.size, transcript_line=mark.line
        )


class Report(msgspec.Struct, frozen=True):
    """Something that was told, at its place among all that was."""

    position: int
    told_at: int
    event: AgentEvent


def find(transaction: Transaction, agent: str, session_id: str) -> AgentSession | None:
    found = transaction.rows(_SQL["find"], {"agent": agent, "session_id": session_id})
    return _session(found[0]) if found else None


def like(transaction: Transaction, beginning: str, limit: int) -> list[AgentSession]:
    """Sessions whose id begins with these characters."""
    return [_session(row) for row in transaction.rows(_SQL["like"], {"session_id": beginning, "limit": limit})]


def latest(transaction: Transaction, since: int, limit: int, agent: str | None = None) -> list[AgentSession]:
    """Sessions, of all agents or one, with an event since this time, the latest first."""
    wanted: dict[str, Value] = {"since": since, "limit": limit, "agent": agent}
    return [_session(row) for row in transaction.rows(_SQL["latest"], wanted)]


def keep(transaction: Transaction, session: AgentSession) -> None:
    transaction.run(_SQL["keep"], msgspec.structs.asdict(session))


def handle(transaction: Transaction, event: HookEvent, now: int, end_of: Callable[[str], Mark]) -> AgentSession | None:
    """Update the session of an event and report the event; None if it names no session. Repeating this changes nothing."""
    if event.session_id.startswith(DOCTOR_SESSION):
        return None
    if not event.session_id:
        _tell(transaction, event, "", now)
        return None
    before = find(transaction, event.agent, event.session_id)
    is_known = before is not None
    before = before or AgentSession(
        agent=event.agent, session_id=event.session_id, started_at=event.received_at, last_event_at=event.received_at
    )
    if before.last_event_id == event.event_id:
        return before
    if before.state is SessionState.ENDED and event.event_type != hook_event.SESSION_START:
        return before  # it comes late
    after = _after(before, event)
    if not is_known:
        after = _begun(after, event, end_of)
    elif before.transcript_path and before.transcript_path != after.transcript_path:
        is_start = event.event_type == hook_event.SESSION_START
        after = _begun(after, event, end_of) if is_start else after.read_to(Mark())  # it goes on in a new file
    keep(transaction, after)
    _tell(transaction, event, after.cwd, now)
    return after


def tell(transaction: Transaction, told: AgentEvent, now: int) -> None:
    """Store a report for the adapters."""
    transaction.run(
        _SQL["tell"],
        {
            "id": told.id,
            "kind": told.kind,
            "agent": told.agent,
            "session_id": told.session_id,
            "at": told.at,
            "told_at": now,
            "document": msgspec.json.encode(told),
        },
    )


def told(transaction: Transaction, after: int, limit: int) -> list[Report]:
    """The reports after a position, in order."""
    found = transaction.rows(_SQL["told"], {"after": after, "limit": limit})
    return [Report(position, told_at, _event(document)) for position, told_at, document in found]


def told_of(transaction: Transaction, session: AgentSession, limit: int) -> list[AgentEvent]:
    """The latest reports of a session, in order."""
    names: dict[str, Value] = {"agent": session.agent, "session_id": session.session_id, "limit": limit}
    return [_event(document) for (document,) in reversed(transaction.rows(_SQL["told_of"], names))]


def head(transaction: Transaction) -> int:
    """The position of the latest report."""
    return int(transaction.rows(_SQL["head"])[0][0])


def follow(transaction: Transaction, name: str) -> int:
    """The position of a follower; a new follower begins behind the latest report."""
    transaction.run(_SQL["follow"], {"name": name})
    return int(transaction.rows(_SQL["follower"], {"name": name})[0][0])


def followers(transaction: Transaction) -> list[dict[str, Any]]:
    """All followers, with their positions and counts."""
    names = (
        "name",
        "position",
        "delivered",
        "given_up",
        "given_up_at",
        "given_up_error",
        "last_error",
        "last_error_at",
    )
    return [dict(zip(names, row, strict=True)) for row in transaction.rows(_SQL["followers"])]


def outdated(now: int) -> int:
    """The time before which a report is too old to be kept."""
    return now - EVENT_RETENTION_DAYS * DAY


def forget_followers(transaction: Transaction, named: Container[str], now: int) -> dict[str, int]:
    """Remove followers that no adapter uses and whose next report is outdated; returns what each did not get."""
    gone = [one["name"] for one in followers(transaction) if one["name"] not in named]
    found = {name: transaction.rows(_SQL["forget"], {"name": name, "before": outdated(now)}) for name in gone}
    return {name: rows[0][0] for name, rows in found.items() if rows}


def advance(
    transaction: Transaction,
    name: str,
    position: int,
    *,
    delivered: int = 0,
    given_up: int = 0,
    given_up_error: str | None = None,
    error: str | None = None,
    error_at: int | None = None,
) -> None:
    """Move a follower's position forward, and add to its counts; why it went without something outlives its next error."""
    transaction.run(
        _SQL["advance"],
        {
            "name": name,
            "position": position,
            "delivered": delivered,
            "given_up": given_up,
            "given_up_error": given_up_error,
            "error": error,
            "error_at": error_at,
        },
    )


def prune(transaction: Transaction, now: int) -> int:
    """Remove old reports that no follower still has before it, and old sessions; returns how many rows, at most PRUNE_ROWS of each."""
    events = {"before": outdated(now), "limit": PRUNE_ROWS}
    sessions = {"before": now - SESSION_RETENTION_DAYS * DAY, "limit": PRUNE_ROWS}
    return transaction.run(_SQL["prune_events"], events) + transaction.run(_SQL["prune_sessions"], sessions)


def _after(before: AgentSession, event: HookEvent) -> AgentSession:
    """The state of a session after an event."""
    payload, kind = event.payload, agent_event.kind_of(event.event_type)
    words = agent_event.text_of(event.event_type, payload)
    state = agent_event.state_after(event.event_type, event.event_name, before.state)
    return msgspec.structs.replace(
        before,
        state=state,
        cwd=_name(payload.get("cwd")) or before.cwd,
        last_event_at=event.received_at,
        last_event_id=event.event_id,
        last_event_type=event.event_type,
        turns=before.turns + (kind is AgentKind.PROMPT),
        prompt=words if kind is AgentKind.PROMPT else before.prompt,
        message=words if kind is AgentKind.TURN_COMPLETED else before.message,
        notification=words if kind is AgentKind.NOTIFICATION else before.notification,
        error=words if kind is AgentKind.ERROR else before.error,
        tool=_name(payload.get("tool_name")) or before.tool,
        transcript_path=_name(payload.get("transcript_path")) or before.transcript_path,
        ended_at=event.received_at if state is SessionState.ENDED else None,
    )


def _begun(session: AgentSession, event: HookEvent, end_of: Callable[[str], Mark]) -> AgentSession:
    """The session with its transcript's start: the beginning for a new session, the current end for a resumed one."""
    is_fresh = event.event_type == hook_event.SESSION_START and event.payload.get("source") not in ("resume", "fork")
    if is_fresh or not session.transcript_path:
        return session.read_to(Mark())
    return session.read_to(end_of(session.transcript_path))


def _tell(transaction: Transaction, event: HookEvent, cwd: str, now: int) -> None:
    kind = agent_event.kind_of(event.event_type)
    if kind is None:
        return
    tell(
        transaction,
        AgentEvent(
            id=event.event_id,
            kind=kind,
            agent=event.agent,
            session_id=event.session_id,
            at=event.received_at,
            text=agent_event.text_of(event.event_type, event.payload),
            event_name=event.event_name,
            cwd=cwd,
        ),
        now,
    )


def _name(value: object) -> str:
    """A path or a name from a payload; empty if no file could be called that."""
    is_name = isinstance(value, str) and "\0" not in value and len(value) <= NAME_CHARACTERS_MAX
    return fitting(str(value)) if is_name else ""


def _session(row: Any) -> AgentSession:
    names = AgentSession.__struct_fields__
    found = dict(zip(names, row, strict=True))
    return AgentSession(**found | {"state": SessionState(found["state"])})


def _event(document: bytes) -> AgentEvent:
    return msgspec.json.decode(document, type=AgentEvent)
