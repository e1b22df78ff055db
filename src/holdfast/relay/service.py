"""A running relay: its sockets, sweeps, and the export's reader."""

import asyncio
import os
from contextlib import suppress
from functools import partial

import structlog

from holdfast.export.exporter import Exporter
from holdfast.relay.neighbours import Seen
from holdfast.relay.relay import Relay
from holdfast.relay.server import Application
from holdfast.store import faults
from holdfast.store.engine import Watch
from holdfast.store.world import Clock, Random, wall_clock
from holdfast.wire.network import Network
from holdfast.wire.server import Server
from holdfast.wire.state import Limits

WAKE_PAUSE_S = 0.01
"""The pause after reading what other relays wrote, so that under load one read serves many commits."""

_log = structlog.get_logger(__name__)


class Service:
    """Serves from `start` to `close`."""

    def __init__(
        self,
        relay: Relay,
        exporter: Exporter,
        *,
        clock: Clock = wall_clock,
        random: Random = os.urandom,
    ) -> None:
        self.app = Application(relay, exporter, clock=clock, random=random)
        self._relay = relay
        self._exporter = exporter
        self._server = Server(self.app, _wire_limits(relay), clock=clock, lean_routes=self.app.lean_routes)
        self._beside: list[asyncio.Task[None]] = []
        self._watch: Watch | None = None
        self._news = asyncio.Event()
        self.app.metrics.watch("connections", "Open connections.", lambda: self._server.connections)
        self.app.metrics.watch("body_bytes", "Held of requests under way.", lambda: self._server.body_bytes)

    @property
    def url(self) -> str:
        return self._server.url

    async def start(self, network: Network) -> None:
        """Start to serve, and to sweep from time to time."""
        settings = self._relay.settings
        self._watch = self._relay.watch(partial(_set_soon, asyncio.get_running_loop(), self._news))
        seen = await self._relay.seen()  # before anybody reads, so that rows after it wake the readers
        await self._server.start(network, settings.host, settings.port)
        self._beside = [
            asyncio.create_task(self._sweep(self._watch), name="holdfast-sweep"),
            asyncio.create_task(self._poll(seen), name="holdfast-poll"),
        ]

    async def run_until(self, stop: asyncio.Event) -> None:
        """Return when told to stop; raises the error of a background task that ended."""
        stopping = asyncio.create_task(stop.wait())
        try:
            done, _ = await asyncio.wait([stopping, *self._beside], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
        for task in done:
            task.result()

    async def close(self) -> None:
        """Become not ready, finish what is under way, and close everything."""
        self.app.draining = True
        for task in self._beside:
            task.cancel()
        if self._beside:
            await asyncio.wait(self._beside)
        await self._server.close()
        if self._watch is not None:
            await self._relay.off_the_loop(self._watch.close)
        await self._exporter.close()
        await self._relay.close()

    async def _sweep(self, watch: Watch) -> None:
        while True:
            await asyncio.sleep(self._relay.settings.retention.sweep_interval_s)
            if not watch.has_duty:
                continue  # another relay on this database has the duty
            try:
                gone = await self._relay.sweep()
            except faults.Fault as fault:
                self._note(fault, "sweep")
                continue
            self.app.metrics.swept({name: rows.total() for name, rows in gone.items()})
            _log.info("swept", **{name: rows.total() for name, rows in gone.items()})
            for whose, rows in gone["expired_deliveries"].items():
                _log.info("expired", queue=whose, messages=rows)

    async def _poll(self, seen: Seen) -> None:
        """Poll for new rows, as a safety net for lost wake-ups and for what other relays wrote."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._relay.settings.queue.poll_interval_s):
                    await self._news.wait()
            self._news.clear()
            try:
                seen = await self._look(seen)
                await self._relay.tell_ended()
            except faults.Fault as fault:
                self._note(fault, "poll")
            await asyncio.sleep(WAKE_PAUSE_S)

    async def _look(self, seen: Seen) -> Seen:
        """Wake readers with new rows; returns the positions looked at."""
        if not self.app.is_read:
            now = await self._relay.seen()
            if not self.app.is_read:  # still nobody; a reader that comes later reads up to here by itself
                return now
        return await self._relay.wake_changed(seen)

    def _note(self, fault: faults.Fault, path: str) -> None:
        self.app.metrics.faults.inc()
        _log.warning("fault", fault=type(fault).__name__, detail=str(fault), path=path)


def _set_soon(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    """Set an event from another thread, if its loop still runs."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(event.set)


def _wire_limits(relay: Relay) -> Limits:
    limits = relay.settings.limits
    return Limits(**{name: getattr(limits, name) for name in Limits.__struct_fields__})
