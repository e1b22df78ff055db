"""Programs of a person's own: run with an event on their input, ended with all they started, and written down."""

import asyncio
import json
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
import pytest
import uvloop
from structlog.testing import capture_logs

from holdfast.hook import programs
from holdfast.hook.agent_settings import Programs
from holdfast.hook.programs import Failed, Runner
from holdfast.protocol.agent_event import AgentEvent, AgentKind
from holdfast.store.world import wall_clock

EVENT = AgentEvent(id="e1", kind=AgentKind.PROMPT, agent="claude", session_id="s", at=7, text="hm")
PATIENCE_S = 60.0


def program(home: Path, name: str, text: str, mode: int = 0o700) -> Path:
    path = home / "agent-handlers" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(mode)
    return path


def run(home: Path, *names: str, **settings: Any) -> list[BaseException | None]:
    async def scene() -> list[BaseException | None]:
        runner = Runner(home, Programs(**settings), wall_clock)
        return await asyncio.gather(*(runner.run(name, EVENT) for name in names), return_exceptions=True)

    return asyncio.run(scene())


def audit(home: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (home / "agent-handlers.jsonl").read_text().splitlines()]


def child_ends(home: Path) -> None:
    """Wait until the process is over whose number a program has left; nobody may have taken note of it yet."""
    stat = Path(f"/proc/{(home / 'child').read_text().strip()}/stat")
    give_up_at = time.monotonic() + PATIENCE_S
    with suppress(FileNotFoundError, ProcessLookupError):
        while stat.read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < give_up_at
            time.sleep(0.01)


def test_a_program_gets_the_event_and_its_words_are_kept(home: Path) -> None:
    program(home, "echo", "cat; echo and more >&2")
    assert run(home, "echo") == [None]
    (line,) = audit(home)
    said, more = line["output"].splitlines()
    assert (json.loads(said)["id"], more) == ("e1", "and more")
    assert (line["program"], line["id"], line["kind"], line["code"]) == ("echo", "e1", "prompt", 0)


def test_what_other_threads_have_open_stays_open(home: Path) -> None:
    """On the loop that the daemon runs on, a pipe's number may be another file's as soon as it was closed once."""
    program(home, "says", "echo something")
    failed: list[apsw.Error] = []
    over = threading.Event()

    def write(number: int) -> None:
        database = apsw.Connection(str(home / f"beside-{number}.db"))
        list(database.execute("PRAGMA journal_mode=truncate; PRAGMA synchronous=off; CREATE TABLE t (n)"))
        try:
            while not over.is_set():
                database.execute("INSERT INTO t VALUES (1)")  # opens a journal, and closes it
        except apsw.Error as error:
            failed.append(error)

    async def scene() -> None:
        runner = Runner(home, Programs(), wall_clock)
        for _ in range(200):
            await runner.run("says", EVENT)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        uvloop.run(scene())
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert failed == []


def test_one_that_fails_or_cannot_be_run_says_so(home: Path) -> None:
    program(home, "fails", "exit 3")
    (home / "agent-handlers" / "nothing").write_text("no program")
    (home / "agent-handlers" / "nothing").chmod(0o700)
    assert [type(error) for error in run(home, "fails", "nothing", "gone")] == [Failed] * 3
    assert {line["program"]: line["code"] for line in audit(home)} == {"fails": 3, "nothing": None, "gone": None}


def test_one_that_takes_too_long_is_ended_with_all_that_it_started(home: Path) -> None:
    program(home, "slow", f"echo begun; sleep 600 & echo $! > {home}/pid; mv {home}/pid {home}/child; wait")
    for timeout_s in (1, 5, 25, 125):  # until it had the time to begin
        (error,) = run(home, "slow", timeout_s=float(timeout_s))
        assert f"longer than {timeout_s} s" in str(error)
        if (home / "child").exists():
            break
    child_ends(home)
    assert audit(home)[-1]["output"] == "begun\n"


