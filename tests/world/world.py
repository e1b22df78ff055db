"""One world: a relay, homes with their daemons and applications, a network between them, and faults; all from one seed.

It begins in peace, with a mesh and its members. Then people work and faults fall for as long as was asked. Then the world is
mended, everybody is given time to finish, and the power of every machine is cut once more: what is left is judged.
"""

import asyncio
import gc
import itertools
import logging
import os
import random
import ssl
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import TextIO
from unittest import mock

import structlog

from holdfast.device import mesh
from holdfast.device.daemon import LinkState
from holdfast.device.device import Device
from holdfast.device.invitation import Invitation
from holdfast.device.mesh import Session
from holdfast.device.publish import Publisher
from holdfast.protocol.action import Role
from holdfast.protocol.schedule import HOUR
from holdfast.relay.settings import FeedSettings, Limits, Retention
from holdfast.relay.settings import Settings as RelaySettings
from holdfast.store.engine import Row, Transaction
from holdfast.wire.client import RelayClient
from holdfast.wire.http import HttpProtocol
from holdfast.wire.transport import NetworkTransport
from holdfast.wire.websocket import WebSocketProtocol
from tests.world import evidence, faults
from tests.world.hearing import Hearing
from tests.world.journal import Journal, Trace
from tests.world.loop import WorldLoop
from tests.world.machine import HomeMachine, Machine, RelayMachine
from tests.world.network import Internet, MachineNetwork
from tests.world.people import App

NAMES = ("ada", "bo", "cy")
TOPIC = "news"
PAUSE_S = 12.0  # between two things that an application does, on average
PEACE_S = 300.0  # at most, until everybody has come together
SETTLE_S = 5_000.0  # at most, until everything has come to its end: an edit that is dated ahead waits for its date
LOOK_S = 1.0
CHECK_S = 40.0  # between two looks at the rules of databases
QUEUE_MESSAGES_MAX = 8  # so that queues do get full


class Unsettled(Exception):
    """What must happen has not."""


