"""`kill -9` of the worker every second, and of a receiver now and then: every event that was said to be stored comes to its end.

The critical ones are handled in order and at least once, or are dead with their error; an event keeps its id through all of
its attempts, and the home's history tells of each exactly once that it came, and once how it ended. At its whole length,
ten thousand events of fifty sessions, it runs where HOLDFAST_CRASH_CYCLES is set.
"""

import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.cli.check import inspect
from holdfast.device.database import open_to_read
from holdfast.store import history
from tests.hook import journal
from tests.hook.processes import end, start
from tests.hook.receivers import rows, waiting

IS_WHOLE = "HOLDFAST_CRASH_CYCLES" in os.environ
EVENTS, SESSIONS = (10_000, 50) if IS_WHOLE else (300, 10)
FEEDER_EVENTS = EVENTS // 10  # by one receiver process, which may be killed before it is through
SETTLE_S = 3_600.0 if IS_WHOLE else 600.0
KILL_EVERY_S = 1.0
LOOK_S = 0.02


class Feeder:
    """A receiver process that may be killed in the middle of what it has to tell, wherever a machine is by then."""

    def __init__(self, home: Path, said: Path, first: int, luck: random.Random) -> None:
        self._said = said
        self._last_words = luck.randrange(3 * FEEDER_EVENTS)  # one in three has not told all by then
        with said.open("wb") as out:
            self._process = start("feeder", home, first, FEEDER_EVENTS, SESSIONS, stdout=out.fileno())

    def watch(self) -> bool:
        """Whether it still tells; it is killed once it has told so much."""
        if len(self.stored()) >= self._last_words:
            self._process.send_signal(signal.SIGKILL)
        return self._process.poll() is None

    def stored(self) -> set[int]:
        """What it said; half a line is no word."""
        lines = self._said.read_text().splitlines(keepends=True)
        return {int(line.split()[0]) for line in lines if line.endswith("\n")}


@pytest.mark.timeout(0 if IS_WHOLE else 900)
def test_every_stored_event_ends_though_its_worker_is_killed_every_second(
    home: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    book, luck = tmp_path / "journal", random.Random(3)
    stored: set[int] = set()
    died_at: dict[int, int] = {}
    feeder: Feeder | None = None
    first, give_up_at = 0, time.monotonic() + SETTLE_S
    while first < EVENTS or feeder is not None or not _all_ended(home):
        worker = start("toiler", home, book, "alone", stdout=subprocess.PIPE)
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
        until = time.monotonic() + KILL_EVERY_S
        # On a machine on which a second is too short for anything, it is killed when it has done something.
        while time.monotonic() < until or not (_has_worked(book, worker.pid) or _all_ended(home)):
            assert time.monotonic() < give_up_at, Counter(rows(home, "status"))
            if feeder is None and first < EVENTS:
                feeder = Feeder(home, tmp_path / f"fed-{first}", first, luck)
                first += FEEDER_EVENTS
            time.sleep(LOOK_S)
            if feeder is not None and not feeder.watch():
                stored |= feeder.stored()
                feeder = None
        end(worker)
        worker.stdout.close()
        died_at[worker.pid] = time.monotonic_ns()
    lines = journal.read(book)
    journal.assert_one_at_a_time(lines, died_at)
    journal.assert_handled_in_order(lines, home, stored)
    assert len(stored) > EVENTS / 4
    assert len({line.pid for line in lines}) > 2, "it was killed too rarely for that to mean anything"
    _assert_told_once(home)
    record_property("kills", len(died_at))
    record_property("hook events", len(stored))


def _has_worked(book: Path, pid: int) -> bool:
    return book.exists() and f" {pid} ".encode() in book.read_bytes()


def _all_ended(home: Path) -> bool:
    return not rows(home, "id", "(SELECT id FROM hook_outbox WHERE ended_at IS NULL)") and not waiting(home)


def _assert_told_once(home: Path) -> None:
    """The home's history knows every event, once when it came and once when it ended."""
    book = home.parent / "last"
    worker = start("toiler", home, book, "alone", stdout=subprocess.DEVNULL)
    while rows(home, "id", "(SELECT id FROM hook_outbox WHERE ended_reported = 0)"):
        time.sleep(0.1)
    end(worker)
    assert inspect(home / "hooks.db") == ("hook", [])
    assert inspect(home / "device.db") == ("device", [])
    engine = open_to_read(home / "device.db")
    try:
        told = Counter((entry.event_id, str(entry.kind)) for entry in history.walk(engine))
    finally:
        engine.close()
    expected = {(bytes.fromhex(event_id), f"hook_{status}") for event_id, status in rows(home, "event_id, status")}
    expected |= {(event_id, "hook_received") for event_id, _ in expected}
    assert told == dict.fromkeys(expected, 1)
