"""A relay with readers and no sockets: time, every frame and every cut are the test's, so that any order of them can happen."""

import asyncio
import json
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

from holdfast.protocol.connection_auth import sign_connection_auth
from holdfast.protocol.event import Event, encode
from holdfast.protocol.refusal import Refusal
from holdfast.protocol.schedule import SECOND
from holdfast.relay.changes import Feeds
from holdfast.relay.reading import Reading, read_frame
from holdfast.relay.settings import Settings
from holdfast.relay.stream import Streams
from holdfast.store.sqlite import MEMORY, SqliteEngine
from tests.people import Person, raw
from tests.relay.place import Place, make_topic, restarted

URL, CHALLENGE = "ws://relay", "challenge"
QUIET_TURNS = 12  # of the loop without anything new: then everybody waits for something

T = TypeVar("T")


class Reader:
    """One connection of a member. A message arrives when the test lets it."""

    def __init__(self, world: "World", person: Person, *, replay: bool = False, asks: bool = True) -> None:
        self.person = person
        self.frames: list[tuple[Any, ...]] = []  # that arrived
        self.closed: Refusal | None = None
        self.is_gone = False
        self._world = world
        self._tokens = asyncio.Semaphore(0)
        self._said: asyncio.Queue[list[Any]] = asyncio.Queue()
        auth = sign_connection_auth(person.secret, URL, CHALLENGE, world.place.now // SECOND, bytes(32))
        self.say("AUTH", json.loads(encode(auth)))
        if asks:
            self.ask(replay=replay)
        self._task = world.loop.create_task(self._serve())

    def ask(self, *, replay: bool = False) -> None:
        """Want the queue."""
        self.say("QUEUE", "q", {"mesh": self.person.mesh, "replay": replay})

    def say(self, *frame: Any) -> None:
        self._said.put_nowait(list(frame))

    def let_through(self, count: int) -> None:
        for _ in range(count):
            self._tokens.release()

    def cut(self) -> None:
        self.is_gone = True
        self._task.cancel()

    @property
    def messages(self) -> list[tuple[int, bool, str]]:
        """What has arrived: position, whether it had waited, id of the event."""
        return [
            (frame[3], frame[4]["was_stored"], json.loads(bytes(frame[5]))["id"])
            for frame in self.frames
            if frame[2:3] == ("MSG",)
        ]

    async def _serve(self) -> None:
        world = self._world
        reading = Reading(
            world.place.relay, world.streams, world.feeds, {URL}, CHALLENGE, self._arrive, self._be_closed
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                await reading.begin(tasks)
                while True:
                    frame = await self._said.get()
                    await reading.handle(read_frame(json.dumps(frame).encode()))
        finally:
            reading.end()

    async def _arrive(self, frame: tuple[Any, ...]) -> None:
        if frame[2:3] == ("MSG",):
            await self._tokens.acquire()
        self._world.moved += 1
        self.frames.append(frame)

    async def _be_closed(self, refusal: Refusal) -> None:
        self._world.moved += 1
        self.closed = refusal
        self.cut()


class World:
    """The relay, its clock, its people and whoever is connected."""

    def __init__(self, settings: Settings) -> None:
        self.loop = asyncio.new_event_loop()
        self.moved = 0
        self.settings = settings
        self.place = Place(None, settings, SqliteEngine(MEMORY)).settle()  # type: ignore[arg-type]  # no file
        make_topic(self.place, self.place.bob, self.place.carol)
        self._listen()

    def _listen(self) -> None:
        self.streams = Streams(self.place.relay)
        self.feeds = Feeds(self.place.relay)

    def publish(self, *events: Event) -> list[Any]:
        return self.run(self.place.relay.publish([raw(event) for event in events]))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something, and everything that follows from it."""
        return self.loop.run_until_complete(self._and_settle(work))

    def settle(self) -> None:
        self.loop.run_until_complete(self._and_settle(asyncio.sleep(0)))

    def restart(self) -> None:
        """Another process on the same store; whoever was connected is not."""
        self.place = restarted(self.place, self.settings)
        self._listen()

    def close(self) -> None:
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.wait(tasks))
        self.loop.run_until_complete(self.place.relay.close())
        self.loop.close()

    async def _and_settle(self, work: Awaitable[T]) -> T:
        done = await work
        quiet, seen = 0, self.moved
        while quiet < QUIET_TURNS:
            await asyncio.sleep(0)
            quiet = quiet + 1 if self.moved == seen else 0
            seen = self.moved
        return done
