"""Vector clocks against a slow twin: a clock there is a plain dict, and every definition is spelled out over all devices."""

import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocol import clock as clocks
from holdfast.protocol.clock import (
    Order,
    VectorClock,
    compare,
    dominates,
    from_tags,
    frontier,
    increment,
    merge,
    to_tags,
)
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.tags import INTEGER_MAX
from tests.effort import lines_run

SOME_DEVICES = ["A", "B", "C", "a", "é", "\uffff", "\U00010000"]

# Few devices and small counters, so that all four orders are common.
small_clocks = st.dictionaries(st.sampled_from(SOME_DEVICES), st.integers(1, 3), max_size=4).map(
    lambda counters: VectorClock(tuple(sorted(counters.items())))
)
any_clocks = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=32),
    st.integers(1, INTEGER_MAX),
    min_size=1,
    max_size=clocks.DEVICES_MAX,
).map(lambda counters: VectorClock(tuple(sorted(counters.items()))))


def slow_at_most(first: VectorClock, second: VectorClock) -> bool:
    """Every device of either, with 0 for an absent one: the first is nowhere ahead."""
    one, other = dict(first.entries), dict(second.entries)
    return all(one.get(device, 0) <= other.get(device, 0) for device in {*one, *other})


def slow_compare(first: VectorClock, second: VectorClock) -> Order:
    if slow_at_most(first, second) and slow_at_most(second, first):
        return Order.EQUAL
    if slow_at_most(first, second):
        return Order.BEFORE
    if slow_at_most(second, first):
        return Order.AFTER
    return Order.CONCURRENT


def slow_frontier(given_clocks: list[VectorClock]) -> tuple[VectorClock, ...]:
    return tuple(
        one for one in given_clocks if not any(slow_compare(other, one) is Order.AFTER for other in given_clocks)
    )


def clock(**counters: int) -> VectorClock:
    return VectorClock(tuple(sorted(counters.items())))


@given(small_clocks, small_clocks)
def test_compare_agrees_with_its_slow_twin(first: VectorClock, second: VectorClock) -> None:
    assert compare(first, second) is slow_compare(first, second)
    assert dominates(first, second) == (slow_compare(first, second) is Order.AFTER)


@pytest.mark.parametrize(
    ("first", "second", "order"),
    [
        (clock(), clock(), Order.EQUAL),
        (clock(A=1), clock(), Order.AFTER),
        (clock(), clock(A=1), Order.BEFORE),
        (clock(A=2, B=1), clock(A=1, B=1), Order.AFTER),
        (clock(A=1), clock(A=1, B=1), Order.BEFORE),
        (clock(A=2), clock(A=1, B=1), Order.CONCURRENT),
        (clock(A=1), clock(a=1), Order.CONCURRENT),
        (clock(A=5, B=2), clock(A=4, B=3), Order.CONCURRENT),
    ],
)
def test_clocks_known_by_hand_compare_as_known(first: VectorClock, second: VectorClock, order: Order) -> None:
    assert compare(first, second) is order


def test_the_table_of_orders_has_a_row_for_every_pair() -> None:
    assert set(clocks.ORDERS) == set(itertools.product([False, True], repeat=2))
    assert set(clocks.ORDERS.values()) == set(Order)


@given(small_clocks, small_clocks, small_clocks)
def test_at_most_is_a_partial_order(one: VectorClock, two: VectorClock, three: VectorClock) -> None:
    def at_most(first: VectorClock, second: VectorClock) -> bool:
        return compare(first, second) in {Order.BEFORE, Order.EQUAL}

    assert at_most(one, one)
    assert not (at_most(one, two) and at_most(two, one)) or one == two
    assert not (at_most(one, two) and at_most(two, three)) or at_most(one, three)


