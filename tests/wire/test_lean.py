"""Requests on the short way, on real sockets: answered as any other, in their order, within the same limits."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from websockets.frames import Frame, Opcode

from holdfast.wire.lean import Client, RawHeaders
from holdfast.wire.network import SystemNetwork
from holdfast.wire.route import Reply
from holdfast.wire.server import Server
from holdfast.wire.state import Limits
from holdfast.wire.websocket import text_frame
from tests.wire.test_server import GENEROUS_S, dialled, echo, run


class Desk:
    """Takes what comes the short way, and answers when it is let."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.taken: list[bytes] = []

    async def handle(self, headers: RawHeaders, client: Client, body: bytes) -> Reply:
        self.taken.append(body)
        await self.may_answer.wait()
        return Reply(status=201, body=b"lean " + body, headers={"retry-after": "3"})


@asynccontextmanager
async def serving(desk: Desk) -> AsyncIterator[Server]:
    limits = Limits(request_bytes_max=300_000, drain_timeout_s=GENEROUS_S)
    server = Server(echo, limits, clock=lambda: 1_800_000_000_000_000, lean_routes={(b"POST", b"/lean"): desk.handle})
    await server.start(SystemNetwork(), "127.0.0.1", 0)
    try:
        yield server
    finally:
        desk.may_answer.set()
        await server.close()


def post(body: bytes, path: str = "/lean", more: str = "") -> bytes:
    return f"POST {path} HTTP/1.1\r\nhost: x\r\n{more}content-length: {len(body)}\r\n\r\n".encode() + body


def test_an_answer_has_what_every_answer_has() -> None:
    async def scene() -> None:
        async with serving(Desk()) as server, dialled(server) as peer:
            await peer.send(post(b"one"))
            status, headers, body = await peer.response()
            assert (status, body) == (201, b"lean one")
            assert headers["date"] == "fri, 15 jan 2027 08:00:00 gmt"
            assert headers["content-type"] == "application/json"
            assert headers["retry-after"] == "3"
            assert "connection" not in headers

    run(scene())


def test_a_body_that_comes_in_pieces_is_read_whole() -> None:
    async def scene() -> None:
        async with serving(Desk()) as server, dialled(server) as peer:
            body = b"x" * 200_000
            request = post(body)
            await peer.send(request[:60])
            await asyncio.sleep(0.01)
            await peer.send(request[60:150_000])
            await peer.send(request[150_000:])
            assert (await peer.response())[2] == b"lean " + body

    run(scene())


def test_pipelined_requests_of_both_kinds_are_answered_in_their_order() -> None:
    async def scene() -> None:
        desk = Desk()
        desk.may_answer.clear()
        async with serving(desk) as server, dialled(server) as peer:
            await peer.send(post(b"1") + post(b"2", "/other") + post(b"3") + post(b"4"))
            await until(lambda: desk.taken == [b"1"])
            desk.may_answer.set()
            bodies = [(await peer.response())[2] for _ in range(4)]
            assert bodies == [b"lean 1", b"2", b"lean 3", b"lean 4"]

    run(scene())


@pytest.mark.parametrize(
    "request_",
    [
        post(b"1", more="connection: close\r\n"),
        b"POST /lean HTTP/1.0\r\ncontent-length: 1\r\n\r\n1",
    ],
    ids=["connection: close", "HTTP/1.0"],
)
def test_one_that_wants_an_end_gets_it(request_: bytes) -> None:
    async def scene() -> None:
        async with serving(Desk()) as server, dialled(server) as peer:
            await peer.send(request_)
            _, headers, body = await peer.response()
            assert body in (b"lean 1", b"1")
            assert headers["connection"] == "close"
            assert await peer.ended()

    run(scene())


def test_whoever_waits_to_be_told_to_go_on_is_told() -> None:
    async def scene() -> None:
        async with serving(Desk()) as server, dialled(server) as peer:
            await peer.send(post(b"", more="expect: 100-continue\r\n").replace(b"length: 0", b"length: 3"))
            assert (await peer.response())[0] == 100
            await peer.send(b"abc")
            assert (await peer.response())[2] == b"abc"

    run(scene())


def test_too_much_is_refused_and_never_handed_over() -> None:
    async def scene() -> None:
        desk = Desk()
        async with serving(desk) as server, dialled(server) as peer:
            await peer.send(post(b"")[:-4].replace(b"length: 0", b"length: 300001") + b"\r\n\r\n")
            assert await peer.code() == "too_large"
            assert desk.taken == []

    run(scene())


def test_one_who_leaves_before_the_answer_harms_nobody() -> None:
    async def scene() -> None:
        desk = Desk()
        desk.may_answer.clear()
        async with serving(desk) as server:
            async with dialled(server) as peer:
                await peer.send(post(b"1"))
                await until(lambda: desk.taken == [b"1"])
            await until(lambda: server.connections == 0)
            desk.may_answer.set()
            await until(lambda: server.requests == 0)
            assert server.body_bytes == 0
            async with dialled(server) as peer:
                await peer.send(post(b"2"))
                assert (await peer.response())[2] == b"lean 2"

    run(scene())


def test_what_is_under_way_when_the_server_closes_is_answered() -> None:
    async def scene() -> None:
        desk = Desk()
        desk.may_answer.clear()
        async with serving(desk) as server, dialled(server) as peer:
            await peer.send(post(b"1"))
            await until(lambda: desk.taken == [b"1"])
            closing = asyncio.create_task(server.close())
            await asyncio.sleep(0)
            desk.may_answer.set()
            assert (await peer.response())[2] == b"lean 1"
            assert await peer.ended()
            await closing

    run(scene())


async def until(condition: object) -> None:
    async with asyncio.timeout(GENEROUS_S):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65_535, 65_536, 70_000])
def test_a_text_frame_is_what_the_library_writes(size: int) -> None:
    data = b"x" * size
    assert text_frame(data) == Frame(Opcode.TEXT, data).serialize(mask=False)
