"""Homes of one author and relays without sockets: a meeting of two can be cut at any frame, and a home can die at any commit."""

import asyncio
import hashlib
import itertools
import json
import shutil
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import httpx2 as httpx
import msgspec

from holdfast.device import author as authors
from holdfast.device import database, feed_relays
from holdfast.device.device import Device
from holdfast.device.feed_documents import read_clock
from holdfast.device.feed_link import FeedLink
from holdfast.device.home import Home
from holdfast.device.sync_client import SyncClient
from holdfast.protocol import document
from holdfast.protocol.clock import VectorClock, dominates
from holdfast.protocol.feed_filter import read_changes
from holdfast.protocol.history import Entry, Kind
from holdfast.protocol.reaction import FaultKind
from holdfast.protocol.refusal import Refused
from holdfast.protocol.snapshot import Operation
from holdfast.relay import database as relay_database
from holdfast.relay.changes import ChangesSubscription, Feeds
from holdfast.relay.feed_reading import _changes_refused as changes_refused
from holdfast.relay.publishing import _item as answer_item
from holdfast.relay.settings import FeedSettings, Limits, Settings
from holdfast.store import history
from holdfast.store.check import check
from holdfast.store.engine import Transaction
from holdfast.store.sqlite import SqliteEngine
from holdfast.wire import feed_frames
from holdfast.wire.client import Information, RelayClient, Said, SnapshotYes
from holdfast.wire.feed_frames import Frame
from holdfast.wire.relay_socket import SocketClosed
from tests.people import secret_of
from tests.relay.place import Place, Whose

AUTHOR = secret_of("the author")
QUICK = Limits(messages_per_s=1_000_000.0, messages_burst=1_000_000)
TURNS_MAX = 2_000  # of the event loop, for a meeting to come to rest
REST_TURNS = 25  # in which nothing happened: it has

T = TypeVar("T")


class Died(BaseException):
    """A process is gone."""


class MortalDevice(Device):
    """A home that can die at a commit: just before it, or just after."""

    lives = -1  # commits until then
    dies_before = False

    async def do_soon(self, request: Callable[[Transaction], T]) -> T:
        self.lives -= 1
        if self.lives == 0 and self.dies_before:
            raise Died
        done = await super().do_soon(request)
        if self.lives == 0:
            raise Died
        return done


class Town:
    """A relay whose feed is open; few deletions are remembered, and payloads go as soon as they may."""

    def __init__(self, path: Path, name: str, *, is_other_log: bool = False) -> None:
        self.url = f"http://{name}.example"
        settings = Settings(feed=FeedSettings(open=True, tombstones_max=1, compact_after_hours=0), limits=QUICK)
        self.settings = settings
        self.path = path / f"{name}.db"
        self.place = Place(self.path, settings)
        if is_other_log:
            with self.place.engine.write() as transaction:
                history.fork(transaction, self.place.now, b"another log only", b"")

    def compact(self) -> None:
        """Everything goes that may."""
        asyncio.run(self.place.relay.sweep())

    def check(self) -> None:
        """Every rule holds."""
        assert list(check(self.place.engine, relay_database.SCHEMA)) == []

    @asynccontextmanager
    async def conversation(self, secret: bytes, fuse: int = -1, lost: bool = False) -> AsyncIterator["Talk"]:
        talk = Talk(self, secret, fuse, lost)
        try:
            yield talk
        finally:
            talk.close()


