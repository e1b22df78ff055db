"""The transcript reader: whole lines, once, from wherever it was, whatever happens to the file."""

import json
import os
from pathlib import Path

import pytest

from holdfast.hook import transcripts
from holdfast.hook.transcripts import Reader
from tests.hook.agents import begun, handle, hook, line, read, session, told
from tests.hook.office import Office

READER = Reader({})


@pytest.fixture
def path(home: Path) -> Path:
    return home / "transcript.jsonl"


def said(office: Office) -> list[str]:
    return [text for kind, text in told(office) if kind == "output"]


def test_what_is_added_is_told_once(office: Office, path: Path) -> None:
    begun(office, path)
    assert not READER.has_news(session(office))  # it is not there yet
    path.write_bytes(line("one") + line("two"))
    assert READER.has_news(session(office))
    read(office, READER)
    assert not READER.has_news(session(office))
    with path.open("ab") as file:
        file.write(line("three"))
    read(office, READER)
    read(office, READER)
    assert said(office) == ["one", "two", "three"]


def test_half_a_line_waits_for_its_other_half(office: Office, path: Path) -> None:
    begun(office, path)
    whole = line("ein Wort, 🙂")
    for end in range(0, len(whole), 7):
        path.write_bytes(line("first") + whole[:end])
        read(office, READER)
        assert said(office) == ["first"]
    path.write_bytes(line("first") + whole)
    read(office, READER)
    assert said(office) == ["first", "ein Wort, 🙂"]


@pytest.mark.parametrize("new", [[b"new"], [b"x" * 40, b"new"], [b"y" * 1000, b"new"]])
def test_a_file_that_is_not_what_it_was_is_read_from_its_beginning(
    new: list[bytes], office: Office, path: Path
) -> None:
    begun(office, path)
    path.write_bytes(line("one") + line("two"))
    read(office, READER)
    path.unlink()
    path.write_bytes(b"".join(line(text.decode()) for text in new))
    read(office, READER)
    assert said(office) == ["one", "two", *(text.decode() for text in new)]


def test_a_file_that_was_cut_short_and_says_the_same_again_is_not_told_again(office: Office, path: Path) -> None:
    begun(office, path)
    path.write_bytes(line("one") + line("two"))
    read(office, READER)
    path.write_bytes(line("one"))
    read(office, READER)
    assert said(office) == ["one", "two"]


def test_a_session_that_was_met_late_tells_only_what_is_new(office: Office, path: Path) -> None:
    path.write_bytes(line("old"))
    handle(office, hook("user_prompt_submit", prompt="p", transcript_path=str(path)))
    path.write_bytes(line("old") + line("new"))
    read(office, READER)
    assert said(office) == ["new"]


def test_a_session_that_is_taken_up_again_tells_only_what_is_new(office: Office, path: Path) -> None:
    path.write_bytes(line("old"))
    handle(office, hook("session_start", source="resume", transcript_path=str(path)))
    path.write_bytes(line("old") + line("new"))
    read(office, READER)
    assert said(office) == ["new"]


def test_what_the_end_of_the_turn_has_told_is_not_told_again(office: Office, path: Path) -> None:
    begun(office, path)
    handle(office, hook("agent_stop", last_assistant_message="Ready."))
    path.write_bytes(line("Almost.") + line("Ready."))
    read(office, READER)
    assert said(office) == ["Almost."]


@pytest.mark.parametrize(
    "entry",
    [
        b"no JSON\n",
        b"[1, 2]\n",
        b"{}\n",
        b'{"type": "assistant"}\n',
        b'{"type": "assistant", "message": {"content": 7}}\n',
        b'{"type": "user", "message": {"role": "user", "content": "mine"}}\n',
        b'{"type": "assistant", "message": {"content": [{"type": "thinking", "text": "hm"}]}}\n',
        b"\xff\xfe\n",
        b"[" * 100_000 + b"\n",
        line("of a helper", isSidechain=True),
    ],
)
def test_what_is_not_meant_for_a_person_says_nothing(entry: bytes, office: Office, path: Path) -> None:
    begun(office, path)
    path.write_bytes(entry + line("words"))
    read(office, READER)
    assert said(office) == ["words"]


