"""`kill -9` of sender, relay and receiver, at random and under load: every send that was accepted arrives, once, in order.

The audit at the end reads the three databases themselves: what was accepted is done at the sender, accepted once and in
order at the relay, in the inbox once and in order, and its receipt is at the sender.
"""

import asyncio
import http.client
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.check import inspect
from holdfast.device import database, topics
from holdfast.device.device import at_work
from holdfast.device.home import Home
from holdfast.device.mesh import in_session
from holdfast.relay import database as relay_database
from holdfast.store import migrations
from holdfast.store.engine import Row
from tests.device.company import gather_in_mesh

ROUNDS = int(os.environ.get("HOLDFAST_CRASH_CYCLES", "20"))
START_S = 60.0  # for a program to say that it is there
SETTLE_S = 180.0  # for everything to arrive when nobody is killed any more
PACE_S = 0.01  # between two sends
DESTINATIONS = ("bob", "@news")


class Program:
    """A process that can be killed and started again."""

    def __init__(self, *arguments: str, log: Path) -> None:
        self._arguments = [sys.executable, "-m", "holdfast.cli", *arguments]
        self._log = log
        self.process: subprocess.Popen[bytes] | None = None
        self.first: dict[str, Any] = {}

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._arguments, stdout=subprocess.PIPE, stderr=log)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self._log.read_text()[-2_000:]
        self.first = json.loads(line)

    def end(self, number: int = signal.SIGTERM) -> None:
        if self.process is None:
            return
        self.process.send_signal(number)
        self.process.wait(START_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = None


class Caller(threading.Thread):
    """Sends through the daemon's socket, and repeats a request until it is answered: what any careful program does."""

    def __init__(self, daemon: Program) -> None:
        super().__init__(daemon=True)
        self._daemon = daemon
        self._stopping = threading.Event()
        self.accepted: list[tuple[str, str]] = []  # destination, id, in the order of the calls
        self.repeated = 0

    def run(self) -> None:
        for number in itertools.count():
            for to in DESTINATIONS:
                if self._stopping.is_set():
                    return
                self._send(to, f"{to.removeprefix('@')}-{number}")
                time.sleep(PACE_S)

    def stop(self) -> None:
        self._stopping.set()
        self.join()

    def _send(self, to: str, client_message_id: str) -> None:
        body = json.dumps({"to": to, "message": client_message_id, "client_message_id": client_message_id})
        while (status := self._post(body)) not in (200, 202):
            assert status is None or status >= 500, status
            self.repeated += 1
            time.sleep(PACE_S)
        self.accepted.append((to, client_message_id))

    def _post(self, body: str) -> int | None:
        connection = http.client.HTTPConnection("localhost", timeout=START_S)
        try:
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.connect(self._daemon.first["socket"])
            connection.request("POST", "/v1/send", body, {"content-type": "application/json"})
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()


@pytest.mark.timeout(600 + 10 * ROUNDS)  # a round starts one or two programs
def test_every_send_that_was_accepted_arrives_once_and_in_order_though_anybody_is_killed(tmp_path: Path) -> None:
    ann, bob = Home(tmp_path / "ann"), Home(tmp_path / "bob")
    relay = Program("relay", "run", "--data", str(tmp_path / "relay"), "--port", _port(), log=tmp_path / "relay.log")
    sender, receiver = (
        Program("daemon", "run", "--home", str(home.path), log=tmp_path / f"{home.path.name}.log")
        for home in (ann, bob)
    )
    programs = (relay, sender, receiver)
    (tmp_path / "relay").mkdir(mode=0o700)
    # Or posts would pass over a recipient who was dead for too long, which is told and is not what is shown here.
    (tmp_path / "relay" / "relay.toml").write_text("[limits]\nqueue_messages_max = 1000000\n")
    relay.start()
    asyncio.run(_befriend(relay.first["url"], ann, bob))
    sender.start()
    receiver.start()
    caller = Caller(sender)
    caller.start()
    luck = random.Random(ROUNDS)
    try:
        for _ in range(ROUNDS):
            time.sleep(luck.uniform(0.05, 0.5))
            victims = luck.sample(programs, luck.choice((1, 1, 2)))
            for victim in victims:
                victim.end(signal.SIGKILL)
            time.sleep(luck.choice((0, 0.2)))
            for victim in victims:
                victim.start()
        caller.stop()
        _wait_for_receipts(ann, len(caller.accepted))
    finally:
        caller.stop()
        for program in programs:
            program.end()
    assert caller.repeated > 0, "nobody was killed while somebody asked"
    _audit(tmp_path, ann, bob, caller.accepted)


def _port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return str(free.getsockname()[1])


async def _befriend(url: str, ann: Home, bob: Home) -> None:
    """A mesh of two, with a topic whose key both have."""
    await gather_in_mesh(url, [ann, bob])
    with at_work(ann) as one, at_work(bob) as other:
        async with in_session(one) as keeper:
            await topics.create(keeper, "news")
            async with in_session(other) as reader:
                await topics.subscribe(reader, "news")
                await keeper.refresh()
                await topics.tend(keeper)
                await reader.refresh()
                await topics.collect(reader)


def _wait_for_receipts(ann: Home, expected: int) -> None:
    give_up_at = time.monotonic() + SETTLE_S
    while True:
        with suppress(Exception):  # a process that has just ended may hold the file for a moment
            ((found,),) = _rows(ann.database, "SELECT count(*) FROM send_receipt WHERE status = 'stored'")
            if found == expected:
                return
        assert time.monotonic() < give_up_at, f"{found} of {expected} receipts came"
        time.sleep(0.2)


def _rows(path: Path, statement: str) -> list[Row]:
    schema = relay_database.SCHEMA if path.name == "relay.db" else database.SCHEMA
    engine = migrations.open_to_read(path, schema)
    try:
        with engine.read() as transaction:
            return transaction.rows(statement)
    finally:
        engine.close()


def _audit(place: Path, ann: Home, bob: Home, accepted: list[tuple[str, str]]) -> None:
    relay = place / "relay" / "relay.db"
    assert inspect(relay) == ("relay", [])
    assert inspect(ann.database) == inspect(bob.database) == ("device", [])
    sent: dict[str, str] = dict(
        _rows(
            ann.database,
            "SELECT client_message_id, status FROM operation_log WHERE destination_kind IN ('dm', 'topic')",
        )
    )
    assert sent == {name: "done" for _, name in accepted}
    taken = _rows(relay, "SELECT client_message_id FROM history WHERE kind = 'accepted' ORDER BY seq")
    arrived = _rows(bob.database, "SELECT client_message_id, CAST(body AS TEXT) FROM inbox ORDER BY arrival")
    assert all(name == body for name, body in arrived)
    for to in DESTINATIONS:
        expected = [name for destination, name in accepted if destination == to]
        mine = set(expected)
        assert [name for (name,) in taken if name in mine] == expected
        assert [name for name, _ in arrived if name in mine] == expected
    for kind, path in (("delivered", relay), ("stored", bob.database), ("receipt", ann.database)):
        told = [name for (name,) in _rows(path, f"SELECT client_message_id FROM history WHERE kind = '{kind}'")]
        counted = [name for name in told if name in sent]
        assert sorted(counted) == sorted(sent), kind
