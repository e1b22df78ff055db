"""What the three agents send, as their documents have it: one session of each, and what must become of every event.

Paths, ids and texts are made up; the fields are the agents' own, with one or two that nobody knows yet.
"""

from typing import Any, NamedTuple

Payload = dict[str, Any]


class Recorded(NamedTuple):
    """One hook call: the payload, and the type under which it must be stored; None if it must not be."""

    payload: Payload
    event_type: str | None


CLAUDE_SESSION = "5f3c0e9a-2b41-4d0f-9f57-0c8a7c1f6e2d"
CLAUDE_COMMON: Payload = {
    "session_id": CLAUDE_SESSION,
    "transcript_path": "/home/ann/.claude/projects/-home-ann-kitchen/5f3c0e9a.jsonl",
    "cwd": "/home/ann/kitchen",
    "permission_mode": "default",
}


def _claude(name: str, event_type: str | None, **fields: Any) -> Recorded:
    return Recorded({**CLAUDE_COMMON, "hook_event_name": name, **fields}, event_type)


_BASH: Payload = {"tool_name": "Bash", "tool_input": {"command": "make test", "description": "Run the tests"}}

CLAUDE = [
    _claude("SessionStart", "session_start", source="startup", model="claude-opus", session_title="Dinner"),
    _claude("InstructionsLoaded", None, files=["/home/ann/kitchen/CLAUDE.md"]),
    _claude("UserPromptSubmit", "user_prompt_submit", prompt="Make the tests pass, alle, bitte 🙂", prompt_id="p-1"),
    _claude("PreToolUse", "tool_use", **_BASH, tool_use_id="toolu_01", effort={"level": "high"}),
    _claude("PermissionRequest", "notification", **_BASH, permission_suggestions=[{"type": "addRules"}]),
    _claude("PermissionDenied", "error", **_BASH, reason="a rule says no"),
    _claude(
        "PostToolUse",
        "tool_done",
        **_BASH,
        tool_use_id="toolu_01",
        tool_response={"stdout": "2 passed\n", "stderr": "", "interrupted": False},
        duration_ms=1801,
    ),
    _claude("PreToolUse", "tool_use", tool_name="Read", tool_input={"file_path": "/x"}, tool_use_id="toolu_02"),
    _claude(
        "PostToolUseFailure",
        "tool_done",
        tool_name="Read",
        tool_input={"file_path": "/x"},
        tool_use_id="toolu_02",
        error="no such file",
        is_interrupt=False,
    ),
    _claude("PostToolBatch", "tool_done", tools=[]),
    _claude("SubagentStart", None, agent_id="a1", agent_type="Explore"),
    _claude("SubagentStop", None, agent_id="a1", agent_type="Explore", stop_hook_active=False),
    _claude(
        "Notification", "notification", message="Claude is waiting for your input", notification_type="idle_prompt"
    ),
    _claude("MessageDisplay", None, turn_id="t", message_id="m", index=0, final=False, delta="He"),
    _claude("PreCompact", None, trigger="auto", custom_instructions=None),
    _claude("Stop", "agent_stop", stop_hook_active=False, last_assistant_message="Done.", background_tasks=[]),
    _claude("StopFailure", "error", error="rate_limit", error_details="429"),
    _claude("SessionEnd", None, reason="prompt_input_exit"),
    _claude("UserPromptSubmit", None, prompt="<task-notification>\n<task-id>7</task-id>\n</task-notification>"),
    _claude("UserPromptSubmit", None, prompt="  <system-reminder>be kind</system-reminder>"),
    _claude("BrandNewEvent", None, something="new"),
]

CODEX_SESSION = "0199a213-81c0-7800-8aa1-bbab2a035a53"
CODEX_COMMON: Payload = {
    "session_id": CODEX_SESSION,
    "transcript_path": None,
    "cwd": "/home/ann/kitchen",
    "model": "gpt-5-codex",
    "permission_mode": "default",
}


def _codex(name: str, event_type: str | None, turn: str = "turn-1", **fields: Any) -> Recorded:
    return Recorded({**CODEX_COMMON, "hook_event_name": name, "turn_id": turn, **fields}, event_type)


_SHELL: Payload = {"tool_name": "Bash", "tool_input": {"command": "ls"}, "tool_use_id": "call_1"}

CODEX = [
    _codex("SessionStart", "session_start", source="startup"),
    _codex("UserPromptSubmit", "user_prompt_submit", prompt="List the files"),
    _codex("PreToolUse", "tool_use", **_SHELL),
    _codex("PermissionRequest", "notification", tool_name="Bash", tool_input={"command": "rm x"}),
    _codex("PostToolUse", "tool_done", **_SHELL, tool_response="a\nb\n"),
    _codex("SubagentStart", None, agent_id="a", agent_type="worker"),
    _codex("PreCompact", None, trigger="manual"),
    _codex("Stop", "agent_stop", stop_hook_active=False, last_assistant_message="Two files."),
    _codex("SessionEnd", None, reason="other"),
]

NOTIFY: Payload = {
    "type": "agent-turn-complete",
    "thread-id": CODEX_SESSION,
    "turn-id": "turn-2",
    "cwd": "/home/ann/kitchen",
    "client": "codex-tui",
    "input-messages": ["List the files", "And count them"],
    "last-assistant-message": "There are two.",
}

GEMINI_SESSION = "a8d1c6f2-5a57-41e8-9c1c-2f1d1e0b7c55"
GEMINI_COMMON: Payload = {
    "session_id": GEMINI_SESSION,
    "transcript_path": "/home/ann/.gemini/tmp/1f/chats/session.json",
    "cwd": "/home/ann/kitchen",
    "timestamp": "2026-08-21T10:00:00.000Z",
}


def _gemini(name: str, event_type: str | None, **fields: Any) -> Recorded:
    return Recorded({**GEMINI_COMMON, "hook_event_name": name, **fields}, event_type)


_LIST: Payload = {"tool_name": "list_directory", "tool_input": {"dir_path": "."}}

GEMINI = [
    _gemini("SessionStart", "session_start", source="startup"),
    _gemini("BeforeAgent", "user_prompt_submit", prompt="What is here?"),
    _gemini("BeforeAgent", None, prompt="   "),
    _gemini("BeforeModel", None, llm_request={"model": "gemini-pro", "messages": []}),
    _gemini("AfterModel", None, llm_request={}, llm_response={"text": "chunk"}),
    _gemini("BeforeToolSelection", None, llm_request={}),
    _gemini("BeforeTool", "tool_use", **_LIST),
    _gemini("AfterTool", "tool_done", **_LIST, tool_response={"llmContent": "a b", "returnDisplay": "a b"}),
    _gemini("AfterTool", "error", **_LIST, tool_response={"llmContent": "", "error": {"message": "denied"}}),
    _gemini("Notification", "notification", notification_type="ToolPermission", message="May I?", details={}),
    _gemini("PreCompress", None, trigger="auto"),
    _gemini("AfterAgent", "agent_stop", prompt="What is here?", prompt_response="Two files.", stop_hook_active=False),
    _gemini("SessionEnd", None, reason="exit"),
]

SESSIONS = {"claude": CLAUDE, "codex": CODEX, "gemini": GEMINI}
