"""One world: relays, homes with their daemons and applications, a network between them, and faults; all from one seed.

It begins in peace, with meshes and their members. Then people work and faults fall for as long as was asked. Then the world is
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
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TextIO
from unittest import mock

import structlog

from holdfast.device.link import FATES_S
from holdfast.relay.settings import FeedSettings, Limits, QueueSettings, Retention
from holdfast.relay.settings import Settings as RelaySettings
from holdfast.wire.http import HttpProtocol
from holdfast.wire.websocket import WebSocketProtocol
from tests.world import evidence, faults, founding, places, rest
from tests.world.hearing import Hearing
from tests.world.journal import Journal, Trace
from tests.world.loop import WorldLoop
from tests.world.machine import HomeMachine, Machine, RelayMachine
from tests.world.network import Internet
from tests.world.people import App

PAUSE_S = 4.0  # between two things that somebody does, on average, wherever it is
SETTLE_S = 5_000.0  # at most, until everything has come to its end: an edit that is dated ahead waits for its date
LOOK_S = 2.0
POLL_S = 3.0  # between two looks of a relay for what no wake-up told of
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
        self.internet.listen_in = self._listen_in
        self.is_busy = False
        self.places = places.choose(seed)
        self.relays = {
            name: RelayMachine(
                self, name, place / name, _relay_settings(places.PORT + number, is_open=name in places.OPEN)
            )
            for number, name in enumerate(self.places.relays)
        }
        self.homes = {
            name: HomeMachine(self, name, place, [self.relays[relay] for relay in self.places.followed(name)])
            for mesh in self.places.meshes
            for name in mesh.members
        }
        self.apps = {name: App(self, home) for name, home in self.homes.items()}
        self.pause_s = PAUSE_S * len(self.homes)
        self.elapsed_s = 0.0

    @property
    def machines(self) -> list[Machine]:
        return [*self.relays.values(), *self.homes.values()]

    def mesh_of(self, home: str) -> places.Mesh:
        """The mesh that a home is in."""
        return next(mesh for mesh in self.places.meshes if home in mesh.members)

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
        await founding.begin(self)
        self.is_busy = True
        working = [asyncio.create_task(app.live()) for app in self.apps.values()]
        working.append(asyncio.create_task(self._look_around()))
        began_s = self.loop.time()
        await faults.fall(self, began_s + self.seconds)
        self.is_busy = False
        await asyncio.gather(*working)  # an application that made a mistake has not worked
        faults.mend(self)
        await self.until(self._is_settled, SETTLE_S, "everything that waits comes to its end")
        await asyncio.sleep(FATES_S + LOOK_S)  # senders ask now and then what became of everything
        await self.until(self._is_settled, SETTLE_S, "everything that waits comes to its end")
        for machine in (*self.homes.values(), *self.relays.values()):
            await machine.stop()
        for machine in self.machines:
            machine.disk.cut()
        self.elapsed_s = self.loop.time()

    def _listen_in(self, machine: str) -> Hearing | None:
        return Hearing(self, self.relays[machine]) if machine in self.relays else None

    async def _look_around(self) -> None:
        """What `holdfast check` says in the middle of everything, of one relay and one home after the other."""
        names, relays = itertools.cycle(self.homes), itertools.cycle(self.relays)
        while self.is_busy:
            await asyncio.sleep(CHECK_S)
            for machine in (self.relays[next(relays)], self.homes[next(names)]):
                broken = evidence.broken_rules(machine.disk)
                self.journal.broken += [f"{machine.name} at work: {what}" for what in broken]
            self.journal.unread += evidence.all_unread(self)

    async def until(self, condition: Callable[[], bool], limit_s: float, what: str) -> None:
        give_up_s = self.loop.time() + limit_s
        while not condition():
            if self.loop.time() > give_up_s:
                raise Unsettled(f"{what}: not within {limit_s:g} s ({self._standing()})")
            await asyncio.sleep(LOOK_S)

    def _is_settled(self) -> bool:
        return founding.is_connected(self) and not any(rest.waiting(self).values())

    def _standing(self) -> str:
        states = {home.name: home.ended or ("up" if home.is_up else "down") for home in self.homes.values()}
        waiting = {what: count for what, count in rest.waiting(self).items() if count}
        return f"{states}, {waiting}"

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        self.told("unhandled", context.get("message"))


def _relay_settings(port: int, *, is_open: bool) -> RelaySettings:
    return RelaySettings(
        port=port,
        limits=Limits(queue_messages_max=QUEUE_MESSAGES_MAX, messages_per_s=1.0, messages_burst=8, free_repeats=0),
        queue=QueueSettings(poll_interval_s=POLL_S),
        retention=Retention(sweep_interval_s=60),
        feed=FeedSettings(
            open=is_open, compact_after_hours=0, recent_count=1
        ),  # whatever may go, goes with the next sweep
    )


def quiet() -> None:
    """Nobody reads what the programs log."""
    logging.disable(logging.CRITICAL)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