def test_a_long_file_is_read_piece_by_piece(office: Office, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcripts, "PIECE_BYTES", 500)
    begun(office, path)
    texts = [f"{number} " + "x" * (number * 37 % 1500) for number in range(60)]
    path.write_bytes(b"".join(map(line, texts)))
    read(office, READER)
    assert said(office) == [text.strip() for text in texts]


def test_a_pipe_keeps_nobody_waiting(office: Office, path: Path) -> None:
    begun(office, path)
    os.mkfifo(path)
    read(office, READER)
    handle(office, hook("user_prompt_submit", session="s2", transcript_path=str(path), prompt="p"))
    assert said(office) == []


def test_codex_is_found_by_its_session(office: Office, home: Path) -> None:
    reader = Reader({"CODEX_HOME": str(home / "codex")})
    folder = home / "codex" / "sessions" / "2026" / "11" / "15"
    handle(office, hook("session_start", agent="codex", session="0199[*]", transcript_path=None, source="startup"))
    assert not reader.has_news(session(office, "0199[*]", "codex"))
    folder.mkdir(parents=True)
    message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "found"}]}
    both = [{"type": "response_item", "payload": message}, {"type": "event_msg", "payload": {"type": "agent_message"}}]
    (folder / "rollout-2026-11-15T10-00-00-0199[*].jsonl").write_text("".join(json.dumps(one) + "\n" for one in both))
    (folder / "rollout-2026-11-15T10-00-00-0199x.jsonl").write_bytes(line("another's"))
    assert not reader.has_news(session(office, "0199[*]", "codex"))  # it is looked for after an event
    handle(office, hook("user_prompt_submit", agent="codex", session="0199[*]", prompt="p"))
    assert reader.has_news(session(office, "0199[*]", "codex"))
    read(office, reader, "0199[*]", "codex")
    assert said(office) == ["found"]
    assert session(office, "0199[*]", "codex").transcript_path.endswith("0199[*].jsonl")


def test_what_codex_wrote_since_it_was_not_found_is_read_when_its_turn_ends(office: Office, home: Path) -> None:
    """Reading comes before the end of the turn is handled: nothing has been heard since the transcript was missing."""
    reader = Reader({"CODEX_HOME": str(home / "codex")})
    folder = home / "codex" / "sessions" / "2026" / "11" / "15"
    handle(office, hook("session_start", agent="codex", session="0199", transcript_path=None, source="startup"))
    assert not reader.has_news(session(office, "0199", "codex"))
    folder.mkdir(parents=True)
    message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I list."}]}
    written = json.dumps({"type": "response_item", "payload": message}) + "\n"
    (folder / "rollout-2026-11-15T10-00-00-0199.jsonl").write_text(written)
    read(office, reader, "0199", "codex")
    assert said(office) == ["I list."]


def test_gemini_writes_one_document_anew_each_time(office: Office, home: Path) -> None:
    path = home / "session.json"
    begun(office, path, "gemini")
    mine = {"type": "user", "content": "mine"}
    for number in range(1, 4):
        messages = [mine, *({"type": "gemini", "content": f"word {n}"} for n in range(number))]
        path.write_text(json.dumps({"messages": messages}))
        os.utime(path, ns=(number, number))
        assert READER.has_news(session(office, agent="gemini"))
        read(office, READER, agent="gemini")
        path.write_text('{"messages": [')  # it is just being written
        read(office, READER, agent="gemini")
    assert said(office) == ["word 0", "word 1", "word 2"]


def test_gemini_may_write_lines_too(office: Office, home: Path) -> None:
    path = home / "session.jsonl"
    begun(office, path, "gemini")
    path.write_text(json.dumps({"type": "gemini", "content": [{"text": "parts"}]}) + "\n")
    read(office, READER, agent="gemini")
    assert said(office) == ["parts"]
