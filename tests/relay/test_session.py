"""One WebSocket without its socket: answers in order, a bound on what waits, an end that leaves nothing behind."""

import asyncio
import json
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest
from uvicorn.protocols.utils import ClientDisconnected

from holdfast.protocol.refusal import Refusal
from holdfast.relay.answer import Answer, refuse
from holdfast.relay.session import Session
from holdfast.wire.budget import Budget

IN_FLIGHT = 8


class Peer:
    """The other side: says what the test wants, and hears."""

    def __init__(self) -> None:
        self.to_say: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.taken = 0
        self.heard: list[Any] = []
        self.closed: tuple[int, str] | None = None
        self.is_gone = False
        self.frames = Budget(1_000_000)
        self.notices: list[Refusal] = []

    def say(self, *texts: str) -> None:
        for text in texts:
            self.to_say.put_nowait({"type": "websocket.receive", "text": text})

    def leave(self, code: int = 1000) -> None:
        self.to_say.put_nowait({"type": "websocket.disconnect", "code": code})

    async def receive(self) -> dict[str, Any]:
        message = await self.to_say.get()
        self.taken += 1
        return message

    async def send(self, message: dict[str, Any]) -> None:
        if self.is_gone:
            raise ClientDisconnected
        if message["type"] == "websocket.close":
            self.closed = (message["code"], message["reason"])
        else:
            self.heard.append(json.loads(message["text"]))


class Desk:
    """Takes events when the test lets it, and says no to each by its number."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.batches: list[int] = []

    async def publish(self, raws: Sequence[bytes]) -> list[Answer]:
        self.batches.append(len(raws))
        await self.open.wait()
        return [refuse(Refusal.MALFORMED, "", event_id=raw.decode()) for raw in raws]


def event(number: int) -> str:
    return json.dumps(["EVENT", number])


def numbers(peer: Peer) -> list[int]:
    return [int(frame[1]) for frame in peer.heard if frame[0] == "OK"]


def session(peer: Peer, desk: Desk) -> Session:
    return Session(desk.publish, peer.send, peer.frames, IN_FLIGHT, peer.notices.append)


async def settle() -> None:
    for _ in range(200):
        await asyncio.sleep(0)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 30))


def test_every_event_is_answered_in_order_and_those_that_waited_share_a_batch() -> None:
    async def test() -> None:
        peer, desk = Peer(), Desk()
        peer.say(*map(event, range(100)))
        peer.leave()
        await session(peer, desk).run(peer.receive)
        assert numbers(peer) == list(range(100))
        assert max(desk.batches) > 1
        assert (peer.closed, peer.frames.taken) == (None, 0)

    run(test())


def test_a_notice_keeps_its_place_among_the_answers() -> None:
    async def test() -> None:
        peer, desk = Peer(), Desk()
        peer.say(event(1), "nonsense", event(2), '["REQ", "s", {}]', event(3))
        peer.leave()
        await session(peer, desk).run(peer.receive)
        assert [frame[0] for frame in peer.heard] == ["OK", "NOTICE", "OK", "NOTICE", "OK"]
        assert peer.notices == [Refusal.MALFORMED, Refusal.FEATURE_UNAVAILABLE]
        assert peer.heard[3][1] == "unsupported: feature_unavailable: this relay does not serve REQ"

    run(test())


def test_with_too_much_under_way_nothing_more_is_read() -> None:
    async def test() -> None:
        peer, desk = Peer(), Desk()
        desk.open.clear()
        peer.say(*map(event, range(100)))
        serving = asyncio.create_task(session(peer, desk).run(peer.receive))
        await settle()
        assert peer.taken == IN_FLIGHT + 1  # the last one waits for a place
        desk.open.set()
        peer.leave()
        await serving
        assert numbers(peer) == list(range(100))

    run(test())


def test_with_too_many_bytes_under_way_for_all_nothing_more_is_read_for_one() -> None:
    async def test() -> None:
        peer, desk = Peer(), Desk()
        peer.frames = Budget(2 * len(event(0)))
        desk.open.clear()
        peer.say(*map(event, range(10)))
        serving = asyncio.create_task(session(peer, desk).run(peer.receive))
        await settle()
        assert peer.taken == 3
        desk.open.set()
        peer.leave()
        await serving
        assert (numbers(peer), peer.frames.taken) == (list(range(10)), 0)

    run(test())


def test_when_the_server_closes_what_was_read_is_answered_before_1012() -> None:
    async def test() -> None:
        peer, desk = Peer(), Desk()
        desk.open.clear()
        peer.say(event(1), event(2))
        peer.leave(1012)
        serving = asyncio.create_task(session(peer, desk).run(peer.receive))
        await settle()
        assert numbers(peer) == []
        desk.open.set()
        await serving
        assert (numbers(peer), peer.closed) == ([1, 2], (1012, "shutting_down"))

    run(test())


def test_a_binary_frame_ends_it_after_the_answers() -> None:
    async def test() -> None:
        peer, desk = Peer(), Desk()
        peer.say(event(1))
        peer.to_say.put_nowait({"type": "websocket.receive", "bytes": b"x"})
        peer.say(event(2))
        await session(peer, desk).run(peer.receive)
        assert (numbers(peer), peer.closed) == ([1], (1003, "binary_frame"))

    run(test())


def test_one_who_is_gone_leaves_nothing_behind() -> None:
    async def test() -> None:
        peer, desk = Peer(), Desk()
        desk.open.clear()
        peer.say(event(0))
        serving = asyncio.create_task(session(peer, desk).run(peer.receive))
        await settle()
        peer.say(*map(event, range(1, 5)))  # these wait behind the first
        await settle()
        peer.is_gone = True
        desk.open.set()
        await serving
        assert (peer.heard, peer.frames.taken) == ([], 0)

    run(test())


def test_a_mistake_while_publishing_is_not_swallowed_and_leaves_nothing_behind() -> None:
    async def test() -> None:
        peer = Peer()

        async def broken(raws: Sequence[bytes]) -> list[Answer]:
            raise ZeroDivisionError

        peer.say(*map(event, range(5)))
        with pytest.raises(ExceptionGroup) as group:
            await Session(broken, peer.send, peer.frames, IN_FLIGHT, peer.notices.append).run(peer.receive)
        assert isinstance(group.value.exceptions[0], ZeroDivisionError)
        assert peer.frames.taken == 0

    run(test())
