"""REQ on the feed: by id, author, kind, date and tag, the newest first, then live; and who may read what on a private relay."""

import asyncio
import json
import socket as sockets
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from holdfast.protocol import administration
from holdfast.protocol.action import DismissAuthor
from holdfast.protocol.event import Event
from holdfast.protocol.feed_filter import FILTERS_MAX, Wanted, read_wanted
from holdfast.protocol.schedule import SECOND
from holdfast.protocol.snapshot import Snapshot
from holdfast.relay import feed as feeds
from holdfast.relay.feed import Row
from holdfast.relay.feed_requests import RequestSubscription
from holdfast.relay.relay import Relay
from holdfast.relay.settings import FeedSettings, Settings
from holdfast.store.engine import Transaction
from tests.relay.feed_client import NOTE, QUICK, Author, Feed, FeedClient, bootstrap, open_feed, served, shown, tail
from tests.relay.feed_watch import RequestWatch, put
from tests.relay.place import Place, Whose
from tests.relay.queue_client import eventually
from tests.relay.running import ANSWER_S, running

AUTHOR, OTHER = Author(), Author("somebody else")
TASK = 40_000
NOW = AUTHOR.now_s

EVENTS: dict[int, Event] = dict(
    enumerate(
        (
            AUTHOR.snapshot("one", {"A": 1}, at_s=NOW - 40),
            AUTHOR.snapshot("one", {"A": 2}, c="notes", at_s=NOW - 30),
            OTHER.snapshot("one", {"A": 1}, at_s=NOW - 20),
            AUTHOR.snapshot("two", {"A": 1}, o="del", at_s=NOW - 50),
            AUTHOR.snapshot("three", {"A": 1}, kind=TASK, c="tasks", at_s=NOW - 10),
        ),
        1,
    )
)
AGES = [5, 3, 2, 1, 4]  # positions, the newest first
ABSENT = Author("nobody").snapshot("absent")


@pytest.fixture(scope="module")
def feed(tmp_path_factory: pytest.TempPathFactory, on_store: str) -> Iterator[Feed]:
    with open_feed(tmp_path_factory.mktemp("requests") / "relay") as started:
        assert started.put(*EVENTS.values()) == list(EVENTS)
        yield started


@pytest.fixture
def client(feed: Feed) -> Iterator[FeedClient]:
    with feed.client() as connected:
        yield connected


def events_of(positions: list[int]) -> list[Any]:
    return [["EVENT", "r", shown(EVENTS[seq])] for seq in positions]


REQUESTS: list[tuple[list[dict[str, Any]], list[int]]] = [
    ([{}], AGES),
    ([{"ids": [EVENTS[2].id]}], [2]),
    ([{"ids": [EVENTS[1].id, EVENTS[5].id, EVENTS[1].id]}], [5, 1]),
    ([{"ids": [ABSENT.id]}], []),
    ([{"ids": [EVENTS[1].id, ABSENT.id]}], [1]),
    ([{"ids": []}], []),
    ([{"ids": [EVENTS[1].id], "authors": [OTHER.key]}], []),
    ([{"ids": [EVENTS[1].id, EVENTS[2].id], "limit": 1}], [2]),
    ([{"authors": [AUTHOR.key]}], [5, 2, 1, 4]),
    ([{"authors": [OTHER.key]}], [3]),
    ([{"authors": [OTHER.key, AUTHOR.key]}], AGES),
    ([{"authors": []}], []),
    ([{"kinds": [NOTE]}], [3, 2, 1, 4]),
    ([{"kinds": [TASK, NOTE]}], AGES),
    ([{"kinds": [1]}], []),
    ([{"kinds": []}], []),
    ([{"since": NOW - 30}], [5, 3, 2]),
    ([{"until": NOW - 30}], [2, 1, 4]),
    ([{"since": NOW - 40, "until": NOW - 20}], [3, 2, 1]),
    ([{"since": NOW + 1}], []),
    ([{"limit": 2}], [5, 3]),
    ([{"limit": 0}], []),
    ([{"limit": 9}], AGES),
    ([{"authors": [AUTHOR.key], "limit": 1, "kinds": [NOTE]}], [2]),
    ([{"#d": ["one"]}], [3, 2, 1]),
    ([{"#d": ["one", "two"], "authors": [AUTHOR.key]}], [2, 1, 4]),
    ([{"#d": []}], []),
    ([{"#o": ["del"]}], [4]),
    ([{"#c": ["tasks", "notes"]}], [5, 2]),
    ([{"#c": ["notes"], "#d": ["one"], "#o": ["put"]}], [2]),
    ([{"#d": ["two"]}, {"kinds": [TASK]}], [4, 5]),
    ([{"#d": ["one"]}, {"authors": [OTHER.key]}, {"ids": [EVENTS[1].id]}], [3, 2, 1]),
    ([{"limit": 1}, {}], [5, 3, 2, 1, 4]),
    ([{"limit": 2, "#d": ["one"]}, {"limit": 2}], [3, 2, 5]),
    ([{"limit": 0}, {"limit": 1}], [5]),
    ([{"ids": [EVENTS[3].id, EVENTS[1].id], "limit": 1}, {"#d": ["one"]}], [3, 2, 1]),
    ([{"#d": ["one"]}] * FILTERS_MAX, [3, 2, 1]),
]


