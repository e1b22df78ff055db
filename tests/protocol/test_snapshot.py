"""Causal snapshots: one canonical form, and how one stands to others."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocol.clock import VectorClock, dominates, frontier
from holdfast.protocol.event import Event, sign_event
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.snapshot import (
    DOCUMENT_CHARACTERS_MAX,
    Operation,
    Snapshot,
    Standing,
    detail,
    from_event,
    standing,
    superseded,
)

SECRET = (3).to_bytes(32, "big")
AT_S = 1_700_000_000
NOTE = 42061
VC = ("vc", "A", "1")
TAGS: tuple[tuple[str, ...], ...] = (("d", "doc"), ("o", "put"), VC)


def event(tags: Sequence[Sequence[str]] = TAGS, kind: int = NOTE) -> Event:
    return sign_event(SECRET, AT_S, kind, tags, "sealed", bytes(32))


def refused(tags: Sequence[Sequence[str]], kind: int = NOTE) -> tuple[Refusal, str]:
    with pytest.raises(Refused) as caught:
        from_event(event(tags, kind))
    return caught.value.refusal, caught.value.detail


def test_a_snapshot_is_read_from_its_tags() -> None:
    signed = event((("d", "doc"), ("o", "del"), ("c", "notes"), ("vc", "A", "2"), ("vc", "a", "1")))
    assert from_event(signed) == Snapshot(
        author=signed.pubkey,
        kind=NOTE,
        d="doc",
        o=Operation.DELETE,
        c="notes",
        clock=VectorClock((("A", 2), ("a", 1))),
        created_at=AT_S,
        event_id=signed.id,
    )
    assert from_event(event()).c is None


def test_tags_stand_in_any_order_and_others_are_passed_over() -> None:
    mixed = [("vc", "A", "1"), ("x",), ("o", "put"), ("e", "f" * 64), ("vc", "B", "1"), ("d", "doc")]
    assert from_event(event(mixed)).clock == VectorClock((("A", 1), ("B", 1)))


@pytest.mark.parametrize("kind", [40_000, 45_000, 49_999])
def test_the_sync_range_has_its_ends(kind: int) -> None:
    assert from_event(event(kind=kind)).kind == kind


@pytest.mark.parametrize("kind", [0, 39_999, 50_000, 65_535])
def test_other_kinds_are_not_of_the_range(kind: int) -> None:
    assert refused(TAGS, kind) == (Refusal.KIND_UNSUPPORTED, f"kind {kind} is not of the sync range")


LONG = "x" * (DOCUMENT_CHARACTERS_MAX + 1)

FAULTS: list[tuple[list[tuple[str, ...]], str]] = [
    ([("o", "put"), VC], "tag 'd' stands 0 times, it must stand once"),
    ([("d", "doc"), ("d", "doc"), ("o", "put"), VC], "tag 'd' stands 2 times, it must stand once"),
    ([("d", ""), ("o", "put"), VC], "tag 'd' is empty"),
    ([("d",), ("o", "put"), VC], "tag 'd' has 1 elements, it must have 2"),
    ([("d", "doc", "x"), ("o", "put"), VC], "tag 'd' has 3 elements, it must have 2"),
    ([("d", "a\0b"), ("o", "put"), VC], "tag 'd' has a NUL character"),
    ([("d", LONG), ("o", "put"), VC], "tag 'd' has 513 characters, at most 512 allowed"),
    ([("d", "doc"), VC], "tag 'o' stands 0 times, it must stand once"),
    ([("d", "doc"), ("o", "put"), ("o", "put"), VC], "tag 'o' stands 2 times, it must stand once"),
    ([("d", "doc"), ("o", "put"), ("c", ""), VC], "tag 'c' is empty"),
    ([("d", "doc"), ("o", "put"), ("c",), VC], "tag 'c' has 1 elements, it must have 2"),
    ([("d", "doc"), ("o", "put"), ("c", "a"), ("c", "b"), VC], "tag 'c' stands 2 times, it must stand once"),
    ([("d", "doc"), ("o", "put"), ("c", LONG), VC], "tag 'c' has 513 characters, at most 512 allowed"),
    ([("d", "doc"), ("o", "put")], "clock is missing: at least one 'vc' tag is needed"),
    ([*TAGS[:2], ("vc", "A")], "tag 'vc' has 2 elements, it must have 3"),
    ([*TAGS[:2], ("vc", "A", "1", "x")], "tag 'vc' has 4 elements, it must have 3"),
    ([*TAGS[:2], ("vc", "", "1")], "clock has an empty device id"),
    ([*TAGS[:2], ("vc", "A", "1"), ("vc", "A", "2")], "clock device 'A' stands twice"),
    ([*TAGS[:2], ("vc", "B", "1"), ("vc", "A", "1")], "clock devices are not ascending: 'A' stands after 'B'"),
    ([*TAGS[:2], ("vc", "a", "1"), ("vc", "B", "1")], "clock devices are not ascending: 'B' stands after 'a'"),
    (
        [*TAGS[:2], *(("vc", f"{number:02}", "1") for number in range(33))],
        "clock has 33 devices, at most 32 allowed",
    ),
]


@pytest.mark.parametrize(("tags", "text"), FAULTS, ids=[text[:50] for _, text in FAULTS])
def test_what_is_not_canonical_is_refused_and_never_mended(tags: list[tuple[str, ...]], text: str) -> None:
    assert refused(tags) == (Refusal.MALFORMED, text)


@pytest.mark.parametrize("word", ["PUT", "delete", "", "put "])
def test_there_are_two_operations(word: str) -> None:
    refusal, text = refused([("d", "doc"), ("o", word), VC])
    assert refusal is Refusal.MALFORMED
    assert text.startswith("tag 'o'")


@pytest.mark.parametrize("counter", ["0", "-1", "01", "+1", " 1", "1.0", "1e3", "", "x", "٣", "9007199254740992"])
def test_a_counter_has_one_spelling(counter: str) -> None:
    assert refused([*TAGS[:2], ("vc", "A", counter)])[0] is Refusal.MALFORMED


def test_the_largest_of_everything_is_taken() -> None:
    devices = [("vc", f"{number:02}", "9007199254740991") for number in range(32)]
    longest = "ü" * DOCUMENT_CHARACTERS_MAX
    snapshot = from_event(event([("d", longest), ("o", "put"), ("c", longest), *devices]))
    assert len(snapshot.clock.entries) == 32


def test_the_detail_is_canonical_json_of_the_causal_tags() -> None:
    snapshot = from_event(event([("vc", "A", "7"), ("d", "doc"), ("vc", "ü", "1"), ("o", "put")]))
    expected = (
        f'{{"author":"{snapshot.author}","c":null,"created_at":1700000000,"d":"doc","kind":42061,"o":"put",'
        '"vc":[["A",7],["ü",1]]}'
    )
    assert detail(snapshot) == expected.encode()
    assert json.loads(detail(snapshot))["vc"] == [["A", 7], ["ü", 1]]


clocks = st.dictionaries(st.sampled_from("ABC"), st.integers(1, 3), min_size=1).map(
    lambda counters: VectorClock(tuple(sorted(counters.items())))
)


@given(arriving=clocks, known=st.lists(clocks, max_size=6))
def test_what_arrives_is_late_if_anything_that_is_known_knew_of_it(
    arriving: VectorClock, known: list[VectorClock]
) -> None:
    is_late = any(dominates(clock, arriving) for clock in known)
    assert standing(arriving, known) is (Standing.DOMINATED if is_late else Standing.CURRENT)
    assert standing(arriving, frontier(known)) is standing(arriving, known), "the current ones are enough to know"


@given(arriving=clocks, known=st.lists(clocks, max_size=6))
def test_what_arrives_supersedes_what_it_knew_of(arriving: VectorClock, known: list[VectorClock]) -> None:
    numbered = list(enumerate(known, 1))
    assert superseded(arriving, numbered) == [seq for seq, clock in numbered if dominates(arriving, clock)]
    assert superseded(arriving, [(1, arriving)]) == [], "nothing supersedes its equal"
