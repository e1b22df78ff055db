"""The life of a row of the operation log on its way to the relay: what may happen to it, and when an operator may requeue it.

A row is never deleted and its id is never released, so every life ends in a status that says how. The store applies a
transition by compare-and-set on the status it read.
"""

from enum import StrEnum

import msgspec

from holdfast.protocol.refusal import Refusal
from holdfast.protocol.tables import total, transitions


class Status(StrEnum):
    """The status of a row. The outbox is the rows that are pending or inflight."""

    PENDING = "pending"
    INFLIGHT = "inflight"
    DONE = "done"
    DEAD = "dead"
    ABORTED = "aborted"


class Signal(StrEnum):
    """An event in the life of a row."""

    CLAIMED = "claimed"  # the sender takes it into a batch; its sealed event is on disk from here on
    ACCEPTED = "accepted"  # 201
    DUPLICATE = "duplicate"  # 200, or the relay tells a requeue that it has this id
    CONFLICT = "conflict"  # 409: the relay has other bytes under this id
    REFUSED = "refused"  # permanently
    POSTPONED = "postponed"  # refused temporarily
    HELD_BACK = "held_back"  # not decided, because one before it was postponed
    KEY_STALE = "key_stale"  # refused temporarily for its key or date: the event is discarded and sealed again
    FAULTED = "faulted"  # no answer, or none that can be understood
    RESTARTED = "restarted"  # the process that had claimed it is gone
    AGED_OUT = "aged_out"  # past the age at which the relay could still recognise a repetition
    REQUEUED = "requeued"  # an operator gives its content to a new row with a new id
    # The relay was restored to a point before it accepted this row: the row loses the relay's ids.
    ROLLED_BACK = "rolled_back"


# A late yes is recorded in every status. A late no is not a signal at all: the attempt that it answers is over, and the
# sender ignores it.
TRANSITIONS = transitions(
    {
        (Status.PENDING, Signal.CLAIMED): Status.INFLIGHT,
        # An answer that outlived its timeout, or the relay telling a requeue that the id is committed.
        (Status.PENDING, Signal.ACCEPTED): Status.DONE,
        (Status.PENDING, Signal.DUPLICATE): Status.DONE,
        # Only a waiting row may age out: one in flight may be committed at this very moment.
        (Status.PENDING, Signal.AGED_OUT): Status.DEAD,
        (Status.PENDING, Signal.REQUEUED): Status.ABORTED,
        (Status.INFLIGHT, Signal.ACCEPTED): Status.DONE,
        (Status.INFLIGHT, Signal.DUPLICATE): Status.DONE,
        # The sealed bytes never change, so a conflict is final: the id was used for something else.
        (Status.INFLIGHT, Signal.CONFLICT): Status.DEAD,
        (Status.INFLIGHT, Signal.REFUSED): Status.DEAD,
        (Status.INFLIGHT, Signal.POSTPONED): Status.PENDING,
        (Status.INFLIGHT, Signal.HELD_BACK): Status.PENDING,
        (Status.INFLIGHT, Signal.KEY_STALE): Status.PENDING,
        # It may have been committed; the same bytes are offered again, and the relay recognises them.
        (Status.INFLIGHT, Signal.FAULTED): Status.PENDING,
        (Status.INFLIGHT, Signal.RESTARTED): Status.PENDING,
        # Two attempts were answered: the first after its timeout, the second in time.
        (Status.DONE, Signal.ACCEPTED): Status.DONE,
        (Status.DONE, Signal.DUPLICATE): Status.DONE,
        (Status.DONE, Signal.ROLLED_BACK): Status.PENDING,
        (Status.DEAD, Signal.REQUEUED): Status.ABORTED,
        # Dead is final, because the caller was told so; the row keeps the relay's ids while the relay has it, and a receipt
        # still changes what is shown.
        (Status.DEAD, Signal.ACCEPTED): Status.DEAD,
        (Status.DEAD, Signal.DUPLICATE): Status.DEAD,
        (Status.DEAD, Signal.ROLLED_BACK): Status.DEAD,
        # The successor is on its way under its own id; the row records that this one arrived too.
        (Status.ABORTED, Signal.ACCEPTED): Status.ABORTED,
        (Status.ABORTED, Signal.DUPLICATE): Status.ABORTED,
    }
)

