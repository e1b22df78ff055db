"""The life of a row of the hook outbox, and which failures of a handler are worth another try.

Every update by a worker carries the fencing token of its lock, so a worker that was thought dead cannot update what another
has taken over. A row that ends keeps its last error. An attempt is counted, on disk, before the handler runs, so that one
that takes the whole process down counts too.
"""

import json
from enum import StrEnum

from holdfast.protocol.refusal import REFUSALS, Refused
from holdfast.protocol.tables import total, transitions

ATTEMPTS_MAX = 20  # after these the row is dead, and its session goes on without it


class HookStatus(StrEnum):
    """The status of a hook row."""

    PENDING = "pending"
    LOCKED = "locked"  # claimed by a worker, and waiting in its memory
    HANDLING = "handling"  # in a handler's hands
    DONE = "done"
    DEAD = "dead"
    COALESCED = "coalesced"


class HookSignal(StrEnum):
    """An event in the life of a hook row."""

    CLAIMED = "claimed"
    RENEWED = "renewed"
    TAKEN_OVER = "taken_over"  # its worker died or stalled while the row waited in memory
    STARTED = "started"  # a handler is about to get it; written before it does
    HANDLER_LOST = "handler_lost"  # its worker died or stalled with the row in a handler's hands
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    EXHAUSTED = "exhausted"  # failed, or lost its worker, for the last time
    UNPROCESSABLE = "unprocessable"  # the payload is not JSON, or the handler failed in a way that no repetition helps
    SUPERSEDED = "superseded"  # a bursty row: a later one replaced it, or there was no room
    SENT_BACK = "sent_back"  # a critical row: there was no room
    RELEASED = "released"  # its worker ends, or a row before it in the session waits for a retry


TRANSITIONS = transitions(
    {
        (HookStatus.PENDING, HookSignal.CLAIMED): HookStatus.LOCKED,
        (HookStatus.LOCKED, HookSignal.RENEWED): HookStatus.LOCKED,
        (HookStatus.LOCKED, HookSignal.TAKEN_OVER): HookStatus.LOCKED,
        (HookStatus.LOCKED, HookSignal.STARTED): HookStatus.HANDLING,
        # A payload that nobody can read never gets as far as a handler.
        (HookStatus.LOCKED, HookSignal.UNPROCESSABLE): HookStatus.DEAD,
        # Only rows that wait in a queue can be coalesced.
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

# Whether a signal adds one to the attempts. Only the start does, because the end of an attempt may never be written. A row
# that only waited must not count, or crashes caused by its neighbours would kill it.
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

# An error of this type with these words in its text is final: a retry would meet the same error.
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
    """The signal to a row whose handler failed with this error; `attempts` includes the failed one."""
    if not is_retryable(error):
        return HookSignal.UNPROCESSABLE
    return HookSignal.EXHAUSTED if attempts >= ATTEMPTS_MAX else HookSignal.FAILED


def lost(attempts: int) -> HookSignal:
    """The signal to a row whose worker died while a handler had it; `attempts` includes that one."""
    return HookSignal.EXHAUSTED if attempts >= ATTEMPTS_MAX else HookSignal.HANDLER_LOST
