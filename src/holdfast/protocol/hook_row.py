"""The life of a row of the hook outbox, and which failures of a handler are worth another try.

Every mark of a worker carries the fencing token of its lock, so a worker that was thought dead cannot mark what another
has taken over. Whatever ends a row keeps the error that ended it. An attempt is counted, on disk, before the handler
runs: one that takes the whole process down has counted all the same.
"""

import json
from enum import StrEnum

from holdfast.protocol.refusal import REFUSALS, Refused
from holdfast.protocol.tables import total, transitions

ATTEMPTS_MAX = 20  # then the row is poison, and the session goes on without it


class HookStatus(StrEnum):
    """Where a hook row stands."""

    PENDING = "pending"
    LOCKED = "locked"  # claimed by a worker, in whose memory it waits
    HANDLING = "handling"  # in a handler's hands
    DONE = "done"
    DEAD = "dead"
    COALESCED = "coalesced"


class HookSignal(StrEnum):
    """What happens to a hook row."""

    CLAIMED = "claimed"
    RENEWED = "renewed"
    TAKEN_OVER = "taken_over"  # its worker died or stalled while it waited in memory
    STARTED = "started"  # a handler is about to get it; marked before it does
    HANDLER_LOST = "handler_lost"  # its worker died or stalled with the row in a handler's hands
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    EXHAUSTED = "exhausted"  # failed, or lost its worker, for the last time
    UNPROCESSABLE = "unprocessable"  # a payload that is not JSON, or a failure that no repetition mends
    SUPERSEDED = "superseded"  # a later event of its kind stands for it, or there was no room for a bursty one
    SENT_BACK = "sent_back"  # no room for a critical one
    RELEASED = "released"  # its worker ends, or a row before it in the session waits for a retry


TRANSITIONS = transitions(
    {
        (HookStatus.PENDING, HookSignal.CLAIMED): HookStatus.LOCKED,
        (HookStatus.LOCKED, HookSignal.RENEWED): HookStatus.LOCKED,
        (HookStatus.LOCKED, HookSignal.TAKEN_OVER): HookStatus.LOCKED,
        (HookStatus.LOCKED, HookSignal.STARTED): HookStatus.HANDLING,
        # A payload that nobody can read never gets as far as a handler.
        (HookStatus.LOCKED, HookSignal.UNPROCESSABLE): HookStatus.DEAD,
        # Only a queue coalesces, and only what waits is in a queue.
        (HookStatus.LOCKED, HookSignal.SUPERSEDED): HookStatus.COALESCED,
        (HookStatus.LOCKED, HookSignal.SENT_BACK): HookStatus.PENDING,
        (HookStatus.LOCKED, HookSignal.RELEASED): HookStatus.PENDING,
        (HookStatus.HANDLING, HookSignal.RENEWED): HookStatus.HANDLING,
        (HookStatus.HANDLING, HookSignal.HANDLER_LOST): HookStatus.PENDING,
        (HookStatus.HANDLING, HookSignal.SUCCEEDED): HookStatus.DONE,
        (HookStatus.HANDLING, HookSignal.FAILED): HookStatus.PENDING,
        (HookStatus.HANDLING, HookSignal.EXHAUSTED): HookStatus.DEAD,
        (HookStatus.HANDLING, HookSignal.UNPROCESSABLE): HookStatus.DEAD,
    }
)

# Whether it adds one to the attempts. Nothing but the start does: what comes after it may never be marked. A row that only
# waited must not count, or its neighbours' crashes would kill it.
COUNTS = total(
    {
        HookSignal.CLAIMED: False,
        HookSignal.RENEWED: False,
        HookSignal.TAKEN_OVER: False,
        HookSignal.STARTED: True,
        HookSignal.HANDLER_LOST: False,
        HookSignal.SUCCEEDED: False,
        HookSignal.FAILED: False,
        HookSignal.EXHAUSTED: False,
        HookSignal.UNPROCESSABLE: False,
        HookSignal.SUPERSEDED: False,
        HookSignal.SENT_BACK: False,
        HookSignal.RELEASED: False,
    },
    HookSignal,
)

# A failure of this type whose text has these words is final: a repetition would meet the very same thing.
NON_RETRYABLE: tuple[tuple[type[Exception], str], ...] = (
    (ValueError, "not found"),
    (json.JSONDecodeError, "Extra data"),
)


def is_retryable(error: Exception) -> bool:
    """Whether a handler that failed like this may succeed later."""
    if isinstance(error, Refused):
        return not REFUSALS[error.refusal].is_permanent
    return not any(isinstance(error, kind) and words in str(error) for kind, words in NON_RETRYABLE)


def failure(error: Exception, attempts: int) -> HookSignal:
    """What this failure is to its row; `attempts` counts the one that just failed."""
    if not is_retryable(error):
        return HookSignal.UNPROCESSABLE
    return HookSignal.EXHAUSTED if attempts >= ATTEMPTS_MAX else HookSignal.FAILED


def lost(attempts: int) -> HookSignal:
    """What it is to a row when its worker is gone with the row in a handler's hands; `attempts` counts that one."""
    return HookSignal.EXHAUSTED if attempts >= ATTEMPTS_MAX else HookSignal.HANDLER_LOST
