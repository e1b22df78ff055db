"""The receiver: every agent's payloads through the real command, and everything that can stand between a hook and its row."""

import json
import os
import resource
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.hook import intake, layout, receiver
from holdfast.protocol.refusal import Refusal
from tests.hook.receivers import COMMAND, PATIENCE_S, command, run, spooled, stored
from tests.hook.recorded import CLAUDE, CODEX_SESSION, NOTIFY, SESSIONS

START = {"session_id": "s1", "hook_event_name": "SessionStart", "source": "startup", "cwd": "/x"}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home that nobody has made yet."""
    return tmp_path / "home"


@pytest.mark.parametrize("agent", SESSIONS)
def test_a_recorded_session_is_stored_event_by_event(agent: str, home: Path) -> None:
    for recorded in SESSIONS[agent]:
        assert run(home, agent, recorded.payload, "--strict").stderr == b""
    expected = [recorded for recorded in SESSIONS[agent] if recorded.event_type is not None]
    found = stored(
        home, "agent, session_id, event_type, event_name, payload, status, attempts, received_at, next_attempt_at"
    )
    assert [row[:4] for row in found] == [
        (agent, one.payload["session_id"], one.event_type, one.payload["hook_event_name"]) for one in expected
    ]
    assert [json.loads(row[4]) for row in found] == [one.payload for one in expected]  # with what nobody knows yet
    assert {(status, attempts) for *_, status, attempts, _, _ in found} == {("pending", 0)}
    assert all(received_at == next_attempt_at for *_, received_at, next_attempt_at in found)


def test_an_event_that_no_table_has_is_counted_under_its_name(home: Path) -> None:
    unknown, not_allowed, injected = CLAUDE[-1], CLAUDE[13], CLAUDE[-2]
    for recorded in (unknown, not_allowed, injected, unknown):
        run(home, "claude", recorded.payload, "--strict")
    assert stored(home, "event_name, reason, count", "hook_dropped", "reason, event_name") == [
        ("MessageDisplay", "not_allowed", 1),
        ("UserPromptSubmit", "prompt_injected", 1),
        ("BrandNewEvent", "unknown", 2),
    ]
    assert stored(home) == []


@pytest.mark.parametrize("words", [["--notify"], []])
def test_codex_notify_hands_its_payload_over_as_the_last_word(words: list[str], home: Path) -> None:
    assert run(home, "codex", None, *words, json.dumps(NOTIFY)).returncode == 0
    ((session, event_type, name, payload),) = stored(home, "session_id, event_type, event_name, payload")
    assert (session, event_type, name) == (CODEX_SESSION, "agent_stop", "agent-turn-complete")
    assert json.loads(payload) == NOTIFY | {
        "session_id": CODEX_SESSION,
        "turn_id": "turn-2",
        "prompt": "And count them",
        "message": "There are two.",
    }


def test_a_codex_prompt_may_be_one_text(home: Path) -> None:
    run(home, "codex", None, json.dumps(NOTIFY | {"input-messages": "One text"}))
    assert json.loads(stored(home, "payload")[0])["prompt"] == "One text"


def test_names_of_ours_are_taken_as_they_are(home: Path) -> None:
    payload = {"session_id": "s", "prompt": "hello"}
    assert run(home, "claude", payload, "user_prompt_submit", "--strict").returncode == 0
    assert run(home, "gemini", payload, "BeforeAgent", "--strict").returncode == 0
    assert stored(home) == ["user_prompt_submit", "user_prompt_submit"]


def test_a_setting_allows_more(home: Path) -> None:
    home.mkdir(0o700)
    (home / layout.SETTINGS_NAME).write_text('{"allow": ["session_end", "message_display"]}')
    for recorded in (CLAUDE[13], CLAUDE[14], CLAUDE[17]):
        run(home, "claude", recorded.payload)
    assert stored(home) == ["message_display", "session_end"]


def test_a_setting_that_cannot_be_read_is_told_and_changes_nothing(home: Path) -> None:
    home.mkdir(0o700)
    (home / layout.SETTINGS_NAME).write_text('{"allow": ')
    assert b"hooks.json cannot be read" in run(home, "claude", START).stderr
    assert stored(home) == ["session_start"]


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b'{"session_id": "s1", "hook', Refusal.HOOK_INVALID_JSON),
        (b"", Refusal.HOOK_INVALID_JSON),
        (b"{} {}", Refusal.HOOK_INVALID_JSON),
        (b'{"n": NaN}', Refusal.HOOK_INVALID_JSON),
        (b'{"n": 1e999}', Refusal.HOOK_INVALID_JSON),
        (b"\xff\xfe{}", Refusal.HOOK_INVALID_JSON),
        (b"[" * 100_000, Refusal.HOOK_INVALID_JSON),
        (b"[1, 2]", Refusal.HOOK_PAYLOAD_NOT_OBJECT),
        (b"null", Refusal.HOOK_PAYLOAD_NOT_OBJECT),
    ],
)
def test_what_is_no_event_becomes_a_row_that_says_so(raw: bytes, code: Refusal, home: Path) -> None:
    assert run(home, "claude", raw=raw).returncode == 0  # the agent is not in it
    strict = run(home, "claude", None, "--strict", raw=raw)
    assert strict.returncode == 1
    assert b"holdfast hook: Invalid: the payload is not" in strict.stderr
    found = stored(home, "event_type, session_id, payload")
    assert [row[:2] for row in found] == [("error", ""), ("error", "")]
    payload = json.loads(found[0][2])
    assert payload.keys() == {"message", "source", "code", "details", "severity", "retryable"}
    assert (payload["source"], payload["code"]) == ("hook_receiver", code)
    assert (payload["severity"], payload["retryable"]) == ("error", False)
    assert (home / layout.LOG_NAME).read_text().count("the payload is not") == 2


def test_the_session_of_gemini_is_found_in_its_environment_where_the_payload_is_broken(home: Path) -> None:
    run(home, "gemini", raw=b"{", GEMINI_SESSION_ID="g7")
    assert stored(home, "event_type, session_id") == [("error", "g7")]


@pytest.mark.parametrize("agent", ["cursor", "", "CLAUDE"])
def test_a_command_line_that_is_not_ours_is_told(agent: str, home: Path) -> None:
    assert run(home, agent, START).returncode == 0
    done = run(home, agent, START, "--strict")
    assert (done.returncode, b"--agent must be one of claude, codex, gemini" in done.stderr) == (1, True)
    assert b"--wat is no option" in run(home, "claude", START, "--wat").stderr


def test_a_home_that_is_missing_is_made_and_only_its_owner_may_look(home: Path) -> None:
    run(home, "claude", START, "--strict")
    assert {path.name: path.stat().st_mode & 0o777 for path in home.iterdir()} == {"hooks.spool": 0o600}
    assert home.stat().st_mode & 0o777 == 0o700


def test_two_hundred_at_once_are_two_hundred_rows(home: Path) -> None:
    def fire(number: int) -> int:
        return run(home, "claude", START | {"session_id": f"s{number}"}, "--strict").returncode

    with ThreadPoolExecutor(24) as pool:
        assert set(pool.map(fire, range(200))) == {0}
    assert sorted(stored(home, "session_id")) == sorted(f"s{number}" for number in range(200))
    assert not (home / layout.REJECTED_NAME).exists()


def test_whatever_is_wrong_with_the_database_an_event_is_on_disk(home: Path) -> None:
    run(home, "claude", START)
    stored(home)
    connection = apsw.Connection(str(home / "hooks.db"))
    connection.execute("BEGIN EXCLUSIVE")
    assert run(home, "claude", START, "--strict").returncode == 0
    connection.execute("ROLLBACK")
    connection.close()
    assert stored(home) == ["session_start", "session_start"]


def test_a_receiver_that_is_stopped_in_the_middle_is_in_nobodys_way(home: Path) -> None:
    """It has the spool open, and has not written yet; others come before it, the worker begins a new file, and it loses nothing."""
    home.mkdir(0o700)
    (home / layout.SPOOL_NAME).write_bytes(b"")
    script = (
        "import os, signal, sys; from holdfast.hook import spool; write = os.write\n"
        "def stopped(*arguments):\n"
        "    os.write = write; os.kill(os.getpid(), signal.SIGSTOP); return write(*arguments)\n"
        "os.write = stopped; from holdfast.hook.receiver import main; sys.exit(main(sys.argv[1:]))"
    )
    words = [sys.executable, "-c", script, "--agent", "claude", "--home", str(home), "--strict"]
    late = subprocess.Popen([*words, json.dumps(START | {"session_id": "late"})])
    os.waitid(os.P_PID, late.pid, os.WSTOPPED | os.WNOWAIT)
    big = "x" * intake.ROTATE_BYTES
    assert run(home, "claude", START | {"session_id": "early", "source": big}, "--strict").returncode == 0
    assert stored(home, "session_id") == ["early"]
    assert spooled(home) == b""  # the file that the other has open is gone
    late.send_signal(signal.SIGCONT)
    assert late.wait(PATIENCE_S) == 0
    assert stored(home, "session_id") == ["early", "late"]


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Programs that we start heed them, though we may have been started in the background of something."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
def test_an_interrupt_at_the_terminal_is_not_meant_for_a_receiver(home: Path) -> None:
    script = (
        "import os, signal, sys; from holdfast.hook import spool; append = spool.append\n"
        "spool.append = lambda *arguments: (os.kill(os.getpid(), signal.SIGINT), append(*arguments))\n"
        "from holdfast.hook.receiver import main; sys.exit(main(sys.argv[1:]))"
    )
    words = [sys.executable, "-c", script, "--agent", "claude", "--home", str(home), "--strict", json.dumps(START)]
    assert subprocess.run(words, check=False, timeout=PATIENCE_S).returncode == 0
    waiting = subprocess.Popen(command(home, "claude"), stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert waiting.stdin is not None
    waiting.stdin.write(b"{")
    waiting.stdin.flush()
    while not _is_asleep(waiting.pid):
        time.sleep(0.01)
    waiting.send_signal(signal.SIGINT)
    assert b"KeyboardInterrupt" in waiting.communicate()[1]
    assert waiting.returncode == 0
    assert stored(home) == ["session_start"]


def _is_asleep(pid: int) -> bool:
    """Whether a process waits in a read of stdin."""
    return Path(f"/proc/{pid}/syscall").read_text().split()[:2] == ["0", "0x0"]


def test_a_session_with_an_endless_name_keeps_one_that_is_its_own(home: Path) -> None:
    names = ("x" * 5_000, "x" * 4_999 + "y", "x" * 5_000)
    for name in names:
        assert run(home, "claude", START | {"session_id": name, "hook_event_name": "Stop"}, "--strict").returncode == 0
    found = stored(home, "session_id")
    assert found[0] == found[2] != found[1]
    assert {len(name) for name in found} == {receiver.SESSION_CHARACTERS_MAX // 2 + 1 + 64}


def test_a_full_disk_is_told_and_leaves_no_half_of_an_event(home: Path) -> None:
    run(home, "claude", START)
    before = (home / layout.SPOOL_NAME).stat().st_size
    big = START | {"transcript_path": "x" * 600_000}

    def full() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before + 20_000, before + 20_000))

    def fire(*words: str) -> "subprocess.CompletedProcess[bytes]":
        return subprocess.run(
            command(home, "claude", *words),
            input=json.dumps(big).encode(),
            capture_output=True,
            preexec_fn=full,
            timeout=PATIENCE_S,
        )

    done = fire()
    assert (done.returncode, done.stdout) == (0, b"")
    assert b"holdfast hook: CutShort" in done.stderr
    assert fire("--strict").returncode == 1
    assert stored(home) == ["session_start"]
    assert "CutShort" in (home / layout.LOG_NAME).read_text()
    assert run(home, "claude", big, "--strict").returncode == 0
    assert stored(home) == ["session_start", "session_start"]


def test_of_a_huge_payload_the_large_fields_are_cut_and_named(home: Path) -> None:
    huge = {
        **START,
        "hook_event_name": "PostToolUse",
        "tool_use_id": "t1",
        "tool_response": {"stdout": "x" * 3_000_000},
        "prompt": "é" * 200_000,
        "duration_ms": 12,
    }
    assert run(home, "claude", huge, "--strict").returncode == 0
    ((payload,),) = [stored(home, "payload")]
    kept = json.loads(payload)
    assert len(payload) < receiver.PAYLOAD_BYTES_MAX
    assert (kept["tool_response"], kept["duration_ms"], kept["session_id"]) == (None, 12, "s1")
    assert set(kept["prompt"]) == {"é"}
    assert kept[receiver.CUT] == {"tool_response": 3_000_013, "prompt": 1_200_002}


def test_settings_that_allow_nothing_are_no_reason_to_complain(home: Path) -> None:
    home.mkdir(0o700)
    (home / layout.SETTINGS_NAME).write_text('{"guarded": true}')
    assert run(home, "claude", START, "--strict").stderr == b""
    assert not (home / layout.LOG_NAME).exists()
    (home / layout.SETTINGS_NAME).write_text("[]")
    assert b"cannot be read" in run(home, "claude", START, "--strict").stderr
    assert stored(home) == ["session_start", "session_start"]


@pytest.mark.parametrize("character", ["x", "é"])
def test_so_are_many_fields_of_which_none_is_large(character: str, home: Path) -> None:
    huge = START | {f"field {number}": character * 10_000 for number in range(100)}
    assert run(home, "claude", huge | {"more": "y" * 60_000}, "--strict").returncode == 0
    ((payload,),) = [stored(home, "payload")]
    kept = json.loads(payload)
    assert receiver.PAYLOAD_BYTES_MAX // 2 < len(payload) <= receiver.PAYLOAD_BYTES_MAX
    assert {name for name, value in kept.items() if value is None} == set(kept[receiver.CUT])
    assert kept["session_id"] == "s1"


@pytest.mark.parametrize("cwd", [{}, {"cwd": "/x"}])
def test_an_agent_whose_directory_is_gone_is_heard_all_the_same(
    cwd: dict[str, str], home: Path, tmp_path: Path
) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    there, payload = shlex.quote(str(tree)), json.dumps({"session_id": "s1", "hook_event_name": "Stop"} | cwd)
    line = f"cd {there} && rmdir {there} && exec {shlex.join(command(home, 'claude', '--strict'))}"
    done = subprocess.run(["/bin/sh", "-c", line], input=payload.encode(), capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert [json.loads(text).get("cwd") for text in stored(home, "payload")] == [cwd.get("cwd")]


def test_a_payload_beyond_all_bounds_is_not_read_to_its_end(home: Path) -> None:
    done = run(home, "claude", None, "--strict", raw=b" " * (receiver.INPUT_BYTES_MAX + 1))
    assert done.returncode == 1
    assert json.loads(stored(home, "payload")[0])["code"] == Refusal.HOOK_PAYLOAD_TOO_LARGE


def test_one_hook_that_is_fired_twice_is_one_row(home: Path) -> None:
    for number in (3, 3, 2, 2, 15, 15):  # a tool, a prompt and a stop without an id
        run(home, "claude", CLAUDE[number].payload, "--strict")
    assert stored(home) == ["tool_use", "user_prompt_submit", "agent_stop", "agent_stop"]


def test_the_same_words_twice_are_two_events(home: Path) -> None:
    stop = {**CLAUDE[15].payload, "turn_id": "t1", "stop_hook_active": True}
    notification = {**CLAUDE[12].payload, "turn_id": "t1"}
    other_answer = {**CLAUDE[6].payload, "duration_ms": 1802}
    for payload in (stop, stop, notification, notification, CLAUDE[6].payload, other_answer):
        run(home, "claude", payload, "--strict")
    assert stored(home) == ["agent_stop"] * 2 + ["notification"] * 2 + ["tool_done"] * 2


def test_half_a_character_in_a_name_is_no_reason_to_lose_the_event(home: Path) -> None:
    raw = b'{"session_id": "\\ud800", "hook_event_name": "Stop", "x": "\\ud800"}'
    assert run(home, "claude", None, "--strict", raw=raw).returncode == 0
    ((session, payload),) = stored(home, "session_id, payload")
    assert (session, json.loads(payload)["x"]) == ("?", "\ud800")


def test_an_event_without_a_session_is_kept_all_the_same(home: Path) -> None:
    assert run(home, "claude", {"hook_event_name": "Stop", "sessionId": "new name"}, "--strict").returncode == 0
    assert stored(home, "session_id, event_type") == [("", "agent_stop")]


def test_event_ids_are_unique_and_sort_by_time(home: Path) -> None:
    for _ in range(3):
        run(home, "claude", START)
    ids = stored(home, "event_id")
    assert ids == sorted(set(ids))
    assert all(int(event_id[:12], 16) == at // 1000 for event_id, at in stored(home, "event_id, received_at"))


LOADED = (
    "import sys; sys.argv = {arguments!r}\ntry:\n    {run}\nexcept SystemExit:\n    pass\nprint(sorted(sys.modules))"
)


def test_the_installed_command_loads_next_to_nothing(home: Path) -> None:
    """A start costs more than a sync. What is here beside ours is what a bare interpreter has, and two C parts."""
    arguments = [str(COMMAND), "--agent", "claude", "--home", str(home)]
    program = LOADED.format(arguments=arguments, run=f"__file__ = {arguments[0]!r}; exec(open(__file__).read())")
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], input=json.dumps(START), capture_output=True, text=True
    )
    bare = subprocess.run(
        [sys.executable, "-I", "-S", "-c", "import os, sys; print(sorted(sys.modules))"], capture_output=True, text=True
    )
    loaded = set(json.loads(done.stdout.replace("'", '"'))) - set(json.loads(bare.stdout.replace("'", '"')))
    ours = {name for name in loaded if name.startswith("holdfast")}
    assert ours == {"holdfast", "holdfast.protocol", "holdfast.protocol.hook_event", "holdfast.hook"} | {
        f"holdfast.hook.{name}" for name in ("receiver", "spool", "layout", "plain_json")
    }
    assert loaded - ours <= {"_json", "binascii"}
    assert stored(home) == ["session_start"]


def test_holdfast_hook_answers_before_the_command_line_is_loaded(home: Path) -> None:
    arguments = ["holdfast", "hook", "--agent", "claude", "--strict"]
    program = LOADED.format(arguments=arguments, run="from holdfast.cli import main; main()")
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(START),
        capture_output=True,
        text=True,
        env=os.environ | {"HOLDFAST_HOME": str(home)},
    )
    loaded = set(json.loads(done.stdout.splitlines()[-1].replace("'", '"')))
    assert not {"typer", "click", "rich", "msgspec", "apsw", "json", "re", "asyncio", "structlog"} & (
        loaded - _always_loaded()
    )
    assert stored(home) == ["session_start"]


def _always_loaded() -> set[str]:
    """What this interpreter loads for itself, because of what lies in its site-packages."""
    done = subprocess.run(
        [sys.executable, "-c", "import sys; print(sorted(sys.modules))"], capture_output=True, text=True
    )
    return set(json.loads(done.stdout.replace("'", '"')))


def test_the_words_of_the_receiver_are_refusals_of_ours() -> None:
    assert {receiver.INVALID_JSON, receiver.NOT_OBJECT, receiver.TOO_LARGE} <= set(Refusal)


@pytest.mark.parametrize(
    "more",
    [{"k" * 2_000_000: 1}, {f"{number}": 1 for number in range(150_000)}, {"x": [1e15] * 55_500}],
    ids=["a long name", "many names", "numbers that grow"],
)
def test_whatever_makes_a_payload_too_large_it_is_stored_within_its_bounds(more: dict[str, Any], home: Path) -> None:
    raw = json.dumps(START | more).replace("1000000000000000.0", "1e15").encode()
    assert run(home, "claude", None, "--strict", raw=raw).stderr == b""
    assert run(home, "claude", START, "--strict").stderr == b""
    sizes = stored(home, "length(payload)")
    assert len(sizes) == 2
    assert sizes[0] <= receiver.PAYLOAD_BYTES_MAX
    assert stored(home, "session_id") == ["s1", "s1"]


def test_a_home_in_a_directory_that_may_not_be_looked_into_is_as_good_as_any(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def opened(path: str, *more: Any) -> int:
        if path == str(home.parent):
            raise PermissionError(path)
        return real(path, *more)

    monkeypatch.setattr(os, "open", opened)
    home.mkdir(0o700)
    call = receiver.Call(["--agent", "claude", "--home", str(home), json.dumps(START)])
    assert receiver.receive(call) == "stored"
    monkeypatch.undo()
    assert stored(home) == ["session_start"]
