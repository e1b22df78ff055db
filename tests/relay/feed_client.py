"""Authors and readers of the feed, over real sockets: frame by frame."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from holdfast.cli.check import inspect
from holdfast.cli.relay_process import open_in
from holdfast.export.exporter import Exporter
from holdfast.protocol.event import Event, encode, sign_event
from holdfast.relay.database import EXPORT_READER
from holdfast.relay.service import Service
from holdfast.relay.settings import Settings, load
from holdfast.wire.network import SystemNetwork
from tests.people import public_key, secret_of
from tests.relay import store
from tests.relay.queue_client import TOGETHER, QueueClient
from tests.relay.running import ANSWER_S, RunningRelay

NOTE = 42061  # a kind of the sync range
QUICK = "[limits]\nmessages_per_s = 1000000\nmessages_burst = 1000000\n"


def _seconds() -> int:
    return int(time.time())


@dataclass
class Author:
    """Somebody with documents; one that edits on one device, unless a test says which."""

    name: str = "author"
    now_s: int = field(default_factory=_seconds)
    counters: dict[str, int] = field(default_factory=dict)

    @property
    def secret(self) -> bytes:
        return secret_of(self.name)

    @property
    def key(self) -> str:
        return public_key(self.secret)

    def snapshot(
        self,
        d: str = "doc",
        clock: Mapping[str, int] | None = None,
        *,
        o: str = "put",
        c: str | None = None,
        kind: int = NOTE,
        at_s: int | None = None,
        content: str = "sealed",
    ) -> Event:
        """A snapshot with this clock, or with the next one of the author's first device."""
        if clock is None:
            self.counters[d] = self.counters.get(d, 0) + 1
            clock = {"A": self.counters[d]}
        vc = [("vc", device, str(counter)) for device, counter in sorted(clock.items())]
        tags = [("d", d), ("o", o), *([("c", c)] if c is not None else []), *vc]
        return sign_event(self.secret, self.now_s if at_s is None else at_s, kind, tags, content, bytes(32))


def shown(event: Event) -> Any:
    """An event as it stands in a frame."""
    return json.loads(encode(event))


def tail(author: Author, **more: Any) -> dict[str, Any]:
    return {"mode": "tail", "kinds": [NOTE], "authors": [author.key], **more}


def bootstrap(author: Author, **more: Any) -> dict[str, Any]:
    return {"mode": "bootstrap", "kinds": [NOTE], "authors": [author.key], **more}


class FeedClient(QueueClient):
    """One connection that reads feeds."""

    def offer(self, event: Event) -> Any:
        """Publish on this connection, on which nothing else comes; returns the OK."""
        self.say("EVENT", shown(event))
        return self.hear()

    def changes(self, asked: Mapping[str, Any], sub: str = "s") -> None:
        self.say("CHANGES", sub, asked)

    def expect(self, *frames: Sequence[Any]) -> None:
        """These frames come next, to the letter."""
        assert [self.hear() for _ in frames] == [list(frame) for frame in frames]

    def expect_events(self, events: Mapping[int, Event], sub: str = "s") -> None:
        """These changes come next, by their positions."""
        self.expect(*(["CHANGES", sub, "EVENT", seq, shown(event)] for seq, event in events.items()))

    def expect_eose(self, seq: int, sub: str = "s") -> None:
        self.expect(["CHANGES", sub, "EOSE", seq])

    def until_eose(self) -> list[Any]:
        """Every frame up to EOSE, and that."""
        frames = [self.hear()]
        while "EOSE" not in frames[-1][:3]:
            assert not {"ERR", "CLOSED"} & {str(word) for word in frames[-1][:3]}, frames[-1]
            frames.append(self.hear())
        return frames

    def ask_changes(self, asked: Mapping[str, Any], sub: str = "s") -> list[Any]:
        self.changes(asked, sub)
        return self.until_eose()

    def refusal(self, asked: Mapping[str, Any], sub: str = "s") -> str:
        """The text of the ERR that answers."""
        self.changes(asked, sub)
        frame = self.hear()
        *where, text = frame
        assert where == ["CHANGES", sub, "ERR"], frame
        return str(text)

    def request(self, *filters: Mapping[str, Any], sub: str = "r") -> list[Any]:
        """Every frame that a REQ brings, without EOSE; the subscription stays."""
        self.say("REQ", sub, *filters)
        frames = self.until_eose()
        assert frames.pop() == ["EOSE", sub]
        return frames


