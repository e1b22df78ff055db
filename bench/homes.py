"""Two people with homes at a relay, and their daemons: real processes, asked over their sockets."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from holdfast.device.home import Home
from tests.device.company import gather_in_mesh
from tests.relay.running import RunningRelay

ROOMY = "[outbox]\nrows_max = 1000000\n"
START_S = 60.0


@dataclass
class RunningDaemon:
    home: Home
    socket: str
    pid: int


def make(relay: RunningRelay, folder: Path, *names: str) -> list[Home]:
    """Homes in one mesh."""
    homes = [Home(folder / name) for name in names]
    asyncio.run(gather_in_mesh(relay.url, homes))
    return homes


@contextmanager
def daemon(home: Home) -> Iterator[RunningDaemon]:
    """Its daemon, as a process, once it serves."""
    command = [sys.executable, "-m", "holdfast.cli", "daemon", "run", "--home", str(home.path)]
    log = home.path.with_suffix(".log").open("ab")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env={**os.environ, "CI": ""})
    assert process.stdout is not None
    try:
        first = json.loads(process.stdout.readline())
        yield RunningDaemon(home, str(first["socket"]), process.pid)
    finally:
        process.terminate()
        process.wait(START_S)
        process.stdout.close()
        log.close()


def until(condition: "object", patience_s: float = START_S) -> None:
    """Wait for something that must come."""
    ends = time.monotonic() + patience_s
    while not condition():  # type: ignore[operator]
        if time.monotonic() > ends:
            raise RuntimeError("it did not come to pass")
        time.sleep(0.05)
