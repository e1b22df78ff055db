"""The server on real sockets, against clients that keep no rule: too many, too slow, too large, too silent, too deaf."""

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from uvicorn.protocols.utils import ClientDisconnected
from websockets.asyncio.client import ClientConnection, connect, unix_connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import CloseCode

from holdfast.wire.closing import LINGER_S
from holdfast.wire.http import PIPELINED_MAX
from holdfast.wire.network import PortTaken, SystemNetwork
from holdfast.wire.server import Server
from holdfast.wire.state import Limits
from holdfast.wire.websocket import PARSED_BYTES
from tests.hook import virtual

App = Callable[[Any, Any, Any], Awaitable[None]]
SHORT_S = 0.2
IDLE_S = 75.0  # of time that passes only when everybody waits
GENEROUS_S = 60.0  # how long a test waits for what must come; nothing is asserted about it


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 2 * GENEROUS_S))


def run_in_virtual_time(test: Coroutine[Any, Any, None]) -> None:
    """However slow the machine is, nobody is late for it."""
    virtual.run(test, virtual.VirtualLoop())


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Says back what it is told, over HTTP and over WebSocket."""
    if scope["type"] == "websocket":
        await _echo_frames(receive, send)
        return
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body, more = body + message["body"], message["more_body"]
    await answer(send, body)


async def _echo_frames(receive: Any, send: Any, *, accept: bool = True) -> None:
    if accept:
        await receive()
        await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": message["text"]})
    if message["code"] == CloseCode.SERVICE_RESTART:
        await send({"type": "websocket.close", "code": message["code"]})


async def answer(send: Any, body: bytes, status: int = 200) -> None:
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def serving(app: App = echo, **limits: Any) -> AsyncIterator[Server]:
    server = Server(app, Limits(**limits), clock=lambda: 1_800_000_000_000_000)
    await server.start(SystemNetwork(), "127.0.0.1", 0)
    try:
        yield server
    finally:
        await server.close()


@asynccontextmanager
async def serving_at_a_path(app: App, **limits: Any) -> AsyncIterator[str]:
    """On a Unix socket, where what is sent has arrived: nothing is under way while everybody waits."""
    server = Server(app, Limits(**limits), clock=lambda: 1_800_000_000_000_000)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "socket")
        await server.start_unix(SystemNetwork(), path)
        try:
            yield path
        finally:
            await server.close()


class Peer:
    """One end of a TCP connection, as raw as it gets."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def response(self) -> tuple[int, dict[str, str], bytes]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        status, *lines = head.strip().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        return int(status.split()[1]), headers, await self.reader.readexactly(int(headers.get("content-length", "0")))

    async def code(self) -> str:
        """The code of the problem that comes next."""
        status, headers, body = await self.response()
        document = json.loads(body)
        assert headers["content-type"] == "application/problem+json"
        assert document["status"] == status
        return str(document["code"])

    async def ended(self) -> bool:
        """Whether the other side ends the connection without saying more."""
        return await self.reader.read(1) == b""


@asynccontextmanager
async def dialled(server: Server | str) -> AsyncIterator[Peer]:
    """A connection to a server, or to a path."""
    if isinstance(server, str):
        reader, writer = await asyncio.open_unix_connection(server)
    else:
        host, port = server.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield Peer(reader, writer)
    finally:
        writer.transport.abort()


def websocket(server: Server, **options: Any) -> connect:
    return connect(server.url.replace("http://", "ws://"), compression=None, **options)


async def close_code(client: ClientConnection) -> tuple[int, str]:
    with pytest.raises(ConnectionClosed) as closed:
        while True:
            await client.recv()
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code, closed.value.rcvd.reason


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(GENEROUS_S):
        while not true():
            await asyncio.sleep(0.01)


