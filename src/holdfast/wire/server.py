"""An ASGI application on a given network: uvicorn's protocols without its server, which would own signals, loop and sockets."""

import asyncio
from collections.abc import Callable

import structlog
from uvicorn._types import ASGI3Application
from uvicorn.config import Config

from holdfast.store.world import Clock, wall_clock
from holdfast.wire.http import HttpProtocol
from holdfast.wire.lean import LeanRoutes
from holdfast.wire.network import Listener, Network, address
from holdfast.wire.state import Limits, ServerState
from holdfast.wire.websocket import PING_SHARE, WebSocketProtocol

_log = structlog.get_logger(__name__)


class Server:
    """Serves from `start` to `close`."""

    def __init__(
        self,
        app: ASGI3Application,
        limits: Limits | None = None,
        *,
        clock: Clock = wall_clock,
        lean_routes: LeanRoutes | None = None,
    ) -> None:
        """Requests to `lean_routes` bypass the application, unless they need `Expect`, an upgrade or another HTTP version."""
        self.limits = limits or Limits()
        self._state = ServerState(self.limits, clock, lean_routes)
        self._config = _config(app, self.limits)
        self._listener: Listener | None = None

    async def start(self, network: Network, host: str, port: int) -> None:
        """Start to take connections at a host and port."""
        self._listener = await network.listen(self._factory(), host, port)

    async def start_unix(self, network: Network, path: str) -> None:
        """Start to take connections on a Unix socket at a path."""
        self._listener = await network.listen_unix(self._factory(), path)

    def _factory(self) -> Callable[[], HttpProtocol]:
        loop = asyncio.get_running_loop()
        self._config.load()
        return lambda: HttpProtocol(self._config, self._state, {}, loop)

    @property
    def url(self) -> str:
        if self._listener is None:
            raise RuntimeError("the server was not started")
        return f"http://{address(self._listener.host, self._listener.port)}"

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._state.connections)

    @property
    def requests(self) -> int:
        """The number of requests being answered and WebSockets being served."""
        return len(self._state.tasks)

    @property
    def body_bytes(self) -> int:
        """The bytes of all request bodies that are being read or answered."""
        return self._state.bodies.taken

    @property
    def unsent_bytes(self) -> int:
        """The bytes written to connections and not yet taken by their other sides."""
        return sum(connection.transport.get_write_buffer_size() for connection in self._state.connections)

    async def close(self) -> None:
        """Take no more connections, finish the requests under way, and abort those that do not finish in time."""
        if self._listener is not None:
            self._listener.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(self.limits.drain_timeout_s):
                await self._state.empty()
        except TimeoutError:
            await self._cut_off()

    async def _cut_off(self) -> None:
        tasks = set(self._state.tasks)
        _log.warning("cut off", connections=self.connections, requests=len(tasks))
        for connection in list(self._state.connections):
            connection.transport.abort()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def _config(app: ASGI3Application, limits: Limits) -> Config:
    return Config(
        app,
        interface="asgi3",
        http=HttpProtocol,
        ws=WebSocketProtocol,
        ws_max_size=limits.frame_bytes_max,
        ws_ping_interval=limits.idle_timeout_s * PING_SHARE,
        ws_ping_timeout=limits.idle_timeout_s * (1 - PING_SHARE),
        ws_per_message_deflate=False,  # sealed content does not shrink, and compression costs memory per connection
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # the application itself decides which client addresses count as local
        server_header=False,
        date_header=False,  # we write it ourselves, from the given clock
    )
