"""The demo's world: a relay and the homes of Alice, Bob and Carol, every one a process of its own, in one directory."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast.cli.output import ExitCode
from holdfast.device.client import Client
from holdfast.device.feed_client import FeedClient
from holdfast.device.home import VARIABLE, Home, InUse

PATIENCE_S = 60.0  # for what has to happen by itself
LOOK_S = 0.1
COMMAND_TIMEOUT_S = 120.0  # after which a command that was run for a step hangs

_OURS = "HOLDFAST_"  # how the name of every variable of ours begins

HOLDFAST = (sys.executable, "-P", "-m", "holdfast.cli")

_QUIET = {
    "HOLDFAST_PERSISTENT": "1",  # the demo may be shown in a CI job
    "HOLDFAST_PASSPHRASE": "a passphrase for the demo alone",
    "NO_COLOR": "1",
}


class NotHeld(Exception):
    """What a step claims is not so; says what was found instead."""


class Missing(Exception):
    """A step needs what is not installed; says how to get it."""


class World:
    """Where everything is, what runs, and what the steps so far have left for the next."""

    def __init__(self, folder: Path, patience_s: float = PATIENCE_S) -> None:
        self.folder = folder
        self.patience_s = patience_s
        self.data = folder / "relay"
        self.alice, self.bob, self.carol = homes = tuple(folder / name for name in ("alice", "bob", "carol"))
        self.homes = homes
        self.user = folder / "user"  # where the agent of the demo has its settings
        self.lake = folder / "lake"
        self.url = ""
        self.sent: list[str] = []  # by Alice to Bob, in order
        self._relay: subprocess.Popen[str] | None = None

    @property
    def relay_pid(self) -> int | None:
        return None if self._relay is None else self._relay.pid

    def start_relay(self) -> None:
        """Start it; where it was before, if it was."""
        port = self.url.rpartition(":")[2] or "0"
        program = [*HOLDFAST, "relay", "run", "--data", str(self.data), "--port", port]
        with (self.folder / "relay.log").open("a") as log:
            self._relay = subprocess.Popen(  # noqa: S603 - ours
                program, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True, env=_environment()
            )
        assert self._relay.stdout is not None  # noqa: S101 - it is a pipe
        first = self._relay.stdout.readline()
        hold(bool(first), f"the relay does not start; see {self.folder / 'relay.log'}")
        self.url = str(json.loads(first)["url"])

    def stop_relay(self, number: signal.Signals = signal.SIGKILL) -> None:
        if self._relay is not None:
            self._relay.send_signal(number)
            try:
                self._relay.communicate(timeout=self.patience_s)
            except subprocess.TimeoutExpired:
                self._relay.kill()
                self._relay.communicate()
            self._relay = None

    def run(self, home: Path, *words: str, given: str | None = None) -> str:
        """What a command says in a home."""
        return command(*words, given=given, environment={VARIABLE: str(home)}).stdout

    def ask(self, home: Path, *words: str) -> Any:
        """What a command says to a program."""
        return json.loads(self.run(home, *words, "--json"))

    def client(self, home: Path) -> Client:
        return Client(home=home)

    def notes(self, home: Path) -> FeedClient:
        return FeedClient(home=home)

    def until(self, holds: Callable[[], object], otherwise: str) -> None:
        """Wait for something that happens by itself."""
        give_up_at = time.monotonic() + self.patience_s
        while not holds():
            hold(time.monotonic() < give_up_at, f"{otherwise}, after {self.patience_s:g} s")
            time.sleep(LOOK_S)

    def close(self) -> None:
        """End everything that runs."""
        for home in self.homes:
            give_up_at = time.monotonic() + self.patience_s
            while _is_held(home) and time.monotonic() < give_up_at:  # one that was just starting cannot be told at once
                command("daemon", "down", is_needed=False, environment={VARIABLE: str(home)})
        self.stop_relay(signal.SIGTERM)


def _is_held(home: Path) -> bool:
    """Whether somebody works in a home."""
    if not home.is_dir():
        return False
    try:
        with Home(home).entered(wait_s=0.0):
            return False
    except InUse:
        return True


def hold(holds: bool, otherwise: str) -> None:
    """Go on only if something is so."""
    if not holds:
        raise NotHeld(otherwise)


def command(
    *words: str,
    given: str | None = None,
    is_needed: bool = True,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = COMMAND_TIMEOUT_S,
) -> "subprocess.CompletedProcess[str]":
    """Run a command of ours; one that is needed and fails has not shown what it was to show."""
    done = subprocess.run(  # noqa: S603 - ours
        [*HOLDFAST, *words],
        env=_environment(environment),
        input=given,
        check=False,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    said = done.stderr.strip() or done.stdout.strip()
    hold(not is_needed or done.returncode == ExitCode.OK, f"holdfast {' '.join(words[:2])}: {said}")
    return done


def _environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """What the user has set for their own homes, relays and lakes is not for these."""
    theirs = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    return {**theirs, **_QUIET, **(more or {})}


@contextmanager
def process(*words: str, environment: Mapping[str, str] | None = None) -> Iterator["subprocess.Popen[str]"]:
    """A command of ours that goes on by itself, while the block lasts."""
    started = subprocess.Popen(  # noqa: S603 - ours
        [*HOLDFAST, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=_environment(environment),
    )
    try:
        yield started
    finally:
        started.kill()
        started.communicate()