# Whether a signal ends an attempt, which adds one to `attempts` and so lengthens the next wait. Only a row in flight is in
# an attempt: a late yes to any other answers an attempt that was counted when it ended.
COUNTS = total(
    {
        Signal.CLAIMED: False,
        Signal.ACCEPTED: True,
        Signal.DUPLICATE: True,
        Signal.CONFLICT: True,
        Signal.REFUSED: True,
        Signal.POSTPONED: True,
        # The relay did not decide on the row: it waits for the one before it, and its own waits must not grow meanwhile.
        Signal.HELD_BACK: False,
        Signal.KEY_STALE: True,
        Signal.FAULTED: True,
        Signal.RESTARTED: True,  # it may have been committed, and a row without attempts counts as never offered
        Signal.AGED_OUT: False,
        Signal.REQUEUED: False,
        Signal.ROLLED_BACK: False,
    },
    Signal,
)


def counts(status: Status, signal: Signal) -> bool:
    """Whether this signal to a row of this status adds one to its attempts."""
    return status is Status.INFLIGHT and COUNTS[signal]


class RelayWord(StrEnum):
    """What is known, of the relay or by receipts, about an id that an operator wants to requeue."""

    NOT_ASKED = "not_asked"  # it was never offered, or the status alone decides
    COMMITTED = "committed"  # the relay has these very bytes; other bytes under this id do not count
    NOT_COMMITTED = "not_committed"
    UNREACHABLE = "unreachable"
    # Whatever the relay says, which may have been restored, recipients have signed that they have it:
    RECEIPTED = "receipted"  # its only one
    RECEIPTED_BY_SOME = "receipted_by_some"  # these of a topic's readers, or the only one, who could not make use of it


class Requeue(msgspec.Struct, frozen=True):
    """What a requeue does: a signal to the old row, a refusal to the operator, or both."""

    signal: Signal | None = None
    refusal: Refusal | None = None
    force_helps: bool = False  # --force turns the refusal into REQUEUED, and is recorded


REQUEUES = total(
    {
        (Status.PENDING, RelayWord.NOT_ASKED): Requeue(Signal.REQUEUED),
        (Status.PENDING, RelayWord.NOT_COMMITTED): Requeue(Signal.REQUEUED),
        # Nothing is stuck: only the answer was lost, and now it is known.
        (Status.PENDING, RelayWord.COMMITTED): Requeue(Signal.DUPLICATE, Refusal.REQUEUE_OF_DONE),
        (Status.PENDING, RelayWord.UNREACHABLE): Requeue(None, Refusal.REQUEUE_UNCONFIRMED, force_helps=True),
        # It has arrived, so nothing is stuck; the row goes on as it is.
        (Status.PENDING, RelayWord.RECEIPTED): Requeue(None, Refusal.REQUEUE_OF_DONE),
        (Status.PENDING, RelayWord.RECEIPTED_BY_SOME): Requeue(None, Refusal.REQUEUE_OF_RECEIPTED, force_helps=True),
        # Dead does not mean not committed: the relay may have accepted the last attempt without our knowing. The row
        # records such a yes and stays dead.
        (Status.DEAD, RelayWord.NOT_ASKED): Requeue(Signal.REQUEUED),
        (Status.DEAD, RelayWord.NOT_COMMITTED): Requeue(Signal.REQUEUED),
        (Status.DEAD, RelayWord.COMMITTED): Requeue(Signal.DUPLICATE, Refusal.REQUEUE_OF_DONE),
        (Status.DEAD, RelayWord.UNREACHABLE): Requeue(None, Refusal.REQUEUE_UNCONFIRMED, force_helps=True),
        (Status.DEAD, RelayWord.RECEIPTED): Requeue(None, Refusal.REQUEUE_OF_DONE),
        (Status.DEAD, RelayWord.RECEIPTED_BY_SOME): Requeue(None, Refusal.REQUEUE_OF_RECEIPTED, force_helps=True),
        # A forced requeue here could commit one content under two ids.
        (Status.INFLIGHT, RelayWord.NOT_ASKED): Requeue(None, Refusal.REQUEUE_OF_INFLIGHT),
        (Status.DONE, RelayWord.NOT_ASKED): Requeue(None, Refusal.REQUEUE_OF_DONE),
        (Status.ABORTED, RelayWord.NOT_ASKED): Requeue(None, Refusal.REQUEUE_OF_ABORTED),
    },
    [
        *((status, RelayWord.NOT_ASKED) for status in Status),
        *((status, word) for status in (Status.PENDING, Status.DEAD) for word in RelayWord),
    ],
)


def word_at_hand(status: Status, attempts: int, has_relay_id: bool) -> RelayWord | None:
    """What is known about the relay without asking it; None if it must be asked.

    A pending or dead row that was offered before may be committed without our knowing. If it has the relay's id, it is.
    """
    if status not in (Status.PENDING, Status.DEAD):
        return RelayWord.NOT_ASKED
    if has_relay_id:
        return RelayWord.COMMITTED
    return RelayWord.NOT_ASKED if attempts == 0 else None
