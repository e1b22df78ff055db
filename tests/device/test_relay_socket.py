"""The WebSocket to a relay: proving who we are, the frames of a queue, and every way in which it can end."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast.protocol import event as events
from holdfast.protocol.connection_auth import check_connection_auth
from holdfast.protocol.reaction import FaultKind
from holdfast.protocol.refusal import REFUSALS, Refusal, Refused, ok_message
from holdfast.wire import relay_socket
from holdfast.wire.network import SystemNetwork
from holdfast.wire.queue_frames import Acknowledged, AckUnknown, Fork, Frame, Live, Queued, QueueStatus
from holdfast.wire.relay_socket import RelaySocket, SocketClosed
from tests.device.company import until
from tests.device.scripted_relay import CHALLENGE, LOG_ID, Connection, Script, for_ever, scripted
from tests.people import Person

ANN, BOB = Person("ann"), Person("bob")
EPOCH = b"\x07" * 16
NOW = 1_800_000_000_000_000
FACTS = {"was_stored": True, "message_id": "01M", "sender": "member-bob", "accepted_at": 5}


async def _connect(url: str, use: Callable[[RelaySocket], Awaitable[Any]]) -> Any:
    async with relay_socket.connected(
        url, ANN.secret, network=SystemNetwork(), clock=lambda: NOW, random=bytes
    ) as socket:
        return await use(socket)


def _met(script: Script, use: Callable[[RelaySocket], Awaitable[Any]]) -> Any:
    async def meet() -> Any:
        async with scripted(script) as url:
            return await _connect(url, use)

    return asyncio.run(meet())


async def _open(socket: RelaySocket) -> QueueStatus:
    return await socket.open_queue("01MESH", EPOCH)


def _queue(*frames: tuple[Any, ...], **status: Any) -> Script:
    """A relay that opens the queue and says these words on it."""

    async def follow(connection: Connection) -> None:
        await connection.authenticate()
        sub = await connection.open_queue(**status)
        for frame in frames:
            await connection.say("QUEUE", sub, *frame)
        await for_ever(connection)

    return follow


async def _receive(socket: RelaySocket, number: int) -> list[Frame]:
    await _open(socket)
    found: list[Frame] = []
    while len(found) < number:
        found += await socket.receive(number - len(found))
    return found


def test_the_challenge_is_answered_with_our_key_for_this_relay_now() -> None:
    shown: list[Any] = []

    async def follow(connection: Connection) -> None:
        shown.append(await connection.authenticate())

    async def meet() -> str:
        async with scripted(follow) as url:
            await _connect(url, lambda _: asyncio.sleep(0))
            return url

    url = asyncio.run(meet())
    event = events.decode(json.dumps(shown[0]))
    check_connection_auth(event, CHALLENGE, [url], NOW // 1_000_000)
    assert event.pubkey == ANN.key


def test_a_relay_that_does_not_believe_us_says_so() -> None:
    async def follow(connection: Connection) -> None:
        await connection.say("AUTH", CHALLENGE)
        _, event = await connection.hear()
        await connection.say("OK", event["id"], False, ok_message(Refusal.AUTH_FAILED, "your clock"))

    with pytest.raises(SocketClosed, match="your clock") as closed:
        _met(follow, _open)
    assert closed.value.refusal is Refusal.AUTH_FAILED


def test_the_queue_is_asked_for_with_mesh_and_epoch_and_its_status_is_read() -> None:
    asked: list[Any] = []

    async def follow(connection: Connection) -> None:
        await connection.authenticate()
        forks = [{"log_id": "0b" * 16, "seq": 7}]
        await connection.open_queue(pending_count=3, seq=12, highest_sequence=9, forks=forks)
        asked.extend(connection.heard[1:])

    status = _met(follow, _open)
    assert status == QueueStatus(
        pending_count=3, log_id=LOG_ID, seq=12, highest_sequence=9, forks=(Fork(log_id="0b" * 16, seq=7),)
    )
    ((verb, _, wanted),) = asked
    assert (verb, wanted) == ("QUEUE", {"mesh": "01MESH", "epoch": EPOCH.hex()})


def test_a_replay_is_asked_for_only_when_it_is_wanted() -> None:
    asked: list[Any] = []

    async def follow(connection: Connection) -> None:
        await connection.authenticate()
        await connection.open_queue()
        asked.extend(connection.heard[1:])

    _met(follow, lambda socket: socket.open_queue("01MESH", EPOCH, replay=True))
    assert asked[0][2]["replay"] is True


def test_messages_and_words_of_a_queue_come_in_their_order_with_the_events_own_bytes() -> None:
    event = BOB.message(ANN, "grüße".encode())
    raw = events.encode(event)
    script = _queue(
        ("MSG", 4, FACTS, json.loads(raw)),
        ("LIVE", 4),
        ("MSG", 6, {**FACTS, "was_stored": False, "replayed": True}, json.loads(raw)),
        ("ACKED", [4, 6]),
        ("ERR", ok_message(Refusal.ACK_UNKNOWN, "positions 9")),
    )
    first, live, second, acked, unknown = _met(script, lambda socket: _receive(socket, 5))
    assert isinstance(first, Queued)
    assert isinstance(second, Queued)
    assert (first.seq, first.was_stored, first.message_id, first.sender) == (4, True, "01M", "member-bob")
    assert (first.replayed, events.decode(first.event)) == (False, event)
    assert (second.seq, second.was_stored, second.replayed) == (6, False, True)
    assert (live, acked) == (Live(4), Acknowledged((4, 6)))
    assert isinstance(unknown, AckUnknown)
    assert "positions 9" in unknown.detail


def test_what_has_come_is_given_together_and_no_more_than_was_asked_for() -> None:
    script = _queue(*(("LIVE", number) for number in range(1, 6)))

    async def use(socket: RelaySocket) -> list[int]:
        await _open(socket)
        await until(lambda: socket._frames.qsize() == 5)
        return [len(await socket.receive(3)) for _ in range(2)]

    assert _met(script, use) == [3, 2]


def test_acknowledgements_are_sent_in_frames_of_a_bounded_size() -> None:
    heard: list[Any] = []

    async def follow(connection: Connection) -> None:
        await connection.authenticate()
        await connection.open_queue()
        heard.extend([await connection.hear() for _ in range(3)])
        await connection.say("QUEUE", heard[0][1], "LIVE", 1)

    async def use(socket: RelaySocket) -> None:
        await _open(socket)
        await socket.acknowledge(list(range(1, 2002)))
        await socket.receive(1)

    _met(follow, use)
    assert [(verb, word) for verb, _, word, _ in heard] == [("QUEUE", "ACK")] * 3
    assert [seq for *_, seqs in heard for seq in seqs] == list(range(1, 2002))
    assert [len(seqs) for *_, seqs in heard] == [1000, 1000, 1]


@pytest.mark.parametrize(
    "refusal", [refusal for refusal, row in REFUSALS.items() if row.close_code is not None], ids=lambda refusal: refusal
)
def test_a_close_is_the_refusal_that_it_names(refusal: Refusal) -> None:
    async def follow(connection: Connection) -> None:
        await connection.authenticate()
        await connection.open_queue()
        await connection.socket.close(REFUSALS[refusal].close_code or 0, refusal.value)

    with pytest.raises(SocketClosed) as closed:
        _met(follow, lambda socket: _receive(socket, 1))
    assert closed.value.refusal is refusal


def test_a_close_without_a_reason_is_known_by_its_code_if_only_one_refusal_has_it() -> None:
    def closing(code: int) -> Script:
        async def follow(connection: Connection) -> None:
            await connection.authenticate()
            await connection.open_queue()
            await connection.socket.close(code, "")

        return follow

    found = {}
    for code in (4003, 4005, 1008, 1000):
        with pytest.raises(SocketClosed) as closed:
            _met(closing(code), lambda socket: _receive(socket, 1))
        found[code] = closed.value.refusal
    assert found[4003] is Refusal.REPLACED_BY_NEWER_CONNECTION
    assert found[4005] is Refusal.MEMBER_REVOKED
    assert found[1008] is None
    assert found[1000] is None


def test_what_came_before_the_end_is_given_before_the_end_is_told() -> None:
    async def follow(connection: Connection) -> None:
        await connection.authenticate()
        sub = await connection.open_queue()
        await connection.say("QUEUE", sub, "LIVE", 1)
        await connection.socket.close(4005, "member_revoked")

    async def use(socket: RelaySocket) -> list[Frame]:
        await _open(socket)
        await asyncio.sleep(0.1)
        frames = await socket.receive(10)
        for _ in range(2):
            with pytest.raises(SocketClosed):
                await socket.receive(10)
        return frames

    assert _met(follow, use) == [Live(1)]


def test_a_queue_that_is_refused_says_why() -> None:
    async def follow(connection: Connection) -> None:
        await connection.authenticate()
        _, sub, _ = await connection.hear()
        await connection.say("QUEUE", sub, "ERR", ok_message(Refusal.NOT_A_MEMBER, "no such member"))
        await for_ever(connection)

    with pytest.raises(SocketClosed, match="no such member") as closed:
        _met(follow, _open)
    assert closed.value.refusal is Refusal.NOT_A_MEMBER


BROKEN: dict[str, str] = {
    "no JSON": "QUEUE",
    "no list": '{"QUEUE": 1}',
    "another verb": '["EVENT", "x", {}]',
    "a word that is not known": '["QUEUE", "queue", "NEWS", 1]',
    "a message without its facts": '["QUEUE", "queue", "MSG", 4, {}, {}]',
    "a position that is none": '["QUEUE", "queue", "LIVE", -1]',
    "a notice": '["NOTICE", "invalid: malformed: what was that"]',
    "nothing": "[]",
    "depth": "[" * 5000,
    "a frame that is too large": '["NOTICE", "' + "x" * relay_socket.FRAME_BYTES_MAX + '"]',
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_not_understood_ends_the_connection(name: str) -> None:
    async def follow(connection: Connection) -> None:
        await connection.authenticate()
        await connection.open_queue()
        await connection.socket.send(BROKEN[name])
        await for_ever(connection)

    with pytest.raises(SocketClosed):
        _met(follow, lambda socket: _receive(socket, 1))


def test_bytes_that_are_no_text_end_the_connection() -> None:
    async def follow(connection: Connection) -> None:
        await connection.socket.send(b"\xff\xfe")
        await for_ever(connection)

    with pytest.raises(SocketClosed):
        _met(follow, _open)


def test_a_relay_that_greets_with_nothing_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_socket, "ANSWER_TIMEOUT_S", 0.05)
    with pytest.raises(SocketClosed) as closed:
        _met(for_ever, _open)
    assert closed.value.fault is FaultKind.TIMEOUT


def test_nobody_at_the_address_is_a_lost_connection() -> None:
    with pytest.raises(SocketClosed, match="no connection") as closed:
        asyncio.run(_connect("http://127.0.0.1:9", _open))
    assert closed.value.fault is FaultKind.CONNECTION_LOST


def test_a_connection_that_breaks_before_a_word_is_a_lost_connection() -> None:
    class Cut(SystemNetwork):
        async def connect(self, factory: Any, host: str, port: int) -> Any:
            transport, connection = await super().connect(factory, host, port)
            transport.abort()
            await asyncio.wait({connection.connection_lost_waiter})
            return transport, connection

    async def meet() -> None:
        async with (
            scripted(for_ever) as url,
            relay_socket.connected(url, ANN.secret, network=Cut(), clock=lambda: NOW, random=bytes),
        ):
            pass

    with pytest.raises(SocketClosed, match="no connection") as closed:
        asyncio.run(meet())
    assert closed.value.fault is FaultKind.CONNECTION_LOST


def test_something_else_at_the_address_is_not_understood() -> None:
    async def serve_http() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(100)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            await _connect(f"http://127.0.0.1:{port}", _open)

    with pytest.raises(SocketClosed, match="does not take the connection") as closed:
        asyncio.run(serve_http())
    assert closed.value.fault is FaultKind.NOT_UNDERSTOOD


def test_a_connection_that_breaks_is_lost_and_no_refusal() -> None:
    async def follow(connection: Connection) -> None:
        await connection.authenticate()
        await connection.open_queue()
        connection.socket.transport.abort()

    with pytest.raises(SocketClosed) as closed:
        _met(follow, lambda socket: _receive(socket, 1))
    assert (closed.value.fault, closed.value.refusal) == (FaultKind.CONNECTION_LOST, None)


@pytest.mark.parametrize("turns", range(1, 6))
def test_a_connection_is_over_though_whoever_ends_it_is_cancelled_meanwhile(turns: int) -> None:
    open_one: list[RelaySocket] = []

    async def stay(socket: RelaySocket) -> None:
        await _open(socket)
        open_one.append(socket)
        await asyncio.Event().wait()

    async def meet() -> None:
        async with scripted(_queue()) as url:
            staying = asyncio.create_task(_connect(url, stay))
            while not open_one:
                await asyncio.sleep(0.001)
            staying.cancel()
            for _ in range(turns):
                await asyncio.sleep(0)
            staying.cancel()
            with pytest.raises(asyncio.CancelledError):
                await staying
            assert open_one[0]._connection.transport.is_closing()

    asyncio.run(meet())


def test_no_more_frames_are_held_than_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_socket, "FRAMES_MAX", 8)
    sent: list[int] = []

    async def follow(connection: Connection) -> None:
        await connection.authenticate()
        sub = await connection.open_queue()
        for number in range(1, 20_000):
            await connection.socket.send(json.dumps(("QUEUE", sub, "LIVE", number)) + " " * 1000)
            sent.append(number)

    async def use(socket: RelaySocket) -> int:
        await _open(socket)
        before = -1
        while before != len(sent):  # until the relay, too, has to wait
            before = len(sent)
            await asyncio.sleep(0.2)
        return len(sent)

    assert _met(follow, use) < 19_999


# Features


def _offering(answer: Callable[[dict[str, Any]], tuple[Any, ...]], codes: list[int | None]) -> Script:
    """A relay that says this of its features, and notes with which code it is left."""

    async def follow(connection: Connection) -> None:
        await connection.authenticate()
        _, asked = await connection.hear()
        await connection.say(*answer(asked))
        await connection.socket.wait_closed()
        codes.append(connection.socket.close_code)

    return follow


_FIT = {
    "client_message_id_dedupe": {"version": 2, "mode": "retention_scoped", "dedupe_retention_days": 30},
    "member_queue": {"version": 1, "ttl_days": 7, "window_messages": 200},
    "max_payload": {"version": 1, "event_bytes": 65_536},
}


def _supporting(**changed: Any) -> Callable[[dict[str, Any]], tuple[Any, ...]]:
    return lambda asked: ("FEATURES", {"supported": {**_FIT, **changed}, "missing_required": []})


def test_a_fit_relay_is_taken_and_the_daemon_says_what_it_needs() -> None:
    asked: list[dict[str, Any]] = []

    def answer(said: dict[str, Any]) -> tuple[Any, ...]:
        asked.append(said)
        return _supporting()(said)

    found = _met(_offering(answer, []), lambda socket: socket.negotiate())
    assert found.features == _FIT
    assert set(asked[0]["require"]) == set(_FIT)


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"member_queue": {"version": 9}}, 4010),
        ({"client_message_id_dedupe": {"version": 2, "mode": "never"}}, 4011),
        ({"max_payload": {"version": 1, "event_bytes": 1024}}, 4012),
    ],
)
def test_an_unfit_relay_is_left_with_the_code_that_says_why(changed: dict[str, Any], code: int) -> None:
    codes: list[int | None] = []
    with pytest.raises(Refused) as refused:
        _met(_offering(_supporting(**changed), codes), lambda socket: socket.negotiate())
    assert REFUSALS[refused.value.refusal].close_code == code
    assert codes == [code]


def test_a_relay_that_does_not_know_the_question_is_unfit_and_one_that_is_busy_is_not() -> None:
    def said(notice: str) -> Refusal | None:
        script = _offering(lambda asked: ("NOTICE", notice), [])
        with pytest.raises((Refused, SocketClosed)) as ended:
            _met(script, lambda socket: socket.negotiate())
        assert isinstance(ended.value, Refused | SocketClosed)
        return ended.value.refusal

    assert said("invalid: malformed: what is FEATURES?") is Refusal.FEATURE_UNAVAILABLE
    assert said("rate-limited: rate_limited: not now") is Refusal.RATE_LIMITED
