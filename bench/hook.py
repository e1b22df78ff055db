"""The installed hook command: from a cold start to one durable row, beside an interpreter that starts and does nothing.

.venv/bin/python -m bench.hook
"""

import json
import statistics
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
        in_rounds({"both": lambda: _turn(contest, command, nothing)})
        contest.those["hook"].more["syncs_per_answer"] = syncs_of_command(command, json.dumps(EVENT).encode())
    ours, theirs = contest.median("hook"), contest.median("nothing")
    contest.goal(
        "at most twice an interpreter's start", None if not ours or not theirs else ours / theirs, 2, at_most=True
    )
    contest.finish(lower_is_better=True)


def _turn(contest: Contest, command: list[str], nothing: list[str]) -> None:
    """One start of each after the other: a start is short, and so are the moments in which a machine is busy."""
    pairs = [(_run(command), _run(nothing)) for _ in range(STARTS)]
    ours, theirs = (sorted(times) for times in zip(*pairs, strict=True))
    for key, name, times in (
        ("hook", "Holdfast hook, installed command", ours),
        ("nothing", "python -I -S -c pass", theirs),
    ):
        contest.of(key, name, "ms").add(Measured(1, 1 / statistics.median(times), times, 0.0))


def _run(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, input=json.dumps(EVENT).encode(), check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - began) * 1000


if __name__ == "__main__":
    main()
