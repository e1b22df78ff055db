"""Taking snapshots: who may publish them, how each one stands to its document, and what that costs."""

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.protocol import administration
from holdfast.protocol.action import DismissAuthor
from holdfast.protocol.clock import VectorClock, dominates
from holdfast.protocol.event import Event
from holdfast.protocol.history import Kind
from holdfast.protocol.refusal import Refusal
from holdfast.protocol.snapshot import detail, from_event
from holdfast.relay.database import SCHEMA
from holdfast.relay.settings import FeedRetention, FeedSettings, Limits, Settings
from holdfast.relay.snapshots import Pruned, write_pruned
from holdfast.store.check import check
from holdfast.store.sqlite import SqliteEngine
from tests.effort import lines_run
from tests.people import Person, secret_of
from tests.relay.feed_client import Author, bootstrap, tail
from tests.relay.feed_watch import watch
from tests.relay.place import Place

QUICK = Limits(messages_per_s=1_000_000.0, messages_burst=1_000_000)
OPEN = Settings(feed=FeedSettings(open=True, conflicts_max=8), limits=QUICK)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with a_place(tmp_path, OPEN) as made:
        yield made


@contextmanager
def a_place(path: Path, settings: Settings) -> Iterator[Place]:
    made = Place(path / "relay.db", settings)
    yield made
    assert list(check(made.engine, SCHEMA)) == []
    asyncio.run(made.relay.close())


