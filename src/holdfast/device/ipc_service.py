"""A daemon together with its loops, its sockets and its export process."""

import asyncio

import structlog

from holdfast.device.daemon import Daemon
from holdfast.device.ipc import REQUEST_BYTES_MAX, REQUESTS_MAX, Application, Door
from holdfast.device.ipc_events import STREAMS_MAX
from holdfast.device.ipc_link import socket_of
from holdfast.device.local_token import LocalToken
from holdfast.export.exporter import Exporter
from holdfast.wire.network import Network
from holdfast.wire.server import Server
from holdfast.wire.state import Limits

LOOPBACK = "127.0.0.1"
EXPORT_READER = "holdfast.device.exported"
"""The module of the export's process; named and not imported, because it imports Arrow."""

LIMITS = Limits(
    # More than are answered at once: a request over that limit must still be able to connect, to be refused.
    connections_max=4 * (REQUESTS_MAX + STREAMS_MAX),
    request_bytes_max=REQUEST_BYTES_MAX,
    bodies_bytes_max=REQUESTS_MAX * REQUEST_BYTES_MAX,
    drain_timeout_s=5.0,
)

_log = structlog.get_logger(__name__)


class Service:
    """Runs from `start` to `close`. `port` also opens that loopback port; 0 takes any free one."""

    def __init__(self, daemon: Daemon, exporter: Exporter | None = None, *, port: int | None = None) -> None:
        device = daemon.device
        self.daemon = daemon
        self.socket = str(socket_of(device.home))
        self._port = port
        self._exporter = exporter or Exporter(device.home.database, EXPORT_READER)
        token = None if port is None else LocalToken(device.home.path, device.clock, device.random)
        self.app = Application(daemon, self._exporter, token=token)
        self._unix = Server(self.app.socket, LIMITS, clock=device.clock, lean_routes=self.app.lean_routes(Door.SOCKET))
        self._tcp = (
            None
            if port is None
            else Server(self.app.loopback, LIMITS, clock=device.clock, lean_routes=self.app.lean_routes(Door.LOOPBACK))
        )
        self._working: asyncio.Task[None] | None = None

    @property
    def url(self) -> str | None:
        """The address of the loopback port, if it is open."""
        return None if self._tcp is None else self._tcp.url

    async def start(self, network: Network) -> None:
        """Open the sockets and start the loops."""
        await self._unix.start_unix(network, self.socket)
        if self._tcp is not None:
            await self._tcp.start(network, LOOPBACK, self._port or 0)
        self._working = asyncio.create_task(self.daemon.run(), name="holdfast-daemon")

    async def run_until(self, stop: asyncio.Event) -> None:
        """Return when `stop` is set; raise what ended the daemon before that."""
        stopping = asyncio.create_task(stop.wait())
        beside = [stopping] if self._working is None else [stopping, self._working]
        try:
            done, _ = await asyncio.wait(beside, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
        for task in done:
            task.result()

    async def close(self) -> None:
        """Finish what is under way, and close everything but the device."""
        self.app.events.end()
        self.daemon.dismiss()
        for server in (self._tcp, self._unix):
            if server is not None:
                await server.close()
        self.daemon.stop()
        if self._working is not None:
            await asyncio.wait({self._working})
            if not self._working.cancelled() and (error := self._working.exception()) is not None:
                _log.warning("the daemon ended with an error", detail=str(error))
        await self._exporter.close()
