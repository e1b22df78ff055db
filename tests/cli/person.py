"""People with homes and terminals: what they type is run as it is typed, and their daemons are real processes."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from holdfast.device import mesh, topic_keys
from holdfast.device.client import Client
from holdfast.device.device import at_work
from holdfast.device.home import Home
from holdfast.device.invitation import read, write
from holdfast.device.mesh import in_session
from holdfast.protocol.action import Role
from holdfast.protocol.schedule import HOUR
from holdfast.wire.client import RelayClient
from tests.terminal import typed

PATIENCE_S = 60.0

T = TypeVar("T")


@dataclass
class Person:
    """Somebody with a home and a terminal."""

    home: Path

    def command(self, *arguments: object) -> list[str]:
        return [sys.executable, "-m", "holdfast.cli", *map(str, arguments)]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "HOLDFAST_HOME": str(self.home), "NO_COLOR": "1"}

    def run(self, *arguments: object, code: int = 0) -> "subprocess.CompletedProcess[str]":
        done = typed(*arguments, environment=self.environment)
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    def says(self, *arguments: object) -> str:
        return self.run(*arguments).stdout

    def json(self, *arguments: object) -> Any:
        return json.loads(self.says(*arguments, "--json"))

    def fails(self, code: int, *arguments: object) -> str:
        done = self.run(*arguments, code=code)
        assert done.stdout == ""
        return done.stderr

    def start(self, *arguments: object) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            self.command(*arguments), env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def key_of(self, topic: str, epoch: int) -> list[bytes]:
        with at_work(Home(self.home)) as device:
            return device.look(lambda tx: topic_keys.of_epoch(tx, topic, epoch))

    @contextmanager
    def daemon(self, *options: object) -> Iterator["subprocess.Popen[bytes]"]:
        """Their daemon, while the block lasts; its log is `HOME.log`."""
        with self.home.with_suffix(".log").open("ab") as log:
            process = subprocess.Popen(
                self.command("daemon", "run", *options), env=self.environment, stdout=subprocess.PIPE, stderr=log
            )
        assert process.stdout is not None
        try:
            first = process.stdout.readline()
            assert first, self.home.with_suffix(".log").read_text()
            assert json.loads(first)["socket"] == str(self.home / "daemon.sock")
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(PATIENCE_S)
            process.stdout.close()

    def client(self) -> Client:
        return Client(home=self.home)

    def until(self, look: Callable[[Client], T]) -> T:
        """What their daemon answers as soon as there is something in it; without the start of a process each time."""
        give_up_at = time.monotonic() + PATIENCE_S
        with self.client() as client:
            while not (answer := look(client)):
                assert time.monotonic() < give_up_at
                time.sleep(0.05)
        return answer

    def until_connected(self, members: int = 1) -> None:
        """Until their daemon has met the relay and seen so many: who came since it last looked is not known before."""
        self.until(lambda client: client.health().connected and len(client.peers().peers) >= members)


def founder(person: Person, url: str) -> Person:
    """What `mesh create` does, without the start of a process, which is the dear part of it."""

    async def found() -> None:
        async with RelayClient(url, device.secret) as client:
            await mesh.found(device, client, "Kitchen", person.home.name)

    with at_work(Home(person.home), create=True) as device:
        asyncio.run(found())
    return person


def invitation_of(admin: Person, role: Role = Role.MEMBER, hours: float = 1) -> str:
    async def invite() -> str:
        async with in_session(device) as session:
            return write(await session.invite(role, device.clock() + int(hours * HOUR)))

    with at_work(Home(admin.home)) as device:
        return asyncio.run(invite())


def member_of(person: Person, admin: Person, role: Role = Role.MEMBER) -> Person:
    invitation = read(invitation_of(admin, role))

    async def join() -> None:
        async with RelayClient(invitation.relay, device.secret) as client:
            await mesh.join(device, client, invitation, person.home.name)

    with at_work(Home(person.home), create=True) as device:
        asyncio.run(join())
    return person
