"""One WebSocket without its socket: answers in order, a bound on what waits, an end that leaves nothing behind."""

import asyncio
import json
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from uvicorn.protocols.utils import ClientDisconnected

from holdfast.protocol.event import Event
from holdfast.protocol.refusal import Refusal
from holdfast.relay.answer import Answer, refuse
from holdfast.relay.changes import Feeds
from holdfast.relay.offer import Lane, read
from holdfast.relay.reading import Reading
from holdfast.relay.relay import Relay
from holdfast.relay.session import HELD_LANES_MAX, POLICY, Session
from holdfast.relay.settings import FeedSettings, Settings
from holdfast.relay.stream import Say, Streams
from holdfast.wire.budget import Budget
from tests.people import Person, raw
from tests.relay.place import Place

IN_FLIGHT = 8
TAIL = {"mode": "tail", "kinds": [40_000], "authors": ["0" * 64], "live": True}


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
        self.challenge = ""

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
            return
        frame = json.loads(message["text"])
        if frame[0] == "AUTH":
            self.challenge = frame[1]
        else:
            self.heard.append(frame)


class Desk:
    """Takes events when the test lets it, and says no to each by its number."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.batches: list[int] = []

    async def publish(self, raws: Sequence[bytes], held: frozenset[Lane]) -> list[Answer]:
        self.batches.append(len(raws))
        await self.open.wait()
        return [refuse(Refusal.MALFORMED, "", event_id=raw.decode()) for raw in raws]


def event(number: int) -> str:
    return json.dumps(["EVENT", number])


def numbers(peer: Peer) -> list[int]:
    return [int(frame[1]) for frame in peer.heard if frame[0] == "OK"]


@cache
def relay() -> Relay:
    """One that nobody reads from in these tests."""
    return Place(Path(tempfile.mkdtemp()) / "relay.db", Settings()).relay


@cache
def open_feed() -> Relay:
    """One whose feed is open to everybody."""
    return Place(Path(tempfile.mkdtemp()) / "relay.db", Settings(feed=FeedSettings(open=True))).relay


def reading(say: Say, close: Callable[[Refusal], Awaitable[None]]) -> Reading:
    return Reading(relay(), Streams(relay()), Feeds(relay()), {"ws://relay"}, "a challenge", say, close)


def session(peer: Peer, desk: Desk) -> Session:
    return Session(desk.publish, peer.send, peer.frames, IN_FLIGHT, peer.notices.append, reading)


async def settle() -> None:
    for _ in range(200):
        await asyncio.sleep(0)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 60))


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
        peer.say(event(1), "nonsense", event(2), '["COUNT", "s", {}]', event(3))
        peer.leave()
        await session(peer, desk).run(peer.receive)
        assert [frame[0] for frame in peer.heard] == ["OK", "NOTICE", "OK", "NOTICE", "OK"]
        assert peer.notices == [Refusal.MALFORMED, Refusal.FEATURE_UNAVAILABLE]
        assert peer.heard[3][1] == "unsupported: feature_unavailable: this relay does not serve COUNT"

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


def test_one_who_is_gone_leaves_nothing_behind_and_what_it_said_still_counts() -> None:
    async def test() -> None:
        peer, desk = Peer(), Desk()
        desk.open.clear()
        peer.say(event(0))
        serving = asyncio.create_task(session(peer, desk).run(peer.receive))
        await settle()
        peer.say(*map(event, range(1, 5)))  # these wait behind the first
        await settle()
        peer.is_gone = True
        peer.leave(1006)
        desk.open.set()
        await serving
        assert (peer.heard, peer.frames.taken) == ([], 0)
        assert sum(desk.batches) == 5, "what was read is carried out"

    run(test())


def test_what_one_who_left_still_asked_for_opens_nothing() -> None:
    async def test() -> None:
        peer, desk = Peer(), Desk()
        desk.open.clear()
        peer.say(event(0), json.dumps(["CHANGES", "c", TAIL]), json.dumps(["REQ", "r", {"authors": TAIL["authors"]}]))
        peer.leave()
        feeds = Feeds(open_feed())

        def to_feeds(say: Say, close: Callable[[Refusal], Awaitable[None]]) -> Reading:
            return Reading(open_feed(), Streams(open_feed()), feeds, {"ws://relay"}, "a challenge", say, close)

        served = Session(desk.publish, peer.send, peer.frames, IN_FLIGHT, peer.notices.append, to_feeds)
        serving = asyncio.create_task(served.run(peer.receive))
        await settle()
        desk.open.set()
        await serving  # a subscription that nobody ends would go on for ever
        assert (numbers(peer), feeds.open) == ([0], 0)

    run(test())


def test_a_mistake_while_publishing_is_not_swallowed_and_leaves_nothing_behind() -> None:
    async def test() -> None:
        peer = Peer()

        async def broken(raws: Sequence[bytes], held: frozenset[Lane]) -> list[Answer]:
            raise ZeroDivisionError

        peer.say(*map(event, range(5)))
        with pytest.raises(ExceptionGroup) as group:
            await Session(broken, peer.send, peer.frames, IN_FLIGHT, peer.notices.append, reading).run(peer.receive)
        assert isinstance(group.value.exceptions[0], ZeroDivisionError)
        assert peer.frames.taken == 0

    run(test())


class Keeper:
    """Puts off what the test names, holds back what it is told to, and takes the rest."""

    def __init__(self) -> None:
        self.full: set[str] = set()  # destinations
        self.taken: list[str] = []

    async def publish(self, raws: Sequence[bytes], held: frozenset[Lane]) -> list[Answer]:
        put_off = set(held)
        return [self._answer(read(each), put_off) for each in raws]

    def _answer(self, offer: Any, put_off: set[Lane]) -> Answer:
        if offer.lane in put_off:
            return refuse(Refusal.HELD_BACK, "", event_id=offer.event.id)
        if offer.said.destination.ref in self.full:
            put_off.add(offer.lane)
            return refuse(Refusal.QUEUE_FULL, "", event_id=offer.event.id)
        self.taken.append(offer.head.client_message_id)
        return Answer(event_id=offer.event.id, http_status=201, members={})


class Conversation:
    """A session to which events are said one batch after another."""

    def __init__(self) -> None:
        self.peer, self.keeper = Peer(), Keeper()
        self.alice, self.bob, self.carol = Person("alice"), Person("bob"), Person("carol")

    async def __aenter__(self) -> "Conversation":
        peer = self.peer
        serving = Session(self.keeper.publish, peer.send, peer.frames, IN_FLIGHT, peer.notices.append, reading)
        self._serving = asyncio.create_task(serving.run(self.peer.receive))
        return self

    async def __aexit__(self, *ending: object) -> None:
        self.peer.leave()
        await self._serving

    def to(self, recipient: Person) -> Event:
        return self.alice.message(recipient, b"x")

    async def says(self, *events: Event) -> list[str]:
        """What is answered to these, which come at once: yes, or the code of the no."""
        before = len(self.peer.heard)
        self.peer.say(*(f'["EVENT", {raw(each).decode()}]' for each in events))
        await settle()
        return ["yes" if is_yes else text.split(": ")[1] for _, _, is_yes, text in self.peer.heard[before:]]


def test_behind_an_event_that_was_put_off_its_destination_waits_for_that_very_event() -> None:
    async def test() -> None:
        async with Conversation() as talk:
            first, second, third = (talk.to(talk.bob) for _ in range(3))
            talk.keeper.full = {talk.bob.member}
            assert await talk.says(first) == ["queue_full"]
            talk.keeper.full = set()
            assert await talk.says(second) == ["held_back"]
            assert await talk.says(talk.to(talk.carol)) == ["yes"]  # another destination
            assert await talk.says(second, first, second, third) == ["held_back", "yes", "yes", "yes"]
            assert await talk.says(talk.to(talk.bob)) == ["yes"]

    run(test())


def test_an_event_that_is_put_off_again_holds_its_destination_again() -> None:
    async def test() -> None:
        async with Conversation() as talk:
            first, second = talk.to(talk.bob), talk.to(talk.bob)
            talk.keeper.full = {talk.bob.member}
            assert await talk.says(first, second) == ["queue_full", "held_back"]
            assert await talk.says(first) == ["queue_full"]
            talk.keeper.full = set()
            assert await talk.says(second) == ["held_back"]
            assert await talk.says(first, second) == ["yes", "yes"]

    run(test())


def test_an_event_that_was_sealed_anew_is_known_by_its_client_message_id() -> None:
    async def test() -> None:
        async with Conversation() as talk:
            talk.keeper.full = {talk.bob.member}
            first = talk.alice.message(talk.bob, b"x", client_message_id="first")
            again = talk.alice.message(talk.bob, b"y", client_message_id="first")
            assert first.id != again.id
            assert await talk.says(first) == ["queue_full"]
            talk.keeper.full = set()
            assert await talk.says(again, talk.to(talk.bob)) == ["yes", "yes"]

    run(test())


def test_a_connection_with_more_order_to_keep_than_there_is_room_for_must_begin_anew() -> None:
    async def test() -> None:
        async with Conversation() as talk:
            people = [Person(f"p{number}") for number in range(HELD_LANES_MAX + 1)]
            talk.keeper.full = {person.member for person in people}
            for person in people[:-1]:
                talk.peer.say(f'["EVENT", {raw(talk.to(person)).decode()}]')
            while len(talk.peer.heard) < HELD_LANES_MAX:
                await asyncio.sleep(0)
            closed_before = talk.peer.closed
            assert await talk.says(talk.to(people[-1])) == ["queue_full"]
            assert (closed_before, talk.peer.closed) == (None, (POLICY, "held_back"))
            assert talk.peer.frames.taken == 0

    run(test())