def test_what_it_left_behind_when_it_ended_is_ended_too(home: Path) -> None:
    program(home, "leaves", f"sleep 600 > /dev/null 2>&1 & echo $! > {home}/child")
    assert run(home, "leaves") == [None]
    child_ends(home)


def test_who_got_away_and_holds_its_output_keeps_nobody_waiting(home: Path) -> None:
    program(home, "leaves", f"setsid sleep 600 & echo $! > {home}/child; echo said")
    assert run(home, "leaves", timeout_s=300.0) == [None]
    (line,) = audit(home)
    assert (line["output"], line["code"]) == ("said\n", 0)
    assert line["milliseconds"] < 250_000, "it was not waited for"
    with suppress(ProcessLookupError):
        os.kill(int((home / "child").read_text()), signal.SIGKILL)


def test_of_an_endless_output_only_the_beginning_is_kept(home: Path) -> None:
    program(home, "chatty", "head -c 3000000 /dev/zero | tr '\\0' x")
    assert run(home, "chatty", output_bytes_max=100) == [None]
    (line,) = audit(home)
    assert (line["output"], line["is_cut"]) == ("x" * 100, True)


@pytest.mark.parametrize("is_writable", [True, False])
def test_one_that_is_at_work_when_the_daemon_ends_is_ended_and_written_down(is_writable: bool, home: Path) -> None:
    """Where it cannot be written down, the daemon ends all the same."""
    program(home, "slow", f"echo $$ > {home}/child; sleep 600")
    if not is_writable:
        (home / "agent-handlers.jsonl").mkdir()

    async def scene() -> None:
        running = asyncio.create_task(Runner(home, Programs(), wall_clock).run("slow", EVENT))
        while not (home / "child").exists() or not (home / "child").read_text():
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()

    asyncio.run(scene())
    with pytest.raises(ProcessLookupError):
        os.kill(int((home / "child").read_text()), 0)
    if is_writable:
        assert [line["error"] for line in audit(home)] == ["it was ended with the daemon"]


def test_one_that_has_acted_is_not_run_again_because_that_cannot_be_written_down(home: Path) -> None:
    (home / "agent-handlers.jsonl").mkdir()
    program(home, "acts", "echo")
    program(home, "fails", "exit 3")
    with capture_logs() as logs:
        acted, failed = run(home, "acts", "fails")
    assert acted is None
    assert isinstance(failed, Failed)
    assert sorted(one["program"] for one in logs) == ["acts", "fails"]


def test_one_that_does_not_listen_is_none_the_worse_for_it(home: Path) -> None:
    program(home, "deaf", "exec 0<&-; exit 0")
    assert run(home, "deaf") == [None]


def test_no_more_than_eight_run_at_once(home: Path) -> None:
    seen = f"n=$(ls {home}/now | wc -l); echo $n >> {home}/seen; test $n -lt 8 || touch {home}/full"
    script = f"touch {home}/now/$$; until test -e {home}/full; do {seen}; sleep 0.05; done; {seen}; rm {home}/now/$$"
    (home / "now").mkdir()
    names = [f"p{number}" for number in range(20)]
    for name in names:
        program(home, name, script)
    assert run(home, *names, timeout_s=PATIENCE_S) == [None] * 20
    assert max(int(line) for line in (home / "seen").read_text().split()) == 8


def test_the_environment_is_a_small_one(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "secret")
    program(home, "tells", "env")
    run(home, "tells")
    assert "SOME_TOKEN" not in audit(home)[0]["output"]
    assert f"PATH={os.environ['PATH']}" in audit(home)[0]["output"]


def test_only_executables_that_nobody_else_can_change_are_programs(home: Path) -> None:
    assert programs.found(home) == []
    program(home, "b", "true")
    program(home, "a", "true")
    program(home, "not-executable", "true", 0o600)
    program(home, "anybodys", "true", 0o777)
    program(home, ".hidden", "true")
    (home / "agent-handlers" / "folder").mkdir()
    (home / "agent-handlers" / "broken").symlink_to("/nowhere")
    assert programs.found(home) == ["a", "b"]
