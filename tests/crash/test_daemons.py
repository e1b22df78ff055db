"""`kill -9` of sender, relay and receiver, at random and under load: every send that was accepted arrives, once, in order.

The audit at the end reads the three databases themselves: what was accepted is done at the sender, accepted once and in
order at the relay, in the inbox once and in order, and its receipt is at the sender.
"""

import asyncio
import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.cli.check import inspect
from holdfast.device import database, topics
from holdfast.device.device import at_work
from holdfast.device.home import Home
from holdfast.device.mesh import in_session
from holdfast.relay import database as relay_database
from holdfast.store import migrations
from holdfast.store.engine import Row
from tests import ports
from tests.crash.programs import Program
from tests.device.company import gather_in_mesh

ROUNDS = int(os.environ.get("HOLDFAST_CRASH_CYCLES", "7"))  # with 7, each of the three is killed twice or more
SETTLE_S = 180.0  # for everything to arrive when nobody is killed any more
PACE_S = 0.01  # between two sends
DESTINATIONS = ("bob", "@news")


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
        body = {"to": to, "message": client_message_id, "client_message_id": client_message_id}
        while (answer := self._daemon.ask("POST", "/v1/send", body)) is None or answer[0] not in (200, 202):
            assert answer is None or answer[0] >= 500, answer
            self.repeated += 1
            time.sleep(PACE_S)
        self.accepted.append((to, client_message_id))


@pytest.mark.timeout(600 + 10 * ROUNDS)  # a round starts one or two programs
def test_every_send_that_was_accepted_arrives_once_and_in_order_though_anybody_is_killed(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    ann, bob = Home(tmp_path / "ann"), Home(tmp_path / "bob")
    relay = Program("relay", "run", "--data", str(tmp_path / "relay"), *ports.options(), log=tmp_path / "relay.log")
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
        _wait_for_the_end(ann, len(caller.accepted))
    finally:
        caller.stop()
        for program in programs:
            program.end()
    assert caller.repeated > 0, "nobody was killed while somebody asked"
    _audit(tmp_path, ann, bob, caller.accepted)
    record_property("rounds of kills", ROUNDS)
    record_property("sends", len(caller.accepted))


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


def _wait_for_the_end(ann: Home, expected: int) -> None:
    """A receipt may come before the answer to the send that it is for."""
    ends = {
        "receipts": "SELECT count(*) FROM send_receipt WHERE status = 'stored'",
        "answers": f"SELECT count(*) FROM operation_log WHERE {_SENT} AND status = 'done'",
    }
    give_up_at, found = time.monotonic() + SETTLE_S, dict.fromkeys(ends, -1)
    while set(found.values()) != {expected}:
        assert time.monotonic() < give_up_at, f"{found}, not {expected} of each"
        time.sleep(0.2)
        with suppress(Exception):  # a process that has just ended may hold the file for a moment
            found = {name: int(_rows(ann.database, statement)[0][0]) for name, statement in ends.items()}


_SENT = "destination_kind IN ('dm', 'topic')"


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
        _rows(ann.database, f"SELECT client_message_id, status FROM operation_log WHERE {_SENT}")
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