class World:
    """Everything there is, for one seed."""

    def __init__(self, seed: int, place: Path, seconds: float, shown: TextIO | None = None) -> None:
        self.seed = seed
        self.place = place
        self.seconds = seconds
        self.luck = random.Random(f"world {seed}")
        self.loop = WorldLoop(random.Random(f"threads {seed}"))
        self.trace = Trace(shown)
        self.journal = Journal()
        self.internet = Internet(self.loop, random.Random(f"network {seed}"), self.told)
        self.internet.listen_in = lambda machine: Hearing(self) if machine == "relay" else None
        self.is_busy = False
        self.pause_s = PAUSE_S
        self.relay = RelayMachine(self, "relay", place / "relay", _relay_settings())
        self.homes = {name: HomeMachine(self, name, place) for name in NAMES}
        self.apps = {name: App(self, home) for name, home in self.homes.items()}
        self.elapsed_s = 0.0

    @property
    def machines(self) -> list[Machine]:
        return [self.relay, *self.homes.values()]

    def told(self, *what: object) -> None:
        """Something happened."""
        self.trace.note(self.loop.time(), *what)

    def mistake(self, who: str, error: BaseException) -> None:
        """A program ended with an error that no program may end with."""
        self.journal.mistakes.append(f"{who}: {type(error).__name__}: {error}")

    def run(self) -> None:
        """Let it all happen."""
        with ExitStack() as doubles:
            for name in ("monotonic", "time", "perf_counter"):  # libraries look at these
                doubles.enter_context(mock.patch.object(time, name, self.loop.time))
            doubles.enter_context(mock.patch.object(time, "time_ns", self._now_ns))
            doubles.enter_context(mock.patch.object(os, "urandom", random.Random(f"system {self.seed}").randbytes))
            doubles.enter_context(mock.patch.object(ssl, "create_default_context", cache(ssl.create_default_context)))
            for protocol in (HttpProtocol, WebSocketProtocol):  # a server has them in a set
                doubles.enter_context(mock.patch.object(protocol, "__hash__", self._number))
            random.seed(self.seed)  # libraries draw from this
            gc.disable()  # whatever is collected is collected when its last name goes
            try:
                with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
                    runner.run(self._happen())
            finally:
                gc.enable()

    def _now_ns(self) -> int:
        return self.loop.now() * 1_000

    @property
    def _number(self) -> Callable[[object], int]:
        """A place in a set that does not depend on where something lies in memory."""
        loop = self.loop

        def number(one: object) -> int:
            if "_number" not in one.__dict__:
                one.__dict__["_number"] = loop.number()
            found: int = one.__dict__["_number"]
            return found

        return number

    async def _happen(self) -> None:
        asyncio.get_running_loop().set_exception_handler(self._unhandled)
        await self._begin()
        self.is_busy = True
        working = [asyncio.create_task(app.live()) for app in self.apps.values()]
        working.append(asyncio.create_task(self._look_around()))
        began_s = self.loop.time()
        await faults.fall(self, began_s + self.seconds)
        self.is_busy = False
        await asyncio.gather(*working)  # an application that made a mistake has not worked
        faults.mend(self)
        await self._until(self._is_settled, SETTLE_S, "everything that waits comes to its end")
        for machine in (*self.homes.values(), self.relay):
            await machine.stop()
        for machine in self.machines:
            machine.disk.cut()
        self.elapsed_s = self.loop.time()

    async def _begin(self) -> None:
        self.relay.is_wanted = True
        self.relay.start()
        await self._until(lambda: bool(self.internet.places), PEACE_S, "the relay serves")
        founder, *others = self.homes.values()
        invitations = asyncio.Queue[Invitation]()
        await self._once(founder, lambda device, network: self._found(device, network, len(others), invitations))
        for home in others:
            invitation = invitations.get_nowait()
            await self._once(home, partial(self._join, home, invitation))
        for home in self.homes.values():
            home.is_wanted = True
            home.start()
        await self._until(self._is_connected, PEACE_S, "daemons are connected")
        first, *rest = self.apps.values()
        await first.insist("POST", "/v1/administration/create_topic", {"topic": TOPIC})
        for app in self.apps.values():
            await app.insist("POST", "/v1/topic/subscribe", {"topic": TOPIC})
        await self._until(self._has_keys, PEACE_S, "everybody has the topic's key")
        await first.insist("POST", "/v1/feed/init", {})
        for app in rest:
            await first.insist("POST", "/v1/feed/share", {"member": app.name})
            await app.insist("POST", "/v1/feed/init", {"from": first.name})

    async def _look_around(self) -> None:
        """What `holdfast check` says in the middle of everything, of the relay and of one home after the other."""
        names = itertools.cycle(self.homes)
        while self.is_busy:
            await asyncio.sleep(CHECK_S)
            for machine in (self.relay, self.homes[next(names)]):
                broken = evidence.broken_rules(machine.disk)
                self.journal.broken += [f"{machine.name} at work: {what}" for what in broken]
            feed = evidence.read_feed(self.relay.disk)
            for home in self.homes.values():
                self.journal.unread += [f"{home.name} {what}" for what in evidence.unread(feed, home.disk)]

    async def _once(self, home: HomeMachine, work: Callable[[Device, MachineNetwork], Awaitable[None]]) -> None:
        home.found(work)
        await self._until(lambda: not home.is_up, PEACE_S, f"{home.name} is in the mesh")

    def _client(self, device: Device, network: MachineNetwork) -> RelayClient:
        return RelayClient(
            self.relay.url,
            device.secret,
            clock=device.clock,
            random=device.random,
            transport=NetworkTransport(network),
        )

    async def _found(
        self, device: Device, network: MachineNetwork, others: int, invitations: "asyncio.Queue[Invitation]"
    ) -> None:
        async with self._client(device, network) as client:
            membership = await mesh.found(device, client, "friends", device.home.path.name)
            session = Session(device, client, Publisher(device, client, membership.relay_pubkey), membership)
            for _ in range(others):
                invitations.put_nowait(await session.invite(Role.MEMBER, device.clock() + HOUR))

    async def _join(self, home: HomeMachine, invitation: Invitation, device: Device, network: MachineNetwork) -> None:
        async with self._client(device, network) as client:
            await mesh.join(device, client, invitation, home.name)

    async def _until(self, condition: Callable[[], bool], limit_s: float, what: str) -> None:
        give_up_s = self.loop.time() + limit_s
        while not condition():
            if self.loop.time() > give_up_s:
                raise Unsettled(f"{what}: not within {limit_s:g} s ({self._standing()})")
            await asyncio.sleep(LOOK_S)

    def _is_connected(self) -> bool:
        return all(
            home.is_up and home.daemon is not None and home.daemon.state.link is LinkState.CONNECTED
            for home in self.homes.values()
            if home.ended is None
        )

    def _has_keys(self) -> bool:
        return all(
            home.daemon is not None
            and home.daemon.device.look(lambda tx: tx.rows("SELECT count(*) FROM topic_key")) > [(0,)]
            for home in self.homes.values()
        )

    def _is_settled(self) -> bool:
        return self._is_connected() and not any(self._waiting().values())

    def _waiting(self) -> dict[str, int]:
        """How much has not come to its end, by machine."""
        found: dict[str, int] = {}
        forgotten = self._forgotten()
        for home in self.homes.values():
            if home.ended is None and home.is_up and home.daemon is not None:
                rows = home.daemon.device.look(
                    lambda tx: tx.rows(
                        "SELECT destination_ref, count(*) FROM operation_log"
                        " WHERE status IN ('pending', 'inflight') GROUP BY destination_ref"
                    )
                )
                found[home.name] = sum(count for ref, count in rows if ref not in forgotten)
        if self.relay.is_up and self.relay.relay is not None:
            with self.relay.relay._engine.read() as transaction:
                waiting = transaction.rows("SELECT name FROM delivery NATURAL JOIN member WHERE state = 'open'")
                found["relay"] = sum(self.homes[name].ended is None for (name,) in waiting)
                current = set(transaction.rows("SELECT event_id FROM snapshot WHERE superseded_seq IS NULL"))
            for home in self.homes.values():
                if home.ended is None and home.is_up and home.daemon is not None:
                    found[f"hooks of {home.name}"] = 0 if home.hooks is None else home.hooks.waiting
                    found[f"documents of {home.name}"] = len(current ^ set(home.daemon.device.look(_current)))
        return found

    def _forgotten(self) -> set[str]:
        """Members who are out, of which a relay that went back in time knows nothing: their queues get full, and stay so."""
        is_restored = any(one.machine == "relay" for one in self.journal.restored)
        if not is_restored or not self.relay.is_up or self.relay.relay is None:
            return set()
        with self.relay.relay._engine.read() as transaction:
            members = transaction.rows("SELECT member, name FROM member WHERE status = 'active'")
        return {member for member, name in members if self.homes[name].ended is not None}

    def _standing(self) -> str:
        states = {home.name: home.ended or ("up" if home.is_up else "down") for home in self.homes.values()}
        return f"{states}, {self._waiting()}"

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        self.told("unhandled", context.get("message"))


def _current(transaction: Transaction) -> list[Row]:
    return transaction.rows("SELECT event_id FROM snapshot WHERE status = 'current'")


def _relay_settings() -> RelaySettings:
    return RelaySettings(
        limits=Limits(queue_messages_max=QUEUE_MESSAGES_MAX, messages_per_s=1.0, messages_burst=8, free_repeats=0),
        retention=Retention(sweep_interval_s=60),
        feed=FeedSettings(compact_after_hours=0, recent_count=1),  # whatever may go, goes with the next sweep
    )


def quiet() -> None:
    """Nobody reads what the programs log."""
    logging.disable(logging.CRITICAL)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