class Talk:
    """A conversation with a relay in this very process, through the real frames and the real client."""

    def __init__(self, town: Town, secret: bytes, fuse: int, lost: bool) -> None:
        self._town = town
        self._fuse = fuse  # frames and requests until the connection is cut
        self._lost = lost  # whether a request that is cut arrives all the same
        self._frames: asyncio.Queue[bytes] = asyncio.Queue()
        self._feeds = Feeds(town.place.relay)
        self._subscription: ChangesSubscription | None = None
        self._task: asyncio.Task[None] | None = None
        transport = httpx.MockTransport(self._answer)
        clock, random = town.place.clock, town.place.random
        self._client = RelayClient(town.url, secret, clock=clock, random=random, transport=transport)
        self.moves = 0

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if self._subscription is not None:
            self._feeds.leave(self._subscription)
        self._town.place.relay._wakers.remove(self._feeds.wake)

    async def information(self) -> Information:
        head = self._town.place.relay.head()
        return Information(pubkey=Whose.pubkey, log_id=head.log_id.hex())

    async def ask_state(self, author: str, kind: int) -> None:
        self._ask({"mode": "bootstrap", "authors": [author], "kinds": [kind]})

    async def ask_changes(self, author: str, kind: int, since: int) -> None:
        self._ask({"mode": "tail", "authors": [author], "kinds": [kind], "since": since, "live": True})

    async def receive(self, most: int) -> list[Frame]:
        frames = [await self._frames.get()]
        while len(frames) < most and not self._frames.empty():
            frames.append(self._frames.get_nowait())
        found: list[Frame] = []
        for raw in frames:
            if self._burns():
                if found:
                    break
                raise self._cut()
            frame = feed_frames.read(raw)
            assert frame is not None
            found.append(frame)
        return found

    async def publish(self, events: Sequence[bytes]) -> list[Said]:
        is_cut = self._burns()
        if is_cut and not self._lost:
            return [Said(says=FaultKind.CONNECTION_LOST)] * len(events)
        answers = await self._client.publish_all(events, SnapshotYes)
        return [Said(says=FaultKind.CONNECTION_LOST)] * len(events) if is_cut else answers

    def _ask(self, asked: dict[str, Any]) -> None:
        if self._task is not None:
            self._task.cancel()
        wanted = read_changes(json.dumps(asked).encode())
        self._subscription = ChangesSubscription(self._town.place.relay, "s", wanted, self._say)
        self._feeds.join(self._subscription)
        self._task = asyncio.create_task(self._run(self._subscription))

    async def _run(self, subscription: ChangesSubscription) -> None:
        try:
            await subscription.run()
        except Refused as refused:
            await self._say(changes_refused("s", refused))

    async def _say(self, frame: tuple[Any, ...]) -> None:
        self.moves += 1
        self._frames.put_nowait(msgspec.json.encode(frame))
        await asyncio.sleep(0)

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        raws = [json.dumps(event, separators=(",", ":")).encode() for event in json.loads(request.content)]
        answers = await self._town.place.relay.publish(raws)
        items = [answer_item(answer) for answer in answers]
        return httpx.Response(200, content=msgspec.json.encode({"answers": items}))

    def _burns(self) -> bool:
        self.moves += 1
        self._fuse -= 1
        return self._fuse == 0

    def _cut(self) -> SocketClosed:
        return SocketClosed(self._town.url, FaultKind.CONNECTION_LOST, "cut")


