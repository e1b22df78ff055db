"""The server knows its network only as an argument: it runs where there is not a single socket."""

import asyncio
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.wire.network import PathTooLong, SystemNetwork, is_loopback
from holdfast.wire.server import Server
from holdfast.wire.state import Limits
from tests.wire.memory import MemoryNetwork
from tests.wire.test_server import HANDSHAKE, MASK, Peer, echo, request, run

ADDRESS = ("relay.example", 80)


@asynccontextmanager
async def dialled(network: MemoryNetwork) -> AsyncIterator[Peer]:
    reader = asyncio.StreamReader()
    transport, protocol = await network.connect(lambda: asyncio.StreamReaderProtocol(reader), *ADDRESS)
    writer = asyncio.StreamWriter(transport, protocol, reader, asyncio.get_running_loop())
    try:
        yield Peer(reader, writer)
    finally:
        writer.close()
        await writer.wait_closed()


def test_http_and_websocket_are_served_without_a_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        def none(*arguments: Any, **options: Any) -> Any:
            raise AssertionError("somebody made a socket")

        monkeypatch.setattr(socket, "socket", none)
        network, server = MemoryNetwork(), Server(echo)
        await server.start(network, *ADDRESS)
        assert server.url == "http://relay.example:80"
        async with dialled(network) as peer, dialled(network) as web:
            await peer.send(request(b"x" * 200_000))
            assert (await peer.response())[2] == b"x" * 200_000
            await web.send(HANDSHAKE)
            assert (await web.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
            await web.send(b"\x81\x85" + MASK + b"hello")
            assert await web.reader.readexactly(7) == b"\x81\x05hello"
            closing = asyncio.create_task(server.close())
            assert await peer.ended()
            assert await web.reader.readexactly(4) == b"\x88\x02" + (1012).to_bytes(2, "big")
        await closing
        with pytest.raises(ConnectionRefusedError):
            async with dialled(network):
                pass

    run(test())


def test_its_limits_hold_there_too() -> None:
    async def test() -> None:
        network, server = MemoryNetwork(), Server(echo, Limits(request_timeout_s=0.1, connections_max=1))
        await server.start(network, *ADDRESS)
        async with dialled(network) as peer, dialled(network) as late:
            assert await late.code() == "too_many_connections"
            await peer.send(b"POST")
            assert await peer.code() == "request_timeout"
        await server.close()

    run(test())


def test_a_path_in_the_file_system_is_served_to_its_owner_and_is_gone_afterwards(tmp_path: Path) -> None:
    async def test() -> None:
        path, server = tmp_path / "a.sock", Server(echo)
        path.write_text("left behind")
        await server.start_unix(SystemNetwork(), str(path))
        mode = path.stat().st_mode
        assert (stat.S_ISSOCK(mode), stat.S_IMODE(mode)) == (True, 0o600)
        reader, writer = await asyncio.open_unix_connection(str(path))
        peer = Peer(reader, writer)
        await peer.send(request(b"hello"))
        assert (await peer.response())[0] == 200
        writer.close()
        await writer.wait_closed()
        await server.close()
        assert not path.exists()

    run(test())


def test_a_path_that_no_socket_can_have_is_a_fault_that_names_it(tmp_path: Path) -> None:
    async def test() -> None:
        path = tmp_path / ("x" * 120)
        with pytest.raises(PathTooLong, match="x" * 120):
            await Server(echo).start_unix(SystemNetwork(), str(path))

    run(test())


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost", "LOCALHOST", "::ffff:127.0.0.1"]
)
def test_these_are_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["", "0.0.0.0", "::", "10.0.0.1", "localhost.evil.example", "128.0.0.1", "::ffff:10.0.0.1"]
)
def test_these_are_not(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize("host", ["a..b", "a" * 64, "a\0b", "\udcff"])
def test_a_name_that_cannot_be_looked_up_is_one_that_is_not_there(host: str) -> None:
    with pytest.raises(OSError, match=r"codec|null"):
        asyncio.run(SystemNetwork().connect(asyncio.Protocol, host, 80))
