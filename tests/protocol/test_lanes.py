"""What is sent next: the rules one by one, and a slow, obvious twin on random outboxes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocol.fingerprint import Priority
from holdfast.protocol.lanes import BATCH_ROWS_MAX, Lane, Waiting, next_batch
from holdfast.protocol.outbox import Status
from tests.effort import lines_run

NOW = 1_000_000
ALICE, BOB = Lane("dm:alice"), Lane("dm:bob")
NOBODY: frozenset[Lane] = frozenset()


def row(
    sequence: int,
    lane: Lane = ALICE,
    priority: Priority = Priority.NEXT,
    next_attempt_at: int = 0,
    status: Status = Status.PENDING,
) -> Waiting:
    return Waiting(sequence, lane, priority, next_attempt_at, status)


def sequences(rows: list[Waiting], busy: frozenset[Lane] = NOBODY, rows_max: int = BATCH_ROWS_MAX) -> list[int]:
    return [chosen.sequence for chosen in next_batch(rows, busy, NOW, rows_max)]


def test_a_destination_goes_in_sequence_order() -> None:
    assert sequences([row(1), row(2), row(3)]) == [1, 2, 3]


@pytest.mark.parametrize("order", [(1, 3, 2), (2, 2), (1, 2, 0)])
def test_rows_that_do_not_come_in_sequence_order_are_a_bug(order: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="rows come in ascending order"):
        sequences([row(sequence) for sequence in order])


def test_finished_rows_out_of_order_are_a_bug_too() -> None:
    with pytest.raises(ValueError, match="sequence 1 stands after 2"):
        sequences([row(2, status=Status.DONE), row(1, status=Status.DONE)])


def test_a_waiting_head_holds_its_own_destination_and_no_other() -> None:
    assert sequences([row(1, next_attempt_at=NOW + 1), row(2), row(3, BOB)]) == [3]


def test_a_row_goes_the_very_moment_it_is_due() -> None:
    assert sequences([row(1, next_attempt_at=NOW)]) == [1]


def test_rows_behind_one_that_waits_do_not_overtake_it() -> None:
    assert sequences([row(1), row(2, next_attempt_at=NOW + 1), row(3)]) == [1]


def test_a_destination_with_a_batch_in_flight_gets_no_second_one() -> None:
    assert sequences([row(1), row(2, BOB)], busy=frozenset({ALICE})) == [2]


def test_a_row_in_flight_makes_its_destination_busy_by_itself() -> None:
    assert sequences([row(1), row(2, status=Status.INFLIGHT), row(3, BOB)]) == [3]


def test_finished_rows_hold_nobody() -> None:
    finished = [row(n, status=status) for n, status in enumerate((Status.DONE, Status.DEAD, Status.ABORTED))]
    assert sequences([*finished, row(3)]) == [3]


def test_priority_orders_destinations() -> None:
    carol = Lane("dm:carol")
    rows = [row(1, ALICE, Priority.LOW), row(2, BOB, Priority.NEXT), row(3, carol, Priority.NOW)]
    assert sequences(rows) == [3, 2, 1]


def test_priority_does_not_reorder_one_destination() -> None:
    assert sequences([row(1, priority=Priority.LOW), row(2, priority=Priority.NOW)]) == [1, 2]


def test_an_urgent_row_lifts_those_before_it() -> None:
    rows = [row(1, BOB, Priority.NEXT), row(2, ALICE, Priority.LOW), row(3, ALICE, Priority.NOW)]
    assert sequences(rows) == [2, 3, 1]


def test_an_urgent_row_that_cannot_leave_lifts_nobody() -> None:
    behind_a_wait = [
        row(1, ALICE, Priority.LOW),
        row(2, ALICE, Priority.NOW, next_attempt_at=NOW + 1),
        row(3, BOB, Priority.NEXT),
    ]
    past_the_limit = [row(1, ALICE, Priority.LOW), row(2, ALICE, Priority.NOW), row(3, BOB, Priority.NEXT)]
    assert sequences(behind_a_wait) == [3, 1]
    assert sequences(past_the_limit, rows_max=1) == [3]


def test_among_equals_the_destination_that_waited_longest_goes_first() -> None:
    assert sequences([row(4, BOB), row(5, ALICE), row(6, BOB)]) == [4, 6, 5]


def test_receipts_pass_the_messages_of_their_destination() -> None:
    receipts = Lane("dm:alice", is_receipts=True)
    assert sequences([row(1, next_attempt_at=NOW + 1), row(2, receipts), row(3)]) == [2]
    assert sequences([row(1), row(2, receipts)], busy=frozenset({receipts})) == [1]


def test_a_request_takes_no_more_than_it_may() -> None:
    rows = [row(n, ALICE) for n in range(3)] + [row(n, BOB) for n in range(3, 6)]
    assert sequences(rows, rows_max=4) == [0, 1, 2, 3]
    assert len(next_batch([row(n) for n in range(BATCH_ROWS_MAX + 1)], NOBODY, NOW)) == BATCH_ROWS_MAX == 100


def test_a_full_destination_leaves_the_next_request_to_the_others() -> None:
    rows = [row(n, ALICE, Priority.NOW) for n in range(3)] + [row(9, BOB, Priority.LOW)]
    assert sequences(rows, rows_max=2) == [0, 1]
    assert sequences(rows, busy=frozenset({ALICE}), rows_max=2) == [9]


LANES = [Lane(name, is_receipts) for name in ("a", "b", "c") for is_receipts in (False, True)]


@st.composite
def outboxes(draw: st.DrawFn) -> list[Waiting]:
    count = draw(st.integers(0, 12))
    return [
        Waiting(
            sequence,
            draw(st.sampled_from(LANES)),
            draw(st.sampled_from(Priority)),
            draw(st.integers(NOW - 1, NOW + 1)),
            draw(st.sampled_from([Status.PENDING] * 6 + [status for status in Status if status != "pending"])),
        )
        for sequence in range(count)
    ]


def may_leave(row: Waiting, rows: list[Waiting], busy: frozenset[Lane], rows_max: int) -> bool:
    """Said of one row alone, by looking at all others."""
    alive = [other for other in rows if other.lane == row.lane and other.status in ("pending", "inflight")]
    before = [other for other in alive if other.sequence < row.sequence]
    return (
        row.status == "pending"
        and row.lane not in busy
        and not any(other.status == "inflight" for other in alive)
        and all(other.next_attempt_at <= NOW for other in [*before, row])
        and len(before) < rows_max
    )


def slow_twin(rows: list[Waiting], busy: frozenset[Lane], rows_max: int) -> list[Waiting]:
    """Take the best row that is left, again and again."""
    left = [row for row in rows if may_leave(row, rows, busy, rows_max)]
    urgency = {
        lane: min(["now", "next", "low"].index(row.priority) for row in left if row.lane == lane)
        for lane in {row.lane for row in left}
    }
    heads = {lane: min(row.sequence for row in left if row.lane == lane) for lane in urgency}
    chosen: list[Waiting] = []
    while left and len(chosen) < rows_max:
        best = min(left, key=lambda row: (urgency[row.lane], heads[row.lane], row.sequence))
        chosen.append(best)
        left.remove(best)
    return chosen


@given(rows=outboxes(), busy=st.frozensets(st.sampled_from(LANES), max_size=2), rows_max=st.integers(1, 6))
def test_the_choice_is_that_of_the_slow_twin(rows: list[Waiting], busy: frozenset[Lane], rows_max: int) -> None:
    assert list(next_batch(rows, busy, NOW, rows_max)) == slow_twin(rows, busy, rows_max)


@given(rows=outboxes())
def test_a_lane_that_may_go_is_never_starved_by_a_request_with_room(rows: list[Waiting]) -> None:
    chosen = {row.lane for row in next_batch(rows, NOBODY, NOW)}
    assert chosen == {row.lane for row in rows if may_leave(row, rows, NOBODY, BATCH_ROWS_MAX)}


def test_a_long_outbox_is_gone_through_once_and_quickly() -> None:
    rows = [row(n, Lane(f"dm:{n % 1000}")) for n in range(100_000)]
    assert len(next_batch(iter(rows), NOBODY, NOW)) == BATCH_ROWS_MAX
    assert lines_run(lambda: next_batch(iter(rows), NOBODY, NOW)) < 20 * len(rows)
