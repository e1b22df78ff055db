"""The changes feed frame by frame: replay, the state, live, the seam between them, and how a subscription ends."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.protocol.feed_filter import read_changes
from holdfast.relay.answer import EVERYBODY, FEED
from holdfast.relay.changes import ChangesSubscription, Feeds
from holdfast.relay.neighbours import Seen
from holdfast.relay.settings import FeedSettings, Settings
from tests.relay.feed_client import Author, Feed, FeedClient, bootstrap, open_feed, shown, tail
from tests.relay.place import Place
from tests.relay.queue_client import eventually


@pytest.fixture
def feed(tmp_path: Path) -> Iterator[Feed]:
    with open_feed(tmp_path / "relay") as started:
        yield started


@pytest.fixture
def client(feed: Feed) -> Iterator[FeedClient]:
    with feed.client() as connected:
        yield connected


@pytest.fixture
def author() -> Author:
    return Author()


def test_a_snapshot_is_replayed_at_its_position(feed: Feed, client: FeedClient, author: Author) -> None:
    event = author.snapshot()
    ok = client.offer(event)
    assert ok[:3] == ["OK", event.id, True]
    client.changes(tail(author, since=0))
    client.expect(["CHANGES", "s", "EVENT", 1, shown(event)], ["CHANGES", "s", "EOSE", 1])


def test_an_empty_feed_ends_at_once_at_position_0(client: FeedClient, author: Author) -> None:
    client.changes(tail(author))
    client.expect_eose(0)
    client.changes(bootstrap(author))
    client.expect(["CHANGES", "s", "STATUS", {"mode": "bootstrap", "snapshot_seq": 0}], ["CHANGES", "s", "EOSE", 0])


def test_a_filter_passes_over_other_documents_and_covers_them(feed: Feed, client: FeedClient, author: Author) -> None:
    one, two = author.snapshot("doc-1"), author.snapshot("doc-2")
    feed.put(one, two)
    client.changes(tail(author, **{"#d": ["doc-2"]}))
    client.expect_events({2: two})
    client.expect_eose(2)
    client.changes(tail(author, **{"#d": ["doc-1"]}))
    client.expect_events({1: one})
    client.expect_eose(2)


def test_the_state_is_what_nothing_dominates(feed: Feed, client: FeedClient, author: Author) -> None:
    first = author.snapshot(clock={"A": 1}, at_s=author.now_s - 30)
    second = author.snapshot(clock={"A": 2}, at_s=author.now_s - 20)
    beside = author.snapshot(clock={"B": 1}, at_s=author.now_s - 10)
    feed.put(first, second, beside)
    client.changes(bootstrap(author))
    client.expect(
        ["CHANGES", "s", "STATUS", {"mode": "bootstrap", "snapshot_seq": 3}],
        ["CHANGES", "s", "SNAPSHOT", shown(second)],
        ["CHANGES", "s", "SNAPSHOT", shown(beside)],
        ["CHANGES", "s", "EOSE", 3],
    )


def test_the_state_is_ordered_by_date_and_then_by_id(feed: Feed, client: FeedClient, author: Author) -> None:
    late = author.snapshot("a", at_s=author.now_s)
    same = [author.snapshot(name, at_s=author.now_s - 5) for name in ("b", "c", "d", "e")]
    early = author.snapshot("f", at_s=author.now_s - 9)
    feed.put(late, *same, early)
    _, *snapshots, _ = client.ask_changes(bootstrap(author))
    expected = [early.id, *sorted(event.id for event in same), late.id]
    assert [frame[3]["id"] for frame in snapshots] == expected


def test_a_deletion_is_a_part_of_the_state(feed: Feed, client: FeedClient, author: Author) -> None:
    put, gone = author.snapshot(), author.snapshot(o="del")
    feed.put(put, gone)
    client.changes(bootstrap(author))
    client.expect(
        ["CHANGES", "s", "STATUS", {"mode": "bootstrap", "snapshot_seq": 2}],
        ["CHANGES", "s", "SNAPSHOT", shown(gone)],
        ["CHANGES", "s", "EOSE", 2],
    )


def test_what_comes_after_eose_is_sent_live(feed: Feed, client: FeedClient, author: Author) -> None:
    client.changes(tail(author, live=True))
    client.expect_eose(0)
    event = author.snapshot()
    feed.put(event)
    client.expect_events({1: event})


def test_a_live_subscription_filters_what_comes(feed: Feed, client: FeedClient, author: Author) -> None:
    client.changes(tail(author, live=True, **{"#d": ["wanted"], "#o": ["put"], "#c": ["notes"]}))
    client.expect_eose(0)
    wanted = author.snapshot("wanted", c="notes")
    feed.put(
        Author("somebody else").snapshot("wanted", c="notes"),
        author.snapshot("unwanted", c="notes"),
        author.snapshot("wanted", {"B": 1}, o="del", c="notes"),
        author.snapshot("wanted", {"C": 1}, c="drafts"),
        author.snapshot("wanted", {"D": 1}),
        author.snapshot("wanted", {"E": 1}, c="notes", kind=42062),
        wanted,
    )
    client.expect_events({7: wanted})


def test_close_ends_a_live_subscription_and_says_so(feed: Feed, client: FeedClient, author: Author) -> None:
    client.changes(tail(author, live=True), "first")
    client.expect_eose(0, "first")
    client.say("CLOSE", "first")
    client.expect(["CLOSED", "first", "closed"])
    client.changes(tail(author, live=True), "second")
    client.expect_eose(0, "second")
    events = [author.snapshot() for _ in range(5)]
    feed.put(*events)
    client.expect_events(dict(enumerate(events, 1)), "second")
    client.nothing_came()
    assert feed.subscriptions == 1


@pytest.fixture
def much(feed: Feed, author: Author) -> int:
    """More than a socket holds; returns how many."""
    events = [author.snapshot(f"doc-{number}", content="x" * 50_000) for number in range(400)]
    return len(feed.put(*events))


def test_close_ends_a_replay_that_is_under_way(feed: Feed, client: FeedClient, author: Author, much: int) -> None:
    client.changes(tail(author, live=True))
    client.hear()
    client.say("CLOSE", "s")
    heard = 1
    while client.hear() != ["CLOSED", "s", "closed"]:
        heard += 1
    assert heard < much
    client.nothing_came()


def test_the_same_id_replaces_a_replay_that_is_under_way(
    feed: Feed, client: FeedClient, author: Author, much: int
) -> None:
    client.changes(tail(author, live=True))
    client.hear()
    client.changes(tail(author, since=much, live=True))
    heard = 1
    while client.hear() != ["CHANGES", "s", "EOSE", much]:
        heard += 1
    assert heard < much
    client.nothing_came()


def test_close_of_an_unknown_subscription_is_answered_the_same(client: FeedClient) -> None:
    client.say("CLOSE", "nobody")
    client.expect(["CLOSED", "nobody", "closed"])


def test_two_publishers_get_positions_in_the_order_of_their_commits(feed: Feed, author: Author) -> None:
    one, two = author.snapshot("one"), author.snapshot("two")
    with feed.client() as first, feed.client() as second:
        assert '"history_id":1,' in first.offer(one)[3]
        assert '"history_id":2,' in second.offer(two)[3]
        second.changes(tail(author))
        second.expect_events({1: one, 2: two})
        second.expect_eose(2)


def test_every_subscriber_gets_what_comes(feed: Feed, author: Author) -> None:
    with feed.client() as one, feed.client() as two:
        for client in (one, two):
            for sub in ("s", "t"):
                client.changes(tail(author, live=True), sub)
                client.expect_eose(0, sub)
        event = author.snapshot()
        feed.put(event)
        for client in (one, two):
            frames = sorted(client.hear() for _ in range(2))
            assert frames == [["CHANGES", sub, "EVENT", 1, shown(event)] for sub in ("s", "t")]


def test_the_same_id_replaces_the_subscription_before(feed: Feed, client: FeedClient, author: Author) -> None:
    client.changes(tail(author, live=True, **{"#d": ["old"]}))
    client.expect_eose(0)
    client.changes(tail(author, live=True, **{"#d": ["new"]}))
    client.expect_eose(0)
    assert feed.subscriptions == 1
    news = [author.snapshot("new") for _ in range(3)]
    feed.put(author.snapshot("old"), *news)
    client.expect_events(dict(enumerate(news, 2)))
    client.nothing_came()


def test_req_replaces_changes_of_the_same_id_and_the_other_way_round(
    feed: Feed, client: FeedClient, author: Author
) -> None:
    client.changes(tail(author, live=True))
    client.expect_eose(0)
    assert client.request({"authors": [author.key]}, sub="s") == []
    first = author.snapshot()
    feed.put(first)
    client.expect(["EVENT", "s", shown(first)])
    client.changes(tail(author, since=1, live=True))
    client.expect_eose(1)
    second = author.snapshot()
    feed.put(second)
    client.expect_events({2: second})
    client.nothing_came()
    assert feed.subscriptions == 1


def test_a_refused_request_ends_the_subscription_it_was_to_replace(
    feed: Feed, client: FeedClient, author: Author
) -> None:
    client.changes(tail(author, live=True))
    client.expect_eose(0)
    assert client.refusal({}) == "invalid: mode_required: filter: no mode"
    assert feed.subscriptions == 0


def test_a_reader_that_comes_back_goes_on_where_it_was(feed: Feed, author: Author) -> None:
    one, two, three = (author.snapshot() for _ in range(3))
    feed.put(one)
    with feed.client() as client:
        client.changes(tail(author, live=True))
        client.expect_events({1: one})
        client.expect_eose(1)
    feed.put(two, three)
    with feed.client() as client:
        client.changes(tail(author, since=1, live=True))
        client.expect_events({2: two, 3: three})
        client.expect_eose(3)
        client.nothing_came()


def test_what_is_published_between_state_and_tail_comes_with_the_tail(
    feed: Feed, client: FeedClient, author: Author
) -> None:
    first, later = author.snapshot(), author.snapshot()
    feed.put(first)
    client.changes(bootstrap(author))
    client.expect(
        ["CHANGES", "s", "STATUS", {"mode": "bootstrap", "snapshot_seq": 1}],
        ["CHANGES", "s", "SNAPSHOT", shown(first)],
        ["CHANGES", "s", "EOSE", 1],
    )
    feed.put(later)
    client.changes(tail(author, since=1, live=True))
    client.expect_events({2: later})
    client.expect_eose(2)


def test_a_bootstrap_that_is_live_goes_on_as_a_tail(feed: Feed, client: FeedClient, author: Author) -> None:
    first, later = author.snapshot(), author.snapshot()
    feed.put(first)
    client.changes(bootstrap(author, live=True))
    client.expect(
        ["CHANGES", "s", "STATUS", {"mode": "bootstrap", "snapshot_seq": 1}],
        ["CHANGES", "s", "SNAPSHOT", shown(first)],
        ["CHANGES", "s", "EOSE", 1],
    )
    feed.put(later)
    client.expect_events({2: later})


def test_a_closed_socket_takes_its_subscriptions_along(feed: Feed, author: Author) -> None:
    with feed.client() as polite, feed.client() as rude:
        for client in (polite, rude):
            for sub in ("a", "b"):
                client.changes(tail(author, live=True), sub)
                client.expect_eose(0, sub)
            client.request({"authors": [author.key]})
        assert feed.subscriptions == 6
        rude.cut()
        eventually(lambda: feed.subscriptions == 3)
    eventually(lambda: feed.subscriptions == 0)
    feed.put(author.snapshot())  # it wakes nobody, and hurts nobody


def test_a_subscription_that_came_to_its_end_is_no_longer_counted(
    feed: Feed, client: FeedClient, author: Author
) -> None:
    client.changes(tail(author))
    client.expect_eose(0)
    client.changes(bootstrap(author), "t")
    client.until_eose()
    eventually(lambda: feed.subscriptions == 0)


def test_live_with_a_bound_ends_there(feed: Feed, client: FeedClient, author: Author) -> None:
    one, two, three = (author.snapshot() for _ in range(3))
    feed.put(one)
    client.changes(tail(author, until_seq=2, live=True))
    client.expect_events({1: one})
    client.expect_eose(1)
    feed.put(two, three)
    client.expect_events({2: two})
    client.expect(["CLOSED", "s", "until_seq is reached"])
    client.nothing_came()
    eventually(lambda: feed.subscriptions == 0)


def test_a_bound_that_others_reach_ends_it_too(feed: Feed, client: FeedClient, author: Author) -> None:
    client.changes(tail(author, until_seq=2, live=True))
    client.expect_eose(0)
    feed.relay.found_mesh("alice")  # no snapshot at all, but a position
    feed.put(Author("somebody else").snapshot())
    client.expect(["CLOSED", "s", "until_seq is reached"])


def test_a_bound_that_messages_reach_ends_it_within_a_moment(tmp_path: Path, author: Author) -> None:
    with open_feed(tmp_path / "relay", poll_interval_s=1) as feed, feed.client() as client:
        client.changes(tail(author, until_seq=1, live=True))
        client.expect_eose(0)
        feed.relay.found_mesh("alice")
        client.expect(["CLOSED", "s", "until_seq is reached"])


def test_who_waits_for_a_far_position_is_woken_when_the_history_comes_to_it_and_not_before(
    tmp_path: Path, author: Author
) -> None:
    """Twenty such tails, and every event of anybody would make twenty readers look for what is not for them."""
    place = Place(tmp_path / "relay.db", Settings(feed=FeedSettings(open=True)))
    feeds, other = Feeds(place.relay), Author("other", now_s=place.now // 1_000_000)

    async def say(frame: tuple[Any, ...]) -> None:
        raise AssertionError(frame)

    bounds = (4, 5, 6, None)
    asked = [tail(author, live=True, **({} if bound is None else {"until_seq": bound})) for bound in bounds]
    waiting = [ChangesSubscription(place.relay, "s", read_changes(json.dumps(one).encode()), say) for one in asked]
    for subscription in waiting:
        feeds.join(subscription)

    def woken() -> list[bool]:
        found = [subscription._news.is_set() for subscription in waiting]
        for subscription in waiting:
            subscription._news.clear()
        return found

    place.expect(201, other.snapshot(), other.snapshot(), other.snapshot())
    assert woken() == [False, False, False, False]
    place.expect(201, other.snapshot(), other.snapshot())
    assert woken() == [True, True, False, False]
    feeds.leave(waiting[0])
    asyncio.run(place.relay.wake_changed(Seen(4, 0)))  # a look, if a wake-up was lost
    assert woken() == [False, True, False, False]
    place.expect(201, Author(author.name, now_s=other.now_s).snapshot())
    assert woken() == [False, True, True, True]
    asyncio.run(place.relay.close())


def test_a_bound_that_is_reached_already_ends_it_at_once(feed: Feed, client: FeedClient, author: Author) -> None:
    one, two = author.snapshot(), author.snapshot()
    feed.put(one, two)
    client.changes(tail(author, until_seq=1, live=True))
    client.expect_events({1: one})
    client.expect_eose(1)
    client.expect(["CLOSED", "s", "until_seq is reached"])


def test_only_so_many_subscriptions_fit_on_a_connection(tmp_path: Path, author: Author) -> None:
    with open_feed(tmp_path / "relay", "[feed]\nsubscriptions_max = 2\n") as feed, feed.client() as client:
        for sub in ("a", "b"):
            client.changes(tail(author, live=True), sub)
            client.expect_eose(0, sub)
        refusal = "rate-limited: too_many_subscriptions: a connection may have 2 subscriptions"
        assert client.refusal(tail(author), "c") == refusal
        client.say("REQ", "d", {"authors": [author.key]})
        client.expect(["CLOSED", "d", refusal])
        client.changes(tail(author, live=True), "a")  # in the place of another
        client.expect_eose(0, "a")
        client.say("CLOSE", "b")
        client.expect(["CLOSED", "b", "closed"])
        client.changes(tail(author, live=True), "c")
        client.expect_eose(0, "c")
        with feed.client() as other:
            other.changes(tail(author, live=True))
            other.expect_eose(0)
            assert feed.subscriptions == 3
        assert feed.information["limitation"]["max_subscriptions"] == 2


def test_events_come_in_the_very_bytes_that_were_published(feed: Feed, client: FeedClient, author: Author) -> None:
    """Whoever checks a signature later must find every character as its author wrote it."""
    event = shown(author.snapshot('ü\u2028"\\/', content="\u0001 \U0001f600"))
    spaced = '[ "EVENT" , ' + json.dumps(event, indent=1, ensure_ascii=True) + " ]"
    client.socket.send(spaced)
    assert client.hear()[2] is True
    client.say("CHANGES", "s", tail(author))
    raw = client.socket.recv(60)
    assert json.dumps(event, indent=1, ensure_ascii=True) in str(raw)


def test_a_look_that_cannot_list_whose_feeds_grew_wakes_all_who_follow_one(tmp_path: Path, author: Author) -> None:
    place = Place(tmp_path / "relay.db", Settings())
    feeds = Feeds(place.relay)

    async def say(frame: tuple[Any, ...]) -> None:
        raise AssertionError(frame)

    def woken(*keys: tuple[str, str]) -> list[bool]:
        wanted = [read_changes(json.dumps(tail(one)).encode()) for one in (author, Author("another"))]
        followed = [ChangesSubscription(place.relay, "s", one, say) for one in wanted]
        for subscription in followed:
            feeds.join(subscription)
        feeds.wake(keys)
        for subscription in followed:
            feeds.leave(subscription)
        return [subscription._news.is_set() for subscription in followed]

    assert woken(("mesh", "member")) == [False, False]
    assert woken((FEED, author.key)) == [True, False]
    assert woken(EVERYBODY) == [True, True]
    asyncio.run(place.relay.close())