def request(body: bytes = b"", *headers: str, method: str = "POST") -> bytes:
    lines = [f"{method} / HTTP/1.1", "host: x", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def test_a_connection_serves_one_request_after_another_and_carries_the_date_of_the_given_clock() -> None:
    async def test() -> None:
        async with serving() as server, dialled(server) as peer:
            for body in (b"one", b"", b"x" * 300_000):
                await peer.send(request(body))
                status, headers, said = await peer.response()
                assert (status, said) == (200, body)
                assert headers["date"] == "fri, 15 jan 2027 08:00:00 gmt"
            assert server.connections == 1

    run(test())


def test_a_request_in_pieces_and_requests_in_one_piece_are_both_read() -> None:
    async def test() -> None:
        async with serving() as server, dialled(server) as peer:
            for byte in request(b"slow"):
                await peer.send(bytes([byte]))
            assert (await peer.response())[2] == b"slow"
            await peer.send(request(b"first") + request(b"second") + request(b"third"))
            assert [(await peer.response())[2] for _ in range(3)] == [b"first", b"second", b"third"]

    run(test())


def test_whoever_comes_after_the_last_free_connection_is_told_503_and_the_next_place_that_is_free_is_given() -> None:
    async def test() -> None:
        async with serving(connections_max=2) as server, dialled(server) as first, dialled(server):
            await first.send(request(b"here"))
            await first.response()
            async with dialled(server) as third:
                await third.send(request(b"x" * 100_000))
                assert await third.code() == "too_many_connections"
                assert await third.ended()
            with pytest.raises(InvalidStatus) as refused:
                async with websocket(server):
                    pass
            assert refused.value.response.status_code == 503
            first.writer.close()
            await until(lambda: server.connections == 1)
            async with dialled(server) as fourth:
                await fourth.send(request(b"welcome"))
                assert (await fourth.response())[2] == b"welcome"

    run(test())


@pytest.mark.parametrize(
    "begun",
    [b"", b"P", b"\r\n", b"POST / HTTP/1.1\r\nhost: x\r\n", request(b"four")[:-1], request(b"four") + b"POST"],
    ids=["nothing", "one byte", "only a line end", "half a head", "half a body", "half of the next one"],
)
def test_a_request_that_does_not_end_is_ended(begun: bytes) -> None:
    async def test() -> None:
        # Who says something may do so late: only who says nothing is idle for long here.
        idle_s = GENEROUS_S if begun else SHORT_S
        async with serving(request_timeout_s=SHORT_S, idle_timeout_s=idle_s) as server, dialled(server) as peer:
            await peer.send(begun)
            if begun.startswith(request(b"four")):
                await peer.response()
            if begun:
                assert await peer.code() == "request_timeout"
            assert await peer.ended()

    run(test())


def test_a_request_that_trickles_in_gets_no_more_time_for_each_byte() -> None:
    async def test() -> None:
        async with serving(request_timeout_s=SHORT_S, idle_timeout_s=GENEROUS_S) as server, dialled(server) as peer:

            async def trickle() -> None:
                while True:
                    await peer.send(b"x")
                    await asyncio.sleep(SHORT_S / 10)

            await peer.send(b"POST / HTTP/1.1\r\nx: ")
            trickling = asyncio.create_task(trickle())
            assert await peer.code() == "request_timeout"
            trickling.cancel()

    run(test())


def test_an_answer_that_takes_long_is_no_slow_request() -> None:
    async def test() -> None:
        async def slow(scope: Any, receive: Any, send: Any) -> None:
            await asyncio.sleep(IDLE_S * 1.2)
            await echo(scope, receive, send)

        limits = {"request_timeout_s": SHORT_S, "idle_timeout_s": IDLE_S}
        async with serving_at_a_path(slow, **limits) as path, dialled(path) as peer:
            await peer.send(request(b"patience"))
            assert (await peer.response())[2] == b"patience"

    run_in_virtual_time(test())


def test_a_body_over_the_limit_is_refused_by_its_announcement() -> None:
    async def test() -> None:
        async with serving(request_bytes_max=1000) as server, dialled(server) as peer:
            await peer.send(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1001\r\nexpect: 100-continue\r\n\r\n")
            assert await peer.code() == "too_large"
            assert await peer.ended()

    run(test())


def test_a_body_over_the_limit_that_was_not_announced_is_refused_while_it_is_read() -> None:
    async def test() -> None:
        seen: list[int] = []

        async def watch(scope: Any, receive: Any, send: Any) -> None:
            while (message := await receive())["type"] == "http.request":
                seen.append(len(message["body"]))

        async with serving(watch, request_bytes_max=100_000) as server, dialled(server) as peer:
            await peer.send(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
            for _ in range(100):
                await peer.send(b"2710\r\n" + b"x" * 10_000 + b"\r\n")
            assert await peer.code() == "too_large"
            assert await peer.ended()
        assert sum(seen) <= 100_000

    run(test())


def test_many_large_bodies_at_once_are_put_off_and_the_room_comes_back() -> None:
    async def test() -> None:
        async with serving(request_bytes_max=100_000, bodies_bytes_max=150_000) as server:
            async with dialled(server) as first, dialled(server) as second:
                await first.send(request(b"x" * 100_000)[:-1])
                await until(lambda: server.body_bytes > 99_000)
                await second.send(request(b"x" * 100_000))
                status, headers, body = await second.response()
                assert (status, headers["retry-after"], json.loads(body)["code"]) == (503, "1", "unavailable")
                await first.send(b"x")
                assert len((await first.response())[2]) == 100_000
            async with dialled(server) as third:
                await third.send(request(b"x" * 100_000))
                assert (await third.response())[0] == 200
            assert server.body_bytes == 0

    run(test())


def test_what_was_held_of_a_refused_body_is_free_before_its_connection_ends_and_of_one_that_left_at_once() -> None:
    async def test() -> None:
        limits = {"request_bytes_max": 100_000, "bodies_bytes_max": 150_000}
        async with serving(echo, **limits) as server, dialled(server) as first, dialled(server) as second:
            begun = request(b"x" * 100_000)
            await first.send(begun[:-1])
            await until(lambda: server.body_bytes == 99_999)
            await second.send(begun[:-60_000])
            await until(lambda: server.body_bytes == 139_999)
            await second.send(b"x" * 20_000)
            assert await second.code() == "unavailable"
            async with dialled(server) as third:
                await third.send(request(b"x" * 50_000))
                assert (await third.response())[0] == 200
            first.writer.transport.abort()
            await until(lambda: server.body_bytes == 0)

    run(test())


@pytest.mark.parametrize("in_one_piece", [True, False])
def test_a_head_over_the_limit_is_refused(in_one_piece: bool) -> None:
    async def test() -> None:
        async with serving() as server, dialled(server) as peer:
            line = b"x: %s\r\n" % (b"y" * 1000)
            if in_one_piece:
                await peer.send(b"GET / HTTP/1.1\r\n" + line * 50 + b"\r\n")
            else:
                await peer.send(b"GET / HTTP/1.1\r\n")
                for _ in range(500):  # it never ends
                    await peer.send(line)
            assert await peer.code() == "request_header_fields_too_large"

    run(test())


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"hello\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"BREW / HTTP/1.1\r\nhost: x\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: many\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"GET /\xff HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET http:// HTTP/1.1\r\nhost: x\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\nhost: x\r\n\r\n",
    ],
)
def test_what_is_not_http_is_a_bad_request(data: bytes) -> None:
    async def test() -> None:
        async with serving() as server, dialled(server) as peer:
            await peer.send(data)
            assert await peer.code() == "bad_request"
            assert await peer.ended()

    run(test())


def test_what_is_wrong_behind_a_request_is_not_told_as_its_answer() -> None:
    async def test() -> None:
        begin = asyncio.Event()

        async def gated(scope: Any, receive: Any, send: Any) -> None:
            await begin.wait()
            await echo(scope, receive, send)

        async with serving(gated) as server, dialled(server) as peer:
            await peer.send(request(b"mine") + b"this is no request\r\n\r\n")
            await asyncio.sleep(0.05)
            begin.set()
            status, headers, body = await peer.response()
            assert (status, headers["connection"], body) == (200, "close", b"mine")
            assert await peer.ended()

    run(test())


def test_of_too_many_requests_in_one_piece_the_first_are_answered_and_the_last_answer_says_that_it_is() -> None:
    async def test() -> None:
        async with serving() as server, dialled(server) as peer:
            await peer.send(b"".join(request(str(number).encode()) for number in range(1000)))
            answers = [await peer.response() for _ in range(PIPELINED_MAX + 1)]
            assert [int(body) for _, _, body in answers] == list(range(PIPELINED_MAX + 1))
            assert ["connection" in headers for _, headers, _ in answers] == [False] * PIPELINED_MAX + [True]
            assert await peer.ended()

    run(test())


def test_a_reader_that_does_not_read_its_answer_is_cut_off_and_little_is_kept_for_it() -> None:
    async def test() -> None:
        written = 0
        over = asyncio.Event()

        async def endless(scope: Any, receive: Any, send: Any) -> None:
            nonlocal written
            await receive()
            gone = asyncio.ensure_future(receive())
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while not gone.done():
                await send({"type": "http.response.body", "body": b"x" * 65_536, "more_body": True})
                written += 65_536
                await asyncio.sleep(0)
            over.set()

        async with serving(endless, send_timeout_s=SHORT_S) as server, dialled(server) as peer:
            await peer.send(request(b"", method="GET"))
            await asyncio.wait_for(over.wait(), GENEROUS_S)
            await until(lambda: server.connections == 0)
        assert written < 32_000_000  # what the system's own buffers took

    run(test())


def test_a_websocket_message_over_the_limit_closes_with_1009() -> None:
    async def test() -> None:
        async with serving(frame_bytes_max=1000) as server:
            async with websocket(server) as client:
                await client.send("x" * 1000)
                assert await client.recv() == "x" * 1000
                await client.send("x" * 1001)
                assert (await close_code(client))[0] == 1009
            async with websocket(server) as client:  # in fragments, each of them small
                with pytest.raises(ConnectionClosed):
                    await client.send(["x" * 100] * 1_000_000)
                assert (await close_code(client))[0] == 1009

    run(test())


def test_text_that_is_none_closes_with_1007_and_a_broken_frame_with_1002(caplog: pytest.LogCaptureFixture) -> None:
    own_close = b"\x88\x82" + MASK + b"\x0f\xa0"  # 4000

    async def test() -> None:
        async with serving() as server:
            for frames, code in (
                (NO_TEXT, 1007),
                (NO_TEXT * 2, 1007),
                (NO_TEXT + own_close, 4000),
                (b"\xf1\x80" + MASK, 1002),
            ):
                async with websocket(server) as client:
                    client.transport.write(frames)
                    assert (await close_code(client))[0] == code

    run(test())
    assert caplog.records == []


def test_a_handshake_that_is_none_is_a_problem() -> None:
    async def test() -> None:
        head = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        async with serving() as server:
            for rest, code in (
                (b"\r\n", "bad_request"),
                (b"sec-websocket-version: 13\r\nsec-websocket-key: short\r\n\r\n", "bad_request"),
                (b"x: %s\r\n\r\n" % (b"y" * 20_000), "request_header_fields_too_large"),
            ):
                async with dialled(server) as peer:
                    await peer.send(head + rest)
                    assert await peer.code() == code
                    assert await peer.ended()

    run(test())


def test_a_websocket_that_is_silent_is_pinged_and_one_that_does_not_answer_is_ended() -> None:
    async def test() -> None:
        async with (
            serving_at_a_path(echo, idle_timeout_s=IDLE_S) as path,
            unix_connect(path, ping_interval=None) as healthy,
            dialled(path) as half_open,
        ):
            await half_open.send(HANDSHAKE)
            await half_open.reader.readuntil(b"\r\n\r\n")
            await half_open.reader.read()  # to its end: it answers no ping
            await asyncio.sleep(IDLE_S)
            await healthy.send("still here")
            assert await healthy.recv() == "still here"

    run_in_virtual_time(test())


def test_a_websocket_whose_pong_we_do_not_read_is_not_taken_for_silent() -> None:
    async def test() -> None:
        async def late(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            await send({"type": "websocket.accept"})
            await asyncio.sleep(IDLE_S * 2)
            await _echo_frames(receive, send, accept=False)

        async with (
            serving_at_a_path(late, idle_timeout_s=IDLE_S) as path,
            unix_connect(path, ping_interval=None) as client,
        ):
            await client.send("are you there?")
            assert await client.recv() == "are you there?"

    run_in_virtual_time(test())


HANDSHAKE = (
    b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
MASK = b"\x00\x00\x00\x00"
NO_TEXT = b"\x81\x81" + MASK + b"\xff"
PAUSED_BYTES = 65_536  # unsent, and the server is told to wait
READ_BYTES_MAX = 262_144  # that the event loop reads at once


def test_who_speaks_on_a_websocket_after_its_close_learns_that_nobody_hears() -> None:
    """Several may speak on one connection, and only one of them knows that it closed it."""
    heard: list[type[BaseException]] = []

    async def closing(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.close", "code": 4003, "reason": "enough"})
        for late in ({"type": "websocket.send", "text": "one more thing"}, {"type": "websocket.close", "code": 4005}):
            try:
                await send(late)
            except Exception as error:
                heard.append(type(error))

    async def test() -> None:
        async with serving(closing) as server, websocket(server) as client:
            with pytest.raises(ConnectionClosed) as caught:
                await client.recv()
            assert caught.value.rcvd is not None
            assert caught.value.rcvd.code == 4003
        assert heard == [ClientDisconnected, ClientDisconnected]

    run(test())


def test_a_websocket_message_that_does_not_end_closes_with_4007() -> None:
    async def test() -> None:
        async with serving(request_timeout_s=SHORT_S) as server:
            for begun in (b"\x81\xfe\x01\x00" + MASK + b"x", b"\x01\x81" + MASK + b"x"):  # in a frame, between two
                async with websocket(server) as client:
                    client.transport.write(begun)
                    assert await close_code(client) == (4007, "slow_writer")

    run(test())


def test_a_websocket_that_does_not_read_is_told_4006_and_cut_off_and_little_is_kept_for_it() -> None:
    async def test() -> None:
        written = 0

        async def pour(scope: Any, receive: Any, send: Any) -> None:
            nonlocal written
            await receive()
            await send({"type": "websocket.accept"})
            while True:
                await send({"type": "websocket.send", "text": "x" * 65_536})
                written += 65_536

        async with serving(pour, send_timeout_s=SHORT_S) as server:
            async with dialled(server) as deaf:
                await deaf.send(HANDSHAKE)
                await until(lambda: server.connections == 1)
                await until(lambda: server.connections == 0)
            async with websocket(server, max_size=None, max_queue=1) as late:
                await asyncio.sleep(SHORT_S * 2)
                assert await close_code(late) == (4006, "slow_reader")
        assert written < 64_000_000  # what the system's own buffers took

    run(test())


def test_pings_of_one_who_does_not_read_do_not_pile_up() -> None:
    async def test() -> None:
        async with serving() as server, dialled(server) as peer:
            await peer.send(HANDSHAKE)
            await peer.reader.readuntil(b"\r\n\r\n")
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined]  # it reads as well as writes
            pings = (b"\x89\xfd" + MASK + b"x" * 125) * 1000
            while server.unsent_bytes < PAUSED_BYTES:
                await peer.send(pings)
                await asyncio.sleep(0)
            for _ in range(10):
                await peer.send(pings)
            await until(lambda: peer.writer.transport.get_write_buffer_size() == 0)
            await asyncio.sleep(0.1)
            assert server.unsent_bytes < 2 * PAUSED_BYTES + len(pings)

    run(test())


def test_of_the_smallest_messages_few_are_kept_for_one_who_does_not_take_them_and_none_is_lost() -> None:
    kept: list[int] = []
    sent = 30_000

    async def late(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await asyncio.sleep(IDLE_S / 10)
        kept.append(receive.__self__.queue.qsize())
        await _echo_frames(receive, send, accept=False)

    async def test() -> None:
        async with serving_at_a_path(late, idle_timeout_s=IDLE_S) as path, dialled(path) as peer:
            await peer.send(HANDSHAKE)
            await peer.reader.readuntil(b"\r\n\r\n")
            frame = b"\x81\x80" + MASK
            await peer.send(frame * sent)
            assert await peer.reader.readexactly(2 * sent) == b"\x81\x00" * sent
            (messages,) = kept
            assert 0 < messages <= PARSED_BYTES // len(frame)

    run_in_virtual_time(test())


@pytest.mark.parametrize("last", [b"", NO_TEXT])
def test_of_the_smallest_messages_none_is_parsed_after_our_close_and_the_connection_ends_at_once(
    last: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def closing(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await receive()
        receive.__self__.conn.recv_frame = None  # from now on, who parses fails, and logs it
        await send({"type": "websocket.close", "code": 4010, "reason": "enough"})

    async def test() -> None:
        async with serving_at_a_path(closing, idle_timeout_s=IDLE_S) as path, dialled(path) as peer:
            await peer.send(HANDSHAKE)
            await peer.reader.readuntil(b"\r\n\r\n")
            begun = asyncio.get_running_loop().time()
            await peer.send(b"\x81\x80" + MASK + (b"\x81\x82" + MASK + b"{}") * 30_000 + last)
            assert await peer.reader.read() == b"\x88\x08\x0f\xaaenough"
            assert asyncio.get_running_loop().time() - begun < LINGER_S

    run_in_virtual_time(test())
    assert caplog.records == []


def test_what_has_no_message_for_the_application_is_parsed_in_pieces_and_others_have_their_turn_between_them() -> None:
    left: list[int] = []
    heard = asyncio.Event()

    async def late(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        message = asyncio.ensure_future(receive())
        while not message.done():
            left.append(len(receive.__self__._unparsed))
            await asyncio.sleep(0)
        heard.set()

    async def test() -> None:
        async with serving(late) as server, dialled(server) as peer:
            await peer.send(HANDSHAKE)
            await peer.reader.readuntil(b"\r\n\r\n")
            await peer.send((b"\x89\x80" + MASK) * 100_000 + b"\x81\x82" + MASK + b"{}")
            await asyncio.wait_for(heard.wait(), GENEROUS_S)
        assert 0 < max(left) <= READ_BYTES_MAX // PARSED_BYTES

    run(test())


def test_closing_finishes_what_is_under_way_and_ends_what_is_idle() -> None:
    async def test() -> None:
        begin = asyncio.Event()

        async def gated(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                await begin.wait()
            await echo(scope, receive, send)

        async with serving(gated) as server, dialled(server) as idle, dialled(server) as busy, websocket(server) as ws:
            await busy.send(request(b"wait for me"))
            await until(lambda: server.requests == 2)
            closing = asyncio.create_task(server.close())
            assert await idle.ended()
            assert await close_code(ws) == (1012, "")
            with pytest.raises(ConnectionRefusedError):
                async with dialled(server):
                    pass
            assert not closing.done()
            begin.set()
            status, headers, body = await busy.response()
            assert (status, headers["connection"], body) == (200, "close", b"wait for me")
            await closing
            assert (server.connections, server.requests) == (0, 0)

    run(test())


def test_closing_cuts_off_what_does_not_finish_in_time() -> None:
    async def test() -> None:
        async def for_ever(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            if scope["type"] == "websocket":
                await send({"type": "websocket.accept"})
            await asyncio.Event().wait()

        async with (
            serving(for_ever, drain_timeout_s=SHORT_S) as server,
            dialled(server) as peer,
            websocket(server) as ws,
        ):
            await peer.send(request())
            await until(lambda: server.requests == 2)
            await server.close()
            assert (server.connections, server.requests) == (0, 0)
            with pytest.raises(ConnectionClosed):
                await ws.recv()

    run(test())


def test_a_port_that_is_taken_is_a_fault_that_says_so() -> None:
    async def test() -> None:
        async with serving() as server:
            port = int(server.url.rpartition(":")[2])
            with pytest.raises(PortTaken, match=f"127.0.0.1:{port}: another program listens on this port already"):
                await Server(echo).start(SystemNetwork(), "127.0.0.1", port)

    run(test())


def test_an_application_that_fails_answers_500_and_the_server_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async def broken(scope: Any, receive: Any, send: Any) -> None:
            raise ValueError("a bug")

        async with serving(broken) as server, dialled(server) as peer:
            await peer.send(request())
            assert (await peer.response())[0] == 500

    run(test())
    assert "a bug" in caplog.text
