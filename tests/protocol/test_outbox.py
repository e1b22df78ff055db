"""The life of an outbox row: every pair of status and signal, and every requeue."""

import itertools

import pytest

from holdfast.protocol.outbox import (
    COUNTS,
    REQUEUES,
    TRANSITIONS,
    RelayWord,
    Requeue,
    Signal,
    Status,
    counts,
    word_at_hand,
)
from holdfast.protocol.refusal import Refusal
from holdfast.protocol.tables import NoTransition, move

# A column for each status that the signal finds the row in; a dot where it cannot happen.
MOVES = """
                pending    inflight   done       dead       aborted
    claimed     inflight   .          .          .          .
    accepted    done       done       done       dead       aborted
    duplicate   done       done       done       dead       aborted
    conflict    .          dead       .          .          .
    refused     .          dead       .          .          .
    postponed   .          pending    .          .          .
    held_back   .          pending    .          .          .
    key_stale   .          pending    .          .          .
    faulted     .          pending    .          .          .
    restarted   .          pending    .          .          .
    aged_out    dead       .          .          .          .
    requeued    aborted    .          .          aborted    .
    rolled_back .          .          pending    dead       .
"""


def expected() -> dict[tuple[str, str], str]:
    header, *rows = (line.split() for line in MOVES.strip().splitlines())
    return {(status, row[0]): after for row in rows for status, after in zip(header, row[1:], strict=True)}


@pytest.mark.parametrize(("status", "signal"), list(itertools.product(Status, Signal)))
def test_every_pair_of_status_and_signal_does_what_was_decided(status: Status, signal: Signal) -> None:
    after = expected()[status, signal]
    if after == ".":
        with pytest.raises(NoTransition):
            move(TRANSITIONS, status, signal)
    else:
        assert move(TRANSITIONS, status, signal) == after


def test_no_signal_but_a_late_yes_can_happen_to_an_aborted_row_and_nothing_brings_it_back() -> None:
    assert {signal for status, signal in TRANSITIONS if status is Status.ABORTED} == {
        Signal.ACCEPTED,
        Signal.DUPLICATE,
    }
    assert all(after is Status.ABORTED for (status, _), after in TRANSITIONS.items() if status is Status.ABORTED)


def test_from_every_status_but_the_final_one_a_row_can_still_be_finished() -> None:
    reached = {Status.ABORTED, Status.DONE}
    for _ in Status:
        reached |= {status for (status, _), after in TRANSITIONS.items() if after in reached}
    assert reached == set(Status)


def test_only_the_relay_makes_a_row_done() -> None:
    assert {signal for (_, signal), after in TRANSITIONS.items() if after is Status.DONE} == {
        Signal.ACCEPTED,
        Signal.DUPLICATE,
    }


# What ends an attempt: an answer to it, or that there will be none. One that was not looked at is none.
ATTEMPTS = {"accepted", "duplicate", "conflict", "refused", "postponed", "key_stale", "faulted", "restarted"}


@pytest.mark.parametrize(("status", "signal"), TRANSITIONS)
def test_an_attempt_is_counted_once_when_it_ends(status: Status, signal: Signal) -> None:
    assert counts(status, signal) is (status == "inflight" and signal.value in ATTEMPTS)


def test_every_signal_says_whether_it_counts() -> None:
    assert {signal.value for signal, counted in COUNTS.items() if counted} == ATTEMPTS
    assert set(COUNTS) == set(Signal)


def test_a_row_that_may_be_committed_has_an_attempt_counted() -> None:
    """Whatever takes a row out of flight without a word that it is not committed must count: requeue relies on it."""
    for status, signal in TRANSITIONS:
        if status is Status.INFLIGHT and not counts(status, signal):
            assert signal is Signal.HELD_BACK


WORDS = {
    ("pending", "not_asked"): ("requeued", None),
    ("pending", "not_committed"): ("requeued", None),
    ("pending", "committed"): ("duplicate", "requeue_of_done"),
    ("pending", "unreachable"): (None, "requeue_unconfirmed"),
    ("pending", "receipted"): (None, "requeue_of_done"),
    ("pending", "receipted_by_some"): (None, "requeue_of_receipted"),
    ("inflight", "not_asked"): (None, "requeue_of_inflight"),
    ("done", "not_asked"): (None, "requeue_of_done"),
    ("dead", "not_asked"): ("requeued", None),
    ("dead", "not_committed"): ("requeued", None),
    ("dead", "committed"): ("duplicate", "requeue_of_done"),
    ("dead", "unreachable"): (None, "requeue_unconfirmed"),
    ("dead", "receipted"): (None, "requeue_of_done"),
    ("dead", "receipted_by_some"): (None, "requeue_of_receipted"),
    ("aborted", "not_asked"): (None, "requeue_of_aborted"),
}


@pytest.mark.parametrize(("status", "word"), list(itertools.product(Status, RelayWord)))
def test_every_requeue_is_decided_and_the_relay_is_asked_about_waiting_and_dead_rows_only(
    status: Status, word: RelayWord
) -> None:
    found = REQUEUES.get((status, word))
    assert (found and (found.signal, found.refusal)) == WORDS.get((status.value, word.value))


@pytest.mark.parametrize(("key", "requeue"), REQUEUES.items())
def test_the_signal_of_a_requeue_can_happen_to_its_row(key: tuple[Status, RelayWord], requeue: Requeue) -> None:
    if requeue.signal is not None:
        move(TRANSITIONS, key[0], requeue.signal)


def test_force_helps_only_where_the_relay_could_not_be_asked_or_some_of_many_recipients_have_it() -> None:
    expected = {
        RelayWord.UNREACHABLE: Refusal.REQUEUE_UNCONFIRMED,
        RelayWord.RECEIPTED_BY_SOME: Refusal.REQUEUE_OF_RECEIPTED,
    }
    assert {key: requeue.refusal for key, requeue in REQUEUES.items() if requeue.force_helps} == {
        (status, word): refusal for status in (Status.PENDING, Status.DEAD) for word, refusal in expected.items()
    }


def test_the_relay_is_asked_about_a_waiting_or_dead_row_that_was_offered_and_about_no_other() -> None:
    rows = [(status, attempts) for status in Status for attempts in (0, 1, 7)]
    asked = {(status, attempts) for status, attempts in rows if word_at_hand(status, attempts, False) is None}
    assert asked == {(status, attempts) for status in (Status.PENDING, Status.DEAD) for attempts in (1, 7)}


@pytest.mark.parametrize("attempts", [0, 1, 7])
@pytest.mark.parametrize("status", Status)
def test_a_row_that_carries_the_relays_id_is_not_requeued_and_nobody_is_asked(status: Status, attempts: int) -> None:
    word = word_at_hand(status, attempts, has_relay_id=True)
    assert word is not None
    assert REQUEUES[status, word].signal is not Signal.REQUEUED
    assert REQUEUES[status, word].refusal is not None


@pytest.mark.parametrize(("status", "word"), [("pending", "not_asked"), ("dead", "not_asked"), ("done", "not_asked")])
def test_a_row_that_was_never_offered_needs_no_word(status: str, word: str) -> None:
    assert word_at_hand(Status(status), 0, has_relay_id=False) == word


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("has_relay_id", [True, False])
@pytest.mark.parametrize("attempts", [0, 3])
def test_a_word_at_hand_is_always_one_that_decides(status: Status, has_relay_id: bool, attempts: int) -> None:
    word = word_at_hand(status, attempts, has_relay_id)
    assert word is None or (status, word) in REQUEUES
    if word is None:
        assert {asked for of, asked in REQUEUES if of is status} == set(RelayWord)