def author_at(place: Place, name: str = "author") -> Author:
    return Author(name, now_s=place.now // 1_000_000)


def standings(place: Place, *events: Event) -> list[str]:
    return [answer.members["standing"] for answer in place.expect(201, *events)]


def test_a_snapshot_is_answered_with_its_position_and_standing(place: Place) -> None:
    author = author_at(place)
    first, second = author.snapshot(clock={"A": 2}), author.snapshot(clock={"A": 1})
    (one,) = place.expect(201, first)
    (two,) = place.expect(201, second)
    assert {name: one.members[name] for name in ("event_id", "history_id", "standing", "duplicate")} == {
        "event_id": first.id,
        "history_id": 1,
        "standing": "current",
        "duplicate": False,
    }
    assert (two.members["history_id"], two.members["standing"]) == (2, "dominated")
    assert two.members["anchor"]["seq"] == 2
    assert two.members["log_id"] == place.relay.head().log_id.hex()


def test_the_history_tells_of_a_snapshot_all_that_the_relay_may_know(place: Place) -> None:
    event = author_at(place).snapshot("doc", {"B": 1, "A": 7}, o="del", c="notes")
    place.expect(201, event)
    (entry,) = place.entries(Kind.SNAPSHOT)
    assert (entry.seq, entry.destination_kind, entry.destination_ref) == (1, "feed", event.pubkey)
    assert (entry.event_id, entry.detail) == (bytes.fromhex(event.id), detail(from_event(event)))


def test_a_repeated_snapshot_is_told_what_was_told_before(place: Place) -> None:
    author = author_at(place)
    first, second = author.snapshot(), author.snapshot()
    place.expect(201, first, second)
    before = place.dump()
    for event, seq in ((first, 1), (second, 2)):
        (again,) = place.expect(200, event)
        told = {name: again.members[name] for name in ("history_id", "standing", "duplicate", "history_available")}
        assert told == {"history_id": seq, "standing": "current", "duplicate": True, "history_available": True}
        assert again.members["anchor"]["seq"] >= seq
    assert place.dump() == before


def test_the_same_snapshot_twice_in_one_request_is_taken_once(place: Place) -> None:
    event = author_at(place).snapshot()
    first, second = place.publish(event, event)
    assert (first.http_status, second.http_status) == (201, 200)
    assert first.members["history_id"] == second.members["history_id"] == 1
    assert len(place.entries()) == 1


def test_a_clock_that_another_current_snapshot_has_is_refused(place: Place) -> None:
    author = author_at(place)
    place.expect(201, author.snapshot(clock={"A": 1, "B": 2}, content="one"))
    place.refused(Refusal.CLOCK_REUSED, author.snapshot(clock={"A": 1, "B": 2}, content="another"))
    place.expect(
        201, author.snapshot("other", {"A": 1, "B": 2}), author_at(place, "eve").snapshot(clock={"A": 1, "B": 2})
    )


def test_a_clock_is_reused_within_one_request_too(place: Place) -> None:
    author = author_at(place)
    one, two = place.publish(
        author.snapshot(clock={"A": 1}, content="one"), author.snapshot(clock={"A": 1}, content="two")
    )
    assert (one.http_status, two.refusal) == (201, Refusal.CLOCK_REUSED)


def test_a_clock_that_was_superseded_is_late_and_not_reused(place: Place) -> None:
    author = author_at(place)
    events = [author.snapshot(clock={"A": 1}, content="one"), author.snapshot(clock={"A": 2})]
    assert standings(place, *events, author.snapshot(clock={"A": 1}, content="two")) == [
        "current",
        "current",
        "dominated",
    ]


def test_only_so_many_snapshots_stand_side_by_side(place: Place) -> None:
    author = author_at(place)
    place.expect(201, *(author.snapshot(clock={f"device-{number}": 1}) for number in range(8)))
    place.refused(Refusal.TOO_MANY_CONFLICTS, author.snapshot(clock={"ninth": 1}))
    late = {f"device-{number}": 1 for number in range(8)}
    place.expect(201, author.snapshot(clock={"device-1": 2}))  # in the place of one
    place.refused(Refusal.TOO_MANY_CONFLICTS, author.snapshot(clock={"ninth": 1}))
    place.expect(201, author.snapshot(clock={**late, "device-1": 2, "ninth": 1}))  # it resolves them all
    place.expect(201, author.snapshot(clock={"tenth": 1}))


def test_snapshots_of_any_age_are_taken_and_of_the_future_are_not(place: Place) -> None:
    author = author_at(place)
    place.expect(201, author.snapshot(at_s=1))
    place.expect(201, author.snapshot(at_s=author.now_s + 15 * 60))
    place.refused(Refusal.CLOCK_AHEAD, author.snapshot(at_s=author.now_s + 15 * 60 + 1))


def test_what_its_author_did_not_sign_is_refused(place: Place) -> None:
    event, other = author_at(place).snapshot(), author_at(place, "eve").snapshot()
    forged = Event(**{**_fields(event), "sig": other.sig})
    place.refused(Refusal.BAD_SIGNATURE, forged)
    place.refused(Refusal.BAD_EVENT_ID, Event(**{**_fields(event), "content": "something else"}))
    place.expect(201, event)


def _fields(event: Event) -> dict[str, Any]:
    return {name: getattr(event, name) for name in event.__struct_fields__}


@pytest.mark.parametrize("kind", [0, 1, 5, 30_023, 39_999, 50_000])
def test_kinds_that_are_not_ours_are_blocked(place: Place, kind: int) -> None:
    answer = place.refused(Refusal.KIND_UNSUPPORTED, author_at(place).snapshot(kind=kind))
    assert answer.ok()[3].startswith(f"blocked: kind_unsupported: kind {kind} ")


@pytest.mark.parametrize("kind", [40_000, 42_061, 49_999])
def test_every_kind_of_the_range_is_taken(place: Place, kind: int) -> None:
    place.expect(201, author_at(place).snapshot(kind=kind))


def test_an_author_that_publishes_too_fast_is_told_how_long_to_wait(tmp_path: Path) -> None:
    slow = Settings(feed=FeedSettings(open=True), limits=Limits(messages_burst=2, messages_per_s=1.0, free_repeats=1))
    with a_place(tmp_path, slow) as place:
        author = author_at(place)
        place.expect(201, author.snapshot(), author.snapshot())
        answer = place.refused(Refusal.RATE_LIMITED, author.snapshot())
        assert answer.retry_after_s == 1


class Circle:
    """A private relay with a mesh, and an author whose key bob has."""

    def __init__(self, place: Place) -> None:
        self.place = place.settle()
        self.author = author_at(place, "bob as an author")

    def admit(self, person: Person) -> Event:
        return person.administer(administration.admit_author(self.author.secret, person.mesh, person.member, bytes(32)))

    def dismiss(self, person: Person) -> Event:
        return person.administer(DismissAuthor(author=self.author.key))


@pytest.fixture
def circle(tmp_path: Path) -> Iterator[Circle]:
    with a_place(tmp_path, Settings(limits=QUICK)) as place:
        yield Circle(place)


def test_a_private_relay_takes_snapshots_of_authors_whom_a_member_admitted(circle: Circle) -> None:
    place, author = circle.place, circle.author
    event = author.snapshot()
    place.refused(Refusal.AUTHOR_NOT_ADMITTED, event)
    place.refused(Refusal.AUTHOR_NOT_ADMITTED, Author(place.bob.name, now_s=author.now_s).snapshot())
    place.expect(201, circle.admit(place.bob))
    place.expect(201, event)
    place.expect(201, circle.dismiss(place.bob))
    place.refused(Refusal.AUTHOR_NOT_ADMITTED, author.snapshot())
    place.expect(200, event)  # what was taken stays, and its repetition is known


def test_an_author_is_admitted_by_its_own_key_and_in_the_members_own_name(circle: Circle) -> None:
    place, author = circle.place, circle.author
    for_carol = administration.admit_author(author.secret, place.bob.mesh, place.carol.member, bytes(32))
    place.refused(Refusal.NOT_PERMITTED, place.bob.administer(for_carol))
    signed_by_another = administration.admit_author(secret_of("eve"), place.bob.mesh, place.bob.member, bytes(32))
    forged = type(for_carol)(
        member=place.bob.member, author=author.key, countersignature=signed_by_another.countersignature
    )
    place.refused(Refusal.COUNTERSIGNATURE_MISSING, place.bob.administer(forged))
    place.refused(Refusal.NOT_PERMITTED, circle.admit(Person("eve")))
    place.refused(Refusal.AUTHOR_NOT_ADMITTED, author.snapshot())


def test_an_author_is_dismissed_by_who_admitted_it_or_by_an_admin(circle: Circle) -> None:
    place = circle.place
    place.expect(201, circle.admit(place.bob))
    place.refused(Refusal.NOT_PERMITTED, circle.dismiss(place.carol))
    place.expect(201, circle.author.snapshot())
    place.expect(201, circle.dismiss(place.alice))
    place.refused(Refusal.SUBJECT_UNKNOWN, circle.dismiss(place.alice))
    place.refused(Refusal.AUTHOR_NOT_ADMITTED, circle.author.snapshot())


def test_a_member_who_is_out_vouches_for_nobody(circle: Circle) -> None:
    place = circle.place
    place.expect(201, circle.admit(place.bob), circle.author.snapshot())
    place.expect(201, place.alice.revoke(place.bob))
    place.refused(Refusal.AUTHOR_NOT_ADMITTED, circle.author.snapshot())
    place.expect(201, circle.admit(place.carol))
    place.expect(201, circle.author.snapshot())


def test_an_admission_counts_for_what_comes_in_the_same_request(circle: Circle) -> None:
    place = circle.place
    place.expect(201, circle.admit(place.bob), circle.author.snapshot())
    first, second = place.publish(circle.dismiss(place.bob), circle.author.snapshot())
    assert (first.http_status, second.refusal) == (201, Refusal.AUTHOR_NOT_ADMITTED)


def test_an_admission_that_is_refused_admits_nobody_in_the_same_request(circle: Circle) -> None:
    first, second = circle.place.publish(circle.admit(Person("eve")), circle.author.snapshot())
    assert (first.refusal, second.refusal) == (Refusal.NOT_PERMITTED, Refusal.AUTHOR_NOT_ADMITTED)


# What supersedes what, against going through everything there is.

clocks = st.dictionaries(st.sampled_from("ABC"), st.integers(1, 3), min_size=1).map(
    lambda counters: VectorClock(tuple(sorted(counters.items())))
)
numbers = itertools.count()


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory, on_store: str) -> Iterator[Place]:
    roomy = Settings(feed=FeedSettings(open=True, conflicts_max=1_000), limits=QUICK)
    with a_place(tmp_path_factory.mktemp("roomy"), roomy) as made:
        yield made


