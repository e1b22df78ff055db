"""The HTTP client on a Unix socket. Its own backend forgets to close a socket to which nobody answers; this one closes it."""

import select
import socket
from collections.abc import Iterable
from typing import Any

import httpcore2 as httpcore
import httpx2 as httpx

KEEP_ALIVE_S = 5.0  # a connection that is not used for so long is closed
CONNECTIONS_MAX = 100  # every open event stream has one


class UnixTransport(httpx.HTTPTransport):
    """HTTP over connections to the Unix socket at one path."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._pool = httpcore.ConnectionPool(
            max_connections=CONNECTIONS_MAX, keepalive_expiry=KEEP_ALIVE_S, uds=path, network_backend=_Backend()
        )


class _Backend(httpcore.NetworkBackend):
    def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.NetworkStream:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(timeout)
            connection.connect(path)
        except OSError as error:
            connection.close()
            kind = httpcore.ConnectTimeout if isinstance(error, TimeoutError) else httpcore.ConnectError
            raise kind(error.strerror or str(error)) from error
        return _Stream(connection)


class _Stream(httpcore.NetworkStream):
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        try:
            self._connection.settimeout(timeout)
            return self._connection.recv(max_bytes)
        except TimeoutError as error:
            raise httpcore.ReadTimeout(str(error)) from error
        except OSError as error:
            raise httpcore.ReadError(str(error)) from error

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        try:
            self._connection.settimeout(timeout)
            self._connection.sendall(buffer)
        except TimeoutError as error:
            raise httpcore.WriteTimeout(str(error)) from error
        except OSError as error:
            raise httpcore.WriteError(str(error)) from error

    def close(self) -> None:
        self._connection.close()

    def get_extra_info(self, info: str) -> Any:
        if info == "socket":
            return self._connection
        # An idle connection on which something can be read was ended by the other side.
        return self._is_readable() if info == "is_readable" else None

    def _is_readable(self) -> bool:
        if self._connection.fileno() < 0:
            return True
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        return bool(poll.poll(0))
