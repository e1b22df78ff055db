"""Nine ways in which a changes feed goes wrong quietly; ours must not. Each test says what its reader would suffer."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.protocol.event import Event
from holdfast.protocol.refusal import Refusal
from holdfast.protocol.schedule import HOUR, SECOND
from holdfast.relay.database import SCHEMA
from holdfast.relay.settings import FeedSettings, Limits, Settings
from holdfast.store.check import check
from tests.relay.feed_client import NOTE, Author, Feed, bootstrap, open_feed, tail
from tests.relay.feed_watch import put, watch
from tests.relay.library import shelve
from tests.relay.place import Place

SETTINGS = Settings(
    feed=FeedSettings(open=True, tombstones_max=1, compact_after_hours=1),
    limits=Limits(messages_per_s=1_000_000.0, messages_burst=1_000_000),
)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path / "relay.db", SETTINGS)
    yield made
    assert list(check(made.engine, SCHEMA)) == []
    asyncio.run(made.relay.close())


@pytest.fixture
def author(place: Place) -> Author:
    return Author(now_s=place.now // SECOND)


def turns(count: int = 100) -> Any:
    left = iter(range(count))
    return lambda: next(left, None) is None


@pytest.mark.parametrize("asked", [{}, {"#d": ["doc"]}, {"#d": ["doc", "another"]}], ids=str)
def test_the_state_and_its_position_are_of_one_moment(place: Place, author: Author, asked: dict[str, Any]) -> None:
    """If the position were taken first and the snapshots a moment later, what came between would be in the state and come
    again behind it; worse, what it replaced would be missing from a state that claims to be older."""
    old, new = author.snapshot("doc"), author.snapshot("doc")
    place.expect(201, old)

    async def meddle(frame: list[Any]) -> None:
        if frame[2] == "STATUS":
            await put(place, new, author.snapshot("doc"))

    seen = watch(place, bootstrap(author, live=True, **asked), meddle, until=turns())
    assert (seen.snapshots, seen.eose, seen.positions) == ([old.id], 1, [2, 3])


def test_what_comes_between_replay_and_live_is_not_lost(place: Place, author: Author) -> None:
    """If a reader were registered only after its replay was read, what came between would never be sent, and the position
    it is told to go on from would lie behind it: lost for ever."""
    place.expect(201, author.snapshot())

    async def meddle(frame: list[Any]) -> None:
        if (frame[2] == "EVENT" and frame[3] == 1) or frame[2] == "EOSE":
            await put(place, author.snapshot())

    seen = watch(place, tail(author, live=True), meddle, until=turns())
    assert seen.positions == [1, 2, 3]
    assert seen.eose == 1


def test_eose_covers_what_was_sent_and_no_more(place: Place, author: Author) -> None:
    """If EOSE named the last position of all though a limit or a bound had cut the replay short, whoever went on from
    there would skip the rest."""
    place.expect(201, *(author.snapshot() for _ in range(9)))
    assert watch(place, tail(author, limit=4)).eose == 4
    assert watch(place, tail(author, until_seq=6)).eose == 6
    got, after = [], 0
    while after < 9:
        part = watch(place, tail(author, since=after, limit=2))
        got += part.positions
        after = part.eose
    assert got == list(range(1, 10))


def test_filters_apply_to_everything_and_after_it_is_known_what_is_current(place: Place, author: Author) -> None:
    """If a limit or a filter came before the comparison of clocks, an old version would be handed over as current; if one
    of them were not looked at, a reader would get what it did not ask for; a silent cap would look like the end."""
    place.expect(
        201,
        author.snapshot("doc", {"A": 1}, c="notes"),
        author.snapshot("doc", {"A": 2}, c="drafts"),
        author.snapshot("gone", {"A": 1}, o="del", c="notes"),
        author.snapshot("other kind", {"A": 1}, kind=NOTE + 1, c="notes"),
    )
    assert watch(place, bootstrap(author, **{"#c": ["notes"]})).snapshots == [_id(place, 3)]
    assert watch(place, bootstrap(author, **{"#o": ["put"]})).snapshots == [_id(place, 2)]
    assert watch(place, bootstrap(author, kinds=[NOTE + 1])).snapshots == [_id(place, 4)]
    assert watch(place, tail(author, **{"#o": ["del"]})).positions == [3]
    assert watch(place, tail(author, **{"#c": ["drafts"]})).positions == [2]

    async def meddle(frame: list[Any]) -> None:
        if frame[2] == "EOSE":
            await put(place, author.snapshot("more"), author.snapshot("more"))

    bounded = watch(place, tail(author, since=4, until_seq=5, live=True), meddle)
    assert bounded.positions == [5]
    assert bounded.frames[-1] == ["CLOSED", "s", "until_seq is reached"]


def test_a_long_replay_is_not_cut_short(place: Place, author: Author) -> None:
    """A cap that nobody is told of, ten thousand say, and everything behind it is lost to whoever believes EOSE."""
    shelve(place.engine, author, documents=50, versions=201)
    seen = watch(place, tail(author))
    assert len(seen.positions) == 10_050 == seen.eose


def test_a_payload_that_is_gone_leaves_its_place(place: Place, author: Author) -> None:
    """If rows without payload fell out of the replay, a reader could not tell that there ever was something."""
    first, *rest = [author.snapshot(at_s=author.now_s - 9 + number) for number in range(6)]
    place.expect(201, first, *rest)
    place.now += HOUR
    asyncio.run(place.relay.sweep())
    frames = watch(place, tail(author)).frames
    assert frames[0] == ["EVENT-STATUS", "s", {"id": first.id, "status": "payload_compacted", "seq": 1}]
    assert watch(place, tail(author)).positions == [1, 2, 3, 4, 5, 6]


def test_two_snapshots_never_share_a_clock(place: Place, author: Author) -> None:
    """If both were current, readers would hold a conflict that no clock can resolve; if one were hidden, an edit is lost
    without a word. The second one's author is told, and nothing is stored."""
    first = author.snapshot(clock={"A": 1}, content="one")
    place.expect(201, first)
    place.refused(Refusal.CLOCK_REUSED, author.snapshot(clock={"A": 1}, content="two"))
    assert watch(place, bootstrap(author)).snapshots == [first.id]


