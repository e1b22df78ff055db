"""Writers beside readers: nothing is lost, repeated or out of order, and a state stays the one it was."""

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.protocol.event import Event
from holdfast.relay.feed import PAGE_ROWS
from holdfast.relay.relay import Relay
from holdfast.relay.settings import FeedSettings, Limits, Settings
from holdfast.store.engine import Transaction
from holdfast.store.sqlite import SqliteEngine
from tests.relay.feed_client import Author, Feed, FeedClient, bootstrap, open_feed, tail
from tests.relay.feed_watch import Watch, put, watch
from tests.relay.place import Place, Whose
from tests.relay.running import ANSWER_S

LARGE = "x" * 60_000  # five fit on a page
WRITERS = 4
EACH = 60
ROUNDS = 6

OPEN = Settings(feed=FeedSettings(open=True), limits=Limits(messages_per_s=1_000_000.0, messages_burst=1_000_000))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path / "relay.db", OPEN)
    yield made
    asyncio.run(made.relay.close())


def numbered(author: Author, count: int, content: str = "sealed") -> list[Event]:
    return [
        author.snapshot(f"doc-{number:05}", {"A": 1}, at_s=author.now_s, content=content) for number in range(count)
    ]


@pytest.mark.parametrize("at_frame", range(13))
def test_what_comes_at_any_moment_of_a_replay_is_sent_once_and_in_order(place: Place, at_frame: int) -> None:
    author = Author(now_s=place.now // 1_000_000)
    place.expect(201, *numbered(author, 12, LARGE))
    frames, turns = itertools.count(), itertools.count()

    async def meddle(frame: list[Any]) -> None:
        if next(frames) == at_frame:
            await put(place, author.snapshot("late"), author.snapshot("late"))

    seen = watch(place, tail(author, live=True), meddle, until=lambda: next(turns) > 100)
    assert seen.positions == list(range(1, 15))
    assert seen.eose == 12  # what there was when it was asked


@pytest.mark.parametrize("at_frame", range(14))
def test_what_comes_at_any_moment_of_a_bootstrap_is_not_in_it_and_follows_it(place: Place, at_frame: int) -> None:
    author = Author(now_s=place.now // 1_000_000)
    first = numbered(author, 12, LARGE)
    place.expect(201, *first)
    frames, turns = itertools.count(), itertools.count()

    async def meddle(frame: list[Any]) -> None:
        """Two that supersede the last, and one the other, one that supersedes the first, and one from years ago."""
        if next(frames) == at_frame:
            await put(place, author.snapshot("doc-00011", {"A": 3}, at_s=author.now_s + 1))
            last = author.snapshot("doc-00011", {"A": 4}, at_s=author.now_s + 2)
            first = author.snapshot("doc-00000", {"A": 2}, at_s=author.now_s - 1)
            await put(place, last, first, author.snapshot("new", at_s=1))

    seen = watch(place, bootstrap(author, live=True), meddle, until=lambda: next(turns) > 100)
    assert seen.snapshots == sorted(event.id for event in first)
    assert (seen.frames[0][3]["snapshot_seq"], seen.eose) == (12, 12)
    assert seen.positions == [13, 14, 15, 16]


def test_a_reader_that_is_slower_than_the_writers_hears_eose_all_the_same(place: Place) -> None:
    """A replay ends at the position that was the last when it was asked for: it is not chased for ever."""
    author = Author(now_s=place.now // 1_000_000)
    place.expect(201, author.snapshot(), author.snapshot())

    async def meddle(frame: list[Any]) -> None:
        if place.relay.head().seq < 200:
            await put(place, author.snapshot())

    seen = watch(place, tail(author), meddle)
    assert (seen.positions, seen.eose) == ([1, 2], 2)


def test_a_live_reader_that_fell_behind_by_pages_gets_all_of_them(place: Place) -> None:
    author = Author(now_s=place.now // 1_000_000)
    place.expect(201, author.snapshot())

    async def meddle(frame: list[Any]) -> None:
        if frame[2] == "EOSE":
            await put(place, *numbered(author, 17, LARGE))

    turns = itertools.count()
    seen = watch(place, tail(author, live=True), meddle, until=lambda: next(turns) > 100)
    assert seen.positions == list(range(1, 19))


class InterruptedEngine(SqliteEngine):
    """A database in which something happens just after somebody has read, and before it is known what was read."""

    after_read: Callable[[], None] | None = None

    @contextmanager
    def read(self) -> Iterator[Transaction]:
        with super().read() as transaction:
            yield transaction
        if self.after_read is not None:
            happens, self.after_read = self.after_read, None
            happens()


@pytest.mark.parametrize("asked", [tail, bootstrap])
def test_what_comes_just_after_a_reader_found_nothing_more_wakes_it(tmp_path: Path, asked: Any) -> None:
    """Reads are done on threads: the wake-up of what comes meanwhile is there before the reader hears what it read."""
    engine = InterruptedEngine(tmp_path / "relay.db")
    place = Place(tmp_path / "relay.db", OPEN, engine)
    place.relay = Relay(engine, OPEN, Whose, clock=place.clock, random=place.random)
    author = Author(now_s=place.now // 1_000_000)
    deadline = time.monotonic() + ANSWER_S

    async def meddle(frame: list[Any]) -> None:
        if frame[2] == "EOSE":
            loop = asyncio.get_running_loop()
            engine.after_read = lambda: _wait_for(asyncio.run_coroutine_threadsafe(put(place, author.snapshot()), loop))

    seen = Watch(place, asked(author, live=True), meddle)
    asyncio.run(seen.run(lambda: bool(seen.positions) or time.monotonic() > deadline))
    assert seen.positions == [1]
    asyncio.run(place.relay.close())


def _wait_for(future: Future[list[int]]) -> None:
    assert future.result(ANSWER_S) == [1]


@pytest.mark.parametrize("count", [PAGE_ROWS - 1, PAGE_ROWS, PAGE_ROWS + 1, 2 * PAGE_ROWS])
def test_pages_end_anywhere_and_nobody_notices(place: Place, count: int) -> None:
    author, other = Author(now_s=place.now // 1_000_000), Author("other", now_s=place.now // 1_000_000)
    events = numbered(author, count)
    place.expect(201, *events, other.snapshot())
    assert watch(place, tail(author)).positions == list(range(1, count + 1))
    assert watch(place, tail(author)).eose == count + 1
    assert watch(place, tail(author, limit=count)).eose == count
    assert watch(place, bootstrap(author)).snapshots == sorted(event.id for event in events)
    wanted = watch(place, tail(author, **{"#d": [events[-1].tags[0][1], "absent"]}))
    assert (wanted.positions, wanted.eose) == ([count], count + 1)


moments = st.lists(st.tuples(st.integers(0, 25), st.integers(1, 4)), max_size=6)


@given(earlier=st.integers(0, 20), moments=moments, is_large=st.booleans(), mode=st.sampled_from([tail, bootstrap]))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whenever_somebody_writes_a_reader_misses_nothing(
    tmp_path_factory: pytest.TempPathFactory, earlier: int, moments: list[tuple[int, int]], is_large: bool, mode: Any
) -> None:
    place = Place(tmp_path_factory.mktemp("seam") / "relay.db", OPEN)
    author = Author(now_s=place.now // 1_000_000)
    if earlier:
        place.expect(201, *numbered(author, earlier, LARGE if is_large else "sealed"))
    frames, edits, turns = itertools.count(), itertools.count(1), itertools.count()
    due = sorted(moments)

    async def meddle(frame: list[Any]) -> None:
        now = next(frames)
        while due and due[0][0] <= now:
            _, count = due.pop(0)
            await put(place, *(author.snapshot(f"doc-{number:05}", {"B": next(edits)}) for number in range(count)))

    seen = watch(place, mode(author, live=True), meddle, until=lambda: next(turns) > 100)
    head = place.relay.head().seq
    if mode is tail:
        assert seen.positions == list(range(1, head + 1))
    else:
        assert len(seen.snapshots) == earlier == seen.eose
        assert seen.positions == list(range(earlier + 1, head + 1))
    asyncio.run(place.relay.close())


class Writer(threading.Thread):
    """Somebody who publishes on a socket of its own, each snapshot after the last was taken."""

    def __init__(self, feed: Feed, author: Author, device: str) -> None:
        super().__init__()
        self.feed, self.author, self.device = feed, author, device
        self.taken: list[str] = []
        self.start()

    def run(self) -> None:
        with self.feed.client() as client:
            for number in range(1, EACH + 1):
                event = self.author.snapshot(f"doc-{number % 7}", {self.device: number})
                assert client.offer(event)[2] is True
                self.taken.append(event.id)


def follow(client: FeedClient, after: int, until: int) -> dict[int, str]:
    """What a tail brings, by position; each position once and in order."""
    found: dict[int, str] = {}
    while after < until:
        frame = client.hear()
        if frame[2] == "EVENT":
            assert frame[3] > after, "out of order, or twice"
            after = frame[3]
            found[after] = frame[4]["id"]
        else:
            assert frame[2] == "EOSE", frame
            assert frame[3] >= after
    return found


def test_readers_beside_writers_miss_nothing_over_sockets(tmp_path: Path) -> None:
    """Several writers; meanwhile readers come again and again, take the state, and go on with what follows it."""
    author = Author()
    with open_feed(tmp_path / "relay") as feed:
        writers = [Writer(feed, author, f"device-{number}") for number in range(WRITERS)]
        states: list[tuple[int, set[str], dict[int, str]]] = []
        total = WRITERS * EACH

        def read() -> None:
            with feed.client() as client:
                (_, _, _, status), *snapshots, eose = client.ask_changes(bootstrap(author, live=True))
                assert eose[3] == status["snapshot_seq"]
                states.append((eose[3], {frame[3]["id"] for frame in snapshots}, follow(client, eose[3], total)))

        readers = []
        for _ in range(ROUNDS):
            readers += [threading.Thread(target=read) for _ in range(2)]
            for reader in readers[-2:]:
                reader.start()
            with feed.client() as client:  # from the beginning, and from anywhere
                head = feed.relay.head_seq()
                client.changes(tail(author, since=head // 2, live=True))
                follow(client, head // 2, min(total, head + 5))
        for thread in (*writers, *readers):
            thread.join()
        with feed.client() as client:
            client.changes(tail(author))
            everything = follow(client, 0, total)
        taken = [event_id for writer in writers for event_id in writer.taken]
        assert sorted(everything.values()) == sorted(taken)
        for writer in writers:
            order = [event_id for event_id in everything.values() if event_id in set(writer.taken)]
            assert order == writer.taken, "each writer's in its own order"
        assert len(states) == 2 * ROUNDS
        with feed.client() as client:
            for seq, state, after in states:
                assert list(after) == list(range(seq + 1, total + 1))
                assert after.items() <= everything.items()
                assert state == current_at(client, author, everything, seq)


def current_at(client: FeedClient, author: Author, everything: dict[int, str], seq: int) -> set[str]:
    """The state at a position from the tail up to there, by its clocks: of each device the last in each document."""
    frames = client.ask_changes(tail(author, until_seq=seq))
    assert frames.pop()[3] == seq
    newest: dict[tuple[str, str], str] = {}
    for frame in frames:
        tags = {tag[0]: tag[1] for tag in frame[4]["tags"]}
        newest[tags["d"], tags["vc"]] = frame[4]["id"]
    return set(newest.values())
