"""The life of a hook row: every pair of status and signal, and which failures are final."""

import itertools
import json

import pytest

from holdfast.protocol.hook_row import (
    ATTEMPTS_MAX,
    COUNTS,
    TRANSITIONS,
    HookSignal,
    HookStatus,
    failure,
    is_retryable,
    lost,
)
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.tables import NoTransition, move

# A column for each status that the signal finds the row in, but for those that end it; a dot where it cannot happen.
MOVES = """
                    pending    locked     handling
    claimed         locked     .          .
    renewed         .          locked     handling
    taken_over      .          locked     .
    started         .          handling   .
    handler_lost    .          .          pending
    succeeded       .          .          done
    failed          .          .          pending
    exhausted       .          .          dead
    unprocessable   .          dead       dead
    superseded      .          coalesced  .
    sent_back       .          pending    .
    released        .          pending    .
"""


def expected() -> dict[tuple[str, str], str]:
    header, *rows = (line.split() for line in MOVES.strip().splitlines())
    return {(status, row[0]): after for row in rows for status, after in zip(header, row[1:], strict=True)}


@pytest.mark.parametrize(("status", "signal"), list(itertools.product(HookStatus, HookSignal)))
def test_every_pair_of_status_and_signal_does_what_was_decided(status: HookStatus, signal: HookSignal) -> None:
    after = expected().get((status, signal), ".")
    if after == ".":
        with pytest.raises(NoTransition):
            move(TRANSITIONS, status, signal)
    else:
        assert move(TRANSITIONS, status, signal) == after


def test_the_list_has_every_signal() -> None:
    assert {signal for _, signal in expected()} == set(HookSignal)


@pytest.mark.parametrize("signal", HookSignal)
def test_an_attempt_is_counted_when_it_starts_and_never_again(signal: HookSignal) -> None:
    assert COUNTS[signal] is (signal == "started")


def test_a_handler_gets_no_row_before_its_attempt_is_counted() -> None:
    into_hands = {signal for (status, signal), after in TRANSITIONS.items() if after == "handling" != status}
    assert all(COUNTS[signal] for signal in into_hands)


class Row:
    """A stored row: whatever a process had in memory is gone when it is killed."""

    def __init__(self) -> None:
        self.status, self.attempts = HookStatus.PENDING, 0

    def mark(self, signal: HookSignal) -> None:
        self.status = move(TRANSITIONS, self.status, signal)
        self.attempts += COUNTS[signal]


def test_a_handler_that_kills_its_process_every_time_ends_as_dead() -> None:
    row, killed = Row(), 0
    while row.status is not HookStatus.DEAD:
        row.mark(HookSignal.CLAIMED)
        row.mark(HookSignal.STARTED)
        killed += 1  # the process is gone; a new one looks at what is stored
        assert row.status is HookStatus.HANDLING
        row.mark(lost(row.attempts))
    assert killed == ATTEMPTS_MAX == row.attempts


def test_a_row_that_only_waited_in_a_process_that_was_killed_has_no_attempt_to_its_name() -> None:
    row = Row()
    row.mark(HookSignal.CLAIMED)
    for _ in range(2 * ATTEMPTS_MAX):
        row.mark(HookSignal.TAKEN_OVER)
    assert (row.status, row.attempts) == (HookStatus.LOCKED, 0)


def test_a_worker_that_is_lost_for_the_twentieth_time_ends_the_row() -> None:
    assert [lost(attempts) for attempts in (1, 19, 20, 21)] == [
        "handler_lost",
        "handler_lost",
        "exhausted",
        "exhausted",
    ]


def decode_error(text: str) -> json.JSONDecodeError:
    with pytest.raises(json.JSONDecodeError) as raised:
        json.loads(text)
    return raised.value


@pytest.mark.parametrize(
    ("error", "retryable"),
    [
        (ValueError("session 7 not found"), False),
        (ValueError("Not Found"), True),
        (ValueError("busy"), True),
        (LookupError("session 7 not found"), True),
        (decode_error("{}{}"), False),
        (decode_error("{"), True),
        (RuntimeError("Extra data"), True),
        (Refused(Refusal.RATE_LIMITED, "60 in a minute"), True),
        (Refused(Refusal.NOT_A_MEMBER, "npub1"), False),
    ],
)
def test_only_failures_that_no_repetition_mends_are_final(error: Exception, retryable: bool) -> None:
    assert is_retryable(error) is retryable


def test_a_row_that_failed_twenty_times_is_poison() -> None:
    signals = [failure(RuntimeError("again"), attempts) for attempts in range(1, 22)]
    assert signals == [HookSignal.FAILED] * 19 + [HookSignal.EXHAUSTED] * 2
    assert ATTEMPTS_MAX == 20


def test_a_final_failure_ends_the_row_at_its_first_attempt() -> None:
    assert failure(ValueError("session not found"), 1) is HookSignal.UNPROCESSABLE