class Dwelling:
    """A home of the author."""

    def __init__(self, path: Path, name: str, clock: Callable[[], int]) -> None:
        self.name = name
        self.path = path / f"{name}.db"
        self.ahead = 0  # of everybody else's clock, in microseconds
        self._clock: Callable[[], int] = lambda: clock() + self.ahead
        self._bytes = itertools.count(self.path.stat().st_size if self.path.exists() else 0)  # none comes twice
        self.acknowledged: set[bytes] = set()  # edits that a person was told are on disk
        self.open()
        self.device.do(partial(authors.keep, now=clock(), secret=AUTHOR))

    def open(self) -> None:
        engine = SqliteEngine(self.path)
        database.prepare(engine, self._clock, self.random)
        secret = secret_of(f"the home {self.name}")
        self.device = MortalDevice(Home(self.path.parent), engine, secret, self._clock, self.random)
        self.client = SyncClient(self.device)

    def random(self, count: int) -> bytes:
        number = next(self._bytes)
        return hashlib.shake_256(f"{self.name} {number}".encode()).digest(count)

    def revive(self) -> None:
        """The process is gone; another begins with what is on disk."""
        self.device.close()
        self.open()

    def remember(self) -> Path:
        """A copy of the home as it is, made by somebody who knows nothing of epochs."""
        self.device.close()
        copy = self.path.with_suffix(".copy")
        shutil.copy(self.path, copy)
        self.open()
        return copy

    def go_back(self, copy: Path) -> None:
        """The home is what it was then."""
        self.device.close()
        shutil.copy(copy, self.path)
        self.open()

    def add(self, *towns: Town) -> None:
        for town in towns:
            self.device.do(partial(feed_relays.add, now=self._clock(), relay=town.url))

    def edit(self, name: str, body: str | None, *, lives: int = -1, dies_before: bool = False) -> bool:
        """What a person does: edit, or if that is refused for a conflict, resolve. Says whether it was acknowledged."""
        self.device.lives, self.device.dies_before = lives, dies_before
        try:
            done = asyncio.run(self._edit(name, body))
        except Died:
            self.revive()
            return False
        except Refused:
            return False
        finally:
            self.device.lives = -1
        (version,) = done.versions
        self.acknowledged.add(bytes.fromhex(version.id))
        return True

    async def _edit(self, name: str, body: str | None) -> Any:
        is_conflict = any(one.name == name for one in self.client.documents(conflicts=True))
        if is_conflict:
            return await self.client.resolve(name, body)
        return await (self.client.delete(name) if body is None else self.client.put(name, body))

    def meet(
        self, town: Town, *, fuse: int = -1, lost: bool = False, lives: int = -1, dies_before: bool = False
    ) -> None:
        """Meet a relay until nothing more happens, or the connection is cut, or this home dies."""
        self.device.lives, self.device.dies_before = lives, dies_before
        try:
            asyncio.run(self._meet(town, fuse, lost))
        except Died:
            self.revive()
        except (SocketClosed, Refused):
            pass
        finally:
            self.device.lives = -1

    async def _meet(self, town: Town, fuse: int, lost: bool) -> None:
        author = self.device.look(authors.need)
        talks: list[Talk] = []

        @asynccontextmanager
        async def connect(relay: str, secret: bytes) -> AsyncIterator[Talk]:
            async with town.conversation(secret, fuse, lost) as talk:
                talks.append(talk)
                yield talk

        link = FeedLink(self.device, town.url, connect, admit=None, told=lambda: None)
        meeting = asyncio.create_task(link.meet(author))
        await _until_rest(meeting, lambda: sum(talk.moves for talk in talks))
        if not meeting.done():
            meeting.cancel()
        try:
            await meeting
        except asyncio.CancelledError:
            pass
        except BaseExceptionGroup as group:  # a death inside of several things that go on at once
            raise Died from group

    def rows(self, statement: str) -> list[Any]:
        return self.device.look(lambda tx: tx.rows(statement))

    def made(self) -> "Snapshots":
        return made(history.walk(self.device._engine))

    def entries(self, *kinds: Kind) -> list[Entry]:
        return [entry for entry in history.walk(self.device._engine) if entry.kind in kinds]

    def shown(self) -> dict[str, tuple[str, frozenset[str]]]:
        """What a person sees: every document that is there, its state, and its versions."""
        return {
            str(one.name): (one.status, frozenset(version.id for version in one.versions))
            for one in self.client.documents()
        }

    def waiting(self) -> int:
        ((count,),) = self.rows("SELECT count(*) FROM operation_log WHERE status IN ('pending', 'inflight')")
        return int(count)

    def check(self) -> None:
        """Every rule holds."""
        assert list(check(self.device._engine, database.SCHEMA)) == []

    def check_position(self, town: Town) -> None:
        """Everything is known here that the relay had taken up to where it was followed to, or something newer."""
        ((seq,),) = self.rows(f"SELECT coalesce(seq, 0) FROM feed_relay WHERE relay = '{town.url}'")
        known: dict[str, list[VectorClock]] = {}
        for d, text in self.rows("SELECT d, clock FROM snapshot"):
            known.setdefault(d, []).append(read_clock(text))
        for d, text in town.place.rows(f"SELECT d, clock FROM snapshot WHERE event IS NOT NULL AND seq <= {seq}"):
            clock = read_clock(text)
            assert any(one == clock or dominates(one, clock) for one in known.get(d, ())), "ahead of the disk"

    def close(self) -> None:
        self.device.close()


async def _until_rest(task: "asyncio.Task[None]", moves: Callable[[], int]) -> None:
    before, quiet = -1, 0
    for _ in range(TURNS_MAX):
        await asyncio.sleep(0)
        quiet = quiet + 1 if moves() == before else 0
        before = moves()
        if task.done() or quiet > REST_TURNS:
            return


Snapshots = dict[bytes, tuple[str, str, VectorClock]]
"""By event id: the document, what it does to that, and what it knew."""


def made(entries: Iterable[Entry]) -> Snapshots:
    """Everything that was written in a home, as its history tells."""
    found: Snapshots = {}
    for entry in entries:
        if entry.kind is Kind.SNAPSHOT and entry.reason in ("edited", "resolved") and entry.event_id is not None:
            said = json.loads(entry.detail)
            clock = VectorClock(tuple((device, counter) for device, counter in said["vc"]))
            found[entry.event_id] = (said["d"], said["o"], clock)
    return found


def made_in(*paths: Path) -> Snapshots:
    """The same of several homes, from their files."""
    found: Snapshots = {}
    for path in paths:
        engine = database.open_to_read(path)
        try:
            found |= made(history.walk(engine))
        finally:
            engine.close()
    return found


def frontier(snapshots: Snapshots, names: Iterable[str]) -> dict[str, tuple[str, frozenset[str]]]:
    """What everybody must see of these documents, worked out the slow way."""
    shown: dict[str, tuple[str, frozenset[str]]] = {}
    for name in names:
        d = document.document_id(AUTHOR, name)
        known = {event_id: (o, clock) for event_id, (of, o, clock) in snapshots.items() if of == d}
        left = {
            event_id: o
            for event_id, (o, clock) in known.items()
            if not any(dominates(other, clock) for _, other in known.values())
        }
        if Operation.PUT in left.values():
            shown[name] = ("ok" if len(left) == 1 else "conflict", frozenset(event_id.hex() for event_id in left))
    return shown