@given(small_clocks, small_clocks)
def test_compare_read_backwards_is_the_opposite(first: VectorClock, second: VectorClock) -> None:
    opposite = {Order.BEFORE: Order.AFTER, Order.AFTER: Order.BEFORE}
    order = compare(first, second)
    assert compare(second, first) is opposite.get(order, order)


def slow_bound(*given_clocks: VectorClock) -> VectorClock:
    """Some clock that knows all of them."""
    counters = {device: max(dict(one.entries).get(device, 0) for one in given_clocks) for device in SOME_DEVICES}
    return clock(**{device: counter for device, counter in counters.items() if counter > 0})


@given(small_clocks, small_clocks, small_clocks)
def test_merge_is_the_least_clock_that_knows_both(one: VectorClock, two: VectorClock, more: VectorClock) -> None:
    merged = merge(one, two)
    assert slow_at_most(one, merged)
    assert slow_at_most(two, merged)
    assert slow_at_most(merged, slow_bound(one, two, more))


@given(small_clocks, small_clocks)
def test_merge_takes_the_greater_counter_of_every_device(one: VectorClock, two: VectorClock) -> None:
    left, right = dict(one.entries), dict(two.entries)
    expected = {device: max(left.get(device, 0), right.get(device, 0)) for device in {*left, *right}}
    assert dict(merge(one, two).entries) == expected


@given(small_clocks, small_clocks, small_clocks)
def test_merge_is_commutative_associative_and_idempotent(
    one: VectorClock, two: VectorClock, three: VectorClock
) -> None:
    assert merge(one, two) == merge(two, one)
    assert merge(merge(one, two), three) == merge(one, merge(two, three))
    assert merge(one, one) == one


def test_resolving_a_conflict_merges_and_then_counts_once() -> None:
    assert increment(merge(clock(A=5, B=2), clock(A=4, B=3)), "A") == clock(A=6, B=3)


@given(small_clocks, st.sampled_from(SOME_DEVICES))
def test_an_increment_moves_one_device_by_one(before: VectorClock, device: str) -> None:
    after = increment(before, device)
    expected = dict(before.entries)
    expected[device] = expected.get(device, 0) + 1
    assert dict(after.entries) == expected
    assert dominates(after, before)


def test_an_increment_leaves_the_old_clock_as_it_was() -> None:
    before = clock(A=1)
    increment(before, "A")
    assert before == clock(A=1)
    with pytest.raises(AttributeError):
        before.entries = ()  # type: ignore[misc] # the point of the test


@given(st.lists(small_clocks, max_size=12))
def test_the_frontier_is_what_brute_force_finds_in_the_order_given(given_clocks: list[VectorClock]) -> None:
    assert frontier(given_clocks) == slow_frontier(given_clocks)


def test_the_frontier_keeps_equal_clocks_and_drops_what_came_before_a_later_one() -> None:
    assert frontier([clock(A=1), clock(A=2), clock(B=1), clock(A=2)]) == (clock(A=2), clock(B=1), clock(A=2))


def test_many_clocks_that_stand_side_by_side_are_compared_in_bearable_time() -> None:
    many = [clock(A=number + 1, B=901 - number, C=5, D=5) for number in range(900)]
    assert frontier(many) == tuple(many)
    assert lines_run(lambda: frontier(many)) < 15 * len(many) * (len(many) - 1) // 2


