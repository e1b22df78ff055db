"""The installed hook command: from a cold start to one durable row, beside an interpreter that starts and does nothing.

.venv/bin/python -m bench.hook
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.load import Measured
from bench.rounds import Contest, in_rounds
from bench.syncs import syncs_of_command
from holdfast.hook.agents import arguments

STARTS = 25  # of each in a round
EVENT = {
    "session_id": "8d2f6c1e-52a7-4b7e-9a55-3f1f6f1b0c11",
    "transcript_path": "/home/someone/.claude/projects/x/8d2f6c1e.jsonl",
    "cwd": "/home/someone/project",
    "hook_event_name": "UserPromptSubmit",
    "prompt": "make the tests pass " * 10,
}


def main() -> None:
    contest = Contest("hook", "milliseconds from cold to durable")
    with tempfile.TemporaryDirectory(prefix="hfbench") as folder:
        home = Path(folder) / "home"
        command = arguments("claude", sys.executable, home)
        nothing = [sys.executable, "-I", "-S", "-c", "pass"]
        _run(command)  # the database is there
        in_rounds(
            {
                "hook": lambda: _turn(contest, "hook", "Holdfast hook, installed command", command),
                "nothing": lambda: _turn(contest, "nothing", "python -I -S -c pass", nothing),
            }
        )
        contest.those["hook"].more["syncs_per_answer"] = syncs_of_command(command, json.dumps(EVENT).encode())
    ours, theirs = contest.median("hook"), contest.median("nothing")
    contest.goal(
        "at most twice an interpreter's start", None if not ours or not theirs else ours / theirs, 2, at_most=True
    )
    contest.finish(lower_is_better=True)


def _turn(contest: Contest, key: str, name: str, command: list[str]) -> None:
    times = sorted(_run(command) for _ in range(STARTS))
    one = contest.of(key, name, "ms")
    one.add(Measured(1, 1 / times[len(times) // 2], times, 0.0))


def _run(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, input=json.dumps(EVENT).encode(), check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - began) * 1000


if __name__ == "__main__":
    main()