@given(arrivals=st.lists(st.tuples(clocks, st.booleans()), min_size=1, max_size=14))
@settings(max_examples=150, deadline=None)
def test_what_supersedes_what_is_as_if_everything_were_compared(
    roomy: Place, arrivals: list[tuple[VectorClock, bool]]
) -> None:
    """Any clocks in any order, in requests of any size."""
    d, author = f"doc-{next(numbers)}", author_at(roomy)
    events = [
        author.snapshot(d, dict(clock.entries), content=str(number)) for number, (clock, _) in enumerate(arrivals)
    ]
    batches: list[list[Event]] = [[]]
    for event, (_, ends_batch) in zip(events, arrivals, strict=True):
        batches[-1].append(event)
        if ends_batch:
            batches.append([])
    answers = [answer for batch in batches if batch for answer in roomy.publish(*batch)]
    taken: list[tuple[int, VectorClock]] = []
    for answer, (clock, _) in zip(answers, arrivals, strict=True):
        earlier = [known for _, known in taken]
        is_late = any(dominates(known, clock) for known in earlier)
        if clock in earlier and not is_late:
            assert answer.refusal is Refusal.CLOCK_REUSED
        else:
            assert answer.members["standing"] == ("dominated" if is_late else "current")
            taken.append((answer.members["history_id"], clock))
    rows = roomy.rows(f"SELECT seq, superseded_seq FROM snapshot WHERE d = '{d}' ORDER BY seq")
    assert rows == [(seq, _superseded(number, taken)) for number, (seq, _) in enumerate(taken)]
    current = {
        answer.members["event_id"] for answer, row in zip(_accepted(answers), rows, strict=True) if row[1] is None
    }
    assert set(watch(roomy, bootstrap(author, **{"#d": [d]})).snapshots) == current


