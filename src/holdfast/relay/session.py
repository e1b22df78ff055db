"""One WebSocket: events come in and are each answered with OK, queues go out. Answers keep the order of the requests.

Events that arrive while a batch is being decided form the next batch. The number that wait is limited, for this connection
and for all together: beyond it the connection is not read, and the sender is slowed down.

Order is kept as long as the connection lasts: after an event is postponed, later ones to its destination are held back
until it is offered again. It is recognised by its `client_message_id`, because an event that is sealed to a newer key has
another event id.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby
from typing import Any

import msgspec
from msgspec import Raw
from uvicorn.protocols.utils import ClientDisconnected

from holdfast.protocol.event import DETAIL_CHARACTERS_MAX
from holdfast.protocol.refusal import REFUSALS, Refusal, Refused, ok_message
from holdfast.relay import offer, reading
from holdfast.relay.answer import Answer
from holdfast.relay.offer import Lane
from holdfast.relay.reading import Frame, Reading
from holdfast.relay.stream import Say
from holdfast.wire.budget import Budget
from holdfast.wire.response import Receive, Send

RESTART = REFUSALS[Refusal.SHUTTING_DOWN].close_code
LATER_VERBS = frozenset({"COUNT"})  # known verbs of Nostr that are not served here

POLICY = 1008  # the close code when a connection exceeds its limit
HELD_LANES_MAX = 1_024  # lanes of one connection with a postponed event; with more it must connect again

Publish = Callable[[Sequence[bytes], frozenset[Lane]], Awaitable[list[Answer]]]
"""Offers events; those in one of the given lanes are held back, unless they are repetitions."""

Noticed = Callable[[Refusal], None]

MakeReading = Callable[[Say, Callable[[Refusal], Awaitable[None]]], Reading]
"""Makes the reading side of a connection, given functions to send a frame and to close the connection."""


class _EventFrame(msgspec.Struct, array_like=True, forbid_unknown_fields=True, tag="EVENT"):
    event: Raw


class _AnyFrame(msgspec.Struct, array_like=True):
    verb: str


class _TooMuchHeld(Exception):
    """A connection has postponed events in too many lanes."""


class _Item(msgspec.Struct, frozen=True):
    """Something to answer: an event, a reading frame, or an invalid message with its fault."""

    size: int
    event: bytes | None = None
    frame: Frame | None = None
    refusal: Refusal = Refusal.MALFORMED
    detail: str = ""


_event_decoder = msgspec.json.Decoder(_EventFrame)
_any_decoder = msgspec.json.Decoder(_AnyFrame)


class Session:
    """A connection from its first message to its last answer."""

    def __init__(
        self, publish: Publish, send: Send, frames: Budget, in_flight_max: int, noticed: Noticed, reading: MakeReading
    ) -> None:
        self._publish = publish
        self._reading = reading(self._say, self._close)
        self._send = send
        self._frames = frames
        self._noticed = noticed
        self._slots = asyncio.Semaphore(in_flight_max)
        self._waiting: list[_Item] = []
        self._changed = asyncio.Event()
        self._held: dict[Lane, str] = {}  # by lane: the client_message_id of the postponed event that it waits for
        self._end: Refusal | None = None  # the reason, if we close the connection
        self._is_closed = False  # by us
        self._is_over = False

    async def run(self, receive: Receive) -> None:
        """Serve until either side ends the connection. What was read is still carried out if the client has left."""
        try:
            async with asyncio.TaskGroup() as tasks:
                await self._reading.begin(tasks)
                tasks.create_task(self._answer())
                await self._read(receive)
                self._reading.end()
        except* (ClientDisconnected, _TooMuchHeld):
            pass
        finally:
            self._reading.end()
            self._frames.give(sum(item.size for item in self._waiting))

    async def _read(self, receive: Receive) -> None:
        while (message := await receive())["type"] == "websocket.receive":
            text = message.get("text")
            if text is None:
                self._end = Refusal.BINARY_FRAME
                break
            await self._slots.acquire()
            item = read_frame(text.encode())
            await self._frames.take(item.size)
            self._waiting.append(item)
            self._changed.set()
        else:
            if message["code"] == RESTART:
                self._end = Refusal.SHUTTING_DOWN
        self._is_over = True
        self._changed.set()

    async def _answer(self) -> None:
        while self._waiting or not self._is_over:
            await self._changed.wait()
            self._changed.clear()
            batch, self._waiting = self._waiting, []
            try:
                await self._answer_batch(batch)
            finally:
                self._frames.give(sum(item.size for item in batch))
            for _ in batch:
                self._slots.release()
        if self._end is not None:
            await self._send(close_message(self._end))

    async def _answer_batch(self, batch: list[_Item]) -> None:
        for is_event, items in groupby(batch, key=lambda item: item.event is not None):
            if is_event:
                await self._answer_events([item.event for item in items if item.event is not None])
            else:
                for item in items:
                    await self._answer_other(item)

    async def _answer_other(self, item: _Item) -> None:
        if item.frame is not None:
            await self._reading.handle(item.frame)
        else:
            self._noticed(item.refusal)
            await self._say(("NOTICE", ok_message(item.refusal, item.detail)))

    async def _answer_events(self, raws: Sequence[bytes]) -> None:
        """Offer events in order, split before each postponed event that comes again, because it frees its lane."""
        together: list[bytes] = []
        for raw in raws:
            lane = self._returned(raw)
            if lane is not None:
                await self._offer(together)
                self._held.pop(lane, None)
                together = []
            together.append(raw)
        await self._offer(together)

    async def _offer(self, raws: Sequence[bytes]) -> None:
        if not raws:
            return
        answers = await self._publish(raws, frozenset(self._held))
        for raw, answer in zip(raws, answers, strict=True):
            if answer.refusal is not None and not REFUSALS[answer.refusal].is_permanent:
                self._hold(raw)
        for answer in answers:
            await self._say(answer.ok())
        if len(self._held) > HELD_LANES_MAX:
            await self._send({"type": "websocket.close", "code": POLICY, "reason": Refusal.HELD_BACK.value})
            raise _TooMuchHeld

    def _returned(self, raw: bytes) -> Lane | None:
        """The lane that waits for this event; None if none does."""
        place = _place(raw) if self._held else None
        return place[0] if place is not None and self._held.get(place[0]) == place[1] else None

    def _hold(self, raw: bytes) -> None:
        """Hold a lane until its postponed event comes again, unless it already waits for an earlier one."""
        place = _place(raw)
        if place is not None:
            self._held.setdefault(*place)

    async def _close(self, refusal: Refusal) -> None:
        self._is_closed = True
        await self._send(close_message(refusal))

    async def _say(self, frame: tuple[Any, ...]) -> None:
        """Send a frame. A client that has left hears nothing, but what it said before still counts."""
        try:
            await self._send({"type": "websocket.send", "text": msgspec.json.encode(frame).decode()})
        except ClientDisconnected:
            if self._is_closed:
                raise


def read_frame(raw: bytes) -> _Item:
    """The item in a text message."""
    try:
        return _Item(len(raw), event=bytes(_event_decoder.decode(raw).event))
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        return _Item(len(raw), frame=reading.read_frame(raw))
    except (msgspec.DecodeError, RecursionError) as error:
        if _verb(raw) in LATER_VERBS:
            detail = f"this relay does not serve {_verb(raw)}"
            return _Item(len(raw), refusal=Refusal.FEATURE_UNAVAILABLE, detail=detail)
        fault = ascii(str(error))[1:-1][:DETAIL_CHARACTERS_MAX]
        return _Item(len(raw), detail=f"message: {fault}")


def _place(raw: bytes) -> tuple[Lane, str] | None:
    """An event's lane and client_message_id; None if it cannot be read."""
    try:
        found = offer.read(raw)
    except Refused:
        return None
    return (found.lane, found.head.client_message_id) if isinstance(found, offer.Offer) else None


def _verb(raw: bytes) -> str:
    try:
        return _any_decoder.decode(raw).verb
    except (msgspec.DecodeError, RecursionError):
        return ""


def close_message(refusal: Refusal) -> dict[str, Any]:
    """The ASGI message that closes a connection with a refusal."""
    return {"type": "websocket.close", "code": REFUSALS[refusal].close_code, "reason": refusal.value}
