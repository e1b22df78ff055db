"""Two relays on one database, killed, stopped and cut off from it under load: what was said yes to is there, once, in order.

Writers send to both relays and repeat what got no answer. Meanwhile somebody reads the history by position, as an exporter
or a feed does, and must never see a hole close behind it.
"""

import http.client
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from holdfast.protocol.event import Event
from holdfast.protocol.history import Entry, Kind
from holdfast.relay.database import open_to_read
from holdfast.store import faults, history
from tests.people import raw
from tests.postgres import Server
from tests.relay.pair import Pair, two_relays
from tests.relay.queue_client import Friends, following, ids
from tests.relay.running import RunningRelay

ROUNDS = int(os.environ.get("HOLDFAST_CRASH_CYCLES", "2"))
WRITERS = 8
TOGETHER = 5  # events in one request
PACE_S = 0.01  # between two of one writer: what is struck must have a core to come back on
MORE_S = 120.0  # for some more to be accepted, though one relay must lose its turn first, on a machine that may be busy
GENEROUS = "[limits]\nqueue_messages_max = 1000000\nmessages_burst = 1000000\nmessages_per_s = 100000\n"


class Load:
    """Writers at both relays, and a follower of the history."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.worlds = [Friends(pair[0]) for _ in range(WRITERS)]
        self.said: list[dict[str, int]] = [{} for _ in range(WRITERS)]  # of each writer: event id, position as answered
        self.followed: list[int] = []
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(number,)) for number in range(WRITERS)]
        self._written = threading.Event()
        self._follows = threading.Event()
        self._follower = threading.Thread(target=self._follow)

    def start(self) -> None:
        for thread in (*self._threads, self._follower):
            thread.start()
        assert self._follows.wait(MORE_S)  # a server that is struck before has nobody who could find it again

    def stop(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        self._written.set()
        self._follower.join()

    @property
    def count(self) -> int:
        return sum(map(len, self.said))

    def await_more(self, count: int = 4 * WRITERS) -> None:
        wanted, deadline = self.count + count, time.monotonic() + MORE_S
        while self.count < wanted:
            assert time.monotonic() < deadline, f"{wanted - self.count} more never came"
            time.sleep(0.01)

    def _write(self, number: int) -> None:
        friends = self.worlds[number]
        while not self._ended.is_set():
            events = [friends.alice.message(friends.bob, b"x" * 100) for _ in range(TOGETHER)]
            # The same bytes until all of them have their yes: at the same relay, and at the other when that says nothing.
            turn = number
            while events:
                answers = self._offered(self.pair[turn % 2], events)
                turn += 1
                self.said[number] |= {event.id: seq for event, seq in answers.items()}
                events = [event for event in events if event not in answers]
            time.sleep(PACE_S)

    def _offered(self, relay: RunningRelay, events: list[Event]) -> dict[Event, int]:
        body = b"[" + b",".join(map(raw, events)) + b"]"
        try:
            answered = relay.ask("POST", "/v1/messages", body)
        except (OSError, http.client.HTTPException):
            time.sleep(0.05)
            return {}
        if answered.status != 200:
            time.sleep(0.05)
            return {}
        answers = json.loads(answered.body)["answers"]
        return {
            event: answer["history_id"]
            for event, answer in zip(events, answers, strict=True)
            if answer["status"] in (200, 201)
        }

    def _follow(self) -> None:
        """Read on behind the last position that was seen, for as long as somebody writes and once more."""
        after, engine = 0, open_to_read(self.pair.url)
        with closing(engine):
            self._follows.set()
            while True:
                is_last = self._written.is_set()
                try:
                    with engine.read() as transaction:
                        page = [seq for (seq,) in transaction.rows(_FOLLOW, {"after": after})]
                except faults.ServerGone:
                    continue
                self.followed += page
                after = page[-1] if page else after
                if is_last:
                    return

    def check(self) -> None:
        """Nothing that was said yes to is missing, nothing is there twice, everything is in order."""
        with closing(open_to_read(self.pair.url)) as engine:
            entries = list(history.walk(engine))
        assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
        # What was asked of a relay that stood still may be written when everybody has gone; it has had no yes.
        assert self.followed == [entry.seq for entry in entries[: len(self.followed)]]
        assert self.followed[-1] >= max(seq for said in self.said for seq in said.values())
        accepted = [entry for entry in entries if entry.kind is Kind.ACCEPTED]
        for friends, said in zip(self.worlds, self.said, strict=True):
            self._check_writer(friends, said, [entry for entry in accepted if entry.mesh == friends.mesh])

    def _check_writer(self, friends: Friends, said: dict[str, int], entries: list[Entry]) -> None:
        positions = {entry.event_id.hex(): entry.seq for entry in entries if entry.event_id}
        assert len(positions) == len(entries)  # none twice
        assert said.items() <= positions.items()
        sequences = [entry.sequence for entry in entries]
        assert sequences == sorted(sequences, key=lambda sequence: sequence or 0)
        with following(self.pair[len(said) % 2], friends.bob) as bob:
            got = bob.until_live(acknowledge=True)
        assert ids(got) == [entry.event_id.hex() for entry in entries if entry.event_id]


_FOLLOW = "SELECT seq FROM history WHERE seq > :after ORDER BY seq"


@contextmanager
def loaded(pair: Pair) -> Iterator[Load]:
    load = Load(pair)
    load.start()
    try:
        load.await_more()
        yield load
    finally:
        load.stop()
    load.check()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, postgres: Server) -> Iterator[Pair]:
    with two_relays(tmp_path_factory.mktemp("relays"), postgres, GENEROUS) as made:
        yield made


def _killed(pair: Pair, number: int, load: Load) -> None:
    pair.kill(number)
    pair.start(number)


def _stopped(pair: Pair, number: int, load: Load) -> None:
    """Stopped wherever it is, perhaps in the middle of its turn at writing; the other goes on meanwhile."""
    pair[number].process.send_signal(signal.SIGSTOP)
    try:
        load.await_more()
    finally:
        pair[number].process.send_signal(signal.SIGCONT)


BLOWS: dict[str, Callable[[Pair, int, Load], None]] = {"killed": _killed, "stopped": _stopped}


@pytest.mark.timeout(0 if ROUNDS > 10 else 300)
@pytest.mark.parametrize("blow", BLOWS)
def test_a_relay_that_is_struck_under_load_loses_nothing_and_stops_no_other(
    pair: Pair, blow: str, record_property: Callable[[str, object], None]
) -> None:
    """Either relay, again and again."""
    chance = random.Random(ROUNDS)
    with loaded(pair) as load:
        for number in range(ROUNDS):
            BLOWS[blow](pair, number % 2, load)
            load.await_more(chance.randrange(4 * WRITERS))
    record_property(f"times {blow}", ROUNDS)
    record_property("messages", load.count)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT], ids=["stopped", "crashed"])
def test_a_server_that_is_started_again_under_load_is_found_again(pair: Pair, postgres: Server, number: int) -> None:
    with loaded(pair) as load:
        postgres.stop(number)
        postgres.start()
        load.await_more(8 * WRITERS)