def test_a_clock_is_made_ready_for_comparison_once(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [clock(A=number + 1, B=41 - number) for number in range(40)]
    made: list[object] = []

    def counted(entries: tuple[tuple[str, int], ...]) -> dict[str, int]:
        made.append(entries)
        return dict(entries)

    monkeypatch.setattr(clocks, "dict", counted, raising=False)
    assert len(frontier(many)) == len(made) == 40


WRONG_TYPES = [
    ((("A", 1.5),), "clock device 'A': counter is of type float, not int"),
    ((("A", True),), "clock device 'A': counter is of type bool, not int"),
    ((("A", "1"),), "clock device 'A': counter is of type str, not int"),
    (((b"A", 1),), "clock device is of type bytes, not str"),
    (((None, 1),), "clock device is of type NoneType, not str"),
    ([("A", 1)], "clock entries is of type list, not tuple"),
]


@pytest.mark.parametrize(("entries", "detail"), WRONG_TYPES)
def test_values_of_other_types_are_refused(entries: Any, detail: str) -> None:
    with pytest.raises(Refused) as refused:
        VectorClock(entries)
    assert (refused.value.refusal, refused.value.detail) == (Refusal.MALFORMED, detail)


@given(any_clocks)
def test_a_clock_survives_its_tags(one: VectorClock) -> None:
    assert from_tags(to_tags(one)) == one


@given(any_clocks, st.randoms(use_true_random=False))
def test_tags_in_any_other_order_are_refused(one: VectorClock, random: object) -> None:
    tags = list(to_tags(one))
    shuffled = tags[:]
    random.shuffle(shuffled)  # type: ignore[attr-defined] # hypothesis' seeded random.Random
    if shuffled == tags:
        assert from_tags(shuffled) == one
    else:
        with pytest.raises(Refused, match="not ascending"):
            from_tags(shuffled)


def test_other_tags_may_stand_between() -> None:
    tags = [["vc", "A", "1"], ["d", "note"], [], ["vc", "B", "2"], ["o", "put"]]
    assert from_tags(tags) == clock(A=1, B=2)


def test_device_ids_ascend_by_code_point_and_not_by_utf16_unit() -> None:
    tags = (("vc", "\uffff", "1"), ("vc", "\U00010000", "1"))
    assert to_tags(from_tags(tags)) == tags
    assert sorted(["\uffff", "\U00010000"], key=lambda text: text.encode()) == ["\uffff", "\U00010000"]
    with pytest.raises(Refused, match="not ascending"):
        from_tags(tags[::-1])


def test_a_clock_of_the_largest_allowed_size_is_taken() -> None:
    devices = sorted(f"{number:02}" + "é" * 63 for number in range(clocks.DEVICES_MAX))
    assert {len(device.encode()) for device in devices} == {clocks.DEVICE_ID_BYTES_MAX}
    tags = [["vc", device, str(INTEGER_MAX)] for device in devices]
    assert len(from_tags(tags).entries) == 32


MANY = [["vc", f"{number:02}", "1"] for number in range(33)]
BAD_TAGS = [
    ([], "clock is missing: at least one 'vc' tag is needed"),
    ([["d", "x"], ["o", "put"]], "clock is missing: at least one 'vc' tag is needed"),
    ([["vc"]], "tag 'vc' has 1 elements, it must have 3"),
    ([["vc", "A"]], "tag 'vc' has 2 elements, it must have 3"),
    ([["vc", "A", "1", ""]], "tag 'vc' has 4 elements, it must have 3"),
    ([["vc", "", "1"]], "clock has an empty device id"),
    ([["vc", "a\0b", "1"]], "clock device 'a\\x00b' has a NUL character"),
    ([["vc", "\ud800", "1"]], "clock device '\\ud800' is not Unicode text"),
    (
        [["vc", "é" * 64 + "x", "1"]],
        "clock device '" + "\\xe9" * 40 + "...' has 129 bytes, at most 128 allowed",
    ),
    ([["vc", "A", ""]], "clock device 'A': counter '' is not plain base-10 digits"),
    ([["vc", "A", "+1"]], "clock device 'A': counter '+1' is not plain base-10 digits"),
    ([["vc", "A", "-1"]], "clock device 'A': counter '-1' is not plain base-10 digits"),
    ([["vc", "A", " 1"]], "clock device 'A': counter ' 1' is not plain base-10 digits"),
    ([["vc", "A", "1\n"]], "clock device 'A': counter '1\\n' is not plain base-10 digits"),
    ([["vc", "A", "1_0"]], "clock device 'A': counter '1_0' is not plain base-10 digits"),
    ([["vc", "A", "1.0"]], "clock device 'A': counter '1.0' is not plain base-10 digits"),
    ([["vc", "A", "1e3"]], "clock device 'A': counter '1e3' is not plain base-10 digits"),
    ([["vc", "A", "0x1"]], "clock device 'A': counter '0x1' is not plain base-10 digits"),
    ([["vc", "A", "\u0661"]], "clock device 'A': counter '\\u0661' is not plain base-10 digits"),
    ([["vc", "A", "\xb2"]], "clock device 'A': counter '\\xb2' is not plain base-10 digits"),
    ([["vc", "A", "01"]], "clock device 'A': counter '01' has a leading zero"),
    ([["vc", "A", "00"]], "clock device 'A': counter '00' has a leading zero"),
    ([["vc", "A", "0"]], "clock device 'A': counter 0 is under 1"),
    (
        [["vc", "A", "9007199254740992"]],
        "clock device 'A': counter 9007199254740992 is over 9007199254740991",
    ),
    ([["vc", "A", "1" * 17]], f"clock device 'A': counter '{'1' * 17}' is over 9007199254740991"),
    ([["vc", "A", "9" * 9999]], f"clock device 'A': counter '{'9' * 40}...' is over 9007199254740991"),
    (MANY, "clock has 33 devices, at most 32 allowed"),
    ([["vc", "A", "1"], ["vc", "A", "1"]], "clock device 'A' stands twice"),
    ([["vc", "A", "1"], ["vc", "A", "2"]], "clock device 'A' stands twice"),
    ([["vc", "B", "1"], ["vc", "A", "1"]], "clock devices are not ascending: 'A' stands after 'B'"),
    ([["vc", "a", "1"], ["vc", "B", "1"]], "clock devices are not ascending: 'B' stands after 'a'"),
    (
        [["vc", "10", "1"], ["vc", "9", "1"], ["vc", "8", "1"]],
        "clock devices are not ascending: '8' stands after '9'",
    ),
    (
        [["vc", "A", "1"], ["vc", "B", "1"], ["vc", "A", "1"]],
        "clock devices are not ascending: 'A' stands after 'B'",
    ),
]


@pytest.mark.parametrize(("tags", "detail"), BAD_TAGS)
def test_malformed_clocks_are_refused_with_the_reason(tags: list[list[str]], detail: str) -> None:
    with pytest.raises(Refused) as refused:
        from_tags(tags)
    assert (refused.value.refusal, refused.value.detail) == (Refusal.MALFORMED, detail)


FULL = VectorClock(tuple((f"{number:02}", 1) for number in range(32)))
IMPOSSIBLE: list[tuple[Callable[[], object], str]] = [
    (
        lambda: increment(clock(A=INTEGER_MAX), "A"),
        "counter 9007199254740992 is over 9007199254740991",
    ),
    (lambda: increment(FULL, "99"), "clock has 33 devices, at most 32 allowed"),
    (lambda: increment(FULL, ""), "clock has 33 devices, at most 32 allowed"),
    (lambda: increment(clock(), ""), "clock has an empty device id"),
    (lambda: merge(FULL, clock(A=1)), "clock has 33 devices, at most 32 allowed"),
    (lambda: to_tags(clock()), "clock is empty: an event needs at least one device"),
    (
        lambda: msgspec.structs.replace(clock(A=1), entries=(("B", 1), ("A", 1))),
        "clock devices are not ascending",
    ),
]


@pytest.mark.parametrize(("make", "detail"), IMPOSSIBLE)
def test_no_operation_makes_a_clock_that_could_not_be_read(make: Callable[[], object], detail: str) -> None:
    with pytest.raises(Refused, match=detail):
        make()


def test_a_full_clock_still_counts_its_own_devices() -> None:
    assert dict(increment(FULL, "31").entries)["31"] == 2
