"""What the feed lets go of and when, who holds it back, and how those who come too late are told."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from holdfast.protocol.event import Event
from holdfast.protocol.history import Kind
from holdfast.protocol.refusal import Refusal
from holdfast.protocol.schedule import DAY, HOUR, SECOND
from holdfast.relay import feed as feeds
from holdfast.relay.changes import Feeds
from holdfast.relay.database import SCHEMA
from holdfast.relay.feed_reading import Changes, FeedReading
from holdfast.relay.feed_sweep import prune_deleted
from holdfast.relay.settings import FeedRetention, FeedSettings, Limits, Retention, Settings
from holdfast.store.check import check
from holdfast.store.engine import Transaction
from tests.relay.feed_client import Author, bootstrap, open_feed, shown, tail
from tests.relay.feed_watch import Watch, put, watch
from tests.relay.place import Place, restarted

QUICK = Limits(messages_per_s=1_000_000.0, messages_burst=1_000_000)
LARGE = "x" * 60_000  # five fit on a page


def chosen(**feed: Any) -> Settings:
    return Settings(feed=FeedSettings(open=True, **feed), limits=QUICK)


@contextmanager
def a_place(path: Path, settings: Settings) -> Iterator[Place]:
    made = Place(path / "relay.db", settings)
    yield made
    assert list(check(made.engine, SCHEMA)) == []
    asyncio.run(made.relay.close())


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with a_place(tmp_path, chosen(tombstones_max=2, compact_after_hours=1)) as made:
        yield made


@pytest.fixture
def author(place: Place) -> Author:
    return Author(now_s=place.now // SECOND)


def swept(place: Place) -> tuple[int, int]:
    """How many payloads and how many rows of deleted documents one round of sweeps took."""
    gone = asyncio.run(place.relay.sweep())
    return gone["compacted_snapshots"].total(), gone["pruned_snapshots"].total()


def edits(author: Author, count: int, d: str = "doc") -> list[Event]:
    """Each knew of the one before, and is dated a second after it."""
    return [author.snapshot(d, at_s=author.now_s - count + number) for number in range(count)]


def kept(place: Place, author: Author) -> list[int]:
    """The positions whose payloads a tail still brings."""
    return [frame[3] for frame in watch(place, tail(author)).frames if frame[2] == "EVENT"]


def min_seq(place: Place) -> int:
    with place.engine.read() as transaction:
        return feeds.min_seq(transaction)


@pytest.mark.parametrize(
    ("retention", "recent_count", "expected"),
    [
        (FeedRetention.CURRENT_ONLY, 4, [9]),
        (FeedRetention.NONDOMINATED_PLUS_RECENT_HISTORY, 4, [6, 7, 8, 9]),
        (FeedRetention.NONDOMINATED_PLUS_RECENT_HISTORY, 2, [8, 9]),
        (FeedRetention.NONDOMINATED_PLUS_RECENT_HISTORY, 1, [9]),
        (FeedRetention.NONDOMINATED_PLUS_RECENT_HISTORY, 100, list(range(1, 10))),
        (FeedRetention.FULL_RETENTION, 1, list(range(1, 10))),
    ],
)
def test_each_mode_keeps_what_it_says(
    tmp_path: Path, retention: FeedRetention, recent_count: int, expected: list[int]
) -> None:
    with a_place(tmp_path, chosen(retention=retention, recent_count=recent_count, compact_after_hours=0)) as place:
        author = Author(now_s=place.now // SECOND)
        place.expect(201, *edits(author, 9))
        swept(place)
        assert kept(place, author) == expected
        seen = watch(place, tail(author))
        assert (seen.positions, seen.eose, min_seq(place)) == (list(range(1, 10)), place.relay.head().seq, 1)


def test_a_snapshot_that_is_no_longer_wanted_is_kept_for_a_while(place: Place, author: Author) -> None:
    place.expect(201, *edits(author, 5))
    place.now += HOUR - 1
    assert swept(place) == (0, 0)
    place.now += 1
    assert swept(place) == (1, 0)
    assert kept(place, author) == [2, 3, 4, 5]
    (entry,) = place.entries(Kind.COMPACTED)
    assert (entry.seq, entry.reason, entry.destination_kind, entry.destination_ref) == (
        6,
        "payload",
        "feed",
        author.key,
    )
    assert entry.detail == (1).to_bytes(8, "big") + b"doc"
    assert swept(place) == (0, 0)


def test_in_the_place_of_a_payload_that_is_gone_stands_that_it_was_there(place: Place, author: Author) -> None:
    events = edits(author, 6)
    place.expect(201, *events)
    place.now += HOUR
    assert swept(place) == (2, 0)
    assert watch(place, tail(author)).frames == [
        ["EVENT-STATUS", "s", {"id": events[0].id, "status": "payload_compacted", "seq": 1}],
        ["EVENT-STATUS", "s", {"id": events[1].id, "status": "payload_compacted", "seq": 2}],
        *(["CHANGES", "s", "EVENT", seq, shown(events[seq - 1])] for seq in (3, 4, 5, 6)),
        ["CHANGES", "s", "EOSE", 8],
    ]
    limited = watch(place, tail(author, limit=1))
    assert (limited.positions, limited.eose) == ([1], 1)  # a cursor passes it, and it counts
    assert watch(place, tail(author, since=1, until_seq=2)).positions == [2]


def test_a_live_reader_gets_the_status_of_what_is_gone_before_it_came_to_it(place: Place, author: Author) -> None:
    place.expect(201, author.snapshot(content=LARGE))

    async def meddle(frame: list[Any]) -> None:
        """As soon as it hears EOSE, and before it reads on, there is much to read, and some of it is gone."""
        if frame[2] == "EOSE":
            await put(place, *edits(author, 6))
            place.now += HOUR
            await place.relay.sweep()

    turns = iter(range(100))
    seen = watch(place, tail(author, live=True), meddle, until=lambda: next(turns, None) is None)
    statuses = [frame[2]["seq"] for frame in seen.frames if frame[0] == "EVENT-STATUS"]
    assert seen.positions == [1, 2, 3, 4, 5, 6, 7]
    assert statuses == [2, 3, 4]  # the first is dated last


def test_the_newest_the_window_an_older_concurrent_one_and_a_tombstone_are_kept(place: Place, author: Author) -> None:
    beside = author.snapshot("doc", {"B": 1}, at_s=1)
    gone = author.snapshot("deleted", o="del", at_s=2)
    place.expect(201, beside, gone, *edits(author, 9))
    place.now += HOUR
    swept(place)
    assert kept(place, author) == [1, 2, 9, 10, 11]  # two are current, so two recent ones make four
    assert watch(place, bootstrap(author)).snapshots == [
        beside.id,
        gone.id,
        watch(place, tail(author)).frames[-2][4]["id"],
    ]


def test_each_document_has_its_own_window(place: Place, author: Author) -> None:
    place.expect(
        201, *edits(author, 6, "one"), *edits(author, 2, "two"), *edits(Author("other", author.now_s), 5, "one")
    )
    place.now += HOUR
    assert swept(place) == (3, 0)
    assert kept(place, author) == [3, 4, 5, 6, 7, 8]


def test_a_late_comer_that_nobody_wants_goes_in_its_time(place: Place, author: Author) -> None:
    place.expect(201, *edits(author, 4))
    late = author.snapshot("doc", {"A": 1}, at_s=5, content="late")
    place.expect(201, late)
    place.now += HOUR
    assert swept(place) == (1, 0)
    (again,) = place.expect(200, late)
    assert (again.members["standing"], again.members["history_available"]) == ("dominated", False)


def test_a_current_snapshot_is_never_let_go_of(place: Place, author: Author) -> None:
    beside = [author.snapshot("doc", {f"device-{number}": 1}) for number in range(10)]
    place.expect(201, *beside)
    place.now += 1000 * DAY
    assert swept(place) == (0, 0)
    place.expect(201, author.snapshot("doc", {f"device-{number}": 1 for number in range(10)} | {"device-0": 2}))
    place.now += HOUR
    assert swept(place) == (7, 0)
    assert len(kept(place, author)) == 4


def test_the_information_document_tells_what_is_kept(tmp_path: Path) -> None:
    settings = "[feed]\ncompact_after_hours = 0\nrecent_count = 4\n[retention]\nsweep_interval_s = 1\n"
    author = Author()
    with open_feed(tmp_path / "relay", settings) as feed, feed.client() as client:
        assert feed.information["snapshot_sync"]["retention"]["snapshot_retention"]["min_created_at"] is None
        events = edits(author, 5)
        feed.put(*events)
        client.changes(tail(author, live=True))
        told = feed.information
        while told["snapshot_sync"]["retention"]["snapshot_retention"]["min_created_at"] == events[0].created_at:
            told = feed.information
        assert told["changes_feed"] == {"min_seq": 1}
        assert told["snapshot_sync"] == {
            "changes_feed": True,
            "author_scoped": True,
            "retention": {
                "snapshot_retention": {
                    "mode": "nondominated_plus_recent_history",
                    "recent_count": 4,
                    "min_created_at": events[1].created_at,
                }
            },
        }
        assert 42 in told["supported_nips"]
        wanted = {"ids": [event.id for event in events]}
        assert client.until_eose()[-1][3] in (5, 6)
        assert client.request(wanted) == [
            *(["EVENT", "r", shown(event)] for event in reversed(events[1:])),
            ["EVENT-STATUS", "r", {"id": events[0].id, "status": "payload_compacted", "seq": 1}],
        ]


def test_a_compacted_snapshot_is_told_from_one_that_never_was(place: Place, author: Author) -> None:
    events = edits(author, 5)
    place.expect(201, *events)
    place.now += HOUR
    swept(place)
    (known,) = place.expect(200, events[0])
    assert known.members["history_available"] is False
    with place.engine.read() as transaction:
        found = feeds.by_id(transaction, [events[0].id, events[1].id, author.snapshot("absent").id])
    assert [(row.seq, row.is_kept) for row in found] == [(2, 1), (1, 0)]


# Deleted documents.


def deleted(author: Author, *names: str) -> list[Event]:
    return [event for name in names for event in (author.snapshot(name), author.snapshot(name, o="del"))]


def test_only_so_many_deleted_documents_are_remembered_whole(place: Place, author: Author) -> None:
    place.expect(201, *deleted(author, "one", "two"))
    assert swept(place) == (0, 0)
    place.expect(201, *deleted(author, "three"))
    assert swept(place) == (0, 2)
    assert min_seq(place) == 3
    (entry,) = place.entries(Kind.COMPACTED)
    assert (entry.reason, entry.detail, entry.event_id) == ("deleted", (2).to_bytes(8, "big") + b"one", None)
    seen = watch(place, tail(author, since=2))
    assert seen.positions == [3, 4, 5, 6]
    refused = watch(place, tail(author, since=1)).refused
    assert refused is not None
    assert (refused.refusal, refused.detail) == (Refusal.CURSOR_EXPIRED, "since 1 is before min_seq 3")
    assert swept(place) == (0, 0)


def test_the_oldest_deletions_go_first_whatever_was_made_first(place: Place, author: Author) -> None:
    place.expect(201, *(author.snapshot(name) for name in ("one", "two", "three")))
    place.expect(201, *(author.snapshot(name, o="del") for name in ("three", "one", "two")))
    swept(place)
    assert place.rows("SELECT d FROM document WHERE pruned_seq IS NOT NULL") == [("three",)]
    assert min_seq(place) == 5


def test_a_deletion_counts_from_when_it_came_though_it_came_with_what_it_deleted(place: Place, author: Author) -> None:
    made = [author.snapshot(name) for name in ("one", "two", "three")]
    gone = [author.snapshot(name, o="del") for name in ("two", "three", "one")]
    place.expect(201, *made, *gone)  # in one request
    swept(place)
    assert place.rows("SELECT d FROM document WHERE pruned_seq IS NOT NULL") == [("two",)]


def test_a_document_that_lives_on_beside_its_deletion_is_not_pruned(place: Place, author: Author) -> None:
    place.expect(201, author.snapshot("alive", {"A": 1}), author.snapshot("alive", {"B": 1}, o="del"))
    place.expect(201, *deleted(author, "one", "two"))
    assert swept(place) == (0, 0)
    place.expect(201, author.snapshot("alive", {"A": 1, "B": 2}, o="del"))
    assert swept(place) == (0, 2)
    assert place.rows("SELECT d FROM document WHERE pruned_seq IS NOT NULL") == [("one",)]


def test_each_author_has_deletions_of_its_own(place: Place, author: Author) -> None:
    other = Author("other", author.now_s)
    place.expect(201, *deleted(author, "one", "two"), *deleted(other, "one", "two"))
    assert swept(place) == (0, 0)


def test_what_was_pruned_cannot_come_back(place: Place, author: Author) -> None:
    old = [author.snapshot("one", {"A": 1}), author.snapshot("one", {"A": 2, "B": 1}, o="del")]
    place.expect(201, *old, *deleted(author, "two", "three"))
    assert swept(place) == (0, 2)
    (note,) = place.expect(201, old[0])
    assert note.members["standing"] == "dominated"
    place.refused(Refusal.CLOCK_REUSED, author.snapshot("one", {"A": 2, "B": 1}, content="again"))
    other = author.snapshot("one", {"B": 1}, content="from a device that was away")
    (late,) = place.expect(201, other)
    assert late.members["standing"] == "dominated"
    assert old[0].id not in watch(place, bootstrap(author)).snapshots
    assert watch(place, bootstrap(author, **{"#d": ["one"]})).snapshots == []
    (new,) = place.expect(201, author.snapshot("one", {"A": 3, "B": 1}))
    assert new.members["standing"] == "current"
    assert len(watch(place, bootstrap(author, **{"#d": ["one"]})).snapshots) == 1


def test_what_only_a_pruned_deletion_knew_of_is_shown_to_nobody(place: Place, author: Author) -> None:
    """A reader who came after the pruning would take it for a document: it has never heard of the deletion."""
    old = author.snapshot("one", {"A": 1})
    place.expect(201, old, author.snapshot("one", {"A": 2}, o="del"), *deleted(author, "two", "three"))
    swept(place)
    began = place.relay.head().seq
    (late,) = place.expect(201, old)
    assert (late.members["standing"], late.members["duplicate"]) == ("dominated", False)
    seq = late.members["history_id"]
    assert watch(place, tail(author, since=began)).frames == [
        ["EVENT-STATUS", "s", {"id": old.id, "status": "payload_compacted", "seq": seq}],
        ["CHANGES", "s", "EOSE", place.relay.head().seq],
    ]
    entry = place.entries(Kind.COMPACTED)[-1]
    assert (entry.reason, entry.event_id) == ("payload", bytes.fromhex(old.id))
    assert entry.detail == seq.to_bytes(8, "big") + b"one"
    (again,) = place.expect(200, old)
    assert (again.members["standing"], again.members["history_available"]) == ("dominated", False)


def test_a_pruned_deletion_is_told_anew_where_somebody_made_the_document_again_without_knowing_of_it(
    place: Place, author: Author
) -> None:
    gone = author.snapshot("one", {"A": 2}, o="del")
    place.expect(201, gone, *deleted(author, "two", "three"))
    swept(place)
    place.expect(201, author.snapshot("one", {"B": 1}, o="del"))
    place.expect(200, gone)  # it is deleted all the same
    made = author.snapshot("one", {"C": 1})
    new, old = place.expect(201, made, gone)
    assert (new.members["standing"], old.members["standing"], old.members["duplicate"]) == ("current", "current", False)
    assert set(watch(place, bootstrap(author, **{"#d": ["one"]})).snapshots) >= {made.id, gone.id}
    place.expect(200, gone)
    place.refused(Refusal.CLOCK_REUSED, author.snapshot("one", {"A": 2}, o="del", content="another"))


def test_a_pruned_deletion_that_the_document_knew_of_when_it_was_made_again_is_dominated(
    place: Place, author: Author
) -> None:
    gone = author.snapshot("one", {"A": 2}, o="del")
    place.expect(201, gone, *deleted(author, "two", "three"))
    swept(place)
    place.expect(201, author.snapshot("one", {"A": 3}))
    (old,) = place.expect(201, gone)
    assert old.members["standing"] == "dominated"


def left_of(place: Place, d: str) -> list[Any]:
    ((text,),) = place.rows(f"SELECT pruned FROM document WHERE d = '{d}'")
    return [clock for _, _, clock in json.loads(text)]


def test_a_deletion_that_was_pruned_is_still_known_when_it_is_offered_again(place: Place, author: Author) -> None:
    """Whoever has it and does not find it in the state offers it again, and must not be told that it is somebody else's."""
    gone = author.snapshot("one", {"A": 2}, o="del")
    place.expect(201, gone, *deleted(author, "two", "three"))
    assert swept(place) == (0, 1)
    before = place.dump()
    (again,) = place.expect(200, gone)
    told = {name: again.members[name] for name in ("history_id", "standing", "duplicate", "history_available")}
    assert told == {"history_id": 1, "standing": "current", "duplicate": True, "history_available": False}
    place.refused(Refusal.CLOCK_REUSED, author.snapshot("one", {"A": 2}, o="del", content="another"))
    assert place.dump() == before


