"""A generated relay and its devices, running, and processes whose memory is watched."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ENTRIES_PER_MESSAGE = 4.5
WORLD = 2
"""Counts what `generate` has come to make: what was made before is not used again."""

POLL_S = 1.0  # a look at all memory maps of a process takes time from it


def generated(folder: Path, entries: int, homes: int) -> Path:
    """The data of a relay with about so many entries in its history; made once, and whole before it has its name."""
    out = folder / f"world-{WORLD}-{entries}"
    if not out.exists():
        making = out.with_name(f"{out.name}.making")
        shutil.rmtree(making, ignore_errors=True)
        messages = str(round(entries / ENTRIES_PER_MESSAGE))
        command = [sys.executable, "-m", "holdfast.cli", "generate", "--messages", messages, "--homes", str(homes)]
        subprocess.run([*command, "--out", str(making), "--json"], check=True, stdout=subprocess.DEVNULL)
        making.rename(out)
    return out


@contextmanager
def running(*command: str, home: Path | None = None) -> Iterator[dict[str, str]]:
    """A relay or a daemon, and what it says when it serves."""
    environment = dict(os.environ) if home is None else {**os.environ, "HOLDFAST_HOME": str(home)}
    program = [sys.executable, "-m", "holdfast.cli", *command]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
    if process.stdout is None:
        raise RuntimeError("it has no output")
    try:
        yield json.loads(process.stdout.readline())
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


def token(data: Path) -> str:
    command = [sys.executable, "-m", "holdfast.cli", "relay", "token", "--data", str(data)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


class Watched:
    """The greatest memory that a process and all that it started had at once, and of that what was Java's."""

    def __init__(self, pid: int) -> None:
        self.peak_bytes, self.java_bytes = 0, 0
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> dict[str, int]:
        self._over.set()
        self._thread.join()
        python_bytes = self.peak_bytes - self.java_bytes
        return {"peak_mb": self.peak_bytes >> 20, "java_mb": self.java_bytes >> 20, "python_mb": python_bytes >> 20}

    def _watch(self) -> None:
        while not self._over.wait(POLL_S):
            held = {pid: _resident(pid) for pid in _family(self._pid)}
            if sum(held.values()) > self.peak_bytes:
                self.peak_bytes = sum(held.values())
                self.java_bytes = sum(one for pid, one in held.items() if _name(pid) == "java")


def timed(command: list[str]) -> tuple[float, dict[str, int], str]:
    """How many seconds a command took, its peak memory in MB, and what it printed."""
    began_at = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    watched = Watched(process.pid)
    told, _ = process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return time.monotonic() - began_at, watched.stop(), told


def _family(pid: int) -> list[int]:
    found = [pid]
    for one in found:
        with suppress(OSError):  # it may have ended meanwhile
            for task in Path(f"/proc/{one}/task").glob("*/children"):  # each thread has its own
                with suppress(OSError):
                    found += map(int, task.read_text().split())
    return found


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _resident(pid: int) -> int:
    """Memory that a process has, of what it shares with others its part."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
