"""The network, passed as an argument: listening and connecting. Nothing else in Holdfast makes a socket.

A simulation passes a network of its own, on its own event loop; servers and clients cannot tell the difference.
"""

import asyncio
import errno
import ipaddress
import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Protocol, TypeVar

from holdfast.store.faults import Fault

BACKLOG = 512  # connections that may wait to be accepted
SOCKET_MODE = 0o600
SOCKET_PATH_BYTES_MAX = 103 if sys.platform == "darwin" else 107  # the system's limit

P = TypeVar("P", bound=asyncio.Protocol)


class CannotListen(Fault):
    what = "nobody can be served at this address"
    remedy = "Choose another address, or find out what has it."


class PortTaken(CannotListen):
    what = "another program listens on this port already"
    remedy = "Stop that program, or choose another port (0 takes any that is free)."


class PathTooLong(CannotListen):
    what = f"the path of this socket is too long: the system takes {SOCKET_PATH_BYTES_MAX} bytes"
    remedy = "Use a directory with a shorter path."


class Listener(Protocol):
    """A listening socket; of a Unix socket `host` is the path and `port` is 0."""

    host: str
    port: int

    def close(self) -> None:
        """Take no more connections; those that are open stay. Closing twice is fine."""


class Network(Protocol):
    """Makes connections, in both directions."""

    async def listen(self, factory: Callable[[], asyncio.Protocol], host: str, port: int) -> Listener:
        """Listen, with a protocol from `factory` for every connection. Port 0 takes any free one."""

    async def listen_unix(self, factory: Callable[[], asyncio.Protocol], path: str) -> Listener:
        """Listen on a Unix socket at a path, for its owner only. A socket file that a dead program left there is removed."""

    async def connect(self, factory: Callable[[], P], host: str, port: int) -> tuple[asyncio.Transport, P]:
        """Open a connection; raises OSError if there is none to be had."""


class SystemNetwork:
    """The machine's own network, on the running event loop."""

    async def listen(self, factory: Callable[[], asyncio.Protocol], host: str, port: int) -> Listener:
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(factory, host, port, backlog=BACKLOG)
        except OSError as error:
            fault = PortTaken if error.errno == errno.EADDRINUSE else CannotListen
            raise fault(address(host, port), error.strerror or str(error)) from error
        return _SystemListener(server, host, server.sockets[0].getsockname()[1])

    async def listen_unix(self, factory: Callable[[], asyncio.Protocol], path: str) -> Listener:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with suppress(FileNotFoundError):
                os.unlink(path)
            listening.bind(path)
            os.chmod(path, SOCKET_MODE)  # nobody can connect before it listens
            server = await asyncio.get_running_loop().create_unix_server(factory, sock=listening, backlog=BACKLOG)
        except OSError as error:
            listening.close()
            fault = PathTooLong if is_too_long(path) else CannotListen
            raise fault(path, error.strerror or str(error)) from error
        return _UnixListener(server, path)

    async def connect(self, factory: Callable[[], P], host: str, port: int) -> tuple[asyncio.Transport, P]:
        try:
            return await asyncio.get_running_loop().create_connection(factory, host, port)
        except ValueError as error:  # a name that cannot be looked up, such as a..b
            raise OSError(str(error)) from error


def is_too_long(path: str) -> bool:
    """Whether a path is too long for a Unix socket."""
    return len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX


class _SystemListener:
    def __init__(self, server: asyncio.Server, host: str, port: int) -> None:
        self._server = server
        self.host = host
        self.port = port

    def close(self) -> None:
        self._server.close()


class _UnixListener(_SystemListener):
    def __init__(self, server: asyncio.Server, path: str) -> None:
        super().__init__(server, path, 0)

    def close(self) -> None:
        super().close()
        with suppress(FileNotFoundError):
            os.unlink(self.host)


def address(host: str, port: int) -> str:
    """Host and port as written in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@lru_cache(maxsize=1024)  # called for every request, with few different hosts
def is_loopback(host: str) -> bool:
    """Whether a host is a loopback address or `localhost`."""
    with suppress(ValueError):
        found = ipaddress.ip_address(host.strip("[]"))
        mapped = getattr(found, "ipv4_mapped", None)
        return (mapped or found).is_loopback
    return host.lower() == "localhost"
