"""Readers of a relay without sockets: every frame passes through a test's hands, which may do anything before the next."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from holdfast.protocol.event import Event
from holdfast.protocol.feed_filter import read_changes, read_wanted
from holdfast.protocol.refusal import Refused
from holdfast.relay.answer import ALL
from holdfast.relay.changes import ChangesSubscription, Feeds, Subscription
from holdfast.relay.feed_requests import RequestSubscription
from tests.people import raw
from tests.relay.place import Place

Meddle = Callable[[list[Any]], Awaitable[None]]
"""What a test does when a frame leaves, before the next is read."""


@dataclass
class Watch:
    """One subscription and what it was sent."""

    place: Place
    asked: Mapping[str, Any]
    meddle: Meddle | None = None
    frames: list[Any] = field(default_factory=list)
    refused: Refused | None = None

    async def say(self, frame: tuple[Any, ...]) -> None:
        self.frames.append(json.loads(msgspec.json.encode(frame)))
        if self.meddle is not None:
            await self.meddle(self.frames[-1])

    async def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Follow it to its end, or until something is so and nothing more comes."""
        feeds, subscription = Feeds(self.place.relay), self.subscription()
        feeds.join(subscription)
        task = asyncio.create_task(self._run(subscription))
        while not task.done() and not until():
            await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        feeds.leave(subscription)

    def subscription(self) -> Subscription:
        wanted = read_changes(json.dumps(self.asked).encode())
        return ChangesSubscription(self.place.relay, "s", wanted, self.say)

    async def _run(self, subscription: Subscription) -> None:
        try:
            await subscription.run()
        except Refused as refused:
            self.refused = refused

    @property
    def positions(self) -> list[int]:
        """Of everything that stands at one, in the order it came."""
        return [frame[3] if frame[2] == "EVENT" else frame[2]["seq"] for frame in self.frames if _has_position(frame)]

    @property
    def snapshots(self) -> list[str]:
        return [frame[3]["id"] for frame in self.frames if frame[2] == "SNAPSHOT"]

    @property
    def eose(self) -> int:
        (seq,) = (frame[3] for frame in self.frames if frame[2] == "EOSE")
        return int(seq)


class RequestWatch(Watch):
    """The same of a REQ: `asked` has its filters by any names, in order."""

    def subscription(self) -> Subscription:
        filters = [read_wanted(json.dumps(wanted).encode()) for wanted in self.asked.values()]
        return RequestSubscription(self.place.relay, "r", filters, [ALL], self.say)


def _has_position(frame: list[Any]) -> bool:
    return "EVENT" in frame[2:3] or frame[0] == "EVENT-STATUS"


def watch(place: Place, asked: Mapping[str, Any], meddle: Meddle | None = None, **options: Any) -> Watch:
    """A subscription that was followed."""
    watching = Watch(place, asked, meddle)
    asyncio.run(watching.run(**options))
    return watching


async def put(place: Place, *events: Event) -> list[int]:
    """Publish what is taken, from within."""
    answers = await place.relay.publish([raw(event) for event in events])
    assert {answer.http_status for answer in answers} == {201}, answers
    return [answer.members["history_id"] for answer in answers]
