"""Sessions of agents: what each event makes of them, and what is told of it."""

from functools import partial
from pathlib import Path

import pytest

from holdfast.hook import agent_sessions, transcripts
from holdfast.protocol.agent_event import TEXT_BYTES_MAX, AgentKind
from holdfast.protocol.schedule import DAY
from tests.hook.agents import handle, hook, read, session, tell, told
from tests.hook.office import Office


def test_a_session_is_followed_through_a_turn(office: Office) -> None:
    handle(office, hook("session_start", source="startup", cwd="/kitchen", transcript_path="/none"))
    assert (session(office).state, session(office).cwd) == ("idle", "/kitchen")
    handle(office, hook("user_prompt_submit", prompt="cook"), hook("tool_use", tool_name="Oven"))
    assert (session(office).state, session(office).prompt, session(office).tool) == ("working", "cook", "Oven")
    handle(office, hook("notification", message="May I?"))
    assert (session(office).state, session(office).notification) == ("waiting", "May I?")
    handle(office, hook("tool_done", tool_name="Oven"))
    assert session(office).state == "working"
    handle(office, hook("agent_stop", last_assistant_message="Ready."))
    assert (session(office).state, session(office).message, session(office).turns) == ("idle", "Ready.", 1)
    assert told(office) == [
        ("session_started", "startup"),
        ("prompt", "cook"),
        ("notification", "May I?"),
        ("turn_completed", "Ready."),
    ]


def test_tools_tell_nothing(office: Office) -> None:
    handle(office, *[hook(kind, tool_name="Bash") for kind in ("tool_use", "tool_done") for _ in range(50)])
    assert told(office) == []
    assert session(office).state == "working"


def test_an_event_that_is_handled_twice_counts_once(office: Office) -> None:
    prompt = hook("user_prompt_submit", prompt="cook")
    handle(office, prompt, prompt)
    assert (session(office).turns, told(office)) == (1, [("prompt", "cook")])


def test_an_error_ends_the_turn_only_if_it_says_so(office: Office) -> None:
    handle(office, hook("user_prompt_submit", prompt="cook"), hook("error", name="PermissionDenied", reason="no"))
    assert (session(office).state, session(office).error) == ("working", "no")
    handle(office, hook("error", name="StopFailure", error="rate_limit"))
    assert (session(office).state, session(office).error) == ("idle", "rate_limit")


def test_what_comes_after_the_end_changes_nothing_until_it_is_taken_up_again(office: Office) -> None:
    handle(office, hook("session_end", reason="exit"), hook("tool_done", tool_name="late"), hook("agent_stop"))
    assert (session(office).state, session(office).tool) == ("ended", "")
    assert session(office).ended_at is not None
    handle(office, hook("session_start", source="resume"))
    assert (session(office).state, session(office).ended_at) == ("idle", None)


def test_what_names_no_session_is_told_and_kept_nowhere(office: Office) -> None:
    handle(office, hook("error", session="", message="the payload is not JSON"))
    assert told(office) == [("error", "the payload is not JSON")]
    assert office.do(lambda tx: agent_sessions.latest(tx, 0, 10)) == []


def test_the_doctor_is_no_agent(office: Office) -> None:
    handle(office, hook("session_start", session="holdfast-doctor-1"))
    assert told(office) == []


@pytest.mark.parametrize("path", ["/tmp/a\0b", "x" * 5_000, 7, None, "\ud800"])
def test_a_path_that_can_be_none_is_no_reason_to_fail(path: object, office: Office) -> None:
    handle(office, hook("user_prompt_submit", prompt="p", transcript_path=path, cwd=path, tool_name=path))
    reader = transcripts.Reader({})
    assert not reader.has_news(session(office))
    read(office, reader)


@pytest.mark.parametrize("name", ["../../../etc", "a/b", "a\0b", "*", "[a"])
def test_no_name_of_a_session_leads_out_of_the_folder(name: str, office: Office, home: Path) -> None:
    (home / "sessions" / "1" / "2" / "3").mkdir(parents=True)
    (home / "sessions" / "1" / "2" / "3" / "rollout-x-other.jsonl").write_text("{}")
    handle(office, hook("user_prompt_submit", agent="codex", session=name, prompt="p"))
    assert transcripts.Reader({"CODEX_HOME": str(home)}).path_of(session(office, name, "codex")) is None


def test_two_agents_may_give_their_sessions_one_name(office: Office) -> None:
    handle(office, hook("user_prompt_submit", prompt="a"), hook("user_prompt_submit", agent="codex", prompt="b"))
    assert (session(office).prompt, session(office, agent="codex").prompt) == ("a", "b")


@pytest.mark.parametrize("text", ["x" * 100_000, "é" * 100_000, "\x00" * 100_000, "\ud800" * 10])
def test_a_long_text_is_cut_so_that_a_message_has_room_for_it(text: str, office: Office) -> None:
    handle(office, hook("agent_stop", last_assistant_message=text))
    ((_, found),) = told(office)
    assert len(found) >= 10
    assert len(found.encode()) <= TEXT_BYTES_MAX


def test_who_is_new_follows_from_now_on_and_nobody_goes_back(office: Office) -> None:
    tell(office, 1)
    assert office.do(lambda tx: agent_sessions.follow(tx, "log")) == 1
    tell(office, 2)
    assert office.do(lambda tx: agent_sessions.follow(tx, "log")) == 1
    for position in (2, 1):
        office.do(partial(agent_sessions.advance, name="log", position=position, delivered=1))
    assert office.do(lambda tx: agent_sessions.follow(tx, "log")) == 2
    assert office.do(agent_sessions.followers)[0]["delivered"] == 2


def test_what_was_told_goes_after_seven_days_and_its_session_after_thirty(office: Office) -> None:
    tell(office, 1, AgentKind.PROMPT)
    handle(office, hook("tool_use"))
    last = session(office).last_event_at
    assert office.do(lambda tx: agent_sessions.prune(tx, office.clock() + 8 * DAY)) == 1 + (
        office.clock() > last + 22 * DAY
    )
    office.do(lambda tx: agent_sessions.prune(tx, last + 31 * DAY))
    assert office.do(lambda tx: agent_sessions.latest(tx, 0, 10)) == []
