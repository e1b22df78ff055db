"""Which rows of the outbox the sender offers next.

A lane is what keeps order: one destination, with its receipts apart. A lane has at most one batch in flight, and its
first unfinished row decides for it: while that one waits, the lane waits, and no other does. Priority decides between
lanes only; inside a lane, order wins, so an urgent row lifts the rows that stand before it.
"""

from collections.abc import Iterable, Sequence
from itertools import chain, islice, takewhile

import msgspec

from holdfast.protocol.fingerprint import Priority
from holdfast.protocol.outbox import Status
from holdfast.protocol.tables import total

BATCH_ROWS_MAX = 100  # events in one request to the relay

URGENCY = total({Priority.NOW: 0, Priority.NEXT: 1, Priority.LOW: 2}, Priority)  # the lower goes first


class Lane(msgspec.Struct, frozen=True):
    """One destination's messages, or the receipts that go there: a full queue must not hold up receipts."""

    destination: str
    is_receipts: bool = False


class Waiting(msgspec.Struct, frozen=True):
    """What the choice needs to know of a row."""

    sequence: int
    lane: Lane
    priority: Priority
    next_attempt_at: int  # microseconds
    status: Status


def next_batch(
    rows: Iterable[Waiting], busy: frozenset[Lane], at: int, rows_max: int = BATCH_ROWS_MAX
) -> tuple[Waiting, ...]:
    """The rows for one request, in the order to offer them; `busy` lanes have a batch in flight already."""
    lanes = (waiting for lane, waiting in _by_lane(rows).items() if lane not in busy)
    ready = [due for waiting in lanes if (due := _due(waiting, at)[:rows_max])]
    ready.sort(key=lambda due: (min(URGENCY[row.priority] for row in due), due[0].sequence))
    return tuple(islice(chain.from_iterable(ready), rows_max))


def _by_lane(rows: Iterable[Waiting]) -> dict[Lane, list[Waiting]]:
    lanes: dict[Lane, list[Waiting]] = {}
    for row in sorted(rows, key=lambda row: row.sequence):
        if row.status in (Status.PENDING, Status.INFLIGHT):
            lanes.setdefault(row.lane, []).append(row)
    return lanes


def _due(waiting: Sequence[Waiting], at: int) -> list[Waiting]:
    """The rows from the head on that may go now: none may overtake one that waits."""
    if any(row.status is Status.INFLIGHT for row in waiting):
        return []
    return list(takewhile(lambda row: row.next_attempt_at <= at, waiting))
