"""Agent events: what a hook event changes in its session's state, and what it reports to adapters and people.

Most hook events change the state and are reported once. Uses of tools are not reported: they only show that the agent
works, and their output is read from the transcript.
"""

from enum import StrEnum

import msgspec

from holdfast.protocol import hook_event

TEXT_BYTES_MAX = 24_576  # of the reported text, as JSON; with everything around it, it fits into a message of the mesh
CUT_SIGN = " […]"

Payload = dict[str, object]


class SessionState(StrEnum):
    """The state of a session, as far as its events tell."""

    IDLE = "idle"  # it waits for a prompt
    WORKING = "working"
    WAITING = "waiting"  # it needs a person
    ENDED = "ended"


class AgentKind(StrEnum):
    """What an agent event reports."""

    SESSION_STARTED = "session_started"
    PROMPT = "prompt"
    OUTPUT = "output"  # from the transcript; a later one may replace it
    TURN_COMPLETED = "turn_completed"
    NOTIFICATION = "notification"
    ERROR = "error"
    SESSION_ENDED = "session_ended"


# By type of event: the session's new state (None: unchanged) and what is reported (None: nothing). All others change nothing.
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

# The payload's fields that hold an event's text, the best first.
TEXTS: dict[str, tuple[str, ...]] = {
    hook_event.SESSION_START: ("source",),
    hook_event.USER_PROMPT_SUBMIT: ("prompt",),
    hook_event.AGENT_STOP: ("last_assistant_message", "message", "prompt_response"),
    hook_event.NOTIFICATION: ("message", "title", "tool_name"),
    hook_event.ERROR: ("message", "error_details", "error", "reason"),
    hook_event.SESSION_END: ("reason",),
}


class AgentEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One report about an agent's session. It may arrive twice; the `id` is then the same."""

    id: str
    kind: AgentKind
    agent: str
    session_id: str
    at: int  # microseconds
    text: str = ""
    event_name: str = ""  # the agent's own name for it, if it came from a hook
    cwd: str = ""

    @property
    def is_final(self) -> bool:
        """Whether it must be reported even if a later one follows."""
        return self.kind is not AgentKind.OUTPUT


def state_after(event_type: str, event_name: str, before: SessionState) -> SessionState:
    """The state of a session after an event."""
    if event_name in TURN_ENDING:
        return SessionState.IDLE
    after = MEANINGS.get(event_type, (None, None))[0]
    if after is None and event_type == hook_event.SESSION_START and before is SessionState.ENDED:
        return SessionState.IDLE  # the session was resumed
    return before if after is None else after


def kind_of(event_type: str) -> AgentKind | None:
    """What an event of this type reports; None for nothing."""
    return MEANINGS.get(event_type, (None, None))[1]


def text_of(event_type: str, payload: Payload) -> str:
    """The text of an event; empty if it has none."""
    found = [payload.get(name) for name in TEXTS.get(event_type, ())]
    response = payload.get("tool_response")
    if event_type == hook_event.ERROR and isinstance(response, dict):
        error = response.get("error")
        found.append(error.get("message") if isinstance(error, dict) else error)
    return next((fitting(text) for text in found if isinstance(text, str) and text), "")


def fitting(text: str) -> str:
    """The text without lone surrogates, and cut to what a report may hold."""
    text = text.encode("utf-8", "replace").decode()
    if len(msgspec.json.encode(text)) <= TEXT_BYTES_MAX:
        return text
    kept = text[:TEXT_BYTES_MAX]
    while len(msgspec.json.encode(kept)) > TEXT_BYTES_MAX - len(CUT_SIGN):
        kept = kept[: len(kept) * 9 // 10]
    return kept + CUT_SIGN
