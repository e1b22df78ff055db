"""The commands as a person or a script types them: their output and their exit codes."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import OperationLog, __version__
from holdfast.store.sqlite import SqliteEngine
from tests.terminal import typed

A = b"\xab" + b"a" * 31
B = b"\xab" + b"b" * 31


def _holdfast(*arguments: object, code: int = 0) -> str:
    done = typed(*arguments, environment={**os.environ, "NO_COLOR": "1", "COLUMNS": "200"})
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 or done.stdout else done.stderr


def _json(*arguments: object) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(_holdfast(*arguments, "--json"))
    return answer


@pytest.fixture
def filled(path: Path) -> Path:
    with OperationLog(path) as log:
        log.append_next(A, b"first")
        log.append_next(B, b"\x00\x01binary")
        log.append_next(A, "Grüße".encode())
        log.mark_delivered(A, 0)
        log.prune_blobs(0)
    return path


def test_list_shows_every_entry(filled: Path) -> None:
    answer = _json("log", "list", filled)
    assert (answer["total"], answer["outbox"], answer["next_after"]) == (3, 2, None)
    assert [entry["sequence"] for entry in answer["entries"]] == [0, 1, 2]
    assert answer["entries"][0] == {
        "sequence": 0,
        "object_id": A.hex(),
        "status": "done",
        "delivered": True,
        "enqueued_at": answer["entries"][0]["enqueued_at"],
        "delivered_at": answer["entries"][0]["delivered_at"],
        "size": None,
    }
    text = _holdfast("log", "list", filled)
    assert "(pruned)" in text
    assert "Grüße" in text
    assert b"\x00\x01binary".hex() in text


def test_a_listing_that_stops_early_says_how_to_go_on(filled: Path) -> None:
    answer = _json("log", "list", filled, "--limit", 2)
    assert answer["next_after"] == 1
    assert [entry["sequence"] for entry in _json("log", "list", filled, "--after", 1)["entries"]] == [2]
    assert "--after 1" in _holdfast("log", "list", filled, "--limit", 2)


def test_outbox_shows_what_is_not_delivered(filled: Path) -> None:
    assert [entry["sequence"] for entry in _json("log", "outbox", filled)["entries"]] == [1, 2]


def test_show_gives_one_entry_and_its_bytes(filled: Path) -> None:
    assert _json("log", "show", filled, 2)["blob"] == "R3LDvMOfZQ=="
    assert _holdfast("log", "show", filled, 2, "--raw") == "Grüße"
    assert _json("log", "show", filled, 0)["blob"] is None
    assert "Grüße" in _holdfast("log", "show", filled, 2)


def test_history_follows_one_object_by_the_first_digits_of_its_id(filled: Path) -> None:
    answer = _json("log", "history", filled, A.hex()[:4])
    assert answer["object_id"] == A.hex()
    assert [entry["sequence"] for entry in answer["entries"]] == [0, 2]
    assert [e["sequence"] for e in _json("log", "history", filled, A.hex(), "--from", 1)["entries"]] == [2]


def test_check_finds_nothing_in_a_sound_log_and_something_in_a_changed_one(filled: Path) -> None:
    assert _json("check", filled) == {"path": str(filled), "program": "device", "ok": True, "findings": []}
    assert "every rule" in _holdfast("check", filled)
    engine = SqliteEngine(filled)
    with engine.write() as transaction:
        transaction.run("UPDATE operation_log SET blob = x'00' WHERE sequence = 1")
        transaction.run("UPDATE history SET size = 1 WHERE seq = 2")
        transaction.run("DELETE FROM operation_log WHERE sequence = 2")
    engine.close()
    found = json.loads(_holdfast("check", filled, "--json", code=4))["findings"]
    assert {finding["check"] for finding in found} == {
        "chain",
        "entries",
        "every_enqueued_entry_is_in_the_log",
    }
    assert "entry 1 is not what was written" in _holdfast("check", filled, code=4)


def _contents(folder: Path) -> dict[str, bytes]:
    """Every file, but for the two that SQLite needs beside a log to read it at all: one empty, one a scratch pad."""
    contents = {file.name: file.read_bytes() for file in folder.iterdir() if not file.name.endswith("-shm")}
    return {name: content for name, content in contents.items() if content or not name.endswith("-wal")}


def test_reading_commands_change_nothing(filled: Path) -> None:
    before = _contents(filled.parent), filled.stat().st_mtime_ns
    for command in (
        ["log", "list", filled],
        ["log", "outbox", filled],
        ["log", "show", filled, 1],
        ["check", filled],
    ):
        _holdfast(*command)
    assert (_contents(filled.parent), filled.stat().st_mtime_ns) == before


FAILURES: dict[str, tuple[list[str], int, str]] = {
    "no such entry": (["log", "show", "LOG", "99"], 3, "no entry with sequence 99"),
    "no such object": (["log", "history", "LOG", "ff"], 3, "no object in this log begins with ff"),
    "an object id that fits two": (["log", "history", "LOG", "ab"], 2, "give more of its digits"),
    "no object id": (["log", "history", "LOG", "xyz"], 2, "is not an object id"),
    "no such file": (["log", "list", "DIR/nothing"], 3, "there is no such file"),
    "no such directory": (["check", "DIR/no/where"], 3, "the directory for this file does not exist"),
    "not our file": (["check", "DIR/text"], 1, "not a Holdfast database"),
    "a pruned blob": (["log", "show", "LOG", "0", "--raw"], 3, "was pruned"),
    "an unknown command": (["log", "frobnicate"], 2, "No such command"),
    "a negative sequence": (["log", "show", "LOG", "-1"], 2, "No such option"),
    "a limit of nothing": (["log", "list", "LOG", "--limit", "0"], 2, "greater than or equal to 1"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_is_one_clear_message_and_its_exit_code(filled: Path, name: str) -> None:
    arguments, code, message = FAILURES[name]
    (filled.parent / "text").write_text("no database " * 100)
    places = {"LOG": str(filled), "DIR": str(filled.parent)}
    said = _holdfast(*[re.sub("LOG|DIR", lambda m: places[m[0]], word) for word in arguments], code=code)
    assert message in said
    assert "Traceback" not in said
    assert set(_contents(filled.parent)) == {"operations.db", "text"}


def test_a_failure_is_json_when_json_was_asked_for(filled: Path) -> None:
    failure = json.loads(_holdfast("log", "show", filled, 99, "--json", code=3))
    assert failure["error"] == "not_found"
    failure = json.loads(_holdfast("check", filled.parent / "nothing", "--json", code=3))
    assert failure["error"] == "file_missing"


def test_the_version_is_answered_without_loading_the_command_line() -> None:
    program = "import sys; sys.argv = ['holdfast', '--version']; from holdfast.cli import main; main(); "
    program += "print(sorted({'typer', 'rich', 'apsw', 'msgspec'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"holdfast {__version__}", "[]"]


def test_a_reader_that_stops_early_is_no_error_message(filled: Path) -> None:
    with OperationLog(filled) as log:
        for _ in range(2000):
            log.append_next(A, b"x" * 200)
    command = f"{sys.executable} -m holdfast.cli log list {filled} --limit 2000 --json | head -c 10"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stderr == ""


@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", ">&-", "<&-", "2>&-"])
def test_a_command_whose_streams_are_closed_does_its_work_and_says_so_by_its_exit_code(
    filled: Path, closed: str
) -> None:
    def ends(*words: object) -> "subprocess.CompletedProcess[str]":
        line = shlex.join([sys.executable, "-m", "holdfast.cli", *map(str, words)])
        return subprocess.run(["/bin/sh", "-c", f"{line} {closed}"], capture_output=True, text=True, check=False)

    done = ends("log", "list", filled)
    assert (done.returncode, done.stderr) == (0, "")
    assert ends("log", "list", filled, "--json").returncode == 0
    refused = ends("log", "show", filled, 99)
    assert refused.returncode == 3
    assert "Traceback" not in refused.stderr


def test_what_was_to_come_from_a_closed_input_is_not_taken_for_empty(tmp_path: Path) -> None:
    for words in ("send bob -", "feed put note -", "mesh join -"):
        line = f"{sys.executable} -m holdfast.cli {words} <&-"
        environment = {**os.environ, "HOLDFAST_HOME": str(tmp_path)}
        done = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, check=False, env=environment)
        assert (done.returncode, done.stderr) == (2, "holdfast: - reads standard input, which is closed here.\n")
