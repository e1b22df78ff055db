"""Receivers and workers as processes of their own, to start, wait for and kill."""

import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.hook.receivers import rows

ROOT = Path(__file__).parents[2]
PATIENCE_S = 100.0


def start(
    module: str, *arguments: object, stdout: int | None = None, stderr: int | None = None
) -> "subprocess.Popen[str]":
    program = [sys.executable, "-m", f"tests.hook.{module}", *map(str, arguments)]
    return subprocess.Popen(program, text=True, cwd=ROOT, stdout=stdout, stderr=stderr)


def until_at_work(home: Path, number: int) -> None:
    """Wait for so many workers to be there."""
    give_up_at = time.monotonic() + PATIENCE_S
    while len(list(home.glob("hook-workers/*"))) < number:
        assert time.monotonic() < give_up_at
        time.sleep(0.05)


def until_all_ended(home: Path, number: int) -> None:
    """Wait for the workers; looking must not stand in their way."""
    give_up_at = time.monotonic() + PATIENCE_S
    while True:
        found = rows(home, "ended_at")
        if len(found) == number and None not in found:
            return
        assert time.monotonic() < give_up_at, f"{found.count(None)} of {len(found)} are open"
        time.sleep(0.2)


def end(*processes: "subprocess.Popen[str]") -> None:
    for process in processes:
        process.send_signal(signal.SIGKILL)
        process.wait()
