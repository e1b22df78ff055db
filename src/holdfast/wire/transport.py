"""httpx's transport on a given network: all connections are made by that network.

A cancelled request leaves no connection behind: closing one never waits, so a cancellation cannot interrupt it.
"""

import asyncio
import select
import ssl
from collections.abc import Iterable
from typing import Any

import httpcore2 as httpcore
import httpx2 as httpx

from holdfast.wire.network import Network

KEEP_ALIVE_S = 5.0  # a connection that is not used for so long is closed
CONNECTIONS_MAX = 10


class NetworkTransport(httpx.AsyncHTTPTransport):
    """HTTP over the connections of a network."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=ssl.create_default_context(),
            max_connections=CONNECTIONS_MAX,
            keepalive_expiry=KEEP_ALIVE_S,
            network_backend=_Backend(network),
        )


class _Backend(httpcore.AsyncNetworkBackend):
    def __init__(self, network: Network) -> None:
        self._network = network

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        reader = asyncio.StreamReader()
        try:
            async with asyncio.timeout(timeout):
                transport, protocol = await self._network.connect(
                    lambda: asyncio.StreamReaderProtocol(reader), host, port
                )
        except TimeoutError as error:
            raise httpcore.ConnectTimeout from error
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        return _Stream(reader, asyncio.StreamWriter(transport, protocol, reader, asyncio.get_running_loop()))

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _Stream(httpcore.AsyncNetworkStream):
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        try:
            async with asyncio.timeout(timeout):
                return await self._reader.read(max_bytes)
        except TimeoutError as error:
            raise httpcore.ReadTimeout from error
        except OSError as error:
            raise httpcore.ReadError(str(error)) from error

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        try:
            async with asyncio.timeout(timeout):
                self._writer.write(buffer)
                await self._writer.drain()
        except TimeoutError as error:
            raise httpcore.WriteTimeout from error
        except OSError as error:
            raise httpcore.WriteError(str(error)) from error

    async def aclose(self) -> None:
        # The pool first forgets its connections, then closes them one after another: a cancellation during a wait here
        # would leak the rest. Nothing that matters is left to be written.
        self._writer.transport.abort()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        try:
            async with asyncio.timeout(timeout):
                await self._writer.start_tls(ssl_context, server_hostname=server_hostname)
        except TimeoutError as error:
            raise httpcore.ConnectTimeout from error
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        return self

    def get_extra_info(self, info: str) -> Any:
        # An idle connection with something to read was ended by the other side.
        return self._reader.at_eof() or self._has_arrived() if info == "is_readable" else None

    def _has_arrived(self) -> bool:
        """Whether the socket has bytes that the event loop has not read yet."""
        connection = self._writer.get_extra_info("socket")
        if connection is None or connection.fileno() < 0:
            return False
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLIN)
        return bool(poll.poll(0))