def test_a_pruned_deletion_that_is_offered_again_takes_no_part_of_its_authors_pace(tmp_path: Path) -> None:
    limits = Limits(messages_burst=12, messages_per_s=0.000_001)
    settings = Settings(limits=limits, feed=FeedSettings(open=True, tombstones_max=1))
    with a_place(tmp_path, settings) as place:
        author = Author(now_s=place.now // SECOND)
        events = [author.snapshot(name, o="del") for name in "abcdefghij"]
        place.expect(201, *events)
        assert swept(place) == (0, 9)
        place.now += HOUR  # or they would be free as what was counted a moment ago
        place.expect(200, *events)
        place.expect(201, author.snapshot("one"), author.snapshot("two"))
        place.refused(Refusal.RATE_LIMITED, author.snapshot("three"))


def test_what_was_pruned_twice_still_knows_what_it_knew_the_first_time(place: Place, author: Author) -> None:
    place.expect(201, author.snapshot("one", {"A": 5}, o="del"), *deleted(author, "two", "three"))
    swept(place)
    place.expect(201, author.snapshot("one", {"B": 1}, o="del"), *deleted(author, "four", "five"))
    swept(place)
    assert left_of(place, "one") == [[["A", 5]], [["B", 1]]]
    for clock in ({"A": 4}, {"B": 1}, {"A": 5}):
        answer = place.one(author.snapshot("one", clock, content="back"))
        standing = answer.members.get("standing")
        assert standing == "dominated" or answer.refusal is Refusal.CLOCK_REUSED, clock
    place.expect(201, author.snapshot("one", {"A": 6, "B": 2}, o="del"), *deleted(author, "six", "seven"))
    swept(place)
    assert left_of(place, "one") == [[["A", 6], ["B", 2]]]


@pytest.mark.parametrize("versions", [3, 9, 10, 11, 19, 20, 21, 45])
def test_a_long_history_goes_in_steps(tmp_path: Path, versions: int) -> None:
    """An older deletion stands beside it, a late comer in it; between two steps nothing is lost of what it knew."""
    settings = replace(chosen(tombstones_max=1), retention=Retention(sweep_rows_max=10))
    with a_place(tmp_path, settings) as place:
        author = Author(now_s=place.now // SECOND)
        beside, *history = author.snapshot("long", {"B": 1}, o="del"), *edits(author, versions, "long")
        late = author.snapshot("long", {"A": 1}, content="late")
        place.expect(201, beside, *history, late, author.snapshot("long", o="del"), *deleted(author, "short"))
        steps: list[int] = []
        rows = versions + 3
        while not steps or steps[-1] >= 10:
            gone = asyncio.run(place.relay.decide(partial(prune, place, settings)))
            steps.append(gone)
            assert place.rows("SELECT count(*) FROM snapshot WHERE d = 'long'") == [(rows - sum(steps),)]
            assert list(check(place.engine, SCHEMA)) == []
            place.refused(Refusal.CLOCK_REUSED, author.snapshot("long", {"B": 1}, content="again"))
            (again,) = place.expect(200, beside)
            assert again.members["standing"] == "current"
            for clock in ({"A": 1}, {"A": versions}):
                answer = place.one(author.snapshot("long", clock, content=f"back {clock} {len(steps)}"))
                assert answer.members["standing"] == "dominated"
                rows += 1
        assert max(steps) <= 11  # nine of its history, and the two that stand side by side
        assert min_seq(place) > versions
        reasons = [entry.reason for entry in place.entries(Kind.COMPACTED) if entry.reason != "payload"]
        assert reasons == ["superseded"] * (len(reasons) - 1) + ["deleted"]
        assert left_of(place, "long") == [[["B", 1]], [["A", versions + 1]]]


def test_what_is_pruned_last_may_be_older_than_what_was_pruned_before(tmp_path: Path) -> None:
    settings = replace(chosen(tombstones_max=0), retention=Retention(sweep_rows_max=10))
    with a_place(tmp_path, settings) as place:
        author = Author(now_s=place.now // SECOND)
        place.expect(201, *edits(author, 9), author.snapshot(o="del"))
        place.expect(201, author.snapshot("doc", {"A": 1}, content="late"))
        assert swept(place) == (0, 11)
        assert place.rows("SELECT pruned_seq, currents FROM document") == [(11, 0)]
        assert [entry.reason for entry in place.entries(Kind.COMPACTED)] == ["superseded", "deleted"]


def test_a_step_ends_between_two_documents_too(tmp_path: Path) -> None:
    settings = replace(chosen(tombstones_max=0), retention=Retention(sweep_rows_max=4))
    with a_place(tmp_path, settings) as place:
        author, other = Author(now_s=place.now // SECOND), Author("other", place.now // SECOND)
        place.expect(201, *deleted(author, *"abcdef"), *deleted(other, *"abc"))
        steps = [asyncio.run(place.relay.decide(partial(prune, place, settings))) for _ in range(6)]
        assert steps == [4, 4, 4, 4, 2, 0]


def prune(place: Place, settings: Settings, transaction: Transaction) -> int:
    passed = place.relay.head().seq
    return prune_deleted(transaction, place.now, passed, (), settings.feed, settings.retention.sweep_rows_max)


def test_a_document_that_left_much_is_not_pruned_again(place: Place, author: Author) -> None:
    """What it left is kept for ever and compared with whatever comes: without a bound an author could slow down everybody."""
    for cycle in range(5):
        clocks = [{f"{number:02}-{cycle}-{'x' * 120}": 1} for number in range(90)]
        place.expect(201, *(author.snapshot("much", clock, o="del") for clock in clocks))
        place.expect(201, *deleted(author, *(f"{cycle}-{number}" for number in range(3))))
        swept(place)
    assert len(left_of(place, "much")) == 4 * 90
    assert place.rows("SELECT count(*) FROM snapshot WHERE d = 'much'") == [(90,)]
    assert place.rows("SELECT count(*) FROM document WHERE puts = 0 AND currents > 0") == [(2,)]
    for cycle in range(5):
        place.refused(Refusal.CLOCK_REUSED, author.snapshot("much", {f"00-{cycle}-{'x' * 120}": 1}))


def test_full_retention_lets_nothing_go_whatever_was_set_before(place: Place, author: Author) -> None:
    place.expect(201, *edits(author, 9), *deleted(author, "one", "two", "three"))
    place.now += DAY
    restarted(place, chosen(retention=FeedRetention.FULL_RETENTION, tombstones_max=1))
    assert swept(place) == (0, 0)
    assert kept(place, author) == list(range(1, 16))


# Who holds it back.


def move(place: Place, seq: int) -> None:
    asyncio.run(place.relay.move_consumer("lake", place.relay.head().log_id, seq))


def positions(place: Place, *events: Event) -> list[int]:
    return [answer.members["history_id"] for answer in place.expect(201, *events)]


def test_a_registered_consumer_holds_back_compaction_and_pruning(place: Place, author: Author) -> None:
    move(place, 0)
    first, second, *_ = positions(place, *edits(author, 6))
    _, one, *_ = positions(place, *deleted(author, "one", "two", "three"))
    place.now += HOUR
    assert swept(place) == (0, 0)
    move(place, first)
    assert swept(place) == (1, 0)
    move(place, one - 1)
    assert (second < one, swept(place)) == (True, (1, 0))
    move(place, one)
    assert swept(place) == (0, 2)
    assert min_seq(place) == one + 1


def test_a_late_row_of_a_deleted_document_waits_for_the_consumer_too(place: Place, author: Author) -> None:
    *_, two, _, three = positions(place, *deleted(author, "one", "two", "three"))
    move(place, three)
    (late,) = positions(place, author.snapshot("one", {"A": 1}, content="late"))
    assert swept(place) == (0, 2)  # the next oldest in its place
    assert min_seq(place) == two + 1
    move(place, late)
    place.expect(201, *deleted(author, "four"))
    assert swept(place) == (0, 3)
    assert min_seq(place) == late + 1


def test_a_consumer_that_stays_away_holds_nothing_back_any_longer(place: Place, author: Author) -> None:
    move(place, 0)
    place.expect(201, *edits(author, 5), *deleted(author, "one", "two", "three"))
    place.now += 7 * DAY
    assert swept(place) == (1, 2)


def test_a_database_that_is_too_large_waits_for_nobody(tmp_path: Path) -> None:
    settings = replace(chosen(compact_after_hours=0), retention=Retention(history_hold_bytes=131_072))
    with a_place(tmp_path, settings) as place:
        author = Author(now_s=place.now // SECOND)
        move(place, 0)
        place.expect(201, *edits(author, 9), author.snapshot("large", content=LARGE))
        assert swept(place) == (5, 0)


# Bootstraps.


def state_of(place: Place, author: Author, count: int) -> list[Event]:
    events = [author.snapshot(f"doc-{number:02}", at_s=author.now_s + number, content=LARGE) for number in range(count)]
    place.expect(201, *events)
    return events


def test_a_bootstrap_holds_back_compaction(place: Place, author: Author) -> None:
    events = state_of(place, author, 12)
    place.expect(201, *deleted(author, "one", "two", "three"))
    sweeps: list[tuple[int, int]] = []

    async def meddle(frame: list[Any]) -> None:
        """Everything that it is being handed is superseded, and its time is up."""
        if frame[2] == "STATUS":
            await put(place, *(author.snapshot(f"doc-{number:02}") for number in range(12) for _ in range(5)))
            place.now += 599 * SECOND
        gone = await place.relay.sweep()
        sweeps.append((gone["compacted_snapshots"].total(), gone["pruned_snapshots"].total()))

    restarted(place, chosen(tombstones_max=2, compact_after_hours=0))
    seen = watch(place, bootstrap(author), meddle)
    assert seen.refused is None
    assert sweeps == [(0, 0)] * 16 + [(24, 2)]  # with EOSE it is over
    assert {event.id for event in events} < set(seen.snapshots)
    assert (len(seen.snapshots), seen.eose) == (15, 18)


def test_what_was_superseded_before_a_bootstrap_began_is_compacted_while_it_runs(place: Place, author: Author) -> None:
    """Whoever asks for one state after the other does not hold back all compaction for ever."""
    other = Author("other", author.now_s)
    place.expect(201, *edits(author, 9), *edits(other, 9))
    place.now += HOUR
    sweeps: list[tuple[int, int]] = []

    async def meddle(frame: list[Any]) -> None:
        if frame[2] == "STATUS":
            await put(place, *edits(author, 1), *edits(other, 1))
            gone = await place.relay.sweep()
            sweeps.append((gone["compacted_snapshots"].total(), gone["pruned_snapshots"].total()))

    seen = watch(place, bootstrap(author), meddle)
    assert (sweeps, len(seen.snapshots), seen.refused) == ([(10, 0)], 1, None)


def test_a_bootstrap_holds_back_the_deleted_documents_of_its_author_alone(place: Place, author: Author) -> None:
    other = Author("other", author.now_s)
    place.expect(201, *deleted(author, "one", "two", "three"), *deleted(other, "one", "two", "three"))
    began = place.relay.head().seq
    sweeps: list[tuple[int, int]] = []

    async def meddle(frame: list[Any]) -> None:
        if frame[2] == "STATUS":
            await put(place, *deleted(other, *"abcdef"))
            gone = await place.relay.sweep()
            sweeps.append((gone["compacted_snapshots"].total(), gone["pruned_snapshots"].total()))

    seen = watch(place, bootstrap(author), meddle)
    assert (sweeps, len(seen.snapshots), seen.refused) == ([(0, 6)], 3, None)
    assert watch(place, tail(author, since=began)).refused is None  # what was deleted later is there still
    assert swept(place) == (0, 10)


def test_who_has_no_documents_holds_back_nothing_and_follows_what_he_makes(place: Place, author: Author) -> None:
    """Anybody may ask for the documents of a key that he has just made up."""
    place.expect(201, *deleted(author, "one", "two", "three"))
    stranger = Author("stranger", author.now_s)
    held: list[int] = []
    first = stranger.snapshot()

    async def meddle(frame: list[Any]) -> None:
        held.append(len(place.relay.bootstraps))
        if frame[2] == "STATUS":
            await put(place, first)

    asked = bootstrap(stranger, live=True)
    seen = Watch(place, asked, meddle)
    asyncio.run(seen.run(lambda: len(seen.frames) == 3))
    assert seen.frames == [
        ["CHANGES", "s", "STATUS", {"mode": "bootstrap", "snapshot_seq": 6}],
        ["CHANGES", "s", "EOSE", 6],
        ["CHANGES", "s", "EVENT", 7, shown(first)],
    ]
    assert held == [0, 0, 0]


@pytest.mark.parametrize("at_frame", [0, 5, 6, 12])
def test_a_bootstrap_that_takes_too_long_is_told_so(place: Place, author: Author, at_frame: int) -> None:
    """Even if all that it would still have been sent is gone, and nothing else would tell it that something is missing."""
    restarted(place, chosen(tombstones_max=1, compact_after_hours=0, bootstrap_timeout_s=60))
    state_of(place, author, 10)
    gone = [author.snapshot(f"gone-{number}", at_s=author.now_s + 60 + number, o="del") for number in range(2)]
    place.expect(201, *gone)
    frames = iter(range(100))

    async def meddle(frame: list[Any]) -> None:
        if next(frames) == at_frame:
            place.now += 60 * SECOND
            swept_rows = await place.relay.sweep()
            assert swept_rows["pruned_snapshots"].total() == 1

    seen = watch(place, bootstrap(author), meddle)
    assert seen.refused is not None
    assert (seen.refused.refusal, seen.refused.detail) == (Refusal.BOOTSTRAP_EXPIRED, "it took longer than 60 seconds")
    assert "EOSE" not in [frame[2] for frame in seen.frames]
    assert place.relay.bootstraps == {}


def test_a_bootstrap_that_ended_holds_back_nothing(place: Place, author: Author) -> None:
    place.expect(201, *edits(author, 5))
    watch(place, bootstrap(author))
    turns = iter(range(5))
    watch(place, bootstrap(author, live=True), until=lambda: next(turns, None) is None)
    place.now += HOUR
    assert swept(place) == (1, 0)


def test_a_replay_that_is_overtaken_by_pruning_is_told_so(place: Place, author: Author) -> None:
    """What is gone before a slow reader came to it would be a gap that nobody saw."""
    state_of(place, author, 10)
    place.expect(201, *deleted(author, "one", "two", "three"))

    async def meddle(frame: list[Any]) -> None:
        if frame[2:4] == ["EVENT", 1]:
            await place.relay.sweep()

    seen = watch(place, tail(author), meddle)
    assert seen.refused is not None
    assert seen.refused.refusal is Refusal.CURSOR_EXPIRED
    assert seen.refused.detail == "position 12 was pruned before it was sent, behind 5"
    assert seen.positions == [1, 2, 3, 4, 5]


def test_a_live_reader_that_has_everything_does_not_mind_pruning(place: Place, author: Author) -> None:
    """Neither of what it was sent, nor of what others deleted while nothing came for it."""
    other = Author("other", author.now_s)
    place.expect(201, *deleted(author, "one", "two"))
    done = False

    async def meddle(frame: list[Any]) -> None:
        nonlocal done
        if frame[2] == "EOSE":
            await put(place, *deleted(author, "three"))
        elif frame[2:4] == ["EVENT", 6]:
            await put(place, *deleted(other, "one", "two", "three"))
            await place.relay.sweep()
            await put(place, author.snapshot("four"))
        done = done or frame[2:4] == ["EVENT", place.relay.head().seq]

    turns = iter(range(200))
    seen = watch(place, tail(author, live=True), meddle, until=lambda: done or next(turns, None) is None)
    assert seen.refused is None
    assert seen.positions == [1, 2, 3, 4, 5, 6, 15]
    assert min_seq(place) == 9


# Who reads no longer.


def test_a_subscription_that_ends_before_it_began_is_not_kept(place: Place, author: Author) -> None:
    """A task that is cancelled before its first step does nothing at all, so whoever ends it cleans up after it."""
    feeds_open: list[int] = []

    async def say(_: tuple[Any, ...]) -> None:
        raise AssertionError("it was over before anything was said")

    async def scene() -> None:
        following = Feeds(place.relay)
        reading = FeedReading(place.relay, following, say, asyncio.ensure_future, ())
        await reading.changes(Changes("s", Raw(json.dumps(tail(author, live=True)).encode())))
        feeds_open.append(following.open)
        assert reading.stop("s")
        for _ in range(5):
            await asyncio.sleep(0)
        feeds_open.append(following.open)

    asyncio.run(scene())
    assert feeds_open == [1, 0]
