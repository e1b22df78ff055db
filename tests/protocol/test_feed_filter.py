"""What can be asked of the feed: filters as values, and each fault with its own refusal. Frames are tested with the relay."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.protocol.clock import VectorClock
from holdfast.protocol.feed_filter import (
    SEQ_MAX,
    VALUES_MAX,
    Changes,
    Mode,
    Tags,
    Wanted,
    read_changes,
    read_wanted,
)
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.snapshot import Operation, Snapshot

AUTHOR, OTHER, ID = "a" * 64, "b" * 64, "c" * 64
TAIL = {"mode": "tail", "kinds": [42061], "authors": [AUTHOR]}
SNAPSHOT = Snapshot(
    author=AUTHOR,
    kind=42061,
    d="doc",
    o=Operation.PUT,
    c="notes",
    clock=VectorClock((("A", 1),)),
    created_at=100,
    event_id=ID,
)


def raw(asked: Any) -> bytes:
    return json.dumps(asked).encode()


def refusal_of(asked: Any) -> Refusal:
    with pytest.raises(Refused) as caught:
        read_changes(raw(asked))
    return caught.value.refusal


def test_a_filter_of_changes_with_everything() -> None:
    asked = {**TAIL, "since": 5, "until_seq": 9, "limit": 3, "#d": ["x"], "#o": ["put", "del"], "#c": []}
    assert read_changes(raw(asked)) == Changes(
        mode=Mode.TAIL,
        kinds=frozenset({42061}),
        author=AUTHOR,
        tags=Tags(d=frozenset({"x"}), o=frozenset({"put", "del"}), c=frozenset()),
        since=5,
        until_seq=9,
        limit=3,
    )


def test_a_filter_of_changes_with_what_it_must_have() -> None:
    assert read_changes(raw(TAIL)) == Changes(mode=Mode.TAIL, kinds=frozenset({42061}), author=AUTHOR)
    live = read_changes(raw({**TAIL, "mode": "bootstrap", "live": True}))
    assert (live.mode, live.live, live.since) == (Mode.BOOTSTRAP, True, 0)


@pytest.mark.parametrize(
    ("changed", "refusal"),
    [
        ({"mode": None}, Refusal.MODE_REQUIRED),
        ({"mode": "x"}, Refusal.MODE_REQUIRED),
        ({"kinds": None}, Refusal.KINDS_REQUIRED),
        ({"kinds": []}, Refusal.KINDS_REQUIRED),
        ({"kinds": [1]}, Refusal.KIND_OUT_OF_RANGE),
        ({"kinds": [42061, 50_000]}, Refusal.KIND_OUT_OF_RANGE),
        ({"authors": None}, Refusal.ONE_AUTHOR_REQUIRED),
        ({"authors": []}, Refusal.ONE_AUTHOR_REQUIRED),
        ({"authors": [AUTHOR, OTHER]}, Refusal.ONE_AUTHOR_REQUIRED),
        ({"authors": ["A" * 64]}, Refusal.MALFORMED),
        ({"mode": "bootstrap", "limit": 1}, Refusal.LIMIT_WITH_BOOTSTRAP),
        ({"mode": "bootstrap", "until_seq": 1}, Refusal.MALFORMED),
        ({"limit": 1, "live": True}, Refusal.LIMIT_WITH_LIVE),
        ({"unknown": 1}, Refusal.MALFORMED),
        ({"since": SEQ_MAX + 1}, Refusal.MALFORMED),
        ({"#d": ["x"] * (VALUES_MAX + 1)}, Refusal.MALFORMED),
        ({"#d": ["x", "a\x00b"]}, Refusal.MALFORMED),
    ],
)
def test_each_fault_has_its_refusal(changed: dict[str, Any], refusal: Refusal) -> None:
    assert refusal_of({**TAIL, **changed}) is refusal


def test_limits_that_are_no_faults() -> None:
    assert read_changes(raw({**TAIL, "mode": "bootstrap", "since": 7})).mode is Mode.BOOTSTRAP
    assert read_changes(raw({**TAIL, "limit": 0})).limit == 0
    assert read_changes(raw({**TAIL, "until_seq": 3, "live": True})).until_seq == 3
    assert read_changes(raw({**TAIL, "#d": ["x"] * VALUES_MAX})).tags.d is not None


@pytest.mark.parametrize("said", [b"", b"{", b"\xff", b"[" * 100_000, b'{"mode":"tail","mode":"\xff"}', b"null", b"5"])
def test_bytes_that_are_no_filter_are_refused(said: bytes) -> None:
    for read in (read_changes, read_wanted):
        with pytest.raises(Refused) as caught:
            read(said)
        assert caught.value.refusal is Refusal.MALFORMED


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists)
    | st.dictionaries(st.text(), st.integers())
)
def test_whatever_is_asked_is_read_or_refused(asked: Any) -> None:
    for read in (read_changes, read_wanted):
        with suppress(Refused):
            read(raw(asked))


MATCHING: list[dict[str, Any]] = [
    {},
    {"ids": [ID]},
    {"ids": [OTHER, ID]},
    {"authors": [AUTHOR]},
    {"kinds": [42061]},
    {"#d": ["doc"]},
    {"#o": ["put"]},
    {"#c": ["other", "notes"]},
    {"since": 100},
    {"until": 100},
    {"limit": 0},
]
NOT_MATCHING: list[dict[str, Any]] = [
    {"ids": [OTHER]},
    {"ids": []},
    {"authors": [OTHER]},
    {"kinds": [42062]},
    {"#d": ["Doc"]},
    {"#o": ["del"]},
    {"#c": ["other"]},
    {"since": 101},
    {"until": 99},
]


@pytest.mark.parametrize("asked", MATCHING)
@pytest.mark.parametrize("also", MATCHING)
def test_a_request_matches_if_every_part_of_it_does(asked: dict[str, Any], also: dict[str, Any]) -> None:
    assert read_wanted(raw({**asked, **also})).match(SNAPSHOT)
    assert not read_wanted(raw({**asked, **also})).is_futile


@pytest.mark.parametrize("asked", NOT_MATCHING)
def test_a_request_does_not_match_if_one_part_does_not(asked: dict[str, Any]) -> None:
    for also in MATCHING:
        assert not read_wanted(raw({**also, **asked})).match(SNAPSHOT)


@pytest.mark.parametrize(
    ("asked", "is_futile"),
    [
        ({"ids": []}, True),
        ({"authors": []}, True),
        ({"kinds": []}, True),
        ({"#d": []}, True),
        ({"#o": []}, True),
        ({"#c": []}, True),
        ({"kinds": [0, 1, 39_999, 50_000]}, True),
        ({"kinds": [1, 40_000]}, False),
        ({"#c": [""]}, False),
    ],
)
def test_a_request_that_nothing_can_match_is_known(asked: dict[str, Any], is_futile: bool) -> None:
    assert read_wanted(raw(asked)).is_futile is is_futile


class Compared(str):
    """A text that counts what it is compared with."""

    times = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Compared.times += 1
        return str(self) == other


def test_a_row_is_looked_up_among_the_values_of_a_filter_and_not_compared_with_each() -> None:
    values = [f"{number:064x}" for number in range(VALUES_MAX)]
    for name, field in (("ids", "event_id"), ("authors", "author"), ("#d", "d"), ("#c", "c")):
        wanted = read_wanted(raw({name: [*values[1:], "a" * 64]}))
        Compared.times = 0
        assert wanted.match(replace(SNAPSHOT, **{field: Compared("a" * 64)}))
        assert not wanted.match(replace(SNAPSHOT, **{field: Compared("b" * 64)}))
        assert Compared.times < 10  # a few, where hashes are alike


def test_a_document_without_a_class_matches_no_class() -> None:
    assert not Tags(c=frozenset({"notes"})).match("doc", "put", None)
    assert Tags().match("doc", "put", None)
    assert Wanted().match(SNAPSHOT)