@dataclass
class Feed:
    """A relay whose feed is open, alone with its test, so that the first position is 1."""

    relay: RunningRelay

    def put(self, *events: Event) -> list[int]:
        """Publish what is taken; returns the positions."""
        return [int(answer["history_id"]) for answer in self.offered(*events, status=201)]

    def offered(self, *events: Event, status: int | None = None) -> list[dict[str, Any]]:
        answers: list[dict[str, Any]] = []
        for start in range(0, len(events), TOGETHER):
            body = b"[" + b",".join(encode(event) for event in events[start : start + TOGETHER]) + b"]"
            answers += self.relay.ask("POST", "/v1/messages", body).document["answers"]
        assert status is None or {answer["status"] for answer in answers} == {status}, answers
        return answers

    def refused(self, event: Event) -> str:
        """The code of the refusal."""
        (answer,) = self.offered(event)
        return str(answer["code"])

    @contextmanager
    def client(self, secret: bytes | None = None) -> Iterator[FeedClient]:
        """A connection, that has shown a key if one is named."""
        with self.relay.websocket() as socket:
            client = FeedClient(socket, self.relay.challenges[socket], self.relay.url)
            if secret is not None:
                assert client.authenticate(secret)[2] is True
            yield client

    @property
    def information(self) -> Any:
        return self.relay.ask("GET", "/", headers={"accept": "application/nostr+json"}).document

    @property
    def subscriptions(self) -> int:
        return int(self.relay.metric("holdfast_feed_subscriptions"))


@dataclass
class ServedRelay(RunningRelay):
    """A relay in this very process, on a real socket: it is there at once, so every test can have its own."""

    process: Any = None
    log_file: Path = Path()


@contextmanager
def open_feed(data: Path, settings: str = "", *, poll_interval_s: int = 86_400) -> Iterator[Feed]:
    """A relay that takes snapshots of anybody and shows them to anybody; no poll helps a wake-up that was missed."""
    polling = f"[queue]\npoll_interval_s = {poll_interval_s}\n"
    with served(data, f"{polling}{QUICK}{settings}", is_open=True) as relay:
        yield Feed(relay)


@contextmanager
def served(data: Path, settings: str = "", *, is_open: bool = False) -> Iterator[ServedRelay]:
    """A relay that serves while the block does; afterwards its database keeps every rule."""
    data.mkdir()
    config = data.with_suffix(".toml")
    config.write_text(settings)
    chosen = load(config, {})
    chosen = replace(chosen, port=0, feed=replace(chosen.feed, open=is_open), store=store.url(data))
    serving = _Serving(data, chosen)
    thread = threading.Thread(target=serving.run)
    thread.start()
    try:
        relay = ServedRelay(serving.url.result(ANSWER_S), data)
        yield relay
        assert relay.metric("holdfast_bugs_total") == relay.metric("holdfast_faults_total") == 0
    finally:
        serving.stop()
        thread.join()
    assert inspect(store.where(data / "relay.db")) == ("relay", [])


class _Serving:
    """An event loop on a thread, with a relay in it."""

    def __init__(self, data: Path, settings: Settings) -> None:
        self.url: Future[str] = Future()
        self._data = data
        self._settings = settings
        self._stop = asyncio.Event()

    def run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if self.url.done():
                raise
            self.url.set_exception(error)

    def stop(self) -> None:
        if self.url.exception() is None:
            self._loop.call_soon_threadsafe(self._stop.set)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        engine, relay = open_in(self._data, self._settings)
        service = Service(relay, Exporter(engine.where, EXPORT_READER))
        try:
            await service.start(SystemNetwork())
            self.url.set_result(service.url)
            await service.run_until(self._stop)
        finally:
            await service.close()
