"""The sender's reaction to each answer to an event in flight, or to the lack of one.

Whether a refusal is final is not listed again: it follows from the table of refusals, and from one more rule: only a
refusal of the event itself may end a row. A closed connection or a busy daemon says nothing about the event.
"""

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from holdfast.protocol.outbox import COUNTS, TRANSITIONS, Signal, Status
from holdfast.protocol.refusal import REFUSALS, Refusal, Subject
from holdfast.protocol.schedule import send_wait
from holdfast.protocol.tables import move, total


class Confirmation(StrEnum):
    """An answer that says that the relay has the event."""

    CREATED = "created"  # 201
    DUPLICATE = "duplicate"  # 200
    DUPLICATE_PRUNED = "duplicate_pruned"  # 200, and the relay's history of it is gone


class FaultKind(StrEnum):
    """A failure without an answer about the event: it may or may not be committed."""

    TIMEOUT = "timeout"
    CONNECTION_LOST = "connection_lost"
    SERVER_ERROR = "server_error"  # 5xx without a refusal's code
    NOT_UNDERSTOOD = "not_understood"  # a code or status unknown here: a proxy in between, or a newer relay


RelaySays = Confirmation | Refusal | FaultKind


class Level(StrEnum):
    """The level of the log line."""

    INFO = "info"
    WARN = "warn"


class Reaction(msgspec.Struct, frozen=True):
    """The signal to the row, the log level, whether Retry-After counts, and whether the message is sealed again."""

    signal: Signal
    level: Level
    heeds_retry_after: bool = False
    reseals: bool = False

    @property
    def status(self) -> Status:
        """The new status of the row, which was in flight."""
        return move(TRANSITIONS, Status.INFLIGHT, self.signal)

    @property
    def counts(self) -> bool:
        """Whether the attempt adds one to `attempts`."""
        return COUNTS[self.signal]

    def wait(self, attempts: int, fraction: float, retry_after_s: int | None = None) -> int:
        """Microseconds until the row is due again; `attempts` includes this one, if it counts.

        A row that was held back is due at once: the one before it holds its lane, and they leave together.
        """
        if not self.counts:
            return 0
        return send_wait(attempts, fraction, retry_after_s if self.heeds_retry_after else None)


_HELD_BACK = Reaction(Signal.HELD_BACK, Level.INFO)
# New bytes are safe even after an attempt that timed out: the relay says `stale_key` only if it has nothing under the id.
# Retry-After is ignored, because sealing again helps at once.
_STALE_KEY = Reaction(Signal.KEY_STALE, Level.INFO, reseals=True)

# The date is signed too, so the event is signed again once the clock is right; new bytes are safe for the same reason. The
# old bytes would be refused until their date comes, and administration signed meanwhile would have a higher counter.
_CLOCK_AHEAD = Reaction(Signal.KEY_STALE, Level.WARN, heeds_retry_after=True, reseals=True)


def _to_refusal(refusal: Refusal) -> Reaction:
    row = REFUSALS[refusal]
    match refusal:
        case Refusal.HELD_BACK:
            return _HELD_BACK
        case Refusal.STALE_KEY:
            return _STALE_KEY
        case Refusal.CLOCK_AHEAD:
            return _CLOCK_AHEAD
        case Refusal.IDEMPOTENCY_KEY_REUSED:
            return Reaction(Signal.CONFLICT, Level.WARN)
    if row.subject is not Subject.EVENT:
        return Reaction(Signal.FAULTED, Level.WARN, heeds_retry_after=True)
    if row.is_permanent:
        return Reaction(Signal.REFUSED, Level.WARN)
    return Reaction(Signal.POSTPONED, Level.INFO, heeds_retry_after=True)


REACTIONS: Mapping[RelaySays, Reaction] = total(
    {
        Confirmation.CREATED: Reaction(Signal.ACCEPTED, Level.INFO),
        Confirmation.DUPLICATE: Reaction(Signal.DUPLICATE, Level.INFO),
        # It is done, but can no longer be looked up at the relay: an operator should look at its retention.
        Confirmation.DUPLICATE_PRUNED: Reaction(Signal.DUPLICATE, Level.WARN),
        FaultKind.TIMEOUT: Reaction(Signal.FAULTED, Level.WARN),
        FaultKind.CONNECTION_LOST: Reaction(Signal.FAULTED, Level.WARN),
        FaultKind.SERVER_ERROR: Reaction(Signal.FAULTED, Level.WARN, heeds_retry_after=True),
        FaultKind.NOT_UNDERSTOOD: Reaction(Signal.FAULTED, Level.WARN, heeds_retry_after=True),
        **{refusal: _to_refusal(refusal) for refusal in Refusal},
    },
    [*Confirmation, *Refusal, *FaultKind],
)
