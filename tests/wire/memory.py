"""A network without sockets: two ends of a connection hand each other bytes through the event loop."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

P = TypeVar("P", bound=asyncio.Protocol)


class MemoryNetwork:
    """Addresses are names in a dictionary."""

    def __init__(self) -> None:
        self.listeners: dict[tuple[str, int], Callable[[], asyncio.Protocol]] = {}
        self.caller = ("10.0.0.1", 1)  # what whoever listens sees of whoever connects

    async def listen(self, factory: Callable[[], asyncio.Protocol], host: str, port: int) -> "MemoryListener":
        self.listeners[host, port] = factory
        return MemoryListener(self, host, port)

    async def listen_unix(self, factory: Callable[[], asyncio.Protocol], path: str) -> "MemoryListener":
        return await self.listen(factory, path, 0)

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


class MemoryTransport(asyncio.Transport):
    """One end. What is written arrives in the next turn of the loop, unless the other end does not read."""

    other: "MemoryTransport"

    def __init__(self, protocol: asyncio.BaseProtocol, name: tuple[str, int]) -> None:
        super().__init__()
        self._protocol = protocol
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._arrived: list[bytes] = []  # b"" is the end
        self._reading = True
        self._has_ended = False
        self._is_closing = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"sockname": self._name, "peername": self.other._name}.get(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def write(self, data: Any) -> None:
        if data and not self._has_ended:
            self.other._arrive(bytes(data))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self.other._arrive(b"")

    def can_write_eof(self) -> bool:
        return True

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._loop.call_soon(self._deliver)

    def is_reading(self) -> bool:
        return self._reading

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """What is written has arrived: nobody is ever asked to wait."""

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

    def is_closing(self) -> bool:
        return self._is_closing

    def _arrive(self, data: bytes) -> None:
        self._arrived.append(data)
        self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        while self._arrived and self._reading and not self._is_closing:
            data = self._arrived.pop(0)
            assert isinstance(self._protocol, asyncio.Protocol)
            if data:
                self._protocol.data_received(data)
            elif not self._protocol.eof_received():
                self.close()