def _accepted(answers: Sequence[Any]) -> list[Any]:
    return [answer for answer in answers if answer.accepted]


def _superseded(number: int, taken: Sequence[tuple[int, VectorClock]]) -> int | None:
    seq, clock = taken[number]
    if any(dominates(known, clock) for _, known in taken[:number]):
        return seq
    return next((later for later, known in taken[number + 1 :] if dominates(known, clock)), None)


def test_the_state_at_every_position_is_what_was_current_then(roomy: Place) -> None:
    """Bootstraps that began at different moments, read to their end much later."""
    author = author_at(roomy, "an author with a past")
    began = roomy.relay.head().seq
    steps = [{"A": 1}, {"B": 1}, {"A": 2}, {"A": 2, "B": 1}, {"A": 1, "C": 1}, {"C": 2}, {"A": 3, "B": 1, "C": 1}]
    events = [author.snapshot(clock=clock) for clock in steps]
    roomy.expect(201, *events)
    rows = roomy.rows(f"SELECT seq, superseded_seq FROM snapshot WHERE author = '{author.key}' ORDER BY seq")
    expected = [[0], [0, 1], [1, 2], [3], [3, 4], [3, 4, 5], [5, 6]]
    for at, positions in enumerate(expected, began + 1):
        current = [seq - began - 1 for seq, gone in rows if seq <= at and (gone is None or gone > at)]
        assert current == positions, at


# What it costs: steps of the database's machine, which do not depend on the clock or on who else is at work.


class Steps:
    """Counts what the statements of a place's connections do."""

    def __init__(self, place: Place) -> None:
        self.place = place
        if not isinstance(place.engine, SqliteEngine):
            pytest.skip("steps are SQLite's")
        with place.engine.read():
            pass
        self.connections = [connection for connection in (place.engine._writer, place.engine._reader) if connection]
        self.count = 0

    @contextmanager
    def counted(self) -> Iterator["Steps"]:
        self.count = 0
        for connection in self.connections:
            connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, self._note)
        yield self
        for connection in self.connections:
            connection.trace_v2(0)

    def _note(self, event: dict[str, Any]) -> None:
        self.count += event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]


