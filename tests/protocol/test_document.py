"""Documents: names, clocks, contents, and what an arriving snapshot means, against a slow twin."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocol import document, sealing
from holdfast.protocol.clock import VectorClock, dominates
from holdfast.protocol.document import Content, Outcome, Version
from holdfast.protocol.event import verify
from holdfast.protocol.keys import public_key
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.snapshot import SYNC_KINDS, Operation, from_event
from tests.people import secret_of

SECRET, OTHER = secret_of("an author"), secret_of("another author")
KEY = document.sealing_key(SECRET)
PUT, DELETE = Operation.PUT, Operation.DELETE

clocks = st.dictionaries(st.sampled_from("abc"), st.integers(1, 3), min_size=1).map(
    lambda counters: VectorClock(tuple(sorted(counters.items())))
)
operations = st.sampled_from(Operation)


def standing(snapshots: list[tuple[Operation, VectorClock]]) -> list[Version]:
    """What is current of all that came, in whatever order."""
    every = [Version(bytes([number]), o, clock) for number, (o, clock) in enumerate(snapshots)]
    return [one for one in every if not any(dominates(other.clock, one.clock) for other in every)]


@given(st.lists(st.tuples(operations, clocks), max_size=5), operations, clocks)
def test_a_ruling_is_what_the_frontier_says(
    before: list[tuple[Operation, VectorClock]], o: Operation, clock: VectorClock
) -> None:
    current = standing(before)
    ruling = document.judge(clock, o, current)
    after = standing([*before, (o, clock)])
    is_current = any(version.event_id == bytes([len(before)]) for version in after)
    assert (ruling.outcome is not Outcome.DOMINATED) == is_current
    if is_current:
        left = {version.event_id for version in after}
        assert set(ruling.superseded) == {version.event_id for version in current if version.event_id not in left}
        several, was_several = (
            len(found) > 1 and any(version.o is PUT for version in found) for found in (after, current)
        )
        expected = Outcome.CONFLICT if several else Outcome.RESOLVED if was_several else Outcome.APPLIED
        assert ruling.outcome is expected
    else:
        assert ruling.superseded == ()


def clock(**counters: int) -> VectorClock:
    return VectorClock(tuple(sorted(counters.items())))


@pytest.mark.parametrize(
    ("arriving", "outcome"),
    [
        (clock(a=1), Outcome.DOMINATED),
        (clock(a=2), Outcome.DOMINATED),  # it is the very one, perhaps with other words
        (clock(a=2, b=1), Outcome.APPLIED),
        (clock(b=1), Outcome.APPLIED),
        (clock(a=3), Outcome.APPLIED),
    ],
)
def test_what_is_gone_still_knows_what_it_knew(arriving: VectorClock, outcome: Outcome) -> None:
    assert document.judge(arriving, PUT, [], [clock(a=2)]).outcome is outcome


@pytest.mark.parametrize("current", [*product(Operation, repeat=1), *product(Operation, repeat=2)])
def test_only_a_text_makes_a_conflict_of_several(current: tuple[Operation, ...]) -> None:
    assert document.is_conflict(current) == (len(current) > 1 and PUT in current)


def test_two_snapshots_with_one_clock_are_a_conflict() -> None:
    known = Version(b"1", PUT, clock(a=1))
    assert document.judge(clock(a=1), PUT, [known]).outcome is Outcome.CONFLICT


@given(st.lists(clocks, max_size=4))
def test_an_edit_knows_of_everything_and_counts_one_more(known: list[VectorClock]) -> None:
    made = document.successor(known, "a")
    assert all(dominates(made, one) for one in known)
    counters = dict(made.entries)
    assert counters["a"] == max((dict(one.entries).get("a", 0) for one in known), default=0) + 1
    for device in "bc":
        assert counters.get(device, 0) == max((dict(one.entries).get(device, 0) for one in known), default=0)


def test_a_merge_of_two_counts_as_it_must() -> None:
    """{A5, B2} and {A4, B3} resolved on A."""
    assert document.successor([clock(A=5, B=2), clock(A=4, B=3)], "A") == clock(A=6, B=3)


def test_a_name_leads_to_one_document_of_one_author() -> None:
    assert document.document_id(SECRET, "list") == document.document_id(SECRET, "list")
    others = {document.document_id(SECRET, "List"), document.document_id(OTHER, "list")}
    assert document.document_id(SECRET, "list") not in others
    assert "list" not in document.document_id(SECRET, "list")


def test_a_home_counts_under_another_name_in_each_epoch_and_for_each_author() -> None:
    home, author = public_key(OTHER), public_key(SECRET)
    names = {
        document.device_id(author, home, bytes(16)),
        document.device_id(author, home, b"\1" * 16),
        document.device_id(home, home, bytes(16)),
        document.device_id(author, author, bytes(16)),
    }
    assert len(names) == 4
    assert {len(name) for name in names} == {document.DEVICE_ID_CHARACTERS}


@pytest.mark.parametrize("name", ["", "x" * 257, " list", "list ", "a\nb", "a\0b", "\u202elist"])
def test_a_name_that_nobody_could_type_is_refused(name: str) -> None:
    with pytest.raises(Refused):
        document.check_name(name)


@pytest.mark.parametrize("name", ["x", "x" * 256, "shopping list", "Ärger/2026", "列表"])
def test_any_other_name_will_do(name: str) -> None:
    document.check_name(name)


@pytest.mark.parametrize("body", [None, "", "milk", "ä\n列"])
def test_what_is_sealed_can_be_opened_by_its_author(body: str | None) -> None:
    content = Content(version=1, name="list", body=body)
    sealed = document.seal_content(KEY, content, bytes(range(32)))
    d = document.document_id(SECRET, "list")
    event = document.sign_snapshot(SECRET, 1, d, PUT, clock(a=1, b=2), sealed, bytes(32))
    verify(event)
    said = from_event(event)
    assert (said.d, said.o, said.clock, said.author) == (d, PUT, clock(a=1, b=2), public_key(SECRET))
    assert event.kind in SYNC_KINDS
    assert document.open_content(KEY, SECRET, event, d) == content


@pytest.mark.parametrize(
    "plaintext",
    [
        b"{}",
        b'{"version":2,"name":"list"}',
        b'{"version":1,"name":"list","more":1}',
        b"text",
        b'{"version":1,"name":"b"}',
    ],
)
def test_what_is_not_this_document_in_our_form_is_not_read(plaintext: bytes) -> None:
    d = document.document_id(SECRET, "list")
    sealed = sealing.seal(KEY, plaintext, bytes(range(32)))
    event = document.sign_snapshot(SECRET, 1, d, PUT, clock(a=1), sealed, bytes(32))
    with pytest.raises(Refused) as caught:
        document.open_content(KEY, SECRET, event, d)
    assert caught.value.refusal is Refusal.UNREADABLE


def test_another_key_opens_nothing() -> None:
    content = Content(version=1, name="list", body="milk")
    sealed = document.seal_content(KEY, content, bytes(range(32)))
    d = document.document_id(SECRET, "list")
    event = document.sign_snapshot(SECRET, 1, d, PUT, clock(a=1), sealed, bytes(32))
    with pytest.raises(Refused):
        document.open_content(document.sealing_key(OTHER), SECRET, event, d)


def test_a_text_that_no_event_could_carry_is_refused() -> None:
    with pytest.raises(Refused) as caught:
        document.seal_content(KEY, Content(version=1, name="list", body="x" * 41_000), bytes(32))
    assert caught.value.refusal is Refusal.TOO_LARGE
    with pytest.raises(Refused) as caught:
        document.seal_content(KEY, Content(version=1, name="list", body="\ud800"), bytes(32))
    assert caught.value.refusal is Refusal.MALFORMED


def test_twins_that_are_set_apart_know_of_themselves_and_not_of_each_other() -> None:
    d, known = document.document_id(SECRET, "list"), clock(a=2, b=1)
    twins = []
    for body in ("milk", "bread"):
        sealed = document.seal_content(KEY, Content(version=1, name="list", body=body), bytes(range(32)))
        twins.append(document.sign_snapshot(SECRET, 1, d, PUT, known, sealed, bytes(32)))
    apart = [document.set_apart(SECRET, event, known) for event in twins]
    assert apart == [document.set_apart(SECRET, event, known) for event in twins]
    for event, twin in zip(apart, twins, strict=True):
        verify(event)
        assert (event.created_at, event.content) == (twin.created_at, twin.content)
    one, other = (from_event(event).clock for event in apart)
    assert dominates(one, known)
    assert dominates(other, known)
    assert not dominates(one, other)
    assert not dominates(other, one)
    newer = clock(a=3, b=1)
    assert not dominates(newer, one)
