"""The HTTP client on a network that is given to it."""

import asyncio
import socket
import threading
from typing import Any

import httpx2 as httpx
import pytest

from holdfast.wire.network import Network, SystemNetwork
from holdfast.wire.server import Server
from holdfast.wire.transport import NetworkTransport
from tests.wire.memory import MemoryNetwork
from tests.wire.test_server import echo

URL = "http://relay.example:80/"


class Silent(MemoryNetwork):
    """Everybody is there and nobody says anything."""

    async def connect(self, factory: Any, host: str, port: int) -> Any:
        self.listeners[host, port] = asyncio.Protocol
        return await super().connect(factory, host, port)


class Far(MemoryNetwork):
    async def connect(self, factory: Any, host: str, port: int) -> Any:
        await asyncio.Event().wait()


async def _post(network: Network, body: bytes, timeout_s: float = 5.0) -> httpx.Response:
    async with httpx.AsyncClient(transport=NetworkTransport(network), timeout=timeout_s) as client:
        return await client.post(URL, content=body)


def test_requests_go_over_the_given_network_and_no_socket_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        def none(*arguments: Any, **options: Any) -> Any:
            raise AssertionError("somebody made a socket")

        monkeypatch.setattr(socket, "socket", none)
        network, server = MemoryNetwork(), Server(echo)
        await server.start(network, "relay.example", 80)
        async with httpx.AsyncClient(transport=NetworkTransport(network)) as client:
            for size in (1, 200_000):
                assert (await client.post(URL, content=b"x" * size)).content == b"x" * size
            assert server.connections == 1  # it is kept and used again
        await server.close()

    asyncio.run(test())


def test_a_connection_that_the_other_side_has_ended_is_not_used_again() -> None:
    async def test() -> None:
        network = MemoryNetwork()
        async with httpx.AsyncClient(transport=NetworkTransport(network)) as client:
            for _ in range(2):
                server = Server(echo)
                await server.start(network, "relay.example", 80)
                assert (await client.post(URL, content=b"hello")).content == b"hello"
                await server.close()
                await asyncio.sleep(0.05)

    asyncio.run(test())


def _answer_and_hang_up(listening: socket.socket, hung_up: threading.Semaphore) -> None:
    """A server that lets everybody believe that the connection is kept."""
    for _ in range(2):
        connection, _ = listening.accept()
        with connection:
            connection.recv(65_536)
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        hung_up.release()


def test_the_end_of_a_connection_is_seen_though_the_event_loop_had_no_time_to_read_it() -> None:
    async def test() -> None:
        async with httpx.AsyncClient(transport=NetworkTransport(SystemNetwork())) as client:
            for _ in range(2):
                assert (await client.get(f"http://127.0.0.1:{listening.getsockname()[1]}/")).content == b"ok"
                assert hung_up.acquire(timeout=30)  # and nothing else happens on this loop meanwhile

    hung_up = threading.Semaphore(0)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = threading.Thread(target=_answer_and_hang_up, args=(listening, hung_up), daemon=True)
        server.start()
        asyncio.run(test())
        server.join()


def test_a_client_that_is_closed_has_let_go_of_all_connections_though_it_is_cancelled() -> None:
    """The pool forgets connections before it closes them, one after the other."""
    made: list[asyncio.Transport] = []

    class Noting(MemoryNetwork):
        async def connect(self, factory: Any, host: str, port: int) -> Any:
            transport, protocol = await super().connect(factory, host, port)
            made.append(transport)
            return transport, protocol

    async def test(turns: int) -> None:
        network, server = Noting(), Server(echo)
        await server.start(network, "relay.example", 80)
        client = httpx.AsyncClient(transport=NetworkTransport(network))
        await asyncio.gather(*(client.post(URL, content=b"x") for _ in range(3)))
        closing = asyncio.create_task(client.aclose())
        for _ in range(turns):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        await client.aclose()
        await server.close()

    for turns in range(1, 6):
        made.clear()
        asyncio.run(test(turns))
        assert [transport.is_closing() for transport in made] == [True] * 3, turns


def test_nobody_there_is_told_as_httpx_tells_it() -> None:
    with pytest.raises(httpx.ConnectError):
        asyncio.run(_post(MemoryNetwork(), b"x"))


def test_a_connection_that_does_not_come_to_be_has_its_limit() -> None:
    with pytest.raises(httpx.ConnectTimeout):
        asyncio.run(_post(Far(), b"x", 0.05))


def test_an_answer_that_does_not_come_has_its_limit() -> None:
    with pytest.raises(httpx.ReadTimeout):
        asyncio.run(_post(Silent(), b"x", 0.05))
