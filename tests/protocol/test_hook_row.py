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
)
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.tables import NoTransition, move

# What a locked row becomes, and whether that was an attempt.
LOCKED = {
    "renewed": ("locked", False),
    "taken_over": ("locked", False),
    "handler_lost": ("pending", True),
    "succeeded": ("done", True),
    "failed": ("pending", True),
    "exhausted": ("dead", True),
    "unprocessable": ("dead", True),
    "superseded": ("coalesced", False),
    "sent_back": ("pending", False),
    "released": ("pending", False),
}


@pytest.mark.parametrize(("status", "signal"), list(itertools.product(HookStatus, HookSignal)))
def test_every_pair_of_status_and_signal_does_what_was_decided(status: HookStatus, signal: HookSignal) -> None:
    if (status, signal) == ("pending", "claimed"):
        assert move(TRANSITIONS, status, signal) == "locked"
    elif status == "locked" and signal.value in LOCKED:
        assert move(TRANSITIONS, status, signal) == LOCKED[signal.value][0]
    else:
        with pytest.raises(NoTransition):
            move(TRANSITIONS, status, signal)


@pytest.mark.parametrize("signal", HookSignal)
def test_only_a_handlers_work_is_an_attempt(signal: HookSignal) -> None:
    assert COUNTS[signal] is (signal != "claimed" and LOCKED[signal.value][1])


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
