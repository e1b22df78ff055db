"""`kill -9` of real processes under load: every append that returned is there, once, in order."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from holdfast import OperationLog
from holdfast.cli.check import inspect
from tests.crash.appender import THREADS, blob, object_id

ROUNDS = int(os.environ.get("HOLDFAST_CRASH_CYCLES", "12"))
LINES = (12, 40)  # that a process says before it dies; of every append one, and of every third its delivery


def _start(path: Path, writer: str) -> "subprocess.Popen[str]":
    program = [sys.executable, "-m", "tests.crash.appender", str(path), writer]
    return subprocess.Popen(program, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])


def _kill_after(process: "subprocess.Popen[str]", count: int, delay_s: float) -> list[str]:
    """Let it work until it has said so much, and a moment longer; kill it, and return every line that it got out."""
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(count)]
    time.sleep(delay_s)
    process.send_signal(signal.SIGKILL)
    lines += process.stdout.read().splitlines(keepends=True)
    process.wait()
    process.stdout.close()
    return [line for line in lines if line.endswith("\n")]


def test_every_append_that_returned_survives_kill_9_once_and_in_order(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    path = tmp_path / "log"
    luck = random.Random(9)
    appended: dict[int, tuple[str, int, int]] = {}
    delivered: set[int] = set()
    for round_number in range(ROUNDS):
        # Every third round two processes share the file, and the second survives the first for a moment.
        writers = [_start(path, f"{round_number}-{n}") for n in range(2 if round_number % 3 == 2 else 1)]
        for writer in writers:
            for line in _kill_after(writer, luck.randrange(*LINES), luck.uniform(0, 0.02)):
                word, sequence, *which = line.split()
                if word == "delivered":
                    delivered.add(int(sequence))
                else:
                    assert int(sequence) not in appended, "a sequence was given out twice"
                    appended[int(sequence)] = (which[0], int(which[1]), int(which[2]))
        _look(path, appended, delivered)
    assert len(appended) > ROUNDS * 5, "the processes did too little for their death to mean anything"
    assert inspect(path) == ("device", [])
    record_property("kills", ROUNDS)
    record_property("appends", len(appended))


def _look(path: Path, appended: dict[int, tuple[str, int, int]], delivered: set[int]) -> None:
    with OperationLog(path) as log:
        found = {entry.sequence: entry for thread in range(THREADS) for entry in log.entries_from(object_id(thread), 0)}
        waiting = [entry.sequence for entry in log.outbox()]
    assert sorted(found) == list(range(len(found)))
    for sequence, (writer, thread, number) in appended.items():
        assert found[sequence].blob == blob(writer, thread, number)
        assert found[sequence].object_id == object_id(thread)
    assert waiting == sorted(waiting)
    assert not delivered & set(waiting)
    _assert_each_thread_in_order(appended)


def _assert_each_thread_in_order(appended: dict[int, tuple[str, int, int]]) -> None:
    last: dict[tuple[str, int], int] = {}
    for sequence in sorted(appended):
        writer, thread, number = appended[sequence]
        assert number > last.get((writer, thread), -1), "a later append has an earlier sequence"
        last[(writer, thread)] = number