def _cost_of_edit(place: Place, author: Author) -> int:
    event = author.snapshot("doc")
    with Steps(place).counted() as steps:
        place.expect(201, event)
    return steps.count


@pytest.mark.parametrize("retention", FeedRetention)
def test_a_snapshot_costs_the_same_however_long_its_document_has_lived(
    tmp_path: Path, retention: FeedRetention
) -> None:
    chosen = Settings(feed=FeedSettings(open=True, retention=retention), limits=QUICK)
    with a_place(tmp_path, chosen) as place:
        author = author_at(place)
        place.expect(201, *(author.snapshot("doc") for _ in range(20)))
        young = _cost_of_edit(place, author)
        for _ in range(20):
            place.expect(201, *(author.snapshot("doc") for _ in range(100)))
        assert _cost_of_edit(place, author) <= young * 1.05 + 20


def test_a_snapshot_costs_what_stands_beside_it(tmp_path: Path) -> None:
    """The other half: a count that nothing could move would show nothing."""
    chosen = Settings(feed=FeedSettings(open=True), limits=QUICK)
    with a_place(tmp_path, chosen) as place:
        author = author_at(place)
        place.expect(201, *(author.snapshot("doc") for _ in range(20)))
        alone = _cost_of_edit(place, author)
        place.expect(201, *(author.snapshot("doc", {f"B{number}": 1}) for number in range(100)))
        assert _cost_of_edit(place, author) > alone * 1.5


def test_the_state_costs_what_is_current_however_long_the_history_is(tmp_path: Path) -> None:
    chosen = Settings(feed=FeedSettings(open=True), limits=QUICK)
    with a_place(tmp_path, chosen) as place:
        author = author_at(place)

        def cost(asked: dict[str, Any]) -> int:
            with Steps(place).counted() as steps:
                watch(place, asked)
            return steps.count

        place.expect(201, *(author.snapshot(f"doc-{number}") for number in range(10)))
        young, of_tail = cost(bootstrap(author)), cost(tail(author))
        for _ in range(10):
            place.expect(201, *(author.snapshot(f"doc-{number % 10}") for number in range(100)))
        assert cost(bootstrap(author)) <= young * 1.05 + 20
        assert cost(tail(author)) > of_tail * 5  # a count that nothing could move would show nothing


def test_one_document_is_read_without_looking_at_the_others(tmp_path: Path) -> None:
    chosen = Settings(feed=FeedSettings(open=True), limits=QUICK)
    with a_place(tmp_path, chosen) as place:
        author = author_at(place)

        def cost(asked: dict[str, Any]) -> int:
            with Steps(place).counted() as steps:
                watch(place, asked)
            return steps.count

        place.expect(201, *(author.snapshot("doc") for _ in range(10)))
        alone = [cost(asked(author, **{"#d": ["doc"]})) for asked in (tail, bootstrap)]
        place.expect(201, *(author.snapshot(f"doc-{number}") for number in range(1_000)))
        crowded = [cost(asked(author, **{"#d": ["doc"]})) for asked in (tail, bootstrap)]
        assert [now <= before * 1.05 + 20 for now, before in zip(crowded, alone, strict=True)] == [True, True]


def test_whether_an_author_is_admitted_costs_the_same_among_many(tmp_path: Path) -> None:
    with a_place(tmp_path, Settings(limits=QUICK)) as place:
        circle = Circle(place)
        place.expect(201, circle.admit(place.bob), circle.author.snapshot("doc"))
        alone = _cost_of_edit(place, circle.author)
        with place.engine.write() as transaction:
            rows = [(place.bob.mesh, f"{number:064x}", place.bob.member, 0) for number in range(1_000)]
            transaction.insert("author", ("mesh", "author", "member", "since"), rows)
        assert _cost_of_edit(place, circle.author) <= alone * 1.05 + 20


