"""What networks without sockets share: everything that does not depend on how, when and whether bytes arrive."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any


class PlainNetwork:
    """Addresses are names: a path is a host without ports."""

    async def listen(self, factory: Callable[[], asyncio.Protocol], host: str, port: int) -> Any:
        raise NotImplementedError

    async def listen_unix(self, factory: Callable[[], asyncio.Protocol], path: str) -> Any:
        return await self.listen(factory, path, 0)


class PlainTransport(asyncio.Transport):
    """One end of a connection. Whoever inherits says how bytes travel to the other."""

    other: Any  # the other end, of the same kind

    def __init__(self, protocol: asyncio.BaseProtocol, name: tuple[str, int]) -> None:
        super().__init__()
        self._protocol = protocol
        self._name = name
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

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._deliver_soon()

    def is_reading(self) -> bool:
        return self._reading

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nobody chooses them here."""

    def is_closing(self) -> bool:
        return self._is_closing

    def _deliver_soon(self) -> None:
        raise NotImplementedError

    def _hand_over(self, data: bytes) -> None:
        """Give what arrived to whoever reads at this end."""
        assert isinstance(self._protocol, asyncio.Protocol)
        if data:
            self._protocol.data_received(data)
        elif not self._protocol.eof_received():
            self.close()
