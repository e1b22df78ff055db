"""A relay with everything that runs beside it: sockets, sweeps, the reader of the export."""

import asyncio
import os

import structlog

from holdfast.relay.export import Exporter
from holdfast.relay.relay import Relay
from holdfast.relay.server import Application
from holdfast.store import faults
from holdfast.store.world import Clock, Random, wall_clock
from holdfast.wire.network import Network
from holdfast.wire.server import Server
from holdfast.wire.state import Limits

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
        self._server = Server(self.app, _wire_limits(relay), clock=clock)
        self._sweeping: asyncio.Task[None] | None = None
        self.app.metrics.watch("connections", "Open connections.", lambda: self._server.connections)
        self.app.metrics.watch("body_bytes", "Held of requests under way.", lambda: self._server.body_bytes)

    @property
    def url(self) -> str:
        return self._server.url

    async def start(self, network: Network) -> None:
        """Serve, and sweep from time to time."""
        settings = self._relay.settings
        await self._server.start(network, settings.host, settings.port)
        self._sweeping = asyncio.create_task(self._sweep(), name="holdfast-sweep")

    async def run_until(self, stop: asyncio.Event) -> None:
        """Return when told to stop; raise what ended something that must not end."""
        stopping = asyncio.create_task(stop.wait())
        beside = [stopping] if self._sweeping is None else [stopping, self._sweeping]
        try:
            done, _ = await asyncio.wait(beside, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
        for task in done:
            task.result()

    async def close(self) -> None:
        """Be not ready, finish what is under way, and let go of everything."""
        self.app.draining = True
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait({self._sweeping})
        await self._server.close()
        await self._exporter.close()
        await self._relay.close()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._relay.settings.retention.sweep_interval_s)
            try:
                gone = await self._relay.sweep()
            except faults.Fault as fault:
                self.app.metrics.faults.inc()
                _log.warning("fault", fault=type(fault).__name__, detail=str(fault), path="sweep")
                continue
            self.app.metrics.swept(gone)
            _log.info("swept", **gone)


def _wire_limits(relay: Relay) -> Limits:
    limits = relay.settings.limits
    return Limits(**{name: getattr(limits, name) for name in Limits.__struct_fields__})
