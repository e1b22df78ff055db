"""What is told of an agent's session, and what its events make of it.

An agent's hook changes the state of its session; most also tell something, once, to whoever listens: an adapter, a person.
Tools tell nothing: that an agent uses one is a signal, and what comes of it is read from the transcript.
"""

from enum import StrEnum

import msgspec

from holdfast.protocol import hook_event

TEXT_BYTES_MAX = 24_576  # of what is told, as JSON; with everything around it a message of the mesh has room for it
CUT_SIGN = " […]"

Payload = dict[str, object]


class SessionState(StrEnum):
    """What a session is doing, as far as its events say."""

    IDLE = "idle"  # it waits for a prompt
    WORKING = "working"
    WAITING = "waiting"  # it wants a person
    ENDED = "ended"


class AgentKind(StrEnum):
    """What is told."""

    SESSION_STARTED = "session_started"
    PROMPT = "prompt"
    OUTPUT = "output"  # from the transcript; the next one may take its place
    TURN_COMPLETED = "turn_completed"
    NOTIFICATION = "notification"
    ERROR = "error"
    SESSION_ENDED = "session_ended"


# What an event makes of its session (None: nothing), and what is told of it (None: nothing). Others are only a sign of life.
MEANINGS: dict[str, tuple[SessionState | None, AgentKind | None]] = {
    hook_event.SESSION_START: (None, AgentKind.SESSION_STARTED),
    hook_event.USER_PROMPT_SUBMIT: (SessionState.WORKING, AgentKind.PROMPT),
    hook_event.TOOL_USE: (SessionState.WORKING, None),
    hook_event.TOOL_DONE: (SessionState.WORKING, None),
    hook_event.AGENT_STOP: (SessionState.IDLE, AgentKind.TURN_COMPLETED),
    hook_event.NOTIFICATION: (SessionState.WAITING, AgentKind.NOTIFICATION),
    hook_event.ERROR: (None, AgentKind.ERROR),
    hook_event.SESSION_END: (SessionState.ENDED, AgentKind.SESSION_ENDED),
}

# Errors that end the turn.
TURN_ENDING = frozenset({"StopFailure"})

# Where the words of an event stand, the best place first.
TEXTS: dict[str, tuple[str, ...]] = {
    hook_event.SESSION_START: ("source",),
    hook_event.USER_PROMPT_SUBMIT: ("prompt",),
    hook_event.AGENT_STOP: ("last_assistant_message", "message", "prompt_response"),
    hook_event.NOTIFICATION: ("message", "title", "tool_name"),
    hook_event.ERROR: ("message", "error_details", "error", "reason"),
    hook_event.SESSION_END: ("reason",),
}


class AgentEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that an agent's session has to tell. Whoever gets one twice knows it by its `id`."""

    id: str
    kind: AgentKind
    agent: str
    session_id: str
    at: int  # microseconds
    text: str = ""
    event_name: str = ""  # the agent's own, where it came from a hook
    cwd: str = ""

    @property
    def is_final(self) -> bool:
        """Whether nothing that comes later can stand for it."""
        return self.kind is not AgentKind.OUTPUT


def state_after(event_type: str, event_name: str, before: SessionState) -> SessionState:
    """What a session is doing after an event."""
    if event_name in TURN_ENDING:
        return SessionState.IDLE
    after = MEANINGS.get(event_type, (None, None))[0]
    if after is None and event_type == hook_event.SESSION_START and before is SessionState.ENDED:
        return SessionState.IDLE  # it was taken up again
    return before if after is None else after


def kind_of(event_type: str) -> AgentKind | None:
    """What is told of an event."""
    return MEANINGS.get(event_type, (None, None))[1]


def text_of(event_type: str, payload: Payload) -> str:
    """The words of an event; empty where it has none."""
    found = [payload.get(name) for name in TEXTS.get(event_type, ())]
    response = payload.get("tool_response")
    if event_type == hook_event.ERROR and isinstance(response, dict):
        error = response.get("error")
        found.append(error.get("message") if isinstance(error, dict) else error)
    return next((fitting(text) for text in found if isinstance(text, str) and text), "")


def fitting(text: str) -> str:
    """A text that can be told: without halves of characters, and cut where it would be too long."""
    text = text.encode("utf-8", "replace").decode()
    if len(msgspec.json.encode(text)) <= TEXT_BYTES_MAX:
        return text
    kept = text[:TEXT_BYTES_MAX]
    while len(msgspec.json.encode(kept)) > TEXT_BYTES_MAX - len(CUT_SIGN):
        kept = kept[: len(kept) * 9 // 10]
    return kept + CUT_SIGN