def named(value: list[Any]) -> str:
    """What a filter asks by: ids and times are others in each process, and a test's name is not."""
    return " or ".join(map("+".join, value)) if value and isinstance(value[0], dict) else str(value)


@pytest.mark.parametrize(("filters", "found"), REQUESTS, ids=named)
def test_a_request_finds_what_matches_the_newest_first_and_nothing_twice(
    client: FeedClient, filters: list[dict[str, Any]], found: list[int]
) -> None:
    assert client.request(*filters) == events_of(found)


def test_of_one_second_the_smaller_id_comes_first(tmp_path: Path) -> None:
    events = [AUTHOR.snapshot(f"doc-{number}", {"A": 1}, at_s=NOW) for number in range(12)]
    with open_feed(tmp_path / "relay") as feed, feed.client() as client:
        feed.put(*events)
        ordered = sorted(events, key=lambda event: event.id)
        assert client.request({}) == [["EVENT", "r", shown(event)] for event in ordered]
        assert client.request({"limit": 5, "authors": [AUTHOR.key]}) == [
            ["EVENT", "r", shown(event)] for event in ordered[:5]
        ]


def test_more_than_a_page_comes_whole(tmp_path: Path) -> None:
    """Many small ones, of few seconds, and large ones, of which few fit on a page."""
    small = [AUTHOR.snapshot(f"doc-{number}", {"A": 1}, at_s=NOW - number % 3) for number in range(1_200)]
    large = [AUTHOR.snapshot(f"large-{number}", {"A": 1}, at_s=NOW - 9, content="x" * 60_000) for number in range(12)]
    ordered = sorted((*small, *large), key=lambda event: (-event.created_at, event.id))
    with open_feed(tmp_path / "relay") as feed, feed.client() as client:
        feed.put(*small, *large)
        for asked in ({}, {"authors": [AUTHOR.key]}):
            assert [frame[2]["id"] for frame in client.request(asked)] == [event.id for event in ordered]


def test_what_comes_and_matches_any_filter_is_sent_live_once(tmp_path: Path) -> None:
    with open_feed(tmp_path / "relay") as feed, feed.client() as client:
        filters = ({"#d": ["one"], "limit": 1}, {"kinds": [TASK]}, {"#d": ["one"], "authors": [AUTHOR.key]})
        assert client.request(*filters) == []
        wanted = [
            AUTHOR.snapshot("one", {"A": 1}),
            OTHER.snapshot("one", {"A": 1}),
            AUTHOR.snapshot("two", {"A": 1}, kind=TASK),
            AUTHOR.snapshot("one", {"A": 2}, at_s=5),
        ]
        for event in wanted:
            feed.put(AUTHOR.snapshot("unwanted"), event)
            client.expect(["EVENT", "r", shown(event)])
        assert feed.subscriptions == 1
        client.say("CLOSE", "r")
        client.expect(["CLOSED", "r", "closed"])
        assert feed.subscriptions == 0


