"""State that all connections of one server share: limits, counts, and the date."""

import asyncio
from email.utils import formatdate

import msgspec
from uvicorn import server as uvicorn_server

from holdfast.protocol.schedule import SECOND
from holdfast.store.world import Clock
from holdfast.wire.budget import Budget
from holdfast.wire.lean import LeanRoutes


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one connection, and of all together."""

    connections_max: int = 1_000
    request_bytes_max: int = 8_388_608  # of one body
    bodies_bytes_max: int = 134_217_728  # of all bodies that are being read or answered
    frame_bytes_max: int = 131_072  # of one WebSocket message
    request_timeout_s: float = 30.0  # from the first byte of a request or message to its last
    idle_timeout_s: float = 75.0  # without any bytes from the other side
    send_timeout_s: float = 30.0  # for the other side to take what it is sent
    drain_timeout_s: float = 10.0  # for what is under way when the server closes


class ServerState(uvicorn_server.ServerState):
    """uvicorn's server state, with our limits, byte budget and date."""

    def __init__(self, limits: Limits, clock: Clock, lean_routes: LeanRoutes | None = None) -> None:
        super().__init__()
        self.lean_routes = lean_routes or {}
        self.limits = limits
        self.bodies = Budget(limits.bodies_bytes_max)
        self.refused: set[asyncio.Protocol] = set()  # connections over the limit, until they have read the refusal
        self._clock = clock
        self._second = -1
        self._someone_left = asyncio.Event()

    def left(self, connection: asyncio.Protocol) -> None:
        """Forget a connection that has ended."""
        self.refused.discard(connection)
        self._someone_left.set()

    async def empty(self) -> None:
        """Return when nobody is connected and nothing is being answered."""
        while self.connections or self.tasks:
            self._someone_left.clear()
            if self.tasks:
                await asyncio.wait(self.tasks)
            else:
                await self._someone_left.wait()

    def refresh_date(self) -> None:
        """Update the Date header, at most once a second."""
        second = self._clock() // SECOND
        if second != self._second:
            self._second = second
            self.default_headers = [(b"date", formatdate(second, usegmt=True).encode())]