def test_ids_and_signatures_are_checked_and_every_kind_of_the_range_is_taken(place: Place, author: Author) -> None:
    """If anybody could publish in anybody's name, one forged clock would bury a document for ever."""
    event, other = author.snapshot("doc", {"A": 1}), Author("eve", author.now_s).snapshot("doc", {"A": 2})
    fields = {name: getattr(other, name) for name in other.__struct_fields__}
    place.refused(Refusal.BAD_EVENT_ID, Event(**{**fields, "pubkey": author.key}))
    place.refused(Refusal.BAD_SIGNATURE, Event(**{**fields, "sig": event.sig}))
    place.expect(201, *(author.snapshot(str(kind), kind=kind) for kind in (40_000, 44_444, 49_999)))


def test_a_cursor_from_before_what_is_kept_is_refused(place: Place, author: Author) -> None:
    """If a replay from there began with whatever is left, its reader would believe that it missed nothing and keep what
    was deleted."""
    place.expect(201, *(author.snapshot(name, o="del") for name in ("one", "two", "three")))
    asyncio.run(place.relay.sweep())
    refused = watch(place, tail(author, since=0)).refused
    assert refused is not None
    assert refused.refusal is Refusal.CURSOR_EXPIRED
    assert watch(place, tail(author, since=2)).positions == [3]


def test_a_position_is_never_seen_before_one_that_is_smaller(tmp_path: Path) -> None:
    """If positions were given out before the commit, a late one would appear behind a cursor that has passed it, and no
    reader would ever come back for it."""
    author = Author()
    each, writers = 40, 5
    with open_feed(tmp_path / "relay") as feed, feed.client() as reader:
        reader.changes(tail(author, live=True))
        reader.expect_eose(0)
        threads = [threading.Thread(target=_write, args=(feed, author, name, each)) for name in range(writers)]
        for thread in threads:
            thread.start()
        frames = [reader.hear() for _ in range(each * writers)]
        for thread in threads:
            thread.join()
        assert [frame[3] for frame in frames] == list(range(1, each * writers + 1))
        with feed.client() as late:
            late.changes(tail(author))
            late.expect(*(["CHANGES", "s", "EVENT", frame[3], frame[4]] for frame in frames))


def _write(feed: Feed, author: Author, name: int, count: int) -> None:
    for number in range(1, count + 1):
        feed.put(author.snapshot(f"doc-{name}", {"A": number}))


def _id(place: Place, seq: int) -> str:
    ((event_id,),) = place.rows(f"SELECT event_id FROM snapshot WHERE seq = {seq}")
    return str(event_id.hex())
