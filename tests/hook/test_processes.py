"""Workers as processes: two on one database, with receivers at work meanwhile."""

import os
import signal
import subprocess
import time
from pathlib import Path

import apsw

from holdfast.cli.check import inspect
from tests.hook import journal
from tests.hook.processes import PATIENCE_S, end, start, until_all_ended, until_at_work
from tests.hook.receivers import run, spooled
from tests.hook.toiler import FAILING, HOPELESS

EVENTS = 400
SESSIONS = 8
VICTIMS = 3
LOCKED_S = 4.0  # longer than the worker waits for the database


def test_two_workers_never_have_an_event_or_a_session_at_the_same_time(home: Path, tmp_path: Path) -> None:
    book = tmp_path / "journal"
    toilers = [start("toiler", home, book, stdout=subprocess.DEVNULL) for _ in range(2)]
    until_at_work(home, 2)
    said, fed = "", 0
    try:
        while len({line.pid for line in journal.read(book)}) < 2:  # one may be quick enough to have all there is
            feeders = [
                start("feeder", home, first, EVENTS // 2, SESSIONS, 0.002, stdout=subprocess.PIPE)
                for first in (fed, fed + EVENTS // 2)
            ]
            said += "".join(feeder.communicate(timeout=PATIENCE_S)[0] for feeder in feeders)
            fed += EVENTS
            until_all_ended(home, fed)
    finally:
        end(*toilers)
    lines = journal.read(book)
    journal.assert_one_at_a_time(lines, {})
    journal.assert_handled_in_order(lines, home, {int(line.split()[0]) for line in said.splitlines()})
    assert inspect(home / "hooks.db") == ("hook", [])


def test_events_that_come_while_the_database_is_locked_are_handled_when_it_is_free(home: Path, tmp_path: Path) -> None:
    book = tmp_path / "journal"
    toiler = start("toiler", home, book, stdout=subprocess.DEVNULL)
    number = 0
    try:
        until_all_ended(home, start_with_one(home))
        holder = apsw.Connection(str(home / "hooks.db"))
        holder.set_busy_timeout(int(PATIENCE_S * 1000))  # the worker may be at it
        holder.execute("BEGIN EXCLUSIVE")
        until = time.monotonic() + LOCKED_S
        while time.monotonic() < until:
            number += 1
            payload = {"session_id": "s", "hook_event_name": "Stop", "n": number * HOPELESS * FAILING + 1}
            assert run(home, "claude", payload, "--strict").returncode == 0
            time.sleep(0.5)
        assert spooled(home).count(b"insert_event") == 1 + number
        holder.execute("ROLLBACK")
        holder.close()
        until_all_ended(home, 1 + number)
    finally:
        end(toiler)
    ended = [line.number // (HOPELESS * FAILING) for line in journal.read(book) if line.what == "end"]
    assert ended == list(range(1, number + 1))


def start_with_one(home: Path) -> int:
    """One event that cannot be handled, so that the worker is known to be there when it has ended."""
    run(home, "claude", {"session_id": "s", "hook_event_name": "Stop", "n": 0})
    return 1


def stop(process: "subprocess.Popen[str]") -> int:
    """Let a process do nothing more; returns since when. It is killed later, and the other may know before we do."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    return time.monotonic_ns()


def test_a_worker_that_is_killed_leaves_its_sessions_to_the_other(home: Path, tmp_path: Path) -> None:
    """It is killed, not stalled: nobody waits thirty seconds."""
    book = tmp_path / "journal"
    died_at: dict[int, int] = {}
    feeder = start("feeder", home, 0, 150, 5, 0.01, stdout=subprocess.PIPE)
    survivor = start("toiler", home, book, stdout=subprocess.DEVNULL)
    try:
        for _ in range(VICTIMS):
            victim = start("toiler", home, book, stdout=subprocess.DEVNULL)
            time.sleep(1.2)
            died_at[victim.pid] = stop(victim)
            end(victim)
        said = feeder.communicate(timeout=PATIENCE_S)[0]
        until_all_ended(home, 150)
    finally:
        end(survivor)
    lines = journal.read(book)
    journal.assert_one_at_a_time(lines, died_at)
    journal.assert_handled_in_order(lines, home, {int(line.split()[0]) for line in said.splitlines()})
