"""Reading an agent's hook: our name for its event, its session, whether it is stored, and which id makes it unique.

The agent waits while the receiver runs, and the receiver imports this first, so there are only plain tables and plain
functions here, and no imports. A payload may have new fields at any time: unknown ones are kept, and nothing fails on them.
"""

AGENTS = ("claude", "codex", "gemini")

SESSION_START = "session_start"
USER_PROMPT_SUBMIT = "user_prompt_submit"
TOOL_USE = "tool_use"
TOOL_DONE = "tool_done"
AGENT_STOP = "agent_stop"
NOTIFICATION = "notification"
ERROR = "error"
SUBAGENT_START = "subagent_start"
SUBAGENT_STOP = "subagent_stop"
COMPACT = "compact"
SESSION_END = "session_end"

# The types that are stored, unless a setting allows more.
ALLOWED = frozenset({SESSION_START, USER_PROMPT_SUBMIT, TOOL_USE, TOOL_DONE, AGENT_STOP, NOTIFICATION, ERROR})

# Each agent's own names for events, and our types. `hook install` asks the agent for those whose type is allowed.
NAMES: dict[str, dict[str, str]] = {
    "claude": {
        "SessionStart": SESSION_START,
        "UserPromptSubmit": USER_PROMPT_SUBMIT,
        "PreToolUse": TOOL_USE,
        "PostToolUse": TOOL_DONE,
        "PostToolUseFailure": TOOL_DONE,
        "PostToolBatch": TOOL_DONE,
        "Notification": NOTIFICATION,
        "PermissionRequest": NOTIFICATION,
        "Elicitation": NOTIFICATION,
        "Stop": AGENT_STOP,
        "StopFailure": ERROR,
        "PermissionDenied": ERROR,
        "SubagentStart": SUBAGENT_START,
        "SubagentStop": SUBAGENT_STOP,
        "PreCompact": COMPACT,
        "PostCompact": COMPACT,
        "SessionEnd": SESSION_END,
    },
    "codex": {
        "SessionStart": SESSION_START,
        "UserPromptSubmit": USER_PROMPT_SUBMIT,
        "PreToolUse": TOOL_USE,
        "PostToolUse": TOOL_DONE,
        "PermissionRequest": NOTIFICATION,
        "Stop": AGENT_STOP,
        "agent-turn-complete": AGENT_STOP,
        "SubagentStart": SUBAGENT_START,
        "SubagentStop": SUBAGENT_STOP,
        "PreCompact": COMPACT,
        "PostCompact": COMPACT,
        "SessionEnd": SESSION_END,
    },
    "gemini": {
        "SessionStart": SESSION_START,
        "BeforeAgent": USER_PROMPT_SUBMIT,
        "BeforeTool": TOOL_USE,
        "AfterTool": TOOL_DONE,
        "Notification": NOTIFICATION,
        "AfterAgent": AGENT_STOP,
        "PreCompress": COMPACT,
        "SessionEnd": SESSION_END,
    },
}

# Names that are known and have no type of ours: dropped without being reported as new. A setting may allow them, by their
# name in our spelling.
UNMAPPED: dict[str, frozenset[str]] = {
    "claude": frozenset(
        {
            "UserPromptExpansion",
            "PreModelSwitch",
            "PostModelSwitch",
            "Setup",
            "TeammateIdle",
            "TaskCreated",
            "TaskCompleted",
            "ElicitationResult",
            "ConfigChange",
            "WorktreeCreate",
            "WorktreeRemove",
            "InstructionsLoaded",
            "CwdChanged",
            "FileChanged",
            "DirectoryAdded",
            "MessageDisplay",
        }
    ),
    "codex": frozenset(),
    "gemini": frozenset({"BeforeModel", "AfterModel", "BeforeToolSelection"}),
}

# The payload's ids under which an event of a type can happen only once: the same id with the same payload is the same
# hook, fired twice. Events without such an id may legitimately repeat word for word.
OCCURRENCE_IDS: dict[str, tuple[str, ...]] = {
    TOOL_USE: ("tool_use_id",),
    TOOL_DONE: ("tool_use_id",),
    USER_PROMPT_SUBMIT: ("prompt_id", "turn_id"),
    AGENT_STOP: ("turn_id", "prompt_id"),
}

# How prompts begin that no person wrote.
INJECTED_PROMPTS = ("<task-notification", "<system-reminder")

# Why an event is not stored; a person should look at the first kind.
DROPPED_UNKNOWN = "unknown"
DROPPED_NOT_ALLOWED = "not_allowed"
DROPPED_PROMPT_EMPTY = "prompt_empty"
DROPPED_PROMPT_INJECTED = "prompt_injected"

Payload = dict[str, object]


def normalised(agent: str, payload: Payload) -> Payload:
    """The payload with our field names added where the agent's own differ."""
    if agent != "codex" or "thread-id" not in payload:
        return payload
    messages = payload.get("input-messages")
    found: Payload = {
        "session_id": payload["thread-id"],
        "turn_id": payload.get("turn-id"),
        "prompt": messages[-1] if isinstance(messages, list) and messages else messages,
        "message": payload.get("last-assistant-message"),
    }
    return payload | {name: value for name, value in found.items() if isinstance(value, str)}


def name_of(payload: Payload) -> str:
    """The agent's own name for the event; empty if it gives none."""
    name = payload.get("hook_event_name") or payload.get("type")
    return name if isinstance(name, str) else ""


def type_of(agent: str, name: str, payload: Payload) -> str:
    """Our type of an agent's event; our own names are kept, and unknown ones are put into our spelling."""
    if name == "AfterTool" and agent == "gemini" and _has_failed(payload):
        return ERROR
    return NAMES[agent].get(name) or spelled(name)


def drop_reason(agent: str, name: str, event_type: str, payload: Payload, allowed: frozenset[str]) -> str | None:
    """The reason why an event is not stored; None if it is."""
    if event_type not in allowed:
        return DROPPED_NOT_ALLOWED if _is_known(agent, name) else DROPPED_UNKNOWN
    prompt = payload.get("prompt")
    if event_type != USER_PROMPT_SUBMIT or not isinstance(prompt, str):
        return None
    prompt = prompt.strip()
    if not prompt:
        return DROPPED_PROMPT_EMPTY
    return DROPPED_PROMPT_INJECTED if prompt.startswith(INJECTED_PROMPTS) else None


def session_of(payload: Payload) -> str:
    """The agent's own id of the session; empty if it gives none."""
    session = payload.get("session_id")
    return session if isinstance(session, str) else ""


def occurrence_of(event_type: str, payload: Payload) -> str | None:
    """The id under which an event can happen only once; None if it has none."""
    # An agent that a hook kept from stopping stops again, in the same turn and perhaps in the same words.
    if payload.get("stop_hook_active"):
        return None
    for name in OCCURRENCE_IDS.get(event_type, ()):
        found = payload.get(name)
        if isinstance(found, str) and found:
            return f"{name}={found}"
    return None


def spelled(name: str) -> str:
    """A name in our spelling: `BeforeModel` becomes `before_model`."""
    parts = [
        f"_{letter.lower()}" if letter.isupper() and place and not name[place - 1].isupper() else letter.lower()
        for place, letter in enumerate(name.replace("-", "_"))
    ]
    return "".join(parts)


def _is_known(agent: str, name: str) -> bool:
    return name in NAMES[agent] or name in UNMAPPED[agent] or name in NAMES[agent].values()


def _has_failed(payload: Payload) -> bool:
    response = payload.get("tool_response")
    return isinstance(response, dict) and bool(response.get("error"))
