"""The life of an outbox row: every pair of status and signal, and every requeue."""

import itertools

import pytest

from holdfast.protocol.outbox import REQUEUES, TRANSITIONS, RelayWord, Requeue, Signal, Status, needs_word
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
    key_stale   .          pending    .          .          .
    faulted     .          pending    .          .          .
    restarted   .          pending    .          .          .
    aged_out    dead       .          .          .          .
    requeued    aborted    .          .          aborted    .
    rolled_back .          .          pending    .          .
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


WORDS = {
    ("pending", "not_asked"): ("requeued", None),
    ("pending", "not_committed"): ("requeued", None),
    ("pending", "committed"): ("duplicate", "requeue_of_done"),
    ("pending", "unreachable"): (None, "requeue_unconfirmed"),
    ("inflight", "not_asked"): (None, "requeue_of_inflight"),
    ("done", "not_asked"): (None, "requeue_of_done"),
    ("dead", "not_asked"): ("requeued", None),
    ("aborted", "not_asked"): (None, "requeue_of_aborted"),
}


@pytest.mark.parametrize(("status", "word"), list(itertools.product(Status, RelayWord)))
def test_every_requeue_is_decided_and_the_relay_is_asked_about_waiting_rows_only(
    status: Status, word: RelayWord
) -> None:
    found = REQUEUES.get((status, word))
    assert (found and (found.signal, found.refusal)) == WORDS.get((status.value, word.value))


@pytest.mark.parametrize(("key", "requeue"), REQUEUES.items())
def test_the_signal_of_a_requeue_can_happen_to_its_row(key: tuple[Status, RelayWord], requeue: Requeue) -> None:
    if requeue.signal is not None:
        move(TRANSITIONS, key[0], requeue.signal)


def test_force_helps_only_where_the_relay_could_not_be_asked() -> None:
    assert {key for key, requeue in REQUEUES.items() if requeue.force_helps} == {
        (Status.PENDING, RelayWord.UNREACHABLE)
    }
    assert REQUEUES[Status.PENDING, RelayWord.UNREACHABLE].refusal is Refusal.REQUEUE_UNCONFIRMED


def test_the_relay_is_asked_about_a_waiting_row_that_was_offered_and_about_no_other() -> None:
    asked = {(status, attempts) for status in Status for attempts in (0, 1, 7) if needs_word(status, attempts)}
    assert asked == {(Status.PENDING, 1), (Status.PENDING, 7)}
