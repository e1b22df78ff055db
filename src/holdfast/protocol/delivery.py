"""The life of a delivery row: one message waiting at the relay for one recipient.

A row closes once and for good, with one entry in the history; its state and the kind of that entry are one word. A
recipient that was full or blocked at the accept has no row: its outcome stands in the accepted entry.
"""

from enum import StrEnum

from holdfast.protocol.tables import move, transitions


class State(StrEnum):
    """The state of a delivery row. A member's queue is its open rows."""

    OPEN = "open"
    DELIVERED = "delivered"
    EXPIRED = "expired"
    DROPPED = "dropped"
    QUARANTINED = "quarantined"
    MODERATED = "moderated"


class Signal(StrEnum):
    """An event in the life of a delivery row."""

    ACKNOWLEDGED = "acknowledged"  # by the recipient, on its own connection, after its durable write
    TTL_PASSED = "ttl_passed"
    MEMBER_REVOKED = "member_revoked"
    FOUND_CORRUPT = "found_corrupt"
    TAKEN_DOWN = "taken_down"  # a content decision after the accept


# Sweep, revocation and moderation select open rows only, so nothing but an acknowledgement can meet a closed one: the
# first answer was lost, or two connections of one member were sent the same message. It succeeds and changes nothing.
TRANSITIONS = transitions(
    {
        (State.OPEN, Signal.ACKNOWLEDGED): State.DELIVERED,
        (State.OPEN, Signal.TTL_PASSED): State.EXPIRED,
        (State.OPEN, Signal.MEMBER_REVOKED): State.DROPPED,
        (State.OPEN, Signal.FOUND_CORRUPT): State.QUARANTINED,
        (State.OPEN, Signal.TAKEN_DOWN): State.MODERATED,
        (State.DELIVERED, Signal.ACKNOWLEDGED): State.DELIVERED,
        (State.EXPIRED, Signal.ACKNOWLEDGED): State.EXPIRED,
        (State.DROPPED, Signal.ACKNOWLEDGED): State.DROPPED,
        (State.QUARANTINED, Signal.ACKNOWLEDGED): State.QUARANTINED,
        (State.MODERATED, Signal.ACKNOWLEDGED): State.MODERATED,
    }
)


def appends_entry(state: State, signal: Signal) -> bool:
    """Whether this signal changes the row, and so appends an entry to the history."""
    return move(TRANSITIONS, state, signal) is not state