def _make_large(place: Place, author: Author, d: str, count: int) -> None:
    """A document with so many deletions side by side, and as many that were pruned."""
    place.expect(201, *(author.snapshot(d, {f"B{number}": 1}, o="del") for number in range(count)))
    pruned = [Pruned(f"{number:064x}", 1, ((f"C{number}", 1),)) for number in range(count)]
    with place.engine.write() as transaction:
        left = {"pruned": write_pruned(pruned), "author": author.key, "d": d}
        transaction.run("UPDATE document SET pruned = :pruned, pruned_seq = 1 WHERE author = :author AND d = :d", left)


def _cost_of_refusal(place: Place, refusal: Refusal, event: Event) -> tuple[int, int]:
    """Steps of the database's machine, and lines of Python."""
    with Steps(place).counted() as steps:
        lines = lines_run(lambda: place.refused(refusal, event))
    return steps.count, lines


def test_what_an_author_may_not_publish_costs_the_same_whatever_stands_beside_it(tmp_path: Path) -> None:
    with a_place(tmp_path, Settings(limits=QUICK)) as place:
        circle = Circle(place)
        author = circle.author
        place.expect(201, circle.admit(place.bob), author.snapshot("small"))
        _make_large(place, author, "large", 100)
        place.expect(201, circle.dismiss(place.bob))
        _cost_of_refusal(place, Refusal.AUTHOR_NOT_ADMITTED, author.snapshot("small"))
        steps, lines = _cost_of_refusal(place, Refusal.AUTHOR_NOT_ADMITTED, author.snapshot("small"))
        more_steps, more_lines = _cost_of_refusal(place, Refusal.AUTHOR_NOT_ADMITTED, author.snapshot("large"))
        assert more_steps <= steps + 20
        assert more_lines <= lines + 20


def test_what_comes_too_fast_costs_the_same_whatever_stands_beside_it(tmp_path: Path) -> None:
    slow = Limits(messages_burst=101, messages_per_s=0.1)
    with a_place(tmp_path, Settings(feed=FeedSettings(open=True), limits=slow)) as place:
        author = author_at(place)
        place.expect(201, author.snapshot("small"))
        _make_large(place, author, "large", 100)
        _cost_of_refusal(place, Refusal.RATE_LIMITED, author.snapshot("small"))
        steps, lines = _cost_of_refusal(place, Refusal.RATE_LIMITED, author.snapshot("small"))
        more_steps, more_lines = _cost_of_refusal(place, Refusal.RATE_LIMITED, author.snapshot("large"))
        assert more_steps <= steps + 20
        assert more_lines <= lines + 20


def test_a_deletion_that_was_pruned_is_known_though_its_author_was_dismissed(tmp_path: Path) -> None:
    with a_place(tmp_path, Settings(limits=QUICK, feed=FeedSettings(tombstones_max=1))) as place:
        circle = Circle(place)
        gone = circle.author.snapshot("one", o="del")
        place.expect(201, circle.admit(place.bob), gone, circle.author.snapshot("two", o="del"))
        asyncio.run(place.relay.sweep())
        assert place.rows("SELECT d FROM snapshot") == [("two",)]
        place.expect(201, circle.dismiss(place.bob))
        (again,) = place.expect(200, gone)
        assert (again.members["duplicate"], again.members["history_available"]) == (True, False)
        place.refused(Refusal.AUTHOR_NOT_ADMITTED, circle.author.snapshot("one", o="del"))


def test_what_stands_beside_a_snapshot_is_compared_with_it_and_not_with_each_other(tmp_path: Path) -> None:
    with a_place(tmp_path, Settings(feed=FeedSettings(open=True), limits=QUICK)) as place:
        author = author_at(place)

        def cost(d: str) -> int:
            event = author.snapshot(d)
            return lines_run(lambda: place.expect(201, event))

        _make_large(place, author, "four times as large", 80)
        _make_large(place, author, "large", 20)
        alone, large, larger = cost("small"), cost("large"), cost("four times as large")
        assert larger - alone < 5 * (large - alone)