def test_what_comes_while_a_request_is_served_comes_live_and_once(tmp_path: Path) -> None:
    settings = Settings(feed=FeedSettings(open=True, compact_after_hours=0))
    place = Place(tmp_path / "relay.db", settings)
    author = Author(now_s=place.now // SECOND)
    place.expect(201, author.snapshot("first"))
    late = author.snapshot("late")

    async def meddle(frame: list[Any]) -> None:
        if place.relay.head().seq == 1:
            await put(place, late)

    turns = iter(range(100))
    watching = RequestWatch(place, {"some": {"#d": ["first"]}, "more": {"ids": [late.id]}, "all": {}}, meddle)
    asyncio.run(watching.run(lambda: next(turns, None) is None))
    assert [frame[0] for frame in watching.frames] == ["EVENT", "EOSE", "EVENT"]
    asyncio.run(place.relay.close())


def test_what_is_gone_is_told_by_the_filter_that_names_it(tmp_path: Path) -> None:
    """Though an earlier filter would have brought it, had it been there."""
    settings = Settings(feed=FeedSettings(open=True, compact_after_hours=0, recent_count=1))
    place = Place(tmp_path / "relay.db", settings)
    author = Author(now_s=place.now // SECOND)
    old, new = author.snapshot(at_s=5), author.snapshot(at_s=6)
    place.expect(201, old, new)
    asyncio.run(place.relay.sweep())
    named = {"ids": [old.id, new.id]}
    watching = RequestWatch(place, {"all": {"authors": [author.key]}, "named": named, "again": named})
    turns = iter(range(20))
    asyncio.run(watching.run(lambda: next(turns, None) is None))
    assert watching.frames == [
        ["EVENT", "r", shown(new)],
        ["EVENT-STATUS", "r", {"id": old.id, "status": "payload_compacted", "seq": 1}],
        ["EOSE", "r"],
    ]
    asyncio.run(place.relay.close())


class Requested:
    """Frames that a request to a relay in this process brings."""

    def __init__(self, place: Place, authors: Sequence[Author], *filters: dict[str, Any]) -> None:
        self.frames: list[tuple[Any, ...]] = []
        self._is_whole = asyncio.Event()
        wanted = [read_wanted(json.dumps(asked).encode()) for asked in filters]
        self._subscription = RequestSubscription(place.relay, "r", wanted, [one.key for one in authors], self._say)
        asyncio.run(self._run())

    @property
    def ids(self) -> list[str]:
        return [json.loads(bytes(frame[2]))["id"] for frame in self.frames]

    async def _say(self, frame: tuple[Any, ...]) -> None:
        if frame[0] == "EOSE":
            self._is_whole.set()
        else:
            self.frames.append(frame)

    async def _run(self) -> None:
        running = asyncio.create_task(self._subscription.run())
        await asyncio.wait_for(self._is_whole.wait(), ANSWER_S)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.fixture
def open_place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path / "relay.db", Settings(feed=FeedSettings(open=True)))
    yield made
    asyncio.run(made.relay.close())


def test_several_authors_come_in_one_order_whatever_matches_and_wherever_a_page_ends(
    open_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "PAGE_ROWS", 3)
    rng = Random(1)
    authors = [Author(name, now_s=open_place.now // SECOND) for name in ("one", "two", "three")]
    events = [
        rng.choice(authors).snapshot(f"{rng.randrange(3)}-{number}", at_s=NOW - rng.randrange(20), c=rng.choice("xyz"))
        for number in range(60)
    ]
    open_place.expect(201, *events)
    ordered = sorted(events, key=lambda event: (-event.created_at, event.id))
    for classes in (["x"], ["x", "y"], ["x", "y", "z"], ["none"]):
        matching = [event.id for event in ordered if event.tags[2][1] in classes]
        for limit in (1, 2, 7, 60):
            assert Requested(open_place, authors, {"#c": classes, "limit": limit}).ids == matching[:limit]
        assert Requested(open_place, authors, {"#c": classes, "limit": 5}, {"#c": classes}).ids == matching


def test_an_author_is_read_as_far_as_the_order_has_come_though_nothing_of_him_matches(
    open_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "PAGE_ROWS", 3)
    pages: list[str] = []

    def counted(transaction: Transaction, author: str, *rest: Any) -> list[Row]:
        pages.append(author)
        return newest(transaction, author, *rest)

    newest = feeds.newest
    monkeypatch.setattr(feeds, "newest", counted)
    one, other = Author("one", now_s=open_place.now // SECOND), Author("other", now_s=open_place.now // SECOND)
    open_place.expect(201, *(other.snapshot(f"{number}", at_s=NOW - number) for number in range(60)))
    wanted = one.snapshot("wanted", at_s=NOW - 10)
    open_place.expect(201, wanted)
    assert Requested(open_place, (one, other), {"#d": ["wanted"], "limit": 1}).ids == [wanted.id]
    assert (pages.count(one.key), pages.count(other.key)) == (1, 4)


def test_what_matches_is_found_where_rows_are_read_and_not_on_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten filters of a thousand values each, and everybody would wait until every row was held against them."""
    place = Place(tmp_path / "relay.db", Settings(feed=FeedSettings(open=True)))
    authors = [Author(name, now_s=place.now // SECOND) for name in ("one", "two")]
    events = [author.snapshot(f"{number}") for author in authors for number in range(5)]
    place.expect(201, *events)
    place.relay = Relay(place.engine, place.relay.settings, Whose, clock=place.clock, random=place.random)
    threads: set[int] = set()

    def noted(wanted: Wanted, said: Snapshot) -> bool:
        threads.add(threading.get_ident())
        return match(wanted, said)

    match = Wanted.match
    monkeypatch.setattr(Wanted, "match", noted)
    named = {"ids": [event.id for event in events]}
    found = Requested(place, authors, {"#d": ["1"]}, named, {"limit": 100}).ids
    assert set(found) == {event.id for event in events}
    assert threads
    assert threading.get_ident() not in threads
    asyncio.run(place.relay.close())


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"ids": ["abc"]}, "filter: ids has 'abc', which is not 32 bytes in lower-case hex"),
    ({"authors": ["x" * 64]}, f"filter: authors has '{'x' * 40}...', which is not 32 bytes in lower-case hex"),
    ({"kinds": ["1"]}, "filter: Expected `int`, got `str` - at `$.kinds[0]`"),
    ({"since": -1}, "filter: Expected `int` >= 0 - at `$.since`"),
    ({"#p": ["x"]}, "filter: Object contains unknown field `#p`"),
    ({"search": "x"}, "filter: Object contains unknown field `search`"),
    ({"until_seq": 5}, "filter: Object contains unknown field `until_seq`"),
]


@pytest.mark.parametrize(("asked", "detail"), FAULTS, ids=lambda value: str(value)[:40])
def test_a_filter_that_cannot_be_kept_to_the_letter_is_refused(
    client: FeedClient, asked: dict[str, Any], detail: str
) -> None:
    client.say("REQ", "r", {}, asked)
    client.expect(["CLOSED", "r", f"invalid: malformed: {detail}"])


@pytest.mark.parametrize("filters", [[], [{}] * (FILTERS_MAX + 1)])
def test_no_filters_or_too_many_get_a_notice(client: FeedClient, filters: list[Any]) -> None:
    client.say("REQ", "r", *filters)
    assert client.hear()[0] == "NOTICE"


def test_count_is_not_served_and_says_so(client: FeedClient) -> None:
    client.say("COUNT", "c", {})
    client.expect(["NOTICE", "unsupported: feature_unavailable: this relay does not serve COUNT"])


def test_kinds_that_are_not_ours_are_blocked_over_a_socket(client: FeedClient) -> None:
    note = AUTHOR.snapshot(kind=1)
    text = "blocked: kind_unsupported: kind 1 is not one of 4201, 4202, 4204 or from 40000 to 49999"
    assert client.offer(note) == ["OK", note.id, False, text]


def test_the_open_feed_is_an_option_of_the_command_line(tmp_path: Path) -> None:
    with running(tmp_path / "relay", QUICK, options=["--open-feed"]) as relay:
        feed = Feed(relay)
        with feed.client() as client:
            assert client.offer(EVENTS[1])[2] is True
            client.changes(tail(AUTHOR))
            client.expect_events({1: EVENTS[1]})


# A private relay.


@pytest.fixture
def private(tmp_path: Path) -> Iterator[Feed]:
    """Alice and bob, and the authors' keys that they use, each admitted by its member."""
    with served(tmp_path / "relay", QUICK) as relay:
        relay.found_mesh("alice", "bob")
        for member, author in (("alice", AUTHOR), ("bob", OTHER)):
            person = relay.person(member)
            action = administration.admit_author(author.secret, person.mesh, person.member, bytes(32))
            assert str(relay.publish(person.administer(action))) == "201"
        yield Feed(relay)


NEEDS_AUTH = "auth-required: auth_required: this relay shows documents to their author"


def test_a_private_relay_asks_who_is_there(private: Feed) -> None:
    private.put(EVENTS[1])
    with private.client() as client:
        for asked in (tail(AUTHOR), bootstrap(AUTHOR), tail(AUTHOR, live=True)):
            assert client.refusal(asked) == NEEDS_AUTH
        for wanted in ({}, {"authors": [AUTHOR.key]}, {"ids": [EVENTS[1].id]}):
            client.say("REQ", "r", wanted)
            client.expect(["CLOSED", "r", NEEDS_AUTH])
        assert private.subscriptions == 0
        assert client.authenticate(AUTHOR.secret)[2] is True
        head = private.relay.head_seq()
        client.changes(tail(AUTHOR))
        client.expect_events({head: EVENTS[1]})
        client.expect_eose(head)


def test_a_private_relay_shows_documents_to_their_author_alone(private: Feed) -> None:
    mine, theirs = EVENTS[1], EVENTS[3]
    private.put(mine, theirs)
    with private.client(OTHER.secret) as client:
        restricted = f"restricted: author_only: the documents of {AUTHOR.key}"
        for asked in (tail(AUTHOR), bootstrap(AUTHOR)):
            assert client.refusal(asked) == restricted
        for authors in ([AUTHOR.key], [OTHER.key, AUTHOR.key]):
            client.say("REQ", "r", {"authors": authors})
            client.expect(["CLOSED", "r", restricted])
        client.say("REQ", "r", {}, {"authors": [AUTHOR.key]})
        client.expect(["CLOSED", "r", restricted])
        theirs_alone = [["EVENT", "r", shown(theirs)]]
        assert client.request({}) == theirs_alone
        assert client.request({"ids": [mine.id, theirs.id]}) == theirs_alone
        assert client.request({"authors": [OTHER.key]}) == theirs_alone
        assert client.request({"#d": ["one"]}) == theirs_alone
        private.put(EVENTS[2])
        later = OTHER.snapshot("one", {"A": 2})
        private.put(later)
        client.expect(["EVENT", "r", shown(later)])


def test_a_member_of_the_mesh_has_no_part_in_the_documents_of_another(private: Feed) -> None:
    private.put(EVENTS[1])
    with private.client(private.relay.person("alice").secret) as client:
        assert client.refusal(tail(AUTHOR)) == f"restricted: author_only: the documents of {AUTHOR.key}"
        assert client.request({}) == []


def test_who_shows_two_keys_reads_what_both_may(private: Feed) -> None:
    private.put(EVENTS[1], EVENTS[3])
    with private.client(OTHER.secret) as client:
        assert client.authenticate(AUTHOR.secret)[2] is True
        assert client.request({}) == events_of([3, 1])
        for author in (AUTHOR, OTHER):
            assert len(client.ask_changes(tail(author))) == 2
        third, alice = Author("somebody else again"), private.relay.person("alice")
        action = administration.admit_author(third.secret, alice.mesh, alice.member, bytes(32))
        assert str(private.relay.publish(alice.administer(action))) == "201"
        private.put(third.snapshot())
        private.put(EVENTS[2])
        client.expect(*events_of([2]))


def test_a_failed_authentication_shows_nothing(private: Feed) -> None:
    with private.client() as client:
        assert client.authenticate(AUTHOR.secret, challenge="0" * 64)[2] is False
        assert client.authenticate(AUTHOR.secret, url="http://127.0.0.1:1")[2] is False
        assert client.authenticate(AUTHOR.secret, at=-601)[2] is False
        assert client.refusal(tail(AUTHOR)) == NEEDS_AUTH


def test_an_author_who_is_dismissed_publishes_no_more_and_still_reads(private: Feed) -> None:
    private.put(EVENTS[1])
    alice = private.relay.person("alice")
    assert str(private.relay.publish(alice.administer(DismissAuthor(author=AUTHOR.key)))) == "201"
    assert private.refused(EVENTS[2]) == "author_not_admitted"
    with private.client(AUTHOR.secret) as client:
        refused = client.offer(EVENTS[2])
        assert refused[2:] == [False, f"restricted: author_not_admitted: no member admitted the author {AUTHOR.key}"]
        assert client.request({}) == events_of([1])


# Readers that do not read.


def test_a_reader_that_does_not_read_is_paused_then_closed_with_a_code_and_never_fed_a_gap(tmp_path: Path) -> None:
    """What it took before is all there was, up to where it ends; it goes on from there on another connection."""
    author = Author()
    events = [author.snapshot(f"doc-{number:03}", {"A": 1}, content="x" * 50_000) for number in range(400)]
    settings = "send_timeout_s = 1.0\n"
    with open_feed(tmp_path / "relay", settings) as feed:
        feed.put(*events)
        with feed.relay.websocket(max_queue=1, max_size=None) as slow:
            slow.socket.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 65_536)
            client = FeedClient(slow, feed.relay.challenges[slow], feed.relay.url)
            client.changes(tail(author, live=True))
            got: list[int] = [client.hear()[3]]  # or it might not have begun
            eventually(lambda: feed.subscriptions == 0)  # it was paused, and then it was over
            code, reason = _drain(client, got)
        assert (code, reason) == (4006, "slow_reader")
        assert 0 < len(got) < len(events)
        assert got == list(range(1, len(got) + 1))
        with feed.client() as client:
            client.changes(tail(author, since=got[-1]))
            assert [client.hear()[3] for _ in events[got[-1] :]] == list(range(got[-1] + 1, len(events) + 1))
            client.expect_eose(len(events))


def _drain(client: FeedClient, got: list[int]) -> tuple[int, str]:
    """Read what there is; returns how it ended."""
    with pytest.raises(ConnectionClosed) as closed:
        while True:
            got.append(client.hear()[3])
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code, closed.value.rcvd.reason
