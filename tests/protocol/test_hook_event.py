"""What an agent's hook means: names, sessions, prompts, and what makes two hooks one."""

import pytest

from holdfast.protocol import hook_event
from holdfast.protocol.hook_event import (
    AGENTS,
    ALLOWED,
    NAMES,
    UNMAPPED,
    drop_reason,
    name_of,
    normalised,
    occurrence_of,
    session_of,
    spelled,
    type_of,
)
from holdfast.protocol.hook_queue import CLASSES


def test_seven_types_are_stored_and_every_type_of_the_tables_has_a_class() -> None:
    assert (
        " ".join(sorted(ALLOWED)) == "agent_stop error notification session_start tool_done tool_use user_prompt_submit"
    )
    assert {kind for names in NAMES.values() for kind in names.values()} == set(CLASSES)


def test_every_name_of_every_agent_is_known_once() -> None:
    assert set(NAMES) == set(UNMAPPED) == set(AGENTS)
    assert not [agent for agent in AGENTS if set(NAMES[agent]) & UNMAPPED[agent]]
    assert len(NAMES["claude"]) + len(UNMAPPED["claude"]) == 33
    assert len(NAMES["codex"]) - 1 + len(UNMAPPED["codex"]) == 11  # and notify's
    assert len(NAMES["gemini"]) + len(UNMAPPED["gemini"]) == 11


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("MessageDisplay", "message_display"),
        ("agent-turn-complete", "agent_turn_complete"),
        ("", ""),
        ("MCPCall", "mcpcall"),
    ],
)
def test_a_name_that_has_no_type_is_one_in_our_spelling(name: str, expected: str) -> None:
    assert spelled(name) == expected
    assert type_of("claude", name, {}) == expected


def test_names_of_ours_stand_for_themselves_and_are_no_news() -> None:
    for agent in AGENTS:
        assert type_of(agent, "user_prompt_submit", {}) == "user_prompt_submit"
        assert drop_reason(agent, "session_end", "session_end", {}, ALLOWED) == "not_allowed"
        assert drop_reason(agent, "brand_new", "brand_new", {}, ALLOWED) == "unknown"
        assert drop_reason(agent, "brand_new", "brand_new", {}, ALLOWED | {"brand_new"}) is None


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ({"error": {"message": "no"}}, "error"),
        ({"error": None}, "tool_done"),
        ({"llmContent": "x"}, "tool_done"),
        ("text", "tool_done"),
    ],
)
def test_a_tool_of_gemini_that_failed_is_an_error(response: object, expected: str) -> None:
    assert type_of("gemini", "AfterTool", {"tool_response": response}) == expected
    assert type_of("claude", "AfterTool", {"tool_response": response}) == "after_tool"


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        ("hello", None),
        ("", "prompt_empty"),
        (" \n\t", "prompt_empty"),
        ("<task-notification>\n…", "prompt_injected"),
        ("\n <system-reminder>…", "prompt_injected"),
        ("what is a <system-reminder>?", None),
        (None, None),  # a format that changed is no reason to lose the event
        (7, None),
    ],
)
def test_only_prompts_that_a_person_wrote_are_stored(prompt: object, reason: str | None) -> None:
    payload = {"prompt": prompt}
    assert drop_reason("claude", "UserPromptSubmit", "user_prompt_submit", payload, ALLOWED) == reason
    assert drop_reason("claude", "Stop", "agent_stop", payload, ALLOWED) is None


def test_codex_keeps_its_names_and_gets_ours() -> None:
    payload = {"type": "agent-turn-complete", "thread-id": "t", "turn-id": 5, "input-messages": [], "new": 1}
    assert normalised("codex", payload) == payload | {"session_id": "t"}  # what is no text is not taken for one
    assert normalised("claude", payload) is payload
    assert name_of(payload) == "agent-turn-complete"


@pytest.mark.parametrize(("session", "expected"), [("s", "s"), (7, ""), (None, "")])
def test_a_session_is_what_the_agent_calls_it(session: object, expected: str) -> None:
    assert session_of({"session_id": session}) == expected


@pytest.mark.parametrize(
    ("event_type", "payload", "expected"),
    [
        ("tool_use", {"tool_use_id": "t1", "turn_id": "x"}, "tool_use_id=t1"),
        ("tool_use", {"turn_id": "x"}, None),
        ("tool_done", {"tool_use_id": ""}, None),
        ("user_prompt_submit", {"prompt_id": "p", "turn_id": "x"}, "prompt_id=p"),
        ("agent_stop", {"turn_id": "x", "stop_hook_active": False}, "turn_id=x"),
        ("agent_stop", {"turn_id": "x", "stop_hook_active": True}, None),
        ("notification", {"turn_id": "x", "prompt_id": "p", "tool_use_id": "t"}, None),
        ("error", {"turn_id": "x"}, None),
    ],
)
def test_only_what_happens_once_for_an_id_is_known_by_it(
    event_type: str, payload: hook_event.Payload, expected: str | None
) -> None:
    assert occurrence_of(event_type, payload) == expected
