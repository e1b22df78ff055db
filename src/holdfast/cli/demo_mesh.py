"""The demo's middle: a relay and two homes, one of them away, and a relay that is killed while messages are on their way."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast.cli.check import inspect
from holdfast.cli.demo_story import chapter, fact, verdict
from holdfast.device.client import Client
from holdfast.protocol.refusal import Refusal, Refused

BEFORE, AFTER = 60, 40  # messages that Alice sends before and after the relay is killed
WAIT_S = 60.0  # for what has to happen by itself
LOOK_S = 0.1


class World:
    """A relay, and the homes of Alice and Bob; every one a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "relay"
        self.alice = folder / "alice"
        self.bob = folder / "bob"
        self.url = ""
        self._relay: subprocess.Popen[str] | None = None

    def start_relay(self) -> None:
        """Start it; where it was before, if it was."""
        port = self.url.rpartition(":")[2] or "0"
        program = [*_HOLDFAST, "relay", "run", "--data", str(self.data), "--port", port]
        self._relay = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)  # noqa: S603 - ours
        assert self._relay.stdout is not None  # noqa: S101 - it is a pipe
        self.url = str(json.loads(self._relay.stdout.readline())["url"])

    def stop_relay(self, number: signal.Signals = signal.SIGKILL) -> None:
        if self._relay is not None:
            self._relay.send_signal(number)
            self._relay.communicate()
            self._relay = None

    def run(self, home: Path, *words: str) -> str:
        """What a command says in a home."""
        return command(*words, HOLDFAST_HOME=str(home)).stdout

    def client(self, home: Path) -> Client:
        return Client(home=home)

    def close(self) -> None:
        for home in (self.alice, self.bob):
            command("daemon", "down", HOLDFAST_HOME=str(home), check=False)
        self.stop_relay(signal.SIGTERM)


_HOLDFAST = (sys.executable, "-m", "holdfast.cli")


def command(*words: str, check: bool = True, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a command of ours."""
    return subprocess.run(  # noqa: S603 - ours
        [*_HOLDFAST, *words],
        env={**os.environ, "HOLDFAST_PERSISTENT": "1", **environment},
        check=check,
        capture_output=True,
        text=True,
    )


@contextmanager
def opened(folder: Path) -> Iterator[World]:
    world = World(folder)
    try:
        yield world
    finally:
        world.close()


def tell(world: World) -> None:
    """The chapters of the mesh."""
    _meet(world)
    sent = _send_to_somebody_away(world)
    sent += _send_without_relay(world)
    _arrive(world, sent)
    _say_twice(world, sent)


def _meet(world: World) -> None:
    chapter("A relay and two homes", "Alice makes a mesh and invites Bob. Bob joins, and goes away.")
    world.start_relay()
    world.run(world.alice, "mesh", "create", "friends", "--relay", world.url, "--as", "alice")
    invite = json.loads(world.run(world.alice, "mesh", "invite", "--json"))["invite"]
    world.run(world.bob, "mesh", "join", invite, "--as", "bob")
    world.run(world.alice, "daemon", "up")
    fact(f"the relay serves at {world.url}; Alice's daemon runs, Bob's does not")


def _send_to_somebody_away(world: World) -> list[str]:
    with world.client(world.alice) as alice:
        ids = [alice.send("bob", f"message {n}").client_message_id for n in range(BEFORE)]
    waiting = _until(lambda: _waiting(world) == BEFORE, "the relay has not got everything")
    verdict(waiting, f"{BEFORE} messages wait for Bob at the relay, each on its disk", "")
    return ids


def _send_without_relay(world: World) -> list[str]:
    chapter("The relay dies", "We kill -9 it. Alice goes on sending: what she was told is queued, is on her own disk.")
    world.stop_relay()
    with world.client(world.alice) as alice:
        answers = [alice.send("bob", f"message {BEFORE + n}") for n in range(AFTER)]
    ids = [answer.client_message_id for answer in answers]
    verdict(len(set(ids)) == AFTER, f"{AFTER} more were taken while there was no relay", f"found: {answers}")
    world.start_relay()
    verdict(
        _waiting(world) >= BEFORE, "started again, the relay still has every message it said yes to", "some are gone"
    )
    return ids


def _arrive(world: World, sent: list[str]) -> None:
    chapter(
        "Bob comes back", "His daemon takes what waits, writes it down, acknowledges it, and signs receipts for Alice."
    )
    world.run(world.bob, "daemon", "up")
    with world.client(world.bob) as bob, world.client(world.alice) as alice:
        _until(lambda: len(_inbox(bob)) >= len(sent), "Bob has not got everything")
        bodies = _inbox(bob)
        expected = [f"message {n}" for n in range(len(sent))]
        verdict(bodies == expected, f"{len(bodies)} messages, each once, in the order of sending", f"found: {bodies}")
        _until(lambda: _state(alice, sent[-1]) == "delivered", "Alice has no receipt")
        states = {_state(alice, one) for one in sent}
        verdict(states == {"delivered"}, "Alice holds Bob's signed receipt for every one", f"found: {states}")


def _say_twice(world: World, sent: list[str]) -> None:
    chapter("Said twice", "The same id again is recognised, and never means two things.")
    with world.client(world.alice) as alice:
        again = alice.send("bob", "message 0", client_message_id=sent[0])
        verdict(bool(again.duplicate), "the same request again: answered as before, sent once", f"found: {again}")
        try:
            alice.send("bob", "something else", client_message_id=sent[0])
        except Refused as refused:
            verdict(refused.refusal is Refusal.IDEMPOTENCY_KEY_REUSED, f"another one: {refused}", f"found: {refused}")
        else:
            verdict(False, "", "an id was used for two messages")
    _, findings = inspect(world.data / "relay.db")
    verdict(not findings, "every rule of the relay's database holds, and every entry is in its chain", f"{findings}")


def _waiting(world: World) -> int:
    shown = json.loads(command("relay", "queues", "--data", str(world.data), "--json").stdout)
    return sum(int(one["messages"]) for one in shown["queues"])


def _inbox(client: Client) -> list[Any]:
    bodies: list[Any] = []
    after = 0
    while page := client.inbox(after=after, limit=100).messages:
        bodies += [message.body for message in page]
        after = page[-1].arrival
    return bodies


def _state(client: Client, name: str) -> str:
    return str(client.trace(name)["sent"]["state"])


def _until(holds: Callable[[], bool], bad: str) -> bool:
    """Wait for something that happens by itself."""
    give_up_at = time.monotonic() + WAIT_S
    while not holds():
        if time.monotonic() > give_up_at:
            verdict(False, "", bad)
        time.sleep(LOOK_S)
    return True
