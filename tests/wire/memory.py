"""A network without sockets: two ends of a connection hand each other bytes through the event loop."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from tests.wire.plain import PlainNetwork, PlainTransport

P = TypeVar("P", bound=asyncio.Protocol)


class MemoryNetwork(PlainNetwork):
    """Addresses are names in a dictionary."""

    def __init__(self) -> None:
        self.listeners: dict[tuple[str, int], Callable[[], asyncio.Protocol]] = {}
        self.caller = ("10.0.0.1", 1)  # what whoever listens sees of whoever connects

    async def listen(self, factory: Callable[[], asyncio.Protocol], host: str, port: int) -> "MemoryListener":
        self.listeners[host, port] = factory
        return MemoryListener(self, host, port)

    async def connect(self, factory: Callable[[], P], host: str, port: int) -> tuple[asyncio.Transport, P]:
        if (host, port) not in self.listeners:
            raise ConnectionRefusedError(f"{host}:{port}")
        ours, theirs = factory(), self.listeners[host, port]()
        near, far = MemoryTransport(ours, self.caller), MemoryTransport(theirs, (host, port))
        near.other, far.other = far, near
        theirs.connection_made(far)
        ours.connection_made(near)
        return near, ours


class MemoryListener:
    def __init__(self, network: MemoryNetwork, host: str, port: int) -> None:
        self._network = network
        self.host = host
        self.port = port

    def close(self) -> None:
        self._network.listeners.pop((self.host, self.port), None)


class MemoryTransport(PlainTransport):
    """One end. What is written arrives in the next turn of the loop, unless the other end does not read."""

    other: "MemoryTransport"

    def __init__(self, protocol: asyncio.BaseProtocol, name: tuple[str, int]) -> None:
        super().__init__(protocol, name)
        self._loop = asyncio.get_running_loop()

    def write(self, data: Any) -> None:
        if data and not self._has_ended:
            self.other._arrive(bytes(data))

    def write_eof(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self.other._arrive(b"")

    def get_write_buffer_size(self) -> int:
        return 0 if self.other._reading else sum(map(len, self.other._arrived))

    def close(self) -> None:
        self.write_eof()
        self.abort()

    def abort(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self.write_eof()
            self._loop.call_soon(self._protocol.connection_lost, None)

    def _arrive(self, data: bytes) -> None:
        self._arrived.append(data)
        self._deliver_soon()

    def _deliver_soon(self) -> None:
        self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        while self._arrived and self._reading and not self._is_closing:
            self._hand_over(self._arrived.pop(0))
