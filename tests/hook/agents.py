"""Agents for tests: events as the worker hands them over, and what comes of them."""

import random
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from holdfast.hook import agent_sessions, transcripts
from holdfast.hook.agent_sessions import AgentSession, Report
from holdfast.hook.event import HookEvent
from holdfast.protocol.agent_event import AgentEvent, AgentKind
from tests.hook.office import Office

_luck = random.Random(11)


def hook(event_type: str, session: str = "s1", agent: str = "claude", name: str = "", **payload: Any) -> HookEvent:
    return HookEvent(
        event_id=_luck.randbytes(16).hex(),
        agent=agent,
        session_id=session,
        event_type=event_type,
        event_name=name or event_type,
        payload=payload,
        received_at=_luck.randrange(10**15, 2 * 10**15),
        attempts=1,
    )


def handle(office: Office, *events: HookEvent) -> None:
    for event in events:
        office.do(partial(agent_sessions.handle, event=event, now=office.clock(), end_of=transcripts.end_of))


def session(office: Office, name: str = "s1", agent: str = "claude") -> AgentSession:
    found: AgentSession | None = office.do(lambda tx: agent_sessions.find(tx, agent, name))
    assert found is not None
    return found


def told(office: Office) -> list[tuple[str, str]]:
    reports: list[Report] = office.do(lambda tx: agent_sessions.told(tx, 0, 100_000))
    return [(report.event.kind.value, report.event.text) for report in reports]


def read(office: Office, reader: transcripts.Reader, name: str = "s1", agent: str = "claude") -> None:
    while office.do(lambda tx: reader.read_on(tx, agent, name, office.clock())):
        pass


def tell(office: Office, number: int, kind: AgentKind = AgentKind.TURN_COMPLETED, of: str = "s1", ago: int = 0) -> None:
    """Have something told, without an agent; so long ago, in microseconds."""
    event = AgentEvent(
        id=f"{kind}-{of}-{number}", kind=kind, agent="claude", session_id=of, at=office.clock(), text=str(number)
    )
    office.do(lambda tx: agent_sessions.tell(tx, event, office.clock() - ago))


def line(text: str, **more: Any) -> bytes:
    """What Claude Code writes down."""
    message = {"role": "assistant", "content": [{"type": "text", "text": text}]}
    return msgspec.json.encode({"type": "assistant", "message": message, **more}) + b"\n"


def begun(office: Office, path: Path, agent: str = "claude") -> None:
    handle(office, hook("session_start", agent=agent, transcript_path=str(path), source="startup", cwd="/kitchen"))
